//! Parts `b`, `c`, `d` and `h`: small objects in several times the memory there is, beside swap and a mapped file.
//!
//! Each kind of memory has a process of its own in a cgroup of the same limit, loaded once; then each case is run in turns, one process
//! at a time, all others asleep. Device reads and bytes written are the disk's own counts (/proc/diskstats) over the run, whoever caused
//! them. Bars: see the constants. Never: lets two loads run at once.

use super::child::{OBJECT_BYTES, Ran};
use super::kind::Kind;
use crate::cgroup::Cgroup;
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, Summary};
use crate::swap::SwapFile;
use crate::{Setting, device, process, stop};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const ARRAY_BYTES: u64 = 4 << 30;
const LIMIT_BYTES: u64 = 512 << 20;
/// The limit may not fall below this when scaled down: a store needs some.
const LIMIT_BYTES_MIN: u64 = 128 << 20;
/// Room for what is swapped out, beyond the array.
const SWAP_SPARE_BYTES: u64 = 1 << 30;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "device_reads_an_op",
    "written_bytes_an_op",
    "peak_mib",
];
const SECTOR_BYTES: u64 = 512;

/// One load.
struct Case {
    name: &'static str,
    distribution: &'static str,
    writes_percent: u32,
    threads: u32,
}

const fn case(
    name: &'static str,
    distribution: &'static str,
    writes_percent: u32,
    threads: u32,
) -> Case {
    Case {
        name,
        distribution,
        writes_percent,
        threads,
    }
}

const ZIPF_READS: &str = "Zipf, reads, 16 threads";
const ZIPF_HALF: &str = "Zipf, 50/50, 16 threads";
const ZIPF_WRITES: &str = "Zipf, writes, 16 threads";
const UNIFORM_READS: &str = "uniform, reads, 16 threads";
const UNIFORM_WRITES: &str = "uniform, writes, 16 threads";

const CASES: &[Case] = &[
    case(ZIPF_READS, "zipf", 0, 16),
    case(ZIPF_HALF, "zipf", 50, 16),
    case(UNIFORM_READS, "uniform", 0, 16),
    case(ZIPF_WRITES, "zipf", 100, 16),
    case(UNIFORM_WRITES, "uniform", 100, 16),
    case("Zipf, reads, 2 threads", "zipf", 0, 2),
    case("Zipf, reads, 1 thread", "zipf", 0, 1),
];

/// Kind, case, at least so much of the better peer's rate.
const RATE_BARS: &[(Kind, &str, f64)] = &[
    (Kind::Handles, ZIPF_READS, 1.6),
    (Kind::Opp, ZIPF_READS, 1.5),
    (Kind::Opp, ZIPF_HALF, 1.5),
    (Kind::Opp, ZIPF_WRITES, 2.0),
    (Kind::Opp, UNIFORM_WRITES, 1.4),
];
/// Device reads of an access, of the better peer's.
const READS_BAR: f64 = 0.65;
/// Of the device's random reads at the depth that the threads and queues come to.
const DEVICE_BARS: &[(Kind, f64)] = &[(Kind::Handles, 0.92), (Kind::Opp, 0.85)];
const DEVICE_DEPTH: u32 = 64;
/// Bytes written, of swap's.
const WRITTEN_BAR: f64 = 1.0 / 12.0;

