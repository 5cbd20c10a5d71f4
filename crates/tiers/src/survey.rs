//! What a lane's medium holds: roots, the checkpoint, the batches behind it, and
//! which of them belong to a commit that is whole.
//!
//! An epoch is valid when every lane has all of its batches: a first one marked
//! so, no seq missing, the last one with `END`, every entry of them checked.
//! Only the youngest epoch on the medium can be invalid, since an epoch is begun
//! when the one before is durable.
//! Never: writes; believes a byte that does not check.

use crate::bulk::{Hole, Image, READ_AGAIN_AFTER, read_in_order};
use crate::lane::{Lane, Rule};
use crate::root::{IMAGE_MAGIC, PIECES_END, Root, SEGMENT_RECORD_BYTES};
use crate::ssd::{Segment, State};
use std::collections::{HashMap, VecDeque};
use terrace_log::frame::{
    self, BATCH_END, BATCH_FIRST, BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES,
    SegmentHeader, Use,
};
use terrace_log::scan::{self, Found, Item};
use terrace_log::{Order, Snapshot};
use terrace_media::{BLOCK_BYTES, Disk, MediaError, read_blocking};

/// Batch headers of a segment that are followed before it is read whole.
const HEADERS_FOLLOWED_MAX: usize = 4;

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

impl BatchAt {
    /// Bytes of the segment that a read of the batch covers: whole blocks.
    pub(crate) fn range(&self) -> (usize, usize) {
        let from = self.start - self.start % BLOCK_BYTES;
        let end = self.start + self.header.len_bytes as usize;
        (from, end.next_multiple_of(BLOCK_BYTES))
    }
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
    /// What they hold is not known, nor whether anything there is in use: the device did not give them, or the header over them is damaged.
    pub unknown: bool,
}

/// What `survey` found.
#[derive(Default)]
pub struct Survey {
    pub(crate) root: Option<Root>,
    /// Highest number of a root, also of one whose image cannot be read: what this life
    /// writes must outrank it, since it may be readable again the next time.
    pub(crate) newest_number: u64,
    /// Pieces of the directory: where each starts, the log's version, the image.
    pub(crate) pieces: Vec<(Order, u64, Vec<u8>)>,
    pub(crate) free: VecDeque<u32>,
    pub(crate) image_segments: Vec<u32>,
    /// Root blocks that could not be read, by their offsets.
    pub(crate) lost_roots: Vec<u64>,
    /// By seq; of each seq the highest attempt.
    pub(crate) batches: Vec<BatchAt>,
    /// Lower attempts.
    pub(crate) losers: Vec<BatchAt>,
    /// Segments taken since the checkpoint.
    pub(crate) taken: Vec<u32>,
    /// Segments, and which lives of them, that the log behind the checkpoint tells to be free.
    pub(crate) told: Vec<(u32, u32)>,
    /// Gaps before a batch of this epoch: a torn write, if that epoch is not valid.
    pub(crate) gaps: Vec<(u64, Damage)>,
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
    /// Whether the checkpoint is a clean stop's.
    pub clean: bool,
}

impl Survey {
    /// Whether a checkpoint was found; without, the whole log is scanned.
    pub fn from_checkpoint(&self) -> bool {
        self.root.is_some()
    }
    /// Takes in damage; some of it was met before.
    pub(crate) fn note(&mut self, damage: Vec<Damage>) {
        for d in damage {
            if !d.unknown || !self.damage.contains(&d) {
                self.damage.push(d);
            }
        }
    }
}

impl<D: Snapshot> Lane<D> {
    /// Reads roots, checkpoint and the batches behind it.
    pub fn survey(&mut self, disk: &mut dyn Disk) -> Result<Survey, MediaError> {
        let mut s = Survey::default();
        let mut replay = None;
        for root in self.read_roots(disk, &mut s.lost_roots) {
            s.newest_number = s.newest_number.max(root.number);
            match self.read_checkpoint(disk, &root, &mut s) {
                Ok(heads) => {
                    s.durable_epoch = root.durable_epoch;
                    s.clock_ms = root.clock_ms;
                    s.clean = root.clean;
                    s.root = Some(root);
                    self.ssd.generation = root.generation;
                    replay = Some(heads);
                    break;
                }
                Err(what) => {
                    tracing::warn!(
                        lane = self.cfg.lane,
                        number = root.number,
                        what,
                        "a checkpoint cannot be read: the one before it is taken, or else the whole log is read, and the start takes longer"
                    );
                    s.pieces.clear();
                    s.free.clear();
                    s.image_segments.clear();
                }
            }
        }
        let replay = match replay {
            Some(heads) => self.probe_taken(disk, &mut s, heads),
            None => self.probe_all(disk, &mut s),
        };
        self.find_batches(disk, &mut s, &replay);
        self.judge(disk, &mut s)?;
        Ok(s)
    }

