/* A database in a directory: created, left without closing, recovered, verified, damaged. */
#include "check.h"

static char file[4096];

static braid_db *open_db(const char *dir, int expected, braid_options *options) {
    braid_db *db = (braid_db *)&file;
    EXPECT(expected, braid_db_open(dir, options, &db));
    CHECK((expected == BRAID_OK) == (db != NULL));
    return db;
}

static braid_options *with(int option, uint64_t value) {
    braid_options *options = NULL;
    OK(braid_options_new(&options));
    OK(braid_options_set(options, option, value));
    return options;
}

/* Commits, and exits like a killed process. */
static void write_and_die(const char *dir) {
    braid_options *options = with(BRAID_OPTION_PROTOCOL, BRAID_PROTOCOL_GSN);
    OK(braid_options_set(options, BRAID_OPTION_STRANDS, 2));
    braid_db *db = open_db(dir, BRAID_OK, options);
    braid_table *table = NULL;
    braid_tx *tx = NULL;
    OK(braid_table_open(db, "t", &table));
    for (int i = 0; i < 100; i++) {
        OK(braid_tx_begin(db, NULL, &tx));
        OK(braid_tx_insert(tx, table, &i, sizeof i, &i, sizeof i));
        OK(braid_tx_commit(tx, NULL));
    }
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("never committed"), S("x")));
    puts("ok");
    fflush(stdout);
    _Exit(0);
}

static void progress(void *data, const braid_recovery_progress *now) {
    CHECK(now->scanned_bytes <= now->total_bytes);
    ++*(volatile int *)data;
}

static void damage(void *data, const char *what) {
    CHECK(*what);
    ++*(int *)data;
}

/* Counts the bytes of a text that arrives in parts, and searches it for a word. */
struct text {
    size_t len;
    char head[64];
};

static bool gather(void *data, const void *bytes, size_t len) {
    struct text *text = data;
    for (size_t i = 0; i < len && text->len + i < sizeof text->head - 1; i++)
        text->head[text->len + i] = ((const char *)bytes)[i];
    text->len += len;
    return true;
}

static bool refuse(void *data, const void *bytes, size_t len) {
    (void)data, (void)bytes, (void)len;
    return false;
}

/* Counts findings, and losses among them. */
static void finding(void *data, bool is_lost, const char *what) {
    int *counts = data;
    CHECK(*what);
    counts[0]++;
    counts[1] += is_lost;
}

/* Verify, upgrade and salvage an undamaged database. */
static void maintained(const char *dir) {
    struct text text;
    braid_upgrade_report upgrade;
    braid_salvage_report saved;
    int found[2] = {0, 0};
    static char into[4096];
    memset(&text, 0, sizeof text);
    OK(braid_dump(dir, gather, &text));
    CHECK(text.len > 100 && strstr(text.head, "protocol gsn, 2 strands"));
    EXPECT(BRAID_IO, braid_dump(dir, refuse, NULL));
    OK(braid_upgrade(dir, &upgrade));
    CHECK(upgrade.from == upgrade.to && upgrade.to > 0);
    OK(braid_upgrade(dir, NULL));
    snprintf(into, sizeof into, "%s-saved", dir);
    OK(braid_salvage(dir, into, finding, found, &saved));
    CHECK(saved.tables == 1 && saved.entries + saved.transactions >= 100 && saved.losses == 0);
    CHECK(found[1] == 0);
    EXPECT(BRAID_NOT_A_DATABASE, braid_salvage(dir, into, NULL, NULL, NULL));
    OK(braid_verify(into, NULL, NULL, NULL));
}

/* The entries of a damaged page are reported as lost; the others are saved. */
static void saved_from_damage(const char *dir) {
    braid_salvage_report saved;
    int found[2] = {0, 0};
    static char into[4096];
    snprintf(into, sizeof into, "%s-left", dir);
    OK(braid_salvage(dir, into, finding, found, &saved));
    CHECK(saved.losses > 0 && saved.losses == (uint64_t)found[1] && found[0] >= found[1]);
    OK(braid_verify(into, NULL, NULL, NULL));
}

