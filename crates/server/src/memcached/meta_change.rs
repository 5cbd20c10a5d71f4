//! The meta commands that change an item: ms, md, ma. Each is one set or one edit of its key.

use terrace_kv::memcached::{self as rules, Told};

use super::classic::{Extended, NOT_A_NUMBER, extended, extension, put_into};
use super::meta_words::{Asked, Shown, asked, flags, item, len_of, times, token_of};
use super::{BAD_LINE, Done, line, ready, say, unsigned};
use crate::commands::long::{self, Job, Keeps, Layer, Plan, Source};
use crate::commands::{Cx, Flow, Part, edit_one};
use crate::store::{Cond, Edit, Expiry, Held, How, Meta, NewValue, Store, StoreError, Value, View};

/// What a command that changes an item came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done { cas: u64, len: u64 },
    NotStored,
    Exists,
    NotFound,
}

fn end<S: Store>(cx: &mut Cx<'_, S>, asked: &Asked<'_>, ended: Ended, quiet: &[&str]) -> Done<S> {
    tell(cx.out, asked, ended, quiet);
    Ok(Flow::Done)
}

fn tell(out: &mut Vec<u8>, asked: &Asked<'_>, ended: Ended, quiet: &[&str]) {
    let (code, shown) = match ended {
        Ended::Done { cas, len } => {
            let shown = Shown {
                client_flags: asked.client_flags,
                cas,
                len,
                left_s: None,
                used: false,
                told: Told::default(),
            };
            ("HD", Some(shown))
        }
        Ended::NotStored => ("NS", None),
        Ended::Exists => ("EX", None),
        Ended::NotFound => ("NF", None),
    };
    if asked.quiet && quiet.contains(&code) {
        return;
    }
    out.extend_from_slice(code.as_bytes());
    flags(out, asked, shown.as_ref());
    say(out, "");
}

/// ms key datalen flags*
pub(super) fn set<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    if words.len() == 1 {
        return Err("ERROR".into());
    }
    let Some((data, line)) = words.split_last().filter(|(_, line)| line.len() >= 3) else {
        return Err(BAD_LINE.into());
    };
    // Without a length there is no data block, and the last word is a flag.
    unsigned(line[2]).ok_or(BAD_LINE)?;
    let mut asked = asked(line, &line[3..])?;
    let expiry_ms = rules::expiry_ms(asked.ttl.unwrap_or(0), cx.store.now_ms());
    let mode = asked.mode.unwrap_or(b'S');
    if !b"ESARP".contains(&mode) {
        return Err("CLIENT_ERROR invalid mode for ms M token".into());
    }
    let extends = b"AP".contains(&mode);
    // An add takes no notice of a token, and what extends none of one that is 0.
    asked.token = asked
        .token
        .filter(|&token| mode != b'E' && !(extends && token == 0));
    if extends || asked.invalidate && asked.token.is_some() {
        let part = Part::of(cx, words, words.len() - 1);
        return set_by_edit(cx, &asked, part, expiry_ms, mode);
    }
    let cond = match (asked.token, mode) {
        (Some(token), _) => Cond::IfToken(token),
        (None, b'E') => Cond::IfAbsent,
        (None, b'R') => Cond::IfPresent,
        (None, _) => Cond::Always,
    };
    let meta = Meta {
        cas: asked.new_token.unwrap_or_else(|| cx.store.new_cas()),
        client_flags: asked.client_flags,
        state: 0,
    };
    let how = How {
        cond,
        expiry: expiry_ms.map_or(Expiry::None, Expiry::At),
        meta: Some(meta),
    };
    let last = words.len() - 1;
    let large = cx.large.iter_mut().find(|l| l.index as usize == last);
    let len = large.as_ref().and_then(|_| unsigned(words[2]));
    let mut value = match large {
        Some(l) => NewValue::Large(&mut l.upload),
        None => NewValue::Inline(data),
    };
    let was_there = |value: Value<'_, S::Large>| !matches!(value, Value::Absent);
    let set = cx
        .store
        .set(cx.task, &asked.key, &mut value, how, Some(was_there));
    let ended = match (ready!(set), asked.token) {
        ((true, _), _) => Ended::Done {
            cas: meta.cas,
            len: len.unwrap_or(data.len() as u64),
        },
        ((false, Some(true)), Some(_)) => Ended::Exists,
        ((false, _), Some(_)) => Ended::NotFound,
        ((false, _), None) => Ended::NotStored,
    };
    end(cx, &asked, ended, &["HD"])
}

