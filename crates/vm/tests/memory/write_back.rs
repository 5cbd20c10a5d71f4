//! Changed pages given to their backing while they stay, as a sync does.

use crate::common::Plain;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use terrace_vm::{Memory, Options, Region, VmError, Way};

fn memory(way: Way) -> Memory {
    Memory::new(Options {
        way,
        pages_max: 300,
        reserve_bytes: 4 << 30,
        ..Options::default()
    })
    .unwrap()
}

/// A handler thread that put a page in place may be late to say so: what the program wrote by then is written back all the same.
#[test]
fn what_was_written_before_a_write_back_is_stored_after_it() {
    const PAGES: u64 = 4000;
    for way in [Way::InThread, Way::Handlers(2)] {
        let memory = memory(way);
        let plain = Arc::new(Plain::new());
        let region = memory.region(PAGES, plain.clone()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Threads that keep others from running.
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            for at in 0..PAGES {
                // In no order, or more would come than are written to.
                let page = at * 1_501 % PAGES;
                region.word(page as usize * 512).store(page + 1, Relaxed);
                region.write_back(0..PAGES).unwrap();
                let stored = plain.stored_pages() as u64;
                if stored != at + 1 {
                    done.store(true, Relaxed);
                }
                assert_eq!(stored, at + 1, "{way:?}");
                // It stayed where it is, and what is written to it now is not with the backing yet.
                assert_eq!(region.word(page as usize * 512).load(Relaxed), page + 1);
            }
            done.store(true, Relaxed);
        });
        assert_eq!(memory.stats().dirty_pages, 0);
    }
}

#[test]
fn what_the_backing_does_not_take_stays_changed() {
    let memory = memory(Way::InThread);
    let plain = Arc::new(Plain::new());
    let region = memory.region(100, plain.clone()).unwrap();
    (0..100).for_each(|page| region.word(page * 512).store(7, Relaxed));
    plain.store_fails.store(true, Relaxed);
    let said = region.write_back(0..100);
    assert!(matches!(said, Err(VmError::Store(_))), "{said:?}");
    assert_eq!(memory.stats().dirty_pages, 100);
    plain.store_fails.store(false, Relaxed);
    region.write_back(10..20).unwrap();
    assert_eq!((memory.stats().dirty_pages, plain.stored_pages()), (90, 10));
    assert!(region.write_back(90..101).is_err());
    memory.evict_all().unwrap();
    assert!((0..100).all(|page| region.word(page * 512).load(Relaxed) == 7));
}

/// What an evictor has taken away and not stored yet is not passed over.
#[test]
fn a_write_back_waits_for_what_is_on_its_way_to_the_backing() {
    let memory = memory(Way::InThread);
    let plain = Arc::new(Plain::new());
    let region = memory.region(10, plain.clone()).unwrap();
    for calls in [Region::write_back, Region::take_away] {
        region.word(0).fetch_add(1, Relaxed);
        let before = plain.stores.load(Relaxed);
        plain.store_delay_us.store(200_000, Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| memory.evict_all().unwrap());
            // Until it has been unmapped, most likely.
            std::thread::sleep(Duration::from_millis(50));
            calls(&region, 0..10).unwrap();
            assert_eq!(plain.stores.load(Relaxed), before + 1);
        });
        plain.store_delay_us.store(0, Relaxed);
    }
}

/// A backing may wait for room as long as anybody is to: pages that are unmapped are not to wait for that again and again.
#[test]
fn a_batch_asks_a_backing_that_refuses_once() {
    const BLOCKS: usize = 128;
    let memory = memory(Way::InThread);
    let plain = Arc::new(Plain::new());
    let region = memory.region(BLOCKS as u64 * 512, plain.clone()).unwrap();
    // One in each page table is held by a pipe, many in one are protected.
    for at in [512 * 512, 512] {
        (0..BLOCKS).for_each(|nth| region.word(nth * at).store(7, Relaxed));
        plain.refused.store(0, Relaxed);
        plain.store_fails.store(true, Relaxed);
        assert!(memory.evict_all().is_err());
        assert_eq!(plain.refused.load(Relaxed), 1);
        plain.store_fails.store(false, Relaxed);
        memory.evict_all().unwrap();
        assert!((0..BLOCKS).all(|nth| region.word(nth * at).load(Relaxed) == 7));
    }
}