static void read_back(const char *dir) {
    braid_options *options = NULL;
    braid_table *table = NULL;
    braid_recovery_report recovery;
    braid_verify_report report;
    braid_stats stats;
    braid_value value;
    int called = 0, damages = 0;
    OK(braid_options_new(&options));
    OK(braid_options_set_recovery_progress(options, progress, &called));
    braid_db *db = open_db(dir, BRAID_OK, options);
    OK(braid_options_free(options));
    OK(braid_db_recovery(db, &recovery));
    CHECK(recovery.transactions >= 100 && recovery.log_bytes > 0 && recovery.duration_us > 0);
    OK(braid_db_stats(db, &stats));
    CHECK(stats.protocol == BRAID_PROTOCOL_GSN);
    OK(braid_table_open(db, "t", &table));
    for (int i = 0; i < 100; i++) {
        int found;
        OK(braid_table_get(table, &i, sizeof i, &value));
        memcpy(&found, value.data, sizeof found);
        CHECK(found == i);
        braid_value_free(&value);
    }
    EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S("never committed"), &value));

    /* Only one handle can write; verification works next to it. */
    open_db(dir, BRAID_LOCKED, NULL);
    MESSAGE(dir);
    OK(braid_verify(dir, NULL, NULL, NULL));
    OK(braid_db_close(db));
    OK(braid_verify(dir, damage, &damages, &report));
    CHECK(damages == 0 && report.damages == 0 && report.tables >= 2 && report.records >= 100);

    maintained(dir);

    /* Every page except the superblocks is overwritten, which must be detected. */
    snprintf(file, sizeof file, "%s/data.braid", dir);
    FILE *data = fopen(file, "r+b");
    CHECK(data && !fseek(data, 0, SEEK_END));
    long length = ftell(data);
    CHECK(length > 65536 && !fseek(data, 65536, SEEK_SET));
    for (long at = 65536; at < length; at++) CHECK(fputc(0x5a, data) != EOF);
    CHECK(!fclose(data));
    int status = braid_verify(dir, damage, &damages, &report);
    EXPECT(BRAID_CORRUPTED, status);
    CHECK(damages > 0 && report.damages == (uint64_t)damages);
    saved_from_damage(dir);
    puts("ok");
}

/* Databases that cannot be opened, with the reasons. */
static void refused(const char *dir) {
    braid_options *options = with(BRAID_OPTION_CREATE_IF_MISSING, 0);
    snprintf(file, sizeof file, "%s/none", dir);
    open_db(file, BRAID_NOT_A_DATABASE, options);
    MESSAGE("none");
    OK(braid_options_free(options));
    EXPECT(BRAID_NOT_A_DATABASE, braid_verify(file, NULL, NULL, NULL));
    EXPECT(BRAID_NOT_A_DATABASE, braid_upgrade(file, NULL));
    EXPECT(BRAID_NOT_A_DATABASE, braid_salvage(file, file, NULL, NULL, NULL));
    EXPECT(BRAID_NOT_A_DATABASE, braid_dump(file, refuse, NULL));
    options = with(BRAID_OPTION_POOL_BYTES, 1);
    open_db(file, BRAID_OPTIONS, options);
    MESSAGE("pool_bytes");
    OK(braid_options_free(options));
    int numbers[][2] = {
        {BRAID_OPTION_STRANDS, 1000},          {BRAID_OPTION_LANES, 0},
        {BRAID_OPTION_EPOCH_US, 1},            {BRAID_OPTION_SEGMENT_BYTES, 1},
        {BRAID_OPTION_CHECKPOINT_LOG_BYTES, 1}, {BRAID_OPTION_MAX_LOG_BYTES, 1},
        {BRAID_OPTION_TRANSACTION_BYTES_MAX, 1}, {BRAID_OPTION_FLUSHES_IN_FLIGHT, 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        options = with(numbers[i][0], (uint64_t)numbers[i][1]);
        open_db(file, BRAID_OPTIONS, options);
        OK(braid_options_free(options));
    }
    /* Every protocol and device works. */
    for (int protocol = BRAID_PROTOCOL_GLSN; protocol <= BRAID_PROTOCOL_GWSN; protocol++) {
        options = with(BRAID_OPTION_PROTOCOL, (uint64_t)protocol);
        OK(braid_options_set(options, BRAID_OPTION_DEVICE, BRAID_DEVICE_MEMORY));
        OK(braid_options_set(options, BRAID_OPTION_GROUP_SIZE, 4));
        OK(braid_options_set(options, BRAID_OPTION_PREALLOCATED_LOG_BYTES, 64 << 20));
        OK(braid_options_set(options, BRAID_OPTION_BACKGROUND_THREADS, 0));
        OK(braid_options_set(options, BRAID_OPTION_DISCARD, 1));
        OK(braid_options_set(options, BRAID_OPTION_NUMA, 0));
        OK(braid_options_set(options, BRAID_OPTION_REMOTE_ACCESS, BRAID_REMOTE_ACCESS_AUTO));
        braid_db *db = open_db(NULL, BRAID_OK, options);
        braid_stats stats;
        OK(braid_db_stats(db, &stats));
        CHECK((int)stats.protocol == protocol);
        OK(braid_db_close(db));
        OK(braid_options_free(options));
    }
    options = with(BRAID_OPTION_DEVICE, BRAID_DEVICE_FILE);
    OK(braid_db_close(open_db(file, BRAID_OK, options)));
    OK(braid_options_free(options));

    /* A table of numbers that a Rust program created. */
    snprintf(file, sizeof file, "%s/typed", dir);
    braid_db *db = open_db(file, BRAID_OK, NULL);
    braid_table *table = NULL;
    EXPECT(BRAID_TABLE_TYPE, braid_table_open(db, "numbers", &table));
    EXPECT(BRAID_TABLE_TYPE, braid_table_open_existing(db, "numbers", &table));
    MESSAGE("u64");
    OK(braid_db_close(db));
    puts("ok");
}

static bool is_disk(void *data, braid_slice name) {
    ++*(int *)data;
    CHECK(slice_is(name, "disk"));
    return true;
}

/* Writes the same to a table of the directory and to one of a tablespace. */
static void write_both(braid_db *db, braid_table *here, braid_table *there, const char *value) {
    braid_tx *tx = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, here, S("key"), value, strlen(value)));
    OK(braid_tx_insert(tx, there, S("key"), value, strlen(value)));
    OK(braid_tx_commit(tx, NULL));
}

