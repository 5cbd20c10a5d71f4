//! Where pages lie: for each page size (1 to 8 lines) a dense list of chunks without holes.
//!
//! Promises: freeing a page moves the last page of its size into the hole, so nothing is ever fragmented; slack is at most about
//! a tenth of a size's pages; `heap_bytes` counts every allocation with an estimate of the allocator's own overhead. Never knows
//! what is in a page, and never fixes references: the caller does that for the page that moved.

use crate::chunk::{Chunk, MAPPING_OVERHEAD_BYTES, OS_PAGE_BYTES, allocation_bytes};
use crate::page::{LINES_MAX, WORDS_PER_LINE};

/// Pages in a full chunk: 32 KiB of the smallest size, 256 KiB of the largest.
const CHUNK_PAGES: usize = 1 << CHUNK_PAGES_LOG2;
const CHUNK_PAGES_LOG2: u32 = 9;
/// A list of pages grows by this part of itself until that is a whole chunk: what slack may cost.
const GROWTH_DIVISOR: usize = 16;
/// References keep 27 bits for the number of a page.
const PAGES_MAX: usize = 1 << PageRef::INDEX_BITS;
/// Pages that one insert can add to one size: empty ones on the way down a split, its two halves, and one more.
const PAGES_ADDED_MAX: usize = crate::DEPTH_MAX as usize + 3;

/// A reference to a page: `[lines - 1: 3][hint: 2][index: 27]`.
///
/// The hint is the number of bits by which the page is shallower than its directory, 3 standing for 3 and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRef(u32);

impl PageRef {
    const INDEX_BITS: u32 = 27;
    const HINT_MAX: u32 = 3;

    fn new(lines: usize, index: usize) -> PageRef {
        PageRef((lines as u32 - 1) << 29 | index as u32)
    }

    pub(crate) fn lines(self) -> usize {
        (self.0 >> 29) as usize + 1
    }

    fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    pub(crate) fn hint(self) -> u32 {
        self.0 >> Self::INDEX_BITS & Self::HINT_MAX
    }

    pub(crate) fn with_hint(self, shallower_bits: u32) -> PageRef {
        let hint = shallower_bits.min(Self::HINT_MAX);
        PageRef(self.0 & !(Self::HINT_MAX << Self::INDEX_BITS) | hint << Self::INDEX_BITS)
    }
}

/// All pages of one size.
struct Arena {
    chunks: Vec<Chunk>,
    pages: usize,
    heap_bytes: usize,
}

impl Arena {
    fn step_pages(&self) -> usize {
        (self.pages / GROWTH_DIVISOR).clamp(1, CHUNK_PAGES)
    }

    fn push(&mut self, page_words: usize) -> usize {
        let index = self.pages;
        assert!(
            index < PAGES_MAX,
            "a key map holds at most {PAGES_MAX} pages of one size: give the pool more lanes"
        );
        self.make_room(page_words);
        self.chunks[index >> CHUNK_PAGES_LOG2].push(page_words);
        self.pages += 1;
        index
    }

    fn make_room(&mut self, page_words: usize) {
        let number = self.pages >> CHUNK_PAGES_LOG2;
        let used_pages = self.pages % CHUNK_PAGES;
        let wanted_pages = (used_pages + self.step_pages()).min(CHUNK_PAGES);
        match self.chunks.get(number) {
            Some(chunk) if chunk.room_words() / page_words > used_pages => {}
            Some(chunk) => {
                let chunk = chunk.rebuilt(wanted_pages * page_words, wanted_pages == CHUNK_PAGES);
                self.replace(number, chunk);
            }
            None => {
                let is_full = wanted_pages == CHUNK_PAGES;
                self.add(Chunk::with_room(wanted_pages * page_words, is_full));
            }
        }
    }

    fn list_bytes(&self) -> usize {
        allocation_bytes(self.chunks.capacity() * size_of::<Chunk>())
    }

    fn replace(&mut self, number: usize, chunk: Chunk) {
        self.heap_bytes += chunk.bytes();
        self.heap_bytes -= self.chunks[number].bytes();
        self.chunks[number] = chunk;
    }

    fn add(&mut self, chunk: Chunk) {
        self.heap_bytes -= self.list_bytes();
        if self.chunks.len() == self.chunks.capacity() {
            // Doubling would do for speed, but the list's slack counts like any other.
            self.chunks.reserve_exact(1 + self.chunks.len() / 4);
        }
        self.heap_bytes += self.list_bytes() + chunk.bytes();
        self.chunks.push(chunk);
    }

