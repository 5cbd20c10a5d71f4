//! The commands on a part of a string: APPEND, SETRANGE, GETRANGE and the like. What they mean is in
//! `terrace_kv::strings`; here are their arguments and replies. A value above `INLINE_MAX_BYTES` is read in parts, and
//! changed by bringing the new one in (`long`).

use terrace_kv::strings::{float, ranges};

use super::long::{self, Job, Layer, Plan, Source, is_long};
use super::options::{get_options, int_arg};
use super::strings::{Shown, show};
use super::{Cx, Done, Fault, Flow, ready, wrong_arity};
use crate::limits::INLINE_MAX_BYTES;
use crate::resp::encode;
use crate::store::{Edit, Expiry, Held, Meta, Outcome, Seen, Store, StoreError, Value, View};
use crate::sync::add;

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

/// An argument: its bytes, or its length alone if it came in pieces.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub bytes: &'a [u8],
    pub len: u64,
    pub in_pieces: bool,
}

impl<'a> Part<'a> {
    /// The argument of this number.
    pub fn of<S: Store>(cx: &Cx<'_, S>, args: &[&'a [u8]], index: usize) -> Self {
        let large = cx.large.iter().find(|l| l.index as usize == index);
        let upload = large.and_then(|l| l.upload.as_ref());
        Part {
            bytes: args[index],
            len: upload.map_or(args[index].len() as u64, S::upload_len),
            in_pieces: upload.is_some(),
        }
    }
}

/// APPEND key value
pub fn append<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let part = Part::of(cx, args, 2);
    if cx.progress.long.is_none() && !part.in_pieces {
        let len = ready!(edit_one(cx, args[1], |view, cas| {
            let before = long::len_of::<S>(&view).unwrap_or(0);
            if is_long::<S>(&view.value, before + part.len) {
                return Ok((None, None));
            }
            let kept = (view.expiry_ms, view.meta);
            let mut value = bytes_of(view.value)?;
            value.extend_from_slice(part.bytes);
            let len = value.len() as u64;
            Ok((Some(changed(value, kept, cas)), Some(len)))
        }));
        if let Some(len) = len {
            encode::count(cx.out, len);
            return Ok(Flow::Done);
        }
        cx.renew_task();
    }
    put_bytes(cx, args[1], part, |before| before)
}

/// Puts `part` into a long value, at the place that `at` says for its length, and answers the new length.
fn put_bytes<S: Store>(
    cx: &mut Cx<'_, S>,
    key: &[u8],
    part: Part<'_>,
    at: impl Fn(u64) -> u64,
) -> Done<S> {
    let job = Job {
        keys: &[key],
        arg: &[],
        plan: &|views| {
            let before = long::len_of::<S>(&views[0]).unwrap_or(0);
            Ok(Some(put_part(before, part, at(before))))
        },
        patch: &|window, plan, reply| {
            if !part.in_pieces {
                window.copy_from_slice(part.bytes);
            }
            encode::count(reply, plan.len);
        },
    };
    long::run(cx, &job)
}

/// The plan for a value of so many bytes with an argument put into it: as a patch, or as a layer of pieces.
pub(crate) fn put_part(before: u64, part: Part<'_>, at: u64) -> Plan {
    let end = at.saturating_add(part.len);
    let len = before.max(end);
    if !part.in_pieces {
        return Plan::patch(len, at..end);
    }
    let mut plan = Plan::patch(len, 0..0);
    plan.layers.push(Layer::Copy(Source::Arg, 0..part.len, at));
    plan
}

/// SETRANGE key offset value
pub fn setrange<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let offset = int_arg(args[2])?;
    let offset = u64::try_from(offset).map_err(|_| Fault::text("offset is out of range"))?;
    let part = Part::of(cx, args, 3);
    if cx.progress.long.is_some() || part.in_pieces {
        return put_bytes(cx, args[1], part, |_| offset);
    }
    let end = offset.saturating_add(part.len);
    let len = ready!(edit_one(cx, args[1], |view, cas| {
        let kept = (view.expiry_ms, view.meta);
        if part.bytes.is_empty() {
            return Ok((None, Some(long::len_of::<S>(&view).unwrap_or(0))));
        }
        if is_long::<S>(&view.value, end) {
            return Ok((None, None));
        }
        let value = bytes_of(view.value)?;
        let value = ranges::set_range(&value, offset, part.bytes, INLINE_MAX_BYTES)?;
        let len = value.len() as u64;
        Ok((Some(changed(value, kept, cas)), Some(len)))
    }));
    let Some(len) = len else {
        cx.renew_task();
        return put_bytes(cx, args[1], part, |_| offset);
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
    // Named twice, the last one counts: by its number among the arguments.
    let mut last: std::collections::BTreeMap<&[u8], usize> = Default::default();
    for at in (1..args.len()).step_by(2) {
        last.insert(args[at], at + 1);
    }
    let keys: Vec<&[u8]> = last.keys().copied().collect();
    let index_of = |at: usize| cx.large.iter().position(|l| l.index as usize == at);
    let long: Vec<Option<usize>> = last.values().map(|&at| index_of(at)).collect();
    let mut uploads: Vec<_> = cx.large.iter_mut().map(|l| l.upload.take()).collect();
    let set = cx
        .store
        .edit_with(cx.task, &keys, &[], &mut uploads, &mut |seen| {
            if seen.views.iter().any(View::exists) {
                return Ok((Vec::new(), false));
            }
            let put = |(at, (&arg, &long)): (usize, (&usize, &Option<usize>))| {
                let (expiry_ms, meta) = (None, None);
                let edit = match long {
                    Some(nr) => Edit::Upload {
                        nr,
                        expiry_ms,
                        meta,
                    },
                    None => Edit::Put {
                        value: args[arg].to_vec(),
                        expiry_ms,
                        meta,
                    },
                };
                (at, edit)
            };
            Ok((
                last.values().zip(&long).enumerate().map(put).collect(),
                true,
            ))
        });
    // What was not taken is given up with the command, or taken when it comes again.
    for (arg, upload) in cx.large.iter_mut().zip(uploads) {
        arg.upload = upload;
    }
    encode::int(cx.out, i64::from(ready!(set)));
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
