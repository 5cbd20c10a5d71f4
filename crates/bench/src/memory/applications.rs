//! Part `g`: the applications of `examples/`, each from one source with malloc on swap, MP and OPP, in the same cgroup over ten times its memory.
//!
//! A program loads its data, works until its memory is warm, says so, and works for a round; the disk's counters are taken from there on. Programs take turns. Promises: what an
//! application keeps in malloc's memory beside (an index) is in its cgroup too. Never: compiles; `make examples` does.

use crate::cgroup::Cgroup;
use crate::machine::Disk;
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, paired_ratio};
use crate::swap::SwapFile;
use crate::{Setting, process, stop};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const LIMIT_BYTES: u64 = 64 << 20;
/// Data over the limit.
const RATIO: u64 = 10;
/// Text, stacks and the kernel's own: what the limit has above the cap.
const SLACK_BYTES: u64 = 12 << 20;
/// The pool on the disk, and the swap file: twice the data, since each object of 128 bytes has a header too, and a tenth is kept free.
const DISK_BYTES: u64 = LIMIT_BYTES * RATIO * 2;
/// Before a round the same is done for so many times its length: what is to be in DRAM must come there first.
const WARM: f64 = 4.0;
const ZIPF: &str = "0.99";
/// As many threads as find the device busy.
const THREADS: &str = "16";
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "reads_per_op",
    "written_bytes_per_op",
    "peak_bytes",
];

struct Application {
    name: &'static str,
    /// What a key takes of what steps down: of a B+tree filled in order leaves are half full.
    bytes_per_key: u64,
    /// What it keeps in malloc's memory for a key.
    beside_bytes_per_key: u64,
}

const APPLICATIONS: &[Application] = &[
    Application {
        name: "btree",
        bytes_per_key: 512 * 16 / 15 / 15,
        beside_bytes_per_key: 0,
    },
    Application {
        name: "packetcache",
        bytes_per_key: 1024,
        beside_bytes_per_key: 16 * 2,
    },
    Application {
        name: "hashcache",
        bytes_per_key: 24,
        beside_bytes_per_key: 0,
    },
];

/// Name of the program's build, and of what it is beside the others.
const KINDS: &[(&str, &str)] = &[("OPP", "OPP"), ("MP", "MP"), ("malloc", "malloc on swap")];
/// Percent of reads; what OPP must reach over swap, and over MP.
const LOADS: &[(&str, u32, f64, f64)] = &[("reads", 100, 1.4, 1.3), ("writes", 0, 2.0, 1.3)];

/// Runs the part.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let data_mib = (LIMIT_BYTES * RATIO / setting.options.scale_divisor.max(1)) >> 20;
    let title = format!(
        "applications in C with {data_mib} MiB of data in a cgroup of {} MiB, Zipf {ZIPF}, {THREADS} threads, each with a shard",
        LIMIT_BYTES >> 20
    );
    let mut part = Part::new("g", &title, COLUMNS);
    let swap = SwapFile::new(&setting.work_dir.join("swap"), DISK_BYTES);
    let progress = Progress::new((APPLICATIONS.len() * LOADS.len()) as u64);
    for application in APPLICATIONS {
        for (load, reads, over_swap, over_mp) in LOADS {
            let case = format!("{}, {load}", application.name);
            progress.step(&case);
            let mut samples = vec![Samples::default(); KINDS.len()];
            let mut trouble: Vec<Option<String>> = vec![None; KINDS.len()];
            for _ in 0..setting.options.repeats {
                for (at, (kind, _)) in KINDS.iter().enumerate() {
                    stop::check()?;
                    let on_swap = *kind == "malloc";
                    let done = match (&swap, on_swap) {
                        (Err(e), true) => Err(anyhow::anyhow!("{e:#}")),
                        _ => round(setting, application, kind, *reads, &mut samples[at]),
                    };
                    if let Err(e) = done {
                        trouble[at] = Some(format!("{e:#}"));
                    }
                }
            }
            for (at, (_, peer)) in KINDS.iter().enumerate() {
                part.rows.push(match &trouble[at] {
                    None => Row::measured(&case, peer, &samples[at]),
                    Some(e) => Row::missing(&case, peer, e),
                });
            }
            for (peer, limit) in [(2, over_swap), (1, over_mp)] {
                let both = trouble[0].is_none() && trouble[peer].is_none();
                let ratio = paired_ratio(&samples[0], &samples[peer], "ops_per_s").filter(|_| both);
                let name = format!("g, {case}: OPP over {}", KINDS[peer].1);
                let bar = Bar::new(name, Side::AtLeast, *limit, ratio.map(|r| r.median));
                report.bars.push(bar);
            }
        }
    }
    part.notes.push(
        "The paper (2011): OPP 4.3 to 17.1 times swap and 1.3 to 3.3 times MP, against the pager and SSDs of its day.".into(),
    );
    report.parts.push(part);
    Ok(())
}

