/* What a device reads into memory of a pool by itself (O_DIRECT), while pages leave: nothing of it is lost where faults are taken by threads. */
#include "cases.h"
#include <fcntl.h>
#include <sys/utsname.h>

enum { PART_BYTES = 1 << 20, PARTS = 4, FILE_PARTS = PARTS + 1, ROUNDS = 300, OTHERS_BYTES = 24 << 20 };

static uint64_t word_of_file(uint64_t word) { return word * 0x9e3779b97f4a7c15u | 1; }

/* A file that is read by the device itself, or -1 if the file system cannot. */
static int direct_file(void) {
    char path[] = "/var/tmp/terrace-devices-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    uint64_t *words = malloc(PART_BYTES);
    for (int part = 0; part < FILE_PARTS; part++) {
        for (int w = 0; w < PART_BYTES / 8; w++) words[w] = word_of_file((uint64_t)part * PART_BYTES / 8 + (uint64_t)w);
        CHECK(write(file, words, PART_BYTES) == PART_BYTES);
    }
    free(words);
    CHECK(fsync(file) == 0 && close(file) == 0);
    file = open(path, O_RDONLY | O_DIRECT);
    unlink(path);
    return file;
}

/* Makes pages leave all the time, and in a region has them kept now and then. */
static volatile int done;
static terrace_region *region;
static void *touch_others(void *at) {
    volatile unsigned char *others = at;
    unsigned seed = 1;
    while (!done) {
        seed = seed * 1103515245 + 12345;
        others[(seed >> 4) % (OTHERS_BYTES / 4096) * 4096]++;
        if (region && seed % 4096 == 0) CHECK(terrace_region_sync(region, NULL, 0) == 0);
    }
    return NULL;
}

static void read_into_pages_that_leave(uint32_t flags) {
    struct utsname system;
    int major = 0, minor = 0;
    CHECK(uname(&system) == 0 && sscanf(system.release, "%d.%d", &major, &minor) == 2);
    int file = direct_file();
    if (file < 0 || major < 6 || (major == 6 && minor < 8)) {
        printf("not judged: no direct reads here, or Linux before 6.8\n");
        return;
    }
    char path[512];
    snprintf(path, sizeof path, "%s/pool-%u", dir, flags);
    struct terrace_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.path = path;
    o.cap_bytes = 64 << 20;
    o.ssd_bytes = 256 << 20;
    o.buffer_pages = 2 * PART_BYTES / 4096;
    o.fault_threads = 2;
    o.flags = flags;
    terrace_pool *pool = terrace_open(&o);
    CHECK(pool);
    char *parts;
    if (flags) {
        region = terrace_region_open(pool, "read into", PARTS * PART_BYTES + OTHERS_BYTES, 0);
        CHECK(region && (parts = terrace_region_base(region)));
    } else {
        CHECK((parts = terrace_aligned_alloc(pool, 4096, PARTS * PART_BYTES + OTHERS_BYTES)));
    }
    char *others = parts + PARTS * PART_BYTES;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, touch_others, others) == 0);
    int lost = 0, judged = 1;
    for (int round = 0; round < ROUNDS && judged; round++) {
        /* Never the same twice in a row into the same part. */
        uint64_t *into = (uint64_t *)(parts + round % PARTS * PART_BYTES), from = (uint64_t)(round % FILE_PARTS);
        ssize_t got = pread(file, into, PART_BYTES, (off_t)from * PART_BYTES);
        judged = got == PART_BYTES || errno != EINVAL;
        CHECK(!judged || got == PART_BYTES);
        for (int page = 0; judged && page < PART_BYTES / 4096; page++) {
            int same = 1;
            for (int w = page * 512; w < page * 512 + 512; w++) same &= into[w] == word_of_file(from * PART_BYTES / 8 + (uint64_t)w);
            lost += !same;
        }
    }
    done = 1;
    pthread_join(thread, NULL);
    if (!judged) printf("not judged: no direct reads here\n");
    if (lost) printf("%d pages of %d lost\n", lost, ROUNDS * PART_BYTES / 4096);
    CHECK(lost == 0);
    CHECK(terrace_close(pool) == 0);
}

static void reads_into_pages_that_leave(void) { read_into_pages_that_leave(0); }
static void reads_into_pages_that_are_kept(void) { read_into_pages_that_leave(TERRACE_KEEP); }

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dir = argv[1];
    const struct named_case cases[] = {
        {"reads into pages that leave", reads_into_pages_that_leave},
        {"reads into pages that are kept", reads_into_pages_that_are_kept},
    };
    return RUN_CASES(cases);
}
