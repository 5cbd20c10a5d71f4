// What the programs of these tests share: twice the cap of memory that does not compress, filled and checked.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "must.h"

enum { PAGE = 4096, WORDS = PAGE / 8 };
static const size_t MIB = 1 << 20;
static unsigned long *memory;
static size_t pages;

static unsigned long mixed(unsigned long n) {
    n ^= n >> 31, n *= 0x9e3779b97f4a7c15, n ^= n >> 29;
    return n;
}

// Twice the cap, which is 32 MiB, of what does not compress.
__attribute__((unused)) static void fill(size_t bytes) {
    pages = bytes / PAGE;
    memory = malloc(bytes);
    MUST(memory);
    for (size_t n = 0; n < pages * WORDS; n++)
        memory[n] = mixed(n);
}

// The page that is looked at as number `n`.
static unsigned long *page_of(size_t n) { return memory + n * 7919 % pages * WORDS; }

// All of it, in another order, and a word of each page is written: with what it has, and in one of four pages with something else, which is made good when the page
// has left DRAM: a page that is as it was is not stored again.
__attribute__((unused)) static void check(void) {
    const size_t later = 12288;
    for (size_t n = 0; n < pages + later; n++) {
        if (n < pages) {
            unsigned long *page = page_of(n);
            for (int w = 0; w < WORDS; w++)
                MUST(page[w] == mixed(page - memory + w));
            unsigned long has = mixed(page - memory + n % WORDS);
            page[n % WORDS] = n % 4 ? has : ~has;
        }
        if (n >= later && (n - later) % 4 == 0) {
            unsigned long *page = page_of(n - later), *word = page + (n - later) % WORDS;
            MUST(*word == ~mixed(word - memory));
            *word = ~*word;
        }
    }
}
