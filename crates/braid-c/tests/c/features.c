/* Savepoints, options of tables, bulk loads, named snapshots, and reading changes, in memory. */
#include "check.h"

static braid_db *db;
static braid_value value;

static braid_table *open_table(const char *name) {
    braid_table *table = NULL;
    OK(braid_table_open(db, name, &table));
    return table;
}

static void savepoints(void) {
    braid_table *table = open_table("stock");
    braid_tx *tx = NULL, *other = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry;
    uint64_t outer, inner;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("apples"), S("3")));
    OK(braid_tx_savepoint(tx, &outer));
    OK(braid_tx_insert(tx, table, S("apples"), S("2")));
    OK(braid_tx_savepoint(tx, &inner));
    OK(braid_tx_insert(tx, table, S("pears"), S("7")));
    /* An open cursor no longer shows writes that were undone. */
    OK(braid_tx_range(tx, table, NULL, &cursor));
    OK(braid_cursor_next(cursor, &entry));
    CHECK(slice_is(entry.value, "2"));
    OK(braid_tx_rollback_to(tx, inner));
    EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
    OK(braid_cursor_free(cursor));
    EXPECT(BRAID_NOT_FOUND, braid_tx_contains(tx, table, S("pears")));
    OK(braid_tx_rollback_to(tx, outer));
    OK(braid_tx_rollback_to(tx, outer));
    EXPECT(BRAID_INVALID_SAVEPOINT, braid_tx_rollback_to(tx, inner));
    MESSAGE("savepoint");
    OK(braid_tx_get(tx, table, S("apples"), &value));
    CHECK(value_is(&value, "3"));
    OK(braid_tx_begin(db, NULL, &other));
    EXPECT(BRAID_INVALID_SAVEPOINT, braid_tx_rollback_to(other, outer));
    EXPECT(BRAID_INVALID_SAVEPOINT, braid_tx_rollback_to(other, UINT64_MAX));
    OK(braid_tx_abort(other));
    OK(braid_tx_commit(tx, NULL));
    EXPECT(BRAID_STALE_HANDLE, braid_tx_rollback_to(tx, outer));
    OK(braid_table_get(table, S("apples"), &value));
    CHECK(value_is(&value, "3"));
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("pears"), &value));
    OK(braid_table_free(table));
}

static void ranges_removed(void) {
    braid_table *table = open_table("days");
    braid_tx *tx = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry;
    braid_range week = {{BRAID_INCLUDED, {"08", 2}}, {BRAID_EXCLUDED, {"15", 2}}};
    uint64_t count = 0;
    OK(braid_tx_begin(db, NULL, &tx));
    for (int day = 1; day <= 31; day++) {
        char key[16];
        snprintf(key, sizeof key, "%02d", day);
        OK(braid_tx_insert(tx, table, S(key), S("x")));
    }
    OK(braid_tx_range(tx, table, &week, &cursor));
    OK(braid_cursor_next(cursor, &entry));
    OK(braid_tx_remove_range(tx, table, &week, &count));
    CHECK(count == 7);
    EXPECT(BRAID_END, braid_cursor_next(cursor, &entry));
    OK(braid_cursor_free(cursor));
    EXPECT(BRAID_NOT_FOUND, braid_tx_contains(tx, table, S("08")));
    OK(braid_tx_contains(tx, table, S("15")));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_remove_range(tx, table, NULL, &count));
    CHECK(count == 24);
    OK(braid_tx_commit(tx, NULL));
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("31"), &value));
    OK(braid_table_free(table));
}

static bool keeps_even(void *data, braid_slice key, braid_slice value) {
    unsigned *seen = data;
    const char *day = key.data;
    CHECK(key.len == 2 && slice_is(value, "x"));
    *seen += 1;
    return (day[1] - '0') % 2 == 0;
}

static bool asks_again(void *data, braid_slice key, braid_slice value) {
    braid_tx *tx = data;
    CHECK(key.len == 2 && value.len == 1);
    EXPECT(BRAID_BUSY, braid_tx_commit(tx, NULL));
    return true;
}

