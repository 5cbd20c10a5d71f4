//! What a start does before a pool can be used: survey, judge, rebuild, over all lanes.
//!
//! Promises: the youngest epoch counts only if every lane has all of it. Never: writes before
//! that is judged, or decides about a lane alone.

use crate::options::{Options, QUEUE_DEPTH};
use crate::{Lane, PoolError};
use std::sync::Arc;
use terrace_log::Snapshot;
use terrace_media::{Device, Disk, MediaError};
use terrace_tiers::{Damage, Survey};

/// Most threads that read for one lane at a start; beyond, the one that applies what they read is the limit.
const READERS_PER_LANE_MAX: usize = 8;
/// Part of the cap that a full scan's table may take, in quarters: no segment is in DRAM yet.
const SCAN_QUARTERS: u64 = 3;

/// What recovery found.
#[derive(Default)]
pub(crate) struct Recovered {
    pub damage: Vec<Damage>,
    pub clean: bool,
}

/// Recovers all lanes, all at the same time, each by a thread that has others read for it. Returns the last valid epoch too.
pub(crate) fn recover<D: Snapshot + Send>(
    device: &Arc<dyn Device>,
    lanes: &mut [Lane<D>],
    options: &Options,
) -> Result<(Recovered, u64), PoolError> {
    let readers = readers_per_lane(options.recovery_threads, lanes.len());
    let survey = |disks: &mut [Box<dyn Disk>], lane: &mut Lane<D>, ()| lane.survey(&mut *disks[0]);
    let surveys = for_each_lane(device, lanes, 1, survey, vec![(); lanes.len()])?;
    let valid = valid_epoch(&surveys);
    let clean = surveys
        .iter()
        .all(|s| s.clean && s.max_epoch <= s.durable_epoch);
    let youngest = surveys.iter().map(|s| s.max_epoch).max().unwrap_or(0);
    if valid < youngest {
        tracing::warn!(
            epoch = youngest,
            "the last commit was under way at the crash and is dropped"
        );
    }
    let scan_bytes = options.dram_bytes / 4 * SCAN_QUARTERS / lanes.len() as u64;
    let rebuild = |disks: &mut [Box<dyn Disk>], lane: &mut Lane<D>, survey: Survey| {
        lane.rebuild(disks, survey, valid, scan_bytes)
    };
    let damage = for_each_lane(device, lanes, readers, rebuild, surveys)?;
    let damage = damage.into_iter().flatten().collect();
    Ok((Recovered { damage, clean }, valid))
}

/// Threads that read for each lane: as many as there are CPUs, over all lanes.
fn readers_per_lane(asked: usize, lanes: usize) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let all = match asked {
        0 => cpus(),
        asked => asked,
    };
    all.div_ceil(lanes).clamp(1, READERS_PER_LANE_MAX)
}

/// The youngest epoch counts only if every lane has all of it.
pub(crate) fn valid_epoch(surveys: &[Survey]) -> u64 {
    let youngest = surveys.iter().map(|s| s.max_epoch).max().unwrap_or(0);
    let durable = surveys.iter().map(|s| s.durable_epoch).max().unwrap_or(0);
    let whole = surveys
        .iter()
        .all(|s| s.max_epoch == youngest && s.complete);
    match youngest <= durable || whole {
        true => youngest,
        false => youngest - 1,
    }
}

/// Calls `f` for each lane with `queues` queues: for the first in this thread, for others in threads of their own.
fn for_each_lane<D: Send, A: Send, B: Send>(
    device: &Arc<dyn Device>,
    lanes: &mut [Lane<D>],
    queues: usize,
    f: impl Fn(&mut [Box<dyn Disk>], &mut Lane<D>, A) -> Result<B, MediaError> + Sync,
    with: Vec<A>,
) -> Result<Vec<B>, PoolError> {
    let run = |lane: &mut Lane<D>, a: A| -> Result<B, MediaError> {
        let disks: Result<Vec<_>, _> = (0..queues).map(|_| device.queue(QUEUE_DEPTH)).collect();
        f(&mut disks?, lane, a)
    };
    let mut each = lanes.iter_mut().zip(with);
    std::thread::scope(|scope| {
        let run = &run;
        let first = each.next();
        let others: Vec<_> = each
            .map(|(lane, a)| scope.spawn(move || run(lane, a)))
            .collect();
        let first = first.map(|(lane, a)| run(lane, a));
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let results = first.into_iter().chain(others);
        results.map(|result| Ok(result?)).collect()
    })
}
