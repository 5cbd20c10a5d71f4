//! The classic text commands. What they mean is in `terrace_kv::memcached` and the store; here are their words and replies.

use terrace_kv::memcached as rules;

use std::sync::atomic::Ordering;

use super::{
    BAD_CHUNK, BAD_LINE, Done, Fault, MEMCACHED_VERSION, TOO_LARGE, key_of, line, line_of, number,
    ready, say, told, unsigned,
};
use crate::commands::ahead::{look_ahead, take_task};
use crate::commands::long::{self, Job, Keeps, Layer, Plan, Source};
use crate::commands::{Cx, Flow, Part, edit_one, over_http, put_part};
use crate::limits::{INLINE_MAX_BYTES, OUTPUT_LIMIT_BYTES};
use crate::resp::parse::integer;
use crate::store::{Cond, Edit, Expiry, Held, How, Item, Meta, NewValue, Step, Store, Value, View};
use crate::sync::add;

pub(super) const NOT_A_NUMBER: &str =
    "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// All commands but the two most frequent.
pub fn execute<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    match words[0] {
        b"gets" => get(cx, words, true),
        b"add" | b"replace" | b"cas" => store(cx, words),
        b"append" | b"prepend" => extend(cx, words),
        b"gat" => get_and_touch(cx, words, false),
        b"gats" => get_and_touch(cx, words, true),
        b"incr" => count(cx, words, true),
        b"decr" => count(cx, words, false),
        b"delete" => delete(cx, words),
        b"touch" => touch(cx, words),
        b"flush_all" => flush_all(cx, words),
        b"stats" => stats(cx, words),
        b"version" => answer(cx, &format!("VERSION {MEMCACHED_VERSION}")),
        b"verbosity" if (2..=3).contains(&words.len()) => match unsigned(words[1]) {
            // What is logged is said at the start.
            Some(_) => answer(cx, "OK"),
            None => Err(BAD_LINE.into()),
        },
        b"quit" => Ok(Flow::Close),
        // No word of a line has spaces.
        _ if words[0] == BAD_CHUNK.as_bytes() => Err(BAD_CHUNK.into()),
        _ if words[0] == TOO_LARGE.as_bytes() => too_large(cx, words),
        // As memcached does.
        _ if words[words.len() - 1].starts_with(b"HTTP/") => Ok(over_http(cx)),
        _ => Err("ERROR".into()),
    }
}

/// What there is of a set that was refused for its length ([`super::unlinked`]).
fn too_large<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    ready!(cx.store.del(cx.task, &words[1..]));
    Err(TOO_LARGE.into())
}

fn answer<S: Store>(cx: &mut Cx<'_, S>, text: &str) -> Done<S> {
    say(cx.out, text);
    Ok(Flow::Done)
}

fn head(out: &mut Vec<u8>, key: &[u8], flags: u32, len: u64, cas: Option<u64>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    for part in [Some(u64::from(flags)), Some(len), cas]
        .into_iter()
        .flatten()
    {
        out.push(b' ');
        number(out, part);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes an item; a long one only gets its header and is handed back.
#[inline]
fn show<S: Store>(
    out: &mut Vec<u8>,
    key: &[u8],
    item: Option<Item<'_, S::Large>>,
    with_cas: bool,
) -> Shown<S::Large> {
    let Some(item) = item else {
        return Shown::Nothing;
    };
    let flags = item.meta.map_or(0, |m| m.client_flags);
    let cas = with_cas.then(|| item.cas());
    match item.value {
        Value::Absent => Shown::Nothing,
        Value::Inline(bytes) => {
            head(out, key, flags, bytes.len() as u64, cas);
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
            Shown::Whole
        }
        Value::Large(large) => {
            head(out, key, flags, S::large_len(&large), cas);
            Shown::Header(large)
        }
    }
}

enum Shown<L> {
    Nothing,
    Whole,
    Header(L),
}

/// get key [key …], gets key [key …]: replies in order; behind the first key that must wait, the next ones are looked up
/// ahead.
pub fn get<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]], with_cas: bool) -> Done<S> {
    let keys = &words[1..];
    if keys.is_empty() {
        return Err("ERROR".into());
    }
    if !cx.progress.begun {
        for key in keys {
            key_of(key)?;
        }
    }
    while (cx.progress.next as usize) < keys.len() {
        if cx.out.len() > OUTPUT_LIMIT_BYTES {
            return Ok(Flow::OutputFull);
        }
        let at = cx.progress.next as usize;
        let mut task = take_task(cx, at);
        let out = &mut *cx.out;
        let shows = |item: Option<Item<'_, S::Large>>| show::<S>(out, keys[at], item, with_cas);
        let shown = match cx.store.item(&mut task, keys[at], shows) {
            Ok(Step::Wait(wait)) => {
                cx.progress.window.push((at, task));
                look_ahead(cx, keys, at, |store, task, key| {
                    store.item(task, key, |item| match item.map(|i| i.value) {
                        Some(Value::Large(large)) => Some(large),
                        _ => None,
                    })
                });
                return Ok(Flow::Wait(wait));
            }
            Ok(Step::Done(shown)) => shown,
            Err(e) => {
                // A value that cannot be read is not told as a missing one: the reply ends here.
                cx.store.finish(task);
                return Err(e.into());
            }
        };
        cx.progress.begun = true;
        cx.progress.durable_at = cx.progress.durable_at.max(S::durable_at(&task));
        cx.store.finish(task);
        cx.progress.next += 1;
        match shown {
            Shown::Nothing => add(&cx.counters.misses, 1),
            Shown::Whole => add(&cx.counters.hits, 1),
            Shown::Header(large) => {
                add(&cx.counters.hits, 1);
                return Ok(Flow::LargeThenMore(large));
            }
        }
    }
    answer(cx, "END")
}

