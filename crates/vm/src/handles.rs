//! Objects of one size by number, without faults (*handles*): for code that is written for it.
//!
//! Promises: a hit in DRAM costs a look-up and a copy; [`Table::get_many`] keeps the device's queue full; what was inserted has room in DRAM and on the
//! SSD, as objects that fault have. Never: shows an address.

use crate::opp::{Heap, HeapError, Slots};
use crate::store::{Counted, OBJECTS_MAX, ObjectError, Shape, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects of one size. Dropping it frees them all.
pub struct Table {
    heap: Heap,
    table: u16,
    bytes: u32,
    slots: Slots,
    len: AtomicU64,
}

impl Table {
    /// A table of objects of `bytes` bytes.
    pub fn new(heap: &Heap, bytes: u32) -> Result<Table, HeapError> {
        let table = heap.take_table()?;
        let made = heap.store().make_owned_table(table, Shape::Fixed(bytes));
        let slots = made
            .map_err(HeapError::from)
            .and_then(|()| Slots::new(heap, table, None));
        let slots = slots.inspect_err(|_| heap.store().give_table(table))?;
        Ok(Table {
            heap: heap.clone(),
            table,
            bytes,
            slots,
            len: AtomicU64::new(0),
        })
    }

    /// Bytes of an object.
    pub fn object_bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Objects there are.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn room_bytes(&self) -> u64 {
        self.heap.store().room_of(self.object_bytes())
    }

    fn free(&self, id: u64) -> HeapError {
        let table = self.table;
        ObjectError::Free { table, id }.into()
    }

    /// Stores a new object: its number.
    pub fn insert(&self, value: &[u8]) -> Result<u64, HeapError> {
        // Before anything is promised or claimed for it.
        if value.len() != self.object_bytes() {
            return Err(ObjectError::Length {
                table: self.table,
                asked: value.len() as u64,
                allowed: self.bytes.into(),
            }
            .into());
        }
        self.heap.promise_bytes(self.room_bytes())?;
        let store = self.heap.store();
        let there = self.slots.claim(OBJECTS_MAX, |_| {}).and_then(|id| {
            let put = store.put_own(self.table, id, value);
            if put.is_err() {
                store.free_own(self.table, id)?;
                self.slots.freed(id);
            }
            put?;
            Ok(id)
        });
        match there {
            Ok(id) => {
                self.len.fetch_add(1, Ordering::Relaxed);
                Ok(id)
            }
            Err(e) => {
                self.heap.unpromise_bytes(self.room_bytes());
                Err(e)
            }
        }
    }

    /// Counts `bytes` that the caller has for objects on their way in the cap, while `f` runs with them.
    pub fn counted<R>(&self, bytes: usize, f: impl FnOnce() -> R) -> R {
        let _counted = Counted::new(self.heap.store().pool.ledger(), bytes as u64);
        f()
    }

    /// Copies an object to the start of `out`. False: there is none.
    ///
    /// `out` must not lie in memory that faults.
    pub fn get(&self, id: u64, out: &mut [u8]) -> Result<bool, HeapError> {
        Ok(self.heap.store().get(self.table, id, out)?.is_some())
    }

    /// Shows objects to `f`, each with its index in `ids`, in any order; None: there is none. `f` is short, calls nothing of the store and
    /// touches no memory that faults.
    pub fn get_many(
        &self,
        ids: &[u64],
        mut f: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), HeapError> {
        let zeros = vec![0; self.object_bytes()];
        let many = self.heap.store().get_many(self.table, ids, |at, value| {
            f(
                at,
                match value {
                    Value::Free => None,
                    Value::Bytes(bytes) => Some(bytes),
                    // Tables of one size hold no other fill than zeros.
                    Value::Zeros | Value::Fill(_) => Some(&zeros),
                },
            )
        });
        Ok(many?)
    }

    /// Replaces an object that is there.
    pub fn put(&self, id: u64, value: &[u8]) -> Result<(), HeapError> {
        Ok(self.heap.store().replace_own(self.table, id, value)?)
    }

    /// Changes an object in place: `f` gets a copy of its bytes, and what it leaves is stored. `f` is short, calls nothing of the store and touches
    /// no memory that faults.
    pub fn update(&self, id: u64, f: impl FnOnce(&mut [u8])) -> Result<(), HeapError> {
        Ok(self.heap.store().update_own(self.table, id, f)?)
    }

    /// Frees an object that is there.
    pub fn remove(&self, id: u64) -> Result<(), HeapError> {
        if !self.heap.store().free_own(self.table, id)? {
            return Err(self.free(id));
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        self.heap.unpromise_bytes(self.room_bytes());
        self.slots.freed(id);
        Ok(())
    }

    /// Says that these objects will be wanted soon. Returns at once; it may be in vain.
    pub fn prefetch(&self, ids: &[u64]) -> Result<(), HeapError> {
        Ok(self.heap.store().prefetch(self.table, ids)?)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !self.heap.store().is_here() {
            // In a fork all of it is the parent's.
            return;
        }
        self.heap.unpromise_bytes(self.len() * self.room_bytes());
        match self.heap.store().drop_own_table(self.table) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(table = self.table, %error, "a table could not be dropped and is not used again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Way;
    use crate::store::{Store, StoreOptions};
    use terrace_pool::Part;

    #[test]
    fn what_threads_count_up_is_not_lost() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 5000;
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20);
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let table = Table::new(&heap, 200).unwrap();
        let ids: Vec<u64> = (0..8).map(|_| table.insert(&[0; 200]).unwrap()).collect();
        let count_up = |bytes: &mut [u8]| {
            let counted = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
            bytes[..8].copy_from_slice(&(counted + 1).to_ne_bytes());
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for n in 0..ROUNDS as usize {
                        table.update(ids[n % ids.len()], count_up).unwrap();
                    }
                });
            }
        });
        for id in ids {
            let mut bytes = [0; 200];
            assert!(table.get(id, &mut bytes).unwrap());
            assert_eq!(bytes[..8], (THREADS * ROUNDS / 8).to_ne_bytes());
        }
    }
    #[test]
    fn what_a_caller_reads_into_is_counted_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20);
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let table = Table::new(&heap, 200).unwrap();
        let held = || heap.store().pool.ledger().held(Part::Io);
        let before = held();
        assert_eq!(table.counted(100_000, held), before + 100_000);
        assert_eq!(held(), before);
    }
}
