//! Objects of one size, allocated and freed one by one, each on a page of its own (OPP).
//!
//! Promises: touching an object moves that object alone. Never: hands out one that the SSD has no room for.

use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::open::terrace_pool;
use crate::ranges;
use crate::state::{self, ObjectsState, PoolState, Thing};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use terrace_vm::opp::ObjectPool;

/// Objects of one size. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_objects {
    _private: [u8; 0],
}

/// A size that is more than 32 bits can say is out of every bound.
pub(crate) fn narrow(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Makes a place for objects of `bytes` bytes (1 to 4096), up to `objects_max` of them (0: as many as the SSD takes, but no
/// more than 268,435,456 and than a quarter of the addresses that are left to the pool, or of the DRAM for those, has room for; each has 4 KiB
/// of addresses, and 2 MiB of those cost some 16 bytes of DRAM: more than there is of that is ENOMEM).
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_create(
    pool: *mut terrace_pool,
    bytes: usize,
    objects_max: u64,
) -> *mut terrace_objects {
    call("terrace_objects_create", std::ptr::null_mut(), || {
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let bytes = narrow(bytes);
        let most = match objects_max {
            0 => pool.heap.objects_that_fit(bytes),
            most => most,
        };
        add(&pool, pool.heap.pool(bytes, most)?)
    })
}

/// The same for objects of different sizes, each up to `bytes_max` bytes (1 to 4096), which terrace_object_resize changes. Each takes ten bytes of DRAM
/// for what is known of it, where objects of one size take four.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_create_sized(
    pool: *mut terrace_pool,
    bytes_max: usize,
    objects_max: u64,
) -> *mut terrace_objects {
    call("terrace_objects_create_sized", std::ptr::null_mut(), || {
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let bytes_max = narrow(bytes_max);
        let most = match objects_max {
            // However small they are.
            0 => pool.heap.objects_that_fit(1),
            most => most,
        };
        add(&pool, pool.heap.pool_of_any_size(bytes_max, most)?)
    })
}

fn add(pool: &Arc<PoolState>, objects: ObjectPool) -> Result<*mut terrace_objects, Failure> {
    let addresses = objects.addresses();
    let of = Arc::downgrade(pool);
    let handle = state::add(Thing::Objects(Arc::new(ObjectsState { objects, of })))?;
    ranges::add(addresses, handle);
    pool.adopt(handle);
    Ok(handle.pointer())
}

/// A new object: zeros, aligned to 64 bytes. Free it with terrace_free. Where sizes differ it has as many bytes as one may have.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_object_alloc(objects: *mut terrace_objects) -> *mut c_void {
    call("terrace_object_alloc", std::ptr::null_mut(), || {
        let state = state::get::<ObjectsState>(Handle::from_pointer(objects))?;
        Ok(state.objects.alloc()?.cast())
    })
}

/// The same, of `bytes` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_object_alloc_sized(
    objects: *mut terrace_objects,
    bytes: usize,
) -> *mut c_void {
    call("terrace_object_alloc_sized", std::ptr::null_mut(), || {
        let state = state::get::<ObjectsState>(Handle::from_pointer(objects))?;
        Ok(state.objects.alloc_sized(narrow(bytes))?.cast())
    })
}

/// Makes an object of terrace_objects_create_sized longer or shorter. It stays where it is; what comes is zeros. -1: it is as it was; errno is EINVAL if it is
/// no such object or may not have so many bytes, ENOMEM if the SSD is full.
///
/// Nobody else uses the object meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_object_resize(object: *mut c_void, bytes: usize) -> c_int {
    call("terrace_object_resize", -1, || {
        let state = owner(object)?;
        // SAFETY: the program's promise; what is not an object of the pool is refused.
        unsafe { state.objects.resize(object.cast(), narrow(bytes))? };
        Ok(0)
    })
}

/// Whose an object is.
fn owner(object: *mut c_void) -> Result<Arc<ObjectsState>, Failure> {
    let address = object as usize;
    let other = || Failure::invalid(format!("{address:#x} is not the address of an object"));
    match state::any(ranges::find(address).ok_or_else(other)?)? {
        Thing::Objects(state) => Ok(state),
        _ => Err(other()),
    }
}

/// How many objects are allocated; UINT64_MAX when it fails.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_count(objects: *const terrace_objects) -> u64 {
    call("terrace_objects_count", u64::MAX, || {
        Ok(state::get::<ObjectsState>(Handle::from_pointer(objects))?
            .objects
            .len())
    })
}

/// Frees all of them and their place.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_destroy(objects: *mut terrace_objects) -> c_int {
    call("terrace_objects_destroy", -1, || {
        state::destroy::<ObjectsState>(Handle::from_pointer(objects))?;
        Ok(0)
    })
}
