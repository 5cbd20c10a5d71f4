//! `terrace doctor`: what this machine allows, what Terrace falls back to where it does not, and how to change that.
//!
//! Promises: every check ends in a finding, also on a kernel or in a container that hides what was asked for; it
//! leaves no trace (the file it makes to try direct I/O is removed again); findings come from pure functions over what
//! `/proc`, `/sys` and a few system calls said, so that each can be tested alone.
//! Never: changes a limit or a setting, needs root, or opens a pool.

mod machine;

use machine::{
    Bound, Cgroup, Column, capabilities, cgroup_here, limit, nearest_existing, read, try_direct,
};
use rustix::io::Errno;
use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use terrace_pool::DRAM_PER_LANE_MIN_BYTES;
use terrace_server::limits::reserved_fds;

/// Debian 12's kernel: what the server is meant for at least. `terrace run` needs a later one (`user_faults`).
const KERNEL_LEAST: (u32, u32) = (6, 1);
/// Clients a server should be able to hold at once.
const CLIENTS_WANTED: u64 = 10_000;
/// DRAM to which a locked-memory limit is compared: what `make run` uses.
const MEMLOCK_WANTED_BYTES: u64 = 256 << 20;
/// Less free space than this is too little for any pool.
const FREE_SPACE_BYTES_MIN: u64 = 64 << 20;
/// The capability that lifts the locked-memory limit, as a bit of `CapEff` (see capabilities(7)).
const CAP_IPC_LOCK_BIT: u32 = 14;
/// The capability that lifts hard limits, among them the one of open files.
const CAP_SYS_RESOURCE_BIT: u32 = 24;
/// The free room, above `--dram`, that a memory cgroup should leave: code, stacks and page tables of the process.
const CGROUP_SLACK_BYTES: u64 = 32 << 20;
/// Under `terrace run` it should leave so much and a 32nd of `--dram`, where that is more.
const CGROUP_SLACK_RUN_BYTES: u64 = 16 << 20;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As Terrace wants it.
    Ok,
    /// Terrace runs, in a way that [`Check::falls_back_to`] names.
    FallsBack,
    /// Terrace cannot run like this.
    Bad,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A short, stable name: `io_uring`, `locked_memory`, …
    pub name: &'static str,
    /// How it ended.
    pub state: State,
    /// What is here, in words, with units.
    pub found: String,
    /// What Terrace does instead; `None` when all is well.
    pub falls_back_to: Option<String>,
    /// What to do about it; `None` when all is well.
    pub fix: Option<String>,
}

/// All checks, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The directory that was asked about, or its nearest parent that exists; JSON has no other text than UTF-8.
    #[serde(serialize_with = "lossy")]
    pub directory: PathBuf,
    /// One entry for each thing looked at.
    pub checks: Vec<Check>,
}

fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

impl Report {
    /// False when a check found something that Terrace cannot run with.
    pub fn can_run(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Bad)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let mark = match check.state {
                State::Ok => "ok",
                State::FallsBack => "falls back",
                State::Bad => "BAD",
            };
            writeln!(f, "{:<22} {:<10}  {}", check.name, mark, check.found)?;
            if let Some(instead) = &check.falls_back_to {
                writeln!(f, "{:<34}  so: {instead}", "")?;
            }
            if let Some(fix) = &check.fix {
                writeln!(f, "{:<34}  fix: {fix}", "")?;
            }
        }
        Ok(())
    }
}

/// Looks at the machine, and at `directory` as a home for a pool. A directory that is not there yet is judged by its
/// nearest parent that is.
pub fn report(directory: &Path) -> Report {
    let directory = nearest_existing(directory);
    let probe = terrace_media::probe();
    let limits = read("/proc/self/limits");
    let cap_eff = capabilities(&read("/proc/self/status"));
    let checks = vec![
        kernel(&probe.kernel),
        page_size(probe.page_bytes),
        io_uring(
            ring_features(&probe),
            read("/proc/sys/kernel/io_uring_disabled").trim(),
        ),
        direct_io(&directory, try_direct(&directory)),
        locked_memory(limit(&limits, "Max locked memory", Column::Soft), cap_eff),
        open_files(limit(&limits, "Max open files", Column::Hard), cap_eff),
        memory_cgroup(&cgroup_here()),
        cpus(std::thread::available_parallelism().ok()),
        huge_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        free_space(&directory, rustix::fs::statvfs(&directory)),
        user_faults(crate::run::check_faults().map_err(|e| format!("{e:#}"))),
    ];
    Report { directory, checks }
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        state: State::Ok,
        found: found.into(),
        falls_back_to: None,
        fix: None,
    }
}

