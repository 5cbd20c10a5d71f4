//! Part `cap`: 2 GiB of 1 KiB values over a DRAM cap of 256 MiB, each server in a cgroup of cap + 32 MiB, beside Redis on swap.
//!
//! Zipf 0.99 and uniform, 95 % GET. Ours may not swap at all; Redis has a swap file on the same disk. Each server is loaded once
//! and driven a while before its first round of each distribution, so that both have settled on what is hot. At the end the
//! disk's own limit is measured at the queue depth that ours really reached.

use super::{
    CONNECTIONS, LoadedPool, cgroup_or_note, fill, plot_groups, push_rows, ratio, round_steps,
    rounds, samples_of, spec,
};
use crate::load::{KeyChoice, Load, Until};
use crate::machine::LOAD_CPU;
use crate::progress::Progress;
use crate::report::plot::{self, Frame};
use crate::report::{Bar, Part, Report, Row, Samples, Side, Summary};
use crate::server::{Peer, Server};
use crate::swap::SwapFile;
use crate::{Setting, device};
use anyhow::{Context, Result};

/// 2 GiB of values of 1 KiB.
pub(super) const KEYS: u64 = 2 << 20;
pub(super) const VALUE_BYTES: usize = 1 << 10;
pub(super) const CAP_BYTES: u64 = 256 << 20;
/// What a cgroup may hold above the cap: text, stacks, the kernel's own.
pub(super) const CGROUP_SLACK_BYTES: u64 = 32 << 20;
/// Twice the data, so that the cleaner's work is that of a half-full SSD; it stands in the record's command line.
pub(super) const SSD_BYTES: u64 = 4 << 30;
const SWAP_BYTES: u64 = 5 << 30;
const GET_PERCENT: u32 = 95;
const ZIPF_THETA: f64 = 0.99;
/// Driving before the first round of a distribution, in round lengths.
const SETTLE_ROUNDS: f64 = 3.0;
/// Bars.
const RATIO_MIN: f64 = 3.0;
const READS_PER_MISS_MAX: f64 = 1.02;

const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "device_reads_per_miss",
    "misses_per_get",
    "device_write_bytes_per_updated_byte",
    "disk_write_bytes_per_set_byte",
    "disk_reads_per_op",
    "disk_queue_depth",
    "cgroup_peak_bytes",
    "cgroup_oom_kills",
];

/// The swap file must outlive the server that swaps on it.
struct Stage {
    servers: Vec<Server>,
    missing: Vec<(Peer, String)>,
    swap: Option<SwapFile>,
}

pub fn run(setting: &Setting, report: &mut Report) -> Result<LoadedPool> {
    let divisor = setting.options.scale_divisor;
    let (keys, cap_bytes) = ((KEYS / divisor).max(1_000), CAP_BYTES / divisor);
    let limit_bytes = cap_bytes + CGROUP_SLACK_BYTES;
    let title = format!(
        "{keys} keys of {VALUE_BYTES} B over a cap of {} MiB in a cgroup of {} MiB, {GET_PERCENT} % GET, {CONNECTIONS} connections, 1 in flight",
        cap_bytes >> 20,
        limit_bytes >> 20
    );
    let mut part = Part::new("cap", &title, COLUMNS);
    let mut stage = set_up(setting, &mut part, cap_bytes, limit_bytes)?;
    part.notes.extend(
        stage
            .servers
            .iter()
            .map(|s| format!("{}: `{}`", s.peer().name(), s.argv())),
    );
    let progress = Progress::new(2 + 2 * 2 + round_steps(setting, stage.servers.len(), 2));
    for server in &mut stage.servers {
        progress.step(format!("loading {}", server.peer().name()));
        let outcome = fill(server, keys, VALUE_BYTES)?;
        part.notes.push(format!(
            "{}: loaded at {:.0} keys/s",
            server.peer().name(),
            outcome.ops_per_s()
        ));
    }
    for (name, choice) in [
        ("Zipf 0.99", KeyChoice::Zipf { theta: ZIPF_THETA }),
        ("uniform", KeyChoice::Uniform),
    ] {
        distribution(
            setting,
            report,
            &mut part,
            &mut stage,
            &progress,
            name,
            load(setting, keys, choice),
        )?;
    }
    drop(progress);
    let dir = spec(setting, "cap", Peer::Terrace, 0, 0).dir;
    take_down(stage, report, &mut part, limit_bytes)?;
    push_device_row(setting, &mut part);
    draw(setting, report, &part);
    report.parts.push(part);
    Ok(LoadedPool { dir })
}

