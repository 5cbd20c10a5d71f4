//! Row `a`: 1 M keys of 100 B that fit into DRAM, GET and SET, 1 and 16 in flight, beside redis-server and memcached. Row `memcached`:
//! the same in memcached's words, beside memcached alone.
//!
//! One thread each, the server on one CPU and the load on the other. All keep running, one is driven at a time. Never limits
//! memory: here the question is only what a hit and a write cost.

use crate::Setting;
use crate::load::Load;
use crate::load::Until;
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Side};
use crate::rounds::{Lineup, draw, spec};
use crate::server::Peer;
use anyhow::Result;

const KEYS: u64 = 1_000_000;
const VALUE_BYTES: usize = 100;
/// Several times the data: nothing may have to step down for want of room.
const DRAM_BYTES: u64 = 1 << 30;
const SSD_BYTES: u64 = 2 << 30;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "server_cpu_ns_per_op",
    "load_cpu_ns_per_op",
    "load_cpu_share",
    "disk_write_bytes_per_set_byte",
];

/// Who is measured beside ours, and how much faster than all of them ours must be.
pub struct Plan {
    /// Name of the part.
    pub part: &'static str,
    /// Ours.
    pub ours: Peer,
    /// The peers.
    pub peers: &'static [Peer],
    /// The least multiple of the fastest peer's throughput, by requests in flight.
    pub ratio_min: [(usize, f64); 2],
}

/// Row `a` of `bench serve`.
pub fn serve(setting: &Setting, report: &mut Report) -> Result<()> {
    let plan = Plan {
        part: "a",
        ours: Peer::Terrace,
        peers: &[Peer::Redis, Peer::Memcached],
        ratio_min: [(1, 1.0), (16, 1.3)],
    };
    run(setting, report, &plan)
}

/// Row `memcached` of `bench serve`.
pub fn serve_memcached(setting: &Setting, report: &mut Report) -> Result<()> {
    let plan = Plan {
        part: "memcached",
        ours: Peer::TerraceMemcached,
        peers: &[Peer::Memcached],
        ratio_min: [(1, 1.0), (16, 1.0)],
    };
    run(setting, report, &plan)
}

/// Measures ours beside the plan's peers.
pub fn run(setting: &Setting, report: &mut Report, plan: &Plan) -> Result<()> {
    let keys = (KEYS / setting.options.scale_divisor).max(1_000);
    let title = format!(
        "{keys} keys of {VALUE_BYTES} B in DRAM, uniform, {} connections, one server thread",
        crate::load::CONNECTIONS
    );
    let mut part = Part::new(plan.part, &title, COLUMNS);
    let mut lineup = Lineup::default();
    for peer in [plan.ours].iter().chain(plan.peers) {
        let spec = spec(setting, plan.part, *peer, DRAM_BYTES, SSD_BYTES);
        lineup.add(&mut part, &spec, None)?;
    }
    let progress = Progress::new(lineup.steps(setting, 4));
    lineup.fill(&mut part, &progress, keys, VALUE_BYTES)?;
    for (op, get_percent) in [("GET", 100), ("SET", 0)] {
        for (in_flight, ratio_min) in plan.ratio_min {
            let case = format!("{op}, {in_flight} in flight");
            let load = Load {
                in_flight,
                get_percent,
                until: Until::Seconds(setting.options.seconds),
                seed: 100,
                ..Load::of(keys, VALUE_BYTES)
            };
            let measured = lineup.case(setting, &mut part, &progress, &case, &load)?;
            report.bars.push(Bar::new(
                format!(
                    "{}, {case}: throughput as a multiple of the fastest peer",
                    plan.part
                ),
                Side::AtLeast,
                ratio_min,
                measured.ratio_to_most(plan.peers, "ops_per_s"),
            ));
        }
    }
    drop(progress);
    lineup.stop()?;
    let title = "Data in DRAM, 100 B values, 50 connections";
    draw(setting, report, &part, title, "ops_per_s");
    report.parts.push(part);
    Ok(())
}
