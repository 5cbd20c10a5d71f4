//! Parts `b`, `b256`, `c`, `e`, `f` and those named `floor…` with the bars of `d` and `h`: objects in several times the memory there is, beside swap and a
//! mapped file (`loads` has the tables).
//!
//! Each kind of memory has a process of its own in a cgroup of the same limit, loaded once; then each case is run in turns, one process
//! at a time, all others asleep. A case that no bar looks at is run once, the others are repeated, all cases of a distribution before those of the next, since a change costs minutes of warming.
//! A case begins when it is steady: after runs that no longer change how often the device is read. Device reads and bytes written are the disk's own counts (/proc/diskstats) over the run, whoever caused them. Bars: see the tables.
//! Never: lets two loads run at once.

use super::child::{Data, Ran};
use super::kind::Kind;
use super::loads::{Case, Over, Ratio, Table};
use crate::cgroup::Cgroup;
use crate::device::Reads;
use crate::machine::{Disk, need_disk};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, Summary, paired_ratio};
use crate::rounds::judge_usage;
use crate::steady::Steady;
use crate::swap::{SWAP_OVER_DATA, SwapFile};
use crate::{Setting, device, process, stop};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// The limit may not fall below this when scaled down: a store needs some.
const LIMIT_BYTES_MIN: u64 = 128 << 20;
/// What bare faults have for page tables that were given back: twice what the product keeps.
const TABLES_WAITING_BYTES: u64 = 16 << 20;
/// How often the disk alone is measured beside a round.
const ALONE_TRIES: u32 = 2;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "device_reads_an_op",
    "written_bytes_an_op",
    "faults_an_op",
    "warm_s",
    "peak_mib",
];
/// What is measured in cases that the device alone is beside.
const DEVICE_COLUMNS: &[&str] = &[
    "device_reads_per_s",
    "disk_queue_depth",
    "disk_alone_reads_per_s",
    "part_of_device_alone",
];
/// One kind's process.
struct Loaded {
    kind: Kind,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The case before.
    last: Option<Case>,
    /// What it keeps on the disk.
    dir: PathBuf,
    // Dropped after the child is gone.
    cgroup: Cgroup,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Each fails only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The next part begins with nothing.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Loaded {
    fn start(setting: &Setting, kind: Kind, limit_bytes: u64, data: Data) -> Result<Loaded> {
        let limit_bytes = limit_bytes * kind.limits();
        // The tables of bare pages have a byte an object more than the product's, and nobody waits for page tables that the kernel has not freed yet.
        let more_bytes = match kind.is_bare() {
            true => data.objects + TABLES_WAITING_BYTES,
            false => 0,
        };
        let cgroup = Cgroup::new(kind.name(), limit_bytes + more_bytes, kind.is_swapped())?;
        let dir = setting.work_dir.join(kind.name());
        std::fs::create_dir_all(&dir)?;
        let exe = setting.exe.display().to_string();
        let work_dir = dir.display().to_string();
        let numbers = [limit_bytes, data.objects, data.object_bytes].map(|n| n.to_string());
        let (packs, pattern) = (data.packs.to_string(), data.pattern.name());
        let argv = [
            &exe,
            "bench-memory-child",
            kind.name(),
            &work_dir,
            &numbers[0],
            &numbers[1],
            &numbers[2],
            &packs,
            pattern,
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
            last: None,
            dir,
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
            zipf,
            writes_percent,
            threads,
        } = case;
        let distribution = if *zipf { "zipf" } else { "uniform" };
        self.last = Some(*case);
        writeln!(
            self.input,
            "{distribution} {writes_percent} {threads} {seconds}"
        )?;
        Ok(serde_json::from_str(&self.line()?)?)
    }
}

/// Runs a table.
pub fn run(setting: &Setting, report: &mut Report, table: &Table) -> Result<()> {
    let scale = setting.options.scale_divisor;
    let limit_bytes = (table.limit_bytes / scale).max(LIMIT_BYTES_MIN.min(table.limit_bytes));
    let times = table.array_bytes / table.limit_bytes;
    let array_bytes = (table.array_bytes / scale).max(times / 2 * limit_bytes);
    let data = Data {
        objects: array_bytes / table.object_bytes,
        object_bytes: table.object_bytes,
        packs: table.packs,
        pattern: table.pattern,
    };
    let title = format!(
        "{} objects of {} B{}, cgroup of {} MiB each; Zipf 0.99 over scattered objects",
        data.objects,
        data.object_bytes,
        if data.packs { ", half zeros" } else { "" },
        limit_bytes >> 20
    );
    let mut part = Part::new(table.name, &title, COLUMNS);
    if table.cases.iter().any(|case| table.beside_device(case)) {
        part.columns.extend(DEVICE_COLUMNS);
    }
    let swapped = table.kinds.iter().filter(|kind| kind.is_swapped()).count();
    // At least one, since the file is made anyway.
    let swap_bytes = array_bytes * SWAP_OVER_DATA * swapped.max(1) as u64;
    let files_bytes = array_bytes * table.files_over_data();
    let what = format!("part {}", table.name);
    need_disk(&setting.work_dir, swap_bytes + files_bytes, &what)?;
    let swap = SwapFile::new(&setting.work_dir.join("swapped-to"), swap_bytes)?;
    let repeats = u64::from(setting.options.repeats);
    let kinds = table.kinds.len() as u64;
    let pairs = || {
        table
            .cases
            .iter()
            .flat_map(|case| table.kinds.iter().map(move |kind| (case, *kind)))
    };
    let judged = pairs()
        .filter(|(case, kind)| table.judges(case, *kind))
        .count() as u64;
    let once = pairs().count() as u64 - judged;
    let progress = Progress::new(kinds + once + repeats * judged);
    if table.cases.iter().any(|case| table.beside_device(case)) {
        // Not after the others: what was just written may be quicker to read.
        device::write_file(setting, array_bytes >> 20)?;
    }
    let none = || table.kinds.iter().map(|_| Samples::default()).collect();
    let mut samples: Vec<Vec<Samples>> = table.cases.iter().map(|_| none()).collect();
    let mut loaded = Vec::new();
    let finished = (|| {
        for kind in table.kinds {
            progress.step(format!("loading {}", kind.name()));
            loaded.push(Loaded::start(setting, *kind, limit_bytes, data)?);
        }
        play_all(
            setting,
            table,
            array_bytes,
            &mut loaded,
            &mut samples,
            &progress,
        )
    })();
    if once > 0 {
        part.notes.push("What no bar looks at was run once.".into());
    }
    drop(progress);
    for (case, row) in table.cases.iter().zip(&samples) {
        for (kind, samples) in table.kinds.iter().zip(row) {
            part.rows
                .push(Row::measured(&case.name(), kind.name(), samples));
        }
    }
    if let Err(e) = finished {
        // What was measured before is shown, and not judged.
        part.rows.retain(|row| !row.figures.is_empty());
        report.parts.push(part);
        return Err(e);
    }
    let figures = Figures {
        table,
        samples: &samples,
    };
    report
        .bars
        .extend(table.bars.iter().map(|bar| figures.judge(bar)));
    for one in loaded.iter().filter(|one| one.kind.is_ours()) {
        let what = format!("h, {}, {}", table.name, one.kind.name());
        judge_usage(report, &what, limit_bytes, Some(one.cgroup.usage()));
    }
    report.parts.push(part);
    drop(loaded);
    drop(swap);
    Ok(())
}

/// Each case on each kind, in turns; the samples are as the cases and the kinds.
fn play_all(
    setting: &Setting,
    table: &Table,
    array_bytes: u64,
    loaded: &mut [Loaded],
    samples: &mut [Vec<Samples>],
    progress: &Progress,
) -> Result<()> {
    let mut rest = samples;
    for cases in table.cases.chunk_by(|a, b| a.zipf == b.zipf) {
        let (rows, later) = rest.split_at_mut(cases.len());
        rest = later;
        for round in 0..setting.options.repeats {
            for (case, row) in cases.iter().zip(&mut *rows) {
                for (one, samples) in loaded.iter_mut().zip(row) {
                    if round > 0 && !table.judges(case, one.kind) {
                        continue;
                    }
                    progress.step(format!("{}, {}", case.name(), one.kind.name()));
                    measure(setting, one, case, samples)?;
                    if table.beside_device(case) {
                        beside_device(setting, array_bytes, samples)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// What one run did.
struct Did {
    ran: Ran,
    disk: Disk,
}

impl Did {
    fn reads_an_op(&self) -> f64 {
        self.disk.reads as f64 / self.ran.ops.max(1) as f64
    }
}

fn play(setting: &Setting, one: &mut Loaded, case: &Case, seconds: f64) -> Result<Did> {
    let disk = || {
        Disk::under(&setting.work_dir)
            .context("the work directory is on no disk that /proc/diskstats has")
    };
    let before = disk()?;
    let ran = one.play(case, seconds)?;
    Ok(Did {
        ran,
        disk: disk()?.since(before),
    })
}

/// What a mapped file has changed reaches the disk now, and not while another is measured.
fn flush(setting: &Setting) -> Result<()> {
    rustix::fs::syncfs(std::fs::File::open(&setting.work_dir)?)?;
    Ok(())
}

/// Runs a case until it is steady; how long that took, in seconds.
fn warm_up(setting: &Setting, one: &mut Loaded, case: &Case) -> Result<f64> {
    let mut seconds = 0.0;
    let same = one.last.is_some_and(|last| last.zipf == case.zipf);
    let mut steady = match same {
        true => Steady::once_more(&setting.options),
        false => Steady::anew(&setting.options),
    };
    while let Some(run_s) = steady.next_run_s() {
        let did = play(setting, one, case, run_s)?;
        seconds += did.ran.seconds;
        let ops = did.ran.ops.max(1) as f64;
        steady.ran(did.reads_an_op(), did.disk.write_bytes as f64 / ops);
    }
    Ok(seconds)
}

fn measure(setting: &Setting, one: &mut Loaded, case: &Case, samples: &mut Samples) -> Result<()> {
    // Nothing between the two: where it writes, what is changed and not on the device stays as much as it has come to be.
    let warm_s = warm_up(setting, one, case)?;
    let did = play(setting, one, case, setting.options.seconds)?;
    let (ops, seconds) = (did.ran.ops.max(1) as f64, did.ran.seconds);
    flush(setting)?;
    samples.round();
    samples.add("ops_per_s", did.ran.ops as f64 / seconds);
    samples.add("device_reads_per_s", did.disk.reads as f64 / seconds);
    let depth = did.disk.weighted_ms as f64 / 1000.0 / seconds;
    samples.add("disk_queue_depth", depth);
    samples.add("device_reads_an_op", did.reads_an_op());
    samples.add("written_bytes_an_op", did.disk.write_bytes as f64 / ops);
    let read_bytes = did.disk.read_bytes as f64 / did.disk.reads.max(1) as f64;
    samples.add("bytes_a_device_read", read_bytes);
    let faults = did.ran.faults.map(|faults| faults as f64 / ops);
    samples.add("faults_an_op", faults);
    samples.add("warm_s", warm_s);
    let peak = one.cgroup.usage().peak_bytes;
    samples.add("peak_mib", peak.map(|b| (b >> 20) as f64));
    Ok(())
}

/// Measures the disk alone by reads as long as those of the last round, at the depth that it reached, from as many CPUs as it had: the best of some tries, since a slow one would flatter.
/// What fio has in flight is more than what of it is at the disk, so it is given more until that is as deep. Of what was read no more counts than there were operations.
fn beside_device(setting: &Setting, file_bytes: u64, samples: &mut Samples) -> Result<()> {
    let last = |name: &str| samples.of(name).last().copied();
    let (Some(depth), Some(reads), Some(read_bytes)) = (
        last("disk_queue_depth"),
        last("device_reads_per_s"),
        last("bytes_a_device_read"),
    ) else {
        return Ok(());
    };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let mib = file_bytes >> 20;
    let (mut alone, mut in_flight) = (0.0f64, depth.round().max(1.0));
    for _ in 0..ALONE_TRIES {
        let before = Disk::under(&setting.work_dir);
        let reads = Reads {
            bytes: read_bytes as u64,
            depth: in_flight as u32,
            cpus,
        };
        let tried = device::random_reads_from(setting, mib, reads)?;
        alone = alone.max(tried.ops_per_s);
        let after = Disk::under(&setting.work_dir);
        let did = after.zip(before).map(|(after, before)| after.since(before));
        let reached = did.map_or(depth, |did| {
            did.weighted_ms as f64 / 1000.0 / setting.options.seconds
        });
        if reached < depth {
            in_flight = (in_flight * depth / reached.max(depth / 4.0)).ceil();
        }
    }
    let wanted = reads.min(last("ops_per_s").unwrap_or(reads));
    samples.add("disk_alone_reads_per_s", alone);
    samples.add("part_of_device_alone", wanted / alone);
    Ok(())
}

/// Figures by case and kind.
struct Figures<'a> {
    table: &'a Table,
    samples: &'a [Vec<Samples>],
}

impl Figures<'_> {
    fn of(&self, case: Case, kind: Kind) -> Option<&Samples> {
        let case = self.table.cases.iter().position(|c| *c == case)?;
        let kind = self.table.kinds.iter().position(|k| *k == kind)?;
        Some(&self.samples[case][kind])
    }

    /// Of rounds that lie side by side; over several peers the one that leaves us the least.
    fn ratio(&self, bar: &Ratio) -> Option<f64> {
        let ours = self.of(bar.case, bar.kind)?;
        if bar.over == Over::Device {
            return Summary::of(ours.of(bar.figure)).map(|parts| parts.median);
        }
        let peers = self.table.kinds.iter().filter(|kind| bar.over.is(**kind));
        let ratios = peers.map(|peer| {
            let peer = self.of(bar.case, *peer)?;
            Some(paired_ratio(ours, peer, bar.figure)?.median)
        });
        let worse = match bar.side {
            Side::AtLeast => f64::min,
            Side::AtMost => f64::max,
        };
        ratios
            .collect::<Option<Vec<f64>>>()?
            .into_iter()
            .reduce(worse)
    }

    fn judge(&self, bar: &Ratio) -> Bar {
        let than = match bar.over {
            Over::Better => "the better of swap and mapped file",
            Over::Swap => "swap",
            Over::Device => "its random reads alone at that depth",
        };
        let name = format!(
            "{}, {}, {}: {} of {} over {than}",
            bar.row,
            self.table.name,
            bar.case.name(),
            bar.figure.replace('_', " "),
            bar.kind.name()
        );
        Bar::new(name, bar.side, bar.limit, self.ratio(bar))
    }
}
