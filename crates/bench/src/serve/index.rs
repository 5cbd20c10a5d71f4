//! Row `i`: 20 M keys of 16 B with 50 B values under a cap of 512 MiB: what the index takes, and whether the cgroup holds.
//!
//! The server is in a cgroup of cap + 32 MiB without swap, so that it cannot go over unseen: the kernel would count a hit of the
//! limit, or kill it. Then it serves a while, since connections and reads need memory too. `bench index` measures the index alone
//! at every size on the way.

use crate::Setting;
use crate::load::{Load, Until, ZIPF};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Samples, Side, Summary};
use crate::rounds::{CGROUP_SLACK_BYTES, Lineup, judge_usage, spec};
use crate::server::Peer;
use anyhow::Result;

const KEYS: u64 = 20_000_000;
const VALUE_BYTES: usize = 50;
const CAP_BYTES: u64 = 512 << 20;
const CAP_BYTES_MIN: u64 = 32 << 20;
const SSD_BYTES: u64 = 4 << 30;
const SSD_BYTES_MIN: u64 = 256 << 20;
const GET_PERCENT: u32 = 95;
const INDEX_BYTES_MAX: f64 = 12.0;
const COLUMNS: &[&str] = &[
    "index_bytes_per_key",
    "cgroup_peak_bytes",
    "cgroup_limit_hits",
    "cgroup_oom_kills",
    "ops_per_s",
    "latency_p99_us",
    "misses_per_get",
    "device_reads_per_miss",
];

/// Runs the row.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let divisor = setting.options.scale_divisor;
    let keys = (KEYS / divisor).max(1_000);
    let cap_bytes = (CAP_BYTES / divisor).max(CAP_BYTES_MIN);
    let limit_bytes = cap_bytes + CGROUP_SLACK_BYTES;
    let title = format!(
        "{keys} keys of 16 B with values of {VALUE_BYTES} B, cap {} MiB, cgroup {} MiB",
        cap_bytes >> 20,
        limit_bytes >> 20
    );
    let mut part = Part::new("i", &title, COLUMNS);
    let ssd_bytes = (SSD_BYTES / divisor).max(SSD_BYTES_MIN);
    let spec = spec(setting, "i", Peer::Terrace, cap_bytes, ssd_bytes);
    let mut lineup = Lineup::default();
    lineup.add(&mut part, &spec, Some(limit_bytes))?;
    let progress = Progress::new(lineup.steps(setting, 1));
    lineup.fill(&mut part, &progress, keys, VALUE_BYTES)?;
    let load = Load {
        choice: ZIPF,
        get_percent: GET_PERCENT,
        until: Until::Seconds(setting.options.seconds),
        seed: 800,
        ..Load::of(keys, VALUE_BYTES)
    };
    let case = "95 % GET, Zipf 0.99";
    let measured = lineup.case(setting, &mut part, &progress, case, &load)?;
    drop(progress);
    let usage = lineup.add_usage(&mut part);
    lineup.stop()?;
    let largest = |samples: &Samples| Some(Summary::of(samples.of("index_bytes_per_key"))?.max);
    report.bars.push(Bar::new(
        "i: index, B a key",
        Side::AtMost,
        INDEX_BYTES_MAX,
        measured.of(Peer::Terrace).and_then(largest),
    ));
    judge_usage(report, &part.name, limit_bytes, usage);
    report.bars.push(Bar::new(
        "i: times the cgroup met its limit",
        Side::AtMost,
        0.0,
        usage.and_then(|u| u.limit_hits).map(|n| n as f64),
    ));
    report.parts.push(part);
    Ok(())
}
