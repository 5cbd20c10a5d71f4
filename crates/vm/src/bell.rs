//! What a thread of the runtime sleeps on until there is work for it.
//!
//! Promises: who rings after there is work either finds it asleep and wakes it, or is seen by it before it sleeps. Never: allocates once it is made, or costs a call of the system while the
//! thread is awake.

use crate::sys::{SystemError, await_grace};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_media::descriptors::keep;

/// See the head of the file.
pub(crate) struct Bell {
    asleep: AtomicBool,
    fd: OwnedFd,
}

impl Bell {
    pub fn new() -> Result<Bell, SystemError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)
            .map(keep)
            .map_err(SystemError::call("making an eventfd"))?;
        Ok(Bell {
            asleep: AtomicBool::new(false),
            fd,
        })
    }

    /// Wakes the thread if it sleeps: after there is work.
    pub fn ring(&self) {
        // In this order, and looked at in the other: either the thread sees the work or it is seen asleep.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.ring_anyway();
        }
    }

    /// The same, also of one that does not sleep yet.
    pub fn ring_anyway(&self) {
        // A counter that is full is one that rings already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Sleeps until it is rung, unless there is work.
    pub fn sleep(&self, has_work: impl FnOnce() -> bool) {
        self.asleep.store(true, Ordering::SeqCst);
        let mut count = [0; 8];
        if !has_work() && rustix::io::read(&self.fd, &mut count).is_err() {
            // Interrupted; or the program closed what is not its own, and this may be all that is left of the bell.
            await_grace();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    /// Who would miss a ring sleeps for ever: each piece of work is rung for once, and the next waits for it.
    #[test]
    fn no_ring_is_missed() {
        const ROUNDS: u64 = 5_000;
        let bell = Bell::new().unwrap();
        let (asked, done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) < ROUNDS {
                    let before = done.load(Ordering::SeqCst);
                    bell.sleep(|| asked.load(Ordering::SeqCst) > before);
                    done.store(asked.load(Ordering::SeqCst), Ordering::SeqCst);
                }
            });
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::SeqCst);
                bell.ring();
                let until = Instant::now() + Duration::from_secs(20);
                while done.load(Ordering::SeqCst) < round {
                    if Instant::now() > until {
                        // Lets the other one end, too.
                        asked.store(ROUNDS, Ordering::SeqCst);
                        bell.ring_anyway();
                        panic!("round {round} was not heard");
                    }
                    std::hint::spin_loop();
                }
            }
        });
    }
}
