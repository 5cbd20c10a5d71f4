// A program with a malloc of its own in itself, in front of all libraries: what allocates on its behalf is freed by it. Prints OK, or the line that failed.
#define _GNU_SOURCE
#include "must.h"
#include <string.h>
#include <sys/mman.h>

static char heap[64 << 20] __attribute__((aligned(16)));
static size_t used;

static int is_own(void *at) {
    return (char *)at >= heap && (char *)at < heap + sizeof heap;
}

void *memalign(size_t align, size_t bytes) {
    size_t at = (used + align - 1) & -align;
    used = at + 16 + ((bytes + 15) & ~15ul);
    return used <= sizeof heap ? heap + at : NULL;
}

void *malloc(size_t bytes) {
    return memalign(16, bytes);
}

void *calloc(size_t count, size_t bytes) {
    return malloc(count * bytes);
}

void free(void *at) {
    if (at && !is_own(at))
        abort();
}

void *realloc(void *at, size_t bytes) {
    if (at && !is_own(at))
        abort();
    void *to = malloc(bytes);
    return at && to ? memcpy(to, at, bytes) : to;
}

int main(void) {
    size_t bytes = 8 << 20;
    char *served = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(served != MAP_FAILED);
    memset(served, 1, bytes);
    char *text = strdup("text"), *begins = strndup("text", 2), *path = realpath("/", NULL);
    MUST(is_own(text) && strcmp(text, "text") == 0 && is_own(begins) && strcmp(begins, "te") == 0 && is_own(path));
    void *grown = reallocarray(malloc(16), 4, 16);
    MUST(is_own(grown) && reallocarray(NULL, -1, 16) == NULL);
    free(text), free(begins), free(grown), free(path);
    puts("OK");
    return 0;
}
