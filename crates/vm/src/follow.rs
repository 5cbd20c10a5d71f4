//! Faults that go along an array of addresses: what the array names is brought in by the handler that has such a fault at hand, and what those objects name in their turn.
//!
//! A program that walks a hash table or a list of pointers touches objects that lie anywhere, one fault after the other (Redis that saves itself: an entry, its object, its value). Which will be
//! next stands in the array already. So pages with many addresses in them are remembered as they come; after a few faults in a row on what one of them names, the next objects come with the one that
//! faulted, twice as many each time. From objects it is followed on: at which offset the address lies that is touched next is learnt from the faults after the one in the array, which
//! nobody foresees for that object.
//!
//! Promises: with one fault come at most [`PAGES_OF_TURN`] times what [`policy::ahead_pages`] allows, that many at a time; a page that cannot be had ahead is left to the fault that will ask for it. Never: reads memory of a region (only contents on their way there), waits for room, or
//! believes an address that no region has.

use crate::backing::{PAGE_BYTES, Page};
use crate::policy;
use crate::sys::Lock;

/// Pages of addresses that are remembered; 4 KiB each.
const ARRAYS: usize = 16;
const WORD_BYTES: usize = size_of::<u64>();
const WORDS: usize = PAGE_BYTES / WORD_BYTES;
/// A page is remembered if so many of its words are addresses.
const ADDRESSES_MIN: usize = WORDS / 4;
/// Faults in a row on what an array names, before what follows is brought in.
const RUN_MIN: u32 = 2;
/// Addresses that a run may leave out at a time: what they name is there already.
const GAP_MAX: usize = 8;
/// Faults after which an array that is not gone along any more may be forgotten.
const IDLE_FAULTS: u64 = 1024;
/// Kinds of objects: what an array names, what that names, and what that names in its turn.
pub(crate) const KINDS: usize = 3;
/// How often what was brought in is followed further.
const ROUNDS: usize = 5;
/// Words of an object that are looked at.
const LINE: usize = 8;
/// Bytes before where an object's address points to that are its own.
const BEFORE: u64 = 16;
/// Bytes from the beginning of a page within which an access goes on from the page before.
const GOES_ON: u64 = 64;
/// Bytes from an object to an access in the next page that may be one to it: more may as well be something else.
const REACH_MAX: u64 = PAGE_BYTES as u64 / 2;
/// Pages of all rounds, by those that may come with a fault: an object of each kind for each of them, and what chains add.
pub(crate) const PAGES_OF_TURN: usize = 5;
/// Objects of one round; those that come with a fault are at most half of them.
const OBJECTS_MAX: usize = 2 * TOGETHER_MAX;
/// Objects brought in by one call.
const TOGETHER_MAX: usize = policy::AHEAD_PAGES_MAX as usize;
/// How sure it is that a word is followed; from [`SURE`] on it is.
const SURE_MAX: u8 = 15;
const SURE: u8 = 3;

/// A page of addresses.
struct Array {
    page: u64,
    words: [u64; WORDS],
    /// Where the next address is that was not brought in.
    next: usize,
    /// Faults in a row.
    run: u32,
    /// Objects that came with the last one.
    window: usize,
    /// When it was made or gone along last, in faults.
    seen: u64,
}

/// From a word of one kind of object to another object.
#[derive(Clone, Copy, Default)]
struct Link {
    to: u8,
    sure: u8,
}

/// The object of a kind that faulted last: from here links are learnt.
#[derive(Clone, Copy, Default)]
struct Trail {
    address: u64,
    /// Its first words; none where they did not come.
    line: Option<[u64; LINE]>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Object {
    pub address: u64,
    pub kind: u8,
}

#[derive(Clone, Copy)]
pub(crate) struct Objects {
    all: [Object; OBJECTS_MAX],
    len: usize,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects {
            all: [Object::default(); OBJECTS_MAX],
            len: 0,
        }
    }
}

impl Objects {
    fn push(&mut self, object: Object) {
        if self.len < OBJECTS_MAX {
            self.all[self.len] = object;
            self.len += 1;
        }
    }

    pub fn each(&self) -> &[Object] {
        &self.all[..self.len]
    }
}

/// Objects that are being brought in.
#[derive(Clone, Copy, Default)]
struct Turn {
    round: usize,
    objects: Objects,
    /// What those of them name that have come.
    named: Objects,
}

struct State {
    /// Which addresses regions may have.
    base: u64,
    bytes: u64,
    arrays: Vec<Array>,
    links: [[Link; LINE]; KINDS],
    /// Bytes of objects of each kind that were seen to be touched, where that went on into the next page.
    reach: [u64; KINDS],
    trail: [Trail; KINDS],
    faults: u64,
    /// None: nobody brings in what follows.
    turn: Option<Turn>,
}

