//! Why a [`PageHeap`](super::PageHeap) refuses: what is full, or what was passed wrongly. Never: an error without its numbers.

use super::class::ALIGN_MAX_BYTES;
use crate::opp::HeapError;

/// Why memory cannot be had or freed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// Of the region or the store.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// No addresses in a row.
    #[error(
        "{asked_bytes} bytes: the heap has {heap_bytes} bytes of addresses, and too few in a row are free; make it larger, or free memory"
    )]
    NoAddresses {
        /// Bytes asked for.
        asked_bytes: usize,
        /// What the heap has.
        heap_bytes: u64,
    },
    /// Not a power of two, or too large.
    #[error("an alignment of {asked}: a power of two up to {ALIGN_MAX_BYTES} is allowed")]
    Alignment {
        /// What was asked for.
        asked: usize,
    },
    /// Not the start of an allocation.
    #[error("{address:#x} is not the start of an allocation of this heap")]
    NotAllocated {
        /// What was given.
        address: usize,
    },
    /// Freed already.
    #[error("{address:#x} is freed already (a double free)")]
    Freed {
        /// What was given.
        address: usize,
    },
}
