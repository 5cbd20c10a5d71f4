//! How an epoch becomes durable: staging, commit, and writes that fail.
//!
//! An epoch is a cut through the updates of all lanes. When it is closed, its
//! entries are copied to the SSD log in their order (`Staging`), the cleaner
//! may add moves (`Moving`), the last batch carries `END` (`Writing`), and when
//! all lanes arrived and the device was flushed, it is durable. Sync mode closes
//! an epoch as soon as the last one is durable, async mode at the flush
//! interval: one mechanism, two settings.
//!
//! Promises: what recovery finds is the state at some epoch's end, never in
//! between; a failed write changes where bytes lie and nothing else. The copy
//! below that a staged entry replaces stays on the medium until the epoch is
//! durable, since its segment cannot be released before (see `release`).

use crate::io::Purpose;
use crate::lane::{Lane, Phase, Rule};
use crate::mem::Pos;
use crate::policy::{self, Pressure};
use crate::ssd::Stalled;
use terrace_log::entry::{self, FLAG_DEAD, FLAG_KEEP, FLAG_THROUGH};
use terrace_log::frame::{
    BATCH_END, BATCH_FIRST, BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES,
};
use terrace_log::scan::{self, Item};
use terrace_log::writer::BatchInfo;
use terrace_log::{Kind, Loc, NewEntry, Slot, Snapshot, Terrace, UNIT_BYTES};
use terrace_media::{MediaError, Op};

/// Head for entries that step down.
pub(crate) const HOT: usize = 0;
/// Head for entries that the cleaner moves.
pub(crate) const COLD: usize = 1;
/// Head for a batch whose write failed elsewhere.
const RETRY: usize = 2;
/// Segments with buffers at once: staging waits for writes above it.
const WRITERS_MAX: usize = 4;
/// Segments that may fail in a row before the lane takes no more updates.
const FAILED_WRITES_MAX: u8 = 8;

impl<D: Snapshot> Lane<D> {
    /// What decides whether the open epoch should be closed; the caller adds its own part.
    pub fn pressure(&self) -> Pressure {
        Pressure {
            open_dirty_bytes: (self.dirty_appended - self.dirty_at_start)
                + u64::from(self.flushing_all == Some(self.open_epoch)),
            dirty_max_bytes: match self.cfg.scratch {
                true => self.dirty_max.max(4),
                false => policy::dirty_now_bytes(self.dirty_max, self.steppable_bytes()),
            },
            writers_wait: self.writers_wait,
            freed_untold: self.wants_to_tell(),
            cleaning_ready: self.cleaning_ready(),
            ..Pressure::default()
        }
    }

    /// Closes the open epoch. The one before must be durable (`Phase::Idle`).
    pub fn close_epoch(&mut self) {
        assert_eq!(self.phase, Phase::Idle, "one epoch at a time");
        let end = self.epoch_cut();
        self.phase = Phase::Staging(self.open_epoch, end);
        if self.flushing_all == Some(self.open_epoch) {
            self.floor = self.next_seq;
        }
        self.open_epoch += 1;
        self.epoch_start = end;
        self.dirty_at_start = self.dirty_appended - self.mem.dirty_after(end);
        self.moved_in_epoch = 0;
        self.first_batch = true;
    }

    /// Does up to `entries` entries' worth of staging and moving. True if it
    /// could go on at once.
    pub fn stage(&mut self, entries: usize) -> bool {
        for _ in 0..entries {
            let step = match self.phase {
                Phase::Staging(epoch, end) => self.stage_next(epoch, end),
                Phase::Moving(epoch) => self.move_next(epoch),
                _ => return false,
            };
            if step.is_err() {
                return false;
            }
        }
        matches!(self.phase, Phase::Staging(..) | Phase::Moving(..))
    }

    fn stage_next(&mut self, epoch: u64, end: Pos) -> Result<(), Stalled> {
        let Some((loc, next)) = self.mem.dirty_next(self.staged, end) else {
            self.staged = end;
            self.phase = Phase::Moving(epoch);
            return Ok(());
        };
        self.stage_entry(loc)?;
        self.staged = next;
        Ok(())
    }

