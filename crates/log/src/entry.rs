//! One entry: header, optional fields, key, value, padding to 16 bytes.
//!
//! ```text
//!  0  crc_head  u32  CRC-32C of bytes 4..24, the optional fields and the key, seeded
//!  4  crc_value u32  CRC-32C of the value, seeded
//!  8  link      u64  on the SSD: the location it replaces; in memory: its copy below
//! 16  key_len   u16
//! 18  kind      u8   low 4 bits: Kind; high 4: space (0 user, 1 internal)
//! 19  flags     u8   EXPIRY, VERSION, PREFIX on media; DEAD, KEEP, THROUGH in memory only
//! 20  value_len u32
//! 24  [expiry u64 ms] [version u64]  key  value  zeros to a multiple of 16
//! ```
//! The seed binds an entry to pool, segment, the segment's generation and the
//! place in it, so stale or misplaced bytes never pass. Two checksums, so that
//! damage in a value still lets the key be known. In memory the checksums are
//! zero: they are made when an entry steps down to a medium.
//! Never: trusts a length before its checksum (on media) or its writer (in memory).

use crate::addr::{ENTRY_MAX_BYTES, Loc, UNIT_BYTES};
use crate::hash::Hasher;
use crate::{INLINE_MAX_BYTES, KEY_MAX_BYTES, Subject, VALUE_PREFIX_MAX_BYTES};

/// Fixed part of the header.
pub const HEADER_BYTES: usize = 24;
/// Flag: an absolute expiry in ms follows the header.
pub const FLAG_EXPIRY: u8 = 1;
/// Flag: an explicit version follows (a tombstone that was moved keeps its own; of [`Kind::Freed`] it is a generation).
pub const FLAG_VERSION: u8 = 2;
/// Flag: the value begins with what the layer above keeps with it, at most [`VALUE_PREFIX_MAX_BYTES`]. It stays with the
/// entry wherever that goes.
pub const FLAG_PREFIX: u8 = 4;
/// Memory only: a copy below may be this key's, and nobody has read that copy's key yet.
pub const FLAG_UNVERIFIED: u8 = 0x10;
/// Memory only: no slot names it any more.
pub const FLAG_DEAD: u8 = 0x20;
/// Memory only: superseded after its epoch was closed, so that epoch's flush must still write it.
pub const FLAG_KEEP: u8 = 0x40;
/// Memory only: goes through to the durable terrace and is not kept in DRAM.
pub const FLAG_THROUGH: u8 = 0x80;
/// Flags that say which optional fields there are.
const FIELD_FLAGS: u8 = FLAG_EXPIRY | FLAG_VERSION;
const MEDIA_FLAGS: u8 = FIELD_FLAGS | FLAG_PREFIX;
const STORED_MAX_BYTES: usize = INLINE_MAX_BYTES + VALUE_PREFIX_MAX_BYTES;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A value.
    Value = 1,
    /// The binder of a value stored in pieces.
    Binder = 2,
    /// The key was deleted or has expired.
    Tombstone = 3,
    /// No key's: the segment that `link` names, in the life that the version field names, is free.
    Freed = 4,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Kind> {
        match bits & 15 {
            1 => Some(Kind::Value),
            2 => Some(Kind::Binder),
            3 => Some(Kind::Tombstone),
            4 => Some(Kind::Freed),
            _ => None,
        }
    }
}

/// Why bytes are not an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Header, optional fields or key do not match their checksum.
    #[error("header or key fails its checksum")]
    Head,
    /// The value does not match its checksum; the key is right.
    #[error("value fails its checksum")]
    Value,
}

/// A borrowed entry. In memory it may be read without verification.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    bytes: &'a [u8],
}

/// What an append needs to know.
#[derive(Clone, Copy)]
pub struct NewEntry<'a> {
    /// Kind of entry.
    pub kind: Kind,
    /// 0 user, 1 internal.
    pub space: u8,
    /// Flags that are not implied by the fields below (PREFIX, KEEP, THROUGH).
    pub flags: u8,
    /// Location of the copy below or replaced.
    pub link: Loc,
    /// Absolute expiry in ms.
    pub expiry_ms: Option<u64>,
    /// Explicit version.
    pub version: Option<u64>,
    /// Key.
    pub key: &'a [u8],
    /// Value.
    pub value: &'a [u8],
}

