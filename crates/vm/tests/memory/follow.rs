//! What an array names comes before it is touched, and what that names: the same contents, and addresses that lead nowhere harm nobody.

use crate::common::Plain;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::{Memory, Options, Region, Way};

const WORDS: usize = 512;
const KEYS: usize = 4 * WORDS;
/// Objects lie two on a page, behind the table; values on a page each, behind them.
const OBJECTS: usize = 8 * WORDS;
const VALUES: usize = OBJECTS + KEYS / 2 * WORDS;
const PAGES: usize = VALUES / WORDS + KEYS;
/// Of so many entries of the table one leads nowhere.
const NOWHERE_EVERY: usize = 5;
const RESERVE_BYTES: usize = 4 << 30;

/// Where they lie, in words: in no order.
fn object(key: usize) -> usize {
    let place = key * 617 % KEYS;
    OBJECTS + place / 2 * WORDS + place % 2 * 8
}

fn value(key: usize) -> usize {
    VALUES + key * 1021 % KEYS * WORDS + key % 400
}

fn has_object(key: usize) -> bool {
    key % NOWHERE_EVERY != NOWHERE_EVERY - 1
}

fn fill(region: &Region) {
    let base = region.word(0).as_ptr() as usize;
    let address = |word: usize| (base + word * 8) as u64;
    for key in 0..KEYS {
        if !has_object(key) {
            // Where regions could be, and none is.
            let nowhere = base + RESERVE_BYTES / 2 + key * 4096;
            region.word(key).store(nowhere as u64, Relaxed);
            continue;
        }
        region.word(key).store(address(object(key)), Relaxed);
        region
            .word(object(key) + 1)
            .store(address(value(key)), Relaxed);
        // Of another kind, and nowhere.
        let nowhere = base + RESERVE_BYTES / 2 + key * 8192;
        region.word(object(key) + 2).store(nowhere as u64, Relaxed);
        region.word(value(key)).store(key as u64, Relaxed);
    }
}

/// Goes along the table, as a program would.
fn walk(region: &Region) {
    let base = region.word(0).as_ptr() as usize;
    let at = |address: u64| region.word((address as usize - base) / 8);
    for key in (0..KEYS).filter(|key| has_object(*key)) {
        let object = region.word(key).load(Relaxed);
        let value = at(object + 8).load(Relaxed);
        assert_eq!(at(value).load(Relaxed), key as u64);
    }
}

#[test]
fn what_a_table_names_comes_ahead_as_it_was() {
    let memory = Memory::new(Options {
        way: Way::Handlers(2),
        pages_max: 600,
        reserve_bytes: RESERVE_BYTES,
        ..Options::default()
    })
    .unwrap();
    let region = memory.region(PAGES as u64, Arc::new(Plain::new())).unwrap();
    fill(&region);
    for _ in 0..2 {
        memory.set_pages_max(64).unwrap();
        memory.set_pages_max(600).unwrap();
        let before = memory.stats();
        walk(&region);
        let after = memory.stats();
        let ahead = after.ahead - before.ahead;
        let faults = (after.fetched - before.fetched).saturating_sub(ahead);
        assert_eq!(after.failed_faults, 0);
        // The walker goes on while its handler still brings what follows, and may fault on that.
        assert!(ahead > faults, "{faults} faults, {ahead} pages ahead");
    }
}
