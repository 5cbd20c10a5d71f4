//! What left the page buffer a short while ago: a page that comes back so soon is worth keeping longer.
//!
//! A few bytes for each page of the buffer, an entry at a place that the page's number chooses: the fingerprint of the page that left
//! last, and its *heat*: how often it came back while its entry was still there. Others overwrite it, so it is forgotten by itself.
//!
//! Promises: wrong at worst about how hot a page is; no lock. Never: grows, or is asked what is resident.

use std::sync::atomic::{AtomicU32, Ordering};

/// Entries for each page of the buffer, about how many that left are remembered: with independent accesses by Zipf's law the last
/// page worth keeping comes back after ten times as many others as the buffer holds.
const ENTRIES_PER_PAGE: usize = 16;
/// Their bytes.
pub(crate) const BYTES_PER_PAGE: usize = ENTRIES_PER_PAGE * size_of::<AtomicU32>();
/// The highest heat.
pub(crate) const HEAT_MAX: u8 = 3;
const HEAT: u32 = 3;

/// See the head of the file.
pub(crate) struct Ghost {
    entries: Box<[AtomicU32]>,
}

impl Ghost {
    /// For a buffer of `pages_max` pages.
    pub fn new(pages_max: usize) -> Ghost {
        let len = pages_max
            .saturating_mul(ENTRIES_PER_PAGE)
            .clamp(64, 1 << 24);
        let len = 1usize << len.ilog2();
        Ghost {
            entries: (0..len).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn place(&self, page: u64) -> (&AtomicU32, u32) {
        let hash = (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let at = hash as usize & (self.entries.len() - 1);
        (&self.entries[at], (hash >> 32) as u32 & !HEAT)
    }

    /// The heat of a page that comes.
    pub fn comes(&self, page: u64) -> u8 {
        let (entry, mark) = self.place(page);
        let seen = entry.load(Ordering::Relaxed);
        if seen & !HEAT != mark {
            return 0;
        }
        let heat = ((seen & HEAT) as u8 + 1).min(HEAT_MAX);
        entry.store(mark | u32::from(heat), Ordering::Relaxed);
        heat
    }

    /// A page leaves. What is known of it stays.
    pub fn leaves(&self, page: u64) {
        let (entry, mark) = self.place(page);
        if entry.load(Ordering::Relaxed) & !HEAT != mark {
            entry.store(mark, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_soon_is_hotter_each_time() {
        let ghost = Ghost::new(64);
        assert_eq!(ghost.comes(7), 0);
        for heat in [1, 2, 3, 3] {
            ghost.leaves(7);
            assert_eq!(ghost.comes(7), heat);
        }
        // Many others leave meanwhile.
        (1000..20_000).for_each(|page| ghost.leaves(page));
        assert_eq!(ghost.comes(7), 0);
    }
}
