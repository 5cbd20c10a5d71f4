//! A memory cgroup of our own for a server: limit, peak, failures, OOM kills.
//!
//! Works with cgroup v1 and v2, whichever has the memory controller. Promises that the group is removed when dropped (its
//! processes are given a second to be gone by then, and are killed), and that where groups cannot be used the reason is a sentence. Never moves a process that
//! is not a child of ours, and never changes a group it did not make, but for enabling `memory` below the v2 root.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often and how long removal waits for the last process to leave the group.
const REMOVE_TRIES_MAX: u32 = 100;
const REMOVE_WAIT_MS: u64 = 20;

/// Which hierarchy holds the memory controller, and the directory our groups go into.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

/// Finds the hierarchy from the texts of /proc/mounts, /proc/self/cgroup and, for v2, the root's cgroup.controllers.
///
/// A v1 group goes below our own, so that a container's limit stays above it. A v2 group goes below the root of the mount: a
/// group that holds processes (ours) may not have limited children.
fn find_hierarchy(
    mounts: &str,
    own: &str,
    v2_controllers: impl Fn(&Path) -> String,
) -> Option<Hierarchy> {
    let mut v2 = None;
    for line in mounts.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, dir, kind, options, ..] = words[..] else {
            continue;
        };
        if kind == "cgroup" && options.split(',').any(|o| o == "memory") {
            return Some(Hierarchy::V1(v1_parent(Path::new(dir), own)));
        }
        if kind == "cgroup2"
            && v2_controllers(Path::new(dir))
                .split_whitespace()
                .any(|c| c == "memory")
        {
            v2.get_or_insert(Hierarchy::V2(PathBuf::from(dir)));
        }
    }
    v2
}

fn v1_parent(mount: &Path, own: &str) -> PathBuf {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        controllers
            .split(',')
            .any(|c| c == "memory")
            .then_some(path)
    });
    mount.join(path.unwrap_or("/").trim_start_matches('/'))
}

/// A group with a limit.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    v2: bool,
    limit_bytes: u64,
}

/// What the group went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Most memory the group ever held.
    pub peak_bytes: Option<u64>,
    /// How often the limit was met.
    pub limit_hits: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: Option<u64>,
}

static SERIAL: AtomicU32 = AtomicU32::new(0);

