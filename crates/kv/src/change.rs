//! How a command changes keys: first prepare, then commit.
//!
//! A command first makes sure that nothing is missing (room, reads, records) with
//! its lanes held, then changes everything without letting go: there is no state in
//! between for another command, or for a crash. Never: waits with a lane held, or
//! keeps a hold on a segment that nobody will read.

use crate::find::{
    Found, Looked, Place, READS_PER_TASK_MAX, Unreadable, damage_of, entry_of, fetch,
    find_to_replace, find_unasked, let_go, place, refused, reserve,
};
use crate::how::NewValue;
use crate::item::value_of;
use crate::large::{self, RECORD_BYTES, RecordSlot};
use crate::meta::{META_BYTES, Meta, meta_of, stored, user_value};
use crate::shared::{Binder, Doomed, Shared, binder, inline_max_bytes};
use crate::{KEY_MAX_BYTES, KEYS_PER_COMMAND_MAX, KvError, KvErrorKind, Step, Value, Wait};
use std::collections::HashMap;
use std::sync::Arc;
use terrace_log::entry::entry_bytes;
use terrace_log::{Kind, Loc, NewEntry, Slot};
use terrace_pool::{Held, Lane, Task, Worker};
use terrace_tiers::ReadPlan;

/// The state that a change replaces.
#[derive(Clone, Copy)]
struct Prev {
    slot: Slot,
    /// Set when the entry, expired or not, binds pieces.
    binder: Option<Binder>,
    present: bool,
}

fn prev_of(t: &Task, lane: &Lane, at: Place, found: Result<Found, Unreadable>) -> Option<Prev> {
    let (slot, fetched, present) = match found {
        Err(Unreadable(slot)) => {
            return Some(Prev {
                slot,
                binder: None,
                present: true,
            });
        }
        Ok(Found::Absent | Found::Read(_)) => return None,
        Ok(Found::Gone(slot)) => {
            let fetched = !slot.loc().in_memory() && t.fetched(at.lane, slot.loc()).is_some();
            (slot, fetched, false)
        }
        Ok(Found::Here { slot, fetched }) => (slot, fetched, true),
    };
    let e = entry_of(t, lane, at, slot, fetched);
    let binder = match e.kind() {
        Kind::Binder => binder(user_value(&e)),
        _ => None,
    };
    Some(Prev {
        slot,
        binder,
        present,
    })
}

/// One key's part of a command.
pub(crate) struct Change<'a> {
    pub key: &'a [u8],
    pub at: Place,
    /// Longest entry it may append.
    pub bytes: usize,
    /// Lane and record of the upload that it binds.
    pub upload: Option<(u16, u16)>,
    /// The pieces of the version that is present stay, whatever becomes of the key: its end needs no record.
    pub stays: bool,
    /// It asks nothing of the value before, and is the command's only one.
    pub unasked: bool,
    /// What `prepare` found, if nothing else of the command can change it before `commit`.
    pub found: Option<Known>,
}

/// Where a key is, and what it was.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    looked: Looked,
    prev: Option<Prev>,
}

