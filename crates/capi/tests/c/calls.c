/* Every call once at least, with what it promises; memory beside malloc's, several threads, many times the page buffer. */
#include "terrace.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            fprintf(stderr, "line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, terrace_last_error()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { OBJECTS = 100000, WORDS = 16, THREADS = 4, LEN = 50000, RECORDS = 20000 };

static terrace_pool *pool;

static terrace_pool *open_pool(const char *dir, uint32_t fault_threads) {
    struct terrace_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.path = dir;
    o.cap_bytes = 32 << 20;
    o.ssd_bytes = 128 << 20;
    o.buffer_pages = 512;
    o.fault_threads = fault_threads;
    return terrace_open(&o);
}

static void objects(void) {
    terrace_objects *all = terrace_objects_create(pool, WORDS * 8, OBJECTS + 10);
    uint64_t **objects = malloc(OBJECTS * sizeof *objects);
    CHECK(all && objects);
    for (uint64_t i = 0; i < OBJECTS; i++) {
        CHECK((objects[i] = terrace_object_alloc(all)));
        CHECK((uintptr_t)objects[i] % 64 == 0 && objects[i][0] == 0 && objects[i][WORDS - 1] == 0);
        for (int w = 0; w < WORDS; w++) objects[i][w] = i * 100 + w;
    }
    CHECK(terrace_objects_count(all) == OBJECTS);
    CHECK(terrace_owns(objects[7]) && !terrace_owns(objects) && !terrace_owns(&pool));
    for (uint64_t i = 0; i < OBJECTS; i++) CHECK(objects[i][0] == i * 100 && objects[i][WORDS - 1] == i * 100 + WORDS - 1);
    for (uint64_t i = 0; i < OBJECTS; i += 2) CHECK(terrace_free(objects[i]) == 0);
    CHECK(terrace_objects_count(all) == OBJECTS / 2);
    for (uint64_t i = 0; i < OBJECTS; i += 2) {
        CHECK((objects[i] = terrace_object_alloc(all)));
        CHECK(objects[i][3] == 0);
    }
    for (uint64_t i = 1; i < OBJECTS; i += 2) CHECK(objects[i][5] == i * 100 + 5);
    CHECK(terrace_objects_destroy(all) == 0);
    free(objects);
}

/* Objects of many sizes, which grow and shrink where they are. */
static void sized(void) {
    enum { MANY = 20000, MOST = 2000 };
    terrace_objects *all = terrace_objects_create_sized(pool, MOST, 0);
    unsigned char **objects = malloc(MANY * sizeof *objects);
    size_t *sizes = malloc(MANY * sizeof *sizes);
    CHECK(all && objects && sizes);
    for (size_t i = 0; i < MANY; i++) {
        sizes[i] = 1 + i * 7 % 600;
        CHECK((objects[i] = terrace_object_alloc_sized(all, sizes[i])));
        CHECK(terrace_usable_size(objects[i]) == sizes[i] && objects[i][sizes[i] - 1] == 0);
        memset(objects[i], (int)(i % 255 + 1), sizes[i]);
    }
    for (size_t round = 1; round < 4; round++) {
        for (size_t i = 0; i < MANY; i++) {
            size_t before = sizes[i], kept;
            sizes[i] = 1 + i * (7 + round) % (round == 2 ? 100 : MOST);
            kept = before < sizes[i] ? before : sizes[i];
            CHECK(terrace_object_resize(objects[i], sizes[i]) == 0 && terrace_usable_size(objects[i]) == sizes[i]);
            for (size_t b = 0; b < sizes[i]; b++) CHECK(objects[i][b] == (b < kept ? i % 255 + 1 : 0));
            memset(objects[i], (int)(i % 255 + 1), sizes[i]);
        }
    }
    for (size_t i = 0; i < MANY; i++) CHECK(terrace_free(objects[i]) == 0);
    CHECK((objects[0] = terrace_object_alloc(all)) && terrace_usable_size(objects[0]) == MOST);
    CHECK(terrace_objects_count(all) == 1 && terrace_objects_destroy(all) == 0);
    free(objects);
    free(sizes);
}

static void array(void) {
    terrace_array *a = terrace_array_create(pool, LEN, 100, 2 * LEN);
    CHECK(a && terrace_array_len(a) == LEN);
    for (uint32_t i = 0; i < LEN; i++) memcpy(terrace_array_at(a, i), &i, sizeof i);
    for (uint32_t i = 0; i < LEN; i++) CHECK(memcmp(terrace_array_at(a, i), &i, sizeof i) == 0);
    CHECK(terrace_array_resize(a, 2 * LEN) == 0 && terrace_array_len(a) == 2 * LEN);
    CHECK(*(char *)terrace_array_at(a, LEN) == 0);
    CHECK(terrace_array_resize(a, 10) == 0 && terrace_array_resize(a, LEN) == 0);
    CHECK(*(uint32_t *)terrace_array_at(a, 9) == 9 && *(uint32_t *)terrace_array_at(a, 11) == 0);
    CHECK(terrace_array_clear(a, 9) == 0 && *(uint32_t *)terrace_array_at(a, 9) == 0);
    CHECK(terrace_array_resize(a, 2 * LEN + 1) == -1 && errno == ENOMEM);
    CHECK(terrace_array_destroy(a) == 0);
}

