// Memory of the program's own beside what is served: `nodes`, small allocations and a large array over which they are gone through; `arenas`, threads one after the other that allocate
// small blocks and free all but one of each page; `trimmed`, all but the last. Children that make many small allocations: `_Fork`, of a fork that the C library's handlers do not see; `full`,
// that has no memory of its parent's, for want of descriptors; `fork`, as usual. What the parent has is right after each of them.
#define _GNU_SOURCE

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

enum { MIB = 1 << 20, NODES = 270000, THREADS = 16, BLOCKS = 110000, BLOCK_BYTES = 112, BLOCKS_A_PAGE = 32 };

static uint64_t mixed(uint64_t n) {
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9;
    n = (n ^ n >> 27) * 0x94d049bb133111eb;
    return n ^ n >> 31;
}

static void nodes(void) {
    static uint64_t *all[NODES];
    size_t words = 320 * (size_t)MIB / sizeof(uint64_t);
    for (size_t n = 0; n < NODES; n++) {
        all[n] = malloc(104);
        MUST(all[n]);
        for (int at = 0; at < 13; at++)
            all[n][at] = n + at;
    }
    uint64_t *array = malloc(words * sizeof *array);
    MUST(array);
    for (size_t n = 0; n < words; n++)
        array[n] = mixed(n);
    for (uint64_t n = 0; n < 20000; n++) {
        size_t at = mixed(n) % words, of = mixed(n + 1) % NODES;
        MUST(array[at] == mixed(at) && all[of][12] == of + 12);
    }
    for (size_t n = 0; n < words; n += 100)
        MUST(array[n] == mixed(n));
    free(array);
}

static pthread_barrier_t all_there;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int keeps_last;

struct block {
    struct block *next;
    unsigned char filled[BLOCK_BYTES - sizeof(struct block *)];
};

static struct block *kept[THREADS];

static void *fills(void *number) {
    uintptr_t nth = (uintptr_t)number;
    pthread_barrier_wait(&all_there);
    pthread_mutex_lock(&turn);
    struct block *first = NULL, **end = &first;
    for (int n = 0; n < BLOCKS; n++) {
        struct block *block = malloc(sizeof *block);
        MUST(block);
        memset(block->filled, (int)nth, sizeof block->filled);
        block->next = NULL, *end = block, end = &block->next;
    }
    for (int n = 0; n < BLOCKS; n++) {
        struct block *block = first;
        first = block->next;
        if (keeps_last ? n != BLOCKS - 1 : n % BLOCKS_A_PAGE != 0)
            free(block);
        else
            block->next = kept[nth], kept[nth] = block;
    }
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&all_there);
    return NULL;
}

static void arenas(void) {
    pthread_t threads[THREADS];
    MUST(pthread_barrier_init(&all_there, NULL, THREADS + 1) == 0);
    // Large enough for the pool to be there from the start.
    char *large = malloc(2 * MIB);
    MUST(large);
    memset(large, 1, 2 * MIB);
    for (uintptr_t n = 0; n < THREADS; n++)
        MUST(pthread_create(&threads[n], NULL, fills, (void *)n) == 0);
    pthread_barrier_wait(&all_there);
    pthread_barrier_wait(&all_there);
    for (int n = 0; n < THREADS; n++)
        MUST(pthread_join(threads[n], NULL) == 0);
    for (uintptr_t nth = 0; nth < THREADS; nth++)
        for (struct block *block = kept[nth]; block; block = block->next)
            for (size_t at = 0; at < sizeof block->filled; at++)
                MUST(block->filled[at] == nth);
    free(large);
}

enum { SMALL = 150000 };

static void *small[SMALL / 10];

static void children(const char *how) {
    size_t words = 200 * (size_t)MIB / sizeof(uint64_t);
    uint64_t *array = malloc(words * sizeof *array);
    MUST(array);
    for (size_t n = 0; n < words; n++)
        array[n] = mixed(n);
    for (uint64_t n = 0; n < SMALL / 10; n++) {
        small[n] = malloc(96);
        MUST(small[n]);
        memset(small[n], 0xff, 96);
    }
    if (!strcmp(how, "full")) {
        struct rlimit few = {64, 64};
        MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
        while (open("/dev/null", O_RDONLY) >= 0)
            ;
    }
    pid_t pid = strcmp(how, "_Fork") ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    MUST(pid >= 0);
    if (pid == 0) {
        alarm(150);
        struct block *first = NULL;
        for (int n = 0; n < SMALL; n++) {
            struct block *block = malloc(sizeof *block);
            MUST(block);
            memset(block->filled, 7, sizeof block->filled);
            block->next = first, first = block;
        }
        for (uint64_t n = 0; !strcmp(how, "fork") && n < SMALL / 10; n++)
            free(small[n]);
        _exit(7);
    }
    for (size_t n = 0; n < words; n += 64)
        MUST(array[n] == mixed(n));
    int status;
    MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    for (size_t n = 0; n < words; n++)
        MUST(array[n] == mixed(n));
}

int main(int count, char **args) {
    MUST(count == 2);
    keeps_last = !strcmp(args[1], "trimmed");
    if (!strcmp(args[1], "nodes"))
        nodes();
    else if (!strcmp(args[1], "arenas") || keeps_last)
        arenas();
    else
        children(args[1]);
    puts("OK");
}
