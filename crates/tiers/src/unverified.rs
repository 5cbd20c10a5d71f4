//! Updates taken before it is known what they replace.
//!
//! A slot has no key, so whether an entry below is the key's own is known only once it was read. An update that does not
//! ask for the value before need not wait for that: its entry is appended beside the slot that may be its key's, and marked.
//!
//! | the key's newest entry is | its slot | and the slot of the copy below |
//! |---|---|---|
//! | unverified | says where it is, in DRAM | stays; what is above is looked at first |
//! | verified, replaces the copy | the same | is gone; the entry's link names the copy, as if it had been so from the start |
//! | verified, replaces nothing | the same | another key's, stays |
//!
//! What replaces an unverified entry is unverified too, tombstones included. Promises: an unverified entry is not staged, so
//! nothing of this is seen by a checkpoint, a crash or the terrace below. Never: reads; it says what is to be read.

use crate::lane::{Lane, Refused};
use crate::policy;
use crate::ssd::ReadPlan;
use terrace_log::entry::{self, FLAG_UNVERIFIED};
use terrace_log::{Loc, NewEntry, Slot, Snapshot, Subject, Terrace, addr};

/// Unverified entries of a lane at once: each waits in memory for a read.
const UNVERIFIED_MAX: u64 = 256;

/// What is known of a location that may be a key's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It is the key's.
    Own,
    /// It is another key's.
    Others,
    /// It cannot be read: taken for the key's if nothing else is (docs/adr/0010).
    Unreadable,
}

impl<D: Snapshot> Lane<D> {
    /// Whether an update of `key` may be taken unverified: no entry in memory is the key's, all that may be its copy below is longer
    /// than `short_bytes`, and there is room for one more.
    pub fn may_put_unverified(&self, who: Subject, key: &[u8], short_bytes: usize) -> bool {
        let short_class = addr::class_of(short_bytes);
        let forbids = |s: Slot| match s.loc().in_memory() {
            true => self.terrace(s.loc()).entry(s.loc()).key() == key,
            false => s.loc().class() <= short_class,
        };
        self.unverified < UNVERIFIED_MAX && self.dir.find(who, forbids).is_none()
    }

    /// Appends an update of `who`, of which a look-up in the same breath found nothing in memory and something to read.
    /// `reserve` must have been asked before. Whoever calls this goes on with `verify_newest` until that answers None.
    ///
    /// # Errors
    /// As `put`.
    pub fn put_unverified(&mut self, who: Subject, new: &NewEntry<'_>) -> Result<Slot, Refused> {
        let flags = new.flags | FLAG_UNVERIFIED;
        let slot = self.put(who, None, &NewEntry { flags, ..*new })?;
        self.unverified += 1;
        Ok(slot)
    }

    /// Takes in what is known by now of the copies below that may be `key`'s. Answers what is to be read; None: nothing any more.
    pub fn verify_newest(
        &mut self,
        who: Subject,
        key: &[u8],
        known: impl Fn(Loc) -> Option<Known>,
    ) -> Option<ReadPlan> {
        // A flush of all keys may have been quicker.
        let newest = self.newest_in_dram(who, key)?;
        if !self.is_unverified(newest.loc()) {
            return None;
        }
        let (mut own, mut unreadable, mut read) = (None, None, None);
        let ssd = &self.ssd;
        self.dir.find(who, |slot| {
            let loc = slot.loc();
            if loc.in_memory() {
                return false;
            }
            let buffered = || match ssd.buffered(loc)?.key() == key {
                true => Some(Known::Own),
                false => Some(Known::Others),
            };
            match known(loc).or_else(buffered) {
                Some(Known::Own) => own = Some(slot),
                Some(Known::Others) => {}
                Some(Known::Unreadable) => unreadable = Some(slot),
                None => read = Some(loc),
            }
            own.is_some()
        });
        match (own, read) {
            (None, Some(loc)) => {
                self.stats.verify_reads += 1;
                Some(self.plan_read(loc))
            }
            _ => {
                self.verified(who, newest, own.or(unreadable));
                None
            }
        }
    }

    /// The newest entry of a key replaces what `below` names.
    fn verified(&mut self, who: Subject, newest: Slot, below: Option<Slot>) {
        self.unverified -= 1;
        let bytes = self.mem.entry_mut(newest.loc());
        entry::remove_flags(bytes, FLAG_UNVERIFIED);
        let Some(below) = below else { return };
        entry::set_link(bytes, below.loc());
        let removed = self.dir.remove(who, below.loc());
        debug_assert!(removed, "the slot was met in the same breath");
        let heat = policy::warmer(below.heat()).max(newest.heat());
        self.dir.swing(who, newest.loc(), newest.with_heat(heat));
    }

    /// Whether it is not known yet what the entry at `loc` replaces.
    pub(crate) fn is_unverified(&self, loc: Loc) -> bool {
        self.unverified > 0
            && loc.terrace() == Terrace::Dram
            && self.mem.entry(loc).flags() & FLAG_UNVERIFIED != 0
    }

    /// Whether a copy of `key` below is not its newest entry, although a slot names it.
    pub fn has_newer_above(&self, who: Subject, key: &[u8]) -> bool {
        self.unverified > 0 && self.newest_in_dram(who, key).is_some()
    }

    fn newest_in_dram(&self, who: Subject, key: &[u8]) -> Option<Slot> {
        self.dir.find(who, |s| {
            s.loc().terrace() == Terrace::Dram && self.mem.entry(s.loc()).key() == key
        })
    }
}
