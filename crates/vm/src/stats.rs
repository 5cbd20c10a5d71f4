//! What happened to pages, in counts, and what DRAM they take.
//!
//! Promises: a figure is counted where it happens. Never: an estimate.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the memory was made.
#[derive(Default)]
pub(crate) struct Counters {
    pub fetched: AtomicU64,
    pub absent: AtomicU64,
    pub opened: AtomicU64,
    pub again: AtomicU64,
    pub near: AtomicU64,
    pub near_read: AtomicU64,
    pub evicted: AtomicU64,
    pub stored: AtomicU64,
    pub evictions: AtomicU64,
    pub protects: AtomicU64,
    pub tables_released: AtomicU64,
    pub waits: AtomicU64,
    pub failed_faults: AtomicU64,
    pub failed_stores: AtomicU64,
    pub fault_ns: AtomicU64,
    pub ahead: AtomicU64,
    pub evict_ns: AtomicU64,
    pub read_ns: AtomicU64,
    pub pinned: AtomicU64,
}

/// What a memory did so far, and what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages materialised now.
    pub resident_pages: u64,
    /// Of these, pages that may be newer than their backing.
    pub dirty_pages: u64,
    /// Bytes of page tables (of the lowest level, in use or not freed by the kernel yet) and of page records now.
    pub table_bytes: u64,
    /// What pages and tables together may come to, bytes.
    pub buffer_max_bytes: u64,
    /// Faults that filled a page from the backing.
    pub fetched: u64,
    /// Faults that filled a page that was never stored.
    pub absent: u64,
    /// Faults by writing to a page that was read before.
    pub opened: u64,
    /// Of `fetched`, pages that had left before and were still remembered.
    pub again: u64,
    /// Of `fetched`, pages that had left so shortly before that a buffer larger by a quarter would have had them.
    pub near: u64,
    /// Of these, pages for which the device was read.
    pub near_read: u64,
    /// Pages taken away again.
    pub evicted: u64,
    /// Of these, pages given to the backing first.
    pub stored: u64,
    /// Batches they were taken away in.
    pub evictions: u64,
    /// Ranges write-protected for that.
    pub protects: u64,
    /// Page tables given back, whichever way.
    pub tables_released: u64,
    /// Waits of a fault for another thread, or for room.
    pub waits: u64,
    /// Faults that ended in SIGBUS.
    pub failed_faults: u64,
    /// Batches that the backing did not take.
    pub failed_stores: u64,
    /// Time that handler threads spent with faults, nanoseconds; 0 where faults are taken in the faulting thread.
    pub fault_ns: u64,
    /// Pages that came or were opened with another one that faulted: they are in `fetched`, `absent` and `opened` too.
    pub ahead: u64,
    /// Time that was spent taking pages away, nanoseconds: by handler threads it is in `fault_ns` too.
    pub evict_ns: u64,
    /// The part of `fault_ns` in which pages were read that the device had.
    pub read_ns: u64,
    /// Pages that were to leave and stayed, since a device had them.
    pub pinned: u64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
