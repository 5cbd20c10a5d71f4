// A thread forks again and again while another asks for the first memory that is served: its children have memory of their own, whatever that thread was about to do. Prints OK.
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

static volatile int began, is_there;

static char *touched(size_t bytes) {
    char *at = malloc(bytes);
    MUST(at);
    for (size_t n = 0; n < bytes; n += 4096)
        at[n] = 1;
    return at;
}

static void *opens(void *none) {
    began = 1;
    touched(4 << 20);
    is_there = 1;
    return none;
}

static void forks(void) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        alarm(20);
        touched(1 << 20);
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int count, char **args) {
    (void)args;
    pthread_t thread;
    // Memory that is not served yet, which children see as ever.
    char *early = malloc(100);
    strcpy(early, "early");
    MUST(pthread_create(&thread, NULL, opens, NULL) == 0);
    while (!began)
        ;
    if (count > 1)
        usleep((unsigned)atoi(args[1]));
    while (!is_there)
        forks();
    forks();
    MUST(pthread_join(thread, NULL) == 0 && !strcmp(early, "early"));
    puts("OK");
}
