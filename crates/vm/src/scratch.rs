//! Pages that contents are put together in before they are put at the faulting address.
//!
//! Promises: all zeros when taken; taking one allocates nothing; at most [`SCRATCH_PAGES`] are out, others wait. Never: leaves what
//! one page held to the next.

use crate::backing::Page;
use crate::sys::Rooms;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that can be filled at the same time: a bit each.
const SCRATCH_PAGES: usize = 64;
/// Their bytes.
pub(crate) const SCRATCH_BYTES: usize = SCRATCH_PAGES * crate::PAGE_BYTES;

/// The pages.
pub(crate) struct Scratch {
    /// A bit for each page that is out.
    out: AtomicU64,
    pages: Box<[UnsafeCell<Page>; SCRATCH_PAGES]>,
    back: Rooms,
}

// SAFETY: a page is reached only by who holds its bit.
unsafe impl Sync for Scratch {}

impl Scratch {
    pub fn new() -> Scratch {
        let pages: Vec<UnsafeCell<Page>> = std::iter::repeat_with(|| UnsafeCell::new(Page::ZERO))
            .take(SCRATCH_PAGES)
            .collect();
        let Ok(pages) = pages.into_boxed_slice().try_into() else {
            unreachable!("as many as asked for");
        };
        Scratch {
            out: AtomicU64::new(0),
            pages,
            back: Rooms::new(),
        }
    }

    /// Runs `fill` on a page of zeros, of which it writes `span` only. Waits while all are out.
    pub fn with<R>(&self, span: Range<usize>, work: impl FnOnce(&mut Page) -> R) -> R {
        let at = loop {
            let ticket = self.back.ticket(0);
            let out = self.out.load(Ordering::Acquire);
            let at = (!out).trailing_zeros();
            if at as usize == SCRATCH_PAGES {
                self.back.wait(&ticket);
            } else if self.out.fetch_or(1 << at, Ordering::AcqRel) & (1 << at) == 0 {
                break at;
            }
        };
        // SAFETY: the bit was ours to set, so no other thread has this page.
        let page = unsafe { &mut *self.pages[at as usize].get() };
        let result = work(page);
        page.0[span].fill(0);
        debug_assert!(
            page.0.iter().all(|byte| *byte == 0),
            "written outside of its span"
        );
        let all_out = self.out.fetch_and(!(1 << at), Ordering::AcqRel) == u64::MAX;
        if all_out {
            self.back.wake(0);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_and_nobody_elses() {
        let scratch = Scratch::new();
        std::thread::scope(|scope| {
            for thread in 1..=8u8 {
                let scratch = &scratch;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        scratch.with(100..200, |page| {
                            assert!(page.0.iter().all(|byte| *byte == 0));
                            page.0[100..200].fill(thread);
                            std::hint::spin_loop();
                            assert!(page.0[100..200].iter().all(|byte| *byte == thread));
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn more_than_there_are_wait() {
        let scratch = Scratch::new();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..SCRATCH_PAGES + 20 {
                scope.spawn(|| {
                    scratch.with(0..1, |_| {
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < SCRATCH_PAGES as u64);
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                });
            }
        });
    }
}
