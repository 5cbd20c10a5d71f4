//! `bench device`: what the disk under the work directory can do, whoever asks.
//!
//! Random 4 KiB reads by queue depth and the latency of making 4 KiB durable, with O_DIRECT: by fio where it is installed, as a
//! yardstick that is not ours, else by our own media room; the record says which. The file is written before it is read, since
//! blocks that were never written answer without the disk. Never judges: the disk has no bars.

mod own;

use crate::machine::SECTOR_BYTES;
use crate::progress::Progress;
use crate::report::plot::{self, Frame, Line};
use crate::report::{Part, Report, Row, Samples};
use crate::{Setting, machine, process, stop};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use terrace_media::BLOCK_BYTES;

const QUEUE_DEPTHS: &[u32] = &[1, 4, 16, 32, 64];
/// Largest queue depth asked of the disk.
pub const QUEUE_DEPTH_MAX: u32 = 256;
/// With fewer in flight a CPU is never the limit.
const EACH_CPU_DEPTH: u32 = 8;
const FILE_MIB: u64 = 1 << 10;
/// The file may not shrink below this when scaled down.
const FILE_MIB_MIN: u64 = 16;
const COLUMNS: &[&str] = &["ops_per_s", "latency_p50_us", "latency_p99_us"];

/// What fio tells of one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Operations each second.
    pub ops_per_s: f64,
    /// Median of the completion latency.
    pub latency_p50_us: f64,
    /// Its 99th percentile.
    pub latency_p99_us: f64,
}

/// Runs the bench.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let by = yardstick();
    let title = format!(
        "4 KiB with O_DIRECT on a file of {} MiB, by {by}",
        file_mib(setting)
    );
    let mut part = Part::new("device", &title, COLUMNS);
    let repeats = u64::from(setting.options.repeats);
    let progress = Progress::new((QUEUE_DEPTHS.len() as u64 + 1) * repeats);
    let mut reads: Vec<Samples> = QUEUE_DEPTHS.iter().map(|_| Samples::default()).collect();
    let mut writes = Samples::default();
    for _ in 0..repeats {
        for (depth, samples) in QUEUE_DEPTHS.iter().zip(&mut reads) {
            progress.step(format!("random read, queue depth {depth}"));
            add(samples, random_reads(setting, file_mib(setting), *depth)?);
        }
        progress.step("durable writes");
        add(&mut writes, durable_writes(setting)?);
    }
    drop(progress);
    for (depth, samples) in QUEUE_DEPTHS.iter().zip(&reads) {
        part.rows.push(Row::measured(
            &format!("random read, queue depth {depth}"),
            "disk",
            samples,
        ));
    }
    part.rows
        .push(Row::measured("write and fdatasync", "disk", &writes));
    let median =
        |samples: &Samples| crate::report::Summary::of(samples.of("ops_per_s")).map(|s| s.median);
    let points = QUEUE_DEPTHS
        .iter()
        .zip(&reads)
        .filter_map(|(depth, s)| Some((f64::from(*depth), median(s)?)))
        .collect();
    let frame = Frame {
        title: "Random 4 KiB reads of the disk",
        x: "queue depth",
        y: "reads/s",
        limit: None,
    };
    let line = Line {
        series: "disk".into(),
        points,
    };
    report.plot(&setting.out_dir, "device.png", |path| {
        plot::lines(path, &frame, &[line])
    });
    report.parts.push(part);
    Ok(())
}

fn add(samples: &mut Samples, figures: Figures) {
    samples.round();
    samples.add("ops_per_s", figures.ops_per_s);
    samples.add("latency_p50_us", figures.latency_p50_us);
    samples.add("latency_p99_us", figures.latency_p99_us);
}

fn has_fio() -> bool {
    process::installed("fio")
}

fn file(setting: &Setting) -> PathBuf {
    setting.work_dir.join("device-file")
}

fn file_mib(setting: &Setting) -> u64 {
    (FILE_MIB / setting.options.scale_divisor).max(FILE_MIB_MIN)
}

/// The name of what measures the disk here.
pub fn yardstick() -> &'static str {
    if has_fio() {
        "fio"
    } else {
        "our own media room (fio is not installed)"
    }
}

/// Random 4 KiB reads of a file of `mib`, with `depth` of them in flight, for one round's length, from the server's CPU.
pub fn random_reads(setting: &Setting, mib: u64, depth: u32) -> Result<Figures> {
    let reads = Reads {
        bytes: BLOCK_BYTES as u64,
        depth,
        cpus: 1,
    };
    random_reads_from(setting, mib, reads)
}

/// What the disk is asked for.
#[derive(Clone, Copy)]
pub struct Reads {
    /// Of each read; rounded to what disks allow.
    pub bytes: u64,
    /// In flight, all together.
    pub depth: u32,
    /// From so many of the first CPUs: where one alone would be the limit.
    pub cpus: u32,
}

impl Reads {
    fn whole_bytes(self) -> u64 {
        // Reads that are shorter than a block on the average say that the disk takes sectors.
        let unit = match self.bytes {
            0..3584 => SECTOR_BYTES,
            _ => BLOCK_BYTES as u64,
        };
        ((self.bytes + unit / 2) / unit * unit).max(unit)
    }
}

