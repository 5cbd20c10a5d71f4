// What a program may do to its signals, stacks and processes while its system calls are dispatched. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <aio.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "placed.h"

static volatile sig_atomic_t seen;
static char *touched;

static void count(int signal) {
    (void)signal;
    seen += touched ? touched[0] : 1;
}

static void masks(void) {
    sigset_t all, was;
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_SETMASK, &all, &was) == 0);
    char *cold = place(PAGE);
    cold[0] = 7;
    push_out();
    // Every signal is blocked, and the page is not there.
    MUST(cold[0] == 7);
    MUST(pthread_sigmask(SIG_SETMASK, &was, NULL) == 0);
    struct sigaction action = {.sa_handler = count};
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    touched = cold;
    push_out();
    seen = 0;
    MUST(raise(SIGUSR1) == 0 && seen == 7);
    struct sigaction told;
    MUST(sigaction(SIGUSR1, NULL, &told) == 0 && told.sa_handler == count);
    // Masks of waiting calls, in memory that is not there.
    sigset_t *cold_mask = (sigset_t *)place(sizeof *cold_mask);
    struct timespec *cold_time = (struct timespec *)place(sizeof *cold_time);
    sigemptyset(cold_mask);
    *cold_time = (struct timespec){0, 1000};
    push_out();
    MUST(ppoll(NULL, 0, cold_time, cold_mask) == 0);
    push_out();
    MUST(pselect(0, NULL, NULL, NULL, cold_time, cold_mask) == 0);
    touched = NULL;
}

static sigjmp_buf back;

static void leaves(int signal, siginfo_t *info, void *context) {
    (void)info, (void)context;
    siglongjmp(back, signal);
}

static void own_handlers(void) {
    // A page beyond the end of a file, in a mapping that is not served.
    int file = fileno(tmpfile());
    char *mapped = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    struct sigaction action = {.sa_sigaction = leaves, .sa_flags = SA_SIGINFO}, was;
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
    MUST(sigaction(SIGSYS, &action, &was) == 0 && was.sa_handler == SIG_DFL);
    for (int n = 0; n < 3; n++) {
        int came = sigsetjmp(back, 1);
        if (!came)
            seen += mapped[0];
        MUST(came == SIGBUS);
        came = sigsetjmp(back, 1);
        if (!came)
            raise(SIGSYS);
        MUST(came == SIGSYS);
        // And faults of its memory are still not its business.
        char *cold = place(PAGE);
        cold[0] = 3;
        push_out();
        MUST(cold[0] == 3);
    }
    MUST(sigaction(SIGBUS, NULL, &was) == 0 && was.sa_sigaction == leaves);
    action.sa_handler = SIG_DFL;
    action.sa_flags = 0;
    MUST(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSYS, &action, NULL) == 0);
}

static void stacks(void) {
    stack_t mine = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10}, told;
    MUST(sigaltstack(&mine, NULL) == 0 && sigaltstack(NULL, &told) == 0);
    MUST(told.ss_sp == mine.ss_sp && told.ss_size == mine.ss_size);
    touched = place(PAGE);
    touched[0] = 5;
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    push_out();
    seen = 0;
    MUST(raise(SIGUSR1) == 0 && seen == 5);
    touched = NULL;
    MUST(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL) == 0);
}

static ucontext_t outer, inner;

static int deep(int depth) {
    volatile char room[PAGE];
    memset((char *)room, depth, sizeof room);
    return depth == 0 ? 0 : deep(depth - 1) + (room[depth] == (char)depth);
}

static void on_own_stack(void) {
    for (int n = 0; n < 3; n++) {
        push_out();
        seen = deep(40);
        char name[64];
        push_out();
        MUST(snprintf(name, sizeof name, "%d", seen) == 2 && write(-1, name, 2) == -1);
        swapcontext(&inner, &outer);
    }
}

// Stacks of its own making, in memory that leaves.
static void coroutines(void) {
    MUST(getcontext(&inner) == 0);
    inner.uc_stack.ss_size = MIB;
    inner.uc_stack.ss_sp = malloc(MIB);
    inner.uc_link = &outer;
    makecontext(&inner, on_own_stack, 0);
    for (int n = 0; n < 3; n++) {
        seen = 0;
        MUST(swapcontext(&outer, &inner) == 0 && seen == 40);
        push_out();
    }
    free(inner.uc_stack.ss_sp);
}

