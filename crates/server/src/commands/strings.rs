//! The commands on strings: reading, setting and counting. Values above `INLINE_MAX_BYTES` pass through here as holds
//! and uploads only; their bytes never do.

use super::ahead::{look_ahead, take_task};
use super::options::{expire_at, set_options};
use super::{Cx, Done, Fault, Flow, NOT_AN_INTEGER, ready, wrong_arity};
use crate::limits::OUTPUT_LIMIT_BYTES;
use crate::resp::assemble::LargeArg;
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::store::{Cond, Expiry, How, NewValue, Step, Store, Value};
use crate::sync::add;

/// Writes a value that is at hand; a long one only gets its header and is handed back.
#[inline]
pub(super) fn show<S: Store>(
    out: &mut Vec<u8>,
    resp3: bool,
    value: Value<'_, S::Large>,
) -> Shown<S::Large> {
    match value {
        Value::Inline(bytes) => {
            encode::bulk(out, bytes);
            Shown::Whole
        }
        Value::Absent => {
            encode::null(out, resp3);
            Shown::Nothing
        }
        Value::Large(large) => {
            encode::bulk_header(out, S::large_len(&large));
            Shown::Header(large)
        }
    }
}

/// How much of a value was written.
pub(super) enum Shown<L> {
    Whole,
    Nothing,
    Header(L),
}

impl<L> Shown<L> {
    pub(super) fn flow(self) -> Flow<L> {
        match self {
            Shown::Header(large) => Flow::Large(large),
            _ => Flow::Done,
        }
    }
}

fn count_hit<S: Store>(cx: &Cx<'_, S>, shown: &Shown<S::Large>) {
    match shown {
        Shown::Nothing => add(&cx.counters.misses, 1),
        _ => add(&cx.counters.hits, 1),
    }
}

/// GET key
#[inline]
pub fn get<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let resp3 = cx.session.resp3;
    let out = &mut *cx.out;
    let shown = ready!(
        cx.store
            .get(cx.task, args[1], |value| show::<S>(out, resp3, value))
    );
    count_hit(cx, &shown);
    Ok(shown.flow())
}

/// The value that argument `index` brings.
#[inline]
fn new_value<'a, U>(large: &'a mut [LargeArg<U>], index: usize, arg: &'a [u8]) -> NewValue<'a, U> {
    match large.iter_mut().find(|l| l.index as usize == index) {
        Some(l) => NewValue::Large(&mut l.upload),
        None => NewValue::Inline(arg),
    }
}

/// As Redis sets: with nothing kept beside the value.
#[inline]
fn plain(cond: Cond, expiry: Expiry) -> How {
    How {
        cond,
        expiry,
        meta: None,
    }
}

type NoOld<S> = fn(Value<'_, <S as Store>::Large>);

/// SET key value [NX | XX] [GET] [EX | PX | EXAT | PXAT time | KEEPTTL]
#[inline]
pub fn set<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let options = match args.len() {
        3 => None,
        _ => Some(set_options(&args[3..], cx.store.now_ms())?),
    };
    let (cond, expiry) = options.map_or((Cond::Always, Expiry::None), |o| (o.cond, o.expiry));
    if options.is_some_and(|o| o.get) {
        return set_and_show(cx, args[1], 2, args[2], cond, expiry);
    }
    let mut value = new_value(cx.large, 2, args[2]);
    let how = plain(cond, expiry);
    let (was_set, _) = ready!(
        cx.store
            .set(cx.task, args[1], &mut value, how, None::<NoOld<S>>)
    );
    match was_set {
        true => encode::ok(cx.out),
        false => encode::null(cx.out, cx.session.resp3),
    }
    Ok(Flow::Done)
}

/// Sets and answers the value before.
fn set_and_show<S: Store>(
    cx: &mut Cx<'_, S>,
    key: &[u8],
    index: usize,
    arg: &[u8],
    cond: Cond,
    expiry: Expiry,
) -> Done<S> {
    let resp3 = cx.session.resp3;
    let out = &mut *cx.out;
    let mut value = new_value(cx.large, index, arg);
    let show_old = |old: Value<'_, S::Large>| show::<S>(out, resp3, old);
    let (_, shown) = ready!(cx.store.set(
        cx.task,
        key,
        &mut value,
        plain(cond, expiry),
        Some(show_old)
    ));
    Ok(shown.map_or(Flow::Done, Shown::flow))
}

/// GETSET key value
pub fn getset<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    set_and_show(cx, args[1], 2, args[2], Cond::Always, Expiry::None)
}

