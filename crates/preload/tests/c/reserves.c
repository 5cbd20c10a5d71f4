// Reserves as many GiB of addresses as it is told, and uses a part of them, as Java does with its heap. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "must.h"

enum { MIB = 1 << 20, PAGE = 4096 };

int main(int count, char **args) {
    MUST(count == 2);
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
