// Calls to sockets with served memory: as long as all of it is there they are made where it lies, and once pages leave by a copy. What the program sees is the same. Prints OK, or the line that failed.
//
// in_place rules in-place|copied: what each call answers, and which way it went. in_place leaves: threads send and receive while pages begin to leave, and signals come.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "must.h"

#define PAGE 4096
#define KIB 1024
#define MIB (1024 * 1024)

// Served memory that nobody has touched.
static char *fresh(size_t bytes) {
    char *at = mmap(NULL, bytes < MIB ? MIB : bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static int pages_there(char *at, int pages) {
    unsigned char there[64];
    int count = 0;
    MUST(pages <= 64 && mincore(at, pages * PAGE, there) == 0);
    for (int n = 0; n < pages; n++)
        count += there[n] & 1;
    return count;
}

static void pair(int type, int fds[2]) {
    MUST(socketpair(AF_UNIX, type, 0, fds) == 0);
}

// A read where the data lies touches all that it could fill; one that copies, what came.
static int is_in_place(int from, int to) {
    char *into = fresh(16 * KIB);
    MUST(write(from, "0123456789", 10) == 10);
    MUST(read(to, into, 16 * KIB) == 10 && memcmp(into, "0123456789", 10) == 0);
    int pages = pages_there(into, 4);
    MUST(pages == 1 || pages == 4);
    return pages == 4;
}

// Which files are read so, and that this ends when they change.
static void goes(int in_place) {
    int fds[2], waits[2], on = 1, off = 0;
    pair(SOCK_STREAM | SOCK_NONBLOCK, fds), pair(SOCK_STREAM, waits);
    for (int n = 0; n < 3; n++)
        MUST(is_in_place(fds[0], fds[1]) == in_place && !is_in_place(waits[0], waits[1]));
    MUST(fcntl(fds[1], F_SETFL, 0) == 0 && !is_in_place(fds[0], fds[1]));
    MUST(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0 && is_in_place(fds[0], fds[1]) == in_place);
    MUST(ioctl(fds[1], FIONBIO, &off) == 0 && !is_in_place(fds[0], fds[1]));
    MUST(ioctl(fds[1], FIONBIO, &on) == 0 && is_in_place(fds[0], fds[1]) == in_place);
    int other = dup(fds[1]);
    MUST(is_in_place(fds[0], other) == in_place && fcntl(other, F_SETFL, 0) == 0 && !is_in_place(fds[0], fds[1]));
    MUST(fcntl(other, F_SETFL, O_NONBLOCK) == 0 && is_in_place(fds[0], other) == in_place);
    MUST(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0 && is_in_place(fds[0], fds[1]) == in_place);
    MUST(dup2(waits[1], fds[1]) == fds[1] && !is_in_place(waits[0], fds[1]));
    MUST(dup3(other, fds[1], 0) == fds[1] && is_in_place(fds[0], fds[1]) == in_place);
    MUST(close(fds[1]) == 0 && dup(waits[1]) == fds[1] && !is_in_place(waits[0], fds[1]));
    MUST(close_range(fds[1], fds[1], 0) == 0 && dup(other) == fds[1] && is_in_place(fds[0], fds[1]) == in_place);
    // A file is none of them, whatever its flags say.
    int file = fileno(tmpfile());
    MUST(fcntl(file, F_SETFL, O_NONBLOCK) == 0 && write(file, "0123456789", 10) == 10 && lseek(file, 0, SEEK_SET) == 0);
    char *into = fresh(16 * KIB);
    MUST(read(file, into, 16 * KIB) == 10 && pages_there(into, 4) == 1);
    // What nobody may touch behind what comes is not touched.
    char *guarded = fresh(16 * KIB);
    MUST(mprotect(guarded + PAGE, 3 * PAGE, PROT_NONE) == 0);
    MUST(write(fds[0], "01234", 5) == 5 && read(fds[1], guarded, 16 * KIB) == 5 && memcmp(guarded, "01234", 5) == 0);
    MUST(mprotect(guarded, 4 * PAGE, PROT_READ) == 0 && read(fds[1], guarded, 10) == -1 && errno == EAGAIN);
    MUST(munmap(guarded, 16 * KIB) == 0 && is_in_place(fds[0], fds[1]) == in_place);
    close(fds[0]), close(fds[1]), close(waits[0]), close(waits[1]), close(other), close(file);
    // A vector of no bytes is no message.
    pair(SOCK_SEQPACKET | SOCK_NONBLOCK, fds);
    struct iovec *none = (struct iovec *)fresh(PAGE);
    none[0] = none[1] = (struct iovec){none, 0};
    MUST(writev(fds[0], none, 2) == 0 && read(fds[1], into, 10) == -1 && errno == EAGAIN);
    struct msghdr *message = (struct msghdr *)(none + 10);
    *message = (struct msghdr){.msg_iov = none, .msg_iovlen = 2};
    MUST(sendmsg(fds[0], message, 0) == 0 && read(fds[1], into, 10) == 0);
    close(fds[0]), close(fds[1]);
}

static void *drains(void *fd) {
    char *to = fresh(64 * KIB);
    size_t all = 0;
    for (ssize_t got; all < 64 * KIB; all += got) {
        usleep(2000);
        got = read(*(int *)fd, to + all, 1000);
        MUST(got > 0);
    }
    for (size_t n = 0; n < 64 * KIB; n++)
        MUST((unsigned char)to[n] == (unsigned char)(n % 16384 * 7));
    return NULL;
}

static void *writes_late(void *fd) {
    usleep(50000);
    MUST(write(*(int *)fd, "late", 4) == 4);
    usleep(50000);
    MUST(write(*(int *)fd, "last", 4) == 4);
    return NULL;
}

static volatile sig_atomic_t pipes;
static void on_pipe(int signal) { (void)signal, pipes++; }

static void rules(void) {
    int fds[2];
    pthread_t thread;
    char *from = fresh(64 * KIB), *to = fresh(64 * KIB);
    for (size_t n = 0; n < 16 * KIB; n++)
        from[n] = (char)(n * 7);
    // One that waits takes all, however little room there is.
    for (int way = 0; way < 4; way++) {
        pair(SOCK_STREAM, fds);
        int small = 4096;
        MUST(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
        MUST(pthread_create(&thread, NULL, drains, &fds[1]) == 0);
        struct iovec *parts = (struct iovec *)(from + 32 * KIB + 1000);
        parts[0] = (struct iovec){from, 1}, parts[1] = (struct iovec){from + 1, 8000}, parts[2] = (struct iovec){from + 8001, 8383};
        struct msghdr *message = (struct msghdr *)(from + 48 * KIB);
        *message = (struct msghdr){.msg_iov = parts, .msg_iovlen = 3};
        for (int n = 0; n < 4; n++)
            switch (way) {
            case 0: MUST(write(fds[0], from, 16 * KIB) == 16 * KIB); break;
            case 1: MUST(send(fds[0], from, 16 * KIB, MSG_NOSIGNAL) == 16 * KIB); break;
            case 2: MUST(writev(fds[0], parts, 3) == 16 * KIB); break;
            case 3: MUST(sendmsg(fds[0], message, 0) == 16 * KIB); break;
            }
        MUST(pthread_join(thread, NULL) == 0);
        close(fds[0]), close(fds[1]);
    }
    // One that waits gets what comes, and one that does not is told so.
    pair(SOCK_STREAM, fds);
    MUST(recv(fds[1], to, 100, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    MUST(pthread_create(&thread, NULL, writes_late, &fds[0]) == 0);
    MUST(read(fds[1], to, 1000) == 4 && memcmp(to, "late", 4) == 0);
    MUST(recv(fds[1], to, 1000, 0) == 4 && memcmp(to, "last", 4) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
    MUST(read(fds[1], to, 1000) == -1 && errno == EAGAIN);
    MUST(write(fds[0], "peeked", 6) == 6);
    MUST(recv(fds[1], to, 3, MSG_PEEK) == 3 && read(fds[1], to, 1000) == 6 && memcmp(to, "peeked", 6) == 0);
    // Full, and nobody reads.
    MUST(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    ssize_t sent, all = 0, got = 0, came;
    while ((sent = write(fds[0], from, 16 * KIB)) > 0)
        all += sent;
    MUST(sent == -1 && errno == EAGAIN && all > 0);
    while ((came = read(fds[1], to, 16 * KIB)) > 0)
        got += came;
    MUST(came == -1 && errno == EAGAIN && got == all);
    // The end, and what writes to it.
    signal(SIGPIPE, on_pipe);
    close(fds[1]);
    MUST(write(fds[0], from, 10) == -1 && errno == EPIPE && pipes == 1);
    MUST(send(fds[0], from, 10, MSG_NOSIGNAL) == -1 && errno == EPIPE && pipes == 1);
    MUST(read(fds[0], to, 10) == 0);
    close(fds[0]);
    // Messages keep their bounds.
    pair(SOCK_DGRAM, fds);
    MUST(write(fds[0], from, 5000) == 5000 && send(fds[0], from, 7, 0) == 7);
    MUST(recv(fds[1], to, 100, MSG_TRUNC) == 5000 && memcmp(to, from, 100) == 0);
    MUST(read(fds[1], to, 100) == 7);
    // Files go along.
    char *control = from + 20 * KIB;
    struct msghdr *message = (struct msghdr *)(from + 48 * KIB);
    struct iovec *part = (struct iovec *)(from + 32 * KIB);
    *part = (struct iovec){from, 3};
    *message = (struct msghdr){.msg_iov = part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(head), &fds[0], sizeof(int));
    MUST(sendmsg(fds[0], message, 0) == 3);
    memset(control, 0, 100);
    MUST(recvmsg(fds[1], message, 0) == 3);
    int other;
    memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof(int));
    MUST(write(other, "x", 1) == 1 && read(fds[1], to, 10) == 1 && close(other) == 0);
    // Nothing, and nowhere.
    MUST(write(fds[0], from, 0) == 0 && read(fds[1], to, 10) == 0);
    void *volatile nowhere = NULL;
    MUST(write(fds[0], nowhere, 10) == -1 && errno == EFAULT);
    MUST(sendmsg(fds[0], NULL, 0) == -1 && errno == EFAULT);
    close(fds[0]), close(fds[1]);
    pair(SOCK_STREAM, fds);
    // One that waits for more than a byte.
    int least = 8;
    MUST(setsockopt(fds[0], SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
    MUST(write(fds[1], "some", 4) == 4);
    MUST(pthread_create(&thread, NULL, writes_late, &fds[1]) == 0);
    MUST(read(fds[0], to, 1000) == 8 && memcmp(to, "somelate", 8) == 0);
    MUST(pthread_join(thread, NULL) == 0);
}

static volatile int stops;
static int nested[2];
static char *nested_memory;
static volatile long nested_count;

// Comes in the middle of calls, and makes some of its own.
static void on_alarm(int signal) {
    (void)signal;
    int before = errno;
    if (write(nested[0], nested_memory, 100) == 100 && read(nested[1], nested_memory + PAGE, 100) == 100)
        nested_count++;
    errno = before;
}

struct stream {
    int fds[2], waits, nth;
    long bytes;
};

static char byte_at(int nth, long at) { return (char)(at * 31 + at / 251 + nth); }

static unsigned some(unsigned *seed, unsigned below) { return (*seed = *seed * 1664525 + 1013904223) / 65536 % below; }

static void *sends(void *arg) {
    struct stream *s = arg;
    unsigned seed = s->nth + 1;
    char *memory = malloc(2 * MIB);
    struct iovec *parts = (struct iovec *)memory;
    struct msghdr *message = (struct msghdr *)(memory + PAGE - 20);
    long at = 0;
    while (!stops) {
        size_t len = 1 + some(&seed, 18000);
        char *from = memory + 64 * KIB + some(&seed, MIB);
        for (size_t n = 0; n < len; n++)
            from[n] = byte_at(s->nth, at + n);
        parts[0] = (struct iovec){from, len / 3}, parts[1] = (struct iovec){from + len / 3, len - len / 3};
        memset(message, 0, sizeof *message);
        message->msg_iov = parts, message->msg_iovlen = 2;
        ssize_t sent = 0;
        switch (some(&seed, 4)) {
        case 0: sent = write(s->fds[0], from, len); break;
        case 1: sent = send(s->fds[0], from, len, MSG_NOSIGNAL); break;
        case 2: sent = writev(s->fds[0], parts, 2); break;
        case 3: sent = sendmsg(s->fds[0], message, 0); break;
        }
        if (sent < 0) {
            MUST(errno == EINTR || (!s->waits && errno == EAGAIN));
            struct pollfd ready = {s->fds[0], POLLOUT, 0};
            poll(&ready, 1, 100);
            continue;
        }
        at += sent;
    }
    s->bytes = at;
    shutdown(s->fds[0], SHUT_WR);
    return NULL;
}

static void *receives(void *arg) {
    struct stream *s = arg;
    unsigned seed = s->nth + 100;
    char *memory = malloc(2 * MIB);
    long at = 0;
    for (;;) {
        size_t len = 1 + some(&seed, 18000);
        char *to = memory + some(&seed, MIB);
        ssize_t got = some(&seed, 2) ? read(s->fds[1], to, len) : recv(s->fds[1], to, len, 0);
        if (got == 0)
            break;
        if (got < 0) {
            MUST(errno == EINTR || (!s->waits && errno == EAGAIN));
            struct pollfd ready = {s->fds[1], POLLIN, 0};
            poll(&ready, 1, 100);
            continue;
        }
        for (ssize_t n = 0; n < got; n++)
            MUST(to[n] == byte_at(s->nth, at + n));
        at += got;
    }
    MUST(at == s->bytes);
    return NULL;
}

static void leaves(void) {
    enum { STREAMS = 4, MUCH = 96 };
    static struct stream streams[STREAMS];
    pthread_t threads[2 * STREAMS];
    pair(SOCK_STREAM, nested);
    nested_memory = fresh(MIB);
    struct sigaction action = {.sa_handler = on_alarm};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    for (int n = 0; n < STREAMS; n++) {
        streams[n].nth = n, streams[n].waits = n % 2;
        pair(SOCK_STREAM | (n % 2 ? 0 : SOCK_NONBLOCK), streams[n].fds);
        MUST(pthread_create(&threads[2 * n], NULL, sends, &streams[n]) == 0);
        MUST(pthread_create(&threads[2 * n + 1], NULL, receives, &streams[n]) == 0);
    }
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    usleep(300000);
    // Now pages leave.
    volatile char *much = malloc(MUCH * MIB);
    for (int round = 0; round < 3; round++)
        for (long at = 0; at < (long)MUCH * MIB; at += PAGE)
            much[at] = (char)(at / PAGE + round);
    usleep(300000);
    stops = 1;
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    for (int n = 0; n < 2 * STREAMS; n++)
        MUST(pthread_join(threads[n], NULL) == 0);
    for (int n = 0; n < STREAMS; n++)
        MUST(streams[n].bytes > 0);
    MUST(nested_count > 0);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(argc > 1);
    if (strcmp(argv[1], "rules") == 0) {
        MUST(argc > 2);
        if (strcmp(argv[2], "copied") == 0) {
            volatile char *much = malloc(96 * MIB);
            for (long at = 0; at < 96L * MIB; at += PAGE)
                much[at] = 1;
        }
        goes(strcmp(argv[2], "in-place") == 0);
        rules();
    } else
        leaves();
    puts("OK");
}
