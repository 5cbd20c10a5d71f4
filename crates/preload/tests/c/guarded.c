// A malloc as a library: each block begins a page, behind one that may not be touched.
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };


void *malloc(size_t bytes) {
    size_t len = (bytes + PAGE - 1) & -(size_t)PAGE;
    char *at = mmap(NULL, len + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at + PAGE, len, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    return at + PAGE;
}

void free(void *block) {
    // It is kept.
    (void)block;
}

void *calloc(size_t count, size_t bytes) { return malloc(count * bytes); }

void *realloc(void *block, size_t bytes) {
    char *now = malloc(bytes);
    if (now && block)
        memcpy(now, block, bytes < PAGE ? bytes : PAGE);
    return now;
}

void *memalign(size_t align, size_t bytes) { return align <= PAGE ? malloc(bytes) : NULL; }
void *aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }

int posix_memalign(void **block, size_t align, size_t bytes) {
    *block = memalign(align, bytes);
    return *block ? 0 : ENOMEM;
}

size_t malloc_usable_size(void *block) { return block ? PAGE : 0; }
