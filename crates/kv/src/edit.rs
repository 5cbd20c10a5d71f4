//! Several keys looked at and changed in one: the caller sees all of them at one moment and says what becomes of each.
//!
//! Promises: no other command, and no crash, comes between the look and the changes; all changes are in one epoch. The
//! caller may be asked again, when something was missing for the changes: only its last answer counts. Finished uploads may
//! become keys' values in it. Keys are watched for an edit, so that begins and ends here too. Never: waits with a lane held.

use crate::change::{
    Change, Missing, New, change, check_key, commit, end_upload, missing, prepare, seen_with,
    too_many, wait_durable,
};
use crate::find::{
    Found, Place, READS_PER_TASK_MAX, entry_of, fetch, find, let_go, may_write, place,
};
use crate::large::Upload;
use crate::meta::{META_BYTES, Meta, meta_of, stored, user_value};
use crate::shared::{
    Binder, LargeRef, Shared, binder as binder_of, inline_max_bytes, piece_bytes, registry,
};
use crate::watch::Watched;
use crate::{KvError, KvErrorKind, Step, Wait};
use std::sync::Arc;
use terrace_log::Kind;
use terrace_log::entry::entry_bytes;
use terrace_pool::{Held as HeldLanes, Pool, Task, Worker};
use terrace_tiers::ReadPlan;

/// The most bytes of values that one edit is shown.
const SHOWN_MAX_BYTES: usize = 16 << 20;
/// So many of them each thread has beside the cap's parts; what is more is granted in steps of as many.
const SHOWN_STEP_BYTES: usize = 64 << 10;

/// Memory of the connections' share for the values that an edit is shown, until it is over.
#[derive(Default)]
struct Shown {
    bytes: usize,
    granted: Option<(Arc<Pool>, u64)>,
}

impl Shown {
    /// One more value is shown.
    fn add(&mut self, w: &Worker, bytes: usize) -> Result<(), KvError> {
        self.bytes += bytes;
        if self.bytes > SHOWN_MAX_BYTES {
            return Err(KvError::new(
                KvErrorKind::TooLarge,
                format!(
                    "the values that the command or transaction names have more than {SHOWN_MAX_BYTES} bytes together; split it"
                ),
            ));
        }
        let granted = self.granted.as_ref().map_or(0, |(_, bytes)| *bytes);
        let steps = self.bytes.div_ceil(SHOWN_STEP_BYTES).saturating_sub(1);
        let wanted = (steps * SHOWN_STEP_BYTES) as u64;
        if wanted <= granted {
            return Ok(());
        }
        if !w.pool().ledger().grant(wanted - granted) {
            return Err(KvError::new(
                KvErrorKind::DramFull,
                format!(
                    "the values that the command or transaction names need {} bytes of buffers and more, which the connections' \
                     budget does not have now; nothing was changed; try again, or split it",
                    self.bytes
                ),
            ));
        }
        self.granted = Some((w.pool().clone(), wanted));
        Ok(())
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((pool, bytes)) = &self.granted {
            pool.ledger().ungrant(*bytes);
        }
    }
}

/// A value as an edit sees it.
#[derive(Debug)]
pub enum Held<L> {
    /// No such key.
    Absent,
    /// A value in one piece.
    Inline(Vec<u8>),
    /// A value in pieces.
    Large(L),
}

/// A key as an edit sees it.
#[derive(Debug)]
pub struct View<L> {
    /// Its value.
    pub value: Held<L>,
    /// When it expires, ms since 1970.
    pub expiry_ms: Option<u64>,
    /// What memcached keeps with it.
    pub meta: Option<Meta>,
}

impl<L> View<L> {
    /// Whether the key exists.
    pub fn exists(&self) -> bool {
        !matches!(self.value, Held::Absent)
    }
}

/// All keys of an edit, at one moment.
#[derive(Debug)]
pub struct Seen<L> {
    /// In the order of the keys.
    pub views: Vec<View<L>>,
    /// Nobody has changed what is watched.
    pub unchanged: bool,
    /// The time of this moment, ms since 1970.
    pub now_ms: u64,
    /// A token that no value has had.
    pub new_cas: u64,
}

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// It is deleted.
    Delete,
    /// It gets a value of at most `INLINE_MAX_BYTES`.
    Put {
        /// The value.
        value: Vec<u8>,
        /// When it expires, ms since 1970.
        expiry_ms: Option<u64>,
        /// What memcached keeps with it.
        meta: Option<Meta>,
    },
    /// It gets the value in pieces that the key of this number had. No two keys may.
    Bind {
        /// Which key's.
        from: usize,
        /// When it expires, ms since 1970.
        expiry_ms: Option<u64>,
        /// What memcached keeps with it.
        meta: Option<Meta>,
    },
    /// It gets a finished upload that came with the edit. Of each, at most one key may.
    Upload {
        /// Which one.
        nr: usize,
        /// When it expires, ms since 1970.
        expiry_ms: Option<u64>,
        /// What memcached keeps with it.
        meta: Option<Meta>,
    },
}

/// What a caller says: the keys that change, by their number, and the command's result.
pub type Edits<R> = (Vec<(usize, Edit)>, R);

