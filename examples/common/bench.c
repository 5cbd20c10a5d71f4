/* The workload: threads with a shard each, keys drawn evenly or by Zipf's law (hot ones scattered), reads and writes; or a check of all contents against
 * a plain copy. Prints a line when all is loaded, and one of JSON for each round: with --commands it does a round for each line `READS% SECONDS` that it reads. */
#include "bench.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

static struct bench b = {.keys = 100000, .seconds = 3, .zipf = 0.99, .reads_percent = 90, .threads = 4,
                         .pool = "./example-pool", .cap_bytes = 64 << 20};

struct worker {
    pthread_t thread;
    void *shard;
    uint64_t keys, seed, ops;
    double seconds;
};

/* Threads and main meet before and after each round; the first is over when all is loaded. */
static pthread_barrier_t begin, end;
static int over;

_Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

void *zeros(uint64_t count, uint64_t size) {
    void *there = calloc(count, size);
    if (!there) die("calloc", "out of memory");
    return there;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t next(uint64_t *seed) { return mix(*seed += 0x9e3779b97f4a7c15ULL); }

/* Gray et al., "Quickly generating billion-record synthetic databases", as YCSB does it. */
static double zeta_n;
static double zeta(uint64_t n, double theta) {
    double sum = 0;
    for (uint64_t i = 1; i <= n; i++) sum += pow((double)i, -theta);
    return sum;
}

static uint64_t draw(uint64_t *seed, uint64_t n) {
    if (b.zipf == 0) return next(seed) % n;
    double u = (double)(next(seed) >> 11) / (double)(1ULL << 53), uz = u * zeta_n;
    double alpha = 1 / (1 - b.zipf);
    double eta = (1 - pow(2.0 / (double)n, 1 - b.zipf)) / (1 - zeta(2, b.zipf) / zeta_n);
    uint64_t rank = uz < 1 ? 0 : uz < 1 + pow(0.5, b.zipf) ? 1 : (uint64_t)((double)n * pow(eta * u - eta + 1, alpha));
    return mix(rank % n) % n;
}

/* Until so many operations are done, or, if there is no such number, for so many seconds. */
static void work(struct worker *w, uint64_t ops, double seconds) {
    double start = now(), end = start + seconds;
    for (w->ops = 0; ops ? w->ops < ops / (uint64_t)b.threads : now() < end; w->ops++) {
        uint64_t key = draw(&w->seed, w->keys);
        if ((int)(next(&w->seed) % 100) < b.reads_percent) {
            if (!app_get(w->shard, key) && !app_missing_percent_max) die("read", "a key that was put is missing");
        } else app_put(w->shard, key, w->ops + 2);
    }
    w->seconds = now() - start;
}

static void *measure(void *arg) {
    struct worker *w = arg;
    w->shard = app_shard(w->keys);
    for (uint64_t key = 0; key < w->keys; key++) app_put(w->shard, key, 1);
    for (;;) {
        pthread_barrier_wait(&end);
        pthread_barrier_wait(&begin);
        if (over) return NULL;
        work(w, b.ops, b.seconds);
    }
}

static void *check(void *arg) {
    struct worker *w = arg;
    uint64_t *shadow = zeros(w->keys, sizeof *shadow), missing = 0;
    w->shard = app_shard(w->keys);
    for (uint64_t n = 0; n < 4 * w->keys; n++) {
        /* First every key once, in a scattered order if the number of keys is a power of two; then any. */
        uint64_t key = n < w->keys ? n * 0x9e3779b1 % w->keys : draw(&w->seed, w->keys);
        if (n < w->keys || next(&w->seed) % 2) app_put(w->shard, key, shadow[key] = n + 1);
        uint64_t seen = app_get(w->shard, key);
        if (seen != shadow[key] && (seen || !app_missing_percent_max)) die("check", "a key has another version than was put");
        w->ops++;
    }
    for (uint64_t key = 0; key < w->keys; key++) {
        uint64_t seen = app_get(w->shard, key);
        if (seen == 0) missing += shadow[key] != 0;
        else if (seen != shadow[key]) die("check", "a key has another version than was put last");
    }
    if (missing * 100 > w->keys * (uint64_t)app_missing_percent_max) die("check", "keys are missing");
    free(shadow);
    return NULL;
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    /* strtoull takes a sign, and spaces before it. */
    if (*text < '0' || *text > '9' || end[shift != 0]) die("not a number (a unit may be K, M or G)", text);
    if (errno || n > UINT64_MAX >> shift) die("too large a number", text);
    return n << shift;
}

static int at_most(const char *text, uint64_t most) {
    uint64_t n = number(text);
    if (n > most) die("too large a number", text);
    return (int)n;
}

static double decimal(const char *text) {
    char *end;
    double n = strtod(text, &end);
    if (end == text || *end || !(n >= 0 && n < 1e9)) die("not a number from 0 to 1e9", text);
    return n;
}

static void arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--check")) { b.check = 1; continue; }
        if (!strcmp(name, "--commands")) { b.commands = 1; continue; }
        if (++i == argc) die("nothing follows", name);
        if (!strcmp(name, "--keys")) b.keys = number(argv[i]);
        else if (!strcmp(name, "--ops")) b.ops = number(argv[i]);
        else if (!strcmp(name, "--seconds")) b.seconds = decimal(argv[i]);
        else if (!strcmp(name, "--warm")) b.warm_seconds = decimal(argv[i]);
        else if (!strcmp(name, "--zipf")) b.zipf = decimal(argv[i]);
        else if (!strcmp(name, "--reads")) b.reads_percent = at_most(argv[i], 100);
        else if (!strcmp(name, "--threads")) b.threads = at_most(argv[i], 64);
        else if (!strcmp(name, "--pool")) b.pool = argv[i];
        else if (!strcmp(name, "--cap")) b.cap_bytes = number(argv[i]);
        else if (!strcmp(name, "--ssd")) b.ssd_bytes = number(argv[i]);
        else die("no such option; there are --check --commands --keys --ops --seconds --warm --zipf --reads --threads --pool --cap --ssd", name);
    }
    if (b.threads < 1) die("--threads", "1 to 64");
    if (b.keys / (uint64_t)b.threads < 2) die("--keys", "at least 2 a thread");
    if (b.ops && b.ops < (uint64_t)b.threads) die("--ops", "at least 1 a thread");
    if (b.zipf >= 1) die("--zipf", "0 (uniform) to less than 1");
}

