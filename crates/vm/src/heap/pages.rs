//! Which pages a [`PageHeap`] takes and gives up, with their room: from what was freed last (`warm`), else from what is free.
//!
//! Promises: all that is kept warm is there for whoever of this heap would be refused otherwise; what left DRAM meanwhile is not read back, but forgotten. Never: hands out
//! what was kept as zeros.

use super::PageHeap;
use super::error::AllocError;
use super::runs::Runs;
use crate::PAGE_BYTES;
use crate::inside::Quiet;
use crate::sys::Held;
use std::sync::atomic::Ordering;

/// Larger runs that are to be zeros are taken from what is free: they need not be cleared before they are touched.
const CLEARED_PAGES_MAX: u32 = 64;

/// Ends before signals come again.
struct Cooling<'a> {
    _held: Held<'a, ()>,
    _quiet: Quiet,
}

impl PageHeap {
    /// Room for so many pages.
    pub(super) fn promise(&self, pages: u32) -> Result<(), AllocError> {
        let promise = || self.ground.promise(pages.into());
        promise().or_else(|_| {
            self.cool();
            promise()
        })
    }

    /// Takes pages that are zeros, and room for them.
    pub(super) fn take_pages(
        &self,
        pages: u32,
        align: u32,
        asked_bytes: usize,
    ) -> Result<u32, AllocError> {
        self.promise(pages)?;
        let Some(first) = self.take_free(pages, align) else {
            self.ground.unpromise(pages.into());
            return Err(AllocError::NoAddresses {
                asked_bytes,
                heap_bytes: self.bytes() as u64,
            });
        };
        self.count_pages(pages);
        Ok(first)
    }

    /// Takes the pages from `first` on, if they are free. What they hold is unspecified.
    pub(super) fn take_pages_at(&self, first: u32, pages: u32) -> bool {
        self.take_warm_at(first, pages) || self.take_zeros_at(first, pages)
    }

    /// The same; they are zeros.
    pub(super) fn take_zeros_at(&self, first: u32, pages: u32) -> bool {
        if self.promise(pages).is_err() {
            return false;
        }
        let taken = self.take_free_at(first, pages);
        match taken {
            true => self.count_pages(pages),
            false => self.ground.unpromise(pages.into()),
        }
        taken
    }

    pub(super) fn count_pages(&self, pages: u32) {
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        self.page_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives pages back that nothing is known of any more.
    pub(super) fn give_pages(&self, first: u32, pages: u32) {
        let range = u64::from(first)..u64::from(first) + u64::from(pages);
        if let Err(error) = self.region().discard(range) {
            // They may hold anything, so they are not used again.
            tracing::warn!(first, pages, %error, "pages of a heap could not be freed and are not used again");
            return;
        }
        self.space.lock().free.give(first, pages);
        self.ground.unpromise(pages.into());
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        self.page_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Gives up pages that hold no allocation any more.
    pub(super) fn free_pages(&self, first: u32, pages: u32) {
        let offered = self.space.lock().warm.offer(first, pages);
        match offered {
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
        let taken = self.space.lock().warm.take(pages, align);
        let first = taken?;
        self.forget_gone(first, pages);
        Some(first)
    }

    /// The same, of the pages from `first` on.
    fn take_warm_at(&self, first: u32, pages: u32) -> bool {
        let taken = self.space.lock().warm.take_at(first, pages);
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
            space.warm.meets(first, pages)
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
