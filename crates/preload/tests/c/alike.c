// What the kernel answers of served memory is what it answers of any other: how much it writes, when it ends, and what other threads and processes see of a call.
// The arguments say what is looked at; prints OK, or the line that failed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "placed.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static size_t mappings(void) {
    static char bytes[1 << 16];
    size_t lines = 0;
    ssize_t got;
    int file = open("/proc/self/maps", O_RDONLY);
    MUST(file >= 0);
    while ((got = read(file, bytes, sizeof bytes)) > 0)
        for (ssize_t n = 0; n < got; n++)
            lines += bytes[n] == '\n';
    close(file);
    return lines;
}

enum { RING = 24, THREADS = 400 };
static sem_t turns[RING];

static void *waits_for_its_turn(void *turn) {
    while (sem_wait(turn))
        ;
    return NULL;
}

// The one that began first ends first: what ended threads had is taken by others, however many live.
static void threads(void) {
    pthread_t ring[RING];
    size_t before = 0;
    for (int n = 0; n < THREADS; n++) {
        int at = n % RING;
        if (n == 2 * RING)
            before = mappings();
        if (n >= RING) {
            MUST(sem_post(&turns[at]) == 0 && pthread_join(ring[at], NULL) == 0);
        } else {
            MUST(sem_init(&turns[at], 0, 0) == 0);
        }
        MUST(pthread_create(&ring[at], NULL, waits_for_its_turn, &turns[at]) == 0);
    }
    size_t after = mappings();
    for (int at = 0; at < RING; at++)
        MUST(sem_post(&turns[at]) == 0 && pthread_join(ring[at], NULL) == 0);
    if (after > before + 50)
        printf("%zu mappings, and then %zu\n", before, after);
    MUST(after <= before + 50);
}

enum { STEPS = 100, GROUPS = 200 };

// Values of options that are longer than usual, or counted otherwise: what is behind them stays.
static void options(void) {
    int ends[2];
    gid_t groups[GROUPS];
    struct sock_filter *steps = (struct sock_filter *)place(2 * STEPS * sizeof *steps);
    socklen_t *len = (socklen_t *)place(sizeof *len);
    for (int n = 0; n < GROUPS; n++)
        groups[n] = (gid_t)(1000 + n);
    for (int n = 0; n < STEPS; n++)
        steps[n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (unsigned)(100000 + n));
    int is_root = setgroups(GROUPS, groups) == 0;
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    struct sock_fprog *filter = (struct sock_fprog *)place(sizeof *filter);
    *filter = (struct sock_fprog){.len = STEPS, .filter = steps};
    MUST(setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, filter, sizeof *filter) == 0);
    memset(steps, 7, 2 * STEPS * sizeof *steps);
    *len = 2 * STEPS;
    push_out();
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_GET_FILTER, steps, len) == 0 && *len == STEPS);
    for (int n = 0; n < STEPS; n++)
        MUST(steps[n].code == (BPF_RET | BPF_K) && steps[n].k == (unsigned)(100000 + n));
    for (size_t n = 0; n < STEPS * sizeof *steps; n++)
        MUST(((char *)(steps + STEPS))[n] == 7);
    // With no room it says how much it wants.
    *len = 0;
    push_out();
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_GET_FILTER, steps, len) == 0 && *len == STEPS);
    *len = STEPS - 1;
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_GET_FILTER, steps, len) == -1 && errno == EINVAL);
    close(ends[0]), close(ends[1]);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    gid_t *told = (gid_t *)place(2 * sizeof groups);
    memset(told, 9, 2 * sizeof groups);
    *len = 2 * sizeof groups;
    push_out();
    if (is_root) {
        MUST(getsockopt(ends[0], SOL_SOCKET, SO_PEERGROUPS, told, len) == 0 && *len == sizeof groups);
        MUST(memcmp(told, groups, sizeof groups) == 0);
        for (size_t n = 0; n < sizeof groups; n++)
            MUST(((char *)(told + GROUPS))[n] == 9);
        *len = 4;
        push_out();
        MUST(getsockopt(ends[0], SOL_SOCKET, SO_PEERGROUPS, told, len) == -1 && errno == ERANGE && *len == sizeof groups);
    }
    int *kind = (int *)place(8);
    kind[0] = kind[1] = -1, *len = 8;
    push_out();
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, kind, len) == 0 && *len == 4 && kind[0] == SOCK_STREAM && kind[1] == -1);
    *len = (socklen_t)-1;
    push_out();
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, kind, len) == -1 && errno == EINVAL && *len == (socklen_t)-1);
    struct sockaddr *name = (struct sockaddr *)place(64);
    memset(name, 5, 64);
    *len = 1;
    push_out();
    MUST(getsockname(ends[0], name, len) == 0 && *len == 2 && ((char *)name)[0] == AF_UNIX && ((char *)name)[1] == 5);
    *len = (socklen_t)-1;
    push_out();
    MUST(getpeername(ends[0], name, len) == -1 && errno == EINVAL);
    close(ends[0]), close(ends[1]);
}