static void print(struct worker *workers) {
    uint64_t ops = 0;
    double rate = 0;
    for (int i = 0; i < b.threads; i++) {
        ops += workers[i].ops;
        if (!b.check) rate += (double)workers[i].ops / workers[i].seconds;
    }
    printf("{\"check\": %s, \"ops\": %llu, \"ops_per_s\": %.0f}\n", b.check ? "true" : "false", (unsigned long long)ops, rate);
    fflush(stdout);
}

static void play(void) {
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
}

static void rounds(struct worker *workers) {
    pthread_barrier_wait(&end);
    uint64_t ops = b.ops;
    double seconds = b.seconds;
    if (b.warm_seconds > 0) {
        b.ops = 0, b.seconds = b.warm_seconds;
        play();
        b.ops = ops, b.seconds = seconds;
    }
    puts("loaded");
    fflush(stdout);
    if (!b.commands) {
        play();
        print(workers);
    }
    while (b.commands && scanf("%d %lf", &b.reads_percent, &b.seconds) == 2) {
        play();
        print(workers);
    }
    over = 1;
    pthread_barrier_wait(&begin);
}

int main(int argc, char **argv) {
    static struct worker workers[64];
    arguments(argc, argv);
    if (b.zipf > 0) zeta_n = zeta(b.keys / (uint64_t)b.threads, b.zipf);
    pthread_barrier_init(&begin, NULL, (unsigned)b.threads + 1);
    pthread_barrier_init(&end, NULL, (unsigned)b.threads + 1);
    app_open(&b);
    for (int i = 0; i < b.threads; i++) {
        workers[i].keys = b.keys / (uint64_t)b.threads;
        workers[i].seed = mix((uint64_t)i + 1);
        if (pthread_create(&workers[i].thread, NULL, b.check ? check : measure, &workers[i])) die("threads", "none to be had");
    }
    if (!b.check) rounds(workers);
    for (int i = 0; i < b.threads; i++) pthread_join(workers[i].thread, NULL);
    if (b.check) print(workers);
    return 0;
}
