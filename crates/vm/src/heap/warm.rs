//! Pages that were freed last, which are likely to be in DRAM still: what is allocated next gets these, and faults on none.
//!
//! Programs free what they are about to need again (a temporary of each step of a computation), and a page that was given back and comes anew costs a fault and a
//! discard, where malloc on plain memory costs nothing (docs/adr/0043). Promises: at most one part in [`ONE_IN`] of the cap is kept so; all of it is there for whoever would be
//! refused otherwise; what left DRAM meanwhile is not read back, but forgotten. Never: hands out what is kept as zeros.

use super::runs::Runs;
use super::{AllocError, PageHeap};
use crate::PAGE_BYTES;

/// Part of the cap that is kept.
const ONE_IN: u64 = 64;
/// The most: 16 MiB.
const PAGES_MAX: u64 = 4096;
/// In the child of a fork, whose buffer is a small part of its parent's: one part in so many of the same.
const ONE_IN_OF_CHILD: u32 = 16;

/// Freed pages that are not given back yet: they have their room on the SSD, and count as pages of the heap.
pub(super) struct Warm {
    runs: Runs,
    pages: u32,
    pages_max: u32,
}

impl Warm {
    pub fn of_cap(cap_bytes: u64) -> Warm {
        let pages_max = (cap_bytes / ONE_IN / PAGE_BYTES as u64).min(PAGES_MAX);
        Warm {
            runs: Runs::none(),
            pages: 0,
            pages_max: pages_max as u32,
        }
    }

    /// In the child of a fork.
    pub fn in_child(self) -> Warm {
        Warm {
            pages_max: self.pages_max / ONE_IN_OF_CHILD,
            ..self
        }
    }

    /// Keeps pages. The runs that are to be given back instead: those that were kept before, if there is no room, or these, if there are too many of them.
    fn keep(&mut self, first: u32, pages: u32) -> Runs {
        let mut back = Runs::none();
        if pages > self.pages_max {
            back.give(first, pages);
            return back;
        }
        if self.pages + pages > self.pages_max {
            back = self.take_all();
        }
        self.runs.give(first, pages);
        self.pages += pages;
        back
    }

    fn take_all(&mut self) -> Runs {
        self.pages = 0;
        std::mem::replace(&mut self.runs, Runs::none())
    }
}

impl PageHeap {
    /// Gives up pages that hold no allocation any more.
    pub(super) fn free_pages(&self, first: u32, pages: u32) {
        let back = self.space.lock().warm.keep(first, pages);
        self.give_all(&back);
    }

    /// Pages that were freed just now, if so many are in a row; what they hold is unspecified.
    pub(super) fn take_warm(&self, pages: u32, align: u32) -> Option<u32> {
        let first = {
            let warm = &mut self.space.lock().warm;
            let first = warm.runs.take(pages, align)?;
            warm.pages -= pages;
            first
        };
        self.forget_gone(first, pages);
        Some(first)
    }

    /// The same, of the pages from `first` on.
    pub(super) fn take_warm_at(&self, first: u32, pages: u32) -> bool {
        let taken = {
            let warm = &mut self.space.lock().warm;
            let taken = warm.runs.take_at(first, pages);
            warm.pages -= if taken { pages } else { 0 };
            taken
        };
        if taken {
            self.forget_gone(first, pages);
        }
        taken
    }

    /// Of pages that are about to be written to, what left DRAM need not be read.
    fn forget_gone(&self, first: u32, pages: u32) {
        let range = u64::from(first)..u64::from(first) + u64::from(pages);
        // Where that fails they are read.
        let _ = self.region().discard_absent(range);
    }

    /// Takes pages from `first` on that are zeros, if they are free, of which some may be warm.
    pub(super) fn take_free_at(&self, first: u32, pages: u32) -> bool {
        let meets_warm = {
            let mut space = self.space.lock();
            if space.free.take_at(first, pages) {
                return true;
            }
            space.warm.runs.meets(first, pages)
        };
        meets_warm && self.cool() && self.space.lock().free.take_at(first, pages)
    }

    /// Gives back all that is kept. False: nothing is.
    pub(super) fn cool(&self) -> bool {
        let back = self.space.lock().warm.take_all();
        self.give_all(&back);
        !back.is_empty()
    }

    fn give_all(&self, runs: &Runs) {
        for (first, pages) in runs.iter() {
            self.give_pages(first, pages);
        }
    }

    /// Pages for allocations, and whether they are zeros.
    pub(super) fn take_for_use(
        &self,
        pages: u32,
        align: u32,
        asked_bytes: usize,
    ) -> Result<(u32, bool), AllocError> {
        match self.take_warm(pages, align) {
            Some(first) => Ok((first, false)),
            None => Ok((self.take_pages(pages, align, asked_bytes)?, true)),
        }
    }
}
