//! DUMP and RESTORE of strings: Redis's serialised form, version 10: a type byte, the string, the version and a CRC-64.
//! A string is written as it is or, if it is an integer, as one; compressed ones are read and not written.

use super::lzf;
use crate::number::parse_i64;

/// The version that Redis 7.0 writes; older ones are read.
const RDB_VERSION: u16 = 10;
const TYPE_STRING: u8 = 0;
/// Version and checksum.
const FOOT_BYTES: usize = 10;
/// The checksum of Redis's files.
const CRC: crc::Crc<u64> = crc::Crc::<u64>::new(&crc::CRC_64_REDIS);

/// Why bytes are no dump of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The foot is of a later version, or does not fit the rest.
    Foot,
    /// The rest is not a string.
    Format,
}

/// What DUMP answers for a string.
pub fn dump(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 16);
    out.push(TYPE_STRING);
    match parse_i64(value)
        .filter(|_| value.len() <= 11)
        .map(encode_int)
    {
        Some(Some(int)) => out.extend_from_slice(&int),
        _ => {
            write_len(&mut out, value.len());
            out.extend_from_slice(value);
        }
    }
    out.extend_from_slice(&RDB_VERSION.to_le_bytes());
    let sum = CRC.checksum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The shortest integer form, if there is one.
fn encode_int(n: i64) -> Option<Vec<u8>> {
    if let Ok(n) = i8::try_from(n) {
        return Some(vec![0xc0, n as u8]);
    }
    if let Ok(n) = i16::try_from(n) {
        return Some([&[0xc1][..], &n.to_le_bytes()].concat());
    }
    let n = i32::try_from(n).ok()?;
    Some([&[0xc2][..], &n.to_le_bytes()].concat())
}

