// With a malloc of its own (`guarded.c`): small blocks in a fork's child.
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

int main(void) {
    size_t bytes = 8 << 20;
    char *large = malloc(bytes), *text = strdup("a text");
    MUST(large && text);
    memset(large, 1, bytes);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        char *other = malloc(40);
        MUST(other && !strcmp(strcpy(other, text), "a text") && large[bytes - 1] == 1);
        free(other), free(text);
        _exit(7);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    puts("OK");
}
