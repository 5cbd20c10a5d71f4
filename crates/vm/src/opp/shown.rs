//! A table of objects and the region that shows it: what an array and a pool have in common.
//!
//! Promises: an object's address follows from its number, and a number from its address; what its objects were promised goes back with the table. Never: knows which objects are allocated.

use super::heap::{Heap, HeapError};
use super::slots::Slots;
use crate::backing::PAGE_BYTES;
use crate::policy;
use crate::region::Region;
use crate::store::{ObjectError, Objects, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A table of objects and the region that shows it.
pub(super) struct Shown {
    pub heap: Heap,
    pub table: u16,
    /// Of each, or the longest.
    pub bytes: u32,
    pub objects: Arc<Objects>,
    /// None only while it is dropped.
    region: Option<Region>,
    pub slots: Slots,
    /// Objects that have room on the SSD, and how much.
    pub promised: AtomicU64,
    promised_bytes: AtomicU64,
}

impl Shown {
    pub fn new(
        heap: &Heap,
        bytes: u32,
        objects_max: u64,
        make: impl FnOnce(Arc<Store>, u16) -> Result<Objects, ObjectError>,
    ) -> Result<Shown, HeapError> {
        let table = heap.take_table()?;
        let made = make(heap.store().clone(), table)
            .map_err(HeapError::from)
            .and_then(|objects| {
                let objects = Arc::new(objects);
                let region = heap.memory().region(objects_max, objects.clone())?;
                let sized = objects.sizes().is_some().then(|| objects.clone());
                let slots = Slots::new(heap, table, sized)?;
                heap.take_dram(policy::addresses_bytes(objects_max))?;
                Ok((objects, region, slots))
            });
        match made {
            Ok((objects, region, slots)) => Ok(Shown {
                heap: heap.clone(),
                table,
                bytes,
                objects,
                region: Some(region),
                slots,
                promised: AtomicU64::new(0),
                promised_bytes: AtomicU64::new(0),
            }),
            Err(e) => {
                heap.store().give_table(table);
                Err(e)
            }
        }
    }

    pub fn region(&self) -> &Region {
        self.region.as_ref().expect("there until it is dropped")
    }

    pub fn objects_max(&self) -> u64 {
        self.region().pages()
    }

    pub fn addresses(&self) -> (usize, usize) {
        (self.region().base() as usize, self.region().bytes())
    }

    /// Makes sure that so many more objects of a size have room on the SSD.
    pub fn promise(&self, objects: u64, bytes: u32) -> Result<(), HeapError> {
        let bytes = objects.saturating_mul(self.heap.store().room_of(bytes as usize));
        self.heap.promise_bytes(bytes)?;
        self.promised.fetch_add(objects, Ordering::Relaxed);
        self.promised_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Makes sure that an object that had room for so many bytes has it for others: only more than it had may be refused.
    pub fn promise_instead(&self, had: u32, bytes: u32) -> Result<(), HeapError> {
        let room_of = |bytes: u32| self.heap.store().room_of(bytes as usize);
        let (had, room) = (room_of(had), room_of(bytes));
        if room > had {
            self.heap.promise_bytes(room - had)?;
            self.promised_bytes.fetch_add(room - had, Ordering::Relaxed);
        } else {
            self.promised_bytes.fetch_sub(had - room, Ordering::Relaxed);
            self.heap.unpromise_bytes(had - room);
        }
        Ok(())
    }

    pub fn unpromise(&self, objects: u64, bytes: u32) {
        let bytes = objects * self.heap.store().room_of(bytes as usize);
        self.promised.fetch_sub(objects, Ordering::Relaxed);
        self.promised_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.heap.unpromise_bytes(bytes);
    }

    pub fn bytes_of(&self, object: u64) -> u32 {
        match self.objects.sizes() {
            Some(sizes) => sizes.get(object) as u32,
            None => self.bytes,
        }
    }

    pub fn address(&self, object: u64) -> *mut u8 {
        let offset = self.objects.offset(object);
        let at = object as usize * PAGE_BYTES + offset;
        (self.region().base() as usize + at) as *mut u8
    }

    /// Which object lies at an address.
    pub fn object_at(&self, address: usize) -> Option<u64> {
        let offset = address.checked_sub(self.region().base() as usize)?;
        let object = (offset / PAGE_BYTES) as u64;
        let there = object < self.objects_max() && self.address(object) as usize == address;
        there.then_some(object)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if !self.heap.store().is_here() {
            // In a fork all of it is the parent's.
            return;
        }
        let addresses = policy::addresses_bytes(self.objects_max());
        self.heap.store().count_pages(addresses, 0);
        // First what shows it, so that nothing is written to the table after it is gone.
        self.region = None;
        let promised = self.promised_bytes.load(Ordering::Relaxed);
        self.heap.unpromise_bytes(promised);
        match self.heap.store().drop_own_table(self.table) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(table = self.table, %error, "a table could not be dropped and is not used again");
            }
        }
    }
}
