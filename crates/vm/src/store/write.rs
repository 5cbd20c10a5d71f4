//! Storing, freeing and changing objects.
//!
//! An update is an append at the dirty head of the object's lane, or is written over its entry if that has not begun to step down.
//! Who finds no room works towards it (see `driver`), for at most [`ROOM_WAIT_MAX`]. Promises: on an error nothing has changed.
//! Never: reads the device to store.

use super::error::ObjectError;
use super::open::{OBJECT_MAX_BYTES, Store, forget};
use super::read::{Value, copy_out, is_free, near};
use super::room::{self, SEGMENTS_MIN};
use super::table::{Shape, State};
use super::tables::{OBJECTS_MAX, Tables, subject};
use crate::inside;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use terrace_log::entry::entry_bytes;
use terrace_log::{Kind, Loc, NewEntry, ObjectId};
use terrace_pool::Lane;
use terrace_tiers::{Phase, Refused};

/// Longest wait for room.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for an epoch to become durable.
const DURABLE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why an update was not taken now.
enum Refusal {
    Room,
    Final(ObjectError),
}

fn refusal(why: Refused, asked: usize) -> Refusal {
    match why {
        Refused::Room => Refusal::Room,
        Refused::SsdFull | Refused::TooLarge | Refused::IndexFull => {
            Refusal::Final(ObjectError::Full {
                asked_bytes: asked as u64,
            })
        }
    }
}

/// Makes room for an object of `value_len` bytes in its locked lane. What takes the place of as much is taken by a full SSD, too: it waits for what was there to go.
fn reserve_in(lane: &mut Lane<Tables>, oid: ObjectId, value_len: usize) -> Result<(), Refusal> {
    let len = entry_bytes(ObjectId::KEY_BYTES, value_len, false, false);
    if lane.memory_segments() < SEGMENTS_MIN {
        return Err(Refusal::Final(ObjectError::Full {
            asked_bytes: len as u64,
        }));
    }
    let reserved = match room::bytes_for(len) > room::bytes_of(lane.dir.get(oid)) {
        true => lane.reserve(len),
        false => lane.reserve_as_much(len),
    };
    reserved.map_err(|why| refusal(why, len))
}

/// Writes an object in its locked lane.
fn put_in(lane: &mut Lane<Tables>, oid: ObjectId, value: &[u8]) -> Result<(), Refusal> {
    if let State::At(slot) = lane.dir.get(oid)
        && lane.overwrite(slot, value)
    {
        return Ok(());
    }
    reserve_in(lane, oid, value.len())?;
    append_in(lane, oid, value)
}

/// Appends an object for which room was made in the same breath.
fn append_in(lane: &mut Lane<Tables>, oid: ObjectId, value: &[u8]) -> Result<(), Refusal> {
    let key = oid.key();
    let prev = match lane.dir.get(oid) {
        State::At(slot) => Some(slot),
        _ => None,
    };
    let new = NewEntry {
        kind: Kind::Value,
        space: 0,
        flags: 0,
        link: Loc::NONE,
        expiry_ms: None,
        version: None,
        key: &key,
        value,
    };
    let put = lane.put(subject(oid), prev, &new);
    put.map(|_| ()).map_err(|why| refusal(why, value.len()))
}

