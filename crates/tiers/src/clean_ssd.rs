//! The cleaner on the durable terrace: live entries are appended again at the
//! cold head, as a part of the commit under way.
//!
//! | the entry is | it |
//! |---|---|
//! | named by the slot, or by the link of the memory entry the slot names | is appended again; whichever names it follows |
//! | the same, but expired | is replaced by a tombstone |
//! | a tombstone that an older segment may still need | is appended again with its old version |
//! | anything else | is dropped with its segment |
//!
//! Promises: a victim's segment is released only when the epoch that moved its
//! entries is durable, and as `release` says. A victim with damage
//! in it is set aside and never overwritten. Never: reads more than
//! `VICTIMS_MAX` segments ahead.

use crate::buffers::VICTIMS_MAX;
use crate::flush::{COLD, HOT};
use crate::io::Purpose;
use crate::jobs::CleanJob;
use crate::lane::{Lane, Phase, Rule};
use crate::policy::{self, CLEANER_SEGMENTS};
use crate::ssd::{Stalled, State, kept_share};
use terrace_log::entry::Entry;
use terrace_log::frame::{self, VERSION_UNIT_BITS};
use terrace_log::scan::{self, Found, Item};
use terrace_log::{Kind, Loc, NewEntry, Slot, Snapshot, Subject, Terrace};
use terrace_media::{BLOCK_BYTES, Buf, MediaError, Op};

/// Bytes moved in one epoch before it is ended, when updates wait for it.
const MOVE_PER_EPOCH_BYTES: usize = 2 << 20;
/// Reads of a victim that may fail before it is set aside.
const READ_TRIES_MAX: u8 = 3;
/// Tombstones above this part of all bytes make the cleaner take what pins them: 1 / 20.
const TOMBSTONES_ONE_IN: u64 = 20;

/// Dead segments given up in one slice.
const DEAD_PER_SLICE_MAX: usize = 64;
/// Segments of one live share that are looked at for a victim: the oldest ones, some of which are still being written.
const VICTIMS_LOOKED_AT: usize = 8;
/// Segments looked at in one slice for the oldest batch: few, since a slice comes with each turn of a busy thread, and would throw
/// what commands need out of the processor's cache.
const OLDEST_PER_SLICE: usize = 32;

impl<D: Snapshot> Lane<D> {
    /// Segments the cleaner wants to have free or about to be.
    pub(crate) fn clean_target(&self) -> usize {
        let segment = self.cfg.segment_bytes as u64;
        let checkpoint = self.checkpoint_segments();
        // A scratch lane's epochs are of its oldest entries: all that is dirty counts.
        let stepping = match self.cfg.scratch {
            true => self.dirty_max,
            false => {
                let (live, lane_bytes) = (self.live_estimate, self.ssd.count() as u64 * segment);
                policy::dirty_ahead_bytes(self.dirty_max, self.wanted_bytes, live, lane_bytes)
            }
        };
        let stepping = policy::dirty_segments(stepping, segment) + CLEANER_SEGMENTS;
        (checkpoint + stepping).max(policy::kept_free(self.ssd.count()))
    }

    /// Starts reads of victims when segments run low. For background slices.
    pub fn start_cleaning(&mut self) {
        self.ssd.look_for_oldest(OLDEST_PER_SLICE);
        if self.flushing_all.is_some() || self.failed.is_some() {
            return;
        }
        if self.free_soon() < self.clean_target() {
            self.empty_the_dead();
        }
        let wanted = self.clean_target().saturating_sub(self.free_soon());
        loop {
            let pressed = self.cleans_for_tombstones();
            let most = if pressed { VICTIMS_MAX } else { wanted };
            if self.cleaning_ssd.len() >= VICTIMS_MAX.min(most) {
                return;
            }
            let Some(segment) = self.choose_victim() else {
                return;
            };
            if pressed {
                self.spend_on_tombstones();
            }
            self.ssd.segment_mut(segment).state = State::Cleaning;
            self.cleaning_ssd.push_back(CleanJob {
                segment,
                buf: None,
                tries: 0,
                batches: Vec::new(),
                batch: 0,
                at: 0,
                damaged: false,
                oldest_seq: 0,
            });
            self.read_victim(segment);
        }
    }

    /// Segments with batches of this epoch or a later one are left alone: a full
    /// scan judges the youngest epoch by its batches, so they must not vanish.
    pub(crate) fn settled_epoch(&self) -> u64 {
        self.phase.epoch().unwrap_or(self.open_epoch - 1)
    }

