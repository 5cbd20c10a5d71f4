//! One table of a lane: an array of slots by dense number, and nothing else.
//!
//! A slot is as short as the table allows, since it is paid for each object:
//!
//! | shape | a slot holds | bytes |
//! |---|---|---|
//! | all objects of one size | heat, whether in DRAM, place (the size class follows from the size) | 4, or 5 in lanes above 8 GiB |
//! | any size | as in the key map: heat, class, terrace, place | 8 |
//!
//! What a slot can say is [`State`]; no place is ever coded as one of the small numbers: the first units of an SSD segment are its
//! header. Promises: memory is taken by the chunk of 16,384 slots when one of them is first used, counted, and given back when none is.
//! Never: hashes, compares keys, or knows what an entry holds.

use terrace_log::{Loc, Slot, Terrace, addr};

/// Slots of a chunk.
pub(crate) const CHUNK_SLOTS: usize = 1 << 14;
/// Bits of a slot below the place, where all entries have one size.
const FIXED_LOW_BITS: u32 = 3;
const FIXED_DRAM: u64 = 1 << 2;
/// Marks an 8-byte slot that names an entry.
const ANY_ENTRY: u64 = 1 << 63;
/// Marks an 8-byte slot of a page whose bytes are all the same.
const ANY_FILL: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// What the objects of a table look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All have this length, bytes.
    Fixed(u32),
    /// Each has its own.
    Any,
}

/// What is known of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No object has it.
    Free,
    /// An object that was never written: zeros.
    Zeros,
    /// All its bytes are this one. Only where sizes differ.
    Fill(u8),
    /// An entry of the log.
    At(Slot),
}

/// One table.
pub struct Table {
    /// Bytes of a slot: 4, 5 or 8.
    width: usize,
    class: u8,
    chunks: Vec<Option<Chunk>>,
    present: usize,
    entries: u64,
    /// Numbers below this were used before; how many of them are free; where the search for one goes on.
    fresh: u64,
    holes: u64,
    hint: u64,
}

struct Chunk {
    slots: Box<[u8]>,
    /// Slots that are not free.
    used: u32,
}

impl Table {
    /// An empty table in a lane whose places need `unit_bits` bits. `fixed_bytes`: how long the entries
    /// are, headers included, if they all are equally long.
    pub fn new(unit_bits: u32, fixed_bytes: Option<usize>) -> Table {
        let (width, class) = match fixed_bytes {
            Some(bytes) => {
                let width = (unit_bits + FIXED_LOW_BITS).div_ceil(8).max(4) as usize;
                (if width > 5 { 8 } else { width }, addr::class_of(bytes))
            }
            None => (8, 0),
        };
        Table {
            width,
            class,
            chunks: Vec::new(),
            present: 0,
            entries: 0,
            fresh: 0,
            holes: 0,
            hint: 0,
        }
    }

    /// Slots that name an entry.
    pub fn entries(&self) -> u64 {
        self.entries
    }
    /// Memory taken.
    pub fn bytes(&self) -> usize {
        self.present * (CHUNK_SLOTS * self.width + size_of::<Option<Chunk>>())
            + (self.chunks.capacity() - self.present) * size_of::<Option<Chunk>>()
    }
    /// Numbers that slots may be asked for: those above are free.
    pub fn end(&self) -> u64 {
        (self.chunks.len() * CHUNK_SLOTS) as u64
    }
    /// The next number from `at` on whose chunk has slots; None: no more.
    pub fn skip_to(&self, at: u64) -> Option<u64> {
        let first = at as usize / CHUNK_SLOTS;
        let found = (first..self.chunks.len()).find(|&c| self.chunks[c].is_some())?;
        Some(at.max((found * CHUNK_SLOTS) as u64))
    }

    fn raw(&self, n: u64) -> u64 {
        let (chunk, at) = (n as usize / CHUNK_SLOTS, n as usize % CHUNK_SLOTS);
        let Some(Some(chunk)) = self.chunks.get(chunk) else {
            return 0;
        };
        let bytes = &chunk.slots[at * self.width..(at + 1) * self.width];
        match self.width {
            4 => u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes"))),
            8 => u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            _ => {
                let low = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
                u64::from(low) | u64::from(bytes[4]) << 32
            }
        }
    }

