/* Load generator for live readers and open-loop appends: one thread, epoll, non-blocking, loopback only.
 *
 *   load live PORT PATH READERS APPENDERS STREAMS RATE SECONDS
 *       READERS SSE readers of PATH count messages while APPENDERS connections append for SECONDS.
 *       RATE 0: each appender sends as soon as it is answered; else RATE appends a second in all,
 *       latency counted from the moment an append was due (a stall is not left out).
 *       STREAMS > 1: appends rotate over PATH-0, PATH-1, ... (readers read PATH-0).
 *   load count PORT PATH METHOD STREAMS COUNT CONNECTIONS
 *       COUNT requests on CONNECTIONS connections, over PATH-0, PATH-1, ... in turn: METHOD PUT creates
 *       them with one message, POST appends one.
 *   load hold PORT PATH READERS SECONDS
 *       opens READERS SSE readers, prints a line, then obeys stdin: "append" posts one message and
 *       waits until every reader has it; end of file ends. SECONDS bounds the whole run.
 *
 * Every message carries its send time, so that delivery latency needs no clock but ours.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MESSAGE_BYTES 100
#define MARKER "{\"t\":\""
#define MARKER_BYTES 6
#define STAMP_BYTES 19
#define READY "event: control"
#define READY_BYTES 14
#define CARRY_BYTES 32
#define BUFFER_BYTES (256 * 1024)
#define UNREADY_MAX 64
#define SETUP_SECONDS 90
#define DRAIN_SECONDS 10

enum { READER = 1, APPENDER, TIMER, COMMANDS };

struct connection {
    int fd, kind, ready, carried;
    char carry[CARRY_BYTES];
    uint64_t got, due;
};

/* 1 µs steps to 100 ms, then 1 ms steps to about 100 s. */
struct histogram { uint32_t count[200000]; uint64_t total; uint64_t max; };

static int port, epoll, timer = -1;
static char path[512];
static int reader_count, ready_count, closed_count, stream_count = 1;
static struct connection *readers, *appenders, timer_source = {.kind = TIMER}, command_source = {.kind = COMMANDS};
static struct connection *idle[1024];
static int idle_count, appender_count;
static uint64_t rate, next_due, interval, sent, answered, delivered, events, sequence, sent_max = UINT64_MAX;
static const char *method = "POST";
static int appending;
static char buffer[CARRY_BYTES + BUFFER_BYTES];
static struct histogram answer_latency, delivery_latency;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

static void record(struct histogram *h, uint64_t ns) {
    uint64_t us = ns / 1000, slot = us < 100000 ? us : 100000 + us / 1000;
    h->count[slot < 199999 ? slot : 199999]++;
    h->total++;
    if (us > h->max) h->max = us;
}

static double percentile_us(const struct histogram *h, double share) {
    uint64_t want = (uint64_t)(share * (double)h->total), seen = 0;
    for (uint64_t slot = 0; slot < 200000; slot++) {
        seen += h->count[slot];
        if (seen > want) return slot < 100000 ? (double)slot : (double)(slot - 100000) * 1000.0;
    }
    return (double)h->max;
}

static int dial(struct connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e)) fail("epoll_ctl");
    return c->fd;
}

static void send_all(int fd, const char *text, int length) {
    if (send(fd, text, (size_t)length, MSG_NOSIGNAL) != length) fail("send");
}

static void subscribe(struct connection *c) {
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "GET %s%s?offset=now&live=sse HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: text/event-stream\r\n\r\n",
                     path, stream_count > 1 ? "-0" : "", port);
    c->kind = READER;
    send_all(dial(c), text, n);
}