/// Whether an access at `address` may be one to the object at `word`: a little before it is what some keep of its length.
fn is_of(word: u64, address: u64) -> bool {
    address.wrapping_sub(word).wrapping_add(BEFORE) < BEFORE + (LINE * WORD_BYTES) as u64
}

pub(crate) fn page_of(address: u64) -> u64 {
    address / PAGE_BYTES as u64
}

/// A page's number, counted from address 0.
type Place = u64;

impl State {
    fn is_address(&self, word: u64) -> bool {
        word.wrapping_sub(self.base) < self.bytes
    }

    /// A page comes with these contents.
    fn came(&mut self, place: Place, contents: &Page) {
        let word_at = |at: usize| {
            let bytes = contents.0.get(at..at + WORD_BYTES)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        let is_here = |address: u64| address != 0 && page_of(address) == place;
        let mut known = false;
        for trail in self.trail.iter_mut().filter(|trail| is_here(trail.address)) {
            known = true;
            let at = trail.address as usize % PAGE_BYTES;
            let word = |nth| word_at(at + nth * WORD_BYTES).unwrap_or(0);
            trail.line = Some(std::array::from_fn(word));
        }
        if let Some(Turn { objects, named, .. }) = &mut self.turn {
            let here = objects
                .each()
                .iter()
                .filter(|object| is_here(object.address));
            for object in here {
                known = true;
                let links = self.links[usize::from(object.kind)].iter().enumerate();
                for (nth, link) in links.filter(|(_, link)| link.sure >= SURE) {
                    let at = object.address as usize % PAGE_BYTES + nth * WORD_BYTES;
                    let address = word_at(at).unwrap_or(0);
                    // What lies on this page comes with it.
                    let is_elsewhere = page_of(address) != place;
                    if address.wrapping_sub(self.base) < self.bytes && is_elsewhere {
                        named.push(Object {
                            address,
                            kind: link.to,
                        });
                    }
                }
            }
        }
        // What has objects that are followed is no array.
        if !known {
            self.remember(place, contents);
        }
    }

    /// Remembers a page if it is full of addresses.
    fn remember(&mut self, place: Place, contents: &Page) {
        let (words, _) = contents.0.as_chunks::<WORD_BYTES>();
        let words = words.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        let addresses = words.clone().filter(|word| self.is_address(*word)).count();
        if addresses < ADDRESSES_MIN {
            return;
        }
        // The page behind one that is gone along to its end goes on with it.
        let before = self.arrays.iter().find(|array| array.page + 1 == place);
        let (run, window) = before.map_or((0, 0), |before| match before.run > RUN_MIN {
            true => (before.run, before.window),
            false => (0, 0),
        });
        let faults = self.faults;
        let worth = |array: &Array| {
            let is_gone_along = array.run > RUN_MIN && array.seen + IDLE_FAULTS > faults;
            (is_gone_along, array.seen)
        };
        let old = self.arrays.iter().position(|array| array.page == place);
        let least = (0..ARRAYS).min_by_key(|at| worth(&self.arrays[*at]));
        let Some(array) = old.or(least).map(|at| &mut self.arrays[at]) else {
            return;
        };
        (array.page, array.seen) = (place, faults);
        (array.run, array.window, array.next) = (run, window, 0);
        array
            .words
            .iter_mut()
            .zip(words)
            .for_each(|(to, word)| *to = word);
    }

    /// An access faults: which objects are to come with its page, if any; at most `most`.
    fn faulted(&mut self, address: u64, most: usize) -> Option<Objects> {
        self.faults += 1;
        if let Some(objects) = self.goes_on(address, most) {
            return objects;
        }
        if self.learns(address) {
            return None;
        }
        let names = |array: &Array| array.words.iter().position(|word| is_of(*word, address));
        let mut arrays = self.arrays.iter_mut().filter(|array| array.page != 0);
        let (at, array) = arrays.find_map(|array| Some((names(array)?, array)))?;
        self.trail = Default::default();
        self.trail[0].address = array.words[at];
        match array.run > RUN_MIN {
            // It came, and has left again.
            true if at < array.next => {}
            true => array.next = at + 1,
            false => (array.run, array.window, array.next) = (1, 0, at + 1),
        }
        array.seen = self.faults;
        None
    }

    /// Whether the fault goes on along an array; then what is to come with it.
    fn goes_on(&mut self, address: u64, most: usize) -> Option<Option<Objects>> {
        let (mut found, faults) = (None, self.faults);
        for array in self.arrays.iter_mut().filter(|array| array.run > 0) {
            let end = (array.next + GAP_MAX).min(WORDS);
            let behind = array.words.get(array.next..end).unwrap_or(&[]);
            if let Some(by) = behind.iter().position(|word| is_of(*word, address)) {
                array.next += by + 1;
                (array.run, array.seen) = (array.run + 1, faults);
                found = Some(array);
                break;
            }
        }
        let array = found?;
        for kind in 0..KINDS - 1 {
            if self.trail[kind].line.is_some() && self.trail[kind + 1].address == 0 {
                let to_next = |link: &&mut Link| usize::from(link.to) == kind + 1;
                let links = self.links[kind].iter_mut().filter(to_next);
                links.for_each(|link| link.sure = link.sure.saturating_sub(1));
            }
        }
        self.trail = Default::default();
        self.trail[0].address = array.words[array.next - 1];
        if array.run <= RUN_MIN || self.turn.is_some() {
            return Some(None);
        }
        array.window = (array.window * 2).clamp(2, most.clamp(2, TOGETHER_MAX));
        let mut objects = Objects::default();
        while let Some(&address) = array.words.get(array.next)
            && objects.len < array.window
        {
            array.next += 1;
            if address.wrapping_sub(self.base) < self.bytes {
                objects.push(Object { address, kind: 0 });
            }
        }
        if objects.len == 0 {
            return Some(None);
        }
        self.turn = Some(Turn {
            objects,
            ..Turn::default()
        });
        Some(Some(objects))
    }

    /// Learns from a fault on what an object names, or that goes on behind the page where it begins. Whether it is one.
    fn learns(&mut self, address: u64) -> bool {
        for kind in 0..KINDS {
            let Some(line) = self.trail[kind].line else {
                continue;
            };
            let Some(word) = (0..LINE).find(|word| is_of(line[*word], address)) else {
                continue;
            };
            // What is touched first is what it is made of; after that comes another of its kind (the next of a chain).
            let is_first = kind + 1 < KINDS && self.trail[kind + 1].address == 0;
            let to = if is_first { kind + 1 } else { 0 };
            self.links[kind][word].told(to as u8);
            if !is_first {
                self.trail = Default::default();
            }
            self.trail[to].address = line[word];
            return true;
        }
        let goes_on = address % PAGE_BYTES as u64 <= GOES_ON;
        for kind in (1..KINDS).filter(|_| goes_on) {
            let object = self.trail[kind].address;
            let by = address.wrapping_sub(object);
            if object != 0 && by <= REACH_MAX && page_of(object) + 1 == page_of(address) {
                self.reach[kind] = self.reach[kind].max(by + 1);
                return true;
            }
        }
        false
    }

    /// What the objects of the turn name, if they are followed further.
    fn next_round(&mut self) -> Option<(Objects, [u64; KINDS])> {
        let turn = self.turn.as_mut()?;
        if turn.round == ROUNDS || turn.named.len == 0 {
            return None;
        }
        *turn = Turn {
            round: turn.round + 1,
            objects: turn.named,
            named: Objects::default(),
        };
        Some((turn.objects, self.reach))
    }
}

impl Link {
    fn told(&mut self, to: u8) {
        if to == self.to {
            self.sure = (self.sure + 1).min(SURE_MAX);
        } else if self.sure == 0 {
            *self = Link { to, sure: 1 };
        } else {
            self.sure -= 1;
        }
    }
}

/// See the head of the file.
pub(crate) struct Follow(Lock<State>);

impl Follow {
    /// DRAM it takes.
    pub const BYTES: usize = ARRAYS * size_of::<Array>();

