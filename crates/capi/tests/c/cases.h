/* For tests of several cases, each in a process of its own, which a case that hangs does not outlive. */
#ifndef CASES_H
#define CASES_H
#include "terrace.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* More than a case takes on a machine that is busy. */
enum { CASE_SECONDS_MAX = 90 };

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            printf("line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, terrace_last_error());          \
            fflush(stdout);                                                                               \
            _exit(1);                                                                                     \
        }                                                                                                 \
    } while (0)
#define REFUSED(call, number, text) CHECK((errno = 0, (call)) && errno == (number) && strstr(terrace_last_error(), text))

static const char *dir;

/* A pool named `name` below the test's directory. */
static inline terrace_pool *open_with(const char *name, uint64_t ssd_bytes, uint32_t flags, uint32_t fault_threads) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    struct terrace_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.path = path;
    o.cap_bytes = 32 << 20;
    o.ssd_bytes = ssd_bytes;
    o.flags = flags;
    o.fault_threads = fault_threads;
    return terrace_open(&o);
}
static inline terrace_pool *open_sized(const char *name, uint64_t ssd_bytes, uint32_t flags) {
    return open_with(name, ssd_bytes, flags, 0);
}
static inline terrace_pool *open_named(const char *name) { return open_sized(name, 64 << 20, 0); }

struct named_case {
    const char *name;
    void (*run)(void);
};

/* Runs them all; what main returns. */
static inline int run_cases(const struct named_case *cases, int count) {
    int wrong = 0;
    for (int at = 0; at < count; at++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(CASE_SECONDS_MAX);
            cases[at].run();
            fflush(stdout);
            exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        if (status != 0) printf("%s: status %#x\n", cases[at].name, status);
        wrong += status != 0;
    }
    if (!wrong) printf("%d cases, all as they should be\n", count);
    return wrong != 0;
}
#define RUN_CASES(cases) run_cases(cases, (int)(sizeof(cases) / sizeof(cases)[0]))
#endif