impl Cgroup {
    /// Makes a group limited to `limit_bytes` of memory; with `swap` it may use any amount of swap besides, without it none.
    ///
    /// Errors: a sentence that says why it cannot be had (not root, no controller) and what to do.
    pub fn new(name: &str, limit_bytes: u64, swap: bool) -> Result<Cgroup> {
        let mounts = fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let controllers =
            |dir: &Path| fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        let Some(hierarchy) = find_hierarchy(&mounts, &own, controllers) else {
            bail!(
                "no cgroup hierarchy with the memory controller is mounted (mount one under /sys/fs/cgroup)"
            );
        };
        if !crate::machine::is_root() {
            bail!("making a cgroup needs root (run as root or with sudo)");
        }
        let (parent, v2) = match hierarchy {
            Hierarchy::V1(dir) => (dir, false),
            Hierarchy::V2(dir) => {
                fs::write(dir.join("cgroup.subtree_control"), "+memory")
                    .context("enabling the memory controller for child groups")?;
                (dir, true)
            }
        };
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!(
            "terrace-bench-{}-{serial}-{name}",
            std::process::id()
        ));
        fs::create_dir(&dir).with_context(|| format!("making the cgroup {}", dir.display()))?;
        let group = Cgroup {
            dir,
            v2,
            limit_bytes,
        };
        group.set_limits(swap)?;
        Ok(group)
    }

    fn set_limits(&self, swap: bool) -> Result<()> {
        let limit = self.limit_bytes.to_string();
        if self.v2 {
            self.write("memory.max", &limit)?;
            // Kernels without swap accounting have no such file, and then there is nothing to allow or forbid.
            let _ = self.write("memory.swap.max", if swap { "max" } else { "0" });
            return Ok(());
        }
        self.write("memory.limit_in_bytes", &limit)?;
        if !swap {
            let _ = self.write("memory.memsw.limit_in_bytes", &limit);
            let _ = self.write("memory.swappiness", "0");
        }
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).with_context(|| format!("writing {text} to {}", path.display()))
    }

    /// The file a process writes its id to, to enter the group.
    pub fn procs_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Peak, limit hits and OOM kills so far; None where this kernel does not tell.
    pub fn usage(&self) -> Usage {
        let read = |file: &str| fs::read_to_string(self.dir.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse().ok();
        if self.v2 {
            let events = read("memory.events").unwrap_or_default();
            Usage {
                peak_bytes: number("memory.peak"),
                limit_hits: keyed(&events, "max"),
                oom_kills: keyed(&events, "oom_kill"),
            }
        } else {
            Usage {
                peak_bytes: number("memory.max_usage_in_bytes"),
                limit_hits: number("memory.failcnt"),
                oom_kills: keyed(&read("memory.oom_control").unwrap_or_default(), "oom_kill"),
            }
        }
    }
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

impl Cgroup {
    /// Ends what is left in the group: a program that was killed may have forked (BGSAVE's child), and would disturb what is measured next.
    fn kill_the_rest(&self) {
        let left = fs::read_to_string(self.procs_file()).unwrap_or_default();
        for pid in left.lines().filter_map(|l| Pid::from_raw(l.parse().ok()?)) {
            // It may be gone by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for tries in 0..REMOVE_TRIES_MAX {
            if tries == REMOVE_TRIES_MAX / 2 {
                self.kill_the_rest();
            }
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(REMOVE_WAIT_MS));
        }
        eprintln!(
            "could not remove the cgroup {}: remove it with rmdir once its processes are gone",
            self.dir.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";

    #[test]
    fn v1_goes_below_our_own_group() {
        let own = "9:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/\n";
        let found = find_hierarchy(V1, own, |_| "cpu io".into());
        assert_eq!(
            found,
            Some(Hierarchy::V1("/sys/fs/cgroup/memory/docker/abc".into()))
        );
        let found = find_hierarchy(V1, "0::/user\n", |_| String::new());
        assert_eq!(found, Some(Hierarchy::V1("/sys/fs/cgroup/memory/".into())));
    }

    #[test]
    fn v2_needs_the_controller() {
        assert_eq!(
            find_hierarchy(V2, "0::/a\n", |_| "cpu memory pids".into()),
            Some(Hierarchy::V2("/sys/fs/cgroup".into()))
        );
        assert_eq!(find_hierarchy(V2, "0::/a\n", |_| "cpu pids".into()), None);
        assert_eq!(
            find_hierarchy("proc /proc proc rw 0 0\n", "", |_| "memory".into()),
            None
        );
    }

    #[test]
    fn keyed_lines() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "oom"), None);
    }

    #[test]
    fn a_group_holds_a_child_or_says_why_not() {
        match Cgroup::new("test", 64 << 20, false) {
            Ok(group) => {
                let mut child = crate::process::command(&["sleep", "30"], Some(&group), None)
                    .spawn()
                    .unwrap();
                let pid = child.id().to_string();
                let in_group = (0..200).any(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    fs::read_to_string(group.procs_file())
                        .is_ok_and(|text| text.lines().any(|line| line == pid))
                });
                assert!(in_group);
                assert_eq!(group.usage().oom_kills, Some(0));
                let dir = group.dir.clone();
                // Nobody killed it: the group does, and goes once it is reaped.
                let reaper = std::thread::spawn(move || child.wait().unwrap());
                drop(group);
                assert!(!dir.exists());
                assert!(!reaper.join().unwrap().success());
            }
            Err(e) => assert!(
                !crate::machine::is_root() || e.to_string().contains("cgroup"),
                "{e:#}"
            ),
        }
    }
}
