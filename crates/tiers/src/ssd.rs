//! The durable terrace of a lane: its segments on the block medium.
//!
//! A segment's life, and what moves it on:
//!
//! | state | entered by | left by |
//! |---|---|---|
//! | Free | release by a checkpoint or a durable epoch | an append, checkpoint or image takes it |
//! | Open | a head starts it | full, or a write to it failed |
//! | Sealed | its last batch was handed out | the cleaner chose it |
//! | Cleaning | chosen | every entry of it was looked at |
//! | Emptied(e) | all live entries moved in epoch e | e is durable |
//! | Told(e) | epoch e says that it is free; replay does not need it | e is durable |
//! | Releasable | epoch durable | a checkpoint begun after that is durable, or an epoch tells that it is free |
//! | Image | checkpoint or warm image holds it | the next checkpoint replaced it |
//! | Bad | a write to it failed | never (its earlier entries stay readable) |
//!
//! Promises: a segment is overwritten only from Free, and only when no reader
//! holds a location in it. Never: decides which segment; `policy` does.

use crate::buffers::Buffers;
use crate::config::{Config, Rule};
use crate::oldest::Oldest;
use crate::policy;
use crate::ranks::{self, BUCKETS, Ranks};
use crate::units::Units;
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use terrace_log::entry::Entry;
use terrace_log::frame::Life;
use terrace_log::writer::SegmentWriter;
use terrace_log::{Loc, Terrace, addr};
use terrace_media::BLOCK_BYTES;

/// Why an entry could not be appended to the SSD log just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stalled;

/// The last generation with which a lane takes updates. Those above are for what is under way then, and for starts.
pub(crate) const GENERATION_LAST: u32 = u32::MAX - (1 << 20);

/// Segments of one live share that reads hold, and that are passed over for a victim.
const HELD_PASSED_MAX: usize = 64;

/// State of a segment; see the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing that anyone needs.
    Free,
    /// A head appends to it.
    Open,
    /// Full, or closed early.
    Sealed,
    /// Being emptied.
    Cleaning,
    /// Emptied in this epoch.
    Emptied(u64),
    /// The log says in this epoch that it is free.
    Told(u64),
    /// Waits for a checkpoint, or for an epoch that says so.
    Releasable,
    /// Part of a checkpoint or warm image.
    Image,
    /// Never written again.
    Bad,
}

/// What is known of a segment.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Its state.
    pub state: State,
    /// Names its life on the medium; grows with every segment taken.
    pub generation: u32,
    /// Reads under way.
    pub readers: u32,
    /// Bytes written, headers included.
    pub used_bytes: u32,
    /// Entry bytes, by class, ever appended.
    pub total_class_bytes: u32,
    /// Entry bytes, by class, that are live.
    pub live_class_bytes: u32,
    /// Bytes of tombstones.
    pub tomb_bytes: u32,
    /// Seq of its first batch.
    pub first_seq: u64,
    /// Seq of the first batch of an earlier life whose bytes may still be on the medium.
    pub stale_seq: u64,
    /// Epoch of its last batch; 0 if that is long ago.
    pub last_epoch: u64,
}

const FRESH: Segment = Segment {
    state: State::Free,
    generation: 0,
    readers: 0,
    used_bytes: 0,
    total_class_bytes: 0,
    live_class_bytes: 0,
    tomb_bytes: 0,
    first_seq: u64::MAX,
    stale_seq: u64::MAX,
    last_epoch: 0,
};

/// A read that brings one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPlan {
    /// What is read.
    pub loc: Loc,
    /// Offset on the device, bytes, a multiple of what the device reads by.
    pub offset: u64,
    /// Length in bytes, likewise.
    pub len: usize,
    /// Offset of the entry in what is read.
    pub skip: usize,
    /// Seed of the entry's checksums.
    pub seed: u32,
    /// Segment held until `unpin`.
    pub segment: u32,
}

impl Segment {
    /// Starts over; what the medium still holds of the last life is remembered.
    fn next_life(&self, state: State, generation: u32) -> Segment {
        Segment {
            state,
            generation,
            readers: self.readers,
            stale_seq: self.stale_seq.min(self.first_seq),
            ..FRESH
        }
    }
}

