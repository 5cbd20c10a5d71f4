//! One page: a header word and up to 63 slots sorted by tag, in 1 to 8 cache lines.
//!
//! Promises: slots stay dense and sorted, words behind the last slot are all ones (so that a search may start on one), and the
//! header's `valid_bits_min` is never larger than the valid bits of any slot. Never allocates, never knows where a page lies.

use crate::slot::Layout;

pub(crate) const WORDS_PER_LINE: usize = 8;
pub(crate) const LINES_MAX: usize = 8;
/// Slots of the largest page; one word is the header.
pub(crate) const SLOTS_MAX: usize = LINES_MAX * WORDS_PER_LINE - 1;
/// Fills the words that hold no slot.
const UNUSED: u64 = u64::MAX;

/// Longest prefix of a page in bits: bounds a shard's directory to 2^24 entries, 64 MiB.
pub const DEPTH_MAX: u32 = 24;
/// Most shards of an index; the header has 16 bits for the number.
pub const SHARDS_MAX: u32 = 1 << 16;

/// Lines that a page of `slots` slots needs.
pub(crate) fn lines_for(slots: usize) -> usize {
    slots / WORDS_PER_LINE + 1
}

/// The first word of a page: `[prefix 30][shard 16][depth 6][valid_bits_min 6][count 6]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header(pub(crate) u64);

impl Header {
    fn new(place: Place, valid_bits_min: u32, count: usize) -> Header {
        Header(
            u64::from(place.prefix) << 34
                | u64::from(place.shard) << 18
                | u64::from(place.depth) << 12
                | u64::from(valid_bits_min) << 6
                | count as u64,
        )
    }

    pub(crate) fn count(self) -> usize {
        (self.0 & 63) as usize
    }

    pub(crate) fn valid_bits_min(self) -> u32 {
        (self.0 >> 6 & 63) as u32
    }

    pub(crate) fn depth(self) -> u32 {
        (self.0 >> 12 & 63) as u32
    }

    pub(crate) fn place(self) -> Place {
        Place {
            shard: (self.0 >> 18 & 0xffff) as u32,
            depth: self.depth(),
            prefix: (self.0 >> 34) as u32,
        }
    }
}

/// Which hashes a page covers: those of `shard` whose first `depth` bits are `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: u32,
    pub(crate) depth: u32,
    pub(crate) prefix: u32,
}

impl Place {
    pub(crate) fn root(shard: u32) -> Place {
        Place {
            shard,
            depth: 0,
            prefix: 0,
        }
    }

    pub(crate) fn child(self, bit: u32) -> Place {
        Place {
            shard: self.shard,
            depth: self.depth + 1,
            prefix: self.prefix << 1 | bit,
        }
    }

    pub(crate) fn parent(self) -> Place {
        Place {
            shard: self.shard,
            depth: self.depth - 1,
            prefix: self.prefix >> 1,
        }
    }

    /// The first hash of the page.
    pub(crate) fn hash_first(self) -> u64 {
        // Two shifts: a depth of 0 would ask for 64 at once.
        (u64::from(self.prefix) << 1) << (63 - self.depth)
    }

    /// The first hash behind the page, or None at the end of the shard.
    pub(crate) fn hash_next(self) -> Option<u64> {
        let span = 1u64.checked_shl(64 - self.depth)?;
        self.hash_first().checked_add(span)
    }
}

/// The slots of a page as it lies in memory.
pub(crate) fn slots(words: &[u64]) -> &[u64] {
    &words[1..=Header(words[0]).count()]
}

/// Calls `f` for each slot that matches `hash`, with its index, until it says true; returns that slot's index.
///
/// `depth_hint` is the page's depth as the directory remembers it. It only chooses where the search starts, so that the slots are
/// fetched at the same time as the header; a wrong one costs time, not correctness.
#[inline]
pub(crate) fn find(
    words: &[u64],
    layout: Layout,
    hash: u64,
    depth_hint: u32,
    mut f: impl FnMut(usize, u64) -> bool,
) -> Option<usize> {
    let guess = guess(words.len(), hash << depth_hint);
    let header = Header(words[0]);
    let probe = layout.probe(hash, header.depth());
    let span = u64::MAX >> header.valid_bits_min();
    let slots = &words[1..];
    let count = header.count();
    let mut i = lower_bound(slots, count, guess, probe & !span);
    while i < count && slots[i] <= probe | span {
        if layout.matches(slots[i], probe) && f(i, slots[i]) {
            return Some(i);
        }
        i += 1;
    }
    None
}

/// Asks for the header and the line where `find` begins.
#[inline]
pub(crate) fn prefetch(words: &[u64], hash: u64, depth_hint: u32) {
    let at = 1 + guess(words.len(), hash << depth_hint);
    terrace_media::prefetch(bytemuck::cast_slice(&words[..1]));
    terrace_media::prefetch(bytemuck::cast_slice(&words[at..=at]));
}

/// Where a slot that begins with `bits` should lie in a page of `words` words of which about 4 are unused.
fn guess(words: usize, bits: u64) -> usize {
    let slots_typical = words as u64 - 4;
    (((bits >> 32) * slots_typical) >> 32) as usize
}

