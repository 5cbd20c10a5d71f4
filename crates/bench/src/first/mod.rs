//! `bench first`: is one log that steps down a fair server in DRAM, a far better one over its DRAM than swap, and back at once?
//!
//! The parts `dram` and `cap` measure as `bench serve` does, beside Redis only and against lower bars; `recovery` is its own.
//! Never drives two servers at a time.

mod recovery;

use crate::Setting;
use crate::report::Report;
use crate::serve::{dram, tiered};
use crate::server::Peer;
use anyhow::Result;

/// The parts, in the order they run.
pub const PARTS: &[&str] = &["dram", "cap", "recovery"];

/// Runs the parts that were asked for.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    if setting.wants("dram") {
        let plan = dram::Plan {
            part: "dram",
            ours: Peer::Terrace,
            peers: &[Peer::Redis],
            ratio_min: [(1, 0.7), (16, 0.7)],
        };
        dram::run(setting, report, &plan)?;
    }
    if setting.wants("cap") {
        tiered::first(setting, report)?;
    }
    if setting.wants("recovery") {
        recovery::run(setting, report)?;
    }
    Ok(())
}
