//! The flushes of a worker: its lanes' checkpoints', and that of the epoch that all lanes have arrived in.
//!
//! Promises: an epoch is flushed only if no flush failed before, with no other under way (`commit`); what the pool's failure keeps from being flushed is told as
//! failed. Never: waits.

use crate::pool::Pool;
use crate::worker::Worker;
use terrace_log::Snapshot;
use terrace_media::{Buf, MediaError, Op};

pub(crate) const TOKEN_FLUSH: u64 = 1 << 61;
/// Beside the token of its lane: a flush of a checkpoint.
pub(crate) const TOKEN_OF_CHECKPOINT: u64 = 1 << 60;
pub(crate) const TOKEN_LANE_SHIFT: u32 = 44;
/// As the device says it.
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// Flushes that are to be submitted.
#[derive(Default)]
pub(crate) struct Flushes {
    epoch: bool,
    /// Tokens of those of checkpoints.
    others: Vec<u64>,
}

impl<D: Snapshot + Send> Worker<D> {
    /// Hands an operation of a lane to the device; a flush when it may begin.
    pub(crate) fn submit_of_lane(&mut self, token: u64, op: Op) {
        match op {
            Op::Flush => self.flushes.others.push(token),
            _ => self.disk.submit(token, op),
        }
    }

    /// All lanes have arrived: flushes the device when that may begin.
    pub(crate) fn flush_epoch(&mut self) {
        self.pool.commit.want_flush();
        self.flushes.epoch = true;
    }

    /// Whether one is to be submitted yet.
    pub(crate) fn flush_waits(&self) -> bool {
        let epoch = self.flushes.epoch && self.pool.failure().is_none();
        epoch || !self.flushes.others.is_empty()
    }

    /// Submits what waited and may begin.
    pub(crate) fn submit_flushes(&mut self) {
        // Whoever has a flush that fails says so before it ends it: looked at afterwards, that is seen.
        let has_failed = |pool: &Pool<D>| pool.failure().is_some();
        if self.flushes.epoch && self.pool.commit.may_flush() && !has_failed(&self.pool) {
            self.flushes.epoch = false;
            self.disk.submit(TOKEN_FLUSH, Op::Flush);
        }
        while let Some(&token) = self.flushes.others.last() {
            let may = self.pool.commit.begin_other_flush();
            match (may, has_failed(&self.pool)) {
                (true, false) => self.disk.submit(TOKEN_OF_CHECKPOINT | token, Op::Flush),
                (false, false) => return,
                (began, true) => {
                    self.refuse(token);
                    if began {
                        self.ended_other_flush();
                    }
                }
            }
            self.flushes.others.pop();
        }
    }

    /// What a flush that failed should have made durable, this one would not either.
    fn refuse(&self, token: u64) {
        let error = MediaError::Io {
            op: "flush",
            offset: 0,
            len: 0,
            errno: EIO,
        };
        self.complete_of_lane(token, Err(error), None);
    }

    /// The flush of a checkpoint ended, and the pool knows whether it failed.
    pub(crate) fn ended_other_flush(&self) {
        if self.pool.commit.end_other_flush() {
            // Whoever has the epoch's.
            self.pool.wake_all();
        }
    }

    /// Tells a lane what came of its operation, and the pool at once if that ends it: no epoch is durable behind a flush that failed.
    pub(crate) fn complete_of_lane(
        &self,
        token: u64,
        result: Result<(), MediaError>,
        buf: Option<Buf>,
    ) {
        let at = (token >> TOKEN_LANE_SHIFT) as usize;
        let mut lane = self.pool.lanes[at].lock();
        lane.complete(token & ((1 << TOKEN_LANE_SHIFT) - 1), result, buf);
        let failed = lane.failure().map(str::to_string);
        drop(lane);
        if let Some(why) = failed {
            self.pool.fail(&why);
        }
    }
}
