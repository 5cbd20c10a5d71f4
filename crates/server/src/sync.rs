//! How threads share a value: behind a lock that outlives a panic, as a counter that one of them writes and any reads, or as a time
//! before which something is not told again.
//!
//! Promises: a counter costs its thread a load and a store. Never: knows what is shared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::TELL_EVERY_MS;

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

/// Something that is told at most once in `TELL_EVERY_MS`: when it may be again, by a clock of milliseconds.
#[derive(Debug, Default)]
pub struct Seldom(AtomicU64);

impl Seldom {
    /// Whether it may be told now; who asks tells it.
    pub fn may(&self, now_ms: u64) -> bool {
        let from_ms = self.0.load(Ordering::Relaxed);
        let next_ms = now_ms + TELL_EVERY_MS;
        now_ms >= from_ms
            && self
                .0
                .compare_exchange(from_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_all_the_time_is_told_once_in_a_while() {
        let seldom = Seldom::default();
        let told: Vec<u64> = (0..3_500).filter(|&ms| seldom.may(ms)).collect();
        assert_eq!(told, [0, 1_000, 2_000, 3_000]);
    }
}
