//! The flushes of a worker: its lanes' checkpoints', and that of the epoch that all lanes have arrived in.
//!
//! Promises: an epoch is flushed only if no flush failed before, with no other under way (`commit`); what the pool's failure keeps from being flushed is told as
//! failed. Never: waits.

use crate::pool::Pool;
use terrace_log::Snapshot;
use terrace_media::{Buf, Disk, MediaError, Op};

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

impl Flushes {
    /// Hands an operation of a lane to the device; a flush when it may begin.
    pub(crate) fn submit_of_lane(&mut self, disk: &mut dyn Disk, token: u64, op: Op) {
        match op {
            Op::Flush => self.others.push(token),
            _ => disk.submit(token, op),
        }
    }

    /// All lanes have arrived: flushes the device when that may begin.
    pub(crate) fn flush_epoch<D: Snapshot + Send>(&mut self, pool: &Pool<D>) {
        pool.commit.want_flush();
        self.epoch = true;
    }

    /// Whether one is to be submitted yet.
    pub(crate) fn wait<D: Snapshot + Send>(&self, pool: &Pool<D>) -> bool {
        let epoch = self.epoch && pool.failure().is_none();
        epoch || !self.others.is_empty()
    }

    /// Submits what waited and may begin.
    pub(crate) fn submit<D: Snapshot + Send>(&mut self, pool: &Pool<D>, disk: &mut dyn Disk) {
        // Whoever has a flush that fails says so before it ends it: looked at afterwards, that is seen.
        let has_failed = || pool.failure().is_some();
        if self.epoch && pool.commit.may_flush() && !has_failed() {
            self.epoch = false;
            disk.submit(TOKEN_FLUSH, Op::Flush);
        }
        while let Some(&token) = self.others.last() {
            let may = pool.commit.begin_other_flush();
            match (may, has_failed()) {
                (true, false) => disk.submit(TOKEN_OF_CHECKPOINT | token, Op::Flush),
                (false, false) => return,
                (began, true) => {
                    refuse(pool, token);
                    if began {
                        ended_other_flush(pool);
                    }
                }
            }
            self.others.pop();
        }
    }
}

/// What a flush that failed should have made durable, this one would not either.
fn refuse<D: Snapshot + Send>(pool: &Pool<D>, token: u64) {
    let error = MediaError::Io {
        op: "flush",
        offset: 0,
        len: 0,
        errno: EIO,
    };
    complete_of_lane(pool, token, Err(error), None);
}

/// The flush of a checkpoint ended, and the pool knows whether it failed.
pub(crate) fn ended_other_flush<D: Snapshot + Send>(pool: &Pool<D>) {
    if pool.commit.end_other_flush() {
        // Whoever has the epoch's.
        pool.wake_all();
    }
}

/// Tells a lane what came of its operation, and the pool at once if that ends it: no epoch is durable behind a flush that failed.
pub(crate) fn complete_of_lane<D: Snapshot + Send>(
    pool: &Pool<D>,
    token: u64,
    result: Result<(), MediaError>,
    buf: Option<Buf>,
) {
    let at = (token >> TOKEN_LANE_SHIFT) as usize;
    let mut lane = pool.lanes[at].lock();
    lane.complete(token & ((1 << TOKEN_LANE_SHIFT) - 1), result, buf);
    let failed = lane.failure().map(str::to_string);
    drop(lane);
    if let Some(why) = failed {
        pool.fail(&why);
    }
}
