// Files and sockets through io_uring and the kernel's older asynchronous I/O, into and from memory of which most is not in DRAM, while more of it leaves. The first
// argument says what; prints OK, or the line that failed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "odd.h"

enum { PART = 8 * PAGE, ENTRIES = 32 };

static int ring_fd;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

// liburing's; the test has one of its own, if it is to be used.
extern int io_uring_setup(unsigned entries, struct io_uring_params *params) __attribute__((weak));
static int by_library;

static int ring_setup(struct io_uring_params *params) {
    return by_library ? io_uring_setup(ENTRIES, params) : (int)syscall(SYS_io_uring_setup, ENTRIES, params);
}

// 0 if this machine has no io_uring.
static int ring(void) {
    struct io_uring_params params = {0};
    ring_fd = ring_setup(&params);
    if (ring_fd < 0)
        return 0;
    int both = PROT_READ | PROT_WRITE;
    size_t sq_bytes = params.sq_off.array + params.sq_entries * 4, cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof *cqes;
    char *sq = mmap(0, sq_bytes, both, MAP_SHARED, ring_fd, IORING_OFF_SQ_RING);
    char *cq = mmap(0, cq_bytes, both, MAP_SHARED, ring_fd, IORING_OFF_CQ_RING);
    sqes = mmap(0, params.sq_entries * sizeof *sqes, both, MAP_SHARED, ring_fd, IORING_OFF_SQES);
    MUST(sq != MAP_FAILED && cq != MAP_FAILED && sqes != MAP_FAILED);
    sq_tail = (unsigned *)(sq + params.sq_off.tail), sq_mask = (unsigned *)(sq + params.sq_off.ring_mask);
    sq_array = (unsigned *)(sq + params.sq_off.array), cq_head = (unsigned *)(cq + params.cq_off.head);
    cq_tail = (unsigned *)(cq + params.cq_off.tail), cq_mask = (unsigned *)(cq + params.cq_off.ring_mask);
    cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
    return 1;
}

static void ask(int op, int fd, void *at, unsigned len, size_t offset, int flags) {
    unsigned tail = *sq_tail, slot = tail & *sq_mask;
    sqes[slot] = (struct io_uring_sqe){.opcode = op, .fd = fd, .addr = (unsigned long)at, .len = len, .off = offset, .flags = flags, .user_data = len};
    sq_array[slot] = slot;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
}

// So many are handed in and waited for; each has done all that it was to do.
static void done(int count) {
    MUST(syscall(SYS_io_uring_enter, ring_fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0) == count);
    for (int n = 0; n < count; n++) {
        unsigned head = *cq_head;
        MUST(head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE));
        struct io_uring_cqe *seen = &cqes[head & *cq_mask];
        if (seen->res < 0)
            errno = -seen->res;
        MUST(seen->res == (int)seen->user_data || seen->user_data == 1);
        __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
    }
}

static int file(int flags) {
    char name[] = "/var/tmp/terrace-rings-XXXXXX";
    int made = mkstemp(name), fd = open(name, O_RDWR | flags);
    MUST(made >= 0 && fd >= 0 && close(made) == 0);
    unlink(name);
    return fd;
}

// Where a part of the memory begins: far from the one before, and away from pages' starts where a file need not have those.
static char *part(unsigned n, int apart) {
    char *base = (char *)(((unsigned long)memory + PAGE - 1) / PAGE * PAGE);
    return base + (unsigned long)n * 1531 % (pages / 8 - 2) * PART + apart;
}

static size_t words_apart(const char *at) { return (size_t)((unsigned long *)at - memory); }

static void is_whole(const char *at, size_t bytes) {
    for (size_t n = 0; n < bytes / 8; n++)
        MUST(((unsigned long *)at)[n] == mixed(words_apart(at) + n));
}

