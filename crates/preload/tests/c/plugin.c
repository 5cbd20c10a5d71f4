// A library whose constructor waits for a thread that takes a mutex while the loader holds its lock, and (PROGRAM) the program that opens it.
#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#ifdef PROGRAM
#include "must.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **args) {
    MUST(count == 2);
    alarm(20);
    MUST(dlopen(args[1], RTLD_NOW));
    // What is said of a failure stays until it is asked for.
    MUST(!dlopen("/nowhere.so", RTLD_NOW));
    MUST(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    MUST(dlerror());
    printf("OK\n");
}
#else
static void *locks(void *none) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return none;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t one;
    pthread_create(&one, NULL, locks, NULL);
    pthread_join(one, NULL);
}
#endif
