//! INCRBYFLOAT's arithmetic: numbers with a mantissa of 64 bits, as the `long double` of x86-64 that Redis computes with,
//! read from decimals (or hexadecimals, as strtold takes them too) and written as decimals, all rounded correctly. So sums are
//! those of Redis to the last digit. Left out: the loss of digits below 2^-16382.

use num_bigint::BigUint;
use num_traits::{ToPrimitive, Zero};
use std::cmp::Ordering;

/// Bits of the mantissa.
const MANTISSA_BITS: u64 = 64;
/// Largest decimal exponent that is looked at: beyond it all is infinite or zero.
const EXPONENT_MAX: i64 = 5_000;
/// Longest text, as in Redis.
const TEXT_MAX_BYTES: usize = 5 * 1024;
/// Digits behind the point.
const DECIMALS: u32 = 17;
/// Values from 2 to this power on are infinite.
const POWER_MAX: i64 = 16_384;

/// A finite number: `mantissa` × 2^`power`, the mantissa below 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float {
    negative: bool,
    mantissa: u64,
    power: i64,
}

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// A number.
    Finite(Float),
    /// `inf`, `infinity`, with or without a sign.
    Infinite,
}

/// Rounds `n` / `d` × 2^`power` to 64 bits, to the nearest, ties to even. None: infinite.
fn round(negative: bool, n: &BigUint, d: &BigUint, power: i64) -> Option<Float> {
    if n.is_zero() {
        return Some(Float {
            negative,
            mantissa: 0,
            power: 0,
        });
    }
    // Scaled so that the quotient has 65 or 66 bits, the last ones to round by.
    let shift = MANTISSA_BITS as i64 + 2 - (n.bits() as i64 - d.bits() as i64);
    let (n, d) = match shift >= 0 {
        true => (n << shift as u64, d.clone()),
        false => (n.clone(), d << (-shift) as u64),
    };
    let (mut quotient, rest) = (&n / &d, &n % &d);
    let mut power = power - shift;
    let extra = quotient.bits() - MANTISSA_BITS;
    let low = &quotient & &((BigUint::from(1u8) << extra) - 1u8);
    let half = BigUint::from(1u8) << (extra - 1);
    quotient >>= extra;
    power += extra as i64;
    let up = match low.cmp(&half) {
        Ordering::Greater => true,
        Ordering::Less => false,
        Ordering::Equal => !rest.is_zero() || quotient.bit(0),
    };
    if up {
        quotient += 1u8;
        if quotient.bits() > MANTISSA_BITS {
            quotient >>= 1;
            power += 1;
        }
    }
    let mantissa = quotient.to_u64()?;
    (power + (MANTISSA_BITS as i64) <= POWER_MAX).then_some(Float {
        negative,
        mantissa,
        power,
    })
}

/// Reads a number as `strtold` does, with nothing around it.
pub fn parse(text: &[u8]) -> Option<Parsed> {
    if text.is_empty() || text.len() >= TEXT_MAX_BYTES {
        return None;
    }
    let (negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
        return Some(Parsed::Infinite);
    }
    if let [b'0', b'x' | b'X', hex @ ..] = rest {
        let (n, decimals, exponent) = digits(hex, 16, b'p')?;
        let power = exponent - 4 * decimals;
        if power.abs() > 4 * POWER_MAX {
            return n.is_zero().then(|| Parsed::Finite(zero(negative)));
        }
        return round(negative, &n, &BigUint::from(1u8), power).map(Parsed::Finite);
    }
    let (n, decimals, exponent) = digits(rest, 10, b'e')?;
    let scale = exponent - decimals;
    let one = BigUint::from(1u8);
    if scale > EXPONENT_MAX || scale < -EXPONENT_MAX - rest.len() as i64 {
        // strtold reports a range error, which Redis takes for no number, unless it is plain zero.
        return n.is_zero().then(|| Parsed::Finite(zero(negative)));
    }
    let ten = BigUint::from(10u8).pow(scale.unsigned_abs() as u32);
    let number = match scale >= 0 {
        true => round(negative, &(n * ten), &one, 0),
        false => round(negative, &n, &ten, 0),
    };
    number.map(Parsed::Finite)
}

