//! `bench memory`: memory larger than DRAM, beside what users have today.
//!
//! Parts have the letters of the table they were asked for with: `a`, what a fault costs; `b`, small objects in several times
//! the memory beside swap and a mapped file, with the bars of `d`, `e` and `h`; `b256`, the same with half the memory; `c`, reads that miss
//! beside the device alone; `e`, pages that pack; `f`, larger objects; `floor`, bare faults, the limit of objects on pages; `g`, applications in C; `i`, what the tables take; `sync`, named regions
//! beside msync. Promises: each part measures its yardstick in the same
//! run. Never: a figure from elsewhere.

mod applications;
mod beside;
pub mod child;
mod fault_cost;
mod kind;
mod loads;
mod paths;
mod regions;
mod tables;

use crate::report::Report;
use crate::{Setting, stop};
use anyhow::Result;

/// A part: its letter, and what runs it.
type Row = (&'static str, fn(&Setting, &mut Report) -> Result<()>);

const ROWS: &[Row] = &[
    ("a", fault_cost::run),
    ("b", |setting, report| {
        beside::run(setting, report, &loads::SMALL)
    }),
    ("b256", |setting, report| {
        beside::run(setting, report, &loads::SMALLER_LIMIT)
    }),
    ("c", |setting, report| {
        beside::run(setting, report, &loads::DEVICE)
    }),
    ("e", |setting, report| {
        beside::run(setting, report, &loads::PACKED)
    }),
    ("f", |setting, report| {
        beside::run(setting, report, &loads::LARGER)
    }),
    ("floor", |setting, report| {
        beside::run(setting, report, &loads::FLOOR)
    }),
    ("floor256", |setting, report| {
        beside::run(setting, report, &loads::FLOOR_SMALLER_LIMIT)
    }),
    ("floor-f", |setting, report| {
        beside::run(setting, report, &loads::FLOOR_LARGER)
    }),
    ("floor-btree", |setting, report| {
        beside::run(setting, report, &loads::FLOOR_TREE)
    }),
    ("floor-packetcache", |setting, report| {
        beside::run(setting, report, &loads::FLOOR_PACKETS)
    }),
    ("floor-hashcache", |setting, report| {
        beside::run(setting, report, &loads::FLOOR_BINS)
    }),
    ("g", applications::run),
    ("i", tables::run),
    ("sync", regions::run),
];

/// What may be asked for with `--only`.
pub const PARTS: &[&str] = &[
    "a",
    "b",
    "b256",
    "c",
    "e",
    "f",
    "floor",
    "floor256",
    "floor-f",
    "floor-btree",
    "floor-packetcache",
    "floor-hashcache",
    "g",
    "i",
    "sync",
];

/// Runs the parts that are wanted.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    stop::listen()?;
    for (name, run) in ROWS {
        if setting.wants(name) {
            run(setting, report)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name() {
        let names: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
        assert_eq!(names, PARTS);
    }
}
