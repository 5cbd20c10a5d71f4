//! What the flags of meta commands ask for, and how they are answered, with the token and length of what was seen.
//!
//! Promises: flags that a command does not know, or that are there twice, are refused; answers come in the order in which flags were asked for. Never: looks a
//! key up.

use super::{BAD_LINE, Fault, key_of, number, say, unsigned};
use crate::commands::Flow;
use crate::resp::parse::integer;
use crate::store::{Held, Store, Value, View};
use terrace_kv::memcached::Told;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
/// Longest opaque, bytes.
const OPAQUE_MAX_BYTES: usize = 32;

/// What a command asks for.
#[derive(Default)]
pub(super) struct Asked<'a> {
    /// Its flags that are answered, in their order.
    pub(super) shown: Vec<&'a [u8]>,
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

/// The flags that each command takes.
fn known(command: &[u8]) -> &'static [u8] {
    match command {
        b"mg" => b"bcfhkOqstvENRT",
        b"ms" => b"bcCEFIkOqsTMN",
        b"md" => b"bCEIkOqTx",
        _ => b"bcCEkNJDTMOqtv",
    }
}

pub(super) fn asked<'a>(words: &[&'a [u8]], flags: &[&'a [u8]]) -> Result<Asked<'a>, Fault> {
    let word = *words.get(1).ok_or(BAD_LINE)?;
    let mut asked = Asked {
        word,
        delta: 1,
        ..Asked::default()
    };
    let mut seen = [false; 128];
    for flag in flags {
        let (&letter, token) = flag.split_first().ok_or(BAD_LINE)?;
        let is_known = known(words[0]).contains(&letter);
        if !is_known {
            return Err("CLIENT_ERROR invalid flag".into());
        }
        if std::mem::replace(&mut seen[letter as usize & 127], true) {
            return Err("CLIENT_ERROR duplicate flag".into());
        }
        read_flag(&mut asked, letter, token)?;
        if b"cfhkOst".contains(&letter) {
            asked.shown.push(flag);
        }
    }
    asked.key = match asked.base64 {
        true => base64_decode(word).ok_or("CLIENT_ERROR error decoding key")?,
        false => word.to_vec(),
    };
    key_of(&asked.key)?;
    Ok(asked)
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
        b'F' => asked.client_flags = u32::try_from(whole()?).map_err(|_| BAD_TOKEN)?,
        b'N' => asked.vivify = Some(signed()?),
        b'R' => asked.renew = Some(signed()?),
        b'T' => asked.ttl = Some(signed()?),
        b'J' => asked.initial = whole()?,
        b'D' => asked.delta = whole()?,
        b'M' => asked.mode = Some(token.first().ok_or(BAD_TOKEN)?.to_ascii_uppercase()),
        b'O' if token.len() > OPAQUE_MAX_BYTES => {
            return Err("CLIENT_ERROR opaque token too long".into());
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// An item as its flags show it.
pub(super) struct Shown {
    pub(super) client_flags: u32,
    pub(super) cas: u64,
    pub(super) len: u64,
    pub(super) left_s: Option<i64>,
    pub(super) used: bool,
    pub(super) told: Told,
}

pub(super) fn flags(out: &mut Vec<u8>, asked: &Asked<'_>, item: Option<&Shown>) {
    for flag in &asked.shown {
        let letter = flag[0];
        if letter == b'k' {
            show_key(out, asked);
        } else if letter == b'O' {
            out.push(b' ');
            out.extend_from_slice(flag);
        }
        let Some(item) = item.filter(|_| !b"kO".contains(&letter)) else {
            continue;
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

/// A key that could not stand in a line is shown in base64, and said to be.
fn show_key(out: &mut Vec<u8>, asked: &Asked<'_>) {
    let is_text = asked.key.iter().all(u8::is_ascii_graphic);
    out.extend_from_slice(b" k");
    match is_text {
        true => out.extend_from_slice(&asked.key),
        false => {
            out.extend_from_slice(asked.word);
            out.extend_from_slice(b" b");
        }
    }
}

pub(super) fn left_s(expiry_ms: Option<u64>, now_ms: u64) -> Option<i64> {
    expiry_ms.map(|at| (at.saturating_sub(now_ms) as i64 + 500) / 1000)
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
