//! The object tables of one lane, as a directory of the log.
//!
//! An object's number says its lane (`Dealt`), its table and its slot; so look-ups compute, and an entry's eight
//! bytes of key are all that the cleaner needs. A saved piece is a list of runs: table u32, count u32, first slot u64, and
//! count words: 0 none, 1 zeros, else the slot's payload with the top bit set.
//! Promises: at most one slot a subject, found without a search; tables that nobody made are empty.
//! Never: grows for a number above [`OBJECTS_MAX`].

use super::table::{Places, Shape, State, Table};
use terrace_log::entry::entry_bytes;
use terrace_log::{Directory, Full, Loc, ObjectId, Order, Slot, Snapshot, Subject};

/// Ids of a table are below this.
pub const OBJECTS_MAX: u64 = 1 << 36;
/// Tables of a pool.
pub const TABLES_MAX: usize = 4096;
const RUN_HEADER_BYTES: usize = 16;
const SAVED_ENTRY: u64 = 1 << 63;

/// An object as the log's lanes know it.
pub(super) fn subject(oid: ObjectId) -> Subject {
    Subject {
        space: 0,
        hash: oid.hash(),
    }
}

/// How the numbers of a table are dealt to 2^`bits` lanes: in groups of as many, of which each lane has one.
#[derive(Debug, Clone, Copy)]
pub struct Dealt {
    bits: u32,
    /// Which of a group a lane has is another from group to group. Else it is that with the lane's number, so that a program that frees every second
    /// number, and has the rest full, would have one lane with more than it can store; in a pool that is kept the numbers are pages of regions, promised whole.
    scattered: bool,
}

impl Dealt {
    /// To 2^`bits` lanes.
    pub fn new(bits: u32, scattered: bool) -> Dealt {
        Dealt { bits, scattered }
    }

    fn in_group(self, group: u64, number: u64) -> u64 {
        // Fibonacci hashing: no stride of groups meets the same lane more often than another.
        let turned = match self.scattered {
            true => group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
            false => 0,
        };
        (number ^ turned) & ((1 << self.bits) - 1)
    }

    /// The lane of an object.
    #[inline]
    pub fn lane_of(self, id: u64) -> u16 {
        self.in_group(id >> self.bits, id) as u16
    }

    /// The object of a lane that has slot `group` there.
    fn id_of(self, group: u64, lane: u16) -> u64 {
        group << self.bits | self.in_group(group, lane.into())
    }
}

/// The tables of one lane.
pub struct Tables {
    lane: u16,
    dealt: Dealt,
    places: Places,
    /// Whether a table that a saved piece or the log names is made.
    keeps: bool,
    tables: Vec<Option<Table>>,
}

impl Tables {
    /// No table yet, in this of the lanes, with these places. `keeps`: the pool outlives the process.
    pub fn new(lane: u16, dealt: Dealt, places: Places, keeps: bool) -> Tables {
        Tables {
            lane,
            dealt,
            places,
            keeps,
            tables: Vec::new(),
        }
    }

    /// Makes a table, or finds it made. Tables of a pool that outlives the process have slots for any size,
    /// since a start meets entries before anybody says what they are.
    pub fn make(&mut self, table: u16, shape: Shape) {
        let at = usize::from(table);
        if self.tables.len() <= at {
            self.tables.resize_with(at + 1, || None);
        }
        let fixed = self.fixed_bytes(shape);
        self.tables[at].get_or_insert_with(|| Table::new(self.places, fixed));
    }
    /// How long the entries of a table are at most, if no slot says more of it.
    fn fixed_bytes(&self, shape: Shape) -> Option<usize> {
        match shape {
            Shape::Fixed(bytes) if !self.keeps => {
                let len = bytes as usize;
                Some(entry_bytes(ObjectId::KEY_BYTES, len, false, false))
            }
            _ => None,
        }
    }
    /// The most that [`CHUNK_SLOTS`] numbers of a table take.
    pub fn chunk_bytes_max(&self, shape: Shape) -> usize {
        Table::chunk_bytes_max(self.places, self.fixed_bytes(shape))
    }
    /// Forgets a table. Its entries must be dead already.
    pub fn drop_table(&mut self, table: u16) {
        if let Some(place) = self.tables.get_mut(usize::from(table)) {
            *place = None;
        }
    }
    /// A table.
    pub fn table(&self, table: u16) -> Option<&Table> {
        self.tables.get(usize::from(table))?.as_ref()
    }
    fn table_mut(&mut self, table: u16) -> Option<&mut Table> {
        self.tables.get_mut(usize::from(table))?.as_mut()
    }

