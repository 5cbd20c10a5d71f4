//! `bench serve`: is the server faster than what people use, close to the device, and without a cliff?
//!
//! The parts are the rows `a` to `i` and `memcached` of docs/benchmarks.md, with their bars, and `threads`, which has none. Never drives two servers at a time, and never judges
//! a ratio whose two sides were not measured in turns in the same run.

pub mod dram;
mod growth;
mod index;
mod reads;
mod sync;
mod tail;
mod threads;
pub mod tiered;
mod writes;

use crate::Setting;
use crate::report::Report;
use anyhow::Result;

/// The parts.
pub const PARTS: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "memcached",
    "threads",
];

type Run = fn(&Setting, &mut Report) -> Result<()>;

/// In the order they run; rows that share their servers run together.
const RUNS: &[(&[&str], Run)] = &[
    (&["a"], dram::serve),
    (&["b", "c", "d"], tiered::serve),
    (&["e"], writes::run),
    (&["f"], sync::run),
    (&["g"], growth::run),
    (&["h"], tail::run),
    (&["i"], index::run),
    (&["memcached"], dram::serve_memcached),
    (&["threads"], threads::run),
];

/// Runs the parts that were asked for.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for (parts, run) in RUNS {
        if parts.iter().any(|part| setting.wants(part)) {
            run(setting, report)?;
        }
    }
    Ok(())
}