static void *allocate(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg + 1;
    enum { HELD = 500 };
    struct { unsigned char *at; size_t bytes; unsigned char fill; } held[HELD] = {{0}};
    for (int step = 0; step < 20000; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(seed >> 33) % HELD;
        size_t bytes = 1 + (seed >> 20) % (step % 50 ? 500 : 50000);
        if (held[i].at && seed >> 60 < 4) {
            size_t kept = bytes < held[i].bytes ? bytes : held[i].bytes;
            CHECK((held[i].at = terrace_realloc(pool, held[i].at, bytes)));
            for (size_t b = 0; b < kept; b++) CHECK(held[i].at[b] == held[i].fill);
        } else {
            for (size_t b = 0; b < held[i].bytes; b++) CHECK(held[i].at[b] == held[i].fill);
            CHECK(terrace_free(held[i].at) == 0);
            if (seed >> 62) {
                held[i].at = terrace_malloc(pool, bytes);
            } else {
                CHECK((held[i].at = terrace_calloc(pool, bytes, 1)));
                for (size_t b = 0; b < bytes; b++) CHECK(held[i].at[b] == 0);
            }
            CHECK(held[i].at && terrace_usable_size(held[i].at) >= bytes);
        }
        held[i].bytes = bytes;
        held[i].fill = (unsigned char)seed;
        memset(held[i].at, held[i].fill, bytes);
    }
    for (int i = 0; i < HELD; i++) CHECK(terrace_free(held[i].at) == 0);
    return NULL;
}

static void memory(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, allocate, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    char *aligned = terrace_aligned_alloc(pool, 65536, 100);
    CHECK(aligned && (uintptr_t)aligned % 65536 == 0);
    CHECK(terrace_free(aligned) == 0 && terrace_free(NULL) == 0);
    CHECK((aligned = terrace_realloc(pool, NULL, 10)) && terrace_free(aligned) == 0);
    CHECK(terrace_calloc(pool, SIZE_MAX / 2, 4) == NULL && errno == ENOMEM);
    CHECK(terrace_malloc(pool, SIZE_MAX) == NULL && errno == ENOMEM);
}

/* Buffers of the calls lie in memory that faults, cold: they are used all the same. */
static void table(void) {
    terrace_table *t = terrace_table_create(pool, 200);
    char *record = terrace_malloc(pool, 200), *many = terrace_malloc(pool, RECORDS * 200);
    uint64_t *ids = terrace_malloc(pool, RECORDS * sizeof *ids);
    unsigned char *found = terrace_malloc(pool, RECORDS);
    CHECK(t && record && ids && many && found);
    for (int i = 0; i < RECORDS; i++) {
        memset(record, i % 251, 200);
        CHECK(terrace_insert(t, record, &ids[i]) == 0);
    }
    CHECK(terrace_table_count(t) == RECORDS);
    CHECK(terrace_prefetch(t, ids, RECORDS) == 0);
    memset(many, 255, RECORDS * 200);
    CHECK(terrace_get_many(t, ids, RECORDS, many, NULL) == 0);
    for (int i = 0; i < RECORDS; i++) CHECK((unsigned char)many[i * 200] == i % 251 && (unsigned char)many[i * 200 + 199] == i % 251);
    memset(record, 7, 200);
    CHECK(terrace_put(t, ids[5], record) == 0 && terrace_remove(t, ids[6]) == 0);
    CHECK(terrace_get(t, ids[5], record) == 0 && record[100] == 7);
    CHECK(terrace_get(t, ids[6], record) == -1 && errno == ENOENT);
    CHECK(terrace_remove(t, ids[6]) == -1 && errno == ENOENT);
    CHECK(terrace_put(t, ids[6], record) == -1 && errno == ENOENT);
    CHECK(terrace_get_many(t, ids, 10, many, found) == 0 && found[5] && !found[6] && found[7]);
    CHECK(terrace_get_many(t, ids, 10, many, NULL) == -1 && errno == ENOENT);
    CHECK(terrace_get_many(t, NULL, 0, NULL, NULL) == 0);
    CHECK(terrace_table_count(t) == RECORDS - 1);
    CHECK(terrace_table_destroy(t) == 0);
    terrace_free(record);
    terrace_free(many);
    terrace_free(ids);
    terrace_free(found);
}