/* Removal by range and by predicate, with counts. */
static void entries_kept_popped_and_counted(void) {
    braid_table *table = open_table("months");
    braid_tx *tx = NULL;
    braid_snapshot *snapshot = NULL;
    braid_value key;
    braid_range until_october = {{BRAID_UNBOUNDED, {NULL, 0}}, {BRAID_EXCLUDED, {"10", 2}}};
    unsigned seen = 0;
    uint64_t count = 0;
    OK(braid_tx_begin(db, NULL, &tx));
    EXPECT(BRAID_NOT_FOUND, braid_tx_pop_first(tx, table, &key, &value));
    CHECK(key.data == NULL && value.data == NULL);
    braid_value_free(&key);
    for (int month = 1; month <= 12; month++) {
        char name[16];
        snprintf(name, sizeof name, "%02d", month);
        OK(braid_tx_insert(tx, table, S(name), S("x")));
    }
    OK(braid_tx_retain(tx, table, &until_october, keeps_even, &seen, &count));
    CHECK(seen == 9 && count == 5);
    OK(braid_tx_retain(tx, table, NULL, asks_again, tx, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_retain(tx, table, NULL, NULL, NULL, &count));
    MESSAGE("keep");
    OK(braid_tx_len(tx, table, &count));
    CHECK(count == 7);
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_snapshot_len(snapshot, table, &count));
    CHECK(count == 0);
    OK(braid_snapshot_free(snapshot));
    OK(braid_tx_pop_first(tx, table, &key, &value));
    CHECK(value_is(&key, "02") && value_is(&value, "x"));
    OK(braid_tx_pop_last(tx, table, &key, &value));
    CHECK(value_is(&key, "12") && value_is(&value, "x"));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_pop_last(tx, table, NULL, &value));
    MESSAGE("key");
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_pop_last(tx, table, &key, NULL));
    MESSAGE("value");
    OK(braid_tx_commit(tx, NULL));
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_snapshot_len(snapshot, table, &count));
    CHECK(count == 5);
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_len(snapshot, table, NULL));
    OK(braid_snapshot_free(snapshot));
    EXPECT(BRAID_STALE_HANDLE, braid_tx_len(tx, table, &count));
    OK(braid_table_free(table));
}

/* Several writes to several tables in one call: all or none. */
static void batches(void) {
    braid_table *stock = open_table("goods"), *orders = open_table("orders");
    braid_ticket *ticket = NULL;
    uint64_t first = 0, second = 0;
    braid_write writes[4];
    memset(writes, 0, sizeof writes);
    writes[0].table = writes[1].table = writes[3].table = stock;
    writes[2].table = orders;
    writes[0].key = writes[3].key = slice("tea");
    writes[0].value = slice("10");
    writes[1].key = slice("cups");
    writes[2].key = slice("1");
    writes[2].value = slice("ada");
    writes[3].value = slice("9");
    OK(braid_db_write(db, writes, 4, &first));
    OK(braid_table_get(stock, S("tea"), &value));
    CHECK(value_is(&value, "9"));
    OK(braid_table_get(stock, S("cups"), &value));
    CHECK(value_is(&value, ""));
    OK(braid_table_get(orders, S("1"), &value));
    CHECK(value_is(&value, "ada"));

    writes[1].operation = BRAID_REMOVE;
    writes[2].operation = BRAID_REMOVE;
    writes[2].key = slice("there is none");
    OK(braid_db_write_async(db, writes, 3, &ticket));
    OK(braid_ticket_seqno(ticket, &second));
    CHECK(second > first);
    OK(braid_ticket_wait(ticket));
    OK(braid_ticket_free(ticket));
    OK(braid_table_get(stock, S("tea"), &value));
    CHECK(value_is(&value, "10"));
    EXPECT(BRAID_NOT_FOUND, braid_table_get(stock, S("cups"), &value));
    OK(braid_db_write_async(db, writes, 1, NULL));
    OK(braid_db_write(db, NULL, 0, NULL));

    /* None, if one is invalid. */
    static char long_key[BRAID_MAX_KEY_LEN + 1];
    writes[0].value = slice("11");
    writes[1].key.data = long_key;
    writes[1].key.len = sizeof long_key;
    EXPECT(BRAID_KEY_TOO_LONG, braid_db_write(db, writes, 2, &first));
    EXPECT(BRAID_KEY_TOO_LONG, braid_db_write_async(db, writes, 2, &ticket));
    CHECK(!ticket);
    OK(braid_table_get(stock, S("tea"), &value));
    CHECK(value_is(&value, "10"));
    OK(braid_table_free(stock));
    OK(braid_table_free(orders));
}

