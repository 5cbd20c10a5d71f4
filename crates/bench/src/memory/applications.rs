//! Part `g`: the applications of `examples/`, each from one source with malloc on swap, MP and OPP, in the same cgroup over ten times its memory.
//!
//! A program loads its data once and says so; then all builds of an application take turns, one at a time, with a round for each load that it is asked for, after it was warmed with that
//! load. Promises: what an application keeps in malloc's memory beside (an index) is in its cgroup too. Never: compiles; `make examples` does.

use crate::cgroup::Cgroup;
use crate::machine::Disk;
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, paired_ratio};
use crate::rounds::judge_usage;
use crate::steady::Steady;
use crate::swap::{SWAP_OVER_DATA, SwapFile};
use crate::{Setting, process, stop};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const LIMIT_BYTES: u64 = 64 << 20;
/// Data over the limit.
const RATIO: u64 = 10;
/// The same when scaled down, at least: the limit stays, since a store and its threads need some.
const RATIO_MIN: u64 = 2;
/// Text, stacks and the kernel's own: what the limit has above the cap.
const SLACK_BYTES: u64 = 5 << 20;
/// The pool on the disk over the data: each object of 128 bytes has a header too, and a tenth is kept free.
const DISK_OVER_DATA: u64 = 2;
/// How often what is on swap is started, at most.
const SWAP_STARTS: u32 = 3;
const ZIPF: &str = "0.99";
/// As many threads as find the device busy.
const THREADS: u64 = 16;
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
    /// What a place of its index takes, which is in malloc's memory: of each shard a power of two of them, a quarter more than keys at least.
    place_bytes: u64,
}

const APPLICATIONS: &[Application] = &[
    Application {
        name: "btree",
        bytes_per_key: 512 * 16 / 15 / 15,
        place_bytes: 0,
    },
    Application {
        name: "packetcache",
        bytes_per_key: 1024,
        place_bytes: 16,
    },
    Application {
        name: "hashcache",
        bytes_per_key: 24,
        place_bytes: 0,
    },
];

/// Name of the program's build, and of what it is beside the others.
const KINDS: &[(&str, &str)] = &[("OPP", "OPP"), ("MP", "MP"), ("malloc", "malloc on swap")];
/// A name; percent of reads; what OPP must reach over swap, and over MP.
type Load = (&'static str, u32, f64, f64);
const LOADS: &[Load] = &[("reads", 100, 1.4, 1.3), ("writes", 0, 2.0, 1.3)];

impl Application {
    /// What it keeps in malloc's memory beside.
    fn beside_bytes(&self, keys: u64) -> u64 {
        let shard = keys.div_ceil(THREADS);
        THREADS * (shard + shard / 4).next_power_of_two() * self.place_bytes
    }
}

/// Sizes of a run.
#[derive(Clone, Copy)]
struct Sizes {
    limit: u64,
    data: u64,
    disk: u64,
}

impl Sizes {
    fn of(setting: &Setting) -> Sizes {
        let limit = LIMIT_BYTES;
        let scaled = limit * RATIO / setting.options.scale_divisor;
        let data = scaled.max(limit * RATIO_MIN);
        Sizes {
            limit,
            data,
            disk: data * DISK_OVER_DATA,
        }
    }
}

/// Runs the part.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let sizes = Sizes::of(setting);
    let title = format!(
        "applications in C with {} MiB of data in a cgroup of {} MiB, Zipf {ZIPF}, {THREADS} threads, each with a shard",
        sizes.data >> 20,
        sizes.limit >> 20
    );
    let mut part = Part::new("g", &title, COLUMNS);
    let swap_bytes = sizes.data * SWAP_OVER_DATA;
    let swap = SwapFile::new(&setting.work_dir.join("swap"), swap_bytes);
    let steps = KINDS.len() * (1 + LOADS.len() * (1 + setting.options.repeats as usize));
    let progress = Progress::new((APPLICATIONS.len() * steps) as u64);
    let finished = APPLICATIONS.iter().try_for_each(|application| {
        beside(
            setting,
            application,
            sizes,
            &swap,
            report,
            &mut part,
            &progress,
        )
    });
    part.notes.push(
        "The paper (2011): OPP 4.3 to 17.1 times swap and 1.3 to 3.3 times MP, against the pager and SSDs of its day.".into(),
    );
    // Also what was measured before one of ours failed.
    report.parts.push(part);
    finished
}

