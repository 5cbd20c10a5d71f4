//! Parts of a string by byte: GETRANGE's indices, SETRANGE, APPEND.

use super::STRING_MAX_BYTES;
use crate::KvError;

/// The part that GETRANGE's indices name in a string of `len` bytes; negative ones count from the end.
pub fn range(len: u64, start: i64, end: i64) -> std::ops::Range<u64> {
    match start < 0 && end < 0 && start > end {
        true => 0..0,
        false => range_from_end(len, start, end),
    }
}

/// The same for BITPOS, which takes indices before the start for the start, also if their order is wrong.
pub fn range_from_end(len: u64, start: i64, end: i64) -> std::ops::Range<u64> {
    let place = |at: i64| match at < 0 {
        true => (len as i64).saturating_add(at).max(0) as u64,
        false => at as u64,
    };
    let (start, end) = (place(start), place(end).min(len.saturating_sub(1)));
    match start > end || len == 0 {
        true => 0..0,
        false => start..end + 1,
    }
}

fn too_long() -> KvError {
    KvError::wrong("string exceeds maximum allowed size (proto-max-bulk-len)")
}

/// Writes `part` over `value` from `offset` on, with zeros in between where it was shorter.
///
/// # Errors
/// When the string would be longer than any may be, or longer than `most_bytes`: then with the length it would have.
pub fn set_range(
    value: &[u8],
    offset: u64,
    part: &[u8],
    most_bytes: usize,
) -> Result<Vec<u8>, KvError> {
    let end = offset.saturating_add(part.len() as u64);
    if end > STRING_MAX_BYTES {
        return Err(too_long());
    }
    let len = (end as usize).max(value.len());
    if len > most_bytes {
        return Err(crate::edit::too_long(len, most_bytes));
    }
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(value);
    out.resize(len, 0);
    out[offset as usize..end as usize].copy_from_slice(part);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_redis() {
        assert_eq!(range(5, 0, -1), 0..5);
        assert_eq!(range(5, -3, -2), 2..4);
        assert_eq!(range(5, -100, 100), 0..5);
        assert_eq!(range(5, 5, 7), 0..0);
        assert_eq!(range(5, -1, -2), 0..0);
        assert_eq!(range(0, 0, -1), 0..0);
        assert_eq!(range(5, i64::MIN, i64::MAX), 0..5);
        assert_eq!(range(5, 2, i64::MIN), 0..0);
        assert_eq!(range(5, -7, -15), 0..0);
        assert_eq!(range_from_end(5, -7, -15), 0..1);
    }

    #[test]
    fn a_gap_is_zeros() {
        assert_eq!(set_range(b"ab", 4, b"cd", 100).unwrap(), b"ab\0\0cd");
        assert_eq!(set_range(b"abcdef", 1, b"XY", 100).unwrap(), b"aXYdef");
        assert!(set_range(b"", STRING_MAX_BYTES, b"x", 100).is_err());
        assert!(set_range(b"", u64::MAX, b"x", usize::MAX).is_err());
        assert!(set_range(b"", 100, b"x", 100).is_err());
    }
}