/// The lane's log on the block medium.
pub struct Ssd {
    /// Size of a segment.
    pub segment_bytes: usize,
    /// What reads of entries are multiples of ([`terrace_media::Device::read_unit_bytes`]).
    pub(crate) read_unit_bytes: usize,
    units: Units,
    base: u64,
    pool: u64,
    lane: u16,
    /// Two rules; see [`Rule`].
    readers_hold: bool,
    bound_to_generation: bool,
    segments: Vec<Segment>,
    free: VecDeque<u32>,
    /// Segments that reads hold, and those of them that are free.
    held: usize,
    held_free: usize,
    /// Hot head, cold head, and the one for a batch whose write failed elsewhere.
    pub heads: [Option<SegmentWriter>; 3],
    /// Full segments whose last writes are under way: still read from memory.
    closing: HashMap<u32, SegmentWriter>,
    /// For segments that are filled, and for victims.
    pub(crate) buffers: Buffers,
    /// Bytes of segments that may be cleaned for their tombstones (`room`).
    pub(crate) tombstone_credit: u64,
    bad: usize,
    /// The last generation given out; one count for all segments, so that a
    /// segment whose header is lost cannot meet an old generation of its own.
    pub generation: u32,
    /// Sums over all segments, and the sealed ones by live share: kept by `SegmentMut`.
    live_bytes: u64,
    tomb_bytes: u64,
    ranks: Ranks,
    oldest: Oldest,
}

/// A segment that may be changed; what is kept of all segments together follows when this is dropped.
pub struct SegmentMut<'a> {
    ssd: &'a mut Ssd,
    id: u32,
    before: Account,
}

/// What a segment adds to what is kept of all.
#[derive(PartialEq)]
struct Account {
    live_bytes: u64,
    tomb_bytes: u64,
    held_free: usize,
    rank: Option<(u8, u64)>,
}

impl Deref for SegmentMut<'_> {
    type Target = Segment;
    fn deref(&self) -> &Segment {
        &self.ssd.segments[self.id as usize]
    }
}
impl DerefMut for SegmentMut<'_> {
    fn deref_mut(&mut self) -> &mut Segment {
        &mut self.ssd.segments[self.id as usize]
    }
}
impl Drop for SegmentMut<'_> {
    fn drop(&mut self) {
        let after = self.ssd.account(self.id);
        let (ssd, before) = (&mut *self.ssd, &self.before);
        ssd.live_bytes = ssd.live_bytes - before.live_bytes + after.live_bytes;
        ssd.tomb_bytes = ssd.tomb_bytes - before.tomb_bytes + after.tomb_bytes;
        ssd.held_free = ssd.held_free - before.held_free + after.held_free;
        if before.rank == after.rank {
            return;
        }
        if let Some((live, age)) = before.rank {
            ssd.ranks.remove(live, age, self.id);
        }
        if let Some((live, age)) = after.rank {
            ssd.ranks.add(live, age, self.id);
        }
    }
}

