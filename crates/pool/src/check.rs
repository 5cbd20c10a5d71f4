//! Looking at a pool from outside: info, check, destroy.
//!
//! `check` reads and verifies everything: both superblocks, the checkpoint, every
//! batch and entry of every segment, and that each slot of the directory leads to
//! an entry that checks and hashes to it. It writes nothing. Of a pool whose objects do not
//! outlive a program there is nothing to verify but the superblock.
//!
//! Pools of keys are known here; for others who calls makes the empty directories.

use crate::lock::PoolLock;
use crate::open::{MakeDirectory, data_path, hasher_of, is_there, key_map, new_lane, part_path};
use crate::options::{Contents, QUEUE_DEPTH};
use crate::recover::valid_epoch;
use crate::superblock::{self, Superblock};
use crate::{Lane, Options, PoolError};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use terrace_log::Snapshot;
use terrace_media::{
    Arena, BLOCK_BYTES, Buf, Device, Disk, FileDevice, flush_blocking, write_blocking,
};
use terrace_tiers::{Damage, Survey};

/// What `check` and `info` say.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    /// What the pool holds.
    pub contents: Contents,
    /// Lanes.
    pub lanes: u16,
    /// Bytes of the SSD terrace.
    pub ssd_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Whether the last stop was clean.
    pub clean_stop: bool,
    /// Whether every lane has a checkpoint that checks.
    pub checkpoint: bool,
    /// Last durable epoch.
    pub epoch: u64,
    /// Keys of the user, or objects, in the directory.
    pub keys: u64,
    /// Entries verified (0 for info).
    pub entries: u64,
    /// Bytes read and verified (0 for info).
    pub verified_bytes: u64,
    /// Everything that is wrong.
    pub damage: Vec<Damage>,
}

fn open(dir: &Path) -> Result<(PoolLock, Arc<FileDevice>, Superblock, bool), PoolError> {
    if !is_there(dir)? {
        return Err(PoolError::Missing(dir.to_path_buf()));
    }
    let path = data_path(dir);
    let mut lock = PoolLock::take(dir)?;
    let device = Arc::new(FileDevice::open(&path)?);
    lock.claim(&device)?;
    let mut disk = device.queue(QUEUE_DEPTH)?;
    let found = Superblock::read(&mut *disk)?;
    let (superblock, both) = found.ok_or_else(|| lock.not_a_pool(path))?;
    Ok((lock, device, superblock, both))
}

/// What a pool holds.
pub fn contents(dir: &Path) -> Result<Contents, PoolError> {
    let (_lock, _, superblock, _) = open(dir)?;
    Ok(superblock.contents)
}

fn of_keys(superblock: &Superblock, dir: &Path) -> Result<(), PoolError> {
    match superblock.contents {
        Contents::Keys => Ok(()),
        other => Err(PoolError::Contents {
            path: data_path(dir),
            is: other.name(),
            asked: Contents::Keys.name(),
        }),
    }
}

