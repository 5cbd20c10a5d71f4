//! Reads one reply of memcached's text protocol from the front of a buffer.
//!
//! Promises what the RESP parser promises: never to panic, never to copy. Knows what a `get` of one key, a `set` and a `delete`
//! are answered with, and gives the reply that RESP has for the same.

use super::reply::{BULK_BYTES_MAX, LINE_BYTES_MAX, Parsed, Reply, find_line_end, parse_number};

const VALUE: &[u8] = b"VALUE ";
/// What follows a value.
const VALUE_END: &[u8] = b"\r\nEND\r\n";

/// Parses the first reply of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some(line_end) = find_line_end(bytes) else {
        return if bytes.len() > LINE_BYTES_MAX {
            Parsed::Malformed
        } else {
            Parsed::Part
        };
    };
    let line = &bytes[..line_end];
    let next = line_end + 2;
    match line {
        b"END" => Parsed::Whole(Reply::Nil, next),
        b"STORED" => Parsed::Whole(Reply::Status(b"OK"), next),
        b"DELETED" => Parsed::Whole(Reply::Number(1), next),
        b"NOT_FOUND" => Parsed::Whole(Reply::Number(0), next),
        line if line.starts_with(VALUE) => parse_value(bytes, line, next),
        line if is_error(line) => Parsed::Whole(Reply::Error(line), next),
        _ => Parsed::Malformed,
    }
}

fn is_error(line: &[u8]) -> bool {
    [
        &b"ERROR"[..],
        b"CLIENT_ERROR",
        b"SERVER_ERROR",
        b"NOT_STORED",
    ]
    .iter()
    .any(|word| line.starts_with(word))
}

/// `VALUE <key> <flags> <bytes>`, the value, `END`.
fn parse_value<'a>(bytes: &'a [u8], line: &[u8], start: usize) -> Parsed<'a> {
    let last = line.rsplit(|&b| b == b' ').next().unwrap_or_default();
    let length = match parse_number(last).map(u64::try_from) {
        Some(Ok(length)) if length <= BULK_BYTES_MAX => length as usize,
        _ => return Parsed::Malformed,
    };
    let end = start + length;
    if bytes.len() < end + VALUE_END.len() {
        return Parsed::Part;
    }
    if !bytes[end..].starts_with(VALUE_END) {
        return Parsed::Malformed;
    }
    Parsed::Whole(Reply::Bulk(&bytes[start..end]), end + VALUE_END.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_replies_and_their_parts() {
        for (bytes, reply) in [
            (&b"END\r\n"[..], Reply::Nil),
            (b"STORED\r\n", Reply::Status(b"OK")),
            (b"DELETED\r\n", Reply::Number(1)),
            (b"NOT_FOUND\r\n", Reply::Number(0)),
            (
                b"SERVER_ERROR out of memory\r\n",
                Reply::Error(b"SERVER_ERROR out of memory"),
            ),
            (
                b"VALUE key 0 6\r\na\r\nEND\r\nEND\r\n",
                Reply::Bulk(b"a\r\nEND"),
            ),
        ] {
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Parsed::Part, "{:?}", &bytes[..cut]);
            }
            let more = [bytes, b"END\r\n"].concat();
            assert_eq!(parse(&more), Parsed::Whole(reply, bytes.len()));
        }
    }

    #[test]
    fn garbage_is_malformed() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"VALUE key 0 x\r\n",
            b"VALUE key 0 99999999999\r\n",
            b"VALUE key 0 3\r\nabcd\r\nEND\r\n",
            b"\r\n",
        ] {
            assert_eq!(parse(bytes), Parsed::Malformed, "{bytes:?}");
        }
        assert_eq!(parse(&vec![b'a'; LINE_BYTES_MAX + 1]), Parsed::Malformed);
    }
}
