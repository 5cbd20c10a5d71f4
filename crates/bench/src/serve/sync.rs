//! Row `f`: SETs of 100 B that are durable when acknowledged, beside redis-server with `appendfsync always`.
//!
//! 50 connections, 1 and 16 in flight, so that one flush serves many writers on either side. Besides the throughput it says what
//! a command writes: a block that is written for a few bytes costs the device as much as a full one. Never limits memory.

use crate::Setting;
use crate::load::{Load, Until};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Side};
use crate::rounds::{Lineup, draw, spec};
use crate::server::{Durability, Peer, Spec};
use anyhow::Result;

const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 100;
const DRAM_BYTES: u64 = 256 << 20;
const SSD_BYTES: u64 = 1 << 30;
/// The least multiple of Redis's throughput.
const RATIO_MIN: f64 = 1.5;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "server_cpu_ns_per_op",
    "disk_write_bytes_per_op",
    "device_write_bytes_per_updated_byte",
];

/// Runs the row.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let keys = (KEYS / setting.options.scale_divisor).max(1_000);
    let title = format!(
        "durable SETs of {VALUE_BYTES} B, {keys} keys, uniform, {} connections",
        crate::load::CONNECTIONS
    );
    let mut part = Part::new("f", &title, COLUMNS);
    let mut lineup = Lineup::default();
    for peer in [Peer::Terrace, Peer::Redis] {
        let spec = Spec {
            durability: Durability::Sync,
            ..spec(setting, "f", peer, DRAM_BYTES, SSD_BYTES)
        };
        lineup.add(&mut part, &spec, None)?;
    }
    let progress = Progress::new(lineup.steps(setting, 2));
    lineup.fill(&mut part, &progress, keys, VALUE_BYTES)?;
    for in_flight in [1, 16] {
        let case = format!("SET, {in_flight} in flight");
        let load = Load {
            in_flight,
            get_percent: 0,
            until: Until::Seconds(setting.options.seconds),
            seed: 400,
            ..Load::of(keys, VALUE_BYTES)
        };
        let measured = lineup.case(setting, &mut part, &progress, &case, &load)?;
        report.bars.push(Bar::new(
            format!("f, {case}: durable throughput as a multiple of Redis"),
            Side::AtLeast,
            RATIO_MIN,
            measured.ratio_to_most(&[Peer::Redis], "ops_per_s"),
        ));
    }
    drop(progress);
    lineup.stop()?;
    let title = "Durable SETs of 100 B, 50 connections";
    draw(setting, report, &part, title, "ops_per_s");
    report.parts.push(part);
    Ok(())
}
