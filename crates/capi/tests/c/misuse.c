/* Each misuse of the library, each in a process of its own: it ends in an error that says what was wrong, or in a signal, and what was allocated beside it holds what it
 * held. Without a second argument it starts itself once for each. */
#include "terrace.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static terrace_pool *pool;
static terrace_objects *objects;
static terrace_array *array;
static terrace_table *table;
static char *neighbour, *object;
static const char *dir;

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            printf("line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, terrace_last_error());          \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)
#define REFUSED(call, number, text) CHECK((errno = 0, (call)) && errno == (number) && strstr(terrace_last_error(), text))

static struct terrace_options options(void) {
    struct terrace_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.path = dir;
    o.cap_bytes = 32 << 20;
    o.ssd_bytes = 64 << 20;
    return o;
}

static void double_free(void) {
    char *p = terrace_malloc(pool, 100);
    CHECK(terrace_free(p) == 0);
    REFUSED(terrace_free(p) == -1, EINVAL, "double free");
    char *q = terrace_malloc(pool, 1 << 20);
    CHECK(terrace_free(q) == 0);
    REFUSED(terrace_free(q) == -1, EINVAL, "not the start of an allocation");
    REFUSED(terrace_realloc(pool, p, 10) == NULL, EINVAL, "double free");
}
static void double_free_of_an_object(void) {
    char *p = terrace_object_alloc(objects);
    CHECK(terrace_free(p) == 0);
    REFUSED(terrace_free(p) == -1, EINVAL, "freed already");
    CHECK(terrace_objects_count(objects) == 1);
}
static void foreign_pointers(void) {
    char *mine = malloc(100), stack;
    REFUSED(terrace_free(mine) == -1, EINVAL, "not memory of a pool");
    REFUSED(terrace_free(&stack) == -1, EINVAL, "not memory of a pool");
    REFUSED(terrace_free((void *)1) == -1, EINVAL, "not memory of a pool");
    REFUSED(terrace_free((void *)UINTPTR_MAX) == -1, EINVAL, "not memory of a pool");
    REFUSED(terrace_realloc(pool, mine, 10) == NULL, EINVAL, "not the start of an allocation");
    REFUSED(terrace_usable_size(mine) == 0, EINVAL, "not memory of a pool");
    free(mine);
}
static void pointers_into_the_middle(void) {
    char *p = terrace_malloc(pool, 3000), *run = terrace_malloc(pool, 1 << 20);
    REFUSED(terrace_free(p + 16) == -1, EINVAL, "not the start of an allocation");
    REFUSED(terrace_free(run + 4096) == -1, EINVAL, "not the start of an allocation");
    REFUSED(terrace_free(object + 1) == -1, EINVAL, "not the address of an object");
    REFUSED(terrace_free(terrace_array_at(array, 3)) == -1, EINVAL, "terrace_array_clear");
    CHECK(terrace_free(p) == 0 && terrace_free(run) == 0);
}
static void handles_that_are_none(void) {
    char *mine = malloc(100);
    memset(mine, 255, 100);
    REFUSED(terrace_malloc(NULL, 1) == NULL, EINVAL, "NULL");
    REFUSED(terrace_malloc((terrace_pool *)mine, 1) == NULL, EINVAL, "no terrace_pool");
    REFUSED(terrace_malloc((terrace_pool *)1, 1) == NULL, EINVAL, "no terrace_pool");
    REFUSED(terrace_malloc((terrace_pool *)UINTPTR_MAX, 1) == NULL, EINVAL, "no terrace_pool");
    REFUSED(terrace_malloc((terrace_pool *)array, 1) == NULL, EINVAL, "a terrace_array where a terrace_pool");
    REFUSED(terrace_close((terrace_pool *)table) == -1, EINVAL, "a terrace_table where a terrace_pool");
    REFUSED(terrace_array_at((terrace_array *)objects, 0) == NULL, EINVAL, "a terrace_objects where");
    free(mine);
}
static void handles_after_close(void) {
    terrace_array *closed = terrace_array_create(pool, 10, 10, 10);
    CHECK(terrace_array_destroy(closed) == 0);
    CHECK(terrace_array_create(pool, 10, 10, 10) != closed);
    REFUSED(terrace_array_at(closed, 0) == NULL, EBADF, "use after close");
    REFUSED(terrace_array_destroy(closed) == -1, EBADF, "use after close");
}
static void everything_after_close(void) {
    CHECK(terrace_close(pool) == 0);
    REFUSED(terrace_close(pool) == -1, EBADF, "use after close");
    REFUSED(terrace_malloc(pool, 1) == NULL, EBADF, "use after close");
    REFUSED(terrace_object_alloc(objects) == NULL, EBADF, "use after close");
    REFUSED(terrace_objects_destroy(objects) == -1, EBADF, "use after close");
    REFUSED(terrace_array_at(array, 0) == NULL, EBADF, "use after close");
    REFUSED(terrace_table_count(table) == UINT64_MAX, EBADF, "use after close");
    REFUSED(terrace_free(neighbour) == -1, EINVAL, "not memory of a pool");
    REFUSED(terrace_free(object) == -1, EINVAL, "not memory of a pool");
    struct terrace_options o = options();
    CHECK((pool = terrace_open(&o)) && terrace_malloc(pool, 10));
    exit(0);
}
static void touching_memory_after_close(void) {
    CHECK(terrace_close(pool) == 0);
    *(volatile char *)neighbour = 1;
}
static void touching_an_object_after_close(void) {
    CHECK(terrace_close(pool) == 0);
    *(volatile char *)object = 1;
}
static void touching_an_object_after_its_free(void) {
    char *p = terrace_object_alloc(objects);
    *p = 1;
    CHECK(terrace_free(p) == 0);
    *(volatile char *)p = 2;
}
static void options_out_of_bounds(void) {
    struct terrace_options o = options();
    REFUSED(terrace_open(NULL) == NULL, EINVAL, "NULL");
    o.size = 0;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "options.size");
    o.size = 4000;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "options.size");
    o = options();
    o.flags = 1;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "options.flags");
    o = options();
    o.path = NULL;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "options.path");
    o = options();
    REFUSED(terrace_open(&o) == NULL, EBUSY, "in use");
    char other[4096];
    snprintf(other, sizeof other, "%s-other", dir);
    o.path = other;
    o.cap_bytes = 1000;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "");
    o = options();
    o.path = other;
    o.fault_threads = 1000;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "handler threads");
    o.fault_threads = 0;
    o.buffer_pages = 3;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "pages materialised");
}
static void sizes_out_of_bounds(void) {
    REFUSED(terrace_objects_create(pool, 0, 10) == NULL, EINVAL, "0 bytes");
    REFUSED(terrace_objects_create(pool, 5000, 10) == NULL, EINVAL, "5000 bytes");
    REFUSED(terrace_objects_create(pool, (size_t)1 << 32, 10) == NULL, EINVAL, "bytes");
    REFUSED(terrace_objects_create(pool, 8, UINT64_MAX) == NULL, EINVAL, "pages of a region");
    REFUSED(terrace_table_create(pool, 1 << 20) == NULL, EINVAL, "bytes");
    REFUSED(terrace_array_at(array, 100) == NULL, EINVAL, "object 100 of an array of 100");
    REFUSED(terrace_array_at(array, UINT64_MAX) == NULL, EINVAL, "of an array of 100");
    REFUSED(terrace_array_clear(array, 100) == -1, EINVAL, "of an array of 100");
    REFUSED(terrace_aligned_alloc(pool, 24, 10) == NULL, EINVAL, "alignment of 24");
    REFUSED(terrace_aligned_alloc(pool, 0, 10) == NULL, EINVAL, "alignment of 0");
    REFUSED(terrace_get(table, 12345, &dir) == -1, ENOENT, "no object 12345");
    REFUSED(terrace_get(table, UINT64_MAX, &dir) == -1, EINVAL, "ids are below");
    REFUSED(terrace_get(table, 0, NULL) == -1, EINVAL, "NULL");
    REFUSED(terrace_insert(table, NULL, NULL) == -1, EINVAL, "NULL");
    REFUSED(terrace_get_stats(pool, NULL, 8) == -1, EINVAL, "NULL");
}
static void more_than_the_ssd_takes(void) {
    uint64_t allocated = 0;
    while (terrace_object_alloc(objects)) allocated++;
    CHECK(errno == ENOMEM && strstr(terrace_last_error(), "SSD is full") && allocated > 100000);
    CHECK(terrace_malloc(pool, 1 << 20) == NULL && errno == ENOMEM);
    CHECK(terrace_objects_destroy(objects) == 0);
    object = NULL;
    CHECK(terrace_malloc(pool, 1 << 20));
}
static void a_fork_that_goes_on(void) {
    pid_t child = fork();
    if (child == 0) {
        REFUSED(terrace_malloc(pool, 10) == NULL, EPERM, "fork");
        REFUSED(terrace_free(neighbour) == -1, EPERM, "fork");
        REFUSED(terrace_close(pool) == -1, EPERM, "fork");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
    int killed;       /* a signal is expected */
    const char *said; /* and these words on stderr */
} cases[] = {
    {"double free", double_free, 0, NULL},
    {"double free of an object", double_free_of_an_object, 0, NULL},
    {"foreign pointers", foreign_pointers, 0, NULL},
    {"pointers into the middle", pointers_into_the_middle, 0, NULL},
    {"handles that are none", handles_that_are_none, 0, NULL},
    {"handles after close", handles_after_close, 0, NULL},
    {"everything after close", everything_after_close, 0, NULL},
    {"touching memory after close", touching_memory_after_close, 1, NULL},
    {"touching an object after close", touching_an_object_after_close, 1, NULL},
    {"touching an object after its free", touching_an_object_after_its_free, 1, "use after free"},
    {"options out of bounds", options_out_of_bounds, 0, NULL},
    {"sizes out of bounds", sizes_out_of_bounds, 0, NULL},
    {"more than the SSD takes", more_than_the_ssd_takes, 0, NULL},
    {"a fork that goes on", a_fork_that_goes_on, 0, NULL},
};
enum { CASES = sizeof cases / sizeof *cases };

static int one(int which) {
    struct terrace_options o = options();
    CHECK((pool = terrace_open(&o)));
    CHECK((objects = terrace_objects_create(pool, 128, 0)) && (object = terrace_object_alloc(objects)));
    CHECK((array = terrace_array_create(pool, 100, 64, 0)) && (table = terrace_table_create(pool, 8)));
    CHECK((neighbour = terrace_malloc(pool, 100)));
    memset(neighbour, 'n', 100);
    memset(object, 'o', 128);
    cases[which].run();
    for (int i = 0; i < 100; i++) CHECK(neighbour[i] == 'n');
    for (int i = 0; object && i < 128; i++) CHECK(object[i] == 'o');
    CHECK(terrace_close(pool) == 0);
    return 0;
}

/* Starts this program for a case: true if it ended as it should. */
static int judge(char *self, char *base, int which) {
    char place[4096], number[16], errors[4096], said[4096] = {0};
    snprintf(place, sizeof place, "%s/pool%d", base, which);
    snprintf(errors, sizeof errors, "%s/stderr%d", base, which);
    snprintf(number, sizeof number, "%d", which);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int to = open(errors, O_CREAT | O_TRUNC | O_RDWR, 0600);
        dup2(to, 2);
        execl(self, self, place, number, (char *)NULL);
        _exit(127);
    }
    int status = 0, from = 0;
    waitpid(child, &status, 0);
    from = open(errors, O_RDONLY);
    if (read(from, said, sizeof said - 1) < 0) said[0] = 0;
    close(from);
    int killed = WIFSIGNALED(status) && (WTERMSIG(status) == SIGBUS || WTERMSIG(status) == SIGSEGV);
    int good = cases[which].killed ? killed : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    good = good && (!cases[which].said || strstr(said, cases[which].said));
    printf("%s: %s (status %#x)\n", cases[which].name, good ? "as it should be" : "WRONG", (unsigned)status);
    if (!good) printf("%s", said);
    return good;
}

int main(int argc, char **argv) {
    dir = argv[1];
    if (argc == 3) return one(atoi(argv[2]));
    int wrong = 0;
    for (int which = 0; which < CASES; which++) wrong += !judge(argv[0], argv[1], which);
    if (!wrong) printf("%d misuses, all as they should be\n", (int)CASES);
    return wrong != 0;
}
