//! What all parts of a memory share.
//!
//! Here: the parts, held together; what is done with them stands in `fault`, `evict`, `bring` and their like. Never: does anything but count.

use crate::ahead::Ahead;
use crate::aside::Aside;
use crate::backing::{PAGE_BYTES, StoreError};
use crate::bell::Bell;
use crate::beside::Beside;
use crate::block::RECORD_BYTES;
use crate::calm::Calm;
use crate::error::VmError;
use crate::follow::Follow;
use crate::forks;
use crate::ghost::Ghost;
use crate::grace::Grace;
use crate::indices::Indices;
use crate::late::Late;
use crate::policy::EVICTORS_MAX;
use crate::scratch::Scratch;
use crate::space::Space;
use crate::stats::{Counters, Stats};
use crate::sys::{Lock, PageTables, Rooms, Uffd, Unmapper};
use crate::victims::{Hand, Workspace};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// How faults are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In the thread that faults, as a signal: quickest, but a system call that meets an absent page fails with EFAULT. For programs
    /// that know this library.
    InThread,
    /// By so many handler threads: covers the kernel's own accesses as well, at the price of waking a thread.
    Handlers(usize),
}

/// What all of a `Memory`'s parts share.
pub(crate) struct Core {
    pub space: Space,
    pub uffd: Uffd,
    pub unmapper: Unmapper,
    pub tables: PageTables,
    pub way: Way,
    /// See `Options::unmodified`.
    pub unmodified: bool,
    /// See `Memory::pages_are_whole`.
    pub whole: AtomicBool,
    /// The process it belongs to.
    pub generation: u32,
    pub pages_max: AtomicUsize,
    /// What pages and their tables together may come to.
    pub bytes_max: AtomicUsize,
    /// Called now and then by threads that evict: allocates nothing, and is quick.
    pub balance: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Pages that are not absent, or about to be.
    pub resident: AtomicUsize,
    /// Of these, those that may be newer than their backing.
    pub dirty: AtomicUsize,
    pub scratch: Scratch,
    pub ghost: Ghost,
    pub ahead: Ahead,
    pub beside: Beside,
    /// What arrays name, where handler threads take faults.
    pub follow: Option<Follow>,
    /// What they name, where threads that do not know this library take their own.
    pub indices: Option<Indices>,
    pub grace: Grace,
    pub aside: Aside,
    pub calm: Calm,
    pub late: Late,
    pub workspaces: [Lock<Workspace>; EVICTORS_MAX],
    /// Where eviction goes on.
    pub hand: Lock<Hand>,
    /// Held by who evicts before anybody needs room.
    pub making_room: Lock<()>,
    /// Rung where little room is left, if a thread evicts before it is needed.
    pub little_room: Option<Bell>,
    /// Where threads wait for pages to be evicted.
    pub freed: Rooms,
    pub waiting: AtomicUsize,
    /// The last failure to write back, and when: milliseconds of the monotonic clock, 0 for never.
    pub failed: Lock<Option<StoreError>>,
    pub failed_ms: AtomicU64,
    pub counters: Counters,
    /// Slots in use, and the end of those that ever were.
    pub taken: Mutex<Vec<bool>>,
    pub blocks_end: AtomicUsize,
}

impl Core {
    /// DRAM of records that no block has now: they stay once they were used.
    pub fn free_records_bytes(&self) -> usize {
        let free = (self.space.records_used() as usize).saturating_sub(self.space.live());
        free * RECORD_BYTES
    }

    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let records = u64::from(self.space.records_used()) * RECORD_BYTES as u64;
        Stats {
            resident_pages: self.resident.load(Ordering::Relaxed) as u64,
            dirty_pages: self.dirty.load(Ordering::Relaxed) as u64,
            table_bytes: (self.space.live() * PAGE_BYTES + self.grace.bytes()) as u64 + records,
            buffer_max_bytes: self.bytes_max.load(Ordering::Relaxed) as u64,
            fetched: get(&c.fetched),
            absent: get(&c.absent),
            opened: get(&c.opened),
            again: get(&c.again),
            near: get(&c.near),
            near_read: get(&c.near_read),
            evicted: get(&c.evicted),
            stored: get(&c.stored),
            evictions: get(&c.evictions),
            protects: get(&c.protects),
            tables_released: get(&c.tables_released),
            waits: get(&c.waits),
            failed_faults: get(&c.failed_faults),
            failed_stores: get(&c.failed_stores),
            fault_ns: get(&c.fault_ns),
            ahead: get(&c.ahead),
            evict_ns: get(&c.evict_ns),
            read_ns: get(&c.read_ns),
            pinned: get(&c.pinned),
        }
    }

    /// Refuses in a fork of the process that the memory belongs to.
    pub fn check_not_forked(&self) -> Result<(), VmError> {
        match self.generation == forks::generation() {
            true => Ok(()),
            false => Err(VmError::Forked),
        }
    }
}
