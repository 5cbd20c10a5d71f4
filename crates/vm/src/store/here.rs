//! A store in the child of a fork: it stayed with the parent.
//!
//! Its DRAM terrace is memory that both have, its rings are the parent's, and a lock may be in the hands of a thread that the child has not. So who calls in a child is refused before anything is
//! looked at, and what ends there is forgotten. (Under `terrace run` children have pages of their own, and ask the process that has the pool: they never come here.) Promises: whatever a child calls or
//! drops, its parent's store is as it was. Never: costs a call more than a load.

use super::error::ObjectError;
use super::tables::Tables;
use crate::forks;
use terrace_pool::{Pool, PoolError};

/// Who opened a store.
pub(super) struct Opener {
    generation: u32,
    process: u32,
}

impl Opener {
    /// This process.
    pub fn new(pool: &Pool<Tables>) -> Result<Opener, PoolError> {
        match forks::watch_forks() {
            0 => Ok(Opener {
                generation: forks::generation(),
                process: std::process::id(),
            }),
            errno => Err(PoolError::Io {
                path: pool.options().dir.clone(),
                error: std::io::Error::from_raw_os_error(errno),
            }),
        }
    }

    /// Refuses in a fork of it.
    #[inline]
    pub fn here(&self) -> Result<(), ObjectError> {
        match self.generation == forks::generation() {
            true => Ok(()),
            false => Err(ObjectError::Forked),
        }
    }

    /// Whether this is the process: for what ends. Asks the kernel, so that a fork of which the C library knows nothing is told, too.
    pub fn is_here(&self) -> bool {
        self.here().is_ok() && self.process == std::process::id()
    }
}
