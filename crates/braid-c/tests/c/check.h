/* What the C tests have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "braid.h"

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__,       \
                    __LINE__, #condition, braid_error_message());                     \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* The call returns this status, and if that is an error, there is a message. */
#define EXPECT(expected, call)                                                        \
    do {                                                                              \
        int got = (int)(call);                                                        \
        if (got != (int)(expected) || (got < 0 && !*braid_error_message())) {         \
            fprintf(stderr, "%s:%d: %s: %s instead of %s (last error: %s)\n",         \
                    __FILE__, __LINE__, #call, braid_status_name(got),                \
                    braid_status_name(expected), braid_error_message());              \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

#define OK(call) EXPECT(BRAID_OK, call)

/* The last error's message has this in it. */
#define MESSAGE(part)                                                                 \
    do {                                                                              \
        if (!strstr(braid_error_message(), part)) {                                   \
            fprintf(stderr, "%s:%d: no \"%s\" in \"%s\"\n", __FILE__, __LINE__, part, \
                    braid_error_message());                                           \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

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
