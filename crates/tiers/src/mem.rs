//! A terrace of byte-addressable memory: segments, three heads, live bytes.
//!
//! The dirty head takes updates in their order; the clean heads take entries
//! that a terrace below has too, new ones apart from proven ones. A segment's life:
//!
//! | state | entered by | left by |
//! |---|---|---|
//! | free | `release` | an append opens it as a head |
//! | dirty | an append of an update | all of it is durable below: it is on probation, uncopied |
//! | probation | conversion, or an entry read for the first time | the cleaner emptied it |
//! | main | an entry that was used again | the cleaner emptied it |
//!
//! Promises: never takes more than `quota` segments; memory of a released
//! segment above the quota goes back to the kernel. Never: looks at the directory.

use crate::policy;
use crate::ranks::{self, Ranks};
use crate::units::Units;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use terrace_log::entry::{self, Entry, FLAG_DEAD};
use terrace_log::frame::SEGMENT_HEADER_BYTES;
use terrace_log::{Loc, NewEntry, Terrace, addr};
use terrace_media::{Arena, Piece};

/// Position in the update order of the dirty log: segment order and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Pos(u64);

const POS_OFFSET_BITS: u32 = 21;

impl Pos {
    fn new(order: u64, offset: usize) -> Pos {
        Pos(order << POS_OFFSET_BITS | offset as u64)
    }
    fn order(self) -> u64 {
        self.0 >> POS_OFFSET_BITS
    }
    /// Offset within its segment, bytes.
    pub fn offset(self) -> usize {
        (self.0 & ((1 << POS_OFFSET_BITS) - 1)) as usize
    }
}

/// Which head an entry enters at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Updates: not on a durable terrace yet.
    Dirty,
    /// Copies that were not used again yet.
    Probation,
    /// Copies that were.
    Main,
}

impl Head {
    fn queue(self) -> usize {
        usize::from(self == Head::Main)
    }
}

/// Clean segments of one kind: one that is filled, and full ones by the order they were opened in.
#[derive(Default)]
struct Queue {
    head: Option<u32>,
    full: BTreeSet<(u64, u32)>,
}

impl Queue {
    fn len(&self) -> usize {
        self.full.len() + usize::from(self.head.is_some())
    }
}

struct Segment {
    piece: Piece,
    order: u64,
    used: usize,
    live: usize,
    head: Head,
    /// Which head opened it.
    born: Head,
}

/// How far ahead of a walk memory is asked for.
const WALK_AHEAD_BYTES: usize = 1024;
/// What a look at an entry's header and key takes, mostly.
const ENTRY_HEAD_BYTES: usize = 64;

/// One memory terrace of a lane.
pub struct MemTerrace {
    terrace: Terrace,
    segment_bytes: usize,
    units: Units,
    arena: Arc<Arena>,
    segments: Vec<Option<Segment>>,
    free: Vec<u32>,
    /// Pieces of released segments: taking them again costs no page fault.
    spare_pieces: Vec<Piece>,
    quota: usize,
    dirty: VecDeque<u32>,
    /// Probation and main.
    clean: [Queue; 2],
    /// Full segments of main by live share.
    ranks: Ranks,
    next_order: u64,
    live_bytes: usize,
    /// Where `dirty_next` was last.
    walked: u32,
}

impl MemTerrace {
    /// An empty terrace of at most `quota` segments out of `arena`.
    pub fn new(terrace: Terrace, segment_bytes: usize, arena: Arc<Arena>, quota: usize) -> Self {
        MemTerrace {
            terrace,
            segment_bytes,
            units: Units::of(segment_bytes),
            arena,
            segments: Vec::new(),
            free: Vec::new(),
            spare_pieces: Vec::new(),
            quota,
            dirty: VecDeque::new(),
            clean: Default::default(),
            ranks: Ranks::new(),
            next_order: 1,
            live_bytes: 0,
            walked: 0,
        }
    }

    /// Longest run of entries a segment takes, bytes; as much as a segment of a warm image.
    pub fn capacity_bytes(&self) -> usize {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }
    /// Segments in use.
    pub fn taken(&self) -> usize {
        self.segments.len() - self.free.len()
    }
    /// Segments that may be in use.
    pub fn quota(&self) -> usize {
        self.quota
    }
    /// Changes the quota; above it nothing is taken until the cleaner has released enough.
    pub fn set_quota(&mut self, quota: usize) {
        self.quota = quota;
        self.trim();
    }
    fn trim(&mut self) {
        let keep = self.free_segments();
        self.spare_pieces.truncate(keep);
    }
    /// Segments whose memory is held, in use or ready for use.
    pub fn held(&self) -> usize {
        self.taken() + self.spare_pieces.len()
    }
    /// Bytes of live entries, headers included.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }
    /// Segments that may still be taken.
    pub fn free_segments(&self) -> usize {
        self.quota.saturating_sub(self.taken())
    }

