// mmap and its family on served memory, and malloc's: what the manual pages promise. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "must.h"

enum { PAGE = 4096, MIB = 1 << 20 };
static sigjmp_buf back;

static void on_fault(int signal) { siglongjmp(back, signal); }

static int faults(volatile char *at, int writes) {
    int signal = sigsetjmp(back, 1);
    if (signal)
        return signal;
    if (writes)
        *at = 1;
    else
        (void)*at;
    return 0;
}

static char *map(size_t len, int prot) {
    char *at = mmap(0, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static int is_all(const char *at, size_t len, char value) {
    for (size_t n = 0; n < len; n += 64)
        if (at[n] != value)
            return 0;
    return 1;
}

// Makes everything leave DRAM, by touching more than the cap.
static void push_out(void) {
    static char *other;
    if (!other)
        other = map(96 * MIB, PROT_READ | PROT_WRITE);
    for (size_t n = 0; n < 96 * MIB; n += PAGE)
        other[n] = (char)(n / PAGE) | 1;
}

static void mappings(void) {
    char *at = map(16 * MIB, PROT_READ | PROT_WRITE);
    MUST(is_all(at, 16 * MIB, 0));
    memset(at, 3, 16 * MIB);
    push_out();
    MUST(is_all(at, 16 * MIB, 3));
    // Advised away, in part and with a length that is no multiple.
    MUST(madvise(at + MIB, MIB - 5, MADV_DONTNEED) == 0);
    MUST(is_all(at + MIB, MIB, 0) && is_all(at + 2 * MIB, MIB, 3) && is_all(at, MIB, 3));
    MUST(madvise(at + 2 * MIB, MIB, MADV_FREE) == 0 && madvise(at, MIB, MADV_WILLNEED) == 0);
    MUST(madvise(at + 1, MIB, MADV_DONTNEED) == -1 && errno == EINVAL);
    // Unmapped in the middle, from before it to behind.
    MUST(munmap(at + 4 * MIB, 2 * MIB) == 0 && munmap(at + 3 * MIB, 4 * MIB) == 0);
    MUST(is_all(at + 7 * MIB, 9 * MIB, 3));
    // Over what is there.
    char *same = mmap(at + 8 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(same == at + 8 * MIB && is_all(same, MIB, 0) && is_all(same + MIB, MIB, 3));
    same = mmap(at + 8 * MIB, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(same == MAP_FAILED && errno == EEXIST);
    MUST(munmap(at, 16 * MIB) == 0);
    MUST(munmap(at + 1, MIB) == -1 && errno == EINVAL);
}

static void moved(void) {
    char *at = map(MIB, PROT_READ | PROT_WRITE), *fence = map(MIB, PROT_READ | PROT_WRITE);
    memset(at, 5, MIB);
    push_out();
    char *grown = mremap(at, MIB, 8 * MIB, MREMAP_MAYMOVE);
    MUST(grown != MAP_FAILED && is_all(grown, MIB, 5) && is_all(grown + MIB, 7 * MIB, 0));
    memset(grown, 6, 8 * MIB);
    char *shrunk = mremap(grown, 8 * MIB, 2 * MIB, 0);
    MUST(shrunk == grown && is_all(shrunk, 2 * MIB, 6));
    char *again = mremap(shrunk, 2 * MIB, 4 * MIB, MREMAP_MAYMOVE);
    MUST(again != MAP_FAILED && is_all(again, 2 * MIB, 6) && is_all(again + 2 * MIB, 2 * MIB, 0));
    MUST(munmap(again, 4 * MIB) == 0 && munmap(fence, MIB) == 0);
}

// Closed memory that grows keeps what is in it, and its protection; what is only reserved needs no room.
static void closed_and_moved(void) {
    char *at = map(MIB, PROT_READ | PROT_WRITE), *fence = map(MIB, PROT_READ | PROT_WRITE);
    memset(at, 5, MIB);
    MUST(mprotect(at, MIB, PROT_NONE) == 0);
    char *grown = mremap(at, MIB, 8 * MIB, MREMAP_MAYMOVE);
    MUST(grown != MAP_FAILED && faults(grown, 0) == SIGSEGV && faults(grown + 7 * MIB, 1) == SIGSEGV);
    MUST(mprotect(grown, 8 * MIB, PROT_READ | PROT_WRITE) == 0);
    MUST(is_all(grown, MIB, 5) && is_all(grown + MIB, 7 * MIB, 0));
    MUST(munmap(fence, MIB) == 0);
    fence = map(MIB, PROT_READ | PROT_WRITE);
    memset(grown, 6, 8 * MIB);
    MUST(mprotect(grown, 8 * MIB, PROT_READ) == 0);
    push_out();
    at = mremap(grown, 8 * MIB, 12 * MIB, MREMAP_MAYMOVE);
    MUST(at != MAP_FAILED && is_all(at, 8 * MIB, 6) && is_all(at + 8 * MIB, 4 * MIB, 0) && faults(at + 9 * MIB, 1) == SIGSEGV);
    // Of several protections it is several mappings, which do not grow, and shrink.
    for (int prot = PROT_NONE; prot <= PROT_READ; prot++) {
        MUST(mprotect(at, 12 * MIB, PROT_READ | PROT_WRITE) == 0 && mprotect(at + 3 * MIB, PAGE, prot) == 0);
        MUST(mremap(at, 12 * MIB, 16 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
        MUST(is_all(at, 3 * MIB, 6) && is_all(at + 3 * MIB + PAGE, 5 * MIB - PAGE, 6) && faults(at + 3 * MIB, 1) == SIGSEGV);
    }
    MUST(mremap(at, 12 * MIB, 4 * MIB, 0) == at && at[3 * MIB] == 6 && munmap(at, 4 * MIB) == 0 && munmap(fence, MIB) == 0);
    // More than the SSD has.
    at = map(256 * MIB, PROT_NONE);
    fence = map(MIB, PROT_READ | PROT_WRITE);
    grown = mremap(at, 256 * MIB, 4096UL * MIB, MREMAP_MAYMOVE);
    MUST(grown != MAP_FAILED && faults(grown + 2048UL * MIB, 0) == SIGSEGV);
    MUST(mprotect(grown + 2048UL * MIB, MIB, PROT_READ | PROT_WRITE) == 0 && is_all(grown + 2048UL * MIB, MIB, 0));
    MUST(munmap(grown, 4096UL * MIB) == 0 && munmap(fence, MIB) == 0);
}

static void closed(void) {
    char *at = map(4 * MIB, PROT_READ | PROT_WRITE);
    memset(at, 7, 4 * MIB);
    MUST(mprotect(at + MIB, PAGE, PROT_NONE) == 0 && mprotect(at + 2 * MIB, MIB, PROT_READ) == 0);
    MUST(faults(at + MIB, 0) == SIGSEGV && faults(at + MIB, 1) == SIGSEGV && faults(at + MIB + PAGE, 1) == 0);
    MUST(faults(at + 2 * MIB, 0) == 0 && faults(at + 2 * MIB, 1) == SIGSEGV);
    push_out();
    MUST(faults(at + MIB, 0) == SIGSEGV && faults(at + 2 * MIB + PAGE, 1) == SIGSEGV);
    MUST(is_all(at + 2 * MIB, MIB, 7));
    MUST(mprotect(at, 4 * MIB, PROT_READ | PROT_WRITE) == 0);
    MUST(at[MIB] == 7 && faults(at + MIB, 1) == 0 && is_all(at + 2 * MIB, MIB, 7));
    MUST(mprotect(at + MIB, PAGE, PROT_NONE) == 0 && munmap(at, 4 * MIB) == 0);
    // A reservation that becomes memory bit by bit.
    char *reserved = map(256 * MIB, PROT_NONE);
    MUST(faults(reserved + MIB, 0) == SIGSEGV);
    MUST(mprotect(reserved + MIB, MIB, PROT_READ | PROT_WRITE) == 0);
    memset(reserved + MIB, 9, MIB);
    push_out();
    MUST(is_all(reserved + MIB, MIB, 9) && faults(reserved + 3 * MIB, 0) == SIGSEGV);
    MUST(munmap(reserved, 256 * MIB) == 0);
    // An allocation with a guard page, given back as it is.
    char *rounded = aligned_alloc(24, 240), *larger = aligned_alloc(3 * PAGE, 64 * PAGE);
    MUST(rounded && (uintptr_t)rounded % 32 == 0 && larger && (uintptr_t)larger % (4 * PAGE) == 0);
    free(rounded), free(larger);
    char *guarded = aligned_alloc(PAGE, 64 * PAGE);
    MUST(guarded && mprotect(guarded + 63 * PAGE, PAGE, PROT_NONE) == 0);
    MUST(faults(guarded + 63 * PAGE, 1) == SIGSEGV);
    free(guarded);
    for (int n = 0; n < 8; n++) {
        guarded = malloc(64 * PAGE);
        memset(guarded, 1, 64 * PAGE);
        free(guarded);
    }
}

static void refused(void) {
    char *at = map(MIB, PROT_READ | PROT_WRITE);
    MUST(mlock(at, MIB) == -1 && mlockall(MCL_CURRENT) == -1);
    FILE *file = tmpfile();
    MUST(file && ftruncate(fileno(file), MIB) == 0);
    MUST(mmap(at, MIB, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(file), 0) == MAP_FAILED);
    memset(at, 2, MIB);
    MUST(is_all(at, MIB, 2));
    char *shared = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    MUST(shared != MAP_FAILED && memset(shared, 1, MIB) && munmap(shared, MIB) == 0);
    fclose(file);
    munmap(at, MIB);
    MUST(malloc(1UL << 60) == NULL && errno == ENOMEM);
    MUST(calloc(1UL << 40, 1UL << 40) == NULL && reallocarray(NULL, 1UL << 40, 1UL << 40) == NULL);
}

static void allocations(void) {
    static char *held[400];
    static size_t bytes[400];
    unsigned seed = 1;
    for (int n = 0; n < 20000; n++) {
        seed = seed * 1103515245 + 12345;
        int at = (seed >> 8) % 400;
        size_t want = (seed >> 16) % 100 ? (seed >> 10) % 20000 : (seed >> 6) % 3000000;
        char mark = (char)at | 1;
        if (held[at] && bytes[at])
            MUST(held[at][0] == mark && held[at][bytes[at] - 1] == mark && held[at][bytes[at] / 2] == mark);
        switch ((seed >> 4) % 5) {
        case 0:
            free(held[at]);
            held[at] = calloc(1, want);
            MUST(held[at] && is_all(held[at], want, 0));
            break;
        case 1: {
            size_t kept = bytes[at] < want ? bytes[at] : want;
            char *moved = realloc(held[at], want);
            if (!want) {
                held[at] = NULL;
                bytes[at] = 0;
                continue;
            }
            MUST(moved && (!kept || (moved[0] == mark && moved[kept / 2] == mark)));
            held[at] = moved;
            break;
        }
        case 2:
            free(held[at]);
            MUST(posix_memalign((void **)&held[at], 1UL << (4 + seed % 13), want) == 0);
            MUST((uintptr_t)held[at] % (1UL << (4 + seed % 13)) == 0);
            break;
        default:
            free(held[at]);
            held[at] = malloc(want);
        }
        MUST(held[at] && (!want || malloc_usable_size(held[at]) >= want));
        bytes[at] = want;
        memset(held[at], mark, want);
    }
    for (int at = 0; at < 400; at++)
        free(held[at]);
}

// What is aligned to more than a page table, too, is served: nothing of it stays in DRAM beside the cap.
static void aligned(void) {
    for (size_t align = 2 * MIB; align <= 1024UL * MIB; align *= 8) {
        char *at = NULL, *small = aligned_alloc(align, PAGE);
        MUST(posix_memalign((void **)&at, align, 96 * MIB) == 0 && (uintptr_t)at % align == 0);
        MUST(small && (uintptr_t)small % align == 0);
        memset(at, 3, 96 * MIB);
        memset(small, 4, PAGE);
        MUST(is_all(at, 96 * MIB, 3) && is_all(small, PAGE, 4));
        unsigned long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        MUST(file && fscanf(file, "%*u %lu", &pages) == 1 && fclose(file) == 0);
        MUST(pages * PAGE < 72 * MIB);
        free(at);
        free(small);
    }
    // Served memory has no such place: it is there, and a line says that it is not served.
    char *other = aligned_alloc(2048UL * MIB, PAGE);
    MUST(other && (uintptr_t)other % (2048UL * MIB) == 0);
    free(other);
}

int main(void) {
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK | SA_NODEFER};
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    push_out();
    mappings();
    moved();
    closed();
    closed_and_moved();
    refused();
    allocations();
    aligned();
    puts("OK");
    return 0;
}