    /// Copies one entry of the dirty log down, if the epoch's state has it.
    fn stage_entry(&mut self, loc: Loc) -> Result<(), Stalled> {
        let e = self.mem.entry(loc);
        let live = e.flags() & FLAG_DEAD == 0;
        let newest = match (live, e.flags() & FLAG_KEEP != 0) {
            (true, _) => loc,
            (false, false) => return Ok(()),
            (false, true) => {
                let who = e.subject(&self.cfg.hasher);
                let mem = &self.mem;
                let newer = |s: Slot| {
                    s.loc().terrace() == Terrace::Dram && mem.entry(s.loc()).key() == e.key()
                };
                // Without a newer slot the key's deletion was staged with it: nothing to write.
                match self.dir.find(who, newer) {
                    Some(slot) => slot.loc(),
                    None => return Ok(()),
                }
            }
        };
        if self.is_unverified(newest) && self.rule(Rule::StageOnlyVerified) {
            return Err(Stalled);
        }
        let replaced = self.mem.entry(newest).link();
        if e.kind() == Kind::Tombstone {
            if !replaced.is_none() {
                self.append_from_memory(loc, replaced)?;
                self.kill_below(replaced);
            }
            match live {
                true => self.forget_tombstone(loc),
                false => entry::set_link(self.mem.entry_mut(newest), Loc::NONE),
            }
            return Ok(());
        }
        let through = e.flags() & FLAG_THROUGH != 0;
        let below = self.append_from_memory(loc, replaced)?;
        if !replaced.is_none() {
            self.kill_below(replaced);
        }
        self.ssd.add_live(below);
        entry::set_link(self.mem.entry_mut(newest), below);
        if through && live {
            let who = self.mem.entry(loc).subject(&self.cfg.hasher);
            self.dir.swing(who, loc, Slot::new(below, 0));
            let len = self.mem.entry(loc).len_bytes();
            self.mem.kill(loc, len);
        }
        Ok(())
    }

    /// The SSD copy at `loc` has a successor in the log.
    pub(crate) fn kill_below(&mut self, loc: Loc) {
        self.ssd.kill(loc);
    }

    fn forget_tombstone(&mut self, loc: Loc) {
        let e = self.mem.entry(loc);
        let (who, len) = (e.subject(&self.cfg.hasher), e.len_bytes());
        self.dir.remove(who, loc);
        self.mem.kill(loc, len);
        if who.space == 0 {
            self.tombs -= 1;
        }
    }

    fn append_from_memory(&mut self, loc: Loc, replaced: Loc) -> Result<Loc, Stalled> {
        // Borrowed apart: the entry lies in memory, the log writes elsewhere.
        let head = self.open_batch(HOT, self.mem.entry(loc).len_bytes())?;
        let mut new = self.mem.entry(loc).to_new();
        new.link = match self.rule(Rule::AppendNamesReplaced) {
            true => replaced,
            false => Loc::NONE,
        };
        let len = new.len_bytes();
        let writer = self.ssd.heads[head].as_mut().expect("opened");
        let offset = writer.append(&new).expect("room was made");
        let segment = writer.life().segment;
        self.stats.staged_bytes += len as u64;
        Ok(self.appended(segment, offset, &new_info(&new)))
    }

    /// Appends a moved or made entry at `head`.
    pub(crate) fn append_ssd(&mut self, head: usize, new: &NewEntry<'_>) -> Result<Loc, Stalled> {
        self.open_batch(head, new.len_bytes())?;
        let writer = self.ssd.heads[head].as_mut().expect("opened");
        let offset = writer.append(new).expect("room was made");
        let segment = writer.life().segment;
        Ok(self.appended(segment, offset, &new_info(new)))
    }

    /// Appends to the batch that is open at `head`, if it fits there.
    pub(crate) fn append_to_open(&mut self, head: usize, new: &NewEntry<'_>) -> bool {
        let writer = self.ssd.heads[head].as_mut().expect("open");
        let Some(offset) = writer.append(new) else {
            return false;
        };
        let segment = writer.life().segment;
        self.appended(segment, offset, &new_info(new));
        true
    }

