//! Row `g`: throughput while the data grows from half the DRAM to sixteen times of it, by doubling.
//!
//! Zipf 0.99, 95 % GET, 50 connections, 1 KiB values, one pool all the way. A cliff would show as a large step between two
//! neighbours. Never judges the ends against each other: how much slower the last size is depends on the disk.

use crate::Setting;
use crate::load::{Load, Until, ZIPF};
use crate::progress::Progress;
use crate::report::plot::{self, Frame, Line};
use crate::report::{Bar, Part, Report, Row, Samples, Side, Summary};
use crate::rounds::{CGROUP_SLACK_BYTES, cgroup_or_note, drive, fill_from, round, spec};
use crate::server::{Peer, Server};
use anyhow::Result;

const VALUE_BYTES: usize = 1 << 10;
const CAP_BYTES: u64 = 128 << 20;
const CAP_BYTES_MIN: u64 = 32 << 20;
/// Twice the largest data.
const SSD_FACTOR: u64 = 32;
/// Data in halves of the cap.
const HALVES: &[u64] = &[1, 2, 4, 8, 16, 32];
const GET_PERCENT: u32 = 95;
const SETTLE_ROUNDS: f64 = 2.0;
/// The largest step between neighbours.
const STEP_MAX: f64 = 2.5;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "latency_p999_us",
    "misses_per_get",
    "step_from_the_size_before",
];

/// Runs the row.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let cap_bytes = (CAP_BYTES / setting.options.scale_divisor).max(CAP_BYTES_MIN);
    let title = format!(
        "values of {VALUE_BYTES} B from 0.5 to 16 times a cap of {} MiB, Zipf 0.99, {GET_PERCENT} % GET, {} connections, 1 in flight",
        cap_bytes >> 20,
        crate::load::CONNECTIONS
    );
    let mut part = Part::new("g", &title, COLUMNS);
    let spec = spec(
        setting,
        "g",
        Peer::Terrace,
        cap_bytes,
        SSD_FACTOR * cap_bytes,
    );
    let group = cgroup_or_note(&mut part, "growth", cap_bytes + CGROUP_SLACK_BYTES, false);
    let mut server = Server::start_ready(&spec, group)?;
    let progress = Progress::new(HALVES.len() as u64);
    let (mut loaded, mut points) = (0, Vec::<(f64, f64)>::new());
    let mut largest_step = None;
    for halves in HALVES {
        let times = *halves as f64 / 2.0;
        progress.step(format!("{times} times the DRAM"));
        let keys = halves * cap_bytes / 2 / VALUE_BYTES as u64;
        fill_from(&mut server, loaded, keys, VALUE_BYTES)?;
        loaded = keys;
        let samples = size(setting, &mut server, keys)?;
        let case = format!("data {times} \u{d7} DRAM");
        let mut row = Row::measured(&case, Peer::Terrace.name(), &samples);
        let median = Summary::of(samples.of("ops_per_s")).map_or(0.0, |s| s.median);
        if let Some((_, before)) = points.last() {
            let step = (before / median).max(median / before);
            let summary = Summary::of(&[step]);
            row.figures
                .extend(summary.map(|s| ("step_from_the_size_before".to_owned(), s)));
            largest_step = Some(step.max(largest_step.unwrap_or(0.0)));
        }
        points.push((times, median));
        part.rows.push(row);
    }
    drop(progress);
    server.stop()?;
    report.bars.push(Bar::new(
        "g: largest step of throughput between neighbours",
        Side::AtMost,
        STEP_MAX,
        largest_step,
    ));
    let frame = Frame {
        title: "Throughput while data outgrows DRAM, Zipf 0.99, 95 % GET",
        x: "data / DRAM",
        y: "operations/s",
        limit: None,
    };
    let line = Line {
        series: "terrace".into(),
        points,
    };
    report.plot(&setting.out_dir, "g-growth.png", |path| {
        plot::lines(path, &frame, &[line])
    });
    report.parts.push(part);
    Ok(())
}

fn size(setting: &Setting, server: &mut Server, keys: u64) -> Result<Samples> {
    let load = Load {
        choice: ZIPF,
        get_percent: GET_PERCENT,
        until: Until::Seconds(setting.options.seconds),
        seed: 600,
        ..Load::of(keys, VALUE_BYTES)
    };
    let settle = Load {
        until: Until::Seconds(setting.options.seconds * SETTLE_ROUNDS),
        seed: 9,
        ..load
    };
    drive(server, &settle, "settling")?;
    let mut samples = Samples::default();
    for repeat in 0..setting.options.repeats {
        let seed = load.seed + u64::from(repeat);
        round(server, &Load { seed, ..load }, setting, &mut samples)?;
    }
    Ok(samples)
}
