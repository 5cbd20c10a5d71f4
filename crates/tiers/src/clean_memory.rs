//! The cleaner on memory terraces: compaction, eviction and stepping down in one walk.
//!
//! Only clean entries are met here (dirty segments become clean where they lie,
//! when their epoch is durable), so nothing waits for a device:
//!
//! | the entry is | it |
//! |---|---|
//! | dead | is dropped |
//! | expired | leaves a tombstone in the dirty log |
//! | hot, or in a segment that is only compacted | is appended at the main head |
//! | cold | enters the middle terrace if there is one and it is admitted; else the slot names the copy below |
//!
//! Promises: a bounded amount of work a call. Never: drops an entry that has no
//! durable copy.

use crate::lane::{Lane, Rule};
use crate::mem::{Head, MemTerrace};
use crate::policy::SPARE_SEGMENTS;
use crate::policy::{self, Fate, Victim};
use smallvec::SmallVec;
use terrace_log::entry::FLAG_DEAD;
use terrace_log::{Kind, Loc, Slot, Snapshot, Subject, Terrace};

/// Free segments below which cleaning runs along with appends, as a part of the quota (1/64) or at least this.
const LOW_SEGMENTS: usize = 3;
/// Bytes of a victim walked before an entry's worth of work is charged.
const ENTRY_COST_BYTES: usize = 64;
/// Entries whose memory is asked for at once, and how many entries ahead heads are asked for.
const TOGETHER: usize = 8;
/// Cleaning that may be put off until it is as many entries of 100 to 200 bytes as are asked for at once: far less than a segment.
const OWED_MAX_BYTES: usize = 1280;
const AHEAD: usize = 2;

/// An entry of a victim.
struct Near {
    loc: Loc,
    /// Where the one behind it begins.
    next: usize,
    /// Whose it is; None: it is dead.
    who: Option<Subject>,
}

impl<D: Snapshot> Lane<D> {
    /// Cleans some `bytes` of DRAM if segments run low, small entries a few at a time. For appends and background slices alike.
    pub fn clean_memory(&mut self, bytes: usize) {
        if self.memory_low() {
            self.cleaning_owed += bytes;
            if self.cleaning_owed >= OWED_MAX_BYTES {
                let owed = std::mem::take(&mut self.cleaning_owed);
                self.clean_slice(Terrace::Dram, owed);
            }
        }
    }
    /// Whether background cleaning of memory has something to do.
    pub fn memory_low(&self) -> bool {
        self.mem.free_segments() < LOW_SEGMENTS.max(self.mem.quota() / 64)
            && self.can_clean_memory()
    }
    fn can_clean_memory(&self) -> bool {
        self.cleaning_memory[0].is_some() || self.mem.has_victim()
    }

    /// Cleans one whole segment of DRAM. False if there is none to clean.
    pub(crate) fn clean_memory_segment(&mut self) -> bool {
        let free = self.mem.free_segments();
        // A hot entry can come round as often as it has heat, and be compacted before.
        for _ in 0..=8 * self.mem.quota() {
            if !self.clean_slice(Terrace::Dram, self.cfg.segment_bytes) {
                return false;
            }
            if self.mem.free_segments() > free {
                return true;
            }
        }
        false
    }

    /// Walks `bytes` of victims. False if there was no victim.
    fn clean_slice(&mut self, terrace: Terrace, bytes: usize) -> bool {
        let mut left = bytes as isize;
        while left > 0 {
            let Some((id, offset, why)) = self.victim(terrace) else {
                return false;
            };
            let near = self.ask_ahead(terrace, id, offset, left as usize);
            if near.is_empty() {
                self.cleaning_memory[which(terrace)] = None;
                self.of_mut(terrace).release(id);
                self.stats.memory_segments_cleaned += 1;
            }
            let mut at = offset;
            for Near { loc, next, who } in near {
                self.cleaning_memory[which(terrace)] = Some((id, next, why));
                left -= (next - at).max(ENTRY_COST_BYTES) as isize;
                at = next;
                if let Some(who) = who {
                    self.clean_entry(loc, who, why);
                }
            }
        }
        true
    }