/* Objects that threads count up at the same time, while others replace and remove objects beside them. */
enum { COUNTED = 8, ROUNDS = 20000, TABLE_BYTES = 200 };
static terrace_table *counted;
static uint64_t counted_ids[COUNTED];
static void count_up(void *object, size_t bytes, void *context) {
    CHECK(bytes == TABLE_BYTES);
    uint64_t *words = object;
    words[0] += *(uint64_t *)context;
    words[1] ^= words[0];
}
static void *count(void *more) {
    for (int n = 0; n < ROUNDS; n++) CHECK(terrace_update(counted, counted_ids[n % COUNTED], count_up, more) == 0);
    return NULL;
}
static void *beside(void *arg) {
    (void)arg;
    char record[TABLE_BYTES] = {7};
    for (int n = 0; n < ROUNDS; n++) {
        uint64_t id;
        CHECK(terrace_insert(counted, record, &id) == 0 && terrace_put(counted, id, record) == 0 && terrace_remove(counted, id) == 0);
    }
    return NULL;
}
static int refused_inside;
static void use_the_library(void *object, size_t bytes, void *context) {
    terrace_table *t = context;
    uint64_t other[TABLE_BYTES / 8], id;
    /* What is read is as it was, and what lies in a pool may be touched. */
    ((uint64_t *)object)[0] = 1000;
    CHECK(terrace_get(t, counted_ids[0], other) == 0 && other[0] == (uint64_t)ROUNDS / COUNTED * 6);
    char *memory = terrace_malloc(pool, bytes);
    CHECK(memory && (memory[0] = 7) && terrace_free(memory) == 0 && terrace_insert(t, other, &id) == 0);
    for (int n = 0; n < COUNTED; n++) {
        refused_inside += terrace_update(t, counted_ids[n], count_up, NULL) == -1 && errno == EDEADLK;
        refused_inside += terrace_put(t, counted_ids[n], other) == -1 && errno == EDEADLK;
        refused_inside += terrace_remove(t, counted_ids[n]) == -1 && errno == EDEADLK;
    }
    refused_inside += terrace_table_destroy(t) == -1 && errno == EDEADLK;
    refused_inside += terrace_close(pool) == -1 && errno == EDEADLK;
}
static void updates(void) {
    uint64_t object[TABLE_BYTES / 8] = {0};
    counted = terrace_table_create(pool, TABLE_BYTES);
    CHECK(counted);
    for (int n = 0; n < COUNTED; n++) CHECK(terrace_insert(counted, object, &counted_ids[n]) == 0);
    pthread_t threads[THREADS];
    uint64_t *more = terrace_malloc(pool, THREADS * sizeof *more);
    for (int n = 0; n < THREADS; n++) {
        more[n] = (uint64_t)n + 1;
        CHECK(!pthread_create(&threads[n], NULL, n < THREADS - 1 ? count : beside, &more[n]));
    }
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    CHECK(terrace_table_count(counted) == COUNTED && THREADS == 4);
    for (int n = 0; n < COUNTED; n++) {
        CHECK(terrace_get(counted, counted_ids[n], object) == 0);
        CHECK(object[0] == (uint64_t)ROUNDS / COUNTED * (1 + 2 + 3));
    }
    CHECK(terrace_update(counted, counted_ids[0], use_the_library, counted) == 0);
    CHECK(refused_inside == 3 * COUNTED + 2);
    CHECK(terrace_get(counted, counted_ids[0], object) == 0 && object[0] == 1000);
    refused_inside = 0;
    /* It has ended, so nothing is refused any more. */
    CHECK(terrace_put(counted, counted_ids[0], object) == 0 && terrace_remove(counted, counted_ids[1]) == 0);
    CHECK(terrace_update(counted, counted_ids[1], count_up, more) == -1 && errno == ENOENT);
    CHECK(terrace_update(counted, counted_ids[0], NULL, NULL) == -1 && errno == EINVAL);
    CHECK(terrace_table_destroy(counted) == 0 && terrace_free(more) == 0);
}

static void stats(void) {
    struct terrace_stats s = {0};
    CHECK(terrace_get_stats(pool, &s, sizeof s) == 0);
    CHECK(s.cap_bytes == 32 << 20 && s.used_bytes <= s.cap_bytes && s.buffer_pages == 512);
    CHECK(s.resident_pages <= 512 + THREADS && s.pages_evicted > OBJECTS && s.pages_stored > 0);
    CHECK(s.faults_failed == 0 && s.device_write_bytes > 0);
    s.malloc_page_bytes = 77;
    CHECK(terrace_get_stats(pool, &s, 8) == 0 && s.malloc_page_bytes == 77);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(strcmp(terrace_version(), "0.1.0") == 0 && terrace_last_error()[0] == 0);
    for (uint32_t fault_threads = 0; fault_threads < 3; fault_threads += 2) {
        CHECK((pool = open_pool(argv[1], fault_threads)));
        CHECK(open_pool(argv[1], 0) == NULL && errno == EBUSY);
        objects();
        sized();
        array();
        memory();
        table();
        updates();
        stats();
        CHECK(terrace_close(pool) == 0);
        CHECK(terrace_close(pool) == -1 && errno == EBADF);
    }
    return 0;
}
