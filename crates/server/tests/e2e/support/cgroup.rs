//! A memory cgroup for a server under test, v1 or v2: a limit, the peak, the kills. It is removed with its owner. Where
//! none can be made (no root, no controller) the reason is a sentence, and the test judges by the process's own figures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const REMOVE_TRIES: u32 = 100;

/// A group with a limit and no swap.
pub struct Cgroup {
    dir: PathBuf,
    v2: bool,
    limit_bytes: u64,
}

static SERIAL: AtomicU32 = AtomicU32::new(0);

impl Cgroup {
    /// Makes one.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn new(limit_bytes: u64) -> Result<Cgroup, String> {
        let (parent, v2) = parent()?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("terrace-e2e-{}-{serial}", std::process::id()));
        fs::create_dir(&dir)
            .map_err(|e| format!("cannot make the cgroup {}: {e}", dir.display()))?;
        let group = Cgroup {
            dir,
            v2,
            limit_bytes,
        };
        let (file, swap) = match v2 {
            true => ("memory.max", ("memory.swap.max", "0".to_string())),
            false => (
                "memory.limit_in_bytes",
                ("memory.memsw.limit_in_bytes", limit_bytes.to_string()),
            ),
        };
        fs::write(group.dir.join(file), limit_bytes.to_string())
            .map_err(|e| format!("cannot limit the cgroup: {e}"))?;
        // Kernels without swap accounting have no such file, and nothing to forbid.
        let _ = fs::write(group.dir.join(swap.0), swap.1);
        Ok(group)
    }

    /// The file a process writes its id to.
    pub fn procs_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The most it ever held, where the kernel tells.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.number(if self.v2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        })
    }

    /// How often its limit was met.
    pub fn limit_hits(&self) -> Option<u64> {
        if self.v2 {
            return self.keyed("memory.events", "max");
        }
        self.number("memory.failcnt")
    }

    /// How many processes were killed in it for want of memory.
    pub fn oom_kills(&self) -> Option<u64> {
        self.keyed(
            if self.v2 {
                "memory.events"
            } else {
                "memory.oom_control"
            },
            "oom_kill",
        )
    }

    /// One line of figures.
    pub fn report(&self) -> String {
        let mib = |bytes: Option<u64>| bytes.map_or(-1.0, |b| b as f64 / 1_048_576.0);
        format!(
            "cgroup peak {:.1} MiB of {:.1} MiB, limit met {} times, {} killed",
            mib(self.peak_bytes()),
            mib(Some(self.limit_bytes)),
            self.limit_hits().map_or(-1, |n| n as i64),
            self.oom_kills().map_or(-1, |n| n as i64)
        )
    }

    /// That nothing was killed and the limit was kept.
    ///
    /// # Panics
    /// When not.
    pub fn assert_kept(&self) {
        let report = self.report();
        assert_eq!(self.oom_kills().unwrap_or(0), 0, "{report}");
        assert!(
            self.peak_bytes().unwrap_or(0) <= self.limit_bytes,
            "{report}"
        );
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.read(file).trim().parse().ok()
    }

    fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        self.read(file).lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            (name == key).then(|| value.trim().parse().ok())?
        })
    }
}

/// The directory our groups go into, and whether it is v2: v1 below our own group, so that a container's limit stays
/// above; v2 below the root, since a group with processes may not have limited children.
fn parent() -> Result<(PathBuf, bool), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("making a cgroup needs root".into());
    }
    let mounts = fs::read_to_string("/proc/mounts").map_err(|e| e.to_string())?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, dir, kind, options, ..] = words[..] else {
            continue;
        };
        let dir = Path::new(dir);
        if kind == "cgroup" && options.split(',').any(|o| o == "memory") {
            let path = own.lines().find_map(|l| {
                let (controllers, path) = l.split_once(':')?.1.split_once(':')?;
                controllers
                    .split(',')
                    .any(|c| c == "memory")
                    .then_some(path)
            });
            return Ok((dir.join(path.unwrap_or("/").trim_start_matches('/')), false));
        }
        let has = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        if kind == "cgroup2" && has("cgroup.controllers").contains("memory") {
            let control = dir.join("cgroup.subtree_control");
            fs::write(&control, "+memory")
                .map_err(|e| format!("cannot write {}: {e}", control.display()))?;
            return Ok((dir.to_path_buf(), true));
        }
    }
    Err("no cgroup hierarchy with the memory controller is mounted".into())
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..REMOVE_TRIES {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("could not remove the cgroup {}", self.dir.display());
    }
}
