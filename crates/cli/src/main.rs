//! The command `terrace`: reads its arguments and calls the rooms that do the work. It exits with 0 when all is well,
//! 1 when something failed or was found wrong, and 2 when it was called wrongly (`bench` with 3, too: a bar could not be judged). Results go to
//! stdout, everything else to stderr.

mod config;
mod doctor;
mod generate;
mod logs;
mod notify;
mod pool;
mod progress;
mod run;
mod serve;
mod size;
mod top;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};
use terrace_pool::PoolError;

/// How a command ends.
pub enum Failure {
    /// Exit code 2.
    Misuse(anyhow::Error),
    /// Exit code 1.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        Failure::Failed(e)
    }
}

impl From<PoolError> for Failure {
    fn from(e: PoolError) -> Self {
        match e {
            PoolError::Setting { .. } => Failure::Misuse(e.into()),
            _ => Failure::Failed(e.into()),
        }
    }
}

/// Memory larger than DRAM: a key-value server whose data may be many times larger than its bound on DRAM, and survives
/// crashes.
#[derive(Parser)]
#[command(
    name = "terrace",
    version,
    about,
    after_help = "Example:\n  terrace serve --pool ./pool --dram 256M --ssd 2G\n  redis-cli -p 6380 set hello world"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a pool over the Redis protocol, and memcached's if asked
    #[command(
        after_help = "Example:\n  terrace serve --pool ./pool --dram 256M --ssd 2G --resp 127.0.0.1:6380"
    )]
    Serve(Box<ServeArgs>),
    /// Run a program, unchanged, on memory larger than DRAM
    #[command(
        after_help = "Example:\n  terrace run --dram 512M --ssd 12G -- memcached -m 8192\nLinux 6.6 or later. What works and what does not: docs/run.md of the source, run.md in /usr/share/doc/terrace of the package"
    )]
    Run(run::RunArgs),
    /// Make, look at, verify or remove a pool
    #[command(
        subcommand,
        after_help = "Example:\n  terrace pool create ./pool --ssd 2G\n  terrace pool info ./pool"
    )]
    Pool(pool::PoolCommand),
    /// Watch the terraces of a running server, or of a program under `terrace run`
    #[command(
        after_help = "Example:\n  terrace top 127.0.0.1:6380\n  terrace top --once --json\n  terrace top --pid 4711"
    )]
    Top(top::TopArgs),
    /// Say what this machine allows, and what falls back to what
    #[command(after_help = "Example:\n  terrace doctor /var/lib/terrace")]
    Doctor(DoctorArgs),
    /// Measure beside peers (`terrace bench list` names the benches)
    #[command(after_help = "Example:\n  terrace bench first --out out/bench/first")]
    Bench(BenchArgs),
    /// Write the manual pages and shell completions to a directory
    #[command(hide = true)]
    Generate {
        /// The directory; made when missing
        dir: PathBuf,
    },
    /// The least that serves a miss, beside which `bench serve` shows ours; it starts it
    #[command(hide = true, name = "bench-bare-server")]
    BareServer {
        /// Address, file, bytes of a value
        args: Vec<String>,
    },
    /// A process under load of `bench memory`, which starts it
    #[command(hide = true, name = "bench-memory-child")]
    MemoryChild {
        /// Kind of memory, directory, limit in bytes, objects
        args: Vec<String>,
    },
}

#[derive(Args)]
struct ServeArgs {
    #[command(flatten)]
    flags: config::Flags,
    /// TOML file with any of these flags; flags on the command line win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
struct DoctorArgs {
    /// Where the pool is, or is to be
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct BenchArgs {
    /// The bench, or `list`
    name: String,
    /// Print the record as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Where files go [default: out/bench/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A directory on the disk to measure, in which `terrace-bench-work-PID` is made and removed again [default: the output directory]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Rounds of each peer in each case
    #[arg(long, default_value_t = 5)]
    repeats: u32,
    /// Length of a round in seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Only these parts of the bench, with commas between them
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<String>,
    /// Divides data sizes, for a quick look; bars are judged at 1 only
    #[arg(long, default_value_t = 1, value_name = "N")]
    scale_divisor: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(refused) = logs::to_stderr() {
        complain(&refused);
        return ExitCode::from(2);
    }
    let ended = match cli.command {
        Command::Serve(args) => serve::run(args.flags, args.config.as_deref()).map(|()| 0),
        Command::Run(args) => run::run(&args),
        Command::Pool(command) => pool::run(command),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => run_doctor(&args),
        Command::Bench(args) => run_bench(args),
        Command::Generate { dir } => generate::run(Cli::command(), &dir)
            .map(|()| 0)
            .map_err(Failure::from),
        Command::BareServer { args } => terrace_bench::bare_server(&args)
            .map(|()| 0)
            .map_err(Failure::from),
        Command::MemoryChild { args } => terrace_bench::memory_child(&args)
            .map(|()| 0)
            .map_err(Failure::from),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(Failure::Failed(e)) => {
            complain(&format!("{e:#}"));
            ExitCode::from(1)
        }
        Err(Failure::Misuse(e)) => {
            complain(&format!("{e:#}\nFor more information, try '--help'."));
            ExitCode::from(2)
        }
    }
}

/// The exit code tells it, too, where stderr takes nothing.
fn complain(why: &str) {
    let _ = writeln!(std::io::stderr(), "terrace: {why}");
}

fn run_doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let report = doctor::report(&args.dir);
    if args.json {
        print_json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(u8::from(!report.can_run()))
}

fn run_bench(args: BenchArgs) -> Result<u8, Failure> {
    let options = terrace_bench::Options {
        json: args.json,
        out_dir: args.out,
        work_dir: args.work,
        repeats: args.repeats,
        seconds: args.seconds,
        only: args.only,
        scale_divisor: args.scale_divisor,
        ..terrace_bench::Options::default()
    };
    terrace_bench::check(&args.name, &options).map_err(Failure::Misuse)?;
    let code = terrace_bench::run(&args.name, options, &|text| print(&text).map(drop))?;
    Ok(u8::try_from(code).unwrap_or(1))
}

/// Prints a result. False: whoever read it has seen enough, and is gone.
///
/// # Errors
/// When stdout does not take it.
fn print(result: &dyn Display) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match write!(out, "{result}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to stdout"),
    }
}

/// Prints a result for programs.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?;
    print(&format_args!("{text}\n"))?;
    Ok(())
}