    fn appended(&mut self, segment: u32, offset: usize, new: &Appended) -> Loc {
        let loc = self.ssd.loc(segment, offset, new.len);
        let class_bytes = terrace_log::addr::class_bytes(loc.class()) as u32;
        let mut s = self.ssd.segment_mut(segment);
        if new.tombstone {
            s.tomb_bytes += new.len as u32;
        } else {
            s.total_class_bytes += class_bytes;
        }
        drop(s);
        self.appended_total += new.len as u64;
        loc
    }

    /// Makes sure that `head` has an open batch with room for `len` bytes.
    fn open_batch(&mut self, head: usize, len: usize) -> Result<usize, Stalled> {
        for _ in 0..3 {
            match &self.ssd.heads[head] {
                None => {
                    let allowed = head != COLD || self.move_room();
                    let may = allowed && self.ssd.writers() < WRITERS_MAX;
                    if !may {
                        return Err(Stalled);
                    }
                    if !self.ssd.open_head(head, self.next_seq) {
                        // The epoch comes before a checkpoint, which gives back what it took.
                        self.checkpoint_restart();
                        return Err(Stalled);
                    }
                }
                Some(w) if len > w.room_bytes() => {
                    if w.batch_open() {
                        self.end_batch(head, 0, 0);
                    }
                    self.seal(head);
                }
                Some(w) if !w.batch_open() => {
                    let seq = self.next_seq;
                    self.next_seq += 1;
                    self.ssd.heads[head]
                        .as_mut()
                        .expect("open")
                        .begin_batch(seq);
                }
                Some(_) => return Ok(head),
            }
        }
        match &self.ssd.heads[head] {
            Some(w) if w.batch_open() && len <= w.room_bytes() => Ok(head),
            _ => Err(Stalled),
        }
    }

    /// Closes a head's segment. Its buffer is let go with its last write, or at once if that has ended:
    /// no completion would come for it any more, and it would count among the writers for ever.
    fn seal(&mut self, head: usize) {
        self.ssd.seal_head(head);
        self.let_go_written();
    }

    fn let_go_written(&mut self) {
        // What could not be written anywhere stays readable from its buffer.
        if self.failed.is_some() {
            return;
        }
        let done: Vec<u32> = self
            .ssd
            .closing()
            .filter(|&id| self.io.batches_of(id) == 0)
            .collect();
        for id in done {
            self.ssd.written(id);
        }
    }

    /// Hands the open batch of `head` out for writing.
    pub(crate) fn end_batch(&mut self, head: usize, flags: u8, attempt: u8) {
        let epoch = self.phase.epoch().expect("an epoch is under way");
        let first = attempt == 0 && std::mem::take(&mut self.first_batch);
        let flags = flags | if first { BATCH_FIRST } else { 0 };
        let info = BatchInfo {
            epoch,
            clock_ms: self.now_ms,
            floor: self.floor,
            flags,
            attempt,
        };
        let writer = self.ssd.heads[head].as_mut().expect("open");
        let (at, header, data) = writer.end_batch(&info);
        let segment = writer.life().segment;
        let used = writer.used_bytes();
        self.ssd.segment_mut(segment).used_bytes = used as u32;
        self.ssd.segment_mut(segment).last_epoch = epoch;
        // The first batch's write starts with the segment header.
        let start = if at == 0 { SEGMENT_HEADER_BYTES } else { at };
        self.stats.written_log_bytes += data.len() as u64;
        self.written_through = first && flags & BATCH_END != 0 && self.may_write_through();
        let offset = self.ssd.device_offset(segment) + at as u64;
        let op = match self.written_through {
            true => Op::WriteThrough { offset, data },
            false => Op::Write { offset, data },
        };
        let purpose = Purpose::Batch {
            segment,
            header,
            start,
        };
        self.io.send(purpose, op);
    }