static void *reads(void *fds) {
    char *into = place(64 << 10);
    memset(into, 1, 64 << 10);
    push_out();
    while (read(((int *)fds)[0], into, 64 << 10) > 0)
        ;
    return NULL;
}

static void cancelled(void) {
    int fds[2];
    MUST(pipe(fds) == 0);
    for (int n = 0; n < 3; n++) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, reads, fds) == 0);
        usleep(20000);
        MUST(pthread_cancel(thread) == 0);
        void *ended;
        MUST(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
    }
    close(fds[0]), close(fds[1]);
}

static void jumps(int signal) {
    siglongjmp(back, signal);
}

// Reads that a handler jumps out of, again and again: what they copy through is not lost.
static void jumped_out_of(void) {
    int fds[2];
    MUST(pipe(fds) == 0);
    struct sigaction action = {.sa_handler = jumps};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    char *into = place(64 << 10);
    for (volatile int n = 0; n < 40; n++) {
        if (sigsetjmp(back, 1) == 0) {
            struct itimerval soon = {.it_value = {0, 2000}};
            MUST(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            MUST(read(fds[0], into, 64 << 10) == -2);
        }
    }
    MUST(write(fds[1], "here", 4) == 4 && read(fds[0], into, 64 << 10) == 4 && memcmp(into, "here", 4) == 0);
    close(fds[0]), close(fds[1]);
}

// So many frames further down: a read, which a handler jumps out of, or a datagram that comes.
static ssize_t further_down(int frames, int fd, char *into, size_t bytes, int is_datagram) {
    volatile char room[512];
    room[frames % 512] = 1;
    if (frames > 0)
        return further_down(frames - 1, fd, into, bytes, is_datagram) * room[frames % 512];
    return is_datagram ? recv(fd, into, bytes, 0) : read(fd, into, bytes);
}

// What calls copied through that were left from above seems taken: there is always more.
static void jumped_out_of_further_down(void) {
    int fds[2], pair[2];
    MUST(pipe(fds) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    char *into = place(64 << 10), *sent = place(20000);
    memset(sent, 5, 20000);
    for (volatile int n = 1; n < 12; n++) {
        if (sigsetjmp(back, 1) == 0) {
            struct itimerval soon = {.it_value = {0, 2000}};
            MUST(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            MUST(further_down(n * 4, fds[0], into, 64 << 10, 0) == -2);
        }
    }
    for (int n = 0; n < 6; n++) {
        MUST(send(pair[1], sent, 20000, 0) == 20000);
        push_out();
        MUST(further_down(60 + n, pair[0], into, 20000, 1) == 20000 && into[19999] == 5);
    }
    close(fds[0]), close(fds[1]), close(pair[0]), close(pair[1]);
}

enum { PATTERN = 200000, READS = 400 };
static char stacks_of_two[2][256 << 10] __attribute__((aligned(4096)));
static ucontext_t two[2];
static int files_of_two[2];
static volatile int current, reads_of_two[2];

static void goes_over(int signal) {
    (void)signal;
    int before = current;
    current = !before;
    swapcontext(&two[before], &two[!before]);
}

static void reads_its_own(int which) {
    char *into = arena + which * 2 * MIB;
    while (reads_of_two[0] < READS || reads_of_two[1] < READS) {
        struct iovec part = {into, PATTERN};
        MUST(preadv(files_of_two[which], &part, 1, 0) == PATTERN);
        for (size_t n = 0; n < PATTERN; n++)
            MUST(into[n] == (char)('a' + which));
        memset(into, 0, PATTERN);
        reads_of_two[which]++;
    }
    setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    setcontext(&outer);
}

// A timer's handler goes over from one stack to another, with a call under way on either.
static void preempted(void) {
    for (int n = 0; n < 2; n++) {
        char *pattern = malloc(PATTERN);
        memset(pattern, 'a' + n, PATTERN);
        files_of_two[n] = fileno(tmpfile());
        MUST(pwrite(files_of_two[n], pattern, PATTERN, 0) == PATTERN && getcontext(&two[n]) == 0);
        free(pattern);
        two[n].uc_stack.ss_sp = stacks_of_two[n], two[n].uc_stack.ss_size = sizeof stacks_of_two[n];
        makecontext(&two[n], (void (*)(void))reads_its_own, 1, n);
    }
    struct sigaction action = {.sa_handler = goes_over, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    MUST(setitimer(ITIMER_PROF, &often, NULL) == 0 && swapcontext(&outer, &two[0]) == 0);
    sigset_t none;
    sigemptyset(&none);
    action.sa_handler = SIG_IGN;
    MUST(sigaction(SIGPROF, &action, NULL) == 0 && pthread_sigmask(SIG_SETMASK, &none, NULL) == 0);
}

static pthread_mutex_t *mutex;
static long *counter;

static void *locks(void *none) {
    for (int n = 0; n < 20000; n++) {
        pthread_mutex_lock(mutex);
        ++*counter;
        pthread_mutex_unlock(mutex);
    }
    return none;
}

static void *ends(void *arg) {
    return arg;
}

static void threads(void) {
    mutex = (pthread_mutex_t *)(((uintptr_t)place(PAGE) + 63) & ~(uintptr_t)63);
    pthread_mutex_init(mutex, NULL);
    counter = (long *)(((uintptr_t)place(PAGE) + 63) & ~(uintptr_t)63);
    *counter = 0;
    for (int round = 0; round < 4; round++) {
        pthread_t all[8];
        for (int n = 0; n < 8; n++)
            MUST(pthread_create(&all[n], NULL, locks, NULL) == 0);
        push_out();
        for (int n = 0; n < 8; n++)
            MUST(pthread_join(all[n], NULL) == 0);
    }
    MUST(*counter == 4 * 8 * 20000);
    // Many that come and go.
    for (int n = 0; n < 500; n++) {
        pthread_t one;
        MUST(pthread_create(&one, NULL, ends, NULL) == 0 && pthread_join(one, NULL) == 0);
    }
    // With a stack that is served itself.
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    char *stack = malloc(MIB);
    MUST(pthread_attr_setstack(&attributes, (void *)(((uintptr_t)stack + PAGE) & ~(uintptr_t)(PAGE - 1)), MIB / 2) == 0);
    pthread_t one;
    MUST(pthread_create(&one, &attributes, locks, NULL) == 0);
    push_out();
    MUST(pthread_join(one, NULL) == 0);
}

static pthread_cond_t *turned;
static int turn;

/* Two that give each other the turn. */
static void *takes_turns(void *mine) {
    for (int n = 0; n < 500; n++) {
        pthread_mutex_lock(mutex);
        while (turn != (int)(intptr_t)mine)
            MUST(pthread_cond_wait(turned, mutex) == 0);
        turn = !turn;
        pthread_cond_signal(turned);
        pthread_mutex_unlock(mutex);
    }
    return NULL;
}

static void *is_refused(void *kind) {
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 2000000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    MUST(pthread_mutex_trylock(mutex) == EBUSY && pthread_mutex_timedlock(mutex, &soon) == ETIMEDOUT);
    return kind;
}

/* Mutexes of each kind, of which only the plain one is waited for by functions in front of the C library's. */
static void kinds(void) {
    const int all[] = {PTHREAD_MUTEX_DEFAULT, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_ADAPTIVE_NP};
    turned = (pthread_cond_t *)(((uintptr_t)place(PAGE) + 63) & ~(uintptr_t)63);
    for (int n = 0; n < 8; n++) {
        int kind = all[n % 4];
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_settype(&attributes, kind);
        pthread_mutexattr_setpshared(&attributes, n < 4 ? PTHREAD_PROCESS_PRIVATE : PTHREAD_PROCESS_SHARED);
        MUST(pthread_mutex_init(mutex, &attributes) == 0 && pthread_cond_init(turned, NULL) == 0);
        *counter = 0;
        pthread_t some[4];
        for (int t = 0; t < 4; t++)
            MUST(pthread_create(&some[t], NULL, locks, NULL) == 0);
        push_out();
        for (int t = 0; t < 4; t++)
            MUST(pthread_join(some[t], NULL) == 0);
        MUST(*counter == 4 * 20000);
        MUST(pthread_mutex_lock(mutex) == 0);
        MUST(pthread_create(&some[0], NULL, is_refused, NULL) == 0 && pthread_join(some[0], NULL) == 0);
        if (kind == PTHREAD_MUTEX_RECURSIVE)
            MUST(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
        if (kind == PTHREAD_MUTEX_ERRORCHECK)
            MUST(pthread_mutex_lock(mutex) == EDEADLK);
        MUST(pthread_mutex_unlock(mutex) == 0);
        if (kind == PTHREAD_MUTEX_ERRORCHECK)
            MUST(pthread_mutex_unlock(mutex) == EPERM);
        for (intptr_t t = 0; t < 2; t++)
            MUST(pthread_create(&some[t], NULL, takes_turns, (void *)t) == 0);
        for (int t = 0; t < 2; t++)
            MUST(pthread_join(some[t], NULL) == 0);
        MUST(pthread_cond_destroy(turned) == 0 && pthread_mutex_destroy(mutex) == 0);
    }
}

static char *cold_file;

static int reads_file(void *fd) {
    char *cold = place(3 * PAGE);
    push_out();
    MUST(pread(*(int *)fd, cold, 2 * PAGE, 0) == 2 * PAGE && cold[0] == 'f' && cold[2 * PAGE - 1] == 'f');
    // Instructions of the C library's own: not a function that is in front.
    FILE *file = fdopen(dup(*(int *)fd), "r");
    MUST(file && setvbuf(file, cold, _IOFBF, 2 * PAGE) == 0);
    push_out();
    MUST(fseek(file, 0, SEEK_SET) == 0 && fgetc(file) == 'f' && fclose(file) == 0);
    return 5;
}

static void on_timer(union sigval given) {
    push_out();
    char *cold = given.sival_ptr;
    struct stat *status = (struct stat *)(cold + PAGE);
    // The name is not there, nor where the answer goes.
    if (stat(cold, status) == 0 && S_ISDIR(status->st_mode))
        __atomic_store_n((int *)(cold + 2 * PAGE), 1, __ATOMIC_SEQ_CST);
}

// Threads that are not made by pthread_create, but by the C library itself.
static void threads_of_others(void) {
    int fd = fileno(tmpfile());
    cold_file = place(2 * PAGE);
    memset(cold_file, 'f', 2 * PAGE);
    push_out();
    MUST(write(fd, cold_file, 2 * PAGE) == 2 * PAGE);
    thrd_t thread;
    int said = 0;
    MUST(thrd_create(&thread, reads_file, &fd) == thrd_success);
    MUST(thrd_join(thread, &said) == thrd_success && said == 5);
    struct aiocb *work = (struct aiocb *)place(sizeof *work);
    memset(work, 0, sizeof *work);
    work->aio_fildes = fd;
    work->aio_buf = place(2 * PAGE);
    work->aio_nbytes = 2 * PAGE;
    memset((void *)work->aio_buf, 0, 2 * PAGE);
    push_out();
    MUST(aio_read(work) == 0);
    const struct aiocb *list[1] = {work};
    while (aio_error(work) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    MUST(aio_error(work) == 0 && aio_return(work) == 2 * PAGE && ((volatile char *)work->aio_buf)[PAGE] == 'f');
    char *cold = place(4 * PAGE);
    cold += PAGE - (uintptr_t)cold % PAGE;
    strcpy(cold, "/");
    memset(cold + PAGE, 0, PAGE + 4);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer, .sigev_value.sival_ptr = cold};
    timer_t timer;
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    struct itimerspec soon = {.it_value.tv_nsec = 1000000};
    MUST(timer_settime(timer, 0, &soon, NULL) == 0);
    for (int n = 0; n < 2000 && !__atomic_load_n((int *)(cold + 2 * PAGE), __ATOMIC_SEQ_CST); n++)
        usleep(5000);
    MUST(__atomic_load_n((int *)(cold + 2 * PAGE), __ATOMIC_SEQ_CST) == 1);
    MUST(timer_delete(timer) == 0);
}

static char *stack_low, *stack_high;
static volatile sig_atomic_t met, met_elsewhere;
static sem_t never;

static void looks_where_it_is(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    // More than a stack for signals has.
    volatile char much[600 << 10];
    for (size_t n = 0; n < sizeof much; n += PAGE)
        much[n] = 1;
    char *here = (char *)much, *there = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
    if (here < stack_low || there < stack_low || here >= stack_high || there >= stack_high)
        met_elsewhere = 1;
    // It makes calls itself.
    struct timespec none = {0, 0};
    sigset_t nothing;
    sigemptyset(&nothing);
    sigtimedwait(&nothing, NULL, &none);
    met = 1;
}

static void blocks_one_more(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    sigaddset(&((ucontext_t *)context)->uc_sigmask, SIGUSR2);
}

// ppoll for a time by an instruction of its own, with values where a function may have them meanwhile.
static long polls_itself(struct timespec *time) {
    long said, kept;
    double wide = 0;
    register long size __asm__("r8") = 8;
    register void *mask __asm__("r10") = NULL;
    __asm__ volatile("movq $0x5a5a, -128(%%rsp)\n\tmovq %%rdx, %%xmm9\n\tsyscall\n\tmovq -128(%%rsp), %1\n\tmovq %%xmm9, %2"
                     : "=a"(said), "=&r"(kept), "=&x"(wide)
                     : "0"(271L), "D"(NULL), "S"(0L), "d"(time), "r"(mask), "r"(size)
                     : "rcx", "r11", "xmm9", "memory");
    long bits;
    memcpy(&bits, &wide, sizeof bits);
    MUST(kept == 0x5a5a && bits == (long)time);
    return said;
}

static void *waits_for_a_signal(void *how) {
    pthread_attr_t attributes;
    size_t bytes;
    MUST(pthread_getattr_np(pthread_self(), &attributes) == 0);
    MUST(pthread_attr_getstack(&attributes, (void **)&stack_low, &bytes) == 0);
    stack_high = stack_low + bytes;
    struct timespec time = {10, 0}, then;
    clock_gettime(CLOCK_REALTIME, &then);
    then.tv_sec += 10;
    sigset_t one;
    sigemptyset(&one);
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
    while (!met) {
        switch ((intptr_t)how) {
        case 0:
            MUST(sem_timedwait(&never, &then) == -1 && errno == EINTR);
            break;
        case 1:
            pthread_mutex_lock(&lock);
            pthread_cond_timedwait(&turn, &lock, &then);
            pthread_mutex_unlock(&lock);
            break;
        case 2:
            sigaddset(&one, SIGUSR2);
            MUST(sigtimedwait(&one, NULL, &time) == -1 && errno == EINTR);
            break;
        case 3:
            MUST(ppoll(NULL, 0, &time, &one) == -1 && errno == EINTR);
            break;
        case 4:
            MUST(sigsuspend(&one) == -1 && errno == EINTR);
            break;
        case 5:
            MUST(polls_itself(&time) == -EINTR);
            break;
        case 6:
            MUST(raise(SIGUSR1) == 0 && met);
            break;
        }
    }
    return NULL;
}

// A signal meets a thread that waits on the thread's own stack, and its handler runs there: who collects garbage looks for what is used from there on.
static void met_where_it_waits(void) {
    struct sigaction action = {.sa_sigaction = looks_where_it_is, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && sem_init(&never, 0, 0) == 0);
    for (intptr_t how = 0; how < 7; how++) {
        pthread_t thread;
        met = met_elsewhere = 0;
        MUST(pthread_create(&thread, NULL, waits_for_a_signal, (void *)how) == 0);
        while (!met) {
            usleep(5000);
            if (how < 6 && stack_low)
                MUST(pthread_kill(thread, SIGUSR1) == 0);
        }
        MUST(pthread_join(thread, NULL) == 0 && !met_elsewhere);
        stack_low = NULL;
    }
    struct timespec soon = {0, 1000000};
    MUST(polls_itself(&soon) == 0);
    // What it changes of the mask holds when it is back.
    action.sa_sigaction = blocks_one_more;
    sigset_t now, none;
    sigemptyset(&none);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    MUST(pthread_sigmask(SIG_SETMASK, &none, &now) == 0 && sigismember(&now, SIGUSR2) == 1 && sigismember(&now, SIGUSR1) == 0);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    arena = malloc(40 * MIB), pushed = malloc(PUSH);
    MUST(arena && pushed);
    memset(arena, 1, 40 * MIB);
    masks();
    own_handlers();
    stacks();
    met_where_it_waits();
    coroutines();
    threads();
    kinds();
    threads_of_others();
    preempted();
    jumped_out_of();
    jumped_out_of_further_down();
    cancelled();
    puts("OK");
}
