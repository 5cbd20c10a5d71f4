//! Waiting without the heap: a lock and waiting rooms over futexes, usable inside a signal handler.
//!
//! Promises: allocates nothing, and a wait ends after [`WAIT_MS`] at the latest, so that the waiter looks again. Never: fair.

use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest wait before looking again: a lost wake-up would cost this and no more.
const WAIT_MS: u64 = 20;
/// Where the kernel does not let us wait for a grace period: longer than one takes on a busy machine.
const GRACE_MS: u64 = 100;
/// Rooms: those who wait for different pages rarely share one.
const ROOMS: usize = 64;
/// How often a lock is tried before its holder is waited for.
const SPINS_MAX: u32 = 100;

/// Milliseconds of a clock that never goes back.
pub(crate) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Waits for a grace period of the kernel's RCU: after it, page tables that this process gave back before are free, or are about to be.
pub(crate) fn await_grace() {
    const GLOBAL: i32 = 1;
    // SAFETY: takes numbers only.
    let said = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if said != 0 {
        std::thread::sleep(Duration::from_millis(GRACE_MS));
    }
}

fn sleep_on(word: &AtomicU32, value: u32) {
    let longest = Duration::from_millis(WAIT_MS);
    let longest = longest.try_into().expect("a few milliseconds fit");
    // Woken, changed before, interrupted or too late: the caller looks again in each case.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&longest));
}

/// A short sleep in which a thread is not cancelled, as it may be in the C library's.
pub(crate) fn pause(time: Duration) {
    let word = AtomicU32::new(0);
    let time = time.try_into().expect("a short time fits");
    // Nobody wakes it; interrupted, it is a shorter one.
    let _ = futex::wait(&word, futex::Flags::PRIVATE, 0, Some(&time));
}

fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Rooms in which threads wait for a change of something that has a number.
pub(crate) struct Rooms([AtomicU32; ROOMS]);

/// Where to wait, taken before asking to be woken.
pub(crate) struct Ticket(usize, u32);

impl Rooms {
    pub const fn new() -> Rooms {
        Rooms([const { AtomicU32::new(0) }; ROOMS])
    }

    /// Taken first; then the caller asks whoever will change `number` to call [`wake`](Rooms::wake), then it waits.
    pub fn ticket(&self, number: u64) -> Ticket {
        let room = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % ROOMS;
        Ticket(room, self.0[room].load(Ordering::Acquire))
    }

    /// Waits for a wake after the ticket was taken, boundedly; may return early.
    pub fn wait(&self, ticket: &Ticket) {
        sleep_on(&self.0[ticket.0], ticket.1);
    }

    /// Wakes those who wait for `number`, and some others.
    pub fn wake(&self, number: u64) {
        let Ticket(room, _) = self.ticket(number);
        self.0[room].fetch_add(1, Ordering::Release);
        wake_all(&self.0[room]);
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_AWAITED: u32 = 2;

/// A mutex for a few instructions of work.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the one thread that holds the lock.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Where the value is, whoever holds the lock.
    pub fn peek(&self) -> *const T {
        self.value.get()
    }

    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Held(self))
    }

    pub fn lock(&self) -> Held<'_, T> {
        for _ in 0..SPINS_MAX {
            if let Some(held) = self.try_lock() {
                return held;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(HELD_AND_AWAITED, Ordering::Acquire) != FREE {
            sleep_on(&self.word, HELD_AND_AWAITED);
        }
        Held(self)
    }
}

/// A held [`Lock`].
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one; the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if self.0.word.swap(FREE, Ordering::Release) == HELD_AND_AWAITED {
            wake_all(&self.0.word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut held = lock.lock();
                        let seen = *held;
                        std::hint::black_box(&mut held);
                        *held = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_wake_after_the_ticket_is_not_missed() {
        let rooms = Rooms::new();
        let ticket = rooms.ticket(5);
        rooms.wake(5);
        let started = std::time::Instant::now();
        rooms.wait(&ticket);
        assert!(started.elapsed() < Duration::from_millis(WAIT_MS));
    }
}