fn load(setting: &Setting, keys: u64, choice: KeyChoice) -> Load {
    Load {
        connections: CONNECTIONS,
        in_flight: 1,
        keys,
        choice,
        get_percent: GET_PERCENT,
        value_bytes: VALUE_BYTES,
        until: Until::Seconds(setting.options.seconds),
        ops_per_s_max: None,
        cpu: Some(LOAD_CPU),
        seed: 200,
    }
}

fn set_up(setting: &Setting, part: &mut Part, cap_bytes: u64, limit_bytes: u64) -> Result<Stage> {
    let divisor = setting.options.scale_divisor;
    let mut stage = Stage {
        servers: Vec::new(),
        missing: Vec::new(),
        swap: None,
    };
    let group = cgroup_or_note(part, "terrace", limit_bytes, false);
    let ours = spec(
        setting,
        "cap",
        Peer::Terrace,
        cap_bytes,
        (SSD_BYTES / divisor).max(64 << 20),
    );
    stage.servers.push(Server::start_ready(&ours, group)?);
    match redis_on_swap(setting, limit_bytes, SWAP_BYTES / divisor) {
        Ok((server, swap)) => {
            stage.servers.push(server);
            stage.swap = Some(swap);
        }
        Err(e) => stage.missing.push((Peer::Redis, format!("not run: {e:#}"))),
    }
    Ok(stage)
}

fn redis_on_swap(
    setting: &Setting,
    limit_bytes: u64,
    swap_bytes: u64,
) -> Result<(Server, SwapFile)> {
    if let Some(why) = Peer::Redis.missing() {
        anyhow::bail!("{why}");
    }
    // Without a group it would not swap, and without swap it would be killed: each is useless alone.
    let group = crate::cgroup::Cgroup::new("redis", limit_bytes, true)?;
    let swap = SwapFile::new(&setting.work_dir.join("swapfile"), swap_bytes)
        .context("a swap file for Redis")?;
    let server = Server::start_ready(&spec(setting, "cap", Peer::Redis, 0, 0), Some(group))?;
    Ok((server, swap))
}

fn distribution(
    setting: &Setting,
    report: &mut Report,
    part: &mut Part,
    stage: &mut Stage,
    progress: &Progress,
    case: &str,
    load: Load,
) -> Result<()> {
    for server in &mut stage.servers {
        progress.step(format!("{case}: settling {}", server.peer().name()));
        let settle = Load {
            until: Until::Seconds(setting.options.seconds * SETTLE_ROUNDS),
            seed: 9,
            ..load
        };
        super::drive(server, &settle, "settling")?;
    }
    let measured = rounds(&mut stage.servers, &load, setting, progress, case)?;
    push_rows(part, case, &measured, &stage.missing);
    let name = format!("cap, {case}: throughput as a multiple of Redis on swap");
    report.bars.push(Bar::new(
        name,
        Side::AtLeast,
        RATIO_MIN,
        ratio(&measured, Peer::Redis, "ops_per_s"),
    ));
    let ours = samples_of(&measured, Peer::Terrace)
        .and_then(|s| Summary::of(s.of("device_reads_per_miss")));
    let name = format!("cap, {case}: device reads a miss");
    report.bars.push(Bar::new(
        name,
        Side::AtMost,
        READS_PER_MISS_MAX,
        ours.map(|s| s.median),
    ));
    Ok(())
}

