// What programs ask of the kernel, with all that they hand over in memory that is not there: files, messages, waits and sleeps, other programs.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "placed.h"

enum { MUCH = 3 * MIB };
extern char **environ;

static void count(int signal) {
    (void)signal;
}

static void *writes(void *fds) {
    char *from = arena + 30 * MIB;
    for (size_t n = 0; n < MUCH; n++)
        from[n] = (char)(n * 7 + n / PAGE);
    push_out();
    struct iovec *parts = (struct iovec *)place(3 * sizeof *parts);
    parts[0] = (struct iovec){from, PAGE + 1};
    parts[1] = (struct iovec){from + PAGE + 1, MIB};
    parts[2] = (struct iovec){from + PAGE + 1 + MIB, MUCH - MIB - PAGE - 1};
    push_out();
    MUST(writev(((int *)fds)[1], parts, 3) == MUCH);
    return NULL;
}

static void messages(void) {
    int fds[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, writes, fds) == 0);
    char *into = arena + 36 * MIB;
    size_t got = 0;
    while (got < MUCH) {
        ssize_t some = recv(fds[0], into + got, MUCH - got, got % 2 ? 0 : MSG_WAITALL);
        MUST(some > 0);
        got += (size_t)some;
    }
    MUST(pthread_join(thread, NULL) == 0);
    push_out();
    for (size_t n = 0; n < MUCH; n++)
        MUST(into[n] == (char)(n * 7 + n / PAGE));
    // A descriptor, in a message of which every part is cold.
    struct msghdr *message = (struct msghdr *)place(sizeof *message);
    struct iovec *part = (struct iovec *)place(sizeof *part);
    char *control = (char *)(((uintptr_t)place(256) + 15) & ~(uintptr_t)15);
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    *part = (struct iovec){text("with a file"), 11};
    *message = (struct msghdr){.msg_iov = part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fds[1], sizeof(int));
    push_out();
    MUST(sendmsg(fds[1], message, 0) == 11);
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    part->iov_base = place(100), part->iov_len = 100;
    push_out();
    MUST(recvmsg(fds[0], message, 0) == 11 && memcmp(part->iov_base, "with a file", 11) == 0);
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof passed);
    MUST(passed > 2 && fcntl(passed, F_GETFD) >= 0);
    // Datagrams, whole, with whose they are.
    int one = socket(AF_UNIX, SOCK_DGRAM, 0), two = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un *name = (struct sockaddr_un *)place(sizeof *name), *told = (struct sockaddr_un *)place(sizeof *told);
    socklen_t *len = (socklen_t *)place(sizeof *len);
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(name->sun_path + 1, 90, "terrace-dispatch-%d", getpid());
    push_out();
    MUST(bind(one, (struct sockaddr *)name, sizeof *name) == 0);
    push_out();
    MUST(sendto(two, arena + 30 * MIB, 100000, 0, (struct sockaddr *)name, sizeof *name) == 100000);
    MUST(connect(two, (struct sockaddr *)name, sizeof *name) == 0);
    push_out();
    *len = sizeof *told;
    MUST(recvfrom(one, into, 200000, 0, (struct sockaddr *)told, len) == 100000);
    *len = sizeof *told;
    push_out();
    MUST(getpeername(two, (struct sockaddr *)told, len) == 0 && memcmp(name->sun_path, told->sun_path, 30) == 0);
    struct mmsghdr *many = (struct mmsghdr *)place(2 * sizeof *many);
    for (int n = 0; n < 2; n++)
        many[n] = (struct mmsghdr){.msg_hdr = {.msg_iov = part, .msg_iovlen = 1}};
    push_out();
    MUST(sendmmsg(two, many, 2, 0) == 2 && many[1].msg_len == 100);
    push_out();
    MUST(recvmmsg(one, many, 2, MSG_WAITFORONE, NULL) == 2 && many[0].msg_len == 100);
    close(one), close(two), close(fds[0]), close(fds[1]), close(passed);
}

