/* What opening a pool says when it cannot be done, and what can be opened afterwards. */
#include "cases.h"
#include <fcntl.h>
#include <sys/resource.h>

/* A size that cannot be had leaves the pool as it was. */
static void a_size_that_is_refused(void) {
    terrace_pool *pool = open_named("sizes");
    CHECK(pool && terrace_close(pool) == 0);
    REFUSED(!open_sized("sizes", 1 << 20, 0), EINVAL, "");
    for (int n = 0; n < 3; n++) {
        const uint64_t sizes[] = {64 << 20, 0, 96 << 20};
        pool = open_sized("sizes", sizes[n], 0);
        CHECK(pool && terrace_close(pool) == 0);
    }
}

/* The program is killed while the pool is made anew, at any moment. */
static void a_kill_while_it_is_made_anew(void) {
    for (int round = 0; round < 8; round++) {
        terrace_pool *pool = open_named("killed");
        CHECK(pool && terrace_close(pool) == 0);
        pid_t child = fork();
        if (child == 0) {
            open_sized("killed", 512 << 20, 0);
            _exit(0);
        }
        usleep(5000 << round);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    terrace_pool *pool = open_named("killed");
    CHECK(pool && terrace_close(pool) == 0);
}

static void as_many_pools_as_a_process_has(uint32_t flags) {
    enum { POOLS = 16 };
    terrace_pool *pools[POOLS];
    char name[32];
    for (int n = 0; n < POOLS; n++) {
        snprintf(name, sizeof name, "one of many %d", n);
        pools[n] = open_sized(name, 64 << 20, flags);
        CHECK(pools[n]);
    }
    REFUSED(!open_sized("one too many", 64 << 20, flags), ENOMEM, "at most 16");
    for (int n = 0; n < POOLS; n++) CHECK(terrace_close(pools[n]) == 0);
}
static void many_pools(void) { as_many_pools_as_a_process_has(0); }

static void no_addresses(void) {
    struct rlimit most = {8ull << 30, 8ull << 30};
    CHECK(setrlimit(RLIMIT_AS, &most) == 0);
    REFUSED(!open_named("no addresses"), ENOMEM, "ulimit -v");
}
/* Of a pool whose regions have a place of their own, where nothing is. */
static void no_addresses_for_regions(void) {
    terrace_pool *pool = open_sized("few addresses", 64 << 20, TERRACE_KEEP);
    CHECK(pool && terrace_region_open(pool, "one", 4096, 0) && terrace_close(pool) == 0);
    struct rlimit before, most;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    most = before;
    most.rlim_cur = 8ull << 30;
    CHECK(setrlimit(RLIMIT_AS, &most) == 0);
    REFUSED(!open_sized("few addresses", 64 << 20, TERRACE_KEEP), ENOMEM, "ulimit -v");
    REFUSED(!open_sized("few addresses, new", 64 << 20, TERRACE_KEEP), ENOMEM, "ulimit -v");
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK((pool = open_sized("few addresses", 64 << 20, TERRACE_KEEP)));
    CHECK(terrace_region_open(pool, "one", 4096, 0) && terrace_close(pool) == 0);
}
static void no_room_on_the_disk(void) {
    REFUSED(!open_sized("no room", 1ull << 40, 0), ENOSPC, "bytes available");
}
static void no_descriptors(void) {
    /* Whichever of what is opened is the first that cannot be. */
    for (rlim_t more = 0; more < 64; more++) {
        int lowest = open("/dev/null", O_RDONLY);
        CHECK(lowest >= 0 && close(lowest) == 0);
        struct rlimit most;
        CHECK(getrlimit(RLIMIT_NOFILE, &most) == 0);
        most.rlim_cur = lowest + more;
        CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
        terrace_pool *pool = open_named("no descriptors");
        if (!pool) CHECK(errno == EMFILE);
        most.rlim_cur = most.rlim_max;
        CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
        if (pool) {
            CHECK(more > 3 && terrace_close(pool) == 0);
            return;
        }
    }
    CHECK(!"it is never opened");
}

/* A call that goes on for longer than closing waits: who closes is told, and the pool is closed when it ends. */
enum { LONGER_S = 12 };
static int begun;
static void takes_long(void *object, size_t bytes, void *context) {
    (void)object, (void)bytes, (void)context;
    __atomic_store_n(&begun, 1, __ATOMIC_SEQ_CST);
    sleep(LONGER_S);
}
static uint64_t changed;
static void *updates(void *table) {
    CHECK(terrace_update(table, changed, takes_long, NULL) == 0);
    return NULL;
}
static void a_call_that_outlasts_the_close(void) {
    terrace_pool *pool = open_named("held");
    CHECK(pool);
    terrace_table *table = terrace_table_create(pool, 64);
    char object[64] = "changed";
    CHECK(table && terrace_insert(table, object, &changed) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, updates, table) == 0);
    while (!__atomic_load_n(&begun, __ATOMIC_SEQ_CST)) usleep(1000);
    REFUSED(terrace_close(pool) == -1, ETIMEDOUT, "closed when they end");
    REFUSED(!open_named("held"), EBUSY, "");
    CHECK(pthread_join(thread, NULL) == 0);
    pool = open_named("held");
    CHECK(pool && terrace_close(pool) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dir = argv[1];
    const struct named_case cases[] = {
        {"a size that is refused", a_size_that_is_refused},
        {"a kill while it is made anew", a_kill_while_it_is_made_anew},
        {"many pools", many_pools},
        {"no addresses", no_addresses},
        {"no addresses for regions", no_addresses_for_regions},
        {"no room on the disk", no_room_on_the_disk},
        {"no descriptors", no_descriptors},
        {"a call that outlasts the close", a_call_that_outlasts_the_close},
    };
    return RUN_CASES(cases);
}
