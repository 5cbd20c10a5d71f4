//! The waiting of `src/dispatch/waited.rs` under a model checker, with loom's atomics in the place of std's: each test is run in every order of its threads' steps, up to a bound on preemptions.
//!
//! Beside it is the C library's own way, step by step (glibc's `lll_lock` and `lll_unlock`), and a kernel that sleeps and wakes by the word. A wake that is lost is a deadlock, which loom reports.

#[path = "../../src/dispatch/waited.rs"]
#[allow(dead_code)]
mod waited;

use loom::sync::atomic::{AtomicI32, Ordering};
use loom::sync::{Arc, Condvar, Mutex as Lock};
use loom::{cell::UnsafeCell, thread};
use waited::{FREE, Mutex, TAKEN, WAITED_FOR};

/// Times that a thread is interrupted at most in one schedule.
const PREEMPTIONS_MAX: usize = 3;

/// A mutex, the kernel's list of those who sleep by it, and what it guards.
struct Machine {
    word: AtomicI32,
    sleepers: Lock<Sleepers>,
    woken: Condvar,
    guarded: UnsafeCell<u32>,
}

#[derive(Default)]
struct Sleepers {
    asleep: u32,
    /// Wakes that no sleeper has had yet.
    wakes: u32,
}

impl Mutex for Machine {
    type Error = ();

    fn word(&self) -> &AtomicI32 {
        &self.word
    }

    fn try_take(&self) -> Result<bool, ()> {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let was = self.word.compare_exchange(FREE, TAKEN, acquire, relaxed);
        Ok(was.is_ok())
    }

    fn give(&self) -> Result<(), ()> {
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            self.wake();
        }
        Ok(())
    }

    fn sleep(&self) {
        let mut sleepers = self.sleepers.lock().unwrap();
        if self.word.load(Ordering::Relaxed) != WAITED_FOR {
            return;
        }
        sleepers.asleep += 1;
        while sleepers.wakes == 0 {
            sleepers = self.woken.wait(sleepers).unwrap();
        }
        sleepers.wakes -= 1;
        sleepers.asleep -= 1;
    }

    fn wake(&self) {
        let mut sleepers = self.sleepers.lock().unwrap();
        if sleepers.asleep > sleepers.wakes {
            sleepers.wakes += 1;
            self.woken.notify_one();
        }
    }
}

impl Machine {
    fn turn(&self, is_ours: bool) {
        if !self.try_take().unwrap() {
            match is_ours {
                true => waited::take(self).unwrap(),
                false => {
                    while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
                        self.sleep();
                    }
                }
            }
        }
        self.guarded.with_mut(|at| {
            // SAFETY: loom looks that nobody else has it meanwhile.
            unsafe { *at += 1 }
        });
        match is_ours {
            true => waited::give(self).unwrap(),
            false => self.give().unwrap(),
        }
    }
}

/// Each thread takes it once, by its way.
fn all_come_by(ways: &'static [bool]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(move || {
        let machine = Arc::new(Machine {
            word: AtomicI32::new(FREE),
            sleepers: Lock::default(),
            woken: Condvar::new(),
            guarded: UnsafeCell::new(0),
        });
        let others: Vec<_> = ways[1..]
            .iter()
            .map(|way| {
                let machine = machine.clone();
                thread::spawn(move || machine.turn(*way))
            })
            .collect();
        machine.turn(ways[0]);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(machine.word.load(Ordering::Relaxed), FREE);
        machine.guarded.with(|at| {
            // SAFETY: all threads have ended.
            assert_eq!(unsafe { *at } as usize, ways.len());
        });
    });
}

#[test]
fn loom_ours_wait_for_each_other() {
    all_come_by(&[true, true, true]);
}

#[test]
fn loom_one_of_ours_waits_beside_the_c_librarys() {
    all_come_by(&[true, false, false]);
}

#[test]
fn loom_the_c_librarys_waits_beside_ours() {
    all_come_by(&[false, true, true]);
}
