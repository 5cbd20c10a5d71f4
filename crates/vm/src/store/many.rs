//! Reading many objects at once: the device has as many reads in hand as it takes, all from the calling thread.
//!
//! A call borrows a queue, looks at its objects a window at a time, lane by lane, submits what must be read and takes what comes
//! back in any order. Promises: every read begun ends before the call returns, also after an error. Never: more than
//! [`QUEUE_READS_MAX`] reads of one call; one that gets no queue reads its objects one by one.

use super::buffers::{QUEUE_READS_MAX, Queue};
use super::error::ObjectError;
use super::open::Store;
use super::read::{Look, Value, look, settle, value_of, verified};
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
    buf: Option<Buf>,
    error: Option<ObjectError>,
}

/// One call.
struct Call<'a, F> {
    store: &'a Store,
    queue: Queue,
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
        for id in ids {
            self.place(table, *id)?;
        }
        match self.queues.take(&self.pool) {
            Some(queue) => Call {
                store: self,
                queue,
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
                self.queue.disk.kick();
                self.reap(wait);
            }
        }
        let error = self.error;
        self.give_back();
        error.map_or(Ok(()), Err)
    }

    /// Looks at some objects, a lane at a time, and submits the reads of those that are not in memory.
    fn look_at(&mut self, table: u16, window: &[u64], first: usize) {
        for lane_id in 0..self.store.lanes() {
            let own = |id: u64| (id & self.store.lane_mask) as u16 == lane_id;
            if !window.iter().any(|id| own(*id)) {
                continue;
            }
            let mut lane = self.store.pool.lane(lane_id);
            for (at, id) in window.iter().enumerate().filter(|(_, id)| own(**id)) {
                let (oid, index) = (ObjectId::new(table, *id), first + at);
                if let Look::Read(plan) = look(&mut lane, oid, |value| (self.show)(index, value)) {
                    self.planned.push(self.reads.insert(Reading {
                        index,
                        oid,
                        lane: lane_id,
                        plan,
                    }));
                }
            }
        }
        for at in std::mem::take(&mut self.planned) {
            let plan = self.reads[at].plan;
            let buf = self.queue.buf(plan.len);
            let op = Op::Read {
                offset: plan.offset,
                buf,
            };
            self.queue.disk.submit(at as u64, op);
        }
    }

    /// Takes what came back: shows it without a lock, then settles it lane by lane.
    fn reap(&mut self, wait: Wait) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.disk.reap(wait, &mut done);
        for d in done.drain(..) {
            let reading = self.reads.remove(d.token as usize);
            let error = self.show_read(&reading, &d.result, d.buf.as_ref()).err();
            self.error = self.error.or(error);
            self.ended.push(Ended {
                reading,
                buf: d.buf,
                error,
            });
        }
        self.done = done;
        for lane_id in 0..self.store.lanes() {
            if self.ended.iter().all(|e| e.reading.lane != lane_id) {
                continue;
            }
            let mut lane = self.store.pool.lane(lane_id);
            for e in self.ended.iter().filter(|e| e.reading.lane == lane_id) {
                let plan = &e.reading.plan;
                // Verified when it was shown.
                let entry = match (&e.error, &e.buf) {
                    (None, Some(buf)) => Ok(Entry::in_memory(&buf[plan.skip..plan.len])),
                    (error, _) => Err(error.unwrap_or(ObjectError::damaged(plan))),
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
        for e in self.ended.drain(..) {
            if let Some(buf) = e.buf {
                self.queue.keep(buf);
            }
        }
    }

    fn show_read(
        &mut self,
        reading: &Reading,
        result: &Result<(), MediaError>,
        buf: Option<&Buf>,
    ) -> Result<(), ObjectError> {
        let plan = &reading.plan;
        if let Err(e) = result {
            return Err(ObjectError::of_read(e, plan));
        }
        let buf = buf.ok_or(ObjectError::damaged(plan))?;
        let entry = verified(buf, plan, reading.oid)?;
        (self.show)(reading.index, value_of(&entry));
        Ok(())
    }

    fn give_back(self) {
        let store = self.store;
        store.queues.keep(store.pool.ledger(), self.queue);
    }
}
