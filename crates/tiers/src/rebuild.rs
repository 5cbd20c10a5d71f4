//! Building a lane anew from what a survey found: by replay behind a checkpoint,
//! or by a scan of the whole log.
//!
//! What belongs to an epoch that does not count is wiped first, durably, so that
//! it can never be completed; and a root with a new generation is written, so
//! that bytes of this start can never be taken for an earlier one's.
//! Promises: bounded memory; the list of what was damaged is precise.

use crate::checkpoint::PIECE_SLOTS;
use crate::lane::Lane;
use crate::orphans::Orphans;
use crate::root::Root;
use crate::ssd::State;
use crate::survey::{BatchAt, Damage, Survey};
use crate::walk::Record;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use terrace_log::addr;
use terrace_log::frame;
use terrace_log::{KeyHash, Kind, Loc, Order, Slot, Snapshot, Subject, Terrace};
use terrace_media::{
    BLOCK_BYTES, Buf, Disk, MediaError, flush_blocking, read_blocking, write_blocking,
};

/// Bytes of DRAM a key takes in the table of a full scan, about.
const SCAN_ENTRY_BYTES: u64 = 70;
/// No entry is shorter, bytes.
const ENTRY_MIN_BYTES: u32 = 32;
/// Least DRAM for that table, bytes.
const SCAN_MIN_BYTES: u64 = 1 << 20;

/// Newest version of each key of one space, by its hash; a place is a tombstone's if marked so.
type Table = HashMap<KeyHash, (u64, Loc), BuildHasherDefault<Keyed>>;

/// Marks the place of a tombstone with a terrace that no place on the medium has.
fn tombstone(at: Loc) -> Loc {
    Loc::new(Terrace::Dram, at.class(), at.unit())
}

/// The key is a keyed hash already: its bits serve as they are.
#[derive(Default)]
struct Keyed(u64);

impl std::hash::Hasher for Keyed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }
    fn write_u64(&mut self, bits: u64) {
        self.0 = self.0.rotate_left(32) ^ bits;
    }
}

/// Log behind the checkpoint, bytes. The next start reads it again, with what this life appends: the bound on that is on both.
fn replayed_bytes(s: &Survey) -> u64 {
    let from_seq = s.root.map_or(0, |r| r.replay_from_seq);
    let behind = s.batches.iter().filter(|b| b.header.seq >= from_seq);
    behind.map(|b| u64::from(b.header.len_bytes)).sum()
}

impl<D: Snapshot> Lane<D> {
    /// Builds the directory up to epoch `valid`; younger batches are wiped first. The
    /// log is read by as many threads as there are queues.
    /// `scan_bytes`: DRAM that a full scan's table may take. Returns the damage found.
    pub fn rebuild(
        &mut self,
        disks: &mut [Box<dyn Disk>],
        mut s: Survey,
        valid: u64,
        scan_bytes: u64,
    ) -> Result<Vec<Damage>, MediaError> {
        let disk = &mut *disks[0];
        self.wipe(disk, &mut s, valid)?;
        self.tidy(disk, &s, valid)?;
        self.new_root(disk, &mut s)?;
        Ok(self.rebuild_without_writing(disks, s, valid, scan_bytes))
    }

    /// The same for a look from outside: younger batches are passed over, not wiped.
    pub fn rebuild_without_writing(
        &mut self,
        disks: &mut [Box<dyn Disk>],
        mut s: Survey,
        valid: u64,
        scan_bytes: u64,
    ) -> Vec<Damage> {
        s.batches.retain(|b| b.header.epoch <= valid);
        let gaps = std::mem::take(&mut s.gaps);
        s.damage.extend(
            gaps.into_iter()
                .filter(|(epoch, _)| *epoch <= valid)
                .map(|(_, d)| d),
        );
        let floor = s.batches.iter().map(|b| b.header.floor).max().unwrap_or(0);
        self.floor = floor.max(s.root.map_or(0, |r| r.floor));
        self.settle_segments(&s);
        match s.root {
            Some(root) => {
                self.note_missing(&mut s, &root);
                self.replay(disks, &mut s, &root);
            }
            None => self.scan_all(disks, &mut s, scan_bytes),
        }
        self.set_unknown_aside(&s.damage);
        let newest = s.batches.last().map_or(0, |b| b.header.seq);
        self.next_seq = newest.max(s.root.map_or(0, |r| r.next_seq - 1)) + 1;
        self.open_epoch = valid + 1;
        self.now_ms = self.now_ms.max(s.clock_ms);
        self.count_live(&mut s);
        self.believe_told(&s);
        self.keep_what_is_named(&mut s);
        if s.root.is_none() {
            self.excuse_torn_reuse(&mut s.damage);
        }
        self.live_estimate = self.ssd.live_bytes();
        self.measure_checkpoint();
        self.appended_total = replayed_bytes(&s);
        self.checkpoint_number = s.root.map_or(s.newest_number, |r| r.number);
        self.checkpoint_first = s.damage.iter().any(|d| d.unknown);
        self.checkpoint_asked = s.root.is_none() || self.checkpoint_first;
        self.warm_or_release(&s);
        s.damage
    }