    /// Asks for the memory of slot `n`.
    #[inline]
    pub fn prefetch(&self, n: u64) {
        let (chunk, at) = (n as usize / CHUNK_SLOTS, n as usize % CHUNK_SLOTS);
        if let Some(Some(chunk)) = self.chunks.get(chunk) {
            terrace_media::prefetch_line(&chunk.slots[at * self.width]);
        }
    }

    /// What is known of number `n`.
    #[inline]
    pub fn get(&self, n: u64) -> State {
        let raw = self.raw(n);
        match raw {
            0 => State::Free,
            ZEROS => State::Zeros,
            _ if self.is_fixed() => {
                let terrace = match raw & FIXED_DRAM != 0 {
                    true => Terrace::Dram,
                    false => Terrace::Ssd,
                };
                let loc = Loc::new(terrace, self.class, raw >> FIXED_LOW_BITS);
                State::At(Slot::new(loc, (raw & 3) as u8))
            }
            _ if raw & ANY_ENTRY != 0 => State::At(Slot(raw & !ANY_ENTRY)),
            _ => State::Fill(raw as u8),
        }
    }

    fn is_fixed(&self) -> bool {
        self.class != 0
    }

    fn code(&self, state: State) -> u64 {
        match state {
            State::Free => 0,
            State::Zeros => ZEROS,
            State::Fill(byte) => {
                assert!(
                    !self.is_fixed(),
                    "a table of objects of one size has no fill"
                );
                ANY_FILL | u64::from(byte)
            }
            State::At(slot) if self.is_fixed() => {
                let loc = slot.loc();
                debug_assert_eq!(loc.class(), self.class);
                debug_assert_ne!(loc.terrace(), Terrace::Middle);
                let dram = match loc.terrace() {
                    Terrace::Dram => FIXED_DRAM,
                    _ => 0,
                };
                let raw = loc.unit() << FIXED_LOW_BITS | dram | u64::from(slot.heat());
                // Silently cut off, it would name another object.
                assert!(
                    raw >> (8 * self.width) == 0,
                    "place {:#x} in a slot of {} bytes",
                    loc.unit(),
                    self.width
                );
                raw
            }
            State::At(slot) => slot.0 | ANY_ENTRY,
        }
    }

    /// Changes what is known of number `n`.
    pub fn set(&mut self, n: u64, state: State) {
        let (old, new) = (self.raw(n), self.code(state));
        if old == new {
            return;
        }
        let was_entry = matches!(self.get(n), State::At(_));
        self.entries =
            self.entries + u64::from(matches!(state, State::At(_))) - u64::from(was_entry);
        self.count_hole(n, old == 0, new == 0);
        let (chunk, at) = (n as usize / CHUNK_SLOTS, n as usize % CHUNK_SLOTS);
        let width = self.width;
        let place = self.chunk_mut(chunk);
        place.slots[at * width..(at + 1) * width].copy_from_slice(&new.to_le_bytes()[..width]);
        place.used = place.used + u32::from(old == 0) - u32::from(new == 0);
        if place.used == 0 {
            self.chunks[chunk] = None;
            self.present -= 1;
        }
    }

    fn count_hole(&mut self, n: u64, was_free: bool, is_free: bool) {
        match (was_free, is_free) {
            (true, false) if n < self.fresh => self.holes -= 1,
            (true, false) => {
                self.holes += n - self.fresh;
                self.fresh = n + 1;
            }
            (false, true) => self.holes += 1,
            _ => {}
        }
    }

    fn chunk_mut(&mut self, chunk: usize) -> &mut Chunk {
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let place = &mut self.chunks[chunk];
        self.present += usize::from(place.is_none());
        let width = self.width;
        place.get_or_insert_with(|| Chunk {
            slots: vec![0; CHUNK_SLOTS * width].into_boxed_slice(),
            used: 0,
        })
    }

