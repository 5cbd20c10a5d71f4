//! Updates that read nothing below: what they replace is known by its fingerprint (docs/adr/0047).
//!
//! Promises: what is remembered follows an entry that is moved. Never: keeps memory that DRAM's segments are short of.

use crate::fingerprints::{Fingerprints, print};
use crate::lane::Lane;
use crate::policy;
use terrace_log::{Loc, Slot, Snapshot, Subject};

/// Fewer segments of DRAM, and no table is asked for: updates need six of them, and come first.
const SEGMENTS_ASKED_MIN: usize = 12;

impl<D: Snapshot> Lane<D> {
    /// The slot of `who`'s newest entry, a value below, if that is known without a read; of which a look-up in the same breath
    /// found nothing in memory and something to read. An update that replaces it must follow: it is forgotten here.
    pub fn recognise(&mut self, who: Subject) -> Option<Slot> {
        if !self.fingerprints.is_made() {
            self.ask_for_fingerprints();
            return None;
        }
        let (ssd, prints) = (&self.ssd, &mut self.fingerprints);
        let found = self.dir.find(who, |slot| {
            let loc = slot.loc();
            !loc.in_memory() && prints.recall(who, print(who, loc, ssd.generation_of(loc)))
        });
        self.stats.recognised += u64::from(found.is_some());
        found
    }

    /// `who`'s newest entry, a value, lies at `loc` below and nowhere above.
    pub(crate) fn remember_below(&mut self, who: Subject, loc: Loc) {
        if self.fingerprints.is_made() {
            let print = print(who, loc, self.ssd.generation_of(loc));
            self.fingerprints.remember(who, print);
        }
    }

    /// The entry at `from` was appended again at `to`.
    pub(crate) fn remember_moved(&mut self, who: Subject, from: Loc, to: Loc) {
        let print = print(who, from, self.ssd.generation_of(from));
        if self.fingerprints.is_made() && self.fingerprints.recall(who, print) {
            self.remember_below(who, to);
        }
    }

    fn ask_for_fingerprints(&mut self) {
        let segments = self.mem.quota();
        if !self.fingerprints.is_asked() && segments >= SEGMENTS_ASKED_MIN {
            let bytes = policy::fingerprint_bytes(segments * self.cfg.segment_bytes);
            self.fingerprints = Fingerprints::asked(bytes, segments);
        }
    }

    /// Makes the table that was asked for once DRAM's segments have given way, and gives it up where DRAM has become short. To be called
    /// when the cap's ledger was told what the lane holds, after the lane was told what it may hold.
    pub fn keep_fingerprints(&mut self) {
        self.fingerprints.keep(self.mem.held(), self.mem.quota());
    }
}
