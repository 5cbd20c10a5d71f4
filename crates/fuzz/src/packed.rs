//! Bytes that a client says are Redis's: strings packed by LZF, and what DUMP answers. What must hold whatever they are: no panic, no
//! more memory than they can mean, and the same whole as in portions; what is restored can be dumped and restored again.

use terrace_kv::strings::dump::{self, Body};
use terrace_kv::strings::lzf::{self, Unpacker};

/// The longest value that is restored here, bytes.
const VALUE_MAX_BYTES: usize = 64 << 10;
/// Bytes of a reference's longest run, for each byte of it.
const RUN_MAX: usize = 264;

/// How long the string is to be (two bytes), in which portions it is fed and taken (one each), and what it is packed as.
pub fn lzf(data: &[u8]) {
    let [low, high, fed, wanted, packed @ ..] = data else {
        return;
    };
    let len = usize::from(u16::from_le_bytes([*low, *high]));
    let whole = lzf::unpack(packed, len);
    assert!(whole.as_ref().is_none_or(|bytes| bytes.len() == len));
    let in_portions = portions(packed, len, usize::from(*fed) + 1, usize::from(*wanted) + 1);
    assert!(whole == in_portions, "whole and in portions");
}

/// As a value in pieces is unpacked.
fn portions(packed: &[u8], len: usize, fed: usize, wanted: usize) -> Option<Vec<u8>> {
    let (mut unpacker, mut at, mut out) = (Unpacker::default(), 0, Vec::new());
    while out.len() < len {
        let wanted = wanted.min(len - out.len());
        let end = packed.len().min(at + fed);
        let taken = unpacker.feed(&packed[at..end], wanted)?;
        assert!(taken <= end - at);
        at += taken;
        assert!(unpacker.ready() <= wanted.max(RUN_MAX));
        if unpacker.ready() >= wanted {
            let mut part = vec![0; wanted];
            unpacker.take(&mut part);
            out.extend_from_slice(&part);
        } else if taken == 0 {
            return None;
        }
    }
    (at == packed.len() && unpacker.is_through()).then_some(out)
}

/// A payload of RESTORE, as it is and with a foot that fits.
pub fn dump(data: &[u8]) {
    restore(data);
    let whole = [data, &dump::foot_of(dump::sum(0, data))].concat();
    restore(&whole);
    // The way of long ones, by their first bytes, comes to the same.
    let head = &whole[..whole.len().min(dump::HEAD_MAX_BYTES)];
    let bytes = |range: &std::ops::Range<u64>| &whole[range.start as usize..range.end as usize];
    let by_head = match dump::body(head, whole.len() as u64) {
        Err(_) => return,
        Ok(Body::Plain(range)) => Some(bytes(&range).to_vec()),
        Ok(Body::Packed(range, len)) if len <= VALUE_MAX_BYTES as u64 => {
            lzf::unpack(bytes(&range), len as usize)
        }
        Ok(Body::Packed(..)) => None,
    };
    assert_eq!(by_head, dump::restore(&whole, VALUE_MAX_BYTES).ok());
}

fn restore(payload: &[u8]) {
    if let Ok(value) = dump::restore(payload, VALUE_MAX_BYTES) {
        assert!(value.len() <= VALUE_MAX_BYTES);
        let again = dump::dump(&value);
        assert_eq!(dump::restore(&again, VALUE_MAX_BYTES), Ok(value));
    }
}
