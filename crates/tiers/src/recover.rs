//! Recovery of a lane: from a checkpoint and the log behind it, or from the log alone.
//!
//! `survey` finds out which batches there are and up to which epoch they go;
//! the pool compares the lanes and says which epoch is the last valid one;
//! `rebuild` discards what is younger, builds the directory and counts anew.
//!
//! An epoch is valid when every lane has all of its batches, the last one with
//! `END`. Only the youngest epoch on the medium can be invalid, since an epoch
//! is begun when the one before is durable; what belongs to an invalid epoch is
//! wiped before anything new is written, so that it can never be completed.
//!
//! Promises: bounded memory; a byte that does not check is never believed; the
//! list of what was damaged is precise. Never: writes before `rebuild`.

use crate::checkpoint::{IMAGE_MAGIC, PIECES_END, Root, SEGMENT_RECORD_BYTES};
use crate::lane::{Lane, Rule};
use crate::ssd::State;
use std::collections::{HashMap, HashSet, VecDeque};
use terrace_log::entry::Entry;
use terrace_log::frame::{
    self, BATCH_END, BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES, SegmentHeader, Use,
};
use terrace_log::scan::{self, Found, Item};
use terrace_log::{Kind, KeyHash, Loc, Order, Slot, Snapshot, Subject};
use terrace_media::{BLOCK_BYTES, Buf, Disk, MediaError, flush_blocking, read_blocking, write_blocking};

/// Segment headers probed together behind the checkpoint's free list.
const PROBE_WINDOW: usize = 64;
/// Bytes of DRAM a key takes in the table of a full scan, about.
const SCAN_ENTRY_BYTES: u64 = 64;
/// Generations skipped after a crash, for segments whose headers were lost.
const GENERATION_GAP: u32 = 1024;

/// A batch on the medium.
#[derive(Debug, Clone, Copy)]
pub struct BatchAt {
    /// Its segment.
    pub segment: u32,
    /// Its start in the segment, bytes.
    pub start: usize,
    /// Its header.
    pub header: BatchHeader,
}

/// Bytes that should hold entries and do not check.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Lane.
    pub lane: u16,
    /// Segment in the lane.
    pub segment: u32,
    /// First byte in the segment.
    pub from_bytes: usize,
    /// Byte after the last one.
    pub to_bytes: usize,
    /// What is wrong.
    pub what: String,
}

/// What `survey` found.
pub struct Survey {
    root: Option<Root>,
    pieces: Vec<(Order, u64, Vec<u8>)>,
    free: VecDeque<u32>,
    warm: Option<u32>,
    image_segments: Vec<u32>,
    batches: Vec<BatchAt>,
    whole: HashMap<u32, u32>,
    /// Highest epoch seen.
    pub max_epoch: u64,
    /// Epochs up to this are known to be durable.
    pub durable_epoch: u64,
    /// Whether this lane has all batches of `max_epoch`.
    pub complete: bool,
    /// Latest clock seen, ms.
    pub clock_ms: u64,
    /// What did not check.
    pub damage: Vec<Damage>,
    /// Whether the last stop was clean.
    pub clean: bool,
}

impl Survey {
    /// Whether a checkpoint was found; without, the whole log is scanned.
    pub fn from_checkpoint(&self) -> bool {
        self.root.is_some()
    }
}

