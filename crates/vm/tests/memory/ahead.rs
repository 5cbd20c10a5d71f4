//! Pages that come before they are touched, where faults go along the addresses: the same contents, no failure that nobody asked for, none where faults are
//! scattered.

use crate::common::Plain;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use terrace_vm::opp::Heap;
use terrace_vm::store::{Pages, Store, StoreOptions};
use terrace_vm::{
    Backing, Changed, FetchError, Fetched, Memory, Options, PAGE_BYTES, Page, Region, StoreError,
    Way,
};

const PAGES: u64 = 2000;

/// Pages from `end` on cannot be read.
struct Broken {
    plain: Plain,
    end: u64,
}

impl Backing for Broken {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        match page < self.end {
            true => self.plain.fetch(page, into),
            false => Err(FetchError::Io {
                offset: 0,
                len: 1,
                errno: libc::EIO,
            }),
        }
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        self.plain.store(pages)
    }

    fn discard(&self, page: u64) {
        self.plain.discard(page);
    }
}

fn memory() -> Memory {
    Memory::new(Options {
        way: Way::Handlers(2),
        pages_max: 600,
        reserve_bytes: 4 << 30,
        ..Options::default()
    })
    .unwrap()
}

fn word(region: &Region, page: u64) -> &std::sync::atomic::AtomicU64 {
    region.word(page as usize * 512)
}

#[test]
fn room_is_made_before_it_is_needed() {
    let memory = memory();
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    let some = 600 / 16;
    // Of changed pages there may be fewer.
    let has_room = || {
        let stats = memory.stats();
        stats.resident_pages + some <= 600 && stats.dirty_pages + some <= 525
    };
    for writes in [true, false] {
        for page in (0..PAGES).step_by(2) {
            match writes {
                true => word(&region, page).store(page + 1, Relaxed),
                false => assert_eq!(word(&region, page).load(Relaxed), page + 1),
            }
            // The handler still may be at it.
            let until = Instant::now() + Duration::from_secs(5);
            while !has_room() && Instant::now() < until {
                std::thread::sleep(Duration::from_micros(100));
            }
            assert!(has_room(), "{:?}", memory.stats());
        }
    }
}

#[test]
fn what_is_touched_in_order_comes_ahead_as_it_was() {
    let memory = memory();
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    for round in 0..4 {
        let before = memory.stats();
        for page in 0..PAGES {
            let word = word(&region, page);
            assert_eq!(word.load(Relaxed), round * (page + 1));
            word.store((round + 1) * (page + 1), Relaxed);
        }
        let after = memory.stats();
        assert!(after.ahead - before.ahead > PAGES / 2, "{after:?}");
        assert!(after.resident_pages <= 600);
    }
    assert_eq!(memory.stats().failed_faults, 0);
}

#[test]
fn nothing_comes_from_beyond_the_last_address() {
    const PAGES: u64 = (1 << 30) / PAGE_BYTES as u64;
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let memory = Memory::new(Options {
            way: Way::Handlers(1),
            pages_max: 600,
            reserve_bytes: 1 << 30,
            ..Options::default()
        });
        let memory = memory.unwrap();
        let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
        for page in PAGES - 300..PAGES {
            word(&region, page).store(page, Relaxed);
        }
        assert!(memory.stats().ahead > 0);
        done.send(()).unwrap();
    });
    let waited = ends.recv_timeout(std::time::Duration::from_secs(30));
    waited.expect("a handler died");
}

#[test]
fn scattered_touches_bring_nothing_else() {
    let memory = memory();
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    // Two side by side are no sequence.
    for at in 0..PAGES / 2 {
        let page = at * 1_498 % PAGES;
        for page in [page, (page + 1) % PAGES] {
            word(&region, page).fetch_add(1, Relaxed);
        }
    }
    assert_eq!(memory.stats().ahead, 0);
}

#[test]
fn what_cannot_be_had_ahead_fails_nobody() {
    let memory = memory();
    let end = 700;
    let plain = Plain::new();
    let region = memory
        .region(PAGES, Arc::new(Broken { plain, end }))
        .unwrap();
    for round in 0..3 {
        for page in 0..end {
            assert_eq!(word(&region, page).fetch_add(1, Relaxed), round);
        }
    }
    let stats = memory.stats();
    assert!(stats.ahead > 0 && stats.failed_faults == 0, "{stats:?}");
}

