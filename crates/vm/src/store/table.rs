//! One table of a lane: an array of slots by dense number, and nothing else.
//!
//! A slot is as short as the table allows, since it is paid for each object:
//!
//! | shape | a slot holds | bytes |
//! |---|---|---|
//! | all objects of one size | heat, place (the size class follows from the size) | 4, or 5 in lanes above 16 GiB |
//! | the same, where four bytes can say it (lanes of up to 2.2 GiB for objects of 128 bytes, 1.3 GiB for 512, DRAM and SSD together), or in a chunk where one was packed | heat, class, place | 4, or one more than above |
//! | any size | as in the key map: heat, class, terrace, place | 8 |
//!
//! Where objects have one size a slot is a number: 4 × (classes × place + class) + heat, with the places of DRAM behind those of the SSD, since bits would be
//! rounded up for each.
//! What a slot can say is [`State`]; no place is ever coded as one of the small numbers: the first units of an SSD segment are its
//! header. Promises: memory is taken by the chunk of 16,384 slots when one of them is first used, counted, and given back when none is; a chunk's slots
//! have a class from the first object on that is shorter than all, until none is used.
//! Never: hashes, compares keys, or knows what an entry holds.

use terrace_log::addr::{self, HEAT_MAX};
use terrace_log::{Loc, Slot, Terrace};

/// Slots of a chunk.
pub(crate) const CHUNK_SLOTS: usize = 1 << 14;
/// A slot of a page, in promises: by the page, though tables take chunks of them, since the pages of a malloc or a region lie close.
pub(crate) const PAGE_SLOT_BYTES: u64 = 8;
/// What heat can be, where objects have one size.
const HEATS: u64 = HEAT_MAX as u64 + 1;
/// A slot is read by eight bytes: so many more are behind the last.
const SLACK_BYTES: usize = 8;
/// Marks an 8-byte slot that names an entry.
const ANY_ENTRY: u64 = 1 << 63;
/// Marks an 8-byte slot of a page whose bytes are all the same.
const ANY_FILL: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// What the objects of a table look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All have this length, bytes; what is stored of one may be shorter, if it is packed.
    Fixed(u32),
    /// Each has its own.
    Any,
}

/// Where the entries of a lane can be, in units of 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Units of its SSD terrace.
    pub ssd: u64,
    /// Units that its DRAM terrace may have.
    pub dram: u64,
}

impl Places {
    /// The number of a place, from 0.
    fn number(self, loc: Loc) -> u64 {
        let (from, units) = match loc.terrace() {
            Terrace::Dram => (self.ssd, self.dram),
            _ => (0, self.ssd),
        };
        // Silently taken, it would name another object.
        assert!(loc.unit() < units, "place {loc:?} of {self:?}");
        from + loc.unit()
    }

    /// What number `number` is the place of.
    fn loc(self, number: u64, class: u8) -> Loc {
        match number.checked_sub(self.ssd) {
            Some(unit) => Loc::new(Terrace::Dram, class, unit),
            None => Loc::new(Terrace::Ssd, class, number),
        }
    }
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

/// How the slots of a chunk are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Any,
    /// Entries of class `class`; of any up to it where slots tell `classes` of them.
    Fixed {
        width: u8,
        class: u8,
        classes: u8,
        places: Places,
    },
}

/// One table.
pub struct Table {
    /// Of new chunks.
    form: Form,
    places: Places,
    chunks: Vec<Option<Chunk>>,
    /// What the chunks that are there take, bytes.
    present_bytes: usize,
    entries: u64,
    /// Numbers below this were used before; how many of them are free; where the search for one goes on.
    fresh: u64,
    holes: u64,
    hint: u64,
}

struct Chunk {
    slots: Box<[u8]>,
    form: Form,
    /// Slots that are not free.
    used: u32,
}

impl Form {
    /// `fixed_bytes`: how long entries are that are not packed, if they all are equally long.
    fn of(places: Places, fixed_bytes: Option<usize>) -> Form {
        let Some(class) = fixed_bytes.map(addr::class_of) else {
            return Form::Any;
        };
        let (plain, classed) = (Form::fixed(places, class, 1), Form::classed(places, class));
        match plain.width() < classed.width() {
            true => plain,
            false => classed,
        }
    }

    /// Slots that say their class.
    fn classed(places: Places, class: u8) -> Form {
        Form::fixed(places, class, class + 1)
    }

    fn fixed(places: Places, class: u8, classes: u8) -> Form {
        let slots = (places.ssd + places.dram) * u64::from(classes) * HEATS;
        match slots.ilog2() / 8 + 1 {
            bytes @ ..7 => Form::Fixed {
                width: bytes.max(4) as u8,
                class,
                classes,
                places,
            },
            _ => Form::Any,
        }
    }