    /// The next few entries of a victim. The directory's memory for them is asked for at once: one after the other each
    /// would wait for it alone.
    fn ask_ahead(
        &self,
        terrace: Terrace,
        id: u32,
        offset: usize,
        bytes: usize,
    ) -> SmallVec<[Near; TOGETHER]> {
        let (memory, mut near, mut at) = (self.of(terrace), SmallVec::new(), offset);
        while near.len() < TOGETHER
            && (at == offset || at - offset < bytes)
            && let Some((loc, next)) = memory.victim_entry(id, at)
        {
            // Mostly the entries behind are about as long as this one.
            memory.prefetch_at(id, next + AHEAD * (next - at));
            let e = memory.entry(loc);
            let who = (e.flags() & FLAG_DEAD == 0).then(|| e.subject(&self.cfg.hasher));
            if let Some(who) = who {
                self.dir.prefetch(who);
            }
            near.push(Near { loc, next, who });
            at = next;
        }
        near
    }

    fn victim(&mut self, terrace: Terrace) -> Option<(u32, usize, Victim)> {
        let at = which(terrace);
        if self.cleaning_memory[at].is_none() {
            let (id, why) = self.of_mut(terrace).take_victim()?;
            self.cleaning_memory[at] = Some((id, 0, why));
        }
        self.cleaning_memory[at]
    }

    fn of(&self, terrace: Terrace) -> &MemTerrace {
        self.terrace(Loc::new(terrace, 0, 0))
    }
    fn of_mut(&mut self, terrace: Terrace) -> &mut MemTerrace {
        self.terrace_mut(Loc::new(terrace, 0, 0))
    }

    fn clean_entry(&mut self, loc: Loc, who: Subject, why: Victim) {
        let e = self.terrace(loc).entry(loc);
        let Some(slot) = self.dir.find(who, |s| s.loc() == loc) else {
            return;
        };
        let (len, link, is_value) = (e.len_bytes(), e.link(), e.kind() == Kind::Value);
        if e.expired(self.now_ms)
            && e.kind() == Kind::Value
            && self.rule(Rule::ExpiryLeavesTombstone)
        {
            self.expire_in_memory(slot);
            return;
        }
        debug_assert!(!link.is_none(), "a clean entry has a copy below");
        let up = match policy::fate_in_memory(slot.heat(), why) {
            Fate::Keep(heat) => self.copy_within(loc).map(|up| Slot::new(up, heat)),
            Fate::StepDown => self.copy_to_middle(loc, slot).map(|at| Slot::new(at, 0)),
        };
        if up.is_none() && (why == Victim::Probation || self.remembers_used) {
            self.ghost.remember(who, len);
        }
        if up.is_none() && is_value {
            self.remember_below(who, link);
        }
        let to = up.unwrap_or(Slot::new(link, 0));
        self.dir.swing(who, loc, to);
        self.terrace_mut(loc).kill(loc, len);
    }

    /// Appends a copy at the main head of the same terrace; the cleaner's spare segment is for this.
    fn copy_within(&mut self, loc: Loc) -> Option<Loc> {
        self.terrace_mut(loc).copy_to_main(loc)
    }

    fn copy_to_middle(&mut self, loc: Loc, slot: Slot) -> Option<Loc> {
        let free = self.middle.as_ref()?.free_segments();
        if loc.terrace() != Terrace::Dram {
            return None;
        }
        if !policy::admit_to_middle(slot.heat() > 0 || self.was_promoted(loc), free) {
            return None;
        }
        if free <= SPARE_SEGMENTS {
            let len = self.mem.entry(loc).len_bytes();
            self.clean_slice(Terrace::Middle, 2 * len);
        }
        let new = self.mem.entry(loc).to_new();
        let middle = self.middle.as_mut()?;
        middle.append(Head::Probation, &new, SPARE_SEGMENTS)
    }

    /// An entry of DRAM that was read since it was written lies in a segment of copies.
    fn was_promoted(&self, loc: Loc) -> bool {
        self.mem.born_clean(loc)
    }

    /// Turns an expired entry into a tombstone, as a deletion would.
    fn expire_in_memory(&mut self, slot: Slot) {
        let e = self.terrace(slot.loc()).entry(slot.loc());
        let (key, who) = (e.key().to_vec(), e.subject(&self.cfg.hasher));
        let (link, len) = (e.link(), e.len_bytes());
        let room = terrace_log::entry::entry_bytes(key.len(), 0, false, false);
        let fits = self.dirty_fits(room, true) && self.mem.free_segments() >= SPARE_SEGMENTS;
        if fits && self.delete(who, slot, &key).is_ok() {
            self.stats.expired += 1;
            return;
        }
        // No room for a tombstone now: the copy below is expired too, and is met again.
        self.dir.swing(who, slot.loc(), Slot::new(link, 0));
        self.terrace_mut(slot.loc()).kill(slot.loc(), len);
    }
}

fn which(terrace: Terrace) -> usize {
    usize::from(terrace == Terrace::Middle)
}