impl Ssd {
    /// The segments of a lane, all free.
    pub fn new(cfg: &Config) -> Ssd {
        Ssd {
            segment_bytes: cfg.segment_bytes,
            read_unit_bytes: BLOCK_BYTES,
            units: Units::of(cfg.segment_bytes),
            base: cfg.ssd_base,
            pool: cfg.pool,
            lane: cfg.lane,
            readers_hold: cfg.rule(Rule::ReadersHold),
            bound_to_generation: cfg.rule(Rule::BoundToGeneration),
            segments: vec![FRESH; cfg.ssd_segments as usize],
            free: (0..cfg.ssd_segments).collect(),
            held: 0,
            held_free: 0,
            heads: [None, None, None],
            closing: HashMap::new(),
            buffers: Buffers::new(cfg),
            tombstone_credit: 0,
            bad: 0,
            generation: 0,
            live_bytes: 0,
            tomb_bytes: 0,
            ranks: Ranks::new(),
            oldest: Oldest::new(),
        }
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        self.segments.len()
    }
    /// What is known of segment `id`.
    pub fn segment(&self, id: u32) -> &Segment {
        &self.segments[id as usize]
    }
    /// For recovery and accounting.
    pub fn segment_mut(&mut self, id: u32) -> SegmentMut<'_> {
        SegmentMut {
            before: self.account(id),
            ssd: self,
            id,
        }
    }
    fn account(&self, id: u32) -> Account {
        let s = &self.segments[id as usize];
        let segment_bytes = self.segment_bytes as u64;
        let live_bytes = live_share(s);
        let is_sealed = s.state == State::Sealed;
        let rank = || {
            let kept = kept_of(s, live_bytes, segment_bytes);
            (ranks::bucket(kept, segment_bytes), s.first_seq)
        };
        Account {
            live_bytes: match is_sealed {
                true => {
                    let (used, total) = (s.used_bytes.into(), s.total_class_bytes.into());
                    policy::taken_bytes(live_bytes, used, total, segment_bytes)
                }
                false => live_bytes,
            },
            tomb_bytes: u64::from(s.tomb_bytes),
            held_free: usize::from(s.state == State::Free && s.readers > 0),
            rank: is_sealed.then(rank),
        }
    }
    /// Sealed segments that the cleaner may take, some of each live share, the oldest ones of it, emptiest first; those that reads hold
    /// only if `held`.
    pub fn victims(&self, each_max: usize, held: bool) -> impl Iterator<Item = u32> + Clone + '_ {
        let of = move |live| {
            let oldest = self.ranks.of(live).take(HELD_PASSED_MAX + each_max);
            let may = move |id: &u32| held || !self.is_held(*id);
            oldest.filter(may).take(each_max)
        };
        (0..BUCKETS as u8).flat_map(of)
    }
    /// Sealed segments of which almost nothing is live, oldest first.
    pub fn almost_dead(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks.of(0)
    }
    /// Bytes of tombstones in all segments.
    pub fn tomb_bytes(&self) -> u64 {
        self.tomb_bytes
    }
    /// All segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Free segments, next one first; those that reads hold are among them.
    pub fn free(&self) -> &VecDeque<u32> {
        &self.free
    }
    /// How many can be taken now: what is promised is promised of these.
    pub fn takeable(&self) -> usize {
        match self.readers_hold {
            true => self.free.len().saturating_sub(self.held_free),
            false => self.free.len(),
        }
    }
    /// Whether a read holds the segment, so that it is not taken when it is free.
    pub fn is_held(&self, id: u32) -> bool {
        self.readers_hold && self.segments[id as usize].readers > 0
    }
    /// Whether reads hold any segment.
    pub fn any_held(&self) -> bool {
        self.held > 0
    }
    /// Replaces the free list (recovery).
    pub fn set_free(&mut self, free: VecDeque<u32>) {
        for &id in &free {
            self.next_life(id, State::Free, self.segment(id).generation);
        }
        self.free = free;
    }
    /// Segments lost to failed writes.
    pub fn bad(&self) -> usize {
        self.bad
    }
    /// Bytes that live entries and tombstones really take, headers and their part of the ends of full segments included, padding not: [`live_share`] of each segment, of sealed ones what
    /// `policy::taken_bytes` makes of it.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
    /// Memory held for segments under way, bytes.
    pub fn buffer_bytes(&self) -> usize {
        let heads = self.heads.iter().flatten().count();
        (heads + self.closing.len()) * self.segment_bytes + self.buffers.bytes()
    }
    /// Writers (open or closing) that hold a buffer.
    pub fn writers(&self) -> usize {
        self.heads.iter().flatten().count() + self.closing.len()
    }

    /// Device offset of a segment.
    pub fn device_offset(&self, id: u32) -> u64 {
        self.base + u64::from(id) * self.segment_bytes as u64
    }
    /// Identity of the present life of a segment.
    pub fn life(&self, id: u32) -> Life {
        Life {
            pool: self.pool,
            lane: self.lane,
            segment: id,
            generation: match self.bound_to_generation {
                true => self.segments[id as usize].generation,
                false => 0,
            },
        }
    }
    /// Segment and offset in it of a location.
    #[inline]
    pub fn split(&self, loc: Loc) -> (u32, usize) {
        self.units.split(loc.unit())
    }
    /// Location of an entry of `len` bytes.
    pub fn loc(&self, id: u32, offset: usize, len: usize) -> Loc {
        let unit = self.units.unit(id, offset);
        Loc::new(Terrace::Ssd, addr::class_of(len), unit)
    }
    /// Whether a location from outside (a checkpoint, an entry) lies in this lane.
    pub fn contains(&self, loc: Loc) -> bool {
        !loc.in_memory() && (self.split(loc).0 as usize) < self.segments.len()
    }
    /// Whether a slot from a checkpoint may name it: in a part of an image lies none, and it will be another's.
    pub fn is_for_entries(&self, loc: Loc) -> bool {
        self.contains(loc) && self.segment(self.split(loc).0).state != State::Image
    }

    /// Takes the next free segment that no reader holds, with a new generation.
    pub fn take(&mut self, state: State) -> Option<u32> {
        let at = self.free.iter().position(|&id| !self.is_held(id))?;
        // One that comes round would make bytes of an earlier life pass for those of this.
        let generation = self.generation.checked_add(1)?;
        let id = self.free.remove(at)?;
        self.generation = generation;
        self.next_life(id, state, generation);
        Some(id)
    }
    /// A segment starts over; what the medium still holds of its last life is remembered.
    pub fn next_life(&mut self, id: u32, state: State, generation: u32) {
        let mut s = self.segment_mut(id);
        *s = s.next_life(state, generation);
    }
    /// Puts a segment back to the end of the free list.
    pub fn release(&mut self, id: u32) {
        self.next_life(id, State::Free, self.segment(id).generation);
        self.free.push_back(id);
    }

    /// Sets aside those free segments that the directory names, and says which.
    pub fn set_aside_named_free(&mut self) -> Vec<u32> {
        let is_named = |id: &u32| self.segments[*id as usize].live_class_bytes > 0;
        let named: Vec<u32> = self.free.iter().copied().filter(is_named).collect();
        self.free.retain(|id| !named.contains(id));
        for &id in &named {
            self.set_aside(id);
        }
        named
    }

    /// Opens a segment at a head. False when no segment is free.
    pub fn open_head(&mut self, head: usize, seq: u64) -> bool {
        debug_assert!(self.heads[head].is_none());
        let Some(id) = self.take(State::Open) else {
            return false;
        };
        self.segment_mut(id).first_seq = seq;
        let buf = self.buffers.take_segment();
        self.heads[head] = Some(SegmentWriter::new(buf, self.life(id)));
        true
    }
    /// Closes a head's segment; it stays readable from memory until `written`.
    pub fn seal_head(&mut self, head: usize) {
        if let Some(w) = self.heads[head].take() {
            let id = w.life().segment;
            let mut s = self.segment_mut(id);
            s.used_bytes = w.used_bytes() as u32;
            if s.state == State::Open {
                s.state = State::Sealed;
            }
            drop(s);
            self.closing.insert(id, w);
        }
    }
    /// Its header is on the medium: nobody reads what is left there of earlier lives any more. Not so where that write failed, which may
    /// have changed nothing: tombstones of keys in there stay.
    pub fn header_written(&mut self, id: u32) {
        self.segment_mut(id).stale_seq = u64::MAX;
    }
    /// All writes of a closing segment are finished: its buffer is let go.
    pub fn written(&mut self, id: u32) {
        if let Some(w) = self.closing.remove(&id) {
            self.buffers.keep_segment(w.into_buf());
        }
    }
    /// Segments whose buffers wait for their last writes.
    pub fn closing(&self) -> impl Iterator<Item = u32> + '_ {
        self.closing.keys().copied()
    }
    /// A write to the segment failed: nothing is appended to it any more.
    pub fn mark_bad(&mut self, id: u32) {
        for head in 0..self.heads.len() {
            if self.heads[head]
                .as_ref()
                .is_some_and(|w| w.life().segment == id)
            {
                self.seal_head(head);
            }
        }
        self.set_aside(id);
    }
    /// The segment cannot be read whole: it is neither cleaned nor overwritten.
    pub fn set_aside(&mut self, id: u32) {
        if self.segments[id as usize].state != State::Bad {
            self.segment_mut(id).state = State::Bad;
            self.bad += 1;
        }
    }
    /// The segment's writer, while it has a buffer.
    pub fn writer(&self, id: u32) -> Option<&SegmentWriter> {
        let head = self.heads.iter().flatten().find(|w| w.life().segment == id);
        head.or_else(|| self.closing.get(&id))
    }
    /// The life of the segment that `loc` lies in.
    pub fn generation_of(&self, loc: Loc) -> u32 {
        self.segments[self.split(loc).0 as usize].generation
    }
    /// The entry at `loc` when its segment is still in memory.
    pub fn buffered(&self, loc: Loc) -> Option<Entry<'_>> {
        let (id, offset) = self.split(loc);
        self.writer(id).map(|w| w.entry(offset))
    }

    /// An entry of class `loc.class()` became live at `loc`.
    pub fn add_live(&mut self, loc: Loc) {
        let (id, _) = self.split(loc);
        let bytes = addr::class_bytes(loc.class()) as u32;
        let mut s = self.segment_mut(id);
        // More than there is room for only where a checkpoint says so.
        s.live_class_bytes = s.live_class_bytes.saturating_add(bytes);
    }
    /// The entry at `loc` is dead (its successor is appended).
    pub fn kill(&mut self, loc: Loc) {
        let (id, _) = self.split(loc);
        let bytes = addr::class_bytes(loc.class()) as u32;
        let mut s = self.segment_mut(id);
        debug_assert!(
            s.live_class_bytes >= bytes,
            "segment {id}: {:?} loses {bytes}",
            *s
        );
        let bytes = bytes.min(s.live_class_bytes);
        s.live_class_bytes -= bytes;
    }
    /// Sets every live count to zero (recovery counts anew).
    pub fn reset_live(&mut self) {
        for id in 0..self.segments.len() as u32 {
            self.segment_mut(id).live_class_bytes = 0;
        }
    }

    /// Plans the one read that brings the entry at `loc`, and holds its segment.
    pub fn plan_read(&mut self, loc: Loc) -> ReadPlan {
        let (id, offset) = self.split(loc);
        let s = &mut self.segments[id as usize];
        s.readers += 1;
        if s.readers == 1 {
            self.held += 1;
            self.held_free += usize::from(s.state == State::Free);
        }
        let end = (offset + addr::class_bytes(loc.class())).min(self.segment_bytes);
        let from = offset - offset % self.read_unit_bytes;
        let to = end
            .next_multiple_of(self.read_unit_bytes)
            .min(self.segment_bytes);
        ReadPlan {
            loc,
            offset: self.device_offset(id) + from as u64,
            len: to - from,
            skip: offset - from,
            seed: self.life(id).seed(offset),
            segment: id,
        }
    }
    /// Ends a hold of `plan_read`.
    pub fn unpin(&mut self, id: u32) {
        let s = &mut self.segments[id as usize];
        debug_assert!(s.readers > 0);
        s.readers -= 1;
        if s.readers == 0 {
            self.held -= 1;
            self.held_free -= usize::from(s.state == State::Free);
        }
    }

    /// A lower bound of the batch seqs that any bytes on the medium outside of one segment may still have, free
    /// segments included.
    pub fn oldest_seq(&self, except: u32) -> u64 {
        self.oldest.seq(except)
    }
    /// The lowest batch seq in segments that are set aside, as far as is known: tombstones that are not older stay for good.
    pub fn aside_seq(&self) -> u64 {
        self.oldest.aside_seq()
    }
    /// Walks on by some segments for both.
    pub fn look_for_oldest(&mut self, segments: usize) {
        self.oldest.walk(&self.segments, segments);
    }
}

