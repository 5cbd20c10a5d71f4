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

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dir = argv[1];
    const struct named_case cases[] = {
        {"a signal that is waited for", one_that_is_waited_for},
        {"a signal that is handled", one_that_is_handled},
    };
    return RUN_CASES(cases);
}
