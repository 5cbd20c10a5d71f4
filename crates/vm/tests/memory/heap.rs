//! The malloc over a region (MP), end to end under a cap of 32 MiB, against a plain copy: several threads allocate, change, grow and free at
//! random; every allocation holds what was written to it last, none overlaps another, and what is wrongly freed is refused.

use crate::common::Random;
use std::time::{Duration, Instant};
use terrace_vm::Way;
use terrace_vm::heap::{ALIGN_MAX_BYTES, AllocError, PageHeap};
use terrace_vm::opp::Heap;
use terrace_vm::store::{Store, StoreOptions};

const CAP_BYTES: u64 = 32 << 20;
const THREADS: u64 = 4;
const ROUND: Duration = Duration::from_secs(3);

fn heap(ssd_bytes: u64, bytes_max: u64) -> (tempfile::TempDir, Heap, PageHeap) {
    heap_with(Way::InThread, ssd_bytes, bytes_max)
}

fn heap_with(way: Way, ssd_bytes: u64, bytes_max: u64) -> (tempfile::TempDir, Heap, PageHeap) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&StoreOptions::scratch(dir.path(), CAP_BYTES, ssd_bytes)).unwrap();
    let heap = Heap::open(store, way).unwrap();
    let pages = PageHeap::new(&heap, bytes_max).unwrap();
    (dir, heap, pages)
}

/// An allocation and what it was filled with, from its address and a number.
struct Held {
    address: *mut u8,
    bytes: usize,
    seed: u64,
}

impl Held {
    fn byte(&self, at: usize) -> u8 {
        (self.seed as usize).wrapping_add(at.wrapping_mul(31)) as u8
    }
    fn fill(&self) {
        for at in (0..self.bytes).step_by(1 + self.bytes / 64) {
            // SAFETY: allocated with so many bytes, and only this thread has it.
            unsafe { self.address.add(at).write(self.byte(at)) };
        }
    }
    fn check(&self, bytes: usize) {
        for at in (0..bytes).step_by(1 + self.bytes / 64) {
            // SAFETY: as above.
            let seen = unsafe { self.address.add(at).read() };
            assert_eq!(seen, self.byte(at), "byte {at} of {}", self.bytes);
        }
    }
}

fn random_size(random: &mut Random) -> usize {
    match random.below(20) {
        0 => random.below(200_000) as usize,
        1..=4 => random.below(20_000) as usize,
        _ => random.below(600) as usize,
    }
}

fn work(heap: &PageHeap, seed: u64, ends: Instant) {
    let mut random = Random::new(seed);
    let mut held: Vec<Held> = Vec::new();
    while Instant::now() < ends {
        if held.len() < 4000 && random.below(3) > 0 {
            let (bytes, zeroed) = (random_size(&mut random).max(1), random.below(4) == 0);
            let align = 16 << random.below(9);
            let address = match zeroed {
                true => heap.alloc_zeroed(bytes, align).unwrap(),
                false => heap.alloc(bytes, align).unwrap(),
            };
            assert_eq!(address as usize % align, 0);
            if zeroed {
                for at in (0..bytes).step_by(7) {
                    // SAFETY: allocated just now.
                    assert_eq!(unsafe { address.add(at).read() }, 0);
                }
            }
            let new = Held {
                address,
                bytes,
                seed: random.next(),
            };
            new.fill();
            held.push(new);
        } else if !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            if random.below(4) == 0 {
                let (mut one, bytes) = (held.swap_remove(at), random_size(&mut random).max(1));
                // SAFETY: only this thread has it.
                let address = unsafe { heap.realloc(one.address, bytes).unwrap() };
                one.address = address;
                one.check(bytes.min(one.bytes));
                one.bytes = bytes;
                one.fill();
                held.push(one);
            } else {
                let one = held.swap_remove(at);
                one.check(one.bytes);
                heap.free(one.address).unwrap();
            }
        }
    }
    for one in held {
        one.check(one.bytes);
        heap.free(one.address).unwrap();
    }
}

#[test]
fn allocations_hold_what_was_written_to_them() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    round(Way::InThread, seed, ROUND);
    round(Way::Handlers(2), seed, ROUND);
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn soak_heap() {
    let seconds: u64 = std::env::var("SOAK_SECONDS").map_or(60, |s| s.parse().unwrap());
    let ends = Instant::now() + Duration::from_secs(seconds);
    let mut seed = u64::from(std::process::id());
    println!("seed {seed}");
    while Instant::now() < ends {
        round(Way::InThread, seed, ROUND * 4);
        round(Way::Handlers(2), seed, ROUND * 4);
        seed += 100;
    }
}

