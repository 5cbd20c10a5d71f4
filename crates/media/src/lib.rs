//! Where bytes rest: block media ([`FileDevice`], over io_uring with direct I/O), byte media
//! ([`Arena`], locked shared memory) and their simulated twins ([`sim`]).
//!
//! Promises: a buffer lent to the kernel stays alive and unchanged until its completion is
//! reaped; every operation ends in exactly one [`Done`]; space is reserved when a medium is made,
//! so that a full file system is met then and not under load; every failure is an error value.
//!
//! Never: caches, retries a failed flush, looks at what the bytes mean, or starts a thread but the one that moves segments to huge pages (`huge`).

mod arena;
mod below;
mod buf;
mod claim;
pub mod descriptors;
mod disk;
mod error;
mod file;
mod huge;
mod pages;
mod prefetch;
mod probe;
mod several;
pub mod sim;
mod stock;
mod sync;
mod uring;

pub use arena::{Arena, Piece};
pub use buf::{Buf, Frozen, SegBuf};
pub use claim::Claim;
pub use disk::{
    BLOCKING_TOKEN, Counters, Device, Disk, Done, Op, ReadInto, Wait, flush_blocking,
    read_blocking, run_among, write_blocking,
};
pub use error::MediaError;
pub use file::FileDevice;
pub use pages::HUGE_BYTES;
pub use prefetch::{prefetch, prefetch_line};
pub use probe::{Probe, RingFeatures, probe};
pub use uring::{QueueOptions, TaskRun};

/// Unit and alignment of direct I/O: offsets, lengths and addresses are multiples of it. Reads may be finer where the
/// device allows it ([`Device::read_unit_bytes`]).
pub const BLOCK_BYTES: usize = 4096;

/// The finest that a read may be: offsets, lengths and addresses of reads are multiples of it. It is also what a power loss
/// leaves whole of a write: a sector is written or not, never in part.
pub const SECTOR_BYTES: usize = 512;

/// The longest single operation; longer ones are refused by an assertion, since Linux would cut
/// them short at 2 GiB.
pub const OP_BYTES_MAX: usize = 1 << 30;

/// The deepest queue a device opens; what is submitted beyond the depth waits in the backlog.
pub const QUEUE_DEPTH_MAX: u32 = 4096;
