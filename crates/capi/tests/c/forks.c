/* Children of a program that uses the library: they may open a pool of their own at any time. */
#include "cases.h"

static terrace_pool *pool;
static void *calls(void *objects) {
    for (;;) {
        void *memory = terrace_malloc(pool, 100);
        terrace_usable_size(memory);
        terrace_free(memory);
        terrace_objects_count(objects);
    }
    return NULL;
}

/* Fork while other threads are in calls. */
static void a_fork_beside_calls(void) {
    enum { FORKS = 60, HUNG_SECONDS = 15 };
    pool = open_named("parent");
    CHECK(pool);
    terrace_objects *objects = terrace_objects_create(pool, 64, 1000);
    CHECK(objects);
    for (int n = 0; n < 2; n++) {
        pthread_t one;
        CHECK(pthread_create(&one, NULL, calls, objects) == 0);
    }
    for (int n = 0; n < FORKS; n++) {
        usleep(500);
        pid_t child = fork();
        if (child == 0) {
            alarm(HUNG_SECONDS);
            CHECK(terrace_objects_count(objects) == UINT64_MAX && errno == EPERM);
            terrace_pool *own = open_named("child");
            CHECK(own);
            CHECK(terrace_close(own) == 0);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0);
    }
    _exit(0);
}

/* The process that had the pool is killed, and a fork of it lives. */
static void a_fork_that_outlives_its_parent(void) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        alarm(CASE_SECONDS_MAX);
        CHECK(open_named("kept open"));
        pid_t child = fork();
        if (child == 0) {
            alarm(CASE_SECONDS_MAX);
            for (;;) pause();
        }
        CHECK(write(ready[1], &child, sizeof child) == sizeof child);
        for (;;) pause();
    }
    pid_t child = 0;
    CHECK(read(ready[0], &child, sizeof child) == sizeof child);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    REFUSED(!open_named("kept open"), EBUSY, "or a fork of it");
    kill(child, SIGKILL);
    /* It is no child of this process, and gone a moment later. */
    for (int n = 0; n < 500 && !pool; n++) {
        usleep(10000);
        pool = open_named("kept open");
    }
    CHECK(pool);
    CHECK(terrace_close(pool) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dir = argv[1];
    const struct named_case cases[] = {
        {"a fork beside calls", a_fork_beside_calls},
        {"a fork that outlives its parent", a_fork_that_outlives_its_parent},
    };
    return RUN_CASES(cases);
}
