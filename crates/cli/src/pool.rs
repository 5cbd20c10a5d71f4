//! `terrace pool`: makes, describes, verifies and removes pools. What they find goes to stdout, as lines or as JSON.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use terrace_pool::{Contents, Pool};

use crate::progress::Progress;
use crate::size::Size;
use crate::{Failure, print, print_json};

/// What to do with a pool.
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool
    #[command(after_help = "Example:\n  terrace pool create ./pool --ssd 8G --threads 2")]
    Create(CreateArgs),
    /// Say what a pool is
    #[command(after_help = "Example:\n  terrace pool info ./pool --json")]
    Info(DirArgs),
    /// Read and verify everything in a pool; exit 1 and a list where anything is wrong
    #[command(after_help = "Example:\n  terrace pool check ./pool")]
    Check(DirArgs),
    /// Remove a pool and all that is in it
    #[command(after_help = "Example:\n  terrace pool destroy ./pool --yes")]
    Destroy(DestroyArgs),
    /// Delete both checkpoints, so that the next start scans everything (for tests of recovery)
    #[command(hide = true)]
    DropCheckpoints(DirArgs),
}

/// Which pool.
#[derive(Args)]
pub struct DirArgs {
    /// Directory of the pool
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How to make a pool.
#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    at: DirArgs,
    /// Size of the pool's file, like 8G
    #[arg(long, value_name = "SIZE", required_unless_present = "device")]
    ssd: Option<Size>,
    /// A block device that the pool takes all of, instead of a file; whatever is on it is lost
    #[arg(long, value_name = "FILE", conflicts_with = "ssd")]
    device: Option<PathBuf>,
    /// Threads that will serve it
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
}

/// Which pool, and whether that was meant.
#[derive(Args)]
pub struct DestroyArgs {
    #[command(flatten)]
    at: DirArgs,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Runs a subcommand; answers the exit code.
///
/// # Errors
/// When it could not be done.
pub fn run(command: PoolCommand) -> Result<u8, Failure> {
    match command {
        PoolCommand::Create(args) => create(&args),
        PoolCommand::Info(args) => info(&args),
        PoolCommand::Check(args) => check(&args),
        PoolCommand::Destroy(args) => destroy(&args),
        PoolCommand::DropCheckpoints(args) => drop_checkpoints(&args),
    }
}

fn failed(e: impl Into<anyhow::Error>) -> Failure {
    Failure::Failed(e.into())
}

/// The size of an SSD terrace, if it was said. The pool takes 0 for what was not said.
///
/// # Errors
/// `Misuse` for 0.
pub fn not_zero(ssd: Option<Size>) -> Result<Option<Size>, Failure> {
    match ssd {
        Some(Size(0)) => Err(Failure::Misuse(anyhow!(
            "--ssd is 0; say how large the SSD terrace is to be, like 8G"
        ))),
        ssd => Ok(ssd),
    }
}

fn create(args: &CreateArgs) -> Result<u8, Failure> {
    if !(1..=terrace_server::THREADS_MAX).contains(&args.threads) {
        let (asked, most) = (args.threads, terrace_server::THREADS_MAX);
        return Err(Failure::Misuse(anyhow!(
            "--threads is {asked}; allowed are 1 to {most}"
        )));
    }
    let options = terrace_pool::Options {
        dir: args.at.dir.clone(),
        ssd_bytes: not_zero(args.ssd)?.map_or(0, |ssd| ssd.0),
        device: args.device.clone(),
        threads: args.threads,
        ..terrace_pool::Options::default()
    };
    let mut progress = Progress::default();
    let made = Pool::create(&options, &mut |step, done, total| {
        progress.show(step, done, total)
    });
    progress.finish();
    let made = made?;
    if args.at.json {
        return info(&args.at);
    }
    let (size, dir) = (args.ssd.unwrap_or(Size(made.len_bytes())), &args.at.dir);
    print(&format_args!(
        "made a pool of {size} in {}\n",
        dir.display()
    ))?;
    Ok(0)
}

fn info(args: &DirArgs) -> Result<u8, Failure> {
    let report = match terrace_pool::contents(&args.dir).map_err(failed)? {
        Contents::Keys => terrace_pool::info(&args.dir),
        Contents::Objects | Contents::Scratch => terrace_vm::store::info(&args.dir),
    };
    let report = report.map_err(failed)?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&described(&args.dir, &report))?;
    }
    Ok(0)
}