    /// The two root blocks, the newer one first. The older one only counts while
    /// its image is whole, which its checksum tells. One that cannot be read is none: the log is there without it.
    fn read_roots(&self, disk: &mut dyn Disk, lost: &mut Vec<u64>) -> Vec<Root> {
        let mut roots = Vec::new();
        for at in [0, BLOCK_BYTES as u64] {
            let offset = self.cfg.root_base + at;
            match read_blocking(disk, offset, BLOCK_BYTES) {
                Ok(block) => roots.extend(Root::read(&block, self.cfg.pool, self.cfg.lane)),
                Err(error) => {
                    lost.push(offset);
                    tracing::warn!(
                        lane = self.cfg.lane,
                        %error,
                        "a root block cannot be read: the other one is taken, or else the whole log is read, and the start takes longer"
                    );
                }
            }
        }
        roots.sort_by_key(|r| std::cmp::Reverse(r.number));
        roots
    }

    /// Reads a checkpoint's image; returns the heads that were open.
    fn read_checkpoint(
        &mut self,
        disk: &mut dyn Disk,
        root: &Root,
        s: &mut Survey,
    ) -> Result<Vec<u32>, String> {
        let image = self.read_chain(disk, root, s)?;
        match crc32c::crc32c(&image) == root.crc {
            true => self.read_image(&image, s),
            false => Err("the image does not match its checksum".into()),
        }
    }

