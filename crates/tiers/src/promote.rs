//! What comes up: entries that were read from the SSD, and those of the middle terrace.
//!
//! Promises: the copy below stays what it was. Never: brings up what has a newer copy above.

use crate::lane::Lane;
use crate::mem::Head;
use crate::policy;
use crate::policy::SPARE_SEGMENTS;
use terrace_log::entry::Entry;
use terrace_log::{Kind, Loc, NewEntry, Slot, Snapshot, Subject, Terrace};

impl<D: Snapshot> Lane<D> {
    /// Brings an entry that was read from the SSD up to DRAM, if it is still the newest copy.
    pub fn promote(&mut self, who: Subject, loc: Loc, fetched: &Entry<'_>) {
        let memory = self.mem.quota() * self.cfg.segment_bytes;
        if !policy::admit_on_read(fetched.len_bytes(), memory) || fetched.kind() == Kind::Tombstone
        {
            return;
        }
        self.clean_memory(2 * fetched.len_bytes());
        let Some(slot) = self.dir.find(who, |s| s.loc() == loc) else {
            return;
        };
        if self.has_newer_above(who, fetched.key()) {
            return;
        }
        let new = NewEntry {
            link: loc,
            flags: fetched.prefix_flag(),
            version: None,
            ..fetched.to_new()
        };
        let head = match self.recall(who, new.len_bytes()) {
            true => Head::Main,
            false => Head::Probation,
        };
        if let Some(up) = self.mem.append(head, &new, SPARE_SEGMENTS) {
            self.dir
                .swing(who, loc, Slot::new(up, slot.heat().saturating_sub(1)));
            self.stats.promoted_bytes += new.len_bytes() as u64;
        }
    }

    /// From now on what was used in memory is remembered as well when it leaves.
    pub fn remember_used(&mut self) {
        self.remembers_used = true;
    }

    /// An entry of `bytes` was read from the SSD: whether it left memory lately. Then it is counted, and forgotten.
    pub fn recall(&mut self, who: Subject, bytes: usize) -> bool {
        let left_lately = self.ghost.recall(who);
        if left_lately {
            self.stats.recalled += 1;
            self.stats.recalled_bytes += bytes as u64;
        }
        left_lately
    }

    /// Brings an entry of the middle terrace up to DRAM.
    pub fn promote_middle(&mut self, who: Subject, slot: Slot) {
        let loc = slot.loc();
        if loc.terrace() != Terrace::Middle || self.mem.free_segments() <= SPARE_SEGMENTS {
            return;
        }
        let Some(middle) = &self.middle else { return };
        let old = middle.entry(loc);
        let len = old.len_bytes();
        if let Some(up) = self.mem.append(Head::Main, &old.to_new(), SPARE_SEGMENTS) {
            self.dir.swing(who, loc, Slot::new(up, 0));
            self.terrace_mut(loc).kill(loc, len);
        }
    }
}
