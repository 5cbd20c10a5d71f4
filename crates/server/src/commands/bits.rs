//! The commands on bits. What they mean is in `terrace_kv::strings`; here are their arguments and replies. Values in
//! pieces are counted and searched piece by piece, and changed by bringing the new one in (`long`).

use terrace_kv::strings::STRING_MAX_BYTES;
use terrace_kv::strings::bitfield::{self, Op, Overflow, Step as Field, Type};
use terrace_kv::strings::bits::{self, BitOp, Unit};
use terrace_kv::strings::ranges::set_range;

use super::long::{self, Job, Keeps, Layer, Plan, is_long, len_of as len_of_view};
use super::options::int_arg;
use super::part::{bytes_of, changed, edit_one};
use super::{Cx, Done, Fault, Flow, SYNTAX, ready};
use crate::limits::{INLINE_MAX_BYTES, PIECE_BYTES};
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::store::{Edit, Store, Value};

const BAD_OFFSET: &str = "bit offset is not an integer or out of range";
const BAD_BIT: &str = "bit is not an integer or out of range";
const BAD_TYPE: &str =
    "Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";

/// A place in bits; with a type, `#n` is the n-th of its width.
fn offset(text: &[u8], width: Option<u32>) -> Result<u64, Fault> {
    let bad = || Fault::text(BAD_OFFSET);
    let (text, factor) = match (text.strip_prefix(b"#"), width) {
        (Some(rest), Some(width)) => (rest, i64::from(width)),
        _ => (text, 1),
    };
    let at = integer(text).ok_or_else(bad)?.checked_mul(factor);
    let at = at.and_then(|at| u64::try_from(at).ok()).ok_or_else(bad)?;
    match at / 8 < STRING_MAX_BYTES {
        true => Ok(at),
        false => Err(bad()),
    }
}

/// SETBIT key offset value
pub fn setbit<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let at = offset(args[2], None)?;
    let on = match integer(args[3]) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(Fault::text(BAD_BIT)),
    };
    if cx.progress.long.is_none() {
        let was = ready!(edit_one(cx, args[1], |view, cas| {
            if is_long::<S>(&view.value, at / 8 + 1) {
                return Ok((None, None));
            }
            let kept = (view.expiry_ms, view.meta);
            let before = bytes_of(view.value)?;
            let mut value = grown(before.clone(), at / 8 + 1)?;
            let was = bits::set_bit(&mut value, at, on);
            // What stays as it was is no change for those who watch it.
            let edit = (value != before).then(|| changed(value, kept, cas));
            Ok((edit, Some(was)))
        }));
        if let Some(was) = was {
            encode::int(cx.out, i64::from(was));
            return Ok(Flow::Done);
        }
        cx.renew_task();
    }
    let byte = at / 8..at / 8 + 1;
    let job = Job {
        keys: &args[1..2],
        arg: &[],
        plan: &|views| {
            let before = len_of_view::<S>(&views[0]);
            Ok(Some(patch_of_bits(before, byte.clone(), byte.end)))
        },
        patch: &|window, _, reply| {
            encode::int(reply, i64::from(bits::set_bit(window, at % 8, on)));
        },
    };
    long::run(cx, &job)
}

/// A change of bits in some bytes of a long value, that may make it `needed` bytes long.
fn patch_of_bits(before: Option<u64>, bytes: std::ops::Range<u64>, needed: u64) -> Plan {
    let len = before.unwrap_or(0).max(needed);
    let end = bytes.end.min(len);
    Plan {
        only_if_changed: true,
        ..Plan::patch(len, bytes.start.min(end)..end)
    }
}

/// The value with zeros behind it, so that it has so many bytes at least.
fn grown(value: Vec<u8>, bytes: u64) -> Result<Vec<u8>, crate::store::StoreError> {
    match bytes > value.len() as u64 {
        true => Ok(set_range(&value, bytes - 1, &[0], INLINE_MAX_BYTES)?),
        false => Ok(value),
    }
}

/// GETBIT key offset
pub fn getbit<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let at = offset(args[2], None)?;
    let mut on = false;
    ready!(fold(cx, args[1], |bytes, from, _| {
        let here = from * 8..(from + bytes.len() as u64) * 8;
        if here.contains(&at) {
            on = bits::get_bit(bytes, at - here.start);
        }
        at >= here.end
    }));
    encode::int(cx.out, i64::from(on));
    Ok(Flow::Done)
}

