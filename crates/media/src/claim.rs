//! [`Claim`]: a device that nothing of an earlier process is under way on.
//!
//! A process that is killed leaves with the kernel what it had handed to a ring. That reaches the device later: after the process's end, and
//! after the end of the locks on its other files. Who opens the device then would read it too early, or have written over what it wrote.
//! The lock here is on the open file that operations go through, and they keep that open until they end.
//!
//! Promises: while a claim is there nobody else has one; it is had when the last operation of who had it before has ended, however that process
//! ended. Never: waits longer than it is told.

use crate::uring::has_left_operations;
use crate::{FileDevice, MediaError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Held while a process uses a device.
#[derive(Debug)]
pub struct Claim {
    file: Arc<File>,
    /// Who took it: a fork has the file too, and not the claim.
    process: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Queues end when their operations have, and closing is not enough: another thread's child may have the file until it becomes another program.
        if self.process == std::process::id() && !has_left_operations() {
            // Where that is refused, the file is closed with its last owner.
            let _unlocked = flock(&self.file, FlockOperation::NonBlockingUnlock);
        }
    }
}

impl FileDevice {
    /// Claims the device, for as long as the claim is kept; waits `at_most` so long for what is under way on it.
    ///
    /// Errors: [`MediaError::UnderWay`] if that does not end in time, or if somebody else keeps a claim; else what the system says.
    pub fn claim(&self, at_most: Duration) -> Result<Claim, MediaError> {
        let begun = Instant::now();
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < at_most => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(MediaError::UnderWay {
                        path: self.path.clone(),
                        waited_ms: begun.elapsed().as_millis() as u64,
                    });
                }
                Err(errno) => return Err(MediaError::setup("lock", self.path.display(), errno)),
            }
        }
        Ok(Claim {
            file: Arc::clone(&self.file),
            process: std::process::id(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    fn device(dir: &tempfile::TempDir) -> FileDevice {
        let path = dir.path().join("data");
        match path.exists() {
            true => FileDevice::open(&path).unwrap(),
            false => FileDevice::create_unwritten(&path, 4096).unwrap(),
        }
    }

    #[test]
    fn one_at_a_time_and_a_copy_of_the_file_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (device(&dir), device(&dir));
        let claim = first.claim(SOON).unwrap();
        let refused = second.claim(SOON).unwrap_err();
        assert!(matches!(refused, MediaError::UnderWay { waited_ms, .. } if waited_ms >= 20));
        let childs = first.file.try_clone().unwrap();
        drop(claim);
        drop(second.claim(SOON).unwrap());
        drop(childs);
    }

    /// What an operation under way keeps of a killed process is the open file, and nothing else.
    #[test]
    fn what_keeps_the_file_open_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let next = device(&dir);
        let under_way = File::open(dir.path().join("data")).unwrap();
        flock(&under_way, FlockOperation::NonBlockingLockExclusive).unwrap();
        next.claim(SOON).unwrap_err();
        let begun = Instant::now();
        std::thread::spawn(move || {
            std::thread::sleep(4 * SOON);
            drop(under_way);
        });
        next.claim(LONG).unwrap();
        assert!((4 * SOON..LONG).contains(&begun.elapsed()));
    }

    #[test]
    fn a_fork_that_ends_does_not_give_it_up() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (device(&dir), device(&dir));
        let claim = first.claim(SOON).unwrap();
        drop(Claim {
            file: Arc::clone(&claim.file),
            process: claim.process + 1,
        });
        second.claim(SOON).unwrap_err();
    }
}
