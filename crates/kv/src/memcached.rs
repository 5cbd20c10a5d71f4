//! What memcached's commands mean: pure functions from what a key holds to what becomes of it, with memcached's rules
//! about time and numbers. Never: touch a store.

use crate::{Edit, Held, Meta, View};

/// An expiry above this is a time since 1970, s.
const RELATIVE_MAX_S: i32 = 30 * 24 * 3600;

/// When a value that is given `exptime` expires, ms since 1970. A time has 32 bits; what is beyond them is cut off, as
/// memcached does. A negative one has passed.
pub fn expiry_ms(exptime: i64, now_ms: u64) -> Option<u64> {
    match exptime as i32 {
        0 => None,
        ..0 => Some(1),
        s @ 1..=RELATIVE_MAX_S => Some(now_ms + s as u64 * 1000),
        s => Some(s as u64 * 1000),
    }
}

/// The number that a value is, as memcached reads it: 64 bits without a sign, spaces around it allowed.
pub fn number(value: &[u8]) -> Option<u64> {
    let text = value.trim_ascii();
    let whole = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| whole)?
        .parse()
        .ok()
}

/// Up wraps around, down ends at 0.
pub fn count(value: u64, delta: u64, up: bool) -> u64 {
    match up {
        true => value.wrapping_add(delta),
        false => value.saturating_sub(delta),
    }
}

/// What puts a value that is as it was under another expiry, or beside other metadata. None: there is no value.
pub fn kept<L>(view: &View<L>, expiry_ms: Option<u64>, meta: Option<Meta>) -> Option<Edit> {
    match &view.value {
        Held::Absent => None,
        Held::Inline(value) => Some(Edit::Put {
            value: value.clone(),
            expiry_ms,
            meta,
        }),
        Held::Large(_) => Some(Edit::Bind {
            from: 0,
            expiry_ms,
            meta,
        }),
    }
}

/// What a reader of an item that may have to be renewed is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// W: it is this reader who is to renew it.
    pub won: bool,
    /// X: it is stale.
    pub stale: bool,
    /// Z: somebody else has been told to renew it.
    pub taken: bool,
}

/// Which reader renews an item: the first one that meets it stale, or `late`, which is with less to live than it asks for.
/// Answers what the reader is told, and the state that the item has then.
pub fn renewal(state: u32, late: bool) -> (Told, u32) {
    let stale = state & Meta::STALE != 0;
    let taken = state & Meta::WON != 0;
    let won = (stale || late) && !taken;
    let told = Told { won, stale, taken };
    (told, if won { state | Meta::WON } else { state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_up_to_thirty_days() {
        assert_eq!(expiry_ms(0, 5), None);
        assert_eq!(expiry_ms(-1, 5), Some(1));
        assert_eq!(expiry_ms(10, 5_000), Some(15_000));
        let relative = i64::from(RELATIVE_MAX_S);
        assert_eq!(expiry_ms(relative, 0), Some(relative as u64 * 1000));
        assert_eq!(
            expiry_ms(relative + 1, 5),
            Some((relative as u64 + 1) * 1000)
        );
    }

    /// As memcached 1.6.18 answered them.
    #[test]
    fn times_have_thirty_two_bits() {
        let last = i64::from(i32::MAX);
        assert_eq!(expiry_ms(last, 5), Some(last as u64 * 1000));
        for passed in [last + 1, u32::MAX.into(), 9_999_999_999, i64::MAX] {
            let at = expiry_ms(passed, 5).expect("it expires");
            assert!(at < 1_500_000_000_000, "{passed}: {at}");
        }
        assert_eq!(expiry_ms(1 << 32, 5), None);
        assert_eq!(expiry_ms(i64::MIN, 5), None);
        assert_eq!(expiry_ms((1 << 32) + 10, 5_000), Some(15_000));
        assert_eq!(expiry_ms(-last - 2, 5), Some(last as u64 * 1000));
    }

    #[test]
    fn numbers_wrap_up_and_stop_at_zero() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b" 9 "), Some(9));
        for bad in ["", " ", "-1", "+1", "1.5", "18446744073709551616", "x"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(count(u64::MAX, 2, true), 1);
        assert_eq!(count(3, 5, false), 0);
    }

    #[test]
    fn one_reader_renews() {
        let (told, state) = renewal(Meta::STALE, false);
        assert!(told.won && told.stale && !told.taken && state == Meta::STALE | Meta::WON);
        let (told, state) = renewal(state, true);
        assert!(!told.won && told.stale && told.taken && state == Meta::STALE | Meta::WON);
        assert!(renewal(0, true).0.won);
        assert_eq!(renewal(0, false), (Told::default(), 0));
    }
}