impl Store {
    /// Does `f` in the locked lane.
    fn attempt<R>(
        &self,
        lane_id: u16,
        failed: bool,
        f: impl FnOnce(&mut Lane<Tables>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        // As in `read_at`: what is stored must not lie in a region.
        inside::run(|| {
            let mut lane = self.pool.lane(lane_id);
            if failed {
                lane.keep_in_memory();
            }
            let done = f(&mut lane);
            let pressed = lane.phase() == Phase::Idle && lane.wants_epoch(&lane.pressure());
            drop(lane);
            if pressed {
                self.driver.ring();
            }
            done
        })
    }

    /// Does `f` in the locked lane until it finds room, or the wait is over.
    fn with_room<R>(
        &self,
        lane_id: u16,
        asked: usize,
        mut f: impl FnMut(&mut Lane<Tables>) -> Result<R, Refusal>,
    ) -> Result<R, ObjectError> {
        let mut until = None;
        loop {
            let told = self.driver.told();
            // What need not outlive the program goes to DRAM as long as it takes it: who wrote to memory is not to be killed sooner than that.
            let failed = self.pool.failure().is_some();
            if failed && self.keeps {
                return Err(ObjectError::ReadOnly);
            }
            match self.attempt(lane_id, failed, &mut f) {
                Ok(r) => return Ok(r),
                Err(Refusal::Final(e)) => return Err(e),
                Err(Refusal::Room) if failed => return Err(ObjectError::ReadOnly),
                Err(Refusal::Room) => {}
            }
            let until = *until.get_or_insert_with(|| Instant::now() + ROOM_WAIT_MAX);
            if Instant::now() >= until {
                return Err(ObjectError::Full {
                    asked_bytes: asked as u64,
                });
            }
            self.driver.help(told);
        }
    }

    /// Whether what is put there takes room.
    fn check_length(&self, table: u16, len: usize) -> Result<bool, ObjectError> {
        let (shape, counted) = self.shape_and_counted(table)?;
        let (fits, allowed) = match shape {
            Shape::Fixed(bytes) => (len == bytes as usize, bytes as usize),
            Shape::Any => (len <= OBJECT_MAX_BYTES, OBJECT_MAX_BYTES),
        };
        match fits {
            true => Ok(counted),
            false => Err(ObjectError::Length {
                table,
                asked: len as u64,
                allowed: allowed as u64,
            }),
        }
    }

    /// Stores an object; it need not be there before. Refuses a table that an array, pool, region or the like has.
    pub fn put(&self, table: u16, id: u64, value: &[u8]) -> Result<(), ObjectError> {
        self.refuse_owned(table)?;
        self.put_own(table, id, value)
    }

    /// The same by who has the table.
    pub(crate) fn put_own(&self, table: u16, id: u64, value: &[u8]) -> Result<(), ObjectError> {
        let counted = self.check_length(table, value.len())?;
        let (oid, lane) = self.place(table, id)?;
        self.with_room(lane, value.len(), |lane| {
            self.put_counted(lane, oid, value, counted)
        })
    }

    /// Stores an object in the place of one that is there: nobody frees it in between. Refuses a table that an array, pool, region or the like has.
    pub fn replace(&self, table: u16, id: u64, value: &[u8]) -> Result<(), ObjectError> {
        self.refuse_owned(table)?;
        self.replace_own(table, id, value)
    }

    /// The same by who has the table.
    pub(crate) fn replace_own(&self, table: u16, id: u64, value: &[u8]) -> Result<(), ObjectError> {
        let counted = self.check_length(table, value.len())?;
        let (oid, lane) = self.place(table, id)?;
        self.with_room(lane, value.len(), |lane| match is_free(lane, oid) {
            true => Err(Refusal::Final(ObjectError::Free { table, id })),
            false => self.put_counted(lane, oid, value, counted),
        })
    }

    /// What an entry takes of the SSD, with the ends of segments.
    pub(crate) fn ends_too(&self, entry_bytes: u64) -> u64 {
        room::of_segments(entry_bytes, self.pool.superblock().segment_bytes.into())
    }

    /// What an object takes of that at most, as its slot has it.
    pub(super) fn taken_by(&self, state: State) -> u64 {
        self.ends_too(room::bytes_of(state))
    }

    /// The same of one of so many bytes, as its slot would have it.
    pub(super) fn taken_for(&self, bytes: usize) -> u64 {
        let entry = entry_bytes(ObjectId::KEY_BYTES, bytes, false, false);
        self.ends_too(room::bytes_for(entry))
    }

    /// Writes an object in its locked lane; `counted`: where nobody promised room for it, it takes some.
    fn put_counted(
        &self,
        lane: &mut Lane<Tables>,
        oid: ObjectId,
        value: &[u8],
        counted: bool,
    ) -> Result<(), Refusal> {
        if !counted {
            self.forget_contents(oid);
            return put_in(lane, oid, value);
        }
        let (had, wants) = (
            self.taken_by(lane.dir.get(oid)),
            self.taken_for(value.len()),
        );
        let more = wants.saturating_sub(had);
        if had == 0 && self.pool.failure().is_some() {
            return Err(Refusal::Final(ObjectError::ReadOnly));
        }
        if more > 0 {
            self.room.take(more).map_err(Refusal::Final)?;
        }
        let put = put_in(lane, oid, value);
        match &put {
            Ok(()) if had > wants => self.room.give(had - wants),
            Err(_) if more > 0 => self.room.give(more),
            _ => {}
        }
        put
    }

    /// An object of a table that may be one of pages is changed by its number: what is known of the page is not so any more.
    fn forget_contents(&self, oid: ObjectId) {
        if let Some(same) = self.same() {
            same.forget(oid.table(), oid.id());
        }
    }

    /// Stores what came back from a page, whoever has the table having packed it or not. Not `surely` changed: only if it differs from what is in DRAM; where that has
    /// left DRAM it is stored, since reading it to compare would cost more. True: it was stored.
    pub(crate) fn put_changed(
        &self,
        table: u16,
        id: u64,
        value: &[u8],
        surely: bool,
    ) -> Result<bool, ObjectError> {
        self.made(table)?;
        let (oid, lane_id) = self.place(table, id)?;
        self.with_room(lane_id, value.len(), |lane| {
            let same = !surely
                && matches!(lane.dir.get(oid), State::At(slot) if near(lane, slot) == Some(Value::Bytes(value)));
            match same {
                true => Ok(false),
                false => put_in(lane, oid, value).map(|()| true),
            }
        })
    }

    /// Asks for the memory that storing these objects will look at: slots first, then the entries that they name. One after the other each would be
    /// waited for alone, with its lane locked.
    pub(crate) fn ask_for(&self, table: u16, ids: impl Iterator<Item = u64> + Clone) {
        if self.here().is_err() {
            return;
        }
        for lane_id in 0..self.lanes() {
            let lane = self.pool.lane(lane_id);
            let own = |id: &u64| self.dealt.lane_of(*id) == lane_id;
            let mine = ids.clone().filter(own);
            let mine = mine.map(|id| subject(ObjectId::new(table, id)));
            mine.clone().for_each(|who| lane.prefetch_slot(who));
            mine.for_each(|who| lane.prefetch_entry(who));
        }
    }

    /// Stores several objects, those of one lane under one lock. On an error, how many of the first are stored is
    /// unspecified, each of them whole. Refuses a table that an array, pool, region or the like has.
    pub fn put_many(&self, table: u16, objects: &[(u64, &[u8])]) -> Result<(), ObjectError> {
        self.refuse_owned(table)?;
        let mut counted = false;
        for (id, value) in objects {
            counted = self.check_length(table, value.len())?;
            self.place(table, *id)?;
        }
        for lane_id in 0..self.lanes() {
            let own = |&&(id, _): &&(u64, &[u8])| self.dealt.lane_of(id) == lane_id;
            let mut mine = objects.iter().filter(own).peekable();
            while let Some((_, first)) = mine.peek() {
                self.with_room(lane_id, first.len(), |lane| {
                    // A few at a time: others want the lane too.
                    for _ in 0..PUT_AT_ONCE {
                        let Some((id, value)) = mine.peek() else {
                            break;
                        };
                        self.put_counted(lane, ObjectId::new(table, *id), value, counted)?;
                        mine.next();
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Waits until everything stored so far is durable. Works towards it itself.
    pub(crate) fn make_durable(&self) -> Result<(), ObjectError> {
        self.here()?;
        let until = Instant::now() + DURABLE_WAIT_MAX;
        let epoch = self.pool.lane(0).open_epoch();
        loop {
            let told = self.driver.told();
            if self.pool.failure().is_some() {
                return Err(ObjectError::ReadOnly);
            }
            let undurable = |lane| self.pool.lane(lane).has_undurable();
            if self.pool.durable_epoch() >= epoch || !(0..self.lanes()).any(undurable) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(ObjectError::Late {
                    waited_s: DURABLE_WAIT_MAX.as_secs(),
                });
            }
            self.driver.help(told);
        }
    }

    /// Says that all bytes of an object are `byte`: costs a slot and no entry. Only in scratch stores; and only of zeros where all objects have one size.
    pub(crate) fn put_fill(&self, table: u16, id: u64, byte: u8) -> Result<(), ObjectError> {
        let (oid, lane) = self.place(table, id)?;
        let mut lane = self.pool.lane(lane);
        if let State::At(slot) = lane.dir.get(oid) {
            lane.discard(subject(oid), slot);
        }
        lane.dir.set(
            oid,
            match byte {
                0 => State::Zeros,
                byte => State::Fill(byte),
            },
        );
        Ok(())
    }

    /// Shows an entry to `f` if that takes no read; it is not warmer for it. None: it would take one, or there is none. `f` is short: the lane is locked.
    pub(crate) fn peek<R>(&self, table: u16, id: u64, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (oid, lane) = self.place(table, id).ok()?;
        inside::run(|| {
            let lane = self.pool.lane(lane);
            match lane.dir.get(oid) {
                State::At(slot) => match near(&lane, slot)? {
                    Value::Bytes(bytes) => Some(f(bytes)),
                    Value::Free | Value::Zeros | Value::Fill(_) => None,
                },
                State::Free | State::Zeros | State::Fill(_) => None,
            }
        })
    }

    /// Stores an object under a new id. `value` empty: zeros, which takes no room but a slot. Refuses a table that an array, pool, region or the like has.
    pub fn insert(&self, table: u16, value: &[u8]) -> Result<u64, ObjectError> {
        self.refuse_owned(table)?;
        if !value.is_empty() {
            self.check_length(table, value.len())?;
        }
        let full = ObjectError::Full { asked_bytes: 8 };
        let id = self.claim(table, || OBJECTS_MAX, |_| {})?.ok_or(full)?;
        if !value.is_empty()
            && let Err(e) = self.put(table, id, value)
        {
            self.free(table, id)?;
            return Err(e);
        }
        Ok(id)
    }

    /// A new id below what `below` says with a lane locked, of an object of zeros. Lanes take turns. None: all are taken. `made` hears of it, before anybody else finds it there.
    pub(crate) fn claim(
        &self,
        table: u16,
        below: impl Fn() -> u64,
        made: impl FnOnce(u64),
    ) -> Result<Option<u64>, ObjectError> {
        self.here()?;
        if self.pool.failure().is_some() {
            return Err(ObjectError::ReadOnly);
        }
        let first = self.next_lane.fetch_add(1, Relaxed);
        for turn in 0..u64::from(self.lanes()) {
            let lane_id = (first.wrapping_add(turn) % u64::from(self.lanes())) as u16;
            let mut lane = self.pool.lane(lane_id);
            if lane.memory_segments() < SEGMENTS_MIN {
                return Err(ObjectError::Full { asked_bytes: 8 });
            }
            if let Some(oid) = lane.dir.find_free(table, below()) {
                made(oid.id());
                lane.dir.set(oid, State::Zeros);
                return Ok(Some(oid.id()));
            }
        }
        Ok(None)
    }

    /// Frees an object. False: there was none. Refuses a table that an array, pool, region or the like has.
    pub fn free(&self, table: u16, id: u64) -> Result<bool, ObjectError> {
        self.refuse_owned(table)?;
        self.free_own(table, id)
    }

    /// The same by who has the table.
    pub(crate) fn free_own(&self, table: u16, id: u64) -> Result<bool, ObjectError> {
        let (_, counted) = self.shape_and_counted(table)?;
        let (oid, lane_id) = self.place(table, id)?;
        if !counted {
            self.forget_contents(oid);
        }
        if !self.keeps {
            let mut lane = self.pool.lane(lane_id);
            let was = lane.dir.get(oid);
            forget(&mut lane, oid);
            if counted {
                self.room.give(self.taken_by(was));
            }
            return Ok(was != State::Free);
        }
        self.with_room(lane_id, DELETED_BYTES, |lane| delete_in(lane, oid))
    }

    /// Frees an object of a store that keeps its data, if there is room to say so now; `Full` otherwise.
    pub(crate) fn free_now(&self, table: u16, id: u64) -> Result<bool, ObjectError> {
        let (oid, lane_id) = self.place(table, id)?;
        self.forget_contents(oid);
        if self.pool.failure().is_some() {
            return Err(ObjectError::ReadOnly);
        }
        let freed = self.attempt(lane_id, false, |lane| delete_in(lane, oid));
        freed.map_err(|why| match why {
            Refusal::Final(error) => error,
            Refusal::Room => ObjectError::Full {
                asked_bytes: DELETED_BYTES as u64,
            },
        })
    }

    /// Changes an object in place: `f` gets a copy of its bytes, with its lane locked (so it is short and calls nothing of the
    /// store), and what it leaves is stored. No other change comes in between. Refuses a table that an array, pool, region or the like has.
    pub fn update(
        &self,
        table: u16,
        id: u64,
        f: impl FnOnce(&mut [u8]),
    ) -> Result<(), ObjectError> {
        self.refuse_owned(table)?;
        self.update_own(table, id, f)
    }

    /// The same by who has the table.
    pub(crate) fn update_own(
        &self,
        table: u16,
        id: u64,
        f: impl FnOnce(&mut [u8]),
    ) -> Result<(), ObjectError> {
        let (shape, counted) = self.shape_and_counted(table)?;
        let (oid, lane_id) = self.place(table, id)?;
        let mut bytes = vec![
            0;
            OBJECT_MAX_BYTES.min(match shape {
                Shape::Fixed(len) => len as usize,
                Shape::Any => OBJECT_MAX_BYTES,
            })
        ];
        let free = ObjectError::Free { table, id };
        let mut f = Some(f);
        for _ in 0..UPDATE_TRIES_MAX {
            let (len, read_at) = self.read_at(table, id, |value, at| {
                copy_out(table, shape, value, &mut bytes).map(|len| (len, at))
            })??;
            let mut len = len.ok_or(free)?;
            let done = self.with_room(lane_id, len, |lane| {
                // Room first: it may move the object.
                reserve_in(lane, oid, len)?;
                match lane.dir.get(oid) {
                    State::At(slot) if read_at == Some(slot.loc()) => {}
                    State::At(slot) => match near(lane, slot) {
                        Some(value) => match copy_out(table, shape, value, &mut bytes) {
                            Ok(Some(now)) => len = now,
                            Ok(None) => return Err(Refusal::Final(free)),
                            Err(e) => return Err(Refusal::Final(e)),
                        },
                        // It left DRAM again: read it where it is now.
                        None => return Ok(false),
                    },
                    // Also where it was so before: it may have been freed and made anew.
                    State::Zeros => len = fill_out(table, shape, Value::Zeros, &mut bytes)?,
                    State::Fill(byte) => {
                        len = fill_out(table, shape, Value::Fill(byte), &mut bytes)?
                    }
                    State::Free => return Err(Refusal::Final(free)),
                }
                let takes = match (counted, lane.dir.get(oid)) {
                    // It was never stored, and takes room from now on.
                    (true, State::Zeros | State::Fill(_)) => self.taken_for(len),
                    _ => 0,
                };
                self.room.take(takes).map_err(Refusal::Final)?;
                if !counted {
                    self.forget_contents(oid);
                }
                if let Some(f) = f.take() {
                    f(&mut bytes[..len]);
                }
                let stored = match lane.dir.get(oid) {
                    State::At(slot) if lane.overwrite(slot, &bytes[..len]) => Ok(()),
                    _ => append_in(lane, oid, &bytes[..len]),
                };
                stored.inspect_err(|_| self.room.give(takes)).map(|()| true)
            })?;
            if done {
                return Ok(());
            }
        }
        // It came up and left again before it could be changed, each time.
        Err(ObjectError::Full { asked_bytes: 0 })
    }
}

/// The bytes of an object that is one value.
fn fill_out(table: u16, shape: Shape, value: Value<'_>, out: &mut [u8]) -> Result<usize, Refusal> {
    let len = copy_out(table, shape, value, out).map_err(Refusal::Final)?;
    Ok(len.unwrap_or(0))
}

/// How often an object is read again because it left DRAM before it could be changed.
const UPDATE_TRIES_MAX: usize = 64;
/// Objects stored under one lock.
const PUT_AT_ONCE: usize = 64;

/// What says that an object is gone takes so much.
const DELETED_BYTES: usize = entry_bytes(ObjectId::KEY_BYTES, 0, false, false);

/// Deletes an object of a lane that keeps its data.
fn delete_in(lane: &mut Lane<Tables>, oid: ObjectId) -> Result<bool, Refusal> {
    let refused = |why| refusal(why, DELETED_BYTES);
    lane.reserve_as_much(DELETED_BYTES).map_err(refused)?;
    match lane.dir.get(oid) {
        State::Free => Ok(false),
        State::At(slot) => {
            if near(lane, slot) == Some(Value::Free) {
                return Ok(false);
            }
            let deleted = lane.delete(subject(oid), slot, &oid.key());
            deleted.map(|()| true).map_err(refused)
        }
        State::Zeros | State::Fill(_) => {
            lane.dir.set(oid, State::Free);
            Ok(true)
        }
    }
}