    /// Segments without a live entry or tombstone need not be read. What replaced
    /// their entries is durable, or will be with the epoch under way.
    fn empty_the_dead(&mut self) {
        let dead: Vec<u32> = self.ssd.almost_dead().take(DEAD_PER_SLICE_MAX).collect();
        for id in dead {
            let s = self.ssd.segment(id);
            if s.live_class_bytes > 0 || s.tomb_bytes > 0 || !self.may_clean(id) {
                continue;
            }
            self.note_emptied(id);
        }
    }

    /// Whether a sealed segment is wholly written, and in epochs before the youngest.
    fn may_clean(&self, id: u32) -> bool {
        self.ssd.segment(id).last_epoch < self.settled_epoch() && self.ssd.writer(id).is_none()
    }

    /// One that a read holds is free to nobody when it is emptied, while what it was moved to is taken, and a command that has read there
    /// reads again: it is chosen where there is no other and room is short. It comes back when the reads of then end, since no new ones come; and where many read
    /// at all times, each segment may be held by some.
    pub(crate) fn choose_victim(&self) -> Option<u32> {
        let unheld = self.choose_among(false);
        let short = || self.writers_wait || self.segments_low();
        unheld.or_else(|| (self.ssd.any_held() && short()).then(|| self.choose_among(true))?)
    }

    fn choose_among(&self, held: bool) -> Option<u32> {
        let size = self.cfg.segment_bytes as u64;
        let sealed = self
            .ssd
            .victims(VICTIMS_LOOKED_AT, held)
            .filter(|&id| self.may_clean(id));
        let known = sealed.map(|id| (id, self.ssd.segment(id)));
        let many = self.ssd.tomb_bytes() * TOMBSTONES_ONE_IN > self.live_estimate.max(size);
        if many || self.cleans_for_tombstones() {
            // The oldest segment pins every tombstone that is younger than it: without it they go, but for those that one set aside pins.
            let oldest = known.clone().min_by_key(|(_, s)| s.first_seq);
            if let Some((id, s)) = oldest
                && s.first_seq < self.ssd.aside_seq()
            {
                return Some(id);
            }
        }
        known
            .map(|(id, s)| (id, kept_share(s, size), s.first_seq))
            .filter(|&(_, keep, _)| policy::worth_cleaning(keep, size))
            .max_by_key(|&(_, keep, seq)| {
                policy::clean_score(keep, size, self.next_seq.saturating_sub(seq))
            })
            .map(|(id, ..)| id)
    }

    fn read_victim(&mut self, segment: u32) {
        let used = self.ssd.segment(segment).used_bytes as usize;
        let len = used.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let op = Op::Read {
            offset: self.ssd.device_offset(segment),
            buf: self.ssd.buffers.take_victim(len),
        };
        self.stats.cleaner_read_bytes += len as u64;
        self.io.send(Purpose::CleanRead { segment }, op);
    }

    pub(crate) fn victim_read(
        &mut self,
        segment: u32,
        result: Result<(), MediaError>,
        buf: Option<Buf>,
    ) {
        let oldest_seq = self.ssd.oldest_seq(segment);
        let (result, buf) = match (result, buf) {
            (Err(error), Some(buf)) => {
                self.ssd.buffers.keep_victim(buf);
                (Err(error), None)
            }
            read => read,
        };
        let Some(job) = self.cleaning_ssd.iter_mut().find(|j| j.segment == segment) else {
            return;
        };
        match (result, buf) {
            (Ok(()), Some(buf)) => {
                for found in scan::batches(&buf, &self.ssd.life(segment)) {
                    match found {
                        Found::Batch(at, header) => job.batches.push((at, header)),
                        Found::Damage(..) => job.damaged = true,
                    }
                }
                job.at = job
                    .batches
                    .first()
                    .map_or(0, |b| b.0 + frame::BATCH_HEADER_BYTES);
                job.oldest_seq = oldest_seq;
                job.buf = Some(buf);
            }
            (Err(error), _) if job.tries + 1 >= READ_TRIES_MAX => {
                tracing::error!(lane = self.cfg.lane, segment, %error, "a segment cannot be read; it is set aside, and what is live in it stays there; look after the device, then `terrace pool check`");
                self.cleaning_ssd.retain(|j| j.segment != segment);
                self.ssd.set_aside(segment);
            }
            _ => {
                job.tries += 1;
                self.read_victim(segment);
            }
        }
    }

