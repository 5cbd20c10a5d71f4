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
        let object = slots.claim(self.objects.objects_max());
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
            Ok(object) => {
                self.set_size(object, bytes);
                Ok(self.objects.address(object))
            }
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
        self.objects.promise(1, bytes)?;
        self.set_size(object, bytes);
        self.objects.unpromise(1, had);
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
}
