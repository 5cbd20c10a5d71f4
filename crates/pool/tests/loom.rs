//! The commit and the ledger between threads, under a model checker: each test is
//! run in every order of its threads' steps (up to a bound on preemptions), with every
//! value that an atomic may give under its memory ordering.
//!
//! What is checked is `src/commit.rs` and `src/ledger.rs` themselves, with loom's
//! atomics in the place of std's. The lanes around them are a few lines that do what
//! `worker.rs` does with the real ones.

#[path = "../src/commit.rs"]
#[allow(dead_code)]
mod commit;
#[path = "../src/ledger.rs"]
#[allow(dead_code)]
mod ledger;
mod sync {
    pub(crate) use loom::sync::atomic;
}

use commit::Commit;
use ledger::{Ledger, Part};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

/// Times that a thread is interrupted at most in one schedule: what goes wrong between
/// threads nearly always does with two.
const PREEMPTIONS_MAX: usize = 3;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(f);
}

const LANES: usize = 2;

/// A lane as the commit sees it.
struct Lane {
    open_epoch: u64,
    arrived: u64,
    /// Epochs of updates that were made in it; the last one only.
    updated_in: u64,
}

struct Pool {
    commit: Commit,
    lanes: [Mutex<Lane>; LANES],
    /// Epoch that each lane has written, and that the device was flushed for.
    written: [AtomicU64; LANES],
    flushed: AtomicU64,
    wakers: [Notify; LANES],
}

impl Pool {
    fn new() -> Arc<Pool> {
        let lane = || {
            Mutex::new(Lane {
                open_epoch: 1,
                arrived: 0,
                updated_in: 0,
            })
        };
        Arc::new(Pool {
            commit: Commit::new(LANES as u32, 1),
            lanes: [lane(), lane()],
            written: [AtomicU64::new(0), AtomicU64::new(0)],
            flushed: AtomicU64::new(0),
            wakers: [Notify::new(), Notify::new()],
        })
    }

    /// `catch_up` of the worker; true when the lane's part of a closed epoch is written.
    fn catch_up(&self, id: usize, lane: &mut Lane) -> bool {
        let open = self.commit.open();
        if lane.open_epoch >= open {
            return false;
        }
        let durable = self.commit.durable();
        assert!(
            lane.arrived <= durable,
            "an epoch is closed while one is under way"
        );
        assert_eq!(lane.open_epoch + 1, open, "a lane missed an epoch");
        self.written[id].store(lane.open_epoch, Ordering::Relaxed);
        lane.arrived = lane.open_epoch;
        lane.open_epoch = open;
        true
    }

    /// A worker's turn for its lane.
    fn turn(&self, id: usize) {
        let arrived = {
            let mut lane = self.lanes[id].lock().unwrap();
            self.catch_up(id, &mut lane)
        };
        if arrived && self.commit.arrive() {
            let epoch = self.commit.open() - 1;
            for written in &self.written {
                assert_eq!(
                    written.load(Ordering::Relaxed),
                    epoch,
                    "flushed before all arrived"
                );
            }
            self.flushed.store(epoch, Ordering::Relaxed);
            self.commit.done();
            self.wake_all();
        }
    }

    fn close(&self) -> bool {
        let closed = self.commit.try_close(0);
        if closed {
            self.wake_all();
        }
        closed
    }

    fn wake_all(&self) {
        self.wakers.iter().for_each(Notify::notify);
    }

    fn told_durable(&self) -> u64 {
        let durable = self.commit.durable();
        let flushed = self.flushed.load(Ordering::Relaxed);
        assert!(
            flushed >= durable,
            "epoch {durable} is told, {flushed} is flushed"
        );
        durable
    }
}

fn both(pool: &Arc<Pool>, f: impl Fn(&Pool, usize) + Clone + Send + 'static) {
    let (other, g) = (pool.clone(), f.clone());
    let thread = thread::spawn(move || g(&other, 1));
    f(pool, 0);
    thread.join().unwrap();
}

