//! Objects of one size, allocated and freed one by one, each on a page of its own (OPP).
//!
//! Promises: touching an object moves that object alone. Never: hands out one that the SSD has no room for.

use crate::error::call;
use crate::handle::{self, Handle, Thing};
use crate::open::{PoolState, terrace_pool};
use crate::ranges;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};
use terrace_vm::opp::ObjectPool;

/// Objects of one size. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_objects {
    _private: [u8; 0],
}

pub(crate) struct ObjectsState {
    objects: ObjectPool,
    of: Weak<PoolState>,
}

impl ObjectsState {
    pub fn pool(&self) -> &ObjectPool {
        &self.objects
    }
}

/// A size that is more than 32 bits can say is out of every bound.
pub(crate) fn narrow(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Makes a place for objects of `bytes` bytes (1 to 4096), up to `objects_max` of them (0: as many as the SSD takes; each has 4 KiB
/// of addresses, and 2 MiB of those cost some 16 bytes of DRAM).
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_create(
    pool: *mut terrace_pool,
    bytes: usize,
    objects_max: u64,
) -> *mut terrace_objects {
    call("terrace_objects_create", std::ptr::null_mut(), || {
        let pool = handle::get::<PoolState>(Handle::from_pointer(pool))?;
        let bytes = narrow(bytes);
        let most = match objects_max {
            0 => pool.heap.objects_that_fit(bytes),
            most => most,
        };
        let objects = pool.heap.pool(bytes, most)?;
        let addresses = objects.addresses();
        let of = Arc::downgrade(&pool);
        let handle = handle::add(Thing::Objects(Arc::new(ObjectsState { objects, of })))?;
        ranges::add(addresses, handle);
        pool.adopt(handle);
        Ok(handle.pointer())
    })
}

/// A new object: zeros, aligned to 64 bytes. Free it with terrace_free.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_object_alloc(objects: *mut terrace_objects) -> *mut c_void {
    call("terrace_object_alloc", std::ptr::null_mut(), || {
        let state = handle::get::<ObjectsState>(Handle::from_pointer(objects))?;
        Ok(state.objects.alloc()?.cast())
    })
}

/// How many objects are allocated; UINT64_MAX when it fails.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_count(objects: *const terrace_objects) -> u64 {
    call("terrace_objects_count", u64::MAX, || {
        Ok(handle::get::<ObjectsState>(Handle::from_pointer(objects))?
            .objects
            .len())
    })
}

/// Frees all of them and their place.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_destroy(objects: *mut terrace_objects) -> c_int {
    call("terrace_objects_destroy", -1, || {
        let handle = Handle::from_pointer(objects);
        let state = handle::remove::<ObjectsState>(handle)?;
        ranges::remove(handle);
        if let Some(pool) = state.of.upgrade() {
            pool.disown(handle);
        }
        Ok(0)
    })
}
