//! What a replay does about entries whose predecessor was lost.
//!
//! An entry names the copy that it replaces. If no slot names that one, since the entry that would have brought it cannot be read,
//! what the directory has of the key is older still, and nothing in the log says which slot that is: it has no key. So those that it
//! may be are remembered, and read when the log was walked. It never happens without damage.
//! Promises: a key whose newest entry is whole has one slot, and a deleted one none, whatever of it was lost before; but for one that was deleted and set again, of which the deletion is lost: nothing names what it deleted.
//! Never: takes a slot for a key's whose entry was not read and is not the key's.

use crate::bulk::read_in_order;
use crate::lane::Lane;
use std::collections::HashMap;
use terrace_log::entry::Entry;
use terrace_log::{Directory, Loc, Snapshot, Subject, addr};
use terrace_media::{BLOCK_BYTES, Disk};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Orphans {
    /// Places of entries that may be an older copy of somebody's, if they are not replaced.
    older: HashMap<Loc, Vec<Subject>>,
}

impl Orphans {
    /// An entry of `who` replaces what no slot names. What the directory has now is older, since the walk goes by age.
    pub(crate) fn add(&mut self, dir: &impl Directory, who: Subject) {
        dir.find(who, |slot| {
            self.older.entry(slot.loc()).or_default().push(who);
            false
        });
    }
    /// The walk met an entry at this place: nothing older is there.
    #[inline]
    pub(crate) fn met(&mut self, loc: Loc) {
        if !self.older.is_empty() {
            self.older.remove(&loc);
        }
    }
}

impl<D: Snapshot> Lane<D> {
    /// Reads what may be older copies and removes the slots of those that are.
    pub(crate) fn drop_older(&mut self, disk: &mut dyn Disk, orphans: Orphans) {
        let mut older: Vec<(Loc, Vec<Subject>)> = orphans.older.into_iter().collect();
        // What has been replaced since was another's.
        for (loc, subjects) in &mut older {
            subjects.retain(|who| self.dir.names(*who, *loc));
        }
        older.retain(|(loc, subjects)| !subjects.is_empty() && self.ssd.contains(*loc));
        older.sort_by_key(|(loc, _)| loc.unit());
        let reads: Vec<(u64, usize)> = older
            .iter()
            .map(|(loc, _)| self.whole_blocks(*loc))
            .collect();
        let mut dropped = 0;
        read_in_order(disk, &reads, 1, |at, image| {
            // One that cannot be read stays: whose it is nobody knows.
            let (Ok(image), (loc, subjects)) = (image, &older[at]) else {
                return;
            };
            let (id, offset) = self.ssd.split(*loc);
            let bytes = &image.bytes[offset % BLOCK_BYTES..];
            let seed = self.ssd.life(id).seed(offset);
            let Ok(e) = Entry::from_media(bytes, seed) else {
                return;
            };
            let who = e.subject(&self.cfg.hasher);
            if subjects.contains(&who) && self.dir.remove(who, *loc) {
                dropped += 1;
            }
        });
        if dropped > 0 {
            tracing::warn!(
                lane = self.cfg.lane,
                entries = dropped,
                "updates were found of keys whose updates before are lost: what is older than those was dropped"
            );
        }
    }

    /// Offset and length on the device of the blocks that the entry at `loc` lies in.
    fn whole_blocks(&self, loc: Loc) -> (u64, usize) {
        let (id, offset) = self.ssd.split(loc);
        let from = offset - offset % BLOCK_BYTES;
        let end = (offset + addr::class_bytes(loc.class())).min(self.cfg.segment_bytes);
        let len = (end - from).next_multiple_of(BLOCK_BYTES);
        (self.ssd.device_offset(id) + from as u64, len)
    }
}