    /// Makes batches of epochs after `valid` unreadable before anything else is written.
    fn wipe(&mut self, disk: &mut dyn Disk, s: &mut Survey, valid: u64) -> Result<(), MediaError> {
        let all = s.batches.iter().chain(&s.losers);
        let drop: Vec<BatchAt> = all.filter(|b| b.header.epoch > valid).copied().collect();
        if drop.is_empty() {
            return Ok(());
        }
        let mut blocks = HashSet::new();
        for b in &drop {
            let block = b.range().0;
            if blocks.insert((b.segment, block)) {
                let offset = self.ssd.device_offset(b.segment) + block as u64;
                write_blocking(disk, offset, Buf::zeroed(BLOCK_BYTES))?;
            }
        }
        flush_blocking(disk)
    }

    /// A write that was cut off may have left out zeros between a batch and the next block,
    /// which no checksum covers. Only the youngest epoch can be so: without its flush there is no next one.
    fn tidy(&self, disk: &mut dyn Disk, s: &Survey, valid: u64) -> Result<(), MediaError> {
        let mut torn = false;
        for b in s.batches.iter().filter(|b| b.header.epoch == valid) {
            let end = b.start + b.header.len_bytes as usize;
            let within = end % BLOCK_BYTES;
            if within == 0 {
                continue;
            }
            let offset = self.ssd.device_offset(b.segment) + (end - within) as u64;
            // One that cannot be read is the damage of whoever reads it.
            let Ok(mut block) = read_blocking(disk, offset, BLOCK_BYTES) else {
                continue;
            };
            if block[within..].iter().any(|byte| *byte != 0) {
                block[within..].fill(0);
                write_blocking(disk, offset, block)?;
                torn = true;
            }
        }
        match torn {
            true => flush_blocking(disk),
            false => Ok(()),
        }
    }

    /// Writes the root again, in the other block, with the generation that this
    /// start begins at: the next start begins above it even if every header that
    /// this one writes is lost. It is a clean stop's no longer: what this start takes may be lost in a crash but for some
    /// segment far down the free list, which only who reads all headers finds and wipes; left there, it would rise at a later one.
    fn new_root(&mut self, disk: &mut dyn Disk, s: &mut Survey) -> Result<(), MediaError> {
        let Some(root) = &mut s.root else {
            // Were one read again at a later start, it would outrank what comes now.
            for &offset in &s.lost_roots {
                write_blocking(disk, offset, Buf::zeroed(BLOCK_BYTES))?;
            }
            // A process that was killed may have left its last epoch in the device's cache alone: it counts, so it must not go with the power.
            return flush_blocking(disk);
        };
        root.number += 1;
        root.generation = self.ssd.generation;
        root.clean = false;
        let block = root.write(self.cfg.pool, self.cfg.lane);
        let number = root.number;
        write_blocking(disk, self.root_offset(number), block)?;
        flush_blocking(disk)
    }

    /// Seqs have no gaps: one that is missing behind the checkpoint is a batch that was lost.
    fn note_missing(&self, s: &mut Survey, root: &Root) {
        let mut expected = root.replay_from_seq;
        let mut missing = Vec::new();
        for b in s
            .batches
            .iter()
            .filter(|b| b.header.seq >= root.replay_from_seq)
        {
            if b.header.seq > expected {
                let what = format!(
                    "batches {expected} to {} are missing before it",
                    b.header.seq - 1
                );
                missing.push(self.damage(b.segment, b.start, b.start, &what));
            }
            expected = b.header.seq + 1;
        }
        if expected < root.next_seq {
            let what = format!("batches {expected} to {} are missing", root.next_seq - 1);
            missing.push(self.damage(0, 0, 0, &what));
        }
        s.damage.extend(missing);
    }