/// What a mode that needs what was there does to it.
#[derive(Clone, Copy)]
enum Way {
    /// The value is put before or behind it.
    Extends,
    /// The value takes its place, if it has one.
    Replaces,
    /// The same by somebody who is late: what that leaves is stale at once.
    Late,
}

fn decided<S: Store>(view: &View<S::Large>, asked: &Asked<'_>, mode: u8) -> Result<Way, Ended> {
    let (extends, here) = (b"AP".contains(&mode), token_of::<S>(view));
    if !view.exists() {
        return match (extends, asked.vivify) {
            (true, Some(_)) => Ok(Way::Replaces),
            (true, None) => Err(Ended::NotStored),
            // Without a token these modes do not come here.
            (false, _) => Err(Ended::NotFound),
        };
    }
    match asked.token {
        Some(token) if token != here => {
            let is_late = asked.invalidate && !extends && 0 < token && token < here;
            is_late.then_some(Way::Late).ok_or(Ended::Exists)
        }
        _ if extends => Ok(Way::Extends),
        _ => Ok(Way::Replaces),
    }
}

/// What is kept with the new item.
fn beside<L>(
    view: &View<L>,
    asked: &Asked<'_>,
    way: Way,
    (expiry_ms, now_ms, cas): (Option<u64>, u64, u64),
) -> (Option<u64>, Meta) {
    let before = view.meta.unwrap_or_default();
    let (client_flags, state) = match way {
        Way::Extends => (before.client_flags, 0),
        Way::Replaces => (asked.client_flags, 0),
        // Who was told to renew it stays the only one.
        Way::Late => (asked.client_flags, Meta::STALE | before.state & Meta::WON),
    };
    let expiry_ms = match (way, asked.vivify) {
        (Way::Extends | Way::Late, _) => view.expiry_ms,
        (Way::Replaces, Some(ttl)) if !view.exists() => rules::expiry_ms(ttl, now_ms),
        (Way::Replaces, _) => expiry_ms,
    };
    let meta = Meta {
        cas: asked.new_token.unwrap_or(cas),
        client_flags,
        state,
    };
    (expiry_ms, meta)
}

/// The modes that need what was there: append, prepend, and a set by somebody who is late.
fn set_by_edit<S: Store>(
    cx: &mut Cx<'_, S>,
    asked: &Asked<'_>,
    part: Part<'_>,
    expiry_ms: Option<u64>,
    mode: u8,
) -> Done<S> {
    let now_ms = cx.store.now_ms();
    if cx.progress.long.is_none() {
        let ended = ready!(edit_one(cx, &asked.key, |view: View<S::Large>, cas| {
            let way = match decided::<S>(&view, asked, mode) {
                Ok(way) => way,
                Err(ended) => return Ok((None, Some(ended))),
            };
            let value = match way {
                Way::Extends => match extended::<S>(&view, part, mode == b'A') {
                    Extended::Value(value) => value,
                    _ => return Ok((None, None)),
                },
                _ if part.in_pieces => return Ok((None, None)),
                _ => part.bytes.to_vec(),
            };
            let (expiry_ms, meta) = beside(&view, asked, way, (expiry_ms, now_ms, cas));
            let ended = Ended::Done {
                cas: meta.cas,
                len: value.len() as u64,
            };
            let meta = Some(meta);
            let edit = Edit::Put {
                value,
                expiry_ms,
                meta,
            };
            Ok((Some(edit), Some(ended)))
        }));
        if let Some(ended) = ended {
            return end(cx, asked, ended, &["HD"]);
        }
        cx.renew_task();
    }
    let (most, cas) = (cx.shared.max_value_bytes, cx.store.new_cas());
    let job = Job {
        keys: &[&asked.key],
        arg: &[],
        plan: &|views| {
            let view = &views[0];
            // How it ends without a new value is for the short way to tell.
            let Ok(way) = decided::<S>(view, asked, mode) else {
                return Ok(None);
            };
            let mut plan = match way {
                Way::Extends => extension::<S>(view, part, mode == b'A', most)?,
                _ => Plan {
                    layers: vec![Layer::Copy(Source::Arg, 0..part.len, 0)],
                    ..Plan::patch(part.len, 0..0)
                },
            };
            let (expiry_ms, meta) = beside(view, asked, way, (expiry_ms, now_ms, cas));
            plan.keeps = Keeps::These(expiry_ms, Some(meta));
            Ok(Some(plan))
        },
        patch: &|window, plan, reply| {
            put_into(window, part);
            if let Keeps::These(_, Some(meta)) = plan.keeps {
                let (cas, len) = (meta.cas, plan.len);
                tell(reply, asked, Ended::Done { cas, len }, &["HD"]);
            }
        },
    };
    Ok(long::run(cx, &job).map_err(StoreError::from)?)
}

