// Signals that come while a thread is in malloc's or mmap's functions. A handler's calls name cold memory, it maps memory itself and may block all signals while it works; and one thread stops another by a signal, wherever it
// is, and maps memory meanwhile, as collectors of garbage do.
#define _GNU_SOURCE
#include "must.h"
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096ul
#define COLD_PAGES (24ul * 256)
#define SECONDS 2
#define STOPS 1000

static char *cold;
static int file;
static volatile long handled;

static char *mapped(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static unsigned next(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

// More than the cap, so that all else leaves DRAM.
static void make_cold(void) {
    static uint64_t x = 88172645463325252ull;
    size_t bytes = 64 << 20;
    char *other = mapped(bytes);
    for (size_t i = 0; i < bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(other + i, &x, 8);
    }
    MUST(munmap(other, bytes) == 0);
}

static void handler(int signal) {
    static unsigned seed = 1;
    int before = errno;
    sigset_t all, was;
    sigfillset(&all);
    MUST(sigprocmask(SIG_BLOCK, &all, &was) == 0);
    char *page = cold + next(&seed) % COLD_PAGES * PAGE;
    MUST(pwrite(file, page, 64, 0) == 64);
    cold[next(&seed) % COLD_PAGES * PAGE]++;
    MUST(pread(file, cold + next(&seed) % COLD_PAGES * PAGE, 64, 0) == 64);
    char *own = mapped(16 * PAGE);
    own[PAGE] = 1;
    MUST(munmap(own, 16 * PAGE) == 0);
    MUST(sigprocmask(SIG_SETMASK, &was, NULL) == 0);
    handled++;
    errno = before;
    (void)signal;
}

static void handlers(void) {
    cold = malloc(COLD_PAGES * PAGE);
    MUST(cold);
    memset(cold, 1, COLD_PAGES * PAGE);
    file = open("interrupts.out", O_CREAT | O_RDWR | O_TRUNC, 0600);
    MUST(file >= 0);
    make_cold();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval each = {{0, 1000}, {0, 1000}};
    MUST(setitimer(ITIMER_REAL, &each, NULL) == 0);
    static char *kept[256];
    unsigned seed = 7;
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end;) {
        for (int i = 0; i < 1000; i++) {
            char **at = &kept[next(&seed) & 255];
            size_t bytes = 1024 + (next(&seed) & 65535);
            if (next(&seed) & 1) {
                *at = realloc(*at, bytes);
            } else {
                free(*at);
                *at = malloc(bytes);
            }
            MUST(*at);
            **at = 1;
        }
        char *some = mapped(64 * PAGE);
        MUST(mprotect(some, PAGE, PROT_READ) == 0 && munmap(some, 64 * PAGE) == 0);
    }
    each = (struct itimerval){{0, 0}, {0, 0}};
    MUST(setitimer(ITIMER_REAL, &each, NULL) == 0);
    MUST(handled > 100);
}

static sem_t stopped;
static volatile sig_atomic_t round_now, round_over, goes_on = 1;

static void stop(int signal) {
    int before = errno, own = round_now;
    sigset_t rest;
    sigfillset(&rest);
    sigdelset(&rest, SIGUSR2);
    sem_post(&stopped);
    while (round_over < own) {
        sigsuspend(&rest);
    }
    errno = before;
    (void)signal;
}

static void go_on(int signal) {
    (void)signal;
}

static void *is_stopped(void *nothing) {
    char *kept[64] = {0};
    unsigned seed = 1;
    while (goes_on) {
        char **at = &kept[next(&seed) & 63];
        if (*at) {
            MUST(munmap(*at, 16 * PAGE) == 0);
        }
        *at = mapped(16 * PAGE);
        **at = 1;
        MUST(mprotect(*at, PAGE, PROT_READ) == 0);
    }
    return nothing;
}

static void stops(void) {
    MUST(sem_init(&stopped, 0, 0) == 0);
    struct sigaction action = {.sa_handler = stop};
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    action.sa_handler = go_on;
    MUST(sigaction(SIGUSR2, &action, NULL) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, is_stopped, NULL) == 0);
    unsigned seed = 3;
    for (int i = 0; i < STOPS; i++) {
        for (volatile unsigned spins = next(&seed) % 20000; spins > 0; spins--) {
        }
        round_now++;
        MUST(pthread_kill(thread, SIGUSR1) == 0);
        while (sem_wait(&stopped) != 0) {
        }
        char *own = mapped(32 * PAGE);
        own[PAGE] = 1;
        MUST(mprotect(own, PAGE, PROT_READ) == 0);
        MUST(madvise(own + PAGE, PAGE, MADV_DONTNEED) == 0 && own[PAGE] == 0);
        MUST(munmap(own, 32 * PAGE) == 0);
        round_over = round_now;
        MUST(pthread_kill(thread, SIGUSR2) == 0);
    }
    goes_on = 0;
    MUST(pthread_join(thread, NULL) == 0);
}