/// One kind's process.
struct Loaded {
    kind: Kind,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    // Dropped after the child is gone.
    cgroup: Cgroup,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Loaded {
    fn start(setting: &Setting, kind: Kind, limit_bytes: u64, objects: u64) -> Result<Loaded> {
        let cgroup = Cgroup::new(kind.name(), limit_bytes, kind == Kind::Swapped)?;
        let dir = setting.work_dir.join(kind.name());
        std::fs::create_dir_all(&dir)?;
        let (exe, dir) = (setting.exe.display().to_string(), dir.display().to_string());
        let (limit, count) = (limit_bytes.to_string(), objects.to_string());
        let argv = [
            &exe,
            "bench-memory-child",
            kind.name(),
            &dir,
            &limit,
            &count,
        ];
        let mut child = process::command(&argv, Some(&cgroup), None)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", argv.join(" ")))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut loaded = Loaded {
            kind,
            child,
            input: input.context("no pipe to the child")?,
            output: BufReader::new(output.context("no pipe from the child")?),
            cgroup,
        };
        loaded.line().map(|_| loaded)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let ended = self.child.wait()?;
            bail!(
                "the load on {} ended early ({ended}): its limit may be too low",
                self.kind.name()
            );
        }
        stop::check()?;
        Ok(line)
    }

    fn play(&mut self, case: &Case, seconds: f64) -> Result<Ran> {
        let Case {
            distribution,
            writes_percent,
            threads,
            ..
        } = case;
        writeln!(
            self.input,
            "{distribution} {writes_percent} {threads} {seconds}"
        )?;
        Ok(serde_json::from_str(&self.line()?)?)
    }
}

/// Reads completed and bytes written of the disk that `dir` is on.
fn disk_counts(dir: &Path) -> Result<(u64, u64)> {
    let dev = std::fs::metadata(dir)?.dev();
    let (major, minor) = (
        rustix::fs::major(dev).to_string(),
        rustix::fs::minor(dev).to_string(),
    );
    let text = std::fs::read_to_string("/proc/diskstats").context("reading /proc/diskstats")?;
    let line = text
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>());
    let mut mine = line.filter(|w| w.len() > 9 && w[0] == major && w[1] == minor);
    let words = mine
        .next()
        .context("the work directory is on no disk that /proc/diskstats has")?;
    Ok((words[3].parse()?, words[9].parse::<u64>()? * SECTOR_BYTES))
}

/// Runs the parts.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let scale = setting.options.scale_divisor;
    let limit_bytes = (LIMIT_BYTES / scale).max(LIMIT_BYTES_MIN);
    let array_bytes = (ARRAY_BYTES / scale).max(4 * limit_bytes);
    let objects = array_bytes / OBJECT_BYTES;
    let title = format!(
        "{objects} objects of {OBJECT_BYTES} B, cgroup of {} MiB each; Zipf 0.99 over scattered objects",
        limit_bytes >> 20
    );
    let mut part = Part::new("b", &title, COLUMNS);
    let swap = SwapFile::new(
        &setting.work_dir.join("swapped-to"),
        array_bytes + SWAP_SPARE_BYTES,
    )?;
    let repeats = u64::from(setting.options.repeats);
    let steps = Kind::ALL.len() as u64 + repeats * (CASES.len() * Kind::ALL.len()) as u64;
    let progress = Progress::new(steps);
    let mut loaded = Vec::new();
    for kind in Kind::ALL {
        progress.step(format!("loading {}", kind.name()));
        loaded.push(Loaded::start(setting, *kind, limit_bytes, objects)?);
    }
    let mut samples: Vec<Vec<Samples>> = CASES
        .iter()
        .map(|_| loaded.iter().map(|_| Samples::default()).collect())
        .collect();
    for _ in 0..repeats {
        for (case, row) in CASES.iter().zip(&mut samples) {
            for (one, samples) in loaded.iter_mut().zip(row) {
                progress.step(format!("{}, {}", case.name, one.kind.name()));
                measure(setting, one, case, samples)?;
            }
        }
    }
    let device = device::random_reads(setting, array_bytes >> 20, DEVICE_DEPTH)?.ops_per_s;
    part.notes.push(format!("Device alone in the same run: {device:.0} random 4 KiB reads a second at depth {DEVICE_DEPTH}."));
    drop(progress);
    for (case, row) in CASES.iter().zip(&samples) {
        for (kind, samples) in Kind::ALL.iter().zip(row) {
            part.rows
                .push(Row::measured(case.name, kind.name(), samples));
        }
    }
    let table = Table(&samples);
    judge(&table, device, report);
    for one in &loaded {
        let peak = one.cgroup.usage().peak_bytes.map(|b| b as f64);
        if !one.kind.is_peer() {
            let name = format!("h, {}: peak of the cgroup over its limit", one.kind.name());
            let share = peak.map(|p| p / limit_bytes as f64);
            report.bars.push(Bar::new(name, Side::AtMost, 1.0, share));
        }
    }
    report.parts.push(part);
    drop(loaded);
    drop(swap);
    Ok(())
}

