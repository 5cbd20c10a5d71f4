//! The memcached protocol, classic and meta commands, over the same keys as Redis's commands. It hands the words of a line, with its data block as the last one, to `classic` and `meta`; lines are taken apart in `crate::lines`.
//! Texts are memcached's. Never: reads a connection.

mod classic;
mod meta;
mod meta_change;
mod meta_words;
mod told;

use smallvec::SmallVec;

use crate::commands::{Cx, Flow, is_paused};
use crate::sight::calls::memcached_kind;
use crate::store::{Store, StoreError, Wait};

/// The version whose commands and texts are followed; clients may choose their behaviour by it.
pub const MEMCACHED_VERSION: &str = "1.6.18";
/// memcached's longest key, bytes.
pub(crate) const KEY_MAX_BYTES: usize = 250;
/// The reply to a data block that does not end where it should.
pub(crate) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
/// The last word of a line whose sender wants no reply.
pub(crate) const NOREPLY: &[u8] = b"noreply";
pub(crate) const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
pub(crate) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// Why a command failed: the whole line.
pub(crate) struct Fault(pub String);

impl From<StoreError> for Fault {
    fn from(e: StoreError) -> Self {
        // Its own lines come through the store unchanged.
        match e.prefix {
            LINE => Fault(e.text),
            _ => Fault(format!("SERVER_ERROR {}", e.text)),
        }
    }
}

impl From<&str> for Fault {
    fn from(line: &str) -> Self {
        Fault(line.to_string())
    }
}

/// The prefix of an error of the store that is a whole line of this protocol.
const LINE: &str = "memcached";

/// A line of this protocol as an error that an edit ends with.
fn line(text: &str) -> StoreError {
    StoreError {
        prefix: LINE,
        text: text.to_string(),
    }
}

/// What a handler answers.
type Done<S> = Result<Flow<<S as Store>::Large>, Fault>;

/// The words of a line.
pub(crate) type Words<'a> = SmallVec<[&'a [u8]; 16]>;

pub(crate) fn is_storage(name: &[u8]) -> bool {
    matches!(
        name,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas"
    )
}

/// A number without a sign.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}

pub(crate) fn say(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Executes a command: the words of its line, and its data block as the last one.
#[inline]
pub(crate) fn execute<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Flow<S::Large> {
    let start = cx.out.len();
    cx.session.kind = memcached_kind(words[0]);
    if !cx.session.trusted {
        return authenticate(cx, words);
    }
    if cx.shared.paused.is_on() && is_paused(cx, writes(words)) {
        return Flow::Wait(Wait::Room);
    }
    let done = match words[0] {
        b"get" => classic::get(cx, words, false),
        b"set" => classic::store(cx, words),
        b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => meta::execute(cx, words),
        _ => classic::execute(cx, words),
    };
    let noreply = words.len() > 1 && is_noreply(words);
    match done {
        Ok(Flow::Done) if noreply => {
            cx.out.truncate(start);
            Flow::Done
        }
        Ok(flow) => flow,
        Err(Fault(text)) => {
            if !cx.progress.begun {
                cx.out.truncate(start);
            }
            let kind = text.split(' ').next().unwrap_or_default();
            cx.shared.count_error(cx.counters, kind);
            cx.counters.calls.failed(cx.session.kind, true);
            // An error of a storage command must be told even so, or its sender would never know.
            if !noreply || text.starts_with("SERVER_ERROR") {
                say(cx.out, &text);
            }
            Flow::Done
        }
    }
}

/// Whether CLIENT PAUSE WRITE holds a command; a mg does when it may make an item, or give it another time.
#[cold]
fn writes(words: &[&[u8]]) -> bool {
    match words[0] {
        b"get" | b"gets" | b"mn" | b"me" | b"stats" | b"version" | b"verbosity" | b"quit" => false,
        b"mg" => words[2.min(words.len())..]
            .iter()
            .any(|flag| matches!(flag[0], b'N' | b'R' | b'T')),
        _ => true,
    }
}

/// memcached's way for its text protocol: the first command is a set of any key, whose data are a user and the password.
#[cold]
fn authenticate<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Flow<S::Large> {
    let text = match words {
        [b"quit"] => return Flow::Close,
        [b"set", _, _, _, _, said] => {
            let password = said.splitn(2, |&b| b == b' ').nth(1).unwrap_or_default();
            match cx.shared.password.as_ref().is_none_or(|p| p.is(password)) {
                true => {
                    cx.session.trusted = true;
                    "STORED"
                }
                false => "CLIENT_ERROR authentication failure",
            }
        }
        _ => "CLIENT_ERROR unauthenticated",
    };
    say(cx.out, text);
    Flow::Done
}

/// The words of a storage command without its data block. Where the length cannot be read there is none: the last word is the line's.
fn line_of<'w, 'a>(words: &'w [&'a [u8]]) -> &'w [&'a [u8]] {
    let has_block = words.len() > 5 && unsigned(words[4]).is_some();
    &words[..words.len() - usize::from(has_block)]
}

/// Whether the line ends with `noreply`; a data block behind it does not count.
fn is_noreply(words: &[&[u8]]) -> bool {
    match is_storage(words[0]) {
        true => ends_with_noreply(line_of(words)),
        false => ends_with_noreply(words),
    }
}

/// The key of a set that is refused for its length: as in memcached its value goes, or it would be taken for what was set. None:
/// the words are no such command.
pub(crate) fn unlinked(words: &[&[u8]]) -> Option<Vec<u8>> {
    match words {
        [b"set", key, ..] => classic::storage_line(words).is_ok().then(|| key.to_vec()),
        [b"ms", _, _, flags @ ..] => {
            let asked = meta_words::asked(words, flags).ok();
            asked.map(|asked| asked.key)
        }
        _ => None,
    }
}

/// The same of a line without its data block.
pub(crate) fn ends_with_noreply(line: &[&[u8]]) -> bool {
    let takes = |name: &[u8]| {
        is_storage(name)
            || name == BAD_CHUNK.as_bytes()
            || matches!(
                name,
                b"delete" | b"incr" | b"decr" | b"touch" | b"flush_all" | b"verbosity"
            )
    };
    line.last() == Some(&NOREPLY) && takes(line[0])
}

/// A key that memcached takes.
fn key_of(word: &[u8]) -> Result<&[u8], Fault> {
    match word.len() <= KEY_MAX_BYTES && !word.is_empty() {
        true => Ok(word),
        false => Err(BAD_LINE.into()),
    }
}

/// Unwraps a step, or leaves the handler to wait.
macro_rules! ready {
    ($outcome:expr) => {
        match $outcome? {
            $crate::store::Step::Done(value) => value,
            $crate::store::Step::Wait(wait) => return Ok($crate::commands::Flow::Wait(wait)),
        }
    };
}
pub(crate) use ready;