fn write_len(out: &mut Vec<u8>, len: usize) {
    match len {
        0..64 => out.push(len as u8),
        64..16_384 => out.extend_from_slice(&[0x40 | (len >> 8) as u8, len as u8]),
        _ => {
            out.push(0x80);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

/// The string of a dump of at most `most_bytes`.
///
/// # Errors
/// See [`Refused`].
pub fn restore(dump: &[u8], most_bytes: usize) -> Result<Vec<u8>, Refused> {
    let foot = dump.len().checked_sub(FOOT_BYTES).ok_or(Refused::Foot)?;
    let version = u16::from_le_bytes([dump[foot], dump[foot + 1]]);
    let sum = dump[foot + 2..]
        .iter()
        .rev()
        .fold(0u64, |n, &b| n << 8 | u64::from(b));
    if version > RDB_VERSION || sum != CRC.checksum(&dump[..foot + 2]) {
        return Err(Refused::Foot);
    }
    let (&kind, body) = dump[..foot].split_first().ok_or(Refused::Format)?;
    if kind != TYPE_STRING {
        return Err(Refused::Format);
    }
    let (value, rest) = string(body, most_bytes).ok_or(Refused::Format)?;
    match rest.is_empty() {
        true => Ok(value),
        false => Err(Refused::Format),
    }
}

/// A length, or the number of a special form, and what follows it.
fn length(body: &[u8]) -> Option<(Result<usize, u8>, &[u8])> {
    let (&first, rest) = body.split_first()?;
    Some(match first >> 6 {
        0 => (Ok(usize::from(first)), rest),
        1 => (
            Ok(usize::from(first & 63) << 8 | usize::from(*rest.first()?)),
            &rest[1..],
        ),
        2 if first == 0x80 => {
            let len = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?);
            (Ok(len as usize), &rest[4..])
        }
        2 if first == 0x81 => {
            let len = u64::from_be_bytes(rest.get(..8)?.try_into().ok()?);
            (Ok(usize::try_from(len).ok()?), &rest[8..])
        }
        2 => return None,
        _ => (Err(first & 63), rest),
    })
}

fn string(body: &[u8], most_bytes: usize) -> Option<(Vec<u8>, &[u8])> {
    let (len, rest) = length(body)?;
    let number = |bytes: usize| -> Option<(Vec<u8>, &[u8])> {
        let raw = rest.get(..bytes)?;
        let n = match bytes {
            1 => i64::from(raw[0] as i8),
            2 => i64::from(i16::from_le_bytes(raw.try_into().ok()?)),
            _ => i64::from(i32::from_le_bytes(raw.try_into().ok()?)),
        };
        Some((n.to_string().into_bytes(), &rest[bytes..]))
    };
    match len {
        Ok(len) if len <= most_bytes => Some((rest.get(..len)?.to_vec(), &rest[len..])),
        Ok(_) => None,
        Err(0) => number(1),
        Err(1) => number(2),
        Err(2) => number(4),
        Err(3) => {
            let (packed, rest) = length(rest)?;
            let (len, rest) = length(rest)?;
            let (packed, len) = (packed.ok()?, len.ok()?);
            let bytes = rest.get(..packed)?;
            let value = (len <= most_bytes).then(|| lzf::unpack(bytes, len))??;
            Some((value, &rest[packed..]))
        }
        Err(_) => None,
    }
}

/// What the body of a long dump is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// These bytes of the dump.
    Plain(std::ops::Range<u64>),
    /// These bytes, packed (LZF), and so many unpacked.
    Packed(std::ops::Range<u64>, u64),
}

/// Bytes that [`body`] needs of a dump's start.
pub const HEAD_MAX_BYTES: usize = 32;
/// Bytes that [`foot_fits`] needs of its end.
pub const FOOT: usize = FOOT_BYTES;

/// The body of a long dump of so many bytes, by its first ones.
///
/// # Errors
/// When it is not a string (what is an integer is not long).
pub fn body(head: &[u8], dump_bytes: u64) -> Result<Body, Refused> {
    let find = || -> Option<(Body, u64)> {
        let (&kind, rest) = head.split_first()?;
        if kind != TYPE_STRING {
            return None;
        }
        let at = |rest: &[u8]| (head.len() - rest.len()) as u64;
        let (len, rest) = length(rest)?;
        Some(match len {
            Ok(len) => {
                let bytes = at(rest)..at(rest).checked_add(len as u64)?;
                (Body::Plain(bytes.clone()), bytes.end)
            }
            Err(3) => {
                let (packed, rest) = length(rest)?;
                let (len, rest) = length(rest)?;
                let bytes = at(rest)..at(rest).checked_add(packed.ok()? as u64)?;
                (Body::Packed(bytes.clone(), len.ok()? as u64), bytes.end)
            }
            Err(_) => return None,
        })
    };
    let foot = dump_bytes.saturating_sub(FOOT_BYTES as u64);
    let found = find().filter(|(_, end)| *end == foot);
    found.map(|(body, _)| body).ok_or(Refused::Format)
}

/// The checksum of what was summed before and these bytes; 0 of nothing.
pub fn sum(before: u64, bytes: &[u8]) -> u64 {
    let mut digest = CRC.digest_with_initial(before.reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

/// Whether the last bytes of a dump are a foot for this checksum of all before its last eight.
pub fn foot_fits(foot: &[u8; FOOT_BYTES], summed: u64) -> bool {
    let version = u16::from_le_bytes([foot[0], foot[1]]);
    let sum = foot[2..]
        .iter()
        .rev()
        .fold(0u64, |n, &b| n << 8 | u64::from(b));
    version <= RDB_VERSION && sum == summed
}

/// What stands before a long string of so many bytes in its dump.
pub fn head_of(len: u64) -> Vec<u8> {
    let mut out = vec![TYPE_STRING];
    write_len(&mut out, len as usize);
    out
}

/// What stands behind it, by the checksum of all before.
pub fn foot_of(summed: u64) -> Vec<u8> {
    let mut out = RDB_VERSION.to_le_bytes().to_vec();
    let sum = sum(summed, &out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rediss_manual() {
        let want = b"\x00\xc0\n\n\x00n\x9fWE\x0e\xaec\xbb";
        assert_eq!(dump(b"10"), want);
        assert_eq!(restore(want, 100).unwrap(), b"10");
    }

    #[test]
    fn a_compressed_string_is_read() {
        // "aaaa…" of 40 bytes: a literal, and one reference of 39 bytes with distance 1.
        let mut bytes = vec![TYPE_STRING, 0xc3, 5, 40, 0, b'a', 7 << 5, 30, 0];
        bytes.extend_from_slice(&RDB_VERSION.to_le_bytes());
        bytes.extend_from_slice(&CRC.checksum(&bytes).to_le_bytes());
        assert_eq!(restore(&bytes, 100).unwrap(), [b'a'; 40]);
        assert_eq!(restore(&bytes, 39), Err(Refused::Format));
    }

    /// In a file of Redis's it means that nobody has summed; in a payload it is a wrong one.
    #[test]
    fn the_checksum_0_is_looked_at_like_any_other() {
        let mut bytes = dump(b"hello");
        let foot = bytes.len() - FOOT;
        bytes[foot + 2..].fill(0);
        assert_eq!(restore(&bytes, 100), Err(Refused::Foot));
        let zero = bytes[foot..].try_into().unwrap();
        assert!(!foot_fits(zero, sum(0, &bytes[..foot + 2])));
    }

    proptest! {
        #[test]
        fn what_is_dumped_is_restored(value in proptest::collection::vec(any::<u8>(), 0..20_000)) {
            prop_assert_eq!(restore(&dump(&value), value.len()).unwrap(), value);
        }
        #[test]
        fn integers_too(n in any::<i64>()) {
            let text = n.to_string();
            prop_assert_eq!(restore(&dump(text.as_bytes()), 20).unwrap(), text.as_bytes());
        }
        #[test]
        fn a_long_one_is_told_by_its_ends(value in proptest::collection::vec(any::<u8>(), 70..20_000), cut in 1usize..60) {
            let whole = dump(&value);
            let (head, foot) = (head_of(value.len() as u64), whole.len() - FOOT);
            let summed = value.chunks(cut).fold(sum(0, &head), sum);
            prop_assert_eq!([&head[..], &value, &foot_of(summed)].concat(), whole.clone());
            let bytes = head.len() as u64..foot as u64;
            let read = body(&whole[..HEAD_MAX_BYTES], whole.len() as u64);
            prop_assert_eq!(read, Ok(Body::Plain(bytes)));
            let foot: [u8; FOOT] = whole[foot..].try_into().unwrap();
            prop_assert!(foot_fits(&foot, sum(summed, &foot[..2])));
            prop_assert!(!foot_fits(&foot, summed ^ 1));
        }
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut bytes = bytes;
            let _ = restore(&bytes, 1000);
            let _ = body(&bytes, bytes.len() as u64);
            // With a good foot the body is looked at.
            bytes.extend_from_slice(&foot_of(sum(0, &bytes)));
            let looked_at = restore(&bytes, 1000);
            prop_assert_ne!(looked_at, Err(Refused::Foot));
        }
    }
}
