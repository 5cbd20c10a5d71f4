//! What memcached keeps with a value, in 16 bytes before it, by a flag of the entry.
//!
//! Promises: an entry without the flag costs nothing. Never: shows the prefix as part of a value, or knows what a value is made of.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use terrace_log::VALUE_PREFIX_MAX_BYTES;
use terrace_log::entry::{Entry, FLAG_PREFIX};

/// Length of the prefix, bytes.
pub(crate) const META_BYTES: usize = VALUE_PREFIX_MAX_BYTES;

/// What memcached keeps with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Changes whenever the value does, and is never given twice.
    pub cas: u64,
    /// The client's own.
    pub client_flags: u32,
    /// Bits of the meta commands: [`Meta::STALE`], [`Meta::WON`].
    pub state: u32,
}

impl Meta {
    /// The value was declared stale.
    pub const STALE: u32 = 1;
    /// Somebody was told to renew it.
    pub const WON: u32 = 2;

    pub(crate) fn encode(self) -> [u8; META_BYTES] {
        let mut out = [0; META_BYTES];
        out[..8].copy_from_slice(&self.cas.to_le_bytes());
        out[8..12].copy_from_slice(&self.client_flags.to_le_bytes());
        out[12..].copy_from_slice(&self.state.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Meta> {
        Some(Meta {
            cas: u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?),
            client_flags: u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?),
            state: u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?),
        })
    }
}

/// The value of an entry, without what stands before it.
#[inline]
pub(crate) fn user_value<'a>(e: &Entry<'a>) -> &'a [u8] {
    match e.flags() & FLAG_PREFIX {
        0 => e.value(),
        _ => e.value().get(META_BYTES..).unwrap_or_default(),
    }
}

/// What stands before the value of an entry.
#[inline]
pub(crate) fn meta_of(e: &Entry<'_>) -> Option<Meta> {
    match e.flags() & FLAG_PREFIX {
        0 => None,
        _ => Meta::decode(e.value()),
    }
}

/// The bytes of an entry that holds `value` with `meta` before it, and their flag.
pub(crate) fn stored(value: &[u8], meta: Option<Meta>) -> (std::borrow::Cow<'_, [u8]>, u8) {
    match meta {
        None => (value.into(), 0),
        Some(meta) => {
            let mut bytes = Vec::with_capacity(META_BYTES + value.len());
            bytes.extend_from_slice(&meta.encode());
            bytes.extend_from_slice(value);
            (bytes.into(), FLAG_PREFIX)
        }
    }
}

/// 63 bits of a hash; the highest bit keeps them apart from counted tokens.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(0x7465_7272_6163_6563, 0x6173_746f_6b65_6e73);
    hasher.write(bytes);
    hasher.finish128().h1 | 1 << 63
}
