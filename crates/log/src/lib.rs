//! Entries and segments of one terrace: the bytes, and how they are written,
//! read and scanned (docs/format.md has every byte).
//!
//! Promises: an entry that reads back without an error is the entry that was
//! written at that place, in that pool, in that life of its segment; a scan
//! never loops, never panics and never trusts a length that a checksum does
//! not cover. Never: knows which copy of a key is the newest; that is the
//! directory's, behind the trait [`Directory`].

pub mod addr;
pub mod directory;
pub mod entry;
pub mod frame;
pub mod hash;
pub mod scan;
pub mod writer;

pub use addr::{Loc, Slot, Terrace, UNIT_BYTES};
pub use directory::{Directory, Full, Order, Snapshot, Subject};
pub use entry::{Entry, EntryError, Kind, NewEntry};
pub use hash::{HashKey, Hasher, KeyHash, OBJECT_ID_BITS, ObjectId};

/// Longest key in bytes: the header gives its length two bytes.
pub const KEY_MAX_BYTES: usize = 65_535;
/// Longest value stored in one entry; longer ones are stored piece by piece.
pub const INLINE_MAX_BYTES: usize = 65_536;
/// What may stand before a value in its entry, beside [`INLINE_MAX_BYTES`] of value.
pub const VALUE_PREFIX_MAX_BYTES: usize = 16;
