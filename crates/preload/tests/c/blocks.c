// A child of fork that only waits, while its parent frees one of three of many small blocks and looks at some of the others: of what is known of blocks, which lies
// outside of served memory, there are two then. The argument says how many MiB of blocks; prints the most that both had in DRAM, KiB, and OK.
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "odd.h"

// Three on a page.
enum { BLOCK = 1200, LOOKS = 16, STEP = 7919 };

static unsigned long **blocks;

static unsigned long kib(const char *file, const char *name) {
    char line[256];
    unsigned long found = 0, more;
    FILE *lines = fopen(file, "r");
    MUST(lines);
    while (fgets(line, sizeof line, lines))
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%lu", &more) == 1)
            found += more;
    fclose(lines);
    return found;
}

int main(int count, char **args) {
    MUST(count == 2);
    size_t all = atoi(args[1]) * MIB / BLOCK;
    int go[2];
    blocks = malloc(all * sizeof *blocks);
    for (size_t at = 0; at < all; at++) {
        blocks[at] = malloc(BLOCK);
        MUST(blocks[at]);
        blocks[at][0] = mixed(at);
    }
    MUST(pipe(go) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        char byte;
        close(go[1]);
        MUST(read(go[0], &byte, 1) == 0);
        for (size_t at = 0; at < all; at += STEP)
            MUST(blocks[at][0] == mixed(at));
        _exit(0);
    }
    char childs[64];
    unsigned long most = 0;
    snprintf(childs, sizeof childs, "/proc/%d/smaps_rollup", pid);
    for (size_t at = 0; at < all; at += 3)
        free(blocks[at]);
    for (int n = 0; n < LOOKS; n++) {
        for (size_t at = 1; at < all / LOOKS; at += 3)
            MUST(blocks[at][0] == mixed(at));
        unsigned long now = kib("/proc/self/status", "RssAnon:") + kib("/proc/self/status", "RssShmem:") + kib(childs, "Private_Dirty:");
        most = now > most ? now : most;
    }
    close(go[1]);
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    printf("%lu KiB OK\n", most);
    return 0;
}
