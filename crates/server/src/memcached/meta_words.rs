//! What the flags of meta commands ask for, and how they are answered, with the token and length of what was seen.
//!
//! Promises: flags that nobody knows, or that are there twice, are refused; answers come in the order in which flags were asked for,
//! and an item's time is looked at and changed in that order. Never: looks a key up.

use smallvec::SmallVec;

use super::{BAD_LINE, Fault, key_of, number, say, unsigned};
use crate::commands::Flow;
use crate::resp::parse::integer;
use crate::store::{Held, Store, Value, View};
use terrace_kv::memcached::{self as rules, Told};

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
/// Longest opaque with its letter, bytes.
const OPAQUE_MAX_BYTES: usize = 32;

/// What a command asks for.
#[derive(Default)]
pub(super) struct Asked<'a> {
    /// The command's second letter.
    command: u8,
    /// Its flags that are answered, in their order.
    shown: Vec<&'a [u8]>,
    /// Those that look at an item's time or change it, in theirs.
    times: SmallVec<[u8; 4]>,
    pub(super) key: Vec<u8>,
    pub(super) word: &'a [u8],
    pub(super) base64: bool,
    pub(super) value: bool,
    pub(super) quiet: bool,
    pub(super) invalidate: bool,
    pub(super) drop_value: bool,
    pub(super) token: Option<u64>,
    pub(super) new_token: Option<u64>,
    pub(super) client_flags: u32,
    pub(super) vivify: Option<i64>,
    pub(super) renew: Option<i64>,
    pub(super) ttl: Option<i64>,
    pub(super) initial: u64,
    pub(super) delta: u64,
    pub(super) mode: Option<u8>,
}

/// Whether a command takes a flag. As in memcached each takes all of them, and passes over what means nothing there (P and L
/// are a proxy's).
fn takes(command: u8, letter: u8) -> bool {
    match letter {
        b'x' => command == b'd',
        // When an item was last used is not kept.
        b'l' => command != b'g',
        _ => b"bcfhkqstuvCDEFIJLMNOPRT".contains(&letter),
    }
}

/// Whether a command answers a flag.
fn answers(command: u8, letter: u8) -> bool {
    let answered: &[u8] = match command {
        b'g' => b"cfhkOst",
        b's' => b"ckOs",
        b'd' => b"kO",
        _ => b"cktO",
    };
    answered.contains(&letter)
}

