//! Reading many objects at once: the device has as many reads in hand as it takes, all from the calling thread.
//!
//! A call borrows a queue, looks at its objects a window at a time, lane by lane, submits what must be read and takes what comes
//! back in any order. Promises: every read begun ends before the call returns, also after an error or a panic of who is shown them. Never: more than
//! [`QUEUE_READS_MAX`] reads of one call; one that gets no queue reads its objects one by one.

use super::buffers::{QUEUE_READS_MAX, Queue};
use super::error::ObjectError;
use super::open::Store;
use super::read::{Look, Value, look, settle, value_of, verified};
use crate::inside;
use slab::Slab;
use std::time::Duration;
use terrace_log::{Entry, ObjectId};
use terrace_media::{Buf, Done, MediaError, Op, Wait};
use terrace_tiers::ReadPlan;

/// New objects are looked at when so many places are free.
const REFILL: usize = 16;
/// Longest wait before the device is asked again.
const REAP_WAIT: Duration = Duration::from_millis(100);

/// A read under way.
struct Reading {
    index: usize,
    oid: ObjectId,
    lane: u16,
    plan: ReadPlan,
}

/// A read that came back.
struct Ended {
    reading: Reading,
    result: Result<(), MediaError>,
    buf: Option<Buf>,
    /// Whether what it holds was right and was shown, if it came so far.
    shown: Option<Result<(), ObjectError>>,
}

/// One call.
struct Call<'a, F> {
    store: &'a Store,
    /// Until it is dropped.
    queue: Option<Queue>,
    reads: Slab<Reading>,
    /// Planned and not submitted yet.
    planned: Vec<usize>,
    done: Vec<Done>,
    ended: Vec<Ended>,
    error: Option<ObjectError>,
    show: F,
}

