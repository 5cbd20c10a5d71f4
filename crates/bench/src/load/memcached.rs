//! Reads one reply of memcached's meta commands from the front of a buffer.
//!
//! Promises what the RESP parser promises: never to panic, never to copy. Knows what `mg key v`, `ms` and `md` are answered with,
//! and gives the reply that RESP has for the same. The meta commands are memcached's fastest: of sixteen `get` it sends the
//! values in several segments, of sixteen `mg` in one.

use super::reply::{LINE_BYTES_MAX, Parsed, Reply, find_line_end, parse_counted};

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
        // "Header": done, whether it was a `ms` or a `md`.
        b"HD" => Parsed::Whole(Reply::Status(b"OK"), next),
        b"EN" | b"NF" => Parsed::Whole(Reply::Nil, next),
        [b'V', b'A', b' ', length @ ..] => parse_counted(bytes, length, next),
        line if is_error(line) => Parsed::Whole(Reply::Error(line), next),
        _ => Parsed::Malformed,
    }
}

fn is_error(line: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR", b"NS"]
        .iter()
        .any(|word| line.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_replies_and_their_parts() {
        for (bytes, reply) in [
            (&b"EN\r\n"[..], Reply::Nil),
            (b"NF\r\n", Reply::Nil),
            (b"HD\r\n", Reply::Status(b"OK")),
            (
                b"SERVER_ERROR out of memory\r\n",
                Reply::Error(b"SERVER_ERROR out of memory"),
            ),
            (b"VA 5\r\na\r\nEN\r\n", Reply::Bulk(b"a\r\nEN")),
        ] {
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Parsed::Part, "{:?}", &bytes[..cut]);
            }
            let more = [bytes, b"EN\r\n"].concat();
            assert_eq!(parse(&more), Parsed::Whole(reply, bytes.len()));
        }
    }

    #[test]
    fn garbage_is_malformed() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"VA x\r\n",
            b"VA 99999999999\r\n",
            b"VA 3\r\nabcd\r\n",
            b"\r\n",
        ] {
            assert_eq!(parse(bytes), Parsed::Malformed, "{bytes:?}");
        }
        assert_eq!(parse(&vec![b'a'; LINE_BYTES_MAX + 1]), Parsed::Malformed);
    }
}
