//! Pages that were freed last, which are likely to be in DRAM still: what is allocated next gets these, and faults on none.
//!
//! Programs free what they are about to need again (a temporary of each step of a computation), and a page that was given back and comes anew costs a fault and a
//! discard, where malloc on plain memory costs nothing (docs/adr/0043). Promises: at most one part in [`ONE_IN`] of the cap is kept so. Never: touches the pages, or knows
//! what they hold; `pages` does.

use super::runs::Runs;
use crate::PAGE_BYTES;

/// Part of the cap that is kept.
const ONE_IN: u64 = 64;
/// The most: 16 MiB.
const PAGES_MAX: u64 = 4096;
/// The same in the child of a fork, whose buffer is a MiB at least.
const PAGES_MAX_OF_CHILD: u32 = 64;

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
            pages_max: self.pages_max.min(PAGES_MAX_OF_CHILD),
            ..self
        }
    }

    /// Keeps pages, if there is room; `Some(false)`: there is none now. None: they are more than it ever has room for.
    pub fn offer(&mut self, first: u32, pages: u32) -> Option<bool> {
        (pages <= self.pages_max).then(|| self.keep(first, pages))
    }

    /// False: there is no room now.
    fn keep(&mut self, first: u32, pages: u32) -> bool {
        let has_room = self.pages + pages <= self.pages_max;
        if has_room {
            self.runs.give(first, pages);
            self.pages += pages;
        }
        has_room
    }

    /// Keeps pages; those that have to go for it.
    pub fn keep_instead(&mut self, first: u32, pages: u32) -> Runs {
        let mut back = Runs::none();
        // There may be room by now.
        if !self.keep(first, pages) {
            back = self.take_all();
            self.keep(first, pages);
        }
        back
    }

    /// Takes so many pages in a row, the first a multiple of `align`.
    pub fn take(&mut self, pages: u32, align: u32) -> Option<u32> {
        let first = self.runs.take(pages, align)?;
        self.pages -= pages;
        Some(first)
    }

    /// Takes the pages from `first` on, if all of them are kept.
    pub fn take_at(&mut self, first: u32, pages: u32) -> bool {
        let taken = self.runs.take_at(first, pages);
        self.pages -= if taken { pages } else { 0 };
        taken
    }

    /// Whether any of the pages from `first` on is kept.
    pub fn meets(&self, first: u32, pages: u32) -> bool {
        self.runs.meets(first, pages)
    }

    /// Takes all that is kept.
    pub fn take_all(&mut self) -> Runs {
        self.pages = 0;
        std::mem::replace(&mut self.runs, Runs::none())
    }
}
