//! DUMP and RESTORE. A value or payload in pieces is summed piece by piece before anything is answered or made of it, and what is
//! packed is unpacked the same way. Never: holds either whole.

use terrace_kv::strings::dump::{self, Body, Refused};

use super::long::{self, Job, Keeps, Layer, Plan, Source};
use super::options::{expire_command_at, int_arg};
use super::part::{Part, edit_one};
use super::{Cx, Done, Fault, Flow, SYNTAX, ready};
use crate::limits::{INLINE_MAX_BYTES, LONG_STEPS_MAX, PIECE_BYTES};
use crate::resp::encode;
use crate::store::{Edit, Outcome, Step, Store, StoreError, Value, View};

/// Bytes at a dump's end that its checksum does not cover: the checksum.
const UNSUMMED_BYTES: u64 = 8;

/// DUMP key
pub fn dump<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    if cx.progress.held.is_none() {
        let value = ready!(cx.store.get(cx.task, args[1], |value| match value {
            Value::Absent => Ok(None),
            Value::Inline(bytes) => Ok(Some(dump::dump(bytes))),
            Value::Large(large) => Err(large),
        }));
        match value {
            Ok(Some(bytes)) => encode::bulk(cx.out, &bytes),
            Ok(None) => encode::null(cx.out, cx.session.resp3),
            Err(large) => {
                cx.progress.sum = dump::sum(0, &dump::head_of(S::large_len(&large)));
                cx.progress.held = Some(large);
                cx.renew_task();
            }
        }
        if cx.progress.held.is_none() {
            return Ok(Flow::Done);
        }
    }
    if !ready!(sum(cx, 0)) {
        return Ok(Flow::OutputFull);
    }
    let Some(large) = cx.progress.held.take() else {
        return Ok(Flow::Done);
    };
    let len = S::large_len(&large);
    let (head, foot) = (dump::head_of(len), dump::foot_of(cx.progress.sum));
    encode::bulk_header(cx.out, (head.len() + foot.len()) as u64 + len);
    cx.out.extend_from_slice(&head);
    Ok(Flow::Framed(large, foot))
}

/// Sums the next pieces of the value that is held, all but so many bytes at its end, and keeps the first and last bytes in
/// `found`; answers whether it is through.
fn sum<S: Store>(cx: &mut Cx<'_, S>, unsummed: u64) -> Outcome<bool> {
    let Some(large) = cx.progress.held.take() else {
        return Ok(Step::Done(true));
    };
    let len = S::large_len(&large);
    let mut left = LONG_STEPS_MAX;
    let mut step = Ok(Step::Done(true));
    while cx.progress.next * (PIECE_BYTES as u64) < len {
        if left == 0 {
            step = Ok(Step::Done(false));
            break;
        }
        left -= 1;
        let n = cx.progress.next;
        let (before, found) = (cx.progress.sum, &mut cx.progress.found);
        let read = cx.store.read_piece(cx.task, &large, n as u32, |bytes| {
            let summed = (len - unsummed).saturating_sub(n * PIECE_BYTES as u64);
            if n == 0 {
                found.extend_from_slice(&bytes[..dump::HEAD_MAX_BYTES.min(bytes.len())]);
            }
            let behind = bytes.len().saturating_sub(dump::FOOT);
            found.extend_from_slice(&bytes[behind..]);
            let extra = found
                .len()
                .saturating_sub(dump::HEAD_MAX_BYTES + dump::FOOT);
            found.drain(dump::HEAD_MAX_BYTES..dump::HEAD_MAX_BYTES + extra);
            dump::sum(before, &bytes[..bytes.len().min(summed as usize)])
        });
        match read {
            Ok(Step::Done(sum)) => cx.progress.sum = sum,
            Ok(Step::Wait(wait)) => {
                step = Ok(Step::Wait(wait));
                break;
            }
            Err(e) => {
                step = Err(e);
                break;
            }
        }
        cx.renew_task();
        cx.progress.next += 1;
    }
    cx.progress.held = Some(large);
    step
}

struct RestoreOptions {
    replace: bool,
    absolute: bool,
}

