//! A store in the child of a fork: it stayed with the parent.
//!
//! Its DRAM terrace is memory that both have, its rings are the parent's, and a lock may be in the hands of a thread that the child has not. So who calls in a child is refused before anything is
//! looked at, and what ends there is forgotten. (Under `terrace run` children have pages of their own, and ask the process that has the pool: they never come here.) Promises: whatever a child calls or
//! drops, its parent's store is as it was. Never: costs a call more than a load.

use super::error::ObjectError;
use super::open::Store;
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
}

impl Store {
    /// Refuses in a fork of the process that opened it.
    #[inline]
    pub(crate) fn here(&self) -> Result<(), ObjectError> {
        match self.opener.generation == forks::generation() {
            true => Ok(()),
            false => Err(ObjectError::Forked),
        }
    }

    /// Whether this is the process that opened it: for what ends. Asks the kernel, so that a fork of which the C library knows nothing is told, too.
    pub(crate) fn is_here(&self) -> bool {
        self.here().is_ok() && self.opener.process == std::process::id()
    }

    /// In a fork, where it is dropped: nothing of the parent's ends with it. A piece of the DRAM terrace would give its memory back, and a ring would wait for what the parent has under way.
    pub(super) fn leave(&mut self) {
        self.driver.leave();
        std::mem::forget(self.pool.clone());
        std::mem::forget(std::mem::take(&mut self.queues));
    }
}
