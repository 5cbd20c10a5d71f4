//! Room in DRAM for the slots of one table, promised as its numbers are given out.
//!
//! A slot is first written when a page leaves, where a program that touches memory would be killed for want of it; so it is promised before a number is used: by the chunk, as
//! tables take it, and as wide as slots of packed objects are. Promises: numbers that were reached have slots until they are let go of; none is given out beyond. Never: makes a slot.

use super::heap::{Heap, HeapError};
use crate::store::{Chunks, Objects, Sizes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_pool::Mutex;

/// See the head of the file. Dropped after the table.
pub(crate) struct Slots {
    heap: Heap,
    table: u16,
    chunks: Chunks,
    /// Who keeps a size beside each slot, where objects differ in that.
    sized: Option<Arc<Objects>>,
    /// Numbers below this have slots. 0 while it falls.
    reached: AtomicU64,
    /// Held while that changes.
    changing: Mutex<()>,
}

impl Slots {
    /// Of a table that is made; `sized` keeps sizes beside the slots, if they are kept.
    pub fn new(heap: &Heap, table: u16, sized: Option<Arc<Objects>>) -> Result<Slots, HeapError> {
        Ok(Slots {
            heap: heap.clone(),
            table,
            chunks: heap.store().chunks_of(table)?,
            sized,
            reached: AtomicU64::new(0),
            changing: Mutex::new(()),
        })
    }

    /// Makes sure that numbers below `numbers` have slots.
    pub fn reach(&self, numbers: u64) -> Result<(), HeapError> {
        let _changing = self.changing.lock();
        self.grow(numbers)
    }

    fn sizes(&self) -> Option<&Sizes> {
        self.sized.as_ref()?.sizes()
    }

    /// What is kept beside the slots of so many numbers.
    fn beside_bytes(&self, numbers: u64) -> u64 {
        self.sizes().map_or(0, |_| Sizes::bytes(numbers))
    }

    fn grow(&self, numbers: u64) -> Result<(), HeapError> {
        let before = self.reached.load(Ordering::Acquire);
        if numbers > before {
            let beside = self.beside_bytes(numbers) - self.beside_bytes(before);
            if beside > 0 {
                self.heap.take_dram(beside)?;
            }
            let more = self.chunks.bytes(numbers) - self.chunks.bytes(before);
            let promised = self.heap.promise_slots(more);
            promised.inspect_err(|_| self.heap.store().count_pages(beside, 0))?;
            self.reached.store(numbers, Ordering::Release);
        }
        Ok(())
    }

    /// A number that is free, below `max`; its object is zeros. `made` hears of it, before anybody else finds it there.
    pub fn claim(&self, max: u64, made: impl Fn(u64)) -> Result<u64, HeapError> {
        let reached = || self.reached.load(Ordering::Acquire);
        let claim = || {
            let below = || reached().min(max);
            self.heap.store().claim(self.table, below, &made)
        };
        if let Some(id) = claim()? {
            return Ok(id);
        }
        let _changing = self.changing.lock();
        // Whoever changed it, or freed a number, meanwhile may have left one; and others may take all that it grows by.
        loop {
            if let Some(id) = claim()? {
                return Ok(id);
            }
            if reached() >= max {
                let asked = max + 1;
                return Err(HeapError::TooMany { asked, max });
            }
            self.grow(self.chunks.next(reached()))?;
        }
    }

    /// Number `id` is free: lets go of the last chunks if no lane has them any more; not of one alone, which would come and go with a single object.
    pub fn freed(&self, id: u64) {
        let seen = self.reached.load(Ordering::Acquire);
        let is_used = || self.chunks.next(self.heap.store().end_of(self.table)) >= seen;
        let is_last = || self.chunks.next(self.chunks.next(id)) >= seen;
        // Where it falls just now, whoever lets it fall may have looked before.
        if seen != 0 && (seen <= self.chunks.numbers || !is_last() || is_used()) {
            return;
        }
        let _changing = self.changing.lock();
        // Nobody is given a number as long as the end is not known.
        let before = self.reached.swap(0, Ordering::AcqRel);
        let end = self.heap.store().end_of(self.table);
        self.fall(before, end.next_multiple_of(self.chunks.numbers));
    }

    /// Lets go of the slots of numbers from `numbers` on, which are all free.
    pub fn let_go(&self, numbers: u64) {
        let _changing = self.changing.lock();
        self.fall(self.reached.load(Ordering::Acquire), numbers);
    }

    fn fall(&self, before: u64, to: u64) {
        let after = to.min(before);
        // Before any of these numbers is given out anew.
        if let Some(sizes) = self.sizes() {
            sizes.forget(after..before);
        }
        self.reached.store(after, Ordering::Release);
        self.heap
            .unpromise_slots(self.chunks.bytes(before) - self.chunks.bytes(after));
        let beside = self.beside_bytes(before) - self.beside_bytes(after);
        self.heap.store().count_pages(beside, 0);
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.heap.store().is_here() {
            self.let_go(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Way;
    use crate::opp::Heap;
    use crate::store::{Store, StoreOptions};
    use terrace_pool::Part;

    #[test]
    fn what_is_known_of_numbers_leaves_dram_when_they_fall() {
        const OBJECTS: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::scratch(dir.path(), 64 << 20, 256 << 20);
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let pool = heap.pool_of_any_size(100, 4 * OBJECTS).unwrap();
        let counted = || heap.store().pool.ledger().held(Part::Pages);
        let resident = || pool.sizes_resident_bytes() as u64;
        let kept = pool.alloc_sized(3).unwrap();
        let before = counted();
        let objects: Vec<_> = (0..OBJECTS)
            .map(|n| pool.alloc_sized(1 + n as u32 % 100).unwrap())
            .collect();
        assert!(resident() >= 2 * OBJECTS, "{}", resident());
        assert!(counted() >= before + 2 * OBJECTS - (64 << 10));
        for object in objects {
            pool.free(object).unwrap();
        }
        // The last chunks stay, so that a single object does not make them come and go.
        assert!(resident() <= 64 << 10, "{}", resident());
        let now = counted();
        assert!(now <= before + (64 << 10), "{before} {now}");
        // What is given out anew is as it is told, and what was there all the time is as it was.
        let again: Vec<_> = (0..OBJECTS / 8)
            .map(|_| pool.alloc_sized(7).unwrap())
            .collect();
        assert!(again.iter().all(|object| pool.bytes_of(*object) == Ok(7)));
        assert_eq!(pool.bytes_of(kept), Ok(3));
    }
}
