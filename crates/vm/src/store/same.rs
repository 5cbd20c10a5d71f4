//! Which contents the store has of pages, as 64 bits of each: a page that was written to and is again as it was need not be stored.
//!
//! Programs write to what they only read: memcached counts who uses an item, in the item, and counts back. An entry's place follows from the page's number; the
//! last page that was fetched or stored there has it, so one may be forgotten, and is stored then. Promises: said to be the same only if all 64 bits
//! of a hash with a seed of this pool are: at 10^5 changed pages a second one in five million years is taken for what it is not. Never: keeps a page, or a lock.

use crate::PAGE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What no page has.
const NONE: u64 = 0;

/// What a page has: never [`NONE`].
#[derive(Clone, Copy)]
pub(super) struct Mark(u64);

/// See the head of the file. A page is asked about, noted and forgotten by who has it to itself.
pub(super) struct Same {
    entries: Box<[AtomicU64]>,
    seed: u64,
    found: AtomicU64,
}

impl Same {
    /// Of about so many pages at a time; nobody outside knows the `seed`.
    pub fn of(pages: u64, seed: u64) -> Same {
        let len = pages.next_power_of_two() as usize;
        // SAFETY: all zeros is a value of an AtomicU64. From the system's zeroed pages, so that what is not used takes no DRAM.
        let entries = unsafe { Box::<[AtomicU64]>::new_zeroed_slice(len).assume_init() };
        let found = AtomicU64::new(0);
        Same {
            entries,
            seed,
            found,
        }
    }

    /// DRAM it takes at most.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.entries) as u64
    }

    /// Pages side by side have places side by side.
    fn place(&self, table: u16, page: u64) -> &AtomicU64 {
        let at = page.wrapping_add(u64::from(table).wrapping_mul(0x9E37_79B9));
        &self.entries[at as usize & (self.entries.len() - 1)]
    }

    /// What stands for these bytes of a page.
    pub fn mark(&self, table: u16, page: u64, bytes: &[u8; PAGE_BYTES]) -> Mark {
        let which = (u64::from(table) << 48 ^ page).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Mark(xxh3_64_with_seed(bytes, self.seed ^ which).max(NONE + 1))
    }

    /// The store has these bytes of a page from now on.
    pub fn note(&self, table: u16, page: u64, mark: Mark) {
        self.place(table, page).store(mark.0, Ordering::Relaxed);
    }

    /// Whether it has these bytes of it; false where it is not known.
    pub fn is(&self, table: u16, page: u64, mark: Mark) -> bool {
        self.place(table, page).load(Ordering::Relaxed) == mark.0
    }

    /// What it has of a page is not known any more.
    pub fn forget(&self, table: u16, page: u64) {
        self.place(table, page).store(NONE, Ordering::Relaxed);
    }

    /// Counts a page that was not stored again.
    pub fn found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were not.
    pub fn found_so_far(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_noted_last_is_known() {
        let same = Same::of(1000, 7);
        let (one, other) = ([1; PAGE_BYTES], [2; PAGE_BYTES]);
        let note = |page, bytes| same.note(3, page, same.mark(3, page, bytes));
        let is = |table, page, bytes| same.is(table, page, same.mark(table, page, bytes));
        assert!(!is(3, 5, &one));
        note(5, &one);
        assert!(is(3, 5, &one));
        assert!(!is(3, 5, &other) && !is(3, 6, &one) && !is(4, 5, &one));
        // The same place, another page: neither is taken for the other.
        assert!(!is(3, 5 + 1024, &one));
        note(5 + 1024, &one);
        assert!(!is(3, 5, &one) && is(3, 5 + 1024, &one));
        same.forget(3, 5 + 1024);
        assert!(!is(3, 5 + 1024, &one));
        assert_eq!(same.bytes(), 8 * 1024);
    }
}
