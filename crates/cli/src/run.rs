//! `terrace run`: starts a program whose memory is larger than DRAM, unchanged.
//!
//! The program takes this process's place, with the preload library in front of its memory; so signals, status and terminal are its own. Promises: what
//! cannot be served is refused here, with the reason, before anything starts. Never: stays behind.

mod program;

use crate::Failure;
use crate::size::Size;
use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_pool::PoolError;
use terrace_vm::store::{Store, StoreOptions};
use terrace_vm::{Memory, Options, PAGE_BYTES as PAGE, Way, exec_as_started};

/// The library, beside the command or in a directory for libraries near it.
const LIBRARY: &str = "libterrace_preload.so";
const LIBRARY_DIRS: [&str; 3] = [".", "../lib", "../lib/terrace"];
/// SSD for each byte of the cap, if not said.
const SSD_PER_DRAM: u64 = 8;
/// Handler threads, unless there are more processors.
const THREADS_MIN: usize = 4;
const THREADS_MAX: usize = 16;
const PAGE_BYTES: u64 = PAGE as u64;
/// Processes with pools of one run.
const PROCESSES_MAX: i64 = 256;
/// The magic number of a file system that is DRAM itself.
const TMPFS: u64 = 0x0102_1994;

/// What a pool of one lane needs: said before anything that follows from it, as the size of the SSD does.
const DRAM_MIN_BYTES: u64 = terrace_pool::DRAM_PER_LANE_MIN_BYTES;

/// How faults are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Faults {
    /// Dispatch where the system can; threads where it cannot, or where the program makes an io_uring or enters a filter of system calls first
    Auto,
    /// By threads of the runtime, which covers the kernel's own accesses
    Thread,
    /// In the faulting thread, with system calls dispatched and copied: quicker; no io_uring, libaio or filter of system calls
    Dispatch,
}

/// What is asked for.
#[derive(Args)]
pub struct RunArgs {
    /// DRAM for the program's memory, everything counted
    #[arg(long, value_name = "SIZE")]
    dram: Size,
    /// Directory for the pool, kept for the next run [default: one that goes with the program, in TMPDIR or /var/tmp]
    #[arg(long, value_name = "DIR")]
    pool: Option<PathBuf>,
    /// Room on the SSD [default: 8 times --dram]
    #[arg(long, value_name = "SIZE")]
    ssd: Option<Size>,
    /// Processes of the program's that may have memory at a time, forked by it or started by it: each has an equal part of --dram, --ssd and --unserved
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=PROCESSES_MAX))]
    processes: u32,
    /// Smaller allocations and mappings stay outside
    #[arg(long, value_name = "SIZE", default_value = "1K")]
    min_size: Size,
    /// Most that smaller allocations may take in the program's own malloc; beyond it they are served, too (glibc's malloc on x86_64 only) [default: a quarter of --dram, at least 16M]
    #[arg(long, value_name = "SIZE")]
    unserved: Option<Size>,
    /// How page faults are taken
    #[arg(long, value_name = "WAY", value_enum, default_value = "auto")]
    faults: Faults,
    /// Where the report goes at the end and on SIGUSR2: a file, `-` for stderr, `none`
    #[arg(long, value_name = "FILE", default_value = "-")]
    report: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program in this process's place; comes back only if that cannot be.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let (name, rest) = args.program.split_first().expect("clap asks for one");
    let program = program::find(name).map_err(Failure::Misuse)?;
    program::check(&program)
        .map_err(|why| Failure::Misuse(anyhow!("{} cannot be served: {why}", program.display())))?;
    let processes = u64::from(args.processes);
    // Whole pages.
    let each = |bytes: u64| match processes {
        1 => bytes,
        n => bytes / n / PAGE_BYTES * PAGE_BYTES,
    };
    let dram_bytes = each(args.dram.0);
    if dram_bytes < DRAM_MIN_BYTES {
        return Err(Failure::Misuse(anyhow!(
            "--dram is {} bytes{}: a pool needs at least {} MiB",
            args.dram.0,
            match processes {
                1 => String::new(),
                n => format!(", {dram_bytes} for each of {n} processes"),
            },
            DRAM_MIN_BYTES >> 20
        )));
    }
    let ssd = crate::pool::not_zero(args.ssd)?;
    let ssd_bytes = each(ssd.map_or(args.dram.0.saturating_mul(SSD_PER_DRAM), |ssd| ssd.0));
    let library = library()?;
    check_preload(&library)?;
    check_faults()?;
    // No other run has it, in whichever container.
    let random = RandomState::new().build_hasher().finish();
    let run = format!("terrace-run-{}-{random:016x}", std::process::id());
    let (pool, is_scratch) = pool(args.pool.as_deref(), &run)?;
    let made = match is_scratch || processes == 1 {
        true => make_pool(&pool, dram_bytes, ssd_bytes),
        false => (0..processes)
            .try_for_each(|nth| make_pool(&pool.join(nth.to_string()), dram_bytes, ssd_bytes)),
    };
    if is_scratch {
        // It was to show that it can be had; the program makes it again when it needs it, and has it open without a name.
        let _ = std::fs::remove_dir_all(&pool);
    }
    made?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let report = match args.report.as_os_str() {
        none if none == "none" => OsString::new(),
        dash if dash == "-" => dash.into(),
        _ => std::path::absolute(&args.report)
            .context("--report")?
            .into_os_string(),
    };
    let mut command = Command::new(&program);
    match args.unserved {
        Some(unserved) => command.env("TERRACE_RUN_UNSERVED", each(unserved.0).to_string()),
        None => command.env_remove("TERRACE_RUN_UNSERVED"),
    };
    command
        .args(rest)
        .arg0(name)
        .env("LD_PRELOAD", preloads(&library))
        .env("TERRACE_RUN_PROCESS", std::process::id().to_string())
        .env("TERRACE_RUN_PROCESSES", processes.to_string())
        .env("TERRACE_RUN_NAME", &run)
        .env("TERRACE_RUN_DRAM", dram_bytes.to_string())
        .env("TERRACE_RUN_SSD", ssd_bytes.to_string())
        .env("TERRACE_RUN_POOL", &pool)
        .env("TERRACE_RUN_SCRATCH", u8::from(is_scratch).to_string())
        .env("TERRACE_RUN_MIN_SIZE", args.min_size.0.to_string())
        .env(
            "TERRACE_RUN_THREADS",
            threads.clamp(THREADS_MIN, THREADS_MAX).to_string(),
        )
        .env(
            "TERRACE_RUN_DISPATCH",
            match args.faults {
                Faults::Thread => "0",
                Faults::Auto => "1",
                Faults::Dispatch => "2",
            },
        )
        .env("TERRACE_RUN_REPORT", report);
    let failed = exec_as_started(&mut command);
    Err(anyhow!("{} cannot be started: {failed}", program.display()).into())
}

