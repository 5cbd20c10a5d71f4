//! Arrays of objects of one size, each object on a page of its own (OPP).
//!
//! Promises: an object that was never written to is zeros and takes nothing. Never: gives the address of an object that the array does not
//! have.

use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::objects::narrow;
use crate::open::terrace_pool;
use crate::ranges;
use crate::state::{self, ArrayState, PoolState, Thing};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An array. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_array {
    _private: [u8; 0],
}

fn get(array: *const terrace_array) -> Result<Arc<ArrayState>, Failure> {
    state::get::<ArrayState>(Handle::from_pointer(array))
}

fn check(state: &ArrayState, index: u64) -> Result<(), Failure> {
    let len = state.len.load(Ordering::Acquire);
    match index < len {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "object {index} of an array of {len}"
        ))),
    }
}

/// Makes an array of `len` objects of `bytes` bytes (1 to 4096), zeros, which can grow to `len_max` (0: it cannot grow).
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_create(
    pool: *mut terrace_pool,
    len: u64,
    bytes: usize,
    len_max: u64,
) -> *mut terrace_array {
    call("terrace_array_create", std::ptr::null_mut(), || {
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let array = pool.heap.array(len, narrow(bytes), len_max)?;
        let addresses = array.addresses();
        let handle = state::add(Thing::Array(Arc::new(ArrayState {
            array,
            len: AtomicU64::new(len),
            of: Arc::downgrade(&pool),
        })))?;
        ranges::add(addresses, handle);
        pool.adopt(handle);
        Ok(handle.pointer())
    })
}

/// The address of object `index`, which stays until the array ends. NULL with EINVAL: the array does not have it.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_at(array: *const terrace_array, index: u64) -> *mut c_void {
    call("terrace_array_at", std::ptr::null_mut(), || {
        let state = get(array)?;
        check(&state, index)?;
        Ok(state.array.address(index).cast())
    })
}

/// How many objects it has; UINT64_MAX when it fails.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_len(array: *const terrace_array) -> u64 {
    call("terrace_array_len", u64::MAX, || {
        Ok(get(array)?.len.load(Ordering::Acquire))
    })
}

/// Changes how many objects it has. New ones are zeros; nobody may use those that go.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_resize(array: *mut terrace_array, len: u64) -> c_int {
    call("terrace_array_resize", -1, || {
        let state = get(array)?;
        state.array.resize(len)?;
        // Of two threads that resize at a time either may be last here, so the array is asked.
        state.len.store(state.array.len(), Ordering::Release);
        Ok(0)
    })
}

/// Makes one object zeros again: it takes no DRAM and no SSD then.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_clear(array: *mut terrace_array, index: u64) -> c_int {
    call("terrace_array_clear", -1, || {
        let state = get(array)?;
        check(&state, index)?;
        state.array.clear(index)?;
        Ok(0)
    })
}

/// Frees the array and its objects.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_destroy(array: *mut terrace_array) -> c_int {
    call("terrace_array_destroy", -1, || {
        let handle = Handle::from_pointer(array);
        let state = state::remove::<ArrayState>(handle)?;
        ranges::remove(handle);
        if let Some(pool) = state.of.upgrade() {
            pool.disown(handle);
        }
        Ok(0)
    })
}
