//! What is known of each page of a named region: a byte a page, and a bit for each run of pages that has something to do.
//!
//! Promises: a byte tells a page's state at one moment; pages that were never asked for take no DRAM. Never: reads the pool.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Pages of a run.
pub(super) const RUN_PAGES: u64 = 4096;

const KNOWN: u8 = 1;
const COMMITTED_AT: u32 = 1;
const PENDING_AT: u32 = 3;
const STALE: u8 = 1 << 5;

/// One page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// The place (of two) of the version that the last sync left.
    pub committed: Option<usize>,
    /// The place of a newer one.
    pub pending: Option<usize>,
    /// In a place that is neither may lie a version that nobody wants.
    pub stale: bool,
}

impl Mark {
    fn code(self) -> u8 {
        let two = |at: Option<usize>| at.map_or(0, |at| at as u8 + 1);
        let stale = if self.stale { STALE } else { 0 };
        KNOWN | two(self.committed) << COMMITTED_AT | two(self.pending) << PENDING_AT | stale
    }

    fn of(code: u8) -> Option<Mark> {
        let two = |bits: u8| (bits & 3).checked_sub(1).map(usize::from);
        (code & KNOWN != 0).then(|| Mark {
            committed: two(code >> COMMITTED_AT),
            pending: two(code >> PENDING_AT),
            stale: code & STALE != 0,
        })
    }

    /// Where the page's newest version is.
    pub fn newest(self) -> Option<usize> {
        self.pending.or(self.committed)
    }

    /// Where its next version goes: not where the last sync's is.
    pub fn next(self) -> usize {
        self.pending
            .unwrap_or(self.committed.map_or(0, |at| 1 - at))
    }

    /// After a version was written to [`next`](Mark::next).
    pub fn written(self) -> Mark {
        Mark {
            pending: Some(self.next()),
            // With a committed version the one place for a stale one is the one just written to.
            stale: self.stale && self.committed.is_none(),
            ..self
        }
    }

    /// After a sync.
    pub fn synced(self) -> Mark {
        match self.pending {
            None => self,
            pending => Mark {
                committed: pending,
                pending: None,
                stale: self.stale || self.committed.is_some(),
            },
        }
    }
}

/// All pages of a region.
pub(super) struct Marks {
    pages: Box<[AtomicU8]>,
    /// Runs that may have a page that is pending or stale.
    runs: Box<[AtomicU64]>,
}

impl Marks {
    pub fn new(pages: u64) -> Marks {
        let words = pages.div_ceil(RUN_PAGES).div_ceil(64);
        Marks {
            // SAFETY: all zeros is a value of atomic integers. From the system's zeroed pages: what is not touched takes no DRAM.
            pages: unsafe { Box::<[AtomicU8]>::new_zeroed_slice(pages as usize).assume_init() },
            // SAFETY: as above.
            runs: unsafe { Box::<[AtomicU64]>::new_zeroed_slice(words as usize).assume_init() },
        }
    }

    /// DRAM, once every page was asked for.
    pub fn bytes(pages: u64) -> u64 {
        pages + pages.div_ceil(RUN_PAGES).div_ceil(64) * 8
    }

    pub fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// None: it was not found out yet.
    pub fn get(&self, page: u64) -> Option<Mark> {
        Mark::of(self.pages[page as usize].load(Ordering::Acquire))
    }

    pub fn set(&self, page: u64, mark: Mark) {
        if mark.pending.is_some() || mark.stale {
            let run = page / RUN_PAGES;
            let (word, bit) = (&self.runs[run as usize / 64], 1 << (run % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        self.pages[page as usize].store(mark.code(), Ordering::Release);
    }

    /// Runs that may have something to do, by their first page.
    pub fn busy_runs(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.runs.iter().enumerate();
        words.flat_map(|(at, word)| {
            let word = word.load(Ordering::Relaxed);
            let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| (at as u64 * 64 + bit) * RUN_PAGES)
        })
    }

    /// Those of these pages whose mark is known.
    pub fn known(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, Mark)> + '_ {
        let pages = pages.start..pages.end.min(self.len());
        pages.filter_map(|page| Some((page, self.get(page)?)))
    }

    /// Pages with a pending version.
    pub fn pending(&self) -> impl Iterator<Item = (u64, Mark)> + '_ {
        let runs = self.busy_runs();
        let all = runs.flat_map(|first| self.known(first..first + RUN_PAGES));
        all.filter(|(_, mark)| mark.pending.is_some())
    }

    /// Nothing is to be done in the run from `first` on; nobody changes it meanwhile.
    pub fn rest(&self, first: u64) {
        let run = first / RUN_PAGES;
        self.runs[run as usize / 64].fetch_and(!(1 << (run % 64)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_alternates_between_its_places() {
        let marks = Marks::new(3 * RUN_PAGES);
        assert_eq!(marks.get(5000), None);
        let none = Mark {
            committed: None,
            pending: None,
            stale: true,
        };
        for mark in [none, none.written(), none.written().synced()] {
            marks.set(5000, mark);
            assert_eq!(marks.get(5000), Some(mark));
        }
        assert_eq!(marks.busy_runs().collect::<Vec<_>>(), [RUN_PAGES]);
        let first = none.written().synced();
        assert_eq!((first.committed, first.stale), (Some(0), true));
        let second = first.written();
        assert_eq!((second.newest(), second.stale), (Some(1), false));
        assert_eq!(second.written().next(), 1, "until it is synced");
        let second = second.synced();
        assert_eq!(
            (second.committed, second.stale, second.next()),
            (Some(1), true, 0)
        );
        marks.set(5001, second.written());
        assert_eq!(
            marks.pending().collect::<Vec<_>>(),
            [(5001, second.written())]
        );
        marks.rest(RUN_PAGES);
        assert_eq!(marks.pending().count(), 0);
    }
}