/* Checks and salvages a database whose tablespace is not where it was. */
static void checked_where_it_is(const char *dir, braid_options *present) {
    static char into[4096];
    braid_verify_report report;
    braid_salvage_report saved;
    int found[2] = {0, 0};
    EXPECT(BRAID_CORRUPTED, braid_verify(dir, NULL, NULL, NULL));
    OK(braid_verify_with(dir, present, NULL, NULL, &report));
    CHECK(report.damages == 0);
    snprintf(into, sizeof into, "%s-with", dir);
    OK(braid_salvage_with(dir, into, present, finding, found, &saved));
    CHECK(saved.losses == 0 && saved.tables == 2);
}

static void count_steps(void *data, const braid_move_report *progress) {
    CHECK(progress->records <= 1);
    ++*(int *)data;
}

/* The table `there` goes to the main tablespace and back, while a handle of it is used. */
static void move(braid_db *db, braid_table *there) {
    braid_move_report report = {0};
    braid_value value;
    int steps = 0;
    EXPECT(BRAID_NULL_ARGUMENT, braid_table_move(db, NULL, NULL, NULL, NULL, NULL));
    EXPECT(BRAID_TABLE_NOT_FOUND, braid_table_move(db, "nothing", NULL, NULL, NULL, NULL));
    EXPECT(BRAID_TABLESPACE, braid_table_move(db, "there", "nowhere", NULL, NULL, NULL));
    MESSAGE("nowhere");
    OK(braid_table_move(db, "there", NULL, count_steps, &steps, &report));
    CHECK(steps > 0 && report.records == 1 && report.bytes >= 8 && report.writers_waited_us > 0);
    braid_table *again = NULL;
    EXPECT(BRAID_TABLESPACE, braid_table_open_in(db, "disk", "there", NULL, &again));
    MESSAGE("main");
    OK(braid_table_get(there, S("key"), &value));
    CHECK(value_is(&value, "first"));
    OK(braid_table_move(db, "there", "disk", NULL, NULL, NULL));
    OK(braid_table_get(there, S("key"), &value));
    CHECK(value_is(&value, "first"));
    OK(braid_table_open_in(db, "disk", "there", NULL, &again));
    OK(braid_table_free(again));
}

/* A loaded table of the tablespace is restored with it. */
static void load_and_restore(braid_db *db, const char *dir) {
    static char backup[4096], restored[4096], places[4096];
    braid_loader *loader = NULL;
    braid_table *loaded = NULL;
    braid_value value;
    snprintf(backup, sizeof backup, "%s-backup", dir);
    snprintf(restored, sizeof restored, "%s-restored", dir);
    snprintf(places, sizeof places, "%s-restored-disk", dir);
    EXPECT(BRAID_TABLESPACE, braid_loader_new_in(db, "nowhere", "loaded", NULL, &loader));
    EXPECT(BRAID_NULL_ARGUMENT, braid_loader_new_in(db, NULL, "loaded", NULL, &loader));
    OK(braid_loader_new_in(db, "disk", "loaded", NULL, &loader));
    OK(braid_loader_insert(loader, S("key"), S("second")));
    OK(braid_loader_finish(loader, &loaded));
    OK(braid_table_free(loaded));
    OK(braid_db_backup(db, backup, NULL, NULL, NULL, NULL));
    const char *backups[] = {backup};
    static char log_place[8192];
    snprintf(log_place, sizeof log_place, "%s-log", places);
    braid_tablespace_directory directory = {"disk", places, log_place};
    braid_restore_options options = {0};
    options.backups = backups;
    options.backup_count = 1;
    EXPECT(BRAID_BACKUP, braid_restore(&options, restored, NULL));
    options.tablespace_count = 1;
    EXPECT(BRAID_NULL_ARGUMENT, braid_restore(&options, restored, NULL));
    options.tablespaces = &directory;
    OK(braid_restore(&options, restored, NULL));
    braid_db *copy = open_db(restored, BRAID_OK, NULL);
    OK(braid_table_open_in(copy, "disk", "loaded", NULL, &loaded));
    OK(braid_table_get(loaded, S("key"), &value));
    CHECK(value_is(&value, "second"));
    OK(braid_table_free(loaded));
    OK(braid_db_close(copy));
    OK(braid_table_drop(db, "loaded"));
}

