//! Keyed hashing: SipHash-1-3 with 128 bits of output and a key of the pool.
//!
//! One hash serves the lane, the shard, the slot's tag and the full scan, where
//! 128 bits stand for the key itself. Keyed, so that nobody outside can choose
//! keys that collide.
//!
//! Objects have numbers instead of keys (table and id, [`ObjectId`]): for them nothing
//! is hashed, the number is the subject. It still goes through this type, since the
//! cleaner asks an entry whose it is and gets the answer from its key.

use siphasher::sip128::SipHasher13;

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

/// An object's number: the table in the high 16 bits, the id in the low 48. Its eight
/// bytes, lowest first, are the entry's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);

/// Bits of an id within its table.
pub const OBJECT_ID_BITS: u32 = 48;

impl ObjectId {
    /// Length of the key of an object's entry.
    pub const KEY_BYTES: usize = 8;

    /// Object `id` (below 2^48) of a table.
    pub fn new(table: u16, id: u64) -> ObjectId {
        debug_assert!(id < 1 << OBJECT_ID_BITS, "id {id:#x}; at most 48 bits");
        ObjectId(u64::from(table) << OBJECT_ID_BITS | id)
    }
    /// Its table.
    pub fn table(self) -> u16 {
        (self.0 >> OBJECT_ID_BITS) as u16
    }
    /// Its id in the table.
    pub fn id(self) -> u64 {
        self.0 & ((1 << OBJECT_ID_BITS) - 1)
    }
    /// The key of its entry.
    pub fn key(self) -> [u8; Self::KEY_BYTES] {
        self.0.to_le_bytes()
    }
    /// Its place in the directory: the number itself. `place` is spread over all values
    /// for what wants a hash (the ghost, the parts of a full scan).
    pub fn hash(self) -> KeyHash {
        let mut x = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        KeyHash {
            index: self.0,
            place: x ^ (x >> 32),
        }
    }
}

/// Says whose an entry is by its key, in one pool.
#[derive(Clone, Copy)]
pub struct Hasher {
    /// None: keys are objects' numbers.
    key: Option<HashKey>,
}

impl Hasher {
    /// With the pool's secret.
    pub fn new(key: HashKey) -> Hasher {
        Hasher { key: Some(key) }
    }
    /// For a pool of objects.
    pub fn of_objects() -> Hasher {
        Hasher { key: None }
    }
    /// Hash of `key`; internal keys (`space` 1) never meet the user's. In a pool of objects a key
    /// that is no number (only damage makes one) counts as the number of its first eight bytes.
    pub fn hash(&self, space: u8, key: &[u8]) -> KeyHash {
        let Some(secret) = self.key else {
            let mut number = [0; ObjectId::KEY_BYTES];
            let len = key.len().min(number.len());
            number[..len].copy_from_slice(&key[..len]);
            return ObjectId(u64::from_le_bytes(number)).hash();
        };
        let h = SipHasher13::new_with_keys(secret.0, secret.1 ^ u64::from(space)).hash(key);
        KeyHash {
            index: h.h1,
            place: h.h2,
        }
    }
}