    /// Whether an epoch that is one write may do without the flush: no other lane's writes wait for that one, and no checkpoint's. A start takes the headers of segments
    /// that an image has for as durable as those of later epochs; and a device that fails such a write may have lost parts of an image that a flush of the checkpoint's own would then vouch for.
    fn may_write_through(&self) -> bool {
        self.writes_through
            && self.cfg.lanes == 1
            && !self.cfg.scratch
            && !self.checkpointing()
            && self.rule(Rule::FlushBeforeAcknowledge)
    }

    /// Whether the epoch that arrived is durable as it was written, without a flush.
    pub fn is_written_through(&self) -> bool {
        self.written_through
    }

    /// Ends the epoch's last batch with `END`.
    pub(crate) fn finish_epoch(&mut self, epoch: u64) -> Result<(), Stalled> {
        let open = [COLD, HOT]
            .into_iter()
            .find(|&h| self.ssd.heads[h].as_ref().is_some_and(|w| w.batch_open()));
        let head = match open {
            Some(head) => head,
            None => self.open_batch(HOT, UNIT_BYTES)?,
        };
        self.tell_freed(head, epoch);
        self.end_batch(head, BATCH_END, 0);
        // A head with no room for another batch would only hold its buffer.
        for head in [HOT, COLD] {
            let full = |w: &terrace_log::writer::SegmentWriter| w.room_bytes() < 4 * UNIT_BYTES;
            if self.ssd.heads[head].as_ref().is_some_and(full) {
                self.seal(head);
            }
        }
        self.phase = Phase::Writing(epoch);
        self.check_arrived();
        Ok(())
    }

    fn check_arrived(&mut self) {
        // An epoch of which a batch was given up never arrives.
        if let Phase::Writing(epoch) = self.phase
            && self.io.batches() == 0
            && self.failed.is_none()
        {
            self.phase = Phase::Arrived(epoch);
        }
    }

    /// Says once of each epoch that the lane's part of it is written, whoever asks.
    pub fn tell_arrival(&mut self) -> bool {
        match self.phase {
            Phase::Arrived(epoch) if self.arrival_told < epoch => {
                self.arrival_told = epoch;
                true
            }
            _ => false,
        }
    }

    /// The write of a batch ended.
    pub(crate) fn batch_written(
        &mut self,
        segment: u32,
        header: BatchHeader,
        start: usize,
        result: Result<(), MediaError>,
    ) {
        match result {
            Ok(()) if start == SEGMENT_HEADER_BYTES => self.ssd.header_written(segment),
            Ok(()) => {}
            Err(error) => {
                self.stats.failed_writes += 1;
                tracing::error!(lane = self.cfg.lane, segment, %error, "a write failed; writing it elsewhere; look after the device if this comes again");
                self.restage(segment, header, start);
            }
        }
        // What could not be written anywhere stays readable from its buffer.
        if self.io.batches_of(segment) == 0 && self.failed.is_none() {
            self.ssd.written(segment);
        }
        self.check_arrived();
    }

    /// Writes a batch again in another segment: the same seq and entries, a higher
    /// attempt, new locations. The segment that failed is not written any more.
    fn restage(&mut self, segment: u32, header: BatchHeader, start: usize) {
        if self.failed.is_some() {
            // Nothing is acknowledged any more; each try would only hold one more buffer.
            return;
        }
        self.checkpoint_restart();
        if header.attempt >= FAILED_WRITES_MAX || !self.start_retry(header.seq) {
            self.fail(
                "writes to the device keep failing; the data in memory could not be stepped down",
            );
            return;
        }
        self.end_open_batches_of(segment);
        self.ssd.mark_bad(segment);
        let life = self.ssd.life(segment);
        let image = self
            .ssd
            .writer(segment)
            .expect("held until written")
            .bytes();
        let image = image[..start + header.len_bytes as usize].to_vec();
        let end = image.len();
        let mut at = start + BATCH_HEADER_BYTES;
        while let Some((item, next)) = scan::next(&image, &life, at, end) {
            if let Item::Entry(offset, e, _) = item {
                let old = self.ssd.loc(segment, offset, e.len_bytes());
                self.restage_entry(old, &e);
            }
            at = next;
        }
        self.end_batch(RETRY, header.flags, header.attempt + 1);
        self.seal(RETRY);
    }

