/* Intended use of tables, transactions, snapshots and cursors. */
#include "check.h"

static void reading_and_writing(braid_db *db, braid_table *table) {
    braid_tx *tx = NULL;
    braid_value value;
    uint64_t first = 0, second = 0;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("ada"), S("lovelace")));
    OK(braid_tx_insert(tx, table, S("empty"), NULL, 0));
    OK(braid_tx_insert(tx, table, NULL, 0, S("the empty key")));
    OK(braid_tx_get(tx, table, S("ada"), &value));
    CHECK(value_is(&value, "lovelace"));
    EXPECT(BRAID_NOT_FOUND, braid_tx_get(tx, table, S("bob"), &value));
    CHECK(!value.data && value.len == 0);
    braid_value_free(&value);
    OK(braid_tx_contains(tx, table, S("ada")));
    EXPECT(BRAID_NOT_FOUND, braid_tx_contains(tx, table, S("bob")));
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("ada"), &value));
    OK(braid_tx_commit(tx, &first));

    OK(braid_table_get(table, S("ada"), &value));
    CHECK(value_is(&value, "lovelace"));
    OK(braid_table_get(table, S("empty"), &value));
    CHECK(value_is(&value, ""));
    OK(braid_table_get(table, NULL, 0, &value));
    CHECK(value_is(&value, "the empty key"));

    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_get_for_update(tx, table, S("ada"), &value));
    CHECK(value_is(&value, "lovelace"));
    EXPECT(BRAID_EXISTS, braid_tx_insert_if_absent(tx, table, S("ada"), S("x")));
    OK(braid_tx_insert_if_absent(tx, table, S("bob"), S("1")));
    braid_slice one = {"1", 1}, two = {"2", 1}, nothing = {NULL, 0};
    EXPECT(BRAID_MISMATCH, braid_tx_compare_and_set(tx, table, S("bob"), &two, &one));
    EXPECT(BRAID_MISMATCH, braid_tx_compare_and_set(tx, table, S("bob"), NULL, &one));
    OK(braid_tx_compare_and_set(tx, table, S("bob"), &one, &two));
    OK(braid_tx_get(tx, table, S("bob"), &value));
    CHECK(value_is(&value, "2"));
    OK(braid_tx_compare_and_set(tx, table, S("bob"), &two, NULL));
    EXPECT(BRAID_NOT_FOUND, braid_tx_contains(tx, table, S("bob")));
    OK(braid_tx_compare_and_set(tx, table, S("bob"), NULL, &nothing));
    OK(braid_tx_get(tx, table, S("bob"), &value));
    CHECK(value_is(&value, ""));
    OK(braid_tx_remove(tx, table, S("bob")));
    EXPECT(BRAID_NOT_FOUND, braid_tx_remove(tx, table, S("bob")));
    OK(braid_tx_set_durability(tx, BRAID_BUFFERED, 1000));
    OK(braid_tx_commit(tx, &second));
    CHECK(second > first);
    OK(braid_db_sync(db));

    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_remove(tx, table, S("ada")));
    OK(braid_tx_abort(tx));
    OK(braid_table_get(table, S("ada"), &value));
    CHECK(value_is(&value, "lovelace"));
}

/* A value outlives the object that it was read from. */
static void values(braid_db *db, braid_table *table) {
    char *large = malloc(1 << 20);
    braid_tx *tx = NULL;
    braid_value value, small;
    memset(large, 'x', 1 << 20);
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("large"), large, 1 << 20));
    OK(braid_tx_get(tx, table, S("large"), &value));
    OK(braid_tx_remove(tx, table, S("large")));
    OK(braid_tx_abort(tx));
    CHECK(value.len == 1 << 20 && memcmp(value.data, large, value.len) == 0);
    braid_value_free(&value);
    braid_value_free(&value);
    put(db, table, "small", "s");
    OK(braid_table_get(table, S("small"), &small));
    put(db, table, "small", "t");
    CHECK(value_is(&small, "s"));
    free(large);
}

