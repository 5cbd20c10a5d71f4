//! A look from outside at a pool of objects.
//!
//! Promises: writes nothing. Never: opens the pool.

use super::tables::Tables;
use std::path::Path;
use terrace_pool::{CheckReport, Contents, PoolError, Superblock, check_objects, info_objects};

fn tables(_lane: u16, superblock: &Superblock) -> Tables {
    let keeps = superblock.contents == Contents::Objects;
    let lane_bits = u32::from(superblock.lanes).ilog2();
    Tables::new(lane_bits, superblock.unit_bits(), keeps)
}

/// Verifies the whole pool in `dir`; `progress` is told bytes read of bytes in all.
pub fn check(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, PoolError> {
    check_objects(dir, &tables, progress)
}

/// What the pool in `dir` is, from its superblock and checkpoints.
pub fn info(dir: &Path) -> Result<CheckReport, PoolError> {
    info_objects(dir, &tables)
}
