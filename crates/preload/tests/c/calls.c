// System calls with buffers that are not in DRAM, straddling absent pages at both ends. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pushed.h"

enum { LEN = 3 * PAGE };
static char expected[LEN];
static int file, in_thread;

// A buffer that begins and ends in the middle of pages, none of which is in DRAM.
static char *cold(int n, char value) {
    char *at = arena + n * 8 * PAGE + PAGE / 2;
    memset(at - PAGE / 2, value, 5 * PAGE);
    return at;
}

static int is(const char *at, char value) {
    for (int n = 0; n < LEN; n++)
        if (at[n] != value)
            return 0;
    return 1;
}

static void files(void) {
    char *in = cold(0, 1), *out = cold(1, 2), *third = cold(2, 3);
    push_out();
    MUST(pwrite(file, out, LEN, 0) == LEN);
    push_out();
    MUST(pread(file, in, LEN, 0) == LEN && is(in, 2) && in[-1] == 1 && in[LEN] == 1);
    cold(0, 4);
    push_out();
    struct iovec parts[2] = {{in, LEN}, {third, LEN}};
    MUST(pwritev(file, parts, 2, 0) == 2 * LEN);
    MUST(lseek(file, 0, SEEK_SET) == 0);
    cold(1, 0), cold(3, 0);
    push_out();
    struct iovec into[2] = {{out, LEN}, {arena + 3 * 8 * PAGE + PAGE / 2, LEN}};
    MUST(readv(file, into, 2) == 2 * LEN && is(out, 4) && is(into[1].iov_base, 3));
    // The vector itself is cold too.
    struct iovec *vector = (struct iovec *)(arena + 4 * 8 * PAGE + PAGE - sizeof *vector);
    vector[0] = parts[0], vector[1] = parts[1];
    push_out();
    MUST(pwritev2(file, vector, 2, 0, 0) == 2 * LEN);
    // stdio, with its buffer in there.
    FILE *stream = fdopen(dup(file), "r+");
    char *buffer = cold(5, 0);
    MUST(stream && setvbuf(stream, buffer, _IOFBF, LEN) == 0);
    push_out();
    rewind(stream);
    MUST(fread(out, 1, LEN, stream) == LEN && is(out, 4));
    cold(6, 9);
    push_out();
    rewind(stream);
    MUST(fwrite(arena + 6 * 8 * PAGE + PAGE / 2, 1, LEN, stream) == LEN && fflush(stream) == 0);
    MUST(pread(file, in, LEN, 0) == LEN && is(in, 9));
    fclose(stream);
    // Paths and structures.
    char *path = arena + 7 * 8 * PAGE + PAGE - 4;
    strcpy(path, "/proc/self/exe");
    struct stat *found = (struct stat *)(arena + 9 * 8 * PAGE - 8);
    push_out();
    MUST(stat(path, found) == 0 && S_ISREG(found->st_mode));
    push_out();
    MUST(readlink(path, in, LEN) > 0);
    int *count = (int *)cold(10, 0);
    int pipes[2];
    MUST(pipe(pipes) == 0 && write(pipes[1], "abc", 3) == 3);
    push_out();
    MUST(ioctl(pipes[0], FIONREAD, count) == 0 && *count == 3);
    close(pipes[0]), close(pipes[1]);
}

