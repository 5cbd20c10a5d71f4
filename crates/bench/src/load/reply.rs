//! Reads one RESP2 reply from the front of a buffer.
//!
//! Promises never to panic and never to copy: a reply borrows the buffer. Knows what a GET, a SET, a PING and an INFO can be
//! answered with; arrays are no part of it and count as malformed.

/// Longest status, error or number line.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Longest bulk string accepted.
pub const BULK_BYTES_MAX: u64 = 512 << 20;

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+OK`.
    Status(&'a [u8]),
    /// `-ERR …`.
    Error(&'a [u8]),
    /// `:1`.
    Number(i64),
    /// `$3 foo`.
    Bulk(&'a [u8]),
    /// `$-1`.
    Nil,
}

/// What the front of a buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A reply and the bytes it took.
    Whole(Reply<'a>, usize),
    /// More bytes are needed.
    Part,
    /// This is no reply, whatever follows.
    Malformed,
}

/// Parses the first reply of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some(&kind) = bytes.first() else {
        return Parsed::Part;
    };
    let line_end = match find_line_end(&bytes[1..]) {
        Some(at) => 1 + at,
        None if bytes.len() > LINE_BYTES_MAX => return Parsed::Malformed,
        None => {
            return if matches!(kind, b'+' | b'-' | b':' | b'$') {
                Parsed::Part
            } else {
                Parsed::Malformed
            };
        }
    };
    let line = &bytes[1..line_end];
    let next = line_end + 2;
    match kind {
        b'$' => parse_bulk(bytes, line, next),
        b'+' => Parsed::Whole(Reply::Status(line), next),
        b'-' => Parsed::Whole(Reply::Error(line), next),
        b':' => match parse_number(line) {
            Some(n) => Parsed::Whole(Reply::Number(n), next),
            None => Parsed::Malformed,
        },
        _ => Parsed::Malformed,
    }
}

fn parse_bulk<'a>(bytes: &'a [u8], line: &[u8], start: usize) -> Parsed<'a> {
    match line {
        b"-1" => Parsed::Whole(Reply::Nil, start),
        length => parse_counted(bytes, length, start),
    }
}

/// A value of `length` bytes from `start` on, and the end of its line.
pub fn parse_counted<'a>(bytes: &'a [u8], length: &[u8], start: usize) -> Parsed<'a> {
    let length = match parse_number(length).map(u64::try_from) {
        Some(Ok(length)) if length <= BULK_BYTES_MAX => length as usize,
        _ => return Parsed::Malformed,
    };
    let end = start + length;
    if bytes.len() < end + 2 {
        return Parsed::Part;
    }
    if &bytes[end..end + 2] != b"\r\n" {
        return Parsed::Malformed;
    }
    Parsed::Whole(Reply::Bulk(&bytes[start..end]), end + 2)
}

/// Where the first `\r\n` starts. Lines are a few bytes long, so a plain walk is the fastest search.
pub fn find_line_end(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|&b| b == b'\r') {
        match bytes.get(from + at + 1) {
            Some(b'\n') => return Some(from + at),
            Some(_) => from += at + 1,
            None => return None,
        }
    }
    None
}

pub fn parse_number(line: &[u8]) -> Option<i64> {
    let (negative, digits) = match line.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, line),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut n = 0i64;
    for &d in digits {
        if !d.is_ascii_digit() {
            return None;
        }
        n = n * 10 + i64::from(d - b'0');
    }
    Some(if negative { -n } else { n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_replies() {
        assert_eq!(parse(b"+OK\r\n+"), Parsed::Whole(Reply::Status(b"OK"), 5));
        assert_eq!(
            parse(b"-ERR no\r\n"),
            Parsed::Whole(Reply::Error(b"ERR no"), 9)
        );
        assert_eq!(parse(b":-12\r\n"), Parsed::Whole(Reply::Number(-12), 6));
        assert_eq!(parse(b"$-1\r\n"), Parsed::Whole(Reply::Nil, 5));
        assert_eq!(parse(b"$0\r\n\r\n"), Parsed::Whole(Reply::Bulk(b""), 6));
        assert_eq!(
            parse(b"$4\r\na\r\nb\r\n$"),
            Parsed::Whole(Reply::Bulk(b"a\r\nb"), 10)
        );
    }

    #[test]
    fn every_prefix_is_a_part_and_the_whole_is_whole() {
        for reply in [
            &b"+OK\r\n"[..],
            b"-ERR x\r\n",
            b":7\r\n",
            b"$-1\r\n",
            b"$5\r\nhello\r\n",
            b"+a\rb\r\n",
        ] {
            for cut in 0..reply.len() {
                assert_eq!(parse(&reply[..cut]), Parsed::Part, "{:?}", &reply[..cut]);
            }
            assert!(matches!(parse(reply), Parsed::Whole(_, n) if n == reply.len()));
        }
    }

    #[test]
    fn garbage_is_malformed() {
        for bytes in [
            &b"GET"[..],
            b"$x\r\n",
            b"$-2\r\n",
            b"$99999999999999999999\r\n",
            b"$3\r\nabcd\r\n",
            b":\r\n",
            b":1a\r\n",
            b"*1\r\n",
        ] {
            assert_eq!(parse(bytes), Parsed::Malformed, "{bytes:?}");
        }
        let long = [b"+".to_vec(), vec![b'a'; LINE_BYTES_MAX]].concat();
        assert_eq!(parse(&long), Parsed::Malformed);
    }
}
