// What Linux does at the edges of mmap and its family: holes, lengths of nothing, memory of several mappings, moves to a said place. Its tests run it without Terrace, too. The
// argument says which part; prints OK, or the line that failed.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "must.h"

enum { PAGE = 4096, MIB = 1 << 20, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };
enum { MOVES = MREMAP_MAYMOVE, KEEPS = MREMAP_MAYMOVE | 4, THERE = MREMAP_MAYMOVE | MREMAP_FIXED };
#define FAILS(what, why) MUST((what) && errno == (why))

static sigjmp_buf back;

static void on_fault(int signal) { siglongjmp(back, signal); }

static int faults(volatile char *at, int writes) {
    int signal = sigsetjmp(back, 1);
    if (signal)
        return signal;
    if (writes)
        *at = *at;
    else
        (void)*at;
    return 0;
}

static int is_all(const char *at, size_t len, char value) {
    for (size_t n = 0; n < len; n += 64)
        if (at[n] != value)
            return 0;
    return 1;
}

static char *map(size_t len, int prot) {
    char *at = mmap(0, len, prot, ANON, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static char *filled(size_t len, char value) { return memset(map(len, RW), value, len); }

// Makes everything leave DRAM, by touching more than the cap.
static void push_out(void) {
    static char *other;
    if (!other)
        other = map(96 * MIB, RW);
    for (size_t n = 0; n < 96 * MIB; n += PAGE)
        other[n] = (char)(n / PAGE) | 1;
}

// What is not mapped cannot be closed, and what is mapped there later is open.
static void protects(void) {
    char *at = map(MIB, RW), *fence = map(MIB, PROT_NONE);
    MUST(munmap(at, MIB) == 0);
    FAILS(mprotect(at, MIB, PROT_NONE) == -1, ENOMEM);
    for (int n = 0; n < 40; n++)
        MUST(faults(map(MIB, RW), 1) == 0);
    MUST(faults(fence, 0) == SIGSEGV);
}

static void fixed(void) {
    char *at = filled(8 * MIB, 3);
    MUST(munmap(at + 4 * MIB, MIB) == 0);
    MUST(mmap(at + 4 * MIB, MIB, RW, ANON | MAP_FIXED, -1, 0) == at + 4 * MIB);
    MUST(is_all(at + 4 * MIB, MIB, 0) && is_all(at, 4 * MIB, 3) && is_all(at + 5 * MIB, 3 * MIB, 3));
    memset(at + 4 * MIB, 4, MIB);
    // In the middle of a longer one.
    MUST(munmap(at + MIB, 3 * MIB) == 0);
    MUST(mmap(at + 2 * MIB, MIB, RW, ANON | MAP_FIXED, -1, 0) == at + 2 * MIB);
    memset(at + 2 * MIB, 5, MIB);
    FAILS(mprotect(at + MIB, PAGE, RW) == -1, ENOMEM);
    FAILS(mprotect(at + 3 * MIB, PAGE, RW) == -1, ENOMEM);
    push_out();
    MUST(is_all(at, MIB, 3) && is_all(at + 2 * MIB, MIB, 5) && is_all(at + 4 * MIB, MIB, 4) && is_all(at + 5 * MIB, 3 * MIB, 3));
    // Over both holes, and what is between and behind.
    MUST(mmap(at + MIB, 4 * MIB, PROT_READ, ANON | MAP_FIXED, -1, 0) == at + MIB);
    MUST(is_all(at + MIB, 4 * MIB, 0) && faults(at + 3 * MIB, 1) == SIGSEGV && faults(at + 4 * MIB, 1) == SIGSEGV);
    MUST(is_all(at, MIB, 3) && is_all(at + 5 * MIB, 3 * MIB, 3));
    // Closed in a hole, and opened later.
    MUST(munmap(at, 8 * MIB) == 0 && mmap(at, 4 * MIB, PROT_NONE, ANON | MAP_FIXED, -1, 0) == at);
    MUST(faults(at, 0) == SIGSEGV && mprotect(at + MIB, MIB, RW) == 0 && is_all(at + MIB, MIB, 0) && faults(at + 2 * MIB, 0) == SIGSEGV);
    MUST(munmap(at, 4 * MIB) == 0);
    FAILS(mmap(at, 0, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED, EINVAL);
    FAILS(mmap(at + 1, MIB, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED, EINVAL);
}

static void noreplace(void) {
    char *at = filled(8 * MIB, 3), *hole = at + 4 * MIB;
    MUST(munmap(hole, MIB) == 0);
    FAILS(mmap(hole, 2 * MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED, EEXIST);
    FAILS(mmap(hole - PAGE, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED, EEXIST);
    MUST(mmap(hole, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == hole && is_all(hole, MIB, 0));
    memset(hole, 4, MIB);
    FAILS(mmap(hole, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED, EEXIST);
    push_out();
    MUST(is_all(at, 4 * MIB, 3) && is_all(hole, MIB, 4) && is_all(hole + MIB, 3 * MIB, 3));
}

static void shrinks(void) {
    char *at = map(MIB, PROT_NONE);
    MUST(mprotect(at, MIB / 2, RW) == 0);
    memset(at, 7, MIB / 2);
    MUST(mremap(at, MIB, MIB / 4, 0) == at && is_all(at, MIB / 4, 7));
    FAILS(madvise(at + MIB / 4, PAGE, MADV_NORMAL) == -1, ENOMEM);
    FAILS(madvise(at + MIB / 2, PAGE, MADV_NORMAL) == -1, ENOMEM);
    // Of several mappings with a hole between them.
    at = filled(4 * MIB, 6);
    MUST(munmap(at + 2 * MIB, MIB) == 0 && mprotect(at + MIB, PAGE, PROT_READ) == 0);
    MUST(mremap(at, 4 * MIB, MIB + PAGE, MOVES) == at && is_all(at, MIB + PAGE, 6) && faults(at + MIB, 1) == SIGSEGV);
    FAILS(madvise(at + 3 * MIB, PAGE, MADV_NORMAL) == -1, ENOMEM);
    FAILS(mremap(at + 2 * MIB, MIB, PAGE, 0) == MAP_FAILED, EFAULT);
    FAILS(mremap(at, MIB, 0, MOVES) == MAP_FAILED, EINVAL);
    FAILS(mremap(at, 0, MIB, MOVES) == MAP_FAILED, EINVAL);
    FAILS(mremap(at + 1, MIB, PAGE, MOVES) == MAP_FAILED, EINVAL);
    MUST(is_all(at, MIB, 6));
}

static void lengths(void) {
    char *at = filled(MIB, 5);
    FAILS(munmap(at, 0) == -1, EINVAL);
    FAILS(munmap(at + 1, PAGE) == -1, EINVAL);
    FAILS(munmap(at, SIZE_MAX) == -1, EINVAL);
    FAILS(munmap(at + 1, 0) == -1, EINVAL);
    FAILS(mprotect(at + 8, 1, RW) == -1, EINVAL);
    FAILS(mprotect(at, SIZE_MAX, PROT_NONE) == -1, ENOMEM);
    FAILS(madvise(at + 8, 1, MADV_DONTNEED) == -1, EINVAL);
    FAILS(madvise(at, SIZE_MAX, MADV_DONTNEED) == -1, EINVAL);
    FAILS(madvise(at, 10, 12345) == -1, EINVAL);
    FAILS(madvise(at, 0, 12345) == -1, EINVAL);
    MUST(mprotect(at, 0, PROT_NONE) == 0 && madvise(at, 0, MADV_DONTNEED) == 0);
    MUST(is_all(at, MIB, 5) && faults(at, 1) == 0);
    MUST(madvise(at, 1, MADV_DONTNEED) == 0 && is_all(at, PAGE, 0) && is_all(at + PAGE, MIB - PAGE, 5));
}

// What is advised holds on both sides of a hole, what is protected before the first.
static void holes(void) {
    char *at = filled(4 * MIB, 5);
    MUST(munmap(at + MIB, PAGE) == 0 && munmap(at + 2 * MIB, PAGE) == 0);
    FAILS(madvise(at + MIB / 2, 2 * MIB, MADV_DONTNEED) == -1, ENOMEM);
    MUST(is_all(at, MIB / 2, 5) && is_all(at + MIB / 2, MIB / 2, 0) && is_all(at + MIB + PAGE, MIB - PAGE, 0));
    MUST(is_all(at + 2 * MIB + PAGE, MIB / 2 - PAGE, 0) && is_all(at + 5 * MIB / 2, 3 * MIB / 2, 5));
    FAILS(mprotect(at, 4 * MIB, PROT_READ) == -1, ENOMEM);
    MUST(faults(at, 1) == SIGSEGV && faults(at + MIB + PAGE, 1) == 0 && faults(at + 3 * MIB, 1) == 0);
    FAILS(mprotect(at + MIB, MIB, PROT_NONE) == -1, ENOMEM);
    MUST(faults(at + MIB + PAGE, 1) == 0 && munmap(at, 4 * MIB) == 0 && munmap(at, 4 * MIB) == 0);
}

// A move that leaves the old mapping there, empty.
static void keeps(int prot) {
    char *at = filled(2 * MIB, 5);
    MUST(mprotect(at, 2 * MIB, prot) == 0);
    push_out();
    FAILS(mremap(at, 2 * MIB, 3 * MIB, KEEPS, 0) == MAP_FAILED, EINVAL);
    FAILS(mremap(at, 2 * MIB, 2 * MIB, 4, 0) == MAP_FAILED, EINVAL);
    char *to = mremap(at + MIB, MIB, MIB, KEEPS, 0);
    MUST(to != MAP_FAILED && to != at + MIB);
    for (int n = 0; n < 2; n++)
        MUST(!faults((n ? to : at) + MIB / 2, 0) == (prot != PROT_NONE) && !faults((n ? to : at) + MIB / 2, 1) == (prot == RW));
    MUST(mprotect(at, 2 * MIB, RW) == 0 && mprotect(to, MIB, RW) == 0);
    MUST(is_all(to, MIB, 5) && is_all(at, MIB, 5) && is_all(at + MIB, MIB, 0));
    memset(at + MIB, 6, MIB);
    MUST(is_all(to, MIB, 5) && munmap(to, MIB) == 0 && munmap(at, 2 * MIB) == 0);
}

// A move to a said place: of other memory, or of what is moved alike.
static void there(char *to, int prot) {
    char *at = filled(2 * MIB, 5);
    MUST(mprotect(at, 2 * MIB, prot) == 0);
    push_out();
    FAILS(mremap(at, MIB, MIB, MREMAP_FIXED, to) == MAP_FAILED, EINVAL);
    FAILS(mremap(at, MIB, MIB, THERE, to + 1) == MAP_FAILED, EINVAL);
    FAILS(mremap(at, 2 * MIB, 2 * MIB, THERE, at + MIB) == MAP_FAILED, EINVAL);
    // Longer, and with a part of what was there left over.
    MUST(mremap(at, MIB, 2 * MIB, THERE, to + MIB) == to + MIB);
    MUST(!faults(to + 5 * MIB / 2, 0) == (prot != PROT_NONE) && !faults(to + 5 * MIB / 2, 1) == (prot == RW));
    FAILS(madvise(at, PAGE, MADV_NORMAL) == -1, ENOMEM);
    MUST(mprotect(to + MIB, 2 * MIB, RW) == 0 && is_all(to + MIB, MIB, 5) && is_all(to + 2 * MIB, MIB, 0));
    MUST(is_all(to, MIB, 8) && is_all(to + 3 * MIB, MIB, 8));
    // Shorter.
    MUST(mremap(at + MIB, MIB, MIB / 2, THERE, to) == to && mprotect(to, MIB / 2, RW) == 0 && is_all(to, MIB / 2, 5));
    MUST(is_all(to + MIB / 2, MIB / 2, 8));
    FAILS(madvise(at + MIB, MIB, MADV_NORMAL) == -1, ENOMEM);
    // As long, and the old mapping stays.
    at = filled(MIB, 7);
    MUST(mremap(at, MIB, MIB, THERE | KEEPS, to) == to && is_all(to, MIB, 7) && is_all(at, MIB, 0));
    push_out();
    MUST(is_all(to, MIB, 7) && is_all(at, MIB, 0) && munmap(to, 4 * MIB) == 0 && munmap(at, MIB) == 0);
}

static void moves(void) {
    int prots[] = {RW, PROT_READ, PROT_NONE};
    for (int n = 0; n < 3; n++) {
        keeps(prots[n]);
        there(filled(4 * MIB, 8), prots[n]);
        char *shared = mmap(0, 4 * MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        MUST(shared != MAP_FAILED);
        there(memset(shared, 8, 4 * MIB), prots[n]);
    }
}

// More than the SSD has over a hole is refused: all stays as it was. Not as without Terrace.
static void refused(void) {
    size_t all = 4096UL * MIB;
    char *at = map(all, PROT_NONE), *hole = at + 2048UL * MIB;
    MUST(munmap(hole, MIB) == 0 && mprotect(at, PAGE, RW) == 0);
    at[5] = 5;
    FAILS(mmap(at, all, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED, ENOMEM);
    MUST(at[5] == 5 && faults(hole - PAGE, 0) == SIGSEGV);
    FAILS(mprotect(hole, PAGE, RW) == -1, ENOMEM);
    MUST(mmap(hole, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == hole && is_all(hole, MIB, 0) && munmap(at, all) == 0);
}

int main(int count, char **args) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"protects", protects}, {"fixed", fixed}, {"noreplace", noreplace}, {"shrinks", shrinks},
                 {"lengths", lengths},   {"holes", holes}, {"moves", moves},         {"refused", refused}};
    MUST(count == 2);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    push_out();
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++)
        if (!strcmp(args[1], parts[n].name)) {
            parts[n].run();
            return puts("OK") < 0;
        }
    return 1;
}
