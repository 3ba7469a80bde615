// The header is valid C++, and its declarations link.
#include "braid.h"

#include <cstdio>
#include <cstring>

int main() {
    static_assert(BRAID_CONFLICT < 0 && BRAID_NOT_FOUND > 0, "errors are negative");
    braid_options *options = nullptr;
    braid_db *db = nullptr;
    braid_table *table = nullptr;
    braid_value value = {};
    bool good = braid_options_new(&options) == BRAID_OK &&
                braid_options_set(options, BRAID_OPTION_DEVICE, BRAID_DEVICE_MEMORY) == BRAID_OK &&
                braid_db_open(nullptr, options, &db) == BRAID_OK &&
                braid_options_free(options) == BRAID_OK &&
                braid_table_open(db, "t", &table) == BRAID_OK &&
                braid_table_get(table, "k", 1, &value) == BRAID_NOT_FOUND &&
                braid_status_is_retryable(BRAID_CONFLICT) && braid_db_close(db) == BRAID_OK;
    std::puts(good && *braid_version() ? "ok" : braid_error_message());
    return good ? 0 : 1;
}