    fn drop_last(&mut self) {
        self.heap_bytes -= self.list_bytes();
        if let Some(chunk) = self.chunks.pop() {
            self.heap_bytes -= chunk.bytes();
        }
        if self.chunks.len() <= self.chunks.capacity() / 2 {
            self.chunks.shrink_to_fit();
        }
        self.heap_bytes += self.list_bytes();
    }

    /// Frees the last page; its words must have been moved away.
    fn pop(&mut self, page_words: usize) {
        self.pages -= 1;
        self.chunks[self.pages >> CHUNK_PAGES_LOG2].pop(page_words);
        self.trim(page_words);
    }

    /// Gives slack back once it is about one and a half steps: a long list that swings by a few pages keeps what it has.
    fn trim(&mut self, page_words: usize) {
        let Some(last) = self.chunks.last() else {
            return;
        };
        let step = self.step_pages();
        let number = self.chunks.len() - 1;
        let room_pages = number * CHUNK_PAGES + last.room_words() / page_words;
        if self.pages > 0 && room_pages - self.pages <= (step - 1) * 3 / 2 {
            return;
        }
        if last.used_words() == 0 {
            self.drop_last();
        } else {
            let room_words = last.used_words() + step / 2 * page_words;
            let chunk = last.rebuilt(room_words, false);
            self.replace(number, chunk);
        }
    }

    /// Upper bound by which one insert can make this arena grow, a chunk's old and new copy counted together.
    fn growth_bytes_max(&self, page_words: usize) -> usize {
        let pages_after = self.pages % CHUNK_PAGES + PAGES_ADDED_MAX;
        let chunk_pages = (pages_after + self.step_pages()).min(CHUNK_PAGES);
        let chunk_bytes = chunk_pages * page_words * 8 + MAPPING_OVERHEAD_BYTES;
        // Two chunks at most: the last one becomes full, and another begins. The list of chunks grows by a quarter.
        2 * chunk_bytes.next_multiple_of(OS_PAGE_BYTES)
            + self.list_bytes() / 2
            + 2 * size_of::<Chunk>()
    }
}

/// The arenas of all page sizes.
pub(crate) struct Store {
    arenas: [Arena; LINES_MAX],
}

impl Store {
    pub(crate) fn new() -> Store {
        Store {
            arenas: std::array::from_fn(|_| Arena {
                chunks: Vec::new(),
                pages: 0,
                heap_bytes: 0,
            }),
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.arenas.iter().map(|arena| arena.heap_bytes).sum()
    }

    /// Upper bound by which one insert can make the arenas grow.
    pub(crate) fn growth_bytes_max(&self) -> usize {
        let sizes = self.arenas.iter().zip(1..);
        sizes
            .map(|(arena, lines)| arena.growth_bytes_max(lines * WORDS_PER_LINE))
            .sum()
    }

    #[inline]
    pub(crate) fn page(&self, at: PageRef) -> &[u64] {
        let chunk = &self.arenas[at.lines() - 1].chunks[at.index() >> CHUNK_PAGES_LOG2];
        chunk.page(at.index() % CHUNK_PAGES, at.lines() * WORDS_PER_LINE)
    }

    #[inline]
    pub(crate) fn page_mut(&mut self, at: PageRef) -> &mut [u64] {
        let chunk = &mut self.arenas[at.lines() - 1].chunks[at.index() >> CHUNK_PAGES_LOG2];
        chunk.page_mut(at.index() % CHUNK_PAGES, at.lines() * WORDS_PER_LINE)
    }

    /// A new page of `lines` lines; its words are all ones.
    pub(crate) fn add(&mut self, lines: usize) -> PageRef {
        let index = self.arenas[lines - 1].push(lines * WORDS_PER_LINE);
        PageRef::new(lines, index)
    }

    /// Frees a page. Where another page was moved into its place, the caller must point that page's owners to `at`: true is
    /// returned and the page at `at` is the one that moved.
    pub(crate) fn free(&mut self, at: PageRef) -> bool {
        let lines = at.lines();
        let page_words = lines * WORDS_PER_LINE;
        let last = PageRef::new(lines, self.arenas[lines - 1].pages - 1);
        let moved = last.index() != at.index();
        if moved {
            let mut words = [0; LINES_MAX * WORDS_PER_LINE];
            words[..page_words].copy_from_slice(self.page(last));
            self.page_mut(at).copy_from_slice(&words[..page_words]);
        }
        self.arenas[lines - 1].pop(page_words);
        moved
    }

    #[cfg(test)]
    pub(crate) fn recount_bytes(&self) -> usize {
        self.arenas
            .iter()
            .map(|arena| arena.list_bytes() + arena.chunks.iter().map(Chunk::bytes).sum::<usize>())
            .sum()
    }

    #[cfg(test)]
    pub(crate) fn pages(&self) -> usize {
        self.arenas.iter().map(|arena| arena.pages).sum()
    }
}
