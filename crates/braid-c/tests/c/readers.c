/* A reader that follows a writer in another process, and the permissions of files. */
#define _DEFAULT_SOURCE
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char dir[3000];

static const char *at(const char *name) {
    static char paths[20][4096];
    static int next;
    CHECK(next < 20);
    char *path = paths[next++];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static braid_options *with(int option, uint64_t value) {
    braid_options *options = NULL;
    OK(braid_options_new(&options));
    OK(braid_options_set(options, BRAID_OPTION_POOL_BYTES, 4 << 20));
    OK(braid_options_set(options, option, value));
    return options;
}

static braid_db *open_with(const char *path, int option, uint64_t value) {
    braid_options *options = with(option, value);
    braid_db *db = NULL;
    OK(braid_db_open(path, options, &db));
    OK(braid_options_free(options));
    return db;
}

/* Sends a byte, or waits for one; returns false if the other process died. */
static void tell(int to) { CHECK(write(to, "x", 1) == 1); }
static bool signalled(int from) { char byte; return read(from, &byte, 1) == 1; }

/* Commits the next key at each request, and replies once the commit is acknowledged. */
static int writer(const char *path, int asked, int done) {
    braid_db *db = open_with(path, BRAID_OPTION_GROUP_SIZE, 0);
    braid_table *table = NULL, *other = NULL;
    OK(braid_table_open(db, "t", &table));
    put(db, table, "0", "first");
    tell(done);
    for (char key[2] = "1"; signalled(asked); key[0]++) {
        put(db, table, key, "later");
        if (key[0] == '6') OK(braid_db_checkpoint(db));
        if (key[0] == '7') {
            OK(braid_table_rename(db, "t", "u"));
            OK(braid_table_open(db, "t", &other));
            put(db, other, "own", "x");
        }
        if (key[0] == '8') OK(braid_table_drop(db, "u"));
        tell(done);
        if (key[0] == '8') break;
    }
    OK(braid_db_close(db));
    return 0;
}

static uint64_t count(braid_snapshot *snapshot, braid_table *table) {
    uint64_t len = 0;
    OK(braid_snapshot_len(snapshot, table, &len));
    return len;
}

static void follow(const char *path, int ask, int done) {
    braid_table *table = NULL, *later = NULL;
    braid_snapshot *before = NULL, *now = NULL;
    braid_tx *tx = NULL;
    braid_value value;
    bool newer = true;
    uint64_t number = 0, durable_seqno = 0, entries = 0;
    CHECK(signalled(done));
    braid_db *db = open_with(path, BRAID_OPTION_READ_ONLY, 1);
    OK(braid_db_refresh(db, &newer));
    CHECK(!newer);
    OK(braid_table_open(db, "t", &table));
    OK(braid_snapshot_open(db, &before));
    OK(braid_tx_begin(db, NULL, &tx));
    for (char key[2] = "1"; key[0] <= '7'; key[0]++) {
        tell(ask);
        CHECK(signalled(done));
        EXPECT(BRAID_NOT_FOUND, braid_table_get(table, S(key), &value));
        OK(braid_db_refresh(db, &newer));
        CHECK(newer);
        /* The same handle of the table shows the new state, also under a new name. */
        OK(braid_table_get(table, S(key), &value));
        CHECK(value_is(&value, "later"));
        OK(braid_snapshot_open(db, &now));
        CHECK(count(now, table) == (uint64_t)(key[0] - '0') + 1);
        OK(braid_snapshot_seqno(now, &number));
        OK(braid_db_durable_seqno(db, &durable_seqno));
        CHECK(number == durable_seqno);
        OK(braid_table_estimate(table, NULL, &entries, NULL));
        CHECK(entries == (uint64_t)(key[0] - '0') + 1);
        OK(braid_snapshot_free(now));
    }
    OK(braid_db_refresh(db, NULL));
    /* Open objects keep their state, with any handle of the table. */
    CHECK(count(before, table) == 1);
    EXPECT(BRAID_NOT_FOUND, braid_tx_get(tx, table, S("1"), &value));
    OK(braid_tx_get(tx, table, S("0"), &value));
    CHECK(value_is(&value, "first"));
    OK(braid_table_open_existing(db, "t", &later));
    EXPECT(BRAID_TABLE_DROPPED, braid_snapshot_get(before, later, S("own"), &value));
    OK(braid_table_get(later, S("own"), &value));
    CHECK(value_is(&value, "x"));
    tell(ask);
    CHECK(signalled(done));
    OK(braid_db_refresh(db, &newer));
    CHECK(newer);
    EXPECT(BRAID_TABLE_DROPPED, braid_table_get(table, S("0"), &value));
    CHECK(count(before, table) == 1);
    OK(braid_db_close(db));
    EXPECT(BRAID_STALE_HANDLE, braid_db_refresh(db, &newer));
    CHECK(!newer);
    EXPECT(BRAID_STALE_HANDLE, braid_snapshot_get(before, table, S("0"), &value));
}

static unsigned mode_of(const char *path) {
    struct stat found;
    CHECK(stat(path, &found) == 0);
    return found.st_mode & 07777;
}

static void permissions(const char *name, uint64_t option, unsigned files, unsigned directory) {
    char path[4096], file[4200];
    const char *backups[1];
    braid_restore_options restore = {0};
    braid_db *db = NULL;
    snprintf(path, sizeof path, "%s", at(name));
    db = option ? open_with(path, BRAID_OPTION_FILE_MODE, option)
                : open_with(path, BRAID_OPTION_GROUP_SIZE, 0);
    snprintf(file, sizeof file, "%s.backup", path);
    OK(braid_db_backup(db, file, NULL, NULL, NULL, NULL));
    CHECK(mode_of(file) == files);
    OK(braid_db_close(db));
    CHECK(mode_of(path) == directory);
    backups[0] = file;
    restore.backups = backups;
    restore.backup_count = 1;
    restore.file_mode = (uint32_t)option;
    char to[4200], data[4300];
    snprintf(to, sizeof to, "%s.restored", path);
    OK(braid_restore(&restore, to, NULL));
    CHECK(mode_of(to) == directory);
    for (int i = 0; i < 2; i++) {
        snprintf(data, sizeof data, "%s/data.braid", i ? to : path);
        CHECK(mode_of(data) == files);
    }
    restore.file_mode = 0700;
    EXPECT(BRAID_OPTIONS, braid_restore(&restore, at("wrong"), NULL));
}

static void wrong_permissions(void) {
    const uint64_t wrong[] = {0, 0440, 0700, 01600};
    braid_options *options = NULL;
    braid_db *db = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options = with(BRAID_OPTION_FILE_MODE, wrong[i]);
        EXPECT(BRAID_OPTIONS, braid_db_open(at("wrong"), options, &db));
        MESSAGE("file_mode");
        OK(braid_options_free(options));
    }
    OK(braid_options_new(&options));
    EXPECT(BRAID_INVALID_ARGUMENT,
           braid_options_set(options, BRAID_OPTION_FILE_MODE, (uint64_t)1 << 32));
    OK(braid_options_free(options));
}

int main(int argc, char **argv) {
    int ask[2], done[2], status = 1;
    CHECK(argc == 2);
    snprintf(dir, sizeof dir, "%s", argv[1]);
    CHECK(pipe(ask) == 0 && pipe(done) == 0);
    /* Before the library is used: a child made later could not use it. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ask[1]);
        return writer(at("followed"), ask[0], done[1]);
    }
    close(done[1]);
    follow(at("followed"), ask[1], done[0]);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    umask(022);
    permissions("default", 0, 0600, 0700);
    permissions("group", 0640, 0640, 0750);
    wrong_permissions();
    braid_db *memory = open_in_memory();
    bool newer = true;
    OK(braid_db_refresh(memory, &newer));
    CHECK(!newer);
    OK(braid_db_close(memory));
    puts("ok");
    return 0;
}
