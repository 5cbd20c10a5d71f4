//! A swap file for the peer that has nothing but swap.
//!
//! Promises that the file is swapped off and deleted when dropped, also after an error or ctrl-c. Never touches swap it did not
//! add. Needs root, and says so.

use crate::process;
use anyhow::{Context, Result, bail};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest swap file that may be asked for.
const SWAP_BYTES_MAX: u64 = 64 << 30;

/// Swap over what is to be held in it. Once more than half of the swap is in use, Linux gives a slot up as soon as its page is read (`vm_swap_full`), and writes the
/// page anew when it leaves, also one that was never changed: with 1.25 times as much 16 threads that read had 153,000 operations/s where they had 207,000 with twice
/// (docs/benchmarks.md). Who sets up swap for its speed makes it larger. What is
/// measured beside it has as much of the disk.
pub const SWAP_OVER_DATA: u64 = 3;

/// A swap file in use.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
    on: bool,
}

impl SwapFile {
    /// Makes the file `path` of `bytes`, with its blocks allocated, and swaps on it.
    ///
    /// Errors: not root, too large, no room, a file system that cannot hold swap.
    pub fn new(path: &Path, bytes: u64) -> Result<SwapFile> {
        if !crate::machine::is_root() {
            bail!("a swap file needs root (run as root or with sudo)");
        }
        if bytes > SWAP_BYTES_MAX {
            bail!("a swap file of {bytes} bytes was asked, at most {SWAP_BYTES_MAX} are allowed");
        }
        let name = path.display().to_string();
        drop(fs::remove_file(path));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = file.with_context(|| format!("making the swap file {name}"))?;
        // From here on the guard removes the file, whatever fails.
        let mut swap = SwapFile {
            path: path.to_owned(),
            on: false,
        };
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .with_context(|| format!("reserving {bytes} bytes for the swap file {name}"))?;
        file.sync_all()?;
        process::run(&["mkswap", &name])?;
        process::run(&["swapon", &name])?;
        swap.on = true;
        Ok(swap)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let name = self.path.display().to_string();
        if self.on
            && let Err(e) = process::run(&["swapoff", &name])
        {
            eprintln!("{e:#}: run `swapoff {name}` and delete the file by hand");
            return;
        }
        if let Err(e) = fs::remove_file(&self.path) {
            eprintln!("could not delete the swap file {name}: {e}");
        }
    }
}

/// Pages swapped in and out by the whole machine, from /proc/vmstat.
pub fn pages_swapped() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    let number = |name: &str| {
        text.lines().find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(' ')?
                .trim()
                .parse::<u64>()
                .ok()
        })
    };
    Some((number("pswpin")?, number("pswpout")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_on_and_off_or_says_why_not() {
        let path =
            std::env::temp_dir().join(format!("terrace-bench-swap-test-{}", std::process::id()));
        let listed = || {
            fs::read_to_string("/proc/swaps")
                .unwrap_or_default()
                .contains(&path.display().to_string())
        };
        match SwapFile::new(&path, 16 << 20) {
            Ok(swap) => {
                assert!(listed());
                drop(swap);
            }
            Err(e) if !crate::machine::is_root() => {
                assert!(e.to_string().contains("root"), "{e:#}")
            }
            // A tmpfs or a container without the capability: the refusal must come from the tool itself.
            Err(e) => assert!(format!("{e:#}").contains("swap"), "{e:#}"),
        }
        assert!(!listed());
        assert!(!path.exists());
        assert!(SwapFile::new(&path, SWAP_BYTES_MAX + 1).is_err());
    }
}