// Written from absent pages, and read into pages that are absent; by threads of the kernel, too, which fault in our name.
static void uring(void) {
    fill(64 * MIB);
    if (!ring()) {
        puts("not judged: no io_uring here");
        return;
    }
    int plain = file(0), direct = file(O_DIRECT), ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    char *copy = mmap(0, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned round = 0; round < 40; round++) {
        int flags = round % 2 ? IOSQE_ASYNC : 0, fd = round % 4 < 2 ? plain : direct, apart = fd == plain ? 1000 : 0;
        for (unsigned n = 0; n < 16; n++)
            ask(IORING_OP_WRITE, fd, part(round * 16 + n, apart), PART, n * PART, flags);
        done(16);
        if (fd == direct)
            continue;
        struct iovec vectors[8][2];
        for (unsigned n = 0; n < 16; n++)
            memset(part(round * 16 + n, apart), 0, 100);
        for (unsigned n = 0; n < 8; n++)
            ask(IORING_OP_READ, fd, part(round * 16 + n, apart), PART, n * PART, flags);
        for (unsigned n = 0; n < 8; n++) {
            char *at = part(round * 16 + 8 + n, apart);
            vectors[n][0] = (struct iovec){at, PAGE + 8}, vectors[n][1] = (struct iovec){at + PAGE + 8, PART - PAGE - 8};
            ask(IORING_OP_READV, fd, vectors[n], 2, (8 + n) * PART, flags);
            sqes[(*sq_tail - 1) & *sq_mask].user_data = 1;
        }
        done(16);
        for (unsigned n = 0; n < 16; n++)
            is_whole(part(round * 16 + n, apart), PART);
        // Through a socket.
        char *at = part(round * 77, 1000);
        ask(IORING_OP_SEND, ends[0], at, PART, 0, flags);
        done(1);
        MUST(recv(ends[1], copy, PART, MSG_WAITALL) == PART && !memcmp(copy, at, PART));
        MUST(send(ends[1], copy, PART, 0) == PART);
        memset(at, 0, PART);
        ask(IORING_OP_RECV, ends[0], at, PART, 0, flags);
        sqes[(*sq_tail - 1) & *sq_mask].msg_flags = MSG_WAITALL;
        done(1);
        is_whole(at, PART);
    }
    check();
}

// As liburing has them; here there is only what stands in front of them, if anything.
extern int io_uring_register_buffers(void *ring, const struct iovec *parts, unsigned count) __attribute__((weak));

// Buffers that the kernel keeps: of served memory refused, of other memory as ever.
static void registered(void) {
    fill(64 * MIB);
    if (!ring()) {
        puts("not judged: no io_uring here");
        return;
    }
    char *other = mmap(0, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct iovec parts[2] = {{other, PART}, {part(5, 0), PART}};
    MUST(syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS, parts, 2) == -1 && errno == ENOMEM);
    MUST(io_uring_register_buffers && io_uring_register_buffers(NULL, parts, 2) == -ENOMEM);
    struct io_uring_rsrc_register tagged = {.nr = 2, .data = (unsigned long)parts};
    MUST(syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS2, &tagged, sizeof tagged) == -1 && errno == ENOMEM);
    MUST(syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS, parts, 1) == 0);
    struct io_uring_rsrc_update2 update = {.offset = 0, .data = (unsigned long)(parts + 1), .nr = 1};
    MUST(syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof update) == -1 && errno == ENOMEM);
    int fd = file(O_DIRECT);
    MUST(pwrite(fd, part(7, 0), PART, 0) == PART);
    ask(IORING_OP_READ_FIXED, fd, other, PART, 0, 0);
    done(1);
    MUST(!memcmp(other, part(7, 0), PART));
}

static volatile int ends;

// Makes pages leave.
static void *looks_at_all(void *seed) {
    volatile unsigned long sum = (unsigned long)seed;
    while (!ends)
        for (size_t n = 0; n < pages && !ends; n++)
            sum += memory[(n * 7919 + (unsigned long)seed * 997) % pages * WORDS];
    return NULL;
}