/// Random reads of a file of `mib` for one round's length. Without fio of 4 KiB and from one CPU.
pub fn random_reads_from(setting: &Setting, mib: u64, reads: Reads) -> Result<Figures> {
    let Reads { depth, cpus, .. } = reads;
    if !has_fio() {
        let (bytes, depth) = (mib << 20, depth.clamp(1, QUEUE_DEPTH_MAX));
        return own::random_reads(&file(setting), bytes, depth, setting.options.seconds);
    }
    // Each has so many at least: of a few in flight one CPU drives all, and rounding up adds few.
    let cpus = cpus.clamp(1, (depth / EACH_CPU_DEPTH).max(1));
    let depth = depth.div_ceil(cpus).clamp(1, QUEUE_DEPTH_MAX);
    write_file(setting, mib)?;
    let bs = format!("--bs={}", reads.whole_bytes());
    let depth = format!("--iodepth={depth}");
    let jobs = format!("--numjobs={cpus}");
    let all = format!("--cpus_allowed=0-{}", cpus - 1);
    let on: &[&str] = match cpus {
        1 => &[],
        _ => &[
            &jobs,
            &all,
            "--cpus_allowed_policy=split",
            "--group_reporting",
        ],
    };
    fio(
        setting,
        mib,
        &[
            &[
                "--rw=randread",
                &bs,
                "--ioengine=io_uring",
                &depth,
                "--time_based",
            ],
            on,
        ]
        .concat(),
        "read",
    )
}

/// 4 KiB writes, each made durable before the next, into blocks that were written before.
fn durable_writes(setting: &Setting) -> Result<Figures> {
    if !has_fio() {
        let bytes = file_mib(setting) << 20;
        return own::durable_writes(&file(setting), bytes, setting.options.seconds);
    }
    write_file(setting, file_mib(setting))?;
    fio(
        setting,
        file_mib(setting),
        &[
            "--rw=write",
            "--bs=4k",
            "--ioengine=psync",
            "--fdatasync=1",
            "--overwrite=1",
            "--time_based",
        ],
        "sync+write",
    )
}

/// Writes the whole file of `mib` that is read, once a run. Without fio there is nothing to do yet.
pub fn write_file(setting: &Setting, mib: u64) -> Result<()> {
    let path = file(setting);
    if !has_fio() {
        return Ok(());
    }
    if path.metadata().is_ok_and(|m| m.len() == mib << 20) {
        return Ok(());
    }
    let size = format!("--size={mib}m");
    let name = format!("--filename={}", path.display());
    let write = [
        "fio",
        "--name=write",
        &name,
        &size,
        "--rw=write",
        "--bs=1m",
        "--direct=1",
        "--ioengine=psync",
        "--end_fsync=1",
    ];
    process::run(&write)
        .context("writing the file that is read later")
        .map(drop)
}

fn fio(setting: &Setting, mib: u64, job: &[&str], kind: &str) -> Result<Figures> {
    stop::check()?;
    let name = format!("--filename={}", file(setting).display());
    let size = format!("--size={mib}m");
    let runtime = format!("--runtime={}ms", (setting.options.seconds * 1e3) as u64);
    let cpu = format!("--cpus_allowed={}", machine::SERVER_CPU);
    let common = [
        "fio",
        "--name=job",
        &name,
        &size,
        &runtime,
        &cpu,
        "--direct=1",
        "--output-format=json",
    ];
    let argv: Vec<&str> = common.iter().chain(job).copied().collect();
    let json: Value = serde_json::from_str(&process::run(&argv)?).context("fio's JSON")?;
    figures(&json["jobs"][0], kind)
        .with_context(|| format!("fio's JSON lacks the figures of `{kind}`"))
}

/// `kind` is `read`, or `sync+write`: one durable write takes the write and the sync, so its percentiles are their sum, an upper
/// bound that is close where one of them dominates.
fn figures(job: &Value, kind: &str) -> Option<Figures> {
    let percentile_us = |latency: &Value, p: &str| Some(latency["percentile"][p].as_f64()? / 1e3);
    let sum = |p: &str| match kind {
        "sync+write" => Some(
            percentile_us(&job["write"]["clat_ns"], p)? + percentile_us(&job["sync"]["lat_ns"], p)?,
        ),
        kind => percentile_us(&job[kind]["clat_ns"], p),
    };
    let rate = if kind == "sync+write" {
        &job["write"]
    } else {
        &job[kind]
    };
    Some(Figures {
        ops_per_s: rate["iops"].as_f64()?,
        latency_p50_us: sum("50.000000")?,
        latency_p99_us: sum("99.000000")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_asked_for_what_it_allows() {
        let whole = |bytes| {
            let (depth, cpus) = (1, 1);
            Reads { bytes, depth, cpus }.whole_bytes()
        };
        let asked = [0, 512, 700, 1_900, 3_500, 4_200, 7_000];
        assert_eq!(
            asked.map(whole),
            [512, 512, 512, 2_048, 3_584, 4_096, 8_192]
        );
    }

    #[test]
    fn reads_fio() {
        let job = serde_json::json!({
            "read": {"iops": 19000.5, "clat_ns": {"percentile": {"50.000000": 51000, "99.000000": 90000}}},
            "write": {"iops": 8000.0, "clat_ns": {"percentile": {"50.000000": 20000, "99.000000": 40000}}},
            "sync": {"lat_ns": {"percentile": {"50.000000": 80000, "99.000000": 160000}}},
        });
        let read = Figures {
            ops_per_s: 19000.5,
            latency_p50_us: 51.0,
            latency_p99_us: 90.0,
        };
        assert_eq!(figures(&job, "read"), Some(read));
        assert_eq!(figures(&job, "sync+write").unwrap().latency_p50_us, 100.0);
        assert_eq!(figures(&serde_json::json!({}), "read"), None);
    }
}
