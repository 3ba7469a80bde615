/* Invalid calls: each has its own status, no data is lost, and the process continues. */
#include "check.h"

#include <pthread.h>

static braid_db *db;
static braid_table *table;
static braid_tx *tx;
static braid_snapshot *snapshot;
static braid_cursor *cursor;
static braid_ticket *ticket;
static braid_options *options;
static braid_loader *loader;
static braid_feed *feed;
static braid_changes *changes;

static braid_position position;
static braid_change_set set;
static braid_table_options table_options;
static braid_value value;
static braid_entry entry;
static braid_stats stats;
static braid_recovery_report recovery;
static uint64_t number;
static size_t count;

static int body(void *data, braid_tx *given) {
    (void)data, (void)given;
    return 0;
}

static bool name(void *data, braid_slice given) {
    (void)data, (void)given;
    return true;
}

/* Called on the thread that completes the flush. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reported = PTHREAD_COND_INITIALIZER;

static void durable(void *data, braid_status status, uint64_t of, const char *message) {
    (void)of, (void)message;
    CHECK(status == BRAID_OK);
    pthread_mutex_lock(&lock);
    ++*(int *)data;
    pthread_cond_signal(&reported);
    pthread_mutex_unlock(&lock);
}

static bool take(void *data, const void *bytes, size_t len) {
    (void)data, (void)bytes, (void)len;
    return true;
}

static void healthy(void *data, braid_status status, const char *message) {
    (void)data, (void)status, (void)message;
}

static braid_write one_write;

/* Every call with the handle `H` and otherwise valid arguments fails with a status. */
#define WITH_DB(H, expected)                                                          \
    EXPECT(expected, braid_db_sync(H));                                               \
    EXPECT(expected, braid_db_wait(H, 0));                                            \
    EXPECT(expected, braid_db_checkpoint(H));                                         \
    EXPECT(expected, braid_db_health(H));                                             \
    EXPECT(expected, braid_db_durable_seqno(H, &number));                           \
    EXPECT(expected, braid_db_stats(H, &stats));                                      \
    EXPECT(expected, braid_db_recovery(H, &recovery));                                \
    EXPECT(expected, braid_db_transact(H, body, NULL, NULL));                         \
    EXPECT(expected, braid_table_drop(H, "none"));                                    \
    EXPECT(expected, braid_table_rename(H, "none", "nothing"));                       \
    EXPECT(expected, braid_table_names(H, name, NULL));                               \
    EXPECT(expected, braid_snapshot_names(H, name, NULL));                            \
    EXPECT(expected, braid_snapshot_drop(H, "none"));                                 \
    EXPECT(expected, braid_snapshot_create(H, "mine", NULL));                         \
    EXPECT(expected, braid_feed_names(H, name, NULL));                                \
    EXPECT(expected, braid_feed_drop(H, "none"));                                     \
    EXPECT(expected, braid_db_remove_expired(H, &number));                            \
    EXPECT(expected, braid_db_archive_now(H, &number));                               \
    EXPECT(expected, braid_db_compact(H, NULL));                                      \
    EXPECT(expected, braid_db_backup_to(H, take, NULL, NULL, NULL, NULL));            \
    EXPECT(expected, braid_db_write(H, &one_write, 1, &number));                      \
    EXPECT(expected, braid_db_backup(H, "never made", NULL, NULL, NULL, NULL));       \
    EXPECT(expected, braid_db_position(H, &position));                                \
    EXPECT(expected, braid_db_oldest_position(H, &position));                         \
    EXPECT(expected, braid_db_position_after(H, 1, &position));                      \
    do {                                                                              \
        braid_loader *out4 = loader;                                                  \
        braid_feed *out5 = feed;                                                      \
        braid_changes *out6 = changes;                                                \
        EXPECT(expected, braid_loader_new(H, "new", NULL, &out4));                    \
        EXPECT(expected, braid_feed_open(H, "new", &out5));                           \
        EXPECT(expected, braid_db_changes(H, &position, &out6));                      \
        CHECK(!out4 && !out5 && !out6);                                               \
    } while (0);                                                                      \
    do {                                                                              \
        braid_table *out1 = table;                                                    \
        braid_snapshot *out2 = snapshot;                                              \
        braid_tx *out3 = tx;                                                          \
        EXPECT(expected, braid_table_open(H, "t", &out1));                            \
        CHECK(!out1);                                                                 \
        EXPECT(expected, braid_table_open_existing(H, "t", &out1));                   \
        EXPECT(expected, braid_table_open_with(H, "t", NULL, &out1));                 \
        EXPECT(expected, braid_snapshot_open_named(H, "s", &out2));                   \
        EXPECT(expected, braid_snapshot_open(H, &out2));                              \
        CHECK(!out2);                                                                 \
        EXPECT(expected, braid_tx_begin(H, NULL, &out3));                             \
        CHECK(!out3);                                                                 \
        braid_ticket *out7 = ticket;                                                  \
        EXPECT(expected, braid_db_write_async(H, &one_write, 1, &out7));              \
        uint64_t out8 = 0;                                                            \
        EXPECT(expected, braid_db_submit(H, &one_write, 1, &out8));                   \
        CHECK(!out7);                                                                 \
    } while (0);                                                                      \
    EXPECT(expected, braid_db_close(H))