impl Known {
    pub(crate) fn new(t: &Task, lane: &Lane, at: Place, looked: Looked) -> Known {
        let prev = prev_of(t, lane, at, looked);
        Known { looked, prev }
    }
    /// Whether it is there, in pieces.
    pub(crate) fn binds(self) -> bool {
        self.prev.is_some_and(|p| p.present && p.binder.is_some())
    }
    /// The value that `slot` names, of which nothing else is known.
    fn unread(slot: Slot) -> Known {
        let (binder, present) = (None, true);
        Known {
            looked: Ok(Found::Gone(slot)),
            prev: Some(Prev {
                slot,
                binder,
                present,
            }),
        }
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), KvError> {
    match key.len() <= KEY_MAX_BYTES {
        true => Ok(()),
        false => Err(KvError::new(
            KvErrorKind::TooLarge,
            format!(
                "the key has {} bytes; at most {KEY_MAX_BYTES} are allowed",
                key.len()
            ),
        )),
    }
}

pub(crate) fn change<'a>(
    w: &Worker,
    key: &'a [u8],
    value: Option<&NewValue<'_>>,
    expiry: bool,
) -> Result<Change<'a>, KvError> {
    check_key(key)?;
    let (len, upload) = match value {
        None => (0, None),
        Some(NewValue::Inline(v)) if v.len() > inline_max_bytes(w) => {
            let most = inline_max_bytes(w);
            return Err(KvError::new(
                KvErrorKind::TooLarge,
                format!(
                    "the value has {} bytes; above {most} it must come in pieces",
                    v.len()
                ),
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
        bytes: entry_bytes(key.len(), len + META_BYTES, expiry, false) + RECORD_BYTES,
        upload,
        stays: false,
        unasked: false,
        found: None,
    })
}

/// Whether what a value was brought in by is still there. With a lane held that stays so: a deletion of everything holds it, too.
pub(crate) fn still_there(w: &Worker, value: &NewValue<'_>) -> Result<(), KvError> {
    match value {
        NewValue::Large(upload) => upload.usable(w),
        NewValue::Inline(_) => Ok(()),
    }
}

pub(crate) fn lanes_of<'a>(changes: &'a [Change<'_>]) -> impl Iterator<Item = u16> + 'a {
    let uploads = changes.iter().filter_map(|c| c.upload.map(|u| u.0));
    changes.iter().map(|c| c.at.lane).chain(uploads)
}

/// What is missing before the changes can be made.
pub(crate) enum Missing {
    Nothing,
    Room,
    Reads(Vec<(u16, ReadPlan)>),
}

/// Makes room and finds all keys and records that the changes touch.
pub(crate) fn prepare(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    changes: &mut [Change<'_>],
    grows: bool,
) -> Result<Missing, KvError> {
    for (id, lane) in held.each() {
        let own = changes.iter().filter(|c| c.at.lane == id).map(|c| c.bytes);
        let records = changes
            .iter()
            .filter(|c| c.upload.is_some_and(|u| u.0 == id))
            .count();
        let bytes = own.sum::<usize>() + records * RECORD_BYTES;
        if !reserve(w, lane, bytes, grows)? {
            return Ok(Missing::Room);
        }
    }
    let mut reads = Vec::new();
    let all = find_all(w, t, shared, held, changes, &mut reads);
    match all {
        Ok(Some(found)) if reads.is_empty() => {
            if let [only] = changes {
                only.found = Some(found);
            }
            Ok(Missing::Nothing)
        }
        Ok(Some(_)) => Ok(Missing::Reads(reads)),
        Ok(None) => {
            let_go(held, reads);
            Ok(Missing::Room)
        }
        Err(e) => {
            let_go(held, reads);
            Err(e)
        }
    }
}

/// Finds every key and record; what must be read first goes into `reads`.
/// Returns what the last key is; None: no record is free just now.
fn find_all(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    changes: &[Change<'_>],
    reads: &mut Vec<(u16, ReadPlan)>,
) -> Result<Option<Known>, KvError> {
    let mut ends = Ends::default();
    let mut last = Known {
        looked: Ok(Found::Absent),
        prev: None,
    };
    for c in changes {
        let lane = held.lane(c.at.lane);
        last = known(t, lane, c);
        if let Ok(Found::Read(plan)) = last.looked {
            lane.count(|s| s.verify_reads += 1);
            reads.push((c.at.lane, plan));
        } else {
            let may_end = |p: Prev| p.binder.is_some() && !(c.stays && p.present);
            let bound = last.prev.is_some_and(may_end);
            if let Some(nth) = ends.next(c, bound) {
                let Some(record) = shared.registry.lock().peek(c.at.lane, nth) else {
                    return can_ever_end(w, shared, changes, c.at.lane, nth).map(|()| None);
                };
                if let RecordSlot::Read(plan) = large::find_record(w, t, lane, record)? {
                    reads.push((c.at.lane, plan));
                }
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
    Ok(Some(last))
}

fn known(t: &Task, lane: &mut Lane, c: &Change<'_>) -> Known {
    let looked = match c.unasked {
        true => find_unasked(t, lane, c.at, c.key),
        false => Ok(find_to_replace(t, lane, c.at, c.key)),
    };
    match looked {
        Ok(looked) => Known::new(t, lane, c.at, looked),
        Err(slot) => Known::unread(slot),
    }
}

/// The big values that a command's changes end, each of which takes a record.
#[derive(Default)]
struct Ends<'a> {
    by_lane: HashMap<u16, usize>,
    /// Whether the last change of a key so far binds pieces that may end; only keys that did before or do.
    latest: HashMap<&'a [u8], bool>,
}

impl<'a> Ends<'a> {
    /// Takes in a change whose key is `bound` before the command, by a version that may end. If it ends a big
    /// value, how many others in its lane the command ends before.
    fn next(&mut self, c: &Change<'a>, bound: bool) -> Option<usize> {
        let ends = self.latest.get(c.key).copied().unwrap_or(bound);
        if ends || c.upload.is_some() {
            self.latest.insert(c.key, c.upload.is_some());
        }
        ends.then(|| {
            let n = self.by_lane.entry(c.at.lane).or_default();
            *n += 1;
            *n - 1
        })
    }
}

/// Refuses what no waiting helps: more records at once than the lane has.
fn can_ever_end(
    w: &Worker,
    shared: &Shared,
    changes: &[Change<'_>],
    lane: u16,
    nth: usize,
) -> Result<(), KvError> {
    let uploads = changes
        .iter()
        .filter(|c| c.upload.is_some_and(|u| u.0 == lane))
        .count();
    let most = large::records_of(w, shared, lane).saturating_sub(uploads);
    match nth < most {
        true => Ok(()),
        false => Err(KvError::new(
            KvErrorKind::TooLarge,
            format!(
                "the command replaces or deletes more than {most} big values of one lane at once; \
                 at most {most} are allowed; split it into smaller commands"
            ),
        )),
    }
}

/// Where a change's key is, after `prepare`.
pub(crate) fn found_now(t: &Task, lane: &mut Lane, c: &Change<'_>) -> Looked {
    match c.found {
        Some(known) => known.looked,
        None => find_to_replace(t, lane, c.at, c.key),
    }
}

/// What a change did.
pub(crate) struct Committed {
    /// Whether the key was present.
    pub present: bool,
    /// The epoch that its answer becomes true with.
    pub wait: Option<u64>,
}

/// A key's new entry.
pub(crate) struct New<'a> {
    pub kind: Kind,
    /// With its prefix, if `flags` says so.
    pub value: &'a [u8],
    pub expiry_ms: Option<u64>,
    pub flags: u8,
}

/// Makes one change. Everything it needs was prepared. The pieces of the versions `bound` stay: another key has them.
pub(crate) fn commit(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    c: &Change<'_>,
    new: Option<New<'_>>,
    bound: &[u64],
) -> Result<Committed, KvError> {
    let lane = held.lane(c.at.lane);
    let Known { looked, prev } = match c.found {
        Some(known) => known,
        None => {
            let looked = find_to_replace(t, lane, c.at, c.key);
            Known::new(t, lane, c.at, looked)
        }
    };
    let seen = match looked {
        Ok(Found::Read(plan)) => {
            lane.unpin(plan.segment);
            return Err(KvError::wrong(
                "a key moved while it was changed; try again",
            ));
        }
        Ok(found) => seen_with(lane, found),
        Err(unreadable) => {
            let why = unreadable.error(t, c.at);
            tracing::warn!("{why}; it is replaced or deleted; if it bound pieces, they stay");
            None
        }
    };
    let present = prev.as_ref().is_some_and(|p| p.present);
    let changed = Some(lane.open_epoch());
    let wait = match (new, &prev) {
        (Some(new), _) => {
            put(w, shared, lane, c, prev.as_ref().map(|p| p.slot), &new)?;
            changed
        }
        (None, Some(p)) if p.present || p.binder.is_some() => {
            shared.watch.touch(c.key);
            let done = lane.delete(c.at.who, p.slot, c.key);
            done.map_err(|why| refused(w, lane, why, c.bytes))?;
            changed
        }
        (None, _) => seen,
    };
    let ended = prev.and_then(|p| p.binder);
    if let Some(binder) = ended.filter(|b| !bound.contains(&b.version)) {
        let record = shared.registry.lock().take(c.at.lane);
        let record =
            record.ok_or_else(|| KvError::wrong("too many big values end at once; try again"))?;
        large::write_record(w, t, lane, c.at.lane, record, &binder)?;
        shared.registry.lock().doom(Doomed { record, binder });
    }
    Ok(Committed { present, wait })
}

/// Appends a key's new entry, in the place of what `prev` names.
pub(crate) fn put(
    w: &Worker,
    shared: &Shared,
    lane: &mut Lane,
    c: &Change<'_>,
    prev: Option<Slot>,
    new: &New<'_>,
) -> Result<(), KvError> {
    shared.watch.touch(c.key);
    let put = lane.put(c.at.who, prev, &entry(c.key, new));
    put.map(|_| ())
        .map_err(|why| refused(w, lane, why, c.bytes))
}

/// A user key's new entry as the lane takes it.
pub(crate) fn entry<'a>(key: &'a [u8], new: &New<'a>) -> NewEntry<'a> {
    NewEntry {
        kind: new.kind,
        space: 0,
        flags: new.flags,
        link: Loc::NONE,
        expiry_ms: new.expiry_ms,
        version: None,
        key,
        value: new.value,
    }
}

/// The upload's pieces have a binder now: its record goes, in the same epoch.
pub(crate) fn end_upload(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    upload: (u16, u16),
) -> Result<(), KvError> {
    let (lane_id, record) = upload;
    let lane = held.lane(lane_id);
    if let RecordSlot::Slot(slot) = large::find_record(w, t, lane, record)? {
        let key = large::record_key(record);
        let who = place(w, 1, &key).who;
        let gone = lane.delete(who, slot, &key);
        gone.map_err(|why| refused(w, lane, why, RECORD_BYTES))?;
    }
    shared.registry.lock().give(lane_id, record);
    Ok(())
}

/// The epoch that makes durable what was found. A command that changes nothing waits
/// for this one only: the open epoch may never end when nothing is written.
pub(crate) fn seen_with(lane: &Lane, found: Found) -> Option<u64> {
    match found {
        Found::Absent => lane.absent_with(),
        Found::Gone(slot) | Found::Here { slot, .. } => lane.durable_with(slot),
        Found::Read(_) => None,
    }
}

/// In sync mode the reply waits for `epoch`.
pub(crate) fn wait_durable(w: &Worker, t: &mut Task, epoch: Option<u64>) {
    if let Some(epoch) = epoch.filter(|_| w.pool().is_sync()) {
        t.wait_for(epoch);
    }
}

/// Gets what `prepare` found missing; `Some` says what the command waits for.
pub(crate) fn missing<T>(w: &mut Worker, t: &mut Task, what: Missing) -> Option<Step<T>> {
    get_missing(w, t, what, false)
}

/// The same for a command that asks nothing of the values before: of long ones only the keys are kept.
pub(crate) fn missing_keys<T>(w: &mut Worker, t: &mut Task, what: Missing) -> Option<Step<T>> {
    get_missing(w, t, what, true)
}

fn get_missing<T>(w: &mut Worker, t: &mut Task, what: Missing, keys_only: bool) -> Option<Step<T>> {
    match what {
        Missing::Nothing => None,
        Missing::Room => {
            w.want_room();
            Some(Step::Wait(Wait::Room))
        }
        Missing::Reads(reads) => Some(fetch(w, t, reads, keys_only)),
    }
}

/// What a command saw of a key before it changed it.
pub(crate) struct Seen<R> {
    /// What `old` made of the value.
    pub shown: R,
    pub expiry_ms: Option<u64>,
    pub present: bool,
    /// The epoch that makes it durable.
    pub wait: Option<u64>,
}

/// Shows the present value to `old`. With `exact` the entry must be readable.
pub(crate) fn look_at<R>(
    t: &Task,
    shared: &Arc<Shared>,
    piece_bytes: usize,
    held: &mut Held<'_>,
    c: &Change<'_>,
    exact: bool,
    old: impl FnOnce(Value<'_>, Option<Meta>) -> R,
) -> Result<Seen<R>, KvError> {
    let lane = held.lane(c.at.lane);
    let found = match found_now(t, lane, c) {
        Ok(found) => found,
        Err(unreadable) if exact => return Err(unreadable.error(t, c.at)),
        // There is one, and no more is known of it.
        Err(_) => {
            return Ok(Seen {
                shown: old(Value::Absent, None),
                expiry_ms: None,
                present: true,
                wait: None,
            });
        }
    };
    let wait = seen_with(lane, found);
    let e = match found {
        Found::Here { slot, fetched } => Some(entry_of(t, lane, c.at, slot, fetched)),
        _ => None,
    };
    // A damaged value is never shown; that it is there counts all the same.
    let shown = e.filter(|_| damage_of(t, c.at, found).is_none());
    Ok(Seen {
        expiry_ms: e.as_ref().and_then(|e| e.expiry_ms()),
        present: e.is_some(),
        shown: old(
            value_of(shared, piece_bytes, shown),
            shown.as_ref().and_then(meta_of),
        ),
        wait,
    })
}

pub(crate) fn put_value(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut Held<'_>,
    c: &Change<'_>,
    value: &NewValue<'_>,
    (expiry_ms, meta): (Option<u64>, Option<Meta>),
) -> Result<Committed, KvError> {
    let binder;
    let (kind, bytes) = match value {
        NewValue::Inline(v) => (Kind::Value, *v),
        NewValue::Large(u) => {
            binder = u.binder.encode();
            (Kind::Binder, &binder[..])
        }
    };
    let (bytes, flags) = stored(bytes, meta);
    let new = New {
        kind,
        value: &bytes,
        expiry_ms,
        flags,
    };
    let done = commit(w, t, shared, held, c, Some(new), &[])?;
    if let NewValue::Large(u) = value {
        end_upload(w, t, shared, held, (u.lane, u.record))?;
    }
    Ok(done)
}

pub(crate) fn too_many(keys: usize) -> Result<(), KvError> {
    match keys <= KEYS_PER_COMMAND_MAX {
        true => Ok(()),
        false => Err(KvError::new(
            KvErrorKind::TooLarge,
            format!("the command names {keys} keys; at most {KEYS_PER_COMMAND_MAX} are allowed"),
        )),
    }
}
