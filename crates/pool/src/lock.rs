//! One process a pool: an advisory lock on `lock`, which names its holder.

use crate::PoolError;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use terrace_media::descriptors::keep_file;

/// Held while the pool is open; the system lets it go when the process ends.
pub(crate) struct PoolLock(#[allow(dead_code)] File);

impl PoolLock {
    pub(crate) fn take(dir: &Path) -> Result<PoolLock, PoolError> {
        let path = dir.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
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
        let name = std::env::args().next().unwrap_or_default();
        let text = format!("{} ({name})\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|e| PoolError::io(&path, e))?;
        Ok(PoolLock(file))
    }
}