fn falls_back(
    name: &'static str,
    found: impl Into<String>,
    instead: impl Into<String>,
    fix: impl Into<String>,
) -> Check {
    Check {
        state: State::FallsBack,
        falls_back_to: Some(instead.into()),
        fix: Some(fix.into()),
        ..ok(name, found)
    }
}

fn bad(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Check {
    Check {
        state: State::Bad,
        fix: Some(fix.into()),
        ..ok(name, found)
    }
}

fn kernel(release: &str) -> Check {
    const NAME: &str = "kernel";
    let release = release.trim();
    let (major, minor) = KERNEL_LEAST;
    let fix = format!("use Linux {major}.{minor} (Debian 12) or later");
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let (Some(Ok(found_major)), Some(Ok(found_minor))) = (numbers.next(), numbers.next()) else {
        let instead = "whatever the checks below find is used";
        return falls_back(NAME, format!("unknown ('{release}')"), instead, fix);
    };
    if (found_major, found_minor) >= KERNEL_LEAST {
        return ok(NAME, format!("Linux {release}"));
    }
    let instead = "whatever the checks below find is used; this kernel is older than what Terrace is made for";
    falls_back(NAME, format!("Linux {release}"), instead, fix)
}

fn page_size(page_bytes: usize) -> Check {
    const NAME: &str = "page_size";
    let found = size(page_bytes as u64);
    let block_bytes = terrace_media::BLOCK_BYTES;
    if page_bytes > 0 && block_bytes.is_multiple_of(page_bytes) {
        return ok(NAME, found);
    }
    let wanted = size(block_bytes as u64);
    bad(NAME, found, format!("boot a kernel with pages of {wanted}"))
}

fn ring_features(probe: &terrace_media::Probe) -> Result<String, String> {
    match &probe.io_uring {
        Ok(ring) => Ok(format!(
            "completions by {:?} (best here: {:?})",
            ring.task_run, ring.task_run_best
        )),
        Err(why) => Err(why.clone()),
    }
}

/// `features` names what the ring can do, or says why there is none; `disabled` is the kernel's setting.
fn io_uring(features: Result<String, String>, disabled: &str) -> Check {
    const NAME: &str = "io_uring";
    let why = match features {
        Ok(features) => return ok(NAME, features),
        Err(why) => why,
    };
    let fix = match disabled {
        "1" => "sysctl kernel.io_uring_disabled=0, or put the user into kernel.io_uring_group",
        "2" => "sysctl kernel.io_uring_disabled=0",
        _ => {
            "in a container, allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile"
        }
    };
    let instead =
        "one blocking read or write at a time for each thread: correct, and much slower under load";
    falls_back(NAME, why, instead, fix)
}

fn direct_io(directory: &Path, tried: Result<(), Errno>) -> Check {
    const NAME: &str = "direct_io";
    let shown = directory.display();
    match tried {
        Ok(()) => ok(NAME, format!("O_DIRECT works in {shown}")),
        Err(Errno::INVAL) => falls_back(
            NAME,
            format!("the file system of {shown} refuses O_DIRECT"),
            "buffered I/O: the page cache then holds data too, outside the cap",
            "put the pool on ext4, XFS or a block device",
        ),
        Err(errno) => bad(
            NAME,
            format!("cannot make a file in {shown}: {errno}"),
            "choose a directory on a file system with room that this user may write to",
        ),
    }
}

fn locked_memory(limit: Option<Bound>, cap_eff: u64) -> Check {
    const NAME: &str = "locked_memory";
    const FIX: &str =
        "ulimit -l unlimited before starting, or LimitMEMLOCK=infinity in the systemd unit";
    const INSTEAD: &str = "with --dram above the limit nothing of it is locked: with swap on, the kernel may swap it out";
    if cap_eff & (1 << CAP_IPC_LOCK_BIT) != 0 {
        return ok(NAME, "no limit (CAP_IPC_LOCK)");
    }
    match limit {
        None => falls_back(NAME, "RLIMIT_MEMLOCK cannot be read", INSTEAD, FIX),
        Some(Bound::Unlimited) => ok(NAME, "no limit"),
        Some(Bound::At(bytes)) => {
            let found = format!("RLIMIT_MEMLOCK is {}", size(bytes));
            if bytes >= MEMLOCK_WANTED_BYTES {
                ok(NAME, format!("{found}: enough for --dram up to that"))
            } else {
                falls_back(NAME, found, INSTEAD, FIX)
            }
        }
    }
}

/// `limit` is the hard one: a server raises its own up to that, or beyond it where it may.
fn open_files(limit: Option<Bound>, cap_eff: u64) -> Check {
    const NAME: &str = "open_files";
    // As many threads as a server has if it is not told.
    let threads = std::thread::available_parallelism()
        .map_or(1, |n| n.get().min(crate::serve::THREADS_DEFAULT_MAX));
    let reserved = reserved_fds(threads);
    let wanted = CLIENTS_WANTED + reserved;
    let fix =
        format!("ulimit -Hn {wanted} before starting, or LimitNOFILE={wanted} in the systemd unit");
    if cap_eff & (1 << CAP_SYS_RESOURCE_BIT) != 0 {
        return ok(NAME, "no limit (CAP_SYS_RESOURCE)");
    }
    let Some(limit) = limit else {
        let instead = "clients are accepted until the kernel refuses a file";
        return falls_back(NAME, "RLIMIT_NOFILE cannot be read", instead, fix);
    };
    match limit {
        Bound::Unlimited => ok(NAME, "no limit"),
        Bound::At(files) if files >= wanted => {
            ok(NAME, format!("RLIMIT_NOFILE can be raised to {files}"))
        }
        Bound::At(files) => falls_back(
            NAME,
            format!("RLIMIT_NOFILE cannot be raised beyond {files}"),
            format!(
                "about {} clients at once instead of {CLIENTS_WANTED}",
                files.saturating_sub(reserved)
            ),
            fix,
        ),
    }
}

/// The most `--dram` in a cgroup of so many bytes: what the server and a program under `terrace run` both leave room beside.
fn dram_in(limit_bytes: u64) -> u64 {
    let served = limit_bytes.saturating_sub(CGROUP_SLACK_BYTES);
    let run = limit_bytes.saturating_sub(CGROUP_SLACK_RUN_BYTES) / 33 * 32;
    served.min(run)
}

fn memory_cgroup(cgroup: &Cgroup) -> Check {
    const NAME: &str = "memory_cgroup";
    match cgroup {
        Cgroup::None => falls_back(
            NAME,
            "no memory cgroup",
            "the cap is kept by Terrace's own ledger, and nothing outside checks it",
            "mount cgroups (any systemd machine has them)",
        ),
        Cgroup::Here {
            version,
            limit_bytes: None,
        } => ok(NAME, format!("version {version}, no limit")),
        Cgroup::Here {
            version,
            limit_bytes: Some(bytes),
        } => {
            let found = format!("version {version}, limited to {}", size(*bytes));
            match dram_in(*bytes) {
                dram @ DRAM_PER_LANE_MIN_BYTES.. => ok(
                    NAME,
                    format!("{found}: keep --dram at or below {} MiB", dram >> 20),
                ),
                _ => bad(
                    NAME,
                    found,
                    format!(
                        "give it {} and the --dram you want, which is at least {} for each thread",
                        size(CGROUP_SLACK_BYTES),
                        size(DRAM_PER_LANE_MIN_BYTES)
                    ),
                ),
            }
        }
    }
}

fn cpus(count: Option<NonZeroUsize>) -> Check {
    const NAME: &str = "cpus";
    match count.map(NonZeroUsize::get) {
        Some(1) => ok(NAME, "1 CPU for this process"),
        Some(count) => ok(NAME, format!("{count} CPUs for this process")),
        None => falls_back(
            NAME,
            "the number of CPUs cannot be read",
            "whatever --threads says, or its default",
            "pass --threads",
        ),
    }
}

fn huge_pages(enabled: &str) -> Check {
    const NAME: &str = "transparent_huge_pages";
    // The file lists all settings with the one in force in brackets: "always [madvise] never".
    let setting = enabled
        .split('[')
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    match setting {
        Some("always") => falls_back(
            NAME,
            "always",
            "the kernel may round memory up to 2 MiB pages, which uses DRAM that the cap does not foresee",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(setting) => ok(NAME, setting),
        None => ok(NAME, "not in this kernel"),
    }
}

/// What `terrace run` needs: faults of a program's memory, the kernel's own among them.
fn user_faults(tried: Result<(), String>) -> Check {
    const NAME: &str = "user_faults";
    match tried {
        Ok(()) => ok(NAME, "of programs, and of the kernel on their behalf"),
        Err(why) => falls_back(
            NAME,
            why,
            "`terrace run` is refused; the C library takes faults in the thread that touches memory",
            "sysctl vm.unprivileged_userfaultfd=1, or let the user open /dev/userfaultfd, or give CAP_SYS_PTRACE; Linux 6.6 or later",
        ),
    }
}

fn free_space(directory: &Path, stat: Result<rustix::fs::StatVfs, Errno>) -> Check {
    const NAME: &str = "free_space";
    const FIX: &str = "free some space, or choose another directory";
    let shown = directory.display();
    match stat {
        Ok(stat) => free_space_of(
            &shown.to_string(),
            stat.f_bavail.saturating_mul(stat.f_frsize),
        ),
        Err(errno) => bad(
            NAME,
            format!("free space of {shown} cannot be read: {errno}"),
            FIX,
        ),
    }
}

fn free_space_of(shown: &str, free_bytes: u64) -> Check {
    const NAME: &str = "free_space";
    let found = format!("{} in {shown}", size(free_bytes));
    if free_bytes >= FREE_SPACE_BYTES_MIN {
        return ok(NAME, found);
    }
    let least = size(FREE_SPACE_BYTES_MIN);
    bad(
        NAME,
        found,
        format!("free at least {least}, or choose another directory"),
    )
}

/// A size as people write it, with one decimal where it is not whole: "288 MiB", "1.5 GiB".
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scale: u64 = 1;
    while unit + 1 < UNITS.len() && bytes / scale >= 1024 {
        scale *= 1024;
        unit += 1;
    }
    if bytes.is_multiple_of(scale) {
        format!("{} {}", bytes / scale, UNITS[unit])
    } else {
        format!("{:.1} {}", bytes as f64 / scale as f64, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn state(check: Check) -> State {
        assert_eq!(check.state == State::Ok, check.fix.is_none(), "{check:?}");
        check.state
    }

    #[test]
    fn kernels_are_compared_as_numbers() {
        assert_eq!(state(kernel("6.18.2-cloud-amd64\n")), State::Ok);
        assert_eq!(state(kernel("6.1-rc3")), State::Ok);
        assert_eq!(state(kernel("10.0.0")), State::Ok);
        assert_eq!(state(kernel("6.0.19")), State::FallsBack);
        assert_eq!(state(kernel("5.10.0-30-amd64")), State::FallsBack);
        assert_eq!(state(kernel("")), State::FallsBack);
    }

    #[test]
    fn blocks_are_whole_pages() {
        assert_eq!(state(page_size(4096)), State::Ok);
        assert_eq!(state(page_size(65_536)), State::Bad);
    }

    #[test]
    fn a_missing_ring_names_the_setting_that_forbids_it() {
        let denied = || Err("Operation not permitted".to_string());
        assert_eq!(state(io_uring(Ok("depth 4096".into()), "0")), State::Ok);
        let by_setting = io_uring(denied(), "2");
        assert!(
            by_setting
                .fix
                .as_ref()
                .unwrap()
                .contains("io_uring_disabled=0")
        );
        assert_eq!(state(by_setting), State::FallsBack);
        assert!(io_uring(denied(), "0").fix.unwrap().contains("seccomp"));
    }

    #[test]
    fn direct_io_tells_refusal_from_an_unusable_directory() {
        let here = Path::new("/pool");
        assert_eq!(state(direct_io(here, Ok(()))), State::Ok);
        assert_eq!(state(direct_io(here, Err(Errno::INVAL))), State::FallsBack);
        assert_eq!(state(direct_io(here, Err(Errno::ROFS))), State::Bad);
    }

    #[test]
    fn locked_memory_heeds_the_limit_unless_the_capability_lifts_it() {
        assert_eq!(
            state(locked_memory(Some(Bound::At(8 << 20)), 0)),
            State::FallsBack
        );
        assert_eq!(
            state(locked_memory(Some(Bound::At(8 << 20)), 1 << 14)),
            State::Ok
        );
        assert_eq!(state(locked_memory(Some(Bound::At(1 << 30)), 0)), State::Ok);
        assert_eq!(state(locked_memory(Some(Bound::Unlimited), 0)), State::Ok);
        assert_eq!(state(locked_memory(None, 0)), State::FallsBack);
    }

    #[test]
    fn few_files_mean_fewer_clients() {
        let few = open_files(Some(Bound::At(1024)), 0);
        let fewer = few.falls_back_to.as_ref().unwrap();
        let left = (1..=8).map(|threads| 1024 - reserved_fds(threads));
        assert!(
            left.into_iter()
                .any(|n| fewer.contains(&format!("{n} clients"))),
            "{fewer}"
        );
        assert_eq!(state(few), State::FallsBack);
        let lifted = open_files(Some(Bound::At(1024)), 1 << 24);
        assert_eq!(state(lifted), State::Ok);
        assert_eq!(state(open_files(Some(Bound::At(20_000)), 0)), State::Ok);
        assert_eq!(state(open_files(Some(Bound::Unlimited), 0)), State::Ok);
        let tiny = open_files(Some(Bound::At(10)), 0);
        assert!(tiny.falls_back_to.unwrap().contains("about 0 clients"));
    }

    #[test]
    fn cgroup_limits_leave_room_for_the_process() {
        let at = |limit_bytes| {
            memory_cgroup(&Cgroup::Here {
                version: 2,
                limit_bytes,
            })
        };
        assert_eq!(state(at(None)), State::Ok);
        let limited = at(Some(288 << 20));
        assert!(limited.found.contains("256 MiB"), "{limited:?}");
        assert_eq!(state(limited), State::Ok);
        // The least that a pool takes, and 32 MiB.
        assert_eq!(state(at(Some(47 << 20))), State::Bad);
        let least = at(Some(48 << 20));
        assert!(least.found.ends_with("below 16 MiB"), "{least:?}");
        // 16 MiB and a 32nd are more than 32 MiB: what docs/run.md asks for.
        let dram = dram_in(8 << 30);
        assert!(dram + (16 << 20) + dram / 32 <= 8 << 30);
        assert!(at(Some(8 << 30)).found.contains(&(dram >> 20).to_string()));
        assert_eq!(state(memory_cgroup(&Cgroup::None)), State::FallsBack);
    }

    #[test]
    fn huge_pages_are_what_the_brackets_say() {
        assert_eq!(state(huge_pages("always [madvise] never\n")), State::Ok);
        assert_eq!(
            state(huge_pages("[always] madvise never\n")),
            State::FallsBack
        );
        assert_eq!(state(huge_pages("")), State::Ok);
    }

    #[test]
    fn a_full_file_system_is_bad() {
        assert_eq!(state(free_space_of("/pool", 10 << 30)), State::Ok);
        assert_eq!(state(free_space_of("/pool", 1 << 20)), State::Bad);
    }

    #[test]
    fn without_user_faults_run_is_refused() {
        assert_eq!(state(user_faults(Ok(()))), State::Ok);
        let refused = user_faults(Err("refused".into()));
        assert!(refused.fix.is_some_and(|fix| fix.contains("userfaultfd")));
        assert_eq!(refused.state, State::FallsBack);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(288 << 20), "288 MiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn a_report_on_this_machine_is_complete_and_leaves_nothing_behind() {
        let home = std::env::temp_dir().join(format!("terrace-doctor-test-{}", std::process::id()));
        fs::create_dir(&home).unwrap();
        let found = report(&home.join("not/there/yet"));
        let left = fs::read_dir(&home).unwrap().count();
        fs::remove_dir(&home).unwrap();
        assert_eq!(left, 0);
        assert_eq!(found.directory, home);
        assert_eq!(found.checks.len(), 11);
        let text = found.to_string();
        for check in &found.checks {
            assert!(!check.found.is_empty(), "{check:?}");
            assert!(text.contains(check.name));
            state(check.clone());
        }
        let kernel = read("/proc/sys/kernel/osrelease");
        assert!(found.checks[0].found.contains(kernel.trim()));
    }
}