pub(super) fn asked<'a>(words: &[&'a [u8]], flags: &[&'a [u8]]) -> Result<Asked<'a>, Fault> {
    let mut asked = Asked {
        command: words[0][1],
        word: words.get(1).ok_or("ERROR")?,
        delta: 1,
        ..Asked::default()
    };
    key_of(asked.word)?;
    let read = read_flags(&mut asked, flags);
    // memcached says for two of the commands only that something is wrong.
    if read.is_err() && b"da".contains(&asked.command) {
        return Err("CLIENT_ERROR invalid or duplicate flag".into());
    }
    read?;
    let is_long = |flag: &&[u8]| flag[0] == b'O' && flag.len() > OPAQUE_MAX_BYTES;
    match asked.shown.iter().any(is_long) {
        true => Err("CLIENT_ERROR opaque token too long".into()),
        false => Ok(asked),
    }
}

fn read_flags<'a>(asked: &mut Asked<'a>, flags: &[&'a [u8]]) -> Result<(), Fault> {
    let mut seen = [false; 128];
    for flag in flags {
        let (&letter, token) = flag.split_first().ok_or(BAD_LINE)?;
        if !takes(asked.command, letter) {
            return Err("CLIENT_ERROR invalid flag".into());
        }
        if std::mem::replace(&mut seen[letter as usize & 127], true) {
            return Err("CLIENT_ERROR duplicate flag".into());
        }
        read_flag(asked, letter, token)?;
        if answers(asked.command, letter) {
            asked.shown.push(flag);
        }
        if b"tTNR".contains(&letter) {
            asked.times.push(letter);
        }
    }
    asked.key = match asked.base64 {
        true => base64_decode(asked.word).ok_or("CLIENT_ERROR error decoding key")?,
        false => asked.word.to_vec(),
    };
    Ok(())
}

fn read_flag(asked: &mut Asked<'_>, letter: u8, token: &[u8]) -> Result<(), Fault> {
    let signed = || integer(token).ok_or(BAD_TOKEN);
    let whole = || unsigned(token).ok_or(BAD_TOKEN);
    match letter {
        b'b' => asked.base64 = true,
        b'v' => asked.value = true,
        b'q' => asked.quiet = true,
        b'I' => asked.invalidate = true,
        b'x' => asked.drop_value = true,
        b'C' => asked.token = Some(whole()?),
        b'E' => asked.new_token = Some(whole()?),
        b'F' => {
            let flags = unsigned(token).and_then(|n| u32::try_from(n).ok());
            asked.client_flags = flags.ok_or(BAD_LINE)?;
        }
        b'N' => asked.vivify = Some(signed()?),
        b'R' => asked.renew = Some(signed()?),
        b'T' => asked.ttl = Some(signed()?),
        b'J' => {
            asked.initial = unsigned(token).ok_or("CLIENT_ERROR invalid numeric initial value")?;
        }
        b'D' => asked.delta = unsigned(token).ok_or("CLIENT_ERROR invalid numeric delta value")?,
        b'M' => match token {
            [mode] => asked.mode = Some(*mode),
            _ => return Err("CLIENT_ERROR incorrect length for M token".into()),
        },
        _ => {}
    }
    Ok(())
}

pub(super) fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// What the flags about an item's time come to.
pub(super) struct Times {
    /// When it expires from now on.
    pub(super) expiry_ms: Option<u64>,
    /// What it had to live when that was asked.
    pub(super) left_s: Option<i64>,
    /// It has less to live than its reader asks for.
    pub(super) late: bool,
}

/// Goes through them in the order in which they were sent, for an item that expires then, or was just made.
pub(super) fn times(asked: &Asked<'_>, is_new: bool, expiry_ms: Option<u64>, now_ms: u64) -> Times {
    let mut times = Times {
        expiry_ms,
        left_s: None,
        late: false,
    };
    let expiry_of = |ttl: Option<i64>| ttl.and_then(|ttl| rules::expiry_ms(ttl, now_ms));
    for letter in &asked.times {
        let left = left_s(times.expiry_ms, now_ms);
        match letter {
            b't' => times.left_s = left,
            b'T' => times.expiry_ms = expiry_of(asked.ttl),
            b'N' if is_new => times.expiry_ms = expiry_of(asked.vivify),
            b'R' if !is_new => {
                let below = left_s(expiry_of(asked.renew), now_ms);
                times.late = matches!((left, below), (Some(left), Some(below)) if left < below);
            }
            _ => {}
        }
    }
    times
}

/// An item as its flags show it.
pub(super) struct Shown {
    pub(super) client_flags: u32,
    pub(super) cas: u64,
    pub(super) len: u64,
    /// What it had to live when that was asked.
    pub(super) left_s: Option<i64>,
    pub(super) used: bool,
    pub(super) told: Told,
}

pub(super) fn flags(out: &mut Vec<u8>, asked: &Asked<'_>, item: Option<&Shown>) {
    for flag in &asked.shown {
        let letter = flag[0];
        let item = match (letter, item) {
            (b'k', _) => {
                show_key(out, asked, item.is_some());
                continue;
            }
            (b'O', _) => {
                out.push(b' ');
                out.extend_from_slice(flag);
                continue;
            }
            (_, Some(item)) => item,
            // As memcached does: a token that no item has.
            (b'c', None) if asked.command == b's' => {
                out.extend_from_slice(b" c0");
                continue;
            }
            (_, None) => continue,
        };
        out.push(b' ');
        out.push(letter);
        match letter {
            b'c' => number(out, item.cas),
            b'f' => number(out, item.client_flags.into()),
            b'h' => number(out, item.used.into()),
            b's' => number(out, item.len),
            _ => match item.left_s {
                Some(left) => number(out, left.max(0) as u64),
                None => out.extend_from_slice(b"-1"),
            },
        }
    }
    let told = item.map(|i| i.told).unwrap_or_default();
    for (letter, is) in [(b'Z', told.taken), (b'X', told.stale), (b'W', told.won)] {
        if is {
            out.extend_from_slice(&[b' ', letter]);
        }
    }
}

/// A key is shown as it came: in base64, and said to be, or as it is. An item that mg finds is shown as its key came when it was
/// set, which is not kept: one that is plain text is taken for one that came so.
fn show_key(out: &mut Vec<u8>, asked: &Asked<'_>, is_found: bool) {
    let is_text = || asked.command == b'g' && is_found && is_plain(&asked.key);
    out.extend_from_slice(b" k");
    match asked.base64 && !is_text() {
        true => {
            out.extend_from_slice(asked.word);
            out.extend_from_slice(b" b");
        }
        false => out.extend_from_slice(&asked.key),
    }
}

/// Whether nobody needs base64 for a key.
pub(super) fn is_plain(key: &[u8]) -> bool {
    key.iter().all(u8::is_ascii_graphic)
}

pub(super) fn left_s(expiry_ms: Option<u64>, now_ms: u64) -> Option<i64> {
    let left = |at: u64| i64::try_from(at.saturating_sub(now_ms)).unwrap_or(i64::MAX);
    expiry_ms.map(|at| left(at).saturating_add(500) / 1000)
}

/// Writes an item: `HD` and flags, or `VA`, its length, flags and the value.
pub(super) fn item<S: Store>(
    out: &mut Vec<u8>,
    asked: &Asked<'_>,
    shown: &Shown,
    value: Value<'_, S::Large>,
) -> Flow<S::Large> {
    if !asked.value {
        out.extend_from_slice(b"HD");
        flags(out, asked, Some(shown));
        say(out, "");
        return Flow::Done;
    }
    out.extend_from_slice(b"VA ");
    number(out, shown.len);
    flags(out, asked, Some(shown));
    say(out, "");
    match value {
        Value::Inline(bytes) => {
            out.extend_from_slice(bytes);
            say(out, "");
            Flow::Done
        }
        Value::Large(large) => Flow::Large(large),
        Value::Absent => Flow::Done,
    }
}

pub(super) fn token_of<S: Store>(view: &View<S::Large>) -> u64 {
    match (&view.meta, &view.value) {
        (Some(meta), _) => meta.cas,
        (None, Held::Inline(bytes)) => terrace_kv::digest(bytes),
        (None, Held::Large(large)) => S::large_cas(large),
        (None, Held::Absent) => 0,
    }
}

pub(super) fn len_of<S: Store>(view: &View<S::Large>) -> u64 {
    match &view.value {
        Held::Absent => 0,
        Held::Inline(bytes) => bytes.len() as u64,
        Held::Large(large) => S::large_len(large),
    }
}