/// Shows a value to `f` in one piece or in several, each with its place and the length of the whole, as long as `f` wants
/// more. Answers that length; none: there is no such key. All of it is of one look at the key. What `f` has gathered in
/// `progress.seen` it finds again after a wait.
fn fold<S: Store>(
    cx: &mut Cx<'_, S>,
    key: &[u8],
    mut f: impl FnMut(&[u8], u64, u64) -> bool,
) -> crate::store::Outcome<Option<u64>> {
    use crate::store::Step;
    if cx.progress.held.is_none() {
        let looked = cx.store.get(cx.task, key, |value| match value {
            Value::Absent => (None, None),
            Value::Inline(bytes) => {
                let len = bytes.len() as u64;
                f(bytes, 0, len);
                (Some(len), None)
            }
            Value::Large(large) => (Some(S::large_len(&large)), Some(large)),
        })?;
        match looked {
            Step::Wait(wait) => return Ok(Step::Wait(wait)),
            Step::Done((len, None)) => return Ok(Step::Done(len)),
            Step::Done((_, held)) => {
                cx.progress.held = held;
                cx.renew_task();
            }
        }
    }
    let len = cx.progress.held.as_ref().map_or(0, S::large_len);
    let mut more = true;
    while more && cx.progress.next * (PIECE_BYTES as u64) < len {
        let Some(large) = &cx.progress.held else {
            break;
        };
        let piece = cx.progress.next;
        let from = piece * PIECE_BYTES as u64;
        let read = cx
            .store
            .read_piece(cx.task, large, piece as u32, |bytes| f(bytes, from, len));
        match read? {
            Step::Wait(wait) => return Ok(Step::Wait(wait)),
            Step::Done(wants) => more = wants,
        }
        cx.renew_task();
        cx.progress.next += 1;
    }
    if let Some(large) = cx.progress.held.take() {
        cx.store.release(large);
    }
    Ok(Step::Done(Some(len)))
}

/// The range of BITCOUNT and BITPOS, in a value of this length.
struct Asked {
    start: i64,
    end: i64,
    unit: Unit,
}

fn unit(text: &[u8]) -> Result<Unit, Fault> {
    if text.eq_ignore_ascii_case(b"BIT") {
        Ok(Unit::Bit)
    } else if text.eq_ignore_ascii_case(b"BYTE") {
        Ok(Unit::Byte)
    } else {
        Err(SYNTAX)
    }
}

/// Of a piece's bits, those that a range of the whole value has.
fn here(range: &std::ops::Range<u64>, (low, high): (u64, u64)) -> std::ops::Range<u64> {
    range.start.clamp(low, high) - low..range.end.clamp(low, high) - low
}

/// The bits of a piece, by their places in the value.
fn bits_of(bytes: &[u8], from: u64) -> (u64, u64) {
    (from * 8, (from + bytes.len() as u64) * 8)
}

/// What follows the key of BITCOUNT.
fn count_asked(args: &[&[u8]]) -> Result<Asked, Fault> {
    match args {
        [] => Ok(Asked {
            start: 0,
            end: -1,
            unit: Unit::Byte,
        }),
        [start, end, rest @ ..] if rest.len() < 2 => Ok(Asked {
            start: int_arg(start)?,
            end: int_arg(end)?,
            unit: rest.first().map_or(Ok(Unit::Byte), |text| unit(text))?,
        }),
        _ => Err(SYNTAX),
    }
}

/// BITCOUNT key [start end [BYTE | BIT]]
pub fn bitcount<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    // As in Redis: without such a key, what follows it does not matter.
    let asked = count_asked(&args[2..]);
    let mut count = cx.progress.seen;
    let folded = fold(cx, args[1], |bytes, from, len| {
        let Ok(asked) = &asked else { return false };
        let range = bits::count_range(len, asked.start, asked.end, asked.unit);
        count += bits::count(bytes, here(&range, bits_of(bytes, from)));
        true
    });
    cx.progress.seen = count;
    if ready!(folded).is_some() {
        asked?;
    }
    encode::count(cx.out, count);
    Ok(Flow::Done)
}

/// What follows the bit of BITPOS.
fn position_asked(args: &[&[u8]]) -> Result<Asked, Fault> {
    if args.len() > 3 {
        return Err(SYNTAX);
    }
    Ok(Asked {
        start: args.first().map_or(Ok(0), |text| int_arg(text))?,
        unit: args.get(2).map_or(Ok(Unit::Byte), |text| unit(text))?,
        end: args.get(1).map_or(Ok(-1), |text| int_arg(text))?,
    })
}

