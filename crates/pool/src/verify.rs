//! Reads that tell what updates replaced, after those were answered: many together, so that they cost the device's queue and
//! the kernel little.
//!
//! Promises: what is put here is verified within a moment of the worker's turns, whatever becomes of the read; memory for it is
//! bounded and counted. Never: waits, or holds a lock while something is read.

use crate::ledger::Part;
use crate::task::Task;
use crate::worker::Worker;
use terrace_log::{Loc, Snapshot, Subject};
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
struct Waiting {
    lane: u16,
    who: Subject,
    key: Box<[u8]>,
    /// Its next read, whose segment is held.
    plan: ReadPlan,
}

/// A worker's.
#[derive(Default)]
pub(crate) struct Verifier {
    waiting: Vec<Waiting>,
    since_ms: u64,
    /// The batch under way, and its reads.
    batch: Vec<Waiting>,
    task: Option<Task>,
}

impl Verifier {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.task.is_none()
    }
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// Reads of the batch under way.
    pub(crate) fn reads(&self) -> usize {
        self.task.as_ref().map_or(0, Task::reads_under_way)
    }
}

impl<D: Snapshot + Send> Worker<D> {
    /// Whether an update of a key of `key_len` bytes may be verified later, by a read that is planned.
    pub fn may_verify_later(&self, key_len: usize, plan: &ReadPlan) -> bool {
        let short = key_len <= KEY_MAX_BYTES && plan.len <= READ_MAX_BYTES;
        short && self.verifier.waiting.len() < WAITING_MAX
    }

    /// The newest entry of `key` was put unverified; `plan` is what is to be read first.
    pub fn verify_later(&mut self, lane: u16, who: Subject, key: &[u8], plan: ReadPlan) {
        if self.verifier.waiting.is_empty() {
            self.verifier.since_ms = self.turn_ms();
        }
        self.count(Part::Io, 0, kept_bytes(key));
        self.verifier.waiting.push(Waiting {
            lane,
            who,
            key: key.into(),
            plan,
        });
    }

    /// Begins a batch that is due, and takes in one that was read.
    pub(crate) fn verify(&mut self, now: bool) {
        if let Some(task) = self.verifier.task.take() {
            self.verify_batch(task);
        }
        let v = &mut self.verifier;
        let due = now || v.waiting.len() >= BATCH_KEYS || self.turn_ms() != self.verifier.since_ms;
        if self.verifier.task.is_none() && self.verifier.has_waiting() && due {
            let mut task = Task::new(OWNER);
            let batch = std::mem::take(&mut self.verifier.waiting);
            for w in &batch {
                self.fetch(&mut task, w.lane, w.plan, true);
            }
            self.verifier.batch = batch;
            self.verifier.task = Some(task);
        }
    }

    fn verify_batch(&mut self, mut task: Task) {
        if !self.collect(&mut task) {
            self.verifier.task = Some(task);
            return;
        }
        let mut batch = std::mem::take(&mut self.verifier.batch);
        batch.retain_mut(|w| {
            let known = |loc: Loc| {
                let read = task.fetched(w.lane, loc)?.entry();
                Some(match read {
                    Ok(e) if e.key() == &*w.key && e.space() == w.who.space => Known::Own,
                    Ok(_) => Known::Others,
                    Err(_) => Known::Unreadable,
                })
            };
            let next = (self.lane(w.lane)).verify_newest(w.who, &w.key, known);
            match next {
                Some(plan) => w.plan = plan,
                None => self.count(Part::Io, kept_bytes(&w.key), 0),
            }
            next.is_some()
        });
        // Others were met at the same hash, or the entry has moved.
        for w in &batch {
            self.fetch(&mut task, w.lane, w.plan, true);
        }
        match batch.is_empty() {
            true => self.finish(task),
            false => self.verifier.task = Some(task),
        }
        self.verifier.batch = batch;
    }
}

fn kept_bytes(key: &[u8]) -> u64 {
    (size_of::<Waiting>() + key.len()) as u64
}
