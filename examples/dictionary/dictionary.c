/* A dictionary that is kept: a hash table with chains in a named region, with plain pointers inside, larger than DRAM, and as at its last completed batch after any crash.
 *
 *     dictionary POOL put KEY VALUE | get KEY | delete KEY | count | dump | load
 *
 * `load` reads lines `+KEY VALUE` and `-KEY` and keeps them in batches; after each it prints `kept N`, the lines of its whole life. All of a batch is there or nothing. */
#include "terrace.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_LINES = 100, LINE_MAX_BYTES = 1 << 16, CLASSES = 48, CLASS_MIN_BYTES = 32, FIRST_BUCKETS = 256 };
static const uint64_t MAGIC = 0x7972616e6f697464ULL;
/* What it may grow to, and DRAM for it; the SSD keeps two versions of a page. */
static const uint64_t REGION_BYTES = 1 << 20, REGION_MAX_BYTES = 1 << 28, CAP_BYTES = 32 << 20, SSD_BYTES = 1 << 30;

struct entry {
    struct entry *next;
    uint64_t hash;
    uint32_t key_bytes, value_bytes;
    char bytes[]; /* key, value */
};

/* Pieces of memory that were freed; sizes are powers of two. */
struct piece {
    struct piece *next;
};

/* The root. Everything else is reached from here, and everything is in the region, also what it knows of its memory. */
struct dictionary {
    uint64_t magic, lines, count, buckets_count;
    struct entry **buckets;
    char *unused; /* to the end of the region nothing was ever used */
    struct piece *free[CLASSES];
};

static terrace_pool *pool;
static terrace_region *region;
static struct dictionary *d;

_Noreturn static void die(const char *what) {
    fprintf(stderr, "dictionary: %s: %s\n", what, terrace_last_error());
    exit(1);
}

/* Memory inside of the region. What was taken since the last sync is not taken after a crash: these lists are part of what is kept. */
static int class_of(uint64_t bytes) {
    int class = 0;
    while ((uint64_t)CLASS_MIN_BYTES << class < bytes) class++;
    return class;
}

static void *take(uint64_t bytes) {
    int class = class_of(bytes);
    struct piece *piece = d->free[class];
    if (piece) {
        d->free[class] = piece->next;
        return piece;
    }
    uint64_t size = (uint64_t)CLASS_MIN_BYTES << class;
    char *base = terrace_region_base(region), *end = base + terrace_region_bytes(region);
    if ((uint64_t)(end - d->unused) < size) {
        uint64_t wanted = (uint64_t)(d->unused - base) + size;
        if (wanted < 2 * (uint64_t)(end - base) && 2 * (uint64_t)(end - base) <= REGION_MAX_BYTES) wanted = 2 * (uint64_t)(end - base);
        if (terrace_region_grow(region, wanted)) die("no room");
    }
    char *taken = d->unused;
    d->unused += size;
    return taken;
}

static void give_back(void *at, uint64_t bytes) {
    struct piece *piece = at, **list = &d->free[class_of(bytes)];
    piece->next = *list;
    *list = piece;
}

/* FNV-1a. */
static uint64_t hash_of(const char *key, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)key[i]) * 0x100000001b3ULL;
    return hash;
}

static struct entry **bucket(uint64_t hash) { return &d->buckets[hash & (d->buckets_count - 1)]; }

/* What points to the key's entry, or to the end of its chain. */
static struct entry **find(const char *key, size_t bytes, uint64_t hash) {
    struct entry **at = bucket(hash);
    while (*at && ((*at)->hash != hash || (*at)->key_bytes != bytes || memcmp((*at)->bytes, key, bytes))) at = &(*at)->next;
    return at;
}

static void grow(void) {
    struct entry **old = d->buckets;
    uint64_t old_count = d->buckets_count;
    struct entry **fresh = take(2 * old_count * sizeof *fresh);
    memset(fresh, 0, 2 * old_count * sizeof *fresh);
    d->buckets = fresh;
    d->buckets_count = 2 * old_count;
    for (uint64_t i = 0; i < old_count; i++)
        for (struct entry *entry = old[i], *next; entry; entry = next) {
            next = entry->next;
            struct entry **at = bucket(entry->hash);
            entry->next = *at;
            *at = entry;
        }
    give_back(old, old_count * sizeof *old);
}

static int delete(const char *key, size_t bytes) {
    struct entry **at = find(key, bytes, hash_of(key, bytes)), *entry = *at;
    if (!entry) return 0;
    *at = entry->next;
    give_back(entry, sizeof *entry + entry->key_bytes + entry->value_bytes);
    d->count--;
    return 1;
}

