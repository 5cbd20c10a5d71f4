// What must be so, or the program says at which line it is not, and ends.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(what)                                                                                                                   \
    do {                                                                                                                             \
        if (!(what)) {                                                                                                               \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno);                                                              \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
    } while (0)
