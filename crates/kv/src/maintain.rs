//! What `kv` does in the background: pieces of big values that ended go, bit by bit.
//!
//! One thread of a pool has a [`Maintainer`] and gives it a turn now and then.
//! At the start it looks at every record: what an earlier run left under way is
//! doomed, and every other record is free from the moment it was looked at, so that
//! big values are taken while the rest is still looked at; only a flush of all keys
//! waits for the end. A record that cannot be read is never given out, since nobody
//! knows which pieces it names.
//! Never: does more than a bounded step in a turn, or gives up the start for one record.

use crate::expire::expire_now;
use crate::find::{
    Found, Place, fetch, find_to_replace, let_go, may_write, place, refused, reserve,
};
use crate::large::{RECORD_BYTES, RECORDS, piece_key, record_key};
use crate::read::{Promote, read};
use crate::shared::{Doomed, binder, piece_bytes, registry};
use crate::{KvError, Outcome, Step, Wait};
use terrace_pool::{Held, Task, Worker};
use terrace_tiers::ReadPlan;

/// Pieces deleted in one step.
const PIECES_PER_STEP: u32 = 8;
/// Records looked at in one turn at the start.
const RECORDS_PER_TURN: u16 = 512;

enum State {
    Start(u16),
    Idle,
    Pieces(Doomed, u32),
    Expire,
}

/// Background work of `kv` in one pool.
pub struct Maintainer {
    state: State,
    /// Keys of big values whose time is up. Beside the state, since their end may wait for a record, which only pieces that go give back.
    expired: Vec<Box<[u8]>>,
    task: Option<Task>,
    owner: u64,
    /// Flushes of all keys seen: after one, a job under way has nothing to do and no record to give back.
    flushes: u64,
}

impl Maintainer {
    /// `owner` is what `Worker::take_ready` will say for its reads; nothing needs to be done about it.
    pub fn new(owner: u64) -> Maintainer {
        Maintainer {
            state: State::Start(0),
            expired: Vec::new(),
            task: None,
            owner,
            flushes: 0,
        }
    }

    /// A bounded step. True if more could be done at once.
    pub fn turn(&mut self, w: &mut Worker) -> bool {
        let flushes = w.pool().flushes_of_all();
        if std::mem::replace(&mut self.flushes, flushes) != flushes
            && !matches!(self.state, State::Start(_))
        {
            self.state = State::Idle;
            self.expired.clear();
        }
        let mut task = match self.task.take() {
            Some(task) => task,
            None => w.task(self.owner),
        };
        let step = self.step(w, &mut task);
        match step {
            Ok(Step::Wait(wait)) => {
                self.task = Some(task);
                // Reads come with a completion, room with a turn.
                wait == Wait::Io && w.poll_fd().is_none()
            }
            Ok(Step::Done(more)) => {
                w.finish(task);
                more
            }
            Err(_) => {
                w.finish(task);
                self.put_off(w);
                false
            }
        }
    }

    /// A job that cannot go on now makes way for others.
    fn put_off(&mut self, w: &Worker) {
        match &mut self.state {
            State::Pieces(doomed, _) => {
                let held = w.lane(w.place(1, &record_key(doomed.record)).0);
                if w.pool().flushes_of_all() == self.flushes {
                    registry(w).registry.lock().put_back(*doomed);
                }
                drop(held);
                self.state = State::Idle;
            }
            // That key is met again when somebody reads it.
            State::Expire => drop(self.expired.pop()),
            State::Start(_) | State::Idle => {}
        }
    }

    fn step(&mut self, w: &mut Worker, task: &mut Task) -> Outcome<bool> {
        match &mut self.state {
            State::Start(next) => start(w, task, next).map(|s| self.started(w, s)),
            State::Idle => Ok(Step::Done(self.next_job(w))),
            State::Pieces(doomed, next) => {
                let doomed = *doomed;
                let step = delete_pieces(w, task, &doomed, *next, self.flushes)?;
                Ok(match step {
                    Step::Wait(wait) => Step::Wait(wait),
                    Step::Done(Some(after)) => {
                        *next = after;
                        Step::Done(true)
                    }
                    Step::Done(None) => {
                        let lane = w.place(1, &record_key(doomed.record)).0;
                        // A deletion of everything holds it too, and has given the record back.
                        let held = w.lane(lane);
                        if w.pool().flushes_of_all() == self.flushes {
                            registry(w).registry.lock().ended(lane, doomed.record);
                        }
                        drop(held);
                        self.state = State::Idle;
                        Step::Done(true)
                    }
                })
            }
            State::Expire => {
                let Some(key) = self.expired.last() else {
                    self.state = State::Idle;
                    return Ok(Step::Done(true));
                };
                match expire_now(w, task, key)? {
                    Step::Done(()) => {
                        self.expired.pop();
                        Ok(Step::Done(true))
                    }
                    // All records may be with values whose pieces are to go: nobody else would ever give one back.
                    Step::Wait(Wait::Room) if self.next_pieces(w) => Ok(Step::Done(true)),
                    Step::Wait(wait) => Ok(Step::Wait(wait)),
                }
            }
        }
    }

    fn started(&mut self, w: &Worker, step: Step<bool>) -> Step<bool> {
        if step == Step::Done(false) {
            registry(w).registry.lock().started = true;
            self.state = State::Idle;
        }
        step
    }

