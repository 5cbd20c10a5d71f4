//! Mutexes that threads wait for, in front of the C library's: its own way to wait, and to wake who waits, is a system call from its inside, which comes as a signal here.
//!
//! The C library still takes and gives each mutex; only the waiting and the waking are ours (`waited`), so its own waiters (conditions, forks) and ours wait for the same. Promises: as the C library's, whose words
//! are looked at once (`learn`): where they are others, it does all. Never: does so for another kind than the plain one that a process has for itself.

use super::waited::{self, FREE, Mutex, TAKEN, WAITED_FOR};
use super::{call, is_on};
use crate::{next, tls};
use libc::{c_int, c_long, pthread_mutex_t};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Which of its words says its kind.
const KIND_AT: usize = 4;
/// In that: its type, whether processes share it, and whether it is taken by transactions.
const KINDS: c_int = 0x1ff;

/// Whether this C library's mutexes are as said above.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// One of the program's.
#[derive(Clone, Copy)]
struct Plain(*mut pthread_mutex_t);

impl Plain {
    /// Whether its word says that now.
    #[inline]
    fn is(self, now: i32) -> bool {
        self.word().load(Ordering::Relaxed) == now
    }

    /// Whether it is of the kind that is met here.
    fn is_plain(self) -> bool {
        // SAFETY: a mutex has more words than this.
        unsafe { self.0.cast::<c_int>().add(KIND_AT).read() & KINDS == 0 }
    }

    fn futex(self, what: c_int, number: i32) {
        let what = what | libc::FUTEX_PRIVATE_FLAG;
        let args = [self.0 as c_long, what.into(), number.into(), 0, 0, 0];
        // SAFETY: names the word by its address; what is not a word any more is refused.
        unsafe { call(libc::SYS_futex, args) };
    }
}

impl Mutex for Plain {
    type Error = c_int;

    #[inline]
    fn word(&self) -> &AtomicI32 {
        // SAFETY: the program's promise: a mutex, which is aligned for more than its word, and which everybody changes by atomic instructions.
        unsafe { AtomicI32::from_ptr(self.0.cast()) }
    }

    fn try_take(&self) -> Result<bool, c_int> {
        // SAFETY: the program's promise.
        match unsafe { next::pthread_mutex_trylock(self.0) } {
            0 => Ok(true),
            libc::EBUSY => Ok(false),
            said => Err(said),
        }
    }

    fn give(&self) -> Result<(), c_int> {
        // SAFETY: the program's promise.
        match unsafe { next::pthread_mutex_unlock(self.0) } {
            0 => Ok(()),
            said => Err(said),
        }
    }

    fn sleep(&self) {
        self.futex(libc::FUTEX_WAIT, WAITED_FOR);
    }

    fn wake(&self) {
        self.futex(libc::FUTEX_WAKE, 1);
    }
}

/// Looks whether mutexes are as this module has it, as far as one thread sees that.
pub fn learn() {
    let mutex = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
    let mutex = Plain(mutex.get());
    let is_so = next::mutexes_are_of_one()
        && mutex.is_plain()
        && mutex.is(FREE)
        && mutex.try_take() == Ok(true)
        && mutex.is(TAKEN)
        && mutex.try_take() == Ok(false)
        && mutex.give() == Ok(())
        && mutex.is(FREE);
    KNOWN.store(is_so, Ordering::Relaxed);
}

#[inline]
fn is_here() -> bool {
    is_on() && KNOWN.load(Ordering::Relaxed) && !tls::is_inside()
}

fn answered(said: Result<(), c_int>) -> c_int {
    said.err().unwrap_or(0)
}

/// As pthread_mutex_lock(3). Most are free, which is looked at before anything else.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    let plain = Plain(mutex);
    match plain.is(FREE) || !is_here() || !plain.is_plain() {
        // SAFETY: the program's promise.
        true => unsafe { next::pthread_mutex_lock(mutex) },
        false => wait(plain),
    }
}

/// Apart, so that a mutex that is free has no frame to make.
#[inline(never)]
fn wait(mutex: Plain) -> c_int {
    answered(waited::take(&mutex))
}

/// As pthread_mutex_unlock(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
    let plain = Plain(mutex);
    match !plain.is(WAITED_FOR) || !is_here() || !plain.is_plain() {
        // SAFETY: the program's promise.
        true => unsafe { next::pthread_mutex_unlock(mutex) },
        false => wake(plain),
    }
}

#[inline(never)]
fn wake(mutex: Plain) -> c_int {
    answered(waited::give(&mutex))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that take a mutex by the ways of this module and of the C library exclude each other, and lose no wake.
    #[test]
    fn ours_and_the_c_librarys_wait_for_the_same() {
        const TIMES: usize = 20_000;
        const THREADS: usize = 4;
        struct Shared(UnsafeCell<pthread_mutex_t>, UnsafeCell<usize>);
        // SAFETY: the number is reached with the mutex only.
        unsafe impl Sync for Shared {}
        learn();
        assert!(KNOWN.load(Ordering::Relaxed));
        let shared = Shared(
            UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            UnsafeCell::new(0),
        );
        let turns = |is_ours: bool| {
            let all = &shared;
            let mutex = Plain(all.0.get());
            for _ in 0..TIMES {
                // SAFETY: a mutex that lives as long as the scope; nothing is dispatched in tests, so ours are asked for by hand.
                unsafe {
                    let said = match is_ours {
                        true => wait(mutex),
                        false => next::pthread_mutex_lock(mutex.0),
                    };
                    assert_eq!(said, 0);
                    *all.1.get() += 1;
                    if (*all.1.get()).is_multiple_of(64) {
                        // The others come meanwhile, and wait.
                        std::thread::sleep(std::time::Duration::from_micros(1));
                    }
                    let said = match is_ours {
                        true => wake(mutex),
                        false => next::pthread_mutex_unlock(mutex.0),
                    };
                    assert_eq!(said, 0);
                }
            }
        };
        let turns = &turns;
        std::thread::scope(|scope| {
            for nth in 0..THREADS {
                scope.spawn(move || turns(nth % 2 == 0));
            }
        });
        assert_eq!(shared.1.into_inner(), THREADS * TIMES);
    }
}
