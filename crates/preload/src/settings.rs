//! What `terrace run` asks of this library, as variables of the environment.
//!
//! Promises: a process that was not asked for, a child that ran exec, sees none and is not served. Never: changes the environment.

use std::ffi::{CStr, OsString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The cap, bytes.
pub const DRAM: &str = "TERRACE_RUN_DRAM";
/// The pool's size on the SSD, bytes.
pub const SSD: &str = "TERRACE_RUN_SSD";
/// The pool's directory.
pub const POOL: &str = "TERRACE_RUN_POOL";
/// 1: the pool's directory is removed as soon as it is open.
pub const SCRATCH: &str = "TERRACE_RUN_SCRATCH";
/// Smaller allocations stay where they are, bytes.
pub const MIN_SIZE: &str = "TERRACE_RUN_MIN_SIZE";
/// What smaller allocations may take before they are served, too, bytes; not there if the user did not say.
pub const UNSERVED: &str = "TERRACE_RUN_UNSERVED";
/// Handler threads.
pub const THREADS: &str = "TERRACE_RUN_THREADS";
/// Whether system calls are dispatched, and faults taken in the thread: 0 no, 1 if that is possible, 2 in any case.
pub const DISPATCH: &str = "TERRACE_RUN_DISPATCH";
/// Where the report goes; empty: nowhere, `-`: stderr.
pub const REPORT: &str = "TERRACE_RUN_REPORT";
/// How many processes may be served at a time; with more than one, also programs that are started by those that are.
pub const PROCESSES: &str = "TERRACE_RUN_PROCESSES";
/// A name that no other run has.
pub const NAME: &str = "TERRACE_RUN_NAME";

/// Whether system calls are dispatched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Handler threads take faults.
    Not,
    /// If this system can.
    IfPossible,
    /// Or the program ends (x86_64; other processors have threads, and it is said).
    Must,
}

/// See the head of the file.
pub struct Settings {
    /// See [`DRAM`].
    pub dram_bytes: u64,
    /// See [`SSD`].
    pub ssd_bytes: u64,
    /// See [`POOL`].
    pub pool: PathBuf,
    /// See [`SCRATCH`].
    pub scratch: bool,
    /// See [`MIN_SIZE`].
    pub min_bytes: usize,
    /// See [`UNSERVED`].
    pub unserved_bytes: Option<u64>,
    /// See [`THREADS`].
    pub threads: usize,
    /// See [`DISPATCH`].
    pub dispatch: Dispatch,
    /// See [`REPORT`].
    pub report: OsString,
    /// See [`PROCESSES`].
    pub processes: u32,
    /// See [`NAME`].
    pub name: String,
}

impl Settings {
    /// None: this process is not to be served. Error: which variable cannot be understood.
    pub fn read() -> Result<Option<Settings>, &'static str> {
        let number = |name: &'static str| {
            let text = std::env::var(name).map_err(|_| name)?;
            text.parse::<u64>().map_err(|_| name)
        };
        if !are_there() {
            return Ok(None);
        }
        Ok(Some(Settings {
            dram_bytes: number(DRAM)?,
            ssd_bytes: number(SSD)?,
            pool: std::env::var_os(POOL).ok_or(POOL)?.into(),
            scratch: number(SCRATCH)? != 0,
            min_bytes: number(MIN_SIZE)? as usize,
            unserved_bytes: match std::env::var_os(UNSERVED) {
                Some(_) => Some(number(UNSERVED)?),
                None => None,
            },
            threads: number(THREADS)? as usize,
            dispatch: match number(DISPATCH)? {
                0 => Dispatch::Not,
                1 => Dispatch::IfPossible,
                _ => Dispatch::Must,
            },
            report: std::env::var_os(REPORT).unwrap_or_default(),
            processes: number(PROCESSES)? as u32,
            name: std::env::var(NAME).map_err(|_| NAME)?,
        }))
    }

    /// The directory of the pool of this number.
    pub fn pool_dir(&self, nth: u32) -> PathBuf {
        match (self.processes, self.scratch) {
            (1, _) => self.pool.clone(),
            (_, false) => self.pool.join(nth.to_string()),
            (_, true) => {
                let mut dir = self.pool.clone().into_os_string();
                dir.push(format!("-{nth}"));
                dir.into()
            }
        }
    }
}

/// Whether this process is one to be served: what the constructor asks before all else.
pub fn are_there() -> bool {
    is_first() || FIRST.get(c"TERRACE_RUN_PROCESS") > 0 && are_several()
}

/// Whether several processes may be served, and programs that they start.
pub fn are_several() -> bool {
    COUNT.get(c"TERRACE_RUN_PROCESSES") > 1
}

/// Whether it is one of those, and not the first.
pub fn is_another() -> bool {
    are_several() && !is_first()
}

static FIRST: Noted = Noted::new();
static COUNT: Noted = Noted::new();

/// A number as the environment had it when it was asked for first: the program may change that.
struct Noted(AtomicU64);

impl Noted {
    const UNKNOWN: u64 = u64::MAX;

    const fn new() -> Noted {
        Noted(AtomicU64::new(Noted::UNKNOWN))
    }

    /// 0: it is not there.
    fn get(&self, name: &CStr) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            Noted::UNKNOWN => {
                let now = number(name).unwrap_or(0);
                self.0.store(now, Ordering::Relaxed);
                now
            }
            noted => noted,
        }
    }
}

/// Whether it is the one that the command became (`TERRACE_RUN_PROCESS`): the only one that is served, with what it forks before it has a pool, or the first of several.
pub fn is_first() -> bool {
    // SAFETY: always answers.
    let own = unsafe { libc::getpid() };
    Some(FIRST.get(c"TERRACE_RUN_PROCESS")) == u64::try_from(own).ok()
}

/// A variable that is a number, without allocating.
pub fn number(name: &CStr) -> Option<u64> {
    // SAFETY: a name that ends in a zero; the answer, if any, is a string that does.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value)
    };
    value.to_str().ok()?.parse().ok()
}
