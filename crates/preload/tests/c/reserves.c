// Reserves as many GiB of addresses as it is told, and uses a part of them, as Java does with its heap. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "must.h"

enum { MIB = 1 << 20, PAGE = 4096 };

static sigjmp_buf back;

static void jumps(int signal) {
    siglongjmp(back, signal);
}

// More than the SSD has is refused, and stays closed.
static int is_refused(size_t all) {
    char *at = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(at != MAP_FAILED && signal(SIGSEGV, jumps) != SIG_ERR);
    MUST(mmap(at, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED && errno == ENOMEM);
    int came = sigsetjmp(back, 1);
    if (!came)
        at[5 * PAGE] = 7;
    MUST(came == SIGSEGV && munmap(at, all) == 0);
    at = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED && at[5 * PAGE] == 0);
    return puts("OK") < 0;
}

int main(int count, char **args) {
    MUST(count >= 2);
    if (count > 2)
        return is_refused(strtoul(args[1], NULL, 10) << 30);
    size_t all = strtoul(args[1], NULL, 10) << 30, used = 160 * MIB;
    char *at = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(at != MAP_FAILED);
    // Half by a mapping in its place, half by rights.
    char *from = at + all / 2;
    MUST(mmap(from, used / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == from);
    MUST(mprotect(from + used / 2, used / 2, PROT_READ | PROT_WRITE) == 0);
    for (size_t n = 0; n < used; n += 8)
        *(size_t *)(from + n) = n * 7;
    for (size_t n = 0; n < used; n += 8)
        MUST(*(size_t *)(from + n) == n * 7);
    MUST(munmap(at, all) == 0);
    // Who takes one address only (ZGC) tries many, and gets one.
    char *hint = (char *)((size_t)1 << 42);
    int tries = 0;
    do {
        at = mmap(hint, (size_t)2 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(at != MAP_FAILED && munmap(at, (size_t)2 << 30) == 0);
    } while (at != hint && ++tries < 1000);
    MUST(at == hint);
    puts("OK");
}
