/* Handles that several threads use at once, also while they end. */
#include "check.h"

#include <pthread.h>
#include <sched.h>

enum { THREADS = 4, COMMITS = 200 };

static braid_db *db;
static braid_table *table;

static void *count_up(void *arg) {
    (void)arg;
    for (int i = 0; i < COMMITS; i++) {
        for (;;) {
            braid_tx *tx = NULL;
            braid_value value;
            uint32_t n = 0;
            OK(braid_tx_begin(db, NULL, &tx));
            if (braid_tx_get(tx, table, S("n"), &value) == BRAID_OK) {
                CHECK(value.len == sizeof n);
                memcpy(&n, value.data, sizeof n);
            }
            braid_value_free(&value);
            n++;
            int status = braid_tx_insert(tx, table, S("n"), &n, sizeof n);
            if (status == BRAID_OK)
                status = braid_tx_commit(tx, NULL);
            else
                OK(braid_tx_abort(tx));
            if (status == BRAID_OK) break;
            CHECK(braid_status_is_retryable(status));
        }
    }
    return NULL;
}

static void run(void *(*body)(void *), void *arg) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, body, arg));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
}

/* All threads use one transaction and one cursor, in any order. */
struct one {
    braid_tx *tx;
    braid_cursor *cursor;
};

static void *jostle(void *arg) {
    struct one *one = arg;
    for (int i = 0; i < 2000; i++) {
        braid_value value;
        braid_entry entry;
        int status = braid_tx_insert(one->tx, table, &i, sizeof i, S("x"));
        CHECK(status == BRAID_OK || status == BRAID_BUSY);
        status = braid_tx_get(one->tx, table, &i, sizeof i, &value);
        CHECK(status == BRAID_OK || status == BRAID_NOT_FOUND || status == BRAID_BUSY);
        braid_value_free(&value);
        status = braid_cursor_next(one->cursor, &entry);
        CHECK(status == BRAID_OK || status == BRAID_END || status == BRAID_BUSY);
    }
    return NULL;
}

/* While a call waits, other calls with its transaction return BRAID_BUSY. This call may get that
   status, too, until it is the one that waits. */
static void *wait_for_lock(void *arg) {
    int status;
    while ((status = braid_tx_insert(arg, table, S("locked"), S("second"))) == BRAID_BUSY) sched_yield();
    OK(status);
    return NULL;
}

static void busy(void) {
    braid_tx *first = NULL, *second = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry;
    pthread_t waiter;
    int status;
    OK(braid_tx_begin(db, NULL, &first));
    OK(braid_tx_begin(db, NULL, &second));
    OK(braid_tx_range(second, table, NULL, &cursor));
    OK(braid_tx_insert(first, table, S("locked"), S("first")));
    CHECK(!pthread_create(&waiter, NULL, wait_for_lock, second));
    while ((status = braid_tx_contains(second, table, S("x"))) == BRAID_NOT_FOUND) sched_yield();
    EXPECT(BRAID_BUSY, status);
    MESSAGE("another thread is inside a call with it");
    EXPECT(BRAID_BUSY, braid_tx_commit(second, NULL));
    EXPECT(BRAID_BUSY, braid_tx_abort(second));
    EXPECT(BRAID_BUSY, braid_cursor_next(cursor, &entry));
    OK(braid_tx_commit(first, NULL));
    CHECK(!pthread_join(waiter, NULL));
    /* Nothing is lost. */
    OK(braid_tx_commit(second, NULL));
    OK(braid_cursor_free(cursor));
    braid_value value;
    OK(braid_table_get(table, S("locked"), &value));
    CHECK(value_is(&value, "second"));
}

static int over(int status) { return status == BRAID_STALE_HANDLE || status == BRAID_CLOSED; }

/* Works until another thread closes the database. */
static void *until_closed(void *arg) {
    (void)arg;
    unsigned number = 0;
    for (;;) {
        braid_tx *tx = NULL;
        braid_snapshot *snapshot = NULL;
        braid_cursor *cursor = NULL;
        braid_table *own = NULL;
        braid_entry entry;
        braid_value value;
        int status = braid_tx_begin(db, NULL, &tx);
        if (status == BRAID_OK) {
            number++;
            status = braid_tx_insert(tx, table, &number, sizeof number, S("x"));
            int ended = status == BRAID_OK ? braid_tx_commit(tx, NULL) : braid_tx_abort(tx);
            CHECK(ended == BRAID_OK || braid_status_is_retryable(ended) || over(ended));
        }
        CHECK(status == BRAID_OK || braid_status_is_retryable(status) || over(status));
        braid_ticket *ticket = NULL;
        braid_write write;
        memset(&write, 0, sizeof write);
        write.table = table;
        write.key = slice("written");
        int written = braid_db_write_async(db, &write, 1, &ticket);
        CHECK(written == BRAID_OK || over(written));
        OK(braid_ticket_free(ticket));
        int got = braid_table_get(table, S("n"), &value);
        CHECK(got == BRAID_OK || over(got));
        braid_value_free(&value);
        int opened = braid_snapshot_open(db, &snapshot);
        if (opened == BRAID_OK) {
            opened = braid_snapshot_range(snapshot, table, NULL, &cursor);
            for (int i = 0; i < 20 && opened == BRAID_OK; i++)
                opened = braid_cursor_next(cursor, &entry);
            CHECK(opened == BRAID_OK || opened == BRAID_END || over(opened));
            int freed = braid_cursor_free(cursor);
            CHECK(freed == BRAID_OK || over(freed));
            freed = braid_snapshot_free(snapshot);
            CHECK(freed == BRAID_OK || over(freed));
        }
        int again = braid_table_open(db, "t", &own);
        CHECK(again == BRAID_OK || over(again));
        if (again == BRAID_OK) {
            again = braid_table_free(own);
            CHECK(again == BRAID_OK || over(again));
        }
        if (over(status)) return NULL;
    }
}

int main(int argc, char **argv) {
    braid_value value;
    uint32_t n = 0;
    CHECK(argc == 2);
    db = open_in_memory();
    OK(braid_table_open(db, "t", &table));

    run(count_up, NULL);
    OK(braid_table_get(table, S("n"), &value));
    memcpy(&n, value.data, sizeof n);
    CHECK(n == THREADS * COMMITS);
    braid_value_free(&value);

    struct one one = {NULL, NULL};
    OK(braid_tx_begin(db, NULL, &one.tx));
    OK(braid_tx_range(one.tx, table, NULL, &one.cursor));
    run(jostle, &one);
    OK(braid_tx_commit(one.tx, NULL));
    OK(braid_cursor_free(one.cursor));
    busy();
    OK(braid_db_close(db));

    /* Close during all kinds of calls, in memory and on a disk. */
    for (int round = 0; round < 4; round++) {
        if (round % 2)
            OK(braid_db_open(argv[1], NULL, &db));
        else
            db = open_in_memory();
        OK(braid_table_open(db, "t", &table));
        put(db, table, "n", "1");
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&threads[i], NULL, until_closed, NULL));
        braid_stats stats;
        do {
            sched_yield();
            OK(braid_db_stats(db, &stats));
        } while (stats.commits < 50u + 50u * (unsigned)round);
        int status = braid_db_close(db);
        EXPECT(BRAID_OK, status);
        for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
    }
    puts("ok");
    return 0;
}