/// Both threads close what they can and do their lane's part; whatever they are told to be
/// durable was written by both lanes and flushed.
#[test]
fn an_epoch_is_durable_only_when_all_lanes_arrived_and_the_device_was_flushed() {
    model(|| {
        let pool = Pool::new();
        both(&pool, |pool, id| {
            for _ in 0..2 {
                pool.close();
                pool.turn(id);
                pool.told_durable();
            }
        });
        // What one thread left the other to do.
        (0..LANES).for_each(|id| pool.turn(id));
        assert!(!pool.commit.under_way(), "an epoch never ends");
        assert_eq!(pool.told_durable(), pool.commit.open() - 1);
    });
}

/// The flush of an epoch has the device to itself, and none waits for ever.
#[test]
fn an_epoch_is_not_flushed_beside_a_checkpoint() {
    model(|| {
        let pool = Pool::new();
        let (under_way, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let other = {
            let (pool, under_way, failed) = (pool.clone(), under_way.clone(), failed.clone());
            thread::spawn(move || {
                while !pool.commit.begin_other_flush() {
                    pool.wakers[1].wait();
                }
                assert!(under_way.fetch_add(1, Ordering::AcqRel) < 100);
                under_way.fetch_sub(1, Ordering::AcqRel);
                // It failed, and its worker says so first.
                failed.store(1, Ordering::Release);
                if pool.commit.end_other_flush() {
                    pool.wake_all();
                }
            })
        };
        assert!(pool.commit.try_close(0));
        pool.commit.want_flush();
        while !pool.commit.may_flush() {
            pool.wakers[0].wait();
        }
        // The other's was before this, and is known to have failed, or is after it.
        let has_failed = failed.load(Ordering::Acquire) == 1;
        assert_eq!(under_way.fetch_add(100, Ordering::AcqRel), 0);
        assert_eq!(has_failed, failed.load(Ordering::Acquire) == 1);
        under_way.fetch_sub(100, Ordering::AcqRel);
        pool.commit.done();
        pool.wake_all();
        other.join().unwrap();
        assert!(pool.commit.begin_other_flush(), "the epoch's is over");
    });
}

/// One thread closes an epoch and both sleep until they are woken: it becomes durable,
/// and both learn of it.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let pool = Pool::new();
        both(&pool, |pool, id| {
            if id == 0 {
                assert!(pool.close());
            }
            loop {
                pool.turn(id);
                if pool.told_durable() == 1 {
                    return;
                }
                pool.wakers[id].wait();
            }
        });
    });
}

/// Who asks for an epoch after an update gets that epoch closed, or the asking stays.
#[test]
fn no_asking_is_lost() {
    model(|| {
        let pool = Pool::new();
        both(&pool, |pool, id| match id {
            0 => {
                let mut lane = pool.lanes[0].lock().unwrap();
                pool.catch_up(0, &mut lane);
                lane.updated_in = lane.open_epoch;
                drop(lane);
                pool.commit.ask();
            }
            _ => {
                pool.close();
            }
        });
        let updated_in = pool.lanes[0].lock().unwrap().updated_in;
        assert!(pool.commit.open() > updated_in || pool.commit.asked());
    });
}

/// Grants of several threads never exceed the connections' share, and all come back.
#[test]
fn grants_never_exceed_their_share() {
    model(|| {
        let ledger = Arc::new(Ledger::new(8000));
        let granted = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (ledger, granted) = (ledger.clone(), granted.clone());
                thread::spawn(move || {
                    if ledger.grant(600) {
                        let all = granted.fetch_add(600, Ordering::Relaxed) + 600;
                        assert!(all <= 1000, "{all} bytes are granted of 1000");
                        granted.fetch_sub(600, Ordering::Relaxed);
                        ledger.ungrant(600);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(ledger.held(Part::Connections), 0);
        assert!(ledger.grant(1000), "what was refused was not counted");
    });
}
