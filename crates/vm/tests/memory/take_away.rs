//! Pages of a range taken away: they are absent, their backing has them, and they come back as they were; in the second of two regions too.

use crate::common::Plain;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::{Memory, Options, Way};

#[test]
fn what_is_taken_away_comes_back_as_it_was() {
    const PAGES: u64 = 1500;
    for way in [Way::InThread, Way::Handlers(2)] {
        let memory = Memory::new(Options {
            way,
            pages_max: 2 * PAGES as usize,
            reserve_bytes: 4 << 30,
            ..Options::default()
        })
        .unwrap();
        let first = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
        let plain = Arc::new(Plain::new());
        let second = memory.region(PAGES, plain.clone()).unwrap();
        first.word(0).store(1, Relaxed);
        for page in 0..PAGES {
            second.word(page as usize * 512).store(page + 1, Relaxed);
        }
        second.take_away(100..1400).unwrap();
        assert_eq!(memory.stats().resident_pages, 1 + 200, "{way:?}");
        assert_eq!(plain.stored_pages(), 1300);
        for page in 0..PAGES {
            assert_eq!(second.word(page as usize * 512).load(Relaxed), page + 1);
        }
        // Clean ones, and none.
        second.take_away(0..PAGES).unwrap();
        second.take_away(0..PAGES).unwrap();
        assert_eq!(memory.stats().resident_pages, 1, "{way:?}");
        assert_eq!(second.word(512).load(Relaxed), 2);
        assert!(second.take_away(0..PAGES + 1).is_err());
    }
}

#[test]
fn what_is_touched_while_it_is_taken_away_is_not_lost() {
    const PAGES: u64 = 600;
    let memory = Memory::new(Options {
        way: Way::Handlers(2),
        pages_max: 400,
        reserve_bytes: 4 << 30,
        ..Options::default()
    })
    .unwrap();
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=20u64 {
                for page in 0..PAGES {
                    let word = region.word(page as usize * 512);
                    assert_eq!(word.load(Relaxed), round - 1);
                    word.store(round, Relaxed);
                }
            }
        });
        while !writer.is_finished() {
            region.take_away(0..PAGES).unwrap();
        }
    });
}
