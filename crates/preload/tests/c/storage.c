// A thread by a raw clone whose thread-local storage the program made itself: its calls are not dispatched, and what is not in DRAM is EFAULT for them; with `touch` it
// touches what is not there, too. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

enum { PAGE = 4096, MIB = 1 << 20, MUCH = 48 * MIB, STACK = 64 << 10, STORAGE = 64 << 10, OLD = 0x5a };
static char stack[STACK] __attribute__((aligned(16)));
static char storage[STORAGE] __attribute__((aligned(16)));
static char warm[PAGE];
static volatile int tid;
static int ends[2];
static char *cold;
static volatile long into_warm, into_cold;
static volatile int touches, seen;

static long raw(long number, long a, long b, long c) {
    long said;
    __asm__ volatile("syscall" : "=a"(said) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return said;
}

// Without a guard on its stack: that lies in thread-local storage.
__attribute__((used, no_stack_protector)) static void body(void) {
    into_warm = raw(SYS_read, ends[0], (long)warm, 4);
    into_cold = raw(SYS_read, ends[0], (long)cold, 4);
    if (touches)
        seen = cold[MUCH / 2];
}

static long begin(long flags, void *top, volatile int *cleared, void *own) {
    long said;
    register volatile int *r10 __asm__("r10") = cleared;
    register void *r8 __asm__("r8") = own;
    __asm__ volatile("syscall\n"
                     "test %%rax, %%rax\n"
                     "jnz 1f\n"
                     "call body\n"
                     "mov $60, %%eax\n"
                     "xor %%edi, %%edi\n"
                     "syscall\n"
                     "1:\n"
                     : "=a"(said)
                     : "0"((long)SYS_clone), "D"(flags), "S"(top), "d"(NULL), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return said;
}

int main(int argc, char **argv) {
    touches = argc > 1 && strcmp(argv[1], "touch") == 0;
    cold = malloc(MUCH);
    MUST(cold && pipe(ends) == 0 && write(ends[1], "terrace!", 8) == 8);
    // What was there stays: nobody but its thread knows what is in it.
    memset(storage, OLD, STORAGE);
    memset(cold, 1, MUCH);
    tid = 1;
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_CHILD_CLEARTID;
    MUST(begin(flags, stack + STACK, &tid, storage + STORAGE / 2) > 0);
    for (int n = 0; tid && n < 5000; n++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    MUST(tid == 0);
    MUST(into_warm == 4 && memcmp(warm, "terr", 4) == 0);
    // Where handler threads take faults, they serve the kernel too.
    MUST(into_cold == -EFAULT || (into_cold == 4 && memcmp(cold, "ace!", 4) == 0));
    MUST(!touches || seen == 1);
    for (int n = 0; n < STORAGE; n++)
        MUST(storage[n] == OLD);
    printf("%s\nOK\n", into_cold == 4 ? "served" : "refused");
    return 0;
}
