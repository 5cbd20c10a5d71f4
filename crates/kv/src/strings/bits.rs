//! Single bits and runs of them: SETBIT, GETBIT, BITCOUNT, BITPOS, BITOP. Bit 0 is the highest one of byte 0.

use super::ranges::{range, range_from_end};

/// The bit at `offset`; 0 behind the end.
pub fn get_bit(value: &[u8], offset: u64) -> bool {
    value
        .get((offset / 8) as usize)
        .is_some_and(|byte| byte >> (7 - offset % 8) & 1 == 1)
}

/// Changes the bit at `offset`, which must lie within `value`; answers what it was.
pub fn set_bit(value: &mut [u8], offset: u64, on: bool) -> bool {
    let (byte, mask) = (&mut value[(offset / 8) as usize], 0x80 >> (offset % 8));
    let was = *byte & mask != 0;
    *byte = if on { *byte | mask } else { *byte & !mask };
    was
}

/// What a range's indices count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Byte,
    /// Bits.
    Bit,
}

/// The bits that BITCOUNT's indices name.
pub fn count_range(len_bytes: u64, start: i64, end: i64, unit: Unit) -> std::ops::Range<u64> {
    bit_range(range, len_bytes, start, end, unit)
}

/// The bits that BITPOS's indices name.
pub fn position_range(len_bytes: u64, start: i64, end: i64, unit: Unit) -> std::ops::Range<u64> {
    bit_range(range_from_end, len_bytes, start, end, unit)
}

fn bit_range(
    range: fn(u64, i64, i64) -> std::ops::Range<u64>,
    len_bytes: u64,
    start: i64,
    end: i64,
    unit: Unit,
) -> std::ops::Range<u64> {
    match unit {
        Unit::Bit => range(len_bytes * 8, start, end),
        Unit::Byte => {
            let r = range(len_bytes, start, end);
            r.start * 8..r.end * 8
        }
    }
}

/// How many bits of the range are set.
pub fn count(value: &[u8], bits: std::ops::Range<u64>) -> u64 {
    if bits.is_empty() {
        return 0;
    }
    let (first, last) = ((bits.start / 8) as usize, ((bits.end - 1) / 8) as usize);
    let whole: u64 = value[first..=last]
        .iter()
        .map(|b| u64::from(b.count_ones()))
        .sum();
    let before = value[first] & !(0xffu8 >> (bits.start % 8));
    let kept_in_last = (bits.end - 1) % 8 + 1;
    let behind = value[last] & (0xffu16 >> kept_in_last) as u8;
    whole - u64::from(before.count_ones()) - u64::from(behind.count_ones())
}

/// The first bit of the range that is `on`.
pub fn find(value: &[u8], bits: std::ops::Range<u64>, on: bool) -> Option<u64> {
    let mut at = bits.start;
    let skip = if on { 0x00 } else { 0xff };
    while at < bits.end {
        if at.is_multiple_of(8) && value[(at / 8) as usize] == skip {
            at += 8;
            continue;
        }
        if get_bit(value, at) == on {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// What BITOP does to the bytes of all its strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitOp {
    /// Set in all.
    And,
    /// Set in any.
    Or,
    /// Set in an odd number.
    Xor,
    /// Not set in the only one.
    Not,
}

/// The combination of strings, shorter ones followed by zeros.
pub fn combine(op: BitOp, values: &[&[u8]]) -> Vec<u8> {
    let len = values.iter().map(|v| v.len()).max().unwrap_or(0);
    let mut out = vec![0; len];
    let Some((first, rest)) = values.split_first() else {
        return out;
    };
    out[..first.len()].copy_from_slice(first);
    if op == BitOp::Not {
        out.iter_mut().for_each(|b| *b = !*b);
    }
    for value in rest {
        combine_into(op, &mut out, value);
    }
    out
}

/// Joins one more value to what was combined so far; where it has no bytes, it counts as zeros.
pub fn combine_into(op: BitOp, out: &mut [u8], value: &[u8]) {
    for (at, byte) in out.iter_mut().enumerate() {
        let other = value.get(at).copied().unwrap_or(0);
        *byte = match op {
            BitOp::And => *byte & other,
            BitOp::Or => *byte | other,
            BitOp::Xor => *byte ^ other,
            BitOp::Not => *byte,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against one bit after the other.
        #[test]
        fn runs_are_what_single_bits_say(
            value in proptest::collection::vec(prop_oneof![Just(0u8), Just(255u8), any::<u8>()], 1..40),
            a in any::<u16>(), b in any::<u16>(), on in any::<bool>(),
        ) {
            let bits = value.len() as u64 * 8;
            let (a, b) = (u64::from(a) % bits, u64::from(b) % bits);
            let range = a.min(b)..a.max(b) + 1;
            let set = range.clone().filter(|&at| get_bit(&value, at)).count() as u64;
            prop_assert_eq!(count(&value, range.clone()), set);
            let first = range.clone().find(|&at| get_bit(&value, at) == on);
            prop_assert_eq!(find(&value, range, on), first);
        }
    }
}
