//! A worker's reads of entries: begun for commands, counted, and bounded.
//!
//! Promises: what all reads have, under way and kept for their commands, stays within a part of the cap, but for a few of
//! each thread, so that none waits for ever, nor for those whose clients are slow to take what was read; who waits for room does not keep
//! that room by what he has read. Never: locks a lane across a call of the device.

use crate::ledger::Part;
use crate::reads::TOKEN_READ;
use crate::task::{Task, buf_bytes};
use crate::verify::OWNER;
use crate::worker::Worker;
use terrace_log::Snapshot;
use terrace_media::{Done, Op};
use terrace_tiers::ReadPlan;

/// Reads that a thread may have under way whatever others keep.
const READS_ALWAYS: usize = 4;
/// How long a command that waits for room keeps what it has read, ms, where its holds keep that room: reading it again costs less than this.
const LET_GO_AFTER_MS: u64 = 20;

impl<D: Snapshot + Send> Worker<D> {
    /// Whether the read of `plan` may begin now. If not, it is to be [put off](Worker::put_off).
    #[inline]
    pub fn may_fetch(&self, plan: &ReadPlan) -> bool {
        let bytes = buf_bytes(plan.len) as u64;
        self.pool.ledger.may_read(bytes) || self.reads_under_way() < READS_ALWAYS
    }

    /// Whether reads have half of what they may take, or less.
    pub fn reads_are_low(&self) -> bool {
        self.pool.ledger.reads_are_low()
    }

    /// A planned read does not begin now, and what it holds is let go. A turn says when there is room again.
    pub fn put_off(&mut self, lane: u16, plan: &ReadPlan) {
        self.reads_wait = true;
        let mut lane = self.pool.lanes[lane as usize].lock();
        lane.unpin(plan.segment);
        lane.count(|s| s.device_reads -= 1);
    }

    /// Reads the entry that `plan` (of `Lane::plan_read`) names, for a task.
    pub fn fetch(&mut self, task: &mut Task, lane: u16, plan: ReadPlan, keys_only: bool) {
        let stock = self.reads.stock_up(&mut *self.disk) as u64;
        if stock > 0 {
            self.pool.ledger.change_standing(0, stock);
        }
        let (token, buf) = (self.reads).begin(&mut *self.disk, task, lane, plan, keys_only);
        let counted = buf_bytes(plan.len) as u64;
        self.pool.ledger.change(Part::Io, 0, counted);
        let op = Op::Read {
            offset: plan.offset,
            buf,
        };
        self.disk.submit(TOKEN_READ | token as u64, op);
    }

    /// Moves finished reads into the task. False: some are still under way. A task that has had all of its reads for a while, and so
    /// waits for room, forgets them if nothing but their holds keeps that from coming.
    pub fn collect(&mut self, task: &mut Task) -> bool {
        if task.reads.is_some() || task.all_fetched().is_empty() {
            task.waits_since_ms = None;
            return self.reads.collect(task);
        }
        let now_ms = self.pool.clock.look().passed_ms;
        let since_ms = *task.waits_since_ms.get_or_insert(now_ms);
        if now_ms >= since_ms + LET_GO_AFTER_MS && self.waits_for_readers(task) {
            self.reset(task);
            task.waits_since_ms = None;
        }
        true
    }

    /// Whether a lane that the task has read in can go on only when reads end.
    fn waits_for_readers(&self, task: &Task) -> bool {
        let lanes = task.all_fetched().iter();
        let lanes = lanes.fold(0u64, |lanes, f| lanes | 1 << f.lane());
        let mut lanes = (0..self.pool.lanes.len()).filter(|id| lanes & 1 << id != 0);
        lanes.any(|id| self.pool.lanes[id].lock().waits_for_readers())
    }

    /// Ends a task: its holds go, and what it still reads is dropped when it comes.
    pub fn finish(&mut self, mut task: Task) {
        self.reads.cancel(&mut task);
        self.reset(&mut task);
    }
    /// Forgets what a task has read, for its next step. Nothing may be under way.
    pub fn reset(&mut self, task: &mut Task) {
        for f in task.forget() {
            let kept = f.kept_bytes() as u64;
            self.pool.ledger.change(Part::Io, kept, 0);
            self.pool.lanes[f.lane as usize]
                .lock()
                .unpin(f.plan.segment);
        }
        self.tell_those_put_off();
    }

    /// Owners of tasks whose reads are finished.
    pub fn take_ready(&mut self, out: &mut Vec<u64>) {
        let ready = self.reads.ready.drain(..);
        out.extend(ready.filter(|owner| *owner != OWNER));
    }
    /// How many reads of this thread's commands the device does.
    pub fn reads_under_way(&self) -> usize {
        // A batch is told of what has ended a moment later.
        let batch = self.verifier.reads();
        self.reads.under_way().saturating_sub(batch)
    }

    /// A read of this thread's ended.
    pub(crate) fn read_done(&mut self, token: usize, d: Done) {
        let Some(ended) = self.reads.ended(token, d) else {
            return;
        };
        let (len, kept) = (ended.len_bytes as u64, ended.kept_bytes as u64);
        self.pool.ledger.change(Part::Io, len, kept);
        if ended.damaged || ended.unpin.is_some() {
            let mut lane = self.pool.lanes[ended.lane as usize].lock();
            lane.count(|s| s.damaged_reads += u64::from(ended.damaged));
            if let Some(segment) = ended.unpin {
                lane.unpin(segment);
            }
        }
        self.tell_those_put_off();
    }

    /// All of them try again, so they are told when there is room for many, or when nothing else of this thread goes on.
    fn tell_those_put_off(&mut self) {
        if self.reads_wait
            && (self.pool.ledger.reads_are_low() || self.reads_under_way() < READS_ALWAYS)
        {
            self.reads_wait = false;
            self.room = true;
        }
    }
}