/// Pages that the backing has, and such that it has not, side by side in runs of all lengths: each is what it was, from either side.
#[test]
fn what_was_never_stored_is_zeros_among_what_was() {
    let memory = memory();
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    let (mut run, mut left, mut holds) = (0, 0u64, false);
    let mut values = vec![0; PAGES as usize];
    for (page, value) in values.iter_mut().enumerate() {
        if left == 0 {
            run = (run * 5 + 7) % 61;
            (left, holds) = (run + 1, !holds);
        }
        left -= 1;
        if holds {
            *value = page as u64 + 1;
            word(&region, page as u64).store(*value, Relaxed);
        }
    }
    for (round, writes) in [(0, false), (1, false), (2, true), (3, true)] {
        for page in 0..PAGES {
            let page = if round % 2 == 0 {
                page
            } else {
                PAGES - 1 - page
            };
            let value = &mut values[page as usize];
            assert_eq!(word(&region, page).load(Relaxed), *value, "page {page}");
            // A tenth, so that the rest stays as it was.
            if writes && page % 10 == round {
                *value += 1;
                word(&region, page).store(*value, Relaxed);
            }
        }
    }
    let stats = memory.stats();
    assert!(stats.ahead > PAGES && stats.failed_faults == 0, "{stats:?}");
}

/// What mprotect closes to writing is a mapping of its own for the kernel, which puts nothing in place across its borders.
#[test]
fn what_was_never_stored_comes_across_the_borders_of_mappings() {
    let memory = memory();
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    let some = region.base().wrapping_add(1000 * 4096).cast();
    let protect = |access| {
        // SAFETY: pages of the region, which are read only meanwhile.
        assert_eq!(unsafe { libc::mprotect(some, 50 * 4096, access) }, 0);
    };
    protect(libc::PROT_READ);
    for page in 0..PAGES {
        assert_eq!(word(&region, page).load(Relaxed), 0);
    }
    let stats = memory.stats();
    assert!(
        stats.ahead > PAGES / 2 && stats.failed_faults == 0,
        "{stats:?}"
    );
    protect(libc::PROT_READ | libc::PROT_WRITE);
}

#[test]
fn what_was_never_stored_comes_in_large_windows() {
    let pages = 100_000;
    let memory = Memory::new(Options {
        way: Way::Handlers(2),
        pages_max: 2 * pages as usize,
        reserve_bytes: 4 << 30,
        ..Options::default()
    })
    .unwrap();
    let region = memory.region(pages, Arc::new(Plain::new())).unwrap();
    for page in 0..pages {
        word(&region, page).store(page, Relaxed);
    }
    let stats = memory.stats();
    // 257 at a time, but for a few when a sequence begins.
    assert!(stats.absent - stats.ahead < pages / 200, "{stats:?}");
    assert_eq!(stats.resident_pages, pages, "{stats:?}");
}

#[test]
fn what_lies_together_on_the_device_is_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions::scratch(dir.path(), 32 << 20, 256 << 20);
    let heap = Heap::open(Store::open(&options).unwrap(), Way::Handlers(2)).unwrap();
    let backing = Arc::new(Pages::new(heap.store().clone(), 0).unwrap());
    let pages = 20_000;
    let region = heap.memory().region(pages, backing).unwrap();
    let mut state = 5u64;
    // Some pack, some do not, some are zeros.
    for page in (0..pages).filter(|page| page % 7 > 0) {
        for at in 0..512 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let random = if page % 3 == 0 && at % 2 == 0 {
                0
            } else {
                state
            };
            region.word(page as usize * 512 + at).store(random, Relaxed);
        }
        word(&region, page).store(page, Relaxed);
    }
    let before = heap.store().stats().lanes;
    for round in 0..2 {
        for page in 0..pages {
            let expected = if page % 7 == 0 { 0 } else { page };
            assert_eq!(word(&region, page).load(Relaxed), expected, "{round}");
        }
    }
    let (stats, after) = (heap.memory().stats(), heap.store().stats().lanes);
    let (reads, misses) = (
        after.device_reads - before.device_reads,
        after.misses - before.misses,
    );
    println!("{stats:?}: {reads} reads for {misses} pages");
    assert_eq!(stats.failed_faults, 0);
    assert!(misses > pages && reads < misses / 4, "{reads} of {misses}");
}