/// BITPOS key bit [start [end [BYTE | BIT]]]
pub fn bitpos<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let on = match int_arg(args[2])? {
        0 => false,
        1 => true,
        _ => return Err(Fault::text("The bit argument must be 1 or 0.")),
    };
    let asked = position_asked(&args[3..]);
    let mut answer = -1;
    let folded = fold(cx, args[1], |bytes, from, len| {
        let Ok(asked) = &asked else { return false };
        let range = bits::position_range(len, asked.start, asked.end, asked.unit);
        let (low, high) = bits_of(bytes, from);
        if let Some(at) = bits::find(bytes, here(&range, (low, high)), on) {
            answer = (low + at) as i64;
            return false;
        }
        // A string is followed by zeros, as far as one looks.
        let last = high == len * 8;
        if last && !on && args.len() < 5 && !range.is_empty() {
            answer = range.end as i64;
        }
        true
    });
    match ready!(folded) {
        Some(_) => _ = asked?,
        // What is not there is all zeros.
        None => answer = if on { -1 } else { 0 },
    }
    encode::int(cx.out, answer);
    Ok(Flow::Done)
}

/// BITOP AND | OR | XOR | NOT destkey key [key …]
pub fn bitop<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let op = match args[1].to_ascii_lowercase().as_slice() {
        b"and" => BitOp::And,
        b"or" => BitOp::Or,
        b"xor" => BitOp::Xor,
        b"not" => BitOp::Not,
        _ => return Err(SYNTAX),
    };
    if op == BitOp::Not && args.len() != 4 {
        return Err(Fault::text(
            "BITOP NOT must be called with a single source key.",
        ));
    }
    let mut keys: Vec<&[u8]> = Vec::with_capacity(args.len() - 2);
    let place = |key: &[u8], keys: &[&[u8]]| keys.iter().position(|k| *k == key);
    let mut sources = Vec::with_capacity(args.len() - 3);
    for key in &args[2..] {
        let at = place(key, &keys).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        sources.push(at);
    }
    let sources = &sources[1..];
    if cx.progress.long.is_some() {
        return bitop_long(cx, op, &keys, sources);
    }
    let len = ready!(cx.store.edit(cx.task, &keys, &[], &mut |seen| {
        let existed = seen.views[0].exists();
        if sources
            .iter()
            .any(|&at| is_long::<S>(&seen.views[at].value, 0))
        {
            return Ok((Vec::new(), None));
        }
        let mut values = Vec::with_capacity(keys.len());
        for (at, view) in seen.views.into_iter().enumerate() {
            // What is only replaced may be long.
            values.push(match sources.contains(&at) {
                true => bytes_of(view.value)?,
                false => Vec::new(),
            });
        }
        let chosen: Vec<&[u8]> = sources.iter().map(|&at| &values[at][..]).collect();
        let value = bits::combine(op, &chosen);
        let len = value.len();
        let edit = match (len, existed) {
            (0, false) => None,
            (0, true) => Some(Edit::Delete),
            _ => Some(Edit::Put {
                value,
                expiry_ms: None,
                meta: None,
            }),
        };
        Ok((edit.map(|edit| (0, edit)).into_iter().collect(), Some(len)))
    }));
    let Some(len) = len else {
        cx.renew_task();
        return bitop_long(cx, op, &keys, sources);
    };
    encode::count(cx.out, len as u64);
    Ok(Flow::Done)
}

/// BITOP of values of which one at least is in pieces.
fn bitop_long<S: Store>(
    cx: &mut Cx<'_, S>,
    op: BitOp,
    keys: &[&[u8]],
    sources: &[usize],
) -> Done<S> {
    let job = Job {
        keys,
        arg: &[],
        plan: &|views| {
            let lens = sources.iter().map(|&at| len_of_view::<S>(&views[at]));
            let len = lens.flatten().max();
            let layers = sources.iter().map(|&at| Layer::Value(at, Some(op)));
            Ok(Some(Plan {
                layers: layers.collect(),
                keeps: Keeps::NOTHING,
                ..Plan::patch(len.unwrap_or(0), 0..0)
            }))
        },
        patch: &|_, plan, reply| encode::count(reply, plan.len),
    };
    long::run(cx, &job)
}