// Old asynchronous reads of a direct file into served memory, which leaves meanwhile.
static void aio(void) {
    fill(64 * MIB);
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, ENTRIES, &context) == 0);
    int fd = file(O_DIRECT);
    pthread_t others[3];
    for (unsigned long n = 0; n < 3; n++)
        MUST(pthread_create(&others[n], NULL, looks_at_all, (void *)n) == 0);
    enum { COUNT = 16 };
    for (unsigned round = 0; round < 100; round++) {
        struct iocb all[COUNT], *asked[COUNT];
        struct io_event events[COUNT];
        struct iovec vectors[COUNT];
        for (int reading = 0; reading < 2; reading++) {
            for (unsigned n = 0; n < COUNT; n++) {
                char *at = part(round * COUNT + n, 0);
                vectors[n] = (struct iovec){at, PART};
                all[n] = (struct iocb){.aio_fildes = fd, .aio_lio_opcode = reading ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, .aio_offset = n * PART,
                                       .aio_buf = (unsigned long)at, .aio_nbytes = PART, .aio_data = n};
                if (reading && n % 2) {
                    all[n].aio_lio_opcode = IOCB_CMD_PREADV;
                    all[n].aio_buf = (unsigned long)&vectors[n], all[n].aio_nbytes = 1;
                }
                asked[n] = &all[n];
                if (reading)
                    memset(at, 0, PART);
            }
            MUST(syscall(SYS_io_submit, context, COUNT, asked) == COUNT);
            MUST(syscall(SYS_io_getevents, context, COUNT, COUNT, events, NULL) == COUNT);
            for (int n = 0; n < COUNT; n++)
                MUST(events[n].res == PART);
        }
        for (unsigned n = 0; n < COUNT; n++)
            is_whole(part(round * COUNT + n, 0), PART);
    }
    ends = 1;
    for (int n = 0; n < 3; n++)
        pthread_join(others[n], NULL);
    check();
}

// Direct reads through io_uring into served memory, of which pages leave before the device is done.
static void lost(int with_library) {
    by_library = with_library;
    enum { BIG = 64 * PAGE, PARTS = 64, COUNT = 16 };
    fill(64 * MIB);
    if (!ring()) {
        puts("not judged: no io_uring here");
        return;
    }
    int fd = file(O_DIRECT);
    char *base = part(0, 0);
    for (size_t n = 0; n < PARTS; n++)
        MUST(pwrite(fd, base + n * BIG, BIG, n * BIG) == BIG);
    pthread_t others[3];
    for (unsigned long n = 0; n < 3; n++)
        MUST(pthread_create(&others[n], NULL, looks_at_all, (void *)n) == 0);
    long wrong = 0, all = 0;
    for (size_t round = 0; round < 40; round++) {
        for (size_t n = 0; n < COUNT; n++) {
            size_t at = (round * COUNT + n) * 37 % PARTS * BIG;
            memset(base + at, 0, BIG);
            ask(IORING_OP_READ, fd, base + at, BIG, at, round % 2 ? IOSQE_ASYNC : 0);
        }
        done(COUNT);
        for (size_t n = 0; n < COUNT * 64; n++, all++) {
            unsigned long *page = (unsigned long *)(base + ((round * COUNT + n / 64) * 37 % PARTS * BIG + n % 64 * PAGE));
            size_t first = words_apart((char *)page), w = 0;
            while (w < WORDS && page[w] == mixed(first + w))
                w++;
            wrong += w < WORDS;
            for (; w < WORDS; w++)
                page[w] = mixed(first + w);
        }
    }
    // A child of a fork has what its parent has.
    pid_t child = fork();
    MUST(child >= 0);
    if (!child) {
        is_whole(base, PARTS * BIG / 2);
        _exit(7);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    ends = 1;
    for (int n = 0; n < 3; n++)
        pthread_join(others[n], NULL);
    printf("lost %ld of %ld pages\n", wrong, all);
    check();
}

int main(int count, char **args) {
    MUST(count >= 2);
    if (!strcmp(args[1], "uring"))
        uring();
    else if (!strcmp(args[1], "registered"))
        registered();
    else if (!strcmp(args[1], "aio"))
        aio();
    else if (!strcmp(args[1], "lost"))
        lost(0);
    else if (!strcmp(args[1], "lost-by-library"))
        lost(1);
    else
        MUST(!"known");
    puts("OK");
    return 0;
}
