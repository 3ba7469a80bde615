/* A child made by fork cannot use inherited handles, and the parent continues. */
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void refuse(const char *path, braid_db *db, braid_table *table, braid_tx *tx, braid_snapshot *snapshot,
                   braid_ticket *ticket) {
    braid_db *again = NULL;
    braid_table *other = NULL;
    braid_value value;
    uint64_t number = 0;
    EXPECT(BRAID_FORKED, braid_table_get(table, S("key"), &value));
    EXPECT(BRAID_FORKED, braid_tx_get(tx, table, S("key"), &value));
    EXPECT(BRAID_FORKED, braid_tx_insert(tx, table, S("key"), S("child")));
    MESSAGE("fork");
    EXPECT(BRAID_FORKED, braid_tx_commit(tx, &number));
    EXPECT(BRAID_FORKED, braid_snapshot_get(snapshot, table, S("key"), &value));
    OK(braid_snapshot_free(snapshot));
    EXPECT(BRAID_FORKED, braid_table_open(db, "other", &other));
    EXPECT(BRAID_FORKED, braid_db_sync(db));
    EXPECT(BRAID_FORKED, braid_db_checkpoint(db));
    OK(braid_ticket_free(ticket));
    EXPECT(BRAID_FORKED, braid_db_close(db));
    EXPECT(BRAID_LOCKED, braid_db_open(path, NULL, &again));
}

int main(int argc, char **argv) {
    braid_db *db = NULL, *other = NULL;
    braid_table *table = NULL;
    braid_snapshot *snapshot = NULL;
    braid_ticket *ticket = NULL;
    braid_tx *tx = NULL;
    braid_value value;
    CHECK(argc == 2);
    OK(braid_db_open(argv[1], NULL, &db));
    OK(braid_table_open(db, "t", &table));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("key"), S("parent")));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("late"), S("parent")));
    OK(braid_tx_commit_async(tx, &ticket));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("more"), S("parent")));
    OK(braid_snapshot_open(db, &snapshot));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        refuse(argv[1], db, table, tx, snapshot, ticket);
        /* Memory allocated by the parent is not a leak of the child. */
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(BRAID_LOCKED, braid_db_open(argv[1], NULL, &other));
    OK(braid_tx_commit(tx, NULL));
    OK(braid_ticket_wait(ticket));
    OK(braid_ticket_free(ticket));
    OK(braid_snapshot_get(snapshot, table, S("key"), &value));
    CHECK(value_is(&value, "parent"));
    OK(braid_snapshot_free(snapshot));
    OK(braid_table_free(table));
    OK(braid_db_close(db));
    OK(braid_db_open(argv[1], NULL, &db));
    OK(braid_table_open(db, "t", &table));
    OK(braid_table_get(table, S("more"), &value));
    CHECK(value_is(&value, "parent"));
    OK(braid_table_free(table));
    OK(braid_db_close(db));
    puts("ok");
    return 0;
}
