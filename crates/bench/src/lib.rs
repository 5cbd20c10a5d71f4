//! `terrace bench NAME`: measures Terrace beside its peers and judges the figures against stated bars.
//!
//! Peers run in turns in one run, pinned, under the same memory limit; a figure is a median with its spread, and what could not
//! be measured shows as `n/a`. What the run needs (servers, cgroups, a swap file) is taken down on every way out. Nothing here is
//! used by the product itself, and no figure comes from anywhere but the run that prints it.

mod bare;
mod cgroup;
mod client;
mod device;
mod first;
mod index;
pub mod load;
mod machine;
mod memory;
mod policy;
mod process;
mod progress;
mod report;
mod rounds;
mod run;
mod serve;
mod server;
mod steady;
mod stop;
mod swap;
mod told;

use anyhow::{Context, Result, bail};
use report::Report;
use std::path::PathBuf;

/// Bounds of the options.
const REPEATS_MAX: u32 = 1_000;
const SECONDS_MAX: f64 = 86_400.0;
const SCALE_DIVISOR_MAX: u64 = 1 << 20;

/// How to run a bench.
#[derive(Debug, Clone)]
pub struct Options {
    /// Print the record as JSON instead of the table.
    pub json: bool,
    /// Where files go; `out/bench/NAME` if not given.
    pub out_dir: Option<PathBuf>,
    /// Where pools and swap files go, a directory on the disk to measure; `work` in the output directory if not given. A
    /// directory of our own is made in it and removed again.
    pub work_dir: Option<PathBuf>,
    /// Rounds of each peer in each case.
    pub repeats: u32,
    /// Length of a round, seconds.
    pub seconds: f64,
    /// Only these parts of the bench; empty means all.
    pub only: Vec<String>,
    /// Divides data sizes, for a smoke test; bars are judged at 1 only.
    pub scale_divisor: u64,
    /// The `terrace` to measure; this executable if not given.
    pub server_exe: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            json: false,
            out_dir: None,
            work_dir: None,
            repeats: 5,
            seconds: 4.0,
            only: Vec::new(),
            scale_divisor: 1,
            server_exe: None,
        }
    }
}

/// Runs the process that a load of `bench memory` is in; the bench itself starts it.
pub fn memory_child(args: &[String]) -> Result<()> {
    memory::child::run(args)
}

/// Runs the bare server beside which row c of `bench serve` is seen; the bench itself starts it.
pub fn bare_server(args: &[String]) -> Result<()> {
    bare::run(args)
}

struct Bench {
    name: &'static str,
    about: &'static str,
    parts: &'static [&'static str],
    run: fn(&Setting, &mut Report) -> Result<()>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "first",
        about: "in DRAM, over a cap, and recovery, beside redis-server",
        parts: first::PARTS,
        run: first::run,
    },
    Bench {
        name: "serve",
        about: "speed, distance to the device, steadiness, beside redis-server and memcached",
        parts: serve::PARTS,
        run: serve::run,
    },
    Bench {
        name: "device",
        about: "the disk's own limit: random reads by queue depth, durable writes",
        parts: &[],
        run: device::run,
    },
    Bench {
        name: "index",
        about: "the key map alone: bytes of DRAM a key and the longest operation, 1 k to 20 M keys",
        parts: &[],
        run: index::run,
    },
    Bench {
        name: "policy",
        about: "counts, not timings: hit ratio beside LRU and Belady, live share of DRAM, bytes written a byte updated",
        parts: policy::PARTS,
        run: policy::run,
    },
    Bench {
        name: "memory",
        about: "memory larger than DRAM: what a fault costs, beside the kernel's part of it",
        parts: memory::PARTS,
        run: memory::run,
    },
    Bench {
        name: "run",
        about: "unmodified programs under `terrace run`, beside swap",
        parts: run::PARTS,
        run: run::run,
    },
];

/// Options with the directories and the executable found.
pub(crate) struct Setting {
    pub options: Options,
    pub out_dir: PathBuf,
    pub work_dir: PathBuf,
    pub exe: PathBuf,
}

impl Setting {
    /// Whether this part was asked for.
    pub fn wants(&self, part: &str) -> bool {
        self.options.only.is_empty() || self.options.only.iter().any(|only| only == part)
    }
}

/// The directory for pools and swap files, removed when dropped.
struct WorkDir(PathBuf);

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("could not remove {}: {e}", self.0.display());
        }
    }
}

/// Names of all benches with one line each, as `terrace bench list` prints them.
pub fn list() -> String {
    let line = |bench: &Bench| {
        let parts = if bench.parts.is_empty() {
            String::new()
        } else {
            format!(" (parts: {})", bench.parts.join(", "))
        };
        format!("{:<8} {}{parts}\n", bench.name, bench.about)
    };
    BENCHES.iter().map(line).collect()
}

