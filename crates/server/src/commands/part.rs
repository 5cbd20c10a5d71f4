//! The commands on a part of a string: APPEND, SETRANGE, GETRANGE, LCS and the like. What they mean is in
//! `terrace_kv::strings`; here are their arguments and replies. A value above `INLINE_MAX_BYTES` is read in parts, and
//! changed by bringing the new one in (`long`).

use terrace_kv::strings::{float, lcs, ranges};

use super::long::{self, Job, Plan, is_long};
use super::options::{get_options, int_arg};
use super::strings::{Shown, show};
use super::{Cx, Done, Fault, Flow, NOT_AN_INTEGER, SYNTAX, ready, wrong_arity};
use crate::limits::INLINE_MAX_BYTES;
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::shared::add;
use crate::store::{Edit, Expiry, Held, Meta, Outcome, Seen, Store, StoreError, Value, View};

/// Shows one key to `f` and makes of it what `f` says.
pub(crate) fn edit_one<S: Store, R>(
    cx: &mut Cx<'_, S>,
    key: &[u8],
    f: impl Fn(View<S::Large>, u64) -> Result<(Option<Edit>, R), StoreError>,
) -> Outcome<R> {
    cx.store
        .edit(cx.task, &[key], &[], &mut |seen: Seen<S::Large>| {
            let cas = seen.new_cas;
            let view = seen.views.into_iter().next();
            let view = view.ok_or_else(|| StoreError::err("no key was shown"))?;
            let (edit, result) = f(view, cas)?;
            Ok((edit.map(|edit| (0, edit)).into_iter().collect(), result))
        })
}

/// What a changed value is kept with: its expiry, and what memcached kept, under a new token.
pub(super) fn changed(value: Vec<u8>, kept: (Option<u64>, Option<Meta>), cas: u64) -> Edit {
    Edit::Put {
        value,
        expiry_ms: kept.0,
        meta: kept.1.map(|meta| Meta { cas, ..meta }),
    }
}

/// The bytes of a value, none of an absent one.
pub(super) fn bytes_of<L>(value: Held<L>) -> Result<Vec<u8>, StoreError> {
    match value {
        Held::Absent => Ok(Vec::new()),
        Held::Inline(bytes) => Ok(bytes),
        Held::Large(_) => Err(too_long_to_change()),
    }
}

#[cold]
pub(super) fn too_long_to_change() -> StoreError {
    StoreError::err(format!(
        "the value is longer than {INLINE_MAX_BYTES} bytes; this command works on shorter ones; read it with GET or GETRANGE \
         and write it with SET"
    ))
}

/// APPEND key value
pub fn append<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let more = args[2].len() as u64;
    if cx.progress.long.is_none() {
        let len = ready!(edit_one(cx, args[1], |view, cas| {
            let before = long::len_of::<S>(&view).unwrap_or(0);
            if is_long::<S>(&view.value, before + more) {
                return Ok((None, None));
            }
            let kept = (view.expiry_ms, view.meta);
            let mut value = bytes_of(view.value)?;
            value.extend_from_slice(args[2]);
            Ok((
                Some(changed(value.clone(), kept, cas)),
                Some(value.len() as u64),
            ))
        }));
        if let Some(len) = len {
            encode::count(cx.out, len);
            return Ok(Flow::Done);
        }
        cx.renew_task();
    }
    put_bytes(cx, args[1], args[2], |before| before)
}

/// Puts `part` into a long value, at the place that `at` says for its length, and answers the new length.
fn put_bytes<S: Store>(
    cx: &mut Cx<'_, S>,
    key: &[u8],
    part: &[u8],
    at: impl Fn(u64) -> u64,
) -> Done<S> {
    let job = Job {
        keys: &[key],
        plan: &|lens| {
            let before = lens[0].unwrap_or(0);
            let from = at(before);
            let end = from.saturating_add(part.len() as u64);
            Ok(Some(Plan::patch(before.max(end), from..end)))
        },
        patch: &|window, plan, reply| {
            window.copy_from_slice(part);
            encode::count(reply, plan.len);
        },
    };
    long::run(cx, &job)
}