    fn place(&self, who: Subject) -> (u16, u64) {
        let id = ObjectId(who.hash.index);
        (id.table(), id.id() >> self.dealt.bits)
    }

    /// What is known of an object.
    #[inline]
    pub fn get(&self, id: ObjectId) -> State {
        match self.table(id.table()) {
            Some(table) => table.get(id.id() >> self.dealt.bits),
            None => State::Free,
        }
    }
    /// Changes what is known of an object. Nothing happens if there is no such table.
    pub fn set(&mut self, id: ObjectId, state: State) {
        let n = id.id() >> self.dealt.bits;
        if let Some(table) = self.table_mut(id.table()) {
            table.set(n, state);
        }
    }
    /// A free id below `below` of a table; it is the caller's to set. None: there is no such table, or it is full up to there.
    pub fn find_free(&mut self, table: u16, below: u64) -> Option<ObjectId> {
        let below = below.min(OBJECTS_MAX);
        let groups = below >> self.dealt.bits;
        let slots = groups + u64::from(self.dealt.id_of(groups, self.lane) < below);
        let n = self.table_mut(table)?.find_free(slots)?;
        Some(self.object(table, n))
    }

    /// The object that has a slot.
    pub fn object(&self, table: u16, slot: u64) -> ObjectId {
        ObjectId::new(table, self.dealt.id_of(slot, self.lane))
    }

    fn slot(&self, who: Subject) -> Option<Slot> {
        let (table, n) = self.place(who);
        match self.table(table)?.get(n) {
            State::At(slot) => Some(slot),
            _ => None,
        }
    }

    /// Each table from `from` on that has slots, and the first of them.
    fn next_place(&self, from: Order) -> Option<(u16, u64)> {
        for table in from.shard as usize..self.tables.len() {
            let at = match table == from.shard as usize {
                true => from.hash,
                false => 0,
            };
            let found = self.tables[table].as_ref().and_then(|t| t.skip_to(at));
            if let Some(n) = found {
                return Some((table as u16, n));
            }
        }
        None
    }
}

impl Directory for Tables {
    #[inline]
    fn prefetch(&self, who: Subject) {
        let (table, n) = self.place(who);
        if let Some(table) = self.table(table) {
            table.prefetch(n);
        }
    }

    fn find(&self, who: Subject, mut f: impl FnMut(Slot) -> bool) -> Option<Slot> {
        self.slot(who).filter(|&slot| f(slot))
    }

    fn update(&mut self, who: Subject, mut f: impl FnMut(Slot) -> Option<Slot>) -> Option<Slot> {
        let old = self.slot(who)?;
        let new = f(old)?;
        if new != old {
            let (table, n) = self.place(who);
            self.table_mut(table)?.set(n, State::At(new));
        }
        Some(old)
    }

    fn insert(&mut self, who: Subject, slot: Slot) -> Result<(), Full> {
        let (table, n) = self.place(who);
        if ObjectId(who.hash.index).id() >= OBJECTS_MAX || usize::from(table) >= TABLES_MAX {
            return Err(Full);
        }
        if self.keeps {
            self.make(table, Shape::Any);
        }
        self.table_mut(table).ok_or(Full)?.set(n, State::At(slot));
        Ok(())
    }

    fn remove(&mut self, who: Subject, at: Loc) -> bool {
        let named = self.slot(who).is_some_and(|slot| slot.loc() == at);
        if named {
            let (table, n) = self.place(who);
            if let Some(table) = self.table_mut(table) {
                table.set(n, State::Free);
            }
        }
        named
    }
}

