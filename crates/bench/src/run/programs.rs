//! Row `d` and the program of `e`: sqlite3, numpy and sort, which run to their end in a cgroup, one after the other with their twins.
//!
//! A program says when a step of it begins, what came of it, and how long it took. Promises: both sides do the same steps with the same results, or the run
//! fails; one run of a program starts with no page of it in DRAM or swap. Never: counts a program's start.

use super::{SLACK_BYTES, judge_group, pairs};
use crate::cgroup::{Cgroup, Usage};
use crate::load::Rng;
use crate::machine::Disk;
use crate::process::{self, Guard};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, paired_ratio};
use crate::server::{Memory, under_run};
use crate::swap::SwapFile;
use crate::{Setting, stop};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The pool on the SSD and swap, over the data.
const DISK_OVER_DATA: u64 = 4;
/// The longest that a program may take.
const PROGRAM_MAX_S: u64 = 1800;
/// A program runs so often at most: some take minutes.
const REPEATS_MAX: u32 = 3;
/// Turns of a program on swap that may end for want of memory in its group before the row does: the kernel kills it now and then, though swap has room.
const KILLED_MAX: u32 = 3;
/// Debian's own, which has numpy.
const PYTHON: &str = "/usr/bin/python3";
/// A line of what is sorted.
const LINE_BYTES: usize = 1000;
const LINE_KEY_BYTES: usize = 20;
/// What a row of sqlite3's table has.
const BLOB_BYTES: u64 = 1000;
const COLUMNS: &[&str] = &[
    "seconds",
    "disk_reads",
    "disk_read_bytes",
    "disk_write_bytes",
    "cgroup_peak_bytes",
];

/// One of the programs.
struct Program {
    name: &'static str,
    needs: &'static str,
    /// Makes what it reads in a directory; returns its command line.
    prepare: fn(&Path, u64) -> Result<Vec<String>>,
}

/// Programs, and what they are compared with.
pub struct ProgramRow {
    /// Its letter.
    pub name: &'static str,
    about: &'static str,
    cap_bytes: u64,
    data_bytes: u64,
    beside: Memory,
    ratio_min: f64,
    programs: &'static [Program],
}

const NUMPY: Program = Program {
    name: "numpy",
    needs: PYTHON,
    prepare: numpy,
};

/// All of them.
pub const ROWS: &[ProgramRow] = &[
    ProgramRow {
        name: "d",
        about: "programs over four times the cap",
        cap_bytes: 128 << 20,
        data_bytes: 512 << 20,
        beside: Memory::Swap,
        ratio_min: 0.9,
        programs: &[
            Program {
                name: "sqlite3",
                needs: "sqlite3",
                prepare: sqlite,
            },
            NUMPY,
            Program {
                name: "sort",
                needs: "sort",
                prepare: sort,
            },
        ],
    },
    ProgramRow {
        name: "e",
        about: "a program that fits the cap",
        cap_bytes: 512 << 20,
        data_bytes: 128 << 20,
        beside: Memory::Plain,
        ratio_min: 0.97,
        programs: &[NUMPY],
    },
];

/// Says a step, what came of it, and how long it took, as sqlite3's timer does.
const NUMPY_SCRIPT: &str = r#"
import sys, time
import numpy as np
n = int(sys.argv[1])
def step(name, what):
    start = time.perf_counter()
    result = what()
    took = time.perf_counter() - start
    print(f"step {name}\n{result}\nRun Time: real {took:.6f}", flush=True)
chance = np.random.default_rng(7)
a = np.empty(n)
def fill():
    for at in range(0, n, 1 << 20):
        part = a[at:at + (1 << 20)]
        part[:] = chance.random(len(part))
    return a[0]
def gather():
    return float(sum(a[chance.integers(0, n, 1000)].sum() for _ in range(100)))
def scatter():
    for at in range(50):
        a[chance.integers(0, n, 1000)] = at / 50
    return float(a[-1])
def right():
    low = -1.0
    for at in range(0, n, 1 << 20):
        part = a[at:at + (1 << 20)]
        assert part[0] >= low and (part[1:] >= part[:-1]).all()
        low = part[-1]
    return low
step("fill", fill)
step("sum", lambda: float(a.sum()))
step("100 k gathers", gather)
step("50 k scattered writes", scatter)
step("sort", a.sort)
step("sums of the sorted", right)
"#;

