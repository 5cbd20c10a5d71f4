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
        {"calls at exit", calls_at_exit},
    };
    return RUN_CASES(cases);
}
