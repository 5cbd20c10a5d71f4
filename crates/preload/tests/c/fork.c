// A child of fork sees its parent's memory as it was, word for word, while the parent goes on writing several times the cap; the parent sees nothing of
// what the child writes; and so on with a child of the child. Prints OK.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 100 * 256, WORDS = 512, LOOKED_AT = 4, DEPTH = 40 };
static unsigned long *memory;

static unsigned long expected(unsigned long version, long page, int k) {
    // Some pages hold one value throughout, some zeros.
    if (page % 5 == 0)
        return page % 10 ? version : 0;
    return version * 1000003 + page * 7 + k;
}

static void fill(unsigned long version) {
    for (long page = 0; page < PAGES; page++)
        for (int k = 0; k < LOOKED_AT; k++)
            memory[page * WORDS + k * 100] = expected(version, page, k);
}

static long wrong(unsigned long version) {
    long wrong = 0;
    for (long page = 0; page < PAGES; page++)
        for (int k = 0; k < LOOKED_AT; k++)
            wrong += memory[page * WORDS + k * 100] != expected(version, page, k);
    return wrong;
}

static int ended_well(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child && status == 0;
}

static int grandchild(unsigned long version) {
    long bad = wrong(version);
    fill(version + 1000);
    bad += wrong(version + 1000);
    return bad != 0;
}

static int child(unsigned long version, int go) {
    char byte;
    long bad = wrong(version);
    if (read(go, &byte, 1) != 1)
        return 2;
    bad += wrong(version);
    fill(version + 100);
    bad += wrong(version + 100);
    // Allocating and freeing goes on.
    for (int n = 0; n < 20; n++) {
        char *more = malloc(3 << 20);
        if (!more)
            return 3;
        memset(more, 7, 3 << 20);
        free(more);
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(grandchild(version + 100));
    if (pid < 0 || !ended_well(pid))
        return 4;
    bad += wrong(version + 100);
    return bad != 0;
}

int main(void) {
    memory = calloc(PAGES, WORDS * sizeof *memory);
    if (!memory)
        return 1;
    fill(1);
    for (unsigned long round = 1; round <= 3; round++) {
        int go[2];
        if (pipe(go))
            return 1;
        pid_t pid = fork();
        if (pid < 0) {
            perror("fork");
            return 1;
        }
        if (pid == 0)
            _exit(child(round, go[0]));
        fill(round + 1);
        long bad = wrong(round + 1);
        if (write(go[1], "x", 1) != 1)
            return 1;
        int well = ended_well(pid);
        bad += wrong(round + 1);
        if (bad || !well) {
            printf("round %lu: %ld wrong, child %s\n", round, bad, well ? "well" : "not");
            return 1;
        }
    }
    // Many short ones, as shells have them.
    for (int n = 0; n < 50; n++) {
        memory[n * WORDS] = n;
        pid_t pid = fork();
        if (pid == 0)
            _exit(memory[n * WORDS] == (unsigned long)n ? 0 : 1);
        if (pid < 0 || !ended_well(pid)) {
            printf("short child %d failed\n", n);
            return 1;
        }
    }
    // One after the other, each forks the next and ends, as daemons do that make themselves new.
    int last[2];
    if (pipe(last))
        return 1;
    fflush(stdout);
    pid_t pid = fork();
    for (int depth = 0; pid == 0; depth++) {
        if (depth < 50 && memory[depth * WORDS] != (unsigned long)depth)
            _exit(1);
        memory[depth * WORDS] = depth;
        if (depth == DEPTH)
            _exit(write(last[1], "x", 1) != 1);
        pid = fork();
        if (pid != 0)
            _exit(pid < 0);
    }
    char x;
    close(last[1]);
    if (pid < 0 || read(last[0], &x, 1) != 1) {
        puts("a chain of children ended early");
        return 1;
    }
    puts("OK");
    return 0;
}
