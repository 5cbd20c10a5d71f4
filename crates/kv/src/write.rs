//! Commands that change keys. All keys of one command change in one epoch.
//!
//! Here is what each command means; how a change is made without a state in between
//! is in `change`. Never: changes some keys of a command and not the others.

use crate::blind;
use crate::change::{
    Missing, change, commit, lanes_of, look_at, missing, missing_keys, prepare, put_value,
    still_there, too_many, wait_durable,
};
use crate::find::may_write;
use crate::how::{Cond, Expiry, How, NewValue};
use crate::item::{cas_of, value_of};
use crate::large::record_places;
use crate::meta::{META_BYTES, Meta, meta_of, stored, user_value};
use crate::modify::{State, delete_if, modify};
use crate::number::parse_i64;
use crate::shared::{piece_bytes, registry};
use crate::{KvError, Outcome, Step, Value, Wait};
use terrace_log::Kind;
use terrace_pool::{Task, Worker};

/// Sets a key, whatever it was before.
pub fn put(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    value: &mut NewValue<'_>,
    expiry: Expiry,
) -> Outcome<()> {
    let how = How {
        cond: Cond::Always,
        expiry,
        meta: None,
    };
    let step = set_item(w, t, key, value, how, None::<fn(Value<'_>)>)?;
    Ok(match step {
        Step::Wait(wait) => Step::Wait(wait),
        Step::Done(_) => Step::Done(()),
    })
}

/// Sets a key. Returns whether it was set, and what `old` makes of the value before.
#[inline]
pub fn set<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    value: &mut NewValue<'_>,
    cond: Cond,
    expiry: Expiry,
    old: impl FnOnce(Value<'_>) -> R,
) -> Outcome<(bool, R)> {
    let how = How {
        cond,
        expiry,
        meta: None,
    };
    let step = set_item(w, t, key, value, how, Some(old))?;
    Ok(match step {
        Step::Wait(wait) => Step::Wait(wait),
        Step::Done((go, shown)) => Step::Done((go, shown.expect("asked for"))),
    })
}

/// The same with what memcached keeps with the value. Without `old`, nobody asks for the value before.
pub fn set_item<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    value: &mut NewValue<'_>,
    how: How,
    old: Option<impl FnOnce(Value<'_>) -> R>,
) -> Outcome<(bool, Option<R>)> {
    let How { cond, expiry, meta } = how;
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let mut c = [change(w, key, Some(value), expiry != Expiry::None)?];
    let unasked = old.is_none() && cond == Cond::Always && expiry != Expiry::Keep;
    c[0].unasked = unasked;
    let shared = registry(w);
    let mut held = w.hold(lanes_of(&c));
    still_there(w, value)?;
    let need = prepare(w, t, &shared, &mut held, &mut c, true)?;
    if let Missing::Reads(reads) = &need
        && let [(lane, plan)] = &reads[..]
        && blind::may(w, &mut held, &c[0], value, plan)
    {
        blind::put(w, &shared, &mut held, &c[0], value, &how, plan)?;
        drop(held);
        w.verify_later(*lane, c[0].at.who, key, *plan);
        return Ok(Step::Done((true, None)));
    }
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    if unasked {
        let expiry_ms = match expiry {
            Expiry::At(ms) => Some(ms),
            Expiry::None | Expiry::Keep => None,
        };
        let done = put_value(w, t, &shared, &mut held, &c[0], value, (expiry_ms, meta))?;
        drop(held);
        wait_durable(w, t, done.wait);
        return Ok(Step::Done((true, None)));
    }
    let piece_bytes = piece_bytes(w);
    // What is compared or kept must be readable.
    let exact = expiry == Expiry::Keep || matches!(cond, Cond::IfToken(_));
    let mut token = None;
    let seen = look_at(
        t,
        &shared,
        piece_bytes,
        &mut held,
        &c[0],
        exact,
        |value, meta| {
            if matches!(cond, Cond::IfToken(_)) {
                token = Some(cas_of(&value, meta));
            }
            old.map(|f| f(value))
        },
    )?;
    let go = match cond {
        Cond::Always => true,
        Cond::IfAbsent => !seen.present,
        Cond::IfPresent => seen.present,
        Cond::IfToken(wanted) => seen.present && token == Some(wanted),
    };
    let mut wait = seen.wait;
    if go {
        let expiry_ms = match expiry {
            Expiry::None => None,
            Expiry::Keep => seen.expiry_ms,
            Expiry::At(ms) => Some(ms),
        };
        wait = put_value(w, t, &shared, &mut held, &c[0], value, (expiry_ms, meta))?.wait;
    }
    drop(held);
    wait_durable(w, t, wait);
    Ok(Step::Done((go, seen.shown)))
}

/// Sets several keys, all or none, also through a crash. Named twice, the last one counts.
pub fn mset(w: &mut Worker, t: &mut Task, pairs: &mut [(&[u8], NewValue<'_>)]) -> Outcome<()> {
    may_write(w)?;
    too_many(pairs.len())?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let changes: Result<Vec<_>, _> = pairs
        .iter()
        .map(|(k, v)| change(w, k, Some(v), false))
        .collect();
    let mut changes = changes?;
    let shared = registry(w);
    let mut held = w.hold(lanes_of(&changes));
    pairs.iter().try_for_each(|(_, v)| still_there(w, v))?;
    let need = prepare(w, t, &shared, &mut held, &mut changes, true)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing_keys(w, t, need).expect("something is missing"));
    }
    let mut wait = None;
    for (c, (_, value)) in changes.iter().zip(pairs.iter()) {
        wait = put_value(w, t, &shared, &mut held, c, value, (None, None))?.wait;
    }
    drop(held);
    wait_durable(w, t, wait);
    Ok(Step::Done(()))
}

/// Deletes keys, all in one, also through a crash. Returns how many there were.
pub fn del(w: &mut Worker, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
    may_write(w)?;
    too_many(keys.len())?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let changes: Result<Vec<_>, _> = keys.iter().map(|k| change(w, k, None, false)).collect();
    let mut changes = changes?;
    let shared = registry(w);
    let mut held = w.hold(lanes_of(&changes));
    let need = prepare(w, t, &shared, &mut held, &mut changes, false)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing_keys(w, t, need).expect("something is missing"));
    }
    let (mut count, mut wait) = (0, None);
    for c in &changes {
        let done = commit(w, t, &shared, &mut held, c, None, &[])?;
        count += u64::from(done.present);
        wait = wait.max(done.wait);
    }
    drop(held);
    wait_durable(w, t, wait);
    Ok(Step::Done(count))
}

