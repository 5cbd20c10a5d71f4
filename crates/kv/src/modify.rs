//! One key looked at and changed in one: what its new state is, or whether it goes,
//! depends on the state it has.
//!
//! Promises: no other command, and no crash, comes between the look and the change.
//! Never: waits after it has shown the entry.

use crate::change::{
    Known, Missing, New, change, commit, found_now, missing, prepare, put, seen_with, wait_durable,
};
use crate::find::{Found, entry_of, fetch, find, may_write, reserve, unharmed};
use crate::shared::registry;
use crate::{KvError, Outcome, Step, Wait};
use terrace_log::Kind;
use terrace_log::entry::Entry;
use terrace_pool::{Task, Worker};

/// A new state. None: as it is.
pub(crate) type Changed = Option<State>;

/// What an entry says, with what stands before its value.
pub(crate) struct State {
    pub kind: Kind,
    /// With its prefix, if `flags` says so.
    pub value: Vec<u8>,
    pub expiry_ms: Option<u64>,
    pub flags: u8,
}

/// Shows a key's entry to `f` and deletes it if `f` says so, in one. Returns what `f` makes of it.
pub(crate) fn delete_if<R>(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    f: impl FnOnce(Option<Entry<'_>>) -> (bool, R),
) -> Outcome<R> {
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let mut c = change(w, key, None, false)?;
    let shared = registry(w);
    let mut held = w.hold([c.at.lane]);
    let need = prepare(
        w,
        t,
        &shared,
        &mut held,
        std::slice::from_mut(&mut c),
        false,
    )?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let lane = held.lane(c.at.lane);
    let found = unharmed(t, c.at, found_now(t, lane, &c))?;
    let mut wait = seen_with(lane, found);
    let (go, result) = match found {
        Found::Here { slot, fetched } => f(Some(entry_of(t, lane, c.at, slot, fetched))),
        _ => f(None),
    };
    if go {
        wait = commit(w, t, &shared, &mut held, &c, None, &[])?.wait;
    }
    drop(held);
    wait_durable(w, t, wait);
    Ok(Step::Done(result))
}

/// Reads a key and writes what `f` makes of it (None: leave it), in one. A value in pieces stays one: `f` must not make another of it.
pub(crate) fn modify<R>(
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
    c.stays = true;
    let shared = registry(w);
    let mut held = w.hold([c.at.lane]);
    let need = prepare(w, t, &shared, &mut held, std::slice::from_mut(&mut c), true)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let lane = held.lane(c.at.lane);
    let open = lane.open_epoch();
    let mut found = unharmed(t, c.at, found_now(t, lane, &c))?;
    if let Found::Here { slot, fetched } = found {
        let bytes = c.bytes + entry_of(t, lane, c.at, slot, fetched).len_bytes();
        if !reserve(w, lane, bytes, true)? {
            drop(held);
            w.want_room();
            return Ok(Step::Wait(Wait::Room));
        }
        // Making room may have moved it.
        found = find(t, lane, c.at, c.key)?;
        c.found = Some(Known::new(t, lane, c.at, Ok(found)));
        if let Found::Read(plan) = found {
            drop(held);
            return Ok(fetch(w, t, vec![(c.at.lane, plan)], false));
        }
    }
    let mut wait = seen_with(lane, found);
    let (new, result) = match found {
        Found::Here { slot, fetched } => f(Some(entry_of(t, lane, c.at, slot, fetched)))?,
        _ => f(None)?,
    };
    if let Some(state) = new {
        wait = Some(open);
        let slot = match found {
            Found::Here { slot, .. } | Found::Gone(slot) => Some(slot),
            _ => None,
        };
        let new = New {
            kind: state.kind,
            value: &state.value,
            expiry_ms: state.expiry_ms,
            flags: state.flags,
        };
        // A binder's pieces stay bound: only its entry is written anew.
        match state.kind == Kind::Binder {
            true => put(w, &shared, lane, &c, slot, &new)?,
            false => {
                debug_assert!(!c.found.is_some_and(Known::binds), "no record is its end's");
                commit(w, t, &shared, &mut held, &c, Some(new), &[])?;
            }
        }
    }
    drop(held);
    wait_durable(w, t, wait);
    Ok(Step::Done(result))
}
