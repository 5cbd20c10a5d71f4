//! The locks of everything above the media: those of the standard library, without poisoning.
//!
//! A lock that is taken is looked at for a moment, and then its holder is waited for in the kernel. It is never yielded for: where there are more threads than
//! processors, `sched_yield` gives up a whole slice, 2.3 ms on Linux 6.18, for a lock that is held for one microsecond (docs/adr/0052).
//!
//! Promises: takes no memory; who panicked with a lock in hand leaves it free. Never: yields, or is fair.

use std::sync::{MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// A mutex.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A lock for many that read or one that writes.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }

    /// Waits until nobody writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if nobody writes or is about to.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The lock, if nobody has it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        match self.0.try_write() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until nobody else has it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a loop that takes the same lock again and again owes to others: who was woken for a lock needs longer to take it than who has just let go of it.
#[derive(Debug)]
pub struct Turns(Instant);

/// So long a loop has a lock for itself; parking_lot hands one over as often.
const OWN: Duration = Duration::from_micros(500);
/// And so long others have to take it.
const OTHERS: Duration = Duration::from_micros(20);

impl Turns {
    /// The loop begins.
    pub fn begin() -> Turns {
        Turns(Instant::now())
    }

    /// Asked where the lock is free: now and then sleeps for a moment. True: it did.
    pub fn let_others(&mut self) -> bool {
        let is_due = self.0.elapsed() >= OWN;
        if is_due {
            std::thread::sleep(OTHERS);
            self.0 = Instant::now();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_panicked_leaves_it_free() {
        let (mutex, rw) = (Mutex::new(1), RwLock::new(1));
        let ended = std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                let (mut a, mut b) = (mutex.lock(), rw.write());
                (*a, *b) = (2, 2);
                panic!("as the test wants");
            });
            one.join()
        });
        assert!(ended.is_err());
        assert_eq!((*mutex.lock(), *rw.read()), (2, 2));
        assert_eq!(rw.try_write().as_deref(), Some(&2));
        let read = rw.try_read();
        assert!(read.as_deref() == Some(&2) && rw.try_write().is_none());
        drop(read);
        let written = rw.write();
        assert!(*written == 2 && rw.try_read().is_none());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert_eq!(mutex.try_lock().as_deref(), Some(&2));
    }

    #[test]
    fn others_have_a_moment_after_each_half_millisecond() {
        let mut turns = Turns(Instant::now() - OWN);
        assert!(turns.let_others());
        // As if it had begun later: nothing is due.
        turns.0 = Instant::now() + Duration::from_secs(60);
        assert!(!turns.let_others());
    }
}