impl Snapshot for Tables {
    fn order(&self, who: Subject) -> Order {
        let (table, n) = self.place(who);
        Order {
            shard: u32::from(table),
            hash: n,
        }
    }

    /// Slots never move: there is nothing to do.
    fn keep_still(&mut self, _still: bool) {}

    fn save(
        &self,
        from: Order,
        slots_max: usize,
        mut resolve: impl FnMut(Slot) -> Option<Slot>,
        out: &mut Vec<u8>,
    ) -> Option<Order> {
        let (number, first) = self.next_place(from)?;
        let table = self.table(number)?;
        let count = (slots_max as u64).min(table.end() - first);
        out.extend_from_slice(&u32::from(number).to_le_bytes());
        out.extend_from_slice(&(count as u32).to_le_bytes());
        out.extend_from_slice(&first.to_le_bytes());
        for n in first..first + count {
            let word = match table.get(n) {
                State::Free => 0,
                State::Zeros => 1,
                State::Fill(_) => {
                    unreachable!("only a scratch pool has fills, and it is not saved")
                }
                State::At(slot) => resolve(slot).map_or(0, |slot| slot.0 | SAVED_ENTRY),
            };
            out.extend_from_slice(&word.to_le_bytes());
        }
        let next = Order {
            shard: u32::from(number),
            hash: first + count,
        };
        self.next_place(next).map(|_| next)
    }

    fn load(&mut self, mut image: &[u8]) -> Result<(), String> {
        while !image.is_empty() {
            let cut = "a run of slots ends early";
            let (header, rest) = image.split_at_checked(RUN_HEADER_BYTES).ok_or(cut)?;
            let table = u32::from_le_bytes(header[0..4].try_into().expect("four bytes"));
            let count = u32::from_le_bytes(header[4..8].try_into().expect("four bytes")) as usize;
            let first = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
            let (words, rest) = rest.split_at_checked(8 * count).ok_or(cut)?;
            let last = first
                .checked_add(count as u64)
                .filter(|&n| n <= OBJECTS_MAX >> self.dealt.bits);
            if table as usize >= TABLES_MAX || last.is_none() {
                return Err(format!(
                    "slots {first} to {} of table {table}",
                    first.wrapping_add(count as u64)
                ));
            }
            self.make(table as u16, Shape::Any);
            let table = self.table_mut(table as u16).ok_or("no such table")?;
            for (i, word) in words.chunks_exact(8).enumerate() {
                let state = match u64::from_le_bytes(word.try_into().expect("eight bytes")) {
                    0 => continue,
                    1 => State::Zeros,
                    word if word & SAVED_ENTRY != 0 => State::At(Slot(word & !SAVED_ENTRY)),
                    word => return Err(format!("a slot of {word:#x}")),
                };
                table.set(first + i as u64, state);
            }
            image = rest;
        }
        Ok(())
    }

    fn each(&self, mut f: impl FnMut(Slot)) {
        for table in self.tables.iter().flatten() {
            let mut at = table.skip_to(0);
            while let Some(n) = at {
                if let State::At(slot) = table.get(n) {
                    f(slot);
                }
                at = table.skip_to(n + 1);
            }
        }
    }

    fn clear(&mut self) {
        self.tables.iter_mut().flatten().for_each(Table::clear);
    }

    fn len(&self, space: u8) -> u64 {
        match space {
            0 => self.tables.iter().flatten().map(Table::entries).sum(),
            _ => 0,
        }
    }