static void conflicts(braid_db *db, braid_table *table) {
    braid_tx *a = NULL, *b = NULL;
    braid_value value;
    put(db, table, "x", "1");
    OK(braid_tx_begin(db, NULL, &a));
    OK(braid_tx_get(a, table, S("x"), &value));
    CHECK(value_is(&value, "1"));
    OK(braid_tx_insert(a, table, S("y"), S("from x")));
    put(db, table, "x", "2");
    EXPECT(BRAID_CONFLICT, braid_tx_commit(a, NULL));
    MESSAGE("overwritten");
    CHECK(braid_status_is_retryable(BRAID_CONFLICT));
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("y"), &value));

    braid_tx_options snapshot = {BRAID_SNAPSHOT_ISOLATION, BRAID_DURABLE, 0, 0};
    OK(braid_tx_begin(db, &snapshot, &b));
    put(db, table, "x", "3");
    OK(braid_tx_get(b, table, S("x"), &value));
    CHECK(value_is(&value, "2"));
    EXPECT(BRAID_CONFLICT, braid_tx_insert(b, table, S("x"), S("4")));
    OK(braid_tx_abort(b));

    // This thread would wait for itself.
    OK(braid_tx_begin(db, NULL, &a));
    OK(braid_tx_begin(db, NULL, &b));
    OK(braid_tx_insert(a, table, S("x"), S("5")));
    EXPECT(BRAID_SELF_DEADLOCK, braid_tx_insert(b, table, S("x"), S("6")));
    MESSAGE("another open transaction of this thread");
    CHECK(!braid_status_is_retryable(BRAID_SELF_DEADLOCK));
    braid_tx *impatient = NULL;
    braid_tx_options options = {.lock_timeout_us = 1};
    OK(braid_tx_begin(db, &options, &impatient));
    EXPECT(BRAID_LOCK_TIMEOUT, braid_tx_insert(impatient, table, S("x"), S("7")));
    MESSAGE("the lock time-out");
    CHECK(braid_status_is_retryable(BRAID_LOCK_TIMEOUT));
    OK(braid_tx_abort(impatient));
    OK(braid_tx_commit(a, NULL));
    OK(braid_tx_insert(b, table, S("x"), S("6")));
    OK(braid_tx_commit(b, NULL));
}

static void fill(braid_db *db, braid_table *table, int entries) {
    braid_tx *tx = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    for (int i = 0; i < entries; i++) {
        char key[16], value[16];
        snprintf(key, sizeof key, "key%05d", i);
        snprintf(value, sizeof value, "%d", i);
        OK(braid_tx_insert(tx, table, S(key), S(value)));
    }
    OK(braid_tx_commit(tx, NULL));
}

static int numbered(braid_entry entry, int number) {
    char key[16], value[16];
    snprintf(key, sizeof key, "key%05d", number);
    snprintf(value, sizeof value, "%d", number);
    return slice_is(entry.key, key) && slice_is(entry.value, value);
}

static void cursors(braid_db *db) {
    enum { ENTRIES = 1000 };
    braid_table *table = NULL;
    braid_snapshot *snapshot = NULL;
    braid_tx *tx = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry, many[64];
    size_t count = 0;
    OK(braid_table_open(db, "entries", &table));
    fill(db, table, ENTRIES);
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_tx_begin(db, NULL, &tx));
    for (int of_tx = 0; of_tx < 2; of_tx++) {
        /* Forward, backward, and from both ends at once. */
        OK(of_tx ? braid_tx_range(tx, table, NULL, &cursor)
                 : braid_snapshot_range(snapshot, table, NULL, &cursor));
        for (int i = 0; i < ENTRIES; i++) {
            OK(braid_cursor_next(cursor, &entry));
            CHECK(numbered(entry, i));
        }
        EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
        EXPECT(BRAID_END, braid_cursor_next_back(cursor, &entry));
        OK(braid_cursor_free(cursor));
        OK(of_tx ? braid_tx_range(tx, table, NULL, &cursor)
                 : braid_snapshot_range(snapshot, table, NULL, &cursor));
        for (int i = 0; i < ENTRIES / 2; i++) {
            OK(braid_cursor_next(cursor, &entry));
            CHECK(numbered(entry, i));
            OK(braid_cursor_next_back(cursor, &entry));
            CHECK(numbered(entry, ENTRIES - 1 - i));
        }
        EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
        OK(braid_cursor_free(cursor));

        /* Bounds of each kind. */
        braid_range range = {{BRAID_EXCLUDED, {"key00100", 8}}, {BRAID_INCLUDED, {"key00199", 8}}};
        OK(of_tx ? braid_tx_range(tx, table, &range, &cursor)
                 : braid_snapshot_range(snapshot, table, &range, &cursor));
        int expected = 199;
        while (braid_cursor_fetch(cursor, BRAID_REVERSE, many, 64, &count) == BRAID_OK)
            for (size_t i = 0; i < count; i++) CHECK(numbered(many[i], expected--));
        CHECK(expected == 100 && count == 0);
        EXPECT(BRAID_END, braid_cursor_fetch(cursor, BRAID_FORWARD, many, 64, &count));
        OK(braid_cursor_free(cursor));

        /* A prefix, in batches. */
        OK(of_tx ? braid_tx_prefix(tx, table, S("key007"), &cursor)
                 : braid_snapshot_prefix(snapshot, table, S("key007"), &cursor));
        expected = 700;
        while (braid_cursor_fetch(cursor, BRAID_FORWARD, many, 7, &count) == BRAID_OK)
            for (size_t i = 0; i < count; i++) CHECK(numbered(many[i], expected++));
        CHECK(expected == 800);
        OK(braid_cursor_free(cursor));
    }
    OK(braid_tx_abort(tx));

    /* A snapshot does not change, and its cursor outlives its handle. */
    put(db, table, "key00000", "new");
    OK(braid_snapshot_range(snapshot, table, NULL, &cursor));
    OK(braid_snapshot_free(snapshot));
    OK(braid_cursor_next(cursor, &entry));
    CHECK(numbered(entry, 0));
    OK(braid_cursor_free(cursor));
    OK(braid_table_free(table));
}