/// Where `make examples` puts programs: beside the directory that this one is in.
fn program(setting: &Setting, name: &str, kind: &str) -> Result<PathBuf> {
    let target = setting.exe.parent().and_then(|dir| dir.parent());
    let path = target.map(|t| t.join("examples").join(format!("{name}-{kind}")));
    match path.filter(|p| p.is_file()) {
        Some(path) => Ok(path),
        None => bail!("{name}-{kind} is not built: run `make examples`"),
    }
}

/// What a program is told.
fn arguments(setting: &Setting, application: &Application, reads: u32, pool: &Path) -> Vec<String> {
    let keys = LIMIT_BYTES * RATIO / application.bytes_per_key;
    let keys = keys / setting.options.scale_divisor.max(1);
    let cap = LIMIT_BYTES - SLACK_BYTES - keys * application.beside_bytes_per_key;
    let words = [
        ("--keys", keys.to_string()),
        ("--cap", cap.to_string()),
        ("--ssd", DISK_BYTES.to_string()),
        ("--reads", reads.to_string()),
        ("--seconds", setting.options.seconds.to_string()),
        ("--warm", (WARM * setting.options.seconds).to_string()),
        ("--zipf", ZIPF.to_owned()),
        ("--threads", THREADS.to_owned()),
        ("--pool", pool.display().to_string()),
    ];
    words
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

/// Loads a program and drives it for a round.
fn round(
    setting: &Setting,
    application: &Application,
    kind: &str,
    reads: u32,
    samples: &mut Samples,
) -> Result<()> {
    let program = program(setting, application.name, kind)?
        .display()
        .to_string();
    let pool = setting.work_dir.join("g-pool");
    let arguments = arguments(setting, application, reads, &pool);
    let mut argv = vec![program.as_str()];
    argv.extend(arguments.iter().map(String::as_str));
    let group = Cgroup::new("application", LIMIT_BYTES, kind == "malloc")?;
    let done = drive(setting, &argv, &group);
    // It is made anew in the next round.
    let _ = fs::remove_dir_all(&pool);
    let (figures, disk) = done?;
    let (ops, rate) = (figures["ops"].as_f64(), figures["ops_per_s"].as_f64());
    let each = |total: Option<u64>| Some(total? as f64 / ops?.max(1.0));
    samples.round();
    samples.add("ops_per_s", rate);
    samples.add("reads_per_op", each(disk.map(|d| d.reads)));
    samples.add("written_bytes_per_op", each(disk.map(|d| d.write_bytes)));
    samples.add("peak_bytes", group.usage().peak_bytes.map(|b| b as f64));
    Ok(())
}

/// Runs a program to its end: what it says, and what the disk did after it had loaded.
fn drive(setting: &Setting, argv: &[&str], group: &Cgroup) -> Result<(Value, Option<Disk>)> {
    let mut child = process::command(argv, Some(group), None)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", argv[0]))?;
    let mut said = String::new();
    let mut out = BufReader::new(child.stdout.take().context("its output")?);
    out.read_line(&mut said)?;
    let before = Disk::under(&setting.work_dir);
    out.read_to_string(&mut said)?;
    let after = Disk::under(&setting.work_dir);
    let mut errors = String::new();
    let mut stderr = child.stderr.take().context("its errors")?;
    stderr.read_to_string(&mut errors)?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{status}: {}", errors.trim());
    }
    let line = said.lines().last().unwrap_or_default();
    let figures =
        serde_json::from_str(line).with_context(|| format!("{} said {said:?}", argv[0]))?;
    Ok((
        figures,
        after.zip(before).map(|(after, before)| after.since(before)),
    ))
}
