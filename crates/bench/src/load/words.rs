//! The words on the wire: ready-made requests, and the values that name their key.
//!
//! Promises that building a request is two copies and twelve digits, with no formatting and no allocation, and that a value can
//! be checked against its key: its first bytes are the key, its last bytes depend on it too, so a torn or misplaced value shows.
//! The filler is random, so that no compression between the server and its disk (zswap, a clever device) flatters anyone, unless a load
//! asks for values of which half is zeros.

use super::asked::{Op, Protocol};
use super::keys::Rng;

/// Length of every key: `key:` and twelve digits.
pub const KEY_BYTES: usize = 16;
/// Shortest value: the key alone.
pub const VALUE_BYTES_MIN: usize = KEY_BYTES;
/// The filler of two keys starts at different places of one random run.
const FILLER_SPREAD_BYTES: u64 = 4096;
/// Of filler that packs by half, how long random bytes and zeros last.
const PACKS_RUN_BYTES: usize = 64;
/// How many of a value's last bytes are compared where they are random.
const TAIL_BYTES: usize = 8;

/// What stands before the key, and after that of a GET.
struct Heads {
    get: &'static [u8],
    set: &'static [u8],
    del: &'static [u8],
    get_end: &'static [u8],
}

const RESP: Heads = Heads {
    get_end: b"",
    get: b"*2\r\n$3\r\nGET\r\n$16\r\n",
    set: b"*3\r\n$3\r\nSET\r\n$16\r\n",
    del: b"*2\r\n$3\r\nDEL\r\n$16\r\n",
};
const MEMCACHED: Heads = Heads {
    get: b"mg ",
    get_end: b" v",
    set: b"ms ",
    del: b"md ",
};

/// Requests and values for one protocol and value length.
pub struct Words {
    value_bytes: usize,
    /// How many of a value's last bytes are compared.
    tail_bytes: usize,
    heads: &'static Heads,
    /// What stands between the key and the value of a SET.
    value_head: Vec<u8>,
    filler: Vec<u8>,
}

impl Words {
    /// With `packs`, every other [`PACKS_RUN_BYTES`] of the filler are zeros.
    pub fn new(protocol: Protocol, value_bytes: usize, packs: bool) -> Words {
        assert!(value_bytes >= VALUE_BYTES_MIN);
        let mut rng = Rng::new(0x7e44_ace0);
        let filler_bytes = value_bytes + FILLER_SPREAD_BYTES as usize + 8;
        let mut filler = Vec::with_capacity(filler_bytes);
        while filler.len() < filler_bytes {
            filler.extend_from_slice(&rng.next().to_le_bytes());
        }
        if packs {
            let runs = filler.chunks_mut(PACKS_RUN_BYTES);
            runs.skip(1).step_by(2).for_each(|run| run.fill(0));
        }
        let (heads, value_head) = match protocol {
            Protocol::Resp => (&RESP, format!("\r\n${value_bytes}\r\n")),
            Protocol::Memcached => (&MEMCACHED, format!(" {value_bytes}\r\n")),
        };
        Words {
            value_bytes,
            // Ends of zeros would fit any key.
            tail_bytes: if packs { value_bytes } else { TAIL_BYTES },
            heads,
            value_head: value_head.into_bytes(),
            filler,
        }
    }

    pub fn push(&self, out: &mut Vec<u8>, op: Op, key: u64) {
        let name = key_name(key);
        let (head, end) = match op {
            Op::Get => (self.heads.get, self.heads.get_end),
            Op::Set => (self.heads.set, &self.value_head[..]),
            Op::Del => (self.heads.del, &b""[..]),
        };
        out.extend_from_slice(head);
        out.extend_from_slice(&name);
        out.extend_from_slice(end);
        if op == Op::Set {
            out.extend_from_slice(&name);
            out.extend_from_slice(self.rest(key));
        }
        out.extend_from_slice(b"\r\n");
    }

    fn rest(&self, key: u64) -> &[u8] {
        let from = (key.wrapping_mul(0x9e37_79b9) % FILLER_SPREAD_BYTES) as usize;
        &self.filler[from..from + self.value_bytes - KEY_BYTES]
    }

    /// Whether `value` is the one this generator writes for `key`.
    pub fn is_value_of(&self, value: &[u8], key: u64) -> bool {
        if value.len() != self.value_bytes || value[..KEY_BYTES] != key_name(key) {
            return false;
        }
        let rest = self.rest(key);
        let tail = rest.len().min(self.tail_bytes);
        value[value.len() - tail..] == rest[rest.len() - tail..]
    }
}

/// The name of key number `key`.
pub fn key_name(key: u64) -> [u8; KEY_BYTES] {
    let mut name = *b"key:000000000000";
    let mut left = key;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_twelve_digits() {
        assert_eq!(&key_name(0), b"key:000000000000");
        assert_eq!(&key_name(999_999_999_999), b"key:999999999999");
        assert_eq!(&key_name(1_234_567), b"key:000001234567");
    }

    #[test]
    fn a_value_belongs_to_one_key_only() {
        for value_bytes in [16usize, 17, 20, 100, 1024] {
            let words = Words::new(Protocol::Resp, value_bytes, false);
            let mut out = Vec::new();
            words.push(&mut out, Op::Set, 42);
            let mut value = out[out.len() - 2 - value_bytes..out.len() - 2].to_vec();
            assert!(words.is_value_of(&value, 42));
            assert!(!words.is_value_of(&value, 43));
            assert!(!words.is_value_of(&value[1..], 42));
            *value.last_mut().unwrap() ^= 1;
            assert!(
                !words.is_value_of(&value, 42),
                "a torn end of {value_bytes} bytes must show"
            );
        }
    }

    #[test]
    fn values_that_pack_are_zeros_by_half() {
        let words = Words::new(Protocol::Resp, 1024, true);
        for key in [0, 1, 77] {
            let zeros = words.rest(key).iter().filter(|byte| **byte == 0).count();
            assert!((440..570).contains(&zeros), "{zeros} of 1008");
        }
    }

    #[test]
    fn requests_are_resp() {
        let words = Words::new(Protocol::Resp, 20, false);
        let mut out = Vec::new();
        words.push(&mut out, Op::Get, 7);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n");
        out.clear();
        words.push(&mut out, Op::Set, 7);
        assert!(
            out.starts_with(
                b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$20\r\nkey:000000000007"
            )
        );
        assert!(out.ends_with(b"\r\n"));
        out.clear();
        words.push(&mut out, Op::Del, 7);
        assert_eq!(out, b"*2\r\n$3\r\nDEL\r\n$16\r\nkey:000000000007\r\n");
    }

    #[test]
    fn requests_are_meta_commands() {
        let words = Words::new(Protocol::Memcached, 20, false);
        let mut out = Vec::new();
        for op in [Op::Get, Op::Del, Op::Set] {
            words.push(&mut out, op, 7);
        }
        assert!(out.starts_with(
            b"mg key:000000000007 v\r\nmd key:000000000007\r\nms key:000000000007 20\r\nkey:000000000007"
        ));
    }
}