/* A cursor shows later writes after its position, and not before it. */
static void writing_under_a_cursor(braid_db *db) {
    enum { ENTRIES = 500 };
    braid_table *table = NULL;
    braid_tx *tx = NULL;
    braid_cursor *cursor = NULL, *other = NULL;
    braid_entry entry;
    OK(braid_table_open(db, "thinned", &table));
    fill(db, table, ENTRIES);
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_range(tx, table, NULL, &cursor));
    OK(braid_tx_range(tx, table, NULL, &other));
    for (int i = 0; i < ENTRIES; i++) {
        OK(braid_cursor_next(cursor, &entry));
        CHECK(numbered(entry, i));
        if (i % 2 == 0) OK(braid_tx_remove(tx, table, entry.key.data, entry.key.len));
    }
    EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
    for (int i = ENTRIES - 1; i > 0; i -= 2) {
        OK(braid_cursor_next_back(other, &entry));
        CHECK(numbered(entry, i));
        if (i == 251) {
            OK(braid_tx_insert(tx, table, S("key00400"), S("behind it")));
            OK(braid_tx_insert(tx, table, S("key00100"), S("100")));
        }
        if (i == 101) {
            OK(braid_cursor_next_back(other, &entry));
            CHECK(numbered(entry, 100));
        }
    }
    EXPECT(BRAID_END, braid_cursor_next_back(other, &entry));
    OK(braid_tx_commit(tx, NULL));
    /* Using the cursors is an error, but they can still be freed. */
    EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
    OK(braid_cursor_free(cursor));
    OK(braid_cursor_free(other));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_range(tx, table, NULL, &cursor));
    OK(braid_cursor_next(cursor, &entry));
    CHECK(slice_is(entry.key, "key00001"));
    OK(braid_tx_abort(tx));
    EXPECT(BRAID_STALE_HANDLE, braid_cursor_next(cursor, &entry));
    MESSAGE("cannot use the transaction: it was aborted");
    OK(braid_cursor_free(cursor));
    OK(braid_table_free(table));
}

/* Reads of a cursor are validated: a key inserted into a range that was read is a conflict. */
static void phantoms(braid_db *db) {
    braid_table *table = NULL;
    braid_tx *tx = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry;
    OK(braid_table_open(db, "phantoms", &table));
    put(db, table, "b", "");
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_range(tx, table, NULL, &cursor));
    OK(braid_cursor_next(cursor, &entry));
    EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
    OK(braid_tx_insert(tx, table, S("c"), S("")));
    put(db, table, "a", "");
    EXPECT(BRAID_CONFLICT, braid_tx_commit(tx, NULL));
    OK(braid_cursor_free(cursor));
    OK(braid_table_free(table));
}