/// Deletes a key and shows the value it had to `f`, in one: no other command, and no
/// crash, comes between the two.
pub fn get_del<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    f: impl FnOnce(Value<'_>) -> R,
) -> Outcome<R> {
    let shared = registry(w);
    let piece_bytes = piece_bytes(w);
    delete_if(w, t, key, |e| {
        (e.is_some(), f(value_of(&shared, piece_bytes, e)))
    })
}

/// Adds to an integer; an absent key counts as 0. The expiry stays.
pub fn incr_by(w: &mut Worker, t: &mut Task, key: &[u8], delta: i64) -> Outcome<i64> {
    let not_int = || KvError::wrong("value is not an integer or out of range");
    let new_cas = w.pool().new_version();
    modify(w, t, key, 24 + META_BYTES, |e| {
        let now = match &e {
            None => 0,
            Some(e) if e.kind() == Kind::Binder => return Err(not_int()),
            Some(e) => parse_i64(user_value(e)).ok_or_else(not_int)?,
        };
        let sum = now
            .checked_add(delta)
            .ok_or_else(|| KvError::wrong("increment or decrement would overflow"))?;
        let meta = e
            .as_ref()
            .and_then(meta_of)
            .map(|m| Meta { cas: new_cas, ..m });
        let text = sum.to_string();
        let (value, flags) = stored(text.as_bytes(), meta);
        let state = State {
            kind: Kind::Value,
            value: value.into_owned(),
            expiry_ms: e.and_then(|e| e.expiry_ms()),
            flags,
        };
        Ok((Some(state), sum))
    })
}

/// Deletes everything, atomically.
pub fn flush_all(w: &mut Worker, t: &mut Task) -> Outcome<()> {
    may_write(w)?;
    let shared = registry(w);
    let mut held = w.hold_all();
    if !shared.registry.lock().started || !held.each().all(|(_, l)| l.can_flush_all()) {
        drop(held);
        w.want_quiet();
        return Ok(Step::Wait(Wait::Room));
    }
    let mut epoch = 0;
    for (_, lane) in held.each() {
        lane.flush_all()
            .map_err(|_| KvError::wrong("busy; try again"))?;
        epoch = lane.open_epoch();
    }
    w.pool().note_flush_of_all();
    shared.watch.touch_all();
    shared.registry.lock().forget_all(record_places(w));
    drop(held);
    w.end_quiet();
    wait_durable(w, t, Some(epoch));
    Ok(Step::Done(()))
}