/// Index of the first slot that is at least `low`, found by walking from `start`.
#[inline]
fn lower_bound(slots: &[u64], count: usize, start: usize, low: u64) -> usize {
    let mut i = start;
    while i > 0 && slots[i - 1] >= low {
        i -= 1;
    }
    while i < count && slots[i] < low {
        i += 1;
    }
    i
}

/// Adds a slot that holds all valid bits of its hash. The page must have an unused word.
pub(crate) fn insert(words: &mut [u64], slot: u64, layout: Layout) {
    let count = Header(words[0]).count();
    debug_assert!(count + 1 < words.len());
    let low = slot & !layout.payload_mask();
    let start = guess(words.len(), slot);
    let i = lower_bound(&words[1..], count, start, low);
    words.copy_within(1 + i..1 + count, 2 + i);
    words[1 + i] = slot;
    words[0] += 1;
}

/// Takes the slot at `i` out and returns it.
pub(crate) fn remove(words: &mut [u64], i: usize, layout: Layout) -> u64 {
    let header = Header(words[0]);
    let count = header.count();
    let slot = words[1 + i];
    words.copy_within(2 + i..1 + count, 1 + i);
    words[count] = UNUSED;
    let old_page = header.valid_bits_min() < layout.valid_bits_max();
    let min = if old_page {
        valid_bits_min(&words[1..count], layout)
    } else {
        header.valid_bits_min()
    };
    words[0] = Header::new(header.place(), min, count - 1).0;
    slot
}

fn valid_bits_min(slots: &[u64], layout: Layout) -> u32 {
    // The sentinel is the lowest set bit of a tag, so the highest of them belongs to the slot with the fewest valid bits.
    let sentinels = slots
        .iter()
        .map(|slot| layout.tag(*slot))
        .fold(1, |all, tag| all | (tag & tag.wrapping_neg()));
    layout.valid_bits_max() - sentinels.ilog2()
}

/// A page on the stack, between being taken out of the arenas and put back in another shape.
pub(crate) struct PageBuf {
    pub(crate) place: Place,
    count: usize,
    slots: [u64; SLOTS_MAX],
}

impl PageBuf {
    pub(crate) fn empty(place: Place) -> PageBuf {
        PageBuf {
            place,
            count: 0,
            slots: [UNUSED; SLOTS_MAX],
        }
    }

    pub(crate) fn read(words: &[u64]) -> PageBuf {
        let mut page = PageBuf::empty(Header(words[0]).place());
        for slot in slots(words) {
            page.push(*slot);
        }
        page
    }

    pub(crate) fn slots(&self) -> &[u64] {
        &self.slots[..self.count]
    }

    pub(crate) fn lines(&self) -> usize {
        lines_for(self.count)
    }

    /// Adds a slot behind all others; its tag must not be smaller than the last one's.
    pub(crate) fn push(&mut self, slot: u64) {
        self.slots[self.count] = slot;
        self.count += 1;
    }

    /// Adds a slot where its tag belongs.
    pub(crate) fn insert(&mut self, slot: u64, layout: Layout) {
        let tag = layout.tag(slot);
        let i = self
            .slots()
            .partition_point(|other| layout.tag(*other) < tag);
        self.slots.copy_within(i..self.count, i + 1);
        self.slots[i] = slot;
        self.count += 1;
    }

    /// The two halves by the next hash bit. Every slot must have a valid bit.
    pub(crate) fn split(&self, layout: Layout) -> (PageBuf, PageBuf) {
        let middle = self.slots().partition_point(|slot| slot >> 63 == 0);
        let mut halves = (
            PageBuf::empty(self.place.child(0)),
            PageBuf::empty(self.place.child(1)),
        );
        for slot in &self.slots[..middle] {
            halves.0.push(layout.deepen(*slot));
        }
        for slot in &self.slots[middle..self.count] {
            halves.1.push(layout.deepen(*slot));
        }
        halves
    }

    /// The page of which `low` and `high` are the halves. Both must fit into one.
    pub(crate) fn merge(low: &PageBuf, high: &PageBuf, layout: Layout) -> PageBuf {
        debug_assert_eq!(low.place.parent(), high.place.parent());
        let mut page = PageBuf::empty(low.place.parent());
        for slot in low.slots() {
            page.push(layout.lift(*slot, 0));
        }
        for slot in high.slots() {
            page.push(layout.lift(*slot, 1));
        }
        page
    }

    /// Writes the page over `words`, which must be at least its `lines()`.
    pub(crate) fn write(&self, words: &mut [u64], layout: Layout) {
        let min = valid_bits_min(self.slots(), layout);
        words[0] = Header::new(self.place, min, self.count).0;
        let (_, room) = words.split_at_mut(1);
        room.copy_from_slice(&self.slots[..room.len()]);
    }

    /// How many times this full page must split before it and `probe` no longer lie all on one side; None when some slot runs out
    /// of valid bits before that.
    pub(crate) fn splits_needed(&self, probe: u64, layout: Layout) -> Option<u32> {
        let first = probe.min(*self.slots().first()?);
        let last = probe.max(*self.slots().last()?);
        let splits = layout.common_bits(first, last) + 1;
        (splits <= valid_bits_min(self.slots(), layout)).then_some(splits)
    }
}
