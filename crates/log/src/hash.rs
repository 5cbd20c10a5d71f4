//! Keyed hashing: SipHash-1-3 with 128 bits of output and a key of the pool.
//!
//! One hash serves the lane, the shard, the slot's tag and the full scan, where
//! 128 bits stand for the key itself. Keyed, so that nobody outside can choose
//! keys that collide.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher as _;

/// The pool's secret, 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub u64, pub u64);

/// Hash of a key within its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash {
    /// Bits for the directory: the top ones choose the page.
    pub index: u64,
    /// Bits for lane and shard.
    pub place: u64,
}

/// Hashes keys of one pool.
#[derive(Clone, Copy)]
pub struct Hasher {
    key: HashKey,
}

impl Hasher {
    /// With the pool's secret.
    pub fn new(key: HashKey) -> Hasher {
        Hasher { key }
    }
    /// Hash of `key`; internal keys (`space` 1) never meet the user's.
    pub fn hash(&self, space: u8, key: &[u8]) -> KeyHash {
        let mut h = SipHasher13::new_with_keys(self.key.0, self.key.1 ^ u64::from(space));
        h.write(key);
        let h = h.finish128();
        KeyHash {
            index: h.h1,
            place: h.h2,
        }
    }
}
