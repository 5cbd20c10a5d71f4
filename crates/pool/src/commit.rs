//! The commit that all lanes share: epochs.
//!
//! | state | meaning | moved on by |
//! |---|---|---|
//! | open | updates enter epoch `open` | `try_close`: `open` + 1 |
//! | closed | lanes stage and write epoch `open` - 1 | each lane's `arrive` |
//! | flushing | all arrived; one device flush | `done` or `failed` |
//!
//! A flush that fails leaves nothing sure of what was written before it, and one beside it may end well all the same. So that of an epoch has the
//! device to itself: it waits until those of checkpoints have ended, and none of these begins while it waits or is under way.
//!
//! An epoch is a cut: every lane steps into the new one before it does anything
//! after the close, and a command over several lanes holds them all. So what is
//! recovered is a state that the whole pool was in.

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Shared by all workers of a pool.
pub(crate) struct Commit {
    open: AtomicU64,
    durable: AtomicU64,
    under_way: AtomicBool,
    arrived: AtomicU32,
    lanes: u32,
    /// Flushes of checkpoints under way, and [`EPOCHS`].
    flushes: AtomicU32,
    last_close_ms: AtomicU64,
    asked: AtomicBool,
    quiet_until_ms: AtomicU64,
}

/// Longest time that closing epochs is held back for one command, ms.
const QUIET_MAX_MS: u64 = 200;
/// The flush of an epoch waits, or is under way.
const EPOCHS: u32 = 1 << 31;

impl Commit {
    pub(crate) fn new(lanes: u32, open: u64) -> Commit {
        Commit {
            open: AtomicU64::new(open),
            durable: AtomicU64::new(open - 1),
            under_way: AtomicBool::new(false),
            arrived: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            lanes,
            last_close_ms: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            quiet_until_ms: AtomicU64::new(0),
        }
    }
    /// The open epoch.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }
    /// Everything up to this epoch is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }
    /// Whether a closed epoch is not durable yet.
    pub(crate) fn under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }
    /// A command needs a moment without an epoch under way; bounded. `passed_ms` is the clock for intervals, here and below.
    pub(crate) fn want_quiet(&self, passed_ms: u64) {
        self.quiet_until_ms
            .store(passed_ms + QUIET_MAX_MS, Ordering::Relaxed);
    }
    /// The command had its moment.
    pub(crate) fn end_quiet(&self) {
        self.quiet_until_ms.store(0, Ordering::Relaxed);
    }
    pub(crate) fn quiet(&self, passed_ms: u64) -> bool {
        passed_ms < self.quiet_until_ms.load(Ordering::Relaxed)
    }
    /// Closes the open epoch unless one is under way. True if it did.
    pub(crate) fn try_close(&self, passed_ms: u64) -> bool {
        let idle =
            self.under_way
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_err() {
            return false;
        }
        self.asked.store(false, Ordering::Relaxed);
        self.arrived.store(0, Ordering::Relaxed);
        self.last_close_ms.store(passed_ms, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::AcqRel);
        true
    }
    /// A lane's part of the closed epoch is written. True for the last lane.
    pub(crate) fn arrive(&self) -> bool {
        self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.lanes
    }
    /// All lanes have arrived: the device is to be flushed, once [`may_flush`](Commit::may_flush) says so.
    pub(crate) fn want_flush(&self) {
        self.flushes.fetch_or(EPOCHS, Ordering::AcqRel);
    }
    /// Whether no flush of a checkpoint is under way. Asked by who wants the epoch's.
    pub(crate) fn may_flush(&self) -> bool {
        self.flushes.load(Ordering::Acquire) == EPOCHS
    }
    /// Begins the flush of a checkpoint; false: an epoch's comes first.
    pub(crate) fn begin_other_flush(&self) -> bool {
        let begin = |flushes: u32| (flushes < EPOCHS).then_some(flushes + 1);
        self.flushes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, begin)
            .is_ok()
    }
    /// Ends it, after the pool was told if it failed. True: an epoch's may begin now.
    pub(crate) fn end_other_flush(&self) -> bool {
        self.flushes.fetch_sub(1, Ordering::AcqRel) - 1 == EPOCHS
    }
    /// The device was flushed after all lanes had arrived, or what they wrote needs no flush.
    pub(crate) fn done(&self) {
        self.flushes.fetch_and(!EPOCHS, Ordering::AcqRel);
        self.durable.store(self.open() - 1, Ordering::Release);
        self.under_way.store(false, Ordering::Release);
    }
    /// Time since the last close, ms.
    pub(crate) fn since_close_ms(&self, passed_ms: u64) -> u64 {
        passed_ms.saturating_sub(self.last_close_ms.load(Ordering::Relaxed))
    }
    /// Asks for a close at the next occasion.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}
