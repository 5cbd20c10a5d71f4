//! Finds one whole command at the start of a run of bytes, without copying: the arguments are slices of the input.
//! Errors are word for word those of Redis 7.0. A command that is not there in full leaves no trace; one with an
//! argument above `INLINE_MAX_BYTES` is reported as such at the argument's header, so that nobody waits for all of it.

use std::borrow::Cow;

use crate::limits::{
    BULK_MAX_BYTES, INLINE_COMMAND_MAX_BYTES, INLINE_MAX_BYTES, MULTIBULK_MAX_ARGS,
    PASSED_OVER_MAX_BYTES, UNTRUSTED_ARGS_MAX, UNTRUSTED_BULK_MAX_BYTES,
};

/// What stands at the start of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A command of this many bytes; its arguments are in `args` (none: to be ignored).
    Command(usize),
    /// An inline command of this many bytes, whose arguments needed unquoting.
    Inline(usize, Vec<Vec<u8>>),
    /// The beginning of a command.
    Incomplete,
    /// A command with an argument that is too long to be held in one piece.
    Large,
    /// Not a command; the connection ends after this text.
    Bad(Cow<'static, str>),
}

/// A header line (`*3\r\n`): its digits and the length of the line.
pub enum Line<'a> {
    /// Found.
    Whole(&'a [u8], usize),
    /// Not there yet.
    Partial,
    /// Longer than any header.
    TooLong,
}

/// The line that starts at `data[0]`, whose first byte is the type.
#[inline]
pub fn header_line(data: &[u8]) -> Line<'_> {
    // Headers are short: a plain loop beats memchr here.
    let near = data.len().min(16);
    let found = data[..near]
        .iter()
        .position(|&b| b == b'\r')
        .or_else(|| far_cr(data, near));
    match found {
        Some(at) if at + 2 <= data.len() => Line::Whole(&data[1.min(at)..at], at + 2),
        None if data.len() > INLINE_COMMAND_MAX_BYTES => Line::TooLong,
        _ => Line::Partial,
    }
}

#[cold]
fn far_cr(data: &[u8], from: usize) -> Option<usize> {
    let end = data.len().min(INLINE_COMMAND_MAX_BYTES + 2);
    memchr::memchr(b'\r', &data[from..end]).map(|at| at + from)
}

/// The number and the length of a header line that is like almost all: one to four digits, the first no zero. `None`: it must be
/// looked at more closely.
#[inline]
fn plain_header(data: &[u8]) -> Option<(usize, usize)> {
    let near: &[u8; 8] = data.first_chunk()?;
    let first = near[1].wrapping_sub(b'1');
    if first > 8 {
        return None;
    }
    let mut value = usize::from(first) + 1;
    for (at, &b) in near.iter().enumerate().take(6).skip(2) {
        if b == b'\r' {
            return Some((value, at + 2));
        }
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + usize::from(digit);
    }
    None
}

/// A decimal integer as Redis's `string2ll` takes it: no plus, no leading zero, nothing around it.
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits == b"0" {
        return if negative { None } else { Some(0) };
    }
    if digits.is_empty() || digits.len() > 19 || digits[0] == b'0' {
        return None;
    }
    let mut value: u64 = 0;
    for &b in digits {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    if negative {
        (value <= 1 << 63).then(|| (value as i64).wrapping_neg())
    } else {
        i64::try_from(value).ok()
    }
}

/// The number of arguments that a multibulk header announces. Who is not `trusted` gets no buffers for many.
pub fn multibulk_len(digits: &[u8], trusted: bool) -> Result<i64, Cow<'static, str>> {
    match integer(digits).filter(|&n| n <= MULTIBULK_MAX_ARGS) {
        None => Err(Cow::Borrowed("invalid multibulk length")),
        Some(n) if !trusted && n > UNTRUSTED_ARGS_MAX => {
            Err(Cow::Borrowed("unauthenticated multibulk length"))
        }
        Some(n) => Ok(n),
    }
}