static void snapshots(braid_db *db, braid_table *table) {
    braid_snapshot *snapshot = NULL;
    braid_value value;
    uint64_t number = 0, durable_seqno = 0;
    put(db, table, "s", "old");
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_snapshot_seqno(snapshot, &number));
    put(db, table, "s", "new");
    OK(braid_snapshot_get(snapshot, table, S("s"), &value));
    CHECK(value_is(&value, "old"));
    OK(braid_snapshot_contains(snapshot, table, S("s")));
    EXPECT(BRAID_NOT_FOUND, braid_snapshot_contains(snapshot, table, S("none")));
    EXPECT(BRAID_NOT_FOUND, braid_snapshot_get(snapshot, table, S("none"), &value));
    OK(braid_db_durable_seqno(db, &durable_seqno));
    CHECK(durable_seqno > number);
    OK(braid_snapshot_free(snapshot));
}

static int transfer(void *data, braid_tx *tx) {
    braid_table *table = data;
    braid_value value;
    int status = braid_tx_get_for_update(tx, table, S("count"), &value);
    char digit = '0';
    if (status == BRAID_OK) digit = *(const char *)value.data;
    braid_value_free(&value);
    if (status < 0) return status;
    digit++;
    return braid_tx_insert(tx, table, S("count"), &digit, 1);
}

static int tries;

static int collide(void *data, braid_tx *tx) {
    (void)data, (void)tx;
    return ++tries < 5 ? BRAID_CONFLICT : BRAID_OK;
}

static int give_up(void *data, braid_tx *tx) {
    OK(braid_tx_insert(tx, data, S("given up"), S("x")));
    return 1234;
}

static int end_it(void *data, braid_tx *tx) {
    (void)data;
    OK(braid_tx_abort(tx));
    return 0;
}

static void transact(braid_db *db, braid_table *table) {
    braid_value value;
    uint64_t first = 0, second = 0;
    OK(braid_db_transact(db, transfer, table, &first));
    OK(braid_db_transact(db, transfer, table, &second));
    CHECK(second > first);
    OK(braid_table_get(table, S("count"), &value));
    CHECK(value_is(&value, "2"));
    OK(braid_db_transact(db, collide, NULL, NULL));
    CHECK(tries == 5);
    CHECK(braid_db_transact(db, give_up, table, NULL) == 1234);
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("given up"), &value));
    EXPECT(BRAID_STALE_HANDLE, braid_db_transact(db, end_it, NULL, NULL));
}

static bool count_name(void *data, braid_slice name) {
    int *seen = data;
    CHECK(name.len > 0);
    return ++*seen < 3;
}

static void tables(braid_db *db) {
    braid_table *table = NULL, *again = NULL;
    braid_value value;
    int seen = 0;
    EXPECT(BRAID_NOT_FOUND, braid_table_open_existing(db, "new", &table));
    CHECK(!table);
    OK(braid_table_open(db, "new", &table));
    OK(braid_table_open_existing(db, "new", &again));
    put(db, table, "k", "v");
    OK(braid_table_get(again, S("k"), &value));
    CHECK(value_is(&value, "v"));
    OK(braid_table_rename(db, "new", "newer"));
    EXPECT(BRAID_TABLE_NOT_FOUND, braid_table_rename(db, "new", "newest"));
    EXPECT(BRAID_TABLE_EXISTS, braid_table_rename(db, "newer", "people"));
    OK(braid_table_names(db, count_name, &seen));
    CHECK(seen == 3);
    OK(braid_table_free(again));
    OK(braid_table_drop(db, "newer"));
    EXPECT(BRAID_NOT_FOUND, braid_table_drop(db, "newer"));
    EXPECT(BRAID_TABLE_DROPPED, braid_table_get(table, S("k"), &value));
    OK(braid_table_free(table));
}

int main(void) {
    braid_db *db = open_in_memory();
    braid_table *table = NULL;
    braid_stats stats;
    OK(braid_table_open(db, "people", &table));
    reading_and_writing(db, table);
    values(db, table);
    conflicts(db, table);
    cursors(db);
    writing_under_a_cursor(db);
    phantoms(db);
    snapshots(db, table);
    transact(db, table);
    tables(db);
    OK(braid_db_checkpoint(db));
    OK(braid_db_health(db));
    OK(braid_db_stats(db, &stats));
    CHECK(stats.protocol == BRAID_PROTOCOL_GLSN && stats.commits > 10 && stats.conflicts >= 2);
    CHECK(stats.checkpoints >= 1 && stats.page_size >= 4096 && stats.snapshots == 0);
    OK(braid_table_free(table));
    OK(braid_db_close(db));
    puts("ok");
    return 0;
}
