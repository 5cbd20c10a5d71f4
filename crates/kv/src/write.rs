//! Commands that change keys. All keys of one command change in one epoch.
//!
//! A command first makes sure that nothing is missing (room, reads) with its
//! lanes held, then changes everything without letting go: there is no state in
//! between for another command, or for a crash.

use crate::find::{Found, Place, READS_PER_TASK_MAX, entry_of, fetch, find, may_write, place, refused, reserve};
use crate::large::{self, Binder, Doomed, RECORD_BYTES, RecordSlot, Shared, Upload};
use crate::number::parse_i64;
use crate::read::value_of;
use crate::{KEY_MAX_BYTES, inline_max_bytes,  KEYS_PER_COMMAND_MAX, KvError, KvErrorKind, Outcome, Step, Value, Wait};
use std::sync::Arc;
use terrace_log::entry::{Entry, entry_bytes};
use terrace_log::{Kind, Loc, NewEntry, Slot};
use terrace_pool::{Held, Lane, Task, Worker};
use terrace_tiers::ReadPlan;

/// A value to be set.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Up to [`INLINE_MAX_BYTES`].
    Inline(&'a [u8]),
    /// Received piece by piece.
    Large(Upload),
}

/// When a set takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cond {
    /// In any case.
    Always,
    /// If the key is absent (NX).
    IfAbsent,
    /// If the key exists (XX).
    IfPresent,
}

/// The expiry after a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// None.
    None,
    /// As it was.
    Keep,
    /// At this time, ms since 1970.
    At(u64),
}

/// When a change of expiry takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpireCond {
    /// In any case.
    Always,
    /// If the key has none.
    Nx,
    /// If the key has one.
    Xx,
    /// If it is later; a key without expiry lives for ever.
    Gt,
    /// If it is earlier.
    Lt,
}

/// The state that a change replaces.
struct Prev {
    slot: Slot,
    /// Set when the entry, expired or not, binds pieces.
    binder: Option<Binder>,
    present: bool,
}

fn prev_of(t: &Task, lane: &Lane, at: Place, found: Found) -> Option<Prev> {
    let (slot, fetched, present) = match found {
        Found::Absent | Found::Read(_) => return None,
        Found::Gone(slot) => {
            let fetched = !slot.loc().in_memory() && t.fetched(at.lane, slot.loc()).is_some();
            (slot, fetched, false)
        }
        Found::Here { slot, fetched } => (slot, fetched, true),
    };
    let e = entry_of(t, lane, at, slot, fetched);
    let binder = match e.kind() {
        Kind::Binder => large::binder(e.value()),
        _ => None,
    };
    Some(Prev {
        slot,
        binder,
        present,
    })
}

/// One key's part of a command.
struct Change<'a> {
    key: &'a [u8],
    at: Place,
    /// Longest entry it may append.
    bytes: usize,
    upload: Option<(u16, u16)>,
}

fn check_key(key: &[u8]) -> Result<(), KvError> {
    match key.len() <= KEY_MAX_BYTES {
        true => Ok(()),
        false => Err(KvError::new(
            KvErrorKind::TooLarge,
            format!("the key has {} bytes; at most {KEY_MAX_BYTES} are allowed", key.len()),
        )),
    }
}

fn change<'a>(w: &Worker, key: &'a [u8], value: Option<&NewValue<'_>>, expiry: bool) -> Result<Change<'a>, KvError> {
    check_key(key)?;
    let (len, upload) = match value {
        None => (0, None),
        Some(NewValue::Inline(v)) if v.len() > inline_max_bytes(w) => {
            let most = inline_max_bytes(w);
            return Err(KvError::new(
                KvErrorKind::TooLarge,
                format!("the value has {} bytes; above {most} it must come in pieces", v.len()),
            ));
        }
        Some(NewValue::Inline(v)) => (v.len(), None),
        Some(NewValue::Large(u)) => {
            u.usable(w)?;
            (16, Some((u.lane, u.record)))
        }
    };
    Ok(Change {
        key,
        at: place(w, 0, key),
        bytes: entry_bytes(key.len(), len, expiry, false) + RECORD_BYTES,
        upload,
    })
}

