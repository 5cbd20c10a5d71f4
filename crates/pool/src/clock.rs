//! The pool's clock: the system's, but never backwards.
//!
//! Batches carry it, so the highest time ever used survives a restart: what has
//! expired once stays expired when the system's clock is set back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970, as the source has it.
    fn read_ms(&self) -> u64;
}

/// The system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn read_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64)
    }
}

/// A clock that a test sets.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Sets the time, ms.
    pub fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn read_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A clock clamped by the highest time seen.
pub(crate) struct Clamped {
    source: Box<dyn Clock>,
    highest: AtomicU64,
}

impl Clamped {
    pub(crate) fn new(source: Box<dyn Clock>) -> Clamped {
        Clamped {
            source,
            highest: AtomicU64::new(0),
        }
    }
    /// Now, ms since 1970; never less than before.
    pub(crate) fn now_ms(&self) -> u64 {
        let now = self.source.read_ms();
        self.highest.fetch_max(now, Ordering::Relaxed).max(now)
    }
    /// Raises the mark to what recovery found.
    pub(crate) fn at_least(&self, ms: u64) {
        self.highest.fetch_max(ms, Ordering::Relaxed);
    }
}