    /// Bytes of a slot.
    fn width(self) -> usize {
        match self {
            Form::Any => 8,
            Form::Fixed { width, .. } => width.into(),
        }
    }

    fn chunk_bytes(self) -> usize {
        CHUNK_SLOTS * self.width() + SLACK_BYTES
    }

    fn decode(self, raw: u64) -> State {
        match (raw, self) {
            (0, _) => State::Free,
            (ZEROS, _) => State::Zeros,
            (
                _,
                Form::Fixed {
                    class,
                    classes,
                    places,
                    ..
                },
            ) => {
                let (place, heat) = (raw / HEATS, raw % HEATS);
                let (number, own) = match classes {
                    1 => (place, class),
                    _ => (
                        place / u64::from(classes),
                        (place % u64::from(classes)) as u8,
                    ),
                };
                State::At(Slot::new(places.loc(number, own), heat as u8))
            }
            _ if raw & ANY_ENTRY != 0 => State::At(Slot(raw & !ANY_ENTRY)),
            _ => State::Fill(raw as u8),
        }
    }

    /// None: the entry is not of the class that all have here.
    fn code(self, state: State) -> Option<u64> {
        Some(match (state, self) {
            (State::Free, _) => 0,
            (State::Zeros, _) => ZEROS,
            (State::Fill(byte), Form::Any) => ANY_FILL | u64::from(byte),
            (State::Fill(_), _) => panic!("a table of objects of one size has no fill"),
            (State::At(slot), Form::Any) => slot.0 | ANY_ENTRY,
            (
                State::At(slot),
                Form::Fixed {
                    class,
                    classes,
                    places,
                    ..
                },
            ) => {
                let loc = slot.loc();
                debug_assert_ne!(loc.terrace(), Terrace::Middle);
                // As in `Places::number`.
                assert!(loc.class() <= class, "{loc:?} where the longest is {class}");
                let own = match classes {
                    1 if loc.class() != class => return None,
                    1 => 0,
                    _ => u64::from(loc.class()),
                };
                let place = places.number(loc) * u64::from(classes) + own;
                place * HEATS + u64::from(slot.heat())
            }
        })
    }
}

impl Chunk {
    fn new(form: Form) -> Chunk {
        Chunk {
            slots: vec![0; form.chunk_bytes()].into_boxed_slice(),
            form,
            used: 0,
        }
    }

    fn raw(&self, at: usize) -> u64 {
        let from = at * self.form.width();
        let bytes = &self.slots[from..from + 8];
        let all = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        all & u64::MAX >> (64 - 8 * self.form.width())
    }

    fn set_raw(&mut self, at: usize, raw: u64) {
        let width = self.form.width();
        self.used = self.used + u32::from(self.raw(at) == 0) - u32::from(raw == 0);
        self.slots[at * width..(at + 1) * width].copy_from_slice(&raw.to_le_bytes()[..width]);
    }

    /// The same slots in another form.
    fn in_form(&self, form: Form) -> Chunk {
        let mut chunk = Chunk::new(form);
        for at in 0..CHUNK_SLOTS {
            let state = self.form.decode(self.raw(at));
            let raw = form.code(state).expect("a wider slot says all");
            chunk.set_raw(at, raw);
        }
        chunk
    }
}

impl Table {
    /// An empty table in a lane with these places. `fixed_bytes`: how long the entries are that are not packed, headers included,
    /// if they all are equally long.
    pub fn new(places: Places, fixed_bytes: Option<usize>) -> Table {
        Table {
            form: Form::of(places, fixed_bytes),
            places,
            chunks: Vec::new(),
            present_bytes: 0,
            entries: 0,
            fresh: 0,
            holes: 0,
            hint: 0,
        }
    }

    /// What a chunk of such a table takes at most: where its objects are packed.
    pub fn chunk_bytes_max(places: Places, fixed_bytes: Option<usize>) -> usize {
        let class = fixed_bytes.map(addr::class_of);
        class
            .map_or(Form::Any, |class| Form::classed(places, class))
            .chunk_bytes()
    }