fn lanes_of<'a>(changes: &'a [Change<'_>]) -> impl Iterator<Item = u16> + 'a {
    let uploads = changes.iter().filter_map(|c| c.upload.map(|u| u.0));
    changes.iter().map(|c| c.at.lane).chain(uploads)
}

/// What is missing before the changes can be made.
enum Missing {
    Nothing,
    Room,
    Reads(Vec<(u16, ReadPlan)>),
}

/// Makes room and finds all keys and records that the changes touch.
fn prepare(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    changes: &[Change<'_>],
    grows: bool,
) -> Result<Missing, KvError> {
    let lanes: Vec<u16> = held.each().map(|(id, _)| id).collect();
    for id in lanes {
        let own = changes.iter().filter(|c| c.at.lane == id).map(|c| c.bytes);
        let records = changes.iter().filter(|c| c.upload.is_some_and(|u| u.0 == id)).count();
        let bytes = own.sum::<usize>() + records * RECORD_BYTES;
        if !reserve(held.lane(id), bytes, grows)? {
            return Ok(Missing::Room);
        }
    }
    let mut reads = Vec::new();
    let all = find_all(w, t, shared, held, changes, &mut reads);
    match all {
        Ok(true) if reads.is_empty() => Ok(Missing::Nothing),
        Ok(true) => Ok(Missing::Reads(reads)),
        Ok(false) => Ok(give_up(held, reads)),
        Err(e) => {
            give_up(held, reads);
            Err(e)
        }
    }
}

/// Finds every key and record; what must be read first goes into `reads`.
/// `Ok(false)`: no record is free.
fn find_all(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    changes: &[Change<'_>],
    reads: &mut Vec<(u16, ReadPlan)>,
) -> Result<bool, KvError> {
    let mut binders = std::collections::HashMap::<u16, usize>::new();
    for c in changes {
        let lane = held.lane(c.at.lane);
        let found = find(t, lane, c.at, c.key)?;
        if let Found::Read(plan) = found {
            lane.count(|s| s.verify_reads += 1);
            reads.push((c.at.lane, plan));
        } else if prev_of(t, lane, c.at, found).is_some_and(|p| p.binder.is_some()) {
            let nth = binders.entry(c.at.lane).or_default();
            let Some(record) = shared.0.lock().peek(c.at.lane, *nth) else {
                return Ok(false);
            };
            *nth += 1;
            if let RecordSlot::Read(plan) = large::find_record(w, t, lane, record)? {
                reads.push((c.at.lane, plan));
            }
        }
        if let Some((lane_id, record)) = c.upload
            && let RecordSlot::Read(plan) = large::find_record(w, t, held.lane(lane_id), record)?
        {
            reads.push((lane_id, plan));
        }
        if reads.len() >= READS_PER_TASK_MAX {
            break;
        }
    }
    Ok(true)
}

/// No record is free: holds planned so far are let go.
fn give_up(held: &mut Held<'_>, reads: Vec<(u16, ReadPlan)>) -> Missing {
    for (lane, plan) in reads {
        held.lane(lane).unpin(plan.segment);
    }
    Missing::Room
}

/// Makes one change. Everything it needs was prepared. Returns whether the key was present.
fn commit(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    c: &Change<'_>,
    new: Option<(Kind, &[u8], Option<u64>)>,
) -> Result<bool, KvError> {
    let lane = held.lane(c.at.lane);
    let found = find(t, lane, c.at, c.key)?;
    if let Found::Read(plan) = found {
        lane.unpin(plan.segment);
        return Err(KvError::wrong("a key moved while it was changed; try again"));
    }
    let prev = prev_of(t, lane, c.at, found);
    let present = prev.as_ref().is_some_and(|p| p.present);
    match (new, &prev) {
        (Some((kind, value, expiry_ms)), _) => {
            let entry = NewEntry {
                kind,
                space: 0,
                flags: 0,
                link: Loc::NONE,
                expiry_ms,
                version: None,
                key: c.key,
                value,
            };
            let put = lane.put(c.at.who, prev.as_ref().map(|p| p.slot), &entry);
            put.map_err(|why| refused(lane, why, c.bytes))?;
        }
        (None, Some(p)) if p.present || p.binder.is_some() => {
            let done = lane.delete(c.at.who, p.slot, c.key);
            done.map_err(|why| refused(lane, why, c.bytes))?;
        }
        (None, _) => {}
    }
    if let Some(binder) = prev.and_then(|p| p.binder) {
        let record = shared.0.lock().take(c.at.lane);
        let record = record.ok_or_else(|| KvError::wrong("too many big values end at once; try again"))?;
        large::write_record(w, t, lane, c.at.lane, record, &binder)?;
        shared.0.lock().doomed.push_back(Doomed { record, binder });
    }
    Ok(present)
}

/// The upload's pieces have a binder now: its record goes, in the same epoch.
fn end_upload(w: &Worker, t: &Task, shared: &Shared, held: &mut Held<'_>, upload: (u16, u16)) -> Result<(), KvError> {
    let (lane_id, record) = upload;
    let lane = held.lane(lane_id);
    if let RecordSlot::Slot(slot) = large::find_record(w, t, lane, record)? {
        let key = large::record_key(record);
        let who = place(w, 1, &key).who;
        let gone = lane.delete(who, slot, &key);
        gone.map_err(|why| refused(lane, why, RECORD_BYTES))?;
    }
    shared.0.lock().give(lane_id, record);
    Ok(())
}

fn wait_durable(w: &Worker, t: &mut Task, epoch: u64) {
    if w.pool().is_sync() {
        t.wait_for(epoch);
    }
}

/// Runs `prepare`; `Some` says what the command waits for.
fn missing<T>(w: &mut Worker, t: &mut Task, what: Missing) -> Option<Step<T>> {
    match what {
        Missing::Nothing => None,
        Missing::Room => {
            w.want_room();
            Some(Step::Wait(Wait::Room))
        }
        Missing::Reads(reads) => Some(fetch(w, t, reads, false)),
    }
}

/// Sets a key. Returns whether it was set, and what `old` makes of the value before.
pub fn set<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    value: &mut NewValue<'_>,
    cond: Cond,
    expiry: Expiry,
    old: impl FnOnce(Value<'_>) -> R,
) -> Outcome<(bool, R)> {
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let c = [change(w, key, Some(value), expiry != Expiry::None)?];
    let shared = large::registry(w);
    let mut held = w.hold(lanes_of(&c));
    let need = prepare(w, t, &shared, &mut held, &c, true)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let (seen, prev_expiry, present) = look_at(t, &shared, large::piece_bytes(w), &mut held, &c[0], old)?;
    let epoch = held.lane(c[0].at.lane).open_epoch();
    let go = match cond {
        Cond::Always => true,
        Cond::IfAbsent => !present,
        Cond::IfPresent => present,
    };
    if go {
        let expiry_ms = match expiry {
            Expiry::None => None,
            Expiry::Keep => prev_expiry,
            Expiry::At(ms) => Some(ms),
        };
        put_value(w, t, &shared, &mut held, &c[0], value, expiry_ms)?;
    }
    drop(held);
    wait_durable(w, t, epoch);
    Ok(Step::Done((go, seen)))
}

/// Shows the present value to `old`; returns its expiry and whether there is one.
fn look_at<R>(
    t: &Task,
    shared: &Arc<Shared>,
    piece_bytes: usize,
    held: &mut Held<'_>,
    c: &Change<'_>,
    old: impl FnOnce(Value<'_>) -> R,
) -> Result<(R, Option<u64>, bool), KvError> {
    let lane = held.lane(c.at.lane);
    match find(t, lane, c.at, c.key)? {
        Found::Here { slot, fetched } => {
            let e: Entry<'_> = entry_of(t, lane, c.at, slot, fetched);
            let expiry = e.expiry_ms();
            Ok((old(value_of(shared, piece_bytes, Some(e))), expiry, true))
        }
        _ => Ok((old(Value::Absent), None, false)),
    }
}

fn put_value(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    c: &Change<'_>,
    value: &NewValue<'_>,
    expiry_ms: Option<u64>,
) -> Result<(), KvError> {
    match value {
        NewValue::Inline(v) => {
            commit(w, t, shared, held, c, Some((Kind::Value, v, expiry_ms)))?;
        }
        NewValue::Large(u) => {
            let binder = u.binder.encode();
            commit(w, t, shared, held, c, Some((Kind::Binder, &binder, expiry_ms)))?;
            end_upload(w, t, shared, held, (u.lane, u.record))?;
        }
    }
    Ok(())
}

/// Sets several keys, all or none, also through a crash. Named twice, the last one counts.
pub fn mset(w: &mut Worker, t: &mut Task, pairs: &mut [(&[u8], NewValue<'_>)]) -> Outcome<()> {
    may_write(w)?;
    too_many(pairs.len())?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let changes: Result<Vec<_>, _> = pairs.iter().map(|(k, v)| change(w, k, Some(v), false)).collect();
    let changes = changes?;
    let shared = large::registry(w);
    let mut held = w.hold(lanes_of(&changes));
    let need = prepare(w, t, &shared, &mut held, &changes, true)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let mut epoch = 0;
    for (c, (_, value)) in changes.iter().zip(pairs.iter()) {
        put_value(w, t, &shared, &mut held, c, value, None)?;
        epoch = held.lane(c.at.lane).open_epoch();
    }
    drop(held);
    wait_durable(w, t, epoch);
    Ok(Step::Done(()))
}

fn too_many(keys: usize) -> Result<(), KvError> {
    match keys <= KEYS_PER_COMMAND_MAX {
        true => Ok(()),
        false => Err(KvError::new(
            KvErrorKind::TooLarge,
            format!("the command names {keys} keys; at most {KEYS_PER_COMMAND_MAX} are allowed"),
        )),
    }
}

/// Deletes keys, all in one, also through a crash. Returns how many there were.
pub fn del(w: &mut Worker, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
    may_write(w)?;
    too_many(keys.len())?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let changes: Result<Vec<_>, _> = keys.iter().map(|k| change(w, k, None, false)).collect();
    let changes = changes?;
    let shared = large::registry(w);
    let mut held = w.hold(lanes_of(&changes));
    let need = prepare(w, t, &shared, &mut held, &changes, false)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let (mut count, mut epoch) = (0, 0);
    for c in &changes {
        count += u64::from(commit(w, t, &shared, &mut held, c, None)?);
        epoch = held.lane(c.at.lane).open_epoch();
    }
    drop(held);
    wait_durable(w, t, epoch);
    Ok(Step::Done(count))
}

/// Adds to an integer; an absent key counts as 0. The expiry stays.
pub fn incr_by(w: &mut Worker, t: &mut Task, key: &[u8], delta: i64) -> Outcome<i64> {
    let not_int = || KvError::wrong("value is not an integer or out of range");
    modify(w, t, key, 24, |e| {
        let now = match &e {
            None => 0,
            Some(e) if e.kind() == Kind::Binder => return Err(not_int()),
            Some(e) => parse_i64(e.value()).ok_or_else(not_int)?,
        };
        let sum = now
            .checked_add(delta)
            .ok_or_else(|| KvError::wrong("increment or decrement would overflow"))?;
        let expiry = e.and_then(|e| e.expiry_ms());
        Ok((Some((Kind::Value, sum.to_string().into_bytes(), expiry)), sum))
    })
}

/// Sets (`Some`) or takes away (`None`) a key's expiry. Returns whether it did.
/// A time that has passed deletes the key.
pub fn expire(w: &mut Worker, t: &mut Task, key: &[u8], at_ms: Option<u64>, cond: ExpireCond) -> Outcome<bool> {
    let now = w.now_ms();
    if at_ms.is_some_and(|at| at <= now) {
        return expire_past(w, t, key, at_ms.unwrap_or(0), cond);
    }
    modify(w, t, key, 0, |e| {
        let Some(e) = e else { return Ok((None, false)) };
        if !expire_goes(e.expiry_ms(), at_ms, cond) {
            return Ok((None, false));
        }
        Ok((Some((e.kind(), e.value().to_vec(), at_ms)), true))
    })
}

fn expire_goes(now: Option<u64>, new: Option<u64>, cond: ExpireCond) -> bool {
    match (cond, now, new) {
        (_, None, None) => false,
        (ExpireCond::Always, ..) => true,
        (ExpireCond::Nx, now, _) => now.is_none(),
        (ExpireCond::Xx, now, _) => now.is_some(),
        (ExpireCond::Gt, Some(now), Some(new)) => new > now,
        (ExpireCond::Gt, ..) => false,
        (ExpireCond::Lt, Some(now), Some(new)) => new < now,
        (ExpireCond::Lt, ..) => true,
    }
}

fn expire_past(w: &mut Worker, t: &mut Task, key: &[u8], at_ms: u64, cond: ExpireCond) -> Outcome<bool> {
    let mut step = crate::read::read(w, t, 0, key, false, |e| {
        e.is_some_and(|e| expire_goes(e.expiry_ms(), Some(at_ms), cond))
    })?;
    if step == Step::Done(true) {
        step = match del(w, t, &[key])? {
            Step::Done(n) => Step::Done(n > 0),
            Step::Wait(wait) => Step::Wait(wait),
        };
    }
    Ok(step)
}

type Changed = Option<(Kind, Vec<u8>, Option<u64>)>;

/// Reads a key and writes what `f` makes of it (None: leave it), in one.
fn modify<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    value_max: usize,
    f: impl FnOnce(Option<Entry<'_>>) -> Result<(Changed, R), KvError>,
) -> Outcome<R> {
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let mut c = change(w, key, None, true)?;
    c.bytes += value_max + 8;
    let shared = large::registry(w);
    let mut held = w.hold([c.at.lane]);
    let need = prepare(w, t, &shared, &mut held, std::slice::from_ref(&c), true)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let lane = held.lane(c.at.lane);
    let epoch = lane.open_epoch();
    let mut found = find(t, lane, c.at, c.key)?;
    if let Found::Here { slot, fetched } = found {
        let bytes = c.bytes + entry_of(t, lane, c.at, slot, fetched).len_bytes();
        if !reserve(lane, bytes, true)? {
            drop(held);
            w.want_room();
            return Ok(Step::Wait(Wait::Room));
        }
        // Making room may have moved it.
        found = find(t, lane, c.at, c.key)?;
        if let Found::Read(plan) = found {
            drop(held);
            return Ok(fetch(w, t, vec![(c.at.lane, plan)], false));
        }
    }
    let (new, result) = match found {
        Found::Here { slot, fetched } => f(Some(entry_of(t, lane, c.at, slot, fetched)))?,
        _ => f(None)?,
    };
    if let Some((kind, value, expiry_ms)) = new {
        let slot = match found {
            Found::Here { slot, .. } | Found::Gone(slot) => Some(slot),
            _ => None,
        };
        // A binder's pieces stay bound: only its entry is written anew.
        let rebinds = kind == Kind::Binder;
        match rebinds {
            true => rewrite(lane, &c, slot, kind, &value, expiry_ms)?,
            false => {
                commit(w, t, &shared, &mut held, &c, Some((kind, &value, expiry_ms)))?;
            }
        }
    }
    drop(held);
    wait_durable(w, t, epoch);
    Ok(Step::Done(result))
}

fn rewrite(
    lane: &mut Lane,
    c: &Change<'_>,
    slot: Option<Slot>,
    kind: Kind,
    value: &[u8],
    expiry_ms: Option<u64>,
) -> Result<(), KvError> {
    let entry = NewEntry {
        kind,
        space: 0,
        flags: 0,
        link: Loc::NONE,
        expiry_ms,
        version: None,
        key: c.key,
        value,
    };
    let put = lane.put(c.at.who, slot, &entry);
    put.map(|_| ()).map_err(|why| refused(lane, why, c.bytes))
}

/// Deletes everything, atomically.
pub fn flush_all(w: &mut Worker, t: &mut Task) -> Outcome<()> {
    may_write(w)?;
    let shared = large::registry(w);
    let mut held = w.hold_all();
    if !shared.0.lock().started || !held.each().all(|(_, l)| l.can_flush_all()) {
        drop(held);
        w.want_quiet();
        return Ok(Step::Wait(Wait::Room));
    }
    let mut epoch = 0;
    for (_, lane) in held.each() {
        lane.flush_all().map_err(|_| KvError::wrong("busy; try again"))?;
        epoch = lane.open_epoch();
    }
    w.pool().note_flush_of_all();
    shared.0.lock().forget_all(large::record_places(w));
    drop(held);
    w.end_quiet();
    wait_durable(w, t, epoch);
    Ok(Step::Done(()))
}

/// Deletes a key whose time is up, whatever it binds.
pub(crate) fn expire_now(w: &mut Worker, t: &mut Task, key: &[u8]) -> Outcome<()> {
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let c = change(w, key, None, false)?;
    let shared = large::registry(w);
    let mut held = w.hold([c.at.lane]);
    let need = prepare(w, t, &shared, &mut held, std::slice::from_ref(&c), false)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let lane = held.lane(c.at.lane);
    if let Found::Gone(_) = find(t, lane, c.at, c.key)? {
        commit(w, t, &shared, &mut held, &c, None)?;
    }
    Ok(Step::Done(()))
}

/// Deletes internal keys (pieces, records). Returns whether all are gone.
pub(crate) fn del_internal(w: &mut Worker, t: &mut Task, keys: &[Vec<u8>]) -> Outcome<()> {
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let places: Vec<Place> = keys.iter().map(|k| place(w, 1, k)).collect();
    let mut held = w.hold(places.iter().map(|p| p.lane));
    let mut reads = Vec::new();
    for (key, &at) in keys.iter().zip(&places) {
        let lane = held.lane(at.lane);
        if !reserve(lane, RECORD_BYTES, false)? {
            drop(held);
            w.want_room();
            return Ok(Step::Wait(Wait::Room));
        }
        match find(t, lane, at, key)? {
            Found::Read(plan) => reads.push((at.lane, plan)),
            Found::Here { slot, .. } => {
                lane.delete(at.who, slot, key).map_err(|why| refused(lane, why, RECORD_BYTES))?;
            }
            Found::Absent | Found::Gone(_) => {}
        }
    }
    drop(held);
    match reads.is_empty() {
        true => Ok(Step::Done(())),
        false => Ok(fetch(w, t, reads, true)),
    }
}
