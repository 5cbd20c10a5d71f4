//! Allocating and freeing in a [`PageHeap`].
//!
//! Promises: an address is freed once; of two threads that free the same, one is told. Never: holds the lock of a class and that of the space at
//! the same time.

use super::class::{ALIGN_MAX_BYTES, ALIGN_MIN, class_bytes, class_of, span_pages};
use super::error::AllocError;
use super::span::{Span, Wrong};
use super::{Class, PageHeap, RUN, Run, SPAN_BITS};
use crate::PAGE_BYTES;
use crate::opp::HeapError;
use crate::sys::Held;
use std::sync::atomic::Ordering;

/// DRAM that a run takes.
const RUN_TABLE_BYTES: usize = size_of::<Run>() + 8;
/// Most pages of one allocation.
const PAGES_MAX: usize = u32::MAX as usize;

/// Memory that was taken.
struct Taken {
    address: *mut u8,
    /// Its bytes are zeros.
    zeros: bool,
}

/// What an address belongs to.
enum Owner {
    Span { class: usize, number: usize },
    Run { number: usize },
}

fn pages_of(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES)
}

impl PageHeap {
    /// `bytes` bytes at a multiple of `align`, a power of two; 0 bytes are as 1. What they hold is unspecified.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<*mut u8, AllocError> {
        Ok(self.take(bytes, align, false)?.address)
    }

    /// The same; they are zeros.
    pub fn alloc_zeroed(&self, bytes: usize, align: usize) -> Result<*mut u8, AllocError> {
        let taken = self.take(bytes, align, true)?;
        if !taken.zeros {
            // SAFETY: just allocated, of at least so many bytes, and nobody else's.
            unsafe { taken.address.write_bytes(0, bytes) };
        }
        Ok(taken.address)
    }

    /// Frees an allocation. Nobody may use it any more.
    pub fn free(&self, address: *mut u8) -> Result<(), AllocError> {
        let (owner, page) = self.owner_of(address as usize)?;
        match owner {
            Owner::Span { class, number } => self.free_small(address as usize, class, number),
            Owner::Run { number } => self.free_run(address as usize, page, number),
        }
    }

    /// Bytes that may be used at the start of an allocation: what was asked for, or more.
    pub fn usable_bytes(&self, address: *mut u8) -> Result<usize, AllocError> {
        let (owner, page) = self.owner_of(address as usize)?;
        match owner {
            Owner::Span { class, number } => {
                let spans = self.classes[class].lock();
                self.slot(&spans, class, number, address as usize)?;
                Ok(class_bytes(class))
            }
            Owner::Run { number } => {
                let pages = self.run_pages(address as usize, page, number)?;
                Ok(pages as usize * PAGE_BYTES)
            }
        }
    }

    /// Changes the size of an allocation, which may move. On an error it is as it was.
    ///
    /// # Safety
    /// Nobody else uses the allocation meanwhile.
    pub unsafe fn realloc(&self, address: *mut u8, bytes: usize) -> Result<*mut u8, AllocError> {
        let have = self.usable_bytes(address)?;
        if self.fits_in_place(address as usize, have, bytes)? {
            return Ok(address);
        }
        let new = match self.alloc(bytes, ALIGN_MIN) {
            // What is to be smaller stays, if there is no other place for it.
            Err(_) if bytes <= have => return Ok(address),
            new => new?,
        };
        // SAFETY: both are allocated with so many bytes, the old one is the caller's, and two allocations do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(address, new, have.min(bytes)) };
        self.free(address)?;
        Ok(new)
    }

    fn take(&self, bytes: usize, align: usize, cleared: bool) -> Result<Taken, AllocError> {
        if !align.is_power_of_two() || align > ALIGN_MAX_BYTES {
            return Err(AllocError::Alignment { asked: align });
        }
        // Also where memory with its room is at hand: what could not be stored any more ends a program that writes to it.
        self.ground.takes_updates()?;
        match class_of(bytes, align) {
            Some(class) => self.take_small(class),
            None => self.take_run(bytes, align, cleared),
        }
    }

    fn take_small(&self, class: usize) -> Result<Taken, AllocError> {
        let mut spans = self.classes[class].lock();
        if spans.partial.is_empty() {
            drop(spans);
            let pages = span_pages(class) as u32;
            let (first, zeros) = self.take_for_use(pages, 1, class_bytes(class), false)?;
            self.count_table(0, Span::bytes(class));
            self.count_owners(first + pages);
            spans = self.classes[class].lock();
            let number = spans.spans.insert(Span::new(class, first, zeros));
            spans.partial.insert((first, number as u32));
            spans.empty += 1;
            let owner = (class as u32 + 1) << SPAN_BITS | number as u32;
            for page in first..first + pages {
                self.owner[page as usize].store(owner, Ordering::Release);
            }
        }
        let (first, number) = *spans.partial.first().expect("one was there, or was made");
        let span = &mut spans.spans[number as usize];
        let (slot, zeros) = span.take().expect("partial spans have room");
        let (full, first_use) = (span.is_full(), span.used == 1);
        if full {
            spans.partial.remove(&(first, number));
        }
        spans.empty -= u32::from(first_use);
        drop(spans);
        self.allocated_bytes
            .fetch_add(class_bytes(class) as u64, Ordering::Relaxed);
        let at = first as usize * PAGE_BYTES + slot * class_bytes(class);
        let address = self.base().wrapping_add(at);
        Ok(Taken { address, zeros })
    }

    fn take_run(&self, bytes: usize, align: usize, cleared: bool) -> Result<Taken, AllocError> {
        let pages = pages_of(bytes).max(1);
        if pages > PAGES_MAX {
            return Err(AllocError::NoAddresses {
                asked_bytes: bytes,
                heap_bytes: self.bytes() as u64,
            });
        }
        let pages = pages as u32;
        let (first, zeros) = self.take_for_use(pages, pages_of(align) as u32, bytes, cleared)?;
        self.count_table(0, RUN_TABLE_BYTES);
        self.count_owners(first + 1);
        let number = self.space.lock().runs.insert(Run {
            first_page: first,
            pages,
        });
        let owner = RUN << SPAN_BITS | number as u32;
        self.owner[first as usize].store(owner, Ordering::Release);
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        self.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Taken {
            address: self.base().wrapping_add(first as usize * PAGE_BYTES),
            zeros,
        })
    }

    /// What an address belongs to, and its page.
    fn owner_of(&self, address: usize) -> Result<(Owner, u32), AllocError> {
        let here = self.region().memory_core().check_not_forked();
        here.map_err(HeapError::from)?;
        let foreign = AllocError::NotAllocated { address };
        let at = address.checked_sub(self.base() as usize);
        let page = at.map(|at| at / PAGE_BYTES).ok_or(foreign.clone())?;
        let owner = self.owner.get(page).ok_or(foreign.clone())?;
        let owner = owner.load(Ordering::Acquire);
        let number = (owner & ((1 << SPAN_BITS) - 1)) as usize;
        match owner >> SPAN_BITS {
            // Also what was the last of its pages, and is freed: the pages are not the heap's any more.
            0 => Err(foreign),
            RUN => Ok((Owner::Run { number }, page as u32)),
            class => {
                let class = class as usize - 1;
                Ok((Owner::Span { class, number }, page as u32))
            }
        }
    }

    /// The allocation of a span that starts at an address.
    fn slot(
        &self,
        spans: &Class,
        class: usize,
        number: usize,
        address: usize,
    ) -> Result<usize, AllocError> {
        let foreign = AllocError::NotAllocated { address };
        // Gone, or another one by now: another thread freed the last of it since its owner was looked up.
        let span = spans.spans.get(number).ok_or(foreign.clone())?;
        let start = self.base() as usize + span.first_page as usize * PAGE_BYTES;
        let offset = address.checked_sub(start).ok_or(foreign.clone())?;
        match span.slot_at(class, offset) {
            Ok(slot) => Ok(slot),
            Err(Wrong::Inside) => Err(foreign),
            Err(Wrong::Free) => Err(AllocError::Freed { address }),
        }
    }

    fn free_small(&self, address: usize, class: usize, number: usize) -> Result<(), AllocError> {
        let mut spans = self.classes[class].lock();
        let slot = self.slot(&spans, class, number, address)?;
        let span = &mut spans.spans[number];
        span.give(slot);
        let (first, used) = (span.first_page, span.used);
        spans.partial.insert((first, number as u32));
        self.allocated_bytes
            .fetch_sub(class_bytes(class) as u64, Ordering::Relaxed);
        if used > 0 {
            return Ok(());
        }
        if spans.empty == 0 {
            spans.empty = 1;
            return Ok(());
        }
        self.drop_span(spans, class, number, first);
        Ok(())
    }

    /// A span without allocations goes.
    fn drop_span(&self, mut spans: Held<'_, Class>, class: usize, number: usize, first: u32) {
        let pages = span_pages(class) as u32;
        spans.partial.remove(&(first, number as u32));
        spans.spans.remove(number);
        for page in first..first + pages {
            self.owner[page as usize].store(0, Ordering::Release);
        }
        drop(spans);
        self.count_table(Span::bytes(class), 0);
        self.free_pages(first, pages);
    }

    /// The pages of the run that starts at an address.
    fn run_pages(&self, address: usize, page: u32, number: usize) -> Result<u32, AllocError> {
        let space = self.space.lock();
        match space.runs.get(number) {
            Some(run) if run.first_page == page && address.is_multiple_of(PAGE_BYTES) => {
                Ok(run.pages)
            }
            _ => Err(AllocError::NotAllocated { address }),
        }
    }

    fn free_run(&self, address: usize, page: u32, number: usize) -> Result<(), AllocError> {
        let pages = {
            let mut space = self.space.lock();
            match space.runs.get(number) {
                Some(run) if run.first_page == page && address.is_multiple_of(PAGE_BYTES) => {}
                _ => return Err(AllocError::NotAllocated { address }),
            }
            self.owner[page as usize].store(0, Ordering::Release);
            space.runs.remove(number).pages
        };
        self.count_table(RUN_TABLE_BYTES, 0);
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        self.allocated_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.free_pages(page, pages);
        Ok(())
    }

    /// Whether an allocation that has `have` bytes can have `bytes` where it is; then it has.
    fn fits_in_place(&self, address: usize, have: usize, bytes: usize) -> Result<bool, AllocError> {
        let (owner, page) = self.owner_of(address)?;
        let number = match owner {
            Owner::Span { class, .. } => {
                // What was aligned may be in a larger class than its size asks for: it stays, unless most of it would lie idle.
                let enough = bytes <= have && bytes.max(1) * 2 > class_bytes(class);
                return Ok(enough || class_of(bytes, ALIGN_MIN) == Some(class));
            }
            Owner::Run { number } => number,
        };
        if class_of(bytes, ALIGN_MIN).is_some() {
            return Ok(false);
        }
        let (had, wants) = (pages_of(have) as u32, pages_of(bytes).min(PAGES_MAX) as u32);
        if wants > had {
            self.ground.takes_updates()?;
            if !self.take_pages_at(page + had, wants - had) {
                return Ok(false);
            }
        }
        let mut space = self.space.lock();
        space.runs[number].pages = wants;
        drop(space);
        let page_bytes = PAGE_BYTES as u64;
        let change = u64::from(wants)
            .wrapping_sub(u64::from(had))
            .wrapping_mul(page_bytes);
        self.allocated_bytes.fetch_add(change, Ordering::Relaxed);
        if wants < had {
            self.free_pages(page + wants, had - wants);
        }
        Ok(true)
    }
}
