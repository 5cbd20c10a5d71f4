//! One process a pool: an advisory lock on `lock`, which names its holder; and a claim on the data, which lasts until the last operation of a process that was killed.

use crate::PoolError;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_media::descriptors::keep_file;
use terrace_media::{Claim, FileDevice, MediaError};

/// What a killed process has under way at the device is waited for so long; after the first part it is said.
const QUIET: Duration = Duration::from_secs(1);
const UNDER_WAY_MAX: Duration = Duration::from_secs(60);

/// Held while the pool is open; the system lets it go when the process ends.
#[derive(Debug)]
pub(crate) struct PoolLock {
    file: File,
    /// Who took it: a fork has the file too, and not the pool.
    process: u32,
    data: Option<Claim>,
    /// Its file, if there was none before.
    made: Option<PathBuf>,
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        self.unclaim();
        // Closing is not enough: another thread's child may have the file until it becomes another program, and would keep the pool closed.
        if self.process == std::process::id() {
            // Where that is refused, the file is closed with its last owner.
            let _unlocked = flock(&self.file, FlockOperation::NonBlockingUnlock);
        }
    }
}

impl PoolLock {
    pub(crate) fn take(dir: &Path) -> Result<PoolLock, PoolError> {
        let path = dir.join("lock");
        let is_new = !path.exists();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A link here is nobody's of ours, and may lead to a file that is not to be written to.
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .map(keep_file)
            .map_err(|e| PoolError::io(&path, e))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = (&mut file).take(256).read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "unknown".to_string(),
                name => name.to_string(),
            };
            return Err(PoolError::Locked {
                dir: dir.to_path_buf(),
                holder,
            });
        }
        let mut before = [0; 1];
        let read = file
            .read(&mut before)
            .map_err(|e| PoolError::io(&path, e))?;
        // Zeros: a name that was not written yet when the power went.
        if read == 1 && before[0] != 0 && !before[0].is_ascii_digit() {
            return Err(PoolError::NotAPool { path });
        }
        // Of a program under `terrace run` it may be any bytes.
        let name = std::env::args_os().next().unwrap_or_default();
        let process = std::process::id();
        let text = format!("{process} ({})\n", name.to_string_lossy());
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|e| PoolError::io(&path, e))?;
        Ok(PoolLock {
            file,
            process,
            data: None,
            made: is_new.then_some(path),
        })
    }

    /// The refusal of a directory whose `data` is not a pool's: what is another's keeps no file of ours.
    pub(crate) fn not_a_pool(&mut self, data: PathBuf) -> PoolError {
        if let Some(path) = self.made.take() {
            // One that stays is in nobody's way.
            let _ = std::fs::remove_file(path);
        }
        PoolError::NotAPool { path: data }
    }

    /// Waits until nothing of the pool's last process is under way on its data, and keeps it so. Before the first byte is read.
    pub(crate) fn claim(&mut self, data: &FileDevice) -> Result<(), PoolError> {
        // One that is had already, by the same open file, would end the new one when it is dropped.
        self.unclaim();
        let claim = match data.claim(QUIET) {
            Err(e @ MediaError::UnderWay { .. }) => {
                tracing::warn!("{e}; waiting up to {} s", UNDER_WAY_MAX.as_secs());
                data.claim(UNDER_WAY_MAX)
            }
            claim => claim,
        };
        self.data = Some(claim?);
        Ok(())
    }

    /// Gives the data up, and stays the pool's only process.
    pub(crate) fn unclaim(&mut self) {
        self.data = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_threads_child_has_of_it_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let lock = PoolLock::take(dir.path()).unwrap();
        let refused = PoolLock::take(dir.path()).unwrap_err();
        assert!(matches!(refused, PoolError::Locked { .. }), "{refused}");
        let childs = lock.file.try_clone().unwrap();
        drop(lock);
        drop(PoolLock::take(dir.path()).unwrap());
        drop(childs);
    }

    #[test]
    fn anothers_file_of_that_name_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "locks of another program").unwrap();
        let refused = PoolLock::take(dir.path()).unwrap_err();
        assert!(matches!(refused, PoolError::NotAPool { .. }), "{refused}");
        let kept = std::fs::read_to_string(&path).unwrap();
        assert_eq!(kept, "locks of another program");
        for ours in ["", "17 (terrace)\n", "\0\0\0"] {
            std::fs::write(&path, ours).unwrap();
            PoolLock::take(dir.path()).unwrap();
        }
    }

    #[test]
    fn a_link_in_its_place_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "1").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("lock")).unwrap();
        PoolLock::take(dir.path()).unwrap_err();
        assert_eq!(std::fs::read(&other).unwrap(), b"1");
    }

    #[test]
    fn a_fork_that_ends_does_not_let_go_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = PoolLock::take(dir.path()).unwrap();
        drop(PoolLock {
            file: lock.file.try_clone().unwrap(),
            process: lock.process + 1,
            data: None,
            made: None,
        });
        PoolLock::take(dir.path()).unwrap_err();
        drop(lock);
        PoolLock::take(dir.path()).unwrap();
    }
}
