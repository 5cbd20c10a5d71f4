//! What the machine is and how busy its disk was: facts for the record, read from /proc and /sys.
//!
//! Promises never to fail where a fact is missing: it says "unknown" or None; a run whose files find no room is refused before it begins. Never changes the machine, but for the CPU that a
//! thread of ours stays on.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The CPU servers run on, and the one that makes the load.
pub const SERVER_CPU: usize = 0;
/// See [`SERVER_CPU`].
pub const LOAD_CPU: usize = 1;

/// The machine and the moment of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Commit of the source tree the command ran in, with `-dirty` when it had changes.
    pub commit: String,
    /// Kernel release.
    pub kernel: String,
    /// CPU model name.
    pub cpu_model: String,
    /// CPUs online.
    pub cpus: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// When the run began, UTC.
    pub date_utc: String,
    /// The command line of the run.
    pub command_line: String,
}

impl Machine {
    /// Reads it all now.
    pub fn read() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            commit: commit(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or("unknown".into(), |s| s.trim().to_owned()),
            cpu_model: field(&cpuinfo, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            cpus: cpus(),
            memory_bytes: field(&meminfo, "MemTotal")
                .and_then(|s| s.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib << 10),
            date_utc: date_utc(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |d| d.as_secs()),
            ),
            command_line: command_line(),
        }
    }
}

/// CPUs this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// CPU time the calling thread has used, seconds.
pub fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Whether we are root: cgroups, swap and dropping caches need it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Keeps the calling thread on one CPU. With one CPU in the machine there is nothing to choose, and nothing is done.
pub fn pin_this_thread(cpu: usize) -> Result<()> {
    if cpus() < 2 {
        return Ok(());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pinning a thread to CPU {cpu}"))
}

/// Writes caches out and drops them, so that the page cache helps neither side. False when not allowed to.
pub fn drop_page_cache() -> bool {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn command_line() -> String {
    let mut args = std::env::args();
    let exe = args.next().unwrap_or_default();
    let name = Path::new(&exe)
        .file_name()
        .map_or(exe.clone(), |n| n.to_string_lossy().into_owned());
    std::iter::once(name)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git")
            .args(args)
            .output()
            .ok()
            .filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(hash) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => hash,
            _ => hash + "-dirty",
        },
        None => option_env!("TERRACE_COMMIT")
            .unwrap_or("unknown")
            .to_owned(),
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// `YYYY-MM-DDThh:mm:ssZ` of seconds since 1970 (days to date after Howard Hinnant's civil_from_days).
fn date_utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Counters of the block device under a directory, from /proc/diskstats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Disk {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Milliseconds × requests in flight; divided by the time that passed it is the mean queue depth.
    pub weighted_ms: u64,
}

/// Refuses `what` where the file system of `dir` has less than so many bytes free for its files: it would end in the middle, after many minutes.
pub fn need_disk(dir: &Path, bytes: u64, what: &str) -> Result<()> {
    let held = rustix::fs::statvfs(dir)
        .with_context(|| format!("how much is free in {} is not known", dir.display()))?;
    let free = held.f_bavail * held.f_frsize;
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    if free < bytes {
        bail!(
            "{what} takes {:.1} GiB of disk in {}, where {:.1} GiB are free: free some, name a directory on another disk with --work, or divide the data with --scale-divisor",
            gib(bytes),
            dir.display(),
            gib(free)
        );
    }
    Ok(())
}

impl Disk {
    /// The counters of the device that `dir` lies on, or None where it has none (tmpfs, overlay).
    pub fn under(dir: &Path) -> Option<Disk> {
        let dev = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        parse_diskstats(&fs::read_to_string("/proc/diskstats").ok()?, major, minor)
    }

    /// What was added since `before`.
    pub fn since(self, before: Disk) -> Disk {
        Disk {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
            weighted_ms: self.weighted_ms.saturating_sub(before.weighted_ms),
        }
    }
}

/// What the kernel counts a disk's bytes in.
pub const SECTOR_BYTES: u64 = 512;

fn parse_diskstats(text: &str, major: u32, minor: u32) -> Option<Disk> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() < 14 || words[0].parse() != Ok(major) || words[1].parse() != Ok(minor) {
            return None;
        }
        let number = |i: usize| words[i].parse::<u64>().ok();
        Some(Disk {
            reads: number(3)?,
            read_bytes: number(5)? * SECTOR_BYTES,
            write_bytes: number(9)? * SECTOR_BYTES,
            weighted_ms: number(13)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_utc(1_735_689_599), "2024-12-31T23:59:59Z");
    }

    #[test]
    fn diskstats() {
        let text = "   7       0 loop0 1 0 2 0 0 0 0 0 0 0 0 0 0\n 254       0 vda 100 5 800 9 50 6 400 8 0 30 77 0 0 0 0 1 2\n";
        let disk = parse_diskstats(text, 254, 0).unwrap();
        assert_eq!(
            disk,
            Disk {
                reads: 100,
                read_bytes: 409_600,
                write_bytes: 204_800,
                weighted_ms: 77
            }
        );
        assert_eq!(parse_diskstats(text, 254, 1), None);
        assert_eq!(parse_diskstats("254 0 vda 1", 254, 0), None);
    }
}