    /// Gives every segment its state, before entries are counted in.
    fn settle_segments(&mut self, s: &Survey) {
        // Of each segment's valid batches: the first seq, the last epoch, the end.
        let mut first: HashMap<u32, (u64, u64, u32)> = HashMap::new();
        for b in &s.batches {
            let e = first
                .entry(b.segment)
                .or_insert((b.header.seq, b.header.epoch, 0));
            e.1 = e.1.max(b.header.epoch);
            e.2 = e.2.max(b.range().1 as u32);
        }
        let scanned = s.root.is_none();
        let taken: HashSet<u32> = s.taken.iter().copied().collect();
        for id in 0..self.ssd.count() as u32 {
            let touched = first.get(&id).copied();
            let mut seg = self.ssd.segment_mut(id);
            if seg.state != State::Bad {
                seg.state = State::Sealed;
            }
            if scanned || touched.is_some() {
                seg.total_class_bytes = 0;
                seg.tomb_bytes = 0;
                seg.first_seq = touched.map_or(u64::MAX, |t| t.0);
                seg.last_epoch = touched.map_or(0, |t| t.1);
            }
            if scanned || taken.contains(&id) {
                seg.used_bytes = 0;
            }
            if let Some((_, _, end)) = touched {
                seg.used_bytes = seg.used_bytes.max(end);
            }
        }
        let mut free = s.free.clone();
        if scanned {
            free = (0..self.ssd.count() as u32)
                .filter(|id| !first.contains_key(id))
                .collect();
        } else {
            // The image's own segments were taken from this list after it was saved.
            free.retain(|id| !first.contains_key(id) && !s.image_segments.contains(id));
            // Taken for an epoch that does not count, which was wiped: they are the next to be taken again.
            for &id in s.taken.iter().rev() {
                if !first.contains_key(&id) && !s.image_segments.contains(&id) {
                    free.push_front(id);
                }
            }
            self.image_segments = s.image_segments.clone();
            for &id in &s.image_segments {
                self.ssd.segment_mut(id).state = State::Image;
            }
        }
        free.retain(|&id| self.ssd.segment(id).state != State::Bad);
        self.ssd.set_free(free);
    }

    /// Counts an entry among those its segment has; tombstones are the caller's.
    fn count_in(&mut self, segment: u32, r: &Record) {
        if r.kind != Kind::Tombstone {
            let bytes = addr::class_bytes(addr::class_of(r.len)) as u32;
            self.ssd.segment_mut(segment).total_class_bytes += bytes;
        }
    }

    /// Applies the log behind a checkpoint: locations are compared, no key is.
    fn replay(&mut self, disks: &mut [Box<dyn Disk>], s: &mut Survey, root: &Root) {
        for (order, _, image) in &s.pieces {
            if let Err(what) = self.dir.load(image) {
                tracing::error!(
                    lane = self.cfg.lane,
                    ?order,
                    what,
                    "a piece of the checkpoint is damaged: its keys are found only as far as the log behind it names them; `terrace pool check` tells more"
                );
                s.damage.push(self.damage(root.first, 0, 0, &what));
            }
        }
        let starts: Vec<(Order, u64)> = s.pieces.iter().map(|p| (p.0, p.1)).collect();
        s.pieces = Vec::new();
        let mut floor = root.floor;
        let mut told = Vec::new();
        let mut orphans = Orphans::default();
        let apply = |lane: &mut Self, b: &BatchAt, r: &Record| {
            lane.count_in(b.segment, r);
            if r.kind == Kind::Tombstone {
                lane.ssd.segment_mut(b.segment).tomb_bytes += r.len as u32;
            }
            if b.header.floor > floor {
                floor = b.header.floor;
                lane.dir.clear();
            }
            if r.kind == Kind::Freed {
                told.push((lane.ssd.split(r.link).0, r.version as u32));
            }
            lane.replay_entry(&starts, b, r, &mut orphans);
        };
        let hurt = self.walk(disks, s, apply);
        s.note(hurt);
        s.told = told;
        // A flush of everything may have come with a batch that has no entry.
        if self.floor > floor {
            self.dir.clear();
        }
        self.drop_older(&mut *disks[0], orphans);
    }

