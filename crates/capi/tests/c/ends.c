/* Calls at the end of a thread or of the program, when what the library keeps for the thread may be gone. */
#include "cases.h"

static terrace_pool *pool;
static void *freed;
static pthread_key_t key;
static int ended;

static void fails(void *unused) {
    (void)unused;
    errno = 0;
    CHECK(terrace_free(freed) == -1 && errno == EINVAL);
    CHECK(strlen(terrace_last_error()) > 0);
    ended = 1;
}
static void works(void *unused) {
    (void)unused;
    void *memory = terrace_malloc(pool, 100);
    CHECK(memory && terrace_free(memory) == 0);
    ended = 1;
}

static void begin(void) {
    pool = open_named("pool");
    CHECK(pool);
    freed = terrace_malloc(pool, 10);
    CHECK(terrace_free(freed) == 0);
}

static void *thread(void *unused) {
    (void)unused;
    /* So that there is a text of this thread's. */
    CHECK(terrace_free(freed) == -1);
    pthread_setspecific(key, &key);
    return NULL;
}
static void end_with(void (*destructor)(void *)) {
    begin();
    CHECK(pthread_key_create(&key, destructor) == 0);
    pthread_t one;
    CHECK(pthread_create(&one, NULL, thread, NULL) == 0);
    pthread_join(one, NULL);
    CHECK(ended);
    CHECK(terrace_close(pool) == 0);
}
static void a_call_that_fails(void) { end_with(fails); }
static void a_call_that_works(void) { end_with(works); }

/* The thread that opened it closes it when all that is kept for a thread is gone. */
static terrace_pool *own;
static uint32_t fault_threads;

static terrace_pool *open_kept(void) { return open_with("kept", 64 << 20, TERRACE_KEEP, fault_threads); }
static void closes(void *again) {
    /* Destructors that set their key again are run again, after all others. */
    if (again == &key) {
        CHECK(pthread_setspecific(key, &ended) == 0);
        return;
    }
    CHECK(terrace_close(own) == 0);
    ended = 1;
}
static void *opens(void *unused) {
    (void)unused;
    /* One was closed by this thread, for which the library kept something from then on. */
    own = open_kept();
    CHECK(own && terrace_close(own) == 0);
    own = open_kept();
    CHECK(own);
    terrace_region *region = terrace_region_open(own, "r", 1 << 20, 0);
    CHECK(region);
    memset(terrace_region_base(region), 7, 1 << 20);
    pthread_setspecific(key, &key);
    return NULL;
}
static void a_close_in_its_end(void) {
    begin();
    own = open_kept();
    CHECK(own && terrace_close(own) == 0);
    CHECK(pthread_key_create(&key, closes) == 0);
    for (int round = 0; round < 3; round++) {
        ended = 0;
        pthread_t one;
        CHECK(pthread_create(&one, NULL, opens, NULL) == 0);
        pthread_join(one, NULL);
        CHECK(ended);
        /* It is closed, and faults of others are served. */
        own = open_kept();
        CHECK(own && terrace_close(own) == 0);
        char *memory = terrace_malloc(pool, 1 << 20);
        CHECK(memory);
        memset(memory, 1, 1 << 20);
        CHECK(terrace_free(memory) == 0);
    }
    CHECK(terrace_close(pool) == 0);
}
static void a_close_with_threads_in_its_end(void) {
    fault_threads = 2;
    a_close_in_its_end();
}

static void at_exit(void) {
    CHECK(terrace_close(pool) == 0);
    REFUSED(terrace_close(pool) == -1, EBADF, "");
}
static void calls_at_exit(void) {
    begin();
    CHECK(terrace_free(freed) == -1);
    CHECK(atexit(at_exit) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dir = argv[1];
    const struct named_case cases[] = {
        {"a call that fails in a thread's end", a_call_that_fails},
        {"a call that works in a thread's end", a_call_that_works},
        {"a close in its thread's end", a_close_in_its_end},
        {"a close in its thread's end, with fault threads", a_close_with_threads_in_its_end},
        {"calls at exit", calls_at_exit},
    };
    return RUN_CASES(cases);
}
