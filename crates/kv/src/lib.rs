//! What keys and values mean: strings, expiry, atomic commands. Every protocol
//! and binding uses this room, so that a command means the same everywhere.
//!
//! A function is one command. It is called with a [`Task`] until it is done: when
//! it says `Wait`, the same call is made again later. Nothing is half done in
//! between; a command of several keys changes them all in one epoch or none.
//! Never: parses a protocol, blocks, or holds a lock while something is read.

// The rig of the integration tests names the crate as they do.
#[cfg(test)]
extern crate self as terrace_kv;

mod blind;
mod change;
mod edit;
mod error;
mod expire;
mod find;
mod how;
mod item;
mod large;
mod maintain;
pub mod memcached;
mod meta;
mod modify;
mod number;
mod read;
mod scan;
mod shared;
pub mod strings;
#[cfg(test)]
mod tests;
mod watch;
mod write;

pub use edit::{Edit, Edits, Held, Seen, View, edit, edit_with, unwatch, watch};
pub use error::{KvError, KvErrorKind};
pub use expire::{ExpireCond, expire, expire_goes};
pub use how::{Cond, Expiry, How, NewValue};
pub use item::Item;
pub use large::{Upload, read_piece, release, upload_abort, upload_begin, upload_piece};
pub use maintain::Maintainer;
pub use meta::{Meta, digest};
pub use read::{ExpiryOf, dbsize, exists, expiry, footprint_bytes, get, item, strlen};
pub use scan::{random_key, scan};
pub use shared::{LargeRef, inline_max_bytes, piece_bytes};
pub use terrace_log::{INLINE_MAX_BYTES, KEY_MAX_BYTES};
pub use terrace_pool::{Task, Worker};
pub use watch::Watched;
pub use write::{del, flush_all, get_del, incr_by, mset, put, set, set_item};

/// Longest value, bytes.
pub const VALUE_MAX_BYTES: u64 = 64 << 20;
/// Length of the pieces a value above [`INLINE_MAX_BYTES`] is stored in.
pub const PIECE_BYTES: usize = 61_440;
/// Keys of one atomic command.
pub const KEYS_PER_COMMAND_MAX: usize = 1 << 20;

/// How far a command is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    /// Done, with its result.
    Done(T),
    /// Call again, with the same arguments and task.
    Wait(Wait),
}

/// What a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Reads: the task's owner shows up in `Worker::take_ready`.
    Io,
    /// Room: after a turn that says `room`, or a few ms.
    Room,
}

/// The result of one call.
pub type Outcome<T> = Result<Step<T>, KvError>;

/// A value as a command sees it.
#[derive(Debug)]
pub enum Value<'a> {
    /// No such key.
    Absent,
    /// A value in one piece.
    Inline(&'a [u8]),
    /// A value in pieces; to be given back with [`release`].
    Large(LargeRef),
}