fn rd_u16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
pub(crate) fn rd_u32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
pub(crate) fn rd_u64(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

/// Length in bytes of an entry with these parts, padding included.
pub const fn entry_bytes(key_len: usize, value_len: usize, expiry: bool, version: bool) -> usize {
    let raw = HEADER_BYTES + 8 * expiry as usize + 8 * version as usize + key_len + value_len;
    raw.next_multiple_of(UNIT_BYTES)
}

impl<'a> NewEntry<'a> {
    /// Says that the segment that starts at `segment` is free, once its epoch is durable.
    pub fn freed(segment: Loc, generation: u32) -> NewEntry<'static> {
        NewEntry {
            kind: Kind::Freed,
            space: 1,
            flags: 0,
            link: segment,
            expiry_ms: None,
            version: Some(u64::from(generation)),
            key: &[],
            value: &[],
        }
    }

    /// Length in bytes once written, padding included.
    pub fn len_bytes(&self) -> usize {
        entry_bytes(
            self.key.len(),
            self.value.len(),
            self.expiry_ms.is_some(),
            self.version.is_some(),
        )
    }

    /// Writes the entry at the start of `out` without checksums; returns its length.
    /// `out` must have [`NewEntry::len_bytes`] bytes.
    pub fn write(&self, out: &mut [u8]) -> usize {
        debug_assert!(self.key.len() <= KEY_MAX_BYTES && self.value.len() <= STORED_MAX_BYTES);
        let mut flags = self.flags & !FIELD_FLAGS;
        let mut at = HEADER_BYTES;
        if let Some(ms) = self.expiry_ms {
            flags |= FLAG_EXPIRY;
            out[at..at + 8].copy_from_slice(&ms.to_le_bytes());
            at += 8;
        }
        if let Some(v) = self.version {
            flags |= FLAG_VERSION;
            out[at..at + 8].copy_from_slice(&v.to_le_bytes());
            at += 8;
        }
        out[0..8].fill(0);
        out[8..16].copy_from_slice(&self.link.raw().to_le_bytes());
        out[16..18].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        out[18] = self.kind as u8 | self.space << 4;
        out[19] = flags;
        out[20..24].copy_from_slice(&(self.value.len() as u32).to_le_bytes());
        out[at..at + self.key.len()].copy_from_slice(self.key);
        at += self.key.len();
        out[at..at + self.value.len()].copy_from_slice(self.value);
        at += self.value.len();
        let end = at.next_multiple_of(UNIT_BYTES);
        out[at..end].fill(0);
        end
    }

    /// Writes the entry with checksums made from `seed`, memory-only flags left out.
    pub fn write_sealed(&self, out: &mut [u8], seed: u32) -> usize {
        let len = self.write(out);
        out[19] &= MEDIA_FLAGS;
        seal(&mut out[..len], seed);
        len
    }
}

fn head_end(bytes: &[u8]) -> usize {
    let flags = bytes[19];
    HEADER_BYTES
        + 8 * usize::from(flags & FLAG_EXPIRY != 0)
        + 8 * usize::from(flags & FLAG_VERSION != 0)
}

/// Where the key and all of what may be an entry end, if its lengths are possible and within `bytes`.
fn extent(bytes: &[u8]) -> Option<(usize, usize)> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let value_len = rd_u32(bytes, 20) as usize;
    let key_end = head_end(bytes) + rd_u16(bytes, 16) as usize;
    let known = Kind::from_bits(bytes[18]).is_some() && bytes[18] >> 4 <= 1;
    if !known || value_len > STORED_MAX_BYTES {
        return None;
    }
    let end = (key_end + value_len).next_multiple_of(UNIT_BYTES);
    (end <= bytes.len().min(ENTRY_MAX_BYTES)).then_some((key_end, end))
}

fn seal(entry: &mut [u8], seed: u32) {
    let key_end = head_end(entry) + rd_u16(entry, 16) as usize;
    let value_end = key_end + rd_u32(entry, 20) as usize;
    let crc_value = crc32c::crc32c_append(seed, &entry[key_end..value_end]);
    entry[4..8].copy_from_slice(&crc_value.to_le_bytes());
    let crc_head = crc32c::crc32c_append(seed, &entry[4..key_end]);
    entry[0..4].copy_from_slice(&crc_head.to_le_bytes());
}

