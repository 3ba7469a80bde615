/* Sends SETs, or transactions of SETs, to a server of Redis' protocol, and measures.
 *
 *     server-load SOCKET SECONDS CONNECTIONS THREADS PIPELINE|multi SIZE [FIRST]
 *
 * FIRST is a command with a short reply that each connection sends first.
 *
 * Each connection sends PIPELINE requests at once, or with `multi` a transaction of ten, waits for all
 * replies, and sends the next. Requests are made once and only their keys change, so a request takes
 * little processor time: on a machine with few cores, redis-benchmark takes what the server lacks.
 * Prints requests (transactions) per second, the p50 and p99 in milliseconds of the time from a
 * request to its last reply, and the processor time of this program for a request in microseconds.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 100000, KEY_DIGITS = 12, EVENTS = 256, BUFFER = 1 << 16, GROUP_MAX = 1024 };
enum { TRANSACTION = 10 };

/* Latencies are counted in classes of 1/64 of their power of two. */
enum { CLASS_BITS = 6, CLASSES = 64 << CLASS_BITS };

static const char *path, *first;
static double seconds;
static int connections, threads, requests_at_once, is_multi, value_len;

struct connection {
    int fd;
    long missing;
    uint64_t sent;
};

struct worker {
    pthread_t thread;
    int connections;
    uint64_t random, done;
    uint64_t latencies[CLASSES];
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int class_of(uint64_t nanos) {
    if (nanos < 1 << CLASS_BITS)
        return (int)nanos;
    int shift = 63 - __builtin_clzll(nanos) - CLASS_BITS;
    return (shift << CLASS_BITS) + (int)(nanos >> shift);
}

static double millis_of(int class) {
    int shift = class < 2 << CLASS_BITS ? 0 : (class >> CLASS_BITS) - 1;
    return (double)((uint64_t)(class - (shift << CLASS_BITS)) << shift) / 1e6;
}

/* The text that is sent, and where its keys end. */
static char request[BUFFER];
static int request_len, key_ends[GROUP_MAX], keys;
static long reply_len;

static void add(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    request_len += vsnprintf(request + request_len, (size_t)(BUFFER - request_len), format, arguments);
    va_end(arguments);
    if (request_len >= BUFFER) {
        fputs("the requests are too long\n", stderr);
        exit(1);
    }
}

static void make_request(void) {
    char *value = malloc((size_t)value_len + 1);
    memset(value, 'x', (size_t)value_len);
    value[value_len] = 0;
    if (is_multi)
        add("*1\r\n$5\r\nMULTI\r\n");
    for (; keys < requests_at_once; keys++) {
        add("*3\r\n$3\r\nSET\r\n$16\r\nkey:%0*d", KEY_DIGITS, 0);
        key_ends[keys] = request_len;
        add("\r\n$%d\r\n%s\r\n", value_len, value);
    }
    reply_len = 5L * keys;
    if (is_multi) {
        add("*1\r\n$4\r\nEXEC\r\n");
        reply_len += (long)strlen("+OK\r\n*10\r\n") + keys * (long)strlen("+QUEUED\r\n");
    }
    free(value);
}

static void send_request(struct worker *worker, struct connection *connection, char *text) {
    for (int i = 0; i < keys; i++) {
        uint64_t x = worker->random;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        worker->random = x;
        uint64_t key = x % KEYS;
        for (int digit = 1; digit <= KEY_DIGITS; digit++, key /= 10)
            text[key_ends[i] - digit] = (char)('0' + key % 10);
    }
    connection->missing = reply_len;
    connection->sent = now();
    if (write(connection->fd, text, (size_t)request_len) != request_len)
        fail("cannot send");
}

static void send_first(int fd) {
    char text[256], reply[256];
    int len = snprintf(text, sizeof text, "%s\r\n", first);
    if (len >= (int)sizeof text || write(fd, text, (size_t)len) != len)
        fail("cannot send the first command");
    /* A short reply arrives at once. */
    if (read(fd, reply, sizeof reply) <= 0 || *reply == '-') {
        fputs("the server refuses the first command\n", stderr);
        exit(1);
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct connection *all = calloc((size_t)worker->connections, sizeof *all);
    char *text = malloc(BUFFER), *replies = malloc(BUFFER);
    memcpy(text, request, (size_t)request_len);
    int epoll = epoll_create1(0);
    for (int i = 0; i < worker->connections; i++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strncpy(address.sun_path, path, sizeof address.sun_path - 1);
        all[i].fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(all[i].fd, (struct sockaddr *)&address, sizeof address))
            fail(path);
        if (first)
            send_first(all[i].fd);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event))
            fail("cannot wait for a connection");
    }
    uint64_t end = now() + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < worker->connections; i++)
        send_request(worker, &all[i], text);
    while (now() < end) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(epoll, events, EVENTS, 1000);
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            ssize_t len = read(connection->fd, replies, BUFFER);
            if (len <= 0)
                fail("cannot read");
            /* Replies have a known length; an error has another. */
            if (memchr(replies, '-', (size_t)len)) {
                fprintf(stderr, "the server answers with an error: %.*s\n", (int)len, replies);
                exit(1);
            }
            connection->missing -= len;
            if (connection->missing > 0)
                continue;
            worker->latencies[class_of(now() - connection->sent)]++;
            worker->done += is_multi ? 1 : (uint64_t)keys;
            send_request(worker, connection, text);
        }
    }
    return NULL;
}

static double percentile(const uint64_t *latencies, double part) {
    uint64_t sum = 0, seen = 0;
    for (int i = 0; i < CLASSES; i++)
        sum += latencies[i];
    for (int i = 0; i < CLASSES; i++) {
        seen += latencies[i];
        if ((double)seen >= part * (double)sum)
            return millis_of(i);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) {
        fputs("usage: server-load SOCKET SECONDS CONNECTIONS THREADS PIPELINE|multi SIZE [FIRST]\n", stderr);
        return 2;
    }
    path = argv[1];
    seconds = atof(argv[2]);
    connections = atoi(argv[3]);
    threads = atoi(argv[4]);
    is_multi = !strcmp(argv[5], "multi");
    requests_at_once = is_multi ? TRANSACTION : atoi(argv[5]);
    value_len = atoi(argv[6]);
    first = argv[7];
    if (requests_at_once < 1 || requests_at_once > GROUP_MAX || threads < 1 || connections < threads) {
        fputs("a number is too small or too large\n", stderr);
        return 2;
    }
    make_request();
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    uint64_t began = now();
    for (int i = 0; i < threads; i++) {
        workers[i].connections = connections / threads + (i < connections % threads);
        workers[i].random = 88172645463325252 + (uint64_t)i * 0x9e3779b97f4a7c15;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            fail("cannot start a thread");
    }
    static uint64_t latencies[CLASSES];
    uint64_t done = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        done += workers[i].done;
        for (int class = 0; class < CLASSES; class++)
            latencies[class] += workers[i].latencies[class];
    }
    double elapsed = (double)(now() - began) / 1e9;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double processor = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
                       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    printf("%.0f %.3f %.3f %.2f\n", (double)done / elapsed, percentile(latencies, 0.5),
           percentile(latencies, 0.99), processor / (double)(done ? done : 1));
    return 0;
}
