//! Why a pool cannot be made, opened or used.

use rustix::io::Errno;
use std::path::PathBuf;
use terrace_media::MediaError;

/// A refusal: what was asked, what is allowed, what to do.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Another process has it.
    #[error(
        "the pool {dir} is in use by process {holder}, or a fork of it if that has ended; stop that process or choose another directory"
    )]
    Locked {
        /// The pool.
        dir: PathBuf,
        /// Who holds it.
        holder: String,
    },
    /// No pool there.
    #[error("there is no pool in {0}; make one with: terrace pool create {0} --ssd SIZE")]
    Missing(PathBuf),
    /// A pool cannot be made there.
    #[error(
        "{0} cannot be made: the directory that it would be in is not there; make that first, or correct the path"
    )]
    NoParent(PathBuf),
    /// A pool is there already.
    #[error("there is a pool in {0} already; use it, or remove it with: terrace pool destroy {0}")]
    Exists(PathBuf),
    /// The device that holds it is not there.
    #[error(
        "{path} is a link to what cannot be found ({error}); attach that device, or correct the link, or remove the pool with: \
         terrace pool destroy"
    )]
    NoDevice {
        /// The link.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The data is shorter than it was.
    #[error(
        "{path} has {bytes} bytes, and its superblock says {wanted_bytes}: it was cut; put back what is missing, or another copy"
    )]
    Cut {
        /// The data file.
        path: PathBuf,
        /// What it has.
        bytes: u64,
        /// What it had.
        wanted_bytes: u64,
    },
    /// The superblock does not check.
    #[error("{path}: this is no pool, or both copies of its superblock are damaged")]
    NotAPool {
        /// The data file.
        path: PathBuf,
    },
    /// It holds something else than it is opened for.
    #[error(
        "{path} holds {is}, and was to be opened for {asked}; choose another directory, or remove it with: terrace pool destroy"
    )]
    Contents {
        /// The data file.
        path: PathBuf,
        /// What it holds.
        is: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A setting is out of its range.
    #[error("{what} is {asked}; {allowed}")]
    Setting {
        /// Which one.
        what: &'static str,
        /// What was asked for.
        asked: String,
        /// What is allowed.
        allowed: String,
    },
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The file system failed.
    #[error("{path}: {error}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The pool takes no more updates.
    #[error("the pool is read-only: {0}")]
    Failed(String),
}

impl PoolError {
    /// The system's error number, or the one that says the same; None: there is none.
    pub fn errno(&self) -> Option<i32> {
        match self {
            PoolError::Io { error, .. } | PoolError::NoDevice { error, .. } => error.raw_os_error(),
            PoolError::Media(MediaError::Size { .. } | MediaError::WrongKind { .. }) => {
                Some(Errno::INVAL.raw_os_error())
            }
            PoolError::Media(MediaError::UnderWay { .. }) => Some(Errno::BUSY.raw_os_error()),
            PoolError::Media(error) => error.errno(),
            _ => None,
        }
    }

    pub(crate) fn io(path: &std::path::Path, error: std::io::Error) -> PoolError {
        PoolError::Io {
            path: path.to_path_buf(),
            error,
        }
    }
}