fn round(way: Way, seed: u64, for_how_long: Duration) {
    let (_dir, heap, pages) = heap_with(way, 512 << 20, 1 << 30);
    let ends = Instant::now() + for_how_long;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let pages = &pages;
            scope.spawn(move || work(pages, seed + thread, ends));
        }
    });
    assert_eq!(pages.stats().allocated_bytes, 0);
    let (cap, used) = heap.store().cap_and_used_bytes();
    assert!(used <= cap, "{used} of {cap}");
    // What is kept is at most an empty span of each size, and what was freed last.
    assert!(
        pages.stats().page_bytes <= 52 * 32 * 4096 + CAP_BYTES / 64,
        "{:?}",
        pages.stats()
    );
}

#[test]
fn what_is_wrongly_freed_is_refused_and_nothing_changes() {
    let (_dir, _heap, pages) = heap(64 << 20, 32 << 20);
    for bytes in [1, 100, 5000, 100_000] {
        let (one, other) = (
            pages.alloc(bytes, 16).unwrap(),
            pages.alloc(bytes, 16).unwrap(),
        );
        let before = pages.stats();
        let inside = pages.free(one.wrapping_add(8));
        assert!(
            matches!(inside, Err(AllocError::NotAllocated { .. })),
            "{inside:?}"
        );
        let foreign = pages.free((&raw const before).cast_mut().cast());
        assert!(matches!(foreign, Err(AllocError::NotAllocated { .. })));
        assert_eq!(pages.stats(), before);
        pages.free(one).unwrap();
        let again = pages.free(one);
        assert!(matches!(
            again,
            Err(AllocError::Freed { .. } | AllocError::NotAllocated { .. })
        ));
        // SAFETY: nobody has it; it is refused.
        assert!(unsafe { pages.realloc(one, 10) }.is_err());
        pages.free(other).unwrap();
    }
    assert!(matches!(
        pages.alloc(10, 24),
        Err(AllocError::Alignment { .. })
    ));
    assert!(matches!(
        pages.alloc(10, 2 * ALIGN_MAX_BYTES),
        Err(AllocError::Alignment { .. })
    ));
    assert!(pages.alloc(usize::MAX - 10, 16).is_err());
}

#[test]
fn alignments_hold_up_to_the_largest() {
    let (_dir, _heap, pages) = heap(64 << 20, 8 << 30);
    let mut held = Vec::new();
    for shift in 20..=30 {
        for bytes in [10, 100_000] {
            let address = pages.alloc(bytes, 1 << shift).unwrap();
            assert_eq!(address as usize % (1 << shift), 0, "{bytes} at 2^{shift}");
            // SAFETY: allocated with so many bytes, and nobody else has it.
            unsafe { address.write_bytes(shift, bytes) };
            held.push((address, bytes, shift));
        }
    }
    // Those that are left, until there is none.
    while let Ok(address) = pages.alloc(10, ALIGN_MAX_BYTES) {
        held.push((address, 0, 0));
    }
    let refused = pages.alloc(10, ALIGN_MAX_BYTES);
    assert!(matches!(refused, Err(AllocError::NoAddresses { .. })));
    for (address, bytes, shift) in held {
        // SAFETY: allocated above, of so many bytes, and filled.
        let all = unsafe { std::slice::from_raw_parts(address, bytes) };
        assert!(all.iter().all(|byte| *byte == shift));
        pages.free(address).unwrap();
    }
    assert_eq!(pages.stats().allocated_bytes, 0);
}

#[test]
fn a_full_ssd_is_met_by_an_allocation_and_room_comes_back() {
    let (_dir, _heap, pages) = heap(64 << 20, 1 << 30);
    let mut held = Vec::new();
    let mut random = Random::new(1);
    let refused = loop {
        match pages.alloc(60_000, 16) {
            Ok(address) => {
                for word in 0..60_000 / 8 {
                    // Bytes that lz4 cannot shorten.
                    // SAFETY: allocated just now.
                    unsafe { address.cast::<u64>().add(word).write(random.next()) };
                }
                held.push(address);
            }
            Err(e) => break e,
        }
    };
    assert!(refused.to_string().contains("SSD is full"), "{refused}");
    let many = held.len();
    assert!(many * 60_000 > 32 << 20, "only {many} fit");
    for address in held.drain(..) {
        pages.free(address).unwrap();
    }
    for _ in 0..many {
        held.push(pages.alloc(60_000, 16).unwrap());
    }
}

/// Sizes of temporaries: in spans of two pages, runs, and nearly all that may be kept.
const TEMPORARIES: [usize; 4] = [8000, 20_000, 100_000, 400_000];

