//! The page buffer and the DRAM terrace share a cap: it goes to where it spares more, and the sum never passes it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::opp::Heap;
use terrace_vm::store::{Pages, Shape, Store, StoreOptions};
use terrace_vm::{
    Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, Region, StoreError, Way,
};

const CAP_BYTES: u64 = 64 << 20;
const REGION_BYTES: u64 = 160 << 20;
const WORDS_A_PAGE: usize = PAGE_BYTES / 8;

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    let x = *state ^ *state >> 33;
    x.wrapping_mul(0xff51afd7ed558ccd) ^ x >> 29
}

fn heap(dir: &std::path::Path) -> Heap {
    heap_of(dir, CAP_BYTES)
}

fn heap_of(dir: &std::path::Path, cap_bytes: u64) -> Heap {
    let options = StoreOptions::scratch(dir, cap_bytes, 4 * REGION_BYTES);
    Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap()
}

/// A region of pages that do not pack, the first word of each its number.
fn region(heap: &Heap) -> Region {
    let pages = REGION_BYTES / PAGE_BYTES as u64;
    let backing = Arc::new(Pages::new(heap.store().clone(), 0).unwrap());
    let region = heap.memory().region(pages, backing).unwrap();
    let mut state = 1;
    for page in 0..pages as usize {
        for word in 1..WORDS_A_PAGE {
            region
                .word(page * WORDS_A_PAGE + word)
                .store(random(&mut state), Relaxed);
        }
        region.word(page * WORDS_A_PAGE).store(page as u64, Relaxed);
    }
    region
}

/// Reads pages, three of four times one of the first sixth.
fn read(heap: &Heap, region: &Region, reads: u64) {
    let mut state = 7;
    for n in 0..reads {
        let among = if n % 4 == 0 {
            region.pages()
        } else {
            region.pages() / 6
        };
        let page = (random(&mut state) % among) as usize;
        let there = region.word(page * WORDS_A_PAGE).load(Relaxed);
        assert_eq!(there, page as u64);
        if n % 1000 == 0 {
            let (cap, used) = heap.store().cap_and_used_bytes();
            assert!(used <= cap, "{used} of {cap} bytes");
        }
    }
}

#[test]
fn pages_that_do_not_pack_have_most_of_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let heap = heap(dir.path());
    let region = region(&heap);
    let before = heap.memory().stats().buffer_max_bytes;
    read(&heap, &region, 150_000);
    let after = heap.memory().stats().buffer_max_bytes;
    assert!(after > 2 * before, "{before} bytes, then {after}");
    assert!(after < CAP_BYTES);
}

#[test]
fn a_size_that_was_chosen_stays() {
    let dir = tempfile::tempdir().unwrap();
    let heap = heap(dir.path());
    heap.set_pages_max(500).unwrap();
    let region = region(&heap);
    read(&heap, &region, 60_000);
    assert_eq!(heap.memory().pages_max(), 500);
    assert!(heap.memory().stats().resident_pages <= 500);
}

#[test]
fn what_fits_a_large_buffer_never_leaves_it() {
    let dir = tempfile::tempdir().unwrap();
    let heap = heap(dir.path());
    let before = heap.memory().stats().buffer_max_bytes;
    heap.begin_large();
    assert!(heap.memory().stats().buffer_max_bytes > 2 * before);
    let pages = CAP_BYTES / 3 / PAGE_BYTES as u64;
    let backing = Arc::new(Pages::new(heap.store().clone(), 0).unwrap());
    let region = heap.memory().region(pages, backing).unwrap();
    for round in 0..3 {
        for page in 0..pages as usize {
            let word = region.word(page * WORDS_A_PAGE);
            assert_eq!(word.load(Relaxed), round);
            word.store(round + 1, Relaxed);
        }
    }
    let stats = heap.memory().stats();
    assert_eq!((stats.evicted, stats.fetched), (0, 0));
    let (cap, used) = heap.store().cap_and_used_bytes();
    assert!(used <= cap, "{used} of {cap} bytes");
}