static void files(void) {
    struct epoll_event *event = (struct epoll_event *)place(100 * sizeof *event);
    struct pollfd *polled = (struct pollfd *)place(sizeof *polled);
    fd_set *set = (fd_set *)place(sizeof *set);
    struct stat *status = (struct stat *)place(sizeof *status);
    int *fds = (int *)place(2 * sizeof *fds), epoll = epoll_create1(0);
    push_out();
    MUST(pipe(fds) == 0 && write(fds[1], "x", 1) == 1);
    *event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 77};
    push_out();
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], event) == 0);
    event->data.u64 = 0;
    push_out();
    MUST(epoll_wait(epoll, event, 100, 1000) == 1 && event->data.u64 == 77);
    *polled = (struct pollfd){fds[0], POLLIN, 0};
    push_out();
    MUST(poll(polled, 1, 1000) == 1 && polled->revents == POLLIN);
    FD_ZERO(set);
    FD_SET(fds[0], set);
    push_out();
    MUST(select(fds[0] + 1, set, NULL, NULL, NULL) == 1 && FD_ISSET(fds[0], set));
    char *path = text("/proc/self/exe"), *into = place(PAGE);
    push_out();
    MUST(stat(path, status) == 0 && S_ISREG(status->st_mode));
    push_out();
    MUST(readlink(path, into, PAGE) > 0 && strstr(into, "asked"));
    push_out();
    MUST(getcwd(into, PAGE) == into && into[0] == '/');
    // By an instruction of its own.
    push_out();
    long said, number = SYS_getcwd;
    __asm__ volatile("syscall" : "=a"(said) : "a"(number), "D"(into), "S"((long)PAGE) : "rcx", "r11", "memory");
    MUST(said > 1);
    push_out();
    number = SYS_openat;
    __asm__ volatile("syscall" : "=a"(said) : "a"(number), "D"((long)AT_FDCWD), "S"(path), "d"((long)O_RDONLY) : "rcx", "r11", "memory");
    MUST(said > 2 && close((int)said) == 0);
    // What a call does not take may be anything: here an address that is nobody's any more.
    char *gone = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(gone != MAP_FAILED && munmap(gone, 8 * MIB) == 0);
    long none[] = {SYS_close, SYS_sched_yield, SYS_fcntl, SYS_ioctl, SYS_futex};
    for (int n = 0; n < 5; n++) {
        register long fourth __asm__("r10") = (long)gone;
        register long fifth __asm__("r8") = (long)gone;
        long second = n == 2 ? F_GETFD : n == 3 ? 0x5451 : n == 4 ? 1 : (long)gone;
        char *first = n == 4 ? into : (char *)-1, *third = n == 4 ? NULL : gone;
        __asm__ volatile("syscall" : "=a"(said) : "a"(none[n]), "D"(first), "S"(second), "d"(third), "r"(fourth), "r"(fifth) : "rcx", "r11", "memory");
        MUST(said == (n == 1 || n == 4 ? 0 : -EBADF));
    }
    // What is wrong is still wrong.
    void *volatile nowhere = (void *)8;
    MUST(read(fds[0], nowhere, 1) == -1 && errno == EFAULT);
    MUST(read(-1, into, PAGE) == -1 && errno == EBADF);
    MUST(syscall(SYS_read, -1, into, PAGE) == -1 && errno == EBADF);
    close(fds[0]), close(fds[1]), close(epoll);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// Sleeps, with times in memory that is not there.