impl<'a> Entry<'a> {
    /// The entry at the start of `bytes`, which come from a writer in this
    /// process (a memory terrace): lengths are trusted.
    pub fn in_memory(bytes: &'a [u8]) -> Entry<'a> {
        let key_end = head_end(bytes) + rd_u16(bytes, 16) as usize;
        let end = (key_end + rd_u32(bytes, 20) as usize).next_multiple_of(UNIT_BYTES);
        Entry {
            bytes: &bytes[..end],
        }
    }

    /// The entry at the start of `bytes`, which come from a medium: header and
    /// key are verified against `seed`, the value is not (see [`Entry::verify_value`]).
    pub fn from_media(bytes: &'a [u8], seed: u32) -> Result<Entry<'a>, EntryError> {
        let (key_end, end) = extent(bytes).ok_or(EntryError::Head)?;
        let checks = bytes[19] & !MEDIA_FLAGS == 0
            && crc32c::crc32c_append(seed, &bytes[4..key_end]) == rd_u32(bytes, 0);
        match checks {
            true => Ok(Entry {
                bytes: &bytes[..end],
            }),
            false => Err(EntryError::Head),
        }
    }

    /// The entry at the start of `bytes`, which a writer in another process left as they were in its memory: whoever read them has
    /// verified them as a whole; that it lies within them is seen to here. None: it does not, or is none.
    pub fn left_in_memory(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let (_, end) = extent(bytes)?;
        Some(Entry {
            bytes: &bytes[..end],
        })
    }

    /// Verifies the value's checksum.
    pub fn verify_value(&self, seed: u32) -> Result<(), EntryError> {
        match crc32c::crc32c_append(seed, self.value()) == rd_u32(self.bytes, 4) {
            true => Ok(()),
            false => Err(EntryError::Value),
        }
    }

    /// The whole entry, padding included.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
    /// Length with padding, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
    /// Kind.
    pub fn kind(&self) -> Kind {
        Kind::from_bits(self.bytes[18]).unwrap_or(Kind::Tombstone)
    }
    /// 0 user, 1 internal.
    pub fn space(&self) -> u8 {
        self.bytes[18] >> 4
    }
    /// Whether the value begins with a prefix; as a flag for an entry made of this one.
    pub fn prefix_flag(&self) -> u8 {
        self.bytes[19] & FLAG_PREFIX
    }
    /// All flags.
    pub fn flags(&self) -> u8 {
        self.bytes[19]
    }
    /// Copy below (memory) or replaced location (media).
    pub fn link(&self) -> Loc {
        Loc::from_raw(rd_u64(self.bytes, 8))
    }
    /// Absolute expiry in ms.
    pub fn expiry_ms(&self) -> Option<u64> {
        (self.flags() & FLAG_EXPIRY != 0).then(|| rd_u64(self.bytes, HEADER_BYTES))
    }
    /// Explicit version of a moved tombstone, or generation of a freed segment.
    pub fn version(&self) -> Option<u64> {
        let at = HEADER_BYTES + 8 * usize::from(self.flags() & FLAG_EXPIRY != 0);
        (self.flags() & FLAG_VERSION != 0).then(|| rd_u64(self.bytes, at))
    }
    /// Whether its time is up at `now_ms`.
    pub fn expired(&self, now_ms: u64) -> bool {
        self.expiry_ms().is_some_and(|at| at <= now_ms)
    }
    /// Key.
    pub fn key(&self) -> &'a [u8] {
        let at = head_end(self.bytes);
        &self.bytes[at..at + rd_u16(self.bytes, 16) as usize]
    }
    /// Value.
    pub fn value(&self) -> &'a [u8] {
        let at = head_end(self.bytes) + rd_u16(self.bytes, 16) as usize;
        &self.bytes[at..at + rd_u32(self.bytes, 20) as usize]
    }
    /// Whose it is.
    pub fn subject(&self, hasher: &Hasher) -> Subject {
        Subject {
            space: self.space(),
            hash: hasher.hash(self.space(), self.key()),
        }
    }
    /// The same entry as parts for another append.
    pub fn to_new(&self) -> NewEntry<'a> {
        NewEntry {
            kind: self.kind(),
            space: self.space(),
            flags: self.flags() & !FIELD_FLAGS,
            link: self.link(),
            expiry_ms: self.expiry_ms(),
            version: self.version(),
            key: self.key(),
            value: self.value(),
        }
    }
}

