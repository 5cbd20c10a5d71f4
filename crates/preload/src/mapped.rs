//! What mmap and its family do to served memory: pages of a heap are mapped, there or anywhere, unmapped, and protected, and what is closed to every access leaves DRAM first.
//!
//! Promises: pages that were mapped read as zeros; what can be touched has room on the SSD; nothing comes ahead into what is closed. Never: touches served memory with its lock held.

use crate::mappings::Mappings;
use crate::raw;
use crate::runtime::{self, Area};
use libc::{c_int, c_void};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use terrace_vm::heap::Closing;

pub const PAGE_BYTES: usize = 4096;
const OPEN: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The errno of a refusal.
pub type Refused = c_int;

/// A range in whole pages, as the kernel rounds it.
pub fn whole(start: usize, len: usize) -> Option<(usize, usize)> {
    let len = len.checked_next_multiple_of(PAGE_BYTES)?;
    (start.is_multiple_of(PAGE_BYTES) && start.checked_add(len).is_some()).then_some((start, len))
}

impl Area {
    /// The pages of a range of addresses that lies in the heap's altogether.
    pub fn pages(&self, start: usize, len: usize) -> Option<Range<u32>> {
        let first = self.heap.page_of(start)?;
        let last = self.heap.page_of(start.checked_add(len)?.checked_sub(1)?)?;
        Some(first..last + 1)
    }

    /// What of a range is the program's: what is mapped. Of malloc's addresses that is all of them.
    pub fn there(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        match runtime::get().is_some_and(|runtime| std::ptr::eq(self, &runtime.malloc)) {
            true => vec![pages],
            false => self.mappings().mapped.parts(pages).0,
        }
    }

    /// Where pages lie.
    pub fn at(&self, pages: &Range<u32>) -> (*mut c_void, usize) {
        let len = (pages.end - pages.start) as usize * PAGE_BYTES;
        (self.heap.address_of(pages.start).cast(), len)
    }

    pub fn map(&self, len: usize, prot: c_int) -> Result<*mut c_void, Refused> {
        let pages = u32::try_from(len.div_ceil(PAGE_BYTES)).map_err(|_| libc::ENOMEM)?;
        // What cannot be touched takes no room until it can.
        let room = prot != libc::PROT_NONE;
        let map = || self.heap.map(pages, 1, room).ok();
        let first = match room {
            true => with_all_room(map),
            false => map(),
        };
        let first = first.ok_or(libc::ENOMEM)?;
        let range = first..first + pages;
        // Nobody can close what is not mapped, but for a thread that begins before it is unmapped and ends behind that.
        self.open(range.clone());
        self.mappings().mapped.add(range.clone(), room);
        if prot != OPEN
            && let Err(errno) = self.protect(range.clone(), prot)
        {
            self.unmap(range);
            return Err(errno);
        }
        Ok(self.heap.address_of(first).cast())
    }

    /// Ends the mappings in a range; what is not mapped there stays.
    pub fn unmap(&self, pages: Range<u32>) {
        let taken = self.mappings().mapped.take(pages);
        for (piece, room) in taken {
            self.open(piece.clone());
            // SAFETY: just taken out of what is mapped, as it was; the program uses it no more.
            unsafe { self.heap.unmap(piece, room) };
        }
    }

    /// Protections of a range end: it can be read and written.
    fn open(&self, pages: Range<u32>) {
        if self.closed.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut mappings = self.mappings();
        let closed = mappings.closed.take(pages);
        if closed.is_empty() {
            return;
        }
        for (piece, _) in closed {
            let (start, len) = self.at(&piece);
            // SAFETY: addresses of the heap, which are readable and writable unless the program said otherwise.
            if unsafe { raw::mprotect(start, len, OPEN) } != 0 {
                raw::die(format_args!(
                    "pages at {start:?} stay protected: error {}; raise vm.max_map_count",
                    raw::errno()
                ));
            }
            self.open_ahead(piece, &mappings);
        }
        self.count_closed(&mappings);
    }

