//! What of the cap others than pages have: a fork's children, and the program's own memory. Numbers only.
//!
//! Promises: each is what was counted in the cap, or for a moment more. Never: counts it there; who gives and takes does.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes.
pub struct Given(AtomicU64);

/// All that is counted for children.
pub static CHILDREN: Given = Given::new();
/// Of that, memory that is copied when one of two writes to it.
pub static COPIES: Given = Given::new();
/// What pages have given for the program's own memory.
pub static OWN: Given = Given::new();

impl Given {
    /// Nothing yet.
    pub const fn new() -> Given {
        Given(AtomicU64::new(0))
    }

    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// It is so much now.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }

    /// It is so much more.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }

    /// It is so much less.
    pub fn take(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::AcqRel);
    }
}