fn numpy(dir: &Path, bytes: u64) -> Result<Vec<String>> {
    let script = dir.join("steps.py");
    fs::write(&script, NUMPY_SCRIPT)?;
    let items = bytes / size_of::<f64>() as u64;
    Ok(words(&[PYTHON, &path(&script), &items.to_string()]))
}

fn sqlite(dir: &Path, bytes: u64) -> Result<Vec<String>> {
    let rows = bytes / BLOB_BYTES;
    let numbers = |count: u64| {
        format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})")
    };
    // A prime, so that multiples of it go over the rows in no order.
    let scattered = format!("(i * 7368787) % {rows} + 1");
    let text = format!(
        ".timer on
.print step rows in
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v BLOB, zeros BLOB);
{all} INSERT INTO t SELECT i, {scattered}, randomblob({half}), zeroblob({half}) FROM n;
.print step scan
SELECT count(*), sum(length(v)) + sum(length(zeros)) FROM t;
.print step index
CREATE INDEX by_k ON t(k);
.print step 50 k look-ups
{some} SELECT sum(t.k) FROM n JOIN t ON t.id = {scattered};
.print step 20 k updates
{fewer} UPDATE t SET v = zeroblob({half}) WHERE id IN (SELECT {scattered} FROM n);
.print step sum by index
SELECT count(*), sum(k) FROM t WHERE k < {rows} / 2;
",
        all = numbers(rows),
        some = numbers(50_000),
        fewer = numbers(20_000),
        half = BLOB_BYTES / 2,
    );
    let script = dir.join("rows.sql");
    fs::write(&script, text)?;
    Ok(words(&[
        "sqlite3",
        "-batch",
        ":memory:",
        &format!(".read {}", path(&script)),
    ]))
}

fn sort(dir: &Path, bytes: u64) -> Result<Vec<String>> {
    let file = dir.join("lines");
    let mut out = BufWriter::new(File::create(&file)?);
    let mut rng = Rng::new(11);
    let mut line = vec![b'.'; LINE_BYTES];
    line[LINE_BYTES - 1] = b'\n';
    for _ in 0..bytes / LINE_BYTES as u64 {
        // A key, then half of the rest that is random.
        for byte in &mut line[..LINE_KEY_BYTES + LINE_BYTES / 2] {
            *byte = b'0' + (rng.next() >> 32) as u8 % 64;
        }
        out.write_all(&line)?;
    }
    out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    let buffer = format!("{}b", bytes * 2);
    Ok(words(&[
        "sort",
        "-S",
        &buffer,
        "--parallel",
        "2",
        "-o",
        &path(&dir.join("sorted")),
        &path(&file),
    ]))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// A step: its name, what came of it, how long it took in seconds.
#[derive(Debug, PartialEq)]
struct Step {
    name: String,
    result: String,
    seconds: f64,
}

/// The steps that a program told of. A step of several statements takes what they take together.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("step ") {
            steps.push(Step {
                name: name.to_owned(),
                result: String::new(),
                seconds: 0.0,
            });
            continue;
        }
        let Some(step) = steps.last_mut() else {
            continue;
        };
        match line.strip_prefix("Run Time: real ") {
            Some(rest) => {
                let seconds = rest.split_whitespace().next();
                step.seconds += seconds.and_then(|s| s.parse().ok()).unwrap_or(f64::NAN);
            }
            None => step.result += line,
        }
    }
    steps
}

/// What all runs of a row share.
struct Stage<'a> {
    setting: &'a Setting,
    row: &'a ProgramRow,
    cap_bytes: u64,
    data_bytes: u64,
    dir: PathBuf,
}

/// What one run of a program came to.
struct Ran {
    steps: Vec<Step>,
    disk: Option<Disk>,
    usage: Usage,
}

