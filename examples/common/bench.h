/* What the three applications share: the workload, which is none of their code. An application defines the five functions below. */
#ifndef BENCH_H
#define BENCH_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What was asked for on the command line. */
struct bench {
    uint64_t keys;        /* --keys: over all threads */
    uint64_t ops;         /* --ops: 0, as many as fit in the seconds */
    double seconds;       /* --seconds */
    double warm_seconds;  /* --warm: the same before, not counted */
    double zipf;          /* --zipf: 0 is uniform, less than 1 */
    int reads_percent;    /* --reads */
    int threads;          /* --threads: each has a shard of its own */
    int check;            /* --check: verify instead of measure */
    int commands;         /* --commands: rounds as they are asked for on the standard input */
    const char *pool;     /* --pool: a directory, where the build uses Terrace */
    uint64_t cap_bytes;   /* --cap */
    uint64_t ssd_bytes;   /* --ssd */
};

/* Once, before any thread. */
void app_open(const struct bench *b);
/* A shard that will hold about so many keys; used by one thread. */
void *app_shard(uint64_t keys);
/* Stores version `version` under `key`. */
void app_put(void *shard, uint64_t key, uint64_t version);
/* The version under `key`, or 0; the application verifies all else that it keeps there. */
uint64_t app_get(void *shard, uint64_t key);
/* How many of 100 keys may be missing after all were put: an index keeps all, a cache may not. */
extern const int app_missing_percent_max;

_Noreturn void die(const char *what, const char *why);
/* Zeros of malloc's memory; ends the program where there is none. */
void *zeros(uint64_t count, uint64_t size);

/* Spreads a number over all 64 bits (the finaliser of MurmurHash3). */
static inline uint64_t mix(uint64_t x) {
    x ^= x >> 33; x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}
#endif
