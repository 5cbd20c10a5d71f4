//! What a pool and each of its open regions share: the memory, where regions lie, which there are, and what their pages take of SSD and DRAM.
//!
//! Promises: room is promised and given back by the same count. Never: opens or makes a region.

use super::catalogue::{Catalogue, Record};
use crate::PAGE_BYTES;
use crate::memory::ADDRESSES_ALIGN_BYTES;
use crate::opp::{Heap, HeapError};
use crate::policy;
use crate::store::{Named, Shape, Store};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_pool::Mutex;

/// See the head of the file.
pub(super) struct Shared {
    pub heap: Heap,
    /// Where regions lie.
    pub base: u64,
    pub bytes: u64,
    pub held: Mutex<Held>,
}

/// What changes.
pub(super) struct Held {
    pub catalogue: Catalogue,
    pub open: BTreeSet<u16>,
}

impl Shared {
    pub fn store(&self) -> &Arc<Store> {
        self.heap.store()
    }

    /// What pages of a region take of the SSD and, for their slots, of DRAM: in two tables, and beside the first of them one of a single slot.
    pub fn room_of(&self, pages: Range<u64>) -> (u64, u64) {
        let chunks = self.store().chunks(Shape::Any);
        let slots = |pages: u64| 2 * chunks.bytes(pages) + chunks.bytes(pages.min(1));
        (
            Named::promise_bytes(pages.end) - Named::promise_bytes(pages.start),
            slots(pages.end) - slots(pages.start),
        )
    }

    /// Makes sure that so many more pages of a region have room.
    pub fn promise(&self, pages: Range<u64>) -> Result<(), HeapError> {
        let (bytes, slots) = self.room_of(pages);
        self.heap.promise_room(bytes, slots)
    }

    pub fn unpromise(&self, pages: Range<u64>) {
        let (bytes, slots) = self.room_of(pages);
        self.heap.unpromise_room(bytes, slots);
    }

    pub fn base_of(&self, record: &Record) -> usize {
        self.base as usize + record.first_slot as usize * ADDRESSES_ALIGN_BYTES
    }
}

/// What the cap was told of a region's addresses and marks, as long as it is open.
pub(super) struct Counted {
    heap: Heap,
    bytes: AtomicU64,
}

impl Counted {
    /// Of one that is `there` already no slots are looked at: they take what they take, and it is to be opened under the cap that it was made under.
    pub fn new(heap: &Heap, record: &Record, there: bool) -> Result<Counted, HeapError> {
        let bytes = policy::addresses_bytes(record.pages_max) + Named::marks_bytes(record.pages);
        match there {
            true => heap.take_dram_beside(bytes, 0)?,
            false => heap.take_dram(bytes)?,
        }
        Ok(Counted {
            heap: heap.clone(),
            bytes: AtomicU64::new(bytes),
        })
    }

    /// It is to have these pages as well.
    pub fn grow(&self, pages: Range<u64>) -> Result<(), HeapError> {
        let more = Counted::marks_bytes(pages);
        self.heap.take_dram(more)?;
        self.bytes.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// It did not get them.
    pub fn shrink(&self, pages: Range<u64>) {
        let less = Counted::marks_bytes(pages);
        self.bytes.fetch_sub(less, Ordering::Relaxed);
        self.heap.store().count_pages(less, 0);
    }

    fn marks_bytes(pages: Range<u64>) -> u64 {
        Named::marks_bytes(pages.end) - Named::marks_bytes(pages.start)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counted = self.bytes.load(Ordering::Relaxed);
        self.heap.store().count_pages(counted, 0);
    }
}

/// How many pages have so many bytes.
pub(super) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}
