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
use crate::server::Peer;
use anyhow::Result;
use tiered::Tiered;

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
    (&["b", "c", "d"], over_cap),
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

/// Rows `b`, `c` and `d`, those that are wanted, on one stage.
fn over_cap(setting: &Setting, report: &mut Report) -> Result<()> {
    let [b, c, d] = ["b", "c", "d"].map(|row| setting.wants(row));
    let peers = match (b, c, d) {
        (true, _, _) => tiered::ALL,
        (_, true, _) => &[Peer::Extstore],
        (_, _, true) => &[],
        _ => return Ok(()),
    };
    let mut part = tiered::part(setting, "b", "Zipf 0.99");
    let mut tiered = Tiered::start(setting, &mut part, peers)?;
    if b {
        tiered::over_cap(setting, report, &mut tiered, part)?;
    }
    if c {
        reads::beside_disk(setting, report, &mut tiered)?;
    }
    if d {
        reads::for_each_miss(setting, report, &mut tiered)?;
    }
    tiered.lineup.stop()
}