/// Begins to watch a key. Whether it exists is to be asked after this, and put into the answer.
pub fn watch(w: &Worker, key: &[u8]) -> Watched {
    let changes = registry(w).watch.begin(key);
    Watched::new(key, changes, false)
}

/// Ends it.
pub fn unwatch(w: &Worker, watched: Watched) {
    registry(w).watch.end(&watched.key);
}

/// Shows `keys`, no two of them equal, to `f`, and makes the changes it says.
pub fn edit<R, E: From<KvError>>(
    w: &mut Worker,
    t: &mut Task,
    keys: &[&[u8]],
    watched: &[Watched],
    f: &mut dyn FnMut(Seen<LargeRef>) -> Result<Edits<R>, E>,
) -> Result<Step<R>, E> {
    edit_with(w, t, keys, watched, &mut [], f)
}

/// The same with uploads: each is taken when it became a key's value, and otherwise stays the caller's.
pub fn edit_with<R, E: From<KvError>>(
    w: &mut Worker,
    t: &mut Task,
    keys: &[&[u8]],
    watched: &[Watched],
    uploads: &mut [Option<Upload>],
    f: &mut dyn FnMut(Seen<LargeRef>) -> Result<Edits<R>, E>,
) -> Result<Step<R>, E> {
    too_many(keys.len())?;
    keys.iter().try_for_each(|key| check_key(key))?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let shared = registry(w);
    let places: Vec<Place> = keys.iter().map(|key| place(w, 0, key)).collect();
    let of_uploads = uploads.iter().flatten().map(|u| u.lane);
    let mut held = w.hold(places.iter().map(|p| p.lane).chain(of_uploads));
    let looked = look(w, t, &shared, &mut held, keys, &places)?;
    let Looked::All(views, binders, seen, _shown) = looked else {
        drop(held);
        return Ok(looked.fetch(w, t));
    };
    let (edits, result) = f(Seen {
        views,
        unchanged: watched.iter().all(|k| shared.watch.unchanged(k)),
        now_ms: w.now_ms(),
        new_cas: w.pool().new_version(),
    })?;
    if edits.is_empty() {
        drop(held);
        wait_durable(w, t, seen);
        return Ok(Step::Done(result));
    }
    may_write(w)?;
    let bound = bound(&edits, &binders);
    let mut changes = changes(w, keys, &edits, (&binders, &bound), uploads)?;
    let grows = edits.iter().any(|(_, e)| *e != Edit::Delete);
    let need = prepare(w, t, &shared, &mut held, &mut changes, grows)?;
    if !matches!(need, Missing::Nothing) {
        drop(held);
        return Ok(missing(w, t, need).expect("something is missing"));
    }
    let wait = commit_all(
        w,
        t,
        &shared,
        &mut held,
        (&changes, &edits),
        (&binders, &bound),
        uploads,
    )?;
    drop(held);
    for nr in edits.iter().filter_map(|(_, edit)| upload_of(edit)) {
        uploads[nr] = None;
    }
    wait_durable(w, t, wait);
    Ok(Step::Done(result))
}

/// What was found of all keys, their binders, and the epoch that makes it durable; or what must be read first.
enum Looked {
    All(Vec<View<LargeRef>>, Vec<Option<Binder>>, Option<u64>, Shown),
    Reads(Vec<(u16, ReadPlan)>),
}

impl Looked {
    fn fetch<R>(self, w: &mut Worker, t: &mut Task) -> Step<R> {
        match self {
            Looked::Reads(reads) => fetch(w, t, reads, false),
            Looked::All(..) => Step::Wait(Wait::Room),
        }
    }
}

fn look(
    w: &Worker,
    t: &Task,
    shared: &Arc<Shared>,
    held: &mut HeldLanes<'_>,
    keys: &[&[u8]],
    places: &[Place],
) -> Result<Looked, KvError> {
    let piece_bytes = piece_bytes(w);
    let (mut views, mut binders) = (Vec::with_capacity(keys.len()), Vec::new());
    let (mut reads, mut wait) = (Vec::new(), None);
    let mut shown = Shown::default();
    for (key, &at) in keys.iter().zip(places) {
        let lane = held.lane(at.lane);
        let found = match find(t, lane, at, key) {
            Ok(found) => found,
            Err(e) => {
                let_go(held, reads);
                return Err(e);
            }
        };
        wait = wait.max(seen_with(lane, found));
        let (mut view, mut binder) = (absent(), None);
        match found {
            Found::Read(plan) => reads.push((at.lane, plan)),
            Found::Here { slot, fetched } => {
                let e = entry_of(t, lane, at, slot, fetched);
                let bytes = user_value(&e);
                let more = shown.add(w, bytes.len());
                if let Err(e) = more {
                    let_go(held, reads);
                    return Err(e);
                }
                if e.kind() == Kind::Binder {
                    binder = binder_of(bytes);
                }
                view = View {
                    value: match e.kind() {
                        Kind::Binder => LargeRef::hold(shared, bytes, piece_bytes)
                            .map_or(Held::Absent, Held::Large),
                        _ => Held::Inline(bytes.to_vec()),
                    },
                    expiry_ms: e.expiry_ms(),
                    meta: meta_of(&e),
                };
            }
            Found::Absent | Found::Gone(_) => {}
        }
        views.push(view);
        binders.push(binder);
        if reads.len() >= READS_PER_TASK_MAX {
            break;
        }
    }
    Ok(match reads.is_empty() {
        true => Looked::All(views, binders, wait, shown),
        false => Looked::Reads(reads),
    })
}

