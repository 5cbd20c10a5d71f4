// pidfd_spawn, of C libraries since 2.39, stood in for by a library that looks at what it is handed (compiled with LIBRARY): nothing of it may lie where a page can be absent, since the
// child that the C library makes for a moment reads it. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdint.h>
#include <string.h>

extern const void *handed[8];
extern int takes(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const args[], char *const environment[]);
typedef __typeof__(takes) spawns;
extern spawns pidfd_spawn, pidfd_spawnp;

#ifdef LIBRARY
const void *handed[8];

int takes(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const args[], char *const environment[]) {
    const void *all[] = {path, actions, attributes, args, args[0], args[1], environment, environment[0]};
    memcpy(handed, all, sizeof all);
    *pidfd = 41;
    return strcmp(path, "/bin/true") || strcmp(args[0], "true") || strcmp(args[1], "argument") || args[2] || strcmp(environment[0], "NAME=value") || environment[1] ? 1 : 0;
}

int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const args[], char *const environment[]) {
    return takes(pidfd, path, actions, attributes, args, environment);
}

int pidfd_spawnp(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const args[], char *const environment[]) {
    return takes(pidfd, path, actions, attributes, args, environment) ? 2 : 0;
}
#else
#include "placed.h"

int main(void) {
    arena = malloc(40 * MIB), pushed = malloc(PUSH);
    MUST(arena && pushed);
    memset(arena, 1, 40 * MIB);
    spawns *volatile both[] = {pidfd_spawn, pidfd_spawnp};
    char *path = text("/bin/true"), **args = (char **)place(3 * sizeof *args), **environment = (char **)place(2 * sizeof *environment);
    args[0] = text("true"), args[1] = text("argument"), args[2] = NULL;
    environment[0] = text("NAME=value"), environment[1] = NULL;
    posix_spawn_file_actions_t *actions = (posix_spawn_file_actions_t *)place(sizeof *actions);
    posix_spawnattr_t *attributes = (posix_spawnattr_t *)place(sizeof *attributes);
    MUST(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(attributes) == 0);
    for (int n = 0; n < 2; n++) {
        int pidfd = 0;
        push_out();
        MUST(both[n](&pidfd, path, actions, attributes, args, environment) == 0 && pidfd == 41);
        for (int what = 0; what < 8; what++)
            MUST((uintptr_t)handed[what] - (uintptr_t)arena >= 40 * MIB);
    }
    push_out();
    puts("OK");
}
#endif