impl<D: Snapshot> Lane<D> {
    /// Reads roots, checkpoint and the batches behind it.
    pub fn survey(&mut self, disk: &mut dyn Disk) -> Result<Survey, MediaError> {
        let mut s = Survey {
            root: None,
            pieces: Vec::new(),
            free: VecDeque::new(),
            warm: None,
            image_segments: Vec::new(),
            batches: Vec::new(),
            whole: HashMap::new(),
            max_epoch: 0,
            durable_epoch: 0,
            complete: true,
            clock_ms: 0,
            damage: Vec::new(),
            clean: false,
        };
        let mut replay: Vec<u32> = (0..self.ssd.count() as u32).collect();
        for root in self.read_roots(disk)? {
            match self.read_checkpoint(disk, &root, &mut s) {
                Ok(heads) => {
                    s.durable_epoch = root.durable_epoch;
                    s.clock_ms = root.clock_ms;
                    s.clean = root.clean;
                    s.warm = root.warm.checked_sub(1);
                    s.root = Some(root);
                    self.ssd.generation = root.generation;
                    replay = heads;
                    break;
                }
                Err(what) => {
                    tracing::warn!(lane = self.cfg.lane, number = root.number, what, "a checkpoint cannot be read");
                    s.pieces.clear();
                    s.free.clear();
                    s.image_segments.clear();
                }
            }
        }
        match s.root {
            Some(_) => self.probe_free(disk, &mut s, &mut replay)?,
            None => self.probe_all(disk, &mut s)?,
        }
        self.find_batches(disk, &mut s, &replay)?;
        self.judge(disk, &mut s)?;
        Ok(s)
    }

    /// The two root blocks, the newer one first.
    fn read_roots(&self, disk: &mut dyn Disk) -> Result<Vec<Root>, MediaError> {
        let blocks = read_blocking(disk, self.cfg.root_base, 2 * BLOCK_BYTES)?;
        let (a, b) = blocks.split_at(BLOCK_BYTES);
        let read = |block: &[u8]| Root::read(block, self.cfg.pool, self.cfg.lane);
        let mut roots: Vec<Root> = [read(a), read(b)].into_iter().flatten().collect();
        roots.sort_by_key(|r| std::cmp::Reverse(r.number));
        // The older one only counts while its image is whole, which its checksum tells.
        Ok(roots)
    }

    /// Reads a checkpoint's image; returns the heads that were open.
    fn read_checkpoint(&mut self, disk: &mut dyn Disk, root: &Root, s: &mut Survey) -> Result<Vec<u32>, String> {
        let image = self.read_chain(disk, root.first, root.total_bytes, s)?;
        if crc32c::crc32c(&image) != root.crc {
            return Err("the image does not match its checksum".into());
        }
        let heads = self.read_image_header(&image, s)?;
        Ok(heads)
    }

    fn read_chain(&self, disk: &mut dyn Disk, first: u32, total: u64, s: &mut Survey) -> Result<Vec<u8>, String> {
        let lane_bytes = self.ssd.count() as u64 * self.cfg.segment_bytes as u64;
        if total > lane_bytes {
            return Err(format!("the image claims {total} bytes"));
        }
        let mut image = Vec::with_capacity(total as usize);
        let mut next = first + 1;
        while (image.len() as u64) < total {
            let id = next.wrapping_sub(1);
            if next == 0 || id as usize >= self.ssd.count() || s.image_segments.contains(&id) {
                return Err(format!("the chain breaks after {} bytes", image.len()));
            }
            let part = read_blocking(disk, self.ssd.device_offset(id), self.cfg.segment_bytes)
                .map_err(|e| e.to_string())?;
            let header = SegmentHeader::read(&part, self.cfg.pool, self.cfg.lane, id)
                .filter(|h| h.used_for == Use::Checkpoint)
                .ok_or(format!("segment {id} is no part of it"))?;
            let end = SEGMENT_HEADER_BYTES + header.len_bytes as usize;
            let payload = part.get(SEGMENT_HEADER_BYTES..end).ok_or("a part is too long")?;
            image.extend_from_slice(payload);
            s.image_segments.push(id);
            next = header.next;
        }
        Ok(image)
    }