/// SETNX key value
pub fn setnx<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let mut value = new_value(cx.large, 2, args[2]);
    let (was_set, _) = ready!(cx.store.set(
        cx.task,
        args[1],
        &mut value,
        plain(Cond::IfAbsent, Expiry::None),
        None::<NoOld<S>>
    ));
    encode::int(cx.out, i64::from(was_set));
    Ok(Flow::Done)
}

/// SETEX key seconds value, PSETEX key milliseconds value
pub fn setex<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]], unit_ms: i64) -> Done<S> {
    let name = if unit_ms == 1 { "psetex" } else { "setex" };
    let at = expire_at(args[2], unit_ms, true, cx.store.now_ms(), name)?;
    let mut value = new_value(cx.large, 3, args[3]);
    ready!(cx.store.set(
        cx.task,
        args[1],
        &mut value,
        plain(Cond::Always, Expiry::At(at)),
        None::<NoOld<S>>
    ));
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// GETDEL key
pub fn getdel<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let resp3 = cx.session.resp3;
    let out = &mut *cx.out;
    let shown = ready!(
        cx.store
            .get_del(cx.task, args[1], |value| show::<S>(out, resp3, value))
    );
    Ok(shown.flow())
}

/// STRLEN key
pub fn strlen<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let len = ready!(cx.store.strlen(cx.task, args[1]));
    encode::count(cx.out, len);
    Ok(Flow::Done)
}

/// MSET key value [key value …]
pub fn mset<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity("mset"));
    }
    let mut large = cx.large.iter_mut().peekable();
    let mut pairs: Vec<(&[u8], NewValue<'_, S::Upload>)> = Vec::with_capacity(args.len() / 2);
    for index in (1..args.len()).step_by(2) {
        // Long arguments come in the order of their places.
        let value = match large.next_if(|l| l.index as usize == index + 1) {
            Some(l) => NewValue::Large(&mut l.upload),
            None => NewValue::Inline(args[index + 1]),
        };
        pairs.push((args[index], value));
    }
    ready!(cx.store.mset(cx.task, &mut pairs));
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// INCR, DECR, INCRBY
pub fn incr<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]], by: Option<i64>) -> Done<S> {
    let delta = match by {
        Some(delta) => delta,
        None => integer(args[2]).ok_or(NOT_AN_INTEGER)?,
    };
    let value = ready!(cx.store.incr_by(cx.task, args[1], delta));
    encode::int(cx.out, value);
    Ok(Flow::Done)
}

/// DECRBY
pub fn decrby<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let delta = integer(args[2]).ok_or(NOT_AN_INTEGER)?;
    let delta = delta
        .checked_neg()
        .ok_or_else(|| Fault::text("decrement would overflow"))?;
    incr(cx, args, Some(delta))
}

/// MGET key [key …]: the reply is written in order; behind the first key that must wait, the next ones are looked up
/// ahead, so that their reads run at the same time.
pub fn mget<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let keys = &args[1..];
    if !cx.progress.begun {
        cx.progress.begun = true;
        encode::array(cx.out, keys.len());
    }
    while (cx.progress.next as usize) < keys.len() {
        if cx.out.len() > OUTPUT_LIMIT_BYTES {
            return Ok(Flow::OutputFull);
        }
        let at = cx.progress.next as usize;
        let mut task = take_task(cx, at);
        let resp3 = cx.session.resp3;
        let out = &mut *cx.out;
        match cx
            .store
            .get(&mut task, keys[at], |value| show::<S>(out, resp3, value))
        {
            Ok(Step::Wait(wait)) => {
                cx.progress.window.push((at, task));
                look_ahead(cx, keys, at, |store, task, key| {
                    store.get(task, key, |value| match value {
                        Value::Large(large) => Some(large),
                        _ => None,
                    })
                });
                return Ok(Flow::Wait(wait));
            }
            Ok(Step::Done(shown)) => {
                cx.progress.durable_at = cx.progress.durable_at.max(S::durable_at(&task));
                cx.store.finish(task);
                cx.progress.next += 1;
                count_hit(cx, &shown);
                if let Shown::Header(large) = shown {
                    return Ok(Flow::LargeThenMore(large));
                }
            }
            Err(e) => {
                // The other keys are unharmed: the error takes this one's place.
                cx.store.finish(task);
                cx.progress.next += 1;
                encode::error(cx.out, e.prefix, &e.text);
            }
        }
    }
    Ok(Flow::Done)
}
