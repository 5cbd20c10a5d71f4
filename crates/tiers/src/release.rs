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
    /// which is durable before the checkpoint is. Of the former, which life of them is meant.
    pub(crate) fn free_with_checkpoint(&self) -> (Vec<(u32, u32)>, Vec<u32>) {
        let r = &self.release;
        let listed = r.waiting.iter().chain(&r.unneeded);
        let frees = listed.map(|&id| (id, self.ssd.segment(id).generation));
        (frees.collect(), r.told.clone())
    }

    /// A checkpoint is durable: it lists `frees`, has all of the epochs below `epoch`, and its heads were `heads`.
    /// One that an epoch told of meanwhile may have been taken since, and wait again: the list does not name that life, which replay reads.
    pub(crate) fn release_listed(&mut self, frees: Vec<(u32, u32)>, epoch: u64, heads: Vec<u32>) {
        let listed: HashSet<(u32, u32)> = frees.into_iter().collect();
        self.release.saved_epoch = epoch;
        self.release.saved_heads = heads;
        let unneeded = std::mem::take(&mut self.release.unneeded);
        let waiting = std::mem::take(&mut self.release.waiting);
        for id in waiting.into_iter().chain(unneeded) {
            match listed.contains(&(id, self.ssd.segment(id).generation)) {
                true => self.give_back(vec![id]),
                false => self.wait_for_release(id),
            }
        }
    }

    /// Segments that can be taken or will be free without more cleaning; what of those a read holds is counted no longer once it is free. What
    /// waits for a checkpoint counts when one is made.
    pub(crate) fn free_soon(&self) -> usize {
        let r = &self.release;
        let waiting = match self.checkpointing() {
            true => r.waiting.len(),
            false => 0,
        };
        self.ssd.takeable() + r.emptied.len() + r.unneeded.len() + r.told.len() + waiting
    }

    /// Whether segments only wait to be told of, and can be taken then.
    pub(crate) fn has_unneeded(&self) -> bool {
        let mut unneeded = self.release.unneeded.iter();
        unneeded.any(|id| !self.ssd.is_held(*id))
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

#[cfg(test)]
pub(crate) mod tests {
    use crate::lane::{Config, Lane};
    use crate::ssd::State;
    use terrace_log::{Directory, Full, Hasher, Loc, Order, Slot, Snapshot, Subject};
    use terrace_media::Arena;

    /// Names nothing: what becomes of segments does not depend on it.
    pub(crate) struct Empty;

    impl Directory for Empty {
        fn find(&self, _: Subject, _: impl FnMut(Slot) -> bool) -> Option<Slot> {
            None
        }
        fn update(&mut self, _: Subject, _: impl FnMut(Slot) -> Option<Slot>) -> Option<Slot> {
            None
        }
        fn insert(&mut self, _: Subject, _: Slot) -> Result<(), Full> {
            Ok(())
        }
        fn remove(&mut self, _: Subject, _: Loc) -> bool {
            false
        }
    }

    impl Snapshot for Empty {
        fn order(&self, _: Subject) -> Order {
            Order::default()
        }
        fn keep_still(&mut self, _: bool) {}
        fn save(
            &self,
            _: Order,
            _: usize,
            _: impl FnMut(Slot) -> Option<Slot>,
            _: &mut Vec<u8>,
        ) -> Option<Order> {
            None
        }
        fn load(&mut self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }
        fn each(&self, _: impl FnMut(Slot)) {}
        fn clear(&mut self) {}
        fn len(&self, _: u8) -> u64 {
            0
        }
        fn bytes(&self) -> usize {
            0
        }
    }

    pub(crate) fn lane() -> Lane<Empty> {
        let cfg = Config {
            lane: 0,
            lanes: 1,
            pool: 1,
            segment_bytes: 16 << 10,
            ssd_base: 0,
            ssd_segments: 48,
            root_base: 0,
            memory_segments: 8,
            middle_segments: 0,
            dirty_max_bytes: u64::MAX,
            scratch: false,
            hasher: Hasher::of_objects(),
            without_rule: None,
        };
        let arena = Arena::new_plain(16 << 10, 16).expect("plain memory");
        Lane::new(cfg, Empty, &arena)
    }

    /// Takes segments until `id` is one, and fills it in `epoch`.
    fn take(lane: &mut Lane<Empty>, id: u32, epoch: u64) {
        while lane.ssd.segment(id).state == State::Free {
            lane.ssd.take(State::Sealed).expect("one is free");
        }
        lane.ssd.segment_mut(id).last_epoch = epoch;
    }

    /// Given back with the checkpoint, it would be overwritten while replay, from that checkpoint too, needs what it had in between.
    #[test]
    fn a_checkpoint_frees_the_life_of_a_segment_that_it_listed() {
        for again in [false, true] {
            let mut lane = lane();
            lane.release.saved_epoch = 10;
            take(&mut lane, 0, 5);
            take(&mut lane, 1, 12);
            lane.wait_for_release(0);
            lane.wait_for_release(1);
            assert_eq!(lane.release.unneeded, [0], "older than the last checkpoint");
            assert_eq!(lane.release.waiting, [1]);
            // One begins. Meanwhile an epoch tells that the first is free.
            let (frees, _) = lane.free_with_checkpoint();
            lane.release.told = std::mem::take(&mut lane.release.unneeded);
            lane.release_told();
            assert_eq!(lane.ssd.segment(0).state, State::Free);
            if again {
                // It is filled anew, and emptied.
                take(&mut lane, 0, 14);
                lane.wait_for_release(0);
                assert_eq!(lane.release.waiting, [1, 0]);
            }
            lane.release_listed(frees, 13, Vec::new());
            assert_eq!(lane.ssd.segment(1).state, State::Free, "as it was listed");
            let kept = lane.ssd.segment(0).state == State::Releasable;
            assert_eq!(kept, again);
            let free = lane.ssd.free().iter().filter(|id| **id == 0).count();
            assert_eq!(free, usize::from(!again));
        }
    }
}