/// Bytes of a segment that must be kept. Classes round up, so live ones count for what they are of the bytes used; but blocks that
/// small epochs have filled up are garbage, not live.
pub fn live_share(s: &Segment) -> u64 {
    let (used, total) = (s.used_bytes, s.total_class_bytes);
    let live = u64::from(s.live_class_bytes);
    // A division is worth avoiding: this is asked several times an update.
    let keep = match used < total {
        true => u64::from(used) * live / u64::from(total),
        false => live,
    };
    keep + u64::from(s.tomb_bytes)
}

/// Bytes of a segment that cleaning it would not gain.
pub fn kept_share(s: &Segment, segment_bytes: u64) -> u64 {
    kept_of(s, live_share(s), segment_bytes)
}

fn kept_of(s: &Segment, live_bytes: u64, segment_bytes: u64) -> u64 {
    let used = u64::from(s.used_bytes);
    let filled_up = used.saturating_sub(s.total_class_bytes.into());
    // Nothing died in it, and what it has beside entries may be what its last block was filled up with: so it would be again, for ever.
    let is_whole = s.live_class_bytes == s.total_class_bytes && filled_up <= BLOCK_BYTES as u64;
    match is_whole && policy::is_well_filled(used, segment_bytes) {
        true => segment_bytes,
        false => policy::kept_bytes(live_bytes, used, segment_bytes),
    }
}