/// The length that a bulk header announces; `first` is the byte where `$` must stand. What comes behind the command's name may be
/// longer than is ever taken: it is passed over, and the reply says what is allowed. Who is not `trusted` gets no buffers for long ones.
#[inline]
pub fn bulk_len(
    first: u8,
    digits: &[u8],
    is_name: bool,
    trusted: bool,
) -> Result<usize, Cow<'static, str>> {
    if first != b'$' {
        return Err(not_a_bulk(first));
    }
    let most_bytes = match is_name {
        true => BULK_MAX_BYTES,
        false => PASSED_OVER_MAX_BYTES,
    };
    match integer(digits).filter(|n| (0..=most_bytes).contains(n)) {
        None => Err(Cow::Borrowed("invalid bulk length")),
        Some(n) if !trusted && n > UNTRUSTED_BULK_MAX_BYTES => {
            Err(Cow::Borrowed("unauthenticated bulk length"))
        }
        Some(n) => Ok(n as usize),
    }
}

#[cold]
fn not_a_bulk(first: u8) -> Cow<'static, str> {
    // A control byte would break the line that carries the error.
    let shown = if first == b'\r' || first == b'\n' {
        ' '
    } else {
        first as char
    };
    Cow::Owned(format!("expected '$', got '{shown}'"))
}

/// Parses one command at the start of `data` and puts its arguments behind those in `args`; of one that is not whole,
/// some may be there too. `trusted`: whoever sent it may come in.
#[inline]
pub fn command<'a>(data: &'a [u8], args: &mut Vec<&'a [u8]>, trusted: bool) -> Parsed {
    match data.first() {
        None => Parsed::Incomplete,
        Some(b'*') => multibulk(data, args, trusted),
        Some(_) => inline(data, args),
    }
}

/// The second argument of the command at the start of `data`, mostly its key, for a look ahead; the command is not judged.
#[inline]
pub fn first_key(data: &[u8]) -> Option<&[u8]> {
    if data.first().is_some_and(u8::is_ascii_lowercase) {
        return second_word(data);
    }
    let mut rest = data;
    for skipped in 0..3 {
        let kind = *rest.first()?;
        let (len, header) = match plain_header(rest) {
            Some(plain) => plain,
            None => match header_line(rest) {
                Line::Whole(digits, header) => (usize::try_from(integer(digits)?).ok()?, header),
                _ => return None,
            },
        };
        let end = match (skipped, kind) {
            (0, b'*') => header,
            (1 | 2, b'$') => header.checked_add(len)?.checked_add(2)?,
            _ => return None,
        };
        if skipped == 2 {
            return rest.get(header..end - 2);
        }
        rest = rest.get(end..)?;
    }
    None
}

/// The same for a line of memcached's.
fn second_word(data: &[u8]) -> Option<&[u8]> {
    let start = memchr::memchr(b' ', data)? + 1;
    let len = memchr::memchr2(b' ', b'\r', &data[start..])?;
    data.get(start..start + len)
}

#[inline]
fn multibulk<'a>(data: &'a [u8], args: &mut Vec<&'a [u8]>, trusted: bool) -> Parsed {
    let plain = plain_header(data).filter(|&(n, _)| trusted || n as i64 <= UNTRUSTED_ARGS_MAX);
    let (count, mut at) = match plain.map_or_else(|| many(data, trusted), Ok) {
        Ok(header) => header,
        Err(parsed) => return parsed,
    };
    for index in 0..count {
        let rest = &data[at..];
        // Four digits are within what anybody may send.
        let plain = plain_header(rest).filter(|_| rest[0] == b'$');
        let (len, header) = match plain.map_or_else(|| bulk(rest, index == 0, trusted), Ok) {
            Ok(header) => header,
            Err(parsed) => return parsed,
        };
        if len > INLINE_MAX_BYTES {
            return Parsed::Large;
        }
        let end = header + len;
        if rest.len() < end + 2 {
            return Parsed::Incomplete;
        }
        args.push(&rest[header..end]);
        at += end + 2;
    }
    Parsed::Command(at)
}

