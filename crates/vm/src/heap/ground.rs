//! What a [`PageHeap`](super::PageHeap) stands on besides its pages: room on the SSD, and the cap.
//!
//! Promises: what was promised is there. Never: knows addresses.

use super::AllocError;
use crate::opp::Heap;

/// Gives room on the SSD, and is told of DRAM that is taken. A fork's child has its parent's.
pub trait Ground: Send + Sync {
    /// Makes sure that entries of so many more bytes have room.
    fn promise(&self, bytes: u64) -> Result<(), AllocError>;

    /// Takes that back.
    fn unpromise(&self, bytes: u64);

    /// Tables of the heap take `after` bytes of DRAM, where they took `before`.
    fn count(&self, before: u64, after: u64);
}

impl Ground for Heap {
    fn promise(&self, bytes: u64) -> Result<(), AllocError> {
        Ok(self.promise_bytes(bytes)?)
    }

    fn unpromise(&self, bytes: u64) {
        self.unpromise_bytes(bytes);
    }

    fn count(&self, before: u64, after: u64) {
        self.store().count_pages(before, after);
    }
}