/// Loads and drives the builds of one application.
fn beside(
    setting: &Setting,
    application: &Application,
    sizes: Sizes,
    swap: &Result<SwapFile>,
    report: &mut Report,
    part: &mut Part,
    progress: &Progress,
) -> Result<()> {
    let notes = &mut part.notes;
    let started = KINDS.iter().map(|(kind, _)| {
        progress.step(format!("loading {}, {kind}", application.name));
        let start = || Running::start(setting, application, kind, sizes);
        match (swap, *kind == "malloc") {
            (Err(e), true) => Err(anyhow::anyhow!("{e:#}")),
            (Ok(_), true) => program(setting, application.name, kind).and_then(|_| {
                again(start, |e| {
                    notes.push(format!("{} on swap, begun again: {e:#}", application.name));
                })
            }),
            (_, false) => start(),
        }
    });
    let mut running: Vec<Result<Running>> = started.collect();
    for ((kind, _), one) in KINDS.iter().zip(&mut running) {
        let is_built = program(setting, application.name, kind).is_ok();
        if let Err(e) = one
            && is_built
            && is_ours(kind)
        {
            // Not beside the point, as a peer's end would be.
            return Err(std::mem::replace(e, anyhow::anyhow!("")));
        }
    }
    for load in LOADS {
        run_load(
            setting,
            application,
            load,
            &mut running,
            report,
            part,
            progress,
        )?;
    }
    for (at, (kind, _)) in KINDS.iter().enumerate().filter(|(_, k)| is_ours(k.0)) {
        let usage = running[at].as_ref().ok().map(|r| r.group.usage());
        let what = format!("h, g, {}, {kind}", application.name);
        judge_usage(report, &what, sizes.limit, usage);
    }
    Ok(())
}

/// Whether a build runs on Terrace.
fn is_ours(kind: &str) -> bool {
    kind != "malloc"
}

/// Starts what is on swap, again if need be: Linux kills it now and then while it loads, where it finds nothing to reclaim under so small a limit. Ours has one try.
fn again(
    start: impl Fn() -> Result<Running>,
    mut failed: impl FnMut(&anyhow::Error),
) -> Result<Running> {
    for _ in 1..SWAP_STARTS {
        match start() {
            Err(e) => {
                stop::check()?;
                failed(&e);
            }
            running => return running,
        }
    }
    start()
}

/// Warms all builds with a load, drives them in turns, and judges.
fn run_load(
    setting: &Setting,
    application: &Application,
    load: &Load,
    running: &mut [Result<Running>],
    report: &mut Report,
    part: &mut Part,
    progress: &Progress,
) -> Result<()> {
    let (name, reads, over_swap, over_mp) = *load;
    let is_first = name == LOADS[0].0;
    let case = format!("{}, {name}", application.name);
    let mut samples = vec![Samples::default(); KINDS.len()];
    let seconds = setting.options.seconds;
    for round in 0..=setting.options.repeats {
        for ((one, samples), (kind, _)) in running.iter_mut().zip(&mut samples).zip(KINDS) {
            progress.step(&case);
            stop::check()?;
            let Ok(program) = one else { continue };
            let done = match round {
                0 => program.warm(setting, reads, is_first),
                _ => program.round(setting, reads, seconds, samples),
            };
            match done {
                Err(e) if is_ours(kind) => return Err(e.context(format!("{case}, {kind}"))),
                Err(e) => *one = Err(e),
                Ok(()) => {}
            }
        }
    }
    for ((one, samples), (_, peer)) in running.iter().zip(&samples).zip(KINDS) {
        part.rows.push(match one {
            Ok(_) => Row::measured(&case, peer, samples),
            Err(e) => Row::missing(&case, peer, &format!("{e:#}")),
        });
    }
    for (peer, limit) in [(2, over_swap), (1, over_mp)] {
        let both = running[0].is_ok() && running[peer].is_ok();
        let ratio = paired_ratio(&samples[0], &samples[peer], "ops_per_s").filter(|_| both);
        let name = format!("g, {case}: OPP over {}", KINDS[peer].1);
        let bar = Bar::new(name, Side::AtLeast, limit, ratio.map(|r| r.median));
        report.bars.push(bar);
    }
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
fn arguments(application: &Application, sizes: Sizes, pool: &Path) -> Vec<String> {
    let keys = sizes.data / application.bytes_per_key;
    let cap = sizes.limit - SLACK_BYTES - application.beside_bytes(keys);
    let words = [
        ("--keys", keys.to_string()),
        ("--cap", cap.to_string()),
        ("--ssd", sizes.disk.to_string()),
        ("--zipf", ZIPF.to_owned()),
        ("--threads", THREADS.to_string()),
        ("--pool", pool.display().to_string()),
    ];
    let words = words
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value]);
    words.chain(["--commands".to_owned()]).collect()
}

