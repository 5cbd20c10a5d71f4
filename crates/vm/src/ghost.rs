//! What left the page buffer a short while ago: a page that comes back so soon is worth keeping longer.
//!
//! A table of entries at places that the pages' numbers choose: the fingerprint of the page that left last, *when* it left, counted in
//! pages that left, and its *heat*: how often it came back before as many others had left as there are. Others overwrite it, so it is forgotten by
//! itself, but for the heat of a page that is there: that it takes with it. A page that comes back within a short while tells that a little more buffer would have kept it.
//!
//! Promises: wrong at worst about how hot a page is; no lock. Never: grows, or is asked what is resident.

use crate::policy;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of an entry.
const ENTRY_BYTES: usize = size_of::<AtomicU32>();
/// The most and the fewest entries.
const ENTRIES: std::ops::RangeInclusive<usize> = 64..=1 << 24;
/// The highest heat.
pub(crate) const HEAT_MAX: u8 = 3;
const HEAT: u32 = 3;
/// When it left, in [`Ghost::unit_pages`], modulo 4,096.
const STAMP_SHIFT: u32 = 2;
const STAMP_BITS: u32 = 12;
const STAMPS: u32 = 1 << STAMP_BITS;
const STAMP: u32 = (STAMPS - 1) << STAMP_SHIFT;
const MARK: u32 = !(HEAT | STAMP);
/// The oldest age that a stamp tells for sure enough.
const AGE_MAX: u64 = 3000;
/// Of pages that come back later than soon one in so many is hotter by it.
const LATE_ONE_IN: u64 = 16;

/// What is known of a page that comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Back {
    /// How often it came back soon, about.
    pub heat: u8,
    /// It left so short a while ago that it counts as near.
    pub near: bool,
}

/// See the head of the file.
pub(crate) struct Ghost {
    entries: Box<[AtomicU32]>,
}

impl Ghost {
    /// With about so many entries.
    pub fn new(entries: usize) -> Ghost {
        let len = entries.clamp(*ENTRIES.start(), *ENTRIES.end());
        let len = 1usize << len.ilog2();
        Ghost {
            entries: (0..len).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// DRAM it takes.
    pub fn bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES
    }

    fn place(&self, page: u64) -> (&AtomicU32, u32) {
        let hash = (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let at = hash as usize & (self.entries.len() - 1);
        (&self.entries[at], (hash >> 32) as u32 & MARK)
    }

    /// Asks for the memory that `comes` and `leaves` look at.
    pub fn prefetch(&self, page: u64) {
        terrace_media::prefetch_line(self.place(page).0);
    }

    /// Pages that leave while a stamp stays the same.
    fn unit_pages(&self) -> u64 {
        (self.entries.len() as u64 / u64::from(STAMPS)).max(1)
    }

    /// About so many pages that left: as far as stamps tell.
    pub fn pages_that_left(&self, asked: u64) -> u64 {
        let unit = self.unit_pages();
        (asked / unit).clamp(1, AGE_MAX) * unit
    }

    fn stamp(&self, left: u64) -> u32 {
        ((left / self.unit_pages()) as u32 % STAMPS) << STAMP_SHIFT
    }

    /// A page comes, when `left` pages have left so far and `resident` are there.
    pub fn comes(&self, page: u64, left: u64, resident: usize) -> Back {
        let (entry, mark) = self.place(page);
        let seen = entry.load(Ordering::Relaxed);
        if seen & MARK != mark {
            return Back::default();
        }
        let age = (self.stamp(left).wrapping_sub(seen & STAMP) & STAMP) >> STAMP_SHIFT;
        let age = u64::from(age) * self.unit_pages();
        // Of those that come back later some: where all do, it is better to keep a part of them than none.
        // Not by the number that left as it is: it grows by whole batches.
        let mixed = (u64::from(mark) ^ left).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let lucky = || mixed.is_multiple_of(LATE_ONE_IN);
        let soon = age < self.pages_that_left(resident as u64) || lucky();
        let heat = ((seen & HEAT) as u8 + u8::from(soon)).min(HEAT_MAX);
        entry.store(seen & !HEAT | u32::from(heat), Ordering::Relaxed);
        let near = policy::near_pages(resident);
        Back {
            heat,
            near: age < self.pages_that_left(near),
        }
    }

    /// A page leaves, as number `left`, as hot as it was. What is known of it stays.
    pub fn leaves(&self, page: u64, left: u64, heat: u8) {
        let (entry, mark) = self.place(page);
        let seen = entry.load(Ordering::Relaxed);
        let known = if seen & MARK == mark { seen & HEAT } else { 0 };
        let heat = known.max(u32::from(heat.min(HEAT_MAX)));
        entry.store(mark | self.stamp(left) | heat, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_soon_is_hotter_each_time() {
        let ghost = Ghost::new(1024);
        assert_eq!(ghost.comes(7, 0, 100).heat, 0);
        for heat in [1, 2, 3, 3] {
            ghost.leaves(7, 0, 0);
            assert_eq!(ghost.comes(7, 50, 100).heat, heat);
        }
        // Many others leave meanwhile: what it was it takes with it only if it was there.
        let others = || (1000..20_000).for_each(|page| ghost.leaves(page, page, 0));
        others();
        ghost.leaves(7, 20_000, 3);
        assert_eq!(ghost.comes(7, 20_001, 100).heat, 3);
        others();
        assert_eq!(ghost.comes(7, 20_000, 100), Back::default());
    }

    #[test]
    fn of_those_that_come_late_some_are_hotter() {
        let ghost = Ghost::new(1 << 14);
        let hotter = (0..1600).filter(|page| {
            ghost.leaves(*page, 0, 0);
            ghost.comes(*page, 5120 + page / 400 * 128, 1000).heat > 0
        });
        assert!((50..200).contains(&hotter.count()));
    }

    #[test]
    fn who_comes_back_at_once_is_near() {
        let ghost = Ghost::new(1 << 14);
        let near = ghost.pages_that_left(policy::near_pages(4000));
        assert!((900..=1000).contains(&near), "{near}");
        for start in [0, 5000, 300_000] {
            ghost.leaves(7, start, 0);
            assert!(ghost.comes(7, start + 500, 4000).near);
            ghost.leaves(7, start, 0);
            assert!(!ghost.comes(7, start + 2000, 4000).near);
        }
    }
}
