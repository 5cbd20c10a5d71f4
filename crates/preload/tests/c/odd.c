// What programs do to their process while most of their memory is not in DRAM: close descriptors, lower limits, enter a sandbox, load libraries, take
// signals. The first argument says what; prints OK, or the line that failed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "odd.h"

static int is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

// A daemon's habits, and a shell's.
static void descriptors(void) {
    fill(64 * MIB);
    for (int fd = 3; fd < 2000; fd++)
        close(fd);
    check();
    closefrom(3);
    MUST(close_range(3, ~0u, 0) == 0);
    check();
    char name[] = "/var/tmp/terrace-odd-XXXXXX";
    int file = mkstemp(name);
    MUST(file == 3 && write(file, "mine", 4) == 4);
    unlink(name);
    for (int fd = 4; fd < 800; fd++)
        MUST(dup2(file, fd) == fd);
    check();
    int refused = 0;
    for (int fd = 800; fd < 1000; fd++)
        refused += dup2(file, fd) != fd;
    MUST(refused > 0 && refused < 100);
    check();
    char *more = malloc(8 * MIB);
    MUST(more);
    memset(more, 1, 8 * MIB);
    MUST(close_range(3, 1023, CLOSE_RANGE_CLOEXEC) == 0 && close_range(4, ~0u, 0) == 0);
    MUST(is_open(3) && !is_open(4));
    check();
    char said[5] = {0};
    MUST(pread(3, said, 5, 0) == 4 && !strcmp(said, "mine"));
    // A child of its own, which does the same.
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        closefrom(3);
        check();
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    check();
}

