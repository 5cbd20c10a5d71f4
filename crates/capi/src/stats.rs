//! What a pool did and holds, in numbers, and which version this is.
//!
//! Promises: members are added at the end only. Never: writes more than the program has room for.

use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::open::terrace_pool;
use crate::state::{self, PoolState};
use std::ffi::{c_char, c_int};

/// Counts since the pool was opened, and what it holds now. New members are added at the end only.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct terrace_stats {
    /// The bound on DRAM, bytes.
    pub cap_bytes: u64,
    /// DRAM held of it.
    pub used_bytes: u64,
    /// Of it, the tables that say where objects and pages are.
    pub table_bytes: u64,
    /// Pages of 4 KiB that the program sees in DRAM at most, and now.
    pub buffer_pages: u64,
    pub resident_pages: u64,
    /// Faults that brought a page or object back, and that showed one never written to.
    pub faults_filled: u64,
    pub faults_zero: u64,
    /// Faults that ended in SIGBUS.
    pub faults_failed: u64,
    /// Pages taken away from the program again; and times that a page which was written to was stored, when it was taken away or by a sync, after which it may stay.
    pub pages_evicted: u64,
    pub pages_stored: u64,
    /// Objects and pages found in DRAM, and those that took a device read.
    pub hits: u64,
    pub misses: u64,
    /// Device reads and writes, everything counted.
    pub device_reads: u64,
    pub device_read_bytes: u64,
    pub device_writes: u64,
    pub device_write_bytes: u64,
    /// Live bytes on the SSD, and how many it takes.
    pub ssd_live_bytes: u64,
    pub ssd_usable_bytes: u64,
    /// Bytes that terrace_malloc and its like handed out, each rounded up, and bytes of pages that hold them.
    pub malloc_bytes: u64,
    pub malloc_page_bytes: u64,
}

/// Fills the first `size` bytes of `stats`: sizeof(struct terrace_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_get_stats(
    pool: *const terrace_pool,
    stats: *mut terrace_stats,
    size: usize,
) -> c_int {
    call("terrace_get_stats", -1, || {
        if stats.is_null() {
            return Err(Failure::invalid("stats is NULL"));
        }
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let all = collect(&pool);
        let size = size.min(size_of::<terrace_stats>());
        // SAFETY: the program's promise: so many bytes are there; not more than `all` has.
        unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), stats.cast(), size) };
        Ok(0)
    })
}

fn collect(pool: &PoolState) -> terrace_stats {
    let (store, memory) = (pool.heap.store().stats(), pool.heap.memory().stats());
    let malloc = pool.malloc.lock().clone();
    let malloc = malloc.map(|heap| heap.stats()).unwrap_or_default();
    let lanes = &store.lanes;
    terrace_stats {
        cap_bytes: store.cap_bytes,
        used_bytes: store.used_bytes,
        table_bytes: lanes.index_bytes + malloc.table_bytes,
        buffer_pages: pool.heap.memory().pages_max() as u64,
        resident_pages: memory.resident_pages,
        faults_filled: memory.fetched,
        faults_zero: memory.absent,
        faults_failed: memory.failed_faults,
        pages_evicted: memory.evicted,
        pages_stored: memory.stored,
        hits: lanes.hits_dram,
        misses: lanes.misses,
        device_reads: store.disk_reads,
        device_read_bytes: store.disk_read_bytes,
        device_writes: store.disk_writes,
        device_write_bytes: store.device_write_bytes,
        ssd_live_bytes: lanes.ssd_live_bytes,
        ssd_usable_bytes: lanes.ssd_usable_bytes,
        malloc_bytes: malloc.allocated_bytes,
        malloc_page_bytes: malloc.page_bytes,
    }
}

/// This library's version, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn terrace_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