#define WITH_LOADER(H, expected)                                                      \
    EXPECT(expected, braid_loader_insert(H, S("k"), S("v")));                         \
    EXPECT(expected, braid_loader_count(H, &number));                                 \
    do {                                                                              \
        braid_table *out = table;                                                     \
        EXPECT(expected, braid_loader_finish(H, &out));                               \
        CHECK(!out);                                                                  \
    } while (0)

#define WITH_FEED(H, expected)                                                        \
    EXPECT(expected, braid_feed_position(H, &position));                              \
    EXPECT(expected, braid_feed_acknowledge(H, &position));                           \
    do {                                                                              \
        braid_changes *out = changes;                                                 \
        EXPECT(expected, braid_feed_changes(H, &out));                                \
        CHECK(!out);                                                                  \
    } while (0)

#define WITH_CHANGES(H, expected)                                                     \
    EXPECT(expected, braid_changes_next(H, 0, &set));                                 \
    EXPECT(expected, braid_changes_position(H, &position))

#define WITH_TABLE(H, expected)                                                       \
    EXPECT(expected, braid_table_get_options(H, &table_options));                     \
    EXPECT(expected, braid_table_get(H, S("k"), &value));                             \
    EXPECT(expected, braid_snapshot_get(snapshot, H, S("k"), &value));                \
    EXPECT(expected, braid_snapshot_contains(snapshot, H, S("k")));                   \
    EXPECT(expected, braid_tx_get(tx, H, S("k"), &value));                            \
    EXPECT(expected, braid_tx_get_for_update(tx, H, S("k"), &value));                 \
    EXPECT(expected, braid_tx_contains(tx, H, S("k")));                               \
    EXPECT(expected, braid_tx_insert(tx, H, S("k"), S("v")));                         \
    EXPECT(expected, braid_tx_insert_if_absent(tx, H, S("k"), S("v")));               \
    EXPECT(expected, braid_tx_compare_and_set(tx, H, S("k"), NULL, NULL));            \
    EXPECT(expected, braid_tx_remove(tx, H, S("k")));                                 \
    EXPECT(expected, braid_tx_remove_range(tx, H, NULL, &number));                    \
    do {                                                                              \
        braid_write written = one_write;                                              \
        written.table = H;                                                            \
        EXPECT(expected, braid_db_write(db, &written, 1, NULL));                      \
    } while (0);                                                                      \
    do {                                                                              \
        braid_cursor *out = cursor;                                                   \
        EXPECT(expected, braid_tx_range(tx, H, NULL, &out));                          \
        EXPECT(expected, braid_tx_prefix(tx, H, S("k"), &out));                       \
        EXPECT(expected, braid_snapshot_range(snapshot, H, NULL, &out));              \
        EXPECT(expected, braid_snapshot_prefix(snapshot, H, S("k"), &out));           \
        CHECK(!out);                                                                  \
    } while (0)

