//! Changed pages put aside before their backing gets them, where devices write to memory.
//!
//! A device that reads into a page (O_DIRECT through io_uring) has it pinned and writes past every protection: what came after its bytes were copied would be lost. The kernel
//! moves a page to another address only while nobody has it pinned, at once and whole (UFFDIO_MOVE, Linux 6.8). So from [`Memory::devices_write`] on, a changed page leaves
//! by way of addresses of ours: whoever touches it meanwhile faults and waits, and what lies there is stored and dropped, or put back. One that is pinned stays where
//! it is, changed. A clean page needs nothing: it is protected, so who pins it for writing faults first and makes it a changed one; and a pinned one does not become clean.
//!
//! Promises: what lies aside is nobody's but the thread's that has the stage; a page that is put back is as it was. Never: allocates once it is made, or reads a page.

use crate::PAGE_BYTES;
use crate::backing::Page;
use crate::memory::{Core, EVICTORS_MAX, Memory};
use crate::policy::BATCH_PAGES_MAX;
use crate::signal;
use crate::stats::Counters;
use crate::sys::{Held, Lock, Range, SystemError, Uffd, map_addresses};
use rustix::io::Errno;
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

impl Drop for Aside {
    fn drop(&mut self) {
        if self.base != 0 {
            // SAFETY: our own mapping of this length; no thread evicts any more.
            let unmapped = unsafe { munmap(self.base as *mut _, BYTES) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        }
    }
}

impl Memory {
    /// From now on devices write to pages, which they have pinned: with io_uring and O_DIRECT they do. Said before the first does. A page is taken away only while nobody has
    /// it pinned then, which costs a few microseconds for each. False: this kernel cannot do that, and nothing has changed (before Linux 6.8).
    ///
    /// What is not covered: pages whose addresses are made read-only while a device writes to them, and file systems that do not pin what they read into (NFS).
    pub fn devices_write(&self) -> bool {
        let aside = &self.core.aside;
        if aside.base != 0 {
            aside.on.store(true, Ordering::SeqCst);
        }
        aside.base != 0
    }
}

impl Core {
    /// Moves `count` pages in a row, which the caller has as leaving, to a stage from its slot `slot` on, and says of each where it lies then.
    pub fn put_aside(
        &self,
        stage: Stage,
        slot: usize,
        first: u64,
        count: usize,
        mut said: impl FnMut(usize, Lies),
    ) {
        let (mut at, mut together) = (0, count);
        while at < count {
            let len = together.min(count - at);
            let from = self.space.address_of(first + at as u64);
            // SAFETY: the pages are the caller's alone while they are leaving: who else touches one faults, and waits for the caller. The slots are
            // the caller's stage's, and empty.
            let (bytes, refused) = unsafe {
                self.uffd
                    .move_pages(stage.slot(slot + at), from, len * PAGE_BYTES)
            };
            let moved = bytes / PAGE_BYTES;
            (at..at + moved).for_each(|nth| said(nth, Lies::Aside));
            at += moved;
            together = count;
            match refused {
                None => {}
                Some(Errno::BUSY | Errno::AGAIN | Errno::INTR | Errno::NOMEM) => {
                    Counters::add(&self.counters.pinned, 1);
                    said(at, Lies::Pinned);
                    at += 1;
                }
                // A mapping may end within the row: then the first page of it can be moved alone.
                Some(_) if len - moved > 1 => together = 1,
                Some(_) => {
                    said(at, Lies::Here);
                    at += 1;
                }
            }
        }
    }

    /// Moves a page back from its slot, writable, before it is changed again.
    pub fn put_back(&self, slot: usize, page: u64) {
        let to = self.space.address_of(page);
        // SAFETY: the slot is the caller's; the page is leaving, so nobody else puts one in its place.
        let (_, refused) = unsafe { self.uffd.move_pages(to, slot, PAGE_BYTES) };
        // Its addresses may be closed by now; a copy can be put there nevertheless.
        if refused.is_some()
            && let Err(errno) = self.copy_back(slot, page, false)
        {
            signal::die(format_args!(
                "putting the page at {to:#x} back failed: {errno}; were its addresses unmapped?"
            ));
        }
    }

    /// Puts a copy of what lies at a slot where the page was.
    pub fn copy_back(&self, slot: usize, page: u64, protected: bool) -> Result<(), Errno> {
        // SAFETY: a page lies there, and nobody writes to it before the caller drops it.
        let contents = unsafe { &*(slot as *const Page) };
        self.uffd
            .copy(self.space.address_of(page), contents, protected)
    }

    /// Puts a copy of a page that is pinned, as it is now, at a slot: what is stored must not change meanwhile.
    pub fn copy_aside(&self, slot: usize, page: u64) -> Result<(), Errno> {
        let from = self.space.address_of(page);
        self.uffd.copy_from(slot, from, false)
    }
}
