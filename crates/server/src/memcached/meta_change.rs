//! The meta commands that change an item: ms, md, ma. Each is one set or one edit of its key.

use terrace_kv::memcached::{self as rules, Told};

use super::classic::{NOT_A_NUMBER, extended};
use super::meta::{Asked, Shown, asked, flags, item, left_s, len_of, token_of};
use super::{BAD_LINE, Done, TOO_LARGE, line, ready, say, unsigned};
use crate::commands::{Cx, Flow, edit_one};
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
        return Ok(Flow::Done);
    }
    cx.out.extend_from_slice(code.as_bytes());
    flags(cx.out, asked, shown.as_ref());
    say(cx.out, "");
    Ok(Flow::Done)
}

/// ms key datalen flags*
pub(super) fn set<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let Some((data, line)) = words.split_last().filter(|(_, line)| line.len() >= 3) else {
        return Err(BAD_LINE.into());
    };
    let asked = asked(line, &line[3..])?;
    let expiry_ms = rules::expiry_ms(asked.ttl.unwrap_or(0), cx.store.now_ms());
    let mode = asked.mode.unwrap_or(b'S');
    if !b"ESARP".contains(&mode) {
        return Err("CLIENT_ERROR invalid mode for ms M token".into());
    }
    let extends = b"AP".contains(&mode);
    if extends || asked.invalidate {
        if !cx.large.is_empty() {
            return Err(TOO_LARGE.into());
        }
        return set_by_edit(cx, &asked, data, expiry_ms, mode);
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

/// The modes that need what was there: append, prepend, and a set by somebody who is late.
fn set_by_edit<S: Store>(
    cx: &mut Cx<'_, S>,
    asked: &Asked<'_>,
    data: &[u8],
    expiry_ms: Option<u64>,
    mode: u8,
) -> Done<S> {
    let now_ms = cx.store.now_ms();
    let ended = ready!(edit_one(cx, &asked.key, |view: View<S::Large>, cas| {
        let (extends, here) = (b"AP".contains(&mode), token_of::<S>(&view));
        let mut state = 0;
        match asked.token {
            Some(_) if !view.exists() => return Ok((None, Ended::NotFound)),
            // Who is late leaves a value that is stale at once.
            Some(token) if asked.invalidate && token < here => state = Meta::STALE,
            Some(token) if token != here => return Ok((None, Ended::Exists)),
            _ => {}
        }
        let vivify = asked.vivify.filter(|_| extends && !view.exists());
        let value = match (extends, vivify) {
            (true, None) => match extended(&view, data, mode == b'A')? {
                Some(value) => value,
                None => return Ok((None, Ended::NotStored)),
            },
            _ if mode == b'E' && view.exists() => return Ok((None, Ended::NotStored)),
            _ if mode == b'R' && !view.exists() => return Ok((None, Ended::NotStored)),
            _ => data.to_vec(),
        };
        let kept = view.meta.filter(|_| extends).unwrap_or(Meta {
            client_flags: asked.client_flags,
            ..Meta::default()
        });
        let meta = Meta {
            cas: asked.new_token.unwrap_or(cas),
            state,
            ..kept
        };
        let expiry_ms = match (extends, vivify) {
            (true, Some(ttl)) => rules::expiry_ms(ttl, now_ms),
            (true, None) => view.expiry_ms,
            _ => expiry_ms,
        };
        let ended = Ended::Done {
            cas: meta.cas,
            len: value.len() as u64,
        };
        let meta = Some(meta);
        Ok((
            Some(Edit::Put {
                value,
                expiry_ms,
                meta,
            }),
            ended,
        ))
    }));
    end(cx, asked, ended, &["HD"])
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
        Ok(_) if asked.quiet => Ok(Flow::Done),
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
    if asked
        .token
        .is_some_and(|token| view.exists() && token != token_of::<S>(view))
    {
        return Ok((None, Err(Ended::Exists)));
    }
    let (now, expiry_ms) = match (&view.value, asked.vivify) {
        (Held::Absent, None) => return Ok((None, Err(Ended::NotFound))),
        (Held::Absent, Some(ttl)) => (asked.initial, rules::expiry_ms(ttl, now_ms)),
        (Held::Large(_), _) => return Err(line(NOT_A_NUMBER)),
        (Held::Inline(value), _) => {
            let before = rules::number(value).ok_or_else(|| line(NOT_A_NUMBER))?;
            let expiry_ms = match asked.ttl {
                Some(ttl) => rules::expiry_ms(ttl, now_ms),
                None => view.expiry_ms,
            };
            (rules::count(before, asked.delta, up), expiry_ms)
        }
    };
    let value = now.to_string().into_bytes();
    let meta = Meta {
        cas: asked.new_token.unwrap_or(cas),
        ..view.meta.unwrap_or_default()
    };
    let shown = Shown {
        client_flags: meta.client_flags,
        cas: meta.cas,
        len: value.len() as u64,
        left_s: left_s(expiry_ms, now_ms),
        used: true,
        told: Told::default(),
    };
    let edit = Edit::Put {
        value: value.clone(),
        expiry_ms,
        meta: Some(meta),
    };
    Ok((Some(edit), Ok((value, shown))))
}
