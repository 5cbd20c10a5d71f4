//! Updates that were answered before it was told what they replaced: their keys wait here for the reads that tell, many together,
//! so that these cost the device's queue and the kernel little.
//!
//! Promises: what is put here is due within a moment of the worker's turns; memory for it is bounded. Never: reads, or locks a lane;
//! the worker does.

use crate::task::Task;
use terrace_log::{Loc, Subject};
use terrace_tiers::{Known, ReadPlan};

/// Keys that may wait for their batch; reads of a batch.
const WAITING_MAX: usize = 16;
/// Longest read, bytes: all that are under way must not take what updates need.
const READ_MAX_BYTES: usize = 8 << 10;
/// Longest key, bytes.
const KEY_MAX_BYTES: usize = 256;
/// From so many on a batch begins; fewer wait for others until the clock of turns, in ms, has moved.
const BATCH_KEYS: usize = 12;
/// Nobody waits for these reads.
pub(crate) const OWNER: u64 = u64::MAX - 1;

/// A key whose newest entry is not verified.
pub(crate) struct Waiting {
    pub lane: u16,
    pub who: Subject,
    pub key: Box<[u8]>,
    /// Its next read, whose segment is held.
    pub plan: ReadPlan,
}

impl Waiting {
    /// Whose the entry at `loc` is, if the task has read it.
    pub(crate) fn known(&self, task: &Task, loc: Loc) -> Option<Known> {
        let read = task.fetched(self.lane, loc)?.entry();
        Some(match read {
            Ok(e) if e.key() == &*self.key && e.space() == self.who.space => Known::Own,
            Ok(_) => Known::Others,
            Err(_) => Known::Unreadable,
        })
    }
    /// What is kept of the key, for the ledger.
    pub(crate) fn kept_bytes(&self) -> u64 {
        (size_of::<Waiting>() + self.key.len()) as u64
    }
}

/// Keys that are read for together.
pub(crate) struct Batch {
    pub keys: Vec<Waiting>,
    pub task: Task,
}

/// A worker's.
#[derive(Default)]
pub(crate) struct Verifier {
    waiting: Vec<Waiting>,
    since_ms: u64,
    /// Under way.
    pub(crate) batch: Option<Batch>,
}

impl Verifier {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.batch.is_none()
    }
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// Reads of the batch under way.
    pub(crate) fn reads(&self) -> usize {
        self.batch.as_ref().map_or(0, |b| b.task.reads_under_way())
    }
    /// Whether one more key of `key_len` bytes may wait for such a read.
    pub(crate) fn may_wait(&self, key_len: usize, plan: &ReadPlan) -> bool {
        let short = key_len <= KEY_MAX_BYTES && plan.len <= READ_MAX_BYTES;
        short && self.waiting.len() < WAITING_MAX
    }
    pub(crate) fn add(&mut self, waiting: Waiting, passed_ms: u64) {
        if self.waiting.is_empty() {
            self.since_ms = passed_ms;
        }
        self.waiting.push(waiting);
    }
    /// The next batch, if none is under way and it is due; with `now`, any is.
    pub(crate) fn due(&mut self, now: bool, passed_ms: u64) -> Option<Batch> {
        let due = now || self.waiting.len() >= BATCH_KEYS || passed_ms != self.since_ms;
        (self.batch.is_none() && self.has_waiting() && due).then(|| Batch {
            keys: std::mem::take(&mut self.waiting),
            task: Task::new(OWNER),
        })
    }
}
