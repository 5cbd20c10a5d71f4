//! What a walk along a table brings in, without handlers and without a buffer.

use super::*;
use std::collections::{HashMap, HashSet};

const BASE: u64 = 0x7000_0000_0000;
const PAGES: u64 = 1 << 16;

/// A hash table's page, whose entries name an object each, and that a value: what Redis walks when it saves itself.
struct Heap {
    pages: HashMap<Place, Page>,
    table: u64,
    keys: usize,
}

impl Heap {
    fn write(&mut self, address: u64, word: u64) {
        let page = self.pages.entry(page_of(address)).or_insert(Page::ZERO);
        let at = address as usize % PAGE_BYTES;
        page.0[at..at + WORD_BYTES].copy_from_slice(&word.to_ne_bytes());
    }

    fn read(&self, address: u64) -> u64 {
        let at = address as usize % PAGE_BYTES;
        let bytes = &self.pages[&page_of(address)].0[at..at + WORD_BYTES];
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }

    fn new(keys: usize) -> Heap {
        let mut heap = Heap {
            pages: HashMap::new(),
            table: BASE + (1 << 20) * PAGE_BYTES as u64 / 64,
            keys,
        };
        let scattered = |nth: usize, salt: u64, bytes: u64| {
            let mixed = (nth as u64 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            mixed % 10_000 * PAGE_BYTES as u64 + nth as u64 % 40 * bytes
        };
        for key in 0..keys {
            let entry = BASE + scattered(key, 1, 32);
            let object = BASE + (20_000 << 12) + scattered(key, 7, 16);
            let value = BASE + (40_000 << 12) + scattered(key, 13, 64) + 1203;
            heap.write(heap.table + (key * WORD_BYTES) as u64, entry);
            heap.write(entry, entry + 16);
            heap.write(entry + 8, object);
            heap.write(object, 0x1234_5678);
            heap.write(object + 8, value);
            heap.pages.entry(page_of(value)).or_insert(Page::ZERO);
        }
        heap
    }
}

/// What the handler and the buffer do, without either: pages that came stay.
struct Walk {
    heap: Heap,
    state: Follow,
    there: HashSet<Place>,
    faults: usize,
    ahead: usize,
}

impl Walk {
    fn bring(&mut self, place: Place) {
        if let Some(page) = self.heap.pages.get(&place)
            && self.there.insert(place)
        {
            self.state.0.lock().came(place, page);
        }
    }

    fn touch(&mut self, address: u64) {
        let place = page_of(address);
        if self.there.contains(&place) {
            return;
        }
        self.faults += 1;
        let before = self.there.len();
        let objects = self.state.0.lock().faulted(address, 32);
        let Some(objects) = objects else {
            return self.bring(place);
        };
        for object in objects.each() {
            self.bring(page_of(object.address));
        }
        self.bring(place);
        loop {
            let next = self.state.0.lock().next_round();
            let Some((objects, reach)) = next else { break };
            for Object { address, kind } in objects.each().iter().copied() {
                let reach = reach[usize::from(kind)].saturating_sub(1);
                self.bring(page_of(address));
                self.bring(page_of(address + reach));
            }
        }
        self.state.0.lock().turn = None;
        self.ahead += self.there.len() - before - 1;
    }
}

#[test]
fn what_an_array_names_comes_ahead_and_what_that_names() {
    let heap = Heap::new(4 * WORDS);
    let (keys, table) = (heap.keys, heap.table);
    let mut walk = Walk {
        heap,
        state: Follow::new(BASE as usize, (PAGES as usize) << 12),
        there: HashSet::new(),
        faults: 0,
        ahead: 0,
    };
    for key in 0..keys {
        let slot = table + (key * WORD_BYTES) as u64;
        walk.touch(slot);
        let entry = walk.heap.read(slot);
        walk.touch(entry);
        let object = walk.heap.read(entry + 8);
        walk.touch(object);
        walk.touch(walk.heap.read(object + 8));
    }
    let pages = walk.there.len();
    assert_eq!(walk.faults + walk.ahead, pages);
    assert!(walk.faults * 6 < pages, "{} of {pages}", walk.faults);
}
