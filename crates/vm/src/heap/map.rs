//! Pages of a [`PageHeap`] for who keeps account of them itself: what mmap hands out.
//!
//! Promises: pages that were mapped read as zeros and are nobody else's until they are unmapped, in whatever pieces. Never: knows which pages are
//! mapped; freeing one by [`PageHeap::free`] is refused, as is any address that is not an allocation.

use super::PageHeap;
use super::error::AllocError;
use crate::PAGE_BYTES;
use crate::block::BLOCK_PAGES;
use crate::space::place;
use std::ops::Range;

/// Pages are numbered from the heap's base.
impl PageHeap {
    /// So many pages in a row, the first a multiple of `align`; with their room, or without: then that is promised later
    /// ([`PageHeap::promise_pages`]), or the SSD or the cap may be full when they leave DRAM.
    pub fn map(&self, pages: u32, align: u32, room: bool) -> Result<u32, AllocError> {
        if room {
            return self.take_pages(pages, align, pages as usize * PAGE_BYTES);
        }
        self.take_free(pages, align).ok_or(AllocError::NoAddresses {
            asked_bytes: pages as usize * PAGE_BYTES,
            heap_bytes: self.bytes() as u64,
        })
    }

    /// The pages from `first` on, if they are free and have room.
    pub fn map_at(&self, first: u32, pages: u32, room: bool) -> bool {
        match room {
            true => self.take_zeros_at(first, pages),
            false => self.take_free_at(first, pages),
        }
    }

    /// Gives pages back that were mapped with room, or without: those nobody could touch, so that there is nothing to clear.
    ///
    /// # Safety
    /// They were mapped so, are not given back yet, and nobody uses them any more.
    pub unsafe fn unmap(&self, pages: Range<u32>, room: bool) {
        let len = pages.end - pages.start;
        match room {
            true => self.give_pages(pages.start, len),
            false => self.space.lock().free.give(pages.start, len),
        }
    }

    /// Pages are zeros again, and take no DRAM and nothing of the SSD; they stay mapped, with their room.
    ///
    /// # Safety
    /// They are mapped, and whoever uses them expects that.
    pub unsafe fn clear(&self, pages: Range<u32>) -> Result<(), AllocError> {
        let range = u64::from(pages.start)..u64::from(pages.end);
        self.region()
            .discard(range)
            .map_err(|e| AllocError::Heap(e.into()))
    }

    /// Room for pages that were mapped without.
    pub fn promise_pages(&self, pages: u32) -> Result<(), AllocError> {
        self.promise(pages)?;
        self.count_pages(pages);
        Ok(())
    }

    /// Makes all pages of a range leave DRAM, changed or not: what is about to be closed to every access. Whoever touches them meanwhile may bring
    /// them back.
    pub fn take_away(&self, pages: Range<u32>) -> Result<(), AllocError> {
        let range = u64::from(pages.start)..u64::from(pages.end);
        self.close_ahead(pages);
        self.region()
            .take_away(range)
            .map_err(|e| AllocError::Heap(e.into()))
    }

    /// From now on no page is brought in before it is touched where these lie: they are closed, and what nobody may read cannot be written back either.
    pub fn close_ahead(&self, pages: Range<u32>) {
        let region = self.region();
        region.memory_core().ahead.close(self.blocks(&pages));
    }

    /// These are not closed any more. Of the blocks at their ends there may be more, of which `is_closed` says whether any page is.
    pub fn open_ahead(&self, pages: Range<u32>, is_closed: impl Fn(Range<u32>) -> bool) {
        const PAGES: u32 = BLOCK_PAGES as u32;
        let first = pages.start / PAGES * PAGES;
        let end = pages.end.next_multiple_of(PAGES);
        let mut opened = first..end;
        if first < pages.start && is_closed(first..pages.start) {
            opened.start = first + PAGES;
        }
        if end > pages.end && is_closed(pages.end..end) {
            opened.end = end - PAGES;
        }
        if opened.start < opened.end {
            let region = self.region();
            region.memory_core().ahead.open(self.blocks(&opened));
        }
    }

    /// The blocks of the memory that pages lie in: a region begins with one.
    fn blocks(&self, pages: &Range<u32>) -> Range<usize> {
        let first = self.region().inner().first_page;
        let block = |page: u32| place(first + u64::from(page)).0;
        block(pages.start)..block(pages.end.max(pages.start + 1) - 1) + 1
    }

    /// The page that an address lies on, if it is one of the heap's.
    pub fn page_of(&self, address: usize) -> Option<u32> {
        let at = address.checked_sub(self.base() as usize)?;
        (at < self.bytes()).then_some((at / PAGE_BYTES) as u32)
    }

    /// Where a page is.
    pub fn address_of(&self, page: u32) -> *mut u8 {
        self.base().wrapping_add(page as usize * PAGE_BYTES)
    }
}