#define WITH_TX(H, expected)                                                          \
    EXPECT(expected, braid_tx_savepoint(H, &number));                                 \
    EXPECT(expected, braid_tx_rollback_to(H, 1));                                     \
    EXPECT(expected, braid_tx_get(H, table, S("k"), &value));                         \
    EXPECT(expected, braid_tx_get_for_update(H, table, S("k"), &value));              \
    EXPECT(expected, braid_tx_contains(H, table, S("k")));                            \
    EXPECT(expected, braid_tx_insert(H, table, S("k"), S("v")));                      \
    EXPECT(expected, braid_tx_insert_if_absent(H, table, S("k"), S("v")));            \
    EXPECT(expected, braid_tx_compare_and_set(H, table, S("k"), NULL, NULL));         \
    EXPECT(expected, braid_tx_remove(H, table, S("k")));                              \
    EXPECT(expected, braid_tx_remove_range(H, table, NULL, &number));                 \
    EXPECT(expected, braid_tx_set_durability(H, BRAID_DURABLE, 0));                   \
    EXPECT(expected, braid_tx_commit(H, &number));                                    \
    do {                                                                              \
        braid_cursor *out1 = cursor;                                                  \
        braid_ticket *out2 = ticket;                                                  \
        EXPECT(expected, braid_tx_range(H, table, NULL, &out1));                      \
        EXPECT(expected, braid_tx_prefix(H, table, S("k"), &out1));                   \
        CHECK(!out1);                                                                 \
        EXPECT(expected, braid_tx_commit_async(H, &out2));                            \
        CHECK(!out2);                                                                 \
    } while (0)

#define WITH_SNAPSHOT(H, expected)                                                    \
    EXPECT(expected, braid_snapshot_seqno(H, &number));                              \
    EXPECT(expected, braid_snapshot_get(H, table, S("k"), &value));                   \
    EXPECT(expected, braid_snapshot_contains(H, table, S("k")));                      \
    do {                                                                              \
        braid_cursor *out = cursor;                                                   \
        EXPECT(expected, braid_snapshot_range(H, table, NULL, &out));                 \
        EXPECT(expected, braid_snapshot_prefix(H, table, S("k"), &out));              \
        CHECK(!out);                                                                  \
    } while (0)

#define WITH_CURSOR(H, expected)                                                      \
    EXPECT(expected, braid_cursor_next(H, &entry));                                   \
    EXPECT(expected, braid_cursor_next_back(H, &entry));                              \
    EXPECT(expected, braid_cursor_fetch(H, BRAID_FORWARD, &entry, 1, &count))

#define WITH_TICKET(H, expected)                                                      \
    EXPECT(expected, braid_ticket_seqno(H, &number));                                \
    EXPECT(expected, braid_ticket_poll(H));                                           \
    EXPECT(expected, braid_ticket_wait(H));                                           \
    EXPECT(expected, braid_ticket_on_durable(H, durable, NULL))

#define WITH_OPTIONS(H, expected)                                                     \
    EXPECT(expected, braid_options_set(H, BRAID_OPTION_STRANDS, 1));                  \
    EXPECT(expected, braid_options_set_recovery_progress(H, progress, NULL));         \
    EXPECT(expected, braid_options_set_health_callback(H, healthy, NULL))

static void progress(void *data, const braid_recovery_progress *given) {
    (void)data, (void)given;
}

/* Functions that free, which accept NULL. */
#define FREE(H, expected, function) EXPECT(expected, function(H))