    #[inline]
    fn split(&self, unit: u64) -> (usize, usize) {
        let (id, offset) = self.units.split(unit);
        (id as usize, offset)
    }
    fn unit(&self, id: u32, offset: usize) -> u64 {
        self.units.unit(id, offset)
    }
    fn segment(&self, id: u32) -> &Segment {
        self.segments[id as usize].as_ref().expect("segment in use")
    }
    fn segment_mut(&mut self, id: u32) -> &mut Segment {
        self.segments[id as usize].as_mut().expect("segment in use")
    }

    /// The entry at a location of this terrace.
    #[inline]
    pub fn entry(&self, loc: Loc) -> Entry<'_> {
        let (id, offset) = self.split(loc.unit());
        let s = self.segment(id as u32);
        Entry::in_memory(&s.piece[offset..s.used])
    }
    /// Asks for the memory of the entry at a location of this terrace.
    #[inline]
    pub fn prefetch(&self, loc: Loc) {
        let (id, offset) = self.split(loc.unit());
        if let Some(Some(s)) = self.segments.get(id) {
            let end = (offset + addr::class_bytes(loc.class())).min(s.used);
            terrace_media::prefetch(s.piece.get(offset..end).unwrap_or(&[]));
        }
    }
    /// Asks for the head of the entry at `offset` of a segment.
    pub fn prefetch_at(&self, id: u32, offset: usize) {
        if let Some(Some(s)) = self.segments.get(id as usize) {
            let end = (offset + ENTRY_HEAD_BYTES).min(s.used);
            terrace_media::prefetch(s.piece.get(offset..end).unwrap_or(&[]));
        }
    }
    /// Bytes from the entry at a location on, for changes of link, flags, expiry.
    pub fn entry_mut(&mut self, loc: Loc) -> &mut [u8] {
        let (id, offset) = self.split(loc.unit());
        &mut self.segment_mut(id as u32).piece[offset..]
    }

    /// Where `loc` stands in the update order; None for a clean segment.
    pub fn dirty_pos(&self, loc: Loc) -> Option<Pos> {
        let (id, offset) = self.split(loc.unit());
        let s = self.segment(id as u32);
        (s.head == Head::Dirty).then(|| Pos::new(s.order, offset))
    }

    /// Appends at a head; None when a new segment is needed and `spare` would not stay free.
    pub fn append(&mut self, head: Head, new: &NewEntry<'_>, spare: usize) -> Option<Loc> {
        let len = new.len_bytes();
        let id = self.head_with_room(head, len, spare)?;
        let s = self.segment_mut(id);
        let offset = s.used;
        new.write(&mut s.piece[offset..offset + len]);
        Some(self.appended(id, len))
    }

    /// Copies an entry to the main head, byte for byte.
    pub fn copy_to_main(&mut self, loc: Loc) -> Option<Loc> {
        let len = self.entry(loc).len_bytes();
        let id = self.head_with_room(Head::Main, len, 0)?;
        let (from, offset) = self.split(loc.unit());
        let pair = self.segments.get_disjoint_mut([from, id as usize]).ok()?;
        let [Some(source), Some(target)] = pair else {
            return None;
        };
        let at = target.used;
        target.piece[at..at + len].copy_from_slice(&source.piece[offset..offset + len]);
        Some(self.appended(id, len))
    }

    fn head_with_room(&mut self, head: Head, len: usize, spare: usize) -> Option<u32> {
        let capacity = self.capacity_bytes();
        debug_assert!(len <= capacity);
        let current = match head {
            Head::Dirty => self.dirty.back().copied(),
            clean => self.clean[clean.queue()].head,
        };
        match current {
            Some(id) if self.segment(id).used + len <= capacity => Some(id),
            _ => self.open_head(head, spare),
        }
    }

    /// Whether updates of `bytes` find a place at the dirty head without another segment. None: there is no such head.
    pub fn dirty_head_takes(&self, bytes: usize) -> Option<bool> {
        let head = self.segment(*self.dirty.back()?);
        Some(head.used + bytes <= self.capacity_bytes())
    }

    fn appended(&mut self, id: u32, len: usize) -> Loc {
        let s = self.segment_mut(id);
        let offset = s.used;
        s.used += len;
        s.live += len;
        self.live_bytes += len;
        Loc::new(self.terrace, addr::class_of(len), self.unit(id, offset))
    }

    fn open_head(&mut self, head: Head, spare: usize) -> Option<u32> {
        if self.free_segments() <= spare {
            return None;
        }
        let piece = match self.spare_pieces.pop() {
            Some(piece) => piece,
            None => self.arena.take()?,
        };
        let segment = Segment {
            piece,
            order: self.next_order,
            used: 0,
            live: 0,
            head,
            born: head,
        };
        self.next_order += 1;
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.segments.push(None);
                (self.segments.len() - 1) as u32
            }
        };
        self.segments[id as usize] = Some(segment);
        match head {
            Head::Dirty => self.dirty.push_back(id),
            clean => {
                if let Some(full) = self.clean[clean.queue()].head.replace(id) {
                    self.queue(full);
                }
            }
        }
        Some(id)
    }

    /// The entry of `len` bytes at `loc` is dead: no slot names it any more, and it
    /// says so itself, so that nobody who walks the log asks the directory.
    pub fn kill(&mut self, loc: Loc, len: usize) {
        let (id, offset) = self.split(loc.unit());
        let id = id as u32;
        let before = self.rank(id);
        let s = self.segment_mut(id);
        s.live -= len;
        entry::add_flags(&mut s.piece[offset..], FLAG_DEAD);
        self.live_bytes -= len;
        let after = self.rank(id);
        if before != after && self.ranks.remove(before.0, before.1, id) {
            self.ranks.add(after.0, after.1, id);
        }
    }
    /// Of a full segment. Its end, into which the next entry did not fit, would be left where its entries go, too: counted as a gain, long ones would be moved round for ever.
    fn rank(&self, id: u32) -> (u8, u64) {
        let s = self.segment(id);
        let kept = match s.live {
            0 => 0,
            live => live + self.segment_bytes - s.used,
        };
        let live = ranks::bucket(kept as u64, self.segment_bytes as u64);
        (live, s.order)
    }
    /// Puts a full clean segment where its age says.
    fn queue(&mut self, id: u32) {
        let s = self.segment(id);
        let (order, head) = (s.order, s.head);
        self.clean[head.queue()].full.insert((order, id));
        if head == Head::Main {
            let (live, order) = self.rank(id);
            self.ranks.add(live, order, id);
        }
    }
    fn unqueue(&mut self, id: u32) {
        let s = self.segment(id);
        let (order, head) = (s.order, s.head);
        self.clean[head.queue()].full.remove(&(order, id));
        if head == Head::Main {
            let (live, order) = self.rank(id);
            self.ranks.remove(live, order, id);
        }
    }

    /// Next position of the dirty log.
    pub fn dirty_end(&self) -> Pos {
        match self.dirty.back() {
            Some(&id) => Pos::new(self.segment(id).order, self.segment(id).used),
            None => Pos::new(self.next_order, 0),
        }
    }

    /// Position behind the oldest `bytes` of the dirty log, at the end of a segment: all of it if there are no more.
    pub fn dirty_cut(&self, bytes: u64) -> Pos {
        let mut passed = 0;
        for &id in &self.dirty {
            if passed >= bytes {
                return Pos::new(self.segment(id).order, 0);
            }
            passed += self.segment(id).used as u64;
        }
        self.dirty_end()
    }
    /// Bytes of the dirty log behind `pos`.
    pub fn dirty_after(&self, pos: Pos) -> u64 {
        let behind = |&id: &u32| {
            let s = self.segment(id);
            match s.order.cmp(&pos.order()) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => s.used.saturating_sub(pos.offset()),
                std::cmp::Ordering::Greater => s.used,
            }
        };
        // From the young end: in a pool that keeps its data the cut is there.
        let young = self.dirty.iter().rev();
        young.map(behind).take_while(|b| *b > 0).sum::<usize>() as u64
    }

    /// The entry at or after `pos` in the dirty log and before `end`, with its
    /// location and the position behind it.
    pub fn dirty_next(&mut self, pos: Pos, end: Pos) -> Option<(Loc, Pos)> {
        // Mostly the walk goes on in the segment where it was.
        if let Some(Some(s)) = self.segments.get(self.walked as usize)
            && s.order == pos.order()
            && pos.offset() < s.used
        {
            return (pos < end).then(|| self.walk(self.walked, pos.offset()));
        }
        let from = (self.dirty).partition_point(|&id| self.segment(id).order < pos.order());
        for at in from..self.dirty.len() {
            let id = self.dirty[at];
            let s = self.segment(id);
            let offset = match s.order == pos.order() {
                true => pos.offset(),
                false => 0,
            };
            if Pos::new(s.order, offset) >= end {
                return None;
            }
            if offset < s.used {
                self.walked = id;
                return Some(self.walk(id, offset));
            }
        }
        None
    }

    fn walk(&self, id: u32, offset: usize) -> (Loc, Pos) {
        let s = self.segment(id);
        let ahead = offset + WALK_AHEAD_BYTES;
        terrace_media::prefetch(s.piece.get(ahead..ahead + 1).unwrap_or(&[]));
        let len = Entry::in_memory(&s.piece[offset..s.used]).len_bytes();
        let loc = Loc::new(self.terrace, addr::class_of(len), self.unit(id, offset));
        (loc, Pos::new(s.order, offset + len))
    }

    /// Everything before `pos` is durable below: whole segments become clean,
    /// and those without a live entry are released.
    pub fn made_durable(&mut self, pos: Pos) {
        while let Some(&id) = self.dirty.front() {
            let s = self.segment(id);
            let last = self.dirty.len() == 1;
            if Pos::new(s.order, s.used) > pos || (last && s.used < self.capacity_bytes()) {
                break;
            }
            self.dirty.pop_front();
            if self.segment(id).live == 0 {
                self.release(id);
            } else {
                self.segment_mut(id).head = Head::Probation;
                self.queue(id);
            }
        }
    }

    /// Seals the dirty head, so that nothing stays half dirty and half clean. For a clean stop.
    pub fn seal_dirty_head(&mut self) {
        while let Some(id) = self.dirty.pop_front() {
            self.segment_mut(id).head = Head::Probation;
            self.queue(id);
        }
    }

    /// Takes a clean segment for cleaning, and says why; a head only when there is nothing else.
    pub fn take_victim(&mut self) -> Option<(u32, policy::Victim)> {
        let [probation, main] = &self.clean;
        let which = policy::victim_queue(probation.len(), main.len(), self.quota);
        let emptiest = (0..policy::COMPACT_BELOW).find_map(|live| self.ranks.of(live).next());
        if let Some(id) = emptiest.filter(|_| which == policy::Victim::Main) {
            self.unqueue(id);
            return Some((id, policy::Victim::Fragmented));
        }
        let at = usize::from(which == policy::Victim::Main);
        if let Some(&(_, id)) = self.clean[at].full.first() {
            self.unqueue(id);
            return Some((id, which));
        }
        let head = self.clean[at].head?;
        (self.segment(head).used > 0).then(|| {
            self.clean[at].head = None;
            (head, which)
        })
    }
    /// A victim is not cleaned after all.
    pub fn give_victim_back(&mut self, id: u32) {
        self.queue(id);
    }
    /// Whether `take_victim` would find one.
    pub fn has_victim(&self) -> bool {
        self.clean.iter().any(|q| q.len() > 0)
    }
    /// Whether the entry came in at a clean head (it was read, or kept before).
    pub fn born_clean(&self, loc: Loc) -> bool {
        let (id, _) = self.split(loc.unit());
        self.segment(id as u32).born != Head::Dirty
    }
    /// Live and used bytes of a segment.
    pub fn fill(&self, id: u32) -> (usize, usize) {
        (self.segment(id).live, self.segment(id).used)
    }
    /// The entry at `offset` of a segment taken for cleaning, and the next offset.
    pub fn victim_entry(&self, id: u32, offset: usize) -> Option<(Loc, usize)> {
        let s = self.segment(id);
        (offset < s.used).then(|| {
            let len = Entry::in_memory(&s.piece[offset..s.used]).len_bytes();
            let loc = Loc::new(self.terrace, addr::class_of(len), self.unit(id, offset));
            (loc, offset + len)
        })
    }
    /// Gives an emptied segment's memory back.
    pub fn release(&mut self, id: u32) {
        let s = self.segments[id as usize].take().expect("segment in use");
        self.live_bytes -= s.live;
        self.free.push(id);
        self.spare_pieces.push(s.piece);
        self.trim();
    }

    /// Drops everything. For a flush of all keys.
    pub fn clear(&mut self) {
        for id in 0..self.segments.len() as u32 {
            if self.segments[id as usize].is_some() {
                self.release(id);
            }
        }
        self.dirty.clear();
        self.clean = Default::default();
        self.ranks.clear();
    }

    /// Clean segments: those on probation, then the main ones, each oldest first.
    pub fn clean_ids(&self) -> Vec<u32> {
        let queues = self.clean.iter();
        let ids = queues.flat_map(|q| q.full.iter().map(|&(_, id)| id).chain(q.head));
        ids.collect()
    }
}

impl std::fmt::Debug for MemTerrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemTerrace")
            .field("terrace", &self.terrace)
            .field("taken", &self.taken())
            .field("quota", &self.quota)
            .field("dirty", &self.dirty.len())
            .field("probation", &self.clean[0].len())
            .field("main", &self.clean[1].len())
            .finish_non_exhaustive()
    }
}