/* Tables in a directory of their own, which is needed from then on. */
static void tablespaces(const char *dir) {
    static char disk[4096], gone[4096];
    braid_table *here = NULL, *there = NULL;
    braid_value value;
    int count = 0;
    snprintf(disk, sizeof disk, "%s-disk", dir);
    snprintf(gone, sizeof gone, "%s-gone", dir);
    braid_db *db = open_db(dir, BRAID_OK, NULL);
    OK(braid_tablespace_names(db, is_disk, &count));
    CHECK(count == 0);
    EXPECT(BRAID_OPTIONS, braid_db_create_tablespace(db, "disk", disk, 1));
    EXPECT(BRAID_NULL_ARGUMENT, braid_db_create_tablespace(db, "disk", NULL, 0));
    EXPECT(BRAID_TABLESPACE, braid_table_open_in(db, "disk", "there", NULL, &there));
    MESSAGE("disk");
    braid_tablespace_options options = {
        .pool_bytes = 1 << 20, .own_log = 1, .on_memory_node = 1, .memory_node = 7777};
    EXPECT(BRAID_TABLESPACE, braid_db_create_tablespace_with(db, "disk", disk, &options));
    MESSAGE("memory node 7777");
    options.on_memory_node = 2;
    EXPECT(BRAID_INVALID_ARGUMENT, braid_db_create_tablespace_with(db, "disk", disk, &options));
    MESSAGE("on_memory_node");
    options.on_memory_node = 0;
    options.own_log = 0;
    options.log_directory = disk;
    EXPECT(BRAID_TABLESPACE, braid_db_create_tablespace_with(db, "disk", disk, &options));
    MESSAGE("data file");
    static char log_disk[8192];
    snprintf(log_disk, sizeof log_disk, "%s-log", disk);
    options.log_directory = log_disk;
    OK(braid_db_create_tablespace_with(db, "disk", disk, &options));
    EXPECT(BRAID_TABLESPACE, braid_db_create_tablespace(db, "disk", gone, 0));
    MESSAGE("exists");
    OK(braid_tablespace_names(db, is_disk, &count));
    CHECK(count == 1);
    OK(braid_table_open(db, "here", &here));
    EXPECT(BRAID_TABLESPACE, braid_table_open_in(db, "disk", "here", NULL, &there));
    MESSAGE("main");
    OK(braid_table_open_in(db, "disk", "there", NULL, &there));
    write_both(db, here, there, "first");
    OK(braid_db_close(db));

    static char log_gone[8192];
    snprintf(log_gone, sizeof log_gone, "%s-log", gone);
    CHECK(rename(disk, gone) == 0);
    CHECK(rename(log_disk, log_gone) == 0);
    open_db(dir, BRAID_TABLESPACE, NULL);
    MESSAGE("disk");
    braid_options *present = NULL;
    OK(braid_options_new(&present));
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_set_tablespace_directory(present, NULL, gone));
    OK(braid_options_set_tablespace_directory(present, "disk", gone));
    EXPECT(BRAID_NULL_ARGUMENT, braid_options_set_tablespace_log_directory(present, "disk", NULL));
    OK(braid_options_set_tablespace_log_directory(present, "disk", log_gone));
    checked_where_it_is(dir, present);
    OK(braid_options_free(present));
    CHECK(rename(gone, disk) == 0);
    CHECK(rename(log_gone, log_disk) == 0);
    db = open_db(dir, BRAID_OK, NULL);
    OK(braid_table_open(db, "there", &there));
    OK(braid_table_get(there, S("key"), &value));
    CHECK(value_is(&value, "first"));
    move(db, there);
    load_and_restore(db, dir);
    EXPECT(BRAID_TABLESPACE, braid_db_drop_tablespace(db, "disk"));
    MESSAGE("there");
    OK(braid_table_free(there));
    OK(braid_table_drop(db, "there"));
    OK(braid_db_drop_tablespace(db, "disk"));
    EXPECT(BRAID_TABLESPACE, braid_db_drop_tablespace(db, "disk"));
    OK(braid_db_close(db));
    puts("ok");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[1], "write") == 0) write_and_die(argv[2]);
    if (strcmp(argv[1], "read") == 0) read_back(argv[2]);
    if (strcmp(argv[1], "refused") == 0) refused(argv[2]);
    if (strcmp(argv[1], "tablespaces") == 0) tablespaces(argv[2]);
    return 0;
}