    fn next_job(&mut self, w: &mut Worker) -> bool {
        // A read-only pool meets what is left at its next start.
        if w.failed().is_some() {
            return false;
        }
        if self.next_pieces(w) {
            return true;
        }
        if self.expired.is_empty() {
            let lanes = w.pool().superblock().lanes;
            self.expired = (0..lanes)
                .flat_map(|l| w.pool().with_lane(l, |lane| lane.take_expired_binders()))
                .collect();
        }
        let any = !self.expired.is_empty();
        if any {
            self.state = State::Expire;
        }
        any
    }

    /// Turns to the next version whose pieces must go, if there is one.
    fn next_pieces(&mut self, w: &Worker) -> bool {
        let shared = registry(w);
        let mut registry = shared.registry.lock();
        // One that was doomed since a deletion of everything would be taken for one of before: it is the next turn's.
        if w.pool().flushes_of_all() != self.flushes {
            return false;
        }
        let Some(doomed) = registry.next_doomed() else {
            return false;
        };
        self.state = State::Pieces(doomed, 0);
        true
    }
}

/// Looks at some records. Done(true): more are left.
fn start(w: &mut Worker, task: &mut Task, next: &mut u16) -> Outcome<bool> {
    let until = (*next + RECORDS_PER_TURN).min(RECORDS);
    while *next < until {
        let key = record_key(*next);
        let found = read(w, task, 1, &key, Promote::Never, |e| {
            e.and_then(|e| binder(e.value()))
        });
        let found = match found {
            Ok(Step::Wait(wait)) => return Ok(Step::Wait(wait)),
            Ok(Step::Done(found)) => Ok(found),
            Err(e) => Err(e),
        };
        w.reset(task);
        let lane = w.place(1, &key).0;
        let shared = registry(w);
        let mut registry = shared.registry.lock();
        match found {
            Ok(Some(binder)) => registry.doom(Doomed {
                record: *next,
                binder,
            }),
            Ok(None) => registry.give(lane, *next),
            Err(e) => {
                tracing::warn!(
                    "record {} of big values under way: {e}; it is set aside, and the pieces it \
                     names stay until everything is deleted",
                    *next
                );
                registry.lose(lane);
            }
        }
        *next += 1;
    }
    Ok(Step::Done(*next < RECORDS))
}

/// Deletes some pieces, and the record after the last, if `flushes` are still all. Done(None): all gone.
pub(crate) fn delete_pieces(
    w: &mut Worker,
    task: &mut Task,
    doomed: &Doomed,
    from: u32,
    flushes: u64,
) -> Outcome<Option<u32>> {
    let pieces = doomed.binder.pieces(piece_bytes(w));
    let until = (from + PIECES_PER_STEP).min(pieces);
    let keys: Vec<Vec<u8>> = match from < pieces {
        true => (from..until)
            .map(|n| piece_key(doomed.binder.version, n).to_vec())
            .collect(),
        false => vec![record_key(doomed.record).to_vec()],
    };
    Ok(match del_internal(w, task, &keys, flushes)? {
        Step::Wait(wait) => Step::Wait(wait),
        Step::Done(()) if from < pieces => Step::Done(Some(until)),
        Step::Done(()) => Step::Done(None),
    })
}

/// Deletes internal keys (pieces, records); after another deletion of everything than `flushes` counts they are gone, or somebody else's.
fn del_internal(w: &mut Worker, t: &mut Task, keys: &[Vec<u8>], flushes: u64) -> Outcome<()> {
    may_write(w)?;
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let places: Vec<Place> = keys.iter().map(|k| place(w, 1, k)).collect();
    let mut held = w.hold(places.iter().map(|p| p.lane));
    // Looked at with the lanes held, which a deletion of everything holds too: until then a new upload may have been given the record.
    if w.pool().flushes_of_all() != flushes {
        return Ok(Step::Done(()));
    }
    let mut reads = Vec::new();
    let all = del_held(w, t, &mut held, keys, &places, &mut reads);
    if !matches!(all, Ok(true)) {
        let_go(&mut held, reads);
        drop(held);
        all?;
        w.want_room();
        return Ok(Step::Wait(Wait::Room));
    }
    drop(held);
    match reads.is_empty() {
        true => Ok(Step::Done(())),
        false => Ok(fetch(w, t, reads, true)),
    }
}

/// Deletes what is found at once; what must be read first goes into `reads`.
/// `Ok(false)`: there is no room just now.
fn del_held(
    w: &Worker,
    t: &Task,
    held: &mut Held<'_>,
    keys: &[Vec<u8>],
    places: &[Place],
    reads: &mut Vec<(u16, ReadPlan)>,
) -> Result<bool, KvError> {
    for (key, &at) in keys.iter().zip(places) {
        let lane = held.lane(at.lane);
        if !reserve(w, lane, RECORD_BYTES, false)? {
            return Ok(false);
        }
        let slot = match find_to_replace(t, lane, at, key) {
            Ok(Found::Read(plan)) => {
                reads.push((at.lane, plan));
                continue;
            }
            Ok(Found::Here { slot, .. }) => slot,
            Ok(Found::Absent | Found::Gone(_)) => continue,
            Err(unreadable) => {
                tracing::warn!("{}; it is deleted unread", unreadable.error(t, at));
                unreadable.0
            }
        };
        let gone = lane.delete(at.who, slot, key);
        gone.map_err(|why| refused(w, lane, why, RECORD_BYTES))?;
    }
    Ok(true)
}