/// md key flags*
pub(super) fn delete<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let asked = asked(words, words.get(2..).unwrap_or_default())?;
    let now_ms = cx.store.now_ms();
    let ended = ready!(edit_one(cx, &asked.key, |view: View<S::Large>, cas| {
        let here = token_of::<S>(&view);
        if !view.exists() {
            return Ok((None, Ended::NotFound));
        }
        if asked.token.is_some_and(|token| token != here) {
            return Ok((None, Ended::Exists));
        }
        let done = Ended::Done {
            cas: here,
            len: len_of::<S>(&view),
        };
        if !asked.invalidate && !asked.drop_value {
            return Ok((Some(Edit::Delete), done));
        }
        let mut meta = Meta {
            cas: asked.new_token.unwrap_or(cas),
            ..view.meta.unwrap_or_default()
        };
        if asked.invalidate {
            meta.state = Meta::STALE;
        }
        let expiry_ms = match asked.ttl {
            Some(ttl) => rules::expiry_ms(ttl, now_ms),
            None => view.expiry_ms,
        };
        let edit = match asked.drop_value {
            true => Some(Edit::Put {
                value: Vec::new(),
                expiry_ms,
                meta: Some(Meta {
                    client_flags: 0,
                    ..meta
                }),
            }),
            false => rules::kept(&view, expiry_ms, Some(meta)),
        };
        Ok((edit, done))
    }));
    end(cx, &asked, ended, &["HD"])
}

/// ma key flags*
pub(super) fn arithmetic<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let asked = asked(words, words.get(2..).unwrap_or_default())?;
    let up = match asked.mode.unwrap_or(b'I') {
        b'I' | b'+' => true,
        b'D' | b'-' => false,
        _ => return Err("CLIENT_ERROR invalid mode for ma M token".into()),
    };
    let now_ms = cx.store.now_ms();
    let outcome = edit_one(cx, &asked.key, |view: View<S::Large>, cas| {
        counted::<S>(&view, &asked, up, now_ms, cas)
    });
    match ready!(outcome) {
        Err(ended) => end(cx, &asked, ended, &[]),
        // One that it has made is told even so, as memcached does.
        Ok((_, shown)) if asked.quiet && shown.used => Ok(Flow::Done),
        Ok((value, shown)) => Ok(item::<S>(cx.out, &asked, &shown, Value::Inline(&value))),
    }
}

type Counted = Result<(Vec<u8>, Shown), Ended>;

fn counted<S: Store>(
    view: &View<S::Large>,
    asked: &Asked<'_>,
    up: bool,
    now_ms: u64,
    cas: u64,
) -> Result<(Option<Edit>, Counted), StoreError> {
    // A token that is 0 is none here.
    let token = asked.token.filter(|&token| view.exists() && token != 0);
    if token.is_some_and(|token| token != token_of::<S>(view)) {
        return Ok((None, Err(Ended::Exists)));
    }
    let now = match (&view.value, asked.vivify) {
        (Held::Absent, None) => return Ok((None, Err(Ended::NotFound))),
        (Held::Absent, Some(_)) => asked.initial,
        (Held::Large(_), _) => return Err(line(NOT_A_NUMBER)),
        (Held::Inline(value), _) => {
            let before = rules::number(value).ok_or_else(|| line(NOT_A_NUMBER))?;
            rules::count(before, asked.delta, up)
        }
    };
    let times = times(asked, !view.exists(), view.expiry_ms, now_ms);
    let value = now.to_string().into_bytes();
    let meta = Meta {
        cas: asked.new_token.unwrap_or(cas),
        ..view.meta.unwrap_or_default()
    };
    let shown = Shown {
        client_flags: meta.client_flags,
        cas: meta.cas,
        len: value.len() as u64,
        left_s: times.left_s,
        used: view.exists(),
        told: Told::default(),
    };
    let edit = Edit::Put {
        value: value.clone(),
        expiry_ms: times.expiry_ms,
        meta: Some(meta),
    };
    Ok((Some(edit), Ok((value, shown))))
}
