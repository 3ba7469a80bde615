/* Commits in flight: tickets that are polled, waited for, exchanged for callbacks, or freed. */
#include "check.h"

#include <pthread.h>
#include <sched.h>

enum { COMMITS = 500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static int calls;
static uint64_t numbers;

static void durable(void *data, braid_status status, uint64_t number, const char *message) {
    CHECK(data == &calls && status == BRAID_OK && !message);
    pthread_mutex_lock(&lock);
    calls++;
    numbers += number;
    pthread_cond_signal(&done);
    pthread_mutex_unlock(&lock);
}

static braid_ticket *commit(braid_db *db, braid_table *table, int number) {
    braid_tx *tx = NULL;
    braid_ticket *ticket = NULL;
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, &number, sizeof number, S("x")));
    OK(braid_tx_commit_async(tx, &ticket));
    CHECK(ticket);
    return ticket;
}

int main(int argc, char **argv) {
    braid_db *db = NULL;
    braid_table *table = NULL;
    braid_ticket *tickets[COMMITS];
    uint64_t number, last = 0, sum = 0, durable_seqno;
    braid_value value;
    CHECK(argc == 2);
    OK(braid_db_open(argv[1], NULL, &db));
    OK(braid_table_open(db, "t", &table));

    /* Wait; transactions before a durable one are durable. */
    for (int i = 0; i < COMMITS; i++) {
        tickets[i] = commit(db, table, i);
        OK(braid_ticket_seqno(tickets[i], &number));
        CHECK(number > last);
        last = number;
    }
    OK(braid_ticket_wait(tickets[COMMITS - 1]));
    OK(braid_db_durable_seqno(db, &durable_seqno));
    CHECK(durable_seqno >= last);
    for (int i = 0; i < COMMITS; i++) {
        OK(braid_ticket_poll(tickets[i]));
        OK(braid_ticket_free(tickets[i]));
    }

    /* Poll. */
    tickets[0] = commit(db, table, 0);
    int status;
    while ((status = braid_ticket_poll(tickets[0])) == BRAID_PENDING) sched_yield();
    OK(status);
    OK(braid_ticket_wait(tickets[0]));
    OK(braid_ticket_free(tickets[0]));

    /* Callbacks. */
    for (int i = 0; i < COMMITS; i++) {
        braid_ticket *ticket = commit(db, table, i);
        OK(braid_ticket_seqno(ticket, &number));
        sum += number;
        OK(braid_ticket_on_durable(ticket, durable, &calls));
    }
    pthread_mutex_lock(&lock);
    while (calls < COMMITS) pthread_cond_wait(&done, &lock);
    CHECK(numbers == sum);
    pthread_mutex_unlock(&lock);

    /* Sequence numbers. */
    for (int i = 0; i < COMMITS; i++) {
        braid_write write = {table, BRAID_PUT, {&i, sizeof i}, {"number", 6}};
        OK(braid_db_submit(db, &write, 1, &number));
        CHECK(number > last);
        last = number;
    }
    OK(braid_db_wait(db, last));
    OK(braid_db_durable_seqno(db, &durable_seqno));
    CHECK(durable_seqno >= last);
    braid_tx *submitted = NULL;
    OK(braid_tx_begin(db, NULL, &submitted));
    OK(braid_tx_insert(submitted, table, S("submitted"), S("x")));
    CHECK(braid_tx_submit(submitted, NULL) == BRAID_NULL_ARGUMENT);
    OK(braid_tx_submit(submitted, &number));
    CHECK(number > last);
    OK(braid_db_wait(db, number));
    OK(braid_db_wait(db, 0));
    CHECK(braid_db_wait(db, number + 1) == BRAID_INVALID_ARGUMENT);
    CHECK(strstr(braid_error_message(), "no transaction has it yet"));

    /* Free the tickets, at once or later: the transactions are durable all the same. */
    braid_tx *tx = NULL;
    OK(braid_ticket_free(commit(db, table, 1)));
    OK(braid_tx_begin(db, NULL, &tx));
    OK(braid_tx_insert(tx, table, S("let go"), S("x")));
    OK(braid_tx_commit_async(tx, NULL));
    OK(braid_db_sync(db));
    OK(braid_table_get(table, S("let go"), &value));
    CHECK(value_is(&value, "x"));
    OK(braid_db_close(db));
    puts("ok");
    return 0;
}
