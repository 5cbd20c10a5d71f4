//! Room in a lane: whether an update is taken, an epoch begun, a segment cleaned.
//!
//! Every step leaves the next one enough free segments, so that the lane can always
//! end its epoch, write a checkpoint and empty one more segment. Never: writes to the
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
            return Err(Refused::TooLarge);
        }
        self.credit_tombstones(CREDIT_OF_ASKED * bytes as u64);
        if grows && self.live_estimate + self.dirty_bytes() + bytes as u64 > self.usable_bytes() {
            return Err(self.full(bytes));
        }
        self.clean_memory(2 * bytes);
        let capacity = self.mem.capacity_bytes();
        let segments = bytes / (capacity - capacity / 4) + 1 + usize::from(bytes > capacity / 4);
        while self.mem.free_segments() < segments + SPARE_SEGMENTS {
            if !self.clean_memory_segment() {
                return Err(self.wait_for_room(bytes));
            }
        }
        // Last, since cleaning may leave tombstones of expired entries.
        if !self.dirty_fits(bytes) {
            return Err(self.wait_for_room(bytes));
        }
        Ok(())
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
        let cleans = self.tombstones_press()
            && (self.phase != Phase::Idle
                || !self.cleaning_ssd.is_empty()
                || self.choose_victim().is_some());
        let nothing_under_way = (self.dirty_bytes() == 0 && !cleans) || self.cfg.scratch;
        if nothing_under_way || self.full.is_known(self.open_epoch, self.now_ms) {
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
    pub(crate) fn dirty_fits(&self, bytes: usize) -> bool {
        let dirty = self.dirty_bytes() + bytes as u64;
        self.in_memory_only || (dirty <= self.dirty_max && dirty <= self.steppable_bytes())
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
        if !self.rule(Rule::ReserveStays) {
            return u64::MAX;
        }
        let free = self.ssd.free().len();
        let segments = free.saturating_sub(self.checkpoint_segments() + CLEANER_SEGMENTS);
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
        self.ssd.free().len().saturating_sub(promised)
    }
    /// Whether an epoch can surely be ended, with at least one victim emptied in it
    /// if any is ready, and a checkpoint after it. On the lowest step, where a victim was moved in part and nothing else
    /// will free a segment, what its updates were promised is enough: they take less, and the rest is the first victim's.
    pub(crate) fn epoch_room(&self) -> bool {
        let free = self.ssd.free().len();
        let promised = self.checkpoint_segments() + self.dirty_segments();
        let lowest = free >= promised.max(self.checkpoint_segments() + 1) && self.cleaning_ready();
        let borrow = self.frees_by_itself() && self.may_borrow();
        lowest || borrow || free >= promised + END_SEGMENTS
    }
    /// Whether an epoch that gives back what it takes finds enough, whatever a checkpoint was promised: its victims were appended before the last one,
    /// so they are free when it is durable. Where an index that grows has a checkpoint take more than is left, that is the way up.
    fn may_borrow(&self) -> bool {
        self.checkpoint.is_none() && self.ssd.free().len() > self.dirty_segments() + END_SEGMENTS
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
    /// Whether segments that wait for a checkpoint should not wait longer.
    pub(crate) fn segments_low(&self) -> bool {
        self.ssd.free().len() < self.checkpoint_segments() + CALM_SEGMENTS
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