    fn read_chain(
        &self,
        disk: &mut dyn Disk,
        root: &Root,
        s: &mut Survey,
    ) -> Result<Vec<u8>, String> {
        let lane_bytes = self.ssd.count() as u64 * self.cfg.segment_bytes as u64;
        let total = root.total_bytes;
        if total > lane_bytes {
            return Err(format!("the image claims {total} bytes"));
        }
        // Grows with what is there: the root may claim anything.
        let mut image = Vec::new();
        let mut next = root.first.wrapping_add(1);
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
            let payload = part
                .get(SEGMENT_HEADER_BYTES..end)
                .ok_or("a part is too long")?;
            image.extend_from_slice(payload);
            s.image_segments.push(id);
            next = header.next;
        }
        Ok(image)
    }

    fn read_image(&mut self, image: &[u8], s: &mut Survey) -> Result<Vec<u32>, String> {
        let mut r = Reader { image, at: 0 };
        if r.u32()? != IMAGE_MAGIC || r.u32()? as usize != self.ssd.count() {
            return Err("the image is of another pool".into());
        }
        let (free, heads) = (r.u32()? as usize, r.u32()? as usize);
        let count = self.ssd.count();
        s.free = r.segment_numbers(free, count)?.into();
        let heads = r.segment_numbers(heads, count)?;
        let record = |id| r.record(id, self.cfg.segment_bytes);
        let records: Vec<Segment> = (0..count).map(record).collect::<Result<_, _>>()?;
        loop {
            let len = r.u32()?;
            if len == PIECES_END {
                break;
            }
            let order = Order {
                shard: r.u32()?,
                hash: r.u64()?,
            };
            let version = r.u64()?;
            s.pieces
                .push((order, version, r.bytes(len as usize)?.to_vec()));
        }
        // Not before all of it is read: the image that is taken instead must not find what this one said.
        for (id, record) in records.into_iter().enumerate() {
            let bad = record.state == State::Bad;
            *self.ssd.segment_mut(id as u32) = Segment {
                state: State::Sealed,
                ..record
            };
            if bad {
                self.ssd.set_aside(id as u32);
            }
        }
        Ok(heads)
    }

    /// Lists the batches of segments. Segments with few batches, as steady loads
    /// make them, are known by following the headers; the others are read whole.
    fn find_batches(&mut self, disk: &mut dyn Disk, s: &mut Survey, segments: &[u32]) {
        let size = self.cfg.segment_bytes;
        let mut all: Vec<BatchAt> = Vec::new();
        let whole = self.follow_headers(disk, segments, &mut all);
        let list: Vec<(u64, usize)> = whole
            .iter()
            .map(|&id| (self.ssd.device_offset(id), size))
            .collect();
        read_in_order(disk, &list, 1, |at, image| {
            let id = whole[at];
            match image {
                Ok(image) => {
                    s.damage
                        .extend(image.holes.iter().map(|h| self.hole(id, 0, h)));
                    self.list_batches(id, &image, s, &mut all);
                }
                Err(e) => s.damage.push(self.unknown(id, size, &e.to_string())),
            }
        });
        self.set_unknown_aside(&s.damage);
        all.sort_by_key(|b| (b.header.seq, std::cmp::Reverse(b.header.attempt)));
        for b in all {
            match s.batches.last() {
                Some(best) if best.header.seq == b.header.seq => s.losers.push(b),
                _ => s.batches.push(b),
            }
        }
    }

    /// Reads header after header, one of every segment at a time. Returns the
    /// segments for which that did not reach the end in a few steps.
    fn follow_headers(
        &self,
        disk: &mut dyn Disk,
        segments: &[u32],
        all: &mut Vec<BatchAt>,
    ) -> Vec<u32> {
        let size = self.cfg.segment_bytes;
        let mut whole = Vec::new();
        let mut found: HashMap<u32, Vec<BatchAt>> = HashMap::new();
        let mut at: Vec<(u32, usize)> = segments
            .iter()
            .map(|&id| (id, SEGMENT_HEADER_BYTES))
            .collect();
        for _ in 0..HEADERS_FOLLOWED_MAX {
            let place = |&(id, start): &(u32, usize)| {
                (
                    self.ssd.device_offset(id) + (start - start % BLOCK_BYTES) as u64,
                    BLOCK_BYTES,
                )
            };
            let list: Vec<(u64, usize)> = at.iter().map(place).collect();
            let mut next = Vec::new();
            read_in_order(disk, &list, 1, |n, block| {
                let (id, start) = at[n];
                let base = start - start % BLOCK_BYTES;
                let life = self.ssd.life(id);
                let header = block
                    .ok()
                    .and_then(|b| BatchHeader::read_in(b.bytes, base, size, &life, start));
                let Some(header) = header else {
                    whole.push(id);
                    return;
                };
                let b = BatchAt {
                    segment: id,
                    start,
                    header,
                };
                found.entry(id).or_default().push(b);
                let end = b.range().1;
                if end + BATCH_HEADER_BYTES <= size {
                    next.push((id, end));
                }
            });
            at = next;
        }
        whole.extend(at.iter().map(|(id, _)| *id));
        for id in &whole {
            found.remove(id);
        }
        all.extend(found.into_values().flatten());
        whole
    }

    fn list_batches(&self, id: u32, image: &Image<'_>, s: &mut Survey, all: &mut Vec<BatchAt>) {
        let header = SegmentHeader::read(image.bytes, self.cfg.pool, self.cfg.lane, id);
        // One that is lost is a head's, whose life the checkpoint tells.
        let lost = image.holes.first().is_some_and(|h| h.from == 0);
        if !lost && !header.is_some_and(|h| h.used_for == Use::Log) {
            return;
        }
        let mut gap = None;
        for found in scan::batches(image.bytes, &self.ssd.life(id)) {
            match found {
                Found::Damage(from, to) => {
                    gap = Some(self.damage(id, from, to, "no batch header that checks"));
                }
                Found::Batch(start, header) => {
                    s.gaps.extend(gap.take().map(|d| (header.epoch, d)));
                    let b = BatchAt {
                        segment: id,
                        start,
                        header,
                    };
                    all.push(b);
                }
            }
        }
    }

    pub(crate) fn damage(
        &self,
        segment: u32,
        from_bytes: usize,
        to_bytes: usize,
        what: &str,
    ) -> Damage {
        Damage {
            lane: self.cfg.lane,
            segment,
            from_bytes,
            to_bytes,
            what: what.to_string(),
            unknown: false,
        }
    }

    /// The first bytes of a segment, of which nothing is known.
    pub(crate) fn unknown(&self, segment: u32, to_bytes: usize, what: &str) -> Damage {
        Damage {
            unknown: true,
            ..self.damage(segment, 0, to_bytes, what)
        }
    }

    /// Blocks that the device did not give, in what was read from `base` of a segment on.
    pub(crate) fn hole(&self, segment: u32, base: usize, hole: &Hole) -> Damage {
        let (from, to) = (base + hole.from, base + hole.to);
        Damage {
            unknown: true,
            ..self.damage(segment, from, to, &hole.error.to_string())
        }
    }

    /// Finds the youngest epoch and whether this lane has all of it. An error is none of the medium's: it says nothing of the epoch.
    fn judge(&mut self, disk: &mut dyn Disk, s: &mut Survey) -> Result<(), MediaError> {
        let newest =
            |f: fn(&BatchHeader) -> u64| s.batches.iter().map(|b| f(&b.header)).max().unwrap_or(0);
        let (epoch, clock) = (newest(|h| h.epoch), newest(|h| h.clock_ms));
        s.max_epoch = epoch.max(s.durable_epoch);
        s.clock_ms = clock.max(s.clock_ms);
        s.complete = true;
        if s.max_epoch <= s.durable_epoch {
            return Ok(());
        }
        let last: Vec<BatchAt> = s
            .batches
            .iter()
            .filter(|b| b.header.epoch == s.max_epoch)
            .copied()
            .collect();
        let begun = last
            .first()
            .is_some_and(|b| b.header.flags & BATCH_FIRST != 0);
        let gapless = last
            .windows(2)
            .all(|w| w[1].header.seq == w[0].header.seq + 1);
        let ended = last.last().is_some_and(|b| b.header.flags & BATCH_END != 0);
        let mut sound = begun && gapless && ended;
        for b in &last {
            // One that the device does not give may have been torn by the power: an epoch that cannot be judged is not whole.
            sound = match sound.then(|| self.batch_checks(disk, b)) {
                Some(Ok(checks)) => checks,
                Some(Err(error)) if !error.is_of_the_medium() => return Err(error),
                Some(Err(error)) => {
                    let (from, to) = b.range();
                    s.damage.push(Damage {
                        unknown: true,
                        ..self.damage(b.segment, from, to, &error.to_string())
                    });
                    false
                }
                None => false,
            };
        }
        self.set_unknown_aside(&s.damage);
        s.complete = sound || !self.rule(Rule::EpochNeedsEnd);
        Ok(())
    }

    fn batch_checks(&self, disk: &mut dyn Disk, b: &BatchAt) -> Result<bool, MediaError> {
        let (from, to) = b.range();
        let offset = self.ssd.device_offset(b.segment) + from as u64;
        let mut image = read_blocking(disk, offset, to - from);
        // Acknowledged updates may depend on it: not given up for the device's moment.
        for pause in READ_AGAIN_AFTER {
            if image.as_ref().is_err_and(|e| e.is_of_the_medium()) {
                std::thread::sleep(pause);
                image = read_blocking(disk, offset, to - from);
            }
        }
        let image = image?;
        let life = self.ssd.life(b.segment);
        let mut count = 0;
        for item in Items::new(&image, from, &life, b) {
            match item {
                Item::Entry(_, _, Ok(())) => count += 1,
                _ => return Ok(false),
            }
        }
        Ok(count == b.header.count)
    }
}

