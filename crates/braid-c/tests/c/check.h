/* Helpers of the C tests. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "braid.h"

/* Functions, because compilers and sanitizers would have to process hundreds of expanded macros. */
static inline void check(int is_true, const char *what, const char *file, int line) {
    if (is_true) return;
    fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", file, line, what, braid_error_message());
    exit(1);
}

#define CHECK(condition) check(!!(condition), #condition, __FILE__, __LINE__)

/* Checks that the call returned this status, and that an error has a message. */
static inline void expect(int expected, int got, const char *call, const char *file, int line) {
    if (got == expected && (got >= 0 || *braid_error_message())) return;
    fprintf(stderr, "%s:%d: %s: %s instead of %s (last error: %s)\n", file, line, call,
            braid_status_name(got), braid_status_name(expected), braid_error_message());
    exit(1);
}

#define EXPECT(expected, call) expect((int)(expected), (int)(call), #call, __FILE__, __LINE__)

#define OK(call) EXPECT(BRAID_OK, call)

/* Checks that the last error's message contains this text. */
static inline void message(const char *part, const char *file, int line) {
    if (strstr(braid_error_message(), part)) return;
    fprintf(stderr, "%s:%d: no \"%s\" in \"%s\"\n", file, line, part, braid_error_message());
    exit(1);
}

#define MESSAGE(part) message(part, __FILE__, __LINE__)

/* A string as two arguments. */
#define S(string) (string), strlen(string)

static inline braid_slice slice(const char *text) {
    braid_slice slice;
    slice.data = text;
    slice.len = strlen(text);
    return slice;
}

static inline int slice_is(braid_slice slice, const char *text) {
    return slice.len == strlen(text) && memcmp(slice.data, text, slice.len) == 0;
}

static inline int value_is(braid_value *value, const char *text) {
    int same = value->data && value->len == strlen(text) &&
               memcmp(value->data, text, value->len) == 0;
    braid_value_free(value);
    return same && !value->data;
}

static inline braid_db *open_in_memory(void) {
    braid_options *options = NULL;
    braid_db *db = NULL;
    OK(braid_options_new(&options));
    OK(braid_options_set(options, BRAID_OPTION_DEVICE, BRAID_DEVICE_MEMORY));
    OK(braid_options_set(options, BRAID_OPTION_POOL_BYTES, 4 << 20));
    OK(braid_db_open(NULL, options, &db));
    OK(braid_options_free(options));
    return db;
}

static inline void put(braid_db *db, braid_table *table, const char *key, const char *value) {
    braid_tx *tx = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S(key), S(value)));
    OK(braid_tx_commit(tx, NULL));
}

#endif
