//! Finding a key's newest entry, through memory, buffers and reads.

use crate::shared::some_end;
use crate::{KvError, KvErrorKind, Step, Wait};
use terrace_log::entry::Entry;
use terrace_log::{Kind, Slot, Subject};
use terrace_pool::{Held, Lane, Task, Worker};
use terrace_tiers::{Look, ReadPlan, Refused};

/// Reads that one command has under way at once.
pub(crate) const READS_PER_TASK_MAX: usize = 64;
/// Fewer DRAM segments than this in a lane, and updates are refused.
const SEGMENTS_MIN: usize = 6;

/// A key's place in the pool.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub lane: u16,
    pub who: Subject,
}

pub(crate) fn place(w: &Worker, space: u8, key: &[u8]) -> Place {
    let (lane, who) = w.place(space, key);
    Place { lane, who }
}

/// What was found.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// No entry.
    Absent,
    /// A tombstone or expired entry: absent, but named by this slot.
    Gone(Slot),
    /// An entry; from the task's reads if `fetched`.
    Here { slot: Slot, fetched: bool },
    /// This must be read first.
    Read(ReadPlan),
}

/// The entry that this slot names cannot be read, and the slot may be the key's.
#[derive(Clone, Copy)]
pub(crate) struct Unreadable(pub Slot);

impl Unreadable {
    /// What a command says that needs the entry.
    pub(crate) fn error(self, t: &Task, at: Place) -> KvError {
        damaged(t.failure(at.lane, self.0.loc()).unwrap_or("not read"))
    }
}

/// What a look-up came to.
pub(crate) type Looked = Result<Found, Unreadable>;

/// Looks for a key in its held lane.
pub(crate) fn find(t: &Task, lane: &mut Lane, at: Place, key: &[u8]) -> Result<Found, KvError> {
    unharmed(t, at, look(t, lane, at, key, false))
}

/// The same for a read, which warms what it finds.
pub(crate) fn find_used(
    t: &Task,
    lane: &mut Lane,
    at: Place,
    key: &[u8],
) -> Result<Found, KvError> {
    unharmed(t, at, look(t, lane, at, key, true))
}

/// What was found, unless its value must not be shown.
pub(crate) fn unharmed(t: &Task, at: Place, looked: Looked) -> Result<Found, KvError> {
    let found = looked.map_err(|u| u.error(t, at))?;
    match damage_of(t, at, found) {
        Some(why) => Err(damaged(why)),
        None => Ok(found),
    }
}

/// Why the value that was found must not be shown.
pub(crate) fn damage_of(t: &Task, at: Place, found: Found) -> Option<&str> {
    match found {
        Found::Here {
            slot,
            fetched: true,
        } => t.fetched(at.lane, slot.loc())?.damage(),
        _ => None,
    }
}

fn damaged(why: &str) -> KvError {
    KvError::new(
        KvErrorKind::Damaged,
        format!("the value cannot be read back: {why}"),
    )
}

/// The same for a command that does not need the value: one that is damaged may be
/// replaced or deleted, and so may an entry that cannot be read at all. That the
/// latter is this key's is not known for sure, as a slot has no key; ADR 0010 says why it is taken to be.
pub(crate) fn find_to_replace(t: &Task, lane: &mut Lane, at: Place, key: &[u8]) -> Looked {
    look(t, lane, at, key, false)
}

/// The same for an update that asks nothing of the value before: `Err` is the slot of that value, which need not be read to be known as
/// this key's. The update must follow.
pub(crate) fn find_unasked(
    t: &Task,
    lane: &mut Lane,
    at: Place,
    key: &[u8],
) -> Result<Looked, Slot> {
    let look = look_for(t, lane, at, key, false);
    if matches!(look, Look::Read(_))
        && let Some(slot) = lane.recognise(at.who)
    {
        return Err(slot);
    }
    Ok(looked(t, lane, at, look))
}

fn look(t: &Task, lane: &mut Lane, at: Place, key: &[u8], is_use: bool) -> Looked {
    let look = look_for(t, lane, at, key, is_use);
    looked(t, lane, at, look)
}

#[inline]
fn look_for(t: &Task, lane: &mut Lane, at: Place, key: &[u8], is_use: bool) -> Look {
    let known = |loc| t.known(at.lane, loc, key, at.who.space);
    lane.look(at.who, key, is_use, known)
}

#[inline]
fn looked(t: &Task, lane: &mut Lane, at: Place, look: Look) -> Looked {
    match look {
        Look::Absent => match unreadable(t, lane, at) {
            Some(slot) => Err(Unreadable(slot)),
            None => Ok(Found::Absent),
        },
        Look::Memory(slot) => Ok(classify(lane, slot, lane.entry(slot), false)),
        Look::Fetched(slot) => {
            let f = t.fetched(at.lane, slot.loc()).expect("known");
            let e = f.entry().expect("a hit was read");
            Ok(classify(lane, slot, e, true))
        }
        Look::Read(loc) => Ok(Found::Read(lane.plan_read(loc))),
    }
}