/// How many arguments are announced, and how long the line is; or what else there is.
#[cold]
fn many(data: &[u8], trusted: bool) -> Result<(usize, usize), Parsed> {
    match header_line(data) {
        Line::Whole(digits, len) => match multibulk_len(digits, trusted) {
            Ok(count) => Ok((count.max(0) as usize, len)),
            Err(text) => Err(Parsed::Bad(text)),
        },
        Line::Partial => Err(Parsed::Incomplete),
        Line::TooLong => Err(Parsed::Bad(Cow::Borrowed("too big mbulk count string"))),
    }
}

/// The same of an argument: its length, and that of its header.
#[cold]
fn bulk(rest: &[u8], is_name: bool, trusted: bool) -> Result<(usize, usize), Parsed> {
    if rest.is_empty() {
        return Err(Parsed::Incomplete);
    }
    match header_line(rest) {
        Line::Whole(digits, header) => match bulk_len(rest[0], digits, is_name, trusted) {
            Ok(len) => Ok((len, header)),
            Err(text) => Err(Parsed::Bad(text)),
        },
        Line::Partial => Err(Parsed::Incomplete),
        Line::TooLong => Err(Parsed::Bad(Cow::Borrowed("too big bulk count string"))),
    }
}

#[cold]
fn inline<'a>(data: &'a [u8], args: &mut Vec<&'a [u8]>) -> Parsed {
    let Some(end) = memchr::memchr(b'\n', &data[..data.len().min(INLINE_COMMAND_MAX_BYTES + 1)])
    else {
        if data.len() > INLINE_COMMAND_MAX_BYTES {
            return Parsed::Bad(Cow::Borrowed("too big inline request"));
        }
        return Parsed::Incomplete;
    };
    let mut line = &data[..end];
    if let [head @ .., b'\r'] = line {
        line = head;
    }
    if !line.iter().any(|&b| b == b'"' || b == b'\'') {
        args.extend(line.split(|&b| is_space(b)).filter(|word| !word.is_empty()));
        return Parsed::Command(end + 1);
    }
    match split_quoted(line) {
        Some(words) => Parsed::Inline(end + 1, words),
        None => Parsed::Bad(Cow::Borrowed("unbalanced quotes in request")),
    }
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | 0)
}

/// Redis's `sdssplitargs`: words, 'single' and "double" quoted ones, the latter with escapes. `None`: unbalanced.
fn split_quoted(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while at < line.len() && is_space(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let (word, next) = quoted_word(line, at)?;
        words.push(word);
        at = next;
    }
}

fn quoted_word(line: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    while at < line.len() && !is_space(line[at]) {
        let quote = line[at];
        at += 1;
        if quote != b'"' && quote != b'\'' {
            word.push(quote);
            continue;
        }
        loop {
            let &b = line.get(at)?;
            at += 1;
            if b == quote {
                // A closing quote must be followed by a space or nothing at all.
                return match line.get(at) {
                    Some(&after) if !is_space(after) => None,
                    _ => Some((word, at)),
                };
            }
            if b != b'\\' {
                word.push(b);
            } else if quote == b'\'' {
                if line.get(at) == Some(&b'\'') {
                    word.push(b'\'');
                    at += 1;
                } else {
                    word.push(b'\\');
                }
            } else {
                at = escape(line, at, &mut word)?;
            }
        }
    }
    Some((word, at))
}

/// What follows a backslash within double quotes; answers where it ends.
fn escape(line: &[u8], at: usize, word: &mut Vec<u8>) -> Option<usize> {
    let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    if let [b'x', a, b, ..] = line[at..]
        && let (Some(high), Some(low)) = (hex(a), hex(b))
    {
        word.push(high << 4 | low);
        return Some(at + 3);
    }
    word.push(match *line.get(at)? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    });
    Some(at + 1)
}
