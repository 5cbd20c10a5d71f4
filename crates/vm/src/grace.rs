//! Page tables that were given back and that the kernel has not freed yet: it does so a grace period of RCU later, some 20 ms, now and then
//! many times that. At 60,000 faults a second over scattered pages that is 5 MiB on the average, which a memory cgroup counts.
//!
//! A thread waits for grace periods, one after the other, as long as tables wait; between, it sleeps. So what waits is known: some DRAM is kept
//! for it, more is taken from the page buffer, and who evicts waits when it is too much.
//!
//! Promises: a table counts until it is freed, or a little longer. Never: wakes while no table is given back.

use crate::bell::Bell;
use crate::sys::SystemError;
use std::sync::atomic::{AtomicU64, Ordering};

/// What waits.
pub(crate) struct Grace {
    pub given_back: AtomicU64,
    pub freed: AtomicU64,
    pub bell: Bell,
    /// DRAM that is kept for them beside the page buffer.
    pub kept_bytes: usize,
}

impl Grace {
    pub fn new(kept_bytes: usize) -> Result<Grace, SystemError> {
        Ok(Grace {
            given_back: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            bell: Bell::new()?,
            kept_bytes,
        })
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
            self.bell.ring();
        }
    }
}
