//! Objects that are allocated, freed and resized one by one.
//!
//! Promises: an object stays where it is as long as it lives. Never: reads or writes an object, except to zero what comes when one grows.

use super::heap::HeapError;
use super::shown::Shown;
use crate::backing::Backing;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that free or resize objects of one pool at a time.
const FREEING_MAX: usize = 16;

/// Objects that are allocated and freed one by one. Dropping it frees them all. Who touches one that is freed gets SIGBUS.
pub struct ObjectPool {
    objects: Shown,
    /// Of two threads that free the same object, one is told.
    freeing: [Mutex<()>; FREEING_MAX],
}

impl ObjectPool {
    pub(super) fn of(objects: Shown) -> ObjectPool {
        ObjectPool {
            objects,
            freeing: std::array::from_fn(|_| Mutex::new(())),
        }
    }

    /// A new object, zeros; where sizes differ, as long as one may be.
    pub fn alloc(&self) -> Result<*mut u8, HeapError> {
        self.alloc_sized(self.objects.bytes)
    }

    /// A new object of `bytes` bytes, zeros.
    pub fn alloc_sized(&self, bytes: u32) -> Result<*mut u8, HeapError> {
        self.check_size(bytes)?;
        let Shown {
            heap, table, slots, ..
        } = &self.objects;
        self.objects.promise(1, bytes)?;
        // Its size from the first moment on: who frees what was there before, by mistake, gives back what this one was promised.
        let sized = |object| self.set_size(object, bytes);
        let object = slots.claim(self.objects.objects_max(), sized);
        let object = object.and_then(|object| {
            let renewed = self.objects.region().renew(object);
            if renewed.is_err() {
                heap.store().free_own(*table, object)?;
                slots.freed(object);
            }
            renewed?;
            Ok(object)
        });
        match object {
            Ok(object) => Ok(self.objects.address(object)),
            Err(e) => {
                self.objects.unpromise(1, bytes);
                Err(e)
            }
        }
    }

    fn check_size(&self, bytes: u32) -> Result<(), HeapError> {
        let most = self.objects.bytes;
        let (fits, allowed) = match self.objects.objects.sizes() {
            Some(_) => ((1..=most).contains(&bytes), format!("1 to {most}")),
            None => (bytes == most, most.to_string()),
        };
        match fits {
            true => Ok(()),
            false => Err(HeapError::Size {
                asked: bytes.into(),
                allowed,
            }),
        }
    }

    fn set_size(&self, object: u64, bytes: u32) {
        let Some(sizes) = self.objects.objects.sizes() else {
            return;
        };
        sizes.set(object, bytes as usize);
    }

    /// The object at an address, and what keeps others from freeing or resizing it.
    fn held(&self, address: usize) -> Result<(u64, MutexGuard<'_, ()>), HeapError> {
        let Shown { heap, table, .. } = &self.objects;
        heap.store().here()?;
        let object = self.objects.object_at(address);
        let object = object.ok_or(HeapError::NotAnObject { address })?;
        let one = self.freeing[object as usize % FREEING_MAX]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match heap.store().contains(*table, object)? {
            true => Ok((object, one)),
            false => Err(HeapError::NotAnObject { address }),
        }
    }

    /// How long an object is.
    pub fn bytes_of(&self, address: *mut u8) -> Result<usize, HeapError> {
        let (object, _one) = self.held(address as usize)?;
        Ok(self.objects.bytes_of(object) as usize)
    }

    /// Makes an object longer or shorter; it stays where it is, and what comes is zeros.
    ///
    /// Errors: not an object that is allocated, more bytes than one may have, no room on the SSD; then it is as it was.
    ///
    /// # Safety
    /// Nobody else uses the object meanwhile.
    pub unsafe fn resize(&self, address: *mut u8, bytes: u32) -> Result<(), HeapError> {
        self.check_size(bytes)?;
        let (object, one) = self.held(address as usize)?;
        let had = self.objects.bytes_of(object);
        if had == bytes {
            return Ok(());
        }
        self.objects.promise_instead(had, bytes)?;
        self.set_size(object, bytes);
        drop(one);
        if bytes > had {
            // SAFETY: on the object's own page, behind what it had; the caller's alone. What was there before it was shorter once is not shown.
            unsafe {
                address
                    .add(had as usize)
                    .write_bytes(0, (bytes - had) as usize)
            };
        } else {
            // SAFETY: the object's first byte, which is the caller's alone. Written to, so that the shorter object takes the place of the longer.
            unsafe { address.write_volatile(address.read_volatile()) };
        }
        Ok(())
    }

    /// Frees an object. Nobody may use it any more.
    ///
    /// Errors: not the address of an object that is allocated.
    pub fn free(&self, address: *mut u8) -> Result<(), HeapError> {
        let (object, _one) = self.held(address as usize)?;
        let bytes = self.objects.bytes_of(object);
        self.objects.region().discard(object..object + 1)?;
        self.objects.unpromise(1, bytes);
        self.objects.slots.freed(object);
        Ok(())
    }

    /// What its pages are made of; see [`Array::backing`](super::Array::backing).
    pub fn backing(&self) -> Arc<dyn Backing> {
        self.objects.objects.clone()
    }

    /// Where its addresses begin, and how many bytes of them it has.
    pub fn addresses(&self) -> (usize, usize) {
        self.objects.addresses()
    }

    /// Objects that are allocated.
    pub fn len(&self) -> u64 {
        self.objects.promised.load(Ordering::Relaxed)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in DRAM of how long each is.
    #[cfg(test)]
    pub(super) fn sizes_resident_bytes(&self) -> usize {
        let sizes = self.objects.objects.sizes();
        sizes.map_or(0, crate::store::Sizes::resident_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Way;
    use crate::opp::Heap;
    use crate::store::{Store, StoreOptions};
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// A pointer that is freed again, by a mistake of the program's, when its number was just given out anew: what the new object was promised goes back, not what the old one was.
    #[test]
    fn what_was_promised_goes_back_whoever_frees_it() {
        const ROUNDS: u32 = 300_000;
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20);
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let others = heap.pool(1000, 100).unwrap();
        others.alloc().unwrap();
        let pool = heap.pool_of_any_size(4096, 1).unwrap();
        let (address, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = pool.free(address.load(Ordering::Relaxed) as *mut u8);
                }
            });
            for n in 0..ROUNDS {
                let object = pool.alloc_sized([1, 4096][n as usize % 2]).unwrap();
                address.store(object as usize, Ordering::Relaxed);
                let _ = pool.free(object);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(pool.is_empty());
        drop((pool, others));
        // All of the room is there, and no more.
        let all = heap.promise_max_bytes();
        assert_eq!(heap.promise_bytes(all), Ok(()));
        assert!(heap.promise_bytes(1).is_err());
        heap.unpromise_bytes(all);
    }
}