/// SETRANGE key offset value
pub fn setrange<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let offset = int_arg(args[2])?;
    let offset = u64::try_from(offset).map_err(|_| Fault::text("offset is out of range"))?;
    if cx.progress.long.is_some() {
        return put_bytes(cx, args[1], args[3], |_| offset);
    }
    let end = offset.saturating_add(args[3].len() as u64);
    let len = ready!(edit_one(cx, args[1], |view, cas| {
        let kept = (view.expiry_ms, view.meta);
        if args[3].is_empty() {
            let len = match view.value {
                Held::Large(large) => S::large_len(&large),
                other => bytes_of(other)?.len() as u64,
            };
            return Ok((None, Some(len)));
        }
        if is_long::<S>(&view.value, end) {
            return Ok((None, None));
        }
        let value = bytes_of(view.value)?;
        let value = ranges::set_range(&value, offset, args[3], INLINE_MAX_BYTES)?;
        let len = value.len() as u64;
        Ok((Some(changed(value, kept, cas)), Some(len)))
    }));
    let Some(len) = len else {
        cx.renew_task();
        return put_bytes(cx, args[1], args[3], |_| offset);
    };
    encode::count(cx.out, len);
    Ok(Flow::Done)
}

/// GETRANGE key start end, SUBSTR key start end
pub fn getrange<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let (start, end) = (int_arg(args[2])?, int_arg(args[3])?);
    let out = &mut *cx.out;
    let flow = ready!(cx.store.get(cx.task, args[1], |value| match value {
        Value::Absent => {
            encode::bulk(out, b"");
            Flow::Done
        }
        Value::Inline(bytes) => {
            let part = ranges::range(bytes.len() as u64, start, end);
            encode::bulk(out, &bytes[part.start as usize..part.end as usize]);
            Flow::Done
        }
        Value::Large(large) => {
            let part = ranges::range(S::large_len(&large), start, end);
            encode::bulk_header(out, part.end - part.start);
            Flow::Part(large, part)
        }
    }));
    Ok(flow)
}

/// GETEX key [EX | PX | EXAT | PXAT time | PERSIST]
pub fn getex<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let now_ms = cx.store.now_ms();
    let wanted = get_options(&args[2..])?;
    let Some(wanted) = wanted else {
        return super::strings::get(cx, args);
    };
    let edit = edit_one(cx, args[1], |view, _| {
        if !view.exists() {
            return Ok((None, Held::Absent));
        }
        // As Redis does: the time is only looked at when there is a key.
        let expiry_ms = match wanted.expiry(now_ms, "getex").map_err(StoreError::from)? {
            Expiry::At(at) if at <= now_ms => return Ok((Some(Edit::Delete), view.value)),
            Expiry::At(at) => Some(at),
            _ => None,
        };
        if expiry_ms == view.expiry_ms {
            return Ok((None, view.value));
        }
        let edit = match &view.value {
            Held::Inline(bytes) => Edit::Put {
                value: bytes.clone(),
                expiry_ms,
                meta: view.meta,
            },
            _ => Edit::Bind {
                from: 0,
                expiry_ms,
                meta: view.meta,
            },
        };
        Ok((Some(edit), view.value))
    });
    let value = ready!(edit);
    let shown = match value {
        Held::Absent => show::<S>(cx.out, cx.session.resp3, Value::Absent),
        Held::Inline(bytes) => show::<S>(cx.out, cx.session.resp3, Value::Inline(&bytes)),
        Held::Large(large) => show::<S>(cx.out, cx.session.resp3, Value::Large(large)),
    };
    match shown {
        Shown::Nothing => add(&cx.counters.misses, 1),
        _ => add(&cx.counters.hits, 1),
    }
    Ok(shown.flow())
}

/// MSETNX key value [key value …]
pub fn msetnx<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity("msetnx"));
    }
    // Named twice, the last one counts.
    let mut last: std::collections::BTreeMap<&[u8], &[u8]> = Default::default();
    for pair in args[1..].chunks_exact(2) {
        last.insert(pair[0], pair[1]);
    }
    let keys: Vec<&[u8]> = last.keys().copied().collect();
    let set = ready!(cx.store.edit(cx.task, &keys, &[], &mut |seen| {
        if seen.views.iter().any(View::exists) {
            return Ok((Vec::new(), false));
        }
        let put = |(at, value): (usize, &&[u8])| {
            let edit = Edit::Put {
                value: value.to_vec(),
                expiry_ms: None,
                meta: None,
            };
            (at, edit)
        };
        Ok((last.values().enumerate().map(put).collect(), true))
    }));
    encode::int(cx.out, i64::from(set));
    Ok(Flow::Done)
}

