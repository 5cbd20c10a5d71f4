//! Reads the machine for [`super::report`]: limits, capabilities, cgroups, direct I/O.
//!
//! Promises: what cannot be read comes back as unknown, never as a panic; the file made to try direct I/O is removed.
//! Never: judges what it read, or changes anything.

use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A cgroup v1 without a limit says a number near `i64::MAX`; nothing real is as large as this.
const CGROUP_LIMIT_BYTES_MAX: u64 = 1 << 60;

/// The text of a small kernel file; empty when it is not there, which every check takes for "unknown".
pub(super) fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

pub(super) fn nearest_existing(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
    absolute
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"))
        .to_path_buf()
}

/// Opens, and removes again, a file for direct I/O, as a pool would.
pub(super) fn try_direct(directory: &Path) -> Result<(), Errno> {
    let path = directory.join(format!(".terrace-doctor-{}", std::process::id()));
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    // Made first without O_DIRECT, since some file systems leave the file behind when they refuse the flag.
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(errno)?;
    let direct = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed())
        .open(&path)
        .map(drop)
        .map_err(errno);
    fs::remove_file(&path).map_err(errno)?;
    direct
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Unlimited,
    At(u64),
}

/// Which of two limits: the one in force, or the one up to which a process may raise that itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    Soft,
    Hard,
}

/// A limit in `/proc/self/limits`: "Max open files   1024   4096   files".
pub(super) fn limit(limits: &str, name: &str, column: Column) -> Option<Bound> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_whitespace().nth(column as usize)? {
        "unlimited" => Some(Bound::Unlimited),
        number => number.parse().ok().map(Bound::At),
    }
}

/// The effective capabilities in `/proc/self/status`; none when the line is missing.
pub(super) fn capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// The memory cgroup this process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cgroup {
    None,
    Here {
        version: u8,
        /// The tightest limit of the group and those above it, as far as they can be seen.
        limit_bytes: Option<u64>,
    },
}

pub(super) fn cgroup_here() -> Cgroup {
    let groups = read("/proc/self/cgroup");
    let mounts = read("/proc/self/mountinfo");
    let Some((version, mount, group)) = cgroup_place(&groups, &mounts) else {
        return Cgroup::None;
    };
    let file = if version == 1 {
        "memory.limit_in_bytes"
    } else {
        "memory.max"
    };
    let limit_bytes = group
        .ancestors()
        .take_while(|path| path.starts_with(&mount))
        .filter_map(|path| read(path.join(file)).trim().parse::<u64>().ok())
        .filter(|&bytes| bytes < CGROUP_LIMIT_BYTES_MAX)
        .min();
    Cgroup::Here {
        version,
        limit_bytes,
    }
}

/// From `/proc/self/cgroup` and `/proc/self/mountinfo`: the version that has the memory controller, where it is
/// mounted, and this process's group under that. A machine with both versions has memory in version 1 when version
/// 1 lists it at all.
fn cgroup_place(groups: &str, mounts: &str) -> Option<(u8, PathBuf, PathBuf)> {
    let group_of = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then(|| path.to_string())
        })
    };
    let version_1 = group_of(&|names| names.split(',').any(|name| name == "memory"));
    let (version, path) = match version_1 {
        Some(path) => (1, path),
        None => (2, group_of(&str::is_empty)?),
    };
    mounts.lines().find_map(|line| {
        // id parent device root mount-point options ... - type source super-options
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let is_it = if version == 1 {
            kind == "cgroup" && options.split(',').any(|name| name == "memory")
        } else {
            kind == "cgroup2"
        };
        // In a container only a part of the tree may be mounted; a group outside of it shows as the mount itself.
        let below = Path::new(&path).strip_prefix(root).unwrap_or(Path::new(""));
        is_it.then(|| (version, PathBuf::from(mount), Path::new(mount).join(below)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_their_column() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max open files            1024                 524288               files     \n\
                      Max locked memory         unlimited            unlimited            bytes     \n";
        let soft = |name| limit(limits, name, Column::Soft);
        assert_eq!(soft("Max open files"), Some(Bound::At(1024)));
        assert_eq!(soft("Max locked memory"), Some(Bound::Unlimited));
        assert_eq!(soft("Max nice priority"), None);
        let hard = limit(limits, "Max open files", Column::Hard);
        assert_eq!(hard, Some(Bound::At(524_288)));
        assert_eq!(
            limit("Max open files", "Max open files", Column::Soft),
            None
        );
    }

    #[test]
    fn capabilities_are_hexadecimal() {
        assert_eq!(
            capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"),
            0x1ff_ffff_ffff
        );
        assert_eq!(capabilities("Name:\tx\n"), 0);
    }

    #[test]
    fn cgroups_of_both_versions_are_found() {
        let hybrid_groups = "9:name=systemd:/\n4:memory:/api/1\n0::/\n";
        let hybrid_mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let place = |version, mount: &str, group: &str| Some((version, mount.into(), group.into()));
        assert_eq!(
            cgroup_place(hybrid_groups, hybrid_mounts),
            place(1, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/api/1")
        );
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            cgroup_place("0::/system.slice/terrace.service\n", mounts),
            place(
                2,
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/system.slice/terrace.service"
            )
        );
        // A container that sees its own part of the tree only.
        let mounts = "30 23 0:26 /docker/7 /sys/fs/cgroup ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            cgroup_place("4:memory:/docker/7/job\n", mounts),
            place(1, "/sys/fs/cgroup", "/sys/fs/cgroup/job")
        );
        assert_eq!(
            cgroup_place("4:memory:/elsewhere\n", mounts),
            place(1, "/sys/fs/cgroup", "/sys/fs/cgroup/")
        );
        assert_eq!(cgroup_place("", ""), None);
        assert_eq!(cgroup_place("garbage\n::\n", "garbage - x\n"), None);
    }
}
