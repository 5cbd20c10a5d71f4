/* HashCache's index (Badam et al., NSDI 2009): a web cache's objects lie in a log on disk, and a table of bins says where. An object's hash names its bin; a
 * bin holds eight places in the order they were used, and the one used longest ago is replaced. No pointers, no other memory: the table is all.
 *
 * One source, three programs: malloc; -DTERRACE_MP, a malloc whose pages step down to the SSD; -DTERRACE_OPP, bins that do so one by one. */
#include "bench.h"
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
#include "terrace.h"
#endif

enum { WAYS = 8 };

/* Where an object is in the log: its hash tells it from others, its number of 16-byte units there from another version. */
struct place {
    uint64_t hash;
    uint64_t offset;
};

/* 128 bytes; the place used last comes first. */
struct bin {
    struct place places[WAYS];
};

struct cache {
#if defined(TERRACE_OPP)
    terrace_array *bins;
#else
    struct bin *bins;
#endif
    uint64_t count;
    uint64_t stride; /* between the hashes of neighbouring keys */
};

/* A place for each object and half as many more, and hashes that are spread evenly: none is pushed out. */
const int app_missing_percent_max = 0;

#if defined(TERRACE_OPP) || defined(TERRACE_MP)
static terrace_pool *pool;
#endif

static struct bin *bin_of(const struct cache *cache, uint64_t hash) {
    uint64_t at = (uint64_t)((unsigned __int128)hash * cache->count >> 64);
#if defined(TERRACE_OPP)
    return terrace_array_at(cache->bins, at);
#else
    return &cache->bins[at];
#endif
}

/* Makes place `at` the first. */
static void use(struct bin *bin, int at) {
    struct place place = bin->places[at];
    if (at == 0) return;
    memmove(bin->places + 1, bin->places, (size_t)at * sizeof place);
    bin->places[0] = place;
}

static uint64_t look_up(const struct cache *cache, uint64_t hash) {
    struct bin *bin = bin_of(cache, hash);
    for (int i = 0; i < WAYS; i++)
        if (bin->places[i].hash == hash) {
            /* Only what is older than half the bin moves: most reads write nothing. */
            if (i >= WAYS / 2) use(bin, i);
            return bin->places[i >= WAYS / 2 ? 0 : i].offset;
        }
    return 0;
}

static void insert(struct cache *cache, uint64_t hash, uint64_t offset) {
    struct bin *bin = bin_of(cache, hash);
    int at = 0;
    while (at < WAYS - 1 && bin->places[at].hash && bin->places[at].hash != hash) at++;
    bin->places[at] = (struct place){.hash = hash, .offset = offset};
    use(bin, at);
}

void app_open(const struct bench *b) {
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
    struct terrace_options o = {.size = sizeof o, .path = b->pool, .cap_bytes = b->cap_bytes, .ssd_bytes = b->ssd_bytes};
    pool = terrace_open(&o);
    if (!pool) die("hashcache", terrace_last_error());
#else
    (void)b;
#endif
}

void *app_shard(uint64_t keys) {
    struct cache *cache = zeros(1, sizeof *cache);
    cache->count = keys * 3 / 2 / WAYS + 1;
    cache->stride = UINT64_MAX / (keys + 1);
#if defined(TERRACE_OPP)
    cache->bins = terrace_array_create(pool, cache->count, sizeof(struct bin), cache->count);
#elif defined(TERRACE_MP)
    cache->bins = terrace_calloc(pool, cache->count, sizeof(struct bin));
#else
    cache->bins = calloc(cache->count, sizeof(struct bin));
#endif
    if (!cache->bins) die("hashcache", "out of memory");
    return cache;
}

/* The workload's keys stand for hashes in order. So the table is loaded in order, as when it is rebuilt from a sorted log; after that keys are drawn from all over it. */
static uint64_t hash_of(const struct cache *cache, uint64_t key) { return (key + 1) * cache->stride; }

void app_put(void *shard, uint64_t key, uint64_t version) {
    struct cache *cache = shard;
    insert(cache, hash_of(cache, key), version);
}

uint64_t app_get(void *shard, uint64_t key) {
    const struct cache *cache = shard;
    return look_up(cache, hash_of(cache, key));
}