/// A read failed and nothing else was found: if the directory still names what
/// failed, it may be this key's entry.
fn unreadable(t: &Task, lane: &Lane, at: Place) -> Option<Slot> {
    use terrace_log::Directory;
    if !t.any_failure(at.lane) {
        return None;
    }
    let failed = |s: Slot| t.failure(at.lane, s.loc()).is_some();
    lane.dir.find(at.who, failed)
}

fn classify(lane: &Lane, slot: Slot, e: Entry<'_>, fetched: bool) -> Found {
    match e.kind() == Kind::Tombstone || e.expired(lane.now_ms()) {
        true => Found::Gone(slot),
        false => Found::Here { slot, fetched },
    }
}

/// The entry that `find` found.
pub(crate) fn entry_of<'a>(
    t: &'a Task,
    lane: &'a Lane,
    at: Place,
    slot: Slot,
    fetched: bool,
) -> Entry<'a> {
    match fetched {
        true => {
            let f = t.fetched(at.lane, slot.loc()).expect("found there");
            f.entry().expect("found there")
        }
        false => lane.entry(slot),
    }
}

/// Starts reads, as many as there is room for; the command waits for them and asks for the others again, or waits for room.
pub(crate) fn fetch<T>(
    w: &mut Worker,
    t: &mut Task,
    reads: Vec<(u16, ReadPlan)>,
    keys_only: bool,
) -> Step<T> {
    let (mut begun, mut fits) = (false, true);
    for (lane, plan) in reads {
        fits = fits && w.may_fetch(&plan);
        begun |= fits;
        match fits {
            true => w.fetch(t, lane, plan, keys_only),
            false => w.put_off(lane, &plan),
        }
    }
    Step::Wait(match begun {
        true => Wait::Io,
        false => Wait::Room,
    })
}

/// The command does not read now: what its planned reads hold is let go.
pub(crate) fn let_go(held: &mut Held<'_>, reads: Vec<(u16, ReadPlan)>) {
    for (lane, plan) in reads {
        held.lane(lane).unpin(plan.segment);
    }
}

/// Whether updates are taken at all.
pub(crate) fn may_write(w: &Worker) -> Result<(), KvError> {
    match w.failed() {
        None => Ok(()),
        Some(why) => Err(KvError::new(
            KvErrorKind::ReadOnly,
            format!("the pool is read-only: {why}"),
        )),
    }
}

/// Makes room for `bytes` of updates in a held lane. `Ok(false)`: wait for room.
pub(crate) fn reserve(
    w: &Worker,
    lane: &mut Lane,
    bytes: usize,
    grows: bool,
) -> Result<bool, KvError> {
    if grows && lane.memory_segments() < SEGMENTS_MIN {
        return Err(dram_full(lane, "raise --dram or delete keys"));
    }
    let asked = match grows {
        true => lane.reserve(bytes),
        false => lane.reserve_as_much(bytes),
    };
    match asked {
        Ok(()) => Ok(true),
        Err(Refused::Room) if !grows && lane.never_fits(bytes) => {
            Err(dram_full(lane, "raise --dram"))
        }
        Err(Refused::Room) => Ok(false),
        // Somebody deletes what was replaced, and that frees room.
        Err(Refused::SsdFull) if grows && some_end(w) => Ok(false),
        Err(other) => Err(refused(w, lane, other, bytes)),
    }
}

fn dram_full(lane: &Lane, help: &str) -> KvError {
    let s = lane.stats();
    KvError::new(
        KvErrorKind::DramFull,
        format!(
            "DRAM is full of metadata: the index takes {} MiB of the cap; {help}",
            s.index_bytes >> 20
        ),
    )
}

/// The error for an update that was not taken.
pub(crate) fn refused(w: &Worker, lane: &Lane, why: Refused, bytes: usize) -> KvError {
    let s = lane.stats();
    match why {
        Refused::SsdFull | Refused::Room => {
            let (live, usable) = w.pool().ssd_use(lane);
            let own = match w.pool().superblock().lanes {
                1 => String::new(),
                lanes => format!(
                    "; the key's lane, one of {lanes}: {} of {}",
                    s.ssd_live_bytes >> 20,
                    s.ssd_usable_bytes >> 20
                ),
            };
            KvError::new(
                KvErrorKind::SsdFull,
                format!(
                    "the SSD is full: {} MiB of {} MiB in use{own}; delete keys or make a larger pool",
                    live >> 20,
                    usable >> 20
                ),
            )
        }
        Refused::TooLarge => KvError::new(
            KvErrorKind::TooLarge,
            format!(
                "the command changes {bytes} bytes at once; at most {} are allowed under this cap; split it or raise --dram",
                s.dirty_max_bytes / 2
            ),
        ),
        Refused::IndexFull => KvError::new(
            KvErrorKind::DramFull,
            "the index cannot tell more keys apart at this hash",
        ),
    }
}