static void direct(const char *dir) {
    char name[200];
    snprintf(name, sizeof name, "%s/direct", dir);
    int fd = open(name, O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (fd < 0)
        return;
    char *at = arena + 12 * 8 * PAGE;
    memset(at, 0, 8 * PAGE);
    memset(at, 8, 4 * PAGE);
    push_out();
    MUST(pwrite(fd, at, 4 * PAGE, 0) == 4 * PAGE);
    memset(at, 1, 8 * PAGE);
    push_out();
    MUST(pread(fd, at + PAGE, 4 * PAGE, 0) == 4 * PAGE);
    MUST(at[0] == 1 && at[PAGE] == 8 && at[5 * PAGE - 1] == 8 && at[5 * PAGE] == 1);
    close(fd);
    unlink(name);
}

static void sockets(void) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    char *out = cold(0, 5), *in = cold(1, 0);
    push_out();
    MUST(send(ends[0], out, LEN, 0) == LEN);
    push_out();
    MUST(recv(ends[1], in, LEN, MSG_WAITALL) == LEN && is(in, 5));
    struct msghdr *message = (struct msghdr *)(arena + 2 * 8 * PAGE + PAGE - 16);
    struct iovec *part = (struct iovec *)(arena + 3 * 8 * PAGE + PAGE - 8);
    *part = (struct iovec){out, LEN};
    *message = (struct msghdr){.msg_iov = part, .msg_iovlen = 1};
    push_out();
    MUST(sendmsg(ends[0], message, 0) == LEN);
    part->iov_base = in;
    cold(1, 0);
    push_out();
    MUST(recvmsg(ends[1], message, MSG_WAITALL) == LEN && is(in, 5));
    struct mmsghdr *many = (struct mmsghdr *)(arena + 4 * 8 * PAGE + PAGE - 24);
    many[0] = (struct mmsghdr){.msg_hdr = *message};
    part->iov_base = out;
    push_out();
    MUST(sendmmsg(ends[0], many, 1, 0) == 1 && many[0].msg_len == LEN);
    push_out();
    MUST(read(ends[1], in, LEN) == LEN && is(in, 5));
    // What is nowhere is the kernel's to refuse.
    struct iovec *volatile nowhere = (struct iovec *)8; // Else compilers warn.
    struct msghdr names_it = {.msg_iov = nowhere, .msg_iovlen = 1};
    MUST(sendmsg(ends[0], (void *)8, 0) == -1 && errno == EFAULT);
    MUST(sendmsg(ends[0], &names_it, 0) == -1 && errno == EFAULT);
    MUST(sendmmsg(ends[0], (void *)8, 1, 0) == -1 && errno == EFAULT);
    MUST(recvmsg(ends[0], (void *)8, MSG_DONTWAIT) == -1 && errno == EFAULT);
    MUST(writev(ends[0], nowhere, 1) == -1 && errno == EFAULT);
    close(ends[0]), close(ends[1]);
}

static void *reader(void *fd) {
    static unsigned char bytes[1 << 16];
    unsigned long sum = 0;
    for (ssize_t came; (came = read((int)(long)fd, bytes, sizeof bytes)) > 0;)
        for (ssize_t n = 0; n < came; n++)
            sum = sum * 31 + bytes[n];
    return (void *)sum;
}

// A stream of messages whose later parts are cold, some to a socket that takes less than it is offered: what is sent comes once and in order.
static void streams(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    int door = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0), little = 16 << 10;
    MUST(bind(door, (void *)&name, len) == 0 && listen(door, 1) == 0 && getsockname(door, (void *)&name, &len) == 0);
    MUST(setsockopt(out, SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
    static unsigned char more[1 << 20];
    MUST(connect(out, (void *)&name, len) == 0);
    int in = accept(door, NULL, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, reader, (void *)(long)in);
    static unsigned char warm[5 * PAGE];
    unsigned long sum = 0;
    for (int round = 1; round < 12; round++) {
        int nonblocking = round > 6;
        MUST(fcntl(out, F_SETFL, nonblocking ? O_NONBLOCK : 0) == 0);
        memset(warm, round, sizeof warm);
        char *both[] = {cold(0, 101), cold(1, 102)};
        push_out();
        size_t before = sizeof warm - (size_t)round * 100;
        for (int again = 0; again < (nonblocking ? 20 : 1); again++) {
            struct iovec parts[][3] = {{{warm, before}, {both[0], LEN}, {more, nonblocking * sizeof more}}, {{warm, before}, {both[1], LEN}, {more, 0}}};
            struct mmsghdr messages[] = {{.msg_hdr = {.msg_iov = parts[0], .msg_iovlen = 3}}, {.msg_hdr = {.msg_iov = parts[1], .msg_iovlen = 3}}};
            int sent = sendmmsg(out, messages, 2, 0);
            MUST(sent == 2 || (nonblocking && (sent == 1 || errno == EAGAIN)));
            // Only the last of them may have been taken in part.
            MUST(sent < 2 || messages[0].msg_len == before + LEN + parts[0][2].iov_len);
            for (int nth = 0; nth < sent; nth++)
                for (size_t n = 0; n < messages[nth].msg_len; n++)
                    sum = sum * 31 + (unsigned char)(n < before ? round : n < before + LEN ? 101 + nth : 0);
            MUST(nonblocking || messages[1].msg_len == before + LEN);
        }
        ssize_t sent = send(out, both[round % 2], LEN, 0);
        MUST(sent == LEN || (nonblocking && (sent > 0 || errno == EAGAIN)));
        for (ssize_t n = 0; n < sent; n++)
            sum = sum * 31 + (unsigned char)(101 + round % 2);
    }
    close(out), close(door);
    void *came;
    MUST(pthread_join(thread, &came) == 0 && (unsigned long)came == sum);
    close(in);
}

static void *waker(void *word) {
    struct timespec a_while = {0, 50000000};
    nanosleep(&a_while, NULL);
    __atomic_store_n((int *)word, 1, __ATOMIC_SEQ_CST);
    push_out();
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return NULL;
}

static void futexes(void) {
    int *word = (int *)cold(0, 0);
    struct timespec *longest = (struct timespec *)(arena + 8 * PAGE + PAGE - 8);
    *longest = (struct timespec){20, 0};
    pthread_t thread;
    push_out();
    pthread_create(&thread, NULL, waker, word);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 0)
        MUST(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, longest, NULL, 0) == 0 || errno == EAGAIN);
    pthread_join(thread, NULL);
}

