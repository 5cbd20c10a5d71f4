//! A [`PageHeap`] in a process that forks: whole while it is copied, and on other ground in the child.
//!
//! Promises: while it is held nobody changes what it knows of allocations; the child's heap knows the same, at the same addresses. Never: copies pages;
//! those are the region's that the child brings.

use super::ground::Ground;
use super::{Class, PageHeap, Space};
use crate::PAGE_BYTES;
use crate::error::VmError;
use crate::region::Region;
use crate::sys::{Held, Lock};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A heap that nobody else allocates or frees in.
pub struct HeldHeap<'a> {
    _cooling: Held<'a, ()>,
    _classes: Vec<Held<'a, Class>>,
    _space: Held<'a, Space>,
}

impl PageHeap {
    /// Waits until nobody is allocating or freeing, and keeps it so.
    pub fn hold(&self) -> HeldHeap<'_> {
        HeldHeap {
            // First: who has it takes the others.
            _cooling: self.cooling.lock(),
            _classes: self.classes.iter().map(Lock::lock).collect(),
            _space: self.space.lock(),
        }
    }

    /// Gives all changed pages to the backing, whoever wrote to them before this call.
    pub fn write_back(&self) -> Result<(), VmError> {
        let region = self.region();
        region.write_back(0..region.pages())
    }

    /// Pages that hold allocations: so many more there would be with a second version of each.
    pub fn promised_pages(&self) -> u64 {
        self.page_bytes.load(Ordering::Relaxed) / PAGE_BYTES as u64
    }

    /// In the child of a fork: this heap over a region of the child's, which is at the same address. The heap that the parent had is not to be used or
    /// dropped any more.
    ///
    /// # Safety
    /// Called once, in a child that was forked by the thread that held the heap, with its only thread.
    pub unsafe fn in_child(&self, region: Region, ground: Box<dyn Ground>) -> PageHeap {
        assert_eq!(region.base(), self.base(), "a heap does not move");
        // SAFETY: the caller's promise: what is read here is used nowhere else, and nobody else is there. The locks, which are held, are left behind.
        unsafe {
            PageHeap {
                ground,
                home: None,
                region: Some(region),
                owner: std::ptr::read(&self.owner),
                classes: std::array::from_fn(|n| Lock::new(std::ptr::read(self.classes[n].peek()))),
                space: Lock::new(std::ptr::read(self.space.peek()).in_child()),
                cooling: Lock::default(),
                allocated_bytes: AtomicU64::new(self.allocated_bytes.load(Ordering::Relaxed)),
                page_bytes: AtomicU64::new(self.page_bytes.load(Ordering::Relaxed)),
                table_bytes: AtomicU64::new(self.table_bytes.load(Ordering::Relaxed)),
                owner_pages: AtomicUsize::new(self.owner_pages.load(Ordering::Relaxed)),
            }
        }
    }
}