// A read is short only where there is no more: who is told of new bytes at an edge would wait for ever.
static void reads_all_there_is(void) {
    char *into = arena + 30 * MIB;
    for (int how = 0; how < 7; how++) {
        int fds[2], much = 1 << 20;
        MUST(how < 5 ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 : pipe(fds) == 0);
        setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
        if (how >= 5)
            MUST(fcntl(fds[1], F_SETPIPE_SZ, much) >= much);
        MUST(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
        ssize_t put = 0, some;
        while ((some = write(fds[1], into + put, 4 * PAGE)) > 0)
            put += some;
        MUST(put > 260 << 10);
        struct iovec *parts = (struct iovec *)place(2 * sizeof *parts);
        parts[0] = (struct iovec){into, 100}, parts[1] = (struct iovec){into + 100, 4 * MIB - 100};
        struct msghdr *message = (struct msghdr *)place(sizeof *message);
        *message = (struct msghdr){.msg_iov = parts, .msg_iovlen = 2};
        push_out();
        ssize_t got = how == 0 || how == 5 ? read(fds[0], into, 4 * MIB)
                      : how == 1           ? recv(fds[0], into, 4 * MIB, 0)
                      : how == 2           ? recvmsg(fds[0], message, 0)
                      : how == 3           ? recvfrom(fds[0], into, 4 * MIB, MSG_DONTWAIT, NULL, NULL)
                                           : readv(fds[0], parts, 2);
        MUST(got == put);
        close(fds[0]), close(fds[1]);
    }
    // Datagrams end where they end.
    int fds[2], room = 4 * MIB;
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) == 0);
    if (setsockopt(fds[1], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) == 0) {
        char *two[] = {calloc(1, 300 << 10), calloc(1, 300 << 10)};
        for (int n = 0; n < 2; n++)
            MUST(syscall(SYS_sendto, fds[1], two[n], 256 << 10, 0, NULL, 0) == 256 << 10);
        push_out();
        MUST(read(fds[0], into, 2 * MIB) == 256 << 10 && recv(fds[0], into, 2 * MIB, 0) == 256 << 10);
        free(two[0]), free(two[1]);
    }
    close(fds[0]), close(fds[1]);
    int zeros = open("/dev/zero", O_RDONLY), chance = open("/dev/urandom", O_RDONLY);
    MUST(read(zeros, into, 3 * MIB) == 3 * MIB && into[3 * MIB - 1] == 0 && read(chance, into, 3 * MIB) == 3 * MIB);
    close(zeros), close(chance);
}

static int shared[2];
static long taken;

static void *takes(void *into) {
    ssize_t some;
    while ((some = read(shared[0], into, MIB)) > 0)
        __atomic_fetch_add(&taken, some, __ATOMIC_SEQ_CST);
    return NULL;
}

