// A library that a program loads late: its constructor and its thread-local storage ask for memory.
#include <stdlib.h>
#include <string.h>

static char *made;
static __thread char own[100000];

__attribute__((constructor)) static void begin(void) {
    made = malloc(40 << 20);
    memset(made, 1, 40 << 20);
    own[0] = 1;
}

__attribute__((destructor)) static void end(void) { free(made); }

size_t sum_of_what_it_made(void) {
    size_t sum = 0;
    for (size_t n = 0; n < 40 << 20; n++)
        sum += made[n];
    memset(own, 2, sizeof own);
    return sum + own[99999] - 2;
}