    fn replay_entry(
        &mut self,
        starts: &[(Order, u64)],
        b: &BatchAt,
        r: &Record,
        orphans: &mut Orphans,
    ) {
        let who = r.who;
        let order = self.dir.order(who);
        let piece = starts.partition_point(|(start, _)| *start <= order);
        let since = piece.checked_sub(1).map_or(0, |at| starts[at].1);
        if frame::version(b.header.seq, r.offset) < since || b.header.seq < self.floor {
            return;
        }
        let loc = self.ssd.loc(b.segment, r.offset, r.len);
        let replaced = r.link;
        match r.kind {
            Kind::Tombstone => {
                let removed = self.dir.remove(who, replaced);
                if !removed && !replaced.is_none() {
                    orphans.add(&self.dir, who);
                }
            }
            Kind::Value | Kind::Binder => {
                let swung = !replaced.is_none() && self.dir.swing(who, replaced, Slot::new(loc, 0));
                if !swung && !replaced.is_none() {
                    orphans.add(&self.dir, who);
                }
                orphans.met(loc);
                if !swung && self.dir.insert(who, Slot::new(loc, 0)).is_err() {
                    tracing::error!(
                        lane = self.cfg.lane,
                        "the index has no place for a key while the log is replayed, so it is missing: stop at once, and have the next start read the whole log (`terrace pool drop-checkpoints DIR`)"
                    );
                }
            }
            Kind::Freed => {}
        }
    }

    /// Builds the directory from every segment: the newest version of each key
    /// wins. The table of versions is made in parts that fit into `scan_bytes`.
    ///
    /// Of tombstones only those that win are counted. Segments that were free are in
    /// use again after a scan; with every tombstone in them counted, none could be
    /// freed without being read and moved, for which there may be no free segment.
    fn scan_all(&mut self, disks: &mut [Box<dyn Disk>], s: &mut Survey, scan_bytes: u64) {
        let count =
            |b: &BatchAt| u64::from(b.header.count.min(b.header.len_bytes / ENTRY_MIN_BYTES));
        let entries: u64 = s.batches.iter().map(count).sum();
        let parts = (entries * SCAN_ENTRY_BYTES)
            .div_ceil(scan_bytes.max(SCAN_MIN_BYTES))
            .max(1);
        for part in 0..parts {
            let mut tables = [Table::default(), Table::default()];
            tables[0].reserve((entries / parts) as usize);
            let look = |lane: &mut Self, b: &BatchAt, r: &Record| {
                if part == 0 {
                    lane.count_in(b.segment, r);
                }
                let who = r.who;
                // Of what was free, a scan reads what is left: nothing of it is the newest.
                if r.kind == Kind::Freed {
                    return;
                }
                if b.header.seq < lane.floor || who.hash.place.rotate_left(17) % parts != part {
                    return;
                }
                let at = lane.ssd.loc(b.segment, r.offset, r.len);
                let loc = match r.kind {
                    Kind::Tombstone => tombstone(at),
                    _ => at,
                };
                // The directory follows at once: this thread waits for the readers anyway.
                match tables[usize::from(who.space & 1)].entry(who.hash) {
                    Vacant(none) => {
                        none.insert((r.version, loc));
                        lane.point(who, Loc::NONE, loc);
                    }
                    // A tombstone that was moved has the version of its older copies.
                    Occupied(mut newest) if r.version >= newest.get().0 => {
                        let (_, from) = newest.insert((r.version, loc));
                        lane.point(who, from, loc);
                    }
                    Occupied(_) => {}
                }
            };
            let hurt = self.walk(disks, s, look);
            if part == 0 {
                s.note(hurt);
            }
        }
    }

    /// Makes the directory name `to` instead of `from`; one that is not on the medium is the
    /// mark of a tombstone, which is counted, or nothing at all.
    fn point(&mut self, who: Subject, from: Loc, to: Loc) {
        self.count_tombstone(from, |all, one| all - one);
        self.count_tombstone(to, |all, one| all + one);
        let full = match (from.in_memory(), to.in_memory()) {
            (true, true) => false,
            (true, false) => self.dir.insert(who, Slot::new(to, 0)).is_err(),
            (false, true) => !self.dir.remove(who, from),
            (false, false) => !self.dir.swing(who, from, Slot::new(to, 0)),
        };
        if full {
            tracing::error!(
                lane = self.cfg.lane,
                "the index has no place for a key while the log is scanned, so it is missing: stop, and make a larger pool for it"
            );
        }
    }

