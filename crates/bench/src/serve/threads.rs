//! What a second server thread brings: data in DRAM, 1 and 2 threads with as many lanes, beside memcached with as many threads.
//!
//! The servers may use all CPUs and share them with the load, so the clock tells less than `server_cpu_ns_per_op` does: what a
//! request costs when half of the keys lie in the other thread's lane (docs/adr/0004). Never judges: there is no bar.

use crate::Setting;
use crate::load::{CONNECTIONS, Load, Until};
use crate::progress::Progress;
use crate::report::{Part, Report};
use crate::rounds::{Lineup, draw, spec};
use crate::server::{Peer, Spec};
use anyhow::Result;

const KEYS: u64 = 1_000_000;
const VALUE_BYTES: usize = 100;
const DRAM_BYTES: u64 = 1 << 30;
const SSD_BYTES: u64 = 2 << 30;
const THREADS: [usize; 2] = [1, 2];
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "server_cpu_ns_per_op",
    "load_cpu_share",
];

/// Measures each number of threads in turns.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let keys = (KEYS / setting.options.scale_divisor).max(1_000);
    let title = format!(
        "{keys} keys of {VALUE_BYTES} B in DRAM, uniform, {CONNECTIONS} connections, on all CPUs"
    );
    let mut part = Part::new("threads", &title, COLUMNS);
    let mut lineups = Vec::new();
    for threads in THREADS {
        let mut lineup = Lineup::default();
        let name = format!("threads-{threads}");
        for peer in [Peer::Terrace, Peer::Memcached] {
            let spec = Spec {
                threads,
                cpu: None,
                ..spec(setting, &name, peer, DRAM_BYTES, SSD_BYTES)
            };
            lineup.add(&mut part, &spec, None)?;
        }
        lineups.push((threads, lineup));
    }
    let steps = lineups.iter().map(|(_, l)| l.steps(setting, 4)).sum();
    let progress = Progress::new(steps);
    for (_, lineup) in &mut lineups {
        lineup.fill(&mut part, &progress, keys, VALUE_BYTES)?;
    }
    for (op, get_percent) in [("GET", 100), ("SET", 0)] {
        for in_flight in [1, 16] {
            let load = Load {
                in_flight,
                get_percent,
                until: Until::Seconds(setting.options.seconds),
                seed: 900,
                ..Load::of(keys, VALUE_BYTES)
            };
            for (threads, lineup) in &mut lineups {
                let case = format!("{op}, {in_flight} in flight, threads: {threads}");
                lineup.case(setting, &mut part, &progress, &case, &load)?;
            }
        }
    }
    drop(progress);
    for (_, lineup) in lineups {
        lineup.stop()?;
    }
    let title = "1 and 2 server threads, data in DRAM";
    draw(setting, report, &part, title, "ops_per_s");
    report.parts.push(part);
    Ok(())
}
