//! Objects on pages of their own (OPP): arrays and pools of objects of one size, as plain memory.
//!
//! Object `n` lies on page `n` of a region, at an offset of its own, so that few objects touched mean few pages materialised and
//! what goes back to DRAM and SSD is the object alone. Its number is its slot in a table of the store, so ids are dense.
//!
//! Promises: an object reads as zeros until it is written to; what was allocated has room on the SSD, and its slot room in DRAM, so that a full SSD or cap is met by an
//! allocation that is refused and never by a program that is killed; freeing what is not there is an error. Never: keeps a list or a
//! map of objects of its own.

mod heap;
mod pool;
mod shown;
mod slots;

pub use heap::{Heap, HeapError, OBJECTS_MAX_DEFAULT};
pub use pool::ObjectPool;

use crate::backing::{Backing, PAGE_BYTES};
use crate::store::{Objects, Sizes};
use shown::Shown;
pub(crate) use slots::Slots;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

impl Heap {
    /// An array of `len` objects of `bytes` bytes (up to 4,096), which can be resized up to `objects_max`.
    pub fn array(&self, len: u64, bytes: u32, objects_max: u64) -> Result<Array, HeapError> {
        let max = objects_max.max(len);
        let objects = Shown::new(self, bytes, max, |store, table| {
            Objects::new(store, table, bytes)
        })?;
        objects.promise(len, bytes)?;
        objects.slots.reach(len)?;
        Ok(Array {
            objects,
            len: AtomicU64::new(len),
            resizing: Mutex::new(()),
        })
    }

    /// A pool of objects of `bytes` bytes (up to 4,096), of up to `objects_max` of them.
    pub fn pool(&self, bytes: u32, objects_max: u64) -> Result<ObjectPool, HeapError> {
        let objects = Shown::new(self, bytes, objects_max, |store, table| {
            Ok(Objects::new(store, table, bytes)?.strict())
        })?;
        Ok(ObjectPool::of(objects))
    }

    /// The same, of objects that have up to `bytes_max` bytes, each its own number, which can change. Two bytes and a wider slot more for each.
    pub fn pool_of_any_size(
        &self,
        bytes_max: u32,
        objects_max: u64,
    ) -> Result<ObjectPool, HeapError> {
        let sizes = Sizes::new(objects_max)?;
        let objects = Shown::new(self, bytes_max, objects_max, |store, table| {
            Ok(Objects::of_any_size(store, table, bytes_max, sizes)?.strict())
        })?;
        Ok(ObjectPool::of(objects))
    }
}

/// Objects by index. Dropping it frees them all.
pub struct Array {
    objects: Shown,
    /// Changed by who has `resizing`, and read without a lock.
    len: AtomicU64,
    resizing: Mutex<()>,
}

impl Array {
    /// The address of object `index`. Valid for reads and writes of its bytes as long as the array has it.
    pub fn address(&self, index: u64) -> *mut u8 {
        assert!(index < self.len(), "object {index} of {}", self.len());
        self.objects.address(index)
    }

    /// The same where others may resize it meanwhile; None: it does not have that object.
    pub fn get(&self, index: u64) -> Option<*mut u8> {
        (index < self.len()).then(|| self.objects.address(index))
    }

    /// Where its addresses begin, and how many bytes of them it has.
    pub fn addresses(&self) -> (usize, usize) {
        self.objects.addresses()
    }

    /// What its pages are made of: object `n` is what page `n` has in its span. Who stores there before anybody touches the objects loads them without a fault
    /// for each; one that is in the page buffer stays as it is there.
    pub fn backing(&self) -> Arc<dyn Backing> {
        self.objects.objects.clone()
    }

    /// Objects it has.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes how many objects it has. New ones are zeros. Nobody may use those that go.
    pub fn resize(&self, len: u64) -> Result<(), HeapError> {
        self.objects.heap.store().here()?;
        let resizing = self.resizing.lock();
        let _resizing = resizing.unwrap_or_else(PoisonError::into_inner);
        let before = self.len();
        let max = self.objects.objects_max();
        if len > max {
            return Err(HeapError::TooMany { asked: len, max });
        }
        if len > before {
            let more = len - before;
            self.objects.promise(more, self.objects.bytes)?;
            let slots = self.objects.slots.reach(len);
            slots.inspect_err(|_| self.objects.unpromise(more, self.objects.bytes))?;
        } else {
            self.objects.region().discard(len..before)?;
            self.objects.unpromise(before - len, self.objects.bytes);
            self.objects.slots.let_go(len);
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Frees the contents of one object: it is zeros again, and takes no DRAM and no SSD. Its place in the array stays.
    pub fn clear(&self, index: u64) -> Result<(), HeapError> {
        Ok(self.objects.region().discard(index..index + 1)?)
    }

    /// The 8 bytes at `word` times 8 of object `index`, as an atomic.
    pub fn word(&self, index: u64, word: usize) -> &AtomicU64 {
        assert!(index < self.len(), "object {index} of {}", self.len());
        assert!(word < self.objects.bytes as usize / 8);
        let at = index as usize * PAGE_BYTES + self.objects.objects.offset(index);
        self.objects.region().word(at / 8 + word)
    }
}
