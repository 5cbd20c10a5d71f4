// Two children of fork and DRAM that their parent does not use. Each child goes over memory of its own, many times what a child has at least; then one goes on, while the other waits. Then
// the parent needs as much as there is, and children give back what they had. Prints, KiB: what both had when they worked, and when the parent had worked, and OK.
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "odd.h"

enum { CHILDREN = 2, OF_A_CHILD_MIB = 64, OF_THE_PARENT_MIB = 320, ROUNDS = 12, LONGEST_S = 60, LEAST_KIB = 20 << 10 };

static unsigned long kib(pid_t pid) {
    char file[64], line[256];
    unsigned long found = 0;
    snprintf(file, sizeof file, "/proc/%d/status", pid);
    FILE *lines = fopen(file, "r");
    MUST(lines);
    while (fgets(line, sizeof line, lines))
        if (strncmp(line, "RssAnon:", 8) == 0)
            found = strtoul(line + 8, NULL, 10);
    fclose(lines);
    return found;
}

// Reads words of pages in no order.
static void touch(size_t count, unsigned long from) {
    for (size_t n = 0; n < count; n++) {
        size_t at = mixed(n ^ from << 32) % (pages * WORDS);
        MUST(memory[at] == mixed(at));
    }
}

static void child(int go, int done) {
    char byte;
    fill(OF_A_CHILD_MIB * MIB);
    for (int round = 0; round < ROUNDS; round++)
        touch(pages, round);
    MUST(write(done, "d", 1) == 1);
    MUST(read(go, &byte, 1) == 0);
    check();
    _exit(0);
}

int main(void) {
    int go[2], done[2];
    pid_t pids[CHILDREN];
    fill(4 * MIB);
    MUST(pipe(go) == 0 && pipe(done) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pids[n] = fork();
        MUST(pids[n] >= 0);
        if (pids[n] == 0) {
            close(go[1]);
            child(go[0], done[1]);
        }
    }
    char bytes[CHILDREN];
    for (int n = 0; n < CHILDREN; n++)
        MUST(read(done[0], bytes + n, 1) == 1);
    unsigned long grown = 0, left = 0;
    for (int n = 0; n < CHILDREN; n++)
        grown += kib(pids[n]);
    fill(OF_THE_PARENT_MIB * MIB);
    for (time_t ends = time(NULL) + LONGEST_S; time(NULL) < ends; ) {
        touch(pages / 8, ends - time(NULL) + 100);
        left = 0;
        for (int n = 0; n < CHILDREN; n++)
            left += kib(pids[n]);
        if (left <= CHILDREN * LEAST_KIB)
            break;
    }
    close(go[1]);
    for (int n = 0; n < CHILDREN; n++) {
        int status;
        MUST(waitpid(pids[n], &status, 0) == pids[n] && status == 0);
    }
    check();
    printf("%lu %lu OK\n", grown, left);
    return 0;
}