static void open_all(void) {
    braid_tx *committed = NULL;
    db = open_in_memory();
    OK(braid_options_new(&options));
    OK(braid_table_open(db, "t", &table));
    one_write.table = table;
    one_write.key = slice("other");
    put(db, table, "k", "v");
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_snapshot_range(snapshot, table, NULL, &cursor));
    OK(braid_tx_begin(db, NULL, &committed));
    OK(braid_tx_insert(committed, table, S("async"), S("v")));
    OK(braid_tx_commit_async(committed, &ticket));
    OK(braid_loader_new(db, "loaded", NULL, &loader));
    OK(braid_feed_open(db, "feed", &feed));
    OK(braid_feed_changes(feed, &changes));
}

static void null_handles(void) {
    WITH_DB(NULL, BRAID_NULL_ARGUMENT);
    MESSAGE("cannot use the database: it is NULL");
    WITH_TABLE(NULL, BRAID_NULL_ARGUMENT);
    WITH_TX(NULL, BRAID_NULL_ARGUMENT);
    WITH_SNAPSHOT(NULL, BRAID_NULL_ARGUMENT);
    WITH_CURSOR(NULL, BRAID_NULL_ARGUMENT);
    WITH_TICKET(NULL, BRAID_NULL_ARGUMENT);
    WITH_OPTIONS(NULL, BRAID_NULL_ARGUMENT);
    WITH_LOADER(NULL, BRAID_NULL_ARGUMENT);
    WITH_FEED(NULL, BRAID_NULL_ARGUMENT);
    WITH_CHANGES(NULL, BRAID_NULL_ARGUMENT);
    OK(braid_loader_abort(NULL));
    OK(braid_feed_free(NULL));
    OK(braid_changes_free(NULL));
    OK(braid_table_free(NULL));
    OK(braid_tx_abort(NULL));
    OK(braid_snapshot_free(NULL));
    OK(braid_cursor_free(NULL));
    OK(braid_ticket_free(NULL));
    OK(braid_options_free(NULL));
    braid_value_free(NULL);
}

