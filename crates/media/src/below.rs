//! What of the systems below is believed, and what is waited for.
//!
//! Promises: a wait has an end. Never: reads or writes a file.

use crate::MediaError;
use rustix::fs::fstatfs;
use rustix::io::Errno;
use std::fs::File;
use std::time::{Duration, Instant};

/// The kernel takes the rings of whoever had a device before apart some time after they are closed.
const BUSY_MAX: Duration = Duration::from_secs(1);
const BUSY_STEP: Duration = Duration::from_millis(10);

/// Whether a write that asks for it is durable when it has ended: on a block device, and where the file system is known to do it. Others take the flag and leave it at that (FUSE with direct I/O
/// hands it to a server that need not look; btrfs in Linux 5.16 to 6.0 forgets it where the write goes on behind the caller's back).
pub(crate) fn writes_through(file: &File, is_block_device: bool) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    let kind = || fstatfs(file).map_or(0, |fs| fs.f_type as u64 & 0xffff_ffff);
    is_block_device || [EXT4, XFS].contains(&kind())
}

/// Opens, and where it is said to be in use tries again for a moment.
pub(crate) fn patiently<T>(open: impl Fn() -> Result<T, MediaError>) -> Result<T, MediaError> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(e)
                if e.errno() == Some(Errno::BUSY.raw_os_error()) && begun.elapsed() < BUSY_MAX =>
            {
                std::thread::sleep(BUSY_STEP);
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_what_is_known_to_write_through_is_believed() {
        // Files of tmpfs and of proc.
        let shared = rustix::fs::memfd_create("terrace-test", rustix::fs::MemfdFlags::CLOEXEC);
        let shared = File::from(shared.unwrap());
        let proc = File::open("/proc/self/status").unwrap();
        for file in [&shared, &proc] {
            assert!(!writes_through(file, false));
            assert!(writes_through(file, true));
        }
    }

    #[test]
    fn what_is_in_use_for_a_moment_is_waited_for() {
        let tries = Cell::new(0);
        let open = |errno, busy| {
            tries.set(0);
            patiently(|| {
                tries.set(tries.get() + 1);
                match tries.get() <= busy {
                    true => Err(MediaError::setup("open", "a device", errno)),
                    false => Ok(()),
                }
            })
        };
        assert!(open(Errno::BUSY, 3).is_ok() && tries.get() == 4);
        assert!(open(Errno::ACCESS, 3).is_err() && tries.get() == 1);
        assert!(open(Errno::BUSY, u32::MAX).is_err());
    }
}