/// A program that has loaded its data.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pool: PathBuf,
    // Dropped after the child is gone.
    group: Cgroup,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Each fails only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.pool);
    }
}

/// What a round did.
struct Did {
    ops: f64,
    ops_per_s: f64,
    disk: Option<Disk>,
}

impl Running {
    fn start(
        setting: &Setting,
        application: &Application,
        kind: &str,
        sizes: Sizes,
    ) -> Result<Running> {
        let path = program(setting, application.name, kind)?;
        // Read before by this process, its file is in the page cache already, and so not in the group's: it is as large as a fifth of that.
        fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let program = path.display().to_string();
        let pool = setting.work_dir.join(format!("g-pool-{kind}"));
        let arguments = arguments(application, sizes, &pool);
        let mut argv = vec![program.as_str()];
        argv.extend(arguments.iter().map(String::as_str));
        let group = Cgroup::new(kind, sizes.limit, kind == "malloc")?;
        // What it complains of is shown as it comes.
        let mut child = process::command(&argv, Some(&group), None)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", argv[0]))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut running = Running {
            child,
            input: input.context("no pipe to the program")?,
            output: BufReader::new(output.context("no pipe from the program")?),
            pool,
            group,
        };
        running.line().map(|_| running)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("it ended early: {}", self.child.wait()?);
        }
        stop::check()?;
        Ok(line)
    }

    fn play(&mut self, setting: &Setting, reads: u32, seconds: f64) -> Result<Did> {
        let before = Disk::under(&setting.work_dir);
        writeln!(self.input, "{reads} {seconds}")?;
        let said: Value = serde_json::from_str(&self.line()?)?;
        let after = Disk::under(&setting.work_dir);
        let figure = |name: &str| said[name].as_f64().with_context(|| format!("no {name}"));
        Ok(Did {
            ops: figure("ops")?.max(1.0),
            ops_per_s: figure("ops_per_s")?,
            disk: after.zip(before).map(|(after, before)| after.since(before)),
        })
    }

    /// Drives it until what is wanted often has come to DRAM. The keys are those of the load before, if there was one.
    fn warm(&mut self, setting: &Setting, reads: u32, is_first: bool) -> Result<()> {
        let mut steady = match is_first {
            true => Steady::anew(&setting.options),
            false => Steady::once_more(&setting.options),
        };
        while let Some(seconds) = steady.next_run_s() {
            let did = self.play(setting, reads, seconds)?;
            let of = |figure: fn(&Disk) -> u64| {
                did.disk
                    .as_ref()
                    .map_or(0.0, |disk| figure(disk) as f64 / did.ops)
            };
            steady.ran(of(|disk| disk.reads), of(|disk| disk.write_bytes));
        }
        Ok(())
    }

    fn round(
        &mut self,
        setting: &Setting,
        reads: u32,
        seconds: f64,
        samples: &mut Samples,
    ) -> Result<()> {
        let did = self.play(setting, reads, seconds)?;
        let each =
            |total: fn(&Disk) -> u64| did.disk.as_ref().map(|disk| total(disk) as f64 / did.ops);
        samples.round();
        samples.add("ops_per_s", did.ops_per_s);
        samples.add("reads_per_op", each(|disk| disk.reads));
        samples.add("written_bytes_per_op", each(|disk| disk.write_bytes));
        samples.add(
            "peak_bytes",
            self.group.usage().peak_bytes.map(|b| b as f64),
        );
        Ok(())
    }
}
