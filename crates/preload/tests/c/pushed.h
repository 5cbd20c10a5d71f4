// Memory of a test's own, the arena, and as much again as makes all of it leave DRAM, by the caps that these tests have.
#include "must.h"

enum { PAGE = 4096, MIB = 1 << 20, PUSH = 48 * MIB };
static char *arena, *pushed;

// Everything else leaves DRAM.
static void push_out(void) {
    static char round;
    round++;
    for (size_t n = 0; n < PUSH; n += PAGE)
        pushed[n] = round;
}
