//! Room in a lane: whether an update is taken, an epoch begun, a segment cleaned.
//!
//! Every step leaves the next one enough free segments, so that the lane can always
//! end its epoch, write a checkpoint and empty one more segment. What a read holds is not counted as free, since it cannot be taken: the
//! cleaner goes on, with what is not held as long as there is any. Where all that it frees is held, nothing goes on before reads end, and
//! with them what they held comes back, which is all that is needed to go on. That wait has a bound: the device ends each read, a command has so many
//! keys, and one that waits for room itself lets go of what it has read (`waits_for_readers`). Never: writes to the
//! device or waits; making room in memory is all that is done here, and what is
//! missing is said by [`Refused`].

use crate::config::{Phase, Refused, Rule};
use crate::lane::Lane;
use crate::policy::{self, CLEANER_SEGMENTS, SPARE_SEGMENTS};
use crate::root::SEGMENT_RECORD_BYTES;
use terrace_log::Snapshot;

/// Free SSD segments beside a checkpoint's that must be there: to begin an epoch and
/// to go on moving in it; for calm; to take updates it is [`CLEANER_SEGMENTS`].
const END_SEGMENTS: usize = 2;
/// The same to take deletions where the cleaner has nothing to do: what ends their epoch, and the one more that its entries are promised.
const DELETE_SEGMENTS: usize = END_SEGMENTS + 1;
const CALM_SEGMENTS: usize = 4;
/// Tombstones below this part of all bytes are not cleaned for, 1 / 64: it would gain next to nothing.
const PRESS_FROM_ONE_IN: u64 = 64;
/// Segments that may be cleaned for them without more being asked for, and how many times what is asked for: where nearly all is live each is written again whole.
const CREDIT_SEGMENTS_MAX: u64 = 4;
const CREDIT_OF_ASKED: u64 = 4;

