//! A lane: the stack of terraces that one thread looks after, and what is done to it.
//!
//! Here: the state, look-up, put, delete and promotion. The types are in `config`,
//! room is in `room`, how an epoch becomes durable in `flush`, how segments are
//! emptied in `clean_memory` and `clean_ssd`, how the directory is saved in `checkpoint`;
//! what is under way is in `jobs`.
//!
//! A lane is a state machine without threads, clocks or system calls: time
//! comes in with `set_now`, device operations go out through `take_io` and
//! their results come in through `complete`. So a test can drive every step.
//!
//! Invariants, asserted by `audit`:
//! - a subject has at most one slot;
//! - a memory entry's `link` names the newest copy that was appended to the
//!   SSD (its own, or the one it will replace), which therefore is live there;
//! - an entry leaves memory only when its own copy below is durable.

use crate::fingerprints::Fingerprints;
use crate::ghost::Ghost;
use crate::io::Io;
use crate::jobs::{CheckpointJob, CleanJob, Lacks, Release, WarmJob};
use crate::mem::{Head, MemTerrace, Pos};
use crate::policy;
use crate::ssd::{ReadPlan, Ssd};
use crate::stats::LaneStats;
// Whoever works on a lane finds what it needs of its surroundings beside it.
pub(crate) use crate::config::{Config, Look, Phase, Refused, Rule};
use std::collections::VecDeque;
use std::sync::Arc;
use terrace_log::entry::{self, Entry, FLAG_KEEP, FLAG_UNVERIFIED};
use terrace_log::{Kind, Loc, NewEntry, Slot, Snapshot, Subject, Terrace};
use terrace_media::Arena;

/// One lane over a directory.
pub struct Lane<D> {
    pub(crate) cfg: Config,
    /// The directory.
    pub dir: D,
    pub(crate) mem: MemTerrace,
    pub(crate) middle: Option<MemTerrace>,
    pub(crate) ssd: Ssd,
    pub(crate) io: Io,

    pub(crate) open_epoch: u64,
    pub(crate) phase: Phase,
    /// Where the open epoch starts in the dirty log.
    pub(crate) epoch_start: Pos,
    /// Everything before this is staged on the SSD log.
    pub(crate) staged: Pos,
    /// Everything before this is durable.
    pub(crate) durable: Pos,
    /// Bytes ever appended to the dirty log; at the open epoch's start; durable.
    pub(crate) dirty_appended: u64,
    pub(crate) dirty_at_start: u64,
    pub(crate) dirty_durable: u64,
    pub(crate) dirty_max: u64,
    /// The epoch that was open at the last look, and the bytes that reads had brought up at the first look in it.
    pub(crate) read_up_in: (u64, u64),
    /// Nothing is written any more: see `scratch`.
    pub(crate) in_memory_only: bool,

    pub(crate) next_seq: u64,
    pub(crate) floor: u64,
    /// A flush of all keys waits to become durable with this epoch.
    pub(crate) flushing_all: Option<u64>,
    pub(crate) moved_in_epoch: usize,
    /// Which epoch's arrival was told last.
    pub(crate) arrival_told: u64,
    /// The epoch under way has no batch yet.
    pub(crate) first_batch: bool,
    /// The last batch was all of its epoch, and was handed out to be durable by itself.
    pub(crate) written_through: bool,
    /// Whether the device has writes that are durable when they end.
    pub(crate) writes_through: bool,
    /// Live bytes on the SSD when the last epoch became durable.
    pub(crate) live_estimate: u64,
    pub(crate) lacks: Lacks,
    /// Bytes ever appended to the SSD log, and at the last checkpoint.
    pub(crate) appended_total: u64,
    pub(crate) appended_at_checkpoint: u64,
    /// Emptied segments on their way to be free again.
    pub(crate) release: Release,

    /// Bytes of DRAM still to be cleaned.
    pub(crate) cleaning_owed: usize,
    /// Victims half walked, in DRAM and the middle terrace: where, and why they were taken.
    pub(crate) cleaning_memory: [Option<(u32, usize, policy::Victim)>; 2],
    /// Keys that left DRAM unused, or, where that is asked, that left it.
    pub(crate) ghost: Ghost,
    /// What was used in memory is remembered as well when it leaves.
    pub(crate) remembers_used: bool,
    /// Whose entries lie below.
    pub(crate) fingerprints: Fingerprints,
    pub(crate) cleaning_ssd: VecDeque<CleanJob>,
    pub(crate) checkpoint: Option<CheckpointJob>,
    pub(crate) checkpoint_asked: bool,
    /// See [`Lane::checkpoint_comes_first`].
    pub(crate) checkpoint_first: bool,
    /// The epoch in which one that was due was first put off.
    pub(crate) checkpoint_put_off: Option<u64>,
    pub(crate) image_segments: Vec<u32>,
    pub(crate) image_segments_max: usize,
    pub(crate) slices: u64,
    pub(crate) checkpoint_number: u64,
    pub(crate) warm: Option<WarmJob>,
    /// Segments of a warm image, written or being read back.
    pub(crate) warm_written: Vec<u32>,

