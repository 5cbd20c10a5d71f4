//! What a [`PageHeap`](super::PageHeap) stands on besides its pages: room for them, and the cap.
//!
//! Promises: what was promised is there. Never: knows addresses.

use super::error::AllocError;
use crate::PAGE_BYTES;
use crate::opp::Heap;
use crate::store::{PAGE_SLOT_BYTES, Shape};
use terrace_log::ObjectId;
use terrace_log::entry::entry_bytes;

/// What a page takes of the SSD if lz4 saves nothing.
const PAGE_ENTRY_BYTES: u64 = entry_bytes(ObjectId::KEY_BYTES, PAGE_BYTES, false, false) as u64;

/// Gives room, and is told of DRAM that is taken. A fork's child has its parent's.
pub trait Ground: Send + Sync {
    /// Makes sure that so many more pages have room, on the SSD if lz4 saves nothing, and in DRAM for their slots.
    fn promise(&self, pages: u64) -> Result<(), AllocError>;

    /// Takes that back.
    fn unpromise(&self, pages: u64);

    /// Whether what is written from now on can be stored, if that is known here: what has its room already is not handed out either where it could not. Costs a load.
    fn takes_updates(&self) -> Result<(), AllocError> {
        Ok(())
    }

    /// Tables of the heap take `after` bytes of DRAM, where they took `before`.
    fn count(&self, before: u64, after: u64);
}

impl Heap {
    /// Makes sure that second versions of so many pages have room, which lie in `tables` tables of their own. However few they are, the slots of the first of a table take a chunk of each lane.
    pub fn promise_versions(&self, pages: u64, tables: u64) -> Result<(), AllocError> {
        let (bytes, slots) = self.room_of_versions(pages, tables);
        Ok(self.promise_room(bytes, slots)?)
    }

    /// Takes that back.
    pub fn unpromise_versions(&self, pages: u64, tables: u64) {
        let (bytes, slots) = self.room_of_versions(pages, tables);
        self.unpromise_room(bytes, slots);
    }

    fn room_of_versions(&self, pages: u64, tables: u64) -> (u64, u64) {
        let chunks = self.store().chunks(Shape::Any);
        let first = tables * chunks.bytes(chunks.numbers);
        let bytes = pages.saturating_mul(PAGE_ENTRY_BYTES);
        (
            bytes,
            pages.saturating_mul(PAGE_SLOT_BYTES).saturating_add(first),
        )
    }
}

impl Ground for Heap {
    fn promise(&self, pages: u64) -> Result<(), AllocError> {
        let bytes = pages.saturating_mul(PAGE_ENTRY_BYTES);
        Ok(self.promise_room(bytes, pages.saturating_mul(PAGE_SLOT_BYTES))?)
    }

    fn unpromise(&self, pages: u64) {
        self.unpromise_room(pages * PAGE_ENTRY_BYTES, pages * PAGE_SLOT_BYTES);
    }

    fn takes_updates(&self) -> Result<(), AllocError> {
        Ok(self.refuse_failed()?)
    }

    fn count(&self, before: u64, after: u64) {
        self.store().count_pages(before, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Way;
    use crate::store::{Store, StoreOptions};

    #[test]
    fn versions_of_few_pages_have_room_for_whole_chunks_of_slots() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::scratch(dir.path(), 32 << 20, 1 << 30);
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let chunks = heap.store().chunks(Shape::Any);
        let all = chunks.bytes(chunks.numbers);
        let free = heap.unpromised_bytes();
        heap.promise_versions(1, 2).unwrap();
        assert_eq!(heap.unpromised_bytes(), free - PAGE_SLOT_BYTES - 2 * all);
        // As many as there is room for, and no more.
        let mut more = 0;
        while heap.promise_versions(1, 2).is_ok() {
            more += 1;
        }
        assert_eq!(more + 1, free / (PAGE_SLOT_BYTES + 2 * all));
        (0..=more).for_each(|_| heap.unpromise_versions(1, 2));
        assert_eq!(heap.unpromised_bytes(), free);
    }
}