    fn read_image_header(&mut self, image: &[u8], s: &mut Survey) -> Result<Vec<u32>, String> {
        let mut r = Reader { image, at: 0 };
        if r.u32()? != IMAGE_MAGIC || r.u32()? as usize != self.ssd.count() {
            return Err("the image is of another pool".into());
        }
        let (free, heads) = (r.u32()? as usize, r.u32()? as usize);
        let ids = |n: usize, r: &mut Reader<'_>| -> Result<Vec<u32>, String> {
            (0..n)
                .map(|_| {
                    let id = r.u32()?;
                    let fits = (id as usize) < self.ssd.count();
                    fits.then_some(id).ok_or("a segment number is too large".to_string())
                })
                .collect()
        };
        let free: Vec<u32> = ids(free, &mut r)?;
        let heads: Vec<u32> = ids(heads, &mut r)?;
        debug_assert_eq!(SEGMENT_RECORD_BYTES, 44);
        for id in 0..self.ssd.count() as u32 {
            let seg = self.ssd.segment_mut(id);
            seg.generation = r.u32()?;
            seg.state = if r.u32()? == 0 { State::Sealed } else { State::Bad };
            seg.used_bytes = r.u32()?;
            seg.total_class_bytes = r.u32()?;
            seg.tomb_bytes = r.u32()?;
            seg.first_seq = r.u64()?;
            seg.stale_seq = r.u64()?;
            seg.all_expired_at_ms = r.u64()?;
        }
        s.free = free.into();
        loop {
            let len = r.u32()?;
            if len == PIECES_END {
                return Ok(heads);
            }
            let order = Order {
                shard: r.u32()?,
                hash: r.u64()?,
            };
            let version = r.u64()?;
            s.pieces.push((order, version, r.bytes(len as usize)?.to_vec()));
        }
    }

    fn read_header(&self, disk: &mut dyn Disk, id: u32) -> Result<Option<SegmentHeader>, MediaError> {
        let block = read_blocking(disk, self.ssd.device_offset(id), BLOCK_BYTES)?;
        Ok(SegmentHeader::read(&block, self.cfg.pool, self.cfg.lane, id))
    }

    /// Segments are taken from the front of the free list: those written since the
    /// checkpoint are among its first. Ends after a window without any.
    fn probe_free(&mut self, disk: &mut dyn Disk, s: &mut Survey, replay: &mut Vec<u32>) -> Result<(), MediaError> {
        let free = std::mem::take(&mut s.free);
        let mut untouched = 0;
        for id in free {
            let known = self.ssd.segment(id).generation;
            let newer = match untouched < PROBE_WINDOW {
                true => self.read_header(disk, id)?.filter(|h| h.life.generation > known),
                false => None,
            };
            match newer {
                Some(header) => {
                    untouched = 0;
                    self.ssd.generation = self.ssd.generation.max(header.life.generation);
                    let seg = self.ssd.segment_mut(id);
                    seg.generation = header.life.generation;
                    if header.used_for == Use::Log {
                        replay.push(id);
                    } else {
                        s.free.push_back(id);
                    }
                }
                None => {
                    untouched += 1;
                    s.free.push_back(id);
                }
            }
        }
        self.ssd.generation += GENERATION_GAP;
        Ok(())
    }

    fn probe_all(&mut self, disk: &mut dyn Disk, s: &mut Survey) -> Result<(), MediaError> {
        let mut highest = 0;
        for id in 0..self.ssd.count() as u32 {
            if let Some(header) = self.read_header(disk, id)? {
                highest = highest.max(header.life.generation);
                self.ssd.segment_mut(id).generation = header.life.generation;
            }
        }
        self.ssd.generation = highest + GENERATION_GAP;
        s.free.clear();
        Ok(())
    }

    /// Reads segments whole and lists their batches, each seq once (its highest attempt).
    fn find_batches(&mut self, disk: &mut dyn Disk, s: &mut Survey, segments: &[u32]) -> Result<(), MediaError> {
        let mut of_seq: HashMap<u64, BatchAt> = HashMap::new();
        for &id in segments {
            let image = match read_blocking(disk, self.ssd.device_offset(id), self.cfg.segment_bytes) {
                Ok(image) => image,
                Err(e) => {
                    s.damage.push(self.damage(id, 0, self.cfg.segment_bytes, &e.to_string()));
                    continue;
                }
            };
            let header = SegmentHeader::read(&image, self.cfg.pool, self.cfg.lane, id);
            if !header.is_some_and(|h| h.used_for == Use::Log) {
                continue;
            }
            let life = self.ssd.life(id);
            for found in scan::batches(&image, &life) {
                match found {
                    Found::Damage(from, to) => {
                        s.damage.push(self.damage(id, from, to, "no batch header that checks"));
                    }
                    Found::Batch(start, header) => {
                        let at = BatchAt {
                            segment: id,
                            start,
                            header,
                        };
                        let end = (start + header.len_bytes as usize).next_multiple_of(BLOCK_BYTES);
                        s.whole.insert(id, end as u32);
                        let best = of_seq.entry(header.seq).or_insert(at);
                        if header.attempt > best.header.attempt {
                            *best = at;
                        }
                    }
                }
            }
        }
        s.batches = of_seq.into_values().collect();
        s.batches.sort_by_key(|b| b.header.seq);
        Ok(())
    }

    fn damage(&self, segment: u32, from_bytes: usize, to_bytes: usize, what: &str) -> Damage {
        Damage {
            lane: self.cfg.lane,
            segment,
            from_bytes,
            to_bytes,
            what: what.to_string(),
        }
    }

    /// Finds the youngest epoch and whether this lane has all of it.
    fn judge(&mut self, disk: &mut dyn Disk, s: &mut Survey) -> Result<(), MediaError> {
        s.max_epoch = s.batches.iter().map(|b| b.header.epoch).max().unwrap_or(0).max(s.durable_epoch);
        s.clock_ms = s.batches.iter().map(|b| b.header.clock_ms).max().unwrap_or(0).max(s.clock_ms);
        if s.max_epoch <= s.durable_epoch {
            return Ok(());
        }
        let before = s.batches.iter().filter(|b| b.header.epoch < s.max_epoch).map(|b| b.header.seq).max();
        let before = before.max(s.root.map(|r| r.next_seq - 1));
        let last: Vec<BatchAt> = s.batches.iter().filter(|b| b.header.epoch == s.max_epoch).copied().collect();
        let first_seq = last.first().map_or(0, |b| b.header.seq);
        let chained = before.is_none_or(|seq| first_seq <= seq + 1);
        let gapless = last.windows(2).all(|w| w[1].header.seq == w[0].header.seq + 1);
        let ended = last.last().is_some_and(|b| b.header.flags & BATCH_END != 0);
        let mut sound = chained && gapless && (ended || !self.rule(Rule::EpochNeedsEnd));
        for b in &last {
            sound = sound && self.batch_checks(disk, b)?;
        }
        s.complete = sound || !self.rule(Rule::EpochNeedsEnd);
        Ok(())
    }

    fn batch_checks(&self, disk: &mut dyn Disk, b: &BatchAt) -> Result<bool, MediaError> {
        let (image, base) = self.read_batch(disk, b)?;
        let life = self.ssd.life(b.segment);
        let mut count = 0;
        for item in Shifted::new(&image, base, &life, b) {
            match item {
                Item::Entry(_, _, Ok(())) => count += 1,
                _ => return Ok(false),
            }
        }
        Ok(count == b.header.count)
    }

    /// A batch's bytes, and where they start in the segment.
    fn read_batch(&self, disk: &mut dyn Disk, b: &BatchAt) -> Result<(Buf, usize), MediaError> {
        let from = b.start - b.start % BLOCK_BYTES;
        let to = (b.start + b.header.len_bytes as usize).next_multiple_of(BLOCK_BYTES);
        let image = read_blocking(disk, self.ssd.device_offset(b.segment) + from as u64, to - from)?;
        Ok((image, from))
    }

    /// Builds the directory from what `survey` found, up to epoch `valid`;
    /// younger batches are wiped first. `scan_bytes`: DRAM that a full scan's
    /// table may take. Returns the damage that was found.
    pub fn rebuild(
        &mut self,
        disk: &mut dyn Disk,
        mut s: Survey,
        valid: u64,
        scan_bytes: u64,
    ) -> Result<Vec<Damage>, MediaError> {
        self.wipe(disk, &mut s, valid)?;
        self.rebuild_without_writing(disk, s, valid, scan_bytes)
    }

    /// The same for a look from outside: younger batches are passed over, not wiped.
    pub fn rebuild_without_writing(
        &mut self,
        disk: &mut dyn Disk,
        mut s: Survey,
        valid: u64,
        scan_bytes: u64,
    ) -> Result<Vec<Damage>, MediaError> {
        s.batches.retain(|b| b.header.epoch <= valid);
        let floor = s.batches.iter().map(|b| b.header.floor).max().unwrap_or(0);
        self.floor = floor.max(s.root.map_or(0, |r| r.floor));
        match s.root {
            Some(root) => self.replay(disk, &mut s, &root)?,
            None => self.scan_all(disk, &mut s, scan_bytes)?,
        }
        self.settle_segments(&s);
        let newest = s.batches.last().map_or(0, |b| b.header.seq);
        self.next_seq = newest.max(s.root.map_or(0, |r| r.next_seq - 1)) + 1;
        self.open_epoch = valid + 1;
        self.set_now(s.clock_ms);
        self.count_live(&mut s);
        self.live_estimate = self.ssd.live_bytes();
        self.checkpoint_number = s.root.map_or(0, |r| r.number);
        self.checkpoint_asked = true;
        if let Some(first) = s.warm.filter(|_| s.clean && s.batches.iter().all(|b| b.header.epoch <= s.durable_epoch)) {
            self.start_warming(first);
        }
        Ok(s.damage)
    }

    /// Makes batches of epochs after `valid` unreadable, durably, before anything else is written.
    fn wipe(&mut self, disk: &mut dyn Disk, s: &mut Survey, valid: u64) -> Result<(), MediaError> {
        let (keep, drop): (Vec<_>, Vec<_>) = s.batches.iter().partition(|b| b.header.epoch <= valid);
        s.batches = keep;
        if drop.is_empty() {
            return Ok(());
        }
        let mut blocks = HashSet::new();
        for b in &drop {
            let block = b.start - b.start % BLOCK_BYTES;
            if blocks.insert((b.segment, block)) {
                let offset = self.ssd.device_offset(b.segment) + block as u64;
                write_blocking(disk, offset, Buf::zeroed(BLOCK_BYTES))?;
            }
        }
        flush_blocking(disk)
    }

    /// Applies the log behind a checkpoint: locations are compared, no key is.
    fn replay(&mut self, disk: &mut dyn Disk, s: &mut Survey, root: &Root) -> Result<(), MediaError> {
        for (order, _, image) in &s.pieces {
            if let Err(what) = self.dir.load(image) {
                tracing::error!(lane = self.cfg.lane, ?order, what, "a piece of the checkpoint is not right");
                s.damage.push(self.damage(root.first, 0, 0, &what));
            }
        }
        let starts: Vec<(Order, u64)> = s.pieces.iter().map(|p| (p.0, p.1)).collect();
        s.pieces = Vec::new();
        let mut floor = root.floor;
        for b in s.batches.clone() {
            if b.header.floor > floor {
                floor = b.header.floor;
                self.dir.clear();
            }
            let (image, base) = match self.read_batch(disk, &b) {
                Ok(read) => read,
                Err(e) => {
                    s.damage.push(self.damage(b.segment, b.start, b.start + b.header.len_bytes as usize, &e.to_string()));
                    continue;
                }
            };
            let life = self.ssd.life(b.segment);
            let items = Shifted::new(&image, base, &life, &b);
            for item in items {
                match item {
                    Item::Damage(from, to) => {
                        s.damage.push(self.damage(b.segment, from, to, "no entry that checks"));
                    }
                    Item::Entry(offset, e, value) => {
                        if value.is_err() {
                            s.damage.push(self.damage(b.segment, offset, offset + e.len_bytes(), "a value fails its checksum"));
                        }
                        self.replay_entry(&starts, &b, offset, &e);
                    }
                }
            }
        }
        Ok(())
    }

    fn replay_entry(&mut self, starts: &[(Order, u64)], b: &BatchAt, offset: usize, e: &Entry<'_>) {
        let who = e.subject(&self.cfg.hasher);
        let order = self.dir.order(who);
        let piece = starts.partition_point(|(start, _)| *start <= order);
        let since = piece.checked_sub(1).map_or(0, |at| starts[at].1);
        if frame::version(b.header.seq, offset) < since {
            return;
        }
        let loc = self.ssd.loc(b.segment, offset, e.len_bytes());
        let replaced = e.link();
        match e.kind() {
            Kind::Tombstone => {
                self.dir.remove(who, replaced);
            }
            Kind::Value | Kind::Binder => {
                let swung = !replaced.is_none() && self.dir.swing(who, replaced, Slot::new(loc, 0));
                if !swung && self.dir.insert(who, Slot::new(loc, 0)).is_err() {
                    tracing::error!(lane = self.cfg.lane, "the index is full while the log is replayed");
                }
            }
        }
    }

    /// Builds the directory from every segment: the newest version of each key
    /// wins. The table of versions is made in parts, so that it fits into `scan_bytes`.
    fn scan_all(&mut self, disk: &mut dyn Disk, s: &mut Survey, scan_bytes: u64) -> Result<(), MediaError> {
        let entries: u64 = s.batches.iter().map(|b| u64::from(b.header.count)).sum();
        let parts = (entries * SCAN_ENTRY_BYTES).div_ceil(scan_bytes.max(1 << 20)).max(1);
        let floor = self.floor;
        for part in 0..parts {
            let mut table: HashMap<(u8, KeyHash), (u64, Loc)> = HashMap::new();
            for b in s.batches.clone() {
                if b.header.seq < floor {
                    continue;
                }
                let (image, base) = match self.read_batch(disk, &b) {
                    Ok(read) => read,
                    Err(e) => {
                        if part == 0 {
                            s.damage.push(self.damage(b.segment, b.start, b.start + b.header.len_bytes as usize, &e.to_string()));
                        }
                        continue;
                    }
                };
                let life = self.ssd.life(b.segment);
                for item in Shifted::new(&image, base, &life, &b) {
                    let (offset, e) = match item {
                        Item::Entry(offset, e, value) => {
                            if value.is_err() && part == 0 {
                                s.damage.push(self.damage(b.segment, offset, offset + e.len_bytes(), "a value fails its checksum"));
                            }
                            (offset, e)
                        }
                        Item::Damage(from, to) => {
                            if part == 0 {
                                s.damage.push(self.damage(b.segment, from, to, "no entry that checks"));
                            }
                            continue;
                        }
                    };
                    let who = e.subject(&self.cfg.hasher);
                    if who.hash.place.rotate_left(17) % parts != part {
                        continue;
                    }
                    let version = e.version().unwrap_or(frame::version(b.header.seq, offset));
                    let loc = match e.kind() {
                        Kind::Tombstone => Loc::NONE,
                        _ => self.ssd.loc(b.segment, offset, e.len_bytes()),
                    };
                    let newest = table.entry((who.space, who.hash)).or_insert((version, loc));
                    if version > newest.0 {
                        *newest = (version, loc);
                    }
                }
            }
            for ((space, hash), (_, loc)) in table {
                if !loc.is_none() && self.dir.insert(Subject { space, hash }, Slot::new(loc, 0)).is_err() {
                    tracing::error!(lane = self.cfg.lane, "the index is full while the log is scanned");
                }
            }
        }
        Ok(())
    }

    /// Gives every segment its state. Live bytes are counted afterwards.
    fn settle_segments(&mut self, s: &Survey) {
        let mut used: HashMap<u32, u64> = HashMap::new();
        for b in &s.batches {
            let first = used.entry(b.segment).or_insert(u64::MAX);
            *first = (*first).min(b.header.seq);
        }
        let scanned = s.root.is_none();
        for id in 0..self.ssd.count() as u32 {
            let touched = used.get(&id).copied();
            let seg = self.ssd.segment_mut(id);
            if seg.state == State::Bad {
                continue;
            }
            seg.state = State::Sealed;
            if scanned || touched.is_some() {
                seg.total_class_bytes = 0;
                seg.tomb_bytes = 0;
                seg.stale_seq = if scanned { u64::MAX } else { seg.stale_seq };
            }
            if let Some(first) = touched {
                seg.first_seq = first;
            } else if scanned {
                seg.first_seq = u64::MAX;
            }
            if let Some(&end) = s.whole.get(&id) {
                seg.used_bytes = end;
            }
        }
        let mut free = s.free.clone();
        if scanned {
            free = (0..self.ssd.count() as u32).filter(|id| !used.contains_key(id)).collect();
        } else {
            // The image's own segments were taken from this list after it was saved.
            free.retain(|id| !used.contains_key(id) && !s.image_segments.contains(id));
            self.image_segments = s.image_segments.clone();
            for &id in &s.image_segments {
                self.ssd.segment_mut(id).state = State::Image;
            }
        }
        self.ssd.set_free(free);
        self.find_warm_segments(s);
    }

    fn find_warm_segments(&mut self, s: &Survey) {
        // A clean stop's image: segments that hold nothing of the log.
        if s.warm.is_none() {
            return;
        }
        self.warm_written = (0..self.ssd.count() as u32)
            .filter(|&id| {
                let seg = self.ssd.segment(id);
                seg.state == State::Sealed && seg.first_seq == u64::MAX
            })
            .collect();
        for id in self.warm_written.clone() {
            self.ssd.segment_mut(id).state = State::Image;
        }
    }

    /// Counts live bytes from the directory, and the bytes of scanned segments from their batches.
    fn count_live(&mut self, s: &mut Survey) {
        self.ssd.reset_live();
        let ssd = &mut self.ssd;
        let mut astray = 0u64;
        self.dir.each(|slot| match ssd.contains(slot.loc()) {
            true => ssd.add_live(slot.loc()),
            false => astray += 1,
        });
        if astray > 0 {
            s.damage.push(self.damage(0, 0, 0, &format!("{astray} slots point outside the lane")));
        }
        for b in &s.batches {
            // Class bytes that were ever appended are known only by walking; take
            // the batch's length, corrected for what is live.
            let seg = self.ssd.segment_mut(b.segment);
            seg.total_class_bytes += b.header.len_bytes;
        }
        for id in 0..self.ssd.count() as u32 {
            let seg = self.ssd.segment_mut(id);
            seg.total_class_bytes = seg.total_class_bytes.max(seg.live_class_bytes);
        }
    }
}

/// Items of a batch whose bytes start at `base` of the segment.
struct Shifted<'a> {
    image: &'a [u8],
    base: usize,
    life: &'a frame::Life,
    at: usize,
    end: usize,
}

impl<'a> Shifted<'a> {
    fn new(image: &'a [u8], base: usize, life: &'a frame::Life, b: &BatchAt) -> Shifted<'a> {
        Shifted {
            image,
            base,
            life,
            at: b.start + BATCH_HEADER_BYTES,
            end: b.start + b.header.len_bytes as usize,
        }
    }
}

impl<'a> Iterator for Shifted<'a> {
    type Item = Item<'a>;
    fn next(&mut self) -> Option<Item<'a>> {
        let (item, next) = scan::next_based(self.image, self.base, self.life, self.at, self.end)?;
        self.at = next;
        Some(item)
    }
}

struct Reader<'a> {
    image: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len).ok_or("a length overflows")?;
        let bytes = self.image.get(self.at..end).ok_or("the image ends early")?;
        self.at = end;
        Ok(bytes)
    }
    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().expect("four bytes")))
    }
    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().expect("eight bytes")))
    }
}