fn restore_options(options: &[&[u8]]) -> Result<RestoreOptions, Fault> {
    let mut found = RestoreOptions {
        replace: false,
        absolute: false,
    };
    let mut rest = options;
    while let [option, more @ ..] = rest {
        rest = more;
        if option.eq_ignore_ascii_case(b"REPLACE") {
            found.replace = true;
        } else if option.eq_ignore_ascii_case(b"ABSTTL") {
            found.absolute = true;
        } else if option.eq_ignore_ascii_case(b"IDLETIME") && !more.is_empty() {
            if int_arg(more[0])? < 0 {
                return Err(Fault::text("Invalid IDLETIME value, must be >= 0"));
            }
            rest = &more[1..];
        } else if option.eq_ignore_ascii_case(b"FREQ") && !more.is_empty() {
            if !(0..=255).contains(&int_arg(more[0])?) {
                return Err(Fault::text("Invalid FREQ value, must be >= 0 and <= 255"));
            }
            rest = &more[1..];
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(found)
}

fn is_taken() -> StoreError {
    StoreError {
        prefix: "BUSYKEY",
        text: "Target key name already exists.".to_string(),
    }
}

fn refusal(why: Refused) -> StoreError {
    StoreError::err(match why {
        Refused::Foot => "DUMP payload version or checksum are wrong",
        Refused::Format => "Bad data format",
    })
}

/// When a restored key expires.
fn expiry(ttl: &[u8], absolute: bool, now_ms: u64) -> Result<Option<u64>, Fault> {
    Ok(match int_arg(ttl)? {
        0 => None,
        _ => Some(expire_command_at(ttl, 1, !absolute, now_ms, "restore")?),
    })
}

/// RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]
pub fn restore<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let options = restore_options(&args[4..])?;
    let part = Part::of(cx, args, 3);
    let now_ms = cx.store.now_ms();
    let looked_at = cx.progress.held.is_some() || cx.progress.begun;
    if !looked_at {
        let done = ready!(edit_one(cx, args[1], |view, _| {
            if view.exists() && !options.replace {
                return Err(is_taken());
            }
            if int_arg(args[2]).map_err(StoreError::from)? < 0 {
                return Err(StoreError::err("Invalid TTL value, must be >= 0"));
            }
            if part.in_pieces {
                return Ok((None, false));
            }
            let value = match dump::restore(part.bytes, INLINE_MAX_BYTES) {
                Err(Refused::Format) if is_long(part.bytes) => {
                    return Ok((None, false));
                }
                other => other.map_err(refusal)?,
            };
            let expiry_ms = expiry(args[2], options.absolute, now_ms).map_err(StoreError::from)?;
            let edit = match (expiry_ms.is_some_and(|at| at <= now_ms), view.exists()) {
                (true, true) => Some(Edit::Delete),
                (true, false) => None,
                (false, _) => Some(Edit::Put {
                    value,
                    expiry_ms,
                    meta: None,
                }),
            };
            Ok((edit, true))
        }));
        if done {
            encode::ok(cx.out);
            return Ok(Flow::Done);
        }
        cx.renew_task();
        let arg = cx.large.first().and_then(|arg| arg.upload.as_ref());
        let held = arg.map(|upload| cx.store.upload_hold(upload));
        cx.progress.held = held.transpose()?;
    }
    let body = match part.in_pieces {
        false => dump::body(
            &part.bytes[..part.bytes.len().min(dump::HEAD_MAX_BYTES)],
            part.len,
        ),
        true => {
            if !ready!(sum(cx, UNSUMMED_BYTES)) {
                return Ok(Flow::OutputFull);
            }
            checked(&cx.progress.found, cx.progress.sum, part.len)
        }
    };
    cx.progress.begun = true;
    restore_long(cx, args, &options, &body.map_err(refusal)?)
}

/// Whether a dump at hand is that of a value in pieces.
fn is_long(dump: &[u8]) -> bool {
    let head = &dump[..dump.len().min(dump::HEAD_MAX_BYTES)];
    let body = dump::body(head, dump.len() as u64);
    matches!(body, Ok(Body::Packed(_, len)) if len > INLINE_MAX_BYTES as u64)
}

/// The body of a payload in pieces, by its ends and its checksum.
fn checked(ends: &[u8], summed: u64, len: u64) -> Result<Body, Refused> {
    let foot = ends.last_chunk().ok_or(Refused::Foot)?;
    match dump::foot_fits(foot, summed) {
        true => dump::body(&ends[..dump::HEAD_MAX_BYTES], len),
        false => Err(Refused::Foot),
    }
}

/// RESTORE of a payload in pieces, or of a value that becomes one.
fn restore_long<S: Store>(
    cx: &mut Cx<'_, S>,
    args: &[&[u8]],
    options: &RestoreOptions,
    body: &Body,
) -> Done<S> {
    let now_ms = cx.store.now_ms();
    let expiry_ms = expiry(args[2], options.absolute, now_ms)?;
    // A time that passes while the value is brought in is for the store.
    if cx.progress.long.is_none() && expiry_ms.is_some_and(|at| at <= now_ms) {
        ready!(edit_one(cx, args[1], |view, _| {
            // Somebody may have come first since this command has looked.
            match (view.exists(), options.replace) {
                (true, false) => Err(is_taken()),
                (exists, _) => Ok((exists.then_some(Edit::Delete), ())),
            }
        }));
        encode::ok(cx.out);
        return Ok(Flow::Done);
    }
    let (layer, len) = match body {
        Body::Plain(bytes) => (
            Layer::Copy(Source::Arg, bytes.clone(), 0),
            bytes.end - bytes.start,
        ),
        Body::Packed(_, 0) => return Err(refusal(Refused::Format).into()),
        Body::Packed(bytes, len) => (Layer::Unpacked(bytes.clone()), *len),
    };
    let job = Job {
        keys: &args[1..2],
        arg: args[3],
        plan: &|views: &[View<S::Large>]| match views[0].exists() && !options.replace {
            true => Err(is_taken().into()),
            false => Ok(Some(Plan {
                layers: vec![layer.clone()],
                keeps: Keeps::These(expiry_ms, None),
                ..Plan::patch(len, 0..0)
            })),
        },
        patch: &|_, _, reply| encode::ok(reply),
    };
    long::run(cx, &job)
}