// Of what several read, one may have the rest: who has a part does not wait for more.
static void readers_of_one(void) {
    int much = MIB, mark = 128 << 10;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, shared) == 0);
    setsockopt(shared[1], SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
    pthread_t all[4];
    for (int n = 0; n < 4; n++)
        MUST(pthread_create(&all[n], NULL, takes, arena + (25 + 2 * n) * MIB) == 0);
    for (long round = 1; round <= 300; round++) {
        for (size_t put = 0; put < 384 << 10; put += 64 << 10)
            MUST(write(shared[1], arena, 64 << 10) == 64 << 10);
        for (int n = 0; n < 5000 && __atomic_load_n(&taken, __ATOMIC_SEQ_CST) < round * (384 << 10); n++)
            usleep(n < 100 ? 100 : 1000);
        MUST(__atomic_load_n(&taken, __ATOMIC_SEQ_CST) == round * (384 << 10));
    }
    close(shared[1]);
    for (int n = 0; n < 4; n++)
        MUST(pthread_join(all[n], NULL) == 0);
    close(shared[0]);
    // And not for as many as a socket's mark says.
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, shared) == 0);
    setsockopt(shared[1], SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
    MUST(setsockopt(shared[0], SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0);
    for (int n = 0; n < 5; n++)
        MUST(write(shared[1], arena, 60 << 10) == 60 << 10);
    MUST(read(shared[0], arena + 30 * MIB, MIB) == 300 << 10);
    close(shared[0]), close(shared[1]);
}

// Lengths that no memory has, as those that went below nothing.
static void lengths(void) {
    const size_t all[] = {(size_t)-1, (size_t)1 << 63, ((size_t)1 << 63) - 1, (size_t)1 << 48};
    int file = fileno(tmpfile()), fds[2];
    char *cold = place(2 * PAGE);
    MUST(pwrite(file, cold, PAGE, 0) == PAGE && socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    for (int n = 0; n < 4; n++) {
        push_out();
        MUST(read(file, cold, all[n]) == -1 && errno == EFAULT && write(file, cold, all[n]) == -1 && errno == EFAULT);
        MUST(pread(file, cold, all[n], 0) == -1 && errno == EFAULT && pwrite(file, cold, all[n], 0) == -1 && errno == EFAULT);
        MUST(write(fds[1], cold, all[n]) == -1 && errno == EFAULT && read(fds[0], cold, all[n]) == -1 && errno == EFAULT);
        // Of a vector's parts the kernel's errors differ.
        int wrong = all[n] >> 63 ? EINVAL : EFAULT;
        struct iovec *parts = (struct iovec *)place(2 * sizeof *parts);
        parts[0] = (struct iovec){cold, 10}, parts[1] = (struct iovec){cold + PAGE, all[n]};
        push_out();
        MUST(writev(file, parts, 2) == -1 && errno == wrong && preadv(file, parts, 2, 0) == -1 && errno == wrong);
        struct msghdr *message = (struct msghdr *)place(sizeof *message);
        *message = (struct msghdr){.msg_iov = parts, .msg_iovlen = 2};
        MUST(sendmsg(fds[1], message, 0) == -1 && errno == wrong);
        MUST(send(fds[1], "x", 1, 0) == 1 && recvmsg(fds[0], message, 0) == -1 && errno == wrong);
        message->msg_iovlen = 1025;
        MUST(sendmsg(fds[1], message, 0) == -1 && errno == EMSGSIZE && recvmsg(fds[0], message, 0) == -1 && errno == EMSGSIZE);
        // The kernel takes as much as there is.
        MUST(recv(fds[0], cold, all[n], 0) == 1 && cold[0] == 'x');
    }
    close(file), close(fds[0]), close(fds[1]);
}

static void sleeps(void) {
    struct timespec *time = (struct timespec *)place(sizeof *time), *left = (struct timespec *)place(sizeof *left);
    double before = now();
    MUST(usleep(3000) == 0 && now() - before >= 0.003);
    *time = (struct timespec){0, 3000000};
    push_out();
    before = now();
    MUST(clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) == 0 && now() - before >= 0.003);
    clock_gettime(CLOCK_MONOTONIC, time);
    time->tv_sec -= 1;
    push_out();
    MUST(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, time, NULL) == 0);
    // Errors are answered, not left in errno.
    time->tv_nsec = 1000000000, errno = 0;
    MUST(clock_nanosleep(CLOCK_MONOTONIC, 0, time, NULL) == EINVAL && errno == 0);
    MUST(clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, time, NULL) == EINVAL && errno == 0);
    MUST(nanosleep(time, NULL) == -1 && errno == EINVAL);
    // A signal ends a sleep, and what is left is told.
    struct sigaction action = {.sa_handler = count};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    *time = (struct timespec){30, 0};
    push_out();
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    MUST(clock_nanosleep(CLOCK_REALTIME, 0, time, left) == EINTR && left->tv_sec == 29);
    MUST(usleep(30000000) == -1 && errno == EINTR);
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

// epoll_pwait: a signal that only its mask lets through ends it.
static void waits_with_a_mask(void) {
    struct epoll_event *event = (struct epoll_event *)place(100 * sizeof *event);
    sigset_t *mask = (sigset_t *)place(sizeof *mask), blocked, was;
    int epoll = epoll_create1(0);
    struct sigaction action = {.sa_handler = count};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    sigemptyset(&blocked), sigaddset(&blocked, SIGUSR1), sigemptyset(mask);
    MUST(pthread_sigmask(SIG_BLOCK, &blocked, &was) == 0 && raise(SIGUSR1) == 0);
    push_out();
    MUST(epoll_pwait(epoll, event, 100, 10000, mask) == -1 && errno == EINTR);
    push_out();
    MUST(epoll_pwait(epoll, event, 100, 1, NULL) == 0);
    MUST(pthread_sigmask(SIG_SETMASK, &was, NULL) == 0);
    close(epoll);
}

