/* Bandwidth of catch-up reads, and the machine's own limits that results are put next to.
 *
 *   probe read PORT PATH SECONDS CONNECTIONS
 *                                   whole catch-up reads, following Stream-Next-Offset; one process a connection
 *   probe loopback SECONDS          plain send/recv between two processes over 127.0.0.1
 *   probe sync FILE SECONDS         200-byte records, one pwrite and one fdatasync each, preallocated file
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024)
#define RECORD_BYTES 200
#define SYNC_FILE_BYTES (16 * 1024 * 1024)

static char buffer[BUFFER_BYTES];
static size_t filled, used;
static int server;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "probe: %s: %s\n", what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

static int dial(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval patience = {30, 0};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static void fill(void) {
    ssize_t n = recv(server, buffer, BUFFER_BYTES, 0);
    if (n <= 0) fail("recv");
    filled = (size_t)n;
    used = 0;
}

static void skip(uint64_t bytes) {
    while (bytes) {
        if (used == filled) fill();
        size_t part = filled - used < bytes ? filled - used : (size_t)bytes;
        used += part;
        bytes -= part;
    }
}

static void line(char *into, size_t room) {
    size_t n = 0;
    for (;;) {
        if (used == filled) fill();
        char c = buffer[used++];
        if (c == '\n') break;
        if (c != '\r' && n + 1 < room) into[n++] = c;
    }
    into[n] = 0;
}

/* One GET; the bytes of its body. Fills in where to go on, and whether that is the tail. */
static uint64_t get(int port, const char *path, char *offset, int *up_to_date) {
    char text[2048];
    int64_t length = -1;
    int n = snprintf(text, sizeof text, "GET %s?offset=%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", path, offset, port);
    if (send(server, text, (size_t)n, MSG_NOSIGNAL) != n) fail("send");
    line(text, sizeof text);
    if (strncmp(text, "HTTP/1.1 200", 12)) {
        fprintf(stderr, "probe: %s\n", text);
        errno = 0;
        fail("read refused");
    }
    *up_to_date = 0;
    for (line(text, sizeof text); *text; line(text, sizeof text)) {
        if (!strncasecmp(text, "content-length:", 15)) length = atoll(text + 15);
        if (!strncasecmp(text, "stream-up-to-date:", 18)) *up_to_date = 1;
        if (!strncasecmp(text, "stream-next-offset:", 19)) snprintf(offset, 128, "%s", text + 19 + strspn(text + 19, " "));
    }
    if (length >= 0) {
        skip((uint64_t)length);
        return (uint64_t)length;
    }
    uint64_t total = 0, chunk;
    do {
        line(text, sizeof text);
        chunk = strtoull(text, NULL, 16);
        skip(chunk);
        total += chunk;
        line(text, sizeof text);
    } while (chunk);
    return total;
}

struct counts { double took; uint64_t bytes, reads, requests; };

static void read_stream(int port, const char *path, double seconds, struct counts *into) {
    struct counts so_far = {0};
    char offset[128];
    int up_to_date;
    server = dial(port);
    double start = now_s();
    do {
        strcpy(offset, "-1");
        do {
            so_far.bytes += get(port, path, offset, &up_to_date);
            so_far.requests++;
        } while (!up_to_date);
        so_far.reads++;
        so_far.took = now_s() - start;
    } while (so_far.took < seconds);
    *into = so_far;
}

/* Rates add up over connections, each over its own time: the last read of one may end after the others'. */
static void read_streams(int port, const char *path, double seconds, int connections) {
    double reads_s = 0, requests_s = 0, bytes_s = 0;
    uint64_t reads = 0, bytes = 0;
    size_t size = (size_t)connections * sizeof(struct counts);
    struct counts *all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) fail("mmap");
    for (int i = 0; i < connections; i++) {
        pid_t reader = fork();
        if (reader < 0) fail("fork");
        if (reader) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        read_stream(port, path, seconds, &all[i]);
        _exit(0);
    }
    for (int i = 0, status; i < connections; i++)
        if (wait(&status) < 0 || status) { errno = 0; fail("a reader failed"); }
    for (int i = 0; i < connections; i++) {
        reads += all[i].reads;
        bytes += all[i].bytes;
        reads_s += (double)all[i].reads / all[i].took;
        requests_s += (double)all[i].requests / all[i].took;
        bytes_s += (double)all[i].bytes / all[i].took;
    }
    printf("{\"reads\": %llu, \"bytes\": %llu, \"reads_per_s\": %.2f, \"requests_per_s\": %.2f, "
           "\"bytes_per_s\": %.0f}\n",
           (unsigned long long)reads, (unsigned long long)bytes, reads_s, requests_s, bytes_s);
}

static void loopback(double seconds) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    uint64_t bytes = 0;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1)) fail("listen");
    getsockname(listener, (struct sockaddr *)&at, &size);
    pid_t sender = fork();
    if (sender < 0) fail("fork");
    if (!sender) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = dial(ntohs(at.sin_port));
        while (send(fd, buffer, BUFFER_BYTES, MSG_NOSIGNAL) > 0) {}
        _exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    double start = now_s(), took;
    do {
        ssize_t n = recv(fd, buffer, BUFFER_BYTES, 0);
        if (n <= 0) fail("recv");
        bytes += (uint64_t)n;
        took = now_s() - start;
    } while (took < seconds);
    close(fd);
    waitpid(sender, NULL, 0);
    printf("{\"seconds\": %.4f, \"bytes\": %llu}\n", took, (unsigned long long)bytes);
}

static void sync_rate(const char *file, double seconds) {
    uint64_t count = 0;
    off_t at = 0;
    int fd = open(file, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) fail(file);
    /* Written once, so that a sync has no block allocation to record. */
    for (off_t done = 0; done < SYNC_FILE_BYTES; done += BUFFER_BYTES)
        if (pwrite(fd, buffer, BUFFER_BYTES, done) != BUFFER_BYTES) fail("pwrite");
    if (fsync(fd)) fail("fsync");
    double start = now_s(), took;
    do {
        if (pwrite(fd, buffer, RECORD_BYTES, at) != RECORD_BYTES || fdatasync(fd)) fail("fdatasync");
        at = at + 2 * RECORD_BYTES > SYNC_FILE_BYTES ? 0 : at + RECORD_BYTES;
        count++;
        took = now_s() - start;
    } while (took < seconds);
    close(fd);
    unlink(file);
    printf("{\"seconds\": %.4f, \"syncs\": %llu}\n", took, (unsigned long long)count);
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int connections = argc == 6 && !strcmp(argv[1], "read") ? atoi(argv[5]) : 0;
    if (connections > 0) read_streams(atoi(argv[2]), argv[3], atof(argv[4]), connections);
    else if (argc == 3 && !strcmp(argv[1], "loopback")) loopback(atof(argv[2]));
    else if (argc == 4 && !strcmp(argv[1], "sync")) sync_rate(argv[2], atof(argv[3]));
    else {
        fprintf(stderr, "usage: probe read PORT PATH SECONDS CONNECTIONS | loopback SECONDS | sync FILE SECONDS\n");
        return 2;
    }
    return 0;
}