/* Writes an entry; returns the status. */
static void write_one(braid_table *table, const void *key, size_t key_len, const void *data,
                      size_t len, braid_status status) {
    braid_write write;
    memset(&write, 0, sizeof write);
    write.table = table;
    write.operation = BRAID_PUT;
    write.key.data = key;
    write.key.len = key_len;
    write.value.data = data;
    write.value.len = len;
    EXPECT(status, braid_db_write(db, &write, 1, NULL));
}

/* Keys up to the limit among short ones, in order; also in a bulk load. */
static void long_keys(void) {
    static char key[BRAID_MAX_KEY_LEN + 1];
    const size_t lengths[] = {1, 1024, 1025, 4000, BRAID_MAX_KEY_LEN};
    const size_t count = sizeof lengths / sizeof lengths[0];
    braid_table *tables[2] = {open_table("long keys"), NULL};
    braid_loader *loader = NULL;
    memset(key, 'k', sizeof key);
    OK(braid_loader_new(db, "long keys loaded", NULL, &loader));
    for (size_t i = 0; i < count; i++) {
        write_one(tables[0], key, lengths[i], &lengths[i], sizeof lengths[i], BRAID_OK);
        OK(braid_loader_insert(loader, key, lengths[i], &lengths[i], sizeof lengths[i]));
    }
    write_one(tables[0], key, sizeof key, S("v"), BRAID_KEY_TOO_LONG);
    MESSAGE("8192");
    OK(braid_loader_finish(loader, &tables[1]));
    for (size_t t = 0; t < 2; t++) {
        size_t found;
        for (size_t i = 0; i < count; i++) {
            OK(braid_table_get(tables[t], key, lengths[i], &value));
            CHECK(value.len == sizeof found);
            memcpy(&found, value.data, sizeof found);
            CHECK(found == lengths[i]);
            braid_value_free(&value);
        }
        EXPECT(BRAID_NOT_FOUND, braid_table_get(tables[t], key, 1026, &value));
        OK(braid_table_free(tables[t]));
    }
}

/* The file is shorter after a table that filled it was dropped. */
static void compacting(void) {
    braid_table *table = open_table("bulky");
    braid_compact_report report = {0, 0, 0};
    braid_stats stats;
    static char text[4000];
    for (int i = 0; i < 200; i++) {
        braid_write write;
        memset(&write, 0, sizeof write);
        write.table = table;
        write.key.data = &i;
        write.key.len = sizeof i;
        write.value.data = text;
        write.value.len = sizeof text;
        OK(braid_db_write_async(db, &write, 1, NULL));
    }
    OK(braid_db_checkpoint(db));
    OK(braid_table_free(table));
    OK(braid_table_drop(db, "bulky"));
    OK(braid_db_compact(db, &report));
    CHECK(report.bytes_after < report.bytes_before && report.checkpoints >= 2);
    OK(braid_db_stats(db, &stats));
    CHECK(stats.file_bytes == report.bytes_after && !stats.poisoned && !stats.checkpoint_failing);
    OK(braid_db_compact(db, NULL));
}

static void table_options(void) {
    braid_table_options asked = {BRAID_COMPRESSION_LZ4, 0}, found = {7, 7};
    braid_table_options brief = {BRAID_COMPRESSION_NONE, 1}, wrong = {7, 0};
    braid_table *table = NULL, *again = NULL;
    uint64_t removed = 0;
    static char text[10000];
    memset(text, 'a', sizeof text);
    OK(braid_table_open_with(db, "pages", &asked, &table));
    OK(braid_table_get_options(table, &found));
    CHECK(found.compression == BRAID_COMPRESSION_LZ4 && found.time_to_live_ms == 0);
    braid_tx *tx = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("page"), text, sizeof text));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_table_get(table, S("page"), &value));
    CHECK(value.len == sizeof text && memcmp(value.data, text, value.len) == 0);
    braid_value_free(&value);
    EXPECT(BRAID_TABLE_OPTIONS, braid_table_open_with(db, "pages", &brief, &again));
    MESSAGE("pages");
    CHECK(!again);
    OK(braid_table_open_with(db, "pages", &asked, &again));
    OK(braid_table_free(again));
    OK(braid_table_open(db, "pages", &again));
    OK(braid_table_free(again));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_table_open_with(db, "other", &wrong, &again));
    OK(braid_table_open_with(db, "plain", NULL, &again));
    OK(braid_table_get_options(again, &found));
    CHECK(found.compression == BRAID_COMPRESSION_NONE && found.time_to_live_ms == 0);
    OK(braid_table_free(again));
    OK(braid_table_free(table));

    /* Invisible once expired, and removed later. */
    OK(braid_table_open_with(db, "sessions", &brief, &table));
    put(db, table, "ada", "1");
    int there = BRAID_OK;
    while (there == BRAID_OK) {
        there = braid_table_get(table, S("ada"), &value);
        braid_value_free(&value);
    }
    EXPECT(BRAID_NOT_FOUND, there);
    OK(braid_db_remove_expired(db, &removed));
    braid_stats stats;
    OK(braid_db_stats(db, &stats));
    /* The maintenance thread may have removed the entry first. */
    CHECK(removed <= 1 && stats.expired <= 1);
    OK(braid_db_remove_expired(db, NULL));
    OK(braid_table_free(table));
}