fn described(dir: &Path, report: &terrace_pool::CheckReport) -> String {
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    let mut lines = vec![
        format!("pool            {}", dir.display()),
        format!("size            {}", Size(report.ssd_bytes)),
        format!("lanes           {}", report.lanes),
        format!("segments of     {}", Size(report.segment_bytes.into())),
        format!("holds           {}", report.contents.name()),
    ];
    match report.contents {
        Contents::Keys => lines.push(format!("keys            {}", report.keys)),
        Contents::Objects => lines.push(format!("objects         {}", report.keys)),
        Contents::Scratch => {}
    }
    // The rest is about what is kept.
    if report.contents != Contents::Scratch {
        lines.extend([
            format!("stopped cleanly {}", yes(report.clean_stop)),
            format!("checkpoint      {}", yes(report.checkpoint)),
            format!("durable epoch   {}", report.epoch),
        ]);
    }
    lines.join("\n") + "\n"
}

fn check(args: &DirArgs) -> Result<u8, Failure> {
    let mut progress = Progress::default();
    let contents = terrace_pool::contents(&args.dir).map_err(failed)?;
    let mut told = |done: u64, total: u64| progress.show("verifying", done, total);
    let report = match contents {
        Contents::Keys => terrace_pool::check(&args.dir, &mut told),
        Contents::Objects | Contents::Scratch => terrace_vm::store::check(&args.dir, &mut told),
    };
    progress.finish();
    let report = report.map_err(failed)?;
    if args.json {
        print_json(&report)?;
    } else {
        let mut text = described(&args.dir, &report);
        text += &format!(
            "verified        {} entries, {}\n",
            report.entries,
            Size(report.verified_bytes)
        );
        for damage in &report.damage {
            text += &format!(
                "DAMAGED         lane {}, segment {}, bytes {} to {}: {}\n",
                damage.lane, damage.segment, damage.from_bytes, damage.to_bytes, damage.what
            );
        }
        text += &match report.damage.len() {
            0 => "all is well\n".to_string(),
            n => format!("{n} damaged places\n"),
        };
        print(&text)?;
    }
    Ok(u8::from(!report.damage.is_empty()))
}

fn destroy(args: &DestroyArgs) -> Result<u8, Failure> {
    let dir = &args.at.dir;
    if !args.yes && !confirmed(dir)? {
        return Err(failed(anyhow!("nothing was removed")));
    }
    terrace_pool::destroy(dir).map_err(failed)?;
    if args.at.json {
        print_json(&serde_json::json!({ "destroyed": dir.to_string_lossy() }))?;
    } else {
        print(&format_args!("removed the pool in {}\n", dir.display()))?;
    }
    Ok(0)
}

/// Asks on the terminal; without one, only `--yes` will do.
fn confirmed(dir: &Path) -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why = anyhow!(
            "this removes the pool in {} and all that is in it; say --yes if that is meant",
            dir.display()
        );
        return Err(Failure::Misuse(why));
    }
    write!(
        std::io::stderr(),
        "Remove the pool in {} and all that is in it? Type yes: ",
        dir.display()
    )
    .context("cannot ask")?;
    let mut answer = String::new();
    stdin
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(answer.trim() == "yes")
}

fn drop_checkpoints(args: &DirArgs) -> Result<u8, Failure> {
    terrace_pool::drop_checkpoints(&args.dir).map_err(failed)?;
    if args.json {
        print_json(&serde_json::json!({ "dropped": args.dir.to_string_lossy() }))?;
    } else {
        print(&format_args!(
            "both checkpoints of {} are gone; the next start scans everything\n",
            args.dir.display()
        ))?;
    }
    Ok(0)
}