static void limits(void) {
    struct rlimit few = {12, 12}, none = {0, 0}, little = {1ul << 40, 1ul << 40}, too_little = {300 * MIB, 300 * MIB};
    // Before there is anything, and when there is.
    MUST(setrlimit(RLIMIT_AS, &too_little) == -1 && errno == EPERM);
    fill(64 * MIB);
    MUST(setrlimit(RLIMIT_AS, &too_little) == -1 && errno == EPERM);
    MUST(prlimit(0, RLIMIT_DATA, &too_little, NULL) == -1 && errno == EPERM);
    MUST(setrlimit(RLIMIT_NOFILE, &few) == 0 && setrlimit(RLIMIT_CORE, &none) == 0);
    MUST(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
    MUST(setrlimit(RLIMIT_FSIZE, &none) == -1 && errno == EPERM);
    check();
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        check();
        // For the program that it becomes.
        MUST(setrlimit(RLIMIT_AS, &too_little) == 0 && setrlimit(RLIMIT_FSIZE, &none) == 0);
        execlp("true", "true", NULL);
        _exit(1);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    MUST(setrlimit(RLIMIT_AS, &little) == 0 && setrlimit(RLIMIT_DATA, &little) == 0);
    char *more = malloc(8 * MIB);
    MUST(more);
    memset(more, 1, 8 * MIB);
    check();
}

static void *thread(void *unused) {
    check();
    return unused;
}

// A sandbox: after it, the calls that a fault needs are forbidden to this thread, and to those that it starts.
static void sandbox(int flags) {
    fill(64 * MIB);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (flags)
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
    else
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    MUST(open("/etc/passwd", O_RDONLY) == -1 && errno == EPERM);
    check();
    pthread_t other;
    MUST(pthread_create(&other, NULL, thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    for (int n = 0; n < 50; n++) {
        char *more = malloc(4 * MIB);
        MUST(more);
        memset(more, n, 4 * MIB), free(more);
    }
    check();
}

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void *volatile where;

static void on_fault(int signal, siginfo_t *info, void *unused) {
    (void)unused;
    caught = signal, where = info->si_addr;
    siglongjmp(back, 1);
}

// Its own handlers of SIGSEGV and SIGBUS, as a collector of garbage has: they get what is theirs and nothing else.
static void handlers(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL), sigaction(SIGBUS, &action, NULL);
    fill(64 * MIB);
    sigaction(SIGSEGV, &action, NULL), sigaction(SIGBUS, &action, NULL);
    char *guarded = mmap(0, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(guarded != MAP_FAILED);
    for (int n = 0; n < 200; n++) {
        char *page = guarded + n * 17 % 4096 * PAGE;
        *page = (char)n;
        MUST(mprotect(page, PAGE, n % 2 ? PROT_NONE : PROT_READ) == 0);
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)page = 1;
            MUST(!"it can be written");
        }
        MUST(caught == SIGSEGV && where == page);
        caught = 0;
        MUST(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0 && *page == (char)n);
    }
    if (sigsetjmp(back, 1) == 0)
        *(volatile int *)8 = 1;
    MUST(caught == SIGSEGV && where == (void *)8);
    caught = 0;
    check();
    MUST(caught == 0);
}

// Vectors of a file that is open for direct reading and writing, from and into served memory.
static void direct(void) {
    fill(64 * MIB);
    char name[] = "/var/tmp/terrace-odd-XXXXXX";
    int made = mkstemp(name), file = open(name, O_RDWR | O_DIRECT);
    MUST(made >= 0 && file >= 0);
    unlink(name);
    char *base = (char *)(((unsigned long)memory + PAGE - 1) / PAGE * PAGE);
    enum { PARTS = 16, LEN = 8 * PAGE };
    struct iovec out[PARTS], in[PARTS];
    char *copy = mmap(0, PARTS * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < PARTS; n++) {
        out[n] = (struct iovec){base + n * MIB, LEN};
        in[n] = (struct iovec){copy + n * LEN, LEN};
    }
    for (int round = 0; round < 2; round++) {
        MUST(pwritev(file, out, PARTS, 0) == PARTS * LEN);
        memset(copy, 0, PARTS * LEN);
        check();
        MUST((round % 2 ? preadv(file, in, PARTS, 0) : preadv2(file, in, PARTS, 0, 0)) == PARTS * LEN);
        check();
        for (int n = 0; n < PARTS; n++)
            MUST(!memcmp(out[n].iov_base, in[n].iov_base, LEN));
    }
}

// A library that is loaded late, with a constructor that allocates much: after others, or as the first that does.
static void library(const char *path, size_t mib) {
    if (mib)
        fill(mib * MIB);
    void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!loaded)
        puts(dlerror());
    MUST(loaded);
    size_t (*sum)(void) = (size_t(*)(void))dlsym(loaded, "sum_of_what_it_made");
    MUST(sum && sum() == 40 * MIB);
    check();
    MUST(dlclose(loaded) == 0);
    check();
}

