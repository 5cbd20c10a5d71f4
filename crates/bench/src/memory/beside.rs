//! Parts `b`, `b256`, `e`, `f` with the bars of `c`, `d` and `h`: objects in several times the memory there is, beside swap and a
//! mapped file.
//!
//! Each kind of memory has a process of its own in a cgroup of the same limit, loaded once; then each case is run in turns, one process
//! at a time, all others asleep. A case begins when it is steady: after runs that no longer change how often the device is read. Device
//! reads and bytes written are the disk's own counts (/proc/diskstats) over the run, whoever caused them. Bars: see the tables.
//! Never: lets two loads run at once.

use super::child::{Data, Ran};
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

/// The limit may not fall below this when scaled down: a store needs some.
const LIMIT_BYTES_MIN: u64 = 128 << 20;
/// Room for what is swapped out, beyond the array.
const SWAP_SPARE_BYTES: u64 = 1 << 30;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "device_reads_an_op",
    "written_bytes_an_op",
    "warm_s",
    "peak_mib",
];
const SECTOR_BYTES: u64 = 512;
/// Runs before a measurement, at least and at most; they end when device reads an operation fall by less than this part.
const WARM_RUNS_MIN: u32 = 5;
const WARM_RUNS_MAX: u32 = 24;
const STEADY_PART: f64 = 0.02;

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

const ALL_CASES: &[Case] = &[
    case(ZIPF_READS, "zipf", 0, 16),
    case("Zipf, 75/25, 16 threads", "zipf", 25, 16),
    case(ZIPF_HALF, "zipf", 50, 16),
    case("Zipf, 25/75, 16 threads", "zipf", 75, 16),
    case(ZIPF_WRITES, "zipf", 100, 16),
    case("Zipf, reads, 2 threads", "zipf", 0, 2),
    case("Zipf, reads, 1 thread", "zipf", 0, 1),
    case(UNIFORM_READS, "uniform", 0, 16),
    case(UNIFORM_WRITES, "uniform", 100, 16),
];
const MAIN_CASES: &[Case] = &[
    case(ZIPF_READS, "zipf", 0, 16),
    case(ZIPF_HALF, "zipf", 50, 16),
    case(ZIPF_WRITES, "zipf", 100, 16),
    case(UNIFORM_READS, "uniform", 0, 16),
    case(UNIFORM_WRITES, "uniform", 100, 16),
];
const READ_CASES: &[Case] = &[case(ZIPF_READS, "zipf", 0, 16)];

