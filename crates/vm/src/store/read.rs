//! Reading one object: a look under the lane's lock, and for a miss one read of the device without it.
//!
//! Promises: what is shown was the object's newest value at some moment of the call; it is promoted only if it still is.
//! Never: holds a lock across the read, or takes memory but a buffer that is kept for reuse.

use super::error::ObjectError;
use super::open::Store;
use super::table::{Shape, State};
use super::tables::{Tables, subject};
use crate::inside;
use terrace_log::entry::Entry;
use terrace_log::{Directory, Kind, Loc, ObjectId, Slot};
use terrace_pool::Lane;
use terrace_tiers::{ReadPlan, policy};

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// No object.
    Free,
    /// An object that was never written.
    Zeros,
    /// All bytes are this one.
    Fill(u8),
    /// These bytes.
    Bytes(&'a [u8]),
}

/// What a look under the lock came to.
pub(crate) enum Look<R> {
    /// It was shown.
    Seen(R),
    /// It must be read first; its segment is held.
    Read(ReadPlan),
}

/// Looks at an object in its locked lane. `f` sees it if it is in memory.
pub(crate) fn look<R>(
    lane: &mut Lane<Tables>,
    oid: ObjectId,
    f: impl FnOnce(Value<'_>) -> R,
) -> Look<R> {
    let slot = match lane.dir.get(oid) {
        State::Free => return Look::Seen(f(Value::Free)),
        State::Zeros => return Look::Seen(f(Value::Zeros)),
        State::Fill(byte) => return Look::Seen(f(Value::Fill(byte))),
        State::At(slot) => slot,
    };
    let Some(value) = near(lane, slot) else {
        return Look::Read(lane.plan_read(slot.loc()));
    };
    let seen = f(value);
    lane.count(|s| s.hits_dram += 1);
    warm(lane, oid, slot);
    Look::Seen(seen)
}

/// What a slot's entry holds, if that takes no read.
pub(crate) fn near(lane: &Lane<Tables>, slot: Slot) -> Option<Value<'_>> {
    let entry = match slot.loc().in_memory() {
        true => Some(lane.entry(slot)),
        false => lane.buffered(slot),
    };
    entry.map(|e| value_of(&e))
}

/// Whether nothing is there: where a store keeps its data, a tombstone may be.
pub(crate) fn is_free(lane: &Lane<Tables>, oid: ObjectId) -> bool {
    match lane.dir.get(oid) {
        State::Free => true,
        State::At(slot) => near(lane, slot) == Some(Value::Free),
        State::Zeros | State::Fill(_) => false,
    }
}

fn warm(lane: &mut Lane<Tables>, oid: ObjectId, slot: Slot) {
    let warmer = slot.with_heat(policy::warmer(slot.heat()));
    if warmer != slot {
        lane.dir.set(oid, State::At(warmer));
    }
}

/// What an entry holds.
pub(crate) fn value_of<'a>(entry: &Entry<'a>) -> Value<'a> {
    match entry.kind() {
        Kind::Tombstone => Value::Free,
        _ => Value::Bytes(entry.value()),
    }
}

/// The entry in what was read, if it is whole and this object's.
pub(crate) fn verified<'a>(
    bytes: &'a [u8],
    plan: &ReadPlan,
    oid: ObjectId,
) -> Result<Entry<'a>, ObjectError> {
    let damaged = |_| ObjectError::damaged(plan);
    let entry = Entry::from_media(&bytes[plan.skip..plan.len], plan.seed).map_err(damaged)?;
    entry.verify_value(plan.seed).map_err(damaged)?;
    match entry.key() == oid.key() {
        true => Ok(entry),
        false => Err(ObjectError::damaged(plan)),
    }
}

/// A read ended: its hold goes, and what it brought comes up to DRAM if it is still the newest.
pub(crate) fn settle(
    lane: &mut Lane<Tables>,
    oid: ObjectId,
    plan: &ReadPlan,
    entry: Result<&Entry<'_>, ObjectError>,
    comes_up: bool,
) {
    lane.count(|s| s.device_read_bytes += plan.len as u64);
    settle_counted(lane, oid, plan, entry, comes_up);
}

/// The same where the bytes that were read are counted already.
pub(crate) fn settle_counted(
    lane: &mut Lane<Tables>,
    oid: ObjectId,
    plan: &ReadPlan,
    entry: Result<&Entry<'_>, ObjectError>,
    comes_up: bool,
) {
    lane.unpin(plan.segment);
    lane.count(|s| {
        s.misses += 1;
        s.damaged_reads += u64::from(entry.is_err());
    });
    let Ok(entry) = entry else { return };
    let who = subject(oid);
    if !comes_up {
        lane.recall(who, entry.len_bytes());
    } else if let Some(slot) = lane.dir.find(who, |s| s.loc() == plan.loc) {
        warm(lane, oid, slot);
        lane.promote(who, plan.loc, entry);
    }
}