fn library() -> Result<PathBuf, anyhow::Error> {
    let own = std::env::current_exe().context("where this command is")?;
    let own = own.canonicalize().unwrap_or(own);
    let dir = own.parent().unwrap_or(Path::new("/"));
    let there = LIBRARY_DIRS.map(|near| dir.join(near).join(LIBRARY));
    let found = there.iter().find(|path| path.is_file());
    found
        .and_then(|path| path.canonicalize().ok())
        .ok_or_else(|| {
            anyhow!(
                "{LIBRARY} is neither beside {} nor in ../lib of it: build it with `cargo build --release`, or install it with `make install`",
                own.display()
            )
        })
}

/// The loader takes LD_PRELOAD apart at spaces and colons, puts directories in for words that begin with `$`, and goes on without what it
/// does not find.
fn check_preload(library: &Path) -> Result<(), anyhow::Error> {
    let path = library.as_os_str().as_encoded_bytes();
    anyhow::ensure!(
        !path.iter().any(|byte| b" :$".contains(byte)),
        "the path of {} has a space, a colon or a dollar sign in it, with which the loader does not find it (LD_PRELOAD): move the \
         command and its library to a directory without",
        library.display()
    );
    Ok(())
}

/// Ours first, so that it stands in front of others.
fn preloads(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// Whether this machine lets a program take its faults, the kernel's own among them.
pub fn check_faults() -> Result<(), anyhow::Error> {
    let tried = Memory::new(Options {
        way: Way::Handlers(1),
        pages_max: terrace_vm::PAGES_MIN,
        reserve_bytes: 1 << 30,
        ..Options::default()
    });
    tried.map(drop).context(
        "this machine does not let the program's faults be taken (`terrace doctor` says more)",
    )
}

/// The pool's directory, and whether it goes with the program.
fn pool(asked: Option<&Path>, name: &str) -> Result<(PathBuf, bool), anyhow::Error> {
    if let Some(dir) = asked {
        make_dir(dir).with_context(|| format!("--pool {}", dir.display()))?;
        return Ok((dir.canonicalize().context("--pool")?, false));
    }
    let parent = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    let parent = parent.map_or(PathBuf::from("/var/tmp"), PathBuf::from);
    check_disk(&parent)?;
    let dir = parent.join(name);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&dir)
        .with_context(|| format!("making {} (--pool DIR chooses another)", dir.display()))?;
    Ok((dir.canonicalize().context("the pool's directory")?, true))
}

/// As a pool is made anywhere: where the directory above it is, and for nobody else.
fn make_dir(dir: &Path) -> Result<(), anyhow::Error> {
    if dir.is_dir() {
        return check_disk(dir);
    }
    match dir.parent() {
        Some(above) if !above.as_os_str().is_empty() => check_disk(above)?,
        _ => check_disk(Path::new("."))?,
    }
    Ok(std::fs::DirBuilder::new().mode(0o700).create(dir)?)
}

fn check_disk(dir: &Path) -> Result<(), anyhow::Error> {
    let there = rustix::fs::statfs(dir).with_context(|| dir.display().to_string())?;
    anyhow::ensure!(
        there.f_type as u64 != TMPFS,
        "{} is a tmpfs, which is DRAM: choose a directory on a disk with --pool DIR",
        dir.display()
    );
    Ok(())
}

/// Makes the pool, so that what is wrong with it is said before the program starts.
fn make_pool(dir: &Path, dram_bytes: u64, ssd_bytes: u64) -> Result<(), PoolError> {
    let options = StoreOptions {
        prewrite: false,
        ..StoreOptions::scratch(dir, dram_bytes, ssd_bytes)
    };
    Store::open(&options).map(drop)
}
