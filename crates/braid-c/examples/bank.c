/*
 * A bank: four threads move money between accounts, each transfer durable when it is acknowledged.
 * Whatever happens to the process or to the machine, the total stays the same.
 *
 *     cargo build --release -p braid-c
 *     cc -std=c99 -O2 -I crates/braid-c/include crates/braid-c/examples/bank.c \
 *         target/release/libbraid_c.a -lpthread -ldl -lm -o bank
 *     ./bank /tmp/bank
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "braid.h"

enum { ACCOUNTS = 100, START = 100, THREADS = 4, TRANSFERS = 250 };

static braid_db *db;
static braid_table *accounts;

/* Ends the program if a call failed. */
static void check(int status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, braid_status_name(status), braid_error_message());
        exit(1);
    }
}

static void account_key(char key[8], unsigned account) { snprintf(key, 8, "%05u", account); }

/* Returns the balance of an account, which no other thread can change until the transaction ends. */
static int read_balance(braid_tx *tx, unsigned account, long *balance) {
    char key[8];
    braid_value value;
    account_key(key, account);
    int status = braid_tx_get_for_update(tx, accounts, key, strlen(key), &value);
    if (status == BRAID_OK) memcpy(balance, value.data, sizeof *balance);
    braid_value_free(&value);
    return status;
}

static int write_balance(braid_tx *tx, unsigned account, long balance) {
    char key[8];
    account_key(key, account);
    return braid_tx_insert(tx, accounts, key, strlen(key), &balance, sizeof balance);
}

struct transfer {
    unsigned from, to;
    long amount;
};

/* Body of a transaction. It may run several times, so it only reads and writes. */
static int transfer(void *data, braid_tx *tx) {
    const struct transfer *t = data;
    long from, to;
    int status;
    if ((status = read_balance(tx, t->from, &from)) != BRAID_OK) return status;
    if ((status = read_balance(tx, t->to, &to)) != BRAID_OK) return status;
    if (from < t->amount) return BRAID_OK; /* nothing is written */
    if ((status = write_balance(tx, t->from, from - t->amount)) != BRAID_OK) return status;
    return write_balance(tx, t->to, to + t->amount);
}

static void *teller(void *arg) {
    unsigned random = *(unsigned *)arg;
    for (int i = 0; i < TRANSFERS; i++) {
        struct transfer t;
        random = random * 1664525u + 1013904223u;
        t.from = (random >> 8) % ACCOUNTS;
        t.to = (random >> 16) % ACCOUNTS;
        t.amount = (long)(random >> 24) % 50;
        if (t.from == t.to) continue;
        check(braid_db_transact(db, transfer, &t, NULL), "transfer");
    }
    return NULL;
}

static int open_accounts(void *data, braid_tx *tx) {
    (void)data;
    for (unsigned account = 0; account < ACCOUNTS; account++) {
        int status = write_balance(tx, account, START);
        if (status != BRAID_OK) return status;
    }
    return BRAID_OK;
}

/* Returns the sum of all balances at one moment. */
static long total(void) {
    braid_snapshot *snapshot = NULL;
    braid_cursor *cursor = NULL;
    braid_entry entry;
    long sum = 0;
    int status;
    check(braid_snapshot_open(db, &snapshot), "snapshot");
    check(braid_snapshot_range(snapshot, accounts, NULL, &cursor), "cursor");
    while ((status = braid_cursor_next(cursor, &entry)) == BRAID_OK) {
        long balance;
        memcpy(&balance, entry.value.data, sizeof balance);
        sum += balance;
    }
    check(status, "reading");
    braid_cursor_free(cursor);
    braid_snapshot_free(snapshot);
    return sum;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    braid_stats stats;
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    check(braid_db_open(argv[1], NULL, &db), argv[1]);
    check(braid_table_open(db, "accounts", &accounts), "accounts");
    if (total() == 0) check(braid_db_transact(db, open_accounts, NULL, NULL), "opening accounts");

    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i;
        if (pthread_create(&threads[i], NULL, teller, &seeds[i]) != 0) return 1;
    }
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    printf("total: %ld\n", total());
    check(braid_db_stats(db, &stats), "stats");
    printf("%llu commits, %llu conflicts, %llu flushes\n", (unsigned long long)stats.commits,
           (unsigned long long)stats.conflicts, (unsigned long long)stats.log_flushes);
    check(braid_db_close(db), "closing");
    return 0;
}