impl Store {
    /// Shows each object of `ids` to `f`, with its index there, in any order, perhaps with a lane locked: `f` is
    /// short and calls nothing of the store. After an error some may not have been shown.
    pub fn get_many(
        &self,
        table: u16,
        ids: &[u64],
        mut f: impl FnMut(usize, Value<'_>),
    ) -> Result<(), ObjectError> {
        self.here()?;
        for id in ids {
            self.place(table, *id)?;
        }
        match self.queues.take(&self.pool) {
            Some(queue) => Call {
                store: self,
                queue: Some(queue),
                reads: Slab::with_capacity(QUEUE_READS_MAX),
                planned: Vec::with_capacity(QUEUE_READS_MAX),
                done: Vec::with_capacity(QUEUE_READS_MAX),
                ended: Vec::with_capacity(QUEUE_READS_MAX),
                error: None,
                show: f,
            }
            .run(table, ids),
            None => (ids.iter().enumerate())
                .try_for_each(|(i, id)| self.read(table, *id, |value| f(i, value))),
        }
    }
}

impl<F: FnMut(usize, Value<'_>)> Call<'_, F> {
    fn run(mut self, table: u16, ids: &[u64]) -> Result<(), ObjectError> {
        let mut next = 0;
        while next < ids.len() || !self.reads.is_empty() {
            let room = QUEUE_READS_MAX - self.reads.len();
            if self.error.is_some() {
                next = ids.len();
            } else if next < ids.len() && room >= REFILL {
                let window = &ids[next..(next + room).min(ids.len())];
                self.look_at(table, window, next);
                next += window.len();
            }
            if !self.reads.is_empty() {
                // Only a full queue, or the end, is worth waiting for.
                let wait = match self.reads.len() + REFILL > QUEUE_READS_MAX || next == ids.len() {
                    true => Wait::For(REAP_WAIT),
                    false => Wait::No,
                };
                self.queue().disk.kick();
                self.reap(wait);
            }
        }
        self.error.map_or(Ok(()), Err)
    }

    /// Looks at some objects, a lane at a time, and submits the reads of those that are not in memory.
    fn look_at(&mut self, table: u16, window: &[u64], first: usize) {
        for lane_id in 0..self.store.lanes() {
            let own = |id: u64| self.store.dealt.lane_of(id) == lane_id;
            if !window.iter().any(|id| own(*id)) {
                continue;
            }
            // Who touches memory that faults in `show` is told so, and does not wait for the lane.
            inside::run(|| {
                let mut lane = self.store.pool.lane(lane_id);
                for (at, id) in window.iter().enumerate().filter(|(_, id)| own(**id)) {
                    let (oid, index) = (ObjectId::new(table, *id), first + at);
                    if let Look::Read(plan) =
                        look(&mut lane, oid, |value| (self.show)(index, value))
                    {
                        self.planned.push(self.reads.insert(Reading {
                            index,
                            oid,
                            lane: lane_id,
                            plan,
                        }));
                    }
                }
            });
        }
        while let Some(at) = self.planned.pop() {
            let ReadPlan { offset, len, .. } = self.reads[at].plan;
            let ledger = self.store.pool.ledger();
            let queue = self.queue();
            let buf = queue.buf(ledger, len);
            queue.disk.submit(at as u64, Op::Read { offset, buf });
        }
    }

    /// Takes what came back: shows it without a lock, then settles it lane by lane.
    fn reap(&mut self, wait: Wait) {
        self.collect(wait);
        for e in &mut self.ended {
            let shown = show_read(&mut self.show, e);
            self.error = self.error.or(shown.err());
            e.shown = Some(shown);
        }
        self.settle();
    }
}

impl<F> Call<'_, F> {
    fn queue(&mut self) -> &mut Queue {
        self.queue.as_mut().expect("there until it is dropped")
    }

    /// Takes what came back, and shows nothing.
    fn collect(&mut self, wait: Wait) {
        let mut done = std::mem::take(&mut self.done);
        self.queue().disk.reap(wait, &mut done);
        for d in done.drain(..) {
            self.ended.push(Ended {
                reading: self.reads.remove(d.token as usize),
                result: d.result,
                buf: d.buf,
                shown: None,
            });
        }
        self.done = done;
    }

    /// Settles what came back, lane by lane.
    fn settle(&mut self) {
        for lane_id in 0..self.store.lanes() {
            if self.ended.iter().all(|e| e.reading.lane != lane_id) {
                continue;
            }
            let mut lane = self.store.pool.lane(lane_id);
            for e in self.ended.iter().filter(|e| e.reading.lane == lane_id) {
                let plan = &e.reading.plan;
                // Verified when it was shown.
                let Some(shown) = e.shown else {
                    lane.unpin(plan.segment);
                    continue;
                };
                let entry = match (shown, &e.buf) {
                    (Ok(()), Some(buf)) => Ok(Entry::in_memory(&buf[plan.skip..plan.len])),
                    (Ok(()), None) => Err(ObjectError::damaged(plan)),
                    (Err(error), _) => Err(error),
                };
                settle(
                    &mut lane,
                    e.reading.oid,
                    plan,
                    entry.as_ref().map_err(|e| *e),
                    true,
                );
            }
        }
        while let Some(e) = self.ended.pop() {
            if let Some(buf) = e.buf {
                let ledger = self.store.pool.ledger();
                self.queue().keep(ledger, buf);
            }
        }
    }
}

fn show_read(show: &mut impl FnMut(usize, Value<'_>), ended: &Ended) -> Result<(), ObjectError> {
    let plan = &ended.reading.plan;
    if let Err(e) = &ended.result {
        return Err(ObjectError::of_read(e, plan));
    }
    let buf = ended.buf.as_ref().ok_or(ObjectError::damaged(plan))?;
    let entry = verified(buf, plan, ended.reading.oid)?;
    show(ended.reading.index, value_of(&entry));
    Ok(())
}

impl<F> Drop for Call<'_, F> {
    /// The queue is lent to the next. Where who was shown an object has panicked, reads are under way, and segments are held for them.
    fn drop(&mut self) {
        while let Some(at) = self.planned.pop() {
            self.ended.push(Ended {
                reading: self.reads.remove(at),
                result: Ok(()),
                buf: None,
                shown: None,
            });
        }
        self.settle();
        while !self.reads.is_empty() {
            self.collect(Wait::For(REAP_WAIT));
            self.settle();
        }
        let ledger = self.store.pool.ledger();
        if let Some(queue) = self.queue.take() {
            self.store.queues.keep(ledger, queue);
        }
    }
}
