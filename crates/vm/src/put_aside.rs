//! Pages that are moved to a stage and back, by who has them as leaving (`aside`).

use crate::PAGE_BYTES;
use crate::aside::{Lies, Stage};
use crate::backing::Page;
use crate::parts::Core;
use crate::say::die;
use crate::stats::Counters;
use rustix::io::Errno;

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
            die(format_args!(
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
