// Many small allocations: lists of nodes in several threads, several times the memory there is; each second one is freed and made anew, by another thread.

#include <dlfcn.h>
#include <pthread.h>
#include <pwd.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void *fails(void *unused) {
    MUST(!dlopen("/there/is/no/such/library", RTLD_NOW) && strstr(dlerror(), "no/such/library"));
    return unused;
}

// What the C library says of malloc's edges holds beyond the bound, too.
static void edges(void) {
    all(fails);
    void *volatile none = malloc(0);
    MUST(none);
    free(none);
    void *volatile gone = malloc(40);
    MUST(realloc(gone, 0) == NULL);
    char *text = strdup("a text"), *start = strndup("a text", 3), *empty = strdup("");
    MUST(!strcmp(text, "a text") && !strcmp(start, "a t") && !*empty);
    free(text), free(start), free(empty);
    volatile size_t huge = SIZE_MAX / 2;
    MUST(malloc(huge) == NULL && calloc(huge, 3) == NULL);
}

static void nothing(void) {}

static void *reads(void *unused) {
    check(lists[1], 1);
    return unused;
}

static pthread_key_t keys[40];
static sem_t begun, over;

static void *waits(void *unused) {
    // More than a thread has room for without an allocation.
    for (int n = 0; n < 40; n++)
        MUST(pthread_setspecific(keys[n], keys) == 0);
    MUST(sem_post(&begun) == 0 && sem_wait(&over) == 0);
    return unused;
}

// A fork of a process that has threads, keys and users' names: the C library puts its own tables right in the child before that has its memory.
static void forks(void) {
    for (int n = 0; n < 40; n++)
        MUST(pthread_key_create(&keys[n], NULL) == 0);
    for (int n = 0; n < 200; n++)
        MUST(pthread_atfork(nothing, nothing, nothing) == 0);
    MUST(sem_init(&begun, 0, 0) == 0 && sem_init(&over, 0, 0) == 0 && getpwnam("root"));
    // Where there is a library for it, it has thread-local storage.
    MUST(!getpwnam("nobody-has-this-name"));
    pthread_t waiting;
    MUST(pthread_create(&waiting, NULL, waits, NULL) == 0 && sem_wait(&begun) == 0);
    for (int n = 0; n < 3; n++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            check(lists[0], 0);
            pthread_t thread;
            MUST(pthread_create(&thread, NULL, reads, NULL) == 0 && pthread_join(thread, NULL) == 0);
            struct node *own = node(1, NULL);
            free(own);
            _exit(7);
        }
        int status;
        MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    MUST(sem_post(&over) == 0 && pthread_join(waiting, NULL) == 0);
}

int main(int count, char **args) {
    (void)args;
    all(builds);
    // While the bound is passed.
    edges();
    forks();
    all(changes);
    if (count > 1)
        all(frees);
    puts("OK");
}