/// Digits with a point somewhere, perhaps, and an exponent behind `mark`: all digits as one number, how many stood behind
/// the point, and the exponent.
fn digits(text: &[u8], radix: u32, mark: u8) -> Option<(BigUint, i64, i64)> {
    let (digits, exponent) = match text.iter().position(|b| b.eq_ignore_ascii_case(&mark)) {
        None => (text, 0),
        Some(at) => (&text[..at], exponent(&text[at + 1..])?),
    };
    let (whole, part) = match digits.iter().position(|&b| b == b'.') {
        None => (digits, &[][..]),
        Some(at) => (&digits[..at], &digits[at + 1..]),
    };
    let all: Vec<u8> = whole.iter().chain(part).copied().collect();
    // `parse_bytes` takes underscores and a sign, too.
    if !all.iter().all(|b| char::from(*b).is_digit(radix)) {
        return None;
    }
    let n = BigUint::parse_bytes(&all, radix)?;
    Some((n, part.len() as i64, exponent))
}

fn zero(negative: bool) -> Float {
    Float {
        negative,
        mantissa: 0,
        power: 0,
    }
}

fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |n: i64, b: &u8| (n * 10 + i64::from(b - b'0')).min(10 * POWER_MAX);
    let n = digits.iter().fold(0i64, add);
    Some(if negative { -n } else { n })
}

/// The sum, rounded. None: it is infinite.
pub fn add(a: Float, b: Float) -> Option<Float> {
    let power = match (a.mantissa, b.mantissa) {
        (0, _) => b.power,
        (_, 0) => a.power,
        _ => a.power.min(b.power),
    };
    let whole = |f: &Float| match f.mantissa {
        0 => BigUint::zero(),
        m => BigUint::from(m) << (f.power - power) as u64,
    };
    let (x, y) = (whole(&a), whole(&b));
    let one = BigUint::from(1u8);
    if a.negative == b.negative {
        return round(a.negative, &(x + y), &one, power);
    }
    match x.cmp(&y) {
        Ordering::Equal => Some(zero(false)),
        Ordering::Greater => round(a.negative, &(x - y), &one, power),
        Ordering::Less => round(b.negative, &(y - x), &one, power),
    }
}

/// Writes it as Redis does: 17 digits behind the point, zeros at the end left out.
pub fn format(f: Float) -> String {
    let ten = BigUint::from(10u8).pow(DECIMALS);
    let scaled = BigUint::from(f.mantissa) * ten;
    let number = match f.power >= 0 {
        true => scaled << f.power as u64,
        false => {
            let down = f.power.unsigned_abs();
            let (kept, half) = (&scaled >> down, BigUint::from(1u8) << (down - 1));
            let rest = &scaled - (&kept << down);
            match rest.cmp(&half) {
                Ordering::Greater => kept + 1u8,
                Ordering::Equal if kept.bit(0) => kept + 1u8,
                _ => kept,
            }
        }
    };
    let digits = format!("{number:0>width$}", width = DECIMALS as usize + 1);
    let (whole, part) = digits.split_at(digits.len() - DECIMALS as usize);
    let part = part.trim_end_matches('0');
    let text = match part {
        "" => whole.to_string(),
        _ => format!("{whole}.{part}"),
    };
    // Redis writes no negative zero.
    match f.negative && text != "0" {
        true => format!("-{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let number = |text: &str| match parse(text.as_bytes()) {
            Some(Parsed::Finite(f)) => f,
            other => panic!("{text}: {other:?}"),
        };
        add(number(a), number(b)).map_or("inf".to_string(), format)
    }

    #[test]
    fn sums_are_those_of_an_80_bit_processor() {
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("3", "-3"), "0");
        assert_eq!(sum("-1.5", "1"), "-0.5");
        assert_eq!(sum("1", "0.00000000000000001"), "1.00000000000000001");
        assert_eq!(sum("18446744073709551615", "1"), "18446744073709551616");
        assert_eq!(sum("18446744073709551616", "1"), "18446744073709551616");
        assert_eq!(sum("-0", "-1e-30"), "0");
        assert_eq!(sum("0X732", "0x.8p1"), "1843");
        assert_eq!(sum("-0x1.8p3", "0"), "-12");
        assert_eq!(sum("0x10000000000000001", "0"), "18446744073709551616");
    }

    #[test]
    fn what_is_no_number() {
        for bad in [
            "",
            " 1",
            "1 ",
            "x",
            "1e",
            "e5",
            ".",
            "1..2",
            "--1",
            "nan",
            "1e5000000",
            "0x",
            "0x.",
            "0x1p",
            "0x1e+5",
            "0xg",
            "0x1p9000000",
            "0x1_0",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse(b"-Inf"), Some(Parsed::Infinite));
        assert!(matches!(parse(b"+.5"), Some(Parsed::Finite(_))));
        assert!(matches!(parse(b"5."), Some(Parsed::Finite(_))));
    }
}