    /// A victim is in memory and segments are needed: an epoch would make progress.
    pub(crate) fn cleaning_ready(&self) -> bool {
        self.flushing_all.is_none() && self.cleaning_ssd.front().is_some_and(|j| j.buf.is_some())
    }

    /// Whether the victim whose turn it is needs no checkpoint to be free, and can be taken then.
    pub(crate) fn victim_is_unneeded(&self) -> bool {
        let ready = self.cleaning_ready();
        let victim = self.cleaning_ssd.front().filter(|_| ready);
        victim.is_some_and(|job| self.is_unneeded(job.segment) && !self.ssd.is_held(job.segment))
    }

    /// One step of the phase `Moving`.
    pub(crate) fn move_next(&mut self, epoch: u64) -> Result<(), Stalled> {
        let pressed = self.writers_wait || self.dirty_bytes() > self.dirty_max / 4;
        let enough = pressed
            && self.moved_in_epoch >= MOVE_PER_EPOCH_BYTES
            && self.free_soon() >= self.clean_target();
        let full = self.moved_in_epoch >= 16 * MOVE_PER_EPOCH_BYTES;
        if enough || full || self.cleaning_ssd.is_empty() {
            return self.finish_epoch(epoch);
        }
        if !self.cleaning_ready() {
            // Worth waiting for the read only when segments are short.
            return match self.free_soon() < self.clean_target() && self.moved_in_epoch > 0 {
                true => Err(Stalled),
                false => self.finish_epoch(epoch),
            };
        }
        if self.ssd.heads[HOT].as_ref().is_some_and(|w| w.batch_open()) {
            // Batches do not overlap: their order is the order of what they say.
            self.end_batch(HOT, 0, 0);
        }
        self.release.victim_comes_back = self.victim_is_unneeded();
        let mut job = self.cleaning_ssd.pop_front().expect("ready");
        let done = self.move_one(&mut job);
        match done {
            Ok(true) => self.victim_emptied(job),
            Ok(false) => self.cleaning_ssd.push_front(job),
            Err(Stalled) => {
                self.cleaning_ssd.push_front(job);
                // Writes under way will let buffers go; without any, end here.
                if self.io.batches() == 0 {
                    return self.finish_epoch(epoch);
                }
                return Err(Stalled);
            }
        }
        Ok(())
    }

    /// Looks at the next entry of a victim. True when there is none.
    fn move_one(&mut self, job: &mut CleanJob) -> Result<bool, Stalled> {
        let Some(&(start, header)) = job.batches.get(job.batch) else {
            return Ok(true);
        };
        let life = self.ssd.life(job.segment);
        let buf = job.buf.take().expect("read");
        let end = start + header.len_bytes as usize;
        let mut outcome = Ok(());
        match scan::next(&buf, &life, job.at, end) {
            Some((item, next)) => {
                outcome = match item {
                    Item::Entry(offset, e, Ok(())) => self.move_entry(job, offset, header.seq, &e),
                    Item::Entry(offset, e, Err(_)) => {
                        let loc = self.ssd.loc(job.segment, offset, e.len_bytes());
                        let who = e.subject(&self.cfg.hasher);
                        job.damaged |=
                            self.dir.names(who, loc) || self.linked_from(who, loc).is_some();
                        Ok(())
                    }
                    Item::Damage(..) => {
                        job.damaged = true;
                        Ok(())
                    }
                };
                if outcome.is_ok() {
                    job.at = next;
                }
            }
            None => {
                job.batch += 1;
                if let Some(&(start, _)) = job.batches.get(job.batch) {
                    job.at = start + frame::BATCH_HEADER_BYTES;
                }
            }
        }
        job.buf = Some(buf);
        outcome.map(|()| false)
    }

