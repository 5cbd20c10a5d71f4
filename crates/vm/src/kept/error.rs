//! Why named regions refuse. Never: an error without its numbers.

use crate::error::VmError;
use crate::opp::HeapError;
use crate::store::ObjectError;
use terrace_pool::PoolError;

/// Longest name of a region, bytes.
pub const NAME_MAX_BYTES: usize = 255;

/// Why a region cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Of the pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Of its memory or its store.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// A name that is none.
    #[error(
        "a region's name has 1 to {NAME_MAX_BYTES} bytes, none of them 0; this one has {bytes} bytes"
    )]
    Name {
        /// How many it has.
        bytes: usize,
    },
    /// It is open.
    #[error("the region {name:?} is open: close it first, or use what it was opened as")]
    InUse {
        /// Its name.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no region {name:?} in this pool")]
    Missing {
        /// The name.
        name: String,
    },
    /// As many as a pool can have.
    #[error("a pool has at most {max} regions: remove some")]
    TooMany {
        /// How many.
        max: u16,
    },
    /// No addresses are left.
    #[error(
        "{asked_bytes} bytes of addresses: the pool's regions have {all_bytes} together, and too few in a row are free; remove regions, or ask for less room to grow"
    )]
    NoAddresses {
        /// What was asked for, in whole GiB.
        asked_bytes: u64,
        /// What all regions of the pool have.
        all_bytes: u64,
    },
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
}

impl From<ObjectError> for RegionError {
    fn from(e: ObjectError) -> RegionError {
        HeapError::from(e).into()
    }
}

impl From<VmError> for RegionError {
    fn from(e: VmError) -> RegionError {
        HeapError::from(e).into()
    }
}

pub(super) fn out_of_bounds(what: &'static str, asked: u64, most: u64) -> RegionError {
    RegionError::Bounds {
        what,
        asked,
        allowed: format!("1 to {most}"),
    }
}