fn absent<L>() -> View<L> {
    View {
        value: Held::Absent,
        expiry_ms: None,
        meta: None,
    }
}

/// The changes with the room that each needs.
fn changes<'a>(
    w: &Worker,
    keys: &[&'a [u8]],
    edits: &[(usize, Edit)],
    (binders, bound): (&[Option<Binder>], &[u64]),
    uploads: &[Option<Upload>],
) -> Result<Vec<Change<'a>>, KvError> {
    let most = inline_max_bytes(w);
    let mut used = vec![false; uploads.len()];
    for nr in edits.iter().filter_map(|(_, edit)| upload_of(edit)) {
        if std::mem::replace(used.get_mut(nr).ok_or_else(no_upload)?, true) {
            return Err(KvError::wrong(
                "one upload was to become the value of several keys",
            ));
        }
    }
    let room = |(at, edit): &(usize, Edit)| {
        let mut c = change(w, keys[*at], None, false)?;
        c.stays = binders[*at].is_some_and(|b| bound.contains(&b.version));
        c.bytes += match edit {
            Edit::Delete => 0,
            Edit::Bind { .. } => entry_bytes(0, 16 + META_BYTES, true, false),
            Edit::Upload { nr, .. } => {
                let upload = uploads[*nr].as_ref().ok_or_else(no_upload)?;
                upload.usable(w)?;
                c.upload = Some((upload.lane, upload.record));
                entry_bytes(0, 16 + META_BYTES, true, false)
            }
            Edit::Put { value, .. } if value.len() > most => {
                return Err(too_long(value.len(), most));
            }
            Edit::Put { value, .. } => entry_bytes(0, value.len() + META_BYTES, true, false),
        };
        Ok(c)
    };
    edits.iter().map(room).collect()
}

fn upload_of(edit: &Edit) -> Option<usize> {
    match edit {
        Edit::Upload { nr, .. } => Some(*nr),
        _ => None,
    }
}

fn no_upload() -> KvError {
    KvError::wrong("a key was to get an upload that did not come with the edit")
}

pub(crate) fn too_long(len: usize, most: usize) -> KvError {
    KvError::new(
        KvErrorKind::TooLarge,
        format!(
            "the value would have {len} bytes; a command that changes a part of a value, or is in a transaction, may make \
             {most} at most; use SET for longer ones"
        ),
    )
}

/// The versions whose pieces another key gets, or the same anew: they stay.
fn bound(edits: &[(usize, Edit)], binders: &[Option<Binder>]) -> Vec<u64> {
    let version = |(_, edit): &(usize, Edit)| match edit {
        Edit::Bind { from, .. } => binders[*from].map(|b| b.version),
        _ => None,
    };
    edits.iter().filter_map(version).collect()
}

/// Makes all changes. Everything they need was prepared.
fn commit_all(
    w: &Worker,
    t: &Task,
    shared: &Shared,
    held: &mut HeldLanes<'_>,
    (changes, edits): (&[Change<'_>], &[(usize, Edit)]),
    (binders, bound): (&[Option<Binder>], &[u64]),
    uploads: &[Option<Upload>],
) -> Result<Option<u64>, KvError> {
    let mut wait = None;
    for (c, (_, edit)) in changes.iter().zip(edits) {
        let (kind, value, expiry_ms, meta) = match edit {
            Edit::Delete => {
                wait = wait.max(commit(w, t, shared, held, c, None, bound)?.wait);
                continue;
            }
            Edit::Put {
                value,
                expiry_ms,
                meta,
            } => (Kind::Value, value.clone(), *expiry_ms, *meta),
            Edit::Bind {
                from,
                expiry_ms,
                meta,
            } => {
                let binder = binders[*from].ok_or_else(|| {
                    KvError::wrong("a value in pieces was to be moved from a key without one")
                })?;
                (Kind::Binder, binder.encode().to_vec(), *expiry_ms, *meta)
            }
            Edit::Upload {
                nr,
                expiry_ms,
                meta,
            } => {
                let binder = uploads[*nr].as_ref().ok_or_else(no_upload)?.binder;
                (Kind::Binder, binder.encode().to_vec(), *expiry_ms, *meta)
            }
        };
        let (value, flags) = stored(&value, meta);
        let new = New {
            kind,
            value: &value,
            expiry_ms,
            flags,
        };
        wait = wait.max(commit(w, t, shared, held, c, Some(new), bound)?.wait);
        if let Some(upload) = upload_of(edit).and_then(|nr| uploads[nr].as_ref()) {
            end_upload(w, t, shared, held, (upload.lane, upload.record))?;
        }
    }
    Ok(wait)
}