    fn bytes(&self) -> usize {
        let tables = self
            .tables
            .iter()
            .flatten()
            .map(Table::bytes)
            .sum::<usize>();
        tables + self.tables.capacity() * size_of::<Option<Table>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use terrace_log::Terrace;

    fn who(table: u16, id: u64) -> Subject {
        Subject {
            space: 0,
            hash: ObjectId::new(table, id).hash(),
        }
    }
    const PLACES: Places = Places {
        ssd: 1 << 28,
        dram: 1 << 22,
    };
    fn slot(unit: u64, heat: u8) -> Slot {
        Slot::new(Loc::new(Terrace::Ssd, 6, unit + 8), heat)
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u64, u64),
        Swing(u16, u64, u64, u64),
        Heat(u16, u64, u8),
        Remove(u16, u64, u64),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Places close together, so that steps meet; and some far off, so that chunks are skipped.
        let id = prop_oneof![0u64..40, 1_000_000u64..1_000_040];
        let at = (0u16..3, id);
        prop_oneof![
            6 => (at.clone(), 0u64..6).prop_map(|((t, i), u)| Step::Insert(t, i, u)),
            3 => (at.clone(), 0u64..6, 0u64..6).prop_map(|((t, i), a, b)| Step::Swing(t, i, a, b)),
            2 => (at.clone(), 0u8..4).prop_map(|((t, i), h)| Step::Heat(t, i, h)),
            2 => (at, 0u64..6).prop_map(|((t, i), u)| Step::Remove(t, i, u)),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn tables_are_a_directory_that_survives_being_saved(
            keeps: bool, fixed: bool, steps in prop::collection::vec(step(), 1..120), slots_max in 1usize..3000
        ) {
            let make = || {
                let mut tables = Tables::new(0, Dealt::new(1, false), PLACES, keeps);
                let shape = if fixed { Shape::Fixed(128) } else { Shape::Any };
                (0..3).for_each(|t| tables.make(t, shape));
                tables
            };
            let mut tables = make();
            let mut map: BTreeMap<(u16, u64), Slot> = BTreeMap::new();
            // One lane of two: its ids are even.
            for s in steps {
                match s {
                    Step::Insert(t, i, u) => {
                        tables.insert(who(t, 2 * i), slot(u, 1)).unwrap();
                        map.insert((t, i), slot(u, 1));
                    }
                    Step::Swing(t, i, a, b) => {
                        let fits = map.get(&(t, i)).is_some_and(|s| s.loc() == slot(a, 0).loc());
                        prop_assert_eq!(tables.swing(who(t, 2 * i), slot(a, 0).loc(), slot(b, 2)), fits);
                        if fits {
                            map.insert((t, i), slot(b, 2));
                        }
                    }
                    Step::Heat(t, i, h) => {
                        let old = tables.update(who(t, 2 * i), |s| Some(s.with_heat(h)));
                        prop_assert_eq!(old, map.get(&(t, i)).copied());
                        map.entry((t, i)).and_modify(|s| *s = s.with_heat(h));
                    }
                    Step::Remove(t, i, u) => {
                        let fits = map.get(&(t, i)).is_some_and(|s| s.loc() == slot(u, 0).loc());
                        prop_assert_eq!(tables.remove(who(t, 2 * i), slot(u, 0).loc()), fits);
                        if fits {
                            map.remove(&(t, i));
                        }
                    }
                    Step::Clear => {
                        tables.clear();
                        map.clear();
                    }
                }
            }
            let check = |tables: &Tables| {
                let all: Vec<u64> = map.values().map(|s| s.0).collect();
                let mut met = Vec::new();
                tables.each(|s| met.push(s.0));
                let found = map.iter().all(|(&(t, i), &s)| tables.find(who(t, 2 * i), |_| true) == Some(s));
                (met == all, found, tables.len(0) as usize == all.len())
            };
            prop_assert_eq!(check(&tables), (true, true, true));
            let (mut at, mut again) = (Some(Order::default()), make());
            while let Some(from) = at {
                let mut piece = Vec::new();
                at = tables.save(from, slots_max, Some, &mut piece);
                again.load(&piece).unwrap();
            }
            prop_assert_eq!(check(&again), (true, true, true));
        }

        #[test]
        fn a_damaged_piece_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut tables = Tables::new(0, Dealt::new(0, false), PLACES, true);
            // Small numbers, so that some get past the first check.
            let mut small = bytes.clone();
            small.iter_mut().skip(1).step_by(2).for_each(|b| *b = 0);
            let _ = tables.load(&bytes);
            let _ = tables.load(&small);
        }
    }
}
