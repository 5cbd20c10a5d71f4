//! Row `e`: bytes written to the SSD for each byte updated, in the steady state of an SSD that is half and four fifths full.
//!
//! Values of 1 KiB, updated at random, async. An SSD of S bytes is *x % full* when the entries of all keys, with headers and
//! padding, take x % of S, where S is what the pool was given as `--ssd`: what it keeps back for itself makes it no emptier. It
//! is driven until three times its size was written, and only then measured. Checkpoints and everything else count, as the
//! server counts them and as /proc/diskstats does. Never takes a figure from before the cleaner had to work.

use crate::load::{KEY_BYTES, KeyChoice, Load, Until};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, Summary};
use crate::rounds::{drive, fill, round, spec};
use crate::server::{Peer, Server};
use crate::{Setting, stop};
use anyhow::{Result, bail};

const VALUE_BYTES: usize = 1 << 10;
const SSD_BYTES: u64 = 1 << 30;
const SSD_BYTES_MIN: u64 = 256 << 20;
/// DRAM to SSD as in row `b`.
const DRAM_DIVISOR: u64 = 16;
const DRAM_BYTES_MIN: u64 = 32 << 20;
/// Written before anything is measured, in sizes of the SSD, and in how many steps at most that must be reached.
const WARM_SIZES: u64 = 3;
const WARM_STEPS_MAX: u64 = 100;
/// Rounds are of this many updates of each key, so that checkpoints come in each.
const UPDATES_PER_KEY: f64 = 0.25;

struct Case {
    name: &'static str,
    choice: KeyChoice,
    full_percent: u64,
    bytes_max: f64,
}

const CASES: &[Case] = &[
    Case {
        name: "uniform, 50 % full",
        choice: KeyChoice::Uniform,
        full_percent: 50,
        bytes_max: 1.5,
    },
    Case {
        name: "uniform, 80 % full",
        choice: KeyChoice::Uniform,
        full_percent: 80,
        bytes_max: 3.1,
    },
    Case {
        name: "Zipf 0.99, 80 % full",
        choice: KeyChoice::Zipf { theta: 0.99 },
        full_percent: 80,
        bytes_max: 2.0,
    },
];

const COLUMNS: &[&str] = &[
    "device_write_bytes_per_updated_byte",
    "moved_bytes_per_updated_byte",
    "image_bytes_per_updated_byte",
    "disk_write_bytes_per_set_byte",
    "ops_per_s",
    "latency_p99_us",
    "ssd_full_share",
    "ssd_counted_live_share",
    "checkpoints",
    "segments_cleaned",
];

/// Runs the row.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let ssd_bytes = (SSD_BYTES / setting.options.scale_divisor).max(SSD_BYTES_MIN);
    let dram_bytes = (ssd_bytes / DRAM_DIVISOR).max(DRAM_BYTES_MIN);
    let title = format!(
        "SETs of {VALUE_BYTES} B, async, SSD of {} MiB, DRAM cap {} MiB, after {WARM_SIZES} sizes of the SSD were written",
        ssd_bytes >> 20,
        dram_bytes >> 20
    );
    let mut part = Part::new("e", &title, COLUMNS);
    let progress = Progress::new(CASES.len() as u64 * (2 + u64::from(setting.options.repeats)));
    for case in CASES {
        let name = format!("e-{}-{}", case.full_percent, kind(case.choice));
        let spec = spec(setting, &name, Peer::Terrace, dram_bytes, ssd_bytes);
        let mut server = Server::start_ready(&spec, None)?;
        let samples = measure(setting, &progress, &mut server, case, ssd_bytes)?;
        server.stop()?;
        // The next pool needs the room.
        std::fs::remove_dir_all(&spec.dir)?;
        let measured = Summary::of(samples.of("device_write_bytes_per_updated_byte"));
        report.bars.push(Bar::new(
            format!("e, {}: written for each byte updated", case.name),
            Side::AtMost,
            case.bytes_max,
            measured.map(|s| s.median),
        ));
        part.rows
            .push(Row::measured(case.name, Peer::Terrace.name(), &samples));
    }
    drop(progress);
    let title = "Bytes written to the SSD for each byte updated";
    crate::rounds::draw(setting, report, &part, title, COLUMNS[0]);
    report.parts.push(part);
    Ok(())
}

fn kind(choice: KeyChoice) -> &'static str {
    match choice {
        KeyChoice::Zipf { .. } => "zipf",
        _ => "uniform",
    }
}

fn measure(
    setting: &Setting,
    progress: &Progress,
    server: &mut Server,
    case: &Case,
    ssd_bytes: u64,
) -> Result<Samples> {
    let entry_bytes = terrace_log::entry::entry_bytes(KEY_BYTES, VALUE_BYTES, false, false) as u64;
    let keys = ssd_bytes * case.full_percent / 100 / entry_bytes;
    progress.step(format!("{}: loading", case.name));
    fill(server, keys, VALUE_BYTES)?;
    let load = Load {
        choice: case.choice,
        get_percent: 0,
        until: Until::Requests((keys as f64 * UPDATES_PER_KEY) as u64),
        seed: 500,
        ..Load::of(keys, VALUE_BYTES)
    };
    progress.step(format!("{}: to the steady state", case.name));
    warm(server, &load, ssd_bytes)?;
    let mut samples = Samples::default();
    for repeat in 0..setting.options.repeats {
        progress.step(format!("{}: measuring", case.name));
        let load = Load {
            seed: load.seed + WARM_STEPS_MAX + u64::from(repeat),
            ..load
        };
        round(server, &load, setting, &mut samples)?;
        let live_bytes = server.info()?.get("ssd_live_bytes").copied();
        samples.add(
            "ssd_full_share",
            (keys * entry_bytes) as f64 / ssd_bytes as f64,
        );
        samples.add(
            "ssd_counted_live_share",
            live_bytes.map(|bytes| bytes / ssd_bytes as f64),
        );
    }
    Ok(samples)
}

/// Drives until the SSD was written [`WARM_SIZES`] times since it was loaded.
fn warm(server: &mut Server, load: &Load, ssd_bytes: u64) -> Result<()> {
    let written = |server: &Server| {
        let info = server.info()?;
        match info.get("device_write_bytes") {
            Some(bytes) => Ok(*bytes),
            None => bail!("INFO lacks device_write_bytes"),
        }
    };
    let loaded = written(server)?;
    for step in 0..WARM_STEPS_MAX {
        stop::check()?;
        let load = Load {
            seed: load.seed + step,
            ..*load
        };
        drive(server, &load, "to the steady state")?;
        if written(server)? - loaded >= (WARM_SIZES * ssd_bytes) as f64 {
            return Ok(());
        }
    }
    bail!("the SSD was not written {WARM_SIZES} times in {WARM_STEPS_MAX} steps of updates")
}
