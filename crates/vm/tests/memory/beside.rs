//! Pages that come with another one because a register points to them, and room that is made before it is needed: faults taken in the thread, of programs that do not know this library.
#![cfg(target_arch = "x86_64")]

use crate::common::Plain;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use terrace_vm::{
    Backing, Changed, FetchError, Fetched, Memory, Options, PAGE_BYTES, Page, Put, Region,
    StoreError,
};

const PAGES: u64 = 20_000;

/// Counts the calls for several pages.
struct Counting {
    plain: Plain,
    several: AtomicU64,
}

impl Backing for Counting {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        self.plain.fetch(page, into)
    }

    fn fetch_several(&self, pages: &[u64], into: &mut Page, put: &mut Put<'_>) {
        self.several.fetch_add(u64::from(pages.len() > 1), Relaxed);
        self.plain.fetch_several(pages, into, put);
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        self.plain.store(pages)
    }

    fn discard(&self, page: u64) {
        self.plain.discard(page);
    }
}

fn memory(pages_max: usize) -> Memory {
    Memory::new(Options {
        unmodified: true,
        pages_max,
        reserve_bytes: 4 << 30,
        ..Options::default()
    })
    .unwrap()
}

fn at(region: &Region, page: u64) -> *mut u64 {
    region.word(page as usize * PAGE_BYTES / 8).as_ptr()
}

/// Writes to two places, both of which are in registers when the first is touched.
fn write_both(first: *mut u64, second: *mut u64, value: u64) {
    // SAFETY: both are words of a region that is there; nobody else has them.
    unsafe {
        std::arch::asm!(
            "mov qword ptr [{first}], {value}",
            "mov qword ptr [{second}], {value}",
            first = in(reg) first,
            second = in(reg) second,
            value = in(reg) value,
        );
    }
}

#[test]
fn what_a_register_points_to_comes_along_where_it_is_touched_next() {
    let memory = memory(2000);
    let backing = Arc::new(Counting {
        plain: Plain::new(),
        several: AtomicU64::new(0),
    });
    let region = memory.region(PAGES, backing.clone()).unwrap();
    for page in 0..PAGES {
        region
            .word(page as usize * PAGE_BYTES / 8)
            .store(page, Relaxed);
    }
    memory.evict_all().unwrap();
    let faults = |pairs: u64, salt: u64| {
        let (ahead, several) = (memory.stats().ahead, backing.several.load(Relaxed));
        for n in 0..pairs {
            // Far apart, and not in a row.
            let (a, b) = (n * 7919 % PAGES, (n * 104_729 + salt) % PAGES);
            write_both(at(&region, a), at(&region, b), n + salt);
            assert!(a == b || region.word(a as usize * PAGE_BYTES / 8).load(Relaxed) == n + salt);
            assert_eq!(
                region.word(b as usize * PAGE_BYTES / 8).load(Relaxed),
                n + salt
            );
        }
        (
            memory.stats().ahead - ahead,
            backing.several.load(Relaxed) - several,
        )
    };
    let (ahead, several) = faults(2000, 11);
    assert!(
        ahead > 1200 && several > 1200,
        "{ahead} pages came ahead in {several} calls"
    );
    assert_eq!(memory.stats().failed_faults, 0);
}

/// Reads a word, and then another, each by an instruction of its own that no register tells anything of.
#[inline(never)]
fn read_both(first: *const u64, between: usize) -> (u64, u64) {
    let (a, b): (u64, u64);
    // SAFETY: both are words of a region that is there.
    unsafe {
        std::arch::asm!(
            "mov {a}, qword ptr [{first}]",
            "mov {b}, qword ptr [{first} + {between}]",
            first = in(reg) first,
            between = in(reg) between,
            a = out(reg) a,
            b = out(reg) b,
        );
    }
    (a, b)
}

#[test]
fn what_goes_on_in_the_page_behind_comes_along() {
    let memory = memory(2000);
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    let word = |byte: usize| region.word(byte / 8);
    for byte in (0..PAGES as usize * PAGE_BYTES).step_by(512) {
        word(byte).store(byte as u64, Relaxed);
    }
    memory.evict_all().unwrap();
    // Values of a kilobyte at any place, and how long they are is never the same.
    let values = |salt: usize| {
        let ahead = memory.stats().ahead;
        let mut crossing = 0;
        for n in 0..6000 {
            let at = (n * 7919 + salt) % (PAGES as usize - 2) * PAGE_BYTES + n % 8 * 512;
            let between = 1024 + n % 7 * 512;
            let between = between.min((at / PAGE_BYTES + 2) * PAGE_BYTES - 512 - at);
            let (a, b) = read_both(word(at).as_ptr(), between);
            assert_eq!((a, b), (at as u64, (at + between) as u64));
            crossing += u64::from((at + between) / PAGE_BYTES > at / PAGE_BYTES);
        }
        (memory.stats().ahead - ahead, crossing)
    };
    let (ahead, crossing) = values(3);
    assert!(
        ahead * 10 > crossing * 6 && ahead <= crossing * 13 / 10,
        "{ahead} pages came ahead, {crossing} values went on"
    );
    assert_eq!(memory.stats().failed_faults, 0);
}

#[test]
fn room_is_made_by_a_thread_before_it_is_needed() {
    let memory = memory(600);
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    for round in 1..=2 {
        for page in 0..3000 {
            let word = region.word((page * 7 % PAGES) as usize * PAGE_BYTES / 8);
            assert_eq!(
                word.swap(page + round, Relaxed),
                if round == 1 { 0 } else { page + 1 }
            );
            // The evictor still may be at it.
            let until = Instant::now() + Duration::from_secs(5);
            let has_room = || memory.stats().resident_pages + 16 <= 600;
            while !has_room() && Instant::now() < until {
                std::thread::sleep(Duration::from_micros(100));
            }
            assert!(has_room(), "{:?}", memory.stats());
        }
    }
    // Gone while it may be at work.
    drop(region);
    drop(memory);
}
