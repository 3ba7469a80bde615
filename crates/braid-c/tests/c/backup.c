/* Full and incremental backups, an archive, restoring to a point, and opening read-only. */
#include "check.h"

static char dir[3000];

/* Returns the path of a name in the directory. */
static const char *at(const char *name) {
    static char paths[100][4096];
    static int next;
    CHECK(next < 100);
    char *path = paths[next++];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void progress(void *data, const braid_backup_progress *now) {
    CHECK(now->pages <= now->pages_total);
    ++*(int *)data;
}

static braid_status restore(const char *const *backups, size_t count, const char *archive,
                            int until, uint64_t value, const char *to,
                            braid_restore_report *report) {
    braid_restore_options options = {0};
    options.backups = backups;
    options.backup_count = count;
    options.archive = archive;
    options.until = until;
    options.until_value = value;
    return braid_restore(&options, to, report);
}

/* Returns the value of the key `k` in a database, which is opened read-only. */
static int holds(const char *path, const char *text) {
    braid_options *options = NULL;
    braid_db *db = NULL;
    braid_table *table = NULL;
    braid_tx *tx = NULL;
    braid_value value;
    OK(braid_options_new(&options));
    OK(braid_options_set(options, BRAID_OPTION_READ_ONLY, 1));
    OK(braid_db_open(path, options, &db));
    OK(braid_table_open(db, "t", &table));
    OK(braid_table_get(table, S("k"), &value));
    OK(braid_tx_begin(db, NULL, &tx));
    EXPECT(BRAID_OPENED_READ_ONLY, braid_tx_insert(tx, table, S("k"), S("x")));
    OK(braid_tx_abort(tx));
    EXPECT(BRAID_OPENED_READ_ONLY, braid_db_checkpoint(db));
    EXPECT(BRAID_OPENED_READ_ONLY, braid_table_open(db, "none", &table));
    EXPECT(BRAID_OPENED_READ_ONLY, braid_loader_new(db, "none", NULL, &(braid_loader *){0}));
    OK(braid_db_close(db));
    OK(braid_options_free(options));
    return value_is(&value, text);
}

/* A backup in memory. */
struct memory {
    char *bytes;
    size_t len, at;
};

static bool take(void *data, const void *bytes, size_t len) {
    struct memory *memory = data;
    memory->bytes = realloc(memory->bytes, memory->len + len);
    CHECK(memory->bytes);
    memcpy(memory->bytes + memory->len, bytes, len);
    memory->len += len;
    return true;
}

static bool full_up(void *data, const void *bytes, size_t len) {
    (void)data, (void)bytes, (void)len;
    return false;
}

static int64_t give(void *data, void *bytes, size_t capacity) {
    struct memory *memory = data;
    size_t left = memory->len - memory->at;
    /* In parts of odd sizes. */
    size_t len = left < capacity ? left : capacity;
    if (len > 1000) len = 1000;
    memcpy(bytes, memory->bytes + memory->at, len);
    memory->at += len;
    return (int64_t)len;
}

static int64_t broken(void *data, void *bytes, size_t capacity) {
    (void)data, (void)bytes, (void)capacity;
    return -1;
}

static int64_t too_much(void *data, void *bytes, size_t capacity) {
    (void)data, (void)bytes;
    return (int64_t)capacity + 1;
}

/* Streams can be restored like files, and a chain can contain both. */
static void streams(braid_db *db, const char *full, uint64_t of_full) {
    struct memory memory = {NULL, 0, 0};
    braid_backup_report report;
    braid_restore_report restored;
    OK(braid_db_backup_to(db, take, full, NULL, &memory, &report));
    CHECK(report.written_bytes == memory.len && report.pages < report.pages_total);
    EXPECT(BRAID_IO, braid_db_backup_to(db, full_up, NULL, NULL, NULL, NULL));
    MESSAGE("callback");

    const char *backups[] = {full, NULL};
    braid_source sources[] = {{NULL, NULL}, {give, &memory}};
    braid_restore_options options;
    memset(&options, 0, sizeof options);
    options.backups = backups;
    options.backup_count = 2;
    options.streams = sources;
    OK(braid_restore(&options, at("from a stream"), &restored));
    CHECK(restored.seqno == report.seqno && restored.seqno > of_full && memory.at == memory.len);
    CHECK(holds(at("from a stream"), "2"));

    memory.at = 0;
    memory.len -= 5000;
    EXPECT(BRAID_BACKUP, braid_restore(&options, at("cut short"), NULL));
    sources[1].read = broken;
    EXPECT(BRAID_IO, braid_restore(&options, at("broken"), NULL));
    MESSAGE("callback");
    sources[1].read = too_much;
    EXPECT(BRAID_IO, braid_restore(&options, at("too much"), NULL));
    options.streams = NULL;
    EXPECT(BRAID_NULL_ARGUMENT, braid_restore(&options, at("none"), NULL));
    free(memory.bytes);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    snprintf(dir, sizeof dir, "%s", argv[1]);
    const char *full = at("full"), *since = at("since");
    const char *archive = at("archive");
    braid_options *options = NULL;
    braid_db *db = NULL;
    braid_table *table = NULL;
    braid_backup_report report;
    braid_backup_info info;
    braid_restore_report restored;
    uint64_t number = 0, archived = 0;
    int called = 0;
    OK(braid_options_new(&options));
    OK(braid_options_set_archive(options, archive));
    OK(braid_options_set_log_directory(options, at("log")));
    OK(braid_options_set(options, BRAID_OPTION_LOG_DEVICE, BRAID_DEVICE_FILE));
    OK(braid_options_set(options, BRAID_OPTION_ARCHIVE_INTERVAL_US, 100000));
    OK(braid_options_set(options, BRAID_OPTION_FEED_LOG_BYTES, 1 << 20));
    OK(braid_db_open(at("db"), options, &db));
    braid_db *other = NULL;
    EXPECT(BRAID_LOCKED, braid_db_open(at("other"), options, &other));
    OK(braid_options_free(options));
    OK(braid_table_open(db, "t", &table));
    put(db, table, "k", "1");
    OK(braid_db_backup(db, full, NULL, progress, &called, &report));
    CHECK(called > 0 && report.pages == report.pages_total && report.written_bytes > 0);
    EXPECT(BRAID_BACKUP, braid_db_backup(db, full, NULL, NULL, NULL, NULL));
    MESSAGE("full");
    put(db, table, "k", "2");
    OK(braid_db_backup(db, since, full, NULL, NULL, &report));
    CHECK(report.pages < report.pages_total);
    OK(braid_backup_read_info(full, &info));
    CHECK(!info.is_incremental && info.parent == 0 && info.seqno < report.seqno && info.pages > 0);
    uint64_t of_full = info.seqno;
    CHECK(info.time_us > 1700000000000000);
    OK(braid_backup_read_info(since, &info));
    CHECK(info.is_incremental && info.parent == of_full && info.seqno == report.seqno);
    streams(db, full, of_full);
    put(db, table, "k", "3");
    braid_tx *tx = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("k"), S("4")));
    OK(braid_tx_commit(tx, &number));
    put(db, table, "k", "5");
    OK(braid_db_archive_now(db, &archived));
    CHECK(archived > number);
    OK(braid_db_close(db));

    const char *chain[] = {full, since};
    OK(restore(chain, 1, NULL, BRAID_UNTIL_END, 0, at("r1"), &restored));
    CHECK(restored.seqno == of_full && restored.backup_seqno == of_full && restored.pages > 0);
    CHECK(holds(at("r1"), "1"));
    OK(restore(chain, 2, NULL, BRAID_UNTIL_END, 0, at("r2"), NULL));
    CHECK(holds(at("r2"), "2"));
    OK(restore(chain, 1, archive, BRAID_UNTIL_SEQNO, number, at("r3"), &restored));
    CHECK(restored.seqno == number && restored.transactions > 0);
    CHECK(holds(at("r3"), "4"));
    OK(restore(chain, 2, archive, BRAID_UNTIL_END, 0, at("r4"), NULL));
    CHECK(holds(at("r4"), "5"));
    OK(restore(chain, 2, archive, BRAID_UNTIL_TIME, info.time_us + 3600000000000, at("r5"), NULL));
    CHECK(holds(at("r5"), "5"));

    /* Restores that fail, with their reasons. */
    EXPECT(BRAID_BACKUP, restore(chain, 1, NULL, BRAID_UNTIL_END, 0, at("r1"), NULL));
    EXPECT(BRAID_BACKUP, restore(&chain[1], 1, NULL, BRAID_UNTIL_END, 0, at("no"), NULL));
    MESSAGE("incremental");
    EXPECT(BRAID_BACKUP, restore(chain, 0, NULL, BRAID_UNTIL_END, 0, at("no"), NULL));
    EXPECT(BRAID_BACKUP, restore(chain, 1, NULL, BRAID_UNTIL_SEQNO, number, at("no"), NULL));
    EXPECT(BRAID_INVALID_ARGUMENT, restore(chain, 1, NULL, 7, 0, at("no"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, restore(NULL, 1, NULL, 0, 0, at("no"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, restore((const char *const[]){NULL}, 1, NULL, 0, 0, at("no"), NULL));
    EXPECT(BRAID_INVALID_ARGUMENT, restore(chain, SIZE_MAX / 2, NULL, 0, 0, at("no"), NULL));
    EXPECT(BRAID_NULL_ARGUMENT, restore(chain, 1, NULL, 0, 0, NULL, NULL));
    EXPECT(BRAID_NULL_ARGUMENT, braid_restore(NULL, at("no"), NULL));
    braid_restore_options in_memory = {0};
    in_memory.backups = chain;
    in_memory.backup_count = 1;
    in_memory.device = BRAID_DEVICE_MEMORY;
    EXPECT(BRAID_INVALID_ARGUMENT, braid_restore(&in_memory, at("no"), NULL));
    EXPECT(BRAID_BACKUP, braid_backup_read_info(argv[0], &info));
    EXPECT(BRAID_IO, braid_backup_read_info(at("missing"), &info));

    /* Opening read-only requires an existing database that no other process has open. */
    OK(braid_options_new(&options));
    OK(braid_options_set(options, BRAID_OPTION_READ_ONLY, 1));
    EXPECT(BRAID_NOT_A_DATABASE, braid_db_open(at("missing"), options, &db));
    CHECK(!db);
    OK(braid_options_free(options));
    db = open_in_memory();
    EXPECT(BRAID_NOT_FOUND, braid_db_archive_now(db, NULL));
    OK(braid_db_close(db));
    puts("ok");
    return 0;
}