/// INCRBYFLOAT key increment
pub fn incrbyfloat<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    const NOT_A_FLOAT: &str = "value is not a valid float";
    const NOT_FINITE: &str = "increment would produce NaN or Infinity";
    let text = ready!(edit_one(cx, args[1], |view, cas| {
        let kept = (view.expiry_ms, view.meta);
        let before = match view.value {
            Held::Absent => b"0".to_vec(),
            other => bytes_of(other)?,
        };
        let number = |text: &[u8]| float::parse(text).ok_or(StoreError::err(NOT_A_FLOAT));
        let sum = match (number(&before)?, number(args[2])?) {
            (float::Parsed::Finite(a), float::Parsed::Finite(b)) => float::add(a, b),
            _ => None,
        };
        let text = float::format(sum.ok_or(StoreError::err(NOT_FINITE))?);
        Ok((Some(changed(text.clone().into_bytes(), kept, cas)), text))
    }));
    encode::bulk(cx.out, text.as_bytes());
    Ok(Flow::Done)
}

struct LcsOptions {
    len: bool,
    idx: bool,
    with_len: bool,
    least: i64,
}

fn lcs_options(options: &[&[u8]]) -> Result<LcsOptions, Fault> {
    let mut found = LcsOptions {
        len: false,
        idx: false,
        with_len: false,
        least: 0,
    };
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"IDX") {
            found.idx = true;
        } else if option.eq_ignore_ascii_case(b"LEN") {
            found.len = true;
        } else if option.eq_ignore_ascii_case(b"WITHMATCHLEN") {
            found.with_len = true;
        } else if option.eq_ignore_ascii_case(b"MINMATCHLEN") {
            let text = rest.next().ok_or(SYNTAX)?;
            found.least = integer(text).ok_or(NOT_AN_INTEGER)?.max(0);
        } else {
            return Err(SYNTAX);
        }
    }
    match found.idx && found.len {
        true => Err(Fault::text(
            "If you want both the length and indexes, please just use IDX.",
        )),
        false => Ok(found),
    }
}

/// LCS key1 key2 [LEN] [IDX] [MINMATCHLEN len] [WITHMATCHLEN]
pub fn lcs<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let options = lcs_options(&args[3..])?;
    let keys = match args[1] == args[2] {
        true => &args[1..2],
        false => &args[1..3],
    };
    let found = ready!(cx.store.edit(cx.task, keys, &[], &mut |seen| {
        let values = seen.views.into_iter().map(|view| bytes_of(view.value));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let (first, last) = (&values[0], &values[values.len() - 1]);
        Ok((Vec::new(), lcs::lcs(first, last)?))
    }));
    if options.len {
        encode::count(cx.out, found.bytes.len() as u64);
    } else if options.idx {
        show_matches(cx, &found, &options);
    } else {
        encode::bulk(cx.out, &found.bytes);
    }
    Ok(Flow::Done)
}

fn show_matches<S: Store>(cx: &mut Cx<'_, S>, found: &lcs::Lcs, options: &LcsOptions) {
    let wanted = |m: &&lcs::Match| i64::from(m.len_bytes()) >= options.least;
    let matches: Vec<_> = found.matches.iter().filter(wanted).collect();
    encode::map(cx.out, cx.session.resp3, 2);
    encode::bulk(cx.out, b"matches");
    encode::array(cx.out, matches.len());
    for m in matches {
        encode::array(cx.out, if options.with_len { 3 } else { 2 });
        for (first, last) in [m.a, m.b] {
            encode::array(cx.out, 2);
            encode::int(cx.out, i64::from(first));
            encode::int(cx.out, i64::from(last));
        }
        if options.with_len {
            encode::int(cx.out, i64::from(m.len_bytes()));
        }
    }
    encode::bulk(cx.out, b"len");
    encode::count(cx.out, found.bytes.len() as u64);
}