/// Items of a batch whose bytes start at `base` of the segment.
pub(crate) struct Items<'a> {
    image: &'a [u8],
    base: usize,
    life: &'a frame::Life,
    at: usize,
    end: usize,
}

impl<'a> Items<'a> {
    pub(crate) fn new(
        image: &'a [u8],
        base: usize,
        life: &'a frame::Life,
        b: &BatchAt,
    ) -> Items<'a> {
        Items {
            image,
            base,
            life,
            at: b.start + BATCH_HEADER_BYTES,
            end: b.start + b.header.len_bytes as usize,
        }
    }
}

impl<'a> Iterator for Items<'a> {
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
        Ok(u32::from_le_bytes(
            self.bytes(4)?.try_into().expect("four bytes"),
        ))
    }
    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(
            self.bytes(8)?.try_into().expect("eight bytes"),
        ))
    }
    /// What was known of segment `id`, with the state `Bad` if it was set aside.
    fn record(&mut self, id: usize, segment_bytes: usize) -> Result<Segment, String> {
        debug_assert_eq!(SEGMENT_RECORD_BYTES, 44);
        let generation = self.u32()?;
        let state = match self.u32()? {
            0 => State::Sealed,
            _ => State::Bad,
        };
        let (used_bytes, total_class_bytes, tomb_bytes) = (self.u32()?, self.u32()?, self.u32()?);
        // Size classes are upper bounds, by a third at most.
        let entries_max = 2 * segment_bytes;
        if used_bytes as usize > segment_bytes
            || total_class_bytes as usize > entries_max
            || tomb_bytes as usize > entries_max
        {
            return Err(format!(
                "segment {id} has {used_bytes} bytes, {total_class_bytes} of entries and {tomb_bytes} of tombstones; it is {segment_bytes} long"
            ));
        }
        Ok(Segment {
            state,
            generation,
            readers: 0,
            used_bytes,
            total_class_bytes,
            live_class_bytes: 0,
            tomb_bytes,
            first_seq: self.u64()?,
            stale_seq: self.u64()?,
            last_epoch: self.u64()?,
        })
    }
    fn segment_numbers(&mut self, n: usize, count: usize) -> Result<Vec<u32>, String> {
        let read = |_| {
            let id = self.u32()?;
            let fits = (id as usize) < count;
            fits.then_some(id)
                .ok_or("a segment number is too large".to_string())
        };
        (0..n).map(read).collect()
    }
}
