// Many small allocations: lists of nodes in several threads, several times the memory there is; each second one is freed and made anew, by another thread.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

enum { THREADS = 4, NODES = 400000 };

struct node {
    struct node *next;
    uint64_t value;
    unsigned char filled[32];
};

static struct node *lists[THREADS];

static struct node *node(uint64_t value, struct node *next) {
    struct node *made = value % 3 ? malloc(sizeof *made) : calloc(1, sizeof *made);
    MUST(made);
    made->next = next, made->value = value;
    memset(made->filled, (int)(value * 7), sizeof made->filled);
    return made;
}

static void check(const struct node *list, uint64_t nth) {
    for (uint64_t n = NODES; n-- > 0; list = list->next) {
        MUST(list && list->value == nth * NODES + n);
        for (size_t at = 0; at < sizeof list->filled; at++)
            MUST(list->filled[at] == (unsigned char)(list->value * 7));
    }
    MUST(!list);
}

static void *builds(void *number) {
    uint64_t nth = (uintptr_t)number;
    for (uint64_t n = 0; n < NODES; n++)
        lists[nth] = node(nth * NODES + n, lists[nth]);
    check(lists[nth], nth);
    return NULL;
}

// In the list of another thread; some change their size on the way, which moves them.
static void *changes(void *number) {
    uint64_t nth = ((uintptr_t)number + 1) % THREADS;
    int skips = 0;
    for (struct node **at = &lists[nth]; *at; at = &(*at)->next) {
        if (skips++ % 2)
            continue;
        struct node *old = *at;
        if (old->value % 5 == 0) {
            *at = realloc(old, 2000);
            MUST(*at);
            *at = realloc(*at, sizeof *old);
            MUST(*at);
        } else {
            *at = node(old->value, old->next);
            free(old);
        }
    }
    check(lists[nth], nth);
    return NULL;
}

static void *frees(void *number) {
    uint64_t nth = (uintptr_t)number;
    while (lists[nth]) {
        struct node *next = lists[nth]->next;
        free(lists[nth]);
        lists[nth] = next;
    }
    return NULL;
}

static void all(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++)
        MUST(pthread_create(&threads[n], NULL, work, (void *)n) == 0);
    for (int n = 0; n < THREADS; n++)
        MUST(pthread_join(threads[n], NULL) == 0);
}

int main(int count, char **args) {
    (void)args;
    all(builds);
    all(changes);
    if (count > 1)
        all(frees);
    puts("OK");
}