/// Verifies a whole pool of keys; `progress` is told bytes read of bytes in all.
pub fn check(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, PoolError> {
    let (_lock, device, superblock, both) = open(dir)?;
    of_keys(&superblock, dir)?;
    let mut report = check_device(&*device, &superblock, &key_map, progress)?;
    note_copies(&mut report, both);
    Ok(report)
}

/// The same for a pool of objects, whose empty directories `make` makes.
pub fn check_objects<D: Snapshot>(
    dir: &Path,
    make: MakeDirectory<'_, D>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, PoolError> {
    let (_lock, device, superblock, both) = open(dir)?;
    let mut report = check_device(&*device, &superblock, make, progress)?;
    note_copies(&mut report, both);
    Ok(report)
}

/// What a pool of keys is, from its superblock and checkpoints.
pub fn info(dir: &Path) -> Result<CheckReport, PoolError> {
    let (_lock, device, superblock, _) = open(dir)?;
    of_keys(&superblock, dir)?;
    info_of(&*device, &superblock, &key_map)
}

/// The same of a pool of objects, whose empty directories `make` makes.
pub fn info_objects<D: Snapshot>(
    dir: &Path,
    make: MakeDirectory<'_, D>,
) -> Result<CheckReport, PoolError> {
    let (_lock, device, superblock, _) = open(dir)?;
    info_of(&*device, &superblock, make)
}

fn info_of<D: Snapshot>(
    device: &dyn Device,
    superblock: &Superblock,
    make: MakeDirectory<'_, D>,
) -> Result<CheckReport, PoolError> {
    let (mut report, mut lanes, surveys) = survey(device, superblock, make)?;
    let mut disk = device.queue(QUEUE_DEPTH)?;
    for (lane, survey) in lanes.iter_mut().zip(surveys) {
        let disks = std::slice::from_mut(&mut disk);
        lane.rebuild_without_writing(disks, survey, report.epoch, u64::MAX);
        report.keys += lane.keys();
    }
    Ok(report)
}

type Surveyed<D> = (CheckReport, Vec<Lane<D>>, Vec<Survey>);

fn survey<D: Snapshot>(
    device: &dyn Device,
    superblock: &Superblock,
    make: MakeDirectory<'_, D>,
) -> Result<Surveyed<D>, PoolError> {
    let arena = Arena::new_plain(superblock.segment_bytes as usize, 8)?;
    let options = Options::default();
    let hasher = hasher_of(superblock);
    let mut disk = device.queue(QUEUE_DEPTH)?;
    // What is in a scratch pool is of no process that runs.
    let lanes = match superblock.contents {
        Contents::Scratch => 0,
        _ => superblock.lanes,
    };
    let mut lanes: Vec<Lane<D>> = (0..lanes)
        .map(|l| new_lane(l, superblock, &options, hasher, 8, &arena, make))
        .collect();
    let mut surveys = Vec::new();
    for lane in &mut lanes {
        surveys.push(lane.survey(&mut *disk)?);
    }
    let report = CheckReport {
        contents: superblock.contents,
        lanes: superblock.lanes,
        ssd_bytes: superblock.len_bytes(),
        segment_bytes: superblock.segment_bytes,
        clean_stop: surveys
            .iter()
            .all(|s| s.clean && s.max_epoch <= s.durable_epoch),
        checkpoint: surveys.iter().all(Survey::from_checkpoint),
        epoch: valid_epoch(&surveys),
        keys: 0,
        entries: 0,
        verified_bytes: 0,
        damage: Vec::new(),
    };
    Ok((report, lanes, surveys))
}

/// Verifies a pool of keys on any device: what tests use.
pub fn check_on_device(device: &dyn Device) -> Result<CheckReport, PoolError> {
    let found = Superblock::read(&mut *device.queue(1)?)?;
    let (superblock, both) = found.ok_or(PoolError::NotAPool {
        path: std::path::PathBuf::from(device.describe()),
    })?;
    let mut report = check_device(device, &superblock, &key_map, &mut |_, _| {})?;
    note_copies(&mut report, both);
    Ok(report)
}

fn note_copies(report: &mut CheckReport, both: bool) {
    if !both {
        report.damage.push(Damage {
            lane: 0,
            segment: 0,
            from_bytes: 0,
            to_bytes: 2 * BLOCK_BYTES,
            what: "one copy of the superblock does not check".into(),
            unknown: false,
        });
    }
}

fn check_device<D: Snapshot>(
    device: &dyn Device,
    superblock: &Superblock,
    make: MakeDirectory<'_, D>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, PoolError> {
    let (mut report, mut lanes, surveys) = survey(device, superblock, make)?;
    let valid = report.epoch;
    let mut disk = device.queue(QUEUE_DEPTH)?;
    let total = superblock.len_bytes();
    let mut done = 0;
    for (lane, survey) in lanes.iter_mut().zip(surveys) {
        let damage =
            lane.rebuild_without_writing(std::slice::from_mut(&mut disk), survey, valid, u64::MAX);
        report.damage.extend(damage);
        let mut told = |bytes: u64| {
            done += bytes;
            progress(done, total);
        };
        let verified = lane.verify(&mut *disk, &mut told)?;
        report.entries += verified.entries;
        report.verified_bytes += verified.bytes;
        report.damage.extend(verified.damage);
        report.keys += lane.keys();
    }
    report
        .damage
        .sort_by_key(|d| (d.lane, d.segment, d.from_bytes));
    report.damage.dedup();
    Ok(report)
}

/// Removes a pool and everything in it, also one that was half made.
pub fn destroy(dir: &Path) -> Result<(), PoolError> {
    let (path, part) = (data_path(dir), part_path(dir));
    let found = [&path, &part].map(|path| std::fs::symlink_metadata(path).ok());
    if found.iter().all(Option::is_none) {
        return Err(PoolError::Missing(dir.to_path_buf()));
    }
    let mut lock = PoolLock::take(dir)?;
    for (path, found) in [(&path, &found[0]), (&part, &found[1])] {
        let is_link = found.as_ref().is_some_and(|m| m.is_symlink());
        // A file that is half made is removed as it is.
        if path.exists() && (is_link || *path == data_path(dir)) {
            let device = FileDevice::open(path)?;
            lock.claim(&device)?;
            if device.len_bytes() < 2 * BLOCK_BYTES as u64 {
                // No room for a superblock's copies.
                return Err(lock.not_a_pool(path.clone()));
            }
            let mut disk = device.queue(1)?;
            let is_ours = superblock::is_marked(&mut *disk)?;
            // What has another's file, or a device that was made something else since, keeps it. A link that is half made may lead to what was there before.
            if !is_ours && *path == data_path(dir) && !superblock::is_blank(&mut *disk)? {
                return Err(lock.not_a_pool(path.clone()));
            }
            if is_link && is_ours {
                // The device stays; without a superblock it is no pool any more.
                wipe(&mut *disk, 0, 2)?;
            }
        }
        if found.is_some() {
            std::fs::remove_file(path).map_err(|e| PoolError::io(path, e))?;
        }
    }
    drop(lock);
    let lock_path = dir.join("lock");
    std::fs::remove_file(&lock_path).map_err(|e| PoolError::io(&lock_path, e))?;
    // Only if nothing else is in it.
    let _ = std::fs::remove_dir(dir);
    Ok(())
}

/// Makes both checkpoints of every lane unreadable, so that the next start scans the whole log.
pub fn drop_checkpoints(dir: &Path) -> Result<(), PoolError> {
    let (_lock, device, superblock, _) = open(dir)?;
    let mut disk = device.queue(1)?;
    for lane in 0..superblock.lanes {
        wipe(&mut *disk, superblock.root_base(lane), 2)?;
    }
    Ok(())
}

fn wipe(disk: &mut dyn Disk, offset: u64, blocks: usize) -> Result<(), PoolError> {
    write_blocking(disk, offset, Buf::zeroed(blocks * BLOCK_BYTES))?;
    Ok(flush_blocking(disk)?)
}