/* Called once, when the database closes; in memory nothing else can happen. */
static void health_is_reported(void *data, braid_status status, const char *message) {
    int *reported = data;
    CHECK(status == BRAID_CLOSED && message && *message);
    ++*reported;
}

static void health(void) {
    braid_options *options = NULL;
    braid_db *watched = NULL;
    int reported = 0;
    OK(braid_options_new(&options));
    OK(braid_options_set(options, BRAID_OPTION_DEVICE, BRAID_DEVICE_MEMORY));
    OK(braid_options_set(options, BRAID_OPTION_STATS_FILE, 1));
    OK(braid_options_set_health_callback(options, health_is_reported, &reported));
    OK(braid_db_open(NULL, options, &watched));
    OK(braid_options_free(options));
    OK(braid_db_health(watched));
    OK(braid_db_close(watched));
    CHECK(reported == 1);
}

static void bulk_loads(void) {
    braid_loader *loader = NULL;
    braid_table *table = NULL;
    braid_table_options options = {BRAID_COMPRESSION_LZ4, 0}, found;
    uint64_t count = 0;
    static char long_key[BRAID_MAX_KEY_LEN + 1];
    OK(braid_loader_new(db, "numbers", &options, &loader));
    for (unsigned i = 0; i < 10000; i++) {
        unsigned char key[2] = {(unsigned char)(i >> 8), (unsigned char)i};
        OK(braid_loader_insert(loader, key, 2, &i, sizeof i));
    }
    EXPECT(BRAID_OUT_OF_ORDER, braid_loader_insert(loader, "\0", 1, S("x")));
    EXPECT(BRAID_KEY_TOO_LONG, braid_loader_insert(loader, long_key, sizeof long_key, S("x")));
    OK(braid_loader_count(loader, &count));
    CHECK(count == 10000);
    EXPECT(BRAID_NOT_FOUND, braid_table_open_existing(db, "numbers", &table));
    OK(braid_loader_finish(loader, &table));
    EXPECT(BRAID_STALE_HANDLE, braid_loader_insert(loader, S("x"), S("x")));
    MESSAGE("finished");
    EXPECT(BRAID_STALE_HANDLE, braid_loader_finish(loader, NULL));
    EXPECT(BRAID_STALE_HANDLE, braid_loader_abort(loader));
    unsigned found_number;
    OK(braid_table_get(table, "\x12\x34", 2, &value));
    memcpy(&found_number, value.data, sizeof found_number);
    CHECK(found_number == 0x1234);
    braid_value_free(&value);
    OK(braid_table_get_options(table, &found));
    CHECK(found.compression == BRAID_COMPRESSION_LZ4);
    put(db, table, "more", "as ever");
    EXPECT(BRAID_TABLE_EXISTS, braid_loader_new(db, "numbers", NULL, &loader));
    CHECK(!loader);
    OK(braid_table_free(table));
    /* Of two loads with one name, the second to finish fails. An aborted load leaves nothing. */
    braid_loader *second = NULL;
    OK(braid_loader_new(db, "twice", NULL, &loader));
    OK(braid_loader_new(db, "twice", NULL, &second));
    OK(braid_loader_finish(loader, NULL));
    EXPECT(BRAID_TABLE_EXISTS, braid_loader_finish(second, &table));
    CHECK(!table);
    OK(braid_loader_new(db, "never", NULL, &loader));
    OK(braid_loader_insert(loader, S("k"), S("v")));
    OK(braid_loader_abort(loader));
    EXPECT(BRAID_NOT_FOUND, braid_table_open_existing(db, "never", &table));
}

