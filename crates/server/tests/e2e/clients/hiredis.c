/* A client in C over hiredis: binary values of all lengths, pipelines, transactions, errors; compared with a model. HOST PORT. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, c && c->err ? c->errstr : "no error of the connection"); exit(1); } } while (0)

enum { KEYS = 500, ROUNDS = 4000, IN_FLIGHT = 64, VALUE_MAX = 3000000 };
static redisContext *c;
static unsigned length[KEYS], start[KEYS];
static char *bytes;

static redisReply *got(int type) {
    redisReply *r = NULL;
    MUST(redisGetReply(c, (void **)&r) == REDIS_OK && r);
    if (r->type != type) fprintf(stderr, "a reply of type %d: %s\n", r->type, r->str ? r->str : "");
    MUST(r->type == type);
    return r;
}

static void is_value(redisReply *r, int key) {
    MUST(r->len == length[key] && memcmp(r->str, bytes + start[key], r->len) == 0);
    freeReplyObject(r);
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    c = redisConnect(argv[1], atoi(argv[2]));
    MUST(c && !c->err);
    struct timeval most = {30, 0};
    MUST(redisSetTimeout(c, most) == REDIS_OK);
    bytes = malloc(VALUE_MAX + 100000);
    MUST(bytes);
    srand(7);
    for (int i = 0; i < VALUE_MAX + 100000; i++) bytes[i] = rand() >> 7;
    for (int k = 0; k < KEYS; k++) {
        length[k] = k % 50 == 49 ? 1u << (10 + k / 50) : (unsigned)rand() % 2000;
        start[k] = rand() % 100000;
        redisAppendCommand(c, "SET key:%d %b", k, bytes + start[k], (size_t)length[k]);
    }
    for (int k = 0; k < KEYS; k++) { redisReply *r = got(REDIS_REPLY_STATUS); MUST(strcmp(r->str, "OK") == 0); freeReplyObject(r); }
    for (int round = 0; round < ROUNDS / IN_FLIGHT; round++) {
        int asked[IN_FLIGHT], set[IN_FLIGHT];
        for (int i = 0; i < IN_FLIGHT; i++) {
            int k = asked[i] = rand() % KEYS;
            set[i] = rand() % 3 == 0;
            if (set[i]) { length[k] = rand() % 5000; start[k] = rand() % 100000; }
            if (set[i]) redisAppendCommand(c, "SET key:%d %b", k, bytes + start[k], (size_t)length[k]);
            else redisAppendCommand(c, "STRLEN key:%d", k);
            set[i] = set[i] ? -1 : (int)length[k];
        }
        for (int i = 0; i < IN_FLIGHT; i++) {
            if (set[i] < 0) { freeReplyObject(got(REDIS_REPLY_STATUS)); continue; }
            redisReply *r = got(REDIS_REPLY_INTEGER);
            MUST(r->integer == set[i]);
            freeReplyObject(r);
        }
    }
    for (int k = 0; k < KEYS; k++) redisAppendCommand(c, "GET key:%d", k);
    for (int k = 0; k < KEYS; k++) is_value(got(REDIS_REPLY_STRING), k);
    length[0] = VALUE_MAX; start[0] = 0;
    redisAppendCommand(c, "SET key:0 %b", bytes, (size_t)VALUE_MAX);
    freeReplyObject(got(REDIS_REPLY_STATUS));
    redisAppendCommand(c, "GET key:0");
    is_value(got(REDIS_REPLY_STRING), 0);
    redisAppendCommand(c, "GET none");
    freeReplyObject(got(REDIS_REPLY_NIL));
    redisAppendCommand(c, "INCR key:1");
    freeReplyObject(got(REDIS_REPLY_ERROR));
    redisAppendCommand(c, "MULTI");
    freeReplyObject(got(REDIS_REPLY_STATUS));
    redisAppendCommand(c, "SET n 41");
    redisAppendCommand(c, "INCR n");
    redisAppendCommand(c, "GET key:2");
    redisAppendCommand(c, "EXEC");
    for (int i = 0; i < 3; i++) freeReplyObject(got(REDIS_REPLY_STATUS));
    redisReply *r = got(REDIS_REPLY_ARRAY);
    MUST(r->elements == 3 && r->element[1]->integer == 42 && r->element[2]->len == length[2]);
    freeReplyObject(r);
    redisAppendCommand(c, "MGET key:3 none key:4");
    r = got(REDIS_REPLY_ARRAY);
    MUST(r->elements == 3 && r->element[0]->len == length[3] && r->element[1]->type == REDIS_REPLY_NIL);
    freeReplyObject(r);
    redisFree(c);
    puts("ok");
    return 0;
}
