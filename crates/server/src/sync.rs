//! How threads share a value: behind a lock that outlives a panic, or as a counter that one of them writes and any reads.
//!
//! Promises: a counter costs its thread a load and a store. Never: knows what is shared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that a panicking thread left behind still guards whole data: everything in it is written in one step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to a counter of the calling thread's own.
#[inline]
pub fn add(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}