fn measure(setting: &Setting, one: &mut Loaded, case: &Case, samples: &mut Samples) -> Result<()> {
    // First until the working set is in memory, then the measurement.
    one.play(case, setting.options.seconds)?;
    let (reads, written) = disk_counts(&setting.work_dir)?;
    let ran = one.play(case, setting.options.seconds)?;
    let (reads_after, written_after) = disk_counts(&setting.work_dir)?;
    let ops = ran.ops.max(1) as f64;
    samples.round();
    samples.add("ops_per_s", ran.ops as f64 / ran.seconds);
    samples.add(
        "device_reads_per_s",
        (reads_after - reads) as f64 / ran.seconds,
    );
    samples.add("device_reads_an_op", (reads_after - reads) as f64 / ops);
    samples.add(
        "written_bytes_an_op",
        (written_after - written) as f64 / ops,
    );
    let peak = one.cgroup.usage().peak_bytes;
    samples.add("peak_mib", peak.map(|b| (b >> 20) as f64));
    Ok(())
}

/// Figures by case and kind.
struct Table<'a>(&'a [Vec<Samples>]);

impl Table<'_> {
    fn of(&self, case: &str, kind: Kind, figure: &str) -> Option<f64> {
        let case = CASES.iter().position(|c| c.name == case)?;
        let kind = Kind::ALL.iter().position(|k| *k == kind)?;
        Summary::of(self.0[case][kind].of(figure)).map(|s| s.median)
    }
    /// The better of the peers: the one with the higher rate.
    fn peer(&self, case: &str) -> Option<Kind> {
        let rate = |kind: &Kind| self.of(case, *kind, "ops_per_s");
        let peers = Kind::ALL
            .iter()
            .copied()
            .filter(|k| k.is_peer() && rate(k).is_some());
        peers.max_by(|a, b| {
            rate(a)
                .partial_cmp(&rate(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    }
    /// A figure of a kind over that of the better peer.
    fn over_peer(&self, case: &str, kind: Kind, figure: &str) -> Option<f64> {
        Some(self.of(case, kind, figure)? / self.of(case, self.peer(case)?, figure)?)
    }
}

fn judge(table: &Table<'_>, device: f64, report: &mut Report) {
    for &(kind, case, limit) in RATE_BARS {
        let name = format!(
            "b, {case}: {} over the better of swap and mapped file",
            kind.name()
        );
        let ratio = table.over_peer(case, kind, "ops_per_s");
        report
            .bars
            .push(Bar::new(name, Side::AtLeast, limit, ratio));
    }
    for kind in [Kind::Handles, Kind::Opp] {
        let name = format!(
            "b, {ZIPF_READS}: device reads an access, {} over the better peer",
            kind.name()
        );
        let ratio = table.over_peer(ZIPF_READS, kind, "device_reads_an_op");
        report
            .bars
            .push(Bar::new(name, Side::AtMost, READS_BAR, ratio));
    }
    for &(kind, limit) in DEVICE_BARS {
        let name = format!(
            "c, {UNIFORM_READS}: device reads of {} over the device alone",
            kind.name()
        );
        let ratio = table
            .of(UNIFORM_READS, kind, "device_reads_per_s")
            .map(|r| r / device);
        report
            .bars
            .push(Bar::new(name, Side::AtLeast, limit, ratio));
    }
    let written = |kind| table.of(UNIFORM_WRITES, kind, "written_bytes_an_op");
    for kind in [Kind::Handles, Kind::Opp] {
        let name = format!(
            "d, {UNIFORM_WRITES}: bytes written of {} over swap's",
            kind.name()
        );
        let ratio = written(kind)
            .zip(written(Kind::Swapped))
            .map(|(a, b)| a / b);
        report
            .bars
            .push(Bar::new(name, Side::AtMost, WRITTEN_BAR, ratio));
    }
}
