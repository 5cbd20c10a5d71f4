//! A look from outside at a pool of objects.
//!
//! Promises: writes nothing. Never: opens the pool.

use super::open::empty_tables;
use super::tables::Tables;
use std::path::Path;
use terrace_pool::{CheckReport, PoolError, Superblock, check_objects, info_objects};

/// Nothing is in DRAM: the pool is not open.
fn tables(lane: u16, superblock: &Superblock) -> Tables {
    empty_tables(lane, superblock, 0)
}

/// Verifies the whole pool in `dir`; `progress` is told bytes read of bytes in all.
pub fn check(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, PoolError> {
    check_objects(dir, &tables, progress)
}

/// What the pool in `dir` is, from its superblock and checkpoints.
pub fn info(dir: &Path) -> Result<CheckReport, PoolError> {
    info_objects(dir, &tables)
}
