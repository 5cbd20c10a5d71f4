/* A packet cache, as WAN accelerators and proxies keep: the contents of packets under the hash of what they answer, the oldest that was not used again
 * replaced first (CLOCK). The index is small and in malloc's memory; packets are what there is a lot of.
 *
 * One source, three programs: malloc; -DTERRACE_MP, a malloc whose pages step down to the SSD; -DTERRACE_OPP, packets that do so one by one. */
#include "bench.h"
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
#include "terrace.h"
#endif

enum { PAYLOAD_BYTES = 984, PROBE_MAX = 64 };

struct packet {
    uint64_t hash;
    uint64_t version;
    uint32_t bytes;
    uint32_t sum;
    uint64_t words[PAYLOAD_BYTES / 8];
};

/* Where a packet is: open addressing with linear probing, an eighth of it free. */
struct place {
    struct packet *packet;
    uint32_t tag;
    uint32_t used;
};

struct cache {
    struct place *places;
    uint64_t mask, packets, packets_max, hand;
};

const int app_missing_percent_max = 1;

#if defined(TERRACE_OPP)
static terrace_objects *packets;
#endif
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
static terrace_pool *pool;
#endif

static struct packet *new_packet(void) {
#if defined(TERRACE_OPP)
    return terrace_object_alloc(packets);
#elif defined(TERRACE_MP)
    return terrace_malloc(pool, sizeof(struct packet));
#else
    return malloc(sizeof(struct packet));
#endif
}

static void free_packet(struct packet *packet) {
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
    terrace_free(packet);
#else
    free(packet);
#endif
}

static uint32_t sum(const struct packet *packet) {
    uint64_t all = packet->hash ^ packet->version;
    for (uint32_t i = 0; i < packet->bytes / 8; i++) all = all * 31 + packet->words[i];
    return (uint32_t)(all ^ all >> 32);
}

/* What came over the wire: a length and bytes that depend on the packet. */
static void fill(struct packet *packet, uint64_t hash, uint64_t version) {
    packet->hash = hash;
    packet->version = version;
    packet->bytes = (uint32_t)(64 + hash % (PAYLOAD_BYTES - 64)) & ~7u;
    for (uint32_t i = 0; i < packet->bytes / 8; i++) packet->words[i] = mix(hash + version + i);
    packet->sum = sum(packet);
}

static struct place *find(struct cache *cache, uint64_t hash) {
    for (uint64_t n = 0; n < PROBE_MAX; n++) {
        struct place *place = &cache->places[(hash + n) & cache->mask];
        if (!place->packet) return NULL;
        if (place->tag == hash >> 32 && place->packet->hash == hash) return place;
    }
    return NULL;
}

/* Takes out a place and moves those behind it up, so that probing never meets a hole. */
static void take_out(struct cache *cache, uint64_t at) {
    free_packet(cache->places[at].packet);
    cache->packets--;
    for (uint64_t hole = at, i = at + 1;; i++) {
        struct place *place = &cache->places[i & cache->mask];
        cache->places[hole & cache->mask].packet = NULL;
        if (!place->packet) return;
        /* The tag has no low bits of the hash, so the packet is asked. */
        uint64_t home = place->packet->hash & cache->mask;
        if (((i - home) & cache->mask) >= ((i - hole) & cache->mask)) {
            cache->places[hole & cache->mask] = *place;
            hole = i;
        }
    }
}

static void make_room(struct cache *cache) {
    for (;; cache->hand++) {
        struct place *place = &cache->places[cache->hand & cache->mask];
        if (!place->packet) continue;
        if (!place->used) {
            take_out(cache, cache->hand & cache->mask);
            return;
        }
        place->used = 0;
    }
}

static void store(struct cache *cache, uint64_t hash, uint64_t version) {
    struct place *place = find(cache, hash);
    if (place) {
        fill(place->packet, hash, version);
        return;
    }
    if (cache->packets == cache->packets_max) make_room(cache);
    for (uint64_t n = 0; n < PROBE_MAX; n++) {
        place = &cache->places[(hash + n) & cache->mask];
        if (place->packet) continue;
        struct packet *packet = new_packet();
        if (!packet) die("packetcache", "out of memory");
        fill(packet, hash, version);
        *place = (struct place){.packet = packet, .tag = (uint32_t)(hash >> 32)};
        cache->packets++;
        return;
    }
    /* Too crowded there: it is a cache. */
}

void app_open(const struct bench *b) {
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
    struct terrace_options o = {.size = sizeof o, .path = b->pool, .cap_bytes = b->cap_bytes, .ssd_bytes = b->ssd_bytes};
    pool = terrace_open(&o);
    if (!pool) die("packetcache", terrace_last_error());
#else
    (void)b;
#endif
#if defined(TERRACE_OPP)
    packets = terrace_objects_create(pool, sizeof(struct packet), 0);
    if (!packets) die("packetcache", terrace_last_error());
#endif
}

void *app_shard(uint64_t keys) {
    struct cache *cache = zeros(1, sizeof *cache);
    uint64_t places = 16;
    while (places < keys + keys / 4) places *= 2;
    cache->places = zeros(places, sizeof *cache->places);
    cache->mask = places - 1;
    cache->packets_max = keys;
    return cache;
}

void app_put(void *shard, uint64_t key, uint64_t version) { store(shard, mix(key + 1), version); }

uint64_t app_get(void *shard, uint64_t key) {
    struct place *place = find(shard, mix(key + 1));
    if (!place) return 0;
    place->used = 1;
    if (place->packet->sum != sum(place->packet)) die("packetcache", "a packet is damaged");
    return place->packet->version;
}
