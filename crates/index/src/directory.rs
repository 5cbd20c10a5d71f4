//! The directory of one shard: 2^depth page references, indexed by the top bits of the hash.
//!
//! Promises: every entry whose bits begin with a page's prefix refers to that page; the array is never larger than twice what the
//! deepest page needs. While a shard is being restored the array is a prefix of itself. Never reads a page.

use crate::arena::PageRef;
use crate::chunk::allocation_bytes;
use crate::page::Place;

/// Entries a directory may have however few slots the shard holds.
pub(crate) const FREE_ENTRIES: usize = 64;
/// Beyond that it must have this many slots an entry: hashes that are so far from even are refused instead of paid for.
pub(crate) const SLOTS_AN_ENTRY_MIN: usize = 8;

/// One shard's directory and what is counted for it.
pub(crate) struct Directory {
    entries: Vec<PageRef>,
    /// Slots in all pages of the shard.
    pub(crate) slots: u32,
    /// Those pages.
    pub(crate) pages: u32,
    /// Pages as deep as the directory; at 0 the directory can halve.
    pages_deepest: u32,
    depth: u32,
}

impl Directory {
    pub(crate) fn new() -> Directory {
        Directory {
            entries: Vec::new(),
            slots: 0,
            pages: 0,
            pages_deepest: 0,
            depth: 0,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// False while a shard is being restored: then only its first hashes have pages.
    pub(crate) fn is_whole(&self) -> bool {
        self.entries.len() == 1 << self.depth
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        allocation_bytes(self.entries.capacity() * size_of::<PageRef>())
    }

    /// The page that covers `hash`.
    #[inline]
    pub(crate) fn page_of(&self, hash: u64) -> Option<PageRef> {
        // Two shifts: a depth of 0 would ask for 64 at once.
        let entry = (hash >> 1) >> (63 - self.depth);
        self.entries.get(entry as usize).copied()
    }

    fn entries_of(&self, place: Place) -> std::ops::Range<usize> {
        let shallower_bits = self.depth - place.depth;
        let start = (place.prefix as usize) << shallower_bits;
        start..start + (1 << shallower_bits)
    }

    /// Points all entries of `place` to a page that has moved.
    pub(crate) fn repoint(&mut self, place: Place, page: PageRef) {
        let page = page.with_hint(self.depth - place.depth);
        let range = self.entries_of(place);
        self.entries[range].fill(page);
    }

    /// Points the entries of `place` to a page that was not there before.
    pub(crate) fn add(&mut self, place: Place, page: PageRef) {
        let end = self.entries_of(place).end;
        if self.entries.len() < end {
            self.entries.reserve_exact(end - self.entries.len());
            self.entries.resize(end, page);
        }
        self.repoint(place, page);
        self.pages += 1;
        self.pages_deepest += u32::from(place.depth == self.depth);
    }

    /// Says that the page of `place` is about to go; its entries dangle until `add` covers them again.
    pub(crate) fn forget(&mut self, place: Place) {
        self.pages -= 1;
        self.pages_deepest -= u32::from(place.depth == self.depth);
    }

    /// Whether the directory may grow to `depth` with the slots that are there.
    pub(crate) fn may_deepen_to(&self, depth: u32) -> bool {
        depth <= crate::DEPTH_MAX && 1usize << depth <= self.entries_max()
    }

    /// Most entries that the slots that are there justify.
    pub(crate) fn entries_max(&self) -> usize {
        FREE_ENTRIES.max(self.slots as usize / SLOTS_AN_ENTRY_MIN)
    }

    /// Whether so many entries would not be there had pages merged as slots went.
    pub(crate) fn is_too_deep(&self) -> bool {
        self.entries.len() > FREE_ENTRIES.max(self.slots as usize)
    }

    /// Doubles the array, each entry twice.
    pub(crate) fn double(&mut self) {
        let old = self.entries.len();
        self.depth += 1;
        self.pages_deepest = 0;
        let Some(first) = self.entries.first().copied() else {
            return;
        };
        self.entries.reserve_exact(old);
        self.entries.resize(old * 2, first);
        for i in (0..old).rev() {
            let entry = self.entries[i];
            let deeper = entry.with_hint(entry.hint() + 1);
            self.entries[2 * i..2 * i + 2].fill(deeper);
        }
    }

    /// Halves the array as long as no page needs its last bit.
    pub(crate) fn halve_where_possible(&mut self) {
        while self.depth > 0 && self.pages_deepest == 0 {
            for i in 0..self.entries.len() / 2 {
                let entry = self.entries[2 * i];
                // A hint of 3 means 3 or more; it may stay, since a hint that is too high only costs time.
                let hint = if entry.hint() < 3 {
                    entry.hint() - 1
                } else {
                    3
                };
                self.entries[i] = entry.with_hint(hint);
            }
            self.entries.truncate(self.entries.len() / 2);
            self.depth -= 1;
            self.pages_deepest = self.count_deepest();
        }
        if self.entries.len() <= self.entries.capacity() / 2 {
            self.entries.shrink_to_fit();
        }
    }

    /// A page is as deep as the directory where the entry beside its own differs.
    fn count_deepest(&self) -> u32 {
        match self.depth {
            0 => self.entries.len() as u32,
            _ => self
                .entries
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[low, high]| 2 * u32::from(low != high))
                .sum(),
        }
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        *self = Directory::new();
    }

    #[cfg(test)]
    pub(crate) fn check_deepest(&self) {
        assert_eq!(self.pages_deepest, self.count_deepest());
    }
}