    /// Entries of user keys that may have a copy below which names the same key.
    pub(crate) unverified: u64,
    /// Slots of user keys that name tombstones.
    pub(crate) tombs: u64,
    /// Somebody was refused room, and for how many bytes at most.
    pub(crate) writers_wait: bool,
    pub(crate) wanted_bytes: u64,
    /// Keys of big values that the cleaner saw to be expired; `kv` deletes them with their pieces.
    pub(crate) expired_binders: Vec<Box<[u8]>>,
    pub(crate) failed: Option<String>,
    pub(crate) now_ms: u64,
    pub(crate) stats: LaneStats,
    /// Entries staged or moved in one slice, so that a lock is held some 100 µs at most.
    pub slice_entries: usize,
    /// Bytes ever appended to the dirty log as of the last slice.
    pub(crate) paced_at: u64,
    /// What the last slice left of its pace.
    pub(crate) slice_left: u64,
    /// Whoever drives the lane waits for what steps down.
    pub hurry: bool,
}

impl<D: Snapshot> Lane<D> {
    /// An empty lane. `dir` must be empty.
    pub fn new(cfg: Config, dir: D, arena: &Arc<Arena>) -> Lane<D> {
        let mem = MemTerrace::new(
            Terrace::Dram,
            cfg.segment_bytes,
            arena.clone(),
            cfg.memory_segments,
        );
        let middle = (cfg.middle_segments > 0).then(|| {
            MemTerrace::new(
                Terrace::Middle,
                cfg.segment_bytes,
                arena.clone(),
                cfg.middle_segments,
            )
        });
        let ssd = Ssd::new(&cfg);
        let start = mem.dirty_end();
        let memory_bytes = (cfg.memory_segments * cfg.segment_bytes) as u64;
        let mut lane = Lane {
            dir,
            mem,
            middle,
            ssd,
            io: Io::default(),
            open_epoch: 1,
            phase: Phase::Idle,
            epoch_start: start,
            staged: start,
            durable: start,
            dirty_appended: 0,
            dirty_at_start: 0,
            read_up_in: (0, 0),
            dirty_durable: 0,
            dirty_max: 0,
            in_memory_only: false,
            next_seq: 1,
            floor: 0,
            flushing_all: None,
            moved_in_epoch: 0,
            first_batch: false,
            written_through: false,
            writes_through: false,
            arrival_told: 0,
            live_estimate: 0,
            lacks: Lacks::default(),
            appended_total: 0,
            appended_at_checkpoint: 0,
            release: Release::default(),
            cleaning_owed: 0,
            cleaning_memory: [None, None],
            ghost: Ghost::new(policy::ghost_keys(memory_bytes)),
            remembers_used: false,
            fingerprints: Fingerprints::default(),
            cleaning_ssd: VecDeque::new(),
            checkpoint: None,
            checkpoint_asked: false,
            checkpoint_first: false,
            checkpoint_put_off: None,
            image_segments: Vec::new(),
            image_segments_max: 1,
            slices: 0,
            checkpoint_number: 0,
            warm: None,
            warm_written: Vec::new(),
            unverified: 0,
            tombs: 0,
            writers_wait: false,
            wanted_bytes: 0,
            expired_binders: Vec::new(),
            failed: None,
            now_ms: 0,
            stats: LaneStats::default(),
            slice_entries: SLICE_ENTRIES,
            paced_at: 0,
            slice_left: 0,
            hurry: false,
            cfg,
        };
        lane.set_memory_segments(lane.cfg.memory_segments);
        lane.measure_checkpoint();
        lane
    }

    pub(crate) fn rule(&self, rule: Rule) -> bool {
        self.cfg.rule(rule)
    }

