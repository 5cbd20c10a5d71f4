//! `terrace pool`: makes, describes, verifies and removes pools. What they find goes to stdout, as lines or as JSON.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use terrace_pool::{Contents, Pool};

use crate::progress::Progress;
use crate::size::Size;
use crate::{Failure, print_json};

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
    #[arg(long, value_name = "SIZE")]
    ssd: Size,
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

fn create(args: &CreateArgs) -> Result<u8, Failure> {
    if !(1..=terrace_server::THREADS_MAX).contains(&args.threads) {
        let (asked, most) = (args.threads, terrace_server::THREADS_MAX);
        return Err(Failure::Misuse(anyhow!(
            "--threads is {asked}; allowed are 1 to {most}"
        )));
    }
    let options = terrace_pool::Options {
        dir: args.at.dir.clone(),
        ssd_bytes: args.ssd.0,
        threads: args.threads,
        ..terrace_pool::Options::default()
    };
    let mut progress = Progress::default();
    let made = Pool::create(&options, &mut |step, done, total| {
        progress.show(step, done, total)
    });
    progress.finish();
    made.map_err(failed)?;
    if args.at.json {
        return info(&args.at);
    }
    println!("made a pool of {} in {}", args.ssd, args.at.dir.display());
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
        describe(&args.dir, &report);
    }
    Ok(0)
}

fn describe(dir: &Path, report: &terrace_pool::CheckReport) {
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    println!("pool            {}", dir.display());
    println!("size            {}", Size(report.ssd_bytes));
    println!("lanes           {}", report.lanes);
    println!("segments of     {}", Size(report.segment_bytes.into()));
    println!("holds           {}", report.contents.name());
    match report.contents {
        Contents::Keys => println!("keys            {}", report.keys),
        Contents::Objects => println!("objects         {}", report.keys),
        // The rest is about what is kept.
        Contents::Scratch => return,
    }
    println!("stopped cleanly {}", yes(report.clean_stop));
    println!("checkpoint      {}", yes(report.checkpoint));
    println!("durable epoch   {}", report.epoch);
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
        describe(&args.dir, &report);
        println!(
            "verified        {} entries, {}",
            report.entries,
            Size(report.verified_bytes)
        );
        for damage in &report.damage {
            println!(
                "DAMAGED         lane {}, segment {}, bytes {} to {}: {}",
                damage.lane, damage.segment, damage.from_bytes, damage.to_bytes, damage.what
            );
        }
        match report.damage.len() {
            0 => println!("all is well"),
            n => println!("{n} damaged places"),
        }
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
        print_json(&serde_json::json!({ "destroyed": dir }))?;
    } else {
        println!("removed the pool in {}", dir.display());
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
    eprint!(
        "Remove the pool in {} and all that is in it? Type yes: ",
        dir.display()
    );
    std::io::stderr().flush().context("cannot ask")?;
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
        print_json(&serde_json::json!({ "dropped": args.dir }))?;
    } else {
        println!(
            "both checkpoints of {} are gone; the next start scans everything",
            args.dir.display()
        );
    }
    Ok(0)
}