static bool add_name(void *data, braid_slice name) {
    char *names = data;
    strncat(names, name.data, name.len);
    strcat(names, ";");
    return true;
}

static bool first_name(void *data, braid_slice name) {
    add_name(data, name);
    return false;
}

static void named_snapshots(void) {
    braid_table *table = open_table("versions");
    braid_snapshot *monday = NULL, *found = NULL;
    char names[100] = "";
    put(db, table, "k", "1");
    OK(braid_snapshot_create(db, "monday", &monday));
    put(db, table, "k", "2");
    OK(braid_snapshot_create(db, "tuesday", NULL));
    EXPECT(BRAID_SNAPSHOT_EXISTS, braid_snapshot_create(db, "monday", &found));
    CHECK(!found);
    EXPECT(BRAID_SNAPSHOT_NOT_FOUND, braid_snapshot_open_named(db, "sunday", &found));
    CHECK(!found);
    OK(braid_snapshot_free(monday));
    OK(braid_snapshot_open_named(db, "monday", &found));
    OK(braid_snapshot_names(db, add_name, names));
    CHECK(strcmp(names, "monday;tuesday;") == 0);
    *names = '\0';
    OK(braid_snapshot_names(db, first_name, names));
    CHECK(strcmp(names, "monday;") == 0);
    OK(braid_snapshot_drop(db, "monday"));
    EXPECT(BRAID_NOT_FOUND, braid_snapshot_drop(db, "monday"));
    EXPECT(BRAID_SNAPSHOT_NOT_FOUND, braid_snapshot_open_named(db, "monday", &monday));
    /* Open handles stay valid. */
    OK(braid_snapshot_get(found, table, S("k"), &value));
    CHECK(value_is(&value, "1"));
    OK(braid_snapshot_free(found));
    OK(braid_snapshot_drop(db, "tuesday"));
    OK(braid_table_free(table));
}

static void snapshots_beyond_the_limit(void) {
    braid_options *options = NULL;
    braid_db *limited = NULL;
    braid_table *table = NULL;
    braid_snapshot *snapshot = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry;
    braid_stats stats;
    OK(braid_options_new(&options));
    OK(braid_options_set(options, BRAID_OPTION_DEVICE, BRAID_DEVICE_MEMORY));
    OK(braid_options_set(options, BRAID_OPTION_BACKGROUND_THREADS, 0));
    OK(braid_options_set(options, BRAID_OPTION_MAX_VERSION_BYTES, 1000));
    OK(braid_options_set(options, BRAID_OPTION_PMEM_COMMIT, BRAID_PMEM_COMMIT_CHECKSUM));
    OK(braid_options_set(options, BRAID_OPTION_PMEM_LINES, 0));
    OK(braid_options_set(options, BRAID_OPTION_PMEM_IN_PLACE, 0));
    OK(braid_db_open(NULL, options, &limited));
    OK(braid_options_free(options));
    OK(braid_table_open(limited, "t", &table));
    put(limited, table, "0", "zero");
    put(limited, table, "1", "one");
    OK(braid_snapshot_open(limited, &snapshot));
    OK(braid_snapshot_range(snapshot, table, NULL, &cursor));
    OK(braid_cursor_next(cursor, &entry));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 50; i++) {
            char key[16];
            snprintf(key, sizeof key, "%d", i);
            put(limited, table, key, "new");
        }
    }
    EXPECT(BRAID_SNAPSHOT_TOO_OLD, braid_snapshot_get(snapshot, table, S("0"), &value));
    MESSAGE("raise max_version_bytes");
    CHECK(braid_status_is_retryable(BRAID_SNAPSHOT_TOO_OLD));
    EXPECT(BRAID_SNAPSHOT_TOO_OLD, braid_cursor_next(cursor, &entry));
    OK(braid_cursor_free(cursor));
    OK(braid_snapshot_free(snapshot));
    OK(braid_db_stats(limited, &stats));
    CHECK(stats.snapshots_ended == 1);
    CHECK(stats.old_version_bytes < 10000);
    OK(braid_snapshot_open(limited, &snapshot));
    OK(braid_snapshot_get(snapshot, table, S("0"), &value));
    CHECK(value_is(&value, "new"));
    OK(braid_snapshot_free(snapshot));
    OK(braid_table_free(table));
    OK(braid_db_close(limited));
}