fn list_as_json() -> Result<String> {
    #[derive(serde::Serialize)]
    struct Listed {
        name: &'static str,
        about: &'static str,
        parts: &'static [&'static str],
    }
    let listed = BENCHES.iter().map(|bench| Listed {
        name: bench.name,
        about: bench.about,
        parts: bench.parts,
    });
    Ok(serde_json::to_string_pretty(&listed.collect::<Vec<_>>())? + "\n")
}

/// Whether there is such a bench, with such options. Errors: what is refused, and what is allowed.
pub fn check(name: &str, options: &Options) -> Result<()> {
    match name {
        "list" => Ok(()),
        name => check_options(named(name)?, options),
    }
}

fn named(name: &str) -> Result<&'static Bench> {
    let found = BENCHES.iter().find(|bench| bench.name == name);
    found.with_context(|| format!("there is no bench `{name}`; there are:\n{}", list()))
}

/// Runs the bench `name`, writes its files and gives its record to `print` (or the `list`).
///
/// Returns the exit code: 0 when every bar is met, 1 when one is missed, 3 when none is missed but one could not be judged.
/// Errors: an unknown name or part, an option out of bounds, a server that fails, wrong replies, or the user's wish to stop.
pub fn run(name: &str, options: Options, print: &dyn Fn(String) -> Result<()>) -> Result<i32> {
    if name == "list" {
        print(match options.json {
            true => list_as_json()?,
            false => list(),
        })?;
        return Ok(report::EXIT_MET);
    }
    let bench = named(name)?;
    check_options(bench, &options)?;
    stop::listen()?;
    let out_dir = options
        .out_dir
        .clone()
        .unwrap_or_else(|| PathBuf::from("out/bench").join(name));
    std::fs::create_dir_all(&out_dir).with_context(|| format!("making {}", out_dir.display()))?;
    let out_dir = out_dir.canonicalize()?;
    let work_in = options.work_dir.clone().unwrap_or_else(|| out_dir.clone());
    let work = WorkDir(work_in.join(format!("terrace-bench-work-{}", std::process::id())));
    std::fs::create_dir_all(&work.0).with_context(|| format!("making {}", work.0.display()))?;
    let exe = match &options.server_exe {
        Some(exe) => exe.clone(),
        None => std::env::current_exe().context("finding our own executable")?,
    };
    let setting = Setting {
        out_dir,
        work_dir: work.0.canonicalize()?,
        exe,
        options,
    };
    let mut report = Report::new(name, &setting.options);
    let finished = (bench.run)(&setting, &mut report);
    drop(work);
    if let Err(e) = &finished {
        // What was measured before is written all the same: it may have taken long.
        report.ended_early = Some(format!("{e:#}"));
    }
    if setting.options.scale_divisor != 1 {
        report.unjudge("data sizes were scaled down: a smoke test, its bars are not judged");
    }
    report.write(&setting.out_dir)?;
    print(text(&report, &setting)?)?;
    finished.map(|()| report.exit_code())
}

fn text(report: &Report, setting: &Setting) -> Result<String> {
    if setting.options.json {
        return Ok(serde_json::to_string_pretty(report)? + "\n");
    }
    let table = report::table::text(report);
    let mut text = format!("{table}files: {}\n", setting.out_dir.display());
    for bar in report.bars.iter().filter(|bar| bar.met == Some(false)) {
        text += &format!("missed: {}\n", bar.name);
    }
    Ok(text)
}

fn check_options(bench: &Bench, options: &Options) -> Result<()> {
    if options.repeats == 0 || options.repeats > REPEATS_MAX {
        bail!(
            "repeats: {} were asked, 1 to {REPEATS_MAX} are allowed",
            options.repeats
        );
    }
    if !(0.05..=SECONDS_MAX).contains(&options.seconds) {
        bail!(
            "seconds: {} were asked, 0.05 to {SECONDS_MAX} are allowed",
            options.seconds
        );
    }
    if options.scale_divisor == 0 || options.scale_divisor > SCALE_DIVISOR_MAX {
        bail!(
            "scale divisor: {} was asked, 1 to {SCALE_DIVISOR_MAX} are allowed",
            options.scale_divisor
        );
    }
    for part in &options.only {
        if !bench.parts.contains(&part.as_str()) {
            bail!(
                "the bench `{}` has no part `{part}`; it has: {}",
                bench.name,
                bench.parts.join(", ")
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_what_is_allowed() {
        let refused = |name: &str, options: Options| {
            let ran = run(name, options, &|_| Ok(()));
            ran.unwrap_err().to_string()
        };
        assert!(refused("nosuch", Options::default()).contains("first"));
        assert!(
            refused(
                "first",
                Options {
                    repeats: 0,
                    ..Options::default()
                }
            )
            .contains("1 to 1000")
        );
        assert!(
            refused(
                "first",
                Options {
                    seconds: f64::NAN,
                    ..Options::default()
                }
            )
            .contains("allowed")
        );
        assert!(
            refused(
                "first",
                Options {
                    only: vec!["x".into()],
                    ..Options::default()
                }
            )
            .contains("dram, cap, recovery")
        );
        assert!(list().lines().count() == BENCHES.len());
    }
}
