//! Values in pieces.
//!
//! A big value is a binder under its key and pieces under internal keys
//! (version, n). A *record* (an internal key out of a fixed set) names a version
//! whose pieces must go: it is written before the first piece and deleted with
//! the binder's appearance, in one epoch; and written again, in one epoch, with
//! the binder's end. So after a crash at any point every piece has a binder or
//! a record, and no directory has to be searched.
//! Never: deletes a piece that somebody still reads.

use crate::find::{Found, fetch, find, may_write, place, refused, reserve};
use crate::read::{Promote, read};
use crate::shared::{Binder, Doomed, LargeRef, Shared, piece_bytes, registry};
use crate::{INLINE_MAX_BYTES, KvError, KvErrorKind, Outcome, Step, VALUE_MAX_BYTES, Wait};
use terrace_log::entry::{FLAG_THROUGH, entry_bytes};
use terrace_log::{Kind, Loc, NewEntry, Slot};
use terrace_pool::{Lane, Task, Worker};

/// Versions that can be under way (received, or waiting for their end) at once.
pub(crate) const RECORDS: u16 = 2048;
/// Room for a record or its deletion, bytes.
pub(crate) const RECORD_BYTES: usize = 96;

pub(crate) fn piece_key(version: u64, n: u32) -> [u8; 13] {
    let mut key = [b'p'; 13];
    key[1..9].copy_from_slice(&version.to_le_bytes());
    key[9..].copy_from_slice(&n.to_le_bytes());
    key
}
pub(crate) fn record_key(record: u16) -> [u8; 3] {
    let [a, b] = record.to_le_bytes();
    [b'r', a, b]
}

/// Gives a hold back. The same as dropping it.
pub fn release(_w: &mut Worker, held: LargeRef) {
    drop(held);
}

/// Piece `n` of a big value.
pub fn read_piece<R>(
    w: &mut Worker,
    t: &mut Task,
    held: &LargeRef,
    n: u32,
    f: impl FnOnce(&[u8]) -> R,
) -> Outcome<R> {
    let key = piece_key(held.binder.version, n);
    let mut f = Some(f);
    let step = read(w, t, 1, &key, Promote::SecondTime, |e| {
        e.map(|e| f.take().expect("once")(e.value()))
    })?;
    match step {
        Step::Wait(wait) => Ok(Step::Wait(wait)),
        Step::Done(Some(r)) => {
            w.reset(t);
            Ok(Step::Done(r))
        }
        Step::Done(None) => Err(KvError::new(
            KvErrorKind::Damaged,
            format!("piece {n} of the value is gone: everything was deleted, or it is damaged"),
        )),
    }
}

/// A big value being received.
#[derive(Debug)]
pub struct Upload {
    pub(crate) binder: Binder,
    pub(crate) record: u16,
    pub(crate) lane: u16,
    next: u32,
    received: u64,
    flushes: u64,
}

impl Upload {
    /// Length of the value, bytes.
    #[allow(clippy::len_without_is_empty)] // It is longer than INLINE_MAX_BYTES.
    pub fn len(&self) -> u64 {
        self.binder.len
    }
    /// A hold on its pieces, once all are received: they can be read before, and whether or not, it becomes a key's value.
    ///
    /// # Errors
    /// When everything was deleted since it began, or it is not whole.
    pub fn hold(&self, w: &Worker) -> Result<LargeRef, KvError> {
        self.usable(w)?;
        let held = LargeRef::hold(&registry(w), &self.binder.encode(), piece_bytes(w));
        held.ok_or_else(|| KvError::wrong("the upload has no length"))
    }
    pub(crate) fn usable(&self, w: &Worker) -> Result<(), KvError> {
        self.not_flushed(w)?;
        match self.received == self.binder.len {
            true => Ok(()),
            false => Err(KvError::wrong("the value was not received whole")),
        }
    }
    fn not_flushed(&self, w: &Worker) -> Result<(), KvError> {
        if self.flushes != w.pool().flushes_of_all() {
            return Err(KvError::wrong(
                "everything was deleted (FLUSHALL) while the command brought a value; nothing was changed; send it again",
            ));
        }
        Ok(())
    }
}

/// Waiting would have no end: what is under way may wait for the same, or for its client.
fn too_many_under_way() -> KvError {
    KvError::new(
        KvErrorKind::TooLarge,
        format!(
            "{RECORDS} values above {INLINE_MAX_BYTES} bytes are being received or sent, and no more are allowed \
             at one time; name fewer in one command, or try again"
        ),
    )
}