// What makes code as it goes reserves addresses near its own, and maps a file in there.
static void code(void) {
    fill(64 * MIB);
    size_t reserved = 512 * MIB;
    char *near = (char *)((unsigned long)&code / (16 * MIB) * (16 * MIB)) + 256 * MIB;
    char *at = mmap(near, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(at != MAP_FAILED);
    int file = open("/proc/self/exe", O_RDONLY);
    char *mapped = mmap(at + 16 * MIB, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0);
    MUST(mapped == at + 16 * MIB && !memcmp(mapped, "\177ELF", 4));
    // A function is made, and called: mov eax, 42; ret.
    char *made = at + 32 * MIB;
    MUST(mprotect(made, PAGE, PROT_READ | PROT_WRITE) == 0);
    memcpy(made, "\xb8\x2a\0\0\0\xc3", 6);
    MUST(mprotect(made, PAGE, PROT_READ | PROT_EXEC) == 0);
    MUST(((int (*)(void))made)() == 42);
    // Elsewhere, in served memory, it works as well.
    made = mmap(0, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(made != MAP_FAILED);
    memcpy(made, "\xb8\x2b\0\0\0\xc3", 6);
    MUST(mprotect(made, PAGE, PROT_READ | PROT_EXEC) == 0);
    check();
    MUST(((int (*)(void))made)() == 43);
    // As a Java machine does: addresses first, and then a mapping that can be written to and run over a part of them.
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, all = PROT_READ | PROT_WRITE | PROT_EXEC;
    char *later = mmap(0, 64 * MIB, PROT_NONE, flags, -1, 0);
    MUST(later != MAP_FAILED);
    made = mmap(later + 8 * MIB, 2 * MIB, all, flags | MAP_FIXED, -1, 0);
    MUST(made == later + 8 * MIB);
    memcpy(made, "\xb8\x2c\0\0\0\xc3", 6);
    check();
    MUST(((int (*)(void))made)() == 44);
}

static volatile int closing_ends;
static __thread sigjmp_buf own_back;

static void on_closed(int signal, siginfo_t *info, void *unused) {
    (void)signal, (void)info, (void)unused;
    siglongjmp(own_back, 1);
}

// Writes to pages that may be closed at any moment, and reads them.
static void *touches(void *seed) {
    volatile unsigned long n = (unsigned long)seed;
    while (!closing_ends) {
        n = n * 6364136223846793005 + 1442695040888963407;
        unsigned long *page = memory + (n >> 33) % pages * WORDS;
        if (sigsetjmp(own_back, 1))
            continue;
        if (n >> 40 & 1)
            MUST(*(volatile unsigned long *)page == mixed(page - memory));
        *(volatile unsigned long *)page = mixed(page - memory);
    }
    return NULL;
}

// Pages are closed to every access and opened again while others touch them and all of them leave DRAM again and again.
static void closing(void) {
    struct sigaction action = {.sa_sigaction = on_closed, .sa_flags = SA_SIGINFO | SA_NODEFER};
    enum { THREADS = 4, RANGE = 2048 * PAGE };
    fill(64 * MIB);
    sigaction(SIGSEGV, &action, NULL);
    char *base = (char *)(((unsigned long)memory + PAGE - 1) / PAGE * PAGE);
    pthread_t threads[THREADS];
    for (unsigned long n = 0; n < THREADS; n++)
        MUST(pthread_create(&threads[n], NULL, touches, (void *)(n + 1)) == 0);
    struct timespec a_moment = {0, 3000000};
    unsigned long ranges = (pages - 1) * PAGE / RANGE;
    for (unsigned long n = 0; n < 1000; n++) {
        char *range = base + n * 7919 % ranges * RANGE;
        MUST(mprotect(range, RANGE, PROT_NONE) == 0);
        nanosleep(&a_moment, NULL);
        MUST(mprotect(range, RANGE, PROT_READ | PROT_WRITE) == 0);
    }
    closing_ends = 1;
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    check();
}

// The kernel's calls by their numbers are the same as by their names.
static void numbers(void) {
    int both = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    size_t bytes = 64 * MIB;
    memory = (unsigned long *)syscall(SYS_mmap, NULL, bytes, both, anonymous, -1, 0);
    MUST((void *)memory != MAP_FAILED);
    pages = bytes / PAGE;
    for (size_t n = 0; n < pages * WORDS; n++)
        memory[n] = mixed(n);
    char *middle = (char *)memory + bytes / 2;
    MUST(syscall(SYS_mprotect, middle, 8 * MIB, PROT_NONE) == 0 && syscall(SYS_mprotect, middle, 8 * MIB, both) == 0);
    MUST(syscall(SYS_madvise, middle, 8 * MIB, MADV_HUGEPAGE) == 0);
    MUST(syscall(SYS_mlock, middle, PAGE) == -1 && errno == ENOMEM);
    check();
    for (int fd = 3; fd < 1000; fd++)
        syscall(SYS_close, fd);
    MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    struct rlimit none = {0, 0};
    MUST(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &none, NULL) == -1 && errno == EPERM);
    check();
    char *other = (char *)syscall(SYS_mmap, NULL, bytes, both, anonymous, -1, 0);
    MUST(other != MAP_FAILED);
    memset(other, 5, bytes);
    MUST(syscall(SYS_madvise, other, 8 * MIB, MADV_DONTNEED) == 0 && !other[0] && other[8 * MIB] == 5);
    other = (char *)syscall(SYS_mremap, other, bytes, bytes + 8 * MIB, MREMAP_MAYMOVE);
    MUST(other != MAP_FAILED && other[8 * MIB] == 5);
    MUST(syscall(SYS_munmap, other, bytes + 8 * MIB) == 0);
    check();
    puts("OK"), fflush(stdout);
    syscall(SYS_exit_group, 9);
}

// The SSD is full: NULL and ENOMEM, and what is there stays and can be freed.
static void full(void) {
    enum { MOST = 4096 };
    static unsigned long *parts[MOST];
    size_t words = MIB / 8, count = 0;
    for (; count < MOST && (parts[count] = malloc(MIB)); count++)
        for (size_t n = 0; n < words; n++)
            parts[count][n] = mixed(count * words + n);
    MUST(count > 32 && count < MOST && errno == ENOMEM);
    char *map = mmap(0, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(map == MAP_FAILED && errno == ENOMEM);
    MUST(!calloc(8, MIB) && errno == ENOMEM && !realloc(parts[0], 16 * MIB) && errno == ENOMEM);
    char *little = malloc(100);
    MUST(little);
    free(little);
    for (int round = 0; round < 3; round++)
        for (size_t part = 0; part < count; part++)
            for (size_t n = round; n < words; n += 512) {
                MUST(parts[part][n] == mixed(part * words + n));
                parts[part][n] = mixed(part * words + n);
            }
    for (size_t part = 0; part < 16; part++)
        free(parts[part]);
    map = mmap(0, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(map != MAP_FAILED);
    memset(map, 1, 8 * MIB);
}

// Its pages cannot be read any more: its own handler is told where, and it goes on without them.
static void caught_failures(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    fill(64 * MIB);
    sigaction(SIGBUS, &action, NULL);
    puts("filled"), fflush(stdout);
    getchar();
    // volatile: looked at after a jump.
    volatile size_t lost = 0, kept = 0;
    for (volatile size_t n = 0; n < pages && lost < 20; n++) {
        volatile unsigned long *page = memory + n * WORDS;
        if (sigsetjmp(back, 1)) {
            MUST(caught == SIGBUS && (unsigned long)where / PAGE == (unsigned long)page / PAGE);
            lost++;
            continue;
        }
        MUST(*page == mixed((unsigned long *)page - memory));
        kept++;
    }
    MUST(lost == 20);
}

static void on_term(int signal) { (void)signal; }

static void put(const char *file, const char *what) {
    FILE *to = fopen(file, "a");
    MUST(to && fputs(what, to) >= 0 && fclose(to) == 0);
}

// Streams whose contents the C library allocates: what they took comes back when they are closed, and one that there is no memory for costs nothing.
static void streams(void) {
    fill(64 * MIB);
    MUST(!fmemopen(NULL, 1ul << 47, "w"));
    for (int n = 0; n < 20000; n++) {
        FILE *stream = fmemopen(NULL, MIB, "w+");
        MUST(stream && fputs("mine", stream) >= 0 && fseek(stream, n % MIB, SEEK_SET) == 0);
        MUST(fputs("far", stream) >= 0 && fclose(stream) == 0);
    }
    FILE *streams[64];
    for (int n = 0; n < 64; n++)
        MUST((streams[n] = fmemopen(NULL, 1 + 3000 * n, "w")));
    for (int n = 0; n < 64; n++)
        MUST(fclose(streams[n]) == 0);
    check();
}

// As many children at once as are let in, each of which looks at all: who is forked has its memory, and who may not be is told.
static void many(void) {
    fill(16 * MIB);
    int gate[2], children = 0;
    MUST(pipe(gate) == 0);
    for (; children < 40; children++) {
        pid_t pid = fork();
        if (pid < 0) {
            MUST(errno == ENOMEM);
            break;
        }
        if (pid == 0) {
            char byte;
            close(gate[1]);
            MUST(read(gate[0], &byte, 1) == 0);
            check();
            _exit(0);
        }
    }
    MUST(children >= 4 && children < 40);
    close(gate[1]);
    for (int status; children > 0; children--)
        MUST(wait(&status) > 0 && status == 0);
    check();
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        check();
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

// A daemon that makes itself one late: it forks twice when its memory is full, and its parent ends with 7. What it has to say it writes to a file; it ends when it
// reads a byte from a pipe, or is told to by SIGTERM.
static void daemon_late(const char *file, const char *fifo) {
    fill(64 * MIB);
    // What is not printed yet when the parent ends is printed, once.
    printf("started\n");
    // A child of vfork that cannot run its program ends in its parent's memory, which does not end with it.
    pid_t pid = vfork();
    if (pid == 0)
        _exit(3);
    int status, ready[2];
    MUST(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3 && pipe(ready) == 0);
    pid = fork();
    MUST(pid >= 0);
    if (pid) {
        MUST(waitpid(pid, &status, 0) == pid && status == 0);
        exit(7);
    }
    setsid();
    if (fork())
        _exit(0);
    // What the parent had open is closed with its end, as far as it is not the child's: this ends when nobody has the other end.
    char byte;
    close(ready[1]);
    MUST(read(ready[0], &byte, 1) == 0);
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    check();
    char said[100];
    snprintf(said, sizeof said, "pid %d\n", getpid());
    put(file, said);
    int in = open(fifo, O_RDONLY);
    int got = in < 0 ? -1 : (int)read(in, &byte, 1);
    MUST(got == 1 || errno == EINTR);
    check();
    put(file, got == 1 ? "read OK\n" : "told OK\n");
    _exit(0);
}

int main(int count, char **args) {
    MUST(count >= 2);
    if (!strcmp(args[1], "descriptors"))
        descriptors();
    else if (!strcmp(args[1], "limits"))
        limits();
    else if (!strcmp(args[1], "many"))
        many();
    else if (!strcmp(args[1], "streams"))
        streams();
    else if (!strcmp(args[1], "sandbox"))
        sandbox(0);
    else if (!strcmp(args[1], "sandbox-of-all"))
        sandbox(SECCOMP_FILTER_FLAG_TSYNC);
    else if (!strcmp(args[1], "handlers"))
        handlers();
    else if (!strcmp(args[1], "direct"))
        direct();
    else if (!strcmp(args[1], "library"))
        library(args[2], 64);
    else if (!strcmp(args[1], "opens"))
        library(args[2], 0);
    else if (!strcmp(args[1], "daemon"))
        daemon_late(args[2], args[3]);
    else if (!strcmp(args[1], "numbers"))
        numbers();
    else if (!strcmp(args[1], "full"))
        full();
    else if (!strcmp(args[1], "code"))
        code();
    else if (!strcmp(args[1], "closing"))
        closing();
    else if (!strcmp(args[1], "caught"))
        caught_failures();
    else if (!strcmp(args[1], "abort"))
        fill(64 * MIB), printf("%p\n", (void *)memory), fflush(stdout), abort();
    else if (!strcmp(args[1], "wait")) {
        fill(64 * MIB), printf("%p\n", (void *)memory), fflush(stdout);
        getchar();
        check();
    } else if (!strcmp(args[1], "change")) {
        fill(64 * MIB), printf("%p\n", (void *)memory), fflush(stdout);
        getchar();
        for (size_t n = 0; n < pages; n++)
            memory[n * WORDS]++;
    } else
        MUST(!"known");
    puts("OK");
    return 0;
}