impl Stage<'_> {
    fn limit_bytes(&self) -> u64 {
        self.cap_bytes + SLACK_BYTES
    }

    /// One run, whose turn comes again while the kernel kills it on swap; each time is told. Under Terrace that is a failure.
    fn run(
        &self,
        program: &Program,
        argv: &[String],
        memory: Memory,
        part: &mut Part,
    ) -> Result<Ran> {
        for _ in 0..KILLED_MAX {
            if let Some(ran) = self.run_once(program, argv, memory)? {
                return Ok(ran);
            }
            part.notes.push(format!(
                "{} on swap was killed for want of memory in its group, and run again",
                program.name
            ));
        }
        bail!(
            "{} on swap was killed for want of memory {KILLED_MAX} times",
            program.name
        )
    }

    /// None: killed on swap for want of memory.
    fn run_once(&self, program: &Program, argv: &[String], memory: Memory) -> Result<Option<Ran>> {
        let name = format!("run-{}-{}-{}", self.row.name, program.name, memory.name());
        let log = self
            .setting
            .out_dir
            .join(name.replace(' ', "-"))
            .with_extension("log");
        let argv = match memory {
            Memory::Run => under_run(
                &self.setting.exe,
                &self.dir,
                &log.with_extension("report"),
                self.cap_bytes,
                (self.data_bytes * DISK_OVER_DATA).max(self.cap_bytes * 2),
                argv.to_vec(),
            ),
            Memory::Swap | Memory::LargeSwap | Memory::Plain => argv.to_vec(),
        };
        let has_swap = memory == Memory::Swap;
        let group = Cgroup::new(program.name, self.limit_bytes(), has_swap)?;
        crate::machine::drop_page_cache();
        let before = Disk::under(&self.setting.work_dir);
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let started = Instant::now();
        let mut guard = Guard::start(&argv, Some(&group), None, &log)?;
        let status = guard.wait_max(PROGRAM_MAX_S)?;
        let took_s = started.elapsed().as_secs_f64();
        let after = Disk::under(&self.setting.work_dir);
        let usage = group.usage();
        if !status.success() {
            let kills = usage.oom_kills.unwrap_or(0);
            if memory == Memory::Swap && kills > 0 {
                return Ok(None);
            }
            bail!(
                "{name} ended with {status} ({kills} OOM kills): see {}",
                log.display()
            );
        }
        let mut steps = steps(&fs::read_to_string(&log)?);
        if steps.is_empty() {
            steps.push(Step {
                name: "all".into(),
                result: self.sorted()?,
                seconds: took_s,
            });
        }
        Ok(Some(Ran {
            steps,
            disk: after.zip(before).map(|(after, before)| after.since(before)),
            usage,
        }))
    }

    /// The checksum of what sort wrote.
    fn sorted(&self) -> Result<String> {
        let file = path(&self.dir.join("sorted"));
        let sum = process::run(&["cksum", &file])?;
        fs::remove_file(&file)?;
        Ok(sum)
    }
}

/// Runs a row.
pub fn run(setting: &Setting, report: &mut Report, row: &ProgramRow) -> Result<()> {
    let divisor = setting.options.scale_divisor;
    let cap_bytes = (row.cap_bytes / divisor).max(32 << 20);
    let stage = Stage {
        setting,
        row,
        cap_bytes,
        // What is scaled down must be as much over the cap as before.
        data_bytes: cap_bytes * row.data_bytes / row.cap_bytes,
        dir: setting.work_dir.join(format!("run-{}", row.name)),
    };
    fs::create_dir_all(&stage.dir)?;
    let title = format!(
        "{}: {} MiB of data under a cap of {} MiB in a cgroup of {} MiB, beside {}",
        row.about,
        stage.data_bytes >> 20,
        stage.cap_bytes >> 20,
        stage.limit_bytes() >> 20,
        row.beside.name(),
    );
    // A row that has servers too has two parts.
    let name = if row.beside == Memory::Plain {
        "e-programs"
    } else {
        row.name
    };
    let mut part = Part::new(name, &title, COLUMNS);
    let _swap = match row.beside {
        Memory::Swap => Some(
            SwapFile::new(
                &setting.work_dir.join("swapfile"),
                stage.data_bytes * DISK_OVER_DATA,
            )
            .context("a swap file")?,
        ),
        _ => None,
    };
    let repeats = setting.options.repeats.min(REPEATS_MAX) * pairs(row.beside);
    let steps = row.programs.len() as u64 * u64::from(repeats) * 2;
    let progress = Progress::new(steps);
    for program in row.programs {
        let there = program.needs.starts_with('/') && Path::new(program.needs).exists();
        if !there && !process::installed(program.needs) {
            let why = format!("{} is not installed", program.needs);
            part.rows
                .push(Row::missing(program.name, Memory::Run.name(), &why));
            let name = format!(
                "{}, {}: speed over {}",
                row.name,
                program.name,
                row.beside.name()
            );
            let bar = Bar::new(name, Side::AtLeast, row.ratio_min, None);
            report.bars.push(bar);
            continue;
        }
        let argv = (program.prepare)(&stage.dir, stage.data_bytes)?;
        one(
            &stage, program, &argv, repeats, &progress, report, &mut part,
        )?;
    }
    report.parts.push(part);
    Ok(())
}