#[test]
fn a_large_buffer_of_a_small_cap_leaves_the_terrace_what_it_needs() {
    // The least there may be, and what has few segments beside the buffer.
    for cap_mib in [16, 32] {
        let dir = tempfile::tempdir().unwrap();
        let heap = heap_of(dir.path(), cap_mib << 20);
        heap.begin_large();
        let stats = heap.memory().stats();
        println!("{cap_mib} MiB: {} bytes for pages", stats.buffer_max_bytes);
        // With too few segments it takes no changed pages, and this would end in SIGBUS.
        let region = region(&heap);
        read(&heap, &region, 2_000);
        assert_eq!(heap.memory().stats().failed_stores, 0);
        let (cap, used) = heap.store().cap_and_used_bytes();
        assert!(used <= cap, "{used} of {cap} bytes");
    }
}

#[test]
fn a_large_buffer_makes_way_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let heap = heap(dir.path());
    heap.begin_large();
    let region = region(&heap);
    // What children of forks take, at most.
    for taken in 1..=8 {
        heap.make_way(CAP_BYTES / 16);
        let (cap, used) = heap.store().cap_and_used_bytes();
        assert!(used <= cap, "after {taken}: {used} of {cap} bytes");
        // The terrace takes what changed meanwhile, or this would end in SIGBUS.
        for page in 0..CAP_BYTES as usize / PAGE_BYTES / 4 {
            let word = region.word(page * WORDS_A_PAGE + 1);
            word.store(taken, Relaxed);
        }
    }
    heap.store().count_pages(CAP_BYTES / 2, 0);
    read(&heap, &region, 5_000);
}

/// Changed pages that nobody touches any more, of so many sixteenths of what pages may have.
fn changed(heap: &Heap, sixteenths: u64, backing: Arc<dyn Backing>) -> Region {
    let pages = CAP_BYTES / 2 / PAGE_BYTES as u64;
    let region = heap.memory().region(pages, backing).unwrap();
    let mut state = 1;
    for page in 0..pages as usize {
        let stats = heap.memory().stats();
        let held = stats.resident_pages * PAGE_BYTES as u64 + stats.table_bytes;
        if held > stats.buffer_max_bytes / 16 * sixteenths {
            break;
        }
        for word in 0..WORDS_A_PAGE {
            let word = region.word(page * WORDS_A_PAGE + word);
            word.store(random(&mut state), Relaxed);
        }
    }
    region
}

/// A child of a fork stores by its parent, whose tables grow by that, and which may do nothing itself: its pages stayed, until the terrace took nothing any more.
#[test]
fn pages_of_who_does_nothing_leave_where_others_store() {
    const OBJECTS: u64 = 2_000_000;
    let dir = tempfile::tempdir().unwrap();
    let heap = heap_of(dir.path(), 32 << 20);
    heap.begin_large();
    let pages = Arc::new(Pages::new(heap.store().clone(), 0).unwrap());
    let _region = changed(&heap, 15, pages);
    heap.store().make_table(1, Shape::Fixed(64)).unwrap();
    for object in 0..OBJECTS {
        if object % 64 == 0 {
            heap.keep_terrace();
        }
        let put = heap.store().put(1, object, &[object as u8; 64]);
        assert_eq!(put, Ok(()), "object {object}: {:?}", heap.memory().stats());
    }
}

/// Takes no page.
struct Refuses;

impl Backing for Refuses {
    fn span(&self, _page: u64) -> std::ops::Range<usize> {
        0..PAGE_BYTES
    }
    fn fetch(&self, _page: u64, _into: &mut Page) -> Result<Fetched, FetchError> {
        Ok(Fetched::Absent)
    }
    fn store(&self, _pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        Err(StoreError::Io { errno: libc::EIO })
    }
    fn discard(&self, _page: u64) {}
}

/// With what pages do not give the terrace would have too few segments to take any, and stay so.
#[test]
fn no_more_is_given_than_pages_make_way_for() {
    let dir = tempfile::tempdir().unwrap();
    let heap = heap_of(dir.path(), 32 << 20);
    heap.begin_large();
    let region = changed(&heap, 12, Arc::new(Refuses));
    let asked = heap.between_them_bytes() - (1 << 20);
    let given = heap.make_way(asked);
    assert!(given < asked, "{given} of {asked}");
    heap.store().make_table(1, Shape::Fixed(64)).unwrap();
    for object in 0..1000 {
        assert_eq!(heap.store().put(1, object, &[1; 64]), Ok(()));
    }
    drop(region);
    // They are gone.
    assert_eq!(heap.make_way(1 << 20), 1 << 20);
    heap.store().count_pages(given + (1 << 20), 0);
}
