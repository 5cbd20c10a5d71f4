// What the C library does within one function of its own, past the functions that others stand in front of: it forks, ends the process, locks and flushes streams, ends a thread that was
// cancelled. The first argument says what; prints OK, or the line that failed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "odd.h"

static void put(const char *file, const char *text) {
    int to = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    MUST(to >= 0 && write(to, text, strlen(text)) == (ssize_t)strlen(text) && close(to) == 0);
}

static int is_null(int fd) {
    char link[20], to[20] = {0};
    sprintf(link, "/proc/self/fd/%d", fd);
    return readlink(link, to, sizeof to - 1) == 9 && !strcmp(to, "/dev/null");
}

// What is wrong afterwards is seen by what is not in the file.
static void becomes_daemon(const char *file) {
    char at[100];
    fill(64 * MIB);
    pid_t before = getpid();
    int kept = open("/dev/null", O_RDONLY);
    MUST(daemon(1, 1) == 0);
    MUST(getpid() != before && getsid(0) == getpid() && isatty(0) == 0 && !is_null(2));
    MUST(getcwd(at, sizeof at) && strcmp(at, "/"));
    check();
    before = getpid();
    MUST(daemon(0, 0) == 0);
    int next = dup(0);
    if (getpid() == before || getsid(0) != getpid() || !is_null(0) || !is_null(1) || !is_null(2) || next != kept + 1)
        exit(1);
    if (!getcwd(at, sizeof at) || strcmp(at, "/"))
        exit(2);
    check();
    put(file, "OK\n");
}

static void has_no_room(void) {
    int terminal = -1;
    fill(100 * MIB);
    MUST(daemon(0, 1) == -1 && errno == ENOMEM);
    int next = dup(0);
    MUST(forkpty(&terminal, NULL, NULL, NULL) == -1 && errno == ENOMEM && terminal == -1);
    close(next);
    MUST(dup(0) == next);
    puts("OK");
}

static void has_terminal(void) {
    int terminal, status;
    char said[100] = {0}, name[100];
    struct winsize size = {.ws_row = 7, .ws_col = 77}, has = {0};
    fill(64 * MIB);
    pid_t pid = forkpty(&terminal, name, NULL, &size);
    MUST(pid >= 0);
    if (pid == 0) {
        MUST(getsid(0) == getpid() && isatty(0) && isatty(1) && isatty(2) && tcgetpgrp(0) == getpid());
        MUST(ttyname(0) && !strcmp(ttyname(0), name) && ioctl(0, TIOCGWINSZ, &has) == 0 && has.ws_col == 77);
        check();
        MUST(write(1, "OK", 2) == 2);
        _exit(0);
    }
    MUST(read(terminal, said, sizeof said - 1) == 2 && !strcmp(said, "OK"));
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    check();
    puts("OK");
}

static const char *named;

static void at_quick_end(void) { put(named, "ends\n"); }

static void ends_quickly(const char *file) {
    fill(64 * MIB);
    named = file;
    MUST(at_quick_exit(at_quick_end) == 0);
    printf("not flushed");
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        usleep(300000);
        check();
        put(file, "OK\n");
        _exit(0);
    }
    quick_exit(7);
}

static int never[2];

// It has the lock of its stream all the time.
static void *reads_for_ever(void *none) {
    getc(fdopen(never[0], "r"));
    return none;
}

// The child sees what its parent had buffered, though that stays for it.
static void leaves_buffered(const char *file) {
    pthread_t thread;
    char has[10] = {0};
    fill(64 * MIB);
    put(file, "0123456789");
    FILE *log = fopen(file, "r+");
    MUST(pipe(never) == 0 && pthread_create(&thread, NULL, reads_for_ever, NULL) == 0);
    usleep(100000);
    MUST(log);
    pid_t parent = getpid(), pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        int look = open(file, O_RDONLY);
        for (int n = 0; n < 200 && memcmp(has, "buffered\n", 9); n++) {
            usleep(20000);
            MUST(pread(look, has, 9, 0) == 9);
        }
        check();
        printf("%s", memcmp(has, "buffered\n", 9) ? "it is not in the file\n" : kill(parent, 0) != 0 ? "it has ended\n" : "OK\n");
        fflush(stdout);
        _exit(0);
    }
    // What nobody reads any more would raise a signal.
    int gone[2];
    MUST(pipe(gone) == 0 && close(gone[0]) == 0);
    FILE *lost = fdopen(gone[1], "w");
    MUST(fputs("lost", lost) >= 0 && fprintf(log, "buffered\n") == 9);
    exit(7);
}