/// The numbers of a storage command's line.
pub(super) struct Line {
    client_flags: u32,
    exptime: i64,
    token: Option<u64>,
}

pub(super) fn storage_line(words: &[&[u8]]) -> Result<Line, Fault> {
    let is_cas = words[0] == b"cas";
    let line = line_of(words);
    // The last may be `noreply`.
    let most = if is_cas { 7 } else { 6 };
    if line.len() < most - 1 || line.len() > most {
        return Err("ERROR".into());
    }
    key_of(words[1])?;
    unsigned(words[4]).ok_or(BAD_LINE)?;
    let flags = unsigned(words[2]).and_then(|n| u32::try_from(n).ok());
    let token = match is_cas {
        true => Some(unsigned(words[5]).ok_or(BAD_LINE)?),
        false => None,
    };
    Ok(Line {
        client_flags: flags.ok_or(BAD_LINE)?,
        exptime: integer(words[3]).ok_or(BAD_LINE)?,
        token,
    })
}

/// set, add, replace key flags exptime bytes [noreply], cas key flags exptime bytes token [noreply]
#[inline]
pub fn store<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let asked = storage_line(words)?;
    let cond = match (words[0], asked.token) {
        (b"add", _) => Cond::IfAbsent,
        (b"replace", _) => Cond::IfPresent,
        (_, Some(token)) => Cond::IfToken(token),
        _ => Cond::Always,
    };
    let expiry = rules::expiry_ms(asked.exptime, cx.store.now_ms());
    let how = How {
        cond,
        expiry: expiry.map_or(Expiry::None, Expiry::At),
        meta: Some(Meta {
            cas: cx.store.new_cas(),
            client_flags: asked.client_flags,
            state: 0,
        }),
    };
    let last = words.len() - 1;
    let mut value = match cx.large.iter_mut().find(|l| l.index as usize == last) {
        Some(l) => NewValue::Large(&mut l.upload),
        None => NewValue::Inline(words[last]),
    };
    let was_there = |value: Value<'_, S::Large>| !matches!(value, Value::Absent);
    let outcome = cx
        .store
        .set(cx.task, words[1], &mut value, how, Some(was_there));
    let text = match ready!(outcome) {
        (true, _) => "STORED",
        (false, Some(true)) if asked.token.is_some() => "EXISTS",
        (false, _) if asked.token.is_some() => "NOT_FOUND",
        (false, _) => "NOT_STORED",
    };
    answer(cx, text)
}

