// A child of fork that lives long: its parent writes all of its memory again and again, several times what the pool has room for, and after each time the child looks at
// all of its own, which is as it was but for what it wrote itself. The arguments say how many MiB, and for how many seconds, five rounds at least; prints the rounds and OK.
#define _GNU_SOURCE
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "odd.h"

enum { ROUNDS_MIN = 5, LOOKED_AT = 5, OF_THE_CHILD = 97 };

// Every page in full, in an order of each version's own.
static void write_all(unsigned long version) {
    for (size_t n = 0; n < pages; n++) {
        unsigned long *page = memory + (n * 7919 + version * 104729) % pages * WORDS;
        for (int w = 0; w < WORDS; w++)
            page[w] = mixed((page - memory + w) ^ version << 40);
    }
}

static void is_all(unsigned long version) {
    for (size_t n = 0; n < pages * WORDS; n++)
        MUST(memory[n] == mixed(n ^ version << 40));
}

// The child's: every so many pages it has written itself, with the round's number.
static void childs(unsigned long round) {
    for (size_t page = 0; page < pages; page++)
        for (size_t n = page * WORDS; n < (page + 1) * WORDS; n++)
            MUST(memory[n] == mixed(page % OF_THE_CHILD == 0 ? n ^ (round + 1000) << 40 : n));
    for (size_t page = 0; page < pages; page += OF_THE_CHILD)
        for (size_t n = page * WORDS; n < (page + 1) * WORDS; n++)
            memory[n] = mixed(n ^ (round + 1001) << 40);
}

int main(int count, char **args) {
    MUST(count == 3);
    time_t ends = time(NULL) + atoi(args[2]);
    int go[2], done[2];
    unsigned long round = 0;
    fill(atoi(args[1]) * MIB);
    check();
    MUST(pipe(go) == 0 && pipe(done) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        char byte;
        close(go[1]);
        for (size_t page = 0; page < pages; page += OF_THE_CHILD)
            for (size_t n = page * WORDS; n < (page + 1) * WORDS; n++)
                memory[n] = mixed(n ^ 1000ul << 40);
        for (; read(go[0], &byte, 1) == 1; round++) {
            childs(round);
            MUST(write(done[1], "d", 1) == 1);
        }
        _exit(0);
    }
    close(done[1]);
    for (round = 1; round <= ROUNDS_MIN || time(NULL) < ends; round++) {
        char byte;
        write_all(round);
        MUST(write(go[1], "g", 1) == 1 && read(done[0], &byte, 1) == 1);
        if (round % LOOKED_AT == 0)
            is_all(round);
    }
    close(go[1]);
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    is_all(round - 1);
    printf("%lu rounds OK\n", round - 1);
    return 0;
}
