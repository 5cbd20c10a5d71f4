//! Lanes whose contents do not outlive the process: ordinary objects and pages.
//!
//! The same log, cleaner and epochs as everywhere, with less to promise:
//!
//! | a lane that keeps its data | a scratch lane |
//! |---|---|
//! | closes an epoch at the flush interval, over all that is dirty | when half of the dirty bound is used, or a quarter of it was read up meanwhile, over its oldest eighth: what is overwritten before is never written |
//! | an emptied segment waits for a checkpoint | is free as soon as its entries' new copies are written |
//! | a deletion appends a tombstone | kills both copies and is forgotten |
//! | a superseded entry of a closed epoch is still written | is dropped: no state of all lanes is kept |
//!
//! Promises: an entry leaves memory only when its copy below is written. Never: is recovered.

use crate::lane::Lane;
use crate::mem::Pos;
use terrace_log::entry;
use terrace_log::{Slot, Snapshot, Subject, Terrace};

/// Part of the dirty bound that one epoch steps down: one eighth.
const STEP_ONE_IN: u64 = 8;
impl<D: Snapshot> Lane<D> {
    /// Up to where the epoch that is closed now takes the dirty log.
    pub(crate) fn epoch_cut(&self) -> Pos {
        match self.cfg.scratch {
            true => {
                let cut = self.mem.dirty_cut(self.dirty_max / STEP_ONE_IN);
                cut.max(self.epoch_start)
            }
            false => self.mem.dirty_end(),
        }
    }

    /// Bytes of entries that reads brought up to DRAM since this was first asked after the last epoch was closed.
    pub fn read_up_bytes(&mut self) -> u64 {
        if self.read_up_in.0 != self.open_epoch {
            self.read_up_in = (self.open_epoch, self.stats.promoted_bytes);
        }
        self.stats.promoted_bytes - self.read_up_in.1
    }

    /// Forgets the object that `slot` names, of a scratch lane: both copies are dead at once. Needs no room.
    pub fn discard(&mut self, who: Subject, slot: Slot) {
        assert!(self.cfg.scratch, "a lane that keeps its data deletes");
        let below = self.durable_copy(slot);
        if !below.is_none() {
            self.ssd.kill(below);
        }
        self.supersede(slot.loc(), who.space);
        let removed = self.dir.remove(who, slot.loc());
        debug_assert!(removed, "the slot was looked up in the same breath");
        // Nothing may step down for long: the room is there at once.
        self.live_estimate = self.ssd.live_bytes();
        self.stats.updates += 1;
    }

    /// Writes another value over one in a scratch lane that takes as much room and has not begun to step down. False: it is
    /// elsewhere or takes another room, and is to be put. So an object that is written often takes its room in DRAM once.
    pub fn overwrite(&mut self, slot: Slot, value: &[u8]) -> bool {
        let loc = slot.loc();
        let open = self.cfg.scratch
            && loc.terrace() == Terrace::Dram
            && self
                .mem
                .dirty_pos(loc)
                .is_some_and(|pos| pos >= self.staged);
        open && entry::set_value(self.mem.entry_mut(loc), value)
    }

    /// The device takes no more writes: from now on memory takes dirty entries as long as there is any, instead of what could step down.
    pub fn keep_in_memory(&mut self) {
        assert!(
            self.cfg.scratch,
            "a lane that keeps its data is read-only then"
        );
        self.in_memory_only = true;
    }

    /// Whether contents do not outlive the process.
    pub fn is_scratch(&self) -> bool {
        self.cfg.scratch
    }
}