static void *sends_some(void *to) {
    for (int n = 0; n < 6; n++) {
        MUST(send(*(int *)to, "datagram", 8, 0) == 8);
        usleep(100000);
    }
    return NULL;
}

// What comes one by one is waited for as long as is said: with all of it served, with its time, and with none.
static void many(void) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    alarm(30);
    for (int how = 0; how < 3; how++) {
        static struct mmsghdr warm[100];
        struct mmsghdr *messages = how == 0 ? (struct mmsghdr *)place(sizeof warm) : warm;
        static struct iovec parts[100];
        static char warm_bytes[800];
        char *bytes = how == 0 ? place(800) : warm_bytes;
        struct timespec warm_time, *time = how < 2 ? (struct timespec *)place(sizeof *time) : &warm_time;
        for (int n = 0; n < 100; n++) {
            parts[n] = (struct iovec){bytes + 8 * n, 8};
            messages[n] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[n], .msg_iovlen = 1}};
        }
        pthread_t sender;
        *time = (struct timespec){0, 250000000};
        push_out();
        double before = now();
        MUST(pthread_create(&sender, NULL, sends_some, &ends[1]) == 0);
        int came = recvmmsg(ends[0], messages, 100, 0, time);
        MUST(came >= 1 && came <= 5 && now() - before < 5 && memcmp(bytes, "datagram", 8) == 0);
        MUST(time->tv_sec == 0 && time->tv_nsec == 0 && pthread_join(sender, NULL) == 0);
        // What is left of a time is told.
        *time = (struct timespec){20, 0};
        push_out();
        MUST(recvmmsg(ends[0], messages, (unsigned)(6 - came), 0, time) == 6 - came && time->tv_sec >= 10 && time->tv_sec < 20);
        *time = (struct timespec){0, 1000000000};
        push_out();
        MUST(recvmmsg(ends[0], messages, 100, 0, time) == -1 && errno == EINVAL);
    }
    alarm(0);
    close(ends[0]), close(ends[1]);
}

enum { PAGES = 33, BLOCK = MIB, BLOCKS = 12 };

