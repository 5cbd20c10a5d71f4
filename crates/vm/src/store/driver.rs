//! Background work of a store: epochs, write-back and cleaning, by one thread, and by whoever waits for room.
//!
//! The pool's worker does all of it; here is who turns it: the background thread when there is something to do, a thread that was
//! refused room at once, since waking another would take longer than a turn. Of what such a thread begins at the device the kernel tells it when it ends, and a system call
//! in which it waits by then may end early: where it is an unmodified program's, it leaves the work to the background thread. Promises: a turn is bounded; helping waits for at
//! most [`HELP_WAIT`] at a time, or [`THREAD_WAIT`] for the background thread; that takes none of the program's signals. Never: touches an object.

use super::hands::Hands;
use super::tables::Tables;
use crate::inside::Quiet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use terrace_media::descriptors::keep;
use terrace_pool::{Contents, Mutex, Pool, PoolError};

/// Longest wait of one round of help.
const HELP_WAIT: Duration = Duration::from_millis(2);
/// Longest wait for the background thread by who leaves the work to it.
const THREAD_WAIT: Duration = Duration::from_millis(20);
/// Sleep of the background thread when nothing is due at a time; who needs it rings.
const IDLE_SLEEP: Duration = Duration::from_millis(50);
/// Longest sleep of the background thread when its queue has no descriptor to wait on.
const BLIND_SLEEP_MAX: Duration = Duration::from_millis(1);

/// Who does a store's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Whoever waits for room.
    #[cfg(test)]
    Callers,
    /// These, and a thread in the background.
    Both,
    /// That thread, and others only where it does not come to it: who waits holds what it wants.
    Thread,
}

/// Who turns a pool's worker.
pub(crate) struct Driver {
    work: Work,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    hands: Mutex<Option<Hands>>,
    bell: OwnedFd,
    rung: AtomicBool,
    stop: AtomicBool,
    /// Somebody waits for room who left the work to the thread.
    wanted: AtomicBool,
    /// Turns that found room, or made something durable, wake who waits for it.
    room: Condvar,
    waits: Mutex<()>,
    /// How many did; counted with `waits` in hand.
    told: AtomicU64,
}

impl Driver {
    /// Starts the background thread of `pool`, if there is to be one.
    pub(crate) fn start(pool: &Arc<Pool<Tables>>, work: Work) -> Result<Driver, PoolError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(keep)
            .map_err(|e| system_error(pool, e.into()))?;
        let shared = Arc::new(Shared {
            hands: Mutex::new(None),
            bell,
            rung: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            room: Condvar::new(),
            waits: Mutex::new(()),
            told: AtomicU64::new(0),
        });
        let wake = Arc::downgrade(&shared);
        let wake = Arc::new(move || {
            if let Some(shared) = wake.upgrade() {
                shared.ring();
            }
        });
        *shared.hands.lock() = Some(Hands::new(pool.sole_worker(wake)?));
        let has_thread = match work {
            #[cfg(test)]
            Work::Callers => false,
            Work::Both | Work::Thread => true,
        };
        let own = shared.clone();
        let start = || {
            // The thread has these signals blocked from its first instruction on: each is the program's, which may wait for it in a thread of its own.
            let _quiet = Quiet::new();
            let named = std::thread::Builder::new().name("terrace-store".into());
            named
                .spawn(move || own.run())
                .map_err(|e| system_error(pool, e))
        };
        Ok(Driver {
            work,
            thread: has_thread.then(start).transpose()?,
            shared,
        })
    }

    /// Tells the background thread that there is something to do.
    pub(crate) fn ring(&self) {
        self.shared.ring();
    }

    /// What [`Driver::help`] is to be told: asked before the caller looks for what it then waits for, so that what comes in between is not missed.
    pub(crate) fn told(&self) -> u64 {
        self.shared.told.load(Ordering::Acquire)
    }

    /// Works towards room for one round, or waits while another thread does and has told nothing since `told`.
    pub(crate) fn help(&self, told: u64) {
        if self.work == Work::Thread && self.wait_for_thread(told) {
            return;
        }
        self.help_now(told);
    }

    /// The same by the caller in any case: of what takes some turns more than it takes of the device.
    pub(crate) fn help_now(&self, told: u64) {
        match self.shared.hands.try_lock() {
            Some(mut hands) => {
                if let Some(hands) = hands.as_mut() {
                    hands.worker.want_room();
                    hands.worker.help(HELP_WAIT);
                    hands.settle();
                }
                drop(hands);
                self.shared.tell();
            }
            // Nothing to tell: who only waits would wake others who do, and they it.
            None => self.wait(told, HELP_WAIT),
        }
    }

    /// Waits until something is told since `told`, or so long: the caller looks again.
    fn wait(&self, told: u64, most: Duration) {
        let waits = self.shared.waits.lock();
        if self.told() == told {
            let _woken = self.shared.room.wait_timeout(waits, most);
        }
    }

    /// Asks the thread for room. False: it does not come to it.
    fn wait_for_thread(&self, told: u64) -> bool {
        self.shared.wanted.store(true, Ordering::Release);
        self.shared.ring();
        self.wait(told, THREAD_WAIT);
        self.told() != told
    }

    /// Does something with the worker, unless another thread is at it.
    pub(crate) fn try_hands(&self, f: impl FnOnce(&mut Hands)) {
        if let Some(mut hands) = self.shared.hands.try_lock()
            && let Some(hands) = hands.as_mut()
        {
            f(hands);
        }
    }

    /// In a fork: thread, ring and locks are the parent's, and nothing of them ends.
    pub(crate) fn leave(&mut self) {
        std::mem::forget((self.thread.take(), self.shared.clone()));
    }

    /// Ends the background thread and what it has at the device.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring_always();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened; there is nothing to add.
            let _ended = thread.join();
        }
        if let Some(hands) = self.shared.hands.lock().take() {
            hands.worker.close();
        }
    }
}