/// Begins to receive a value of `len` bytes.
pub fn upload_begin(w: &mut Worker, t: &mut Task, len: u64) -> Outcome<Upload> {
    if len > VALUE_MAX_BYTES {
        return Err(KvError::new(
            KvErrorKind::TooLarge,
            format!("the value has {len} bytes; at most {VALUE_MAX_BYTES} are allowed"),
        ));
    }
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let shared = registry(w);
    let freest = shared.registry.lock().freest();
    let Some(lane_id) = freest else {
        return match shared.registry.lock().comes_free() {
            true => Ok(Step::Wait(Wait::Room)),
            false => Err(too_many_under_way()),
        };
    };
    let mut lane = w.lane(lane_id);
    // With the lane held: others, who hold it, count on what they have seen to be free.
    let taken = shared.registry.lock().take(lane_id);
    let Some(record) = taken else {
        return Ok(Step::Wait(Wait::Room));
    };
    let upload = Upload {
        binder: Binder {
            len,
            version: w.pool().new_version(),
        },
        record,
        lane: lane_id,
        next: 0,
        received: 0,
        flushes: w.pool().flushes_of_all(),
    };
    let written = match reserve(w, &mut lane, RECORD_BYTES, true) {
        Ok(true) => write_record(w, t, &mut lane, lane_id, record, &upload.binder),
        Ok(false) => Ok(Recorded::NoRoom),
        Err(e) => Err(e),
    };
    if !matches!(written, Ok(Recorded::Written)) {
        shared.registry.lock().untake(lane_id, record);
    }
    drop(lane);
    match written {
        Ok(Recorded::Written) => {
            w.reset(t);
            Ok(Step::Done(upload))
        }
        Ok(Recorded::Read(plan)) => Ok(fetch(w, t, vec![(lane_id, plan)], true)),
        Ok(Recorded::NoRoom) => {
            w.want_room();
            Ok(Step::Wait(Wait::Room))
        }
        Err(e) => Err(e),
    }
}

pub(crate) enum Recorded {
    Written,
    NoRoom,
    Read(terrace_tiers::ReadPlan),
}

/// Puts a record in its held lane. Room must have been reserved.
pub(crate) fn write_record(
    w: &Worker,
    t: &Task,
    lane: &mut Lane,
    lane_id: u16,
    record: u16,
    binder: &Binder,
) -> Result<Recorded, KvError> {
    let key = record_key(record);
    let at = place(w, 1, &key);
    debug_assert_eq!(at.lane, lane_id);
    let prev = match find(t, lane, at, &key)? {
        Found::Read(plan) => return Ok(Recorded::Read(plan)),
        Found::Absent => None,
        Found::Gone(slot) | Found::Here { slot, .. } => Some(slot),
    };
    let value = binder.encode();
    let new = internal(&key, &value, 0);
    match lane.put(at.who, prev, &new) {
        Ok(_) => Ok(Recorded::Written),
        Err(why) => Err(refused(w, lane, why, RECORD_BYTES)),
    }
}

fn internal<'a>(key: &'a [u8], value: &'a [u8], flags: u8) -> NewEntry<'a> {
    NewEntry {
        kind: Kind::Value,
        space: 1,
        flags,
        link: Loc::NONE,
        expiry_ms: None,
        version: None,
        key,
        value,
    }
}

/// Takes the next piece: [`PIECE_BYTES`](crate::PIECE_BYTES) long, but for the last one.
pub fn upload_piece(
    w: &mut Worker,
    _t: &mut Task,
    upload: &mut Upload,
    piece: &[u8],
) -> Outcome<()> {
    may_write(w)?;
    let left = upload.binder.len - upload.received;
    let expected = left.min(piece_bytes(w) as u64);
    if piece.len() as u64 != expected {
        return Err(KvError::wrong("a piece has the wrong length"));
    }
    let key = piece_key(upload.binder.version, upload.next);
    let at = place(w, 1, &key);
    let new = internal(&key, piece, FLAG_THROUGH);
    let bytes = entry_bytes(key.len(), piece.len(), false, false);
    let mut lane = w.lane(at.lane);
    // Looked at with the lane held, which a deletion of everything holds too: a piece behind it would stay for good, since the record
    // that names it is gone.
    upload.not_flushed(w)?;
    if !reserve(w, &mut lane, bytes, true)? {
        drop(lane);
        w.want_room();
        return Ok(Step::Wait(Wait::Room));
    }
    // The version is new, so the piece has no slot yet.
    let put = lane.put(at.who, None, &new);
    put.map_err(|why| refused(w, &lane, why, bytes))?;
    upload.next += 1;
    upload.received += piece.len() as u64;
    Ok(Step::Done(()))
}

/// Gives an upload up; its pieces go in the background.
pub fn upload_abort(w: &mut Worker, upload: Upload) {
    // A deletion of everything holds the lane too, and has given the record back.
    let _held = w.lane(upload.lane);
    if upload.flushes == w.pool().flushes_of_all() {
        registry(w).registry.lock().doom(Doomed {
            record: upload.record,
            binder: upload.binder,
        });
    }
}

/// Lane and number of every record.
pub(crate) fn record_places(w: &Worker) -> impl Iterator<Item = (u16, u16)> + '_ {
    (0..RECORDS).map(|r| (place(w, 1, &record_key(r)).lane, r))
}

/// How many records a lane has at all, given out or not, but for lost ones. Slow.
pub(crate) fn records_of(w: &Worker, shared: &Shared, lane: u16) -> usize {
    let all = record_places(w).filter(|&(l, _)| l == lane).count();
    let lost = shared.registry.lock().lost(lane);
    all.saturating_sub(lost)
}

/// The slot that a record's deletion needs.
pub(crate) enum RecordSlot {
    Slot(Slot),
    Read(terrace_tiers::ReadPlan),
    None,
}

pub(crate) fn find_record(
    w: &Worker,
    t: &Task,
    lane: &mut Lane,
    record: u16,
) -> Result<RecordSlot, KvError> {
    let key = record_key(record);
    let at = place(w, 1, &key);
    Ok(match find(t, lane, at, &key)? {
        Found::Read(plan) => RecordSlot::Read(plan),
        Found::Here { slot, .. } => RecordSlot::Slot(slot),
        Found::Absent | Found::Gone(_) => RecordSlot::None,
    })
}
