//! Pages that were freed last, which are likely to be in DRAM still: what is allocated next gets these, and faults on none.
//!
//! Programs free what they are about to need again (a temporary of each step of a computation), and a page that was given back and comes anew costs a fault and a
//! discard, where malloc on plain memory costs nothing (docs/adr/0043). Promises: at most one part in [`ONE_IN`] of the cap is kept so; all of it is there for whoever of this heap would be
//! refused otherwise; what left DRAM meanwhile is not read back, but forgotten. Never: hands out what is kept as zeros.

use super::runs::Runs;
use super::{AllocError, PageHeap};
use crate::PAGE_BYTES;
use crate::inside::Quiet;
use crate::sys::Held;

/// Part of the cap that is kept.
const ONE_IN: u64 = 64;
/// The most: 16 MiB.
const PAGES_MAX: u64 = 4096;
/// The same in the child of a fork, whose buffer is a MiB at least.
const PAGES_MAX_OF_CHILD: u32 = 64;
/// Larger runs that are to be zeros are taken from what is free: they need not be cleared before they are touched.
const CLEARED_PAGES_MAX: u32 = 64;

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

    /// Keeps pages, if there is room. False: there is none.
    fn keep(&mut self, first: u32, pages: u32) -> bool {
        let has_room = self.pages + pages <= self.pages_max;
        if has_room {
            self.runs.give(first, pages);
            self.pages += pages;
        }
        has_room
    }

    /// Keeps pages; those that have to go for it.
    fn keep_instead(&mut self, first: u32, pages: u32) -> Runs {
        let mut back = Runs::none();
        // There may be room by now.
        if !self.keep(first, pages) {
            back = self.take_all();
            self.keep(first, pages);
        }
        back
    }

    fn take_all(&mut self) -> Runs {
        self.pages = 0;
        std::mem::replace(&mut self.runs, Runs::none())
    }
}

/// Ends before signals come again.
struct Cooling<'a> {
    _held: Held<'a, ()>,
    _quiet: Quiet,
}

impl PageHeap {
    /// Gives up pages that hold no allocation any more.
    pub(super) fn free_pages(&self, first: u32, pages: u32) {
        let keep = || {
            let warm = &mut self.space.lock().warm;
            match warm.pages_max {
                most if pages > most => None,
                _ => Some(warm.keep(first, pages)),
            }
        };
        match keep() {
            None => self.give_pages(first, pages),
            Some(true) => {}
            Some(false) => {
                let _cooling = self.cooling();
                let back = self.space.lock().warm.keep_instead(first, pages);
                self.give_all(&back);
            }
        }
    }

    /// Pages that were freed just now, if so many are in a row; what they hold is unspecified.
    fn take_warm(&self, pages: u32, align: u32) -> Option<u32> {
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
        // What another thread is giving back is in neither.
        if !meets_warm && self.cooling.try_lock().is_some() {
            return false;
        }
        self.cool();
        self.space.lock().free.take_at(first, pages)
    }

    /// Takes pages that are zeros.
    pub(super) fn take_free(&self, pages: u32, align: u32) -> Option<u32> {
        let take = || self.space.lock().free.take(pages, align);
        take().or_else(|| {
            self.cool();
            take()
        })
    }

    /// Gives back all that is kept; what others are giving back meanwhile is free as well when it returns.
    pub fn cool(&self) {
        let _cooling = self.cooling();
        let back = self.space.lock().warm.take_all();
        self.give_all(&back);
    }

    /// Held while pages are nobody's. A signal handler would wait for itself if it came to free something then.
    fn cooling(&self) -> Cooling<'_> {
        let quiet = Quiet::new();
        Cooling {
            _held: self.cooling.lock(),
            _quiet: quiet,
        }
    }

    fn give_all(&self, runs: &Runs) {
        for (first, pages) in runs.iter() {
            self.give_pages(first, pages);
        }
    }

    /// Pages for allocations, and whether they are zeros, as it is better if they are to be `cleared`.
    pub(super) fn take_for_use(
        &self,
        pages: u32,
        align: u32,
        asked_bytes: usize,
        cleared: bool,
    ) -> Result<(u32, bool), AllocError> {
        if !cleared || pages <= CLEARED_PAGES_MAX {
            // What could not be stored any more is not handed out either.
            if self.ground.promise(0).is_ok()
                && let Some(first) = self.take_warm(pages, align)
            {
                return Ok((first, false));
            }
        }
        Ok((self.take_pages(pages, align, asked_bytes)?, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Way;
    use crate::opp::Heap;
    use crate::store::{Store, StoreOptions};

    #[test]
    fn what_could_not_be_fetched_is_not_handed_out_so() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20)).unwrap();
        let heap = Heap::open(store, Way::Handlers(1)).unwrap();
        let pages = PageHeap::new(&heap, 1 << 30).unwrap();
        let bytes = 100_000;
        let first = pages.alloc(bytes, 16).unwrap();
        let core = &heap.memory().core;
        let page = core.space.page_at(first as usize + 3 * PAGE_BYTES).unwrap();
        crate::inside::run(|| core.poison(page));
        pages.free(first).unwrap();
        let again = pages.alloc(bytes, 16).unwrap();
        assert_eq!(again, first, "what was freed last");
        // SAFETY: allocated just now, of so many bytes; what they hold is unspecified, as any bytes are.
        let read_to = unsafe { std::slice::from_raw_parts_mut(again, bytes) };
        // By the kernel, which is told EFAULT.
        let mut zeros = std::fs::File::open("/dev/zero").unwrap();
        std::io::Read::read_exact(&mut zeros, read_to).unwrap();
        pages.free(again).unwrap();
    }
}
