//! BITFIELD: integers of any width at any bit, with Redis's three ways of overflow.

use super::bits::{get_bit, set_bit};

/// An integer's width and sign: `i1` to `i64`, `u1` to `u63`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type {
    /// Two's complement.
    pub signed: bool,
    /// 1 to 64.
    pub bits: u32,
}

impl Type {
    /// Parses `u8`, `i16`, ….
    pub fn parse(text: &[u8]) -> Option<Type> {
        let (first, digits) = text.split_first()?;
        let signed = match first {
            b'i' => true,
            b'u' => false,
            _ => return None,
        };
        let bits = crate::number::parse_i64(digits)?;
        let most = if signed { 64 } else { 63 };
        (1..=most).contains(&bits).then_some(Type {
            signed,
            bits: bits as u32,
        })
    }

    fn least(self) -> i128 {
        if self.signed {
            -(1i128 << (self.bits - 1))
        } else {
            0
        }
    }
    fn most(self) -> i128 {
        match self.signed {
            true => (1i128 << (self.bits - 1)) - 1,
            false => (1i128 << self.bits) - 1,
        }
    }
    /// The low bits of `value`, read as this type.
    fn wrapped(self, value: i128) -> i64 {
        let low = value & ((1i128 << self.bits) - 1);
        match low > self.most() {
            true => (low - (1i128 << self.bits)) as i64,
            false => low as i64,
        }
    }
}

/// What happens to a number that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// Its low bits count.
    #[default]
    Wrap,
    /// The nearest that fits.
    Sat,
    /// Nothing is changed, and the answer is null.
    Fail,
}

/// One step of a BITFIELD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Get,
    /// Replaces; answers what was there.
    Set(i64, Overflow),
    /// Adds; answers the sum.
    Incr(i64, Overflow),
}

/// One step with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub op: Op,
    /// To what.
    pub kind: Type,
    /// Where, in bits.
    pub offset: u64,
}

/// The length in bytes that the value must have for all steps that write.
pub fn needed_bytes(steps: &[Step]) -> u64 {
    let writes = steps.iter().filter(|s| s.op != Op::Get);
    let ends = writes.map(|s| (s.offset + u64::from(s.kind.bits)).div_ceil(8));
    ends.max().unwrap_or(0)
}

fn read(value: &[u8], step: &Step) -> i64 {
    let bits = (0..u64::from(step.kind.bits)).map(|n| get_bit(value, step.offset + n));
    let raw = bits.fold(0i128, |raw, bit| raw << 1 | i128::from(bit));
    step.kind.wrapped(raw)
}

fn write(value: &mut [u8], step: &Step, number: i64) {
    for n in 0..step.kind.bits {
        let bit = number >> (step.kind.bits - 1 - n) & 1 == 1;
        set_bit(value, step.offset + u64::from(n), bit);
    }
}

fn fit(kind: Type, number: i128, overflow: Overflow) -> Option<i64> {
    if (kind.least()..=kind.most()).contains(&number) {
        return Some(number as i64);
    }
    match overflow {
        Overflow::Wrap => Some(kind.wrapped(number)),
        Overflow::Sat => Some(number.clamp(kind.least(), kind.most()) as i64),
        Overflow::Fail => None,
    }
}

/// Does a step. `value` is as long as [`needed_bytes`] says. None: it overflows and is to fail.
pub fn apply(value: &mut [u8], step: &Step) -> Option<i64> {
    let old = read(value, step);
    match step.op {
        Op::Get => Some(old),
        Op::Set(new, overflow) => {
            // An unsigned type takes the number as it would be without a sign.
            let wanted = match step.kind.signed {
                true => i128::from(new),
                false => i128::from(new as u64),
            };
            write(value, step, fit(step.kind, wanted, overflow)?);
            Some(old)
        }
        Op::Incr(by, overflow) => {
            let new = fit(step.kind, i128::from(old) + i128::from(by), overflow)?;
            write(value, step, new);
            Some(new)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: &str, offset: u64, op: Op) -> Step {
        Step {
            op,
            kind: Type::parse(kind.as_bytes()).unwrap(),
            offset,
        }
    }

    #[test]
    fn types_are_those_of_redis() {
        for bad in ["u64", "i65", "u0", "i0", "x8", "u", "", "u08", "u-1"] {
            assert_eq!(Type::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Type::parse(b"i64").unwrap().bits, 64);
    }

    #[test]
    fn overflow_wraps_saturates_or_fails() {
        let mut v = vec![0u8; 4];
        assert_eq!(
            apply(&mut v, &step("u8", 5, Op::Set(250, Overflow::Wrap))),
            Some(0)
        );
        assert_eq!(
            apply(&mut v, &step("u8", 5, Op::Incr(10, Overflow::Fail))),
            None
        );
        assert_eq!(
            apply(&mut v, &step("u8", 5, Op::Incr(10, Overflow::Sat))),
            Some(255)
        );
        assert_eq!(
            apply(&mut v, &step("u8", 5, Op::Incr(10, Overflow::Wrap))),
            Some(9)
        );
        assert_eq!(
            apply(&mut v, &step("i5", 20, Op::Set(-3, Overflow::Wrap))),
            Some(0)
        );
        assert_eq!(apply(&mut v, &step("i5", 20, Op::Get)), Some(-3));
        assert_eq!(
            apply(&mut v, &step("i5", 20, Op::Incr(-20, Overflow::Sat))),
            Some(-16)
        );
        assert_eq!(
            needed_bytes(&[
                step("u8", 5, Op::Get),
                step("u8", 9, Op::Set(1, Overflow::Wrap))
            ]),
            3
        );
    }

    #[test]
    fn the_widest_types_take_every_number() {
        let mut v = vec![0u8; 9];
        assert_eq!(
            apply(&mut v, &step("i64", 3, Op::Set(i64::MIN, Overflow::Fail))),
            Some(0)
        );
        assert_eq!(
            apply(&mut v, &step("i64", 3, Op::Incr(-1, Overflow::Fail))),
            None
        );
        assert_eq!(
            apply(&mut v, &step("i64", 3, Op::Incr(-1, Overflow::Wrap))),
            Some(i64::MAX)
        );
        assert_eq!(
            apply(&mut v, &step("u63", 3, Op::Set(-1, Overflow::Sat))),
            Some(i64::MAX >> 1)
        );
        assert_eq!(apply(&mut v, &step("u63", 3, Op::Get)), Some(i64::MAX));
    }
}