// What malloc and free of 2,000 bytes take, the best of several times, ns.
static double pair_ns(void) {
    double best = 1e9;
    for (int round = 0; round < 20; round++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int n = 0; n < 10000; n++) {
            char *volatile block = malloc(2000);
            free(block);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        double took = (to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec);
        best = took / 10000 < best ? took / 10000 : best;
    }
    return best;
}

// Where calls are dispatched, signals that wait until malloc has ended cost it nothing.
static void is_as_quick_with(void) {
    free(mapped(4 << 20) ? malloc(4 << 20) : NULL);
    double without = pair_ns();
    MUST(signal(SIGALRM, go_on) == SIG_DFL);
    double with = pair_ns();
    printf("a pair of malloc and free: %.0f ns, with a handler %.0f\n", without, with);
    MUST(with < 4 * without + 100);
}

static volatile int next_value, out_of_order, is_once;

static void takes_value(int signal, siginfo_t *info, void *context) {
    ucontext_t *frame = context;
    // Who was interrupted had no signal blocked.
    if (info->si_value.sival_int != next_value++ || info->si_code != SI_QUEUE || info->si_pid != getpid() || sigismember(&frame->uc_sigmask, SIGUSR1))
        out_of_order++;
    (void)signal;
}

static void once(int signal) {
    is_once += signal == SIGUSR1;
}

static pthread_t allocates;

static void *sends_values(void *count) {
    for (int value = 0; value < (intptr_t)count; value++) {
        union sigval is = {.sival_int = value};
        while (pthread_sigqueue(allocates, SIGRTMIN + 1, is) != 0)
            usleep(100);
    }
    return NULL;
}

// What a signal carries comes along however late it comes, each once and in order; and a program is told the actions that it set.
static void values(void) {
    struct sigaction action = {.sa_sigaction = takes_value, .sa_flags = SA_SIGINFO}, was;
    MUST(sigaction(SIGRTMIN + 1, &action, &was) == 0 && was.sa_handler == SIG_DFL);
    MUST(sigaction(SIGRTMIN + 1, NULL, &was) == 0 && was.sa_sigaction == takes_value && was.sa_flags & SA_SIGINFO);
    intptr_t count = 20000;
    pthread_t sender;
    allocates = pthread_self();
    MUST(pthread_create(&sender, NULL, sends_values, (void *)count) == 0);
    unsigned seed = 5;
    while (next_value < count) {
        char *volatile block = malloc(1024 + next(&seed) % 4096);
        free(block);
    }
    MUST(pthread_join(sender, NULL) == 0 && next_value == count && out_of_order == 0);
    sigset_t now;
    MUST(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && !sigismember(&now, SIGUSR1) && !sigismember(&now, SIGRTMIN + 1));
    action = (struct sigaction){.sa_handler = once, .sa_flags = SA_RESETHAND | SA_NODEFER};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    MUST(sigaction(SIGUSR1, NULL, &was) == 0 && was.sa_handler == once && was.sa_flags & SA_RESETHAND && !(was.sa_flags & SA_SIGINFO));
    MUST(raise(SIGUSR1) == 0 && is_once == 1);
    MUST(sigaction(SIGUSR1, NULL, &was) == 0 && was.sa_handler == SIG_DFL);
    MUST(sigaction(SIGKILL, &action, NULL) == -1 && errno == EINVAL && sigaction(SIGKILL, NULL, &was) == 0 && was.sa_handler == SIG_DFL);
    MUST(signal(SIGUSR1, SIG_IGN) == SIG_DFL && raise(SIGUSR1) == 0 && signal(SIGUSR1, SIG_DFL) == SIG_IGN);
}

int main(int count, char **args) {
    if (count > 1 && strcmp(args[1], "quick") == 0)
        is_as_quick_with();
    handlers();
    stops();
    if (count < 2 || strcmp(args[1], "refused") != 0)
        values();
    puts("OK");
    return 0;
}
