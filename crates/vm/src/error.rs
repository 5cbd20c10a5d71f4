//! Why memory cannot be had.

use crate::backing::StoreError;
use crate::sys::SystemError;

/// Why memory cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// The system refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A number is out of bounds.
    #[error("{what}: {asked} asked, {allowed} is allowed")]
    Bounds {
        /// What the number is.
        what: &'static str,
        /// The number.
        asked: u64,
        /// What it may be.
        allowed: String,
    },
    /// No addresses are left.
    #[error(
        "a region of {asked_bytes} bytes: {reserved_bytes} bytes of addresses are reserved for all regions, and too few in a row \
         are free; drop regions, or reserve more"
    )]
    NoAddresses {
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes reserved.
        reserved_bytes: u64,
    },
    /// Changed pages could not be written back.
    #[error("pages could not be written back, and stay in DRAM: {0}")]
    Store(#[from] StoreError),
    /// As many memories as a process may have.
    #[error("a process has at most {max} memories that take faults; drop one, or use its regions")]
    TooMany {
        /// How many.
        max: usize,
    },
    /// The process forked; its memory stayed with the parent.
    #[error(
        "this process is a fork: memory of the pool stayed with its parent; open a pool of its own after forking"
    )]
    Forked,
}