static pthread_t cancelled;
static volatile int is_cancelled, went_on;

static int may_be_cancelled(void) {
    int was;
    MUST(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was) == 0);
    MUST(was == PTHREAD_CANCEL_DISABLE || pthread_setcancelstate(was, NULL) == 0);
    return was == PTHREAD_CANCEL_ENABLE;
}

// Calls nothing meanwhile in which the C library would end the thread.
static void *is_cancelled_first(void *forks) {
    while (!is_cancelled)
        ;
    for (int n = 0; forks && n < 2; n++) {
        pid_t pid = fork();
        MUST(pid >= 0 && may_be_cancelled());
        if (pid == 0)
            _exit(*page_of(7) != mixed(page_of(7) - memory));
    }
    if (!forks)
        fill(64 * MIB);
    MUST(may_be_cancelled());
    went_on = 1;
    pthread_testcancel();
    return NULL;
}

static void is_cancelled_meanwhile(int forks) {
    void *ended;
    if (forks)
        fill(64 * MIB);
    MUST(pthread_create(&cancelled, NULL, is_cancelled_first, forks ? &ended : NULL) == 0);
    MUST(pthread_cancel(cancelled) == 0);
    is_cancelled = 1;
    MUST(pthread_join(cancelled, &ended) == 0 && went_on && ended == PTHREAD_CANCELED);
    for (int n = 0, status; forks && n < 2; n++)
        MUST(wait(&status) > 0 && status == 0);
    check();
    puts("OK");
}

static volatile int ends;

static void *flushes_all(void *none) {
    while (!ends)
        fflush(NULL);
    return none;
}

static void *reads_lines(void *file) {
    while (!ends) {
        char *line = NULL;
        size_t bytes = 0;
        FILE *from = fopen(file, "r");
        MUST(from);
        while (getline(&line, &bytes, from) > 0)
            ;
        free(line);
        fclose(from);
    }
    return NULL;
}

// As glibc's tst-malloc-fork-deadlock.
static void forks_meanwhile(const char *file) {
    pthread_t threads[4];
    char line[3000];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = 0;
    put(file, line);
    put(file, "\n");
    fill(4 * MIB);
    for (int n = 0; n < 4; n++)
        MUST(pthread_create(&threads[n], NULL, n < 2 ? flushes_all : reads_lines, (void *)file) == 0);
    for (int n = 0; n < 300; n++) {
        int status;
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            alarm(20);
            MUST(fflush(NULL) == 0);
            FILE *other = fopen(file, "r");
            MUST(other && getc(other) == 'x' && fclose(other) == 0);
            _exit(0);
        }
        MUST(waitpid(pid, &status, 0) == pid && status == 0);
    }
    ends = 1;
    for (int n = 0; n < 4; n++)
        MUST(pthread_join(threads[n], NULL) == 0);
    puts("OK");
}

int main(int count, char **args) {
    MUST(count >= 3);
    const char *what = args[1];
    if (!strcmp(what, "daemon"))
        becomes_daemon(args[2]);
    else if (!strcmp(what, "room"))
        has_no_room();
    else if (!strcmp(what, "terminal"))
        has_terminal();
    else if (!strcmp(what, "quick"))
        ends_quickly(args[2]);
    else if (!strcmp(what, "buffered"))
        leaves_buffered(args[2]);
    else if (!strcmp(what, "cancelled"))
        is_cancelled_meanwhile(0);
    else if (!strcmp(what, "cancelled-fork"))
        is_cancelled_meanwhile(1);
    else if (!strcmp(what, "locks"))
        forks_meanwhile(args[2]);
    else
        MUST(!"known");
    return 0;
}