    /// A free number, the lowest ones first that a search meets; it is the caller's to set.
    pub fn find_free(&mut self) -> u64 {
        if self.holes == 0 {
            return self.fresh;
        }
        let mut n = self.hint;
        loop {
            if n >= self.fresh {
                n = 0;
            }
            let chunk = n as usize / CHUNK_SLOTS;
            let full = self.chunks.get(chunk).and_then(Option::as_ref);
            if full.is_some_and(|c| c.used as usize == CHUNK_SLOTS) {
                n = ((chunk + 1) * CHUNK_SLOTS) as u64;
            } else if self.raw(n) == 0 {
                self.hint = n;
                return n;
            } else {
                n += 1;
            }
        }
    }

    /// Forgets all objects.
    pub fn clear(&mut self) {
        *self = Table {
            chunks: Vec::new(),
            present: 0,
            entries: 0,
            fresh: 0,
            holes: 0,
            hint: 0,
            ..*self
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn state(shape: Shape, bits: u32, of: (u8, u8, u64, u8)) -> State {
        let (what, heat, unit, byte) = of;
        let unit = unit & ((1 << bits) - 1);
        let class = match shape {
            Shape::Fixed(_) => addr::class_of(160),
            Shape::Any => byte & 31,
        };
        match what % 5 {
            0 => State::Free,
            1 => State::Zeros,
            2 if shape == Shape::Any => State::Fill(byte),
            3 => State::At(Slot::new(Loc::new(Terrace::Dram, class, unit), heat)),
            // As a segment's header keeps its first units from being anyone's.
            _ => State::At(Slot::new(Loc::new(Terrace::Ssd, class, unit.max(8)), heat)),
        }
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(
            fixed: bool, bits in 20u32..37,
            steps in prop::collection::vec((0u64..100_000, any::<(u8, u8, u64, u8)>(), any::<bool>()), 1..200)
        ) {
            let shape = if fixed { Shape::Fixed(128) } else { Shape::Any };
            let mut table = Table::new(bits, fixed.then_some(160));
            let mut map = BTreeMap::new();
            for (n, of, claim) in steps {
                let n = if claim {
                    let n = table.find_free();
                    prop_assert!(!map.contains_key(&n), "{n} is taken");
                    n
                } else {
                    n
                };
                let s = state(shape, bits, of);
                table.set(n, s);
                match s {
                    State::Free => map.remove(&n),
                    s => map.insert(n, s),
                };
                prop_assert_eq!(table.get(n), s);
                let entries = map.values().filter(|s| matches!(s, State::At(_))).count();
                prop_assert_eq!(table.entries(), entries as u64);
            }
            for n in (0..100_000).step_by(37).chain(map.keys().copied()) {
                prop_assert_eq!(table.get(n), map.get(&n).copied().unwrap_or(State::Free));
            }
            let numbers: Vec<u64> = map.keys().copied().collect();
            numbers.iter().for_each(|&n| table.set(n, State::Free));
            prop_assert_eq!((table.present, table.entries()), (0, 0));
            prop_assert_eq!(table.find_free() < table.fresh.max(1), true);
        }
    }

    #[test]
    fn thirty_million_objects_of_one_size_take_four_bytes_each() {
        let objects = 1 << 20;
        for (bits, most) in [(29, 4.01), (37, 5.01)] {
            let mut table = Table::new(bits, Some(160));
            for n in 0..objects {
                table.set(n, State::Zeros);
            }
            let each = table.bytes() as f64 / objects as f64;
            assert!(each <= most, "{each} bytes an object");
        }
    }

    #[test]
    #[should_panic(expected = "in a slot of 4 bytes")]
    fn a_place_that_does_not_fit_is_refused_loudly() {
        let mut table = Table::new(29, Some(160));
        let loc = Loc::new(Terrace::Ssd, addr::class_of(160), 1 << 29);
        table.set(0, State::At(Slot::new(loc, 0)));
    }
}