    /// For regions at so many bytes from an address on.
    pub fn new(base: usize, bytes: usize) -> Follow {
        let array = || Array {
            page: 0,
            words: [0; WORDS],
            next: 0,
            run: 0,
            window: 0,
            seen: 0,
        };
        Follow(Lock::new(State {
            base: base as u64,
            bytes: bytes as u64,
            arrays: (0..ARRAYS).map(|_| array()).collect(),
            links: [[Link::default(); LINE]; KINDS],
            reach: [0; KINDS],
            trail: [Trail::default(); KINDS],
            faults: 0,
            turn: None,
        }))
    }

    /// An access faults: which objects are to come with its page, if any; at most `most`. They are the turn's until [`Follow::end_turn`].
    pub fn faulted(&self, address: u64, most: usize) -> Option<Objects> {
        self.0.lock().faulted(address, most)
    }

    /// What the objects of the turn name, if they are followed further, and how far objects of each kind reach.
    pub fn next_round(&self) -> Option<(Objects, [u64; KINDS])> {
        self.0.lock().next_round()
    }

    /// Nothing is followed further.
    pub fn end_turn(&self) {
        self.0.lock().turn = None;
    }

    /// A page comes with these contents, at this address.
    pub fn came(&self, address: usize, contents: &Page) {
        self.0.lock().came(page_of(address as u64), contents);
    }
}

#[cfg(test)]
mod tests;
