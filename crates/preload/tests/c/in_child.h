// Included before anything else, it makes a program of these tests run in a child of fork whose parent has served memory: the parent waits, and ends as it does.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void begin_in_child(void) {
    const size_t bytes = 4 << 20;
    char *some = (char *)malloc(bytes);
    int status = 1;
    if (!some)
        _exit(1);
    memset(some, 7, bytes);
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t at = 0; at < bytes; at += 512)
            if (some[at] != 7)
                _exit(1);
        return;
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        _exit(1);
    if (WIFSIGNALED(status))
        raise(WTERMSIG(status));
    exit(WEXITSTATUS(status));
}