    /// Slots that name an entry.
    pub fn entries(&self) -> u64 {
        self.entries
    }
    /// Memory taken.
    pub fn bytes(&self) -> usize {
        self.present_bytes + self.chunks.capacity() * size_of::<Option<Chunk>>()
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

    /// The chunk of slot `n`, and where in it.
    fn chunk(&self, n: u64) -> Option<(&Chunk, usize)> {
        let (chunk, at) = (n as usize / CHUNK_SLOTS, n as usize % CHUNK_SLOTS);
        Some((self.chunks.get(chunk)?.as_ref()?, at))
    }

    /// Asks for the memory of slot `n`.
    #[inline]
    pub fn prefetch(&self, n: u64) {
        if let Some((chunk, at)) = self.chunk(n) {
            terrace_media::prefetch_line(&chunk.slots[at * chunk.form.width()]);
        }
    }

    /// What is known of number `n`.
    #[inline]
    pub fn get(&self, n: u64) -> State {
        match self.chunk(n) {
            Some((chunk, at)) => chunk.form.decode(chunk.raw(at)),
            None => State::Free,
        }
    }

    /// Changes what is known of number `n`.
    pub fn set(&mut self, n: u64, state: State) {
        let old = self.get(n);
        if old == state {
            return;
        }
        let is_entry = |state| u64::from(matches!(state, State::At(_)));
        self.entries = self.entries + is_entry(state) - is_entry(old);
        self.count_hole(n, old == State::Free, state == State::Free);
        let (chunk, at) = (n as usize / CHUNK_SLOTS, n as usize % CHUNK_SLOTS);
        let form = self.chunk_mut(chunk).form;
        let raw = match form.code(state) {
            Some(raw) => raw,
            None => self.widen(chunk, state),
        };
        let place = self.chunk_mut(chunk);
        place.set_raw(at, raw);
        if place.used == 0 {
            self.present_bytes -= place.form.chunk_bytes();
            self.chunks[chunk] = None;
            self.trim();
        }
    }

    /// Ends with the last chunk that is used: numbers above were never.
    fn trim(&mut self) {
        let used = self.chunks.iter().rposition(Option::is_some);
        self.chunks.truncate(used.map_or(0, |last| last + 1));
        let end = self.end();
        self.holes -= self.fresh.saturating_sub(end);
        self.fresh = self.fresh.min(end);
    }

    /// Gives a chunk's slots a class each; says how a slot of `state` is coded then.
    fn widen(&mut self, chunk: usize, state: State) -> u64 {
        let wide = match self.form {
            Form::Fixed { class, .. } => Form::classed(self.places, class),
            Form::Any => Form::Any,
        };
        let place = self.chunk_mut(chunk);
        let was_bytes = place.form.chunk_bytes();
        *place = place.in_form(wide);
        self.present_bytes += wide.chunk_bytes() - was_bytes;
        wide.code(state).expect("a slot with a class says all")
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
        let (form, place) = (self.form, &mut self.chunks[chunk]);
        if place.is_none() {
            self.present_bytes += form.chunk_bytes();
        }
        place.get_or_insert_with(|| Chunk::new(form))
    }

    /// A free number below `below`, the lowest ones first that a search meets; it is the caller's to set. None: all are taken.
    pub fn find_free(&mut self, below: u64) -> Option<u64> {
        if self.holes == 0 {
            return Some(self.fresh).filter(|n| *n < below);
        }
        let end = self.fresh.min(below);
        let (mut n, mut round) = (self.hint, 0);
        loop {
            if n >= end {
                (n, round) = (0, round + 1);
                if round > 1 || end == 0 {
                    // The holes are above.
                    return None;
                }
            }
            let chunk = n as usize / CHUNK_SLOTS;
            let full = self.chunks.get(chunk).and_then(Option::as_ref);
            if full.is_some_and(|c| c.used as usize == CHUNK_SLOTS) {
                n = ((chunk + 1) * CHUNK_SLOTS) as u64;
            } else if self.get(n) == State::Free {
                self.hint = n;
                return Some(n);
            } else {
                n += 1;
            }
        }
    }

    /// Forgets all objects.
    pub fn clear(&mut self) {
        *self = Table {
            chunks: Vec::new(),
            present_bytes: 0,
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

    fn state(shape: Shape, places: Places, of: (u8, u8, u64, u8)) -> State {
        let (what, heat, unit, byte) = of;
        let class = match shape {
            // Some are packed, and so shorter.
            Shape::Fixed(_) if byte < 32 => addr::class_of(64),
            Shape::Fixed(_) => addr::class_of(160),
            Shape::Any => byte & 31,
        };
        match what % 5 {
            0 => State::Free,
            1 => State::Zeros,
            2 if shape == Shape::Any => State::Fill(byte),
            3 => State::At(Slot::new(
                Loc::new(Terrace::Dram, class, unit % places.dram),
                heat,
            )),
            // As a segment's header keeps its first units from being anyone's.
            _ => State::At(Slot::new(
                Loc::new(Terrace::Ssd, class, 8 + unit % (places.ssd - 8)),
                heat,
            )),
        }
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(
            fixed: bool, bits in 20u32..36, more in 0u64..1 << 20, dram in 1u64..1 << 24,
            steps in prop::collection::vec((0u64..100_000, any::<(u8, u8, u64, u8)>(), any::<bool>()), 1..200)
        ) {
            let shape = if fixed { Shape::Fixed(128) } else { Shape::Any };
            let places = Places { ssd: (1 << bits) + more, dram };
            let mut table = Table::new(places, fixed.then_some(160));
            let mut map = BTreeMap::new();
            for (n, of, claim) in steps {
                let n = if claim {
                    let found = table.find_free(n);
                    prop_assert_eq!(found.is_some(), (0..n).any(|n| !map.contains_key(&n)), "below {}", n);
                    let n = found.or(table.find_free(u64::MAX)).expect("there is no end");
                    prop_assert!(!map.contains_key(&n), "{n} is taken");
                    n
                } else {
                    n
                };
                let s = state(shape, places, of);
                table.set(n, s);
                match s {
                    State::Free => map.remove(&n),
                    s => map.insert(n, s),
                };
                prop_assert_eq!(table.get(n), s);
                let entries = map.values().filter(|s| matches!(s, State::At(_))).count();
                prop_assert_eq!(table.entries(), entries as u64);
                let chunks = table.chunks.iter().flatten();
                prop_assert_eq!(table.present_bytes, chunks.map(|c| c.slots.len()).sum::<usize>());
            }
            for n in (0..100_000).step_by(37).chain(map.keys().copied()) {
                prop_assert_eq!(table.get(n), map.get(&n).copied().unwrap_or(State::Free));
            }
            let numbers: Vec<u64> = map.keys().copied().collect();
            numbers.iter().for_each(|&n| table.set(n, State::Free));
            prop_assert_eq!((table.present_bytes, table.entries()), (0, 0));
            prop_assert_eq!((table.find_free(1), table.end(), table.fresh, table.holes), (Some(0), 0, 0, 0));
        }
    }

    #[test]
    fn thirty_million_objects_of_one_size_take_four_bytes_each() {
        let objects = 1 << 20;
        // Lanes of 2.2 GiB, DRAM included, 12 GiB and 1 TiB.
        for (ssd, most, packed_most) in [
            (138 << 20, 4.01, 4.01),
            (768 << 20, 4.01, 5.01),
            (64 << 30, 5.01, 6.01),
        ] {
            let dram = 8 << 20;
            let mut table = Table::new(Places { ssd, dram }, Some(160));
            let mut each = |class: Option<u8>| {
                for n in 0..objects {
                    let at = |class| Slot::new(Loc::new(Terrace::Ssd, class, n + 8), 1);
                    table.set(n, class.map_or(State::Zeros, |class| State::At(at(class))));
                }
                table.bytes() as f64 / objects as f64
            };
            let (zeros, whole, packed) =
                (each(None), each(Some(addr::class_of(160))), each(Some(3)));
            assert!(
                zeros <= most && whole <= most,
                "{zeros}, {whole} bytes an object"
            );
            assert!(packed <= packed_most, "{packed} bytes a packed object");
        }
    }

    #[test]
    fn the_last_places_are_told_apart() {
        for (ssd, dram) in [(8 << 20, 3), (138 << 20, 8 << 20), (800 << 20, 1 << 20)] {
            let mut table = Table::new(Places { ssd, dram }, Some(160));
            let ends = [
                (Terrace::Ssd, 8),
                (Terrace::Ssd, ssd - 1),
                (Terrace::Dram, 0),
                (Terrace::Dram, dram - 1),
            ];
            // The longest first: none is packed until then.
            for class in [addr::class_of(160), 3, 0] {
                for (n, (terrace, unit)) in ends.into_iter().enumerate() {
                    for heat in 0..=HEAT_MAX {
                        let s = State::At(Slot::new(Loc::new(terrace, class, unit), heat));
                        table.set(n as u64, s);
                        assert_eq!(table.get(n as u64), s);
                    }
                }
            }
        }
    }

    #[test]
    fn a_place_that_does_not_fit_is_refused_loudly() {
        let (ssd, dram) = (1 << 29, 1 << 20);
        let class = addr::class_of(160);
        for (terrace, class, unit) in [
            (Terrace::Ssd, class, ssd),
            (Terrace::Dram, class, dram),
            (Terrace::Ssd, class + 1, 8),
        ] {
            let set = std::panic::catch_unwind(|| {
                let mut table = Table::new(Places { ssd, dram }, Some(160));
                let loc = Loc::new(terrace, class, unit);
                table.set(0, State::At(Slot::new(loc, 0)));
            });
            assert!(set.is_err(), "{terrace:?} {class} {unit}");
        }
    }
}