impl Shared {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.ring_always();
        }
    }
    fn ring_always(&self) {
        // A full counter has been rung often enough.
        let _rung = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
    fn tell(&self) {
        let waits = self.waits.lock();
        self.told.fetch_add(1, Ordering::Release);
        drop(waits);
        self.room.notify_all();
    }

    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let (busy, sleep, fd) = {
                let mut hands = self.hands.lock();
                let Some(hands) = hands.as_mut() else {
                    return;
                };
                if self.wanted.swap(false, Ordering::AcqRel) {
                    hands.worker.want_room();
                }
                let turn = hands.worker.turn();
                hands.settle();
                let worker = &hands.worker;
                if turn.room {
                    self.tell();
                }
                let sleep = match worker.pool().options().contents {
                    // Nothing is due at a time.
                    Contents::Scratch => IDLE_SLEEP,
                    _ => turn.sleep_at_most,
                };
                (turn.busy, sleep, worker.poll_fd())
            };
            if !busy {
                self.wait(sleep, fd);
            }
        }
    }

    /// Sleeps until the bell rings, a completion is there, or the time is up.
    fn wait(&self, sleep: Duration, fd: Option<i32>) {
        let sleep = match fd {
            Some(_) => sleep,
            None => sleep.min(BLIND_SLEEP_MAX),
        };
        let time = Timespec::try_from(sleep).expect("a sleep is short");
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        // SAFETY: the descriptor is the worker's ring; the worker lives until `stop` has joined this thread.
        let ring = fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        if let Some(ring) = &ring {
            fds.push(PollFd::new(ring, PollFlags::IN));
        }
        // An interrupted sleep is a short one.
        let _slept = poll(&mut fds, Some(&time));
        let mut count = [0; 8];
        // Nothing to read: it was not the bell.
        let _drained = rustix::io::read(&self.bell, &mut count);
        // Only then: who rings after this is heard in the next sleep; of who rang before, the turn that comes now sees what for.
        self.rung.store(false, Ordering::Release);
    }
}

fn system_error(pool: &Arc<Pool<Tables>>, error: std::io::Error) -> PoolError {
    PoolError::Io {
        path: pool.options().dir.clone(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{device, options, pool};
    use std::time::Instant;

    /// Tries of which one counts: the test's thread may be interrupted, and a wait may end for no reason.
    const TRIES: usize = 20;

    #[test]
    fn who_waits_does_not_sleep_past_what_was_told_before() {
        let options = options(false);
        let pool = pool(&device(&options, 64, 7), options);
        let mut driver = Driver::start(&pool, Work::Callers).expect("a driver");
        let shared = driver.shared.clone();
        // Another thread turns the worker, so that who asks for help only waits.
        let hands = shared.hands.lock();
        let tries = |tells: bool| {
            let once = |_| {
                let told = driver.told();
                if tells {
                    shared.tell();
                }
                let began = Instant::now();
                driver.help(told);
                began.elapsed()
            };
            let times: Vec<Duration> = (0..TRIES).map(once).collect();
            times
        };
        let is_short = |took: &Duration| *took < HELP_WAIT / 2;
        let is_long = |took: &Duration| *took >= HELP_WAIT;
        assert!(tries(true).iter().any(is_short), "told before it waits");
        assert!(tries(false).iter().any(is_long), "nobody told anything");
        drop(hands);
        driver.stop();
    }

    #[test]
    fn who_leaves_the_work_to_the_thread_waits_for_it_first() {
        let options = options(false);
        let pool = pool(&device(&options, 64, 7), options);
        let mut driver = Driver::start(&pool, Work::Callers).expect("a driver");
        driver.work = Work::Thread;
        let helps = || {
            let (told, began) = (driver.told(), Instant::now());
            driver.help(told);
            began.elapsed()
        };
        // There is none here: after a while who waits does it himself. A wait may end for no reason.
        assert!((0..TRIES).any(|_| helps() >= THREAD_WAIT));
        assert!(driver.shared.wanted.load(Ordering::Relaxed));
        assert!(driver.shared.rung.load(Ordering::Relaxed));
        let tells = || {
            let told = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !told.load(Ordering::Relaxed) {
                        driver.shared.tell();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                // The worker is not turned: what it does would wait for this.
                let hands = driver.shared.hands.lock();
                let took = helps();
                drop(hands);
                told.store(true, Ordering::Relaxed);
                took
            })
        };
        assert!((0..TRIES).any(|_| tells() < THREAD_WAIT / 2));
        driver.stop();
    }
}