static void post(struct connection *c, uint64_t due) {
    char text[1024], body[MESSAGE_BYTES + 1], number[24] = "";
    int n = snprintf(body, sizeof body, MARKER "%019llu\",\"n\":\"%012llu\",\"pad\":\"", (unsigned long long)due,
                     (unsigned long long)sequence);
    memset(body + n, 'x', (size_t)(MESSAGE_BYTES - 2 - n));
    memcpy(body + MESSAGE_BYTES - 2, "\"}", 3);
    if (stream_count > 1) snprintf(number, sizeof number, "-%d", (int)(sequence % (uint64_t)stream_count));
    n = snprintf(text, sizeof text,
                 "%s %s%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                 "Content-Length: %d\r\n\r\n%s", method, path, number, port, MESSAGE_BYTES, body);
    sequence++;
    sent++;
    c->due = due;
    c->carried = 0;
    send_all(c->fd, text, n);
}

static void dispatch(void) {
    uint64_t now = now_ns();
    while (appending && idle_count && sent < sent_max && (!rate || next_due <= now)) {
        post(idle[--idle_count], rate ? next_due : now_ns());
        next_due += interval;
    }
    if (appending && rate && idle_count) {
        struct itimerspec at = {.it_value = {(time_t)(next_due / 1000000000ull), (long)(next_due % 1000000000ull)}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
    }
}

/* An answer is small: it is collected whole, then checked and timed. */
static void on_answer(struct connection *c) {
    static char answers[1024][2048];
    char *text = answers[c - appenders];
    ssize_t n = recv(c->fd, text + c->carried, 2047 - (size_t)c->carried, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail("an appender was disconnected");
    c->carried += (int)n;
    text[c->carried] = 0;
    char *end = strstr(text, "\r\n\r\n");
    if (!end) return;
    if (strncmp(text, "HTTP/1.1 20", 11)) {
        errno = 0;
        fprintf(stderr, "load: answer: %.*s\n", (int)strcspn(text, "\r"), text);
        fail("append refused");
    }
    char *length = strcasestr(text, "\r\ncontent-length:");
    long body = length && length < end ? strtol(length + 17, NULL, 10) : 0;
    if (text + c->carried < end + 4 + body) return;
    record(&answer_latency, now_ns() - c->due);
    answered++;
    idle[idle_count++] = c;
    dispatch();
}

static void lose(struct connection *c) {
    close(c->fd);
    c->fd = -1;
    closed_count++;
}

static uint64_t stamp(const char *digits) {
    uint64_t value = 0;
    for (int i = 0; i < STAMP_BYTES; i++) value = value * 10 + (uint64_t)(digits[i] - '0');
    return value;
}

static void on_events(struct connection *c) {
    char *start = buffer + CARRY_BYTES - c->carried, *at = start, *found;
    ssize_t n = recv(c->fd, buffer + CARRY_BYTES, BUFFER_BYTES, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) { lose(c); return; }
    memcpy(start, c->carry, (size_t)c->carried);
    char *end = buffer + CARRY_BYTES + n;
    if (!c->ready) {
        if (end - start >= 12 && !memcmp(start, "HTTP/1.1 ", 9) && memcmp(start + 9, "200", 3)) {
            errno = 0;
            fail("a reader was refused");
        }
        found = memmem(at, (size_t)(end - at), READY, READY_BYTES);
        if (found) {
            c->ready = 1;
            ready_count++;
            at = found + READY_BYTES;
        }
    }
    uint64_t now = now_ns();
    while ((found = memmem(at, (size_t)(end - at), MARKER, MARKER_BYTES))) {
        at = found;
        if (end - found < MARKER_BYTES + STAMP_BYTES) break;
        record(&delivery_latency, now - stamp(found + MARKER_BYTES));
        c->got++;
        delivered++;
        /* The first message of an event's array; the others follow a comma. */
        if (found > start && found[-1] != ',') events++;
        at = found + MARKER_BYTES + STAMP_BYTES;
    }
    /* What may be the beginning of a marker or a message, and the byte before it. */
    long keep = c->ready ? MARKER_BYTES : READY_BYTES - 1;
    if (keep > end - at) keep = end - at;
    if (found) keep = end - found + (found > start);
    c->carried = (int)keep;
    memcpy(c->carry, end - keep, (size_t)keep);
}

/* One step of the loop; true when stdin has a command. */
static int pump(int timeout_ms) {
    struct epoll_event events[256];
    int command = 0, n = epoll_wait(epoll, events, 256, timeout_ms);
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        uint64_t ticks;
        if (c->kind == READER && c->fd >= 0) on_events(c);
        else if (c->kind == APPENDER) on_answer(c);
        else if (c->kind == COMMANDS) command = 1;
        else if (c->kind == TIMER && read(timer, &ticks, sizeof ticks) > 0) dispatch();
    }
    return command;
}

static double connect_readers(void) {
    uint64_t start = now_ns(), deadline = start + SETUP_SECONDS * 1000000000ull;
    int dialled = 0;
    readers = calloc((size_t)reader_count + 1, sizeof *readers);
    while (ready_count < reader_count) {
        while (dialled < reader_count && dialled - ready_count < UNREADY_MAX) subscribe(&readers[dialled++]);
        pump(100);
        if (closed_count || now_ns() > deadline) { errno = 0; fail("readers could not all connect"); }
    }
    return (double)(now_ns() - start) / 1e9;
}

static void connect_appenders(int count) {
    appenders = calloc((size_t)count, sizeof *appenders);
    for (int i = 0; i < count; i++) {
        appenders[i].kind = APPENDER;
        dial(&appenders[i]);
        idle[idle_count++] = &appenders[i];
    }
    appender_count = count;
}

static void drain(uint64_t goal) {
    uint64_t deadline = now_ns() + DRAIN_SECONDS * 1000000000ull;
    while ((answered < sent || delivered < goal) && now_ns() < deadline && closed_count < reader_count + 1) pump(20);
}

static void live(int appender_total, double seconds) {
    connect_readers();
    connect_appenders(appender_total);
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), now;
    next_due = start;
    interval = rate ? 1000000000ull / rate : 0;
    appending = 1;
    dispatch();
    while ((now = now_ns()) < end) pump((int)((end - now) / 1000000) + 1);
    appending = 0;
    double took = (double)(now - start) / 1e9;
    uint64_t in_window = delivered, answered_in_window = answered, events_in_window = events;
    drain(sent * (uint64_t)reader_count);
    printf("{\"seconds\": %.3f, \"appended\": %llu, \"delivered\": %llu, \"events\": %llu, \"missing\": %lld, \"closed\": %d, "
           "\"append_p50_us\": %.0f, \"append_p99_us\": %.0f, \"append_max_us\": %llu, "
           "\"delivery_p50_us\": %.0f, \"delivery_p99_us\": %.0f, \"delivery_max_us\": %llu}\n",
           took, (unsigned long long)answered_in_window, (unsigned long long)in_window,
           (unsigned long long)events_in_window,
           (long long)(sent * (uint64_t)reader_count) - (long long)delivered, closed_count,
           percentile_us(&answer_latency, 0.5), percentile_us(&answer_latency, 0.99),
           (unsigned long long)answer_latency.max, percentile_us(&delivery_latency, 0.5),
           percentile_us(&delivery_latency, 0.99), (unsigned long long)delivery_latency.max);
}

static void count(int connections) {
    connect_appenders(connections);
    uint64_t start = now_ns();
    appending = 1;
    dispatch();
    while (answered < sent_max) pump(1000);
    printf("{\"seconds\": %.3f, \"requests\": %llu, \"p50_us\": %.0f, \"p99_us\": %.0f}\n",
           (double)(now_ns() - start) / 1e9, (unsigned long long)answered, percentile_us(&answer_latency, 0.5),
           percentile_us(&answer_latency, 0.99));
}

static void hold(double seconds) {
    uint64_t deadline = now_ns() + (uint64_t)(seconds * 1e9);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &command_source};
    char line[64];
    connect_appenders(1);
    double took = connect_readers();
    printf("{\"ready\": %d, \"seconds\": %.3f}\n", ready_count, took);
    fflush(stdout);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &e)) fail("stdin");
    while (now_ns() < deadline) {
        if (!pump(500)) continue;
        ssize_t n = read(0, line, sizeof line);
        if (n <= 0) break;
        if (strncmp(line, "append", 6)) continue;
        uint64_t start = now_ns(), before = delivered;
        post(idle[--idle_count], start);
        drain(before + (uint64_t)reader_count);
        printf("{\"got\": %llu, \"closed\": %d, \"seconds\": %.4f}\n", (unsigned long long)(delivered - before),
               closed_count, (double)(now_ns() - start) / 1e9);
        fflush(stdout);
    }
}

