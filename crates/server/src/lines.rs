//! memcached's lines and the data blocks behind them, taken apart; a long block goes the way of a long argument of RESP (`intake`), with the words of its line before it.
//! Never: keeps a byte that no budget knows of.

use crate::conn::Conn;
use crate::env::Env;
use crate::execute::execute_args;
use crate::limits::{
    ASSEMBLE_ABOVE_BYTES, MEMCACHED_LINE_MAX_BYTES, MEMCACHED_STORE_LINE_MAX_BYTES,
};
use crate::memcached::{
    BAD_CHUNK, BAD_LINE, KEY_MAX_BYTES, NOREPLY, Words, ends_with_noreply, is_storage, say,
    unsigned,
};
use crate::resp::assemble::Assembly;
use crate::step::{end_told, is_full, was_executed};
use crate::store::Store;

/// What a line is followed by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// The next line.
    None,
    /// So many bytes of data and a line end.
    Bytes(u64),
    /// The line is refused with this text, and so many bytes of data are passed over.
    Refused(&'static str, u64),
}

/// What follows the line of these words, which has so many bytes. A line is kept while its block comes in, so one that is longer
/// than any command's is refused now.
pub(crate) fn block_of(words: &[&[u8]], line_bytes: usize) -> Block {
    let (len, most_words) = match words.first() {
        Some(name) if is_storage(name) => {
            let least = if *name == b"cas" { 6 } else { 5 };
            if words.len() < least {
                return Block::None;
            }
            // The last may be `noreply`.
            (words[4], least + 1)
        }
        Some(name) if *name == b"ms" => match words.get(2) {
            Some(len) => (*len, usize::MAX),
            None => return Block::None,
        },
        _ => return Block::None,
    };
    let is_long = words[1].len() > KEY_MAX_BYTES || line_bytes > MEMCACHED_STORE_LINE_MAX_BYTES;
    match unsigned(len) {
        Some(len) if words.len() > most_words => Block::Refused("ERROR", len),
        Some(len) if is_long => Block::Refused(BAD_LINE, len),
        Some(len) => Block::Bytes(len),
        None => Block::None,
    }
}

/// Executes whole commands that lie in `data`; answers how much of it was consumed.
pub(crate) fn run<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, data: &[u8]) -> usize {
    let mut at = 0;
    while !is_full(env, conn) {
        let rest = &data[at..];
        let found = memchr::memchr(b'\n', rest);
        let Some(end) = found.filter(|&end| end <= MEMCACHED_LINE_MAX_BYTES) else {
            conn.need_more = true;
            if rest.len() > MEMCACHED_LINE_MAX_BYTES {
                line_too_long(env, conn);
            }
            break;
        };
        let text = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let mut words: Words<'_> = text
            .split(|&b| b == b' ')
            .filter(|w| !w.is_empty())
            .collect();
        let mut len = end + 1;
        let noreply = ends_with_noreply(&words);
        match block_of(&words, text.len()) {
            Block::None => {}
            Block::Bytes(bytes) => {
                let whole = bytes.saturating_add(len as u64 + 2);
                if rest.len() as u64 >= whole {
                    let block = &rest[len..len + bytes as usize];
                    match &rest[len + bytes as usize..whole as usize] == b"\r\n" {
                        true => words.push(block),
                        // It becomes a command that only tells that its data did not end with its line.
                        false => {
                            words = Words::from_slice(&[BAD_CHUNK.as_bytes(), NOREPLY]);
                            words.truncate(1 + usize::from(noreply));
                        }
                    }
                    len = whole as usize;
                } else if whole <= ASSEMBLE_ABOVE_BYTES as u64 {
                    conn.need_more = true;
                    break;
                } else {
                    begin_block(env, conn, Assembly::of_block(&words, bytes), noreply);
                    return at + len;
                }
            }
            Block::Refused(text, bytes) => {
                let mut assembly = Assembly::of_block(&[], bytes);
                assembly.refuse(text.to_string());
                begin_block(env, conn, assembly, noreply);
                return at + len;
            }
        }
        if !words.is_empty() && !execute_args(env, conn, &words, &mut []) {
            break;
        }
        if words.is_empty() {
            say(&mut env.out, "ERROR");
        }
        at += len;
        was_executed(env, conn, 1);
        if conn.closing || conn.work.is_some() {
            break;
        }
        if at == data.len() {
            conn.need_more = true;
            break;
        }
    }
    at
}

/// A block comes in as a long argument of RESP does. What is kept of its line is counted from now on.
fn begin_block<S: Store>(
    env: &mut Env<S>,
    conn: &mut Conn<S>,
    mut assembly: Assembly<S::Upload>,
    noreply: bool,
) {
    assembly.noreply = noreply;
    let held = assembly.held_bytes();
    env.budget.take(held);
    let work = conn.work();
    work.assembly = Some(assembly);
    work.assembly_granted_bytes = held;
}

#[cold]
fn line_too_long<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) {
    let text = format!(
        "CLIENT_ERROR line is longer than {MEMCACHED_LINE_MAX_BYTES} bytes; name fewer keys"
    );
    say(&mut env.out, &text);
    env.shared.count_error(env.counters(), "CLIENT_ERROR");
    end_told(env, conn);
}