/// Changes the link of an entry in memory.
pub fn set_link(entry: &mut [u8], link: Loc) {
    entry[8..16].copy_from_slice(&link.raw().to_le_bytes());
}
/// Adds memory-only flags to an entry in memory.
pub fn add_flags(entry: &mut [u8], flags: u8) {
    entry[19] |= flags & !MEDIA_FLAGS;
}
/// Takes memory-only flags from an entry in memory.
pub fn remove_flags(entry: &mut [u8], flags: u8) {
    entry[19] &= !(flags & !MEDIA_FLAGS);
}
/// Writes a value over that of an entry in memory, if the entry is as long with it, padding included. False: it is not.
pub fn set_value(entry: &mut [u8], value: &[u8]) -> bool {
    let at = head_end(entry) + rd_u16(entry, 16) as usize;
    let end = (at + rd_u32(entry, 20) as usize).next_multiple_of(UNIT_BYTES);
    let fits = (at + value.len()).next_multiple_of(UNIT_BYTES) == end;
    if fits {
        entry[20..24].copy_from_slice(&(value.len() as u32).to_le_bytes());
        entry[at..at + value.len()].copy_from_slice(value);
        entry[at + value.len()..end].fill(0);
    }
    fits
}
/// Changes the expiry of an entry in memory that already has one.
pub fn set_expiry(entry: &mut [u8], ms: u64) {
    debug_assert!(entry[19] & FLAG_EXPIRY != 0);
    entry[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&ms.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Terrace;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip_and_every_flipped_bit_is_seen(
            key in proptest::collection::vec(any::<u8>(), 0..40),
            value in proptest::collection::vec(any::<u8>(), 0..80),
            expiry in proptest::option::of(any::<u64>()),
            version in proptest::option::of(any::<u64>()),
            prefix in any::<bool>(),
            seed in any::<u32>(), bit in any::<usize>(),
        ) {
            let new = NewEntry {
                kind: Kind::Value, space: 1, flags: FLAG_KEEP | if prefix { FLAG_PREFIX } else { 0 },
                link: Loc::new(Terrace::Ssd, 3, 77), expiry_ms: expiry, version, key: &key, value: &value,
            };
            let mut buf = vec![0xAA; new.len_bytes()];
            prop_assert_eq!(new.write_sealed(&mut buf, seed), buf.len());
            let e = Entry::from_media(&buf, seed).unwrap();
            e.verify_value(seed).unwrap();
            prop_assert_eq!((e.key(), e.value(), e.expiry_ms(), e.version()), (&key[..], &value[..], expiry, version));
            prop_assert_eq!(e.flags() & FLAG_KEEP, 0);
            prop_assert_eq!(e.prefix_flag() != 0, prefix);
            prop_assert_eq!(e.to_new().flags, e.prefix_flag());
            // Bound to the seed: the same bytes elsewhere are no entry.
            prop_assert!(Entry::from_media(&buf, seed ^ 1).is_err());
            // Padding is the only part a flip may hide in.
            let used = head_end(&buf) + key.len() + value.len();
            let bit = bit % (used * 8);
            buf[bit / 8] ^= 1 << (bit % 8);
            let bad = match Entry::from_media(&buf, seed) {
                Err(_) => true,
                Ok(e) => e.verify_value(seed).is_err(),
            };
            prop_assert!(bad);
        }

        #[test]
        fn a_value_is_written_over_another_that_takes_as_much(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..40),
            other in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let new = |value| NewEntry {
                kind: Kind::Value, space: 0, flags: 0, link: Loc::NONE, expiry_ms: None, version: Some(7), key: &key, value,
            };
            let (was, will) = (new(&value), new(&other));
            let len = was.len_bytes();
            // What is behind it is another's.
            let mut buf = vec![0xAA; len + 32];
            was.write(&mut buf);
            let fits = len == will.len_bytes();
            let mut expected = buf.clone();
            if fits {
                will.write(&mut expected);
            }
            prop_assert_eq!(set_value(&mut buf, &other), fits);
            prop_assert!(buf == expected);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), seed in any::<u32>()) {
            let _ = Entry::from_media(&bytes, seed);
        }
    }
}
