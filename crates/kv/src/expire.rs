//! Expiry: commands that change it, and the end of a key whose time is up.
//!
//! A key whose time is up is absent for every command at once; its entry goes when
//! somebody meets it. Never: deletes a key that was set anew in between.

use crate::Outcome;
use crate::modify::{State, delete_if, modify};
use terrace_pool::{Task, Worker};

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
    /// If the key has one and it is earlier.
    XxLt,
}

/// Sets (`Some`) or takes away (`None`) a key's expiry. Returns whether it did.
/// A time that has passed deletes the key.
pub fn expire(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    at_ms: Option<u64>,
    cond: ExpireCond,
) -> Outcome<bool> {
    let now = w.now_ms();
    if at_ms.is_some_and(|at| at <= now) {
        return expire_past(w, t, key, at_ms.unwrap_or(0), cond);
    }
    modify(w, t, key, 0, |e| {
        let Some(e) = e else { return Ok((None, false)) };
        if !expire_goes(e.expiry_ms(), at_ms, cond) {
            return Ok((None, false));
        }
        let state = State {
            kind: e.kind(),
            value: e.value().to_vec(),
            expiry_ms: at_ms,
            flags: e.prefix_flag(),
        };
        Ok((Some(state), true))
    })
}

/// Whether a change of expiry takes place.
pub fn expire_goes(now: Option<u64>, new: Option<u64>, cond: ExpireCond) -> bool {
    match (cond, now, new) {
        (_, None, None) => false,
        (ExpireCond::Always, ..) => true,
        (ExpireCond::Nx, now, _) => now.is_none(),
        (ExpireCond::Xx, now, _) => now.is_some(),
        (ExpireCond::Gt, Some(now), Some(new)) => new > now,
        (ExpireCond::Lt | ExpireCond::XxLt, Some(now), Some(new)) => new < now,
        (ExpireCond::Gt | ExpireCond::XxLt, ..) => false,
        (ExpireCond::Lt, ..) => true,
    }
}

fn expire_past(
    w: &mut Worker,
    t: &mut Task,
    key: &[u8],
    at_ms: u64,
    cond: ExpireCond,
) -> Outcome<bool> {
    delete_if(w, t, key, |e| {
        let goes = e.is_some_and(|e| expire_goes(e.expiry_ms(), Some(at_ms), cond));
        (goes, goes)
    })
}

/// Deletes a key whose time is up, whatever it binds.
pub(crate) fn expire_now(w: &mut Worker, t: &mut Task, key: &[u8]) -> Outcome<()> {
    delete_if(w, t, key, |e| (e.is_none(), ()))
}
