/* What is closed while other threads are in calls on it: it can be opened again at once, and what those calls made ends with it. */
#include "terrace.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            fprintf(stderr, "line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, terrace_last_error()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { MIB = 1 << 20, ROUNDS = 20 };

static const char *dir;
static int wrong[4];

static terrace_pool *open_pool(const char *name, uint32_t flags) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    struct terrace_options o = {.size = sizeof o, .path = path, .cap_bytes = 32 * MIB, .ssd_bytes = 64 * MIB, .flags = flags};
    return terrace_open(&o);
}

/* Somewhere in what the other thread does. */
static void wait_us(int us) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < us);
}

static void *sync_all(void *region) {
    while (terrace_region_sync(region, NULL, 0) == 0) {}
    CHECK(errno == EBADF);
    return NULL;
}

/* A region, and then its pool, closed while another thread syncs it. */
static void syncs(void) {
    terrace_pool *pool = open_pool("kept", TERRACE_KEEP);
    CHECK(pool);
    for (int round = 0; round < ROUNDS; round++) {
        terrace_region *region = terrace_region_open(pool, "r", MIB, 0);
        CHECK(region);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, sync_all, region) == 0);
        wait_us(2000 + round * 100);
        if (round % 2 == 0) {
            CHECK(terrace_region_close(region) == 0);
            terrace_region *again = terrace_region_open(pool, "r", MIB, 0);
            wrong[0] += !again;
            CHECK(pthread_join(thread, NULL) == 0 && (!again || terrace_region_close(again) == 0));
        } else {
            CHECK(terrace_close(pool) == 0);
            pool = open_pool("kept", TERRACE_KEEP);
            wrong[1] += !pool;
            CHECK(pthread_join(thread, NULL) == 0);
            if (!pool) CHECK((pool = open_pool("kept", TERRACE_KEEP)));
        }
    }
    CHECK(terrace_close(pool) == 0);
}

static void *create(void *pool) {
    terrace_objects *last = NULL, *next;
    while ((next = terrace_objects_create(pool, 64, 1000))) last = next;
    CHECK(errno == EBADF);
    return last;
}

static void *allocate(void *pool) { return terrace_malloc(pool, 100); }

/* A pool closed while another thread makes something of it. */
static void makers(void) {
    for (int round = 0; round < ROUNDS * 5; round++) {
        terrace_pool *pool = open_pool("made", 0);
        CHECK(pool);
        int first = round % 5 != 0;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, first ? allocate : create, pool) == 0);
        wait_us(first ? 20 + round : 500 + round);
        CHECK(terrace_close(pool) == 0);
        pool = open_pool("made", 0);
        wrong[1] += !pool;
        void *made;
        CHECK(pthread_join(thread, &made) == 0);
        if (first) wrong[2] += made && terrace_owns(made);
        else wrong[3] += made && terrace_objects_count(made) != UINT64_MAX;
        /* It may stay open for good. */
        if (!pool) return;
        CHECK(terrace_close(pool) == 0);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dir = argv[1];
    syncs();
    makers();
    if (wrong[0] || wrong[1] || wrong[2] || wrong[3]) {
        fprintf(stderr, "not opened again: %d regions, %d pools; good after close: %d allocations, %d objects\n", wrong[0], wrong[1], wrong[2], wrong[3]);
        return 1;
    }
    printf("nothing outlived its pool\n");
    return 0;
}
