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
static void wrong_sizes_of_objects(void) {
    terrace_objects *sized = terrace_objects_create_sized(pool, 1000, 0);
    char *p = terrace_object_alloc_sized(sized, 10);
    CHECK(sized && p && terrace_usable_size(p) == 10);
    REFUSED(terrace_object_resize(p, 1001) == -1, EINVAL, "1 to 1000");
    REFUSED(terrace_object_resize(p, 0) == -1, EINVAL, "1 to 1000");
    REFUSED(terrace_object_resize(p, SIZE_MAX) == -1, EINVAL, "1 to 1000");
    REFUSED(terrace_object_resize(p + 1, 20) == -1, EINVAL, "not the address of an object");
    REFUSED(terrace_object_resize(NULL, 20) == -1, EINVAL, "not the address of an object");
    REFUSED(terrace_object_resize(neighbour, 20) == -1, EINVAL, "not the address of an object");
    REFUSED(terrace_object_resize(terrace_array_at(array, 1), 20) == -1, EINVAL, "not the address of an object");
    REFUSED(terrace_object_resize(object, 64) == -1, EINVAL, "whose objects have 128");
    REFUSED(terrace_object_alloc_sized(objects, 64) == NULL, EINVAL, "whose objects have 128");
    REFUSED(terrace_object_alloc_sized(sized, 0) == NULL, EINVAL, "1 to 1000");
    REFUSED(terrace_object_alloc_sized((terrace_objects *)pool, 8) == NULL, EINVAL, "a terrace_pool where");
    REFUSED(terrace_objects_create_sized(pool, 4097, 0) == NULL, EINVAL, "4097 bytes");
    REFUSED(terrace_objects_create_sized((terrace_pool *)array, 8, 0) == NULL, EINVAL, "a terrace_array where");
    CHECK(terrace_free(p) == 0);
    REFUSED(terrace_object_resize(p, 20) == -1, EINVAL, "freed already");
    REFUSED(terrace_usable_size(p) == 0, EINVAL, "freed already");
    REFUSED(terrace_free(p) == -1, EINVAL, "freed already");
    CHECK(terrace_objects_destroy(sized) == 0);
    REFUSED(terrace_object_alloc_sized(sized, 8) == NULL, EBADF, "use after close");
    REFUSED(terrace_object_resize(p, 8) == -1, EINVAL, "not the address of an object");
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
    o.flags = 2;
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
    REFUSED(terrace_objects_create_sized(pool, 100, 1ull << 40) == NULL, EINVAL, "pages of a region");
    REFUSED(terrace_objects_create_sized(pool, 100, UINT64_MAX) == NULL, EINVAL, "pages of a region");
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
/* In a pool that has nothing yet. */
static void more_addresses_than_the_cap_has_dram_for(void) {
    char path[512];
    snprintf(path, sizeof path, "%s-addresses", dir);
    struct terrace_options o = options();
    o.path = path;
    terrace_pool *fresh = terrace_open(&o);
    CHECK(fresh);
    REFUSED(terrace_objects_create(fresh, 64, 1 << 30) == NULL, ENOMEM, "no DRAM for");
    terrace_objects *few = terrace_objects_create(fresh, 64, 1000);
    CHECK(few);
    for (int n = 0; n < 1000; n++) {
        char *one = terrace_object_alloc(few);
        CHECK(one);
        memset(one, n, 64);
    }
    CHECK(terrace_close(fresh) == 0);
}
static void a_fork_that_goes_on(void) {
    pid_t child = fork();
    if (child == 0) {
        REFUSED(terrace_malloc(pool, 10) == NULL, EPERM, "fork");
        REFUSED(terrace_free(neighbour) == -1, EPERM, "fork");
        REFUSED(terrace_close(pool) == -1, EPERM, "fork");
        REFUSED(terrace_object_alloc(objects) == NULL, EPERM, "fork");
        REFUSED(terrace_array_at(array, 0) == NULL, EPERM, "fork");
        REFUSED(terrace_table_count(table) == UINT64_MAX, EPERM, "fork");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Each call that takes a handle, with one that is closed, one of another kind, and one that is none. */
static void every_call_with_a_wrong_handle(void) {
    uint64_t id = 0;
    char bytes[8] = {0};
    unsigned char found;
    struct terrace_stats stats;
    terrace_pool *pools[] = {(terrace_pool *)array, (terrace_pool *)bytes, NULL};
    terrace_objects *sets[] = {(terrace_objects *)pool, (terrace_objects *)bytes, NULL};
    terrace_array *arrays[] = {(terrace_array *)pool, (terrace_array *)bytes, NULL};
    terrace_table *tables[] = {(terrace_table *)pool, (terrace_table *)bytes, NULL};
    for (int i = 0; i < 3; i++) {
        REFUSED(terrace_calloc(pools[i], 1, 1) == NULL, EINVAL, "terrace_pool");
        REFUSED(terrace_aligned_alloc(pools[i], 16, 1) == NULL, EINVAL, "terrace_pool");
        REFUSED(terrace_realloc(pools[i], NULL, 1) == NULL, EINVAL, "terrace_pool");
        REFUSED(terrace_objects_create(pools[i], 8, 8) == NULL, EINVAL, "terrace_pool");
        REFUSED(terrace_array_create(pools[i], 8, 8, 8) == NULL, EINVAL, "terrace_pool");
        REFUSED(terrace_table_create(pools[i], 8) == NULL, EINVAL, "terrace_pool");
        REFUSED(terrace_get_stats(pools[i], &stats, sizeof stats) == -1, EINVAL, "terrace_pool");
        REFUSED(terrace_object_alloc(sets[i]) == NULL, EINVAL, "terrace_objects");
        REFUSED(terrace_objects_count(sets[i]) == UINT64_MAX, EINVAL, "terrace_objects");
        REFUSED(terrace_objects_destroy(sets[i]) == -1, EINVAL, "terrace_objects");
        REFUSED(terrace_array_at(arrays[i], 0) == NULL, EINVAL, "terrace_array");
        REFUSED(terrace_array_len(arrays[i]) == UINT64_MAX, EINVAL, "terrace_array");
        REFUSED(terrace_array_resize(arrays[i], 1) == -1, EINVAL, "terrace_array");
        REFUSED(terrace_array_clear(arrays[i], 0) == -1, EINVAL, "terrace_array");
        REFUSED(terrace_array_destroy(arrays[i]) == -1, EINVAL, "terrace_array");
        REFUSED(terrace_insert(tables[i], bytes, &id) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_get(tables[i], 0, bytes) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_get_many(tables[i], &id, 1, bytes, &found) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_put(tables[i], 0, bytes) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_update(tables[i], 0, NULL, NULL) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_remove(tables[i], 0) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_prefetch(tables[i], &id, 1) == -1, EINVAL, "terrace_table");
        REFUSED(terrace_table_count(tables[i]) == UINT64_MAX, EINVAL, "terrace_table");
        REFUSED(terrace_table_destroy(tables[i]) == -1, EINVAL, "terrace_table");
    }
    CHECK(terrace_table_destroy(table) == 0 && terrace_array_destroy(array) == 0 && terrace_objects_count(objects) == 1);
    REFUSED(terrace_table_destroy(table) == -1, EBADF, "use after close");
    REFUSED(terrace_insert(table, bytes, &id) == -1, EBADF, "use after close");
    REFUSED(terrace_get(table, 0, bytes) == -1, EBADF, "use after close");
    REFUSED(terrace_get_many(table, &id, 1, bytes, &found) == -1, EBADF, "use after close");
    REFUSED(terrace_put(table, 0, bytes) == -1, EBADF, "use after close");
    REFUSED(terrace_update(table, 0, NULL, NULL) == -1, EBADF, "use after close");
    REFUSED(terrace_remove(table, 0) == -1, EBADF, "use after close");
    REFUSED(terrace_prefetch(table, &id, 1) == -1, EBADF, "use after close");
    REFUSED(terrace_array_len(array) == UINT64_MAX, EBADF, "use after close");
    REFUSED(terrace_array_resize(array, 1) == -1, EBADF, "use after close");
    REFUSED(terrace_array_clear(array, 0) == -1, EBADF, "use after close");
    CHECK(terrace_owns((void *)array) == 0 && terrace_owns(NULL) == 0 && terrace_owns(bytes) == 0);
}
static void numbers_out_of_bounds(void) {
    uint64_t ids[2] = {1, 1ull << 40};
    char bytes[16];
    unsigned char found[2];
    REFUSED(terrace_array_resize(array, 101) == -1, ENOMEM, "");
    REFUSED(terrace_array_resize(array, UINT64_MAX) == -1, ENOMEM, "");
    REFUSED(terrace_calloc(pool, SIZE_MAX, 2) == NULL, ENOMEM, "more than there are addresses");
    REFUSED(terrace_calloc(pool, 1, SIZE_MAX) == NULL, ENOMEM, "");
    REFUSED(terrace_put(table, 7, bytes) == -1, ENOENT, "object 7 of table");
    REFUSED(terrace_put(table, 7, NULL) == -1, EINVAL, "NULL");
    REFUSED(terrace_update(table, 7, NULL, NULL) == -1, EINVAL, "change is NULL");
    REFUSED(terrace_remove(table, 7) == -1, ENOENT, "");
    REFUSED(terrace_remove(table, UINT64_MAX) == -1, EINVAL, "ids are below");
    REFUSED(terrace_get_many(table, ids, 2, bytes, found) == -1, EINVAL, "ids are below");
    REFUSED(terrace_get_many(table, NULL, 2, bytes, found) == -1, EINVAL, "NULL");
    REFUSED(terrace_get_many(table, ids, 2, NULL, found) == -1, EINVAL, "NULL");
    REFUSED(terrace_prefetch(table, NULL, 2) == -1, EINVAL, "NULL");
    REFUSED(terrace_insert(table, bytes, NULL) == -1, EINVAL, "NULL");
}

/* A pool that is kept, beside the other, with a region of 8 KiB that may become 1 MiB. */
static terrace_pool *kept;
static char kept_dir[4096];
static terrace_region *open_region(void) {
    struct terrace_options o = options();
    snprintf(kept_dir, sizeof kept_dir, "%s-kept", dir);
    o.path = kept_dir;
    o.flags = TERRACE_KEEP;
    CHECK((kept = terrace_open(&o)));
    terrace_region *region = terrace_region_open(kept, "r", 8192, 1 << 20);
    CHECK(region);
    return region;
}
static void regions_that_are_none(void) {
    terrace_region *region = open_region(), *none = (terrace_region *)array;
    struct terrace_region_info info;
    REFUSED(terrace_region_open(pool, "r", 1, 0) == NULL, EINVAL, "TERRACE_KEEP");
    REFUSED(terrace_region_remove(pool, "r") == -1, EINVAL, "TERRACE_KEEP");
    REFUSED(terrace_region_list(pool, 0, &info, sizeof info) == -1, EINVAL, "TERRACE_KEEP");
    REFUSED(terrace_region_open(NULL, "r", 1, 0) == NULL, EINVAL, "NULL");
    REFUSED(terrace_region_open((terrace_pool *)region, "r", 1, 0) == NULL, EINVAL, "a terrace_region where a terrace_pool");
    REFUSED(terrace_region_base(none) == NULL, EINVAL, "a terrace_array where a terrace_region");
    REFUSED(terrace_region_bytes(none) == UINT64_MAX, EINVAL, "a terrace_array where");
    REFUSED(terrace_region_grow(none, 1) == -1, EINVAL, "a terrace_array where");
    REFUSED(terrace_region_root(none) == NULL, EINVAL, "a terrace_array where");
    REFUSED(terrace_region_set_root(none, NULL) == -1, EINVAL, "a terrace_array where");
    REFUSED(terrace_region_sync(none, NULL, 0) == -1, EINVAL, "a terrace_array where");
    REFUSED(terrace_region_close(none) == -1, EINVAL, "a terrace_array where");
    REFUSED(terrace_region_sync(NULL, NULL, 0) == -1, EINVAL, "NULL");
    REFUSED(terrace_region_open(kept, "r", 1, 0) == NULL, EBUSY, "is open");
    REFUSED(terrace_region_remove(kept, "r") == -1, EBUSY, "is open");
    REFUSED(terrace_region_remove(kept, "s") == -1, ENOENT, "no region");
    REFUSED(terrace_region_open(kept, NULL, 1, 0) == NULL, EINVAL, "NULL");
    REFUSED(terrace_region_remove(kept, NULL) == -1, EINVAL, "NULL");
    REFUSED(terrace_region_open(kept, "", 1, 0) == NULL, EINVAL, "1 to 255 bytes");
    REFUSED(terrace_region_open(kept, "\xff", 1, 0) == NULL, EINVAL, "UTF-8");
    char name[300];
    memset(name, 'x', sizeof name);
    name[256] = 0;
    REFUSED(terrace_region_open(kept, name, 1, 0) == NULL, EINVAL, "1 to 255 bytes");
    name[255] = 0;
    REFUSED(terrace_region_open(kept, name, 0, 0) == NULL, EINVAL, "0 asked");
    REFUSED(terrace_region_open(kept, name, UINT64_MAX, 0) == NULL, EINVAL, "bytes of a region");
    REFUSED(terrace_region_open(kept, name, 60 << 20, 0) == NULL, ENOMEM, "SSD is full");
    REFUSED(terrace_region_open(kept, name, 4096, 1ull << 43) == NULL, ENOMEM, "addresses");
    REFUSED(terrace_region_list(kept, 0, NULL, 0) == -1, EINVAL, "NULL");
    CHECK(terrace_close(kept) == 0);
}
static void numbers_a_region_does_not_have(void) {
    terrace_region *region = open_region();
    char *base = terrace_region_base(region);
    struct terrace_range before = {base - 4096, 4096}, behind = {base + 8192, 1}, across = {base, 8193}, huge = {base + 1, SIZE_MAX};
    REFUSED(terrace_region_sync(region, &before, 1) == -1, EINVAL, "a byte of the region");
    REFUSED(terrace_region_sync(region, &behind, 1) == -1, EINVAL, "a byte of the region");
    REFUSED(terrace_region_sync(region, &across, 1) == -1, EINVAL, "a byte of the region");
    REFUSED(terrace_region_sync(region, &huge, 1) == -1, EINVAL, "a byte of the region");
    REFUSED(terrace_region_sync(region, NULL, 1) == -1, EINVAL, "NULL");
    REFUSED(terrace_region_sync(region, &across, SIZE_MAX) == -1, EINVAL, "4096 are allowed");
    REFUSED(terrace_region_set_root(region, base - 1) == -1, EINVAL, "the root of a region");
    REFUSED(terrace_region_set_root(region, base + 8192) == -1, EINVAL, "the root of a region");
    REFUSED(terrace_region_set_root(region, &before) == -1, EINVAL, "the root of a region");
    REFUSED(terrace_region_grow(region, 4096) == -1, EINVAL, "bytes of a region");
    REFUSED(terrace_region_grow(region, (1 << 20) + 1) == -1, EINVAL, "bytes of a region");
    REFUSED(terrace_free(base) == -1, EINVAL, "memory of a region");
    REFUSED(terrace_realloc(pool, base, 10) == NULL, EINVAL, "not the start of an allocation");
    REFUSED(terrace_usable_size(base) == 0, EINVAL, "neither an allocation nor an object");
    REFUSED(terrace_object_resize(base, 8) == -1, EINVAL, "not the address of an object");
    CHECK(terrace_close(kept) == 0);
}
static void what_a_kept_pool_has_not(void) {
    open_region();
    REFUSED(terrace_malloc(kept, 10) == NULL, EINVAL, "named regions only");
    REFUSED(terrace_objects_create(kept, 8, 10) == NULL, EINVAL, "named regions only");
    REFUSED(terrace_array_create(kept, 8, 10, 0) == NULL, EINVAL, "named regions only");
    REFUSED(terrace_table_create(kept, 8) == NULL, EINVAL, "named regions only");
    CHECK(terrace_close(kept) == 0);
    struct terrace_options o = options();
    o.path = kept_dir;
    REFUSED(terrace_open(&o) == NULL, EINVAL, "holds durable objects");
}
static void a_region_after_close(void) {
    terrace_region *region = open_region();
    char *base = terrace_region_base(region);
    CHECK(terrace_region_close(region) == 0);
    REFUSED(terrace_region_close(region) == -1, EBADF, "use after close");
    REFUSED(terrace_region_base(region) == NULL, EBADF, "use after close");
    REFUSED(terrace_region_sync(region, NULL, 0) == -1, EBADF, "use after close");
    CHECK((region = terrace_region_open(kept, "r", 1, 0)) && terrace_region_base(region) == base);
    CHECK(terrace_close(kept) == 0);
    REFUSED(terrace_region_grow(region, 1 << 20) == -1, EBADF, "use after close");
    REFUSED(terrace_region_open(kept, "r", 1, 0) == NULL, EBADF, "use after close");
    REFUSED(terrace_region_remove(kept, "r") == -1, EBADF, "use after close");
    REFUSED(terrace_free(base) == -1, EINVAL, "not memory of a pool");
}
static void touching_a_region_after_close(void) {
    terrace_region *region = open_region();
    volatile char *base = terrace_region_base(region);
    base[0] = 1;
    CHECK(terrace_region_sync(region, NULL, 0) == 0 && terrace_region_close(region) == 0);
    base[0] = 2;
}
static void touching_what_is_behind_a_region(void) {
    volatile char *base = terrace_region_base(open_region());
    base[8191] = 1;
    base[8192] = 1;
}
static void more_than_a_sync_takes(void) {
    terrace_region *region = open_region();
    CHECK(terrace_region_grow(region, 1 << 20) == 0);
    static struct terrace_range ranges[4097];
    char *base = terrace_region_base(region);
    for (int i = 0; i < 4097; i++) ranges[i] = (struct terrace_range){base + i * 7, 3};
    REFUSED(terrace_region_sync(region, ranges, 4097) == -1, EINVAL, "4096 are allowed");
    base[0] = 9;
    CHECK(terrace_region_sync(region, ranges, 4096) == 0);
    CHECK(terrace_close(kept) == 0);
    CHECK(*(char *)terrace_region_base(open_region()) == 9);
    CHECK(terrace_close(kept) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
    int killed;       /* a signal is expected */
    const char *said; /* and these words on stderr */
} cases[] = {
    {"double free", double_free, 0, NULL},
    {"double free of an object", double_free_of_an_object, 0, NULL},
    {"wrong sizes of objects", wrong_sizes_of_objects, 0, NULL},
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
    {"more addresses than the cap has DRAM for", more_addresses_than_the_cap_has_dram_for, 0, NULL},
    {"a fork that goes on", a_fork_that_goes_on, 0, NULL},
    {"every call with a wrong handle", every_call_with_a_wrong_handle, 0, NULL},
    {"numbers out of bounds", numbers_out_of_bounds, 0, NULL},
    {"regions that are none", regions_that_are_none, 0, NULL},
    {"numbers a region does not have", numbers_a_region_does_not_have, 0, NULL},
    {"what a kept pool has not", what_a_kept_pool_has_not, 0, NULL},
    {"a region after close", a_region_after_close, 0, NULL},
    {"touching a region after close", touching_a_region_after_close, 1, NULL},
    {"touching what is behind a region", touching_what_is_behind_a_region, 1, "grow it first"},
    {"more than a sync takes", more_than_a_sync_takes, 0, NULL},
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
