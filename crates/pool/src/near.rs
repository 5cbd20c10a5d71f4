//! Where the keys are that were just asked for ahead: the commands on them follow, in their order, and need not hash them again.
//!
//! Promises: says nothing but what was added for this very key. Never: keeps long keys, or grows beyond what one call adds.

use std::cell::Cell;
use terrace_log::Subject;

/// Longer keys are hashed again.
const KEY_KEPT_BYTES: usize = 24;

/// Keys and their places, in the order in which they will be asked for.
#[derive(Default)]
pub(crate) struct Near {
    keys: Vec<Key>,
    /// Behind the one that was asked for last.
    next: Cell<usize>,
}

struct Key {
    len_bytes: usize,
    bytes: [u8; KEY_KEPT_BYTES],
    place: (u16, Subject),
}

impl Near {
    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.next.set(0);
    }
    /// Adds a key of the user's.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], place: (u16, Subject)) {
        let mut bytes = [0; KEY_KEPT_BYTES];
        if let Some(kept) = bytes.get_mut(..key.len()) {
            kept.copy_from_slice(key);
        }
        self.keys.push(Key {
            len_bytes: key.len(),
            bytes,
            place,
        });
    }
    /// All places.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u16, Subject)> + '_ {
        self.keys.iter().map(|k| k.place)
    }
    /// The place of a key, if it was added and not passed over since.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<(u16, Subject)> {
        let from = self.next.get();
        let is_it = |k: &Key| {
            k.len_bytes == key.len() && k.bytes.get(..key.len()).is_some_and(|b| b == key)
        };
        let at = from + self.keys.get(from..)?.iter().position(is_it)?;
        self.next.set(at + 1);
        Some(self.keys[at].place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_log::KeyHash;

    fn place(n: u64) -> (u16, Subject) {
        let hash = KeyHash { index: n, place: n };
        (n as u16, Subject { space: 0, hash })
    }

    #[test]
    fn a_key_is_found_in_order_and_only_itself() {
        let mut near = Near::default();
        let long = [b'x'; KEY_KEPT_BYTES + 1];
        for (n, key) in [&b"a"[..], b"b", &long, b"c", b"a"].iter().enumerate() {
            near.add(key, place(n as u64));
        }
        let n = |key: &[u8]| near.find(key).map(|(lane, _)| lane);
        assert_eq!(n(b"a"), Some(0));
        // What is in between is passed over; zeros behind a key are no part of it.
        assert_eq!(n(b"c\0"), None);
        assert_eq!(n(b""), None);
        assert_eq!(n(b"c"), Some(3));
        assert_eq!(n(b"b"), None, "passed over");
        assert_eq!(n(&long), None);
        assert_eq!(n(b"a"), Some(4));
        assert_eq!(n(b"a"), None);
        near.clear();
        assert_eq!(n_after(&near, b"a"), None);
    }

    fn n_after(near: &Near, key: &[u8]) -> Option<u16> {
        near.find(key).map(|(lane, _)| lane)
    }
}