/// Runs both sides of a program in turns, and judges its steps.
fn one(
    stage: &Stage<'_>,
    program: &Program,
    argv: &[String],
    repeats: u32,
    progress: &Progress,
    report: &mut Report,
    part: &mut Part,
) -> Result<()> {
    let sides = [Memory::Run, stage.row.beside];
    let mut all: [Vec<(String, Samples)>; 2] = Default::default();
    let mut ours: Option<Usage> = None;
    for turn in 0..repeats {
        let mut results = Vec::new();
        let mut turns: Vec<_> = sides.iter().zip(&mut all).collect();
        if pairs(stage.row.beside) > 1 && turn % 2 == 1 {
            turns.reverse();
        }
        for (side, all) in turns {
            progress.step(format!("{}: {}", program.name, side.name()));
            stop::check()?;
            let ran = stage.run(program, argv, *side, part)?;
            results.push(
                ran.steps
                    .iter()
                    .map(|s| s.result.clone())
                    .collect::<Vec<_>>(),
            );
            if *side == Memory::Run {
                ours = Some(most(ours, ran.usage));
            }
            add(all, &ran);
        }
        if results[0] != results[1] {
            bail!(
                "{}: what came of its steps differs: {:?} and {:?}",
                program.name,
                results[0],
                results[1]
            );
        }
    }
    for (at, (step, samples)) in all[0].iter().enumerate() {
        let case = format!("{}, {step}", program.name);
        for (side, all) in sides.iter().zip(&all) {
            part.rows
                .push(Row::measured(&case, side.name(), &all[at].1));
        }
        // "Never below" is said of what is larger than the cap: there each step is judged.
        if stage.row.beside == Memory::Plain && at + 1 < all[0].len() {
            continue;
        }
        let ratio = paired_ratio(&all[1][at].1, samples, "seconds");
        let name = format!("{}, {case}: speed over {}", stage.row.name, sides[1].name());
        let ratio = ratio.map(|ratio| ratio.median);
        let bar = Bar::new(name, Side::AtLeast, stage.row.ratio_min, ratio);
        report.bars.push(bar);
    }
    let what = format!("{}, {}", stage.row.name, program.name);
    judge_group(report, &what, stage.limit_bytes(), ours);
    Ok(())
}

/// Adds what a run came to; what is known of the whole run stands with its last row, which has all steps together.
fn add(all: &mut Vec<(String, Samples)>, ran: &Ran) {
    let total_s = ran.steps.iter().map(|step| step.seconds).sum();
    let mut named: Vec<(&str, f64)> = Vec::new();
    if ran.steps.len() > 1 {
        named.extend(ran.steps.iter().map(|s| (s.name.as_str(), s.seconds)));
    }
    named.push(("all together", total_s));
    for (at, (name, seconds)) in named.iter().enumerate() {
        if all.len() == at {
            all.push(((*name).to_owned(), Samples::default()));
        }
        let samples = &mut all[at].1;
        samples.round();
        samples.add("seconds", *seconds);
        if at + 1 == named.len() {
            let disk = |total: fn(&Disk) -> u64| ran.disk.as_ref().map(|d| total(d) as f64);
            samples.add("disk_reads", disk(|d| d.reads));
            samples.add("disk_read_bytes", disk(|d| d.read_bytes));
            samples.add("disk_write_bytes", disk(|d| d.write_bytes));
            let peak = ran.usage.peak_bytes;
            samples.add("cgroup_peak_bytes", peak.map(|b| b as f64));
        }
    }
}

/// The highest peak, and all kills.
fn most(a: Option<Usage>, b: Usage) -> Usage {
    let Some(a) = a else { return b };
    let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    Usage {
        peak_bytes: a.peak_bytes.max(b.peak_bytes),
        limit_hits: sum(a.limit_hits, b.limit_hits),
        oom_kills: sum(a.oom_kills, b.oom_kills),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_sqlite_and_numpy_tell_them() {
        let text = "step rows in\nRun Time: real 0.5 user 0.1 sys 0.0\nRun Time: real 1.5 user 1 sys 0\nstep scan\n3|4\nRun Time: real 0.25 user 0 sys 0\n";
        let step = |name: &str, result: &str, seconds| Step {
            name: name.into(),
            result: result.into(),
            seconds,
        };
        assert_eq!(
            steps(text),
            [step("rows in", "", 2.0), step("scan", "3|4", 0.25)]
        );
        assert!(steps("no steps").is_empty());
        assert!(steps("step a\nRun Time: real ?\n")[0].seconds.is_nan());
    }
}
