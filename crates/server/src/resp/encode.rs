//! Writes replies, in RESP2 or RESP3, at the end of a byte vector. It never fails and never looks at what is there
//! already.

/// A simple string (`+OK`).
#[inline]
pub fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `+OK`.
#[inline]
pub fn ok(out: &mut Vec<u8>) {
    out.extend_from_slice(b"+OK\r\n");
}

/// An error; line breaks within it become spaces, as in Redis.
pub fn error(out: &mut Vec<u8>, prefix: &str, text: &str) {
    out.push(b'-');
    out.extend_from_slice(prefix.as_bytes());
    out.push(b' ');
    out.extend(
        text.bytes()
            .map(|b| if b == b'\r' || b == b'\n' { b' ' } else { b }),
    );
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn header(out: &mut Vec<u8>, kind: u8, value: i64) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// An integer.
#[inline]
pub fn int(out: &mut Vec<u8>, value: i64) {
    header(out, b':', value);
}

/// A count, which never gets near the limits of an integer.
#[inline]
pub fn count(out: &mut Vec<u8>, value: u64) {
    header(out, b':', value as i64);
}

/// A bulk string.
#[inline]
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    bulk_header(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Only the header of a bulk string whose bytes follow piece by piece.
#[inline]
pub fn bulk_header(out: &mut Vec<u8>, len_bytes: u64) {
    header(out, b'$', len_bytes as i64);
}

/// The null of the client's protocol version.
#[inline]
pub fn null(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" });
}

/// The null that stands for an array.
pub fn null_array(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"*-1\r\n" });
}

/// The header of an array of `len` elements.
#[inline]
pub fn array(out: &mut Vec<u8>, len: usize) {
    header(out, b'*', len as i64);
}

/// The header of a map of `len` pairs (a flat array in RESP2).
pub fn map(out: &mut Vec<u8>, resp3: bool, len: usize) {
    if resp3 {
        header(out, b'%', len as i64);
    } else {
        header(out, b'*', 2 * len as i64);
    }
}

/// The header of a set of `len` elements (an array in RESP2).
pub fn set(out: &mut Vec<u8>, resp3: bool, len: usize) {
    header(out, if resp3 { b'~' } else { b'*' }, len as i64);
}

/// A text that is shown as it is: a verbatim string in RESP3, a bulk string in RESP2.
pub fn verbatim(out: &mut Vec<u8>, resp3: bool, text: &[u8]) {
    if !resp3 {
        return bulk(out, text);
    }
    header(out, b'=', text.len() as i64 + 4);
    out.extend_from_slice(b"txt:");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}
