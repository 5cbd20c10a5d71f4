// Places in the arena for what a test hands to the kernel: each on pages of its own, which are pushed out before they are used.
#include <stdint.h>
#include <string.h>

#include "pushed.h"

// A place of its own in the arena, each time; pages are pushed out before it is used.
__attribute__((unused)) static char *place(size_t bytes) {
    static size_t used;
    char *at = arena + used + PAGE - 100;
    used += (bytes + 3 * PAGE) / PAGE * PAGE;
    MUST(used < 24 * MIB);
    return at;
}

__attribute__((unused)) static char *text(const char *what) {
    char *at = place(strlen(what) + 1);
    strcpy(at, what);
    return at;
}
