//! Reading objects together that lie together on the SSD: those that left DRAM one after the other mostly do.
//!
//! What must be read is planned under the lanes' locks, what lies side by side becomes one read, and the device has all reads at the same time. Promises:
//! at most `LONG_MAX` calls have a long buffer at a time, others find nothing gathered (up to [`FEW`] objects need none); a segment is held until what was read in it was taken or dropped; what could
//! not be read is not there, and says why when it is read by itself. Never: reads what is in DRAM, or shows what is not the newest.

use super::buffers::{LONG_BYTES, SPARE_BYTES};
use super::open::Store;
use super::read::{Value, near, settle_counted, value_of, verified};
use super::table::State;
use std::ops::Range;
use terrace_log::ObjectId;
use terrace_media::{Buf, ReadInto};
use terrace_tiers::ReadPlan;

/// Bytes between two entries that are read along rather than beginning another read: what the device reads in a small part of the time that one takes.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Objects of one call.
pub(crate) const GATHER_MAX: usize = 33;
/// Objects for which a buffer of the store's is long enough, if they are pages.
const FEW: usize = 2;
const FEW_BYTES: usize = SPARE_BYTES;

/// An entry that is to be read, or was.
#[derive(Clone, Copy)]
struct Planned {
    index: u8,
    oid: ObjectId,
    lane: u16,
    plan: ReadPlan,
    /// Where in the buffer it begins, once it was read.
    at: Option<usize>,
}

/// What was read of one call's objects.
pub(crate) struct Gathered<'a> {
    store: &'a Store,
    buf: Option<Buf>,
    planned: Vec<Planned>,
}

impl Store {
    /// Reads those of `ids` that the device has, as far as a buffer for them can be had. Only the first [`GATHER_MAX`] are looked at.
    pub(crate) fn gather(&self, table: u16, ids: &[u64]) -> Gathered<'_> {
        let mut gathered = Gathered {
            store: self,
            buf: match ids.len() {
                _ if self.here().is_err() => None,
                ..=FEW => Some(self.take_buf(FEW_BYTES)),
                _ => self.buffers.take_long(self.pool.ledger()),
            },
            planned: Vec::new(),
        };
        if gathered.buf.is_some() {
            gathered.plan(table, &ids[..ids.len().min(GATHER_MAX)]);
            gathered.read();
        }
        gathered
    }
}

impl Gathered<'_> {
    fn plan(&mut self, table: u16, ids: &[u64]) {
        self.planned.reserve_exact(ids.len());
        for lane_id in 0..self.store.lanes() {
            let own = |id: u64| self.store.dealt.lane_of(id) == lane_id;
            if !ids.iter().any(|id| own(*id)) {
                continue;
            }
            let mut lane = self.store.pool.lane(lane_id);
            for (index, id) in ids.iter().enumerate().filter(|(_, id)| own(**id)) {
                let oid = ObjectId::new(table, *id);
                if let State::At(slot) = lane.dir.get(oid)
                    && near(&lane, slot).is_none()
                {
                    self.planned.push(Planned {
                        index: index as u8,
                        oid,
                        lane: lane_id,
                        plan: lane.plan_read(slot.loc()),
                        at: None,
                    });
                }
            }
        }
        self.planned.sort_unstable_by_key(|p| p.plan.offset);
    }

    /// Reads what was planned, as far as the buffer goes.
    fn read(&mut self) {
        let Some(buf) = &mut self.buf else { return };
        // Of each run how many entries it has, and its read.
        let (mut counts, mut reads) = (Vec::new(), Vec::new());
        counts.reserve_exact(self.planned.len());
        reads.reserve_exact(self.planned.len());
        let (mut rest, mut used, mut from) = (&mut buf[..], 0, 0);
        while from < self.planned.len() {
            let run = run(&self.planned[from..], rest.len());
            let Some((count, place)) = run else { break };
            for entry in &mut self.planned[from..from + count] {
                entry.at = Some(used + (entry.plan.offset - place.start) as usize);
            }
            let (into, behind) = rest.split_at_mut((place.end - place.start) as usize);
            (rest, used, from) = (behind, used + into.len(), from + count);
            counts.push(count);
            reads.push(ReadInto {
                offset: place.start,
                into,
                result: Ok(()),
            });
        }
        self.store.pool.device().read_several(&mut reads);
        let mut entries = &mut self.planned[..];
        for (count, read) in counts.iter().zip(&reads) {
            let (run, behind) = entries.split_at_mut(*count);
            let mut lane = self.store.pool.lane(run[0].lane);
            lane.count(|s| {
                // Each was planned as a read of its own.
                s.device_reads -= *count as u64 - 1;
                s.device_read_bytes += read.into.len() as u64;
            });
            drop(lane);
            if read.result.is_err() {
                run.iter_mut().for_each(|entry| entry.at = None);
            }
            entries = behind;
        }
        for left in entries {
            let mut lane = self.store.pool.lane(left.lane);
            lane.count(|s| s.device_reads -= 1);
        }
    }

    /// Shows the object with an index to `f`, if it was read and is whole. It comes up to DRAM if `comes_up` says so of its length.
    pub fn take<R>(
        &mut self,
        index: usize,
        comes_up: impl Fn(usize) -> bool,
        f: impl FnOnce(Value<'_>) -> R,
    ) -> Option<R> {
        let at = self
            .planned
            .iter()
            .position(|p| usize::from(p.index) == index)?;
        let (buf, place) = (self.buf.as_ref()?, self.planned[at].at?);
        let Planned {
            oid, lane, plan, ..
        } = self.planned.swap_remove(at);
        let entry = verified(&buf[place..place + plan.len], &plan, oid);
        let up = entry.as_ref().is_ok_and(|e| comes_up(e.value().len()));
        let mut lane = self.store.pool.lane(lane);
        settle_counted(&mut lane, oid, &plan, entry.as_ref().map_err(|e| *e), up);
        drop(lane);
        Some(f(value_of(&entry.ok()?)))
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        for planned in self.planned.drain(..) {
            let mut lane = self.store.pool.lane(planned.lane);
            lane.unpin(planned.plan.segment);
        }
        match self.buf.take() {
            Some(buf) if buf.len() == LONG_BYTES => self.store.buffers.keep_long(buf),
            Some(buf) => self.store.keep_buf(buf),
            None => {}
        }
    }
}

/// How many of the first lie together in one lane, and where; None if not even the first fits `room` bytes.
fn run(planned: &[Planned], room: usize) -> Option<(usize, Range<u64>)> {
    let first = planned.first()?;
    let mut place = first.plan.offset..first.plan.offset;
    let mut count = 0;
    for Planned { plan, lane, .. } in planned {
        let end = place.end.max(plan.offset + plan.len as u64);
        let near = *lane == first.lane && plan.offset <= place.end + GAP_BYTES_MAX;
        if !near || (end - place.start) as usize > room {
            break;
        }
        place.end = end;
        count += 1;
    }
    (count > 0).then_some((count, place))
}