static int status_of(pid_t pid) {
    int *status = (int *)place(sizeof *status);
    push_out();
    MUST(waitpid(pid, status, 0) == pid);
    return WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
}

static void programs(void) {
    char *script = place(200 << 10);
    strcpy(script, "exit $((6 * 7)) #");
    memset(script + strlen(script), 'x', 90000);
    script[90000] = 0;
    char **args = (char **)place(4 * sizeof *args), **variables = (char **)place(2 * sizeof *variables);
    args[0] = text("/bin/sh"), args[1] = text("-c"), args[2] = script, args[3] = NULL;
    variables[0] = text("HOME=/"), variables[1] = NULL;
    pid_t pid;
    push_out();
    MUST(posix_spawn(&pid, args[0], NULL, NULL, args, variables) == 0 && status_of(pid) == 42);
    push_out();
    MUST(posix_spawnp(&pid, args[0] + 5, NULL, NULL, args, variables) == 0 && status_of(pid) == 42);
    push_out();
    pid = vfork();
    if (pid == 0) {
        execve(args[0], args, variables);
        _exit(1);
    }
    MUST(pid > 0 && status_of(pid) == 42);
    push_out();
    pid = vfork();
    if (pid == 0) {
        // In its memory, which is its parent's.
        args[3] = script[0] == 'e' ? NULL : args[0];
        execvp(args[0] + 5, args);
        _exit(1);
    }
    MUST(pid > 0 && status_of(pid) == 42);
    push_out();
    MUST(WEXITSTATUS(system(script)) == 42);
    push_out();
    FILE *stream = popen(script, "r");
    MUST(stream && WEXITSTATUS(pclose(stream)) == 42);
    push_out();
    pid = fork();
    if (pid == 0) {
        // A child sees its parent's memory, and the kernel sees it, too.
        char *path = text("/proc/self/exe");
        struct stat status;
        _exit(script[0] == 'e' && stat(path, &status) == 0 && write(-1, script, 90000) == -1 ? 9 : 1);
    }
    MUST(pid > 0 && status_of(pid) == 9);
    push_out();
    pid = fork();
    if (pid == 0) {
        execve(args[0], args, variables);
        _exit(1);
    }
    MUST(pid > 0 && status_of(pid) == 42);
}

static struct pollfd *polled;

static void *changes_polled(void *fd) {
    usleep(50000);
    polled[0].events = POLLIN | POLLPRI;
    usleep(50000);
    MUST(write(*(int *)fd, "x", 1) == 1);
    return NULL;
}

// Messages of System V, and what poll was asked for while it waits.
static void waits(void) {
    int queue = msgget(IPC_PRIVATE, 0600);
    if (queue >= 0) {
        struct { long kind; char text[2 * PAGE]; } *message = (void *)place(sizeof *message);
        message->kind = 3;
        memset(message->text, 'm', sizeof message->text);
        push_out();
        MUST(msgsnd(queue, message, 5000, 0) == 0);
        memset(message, 0, sizeof *message);
        push_out();
        MUST(msgrcv(queue, message, sizeof message->text, 0, 0) == 5000);
        MUST(message->kind == 3 && message->text[4999] == 'm' && message->text[5000] == 0);
        MUST(msgctl(queue, IPC_RMID, NULL) == 0);
    }
    int ends[2];
    MUST(pipe(ends) == 0);
    polled = (struct pollfd *)place(sizeof *polled);
    *polled = (struct pollfd){.fd = ends[0], .events = POLLIN};
    push_out();
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, changes_polled, &ends[1]) == 0);
    MUST(poll(polled, 1, 10000) == 1 && polled->revents == POLLIN && polled->events == (POLLIN | POLLPRI));
    MUST(pthread_join(thread, NULL) == 0);
    close(ends[0]), close(ends[1]);
}