    fn start_retry(&mut self, seq: u64) -> bool {
        if !self.ssd.open_head(RETRY, seq) {
            return false;
        }
        self.ssd.heads[RETRY]
            .as_mut()
            .expect("opened")
            .begin_batch(seq);
        true
    }

    /// A batch that is open in a segment that went bad goes on elsewhere: it is
    /// ended here, its write fails or not, and comes here again if it does.
    fn end_open_batches_of(&mut self, segment: u32) {
        for head in [HOT, COLD] {
            let hit = |w: &terrace_log::writer::SegmentWriter| {
                w.life().segment == segment && w.batch_open()
            };
            if self.ssd.heads[head].as_ref().is_some_and(hit) {
                self.end_batch(head, 0, 0);
            }
        }
    }

    fn restage_entry(&mut self, old: Loc, e: &entry::Entry<'_>) {
        let writer = self.ssd.heads[RETRY].as_mut().expect("opened");
        let offset = writer.append(&e.to_new()).expect("as long as before");
        let segment = writer.life().segment;
        let to = self.appended(segment, offset, &new_info(&e.to_new()));
        let who = e.subject(&self.cfg.hasher);
        let has_slot = matches!(e.kind(), Kind::Value | Kind::Binder);
        if has_slot && self.repoint(who, old, to) {
            self.ssd.kill(old);
            self.ssd.add_live(to);
        }
    }

    /// Makes whatever names the SSD copy `from` name `to`: the slot itself, or the
    /// memory entry that the slot names. False: nothing names it any more.
    pub(crate) fn repoint(&mut self, who: terrace_log::Subject, from: Loc, to: Loc) -> bool {
        let any = !self.rule(Rule::MoveIsCompareAndSet);
        let direct = self.dir.update(who, |s| {
            (s.loc() == from || any).then(|| Slot::new(to, s.heat()))
        });
        if direct.is_some() {
            return true;
        }
        match self.linked_from(who, from) {
            Some(slot) => {
                let upper = slot.loc();
                entry::set_link(self.terrace_mut(upper).entry_mut(upper), to);
                true
            }
            None => false,
        }
    }

    /// The slot whose memory entry links to `below`.
    pub(crate) fn linked_from(&self, who: terrace_log::Subject, below: Loc) -> Option<Slot> {
        self.dir.find(who, |s| {
            s.loc().in_memory() && self.terrace(s.loc()).entry(s.loc()).link() == below
        })
    }

    /// The epoch is durable on every lane.
    pub fn made_durable(&mut self, epoch: u64) {
        if self.phase != Phase::Arrived(epoch) {
            return;
        }
        self.phase = Phase::Idle;
        self.dirty_durable = self.dirty_at_start;
        self.durable = self.epoch_start;
        self.mem.made_durable(self.epoch_start);
        if self.flushing_all == Some(epoch) {
            self.flushing_all = None;
        }
        self.release_told();
        // Not before: what was staged is counted as dirty until here.
        self.live_estimate = self.ssd.live_bytes();
        self.lacks.ssd.epoch_ended(epoch, self.lacks.now_ms);
        self.tell_room();
    }

    /// Takes no more updates, for this reason.
    pub fn fail(&mut self, why: &str) {
        if self.failed.is_none() {
            // The pool says it once for the operator.
            tracing::debug!(lane = self.cfg.lane, why, "the lane is read-only");
            self.failed = Some(why.to_string());
        }
    }

    /// Whether closing an epoch would have anything to do.
    pub fn wants_epoch(&self, p: &Pressure) -> bool {
        let due = match self.cfg.scratch {
            true => policy::scratch_close_epoch(p),
            false => policy::close_epoch(p),
        };
        self.failed.is_none() && self.epoch_room() && due
    }
}

struct Appended {
    len: usize,
    tombstone: bool,
}

fn new_info(new: &NewEntry<'_>) -> Appended {
    Appended {
        len: new.len_bytes(),
        tombstone: new.kind == Kind::Tombstone,
    }
}
