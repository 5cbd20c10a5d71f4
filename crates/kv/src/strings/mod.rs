//! What the commands on a part of a string mean: pure functions from the value before to the value after and the answer,
//! with Redis's arithmetic and Redis's errors. Every protocol and the tests' doubles use these. Never: touch a store.

pub mod bitfield;
pub mod bits;
pub mod dump;
pub mod float;
pub mod lcs;
pub mod lzf;
pub mod ranges;

/// The longest string of Redis's commands on parts, bytes (its `proto-max-bulk-len`).
pub const STRING_MAX_BYTES: u64 = 512 << 20;