static void prepare(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    /* Never outlive the benchmark. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &timer_source};
    if (epoll < 0 || timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &e)) fail("epoll");
}

static int appender_total(const char *text) {
    int total = atoi(text);
    if (total < 1 || total > 1024) { errno = 0; fail("1 to 1024 appenders"); }
    return total;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int is_live = argc == 9 && !strcmp(what, "live"), is_count = argc == 8 && !strcmp(what, "count");
    if (!is_live && !is_count && !(argc == 6 && !strcmp(what, "hold"))) {
        fprintf(stderr, "usage: load live PORT PATH READERS APPENDERS STREAMS RATE SECONDS\n"
                        "       load count PORT PATH METHOD STREAMS COUNT CONNECTIONS\n"
                        "       load hold PORT PATH READERS SECONDS\n");
        return 2;
    }
    prepare();
    port = atoi(argv[2]);
    snprintf(path, sizeof path, "%s", argv[3]);
    if (is_count) {
        method = argv[4];
        stream_count = atoi(argv[5]);
        sent_max = (uint64_t)atoll(argv[6]);
        count(appender_total(argv[7]));
        return 0;
    }
    reader_count = atoi(argv[4]);
    if (!is_live) {
        hold(atof(argv[5]));
        return 0;
    }
    stream_count = atoi(argv[6]);
    rate = (uint64_t)atoll(argv[7]);
    live(appender_total(argv[5]), atof(argv[8]));
    return 0;
}