impl Store {
    /// Shows an object to `f`, perhaps with its lane locked: `f` is short and calls nothing of the store.
    pub fn read<R>(
        &self,
        table: u16,
        id: u64,
        f: impl FnOnce(Value<'_>) -> R,
    ) -> Result<R, ObjectError> {
        self.read_at(table, id, |value, _| f(value))
    }

    /// Whether `f` is true of an object as it is in DRAM, with its lane locked. One that is not there is read by nobody: false.
    pub(crate) fn near_is(&self, table: u16, id: u64, f: impl FnOnce(Value<'_>) -> bool) -> bool {
        let Ok((oid, lane_id)) = self.place(table, id) else {
            return false;
        };
        inside::run(|| {
            let lane = self.pool.lane(lane_id);
            match lane.dir.get(oid) {
                State::At(slot) => near(&lane, slot).is_some_and(f),
                _ => false,
            }
        })
    }

    /// Whether an object is there.
    pub(crate) fn has(&self, table: u16, id: u64) -> bool {
        let Ok((oid, lane_id)) = self.place(table, id) else {
            return false;
        };
        let lane = self.pool.lane(lane_id);
        matches!(lane.dir.get(oid), State::At(_) | State::Fill(_))
    }

    /// Which of up to 64 objects are not there, or were never written: a bit for each, the first the lowest.
    pub(crate) fn free_of(&self, table: u16, ids: &[u64]) -> u64 {
        let mut free = 0;
        if self.here().is_err() {
            return free;
        }
        for lane_id in 0..self.lanes() {
            let own = |id: u64| self.dealt.lane_of(id) == lane_id;
            if !ids.iter().any(|id| own(*id)) {
                continue;
            }
            let lane = self.pool.lane(lane_id);
            for (at, id) in ids.iter().enumerate().filter(|(_, id)| own(**id)) {
                let state = lane.dir.get(ObjectId::new(table, *id));
                free |= u64::from(matches!(state, State::Free | State::Zeros)) << at;
            }
        }
        free
    }

    /// The same as [`Store::read`]; `f` hears also where on the device the bytes were read just now.
    pub(crate) fn read_at<R>(
        &self,
        table: u16,
        id: u64,
        f: impl FnOnce(Value<'_>, Option<Loc>) -> R,
    ) -> Result<R, ObjectError> {
        self.read_if(table, id, |_| true, f)
    }

    /// The same; what was read comes up to DRAM only if `comes_up` says so of its length.
    pub(crate) fn read_if<R>(
        &self,
        table: u16,
        id: u64,
        comes_up: impl Fn(usize) -> bool,
        f: impl FnOnce(Value<'_>, Option<Loc>) -> R,
    ) -> Result<R, ObjectError> {
        let (oid, lane_id) = self.place(table, id)?;
        // `f` is used once: by the look, or after the read.
        let mut f = Some(f);
        let mut show = |value: Value<'_>, at| (f.take().expect("shown once"))(value, at);
        // A fault of `f`'s own in a region would want the lane that is locked: it ends the program with a message instead.
        let looked = inside::run(|| {
            let mut lane = self.pool.lane(lane_id);
            look(&mut lane, oid, |value| show(value, None))
        });
        let plan = match looked {
            Look::Seen(seen) => return Ok(seen),
            Look::Read(plan) => plan,
        };
        let mut buf = self.take_buf(plan.len);
        let read = self
            .pool
            .device()
            .read_into(plan.offset, &mut buf[..plan.len]);
        let entry = match &read {
            Ok(()) => verified(&buf, &plan, oid),
            Err(e) => Err(ObjectError::of_read(e, &plan)),
        };
        settle(
            &mut self.pool.lane(lane_id),
            oid,
            &plan,
            entry.as_ref().map_err(|e| *e),
            entry.as_ref().is_ok_and(|e| comes_up(e.value().len())),
        );
        let seen = entry.map(|entry| show(value_of(&entry), Some(plan.loc)));
        self.keep_buf(buf);
        seen
    }

    /// Whether an object has this id. Reads nothing.
    pub fn contains(&self, table: u16, id: u64) -> Result<bool, ObjectError> {
        self.shape(table)?;
        let (oid, lane) = self.place(table, id)?;
        Ok(!is_free(&self.pool.lane(lane), oid))
    }

    /// Copies an object to the start of `out`: how many bytes it has, None if it is free.
    pub fn get(&self, table: u16, id: u64, out: &mut [u8]) -> Result<Option<usize>, ObjectError> {
        let shape = self.shape(table)?;
        self.read(table, id, |value| copy_out(table, shape, value, out))?
    }
}

/// Copies what was seen to the start of `out`.
pub(crate) fn copy_out(
    table: u16,
    shape: Shape,
    value: Value<'_>,
    out: &mut [u8],
) -> Result<Option<usize>, ObjectError> {
    let fixed = match shape {
        Shape::Fixed(bytes) => bytes as usize,
        Shape::Any => 0,
    };
    let len = match value {
        Value::Free => return Ok(None),
        Value::Zeros | Value::Fill(_) => fixed,
        Value::Bytes(bytes) => bytes.len(),
    };
    let room = out.len() as u64;
    let out = out.get_mut(..len).ok_or(ObjectError::Length {
        table,
        asked: room,
        allowed: len as u64,
    })?;
    match value {
        Value::Bytes(bytes) => out.copy_from_slice(bytes),
        Value::Fill(byte) => out.fill(byte),
        _ => out.fill(0),
    }
    Ok(Some(len))
}