static void changes(void) {
    braid_table *table = open_table("watched");
    braid_changes *reader = NULL, *again = NULL;
    braid_position from, at, oldest;
    braid_change_set set;
    braid_loader *loader = NULL;
    braid_tx *tx = NULL;
    uint64_t number;
    OK(braid_db_position(db, &from));
    OK(braid_db_oldest_position(db, &oldest));
    OK(braid_db_changes(db, &from, &reader));
    EXPECT(BRAID_END, braid_changes_next(reader, 0, &set));
    EXPECT(BRAID_END, braid_changes_next(reader, 1, &set));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("a"), S("1")));
    OK(braid_tx_insert(tx, table, S("b"), S("")));
    OK(braid_tx_commit(tx, &number));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_remove(tx, table, S("a")));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_changes_next(reader, 10000000, &set));
    CHECK(set.seqno == number && set.change_count == 2 && set.loaded_count == 0);
    CHECK(slice_is(set.changes[0].table, "watched") && slice_is(set.changes[0].key, "a"));
    CHECK(slice_is(set.changes[0].value, "1") && set.changes[0].table_id > 0);
    CHECK(slice_is(set.changes[1].value, "") && set.changes[1].value.data);
    OK(braid_changes_position(reader, &at));
    CHECK(memcmp(&at, &set.position, sizeof at) == 0);
    OK(braid_changes_next(reader, 0, &set));
    CHECK(set.change_count == 1 && slice_is(set.changes[0].key, "a") && !set.changes[0].value.data);
    EXPECT(BRAID_END, braid_changes_next(reader, 0, &set));
    /* From the first reader's position, or from its sequence number. */
    OK(braid_db_changes(db, &at, &again));
    OK(braid_changes_next(again, 0, &set));
    CHECK(set.seqno > number);
    OK(braid_changes_free(again));
    EXPECT(BRAID_STALE_HANDLE, braid_changes_next(again, 0, &set));
    OK(braid_db_position_after(db, number, &from));
    CHECK(memcmp(&at, &from, sizeof at) == 0);
    /* A bulk-loaded table is reported by its name. */
    OK(braid_loader_new(db, "loaded", NULL, &loader));
    OK(braid_loader_insert(loader, S("k"), S("v")));
    OK(braid_loader_finish(loader, NULL));
    OK(braid_changes_next(reader, 0, &set));
    CHECK(set.change_count == 0 && set.loaded_count == 1 && slice_is(set.loaded[0], "loaded"));
    OK(braid_changes_free(reader));
    at.bytes[0] ^= 1;
    EXPECT(BRAID_FOREIGN_POSITION, braid_db_changes(db, &at, &reader));
    CHECK(!reader);
    OK(braid_table_free(table));
}

static void feeds(void) {
    braid_table *table = open_table("fed");
    braid_feed *feed = NULL;
    braid_changes *reader = NULL;
    braid_position at, acknowledged;
    braid_change_set set;
    char names[100] = "";
    OK(braid_feed_open(db, "index", &feed));
    put(db, table, "a", "1");
    put(db, table, "b", "2");
    OK(braid_feed_changes(feed, &reader));
    OK(braid_changes_next(reader, 0, &set));
    at = set.position;
    OK(braid_feed_acknowledge(feed, &at));
    OK(braid_feed_position(feed, &acknowledged));
    CHECK(memcmp(&at, &acknowledged, sizeof at) == 0);
    OK(braid_changes_free(reader));
    OK(braid_feed_free(feed));
    EXPECT(BRAID_STALE_HANDLE, braid_feed_position(feed, &at));
    /* Unacknowledged changes are returned again. */
    OK(braid_feed_open(db, "index", &feed));
    OK(braid_feed_changes(feed, &reader));
    OK(braid_changes_next(reader, 0, &set));
    CHECK(set.change_count == 1 && slice_is(set.changes[0].key, "b"));
    EXPECT(BRAID_END, braid_changes_next(reader, 0, &set));
    OK(braid_feed_names(db, add_name, names));
    CHECK(strcmp(names, "index;") == 0);
    EXPECT(BRAID_TABLE_NAME, braid_feed_open(db, "", &(braid_feed *){0}));
    acknowledged.bytes[5] ^= 1;
    EXPECT(BRAID_FOREIGN_POSITION, braid_feed_acknowledge(feed, &acknowledged));
    OK(braid_feed_drop(db, "index"));
    EXPECT(BRAID_NOT_FOUND, braid_feed_drop(db, "index"));
    EXPECT(BRAID_FEED_NOT_FOUND, braid_feed_position(feed, &at));
    EXPECT(BRAID_FEED_NOT_FOUND, braid_feed_acknowledge(feed, &at));
    EXPECT(BRAID_FEED_NOT_FOUND, braid_feed_changes(feed, &(braid_changes *){0}));
    OK(braid_table_free(table));
    /* These end with the database. */
    braid_loader *loader = NULL;
    OK(braid_loader_new(db, "late", NULL, &loader));
    OK(braid_db_close(db));
    EXPECT(BRAID_STALE_HANDLE, braid_loader_insert(loader, S("k"), S("v")));
    MESSAGE("database was closed");
    EXPECT(BRAID_STALE_HANDLE, braid_changes_next(reader, 0, &set));
    EXPECT(BRAID_STALE_HANDLE, braid_feed_position(feed, &at));
}

