//! The meta commands: mg, ms, md, ma, mn, me, with their flags. A command is first read into `Asked`, then one edit of its
//! key does all it asks for. Left out: `l` (the time of an item's last use is not kept).

use terrace_kv::memcached::{self as rules, Told};

use super::{BAD_LINE, Done, Fault, key_of, meta_change as change, number, ready, say, unsigned};
use crate::commands::{Cx, Flow, edit_one};
use crate::resp::parse::integer;
use crate::shared::add;
use crate::store::{Edit, Held, Item, Meta, Store, Value, View};

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

fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

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
        Some(None) => {
            add(&cx.counters.misses, 1);
            if !asked.quiet {
                say(cx.out, "EN");
            }
            Ok(Flow::Done)
        }
        Some(Some(flow)) => {
            add(&cx.counters.hits, 1);
            Ok(flow)
        }
    }
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
                Some(ttl) => {
                    let (edit, got) = vivified(asked, ttl, now_ms, cas);
                    (Some(edit), Some(got))
                }
            });
        }
        let state = view.meta.map_or(0, |m| m.state);
        let (told, state) = rules::renewal(state, left_s(view.expiry_ms, now_ms), asked.renew);
        let expiry_ms = match asked.ttl {
            Some(ttl) => rules::expiry_ms(ttl, now_ms),
            None => view.expiry_ms,
        };
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
        let edit = match expiry_ms != view.expiry_ms || meta != view.meta {
            true => rules::kept(&view, expiry_ms, meta),
            false => None,
        };
        let shown = Shown {
            client_flags: view.meta.map_or(0, |m| m.client_flags),
            cas: token,
            len: len_of::<S>(&view),
            left_s: left_s(expiry_ms, now_ms),
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
        add(&cx.counters.misses, 1);
        if !asked.quiet {
            say(cx.out, "EN");
        }
        return Ok(Flow::Done);
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
fn vivified<L>(asked: &Asked<'_>, ttl: i64, now_ms: u64, cas: u64) -> (Edit, Got<L>) {
    let expiry_ms = rules::expiry_ms(ttl, now_ms);
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
        left_s: left_s(expiry_ms, now_ms),
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

/// me key [b]
fn debug<S: Store>(cx: &mut Cx<'_, S>, words: &[&[u8]]) -> Done<S> {
    let word = *words.get(1).ok_or(BAD_LINE)?;
    let key = match words.get(2) {
        Some(&b"b") => base64_decode(word).ok_or("CLIENT_ERROR error decoding key")?,
        Some(_) => return Err("CLIENT_ERROR invalid flag".into()),
        None => word.to_vec(),
    };
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
            cx.out.extend_from_slice(word);
            say(cx.out, &text);
        }
        None => say(cx.out, "EN"),
    }
    Ok(Flow::Done)
}