    /// The lane's idea of now, ms.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }
    /// Changes how many segments of DRAM the lane may hold.
    pub fn set_memory_segments(&mut self, segments: usize) {
        self.mem.set_quota(segments);
        let memory = (segments * self.cfg.segment_bytes) as u64;
        let ssd = self.ssd.count() as u64 * self.cfg.segment_bytes as u64;
        self.dirty_max = match self.cfg.scratch {
            true => policy::scratch_dirty_max_bytes(memory, ssd),
            false => policy::dirty_max_bytes(memory, ssd),
        }
        .min(self.cfg.dirty_max_bytes);
    }
    /// Segments of DRAM the lane may hold.
    pub fn memory_segments(&self) -> usize {
        self.mem.quota()
    }

    /// Keys of the user: not deleted, not yet noticed as expired.
    pub fn keys(&self) -> u64 {
        // An update that nobody has verified is taken for one of a key that was there: mostly it is.
        self.dir.len(0) - self.tombs - self.unverified
    }
    /// Bytes that no durable terrace has yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_appended - self.dirty_durable
    }
    /// Whether anything waits for an epoch: dirty bytes, or a flush of all keys.
    pub fn has_undurable(&self) -> bool {
        self.dirty_bytes() > 0 || self.flushing_all.is_some()
    }
    /// Epoch that an update made now belongs to.
    pub fn open_epoch(&self) -> u64 {
        self.open_epoch
    }
    /// Where the lane stands with an epoch.
    pub fn phase(&self) -> Phase {
        self.phase
    }
    /// Why the lane takes no more updates, if it does not.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }
    /// Whose entry a key's is.
    pub fn subject(&self, space: u8, key: &[u8]) -> Subject {
        Subject {
            space,
            hash: self.cfg.hasher.hash(space, key),
        }
    }

    pub(crate) fn terrace(&self, loc: Loc) -> &MemTerrace {
        match (loc.terrace(), &self.middle) {
            (Terrace::Middle, Some(middle)) => middle,
            _ => &self.mem,
        }
    }
    pub(crate) fn terrace_mut(&mut self, loc: Loc) -> &mut MemTerrace {
        match (loc.terrace(), &mut self.middle) {
            (Terrace::Middle, Some(middle)) => middle,
            _ => &mut self.mem,
        }
    }

    /// The entry that `Look::Memory` names.
    pub fn entry(&self, slot: Slot) -> Entry<'_> {
        let loc = slot.loc();
        match loc.in_memory() {
            true => self.terrace(loc).entry(loc),
            false => self.ssd.buffered(loc).expect("looked up as buffered"),
        }
    }

    /// The entry of an SSD slot whose segment is still in memory.
    pub fn buffered(&self, slot: Slot) -> Option<Entry<'_>> {
        self.ssd.buffered(slot.loc())
    }

    /// Looks `key` up. `known` says of a location that was read whether it has this
    /// key (None: it was not read). A hit warms its slot if `is_use`.
    pub fn look(
        &mut self,
        who: Subject,
        key: &[u8],
        is_use: bool,
        known: impl Fn(Loc) -> Option<bool>,
    ) -> Look {
        let (mut read, mut below) = (None, None);
        let (mem, middle, ssd) = (&self.mem, &self.middle, &self.ssd);
        let found = self.dir.update(who, |slot| {
            let loc = slot.loc();
            let here = match (loc.terrace(), middle) {
                (Terrace::Dram, _) => mem.entry(loc).key() == key,
                (Terrace::Middle, Some(middle)) => middle.entry(loc).key() == key,
                _ => {
                    // What is above may be newer (see `unverified`), so this one counts when all were seen.
                    let buffered = || Some(ssd.buffered(loc)?.key() == key);
                    match (known(loc), known(loc).or_else(buffered)) {
                        (fetched, Some(true)) => {
                            below = below.or(Some((slot, fetched.is_some())));
                        }
                        (_, Some(false)) => {}
                        (_, None) => read = read.or(Some(loc)),
                    }
                    false
                }
            };
            here.then(|| warmed(slot, is_use))
        });
        match (found, below, read) {
            (Some(slot), ..) => Look::Memory(slot),
            (None, Some((slot, fetched)), _) => {
                if is_use {
                    self.dir.swing(who, slot.loc(), warmed(slot, is_use));
                }
                match fetched {
                    true => Look::Fetched(slot),
                    false => Look::Memory(slot),
                }
            }
            (None, None, Some(loc)) => Look::Read(loc),
            (None, None, None) => Look::Absent,
        }
    }

    /// Asks for the directory's memory that a look-up of `who` will want.
    #[inline]
    pub fn prefetch_slot(&self, who: Subject) {
        self.dir.prefetch(who);
    }
    /// Asks for the entries in DRAM that may be `who`'s, once its slot is near.
    #[inline]
    pub fn prefetch_entry(&self, who: Subject) {
        self.dir.find(who, |slot| {
            if slot.loc().in_memory() {
                self.terrace(slot.loc()).prefetch(slot.loc());
            }
            false
        });
    }

    /// The epoch that makes durable what a slot names; None if it is already.
    pub fn durable_with(&self, slot: Slot) -> Option<u64> {
        let loc = slot.loc();
        match loc.terrace() {
            Terrace::Dram => match self.mem.dirty_pos(loc)? {
                pos if pos >= self.epoch_start => Some(self.open_epoch),
                pos if pos >= self.durable => self.phase.epoch(),
                _ => None,
            },
            Terrace::Middle => None,
            // Still in a buffer: perhaps written with the epoch under way.
            Terrace::Ssd => {
                self.ssd.writer(self.ssd.split(loc).0)?;
                self.phase.epoch()
            }
        }
    }

    /// The epoch under way, or that of a deletion of everything: what is absent may be so because of it.
    pub fn absent_with(&self) -> Option<u64> {
        self.flushing_all.or(self.phase.epoch())
    }

    /// What its device can, from now on: entries are read by as few bytes as that allows, instead of by blocks; and what it writes through needs no flush.
    pub fn set_device(&mut self, read_unit_bytes: usize, writes_through: bool) {
        debug_assert!(
            read_unit_bytes.is_power_of_two() && read_unit_bytes <= terrace_media::BLOCK_BYTES
        );
        self.ssd.read_unit_bytes = read_unit_bytes;
        self.writes_through = writes_through;
    }

    /// Plans the read of `loc` and holds its segment until `unpin`.
    pub fn plan_read(&mut self, loc: Loc) -> ReadPlan {
        self.stats.device_reads += 1;
        self.ssd.plan_read(loc)
    }
    /// Ends the hold of a planned read.
    pub fn unpin(&mut self, segment: u32) {
        self.ssd.unpin(segment);
    }

    /// Appends an update and points the directory at it. `prev` is the slot that
    /// a look-up in the same breath found; `reserve` must have been asked before.
    /// `new.link` is set here.
    pub fn put(
        &mut self,
        who: Subject,
        prev: Option<Slot>,
        new: &NewEntry<'_>,
    ) -> Result<Slot, Refused> {
        let mut new = *new;
        new.link = prev.map_or(Loc::NONE, |p| self.durable_copy(p));
        if prev.is_some_and(|p| self.is_unverified(p.loc())) {
            new.flags |= FLAG_UNVERIFIED;
        }
        if let Some(p) = prev.filter(|p| self.may_overwrite(p.loc(), &new)) {
            new.write(self.mem.entry_mut(p.loc()));
            let slot = Slot::new(p.loc(), policy::warmer(p.heat()));
            let swung = self.dir.swing(who, p.loc(), slot);
            debug_assert!(swung, "the slot was looked up in the same breath");
            self.count_update(&new);
            return Ok(slot);
        }
        let loc = self.mem.append(Head::Dirty, &new, 0).ok_or(Refused::Room)?;
        let len = new.len_bytes();
        self.dirty_appended += len as u64;
        let heat = prev.map_or(0, |p| policy::warmer(p.heat()));
        let slot = Slot::new(loc, heat);
        match prev {
            Some(p) => {
                self.supersede(p.loc(), who.space);
                let swung = self.dir.swing(who, p.loc(), slot);
                debug_assert!(swung, "the slot was looked up in the same breath");
            }
            None => {
                if self.dir.insert(who, slot).is_err() {
                    self.mem.kill(loc, len);
                    return Err(Refused::IndexFull);
                }
            }
        }
        if new.kind == Kind::Tombstone && who.space == 0 {
            self.tombs += 1;
        }
        self.count_update(&new);
        Ok(slot)
    }

    fn count_update(&mut self, new: &NewEntry<'_>) {
        self.stats.updates += 1;
        self.stats.updated_bytes += (new.key.len() + new.value.len()) as u64;
    }

    /// Whether `new` may be written over the entry at `loc`, the newest of its key: then a hot key leaves no dead
    /// copies in DRAM. Only a value of the open epoch, of which nothing was staged yet, and as long: an epoch that
    /// is closed is a state the data really was in, and walks go by lengths.
    fn may_overwrite(&self, loc: Loc, new: &NewEntry<'_>) -> bool {
        if loc.terrace() != Terrace::Dram || new.kind != Kind::Value {
            return false;
        }
        let open = |pos| pos >= self.epoch_start || !self.rule(Rule::OverwriteOnlyOpen);
        let old = self.mem.entry(loc);
        self.mem.dirty_pos(loc).is_some_and(open)
            && old.kind() == Kind::Value
            && old.len_bytes() == new.len_bytes()
    }

    /// The SSD copy that a slot's entry is or links to.
    pub(crate) fn durable_copy(&self, slot: Slot) -> Loc {
        match slot.loc().in_memory() {
            true => self.terrace(slot.loc()).entry(slot.loc()).link(),
            false => slot.loc(),
        }
    }

    /// The memory entry at `loc` has a successor. If its epoch is closed and not
    /// yet staged, the epoch's flush still writes it: an epoch is a state the
    /// data really was in, so that what changed together stays together.
    pub(crate) fn supersede(&mut self, loc: Loc, space: u8) {
        if !loc.in_memory() {
            return;
        }
        let keep =
            !self.cfg.scratch && self.unstaged_closed(loc) && self.rule(Rule::KeepSuperseded);
        let terrace = self.terrace_mut(loc);
        if keep {
            entry::add_flags(terrace.entry_mut(loc), FLAG_KEEP);
        }
        let old = terrace.entry(loc);
        let (len, tomb) = (old.len_bytes(), old.kind() == Kind::Tombstone);
        terrace.kill(loc, len);
        if tomb && space == 0 {
            self.tombs -= 1;
        }
    }

    fn unstaged_closed(&self, loc: Loc) -> bool {
        loc.terrace() == Terrace::Dram
            && self
                .mem
                .dirty_pos(loc)
                .is_some_and(|pos| pos >= self.staged && pos < self.epoch_start)
    }

    /// Deletes what `prev` names. `reserve_as_much` must have been asked before.
    pub fn delete(&mut self, who: Subject, prev: Slot, key: &[u8]) -> Result<(), Refused> {
        let loc = prev.loc();
        let never_left = loc.terrace() == Terrace::Dram
            && !self.is_unverified(loc)
            && self.staged == self.epoch_start
            && self.mem.entry(loc).link().is_none()
            && self
                .mem
                .dirty_pos(loc)
                .is_some_and(|pos| pos >= self.epoch_start);
        if never_left {
            self.supersede(loc, who.space);
            let removed = self.dir.remove(who, loc);
            debug_assert!(removed);
            self.stats.updates += 1;
            return Ok(());
        }
        let tombstone = NewEntry {
            kind: Kind::Tombstone,
            space: who.space,
            flags: 0,
            link: Loc::NONE,
            expiry_ms: None,
            version: None,
            key,
            value: &[],
        };
        self.put(who, Some(prev), &tombstone).map(|_| ())
    }

    /// Whether `flush_all` may be called: no epoch is under way.
    pub fn can_flush_all(&self) -> bool {
        self.phase == Phase::Idle && self.staged == self.epoch_start
    }

    /// Deletes everything. Refused with `Room` while an epoch is under way.
    pub fn flush_all(&mut self) -> Result<(), Refused> {
        if !self.can_flush_all() {
            return Err(Refused::Room);
        }
        self.checkpoint_restart();
        self.dir.clear();
        self.mem.clear();
        if let Some(middle) = &mut self.middle {
            middle.clear();
        }
        self.cleaning_memory = [None, None];
        self.warm_drop();
        self.ssd.reset_live();
        self.tombs = 0;
        self.unverified = 0;
        self.epoch_start = self.mem.dirty_end();
        self.staged = self.epoch_start;
        self.durable = self.epoch_start;
        self.dirty_appended = self.dirty_durable;
        self.dirty_at_start = self.dirty_durable;
        self.flushing_all = Some(self.open_epoch);
        self.stats.updates += 1;
        Ok(())
    }
}

fn warmed(slot: Slot, is_use: bool) -> Slot {
    match is_use {
        true => slot.with_heat(policy::warmer(slot.heat())),
        false => slot,
    }
}

/// What `slice_entries` is unless a test wants finer steps.
const SLICE_ENTRIES: usize = 256;

/// Keys of expired big values that are remembered at once.
const EXPIRED_BINDERS_MAX: usize = 64;

impl<D> Lane<D> {
    /// Remembers the key of a big value whose time is up; beyond a bound it is met again later.
    pub fn note_expired_binder(&mut self, key: &[u8]) {
        if self.expired_binders.len() < EXPIRED_BINDERS_MAX {
            self.expired_binders.push(key.into());
        }
    }
    /// Keys of big values that the cleaner saw to be expired.
    pub fn take_expired_binders(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.expired_binders)
    }
}
