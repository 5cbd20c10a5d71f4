//! Commands that only read.

use crate::find::{Found, Place, entry_of, fetch, find, find_used, let_go, place};
use crate::item::{Item, item_of, len_of, value_of};
use crate::meta::META_BYTES;
use crate::shared::{piece_bytes, registry};
use crate::{Outcome, Step, Value, Wait};
use terrace_log::entry::{Entry, entry_bytes};
use terrace_log::{Kind, Terrace};
use terrace_pool::{Lane, Task, Worker};

/// When a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryOf {
    /// No such key.
    Absent,
    /// It does not.
    Never,
    /// At this time, ms since 1970.
    At(u64),
}

/// Whether a read brings what it had to fetch up to DRAM.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Promote {
    Never,
    /// When it was read before: what is large and read once would only push others out.
    SecondTime,
    Always,
}

/// Reads one key: `f` gets its entry, None if absent.
#[inline]
pub(crate) fn read<R>(
    w: &mut Worker,
    t: &mut Task,
    space: u8,
    key: &[u8],
    promote: Promote,
    f: impl FnOnce(Option<Entry<'_>>) -> R,
) -> Outcome<R> {
    read_heat(w, t, space, key, promote, |e, _| f(e))
}

/// The same, with how often it was used lately.
fn read_heat<R>(
    w: &mut Worker,
    t: &mut Task,
    space: u8,
    key: &[u8],
    promote: Promote,
    f: impl FnOnce(Option<Entry<'_>>, u8) -> R,
) -> Outcome<R> {
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let at = place(w, space, key);
    let sync = w.pool().is_sync();
    let mut lane = w.lane(at.lane);
    let (result, wait_for) = match find_used(t, &mut lane, at, key)? {
        Found::Read(plan) => {
            if w.may_fetch(&plan) {
                lane.count(|s| s.device_read_bytes += plan.len as u64);
            }
            drop(lane);
            return Ok(fetch(w, t, vec![(at.lane, plan)], false));
        }
        Found::Absent => {
            lane.count(|s| s.absent += 1);
            (f(None, 0), lane.absent_with())
        }
        Found::Gone(slot) => {
            lane.count(|s| s.absent += 1);
            let wait = lane.durable_with(slot);
            expire_seen(t, &mut lane, at, key);
            (f(None, 0), wait)
        }
        Found::Here { slot, fetched } => {
            let e = entry_of(t, &lane, at, slot, fetched);
            let result = f(Some(e), slot.heat());
            let wait = lane.durable_with(slot);
            match (fetched, slot.loc().terrace()) {
                (true, _) => {
                    let wrong = t.all_fetched().len() as u64 - 1;
                    lane.count(|s| {
                        s.misses += 1;
                        s.wrong_reads += wrong;
                    });
                    // The slot is as it was before this read warmed it.
                    if promote == Promote::Always
                        || promote == Promote::SecondTime && slot.heat() > 0
                    {
                        lane.promote(at.who, slot.loc(), &e_of(t, at.lane, slot));
                    }
                }
                (false, Terrace::Middle) => {
                    lane.count(|s| s.hits_middle += 1);
                    lane.promote_middle(at.who, slot);
                }
                _ => lane.count(|s| s.hits_dram += 1),
            }
            (result, wait)
        }
    };
    drop(lane);
    if let Some(epoch) = wait_for.filter(|_| sync) {
        t.wait_for(epoch);
    }
    Ok(Step::Done(result))
}

/// An expired entry that was met turns into a tombstone, if there is room now.
pub(crate) fn expire_seen(t: &Task, lane: &mut Lane, at: Place, key: &[u8]) {
    let room = entry_bytes(key.len(), 0, false, false);
    if lane.reserve_as_much(room).is_err() {
        return;
    }
    // Making room may have moved it.
    let slot = match find(t, lane, at, key) {
        Ok(Found::Gone(slot)) => slot,
        Ok(Found::Read(plan)) => {
            // It left DRAM, and is not worth a read: the cleaner meets it below.
            lane.unpin(plan.segment);
            return;
        }
        _ => return,
    };
    let fetched = !slot.loc().in_memory() && t.fetched(at.lane, slot.loc()).is_some();
    match entry_of(t, lane, at, slot, fetched).kind() {
        Kind::Value => {
            if lane.delete(at.who, slot, key).is_ok() {
                lane.count(|s| s.expired += 1);
            }
        }
        Kind::Binder => lane.note_expired_binder(key),
        Kind::Tombstone | Kind::Freed => {}
    }
}

fn e_of(t: &Task, lane: u16, slot: terrace_log::Slot) -> Entry<'_> {
    t.fetched(lane, slot.loc())
        .expect("found")
        .entry()
        .expect("found")
}

/// The value of `key`.
pub fn get<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    f: impl FnOnce(Value<'_>) -> R,
) -> Outcome<R> {
    let shared = registry(w);
    let piece = piece_bytes(w);
    read(w, t, 0, key, Promote::Always, |e| {
        f(value_of(&shared, piece, e))
    })
}

/// What `key` holds, with all that is kept with it; None: no such key.
pub fn item<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    f: impl FnOnce(Option<Item<'_>>) -> R,
) -> Outcome<R> {
    let shared = registry(w);
    let piece = piece_bytes(w);
    read_heat(w, t, 0, key, Promote::Always, |e, heat| {
        f(e.map(|e| item_of(&shared, piece, e, heat)))
    })
}

/// Length of a value in bytes, 0 if there is none.
pub fn strlen(w: &mut Worker, t: &mut Task, key: &[u8]) -> Outcome<u64> {
    read(w, t, 0, key, Promote::Always, |e| {
        e.map_or(0, |e| len_of(&e))
    })
}

/// When a key expires.
pub fn expiry(w: &mut Worker, t: &mut Task, key: &[u8]) -> Outcome<ExpiryOf> {
    read(w, t, 0, key, Promote::Always, |e| {
        match e.map(|e| e.expiry_ms()) {
            None => ExpiryOf::Absent,
            Some(None) => ExpiryOf::Never,
            Some(Some(ms)) => ExpiryOf::At(ms),
        }
    })
}

/// How many of `keys` exist; one named twice counts twice.
pub fn exists(w: &mut Worker, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let sync = w.pool().is_sync();
    let places: Vec<_> = keys.iter().map(|k| place(w, 0, k)).collect();
    let mut held = w.hold(places.iter().map(|p| p.lane));
    let (mut count, mut reads, mut wait) = (0, Vec::new(), None);
    for (key, &at) in keys.iter().zip(&places) {
        let lane = held.lane(at.lane);
        let found = match find(t, lane, at, key) {
            Ok(found) => found,
            Err(e) => {
                let_go(&mut held, reads);
                return Err(e);
            }
        };
        match found {
            Found::Read(plan) => reads.push((at.lane, plan)),
            Found::Here { slot, .. } => {
                count += 1;
                wait = wait.max(lane.durable_with(slot));
            }
            Found::Gone(slot) => wait = wait.max(lane.durable_with(slot)),
            Found::Absent => wait = wait.max(lane.absent_with()),
        }
        if reads.len() >= crate::find::READS_PER_TASK_MAX {
            break;
        }
    }
    drop(held);
    if !reads.is_empty() {
        return Ok(fetch(w, t, reads, true));
    }
    if let Some(epoch) = wait.filter(|_| sync) {
        t.wait_for(epoch);
    }
    Ok(Step::Done(count))
}

/// Keys: not deleted and not yet noticed as expired, as Redis counts.
pub fn dbsize(w: &Worker) -> u64 {
    w.pool().keys()
}

/// The slot of a key in the directory, bytes.
const SLOT_BYTES: u64 = 8;

/// About what a key and its value take on the medium where they lie, and in the directory, bytes.
pub fn footprint_bytes(key_len: usize, value_len: u64, expiry: bool, meta: bool) -> u64 {
    let meta_bytes = if meta { META_BYTES } else { 0 };
    let entry = |key_len: usize, len: usize| {
        terrace_log::entry::entry_bytes(key_len, len, expiry, false) as u64 + SLOT_BYTES
    };
    if value_len <= crate::INLINE_MAX_BYTES as u64 {
        return entry(key_len, value_len as usize + meta_bytes);
    }
    // A binder, and pieces under keys of their own.
    const BINDER_BYTES: usize = 16;
    const PIECE_KEY_BYTES: usize = 13;
    let pieces = value_len.div_ceil(crate::PIECE_BYTES as u64);
    let headers = pieces * entry(PIECE_KEY_BYTES, 0);
    entry(key_len, BINDER_BYTES + meta_bytes) + headers + value_len
}
