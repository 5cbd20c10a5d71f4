//! Page tables that were given back and that the kernel has not freed yet: it does so a grace period of RCU later, some 20 ms, now and then
//! many times that. At 60,000 faults a second over scattered pages that is 5 MiB on the average, which a memory cgroup counts.
//!
//! A thread waits for grace periods, one after the other, as long as tables wait; between, it sleeps. So what waits is known: some DRAM is kept
//! for it, about as much as waited lately on the average; more is taken from the page buffer, and who evicts waits when it is too much.
//!
//! Promises: a table counts until it is freed, or a little longer. Never: wakes while no table is given back.

use crate::bell::Bell;
use crate::policy;
use crate::sys::SystemError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What waits.
pub(crate) struct Grace {
    pub given_back: AtomicU64,
    pub freed: AtomicU64,
    pub bell: Bell,
    /// DRAM that is kept for them beside the page buffer, and the most that may be.
    kept_bytes: AtomicUsize,
    kept_max_bytes: usize,
    /// What waited whenever tables were given back since the last look, added up, and how often that was.
    seen_tables: AtomicU64,
    times: AtomicU64,
}

impl Grace {
    /// With as much kept for them as may be.
    pub fn new(kept_max_bytes: usize) -> Result<Grace, SystemError> {
        Ok(Grace {
            given_back: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            bell: Bell::new()?,
            kept_bytes: AtomicUsize::new(kept_max_bytes),
            kept_max_bytes,
            seen_tables: AtomicU64::new(0),
            times: AtomicU64::new(0),
        })
    }

    /// DRAM that is kept for them beside the page buffer.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// How much more may come to be kept.
    pub fn unkept_bytes(&self) -> usize {
        self.kept_max_bytes - self.kept_bytes().min(self.kept_max_bytes)
    }

    /// Keeps so much from now on.
    pub fn keep(&self, bytes: usize) {
        self.kept_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What should be kept, after what waited on the average since the last call. One thread at a time calls it.
    pub fn wanted_bytes(&self) -> usize {
        let times = self.times.swap(0, Ordering::Relaxed);
        let seen = self.seen_tables.swap(0, Ordering::Relaxed);
        let tables = (seen / times.max(1)) as usize;
        policy::tables_kept(
            self.kept_bytes(),
            tables * crate::PAGE_BYTES,
            self.kept_max_bytes,
        )
    }

    /// Tables that were given back and may not be free yet.
    pub fn tables(&self) -> usize {
        let freed = self.freed.load(Ordering::SeqCst);
        (self.given_back.load(Ordering::SeqCst)).saturating_sub(freed) as usize
    }

    /// What they come to.
    pub fn bytes(&self) -> usize {
        self.tables() * crate::PAGE_BYTES
    }

    /// So many were given back.
    pub fn give_back(&self, tables: usize) {
        self.given_back.fetch_add(tables as u64, Ordering::SeqCst);
        if tables > 0 {
            let waiting = self.tables() as u64;
            self.seen_tables.fetch_add(waiting, Ordering::Relaxed);
            self.times.fetch_add(1, Ordering::Relaxed);
            self.bell.ring();
        }
    }
}