// A message of many pages is one.
static void messages(void) {
    int ends[2], room = MIB;
    struct iovec parts[PAGES];
    char *from = (char *)(((uintptr_t)arena + 24 * MIB) & ~(uintptr_t)(PAGE - 1)), *into = from + MIB;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    MUST(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    for (int n = 0; n < PAGES; n++) {
        memset(from + 2 * PAGE * n, 'A' + n, PAGE);
        parts[n] = (struct iovec){from + 2 * PAGE * n, PAGE};
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = PAGES};
    push_out();
    MUST(sendmsg(ends[0], &message, 0) == PAGES * PAGE);
    push_out();
    MUST(recv(ends[1], into, MIB, 0) == PAGES * PAGE);
    for (int n = 0; n < PAGES; n++)
        MUST(into[n * PAGE] == 'A' + n && into[n * PAGE + PAGE - 1] == 'A' + n);
    close(ends[0]), close(ends[1]);
}

static int file, in_parts;

static struct iovec *parts_of(struct iovec *parts, char *at) {
    parts[0] = (struct iovec){at, 100}, parts[1] = (struct iovec){at + 100, BLOCK - 100};
    return parts;
}

static void *writes_blocks(void *given) {
    char *from = arena + (24 + (intptr_t)given) * MIB;
    struct iovec parts[2];
    for (int n = 0; n < BLOCKS; n++) {
        memset(from, 'a' + 2 * n + (int)(intptr_t)given, BLOCK);
        MUST((in_parts ? writev(file, parts_of(parts, from), 2) : write(file, from, BLOCK)) == BLOCK);
    }
    return NULL;
}

static int is_block(const char *at) {
    for (int n = 1; n < BLOCK; n++)
        if (at[n] != at[0])
            return 0;
    return 1;
}

static void *reads_blocks(void *given) {
    char *into = arena + (24 + (intptr_t)given) * MIB;
    struct iovec parts[2];
    intptr_t blocks = 0;
    ssize_t got;
    while ((got = in_parts ? readv(file, parts_of(parts, into), 2) : read(file, into, BLOCK)) > 0) {
        MUST(got == BLOCK && is_block(into));
        blocks++;
    }
    MUST(got == 0);
    return (void *)blocks;
}

// Two that share a file's position have what they read and write in one piece each.
static void positions(void) {
    for (in_parts = 0; in_parts < 2; in_parts++) {
        pthread_t two[2];
        file = fileno(tmpfile());
        for (intptr_t n = 0; n < 2; n++)
            MUST(pthread_create(&two[n], NULL, writes_blocks, (void *)n) == 0);
        for (int n = 0; n < 2; n++)
            MUST(pthread_join(two[n], NULL) == 0);
        MUST(lseek(file, 0, SEEK_CUR) == 2 * BLOCKS * BLOCK && lseek(file, 0, SEEK_END) == 2 * BLOCKS * BLOCK);
        MUST(lseek(file, 0, SEEK_SET) == 0);
        for (intptr_t n = 0; n < 2; n++)
            MUST(pthread_create(&two[n], NULL, reads_blocks, (void *)n) == 0);
        intptr_t all = 0;
        for (int n = 0; n < 2; n++) {
            void *blocks;
            MUST(pthread_join(two[n], &blocks) == 0);
            all += (intptr_t)blocks;
        }
        MUST(all == 2 * BLOCKS && lseek(file, 0, SEEK_CUR) == 2 * BLOCKS * BLOCK);
        // What is not there is not gone over.
        MUST(lseek(file, -BLOCK / 2, SEEK_CUR) == (2 * BLOCKS) * BLOCK - BLOCK / 2);
        MUST(read(file, arena + 24 * MIB, BLOCK) == BLOCK / 2 && lseek(file, 0, SEEK_CUR) == 2 * BLOCKS * BLOCK);
        MUST(read(file, arena + 24 * MIB, BLOCK) == 0 && lseek(file, 0, SEEK_CUR) == 2 * BLOCKS * BLOCK);
        close(file);
    }
    // What is appended is behind all that is there.
    char name[] = "/var/tmp/terrace-alike-XXXXXX";
    int first = mkstemp(name), behind = open(name, O_WRONLY | O_APPEND);
    MUST(first >= 0 && behind >= 0 && unlink(name) == 0 && write(first, "some", 4) == 4);
    MUST(write(behind, arena + 24 * MIB, BLOCK) == BLOCK && lseek(behind, 0, SEEK_CUR) == BLOCK + 4);
    close(first), close(behind);
}

static int ended_with(pid_t pid) {
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// What a program is to be started with besides its arguments: more of it than the C library keeps to itself.
static void started(void) {
    posix_spawn_file_actions_t *actions = (posix_spawn_file_actions_t *)place(sizeof *actions);
    posix_spawnattr_t *attributes = (posix_spawnattr_t *)place(sizeof *attributes);
    char *args[] = {"sh", "-c", "test $(pwd) = /usr/lib && read x <&7 && test $x = first && { ! read y <&8; } 2>/dev/null", NULL}, *none[] = {"PATH=/usr/bin:/bin", NULL};
    char name[4000] = "/var/tmp/terrace-alike-XXXXXX";
    int made = mkstemp(name);
    MUST(made >= 0 && write(made, "first\n", 6) == 6 && close(made) == 0);
    // A long name of the same file.
    char *longer = strdup(name);
    memset(name, '/', sizeof name);
    strcpy(name + sizeof name - strlen(longer) - 1, longer);
    MUST(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(attributes) == 0);
    for (int n = 0; n < 200; n++)
        MUST(posix_spawn_file_actions_addclose(actions, 200 + n) == 0);
    MUST(posix_spawn_file_actions_addopen(actions, 7, name, O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addchdir_np(actions, "/usr/lib") == 0);
    MUST(posix_spawn_file_actions_addclose(actions, 8) == 0);
    MUST(posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP) == 0 && posix_spawnattr_setpgroup(attributes, 0) == 0);
    for (int n = 0; n < 3; n++) {
        pid_t pid;
        push_out();
        MUST((n % 2 ? posix_spawnp(&pid, "sh", actions, attributes, args, none) : posix_spawn(&pid, "/bin/sh", actions, attributes, args, none)) == 0);
        MUST(getpgid(pid) == pid && ended_with(pid) == 0);
    }
    unlink(longer);
    push_out();
    pid_t pid;
    MUST(posix_spawn(&pid, "/bin/sh", actions, attributes, args, none) == ENOENT);
    MUST(posix_spawn_file_actions_destroy(actions) == 0 && posix_spawnattr_destroy(attributes) == 0);
    MUST(posix_spawn(&pid, "/bin/sh", NULL, NULL, (char *[]){"sh", "-c", "exit 3", NULL}, none) == 0 && ended_with(pid) == 3);
}

static volatile sig_atomic_t uses_much;
static char *touched;

static void uses(int signal) {
    (void)signal;
    volatile char much[900 << 10];
    for (size_t n = 0; n < sizeof much; n += 512)
        much[n] = 3;
    uses_much = much[512] + touched[0];
}

// With a stack for signals that is larger than one of Terrace's, a handler may use all of it; by the C library's function or by its number.
static void *on_larger_stacks(void *by_number) {
    enum { SMALLER = 64 << 10, LARGER = MIB };
    stack_t mine = {.ss_sp = malloc(LARGER), .ss_size = LARGER}, small = {.ss_sp = mine.ss_sp, .ss_size = SMALLER}, told;
    for (int n = 0; n < 4; n++) {
        MUST(n % 2 == 0 || sigaltstack(&small, NULL) == 0);
        MUST((by_number ? syscall(SYS_sigaltstack, &mine, NULL) : sigaltstack(&mine, NULL)) == 0);
        MUST(sigaltstack(NULL, &told) == 0 && told.ss_sp == mine.ss_sp && told.ss_size == LARGER);
        push_out();
        uses_much = 0;
        MUST(raise(SIGUSR1) == 0 && uses_much == 8);
        MUST(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL) == 0);
    }
    MUST(sigaltstack(&mine, NULL) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        uses_much = 0;
        _exit(raise(SIGUSR1) == 0 && uses_much == 8 ? 0 : 1);
    }
    MUST(pid > 0 && ended_with(pid) == 0);
    MUST(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL) == 0);
    free(mine.ss_sp);
    return NULL;
}

static void stacks(void) {
    struct sigaction action = {.sa_handler = uses, .sa_flags = SA_ONSTACK};
    touched = place(PAGE);
    touched[0] = 5;
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    on_larger_stacks(NULL);
    for (int n = 0; n < 6; n++) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, on_larger_stacks, n % 2 ? &action : NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
}

int main(int count, char **args) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    arena = malloc(40 * MIB), pushed = malloc(PUSH);
    MUST(arena && pushed && count > 1);
    memset(arena, 1, 40 * MIB);
    push_out();
    const struct {
        const char *name;
        void (*look)(void);
    } all[] = {{"threads", threads}, {"options", options}, {"many", many}, {"messages", messages}, {"positions", positions}, {"started", started}, {"stacks", stacks}};
    enum { ALL = sizeof all / sizeof *all };
    for (int arg = 1; arg < count; arg++) {
        size_t n = 0;
        while (n < ALL && strcmp(args[arg], all[n].name))
            n++;
        MUST(n < ALL);
        all[n].look();
    }
    puts("OK");
}
