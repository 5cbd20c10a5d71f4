//! What a set is asked: the value, and when and with which expiry it is to be there.
//!
//! Never: decides about it; `write` does.

use crate::large::Upload;
use crate::meta::Meta;

/// A value to be set.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Up to [`INLINE_MAX_BYTES`](crate::INLINE_MAX_BYTES).
    Inline(&'a [u8]),
    /// Received piece by piece.
    Large(Upload),
}

/// When a set takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cond {
    /// In any case.
    Always,
    /// If the key is absent (NX).
    IfAbsent,
    /// If the key exists (XX).
    IfPresent,
    /// If this token stands for its present value.
    IfToken(u64),
}

/// The expiry after a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// None.
    None,
    /// As it was.
    Keep,
    /// At this time, ms since 1970.
    At(u64),
}

/// How a key is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// When it is.
    pub cond: Cond,
    /// Its expiry.
    pub expiry: Expiry,
    /// What memcached keeps with the value.
    pub meta: Option<Meta>,
}