// io_uring by hand: one read and one write, with buffers that are not there.
static void rings(void) {
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0)
        return;
    size_t len = params.sq_off.array + params.sq_entries * 4, clen = params.cq_off.cqes + params.cq_entries * 16;
    len = len > clen ? len : clen;
    char *queue = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(0, params.sq_entries * 64, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    MUST(queue != MAP_FAILED && (void *)entries != MAP_FAILED);
    char *out = cold(0, 6), *in = cold(1, 0);
    for (int n = 0; n < 2; n++) {
        push_out();
        unsigned *tail = (unsigned *)(queue + params.sq_off.tail), *array = (unsigned *)(queue + params.sq_off.array);
        entries[0] = (struct io_uring_sqe){
            .opcode = n ? IORING_OP_READ : IORING_OP_WRITE, .fd = file, .addr = (unsigned long)(n ? in : out), .len = LEN};
        array[*tail & (params.sq_entries - 1)] = 0;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        MUST(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
        unsigned *head = (unsigned *)(queue + params.cq_off.head);
        struct io_uring_cqe *done = (struct io_uring_cqe *)(queue + params.cq_off.cqes) + (*head & (params.cq_entries - 1));
        MUST(done->res == LEN);
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
    MUST(is(in, 6));
    close(ring);
}

// A child that is started with cold arguments, and one that is looked into by ptrace.
static void processes(void) {
    char **args = (char **)(arena + 8 * PAGE - 8), *echo = arena + 3 * PAGE - 3, *word = arena + 20 * PAGE - 2;
    strcpy(echo, "/bin/echo"), strcpy(word, "cold arguments");
    args[0] = echo, args[1] = word, args[2] = NULL;
    int pipes[2];
    MUST(pipe(pipes) == 0);
    push_out();
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(pipes[1], 1);
        execve(echo, args, args + 2);
        _exit(1);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    char said[40] = {0};
    MUST(read(pipes[0], said, 39) == 15 && !strcmp(said, "cold arguments\n"));
    long *number = (long *)(arena + 5 * PAGE);
    *number = 42;
    push_out();
    pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(*number == 43 ? 0 : 1);
    }
    MUST(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    MUST(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid);
    // Where faults are taken in the thread, who traces it sees the signals that they and its calls come as.
    while (in_thread && WIFSTOPPED(status) && (WSTOPSIG(status) == SIGSYS || WSTOPSIG(status) == SIGBUS))
        MUST(ptrace(PTRACE_CONT, pid, NULL, WSTOPSIG(status)) == 0 && waitpid(pid, &status, 0) == pid);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    // Another process reads this one's memory, which faults here.
    int go[2];
    MUST(pipe(go) == 0);
    pid_t parent = getpid();
    push_out();
    pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        long seen = 0;
        struct iovec local = {&seen, 8}, remote = {number, 8};
        ssize_t got = process_vm_readv(parent, &local, 1, &remote, 1, 0);
        // Where faults are taken in the program's threads, nobody brings a page in for another process: it is refused, not wrong.
        _exit((got == 8 && seen == 42) || errno == EPERM || (in_thread && errno == EFAULT) ? 0 : 1);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

static void limits(void) {
    struct rlimit *now = (struct rlimit *)(arena + 6 * 8 * PAGE + PAGE - sizeof *now / 2), *was = (struct rlimit *)(arena + 7 * 8 * PAGE);
    MUST(getrlimit(RLIMIT_NOFILE, now) == 0);
    struct rlimit kept = *now;
    push_out();
    MUST(setrlimit(RLIMIT_NOFILE, now) == 0);
    push_out();
    MUST(prlimit(0, RLIMIT_NOFILE, now, was) == 0 && was->rlim_cur == kept.rlim_cur && was->rlim_max == kept.rlim_max);
}

int main(int count, char **args) {
    MUST(count == 2 || count == 3);
    in_thread = count == 3;
    arena = mmap(0, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pushed = malloc(PUSH);
    memset(pushed, 0, PUSH);
    FILE *temporary = tmpfile();
    file = fileno(temporary);
    memset(expected, 1, LEN);
    files();
    limits();
    direct(args[1]);
    sockets();
    streams();
    futexes();
    rings();
    processes();
    puts("OK");
    return 0;
}