    /// Pages may come ahead again where none is closed.
    fn open_ahead(&self, pages: Range<u32>, mappings: &Mappings) {
        self.heap.open_ahead(pages, |pages| {
            let closed = mappings.closed.look(pages);
            closed.iter().any(|(_, prot)| is_unreadable(*prot))
        });
    }

    /// The same for the allocation at an address, before it is freed or changes its size.
    pub fn open_again(&self, address: usize) {
        if self.closed.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Ok(bytes) = self.heap.usable_bytes(address as *mut u8)
            && let Some(pages) = self.pages(address, bytes)
        {
            self.open(pages);
        }
    }

    /// Counts what is closed, after it changed.
    fn count_closed(&self, mappings: &Mappings) {
        let (mut all, mut unreadable) = (0, 0);
        for (_, prot) in mappings.closed.all() {
            all += 1;
            unreadable += usize::from(is_unreadable(prot));
        }
        self.closed.store(all, Ordering::Release);
        let mut counted = self
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *counted = Closing::new(unreadable);
    }

    /// In the child of a fork: what the program closed is closed in the new mapping too.
    pub fn protect_again(&self) {
        let mappings = self.mappings();
        self.count_closed(&mappings);
        for (piece, prot) in mappings.closed.all() {
            if is_unreadable(prot) {
                self.heap.close_ahead(piece.clone());
            }
            let (start, len) = self.at(&piece);
            // SAFETY: addresses of the heap, which nobody has touched yet.
            if unsafe { raw::mprotect(start, len, prot) } != 0 {
                raw::die(format_args!("pages at {start:?} cannot be protected"));
            }
        }
    }

    pub fn protect(&self, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
        self.promise(pages.clone(), prot)?;
        let done = self.try_protect(pages.clone(), prot);
        if done.is_err() {
            self.as_it_was(pages);
        }
        done
    }

    /// After a refusal, of which the kernel may have done a part: all is as it is known here.
    fn as_it_was(&self, pages: Range<u32>) {
        let mappings = self.mappings();
        let pieces = mappings.closed.look(pages.clone());
        for (piece, prot) in std::iter::once((pages.clone(), OPEN)).chain(pieces) {
            let (start, len) = self.at(&piece);
            // SAFETY: addresses of the heap, whose protection the program asked to change.
            if unsafe { raw::mprotect(start, len, prot) } != 0 {
                raw::die(format_args!(
                    "pages at {start:?} keep a protection that was refused: error {}; raise vm.max_map_count",
                    raw::errno()
                ));
            }
        }
        self.open_ahead(pages, &mappings);
    }

    fn try_protect(&self, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
        let (start, len) = self.at(&pages);
        let closing = is_unreadable(prot).then(|| Closing::new(1));
        if closing.is_some() {
            // Read past their protection they cost more: they leave first, with nobody writing to them.
            // SAFETY: addresses of the heap, which the program asks to close.
            unsafe { raw::mprotect(start, len, libc::PROT_READ) };
            let taken = self.heap.take_away(pages.clone());
            taken.map_err(|_| libc::ENOMEM)?;
        }
        // What can be written to can be read here.
        let asked = match prot & libc::PROT_WRITE {
            0 => prot,
            _ => prot | libc::PROT_READ,
        };
        let mut mappings = self.mappings();
        // SAFETY: the program asks for it.
        if unsafe { raw::mprotect(start, len, asked) } != 0 {
            return Err(raw::errno());
        }
        drop(mappings.closed.take(pages.clone()));
        if asked != OPEN {
            mappings.closed.add(pages.clone(), asked);
        }
        if closing.is_none() {
            self.open_ahead(pages, &mappings);
        }
        self.count_closed(&mappings);
        Ok(())
    }