/// Reads the peaks, stops the servers, then swaps off.
fn take_down(stage: Stage, report: &mut Report, part: &mut Part, limit_bytes: u64) -> Result<()> {
    let Stage { servers, swap, .. } = stage;
    for server in &servers {
        let usage = server.usage();
        let peak = usage.and_then(|u| u.peak_bytes).map(|b| b as f64);
        let kills = usage.and_then(|u| u.oom_kills).map(|n| n as f64);
        let hits = usage.and_then(|u| u.limit_hits).map(|n| n as f64);
        let figures = [
            ("cgroup_peak_bytes", peak),
            ("cgroup_oom_kills", kills),
            ("cgroup_limit_hits", hits),
        ];
        // The group knows one figure for the whole part; it stands in each row of its server.
        for row in part
            .rows
            .iter_mut()
            .filter(|row| row.peer == server.peer().name())
        {
            for (name, figure) in figures {
                let summary = figure.and_then(|f| Summary::of(&[f]));
                row.figures.extend(summary.map(|s| (name.to_owned(), s)));
            }
        }
        if server.peer() == Peer::Terrace {
            report.bars.push(Bar::new(
                "cap: cgroup peak, bytes",
                Side::AtMost,
                limit_bytes as f64,
                peak,
            ));
            report
                .bars
                .push(Bar::new("cap: OOM kills", Side::AtMost, 0.0, kills));
        }
    }
    for server in servers {
        super::dram::stop(server)?;
    }
    drop(swap);
    Ok(())
}

/// What the disk itself can do at the queue depth that ours reached with uniform keys.
fn push_device_row(setting: &Setting, part: &mut Part) {
    let ours = part
        .rows
        .iter()
        .rev()
        .find(|row| row.peer == Peer::Terrace.name());
    let depth = ours
        .and_then(|row| row.figures.get("disk_queue_depth"))
        .map_or(1.0, |s| s.median);
    let depth = (depth.round() as u32).clamp(1, device::QUEUE_DEPTH_MAX);
    let case = format!("disk alone, 4 KiB reads, queue depth {depth}");
    part.rows.push(match device::random_reads(setting, depth) {
        Ok(reads) => {
            let mut samples = Samples::default();
            samples.round();
            samples.add("ops_per_s", reads.ops_per_s);
            samples.add("latency_p50_us", reads.latency_p50_us);
            samples.add("latency_p99_us", reads.latency_p99_us);
            Row::measured(&case, "disk", &samples)
        }
        Err(e) => Row::missing(&case, "disk", &format!("{e:#}")),
    });
}

fn draw(setting: &Setting, report: &mut Report, part: &Part) {
    let divisor = setting.options.scale_divisor;
    let (data_mib, cap_mib) = (
        (KEYS * VALUE_BYTES as u64 / divisor) >> 20,
        (CAP_BYTES / divisor) >> 20,
    );
    let title =
        format!("{data_mib} MiB of 1 KiB values over {cap_mib} MiB of DRAM, {GET_PERCENT} % GET");
    let mut groups = plot_groups(part, "ops_per_s");
    groups.retain(|g| !g.label.starts_with("disk"));
    let frame = Frame {
        title: &title,
        x: "",
        y: "operations/s",
        limit: None,
    };
    report.plot(&setting.out_dir, "cap.png", |path| {
        plot::columns(path, &frame, &groups)
    });
    let mut groups = plot_groups(part, "latency_p99_us");
    groups.retain(|g| !g.label.starts_with("disk"));
    let frame = Frame {
        title: "Latency over the cap, 99th percentile",
        x: "",
        y: "\u{b5}s",
        limit: None,
    };
    report.plot(&setting.out_dir, "cap-latency.png", |path| {
        plot::columns(path, &frame, &groups)
    });
}
