//! Memory that faults against a plain copy: several threads read, write and free at random in a region far larger than its page
//! buffer, and everything they read must be what they wrote last.
//!
//! Each thread owns every so manyth word of each page, so threads meet in pages all the time, never in words.

use crate::common::{Plain, Random};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_vm::{Memory, Options, PAGE_BYTES, Region, Way};

const THREADS: usize = 4;
const PAGES: u64 = 3000;
/// Pages lie this far apart, in part of the tests: each in a block of its own, or nearly.
const SCATTER: u64 = 173;
const WORDS: usize = PAGE_BYTES / 8;

/// What a round of the test is like.
#[derive(Clone, Copy)]
struct Case {
    way: Way,
    pages_max: usize,
    stride: u64,
    /// Of 100 accesses, those that read.
    reads: u64,
    /// Bytes of each page that mean anything.
    span: fn(u64) -> Range<usize>,
    delay_us: u64,
    /// As a kernel that takes pages away many at a time.
    batches: bool,
    /// As a kernel that gives page tables of empty blocks back by advice.
    advised_tables: bool,
}

const WHOLE: fn(u64) -> Range<usize> = |_| 0..PAGE_BYTES;
/// An object of 256 bytes, somewhere in its page.
const OBJECT: fn(u64) -> Range<usize> = |page| {
    let at = (page as usize % 15) * 256;
    at..at + 256
};

fn memory(case: &Case) -> Memory {
    Memory::new(Options {
        way: case.way,
        pages_max: case.pages_max,
        reserve_bytes: 64 << 30,
        batches: case.batches,
        advised_tables: case.advised_tables,
        ..Options::default()
    })
    .unwrap()
}

/// One thread's words: those of the page whose number is `thread` modulo THREADS.
struct Owner<'a> {
    region: &'a Region,
    case: Case,
    thread: usize,
    random: Random,
    shadow: Vec<u64>,
}

impl<'a> Owner<'a> {
    fn new(region: &'a Region, case: Case, thread: usize, seed: u64) -> Owner<'a> {
        let random = Random::new(seed + thread as u64);
        let shadow = vec![0; PAGES as usize * WORDS / THREADS];
        Owner {
            region,
            case,
            thread,
            random,
            shadow,
        }
    }

    fn step(&mut self) {
        let page = self.page();
        let span = (self.case.span)(page * self.case.stride);
        let words = (span.start / 8 / THREADS) as u64..(span.end / 8 / THREADS) as u64;
        let nth = words.start + self.random.below(words.end - words.start);
        let word = nth as usize * THREADS + self.thread;
        let address = self.region.base() as usize
            + (page * self.case.stride) as usize * PAGE_BYTES
            + word * 8;
        let shadow = &mut self.shadow[page as usize * WORDS / THREADS + nth as usize];
        let pointer = address as *mut u64;
        // SAFETY: within the region, and only this thread uses this word.
        let seen = unsafe { pointer.read_volatile() };
        assert_eq!(
            seen, *shadow,
            "page {page} word {word} of thread {}",
            self.thread
        );
        if self.random.below(100) >= self.case.reads {
            *shadow = self.random.next();
            // SAFETY: as above.
            unsafe { pointer.write_volatile(*shadow) };
        }
    }

    /// Some are hot.
    fn page(&mut self) -> u64 {
        match self.random.below(3) {
            0 => self.random.below(PAGES / 50),
            _ => self.random.below(PAGES),
        }
    }
}

fn run(case: Case, seed: u64, for_how_long: Duration) {
    let memory = memory(&case);
    let backing = Arc::new(Plain::with_span(case.span));
    backing
        .fetch_delay_us
        .store(case.delay_us, Ordering::Relaxed);
    backing.taken_max.store(7, Ordering::Relaxed);
    let region = memory.region(PAGES * case.stride, backing.clone()).unwrap();
    let ends = Instant::now() + for_how_long;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = &region;
            scope.spawn(move || {
                let mut owner = Owner::new(region, case, thread, seed);
                while Instant::now() < ends {
                    (0..64).for_each(|_| owner.step());
                }
            });
        }
        // Meanwhile the bound moves, and must hold.
        let mut random = Random::new(seed);
        while Instant::now() < ends {
            let pages_max = case.pages_max + random.below(64) as usize;
            memory.set_pages_max(pages_max).unwrap();
            std::thread::sleep(Duration::from_millis(3));
            assert!(memory.stats().resident_pages <= pages_max as u64 + THREADS as u64);
        }
    });
    let stats = memory.stats();
    assert!(stats.evicted > 0 && stats.stored > 0, "{stats:?}");
    memory.evict_all().unwrap();
    let stats = memory.stats();
    assert_eq!(
        (stats.resident_pages, stats.dirty_pages),
        (0, 0),
        "{stats:?}"
    );
    drop(region);
}

fn seed() -> u64 {
    let seed = std::env::var("SHADOW_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_nanos() as u64
    });
    println!("repeat with SHADOW_SEED={seed}");
    seed
}

fn cases(way: Way) -> Vec<Case> {
    let case = Case {
        way,
        pages_max: 256,
        stride: 1,
        reads: 50,
        span: WHOLE,
        delay_us: 0,
        batches: true,
        advised_tables: true,
    };
    vec![
        case,
        Case {
            stride: SCATTER,
            ..case
        },
        Case {
            batches: false,
            ..case
        },
        Case {
            stride: SCATTER,
            advised_tables: false,
            ..case
        },
        Case {
            stride: SCATTER,
            span: OBJECT,
            pages_max: 1000,
            ..case
        },
        Case {
            pages_max: 64,
            reads: 0,
            ..case
        },
        Case {
            pages_max: 64,
            reads: 90,
            delay_us: 50,
            ..case
        },
    ]
}

const SHORT: Duration = Duration::from_millis(1500);

#[test]
fn faults_in_the_thread_against_a_plain_copy() {
    let seed = seed();
    for case in cases(Way::InThread) {
        run(case, seed, SHORT);
    }
}

#[test]
fn faults_by_handlers_against_a_plain_copy() {
    let seed = seed();
    for case in cases(Way::Handlers(2)) {
        run(case, seed, SHORT);
    }
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn soak_shadow() {
    let seconds: u64 = std::env::var("SOAK_SECONDS").map_or(60, |s| s.parse().unwrap());
    let ends = Instant::now() + Duration::from_secs(seconds);
    let mut seed = seed();
    while Instant::now() < ends {
        for way in [Way::InThread, Way::Handlers(3)] {
            for case in cases(way) {
                run(case, seed, 2 * SHORT);
            }
        }
        seed += 1;
    }
}