    /// Room for pages that were mapped without, when they can be touched from now on.
    fn promise(&self, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
        if prot == libc::PROT_NONE {
            return Ok(());
        }
        with_all_room(|| self.try_promise(pages.clone()).ok()).ok_or(libc::ENOMEM)
    }

    fn try_promise(&self, pages: Range<u32>) -> Result<(), Refused> {
        let mut mappings = self.mappings();
        for (piece, room) in mappings.mapped.look(pages) {
            if room {
                continue;
            }
            let promised = self.heap.promise_pages(piece.end - piece.start);
            promised.map_err(|_| libc::ENOMEM)?;
            drop(mappings.mapped.take(piece.clone()));
            mappings.mapped.add(piece, true);
        }
        Ok(())
    }

    /// A mapping at said pages, as MAP_FIXED asks: what was there is gone. Only where nothing is, if it does not replace.
    pub fn map_over(
        &self,
        pages: Range<u32>,
        prot: c_int,
        replaces: bool,
    ) -> Result<*mut c_void, Refused> {
        // First of all: what is refused stays as it was, closed if it was only reserved, a hole if it was none.
        let room = prot != libc::PROT_NONE;
        let taken = with_all_room(|| match self.take_holes(pages.clone(), room, replaces) {
            Err(libc::ENOMEM) => None,
            done => Some(done),
        });
        let holes = taken.unwrap_or(Err(libc::ENOMEM))?;
        if let Err(errno) = self.make_anew(pages.clone(), prot) {
            holes.into_iter().for_each(|hole| self.unmap(hole));
            return Err(errno);
        }
        Ok(self.at(&pages).0)
    }

    /// New memory in mapped pages.
    fn make_anew(&self, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
        self.promise(pages.clone(), prot)?;
        self.open(pages.clone());
        // SAFETY: all of it is mapped, and the program asked for new memory there.
        let cleared = unsafe { self.heap.clear(pages.clone()) };
        cleared.map_err(|_| libc::ENOMEM)?;
        match prot {
            OPEN => Ok(()),
            _ => self.protect(pages, prot),
        }
    }

    /// Maps what of a range is not, all of it or nothing: which that was.
    fn take_holes(
        &self,
        pages: Range<u32>,
        room: bool,
        replaces: bool,
    ) -> Result<Vec<Range<u32>>, Refused> {
        // Held meanwhile, so that of two that want the same place one has it.
        let mut mappings = self.mappings();
        let (there, holes) = mappings.mapped.parts(pages);
        if !replaces && !there.is_empty() {
            return Err(libc::EEXIST);
        }
        for (n, hole) in holes.iter().enumerate() {
            if self.heap.map_at(hole.start, hole.end - hole.start, room) {
                continue;
            }
            for taken in &holes[..n] {
                // SAFETY: mapped so just now, and nobody knows of it.
                unsafe { self.heap.unmap(taken.clone(), room) };
            }
            return Err(libc::ENOMEM);
        }
        for hole in &holes {
            mappings.mapped.add(hole.clone(), room);
        }
        Ok(holes)
    }

    /// Pages behind a mapping become a part of it, if they are free.
    pub fn grow(&self, behind: Range<u32>, room: bool) -> bool {
        let len = behind.end - behind.start;
        let grown = self.heap.map_at(behind.start, len, room);
        if grown {
            self.open(behind.clone());
            self.mappings().mapped.add(behind, room);
        }
        grown
    }
}

/// Whether pages of such a protection are closed to every access.
pub fn is_unreadable(prot: c_int) -> bool {
    prot & (libc::PROT_READ | libc::PROT_WRITE) == 0
}

/// What malloc keeps of freed pages has room that a mapping may want: it is asked for again without.
fn with_all_room<R>(what: impl Fn() -> Option<R>) -> Option<R> {
    what().or_else(|| {
        let runtime = runtime::get()?;
        runtime.malloc.heap.cool();
        what()
    })
}