fn fields(args: &[&[u8]], read_only: bool) -> Result<Vec<Field>, Fault> {
    let mut overflow = Overflow::Wrap;
    let mut steps = Vec::new();
    let mut rest = args;
    while let [name, more @ ..] = rest {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        let (op, taken) = if is("GET") && more.len() >= 2 {
            (Op::Get, 2)
        } else if is("SET") && more.len() >= 3 {
            (Op::Set(0, overflow), 3)
        } else if is("INCRBY") && more.len() >= 3 {
            (Op::Incr(0, overflow), 3)
        } else if is("OVERFLOW") && !more.is_empty() {
            overflow = match more[0].to_ascii_lowercase().as_slice() {
                b"wrap" => Overflow::Wrap,
                b"sat" => Overflow::Sat,
                b"fail" => Overflow::Fail,
                _ => return Err(Fault::text("Invalid OVERFLOW type specified")),
            };
            rest = &more[1..];
            continue;
        } else {
            return Err(SYNTAX);
        };
        let kind = Type::parse(more[0]).ok_or_else(|| Fault::text(BAD_TYPE))?;
        let offset = offset(more[1], Some(kind.bits))?;
        let op = match op {
            Op::Get => Op::Get,
            _ if read_only => {
                return Err(Fault::text("BITFIELD_RO only supports the GET subcommand"));
            }
            Op::Set(_, overflow) => Op::Set(int_arg(more[2])?, overflow),
            Op::Incr(_, overflow) => Op::Incr(int_arg(more[2])?, overflow),
        };
        steps.push(Field { op, kind, offset });
        rest = &more[taken..];
    }
    Ok(steps)
}

/// BITFIELD key [GET type offset | SET type offset value | INCRBY type offset increment | OVERFLOW …] …, BITFIELD_RO
pub fn bitfield<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]], read_only: bool) -> Done<S> {
    let steps = fields(&args[2..], read_only)?;
    let needed = bitfield::needed_bytes(&steps);
    if cx.progress.long.is_some() {
        return bitfield_long(cx, args[1], &steps);
    }
    let answers = ready!(edit_one(cx, args[1], |view, cas| {
        if is_long::<S>(&view.value, needed) {
            return Ok((None, None));
        }
        let kept = (view.expiry_ms, view.meta);
        let before = bytes_of(view.value)?;
        let mut value = grown(before.clone(), needed)?;
        let apply = |step: &Field| bitfield::apply(&mut value, step);
        let answers: Vec<Option<i64>> = steps.iter().map(apply).collect();
        let edit = (value != before).then(|| changed(value, kept, cas));
        Ok((edit, Some(answers)))
    }));
    let Some(answers) = answers else {
        cx.renew_task();
        return bitfield_long(cx, args[1], &steps);
    };
    show_answers(cx.out, cx.session.resp3, answers);
    Ok(Flow::Done)
}

fn show_answers(out: &mut Vec<u8>, resp3: bool, answers: Vec<Option<i64>>) {
    encode::array(out, answers.len());
    for answer in answers {
        match answer {
            Some(number) => encode::int(out, number),
            None => encode::null(out, resp3),
        }
    }
}

/// BITFIELD of a value in pieces, or one that becomes so: the bytes between its first field and its last are read.
fn bitfield_long<S: Store>(cx: &mut Cx<'_, S>, key: &[u8], steps: &[Field]) -> Done<S> {
    let needed = bitfield::needed_bytes(steps);
    let starts = steps.iter().map(|s| s.offset / 8);
    let ends = steps
        .iter()
        .map(|s| (s.offset + u64::from(s.kind.bits)).div_ceil(8));
    let bytes = starts.min().unwrap_or(0)..ends.max().unwrap_or(0);
    let resp3 = cx.session.resp3;
    let job = Job {
        keys: &[key],
        arg: &[],
        plan: &|views| {
            let before = len_of_view::<S>(&views[0]);
            Ok(Some(patch_of_bits(before, bytes.clone(), needed)))
        },
        patch: &|window, plan, reply| {
            let apply = |step: &Field| {
                let offset = step.offset - plan.window.start * 8;
                bitfield::apply(window, &Field { offset, ..*step })
            };
            let answers = steps.iter().map(apply).collect();
            show_answers(reply, resp3, answers);
        },
    };
    long::run(cx, &job)
}