    fn count_tombstone(&mut self, loc: Loc, change: impl Fn(u32, u32) -> u32) {
        if !loc.is_none() && loc.in_memory() {
            let (segment, _) = self.ssd.split(loc);
            let mut seg = self.ssd.segment_mut(segment);
            seg.tomb_bytes = change(seg.tomb_bytes, addr::class_bytes(loc.class()) as u32);
        }
    }

    /// Counts live bytes from the directory. Slots that name no place for entries go: whoever looked there would find nothing to read.
    fn count_live(&mut self, s: &mut Survey) {
        self.ssd.reset_live();
        let ssd = &mut self.ssd;
        let mut astray = 0u64;
        self.dir.each(|slot| match ssd.is_for_entries(slot.loc()) {
            true => ssd.add_live(slot.loc()),
            false => astray += 1,
        });
        if astray > 0 {
            let what = format!("{astray} slots point outside the lane, and were dropped");
            s.damage.push(self.damage(0, 0, 0, &what));
            self.drop_astray(s);
        }
    }

    /// Makes the directory anew without the slots that name no place for entries.
    fn drop_astray(&mut self, s: &mut Survey) {
        let (mut pieces, mut from) = (Vec::new(), Some(Order::default()));
        while let Some(at) = from {
            let mut piece = Vec::new();
            let ssd = &self.ssd;
            let kept = |slot: Slot| ssd.is_for_entries(slot.loc()).then_some(slot);
            from = self.dir.save(at, PIECE_SLOTS, kept, &mut piece);
            pieces.push(piece);
        }
        self.dir.clear();
        for piece in pieces {
            if let Err(what) = self.dir.load(&piece) {
                s.damage.push(self.damage(0, 0, 0, &what));
            }
        }
    }

    /// A segment that the directory names is not free, whatever its damaged header makes of it: written anew, it would take along what
    /// is live in it.
    fn keep_what_is_named(&mut self, s: &mut Survey) {
        for id in self.ssd.set_aside_named_free() {
            let what = "entries in it are named, and its header is lost";
            s.damage.push(self.damage(id, 0, 0, what));
        }
    }

    /// Without a checkpoint it is not known which segments were free. One that was
    /// being written anew when the power went shows its old batches with holes;
    /// nothing in it is live, and that is what tells it from damage. It is free again, unless a
    /// tombstone in it is the newest that is known of its key.
    fn excuse_torn_reuse(&mut self, damage: &mut Vec<Damage>) {
        damage.retain(|d| {
            if d.unknown {
                return true;
            }
            let s = self.ssd.segment(d.segment);
            let live = s.live_class_bytes > 0;
            let unused = s.state == State::Sealed && !live && s.tomb_bytes == 0;
            if unused && s.last_epoch < self.settled_epoch() {
                self.ssd.release(d.segment);
            }
            if !live {
                tracing::warn!(
                    lane = d.lane,
                    segment = d.segment,
                    what = d.what,
                    "a segment looks damaged, but nothing in it is in use any more: no data is lost"
                );
            }
            live
        });
    }

    /// After a clean stop the warm image is read back; else its segments are no use any more.
    fn warm_or_release(&mut self, s: &Survey) {
        let Some(first) = s.root.and_then(|r| r.warm.checked_sub(1)) else {
            return;
        };
        // They are in no free list, and hold nothing of the log.
        self.warm_written = (0..self.ssd.count() as u32)
            .filter(|&id| {
                let seg = self.ssd.segment(id);
                let is_log = seg.first_seq < u64::MAX || seg.live_class_bytes > 0;
                seg.state == State::Sealed && !is_log
            })
            .collect();
        for id in self.warm_written.clone() {
            self.ssd.segment_mut(id).state = State::Image;
        }
        let is_there = (first as usize) < self.ssd.count();
        match is_there && s.clean && s.max_epoch <= s.durable_epoch {
            true => self.start_warming(first),
            false => self.warm_drop(),
        }
    }
}