static void null_results(void) {
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_new(NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_open("/tmp", NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_open(NULL, NULL, &db));
    db = NULL; /* like every handle that a failed call would have set */
}

static void null_arguments(void) {
    braid_table *none = NULL;
    braid_slice bad = {NULL, 3};
    braid_range range = {{BRAID_INCLUDED, {NULL, 3}}, {BRAID_UNBOUNDED, {NULL, 3}}};
    braid_cursor *out = NULL;
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_durable_seqno(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_stats(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_recovery(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_transact(db, NULL, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_open(db, NULL, &none));
    MESSAGE("name");
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_open(db, "t", NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_open_existing(db, NULL, &none));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_open_existing(db, "t", NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_drop(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_rename(db, NULL, "t"));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_rename(db, "t", NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_names(db, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_get(table, NULL, 3, &value));
    MESSAGE("key");
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_get(table, S("k"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_open(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_seqno(snapshot, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_get(snapshot, table, NULL, 3, &value));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_get(snapshot, table, S("k"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_contains(snapshot, table, NULL, 3));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_range(snapshot, table, &range, &out));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_range(snapshot, table, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_prefix(snapshot, table, NULL, 3, &out));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_prefix(snapshot, table, S("k"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_begin(db, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_get(tx, table, NULL, 3, &value));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_get(tx, table, S("k"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_get_for_update(tx, table, NULL, 3, &value));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_get_for_update(tx, table, S("k"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_contains(tx, table, NULL, 3));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_insert(tx, table, NULL, 3, S("v")));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_insert(tx, table, S("k"), NULL, 3));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_insert_if_absent(tx, table, NULL, 3, S("v")));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_compare_and_set(tx, table, NULL, 3, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_compare_and_set(tx, table, S("k"), &bad, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_remove(tx, table, NULL, 3));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_range(tx, table, &range, &out));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_range(tx, table, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_prefix(tx, table, NULL, 3, &out));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_prefix(tx, table, S("k"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_cursor_next(cursor, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_cursor_next_back(cursor, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_cursor_fetch(cursor, BRAID_FORWARD, NULL, 1, &count));
    EXPECT(BRAID_NULL_ARGUMENT, braid_cursor_fetch(cursor, BRAID_FORWARD, &entry, 1, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_ticket_seqno(ticket, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_ticket_on_durable(ticket, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_set_recovery_progress(options, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_set_archive(options, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_set_log_directory(options, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_set_health_callback(options, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_verify(NULL, NULL, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_upgrade(NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_salvage(NULL, "x", NULL, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_salvage("x", NULL, NULL, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_dump(NULL, take, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_dump("x", NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_backup_to(db, NULL, NULL, NULL, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_remove_range(tx, table, &range, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_write(db, NULL, 1, NULL));
    braid_write write = one_write;
    write.key = bad;
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_write(db, &write, 1, NULL));
    MESSAGE("key");
    write.key = one_write.key;
    write.value = bad;
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_submit(db, &one_write, 1, NULL));
    MESSAGE("seqno");
    EXPECT(BRAID_INVALID_ARGUMENT, braid_db_wait(db, UINT64_MAX));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_write_async(db, &write, 1, NULL));
    MESSAGE("value");
    EXPECT(BRAID_NULL_ARGUMENT, braid_tx_savepoint(tx, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_open_with(db, NULL, NULL, &none));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_open_with(db, "t", NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_get_options(table, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_create(db, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_open_named(db, "s", NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_drop(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_snapshot_names(db, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_loader_new(db, NULL, NULL, &(braid_loader *){0}));
    EXPECT(BRAID_NULL_ARGUMENT, braid_loader_new(db, "new", NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_loader_insert(loader, NULL, 3, S("v")));
    EXPECT(BRAID_NULL_ARGUMENT, braid_loader_insert(loader, S("k"), NULL, 3));
    EXPECT(BRAID_NULL_ARGUMENT, braid_loader_count(loader, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_open(db, NULL, &(braid_feed *){0}));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_open(db, "feed", NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_position(feed, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_acknowledge(feed, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_changes(feed, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_drop(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_feed_names(db, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_position(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_oldest_position(db, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_position_after(db, 1, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_changes(db, NULL, &(braid_changes *){0}));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_changes(db, &position, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_changes_next(changes, 0, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_changes_position(changes, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_backup(db, NULL, NULL, NULL, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_backup_read_info(NULL, &(braid_backup_info){0}));
    EXPECT(BRAID_NULL_ARGUMENT, braid_backup_read_info("x", NULL));
}

static void bad_arguments(void) {
    braid_tx *none = NULL;
    braid_table *no_table = NULL;
    braid_cursor *out = NULL;
    braid_tx_options isolation = {7, BRAID_DURABLE, 0, 0}, durability = {0, 7, 0, 0};
    braid_range range = {{7, {NULL, 0}}, {BRAID_UNBOUNDED, {NULL, 0}}};
    static char long_key[BRAID_MAX_KEY_LEN + 1], long_name[BRAID_MAX_TABLE_NAME_LEN + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    EXPECT(BRAID_INVALID_ARGUMENT, braid_tx_begin(db, &isolation, &none));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_tx_begin(db, &durability, &none));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_tx_set_durability(tx, -1, 0));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_tx_range(tx, table, &range, &out));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_tx_remove_range(tx, table, &range, NULL));
    braid_write writes[2];
    writes[0] = writes[1] = one_write;
    writes[1].operation = 7;
    EXPECT(BRAID_INVALID_ARGUMENT, braid_db_write(db, writes, 2, NULL));
    MESSAGE("operation 7");
    EXPECT(BRAID_INVALID_ARGUMENT, braid_db_write(db, writes, SIZE_MAX, NULL));
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("other"), &value));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_cursor_fetch(cursor, 7, &entry, 1, &count));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_cursor_fetch(cursor, 0, &entry, 0, &count));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, 0, 1));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_DEVICE, 99));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_PMEM_COMMIT, 3));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_PMEM_LINES, 2));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_PMEM_IN_PLACE, 2));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_LOG_DEVICE, 7));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_PROTOCOL, 0));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_DISCARD, 2));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_NUMA, 2));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_options_set(options, BRAID_OPTION_REMOTE_ACCESS, 3));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_table_open(db, "\xff\xfe", &no_table));
    MESSAGE("UTF-8");
    EXPECT(BRAID_TABLE_NAME, braid_table_open(db, "", &no_table));
    EXPECT(BRAID_TABLE_NAME, braid_table_open(db, long_name, &no_table));
    EXPECT(BRAID_INVALID_ARGUMENT, braid_tx_insert(tx, table, "k", SIZE_MAX, S("v")));
    EXPECT(BRAID_KEY_TOO_LONG, braid_tx_insert(tx, table, long_key, sizeof long_key, S("v")));
    CHECK(strcmp(braid_status_name(BRAID_CONFLICT), "BRAID_CONFLICT") == 0);
    CHECK(strcmp(braid_status_name(12345), "unknown") == 0);
    CHECK(!braid_status_is_retryable(BRAID_POISONED));
}

/* A handle of another kind, and pointers that are not handles. */
static void wrong_handles(void) {
    long long on_the_stack[4] = {0};
    WITH_DB((braid_db *)table, BRAID_INVALID_HANDLE);
    MESSAGE("cannot use a table as a database");
    WITH_TABLE((braid_table *)tx, BRAID_INVALID_HANDLE);
    WITH_TX((braid_tx *)db, BRAID_INVALID_HANDLE);
    WITH_SNAPSHOT((braid_snapshot *)cursor, BRAID_INVALID_HANDLE);
    WITH_CURSOR((braid_cursor *)ticket, BRAID_INVALID_HANDLE);
    WITH_TICKET((braid_ticket *)options, BRAID_INVALID_HANDLE);
    WITH_OPTIONS((braid_options *)snapshot, BRAID_INVALID_HANDLE);
    WITH_LOADER((braid_loader *)changes, BRAID_INVALID_HANDLE);
    MESSAGE("cannot use a reader of changes as a loader");
    WITH_FEED((braid_feed *)loader, BRAID_INVALID_HANDLE);
    WITH_CHANGES((braid_changes *)feed, BRAID_INVALID_HANDLE);
    WITH_LOADER((braid_loader *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_FEED((braid_feed *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_CHANGES((braid_changes *)on_the_stack, BRAID_INVALID_HANDLE);
    FREE((braid_loader *)db, BRAID_INVALID_HANDLE, braid_loader_abort);
    FREE((braid_feed *)db, BRAID_INVALID_HANDLE, braid_feed_free);
    FREE((braid_changes *)db, BRAID_INVALID_HANDLE, braid_changes_free);
    WITH_DB((braid_db *)on_the_stack, BRAID_INVALID_HANDLE);
    MESSAGE("not a handle");
    WITH_TABLE((braid_table *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_TX((braid_tx *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_SNAPSHOT((braid_snapshot *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_CURSOR((braid_cursor *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_TICKET((braid_ticket *)on_the_stack, BRAID_INVALID_HANDLE);
    WITH_OPTIONS((braid_options *)on_the_stack, BRAID_INVALID_HANDLE);
    FREE((braid_table *)db, BRAID_INVALID_HANDLE, braid_table_free);
    FREE((braid_tx *)db, BRAID_INVALID_HANDLE, braid_tx_abort);
    FREE((braid_snapshot *)db, BRAID_INVALID_HANDLE, braid_snapshot_free);
    FREE((braid_cursor *)db, BRAID_INVALID_HANDLE, braid_cursor_free);
    FREE((braid_ticket *)db, BRAID_INVALID_HANDLE, braid_ticket_free);
    FREE((braid_options *)db, BRAID_INVALID_HANDLE, braid_options_free);
    EXPECT(BRAID_INVALID_HANDLE, braid_db_open(".", (braid_options *)db, &(braid_db *){0}));
    /* Arbitrary bits. */
    unsigned long long bits = 88172645463325252ULL;
    for (int i = 0; i < 100000; i++) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        CHECK(braid_tx_contains((braid_tx *)(uintptr_t)bits, table, S("k")) < 0);
        CHECK(braid_table_get((braid_table *)(uintptr_t)(bits | 1 | 2 << 1), S("k"), &value) < 0);
    }
}

/* Handles whose objects ended in different ways; each call is made twice. */
static void stale_handles(void) {
    braid_tx *ended = NULL;
    braid_ticket *given = NULL;
    int called = 0;
    OK(braid_tx_begin(db, NULL, &ended));
    OK(braid_tx_commit(ended, NULL));
    WITH_TX(ended, BRAID_STALE_HANDLE);
    MESSAGE("was committed");
    EXPECT(BRAID_STALE_HANDLE, braid_tx_abort(ended));
    OK(braid_tx_begin(db, NULL, &ended));
    OK(braid_tx_commit_async(ended, &given));
    WITH_TX(ended, BRAID_STALE_HANDLE);
    OK(braid_tx_begin(db, NULL, &ended));
    OK(braid_tx_commit_async(ended, NULL));
    EXPECT(BRAID_STALE_HANDLE, braid_tx_commit(ended, NULL));
    OK(braid_tx_begin(db, NULL, &ended));
    OK(braid_tx_abort(ended));
    WITH_TX(ended, BRAID_STALE_HANDLE);
    EXPECT(BRAID_STALE_HANDLE, braid_tx_abort(ended));
    MESSAGE("was aborted");

    OK(braid_ticket_on_durable(given, durable, &called));
    WITH_TICKET(given, BRAID_STALE_HANDLE);
    MESSAGE("exchanged for a callback");
    EXPECT(BRAID_STALE_HANDLE, braid_ticket_free(given));
    pthread_mutex_lock(&lock);
    while (!called) pthread_cond_wait(&reported, &lock);
    CHECK(called == 1);
    pthread_mutex_unlock(&lock);

    OK(braid_cursor_free(cursor));
    EXPECT(BRAID_STALE_HANDLE, braid_cursor_free(cursor));
    WITH_CURSOR(cursor, BRAID_STALE_HANDLE);
    OK(braid_ticket_free(ticket));
    EXPECT(BRAID_STALE_HANDLE, braid_ticket_free(ticket));
    WITH_TICKET(ticket, BRAID_STALE_HANDLE);
    OK(braid_options_free(options));
    EXPECT(BRAID_STALE_HANDLE, braid_options_free(options));
    WITH_OPTIONS(options, BRAID_STALE_HANDLE);
    EXPECT(BRAID_STALE_HANDLE, braid_db_open(".", options, &(braid_db *){0}));

    braid_loader *aborted = NULL;
    OK(braid_loader_new(db, "aborted", NULL, &aborted));
    OK(braid_loader_abort(aborted));
    WITH_LOADER(aborted, BRAID_STALE_HANDLE);
    MESSAGE("was aborted");
    OK(braid_feed_free(feed));
    EXPECT(BRAID_STALE_HANDLE, braid_feed_free(feed));
    WITH_FEED(feed, BRAID_STALE_HANDLE);
    OK(braid_changes_free(changes));
    EXPECT(BRAID_STALE_HANDLE, braid_changes_free(changes));
    WITH_CHANGES(changes, BRAID_STALE_HANDLE);

    braid_table *freed = NULL;
    OK(braid_table_open(db, "t", &freed));
    OK(braid_table_free(freed));
    EXPECT(BRAID_STALE_HANDLE, braid_table_free(freed));
    MESSAGE("cannot use the table: it was freed");
    WITH_TABLE(freed, BRAID_STALE_HANDLE);
    braid_snapshot *gone = NULL;
    OK(braid_snapshot_open(db, &gone));
    OK(braid_snapshot_free(gone));
    EXPECT(BRAID_STALE_HANDLE, braid_snapshot_free(gone));
    WITH_SNAPSHOT(gone, BRAID_STALE_HANDLE);
    /* Their slots are reused; the old handles do not reach the new objects. */
    for (int i = 0; i < 10; i++) {
        OK(braid_snapshot_open(db, &snapshot));
        CHECK(snapshot != gone);
        EXPECT(BRAID_STALE_HANDLE, braid_snapshot_seqno(gone, &number));
        OK(braid_snapshot_free(snapshot));
    }
}

/* None of this affected the open objects. */
static void nothing_is_lost(void) {
    OK(braid_tx_get(tx, table, S("mine"), &value));
    CHECK(value_is(&value, "1"));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_table_get(table, S("mine"), &value));
    CHECK(value_is(&value, "1"));
    OK(braid_table_get(table, S("k"), &value));
    CHECK(value_is(&value, "v"));
}

/* A table of one database in a transaction of another. */
static void foreign_tables(void) {
    braid_db *other = open_in_memory();
    braid_table *foreign = NULL;
    braid_cursor *out = NULL;
    OK(braid_table_open(other, "t", &foreign));
    EXPECT(BRAID_FOREIGN_TABLE, braid_tx_get(tx, foreign, S("k"), &value));
    EXPECT(BRAID_FOREIGN_TABLE, braid_tx_insert(tx, foreign, S("k"), S("v")));
    EXPECT(BRAID_FOREIGN_TABLE, braid_tx_range(tx, foreign, NULL, &out));
    CHECK(!out);
    EXPECT(BRAID_FOREIGN_TABLE, braid_snapshot_range(snapshot, foreign, NULL, &out));
    OK(braid_db_close(other));
    EXPECT(BRAID_STALE_HANDLE, braid_tx_get(tx, foreign, S("k"), &value));
    MESSAGE("database was closed");
}

/* Closing ends open objects; tickets stay correct. */
static void closing(void) {
    braid_tx *committed = NULL;
    braid_cursor *of_tx = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("never"), S("v")));
    OK(braid_tx_range(tx, table, NULL, &of_tx));
    OK(braid_cursor_next(of_tx, &entry));
    OK(braid_snapshot_open(db, &snapshot));
    OK(braid_snapshot_range(snapshot, table, NULL, &cursor));
    OK(braid_tx_begin(db, NULL, &committed));
    OK(braid_tx_insert(committed, table, S("last"), S("v")));
    OK(braid_tx_commit_async(committed, &ticket));
    OK(braid_db_close(db));
    WITH_DB(db, BRAID_STALE_HANDLE);
    MESSAGE("cannot use the database: it was closed");
    WITH_TABLE(table, BRAID_STALE_HANDLE);
    WITH_TX(tx, BRAID_STALE_HANDLE);
    MESSAGE("database was closed");
    WITH_SNAPSHOT(snapshot, BRAID_STALE_HANDLE);
    WITH_CURSOR(cursor, BRAID_STALE_HANDLE);
    WITH_CURSOR(of_tx, BRAID_STALE_HANDLE);
    WITH_LOADER(loader, BRAID_STALE_HANDLE);
    EXPECT(BRAID_STALE_HANDLE, braid_tx_abort(tx));
    EXPECT(BRAID_STALE_HANDLE, braid_table_free(table));
    EXPECT(BRAID_STALE_HANDLE, braid_snapshot_free(snapshot));
    EXPECT(BRAID_STALE_HANDLE, braid_cursor_free(cursor));
    OK(braid_ticket_wait(ticket));
    OK(braid_ticket_poll(ticket));
    OK(braid_ticket_free(ticket));
}

int main(void) {
    null_results();
    open_all();
    OK(braid_tx_insert(tx, table, S("mine"), S("1")));
    null_handles();
    null_arguments();
    bad_arguments();
    wrong_handles();
    foreign_tables();
    stale_handles();
    OK(braid_snapshot_open(db, &snapshot));
    nothing_is_lost();
    OK(braid_snapshot_free(snapshot));
    closing();
    puts("ok");
    return 0;
}