impl<D: Snapshot> Lane<D> {
    /// Makes sure that updates of `bytes` in all can be appended without anything
    /// being moved, so that slots looked up after this stay valid until then.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Refused> {
        self.reserve_for(bytes, true)
    }
    /// The same for deletions and what takes the place of as much, which a full SSD still takes.
    pub fn reserve_as_much(&mut self, bytes: usize) -> Result<(), Refused> {
        self.reserve_for(bytes, false)
    }

    fn reserve_for(&mut self, bytes: usize, grows: bool) -> Result<(), Refused> {
        if bytes as u64 > self.dirty_max / 2 {
            // That the cap leaves nothing at all may last a moment; `never_fits` knows.
            return Err(match grows || self.mem.quota() > 0 {
                true => Refused::TooLarge,
                false => self.wait_for_room(bytes),
            });
        }
        self.credit_tombstones(CREDIT_OF_ASKED * bytes as u64);
        if grows && self.live_estimate + self.dirty_bytes() + bytes as u64 > self.usable_bytes() {
            return Err(self.full(bytes));
        }
        self.clean_memory(2 * bytes);
        while !self.memory_takes(bytes, grows) {
            if !self.clean_memory_segment() {
                return Err(self.wait_for_room(bytes));
            }
        }
        if !grows {
            self.lacks.dram.ended();
        }
        // Last, since cleaning may leave tombstones of expired entries.
        if !self.dirty_fits(bytes, grows) {
            return Err(self.wait_for_room(bytes));
        }
        Ok(())
    }
    /// Whether memory has the segments for updates of `bytes`. The cleaner's spare one is there for what does not grow: without it hot
    /// entries step down. Where the cap is all but used up, deletions have nothing else.
    fn memory_takes(&self, bytes: usize, grows: bool) -> bool {
        let free = self.mem.free_segments();
        let segments = self.memory_segments_for(bytes);
        match grows {
            true => free >= segments + SPARE_SEGMENTS,
            false => free >= segments || self.mem.dirty_head_takes(bytes) == Some(true),
        }
    }
    fn memory_segments_for(&self, bytes: usize) -> usize {
        let capacity = self.mem.capacity_bytes();
        bytes / (capacity - capacity / 4) + 1 + usize::from(bytes > capacity / 4)
    }
    /// Whether no waiting makes room in memory for `bytes` of what does not grow: the dirty head, which is not cleaned before it
    /// is full, has no place for them, and beside it there may be too few segments, for a while now.
    pub fn never_fits(&mut self, bytes: usize) -> bool {
        let most = self.mem.quota();
        let segments = self.memory_segments_for(bytes);
        let beside = match self.mem.dirty_head_takes(bytes) {
            Some(true) => 0,
            Some(false) => segments + 1,
            None => segments,
        };
        most < beside.max(1) && self.lacks.dram.is_known(self.lacks.now_ms)
    }
    /// Whether tombstones take more of the SSD than is left of it. Without this, who replaces and deletes again and again in what he was promised would find it taken by what says that it was freed.
    fn tombstones_press(&self) -> bool {
        let tombstones = self.ssd.tomb_bytes();
        let taken = self.live_estimate + self.dirty_bytes();
        tombstones * PRESS_FROM_ONE_IN > self.live_estimate
            && tombstones > self.usable_bytes().saturating_sub(taken)
    }
    /// Whether segments are cleaned for their sake, however many are free, from the oldest on: a tombstone goes when nothing older than it is on the medium. Not for nobody, and not without end.
    pub(crate) fn cleans_for_tombstones(&self) -> bool {
        self.ssd.tombstone_credit >= self.cfg.segment_bytes as u64 && self.tombstones_press()
    }
    /// One is.
    pub(crate) fn spend_on_tombstones(&mut self) {
        self.ssd.tombstone_credit -= self.cfg.segment_bytes as u64;
    }
    fn credit_tombstones(&mut self, bytes: u64) {
        let most = CREDIT_SEGMENTS_MAX * self.cfg.segment_bytes as u64;
        self.ssd.tombstone_credit = (self.ssd.tombstone_credit + bytes).min(most);
    }
    /// The SSD is full as far as is known: what is under way may free some of it, and is waited for once.
    fn full(&mut self, bytes: usize) -> Refused {
        if self.tombstones_press() {
            self.credit_tombstones(u64::MAX / 2);
        }
        // Where nothing is cleaned for them, and nothing can be, no epoch would end that is waited for.
        let cleans = self.tombstones_press() && self.cleaner_goes_on();
        let nothing_under_way = (self.dirty_bytes() == 0 && !cleans) || self.cfg.scratch;
        if nothing_under_way || self.lacks.ssd.is_known(self.open_epoch, self.lacks.now_ms) {
            return Refused::SsdFull;
        }
        self.wait_for_room(bytes)
    }
    fn wait_for_room(&mut self, bytes: usize) -> Refused {
        self.writers_wait = true;
        self.wanted_bytes = self.wanted_bytes.max(bytes as u64);
        Refused::Room
    }
    /// Who waits for room may try again, and says again what for.
    pub(crate) fn tell_room(&mut self) {
        self.writers_wait = false;
        self.wanted_bytes = 0;
    }
    /// Whether so many more dirty bytes are within both bounds.
    pub(crate) fn dirty_fits(&self, bytes: usize, grows: bool) -> bool {
        let dirty = self.dirty_bytes() + bytes as u64;
        let steps = |kept| dirty <= self.steppable_beside(kept);
        // What is kept for the cleaner is of no use where it gains nothing from any segment; a deletion gives it one.
        let deletes = || !grows && !self.cleaner_goes_on() && steps(DELETE_SEGMENTS);
        self.in_memory_only || (dirty <= self.dirty_max && (steps(CLEANER_SEGMENTS) || deletes()))
    }
    /// Whether the cleaner is at work, or finds some, or an epoch that is under way may leave it some.
    fn cleaner_goes_on(&self) -> bool {
        self.phase != Phase::Idle || !self.cleaning_ssd.is_empty() || self.choose_victim().is_some()
    }

    /// Bytes of live entries and tombstones the SSD terrace accepts.
    pub fn usable_bytes(&self) -> u64 {
        let keep_out = match self.rule(Rule::ReserveStays) {
            true => self.reserve_segments(),
            false => 0,
        };
        let rest = self.ssd.count().saturating_sub(keep_out + self.ssd.bad());
        // A twentieth is left to garbage: without any, cleaning could not end.
        (rest as u64 * self.cfg.segment_bytes as u64) / 20 * 19
    }
    /// Dirty bytes that the segments free right now can take, beside what the
    /// cleaner and a checkpoint need to free more: so stepping down never gets stuck.
    pub(crate) fn steppable_bytes(&self) -> u64 {
        self.steppable_beside(CLEANER_SEGMENTS)
    }
    fn steppable_beside(&self, kept: usize) -> u64 {
        if !self.rule(Rule::ReserveStays) {
            return u64::MAX;
        }
        let free = self.ssd.takeable();
        let segments = free.saturating_sub(self.checkpoint_segments() + kept);
        (segments * self.cfg.segment_bytes) as u64 / 5 * 4
    }
    /// Segments that the open epoch's entries need below, ends of segments included.
    fn dirty_segments(&self) -> usize {
        match self.dirty_appended - self.dirty_at_start {
            0 => 0,
            dirty => (dirty + dirty / 4).div_ceil(self.cfg.segment_bytes as u64) as usize + 1,
        }
    }
    /// Free segments beside those of a checkpoint and of the open epoch's entries.
    fn spare_segments(&self) -> usize {
        let promised = self.checkpoint_segments() + self.dirty_segments();
        self.ssd.takeable().saturating_sub(promised)
    }
    /// Whether an epoch can surely be ended, with at least one victim emptied in it
    /// if any is ready, and a checkpoint after it. On the lowest step, where a victim was moved in part and nothing else
    /// will free a segment, what its updates were promised is enough: they take less, and the rest is the first victim's.
    pub(crate) fn epoch_room(&self) -> bool {
        let free = self.ssd.takeable();
        let promised = self.checkpoint_segments() + self.dirty_segments();
        let lowest = free >= promised.max(self.checkpoint_segments() + 1) && self.cleaning_ready();
        let borrow = self.frees_by_itself() && self.may_borrow();
        lowest || borrow || free >= promised + END_SEGMENTS
    }
    /// Whether an epoch that gives back what it takes finds enough, whatever a checkpoint was promised: its victims were appended before the last one,
    /// so they are free when it is durable. Where an index that grows has a checkpoint take more than is left, that is the way up.
    fn may_borrow(&self) -> bool {
        self.checkpoint.is_none() && self.ssd.takeable() > self.dirty_segments() + END_SEGMENTS
    }
    /// Whether an epoch frees segments without a checkpoint after it.
    pub(crate) fn frees_by_itself(&self) -> bool {
        self.victim_is_unneeded() || self.has_unneeded()
    }
    /// Whether the cleaner may take one more segment to move entries to: what is left
    /// ends the epoch, holds a checkpoint and what was accepted meanwhile. The first
    /// victim of an epoch may have all but the checkpoint's: that it is emptied is
    /// the way up from the lowest step, where a start may find the lane.
    pub(crate) fn move_room(&self) -> bool {
        let spare = self.spare_segments();
        let first = self.release.emptied.is_empty() && self.dirty_segments() == 0;
        let borrow = self.release.victim_comes_back && self.may_borrow();
        spare > END_SEGMENTS || (first && spare > 0) || borrow
    }
    /// Whether, as far as can be seen, nothing but the end of reads frees segments: some are wanted, and there is nothing to clean, or no room
    /// for an epoch that would. A command that has all of its reads and waits for room lets go of them then, and reads again: else it
    /// would wait for what it holds.
    pub fn waits_for_readers(&self) -> bool {
        let nothing_to_clean = || self.cleaning_ssd.is_empty() && self.choose_victim().is_none();
        self.ssd.any_held()
            && self.phase == Phase::Idle
            && self.free_soon() < self.clean_target()
            && (!self.epoch_room() || nothing_to_clean())
    }
    /// Whether segments that wait for a checkpoint should not wait longer.
    pub(crate) fn segments_low(&self) -> bool {
        self.ssd.takeable() < self.checkpoint_segments() + CALM_SEGMENTS
    }
    /// Segments that one checkpoint takes, about.
    pub(crate) fn checkpoint_segments(&self) -> usize {
        self.image_segments_max
    }
    /// Looks at what a checkpoint takes now. Cheap, but not for every command.
    pub(crate) fn measure_checkpoint(&mut self) {
        if self.cfg.scratch {
            self.image_segments_max = 0;
            return;
        }
        let bytes = self.dir.bytes() + self.ssd.count() * SEGMENT_RECORD_BYTES;
        self.image_segments_max = bytes / self.cfg.segment_bytes + 1;
    }
    pub(crate) fn reserve_segments(&self) -> usize {
        let segment = self.cfg.segment_bytes as u64;
        let checkpoint = self.checkpoint_segments() as u64 * segment;
        policy::reserve_segments(self.dirty_max, checkpoint, segment, self.ssd.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::tests::lane;
    use crate::ssd::State;

    /// A lane in which all is live but for `free` segments.
    fn with_free(free: usize) -> Lane<impl Snapshot> {
        let mut lane = lane();
        let full = lane.cfg.segment_bytes as u32;
        while lane.ssd.free().len() > free {
            let id = lane.ssd.take(State::Sealed).expect("one is free");
            let mut s = lane.ssd.segment_mut(id);
            (s.used_bytes, s.total_class_bytes) = (full, full);
            s.live_class_bytes = full;
        }
        lane
    }

    #[test]
    fn what_a_read_holds_is_promised_to_nobody() {
        let mut lane = with_free(3);
        let sealed = |lane: &Lane<_>, id: &u32| lane.ssd.segment(*id).state == State::Sealed;
        let ids: Vec<u32> = (0..48).filter(|id| sealed(&lane, id)).collect();
        // Two reads of one, and one of another; the second is given back before its read ends.
        let reads = [ids[0], ids[0], ids[1]].map(|id| {
            let loc = lane.ssd.loc(id, 64, 100);
            lane.plan_read(loc).segment
        });
        assert_eq!(lane.ssd.takeable(), 3);
        ids[..3].iter().for_each(|id| lane.ssd.release(*id));
        assert_eq!((lane.ssd.takeable(), lane.ssd.free().len()), (4, 6));
        lane.unpin(reads[0]);
        assert_eq!(lane.ssd.takeable(), 4, "the other read of it goes on");
        lane.unpin(reads[1]);
        assert_eq!(lane.ssd.takeable(), 5);
        let taken = std::iter::from_fn(|| lane.ssd.take(State::Sealed)).collect::<Vec<_>>();
        assert!(taken.len() == 5 && !taken.contains(&ids[1]));
        assert!(lane.ssd.any_held() && lane.waits_for_readers());
        lane.unpin(reads[2]);
        assert!(!lane.ssd.any_held() && !lane.waits_for_readers());
        assert_eq!(
            (lane.ssd.takeable(), lane.ssd.take(State::Sealed)),
            (1, Some(ids[1]))
        );
    }

    #[test]
    fn a_deletion_does_not_wait_for_a_cleaner_that_has_nothing_to_do() {
        for beside in 0..=CLEANER_SEGMENTS {
            let checkpoint = with_free(0).checkpoint_segments();
            let mut lane = with_free(checkpoint + beside);
            lane.open_epoch = 9;
            assert_eq!(lane.reserve(100), Err(Refused::Room));
            let taken = lane.reserve_as_much(100).is_ok();
            assert_eq!(taken, beside > DELETE_SEGMENTS, "{beside}");
            // Whatever is taken can become durable.
            let most = (lane.steppable_beside(DELETE_SEGMENTS)).min(lane.dirty_max / 2);
            lane.dirty_appended += most;
            assert!(most == 0 || lane.epoch_room(), "{most} bytes, {beside}");
            lane.dirty_appended -= most;
            // With a victim, it has.
            let mut victim = lane.ssd.segment_mut(0);
            victim.live_class_bytes /= 2;
            drop(victim);
            assert_eq!(lane.reserve_as_much(100), Err(Refused::Room));
        }
    }
}