/// append, prepend key flags exptime bytes [noreply]: flags and time count for nothing.
fn extend<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    storage_line(words)?;
    let part = Part::of(cx, words, words.len() - 1);
    let behind = words[0] == b"append";
    if cx.progress.long.is_none() {
        let stored = ready!(edit_one(cx, words[1], |view: View<S::Large>, cas| {
            Ok(match extended::<S>(&view, part, behind) {
                Extended::Absent => (None, Some(false)),
                Extended::Long => (None, None),
                Extended::Value(value) => {
                    let meta = Some(renewed(view.meta.unwrap_or_default(), cas));
                    let edit = Edit::Put {
                        value,
                        expiry_ms: view.expiry_ms,
                        meta,
                    };
                    (Some(edit), Some(true))
                }
            })
        }));
        if let Some(stored) = stored {
            return answer(cx, if stored { "STORED" } else { "NOT_STORED" });
        }
        cx.renew_task();
    }
    let (most, cas) = (cx.shared.max_value_bytes, cx.store.new_cas());
    let job = Job {
        keys: &words[1..2],
        arg: &[],
        plan: &|views| match views[0].exists() {
            true => {
                let meta = views[0].meta.map(|meta| renewed(meta, cas));
                Ok(Some(Plan {
                    keeps: Keeps::These(views[0].expiry_ms, meta),
                    ..extension::<S>(&views[0], part, behind, most)?
                }))
            }
            false => Ok(None),
        },
        patch: &|window, _, reply| {
            put_into(window, part);
            say(reply, "STORED");
        },
    };
    Ok(long::run(cx, &job).map_err(crate::store::StoreError::from)?)
}

/// What is kept with an item that was extended: nobody has to renew it any more.
fn renewed(meta: Meta, cas: u64) -> Meta {
    Meta {
        cas,
        state: 0,
        ..meta
    }
}

/// What putting bytes before or behind a value comes to.
pub enum Extended {
    /// There is no value.
    Absent,
    /// The new value.
    Value(Vec<u8>),
    /// It is one in pieces, or becomes so.
    Long,
}

/// A value with bytes before or behind it.
pub fn extended<S: Store>(view: &View<S::Large>, part: Part<'_>, behind: bool) -> Extended {
    match &view.value {
        Held::Absent => Extended::Absent,
        Held::Inline(value) if value.len() as u64 + part.len <= INLINE_MAX_BYTES as u64 => {
            Extended::Value(match behind {
                true => [value, part.bytes].concat(),
                false => [part.bytes, value].concat(),
            })
        }
        _ => Extended::Long,
    }
}

/// The plan for the same with a value in pieces.
pub fn extension<S: Store>(
    view: &View<S::Large>,
    part: Part<'_>,
    behind: bool,
    most_bytes: u64,
) -> Result<Plan, crate::store::StoreError> {
    let before = long::len_of::<S>(view).unwrap_or(0);
    if before + part.len > most_bytes {
        return Err(line(TOO_LARGE));
    }
    if behind {
        return Ok(put_part(before, part, before));
    }
    let mut plan = Plan::patch(before + part.len, 0..0);
    plan.layers = vec![Layer::Copy(Source::Key(0), 0..before, part.len)];
    match part.in_pieces {
        true => plan.layers.push(Layer::Copy(Source::Arg, 0..part.len, 0)),
        false => plan.window = 0..part.len,
    }
    Ok(plan)
}

/// Bytes that did not come in pieces are a patch.
pub fn put_into(window: &mut [u8], part: Part<'_>) {
    if !part.in_pieces {
        window.copy_from_slice(part.bytes);
    }
}

/// gat exptime key [key …], gats exptime key [key …]
fn get_and_touch<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]], with_cas: bool) -> Done<S> {
    if words.len() < 3 {
        return Err("ERROR".into());
    }
    let exptime = integer(words[1]).ok_or("CLIENT_ERROR invalid exptime argument")?;
    let expiry_ms = rules::expiry_ms(exptime, cx.store.now_ms());
    let keys = &words[2..];
    if !cx.progress.begun {
        for key in keys {
            key_of(key)?;
        }
    }
    while (cx.progress.next as usize) < keys.len() {
        if cx.out.len() > OUTPUT_LIMIT_BYTES {
            return Ok(Flow::OutputFull);
        }
        let key = keys[cx.progress.next as usize];
        let view = ready!(edit_one(cx, key, |view, _| {
            Ok((rules::kept(&view, expiry_ms, view.meta), view))
        }));
        cx.progress.begun = true;
        cx.renew_task();
        cx.progress.next += 1;
        let (meta, expiry_ms) = (view.meta, view.expiry_ms);
        let item = |value, large_cas| {
            Some(Item {
                value,
                meta,
                expiry_ms,
                heat: 0,
                large_cas,
            })
        };
        let shown = match view.value {
            Held::Absent => Shown::Nothing,
            Held::Inline(bytes) => show::<S>(cx.out, key, item(Value::Inline(&bytes), 0), with_cas),
            Held::Large(large) => {
                let cas = S::large_cas(&large);
                show::<S>(cx.out, key, item(Value::Large(large), cas), with_cas)
            }
        };
        if let Shown::Header(large) = shown {
            return Ok(Flow::LargeThenMore(large));
        }
    }
    answer(cx, "END")
}

