//! A set of a cold key, of which nobody asks what it was before: it is answered at once, and that what lies below was this
//! key's is found out later (`tiers::unverified`, docs/adr/0032).
//!
//! Never: in sync mode, where the reply waits for the device anyway, or where what lies below may bind pieces: those must be
//! doomed in the same epoch.

use crate::KvError;
use crate::change::{Change, New, entry};
use crate::find::refused;
use crate::how::{Expiry, How, NewValue};
use crate::meta::{META_BYTES, stored};
use crate::shared::Shared;
use terrace_log::entry::entry_bytes;
use terrace_log::{Directory, Kind};
use terrace_pool::{Held, Worker};
use terrace_tiers::ReadPlan;

/// A binder's value, bytes.
const BINDER_BYTES: usize = 16;

/// Whether the set may be answered before what it replaces was read: by `plan`, if that reads what may be the key's own entry. It may
/// read a record instead, for the end of a big value that is known.
pub(crate) fn may(
    w: &Worker,
    held: &mut Held<'_>,
    c: &Change<'_>,
    value: &NewValue<'_>,
    plan: &ReadPlan,
) -> bool {
    let binder_bytes = entry_bytes(c.key.len(), BINDER_BYTES + META_BYTES, true, false);
    let lane = held.lane(c.at.lane);
    c.unasked
        && matches!(value, NewValue::Inline(_))
        && !w.pool().is_sync()
        && w.may_verify_later(c.key.len(), plan)
        && lane.dir.names(c.at.who, plan.loc)
        && lane.may_put_unverified(c.at.who, c.key, binder_bytes)
}

/// Sets it; `plan` reads what may be the entry before, which the worker is to verify later.
pub(crate) fn put(
    w: &Worker,
    shared: &Shared,
    held: &mut Held<'_>,
    c: &Change<'_>,
    value: &NewValue<'_>,
    how: &How,
    plan: &ReadPlan,
) -> Result<(), KvError> {
    let NewValue::Inline(bytes) = value else {
        return Err(KvError::wrong("a long value is set with what it replaces"));
    };
    let (bytes, flags) = stored(bytes, how.meta);
    let new = New {
        kind: Kind::Value,
        value: &bytes,
        expiry_ms: match how.expiry {
            Expiry::At(ms) => Some(ms),
            Expiry::None | Expiry::Keep => None,
        },
        flags,
    };
    shared.watch.touch(c.key);
    let lane = held.lane(c.at.lane);
    let done = lane.put_unverified(c.at.who, &entry(c.key, &new));
    done.map(|_| ()).map_err(|why| {
        lane.unpin(plan.segment);
        refused(w, lane, why, c.bytes)
    })
}
