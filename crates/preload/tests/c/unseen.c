// What a program does to signals and threads that is not seen by Terrace, or at the same time by several threads: handlers that the child of a vfork takes away, forks while handlers are
// set, calls after a thread was cancelled. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "placed.h"

static void nothing(int signal) {
    (void)signal;
}

static void *waits(void *unused) {
    for (;;)
        pause();
    return unused;
}

// A program that has cancelled a thread is served as one that has not.
static void calls_after_cancelling(void) {
    pthread_t thread;
    void *ended;
    MUST(pthread_create(&thread, NULL, waits, NULL) == 0 && pthread_cancel(thread) == 0);
    MUST(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
    char *cold = place(PAGE);
    push_out();
    MUST(syscall(SYS_getrandom, cold, 64, 0) == 64);
    push_out();
    MUST(prctl(PR_GET_NAME, cold) == 0 && strcmp(cold, "unseen_c") == 0);
    struct rlimit *limit = (struct rlimit *)place(sizeof *limit);
    push_out();
    MUST(prlimit(0, RLIMIT_NOFILE, NULL, limit) == 0 && limit->rlim_cur > 0);
    unsigned long all = ~0ul, was;
    MUST(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &was, 8) == 0);
    push_out();
    MUST(strcmp(cold, "unseen_c") == 0);
    MUST(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &was, NULL, 8) == 0);
}

// The child of a vfork gives signals back to the system before it runs a program, as Python's subprocess does, and what it hands over is not in DRAM.
static void handed_over_without_handlers(void) {
    char *path = place(64), *text = place(64);
    char **args = (char **)place(4 * sizeof *args);
    strcpy(path, "/bin/sh"), strcpy(text, "-ec");
    args[0] = path, args[1] = text, args[2] = strcpy(place(64), "exit 7"), args[3] = NULL;
    for (int blocked = 0; blocked < 2; blocked++) {
        push_out();
        pid_t child = vfork();
        if (child == 0) {
            sigset_t all;
            sigfillset(&all);
            signal(SIGBUS, SIG_DFL);
            if (blocked)
                sigprocmask(SIG_BLOCK, &all, NULL);
            execv(path, args);
            _exit(1);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
}

static volatile int sets_handlers = 1;

static void *sets_them(void *unused) {
    while (sets_handlers)
        MUST(signal(SIGWINCH, nothing) != SIG_ERR);
    return unused;
}

// A child sets handlers, too, whatever another thread was doing to one when it was forked.
static void forked_while_handlers_are_set(void) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, sets_them, NULL) == 0);
    for (int n = 0; n < 40; n++) {
        pid_t child = fork(), ended = 0;
        MUST(child >= 0);
        if (child == 0)
            _exit(signal(SIGWINCH, SIG_DFL) == SIG_ERR || signal(SIGWINCH, nothing) != SIG_DFL);
        int status;
        for (int waited = 0; ended == 0 && waited < 2000; waited++, usleep(5000))
            ended = waitpid(child, &status, WNOHANG);
        MUST(ended == child && status == 0);
    }
    sets_handlers = 0;
    MUST(pthread_join(thread, NULL) == 0 && signal(SIGWINCH, SIG_DFL) == nothing);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    arena = malloc(40 * MIB), pushed = malloc(PUSH);
    MUST(arena && pushed);
    memset(arena, 1, 40 * MIB);
    handed_over_without_handlers();
    forked_while_handlers_are_set();
    calls_after_cancelling();
    puts("OK");
    return 0;
}