static void many_keys(void) {
    braid_table *table = open_table("many");
    braid_tx *tx = NULL;
    braid_snapshot *snapshot = NULL;
    braid_slice keys[] = {{"b", 1}, {"x", 1}, {"a", 1}, {NULL, 0}, {"b", 1}};
    braid_slice wrong[] = {{"b", 1}, {NULL, 1}};
    braid_range middle = {{BRAID_INCLUDED, {"a5", 2}}, {BRAID_EXCLUDED, {"b", 1}}};
    braid_value values[5];
    uint64_t entries = 7, bytes = 7;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("a"), S("1")));
    OK(braid_tx_insert(tx, table, S("b"), S("")));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("x"), S("own")));
    OK(braid_tx_prefetch(tx, table, keys, 5));
    OK(braid_tx_get_many(tx, table, keys, 5, values));
    CHECK(value_is(&values[0], "") && value_is(&values[1], "own") && value_is(&values[2], "1"));
    CHECK(!values[3].data && value_is(&values[4], ""));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_snapshot_prefetch(snapshot, table, keys, 5));
    OK(braid_snapshot_get_many(snapshot, table, keys, 3, values));
    CHECK(value_is(&values[0], "") && !values[1].data && value_is(&values[2], "1"));
    OK(braid_table_get_many(table, keys, 2, values));
    CHECK(value_is(&values[0], "") && value_is(&values[1], "own"));
    OK(braid_table_get_many(table, NULL, 0, NULL));
    /* After an error no element is a value, whatever it contained before. */
    memset(values, 0xa5, sizeof values);
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_get_many(table, wrong, 2, values));
    CHECK(!values[0].data && !values[1].data && values[2].data);
    memset(values, 0xa5, sizeof values);
    EXPECT(BRAID_STALE_HANDLE, braid_tx_get_many(tx, table, keys, 5, values));
    for (int i = 0; i < 5; i++) {
        CHECK(!values[i].data && values[i].len == 0);
        braid_value_free(&values[i]);
    }
    EXPECT(BRAID_INVALID_ARGUMENT, braid_table_get_many(table, keys, SIZE_MAX / 2, values));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_get_many(table, NULL, 2, values));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_get_many(table, keys, 2, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_prefetch(snapshot, table, NULL, 1));
    EXPECT(BRAID_STALE_HANDLE, braid_tx_prefetch(tx, table, keys, 2));
    OK(braid_snapshot_free(snapshot));

    OK(braid_table_estimate(table, NULL, &entries, &bytes));
    CHECK(entries == 3 && bytes == 7);
    OK(braid_table_estimate(table, &middle, &entries, NULL));
    CHECK(entries == 0);
    OK(braid_table_estimate(table, NULL, NULL, NULL));
    middle.lower.kind = 9;
    EXPECT(BRAID_INVALID_ARGUMENT, braid_table_estimate(table, &middle, &entries, &bytes));
    OK(braid_table_free(table));
    EXPECT(BRAID_STALE_HANDLE, braid_table_estimate(table, NULL, &entries, &bytes));
}

int main(void) {
    db = open_in_memory();
    many_keys();
    savepoints();
    ranges_removed();
    entries_kept_popped_and_counted();
    batches();
    long_keys();
    compacting();
    table_options();
    health();
    bulk_loads();
    named_snapshots();
    snapshots_beyond_the_limit();
    changes();
    feeds();
    puts("ok");
    return 0;
}