#[test]
fn what_was_freed_just_now_is_handed_out_without_faults() {
    for way in [Way::InThread, Way::Handlers(2)] {
        let (_dir, heap, pages) = heap_with(way, 512 << 20, 1 << 30);
        let faults = || {
            let stats = heap.memory().stats();
            stats.absent + stats.fetched
        };
        for bytes in TEMPORARIES {
            let one = || {
                let address = pages.alloc(bytes, 16).unwrap();
                // SAFETY: allocated just now, of so many bytes.
                unsafe { address.write_bytes(7, bytes) };
                address
            };
            let two = || [one(), one()].map(|address| pages.free(address).unwrap());
            two();
            let before = faults();
            for _ in 0..100 {
                two();
            }
            let pages_of_two = 2 * bytes.div_ceil(4096) as u64;
            // Two of the largest are more than may be kept.
            let most = if bytes < 300_000 {
                0
            } else {
                100 * pages_of_two
            };
            assert!(
                faults() - before <= most,
                "{bytes} bytes: {} faults",
                faults() - before
            );
        }
    }
}

#[test]
fn what_was_freed_is_not_taken_for_zeros_and_not_read_back() {
    let (_dir, heap, pages) = heap(512 << 20, 1 << 30);
    let other = pages.alloc(80 << 20, 16).unwrap();
    for bytes in TEMPORARIES {
        for steps_down in [false, true] {
            let address = pages.alloc(bytes, 16).unwrap();
            // SAFETY: allocated just now, of so many bytes.
            unsafe { address.write_bytes(7, bytes) };
            pages.free(address).unwrap();
            if steps_down {
                for at in (0..80 << 20).step_by(4096) {
                    // SAFETY: within the allocation, as old as this test.
                    unsafe { other.add(at).write_volatile(1) };
                }
            }
            let before = heap.memory().stats().fetched;
            let address = pages.alloc_zeroed(bytes, 16).unwrap();
            // SAFETY: allocated just now, of so many bytes, all written.
            let bytes_of = unsafe { std::slice::from_raw_parts(address, bytes) };
            assert!(bytes_of.iter().all(|byte| *byte == 0), "{bytes} bytes");
            assert_eq!(heap.memory().stats().fetched, before, "{bytes} bytes");
            pages.free(address).unwrap();
        }
    }
}

#[test]
fn what_was_freed_just_now_is_there_for_whoever_needs_it() {
    let bytes = 2 << 20;
    let (_dir, _heap, pages) = heap(512 << 20, bytes as u64);
    for _ in 0..3 {
        // In pieces, so that what is kept lies everywhere.
        let pieces: Vec<_> = (0..bytes / 40_960)
            .map(|_| pages.alloc(40_960, 16).unwrap())
            .collect();
        for piece in pieces
            .iter()
            .step_by(2)
            .chain(pieces.iter().skip(1).step_by(2))
        {
            pages.free(*piece).unwrap();
        }
        let all = pages.alloc(bytes, 4096).unwrap();
        pages.free(all).unwrap();
        // In place, over what is kept behind it; and mapped where it is kept.
        let first = pages.alloc(40_960, 16).unwrap();
        let second = pages.alloc(40_960, 16).unwrap();
        pages.free(second).unwrap();
        // SAFETY: nobody else uses it.
        let grown = unsafe { pages.realloc(first, bytes) }.unwrap();
        assert_eq!(grown, first);
        pages.free(grown).unwrap();
        let all = pages.alloc(bytes - 4096, 16).unwrap();
        // SAFETY: allocated with so many bytes, and nobody else has it.
        unsafe { all.write_bytes(7, bytes - 4096) };
        pages.free(all).unwrap();
        assert!(pages.map_at(0, (bytes / 4096) as u32, true));
        // SAFETY: mapped just now.
        let mapped = unsafe { std::slice::from_raw_parts(pages.base(), bytes) };
        assert!(mapped.iter().all(|byte| *byte == 0));
        // SAFETY: mapped so above, and used no more.
        unsafe { pages.unmap(0..(bytes / 4096) as u32, true) };
    }
    assert_eq!(pages.stats().allocated_bytes, 0);
}

#[test]
fn room_of_what_was_freed_just_now_is_there_for_growth_in_place() {
    let (_dir, _heap, pages) = heap(64 << 20, 1 << 30);
    let bytes = 100 * 4096;
    let mut held = Vec::new();
    while let Ok(address) = pages.alloc(bytes, 16) {
        held.push(address);
    }
    let last = held.pop().unwrap();
    pages.free(held.swap_remove(0)).unwrap();
    // SAFETY: nobody else uses it.
    let grown = unsafe { pages.realloc(last, 2 * bytes) }.unwrap();
    assert_eq!(grown, last, "there are addresses behind it");
    for address in held.into_iter().chain([grown]) {
        pages.free(address).unwrap();
    }
}

/// The map from pages to who has them lies in DRAM where it was written to: a page of it for each 4 MiB, whatever one allocation takes.
#[test]
fn what_is_known_of_large_allocations_is_counted() {
    const RUNS: u64 = 64;
    let (_dir, _heap, pages) = heap(1 << 30, 1 << 30);
    for _ in 0..RUNS {
        pages.alloc(4 << 20, 16).unwrap();
    }
    let known = pages.stats().table_bytes;
    assert!((RUNS * 4096..RUNS * 8192).contains(&known), "{known}");
}
