//! Room in DRAM for the slots of one table, promised as its numbers come into use.
//!
//! A slot is first written when a page leaves, where a program that touches memory would be killed for want of it; so it is promised when numbers are given out: by the chunk, as
//! tables take it, and as wide as slots of packed objects are. Promises: numbers that were reached have slots until they are let go of. Never: makes a slot.

use super::{Heap, HeapError};
use crate::store::Chunks;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the head of the file. Dropped after the table.
pub(crate) struct Slots {
    heap: Heap,
    chunks: Chunks,
    /// Numbers below this have slots: a multiple of what the chunks of all lanes have.
    reached: AtomicU64,
}

impl Slots {
    /// Of a table that is made.
    pub fn new(heap: &Heap, table: u16) -> Result<Slots, HeapError> {
        Ok(Slots {
            heap: heap.clone(),
            chunks: heap.store().chunks_of(table)?,
            reached: AtomicU64::new(0),
        })
    }

    fn bytes(&self, numbers: u64) -> u64 {
        (numbers / self.chunks.numbers).saturating_mul(self.chunks.bytes)
    }

    /// Makes sure that numbers below `numbers` have slots.
    pub fn reach(&self, numbers: u64) -> Result<(), HeapError> {
        let after = numbers.next_multiple_of(self.chunks.numbers);
        let mut before = self.reached.load(Ordering::Acquire);
        while after > before {
            let more = self.bytes(after) - self.bytes(before);
            self.heap.promise_slots(more)?;
            match self
                .reached
                .compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break,
                Err(now) => {
                    self.heap.unpromise_slots(more);
                    before = now;
                }
            }
        }
        Ok(())
    }

    /// Lets go of the slots of numbers from `numbers` on: all of them are free, and nobody reaches for more meanwhile.
    pub fn let_go(&self, numbers: u64) {
        let after = numbers.next_multiple_of(self.chunks.numbers);
        let before = self.reached.fetch_min(after, Ordering::AcqRel);
        if after < before {
            self.heap
                .unpromise_slots(self.bytes(before) - self.bytes(after));
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.let_go(0);
    }
}
