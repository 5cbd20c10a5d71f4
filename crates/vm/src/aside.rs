//! Changed pages put aside before their backing gets them, where devices write to memory.
//!
//! A device that reads into a page (O_DIRECT through io_uring) has it pinned and writes past every protection: what came after its bytes were copied would be lost. The kernel
//! moves a page to another address only while nobody has it pinned, at once and whole (UFFDIO_MOVE, Linux 6.8). So from `Memory::devices_write` on, a changed page leaves
//! by way of addresses of ours: whoever touches it meanwhile faults and waits, and what lies there is stored and dropped, or put back. One that is pinned stays where
//! it is, changed. A clean page needs nothing: it is protected, so who pins it for writing faults first and makes it a changed one; and a pinned one does not become clean.
//!
//! Promises: what lies aside is nobody's but the thread's that has the stage; a page that is put back is as it was. Never: allocates once it is made, or reads a page.

use crate::PAGE_BYTES;
use crate::policy::{BATCH_PAGES_MAX, EVICTORS_MAX};
use crate::sys::{Held, Lock, Range, SystemError, Uffd, map_addresses};
use rustix::mm::{Advice, madvise, munmap};
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages of a stage.
const STAGE_PAGES: usize = BATCH_PAGES_MAX;
const STAGE_BYTES: usize = STAGE_PAGES * PAGE_BYTES;
/// One for each thread that evicts, and one for who writes back.
const STAGES: usize = EVICTORS_MAX + 1;
const BYTES: usize = STAGES * STAGE_BYTES;

/// Where a page lies that was to be put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lies {
    /// At its slot.
    Aside,
    /// In its place: somebody has it pinned, and may write to it.
    Pinned,
    /// In its place, since it cannot be moved: its addresses are not writable now.
    Here,
}

/// Addresses for the pages of one batch.
#[derive(Clone, Copy)]
pub(crate) struct Stage {
    base: usize,
}

impl Stage {
    /// Where its `nth` page comes to lie.
    pub fn slot(self, nth: usize) -> usize {
        debug_assert!(nth < STAGE_PAGES);
        self.base + nth * PAGE_BYTES
    }

    /// The first `len` slots, to be dropped.
    pub fn slots(self, len: usize) -> Range {
        debug_assert!(len <= STAGE_PAGES);
        Range {
            start: self.base,
            len: len * PAGE_BYTES,
        }
    }
}

/// The addresses, and whether they are used.
pub(crate) struct Aside {
    on: AtomicBool,
    /// 0 where the kernel does not move pages.
    base: usize,
    spare: Lock<Stage>,
}

impl Aside {
    /// Takes the addresses, where the kernel moves pages.
    pub fn new(uffd: &Uffd) -> Result<Aside, SystemError> {
        let base = match uffd.moves() {
            true => map()?,
            false => 0,
        };
        let aside = Aside {
            on: AtomicBool::new(false),
            base,
            spare: Lock::new(Stage {
                base: base + EVICTORS_MAX * STAGE_BYTES,
            }),
        };
        if base != 0 {
            uffd.register(base, BYTES)?;
        }
        Ok(aside)
    }

    /// The stage of the `nth` thread that evicts.
    pub fn stage(&self, nth: usize) -> Stage {
        debug_assert!(nth < EVICTORS_MAX);
        Stage {
            base: self.base + nth * STAGE_BYTES,
        }
    }

    /// The stage of who writes back, one at a time.
    pub fn spare(&self) -> Held<'_, Stage> {
        self.spare.lock()
    }

    /// Whether devices write to pages. Asked after a page was protected: who pinned it before did so after it was said that devices write, and the kernel's lock of the page's table
    /// orders the two.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }
}

/// Addresses with nothing behind them, of the same kind as those of regions.
fn map() -> Result<usize, SystemError> {
    let mapped = map_addresses(BYTES)?;
    for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork] {
        // SAFETY: our own mapping; it stays without huge pages, and out of children.
        let advised = unsafe { madvise(mapped, BYTES, advice) };
        if let Err(errno) = advised {
            // SAFETY: mapped just now, and nobody knows of it.
            let _ = unsafe { munmap(mapped, BYTES) };
            return Err(SystemError::call("advising on reserved addresses")(errno));
        }
    }
    Ok(mapped as usize)
}

impl Aside {
    /// From now on devices write to pages. Whether this kernel moves them; if not, nothing has changed.
    pub fn begin(&self) -> bool {
        if self.base != 0 {
            self.on.store(true, Ordering::SeqCst);
        }
        self.base != 0
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.base != 0 {
            // SAFETY: our own mapping of this length; no thread evicts any more.
            let unmapped = unsafe { munmap(self.base as *mut _, BYTES) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        }
    }
}