// By vfork, whose child makes its calls itself: with an environment that is not there, and arguments one by one, more than registers have.
static void names_and_values(void) {
    char **all = (char **)place(3 * sizeof *all), **before = environ;
    char *sh = text("sh"), *path = text("/bin/sh"), *c = text("-c"), *script = text("test $COLD = value && test $# = 5 && exit $((42 + $1 - $5))"), *number = text("7");
    char **args = (char **)place(9 * sizeof *args);
    char *list[] = {sh, c, script, sh, number, number, number, number, number, NULL};
    memcpy(args, list, sizeof list);
    all[0] = text("COLD=value"), all[1] = text("PATH=/usr/bin:/bin"), all[2] = NULL;
    environ = all;
    for (int n = 0; n < 5; n++) {
        push_out();
        pid_t pid = vfork();
        if (pid == 0) {
            if (n == 0)
                execvp(sh, args);
            else if (n == 1)
                execv(path, args);
            else if (n == 2)
                execlp(sh, sh, c, script, sh, number, number, number, number, number, NULL);
            else if (n == 3)
                execl(path, sh, c, script, sh, number, number, number, number, number, NULL);
            else
                execle(path, sh, c, script, sh, number, number, number, number, number, NULL, all);
            _exit(1);
        }
        MUST(pid > 0 && status_of(pid) == 42);
    }
    // What cannot be run is said, and the stack is as it was.
    char *volatile nowhere = text("/there/is/no/such/program");
    for (int n = 0; n < 3; n++) {
        push_out();
        MUST(execl(nowhere, sh, NULL) == -1 && errno == ENOENT);
        MUST(execlp(nowhere, sh, c, script, number, number, number, NULL) == -1 && errno == ENOENT);
        MUST(execle(nowhere, sh, c, script, number, number, number, number, NULL, all) == -1 && errno == ENOENT);
    }
    push_out();
    MUST(WEXITSTATUS(system("test $COLD = value && exit 43")) == 43);
    push_out();
    FILE *stream = popen("test $COLD = value && exit 44", "r");
    MUST(stream && WEXITSTATUS(pclose(stream)) == 44);
    environ = before;
}

// Whether the kernel makes an io_uring: 1 it does, 0 the runtime does not let it, -1 nobody would.
static int ring(void) {
    struct {
        unsigned words[30];
    } settings = {0};
    long made = syscall(425, 4, &settings);
    if (made >= 0)
        close((int)made);
    return made >= 0 ? 1 : errno == ENOSYS ? 0 : -1;
}

// Whether threads of Terrace's take the faults.
static int handled(void) {
    int found = 0;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    MUST(tasks);
    while ((entry = readdir(tasks))) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file))
            found |= strcmp(name, "terrace-faults\n") == 0;
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return found;
}

// As who makes a guest of KVM's begins, with memory for it behind that.
static void guest(int late) {
    if (!late)
        MUST(ioctl(-1, 0xae01, 0) == -1 && errno == EBADF);
    char *memory = malloc(4 * MIB);
    MUST(memory);
    memset(memory, 1, 4 * MIB);
    MUST(ioctl(-1, 0xae01, 0) == -1 && errno == EBADF);
    printf("threads %d\n", handled());
    puts("OK");
}

int main(int count, char **args) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1 && strcmp(args[1], "rings") != 0) {
        guest(strcmp(args[1], "late") == 0);
        return 0;
    }
    int early = count > 1 ? ring() : 0;
    arena = malloc(40 * MIB), pushed = malloc(PUSH);
    MUST(arena && pushed);
    memset(arena, 1, 40 * MIB);
    files();
    push_out();
    if (count > 1) {
        printf("ring before memory %d, after it %d\n", early, ring());
    } else {
        waits();
        lengths();
        reads_all_there_is();
        readers_of_one();
        sleeps();
        waits_with_a_mask();
        messages();
        programs();
        names_and_values();
    }
    puts("OK");
}
