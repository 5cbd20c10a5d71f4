//! When an emptied segment may be taken again.
//!
//! | it | is free once |
//! |---|---|
//! | was appended before the last durable checkpoint was begun, and is none of its heads | the epoch that emptied it, or a later one, is durable and *tells* that it is free: an entry of kind `Freed` in the epoch's last batch |
//! | anything else | a checkpoint begun after that epoch is durable, whose list names it |
//! | is of a scratch lane | the epoch that emptied it is written |
//!
//! Replay starts at a checkpoint and does not read what was appended before, but for its heads. Slots of its image that name entries
//! of an emptied segment are swung by what replaced them, which lies behind the checkpoint and is kept until the next one. So a
//! segment that was appended before is not needed.
//! It is told so that a start knows it as free whatever has become of it: half written anew when the power goes,
//! under the header of its earlier life, it could not be told from a damaged one.
//! Promises: a segment is free only when every start, from whichever root it may begin at, finds it free or taken again.
//! Never: writes; what is told goes out with the epoch's last batch.

use crate::lane::{Lane, Rule};
use crate::policy;
use crate::ssd::State;
use crate::survey::Survey;
use std::collections::HashSet;
use terrace_log::{NewEntry, Snapshot};

/// Segments that one epoch tells of.
const TOLD_PER_EPOCH_MAX: usize = 1024;

impl<D: Snapshot> Lane<D> {
    /// Whether no replay reads the segment: neither behind the last checkpoint, nor behind the one being made.
    pub(crate) fn is_unneeded(&self, id: u32) -> bool {
        let r = &self.release;
        self.ssd.segment(id).last_epoch < r.saved_epoch
            && !r.saved_heads.contains(&id)
            && !self.heads_being_saved().contains(&id)
    }

    /// Every entry of the segment was looked at; what was live is appended, in the epoch under way if there is one.
    pub(crate) fn note_emptied(&mut self, id: u32) {
        self.stats.segments_cleaned += 1;
        match self.phase.epoch() {
            Some(epoch) => {
                self.ssd.segment_mut(id).state = State::Emptied(epoch);
                self.release.emptied.push(id);
            }
            None => self.wait_for_release(id),
        }
    }

    /// Nothing that is durable needs the segment's entries any more.
    pub(crate) fn wait_for_release(&mut self, id: u32) {
        if self.cfg.scratch || !self.rule(Rule::ReuseAfterCheckpoint) {
            self.ssd.release(id);
            return;
        }
        self.ssd.segment_mut(id).state = State::Releasable;
        match self.is_unneeded(id) {
            true => self.release.unneeded.push(id),
            false => self.release.waiting.push(id),
        }
    }

    /// Tells in the batch that is open at `head`, the epoch's last one, which segments are free with it. As many as fit: a segment
    /// taken for this would cost what it is to bring.
    pub(crate) fn tell_freed(&mut self, head: usize, epoch: u64) {
        let unneeded = std::mem::take(&mut self.release.unneeded);
        let emptied = std::mem::take(&mut self.release.emptied);
        for id in unneeded.into_iter().chain(emptied) {
            let room = self.release.told.len() < TOLD_PER_EPOCH_MAX;
            match room && self.is_unneeded(id) && self.append_freed(head, id) {
                true => {
                    self.ssd.segment_mut(id).state = State::Told(epoch);
                    self.release.told.push(id);
                }
                false => self.release.emptied.push(id),
            }
        }
    }

    fn append_freed(&mut self, head: usize, id: u32) -> bool {
        if !self.rule(Rule::FreedIsTold) {
            return true;
        }
        let unit = NewEntry::freed(terrace_log::Loc::NONE, 0).len_bytes();
        let segment = self.ssd.loc(id, 0, unit);
        self.append_to_open(
            head,
            &NewEntry::freed(segment, self.ssd.segment(id).generation),
        )
    }

    /// The epoch is durable: what it told of is free.
    pub(crate) fn release_told(&mut self) {
        let told = std::mem::take(&mut self.release.told);
        self.give_back(told);
        for id in std::mem::take(&mut self.release.emptied) {
            self.wait_for_release(id);
        }
    }

    /// Segments that a checkpoint begun now lists as free: those that may wait for it, and those that the epoch under way tells of,
    /// which is durable before the checkpoint is.
    pub(crate) fn free_with_checkpoint(&self) -> (Vec<u32>, Vec<u32>) {
        let r = &self.release;
        let frees = r.waiting.iter().chain(&r.unneeded).copied().collect();
        (frees, r.told.clone())
    }

    /// A checkpoint is durable: it lists `frees`, has all of the epochs below `epoch`, and its heads were `heads`.
    pub(crate) fn release_listed(&mut self, frees: Vec<u32>, epoch: u64, heads: Vec<u32>) {
        let listed: HashSet<u32> = frees.into_iter().collect();
        self.release.saved_epoch = epoch;
        self.release.saved_heads = heads;
        let unneeded = std::mem::take(&mut self.release.unneeded);
        let waiting = std::mem::take(&mut self.release.waiting);
        for id in waiting.into_iter().chain(unneeded) {
            match listed.contains(&id) {
                true => self.give_back(vec![id]),
                false => self.wait_for_release(id),
            }
        }
    }

    /// Segments that are free or will be without more cleaning. What waits for a checkpoint counts when one is made.
    pub(crate) fn free_soon(&self) -> usize {
        let r = &self.release;
        let waiting = match self.checkpointing() {
            true => r.waiting.len(),
            false => 0,
        };
        self.ssd.free().len() + r.emptied.len() + r.unneeded.len() + r.told.len() + waiting
    }

    /// Whether segments only wait to be told of.
    pub(crate) fn has_unneeded(&self) -> bool {
        !self.release.unneeded.is_empty()
    }

    /// Room is short, and an epoch that has nothing else to do would tell of free segments.
    pub(crate) fn wants_to_tell(&self) -> bool {
        !self.release.unneeded.is_empty() && (self.writers_wait || self.segments_low())
    }

    /// Whether enough segments wait for a checkpoint, or room is short and nothing else frees one.
    pub(crate) fn wants_listing(&self) -> bool {
        let r = &self.release;
        if r.waiting.len() >= policy::checkpoint_worth(self.checkpoint_segments()) {
            return true;
        }
        let short = self.writers_wait || self.segments_low();
        let told_soon = || {
            !r.told.is_empty()
                || (self.epoch_room() && !r.unneeded.is_empty())
                || r.emptied.iter().any(|id| self.is_unneeded(*id))
        };
        short && r.waiting.len() + r.unneeded.len() > 0 && !told_soon()
    }

    /// For a start: frees what the replayed log tells of, unless it was taken again.
    pub(crate) fn believe_told(&mut self, s: &Survey) {
        for &(id, generation) in &s.told {
            if id as usize >= self.ssd.count() {
                continue;
            }
            let known = self.ssd.segment(id);
            let same_life = known.state == State::Sealed && known.generation == generation;
            // A slot that still names it names what damage kept from being replaced.
            if same_life && known.live_class_bytes == 0 {
                self.ssd.release(id);
            }
        }
    }
}
