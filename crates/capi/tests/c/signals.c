/* Signals of a program that uses the library: none is taken by a thread of the library's. */
#include "cases.h"
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

/* As daemons do: it blocks a signal after the pool was opened, and waits for it. */
static void one_that_is_waited_for(void) {
    CHECK(open_named("waits"));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    CHECK(kill(getpid(), SIGTERM) == 0);
    usleep(100000);
    struct timespec most = {10, 0};
    CHECK(sigtimedwait(&set, NULL, &most) == SIGTERM);
}

static volatile long own_runs, other_runs;
static pid_t own;
static void count(int signal) {
    (void)signal;
    if (syscall(SYS_gettid) == own) own_runs++;
    else other_runs++;
}

/* A handler runs in a thread of the program's. */
static void one_that_is_handled(void) {
    own = syscall(SYS_gettid);
    terrace_pool *pool = open_named("handles");
    CHECK(pool);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = count;
    sigaction(SIGUSR1, &action, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    for (int round = 0; round < 20; round++) {
        /* Where this thread has it blocked, the system looks for another. */
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        kill(getpid(), SIGUSR1);
        usleep(5000);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    CHECK(other_runs == 0 && own_runs == 20);
    CHECK(terrace_close(pool) == 0);
}

enum { OBJECTS = 100000 };
static volatile uint64_t *objects_there[OBJECTS];
static volatile int there;
static volatile uint64_t sum;
static void touch(int signal) {
    (void)signal;
    static unsigned seed = 1;
    for (int n = 0; there && n < 20; n++) {
        seed = seed * 1103515245 + 12345;
        sum += *objects_there[(seed >> 8) % there];
    }
    own_runs++;
}

/* A handler touches what is not in DRAM at any moment but in calls, as the header says. */
static void one_whose_handler_touches_memory(void) {
    terrace_pool *pool = open_sized("touches", 256 << 20, 0);
    CHECK(pool);
    terrace_objects *objects = terrace_objects_create(pool, 512, 0);
    CHECK(objects);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = touch;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    /* The runner's clock is this one's: another watches. */
    pid_t parent = getpid(), watch = fork();
    if (watch == 0) {
        sleep(CASE_SECONDS_MAX);
        kill(parent, SIGKILL);
        _exit(0);
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    struct itimerval every = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &every, NULL);
    time_t end = time(NULL) + 6;
    unsigned seed = 7;
    while (time(NULL) < end) {
        if (there < OBJECTS) {
            pthread_sigmask(SIG_BLOCK, &set, NULL);
            uint64_t *object = terrace_object_alloc(objects);
            pthread_sigmask(SIG_UNBLOCK, &set, NULL);
            CHECK(object);
            for (int n = 0; n < 64; n++) object[n] = (uint64_t)there * 77 + n * (uint64_t)seed;
            objects_there[there] = object;
            there++;
        }
        seed = seed * 1103515245 + 12345;
        objects_there[(seed >> 8) % there][3] = seed;
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    kill(watch, SIGKILL);
    waitpid(watch, NULL, 0);
    CHECK(own_runs > 100);
    CHECK(terrace_close(pool) == 0);
}

/* Threads that are cancelled while they fault: each goes on to a point of its own where it may be cancelled, and the memory is as they left it. */
enum { CANCELLED = 300, TOUCHES = 400, WRITTEN = 60000 };
static uint64_t *written[WRITTEN];
static volatile int past_its_end;
static void *touch_and_end(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg + 1;
    /* Pending from here on, so that whichever call may be cancelled is. */
    CHECK(pthread_cancel(pthread_self()) == 0);
    for (int n = 0; n < TOUCHES; n++) {
        seed = seed * 1103515245 + 12345;
        uint64_t *object = written[(seed >> 8) % WRITTEN];
        __atomic_fetch_add(&object[5], 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&sum, TOUCHES, __ATOMIC_RELAXED);
    pthread_testcancel();
    past_its_end = 1;
    return NULL;
}
static terrace_pool *write_all(const char *name) {
    terrace_pool *pool = open_sized(name, 256 << 20, 0);
    CHECK(pool);
    terrace_objects *objects = terrace_objects_create(pool, 512, 0);
    CHECK(objects);
    for (int n = 0; n < WRITTEN; n++) {
        CHECK((written[n] = terrace_object_alloc(objects)));
        for (int w = 0; w < 64; w++) written[n][w] = w == 5 ? 0 : (uint64_t)n * 77 + (uint64_t)w;
    }
    return pool;
}
static uint64_t check_all(void) {
    uint64_t counted = 0;
    for (int n = 0; n < WRITTEN; n++) {
        counted += written[n][5];
        CHECK(written[n][0] == (uint64_t)n * 77 && written[n][63] == (uint64_t)n * 77 + 63);
    }
    return counted;
}
static void ones_that_are_cancelled(void) {
    terrace_pool *pool = write_all("cancelled");
    for (int n = 0; n < CANCELLED; n += 2) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, touch_and_end, (void *)(uintptr_t)(n + i)) == 0);
        for (int i = 0; i < 2; i++) {
            void *ended = NULL;
            CHECK(pthread_join(threads[i], &ended) == 0 && ended == PTHREAD_CANCELED && !past_its_end);
        }
    }
    CHECK(check_all() == sum && sum == (uint64_t)CANCELLED * TOUCHES);
    CHECK(terrace_close(pool) == 0);
}

/* Threads that may be cancelled at any instruction, by another thread, while they fault: what a fault has in hand it lets go of first. */
enum { AT_ONCE = 600, HUNG_SECONDS = 15 };
static void *touch_for_ever(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg + 1;
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    for (;;) {
        seed = seed * 1103515245 + 12345;
        __atomic_fetch_add(&written[(seed >> 8) % WRITTEN][5], 1, __ATOMIC_RELAXED);
    }
}
static void ones_that_are_cancelled_at_once(void) {
    terrace_pool *pool = write_all("at once");
    unsigned seed = 3;
    for (int n = 0; n < AT_ONCE; n += 2) {
        alarm(HUNG_SECONDS);
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, touch_for_ever, (void *)(uintptr_t)(n + i)) == 0);
        for (int i = 0; i < 2; i++) {
            seed = seed * 1103515245 + 12345;
            usleep((seed >> 8) % 3000);
            CHECK(pthread_cancel(threads[i]) == 0);
        }
        for (int i = 0; i < 2; i++) {
            void *ended = NULL;
            CHECK(pthread_join(threads[i], &ended) == 0 && ended == PTHREAD_CANCELED);
        }
    }
    alarm(HUNG_SECONDS);
    CHECK(check_all() > 0);
    CHECK(terrace_close(pool) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dir = argv[1];
    const struct named_case cases[] = {
        {"a signal that is waited for", one_that_is_waited_for},
        {"a signal that is handled", one_that_is_handled},
        {"a handler that touches memory", one_whose_handler_touches_memory},
        {"threads that are cancelled", ones_that_are_cancelled},
        {"threads that are cancelled at once", ones_that_are_cancelled_at_once},
    };
    return RUN_CASES(cases);
}