/// A figure of a kind over the better peer's, or over swap's alone.
struct Ratio {
    row: &'static str,
    kind: Kind,
    case: &'static str,
    figure: &'static str,
    over: Over,
    side: Side,
    limit: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Over {
    Better,
    Swap,
    /// The device's random reads alone.
    Device,
}

const fn rate(kind: Kind, case: &'static str, limit: f64) -> Ratio {
    Ratio {
        row: "b",
        kind,
        case,
        figure: "ops_per_s",
        over: Over::Better,
        side: Side::AtLeast,
        limit,
    }
}

const fn reads(kind: Kind) -> Ratio {
    Ratio {
        figure: "device_reads_an_op",
        side: Side::AtMost,
        ..rate(kind, ZIPF_READS, 0.65)
    }
}

const fn device_share(kind: Kind, limit: f64) -> Ratio {
    Ratio {
        row: "c",
        figure: "device_reads_per_s",
        over: Over::Device,
        ..rate(kind, UNIFORM_READS, limit)
    }
}

const fn written(kind: Kind) -> Ratio {
    Ratio {
        row: "d",
        figure: "written_bytes_an_op",
        over: Over::Swap,
        side: Side::AtMost,
        ..rate(kind, UNIFORM_WRITES, 1.0 / 12.0)
    }
}

const fn packed_pages(case: &'static str, limit: f64) -> Ratio {
    Ratio {
        row: "e",
        over: Over::Swap,
        ..rate(Kind::Mp, case, limit)
    }
}

/// Objects, memory, and what is asked of them.
pub struct Table {
    name: &'static str,
    array_bytes: u64,
    limit_bytes: u64,
    object_bytes: u64,
    packs: bool,
    kinds: &'static [Kind],
    cases: &'static [Case],
    bars: &'static [Ratio],
}

/// Small objects in eight times the memory.
pub const SMALL: Table = Table {
    name: "b",
    array_bytes: 4 << 30,
    limit_bytes: 512 << 20,
    object_bytes: 128,
    packs: false,
    kinds: Kind::ALL,
    cases: ALL_CASES,
    bars: &[
        rate(Kind::Handles, ZIPF_READS, 1.6),
        rate(Kind::Opp, ZIPF_READS, 1.5),
        rate(Kind::Opp, ZIPF_HALF, 1.5),
        rate(Kind::Opp, ZIPF_WRITES, 2.0),
        rate(Kind::Opp, UNIFORM_WRITES, 1.4),
        reads(Kind::Handles),
        reads(Kind::Opp),
        device_share(Kind::Handles, 0.92),
        device_share(Kind::Opp, 0.85),
        written(Kind::Handles),
        written(Kind::Opp),
        packed_pages(ZIPF_READS, 0.9),
        packed_pages(ZIPF_HALF, 0.9),
        packed_pages(ZIPF_WRITES, 0.9),
        packed_pages(UNIFORM_READS, 0.9),
        packed_pages(UNIFORM_WRITES, 0.9),
    ],
};

/// The same in sixteen times the memory.
pub const SMALLER_LIMIT: Table = Table {
    name: "b256",
    limit_bytes: 256 << 20,
    cases: MAIN_CASES,
    bars: &[rate(Kind::Opp, ZIPF_READS, 1.25)],
    ..SMALL
};

/// The same, of which half is zeros.
pub const PACKED: Table = Table {
    name: "e",
    packs: true,
    kinds: &[Kind::Mp, Kind::Swapped],
    cases: READ_CASES,
    bars: &[packed_pages(ZIPF_READS, 1.5)],
    ..SMALL
};

/// Larger objects.
pub const LARGER: Table = Table {
    name: "f",
    object_bytes: 1024,
    cases: MAIN_CASES,
    bars: &[
        Ratio {
            row: "f",
            ..rate(Kind::Opp, ZIPF_READS, 1.2)
        },
        Ratio {
            row: "f",
            ..rate(Kind::Opp, ZIPF_WRITES, 1.5)
        },
    ],
    ..SMALL
};

const DEVICE_DEPTH: u32 = 64;

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
    fn start(setting: &Setting, kind: Kind, limit_bytes: u64, data: Data) -> Result<Loaded> {
        let cgroup = Cgroup::new(kind.name(), limit_bytes, kind == Kind::Swapped)?;
        let dir = setting.work_dir.join(kind.name());
        std::fs::create_dir_all(&dir)?;
        let (exe, dir) = (setting.exe.display().to_string(), dir.display().to_string());
        let numbers = [limit_bytes, data.objects, data.object_bytes].map(|n| n.to_string());
        let packs = data.packs.to_string();
        let argv = [
            &exe,
            "bench-memory-child",
            kind.name(),
            &dir,
            &numbers[0],
            &numbers[1],
            &numbers[2],
            &packs,
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

/// Runs a table.
pub fn run(setting: &Setting, report: &mut Report, table: &Table) -> Result<()> {
    let scale = setting.options.scale_divisor;
    let limit_bytes = (table.limit_bytes / scale).max(LIMIT_BYTES_MIN);
    let times = table.array_bytes / table.limit_bytes;
    let array_bytes = (table.array_bytes / scale).max(times / 2 * limit_bytes);
    let data = Data {
        objects: array_bytes / table.object_bytes,
        object_bytes: table.object_bytes,
        packs: table.packs,
    };
    let title = format!(
        "{} objects of {} B{}, cgroup of {} MiB each; Zipf 0.99 over scattered objects",
        data.objects,
        data.object_bytes,
        if data.packs { ", half zeros" } else { "" },
        limit_bytes >> 20
    );
    let mut part = Part::new(table.name, &title, COLUMNS);
    let swap_bytes = array_bytes + SWAP_SPARE_BYTES;
    let swap = SwapFile::new(&setting.work_dir.join("swapped-to"), swap_bytes)?;
    let repeats = u64::from(setting.options.repeats);
    let kinds = table.kinds.len() as u64;
    let progress = Progress::new(kinds + repeats * table.cases.len() as u64 * kinds);
    let mut loaded = Vec::new();
    for kind in table.kinds {
        progress.step(format!("loading {}", kind.name()));
        loaded.push(Loaded::start(setting, *kind, limit_bytes, data)?);
    }
    let none = || loaded.iter().map(|_| Samples::default()).collect();
    let mut samples: Vec<Vec<Samples>> = table.cases.iter().map(|_| none()).collect();
    for _ in 0..repeats {
        for (case, row) in table.cases.iter().zip(&mut samples) {
            for (one, samples) in loaded.iter_mut().zip(row) {
                progress.step(format!("{}, {}", case.name, one.kind.name()));
                measure(setting, one, case, samples)?;
            }
        }
    }
    let device = device::random_reads(setting, array_bytes >> 20, DEVICE_DEPTH)?.ops_per_s;
    part.notes.push(format!(
        "Device alone in the same run: {device:.0} random 4 KiB reads a second at depth {DEVICE_DEPTH}."
    ));
    drop(progress);
    for (case, row) in table.cases.iter().zip(&samples) {
        for (kind, samples) in table.kinds.iter().zip(row) {
            part.rows
                .push(Row::measured(case.name, kind.name(), samples));
        }
    }
    let figures = Figures {
        table,
        samples: &samples,
        device,
    };
    report
        .bars
        .extend(table.bars.iter().map(|bar| figures.judge(bar)));
    for one in loaded.iter().filter(|one| !one.kind.is_peer()) {
        let peak = one.cgroup.usage().peak_bytes.map(|b| b as f64);
        let name = format!(
            "h, {}: peak of the cgroup of {} over its limit",
            table.name,
            one.kind.name()
        );
        let share = peak.map(|p| p / limit_bytes as f64);
        report.bars.push(Bar::new(name, Side::AtMost, 1.0, share));
    }
    report.parts.push(part);
    drop(loaded);
    drop(swap);
    Ok(())
}

/// What one run did.
struct Did {
    ran: Ran,
    reads: f64,
    written: f64,
}

impl Did {
    fn reads_an_op(&self) -> f64 {
        self.reads / self.ran.ops.max(1) as f64
    }
}

fn play(setting: &Setting, one: &mut Loaded, case: &Case) -> Result<Did> {
    let (reads, written) = disk_counts(&setting.work_dir)?;
    let ran = one.play(case, setting.options.seconds)?;
    let (reads_after, written_after) = disk_counts(&setting.work_dir)?;
    Ok(Did {
        ran,
        reads: (reads_after - reads) as f64,
        written: (written_after - written) as f64,
    })
}

/// Runs a case until it is steady; how long that took, in seconds.
fn warm_up(setting: &Setting, one: &mut Loaded, case: &Case) -> Result<f64> {
    let mut seconds = 0.0;
    let mut before: Option<f64> = None;
    for run in 1..=WARM_RUNS_MAX {
        let did = play(setting, one, case)?;
        seconds += did.ran.seconds;
        let now = did.reads_an_op();
        let falls = before.is_none_or(|before| now < before * (1.0 - STEADY_PART));
        if run >= WARM_RUNS_MIN && !falls {
            break;
        }
        before = Some(now);
    }
    Ok(seconds)
}

fn measure(setting: &Setting, one: &mut Loaded, case: &Case, samples: &mut Samples) -> Result<()> {
    let warm_s = warm_up(setting, one, case)?;
    let did = play(setting, one, case)?;
    let (ops, seconds) = (did.ran.ops.max(1) as f64, did.ran.seconds);
    samples.round();
    samples.add("ops_per_s", did.ran.ops as f64 / seconds);
    samples.add("device_reads_per_s", did.reads / seconds);
    samples.add("device_reads_an_op", did.reads_an_op());
    samples.add("written_bytes_an_op", did.written / ops);
    samples.add("warm_s", warm_s);
    let peak = one.cgroup.usage().peak_bytes;
    samples.add("peak_mib", peak.map(|b| (b >> 20) as f64));
    Ok(())
}

/// Figures by case and kind.
struct Figures<'a> {
    table: &'a Table,
    samples: &'a [Vec<Samples>],
    device: f64,
}

impl Figures<'_> {
    fn of(&self, case: &str, kind: Kind, figure: &str) -> Option<f64> {
        let case = self.table.cases.iter().position(|c| c.name == case)?;
        let kind = self.table.kinds.iter().position(|k| *k == kind)?;
        Summary::of(self.samples[case][kind].of(figure)).map(|s| s.median)
    }

    /// The better of the peers: the one with the higher rate.
    fn peer(&self, case: &str) -> Option<Kind> {
        let peers = self.table.kinds.iter().copied().filter(|k| k.is_peer());
        let rates = peers.filter_map(|kind| Some((kind, self.of(case, kind, "ops_per_s")?)));
        rates
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(kind, _)| kind)
    }

    fn judge(&self, bar: &Ratio) -> Bar {
        let Ratio {
            row,
            kind,
            case,
            figure,
            over,
            side,
            limit,
        } = *bar;
        let (than, base) = match over {
            Over::Better => (
                "the better of swap and mapped file",
                self.peer(case).and_then(|peer| self.of(case, peer, figure)),
            ),
            Over::Swap => ("swap", self.of(case, Kind::Swapped, figure)),
            Over::Device => ("the device alone", Some(self.device)),
        };
        let name = format!(
            "{row}, {}, {case}: {} of {} over {than}",
            self.table.name,
            figure.replace('_', " "),
            kind.name()
        );
        let ratio = self.of(case, kind, figure).zip(base).map(|(a, b)| a / b);
        Bar::new(name, side, limit, ratio)
    }
}
