//! Changed pages given to their backing while they stay, as a sync does.

mod common;

use common::Plain;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::{Memory, Options, VmError, Way};

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