/// incr, decr key delta [noreply]
fn count<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]], up: bool) -> Done<S> {
    if !(3..=4).contains(&words.len()) {
        return Err("ERROR".into());
    }
    let key = key_of(words[1])?;
    let delta = unsigned(words[2]).ok_or("CLIENT_ERROR invalid numeric delta argument")?;
    let counted = ready!(edit_one(cx, key, |view: View<S::Large>, cas| {
        let before = match &view.value {
            Held::Absent => return Ok((None, None)),
            Held::Inline(value) => rules::number(value),
            Held::Large(_) => None,
        };
        let now = rules::count(before.ok_or_else(|| line(NOT_A_NUMBER))?, delta, up);
        let edit = Edit::Put {
            value: now.to_string().into_bytes(),
            expiry_ms: view.expiry_ms,
            meta: view.meta.map(|meta| Meta { cas, ..meta }),
        };
        Ok((Some(edit), Some(now)))
    }));
    match counted {
        Some(now) => {
            number(cx.out, now);
            answer(cx, "")
        }
        None => answer(cx, "NOT_FOUND"),
    }
}

/// delete key [0] [noreply]
fn delete<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let fits = match &words[1..] {
        [_] => true,
        [_, last] => *last == b"0" || *last == b"noreply",
        [_, zero, last] => *zero == b"0" && *last == b"noreply",
        _ => return Err("ERROR".into()),
    };
    if !fits {
        return Err("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]".into());
    }
    let key = key_of(words[1])?;
    let deleted = ready!(cx.store.del(cx.task, &[key]));
    answer(cx, if deleted > 0 { "DELETED" } else { "NOT_FOUND" })
}

/// touch key exptime [noreply]
fn touch<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    if !(3..=4).contains(&words.len()) {
        return Err("ERROR".into());
    }
    let key = key_of(words[1])?;
    let exptime = integer(words[2]).ok_or("CLIENT_ERROR invalid exptime argument")?;
    let expiry_ms = rules::expiry_ms(exptime, cx.store.now_ms());
    let touched = ready!(edit_one(cx, key, |view: View<S::Large>, _| {
        Ok((rules::kept(&view, expiry_ms, view.meta), view.exists()))
    }));
    answer(cx, if touched { "TOUCHED" } else { "NOT_FOUND" })
}

/// flush_all [delay] [noreply]
fn flush_all<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let delay_s = match words.get(1).filter(|w| **w != b"noreply") {
        None => 0,
        Some(word) => integer(word).ok_or("CLIENT_ERROR invalid exptime argument")?,
    };
    let flush_at_ms = &cx.shared.flush_at_ms;
    let now_ms = cx.store.now_ms();
    // Read as an expiry is: seconds, or a time since 1970; what has passed is now.
    let left_ms = rules::expiry_ms(delay_s, now_ms).map_or(0, |at| at.saturating_sub(now_ms));
    if left_ms > 0 {
        let since_start = cx.shared.started.elapsed().as_millis() as u64;
        flush_at_ms.store(since_start + left_ms, Ordering::Relaxed);
        return answer(cx, "OK");
    }
    ready!(cx.store.flush_all(cx.task));
    flush_at_ms.store(0, Ordering::Relaxed);
    answer(cx, "OK")
}

/// stats [items | slabs | sizes | settings | conns | reset]
fn stats<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let lines = match words.get(1).copied() {
        None => told::general(cx.shared, cx.store.now_ms()),
        Some(b"settings") => told::settings(cx.shared),
        Some(b"items") => told::items(cx.shared),
        Some(b"slabs") => told::slabs(cx.shared),
        Some(b"conns") => told::conns(cx.shared),
        Some(b"sizes") => vec![("sizes_status".to_string(), "disabled".to_string())],
        Some(b"reset") => {
            cx.shared.reset_counters();
            return answer(cx, "RESET");
        }
        Some(_) => return Err(BAD_LINE.into()),
    };
    for (name, value) in lines {
        say(cx.out, &format!("STAT {name} {value}"));
    }
    answer(cx, "END")
}
