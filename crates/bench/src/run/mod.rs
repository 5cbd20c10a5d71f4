//! `bench run`: unmodified programs under `terrace run`, and the same programs on swap in a cgroup of the same limit.
//!
//! Parts have the letters of the table they were asked for with: `a`, memcached with values that pack by half; `b`, with values that do not; `c`, Redis, and
//! `dump`, a snapshot of it while it serves; `d`, sqlite3, numpy and sort; `e`, what fits the cap beside running without Terrace; `floor`, what swap does with twice the memory. That no cgroup comes to more than
//! cap + 32 MiB (row `f`) is judged in each part. Promises: both sides run in turns in one run. Never: changes a program.

mod programs;
mod servers;
mod snapshot;

use crate::Setting;
use crate::cgroup::Usage;
use crate::report::Report;
use crate::rounds::judge_usage;
use crate::server::Memory;
use anyhow::Result;

/// What a cgroup is limited to above the cap, on both sides. Where the page cache fills it, the kernel charges a few pages beyond the limit that it cannot do without.
const SLACK_BYTES: u64 = 31 << 20;
/// What it may come to beyond that: 32 MiB above the cap are asked.
const FORCED_BYTES: u64 = 1 << 20;

/// Pairs in a repeat of what fits the cap: its bar is 3 % below equal, and the ratio of a pair has a standard deviation of 7 to 12 %.
const PAIRS_OF_FITTING: u32 = 6;

/// How many pairs a repeat has.
fn pairs(beside: Memory) -> u32 {
    match beside {
        Memory::Plain => PAIRS_OF_FITTING,
        _ => 1,
    }
}

/// What may be asked for with `--only`.
pub const PARTS: &[&str] = &["a", "b", "c", "d", "dump", "e", "floor"];

/// Runs the parts that are wanted.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for row in servers::ROWS {
        if setting.wants(row.name) {
            servers::run(setting, report, row)?;
        }
        if row.forks && setting.wants("dump") {
            snapshot::run(setting, report, row)?;
        }
    }
    if setting.wants("floor") {
        servers::floor(setting, report)?;
    }
    for row in programs::ROWS {
        if setting.wants(row.name) {
            programs::run(setting, report, row)?;
        }
    }
    Ok(())
}

/// The bars of row `f` for one part; without a group there is nothing to judge them by.
fn judge_group(report: &mut Report, what: &str, limit_bytes: u64, usage: Option<Usage>) {
    judge_usage(
        report,
        &format!("f, {what}"),
        limit_bytes + FORCED_BYTES,
        usage,
    );
}
