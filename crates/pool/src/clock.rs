//! The pool's clock: the system's, but never backwards.
//!
//! Batches carry it, so the highest time ever used survives a restart: what has
//! expired once stays expired when the system's clock is set back. Then it stands still, for a year perhaps, so
//! intervals are measured by what passes of the source.

use crate::locks::Mutex;
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

/// One look at the clock.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    /// ms since 1970; never less than before.
    pub ms: u64,
    /// For intervals, ms: how much the source has gone on since it was first looked at, and what it was then. Being set back counts as no
    /// time.
    pub passed_ms: u64,
}

/// A clock clamped by the highest time seen.
pub(crate) struct Clamped {
    source: Box<dyn Clock>,
    highest: AtomicU64,
    /// The source at the last look, and what had passed by then.
    last: Mutex<(u64, u64)>,
}

impl Clamped {
    pub(crate) fn new(source: Box<dyn Clock>) -> Clamped {
        let first = source.read_ms();
        Clamped {
            source,
            highest: AtomicU64::new(0),
            last: Mutex::new((first, first)),
        }
    }
    /// Looks at it, for all that is done at one time.
    pub(crate) fn look(&self) -> Now {
        let mut last = self.last.lock();
        // Read with the lock held: of two looks the earlier one would be taken for a source that is set back.
        let source = self.source.read_ms();
        let (before, passed) = *last;
        *last = (source, passed.saturating_add(source.saturating_sub(before)));
        Now {
            ms: self.clamped(source),
            passed_ms: last.1,
        }
    }
    /// Now, ms since 1970; never less than before.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clamped(self.source.read_ms())
    }
    fn clamped(&self, source: u64) -> u64 {
        self.highest
            .fetch_max(source, Ordering::Relaxed)
            .max(source)
    }
    /// Raises the mark to what recovery found.
    pub(crate) fn at_least(&self, ms: u64) {
        self.highest.fetch_max(ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Clamped, ManualClock};

    #[test]
    fn intervals_pass_while_the_clock_stands_still() {
        let source = ManualClock::default();
        source.set(1_000);
        let clock = Clamped::new(Box::new(source.clone()));
        let at = |source_ms: u64| {
            source.set(source_ms);
            let now = clock.look();
            assert_eq!(now.ms, clock.now_ms());
            (now.ms, now.passed_ms)
        };
        assert_eq!(at(1_000), (1_000, 1_000));
        clock.at_least(5_000);
        assert_eq!(at(1_010), (5_000, 1_010));
        // Set back: that took no time, and what follows does.
        assert_eq!(at(200), (5_000, 1_010));
        assert_eq!(at(250), (5_000, 1_060));
        assert_eq!(at(6_000), (6_000, 6_810));
    }
}
