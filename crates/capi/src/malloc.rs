//! Memory of any size from a pool (MP), and freeing whatever came from one.
//!
//! Promises: what malloc promises; errno is ENOMEM when the SSD is full, or the cap is of what says where pages are. Never: frees what is not a pool's.

use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::open::terrace_pool;
use crate::ranges;
use crate::state::{self, PoolState, Thing};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use terrace_vm::heap::{HEAP_MAX_BYTES, PageHeap};

/// As malloc's.
const ALIGN_BYTES: usize = 16;
/// Addresses of a pool's malloc, for each byte that the SSD takes: what fragments costs addresses only.
const ADDRESSES_PER_BYTE: u64 = 2;

/// The pool's malloc.
fn heap_of(pool: *mut terrace_pool) -> Result<Arc<PageHeap>, Failure> {
    let handle = Handle::from_pointer(pool);
    let state = state::get::<PoolState>(handle)?;
    let mut malloc = state.malloc.lock();
    if let Some(heap) = &*malloc {
        return Ok(heap.clone());
    }
    let bytes = state
        .heap
        .store()
        .usable_bytes()
        .saturating_mul(ADDRESSES_PER_BYTE);
    let heap = Arc::new(PageHeap::new(&state.heap, bytes.min(HEAP_MAX_BYTES))?);
    ranges::add((heap.base() as usize, heap.bytes()), handle);
    *malloc = Some(heap.clone());
    Ok(heap)
}

/// `bytes` bytes, as malloc: aligned to 16, not set to anything.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_malloc(pool: *mut terrace_pool, bytes: usize) -> *mut c_void {
    call("terrace_malloc", std::ptr::null_mut(), || {
        Ok(heap_of(pool)?.alloc(bytes, ALIGN_BYTES)?.cast())
    })
}

/// `count` times `bytes` bytes, as calloc: zeros.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_calloc(
    pool: *mut terrace_pool,
    count: usize,
    bytes: usize,
) -> *mut c_void {
    call("terrace_calloc", std::ptr::null_mut(), || {
        let all = count.checked_mul(bytes).ok_or_else(|| Failure {
            errno: libc::ENOMEM,
            text: format!("{count} times {bytes} bytes are more than there are addresses"),
        })?;
        Ok(heap_of(pool)?.alloc_zeroed(all, ALIGN_BYTES)?.cast())
    })
}

/// `bytes` bytes at a multiple of `alignment`, a power of two up to 1 GiB.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_aligned_alloc(
    pool: *mut terrace_pool,
    alignment: usize,
    bytes: usize,
) -> *mut c_void {
    call("terrace_aligned_alloc", std::ptr::null_mut(), || {
        Ok(heap_of(pool)?.alloc(bytes, alignment)?.cast())
    })
}

/// As realloc: NULL is as terrace_malloc, otherwise memory of terrace_malloc and its like, of this pool. Unlike realloc, 0 bytes are as 1. When it fails,
/// the memory is as it was.
///
/// Nobody else uses the memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_realloc(
    pool: *mut terrace_pool,
    memory: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    call("terrace_realloc", std::ptr::null_mut(), || {
        let heap = heap_of(pool)?;
        if memory.is_null() {
            return Ok(heap.alloc(bytes, ALIGN_BYTES)?.cast());
        }
        // SAFETY: the program's promise; what is not an allocation of this heap is refused.
        Ok(unsafe { heap.realloc(memory.cast(), bytes)? }.cast())
    })
}

/// Whose an address is.
fn owner(memory: *const c_void) -> Result<Thing, Failure> {
    let address = memory as usize;
    let owner = ranges::find(address).ok_or_else(|| {
        Failure::invalid(format!(
            "{address:#x} is not memory of a pool that is open (malloc's goes to free)"
        ))
    })?;
    state::any(owner)
}

fn malloc_of(pool: &PoolState) -> Result<Arc<PageHeap>, Failure> {
    let heap = pool.malloc.lock().clone();
    heap.ok_or_else(|| Failure::invalid("this pool has no malloc"))
}

/// Frees memory of terrace_malloc and its like, and objects of terrace_object_alloc. NULL is nothing. -1 with EINVAL: not such memory, or
/// freed already; then nothing has changed.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_free(memory: *mut c_void) -> c_int {
    call("terrace_free", -1, || {
        if memory.is_null() {
            return Ok(0);
        }
        match owner(memory)? {
            Thing::Pool(pool) => malloc_of(&pool)?.free(memory.cast())?,
            Thing::Objects(state) => state.objects.free(memory.cast())?,
            Thing::Region(_) => {
                return Err(Failure::invalid(
                    "memory of a region is not allocated: it goes with terrace_region_remove",
                ));
            }
            Thing::Array(_) | Thing::Table(_) => {
                return Err(Failure::invalid(
                    "objects of an array go by terrace_array_clear or terrace_array_resize",
                ));
            }
        }
        Ok(0)
    })
}

/// Bytes that may be used at an allocation of terrace_malloc and its like: what was asked for, or more; of an object, its size. 0: it is neither.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_usable_size(memory: *const c_void) -> usize {
    call("terrace_usable_size", 0, || match owner(memory)? {
        Thing::Pool(pool) => Ok(malloc_of(&pool)?.usable_bytes(memory.cast_mut().cast())?),
        Thing::Objects(state) => Ok(state.objects.bytes_of(memory.cast_mut().cast())?),
        _ => Err(Failure::invalid(
            "neither an allocation nor an object: its size is known where it was made",
        )),
    })
}

/// 1 if an address lies in memory of a pool that is open, else 0: tells it from malloc's.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_owns(memory: *const c_void) -> c_int {
    call("terrace_owns", 0, || {
        Ok(c_int::from(ranges::find(memory as usize).is_some()))
    })
}