    fn move_entry(
        &mut self,
        job: &CleanJob,
        offset: usize,
        seq: u64,
        e: &Entry<'_>,
    ) -> Result<(), Stalled> {
        let loc = self.ssd.loc(job.segment, offset, e.len_bytes());
        let who = e.subject(&self.cfg.hasher);
        if e.kind() == Kind::Freed {
            // The checkpoint that this segment waits for lists it, or lists what it was taken for.
            return Ok(());
        }
        if e.kind() == Kind::Tombstone {
            return self.move_tombstone(job.oldest_seq, frame::version(seq, offset), e);
        }
        let direct = self.dir.names(who, loc)
            || (!self.rule(Rule::MoveIsCompareAndSet) && self.dir.find(who, |_| true).is_some());
        let linked = if direct {
            None
        } else {
            self.linked_from(who, loc)
        };
        if !direct && linked.is_none() {
            return Ok(());
        }
        if linked.is_some_and(|slot| self.taken_for_dead(slot)) {
            self.ssd.kill(loc);
            return Ok(());
        }
        if direct && e.expired(self.now_ms) && e.kind() == Kind::Value {
            return self.expire_below(who, loc, e);
        }
        if e.expired(self.now_ms) && e.kind() == Kind::Binder {
            self.note_expired_binder(e.key());
        }
        let new = NewEntry {
            link: self.named_replaced(loc),
            ..e.to_new()
        };
        let to = self.append_ssd(COLD, &new)?;
        self.stats.moved_bytes += new.len_bytes() as u64;
        self.moved_in_epoch += new.len_bytes();
        if self.repoint(who, loc, to) {
            self.ssd.kill(loc);
            self.ssd.add_live(to);
            self.remember_moved(who, loc, to);
        }
        Ok(())
    }

    /// What the cleaner would get wrong without the rules on linked copies.
    fn taken_for_dead(&self, slot: Slot) -> bool {
        let dirty = self.mem_dirty(slot.loc());
        match dirty {
            true => !self.rule(Rule::DeadWhenSuccessorDurable),
            false => !self.rule(Rule::LinkKeepsAlive),
        }
    }
    fn mem_dirty(&self, loc: Loc) -> bool {
        loc.terrace() == Terrace::Dram
            && self
                .mem
                .dirty_pos(loc)
                .is_some_and(|pos| pos >= self.staged)
    }

    fn named_replaced(&self, loc: Loc) -> Loc {
        match self.rule(Rule::AppendNamesReplaced) {
            true => loc,
            false => Loc::NONE,
        }
    }

    /// An expired entry leaves a tombstone: without it, an older version that
    /// still lies somewhere would come back in a full scan.
    fn expire_below(&mut self, who: Subject, loc: Loc, e: &Entry<'_>) -> Result<(), Stalled> {
        if self.rule(Rule::ExpiryLeavesTombstone) {
            let tombstone = NewEntry {
                kind: Kind::Tombstone,
                flags: 0,
                expiry_ms: None,
                version: None,
                value: &[],
                link: self.named_replaced(loc),
                ..e.to_new()
            };
            self.append_ssd(COLD, &tombstone)?;
            self.moved_in_epoch += tombstone.len_bytes();
        }
        if self.dir.remove(who, loc) {
            self.ssd.kill(loc);
            self.stats.expired += 1;
        }
        Ok(())
    }

    /// A tombstone is needed while any segment, free ones included, may still
    /// have bytes older than it: a full scan reads them all.
    fn move_tombstone(
        &mut self,
        oldest_seq: u64,
        version: u64,
        e: &Entry<'_>,
    ) -> Result<(), Stalled> {
        let version = e.version().unwrap_or(version);
        let seq = version >> VERSION_UNIT_BITS;
        let needed = oldest_seq <= seq && seq >= self.floor;
        if !needed || !self.rule(Rule::TombstonesStay) {
            return Ok(());
        }
        let again = NewEntry {
            link: Loc::NONE,
            version: Some(version),
            ..e.to_new()
        };
        self.append_ssd(COLD, &again)?;
        self.moved_in_epoch += again.len_bytes();
        self.stats.moved_bytes += again.len_bytes() as u64;
        Ok(())
    }

    fn victim_emptied(&mut self, mut job: CleanJob) {
        if let Some(buf) = job.buf.take() {
            self.ssd.buffers.keep_victim(buf);
        }
        let left = self.ssd.segment(job.segment).live_class_bytes;
        if job.damaged || left > 0 {
            tracing::error!(
                lane = self.cfg.lane,
                segment = job.segment,
                left_bytes = left,
                "a segment has entries that cannot be read; it is set aside, and their keys answer with an error; `terrace pool check` lists them"
            );
            self.ssd.set_aside(job.segment);
            return;
        }
        self.note_emptied(job.segment);
    }

    /// Slots that a full scan must not lose: for audits.
    pub fn each_slot(&self, f: impl FnMut(Slot)) {
        self.dir.each(f);
    }

    /// Whether the cleaner's work alone keeps an epoch open.
    pub fn moving(&self) -> bool {
        matches!(self.phase, Phase::Moving(_))
    }
}
