//! The meta commands: mg, ms, md, ma, mn, me, with their flags. A command is first read into `Asked`, then one edit of its
//! key does all it asks for. Left out: `l` (the time of an item's last use is not kept).

use terrace_kv::memcached::{self as rules, Told};

use super::meta_words::{
    Asked, Shown, asked, base64_decode, flags, is_plain, item, left_s, len_of, times, token_of,
};
use super::{BAD_LINE, Done, key_of, meta_change as change, ready, say};
use crate::commands::{Cx, Flow, edit_one};
use crate::store::{Edit, Held, Item, Meta, Store, Value, View};
use crate::sync::add;

/// mg, ms, md, ma, mn, me
pub fn execute<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    match words[0] {
        b"mn" => {
            say(cx.out, "MN");
            Ok(Flow::Done)
        }
        b"mg" => get(cx, words),
        b"ms" => change::set(cx, words),
        b"md" => change::delete(cx, words),
        b"ma" => change::arithmetic(cx, words),
        _ => debug(cx, words),
    }
}

fn shown_of<S: Store>(item: &Item<'_, S::Large>, now_ms: u64, told: Told) -> Shown {
    Shown {
        client_flags: item.meta.map_or(0, |m| m.client_flags),
        cas: item.cas(),
        len: match &item.value {
            Value::Inline(bytes) => bytes.len() as u64,
            Value::Large(large) => S::large_len(large),
            Value::Absent => 0,
        },
        left_s: left_s(item.expiry_ms, now_ms),
        used: item.heat > 0,
        told,
    }
}

/// mg key flags*
fn get<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let asked = asked(words, words.get(2..).unwrap_or_default())?;
    let now_ms = cx.store.now_ms();
    let changes = asked.vivify.is_some() || asked.renew.is_some() || asked.ttl.is_some();
    if changes || cx.progress.begun {
        return get_and_change(cx, &asked, now_ms);
    }
    let out = &mut *cx.out;
    let found = ready!(cx.store.item(cx.task, &asked.key, |found| {
        let Some(found) = found else {
            return Some(None);
        };
        if found.meta.is_some_and(|m| m.state != 0) {
            // Who is told what changes the item.
            return None;
        }
        let shown = shown_of::<S>(&found, now_ms, Told::default());
        Some(Some(item::<S>(out, &asked, &shown, found.value)))
    }));
    match found {
        None => {
            cx.progress.begun = true;
            cx.renew_task();
            get_and_change(cx, &asked, now_ms)
        }
        Some(None) => missed(cx, &asked),
        Some(Some(flow)) => {
            add(&cx.counters.hits, 1);
            Ok(flow)
        }
    }
}

fn missed<S: Store>(cx: &mut Cx<'_, S>, asked: &Asked<'_>) -> Done<S> {
    add(&cx.counters.misses, 1);
    if !asked.quiet {
        cx.out.extend_from_slice(b"EN");
        flags(cx.out, asked, None);
        say(cx.out, "");
    }
    Ok(Flow::Done)
}

/// What one edit of an item came to.
struct Got<L> {
    view: View<L>,
    shown: Shown,
    created: bool,
}

/// The slow way: it is told who renews, the time is changed, or an item is made.
fn get_and_change<S: Store>(cx: &mut Cx<'_, S>, asked: &Asked<'_>, now_ms: u64) -> Done<S> {
    let got = ready!(edit_one(cx, &asked.key, |view: View<S::Large>, cas| {
        if !view.exists() {
            return Ok(match asked.vivify {
                None => (None, None),
                Some(_) => {
                    let (edit, got) = vivified(asked, now_ms, cas);
                    (Some(edit), Some(got))
                }
            });
        }
        let state = view.meta.map_or(0, |m| m.state);
        let times = times(asked, false, view.expiry_ms, now_ms);
        let (told, state) = rules::renewal(state, times.late);
        let token = token_of::<S>(&view);
        let meta = match (view.meta, state) {
            (None, 0) => None,
            (meta, state) => Some(Meta {
                state,
                ..meta.unwrap_or(Meta {
                    cas: token,
                    ..Meta::default()
                })
            }),
        };
        let edit = match times.expiry_ms != view.expiry_ms || meta != view.meta {
            true => rules::kept(&view, times.expiry_ms, meta),
            false => None,
        };
        let shown = Shown {
            client_flags: view.meta.map_or(0, |m| m.client_flags),
            cas: token,
            len: len_of::<S>(&view),
            left_s: times.left_s,
            used: true,
            told,
        };
        let created = false;
        Ok((
            edit,
            Some(Got {
                view,
                shown,
                created,
            }),
        ))
    }));
    let Some(got) = got else {
        return missed(cx, asked);
    };
    match got.created {
        true => add(&cx.counters.misses, 1),
        false => add(&cx.counters.hits, 1),
    }
    Ok(match got.view.value {
        Held::Inline(bytes) => item::<S>(cx.out, asked, &got.shown, Value::Inline(&bytes)),
        Held::Large(large) => item::<S>(cx.out, asked, &got.shown, Value::Large(large)),
        Held::Absent => item::<S>(cx.out, asked, &got.shown, Value::Inline(b"")),
    })
}

/// An empty item that its first reader is to fill.
fn vivified<L>(asked: &Asked<'_>, now_ms: u64, cas: u64) -> (Edit, Got<L>) {
    let times = times(asked, true, None, now_ms);
    let expiry_ms = times.expiry_ms;
    let meta = Meta {
        cas: asked.new_token.unwrap_or(cas),
        client_flags: 0,
        state: Meta::WON,
    };
    let edit = Edit::Put {
        value: Vec::new(),
        expiry_ms,
        meta: Some(meta),
    };
    let view = View {
        value: Held::Absent,
        expiry_ms,
        meta: Some(meta),
    };
    let shown = Shown {
        client_flags: 0,
        cas: meta.cas,
        len: 0,
        left_s: times.left_s,
        used: false,
        told: Told {
            won: true,
            ..Told::default()
        },
    };
    let created = true;
    (
        edit,
        Got {
            view,
            shown,
            created,
        },
    )
}

/// me key [b]
fn debug<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let word = *words.get(1).ok_or(BAD_LINE)?;
    let key = match words.get(2) {
        Some(&b"b") => base64_decode(word).ok_or(BAD_LINE)?,
        _ => word.to_vec(),
    };
    let shown_key = if is_plain(&key) { &key } else { word };
    let now_ms = cx.store.now_ms();
    let text = ready!(cx.store.item(cx.task, key_of(&key)?, |item| {
        let item = item?;
        let shown = shown_of::<S>(&item, now_ms, Told::default());
        let (exp, fetch) = (
            shown.left_s.unwrap_or(-1),
            if shown.used { "yes" } else { "no" },
        );
        Some(format!(
            " exp={exp} cas={} fetch={fetch} size={}",
            shown.cas, shown.len
        ))
    }));
    match text {
        Some(text) => {
            cx.out.extend_from_slice(b"ME ");
            cx.out.extend_from_slice(shown_key);
            say(cx.out, &text);
        }
        None => say(cx.out, "EN"),
    }
    Ok(Flow::Done)
}