static void put(const char *key, size_t key_bytes, const char *value, size_t value_bytes) {
    delete(key, key_bytes);
    if (d->count == d->buckets_count) grow();
    uint64_t hash = hash_of(key, key_bytes);
    struct entry *entry = take(sizeof *entry + key_bytes + value_bytes), **at = bucket(hash);
    *entry = (struct entry){.next = *at, .hash = hash, .key_bytes = (uint32_t)key_bytes, .value_bytes = (uint32_t)value_bytes};
    memcpy(entry->bytes, key, key_bytes);
    memcpy(entry->bytes + key_bytes, value, value_bytes);
    *at = entry;
    d->count++;
}

/* Everything that changed since the last time, or nothing of it, is there after a crash. */
static void keep(void) {
    if (terrace_region_sync(region, NULL, 0)) die("keeping it");
}

static void open_all(const char *path) {
    struct terrace_options o = {.size = sizeof o, .path = path, .cap_bytes = CAP_BYTES, .ssd_bytes = SSD_BYTES, .flags = TERRACE_KEEP};
    if (!(pool = terrace_open(&o))) die(path);
    if (!(region = terrace_region_open(pool, "dictionary", REGION_BYTES, REGION_MAX_BYTES))) die("its region");
    if ((d = terrace_region_root(region))) {
        if (d->magic != MAGIC) die("this region is no dictionary");
        return;
    }
    d = terrace_region_base(region); /* zeros */
    d->magic = MAGIC;
    d->unused = (char *)(d + 1);
    d->buckets_count = FIRST_BUCKETS;
    d->buckets = take(FIRST_BUCKETS * sizeof *d->buckets);
    if (terrace_region_set_root(region, d)) die("its root");
    keep();
}

static void load(void) {
    static char line[LINE_MAX_BYTES];
    while (fgets(line, sizeof line, stdin)) {
        char *end = strchr(line, '\n'), *key = line + 1, *space = strchr(line, ' ');
        if (!end || (*line == '+' && !space) || !strchr("+-", *line)) die("not a line `+KEY VALUE` or `-KEY`");
        if (*line == '+') put(key, (size_t)(space - key), space + 1, (size_t)(end - space - 1));
        else delete(key, (size_t)(end - key));
        if (++d->lines % BATCH_LINES) continue;
        keep();
        printf("kept %llu\n", (unsigned long long)d->lines);
        fflush(stdout);
    }
    keep();
    printf("kept %llu\n", (unsigned long long)d->lines);
}

/* All entries, after a look at whether all is as it must be. */
static void dump(void) {
    uint64_t seen = 0;
    for (uint64_t i = 0; i < d->buckets_count; i++)
        for (struct entry *entry = d->buckets[i]; entry; entry = entry->next, seen++) {
            if (entry->hash != hash_of(entry->bytes, entry->key_bytes) || bucket(entry->hash) != &d->buckets[i]) die("an entry is damaged");
            printf("%.*s %.*s\n", (int)entry->key_bytes, entry->bytes, (int)entry->value_bytes, entry->bytes + entry->key_bytes);
        }
    if (seen != d->count) die("its count is wrong");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int argc;
    } commands[] = {{"put", 5}, {"get", 4}, {"delete", 4}, {"count", 3}, {"dump", 3}, {"load", 3}};
    const char *command = argc > 2 ? argv[2] : "", *key = argc > 3 ? argv[3] : NULL;
    int known = 0, there = 1;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) known |= argc == commands[i].argc && !strcmp(command, commands[i].name);
    /* Before anything is opened, which makes it. */
    if (!known) {
        fprintf(stderr, "dictionary POOL put KEY VALUE | get KEY | delete KEY | count | dump | load\n");
        return 2;
    }
    open_all(argv[1]);
    if (!strcmp(command, "put")) {
        put(key, strlen(key), argv[4], strlen(argv[4]));
        keep();
    } else if (!strcmp(command, "get")) {
        struct entry *entry = *find(key, strlen(key), hash_of(key, strlen(key)));
        if ((there = entry != NULL)) printf("%.*s\n", (int)entry->value_bytes, entry->bytes + entry->key_bytes);
    } else if (!strcmp(command, "delete")) {
        there = delete(key, strlen(key));
        keep();
    } else if (!strcmp(command, "count")) {
        printf("%llu entries of %llu lines\n", (unsigned long long)d->count, (unsigned long long)d->lines);
    } else if (!strcmp(command, "dump")) {
        dump();
    } else {
        load();
    }
    if (terrace_close(pool)) die("closing");
    return !there;
}
