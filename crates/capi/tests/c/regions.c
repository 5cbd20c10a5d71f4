/* A named region with a list of pointers in it: kept over closing and killing, grown, listed, removed. Called with a directory, and by itself with a second argument
 * as the program that is killed. */
#include "terrace.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            fprintf(stderr, "line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, terrace_last_error()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { MIB = 1 << 20, KILLS = 5 };

struct node {
    struct node *next;
    uint64_t number;
    char rest[2000];
};

static terrace_pool *pool;

static terrace_region *open_all(const char *dir) {
    struct terrace_options o = {.size = sizeof o, .path = dir, .cap_bytes = 32 * MIB, .ssd_bytes = 128 * MIB, .buffer_pages = 256, .flags = TERRACE_KEEP};
    terrace_region *region;
    CHECK((pool = terrace_open(&o)));
    CHECK((region = terrace_region_open(pool, "list", 24 * MIB, 0)));
    return region;
}

/* A list of `len` nodes that all say `number`. */
static void write_list(terrace_region *region, uint64_t len, uint64_t number) {
    struct node *nodes = terrace_region_base(region);
    for (uint64_t i = 0; i < len; i++) {
        nodes[i].number = number;
        nodes[i].rest[1999] = (char)i;
        nodes[i].next = i + 1 < len ? &nodes[i + 1] : NULL;
    }
    CHECK(terrace_region_set_root(region, nodes) == 0);
}

/* What all nodes say, by their pointers. */
static uint64_t read_list(terrace_region *region, uint64_t *len) {
    struct node *node = terrace_region_root(region);
    uint64_t number = node ? node->number : 0;
    for (*len = 0; node; node = node->next) {
        CHECK(node->number == number && node->rest[1999] == (char)*len);
        ++*len;
    }
    return number;
}

/* More nodes each time, and far more than the page buffer has. */
static uint64_t len_of(uint64_t number) { return number ? 500 + number * 613 % 8000 : 0; }

static void until_killed(const char *dir) {
    terrace_region *region = open_all(dir);
    uint64_t len, number = read_list(region, &len);
    CHECK(len == len_of(number));
    for (;;) {
        number++;
        write_list(region, len_of(number), number);
        CHECK(terrace_region_sync(region, NULL, 0) == 0);
        if (write(1, "synced\n", 7) != 7) exit(1);
    }
}

static void kill_and_look(const char *self, const char *dir) {
    uint64_t before = 0;
    for (int kills = 0; kills < KILLS; kills++) {
        int out[2];
        CHECK(pipe(out) == 0);
        pid_t child = fork();
        if (child == 0) {
            dup2(out[1], 1);
            execl(self, self, dir, "until killed", (char *)NULL);
            _exit(127);
        }
        close(out[1]);
        char said[7];
        int synced = 0;
        while (synced < 1 + kills * 2 && read(out[0], said, 7) == 7) synced++;
        usleep(1000 * (unsigned)(kills * 7 % 20));
        kill(child, SIGKILL);
        while (read(out[0], said, 7) == 7) synced++;
        close(out[0]);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        terrace_region *region = open_all(dir);
        uint64_t len, number = read_list(region, &len);
        CHECK(len == len_of(number) && number >= before + (uint64_t)synced);
        before = number;
        CHECK(terrace_close(pool) == 0);
    }
}

static void calls(const char *dir) {
    terrace_region *region = open_all(dir), *other;
    char *base = terrace_region_base(region);
    uint64_t len;
    errno = 7;
    CHECK(terrace_region_root(region) == NULL && errno == 0 && terrace_region_bytes(region) == 24 * MIB);
    write_list(region, 9000, 1);
    struct terrace_range all = {base, 24 * MIB};
    CHECK(terrace_region_sync(region, &all, 1) == 0);
    write_list(region, 10, 2);
    CHECK(terrace_region_close(region) == 0 && terrace_owns(base) == 0);
    CHECK((region = terrace_region_open(pool, "list", 1, 0)) && terrace_region_base(region) == base);
    CHECK(read_list(region, &len) == 1 && len == 9000);
    /* Ranges may lie in the region itself, cold. */
    struct terrace_range *cold = (struct terrace_range *)(base + 20 * MIB);
    for (int i = 0; i < 100; i++) cold[i] = (struct terrace_range){base + i * 4096, 4096};
    write_list(region, 100, 3);
    CHECK(terrace_region_sync(region, cold, 100) == 0 && terrace_region_sync(region, cold, 0) == 0);
    CHECK(terrace_region_grow(region, 25 * MIB) == 0 && terrace_region_bytes(region) == 25 * MIB);
    CHECK(base[25 * MIB - 1] == 0);
    CHECK((other = terrace_region_open(pool, "other", 5000, 5000)) && terrace_region_bytes(other) == 8192);
    struct terrace_region_info info;
    CHECK(terrace_region_list(pool, 0, &info, sizeof info) == 0 && !strcmp(info.name, "list") && info.open && info.base == base);
    CHECK(terrace_region_list(pool, 1, &info, sizeof info) == 0 && !strcmp(info.name, "other") && info.bytes == 8192);
    CHECK(terrace_region_list(pool, 2, &info, sizeof info) == -1 && errno == ENOENT);
    CHECK(terrace_region_close(other) == 0 && terrace_region_remove(pool, "other") == 0);
    CHECK(terrace_region_list(pool, 1, &info, sizeof info) == -1 && errno == ENOENT);
    CHECK(terrace_close(pool) == 0);
    region = open_all(dir);
    CHECK(terrace_region_base(region) == base && read_list(region, &len) == 3 && len == 100);
    CHECK(terrace_region_bytes(region) == 24 * MIB);
    struct terrace_stats stats;
    CHECK(terrace_get_stats(pool, &stats, sizeof stats) == 0 && stats.used_bytes <= stats.cap_bytes);
    CHECK(terrace_region_close(region) == 0 && terrace_region_remove(pool, "list") == 0);
    CHECK(terrace_close(pool) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    if (argc == 3) until_killed(argv[1]);
    calls(argv[1]);
    kill_and_look(argv[0], argv[1]);
    printf("%d kills, each left a completed sync\n", (int)KILLS);
    return 0;
}
