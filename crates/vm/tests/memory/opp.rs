//! Objects on pages of their own, end to end: faults above, a pool on a file below, under a cap of 32 MiB.
//!
//! Against a plain copy: several threads read, write, allocate, free and resize at random; every object holds what was written to it
//! last, and a new one zeros.

use crate::common::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrace_vm::handles::Table;
use terrace_vm::opp::{Heap, HeapError};
use terrace_vm::store::{Pages, Store, StoreOptions};
use terrace_vm::{Backing, Changed, PAGE_BYTES, Page, Way};

const CAP_BYTES: u64 = 32 << 20;
const THREADS: usize = 4;
const ROUND: Duration = Duration::from_secs(3);
const WAYS: [Way; 2] = [Way::InThread, Way::Handlers(2)];

fn heap(way: Way, ssd_bytes: u64) -> (tempfile::TempDir, Heap) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&StoreOptions::scratch(dir.path(), CAP_BYTES, ssd_bytes)).unwrap();
    (dir, Heap::open(store, way).unwrap())
}

fn cap_holds(heap: &Heap) {
    let (cap, used) = heap.store().cap_and_used_bytes();
    assert!(used <= cap, "{used} bytes of {cap}");
    let stats = heap.memory().stats();
    let held = stats.resident_pages * PAGE_BYTES as u64 + stats.table_bytes;
    assert!(held <= cap, "{held} bytes of pages and tables");
}

fn seed() -> u64 {
    let given = std::env::var("SHADOW_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    println!("repeat with SHADOW_SEED={seed}");
    seed
}

fn read(object: *mut u64, words: usize, expected: u64, what: u64) {
    for word in [0, words / 2, words - 1] {
        // SAFETY: an object that is allocated, of so many words; only this thread uses it.
        let seen = unsafe { object.add(word).read_volatile() };
        assert_eq!(seen, word_of(expected, word), "object {what}, word {word}");
    }
}

/// What words hold of an object of zeros, never written to or written with them, of one byte, of one that lz4 shortens by half, or of one that it does not.
fn word_of(value: u64, word: usize) -> u64 {
    match value >> 1 & 7 {
        _ if value == 0 => 0,
        0 => 0,
        1 => (value >> 8 & 0xff) * 0x0101_0101_0101_0101,
        2..=4 => value + word as u64,
        _ => (value + word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

fn write(object: *mut u64, words: usize, value: u64) {
    for word in 0..words {
        // SAFETY: as for `read`.
        unsafe { object.add(word).write_volatile(word_of(value, word)) };
    }
}

fn random_value(random: &mut Random) -> u64 {
    random.next() >> 8 | 1
}

/// Each thread has a part of the array, and resizing takes part of the last one's.
fn array_round(heap: &Heap, seed: u64, for_how_long: Duration) {
    const PER_THREAD: u64 = 60_000;
    const WORDS: usize = 16;
    let all = PER_THREAD * THREADS as u64;
    let array = heap.array(all + 1000, 8 * WORDS as u32, all * 2).unwrap();
    let ends = Instant::now() + for_how_long;
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let array = &array;
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                let mut shadow = vec![0; PER_THREAD as usize];
                while Instant::now() < ends {
                    for _ in 0..200 {
                        let n = match random.below(2) {
                            0 => random.below(500),
                            _ => random.below(PER_THREAD),
                        };
                        let index = thread * PER_THREAD + n;
                        let object = array.address(index).cast::<u64>();
                        read(object, WORDS, shadow[n as usize], index);
                        match random.below(20) {
                            0 => {
                                array.clear(index).unwrap();
                                shadow[n as usize] = 0;
                            }
                            1..=9 => {
                                shadow[n as usize] = random_value(&mut random);
                                write(object, WORDS, shadow[n as usize]);
                            }
                            _ => {}
                        }
                    }
                }
            });
        }
        let mut random = Random::new(seed);
        while Instant::now() < ends {
            let object = array.address(all + random.below(500)).cast::<u64>();
            write(object, WORDS, 7);
            array.resize(all + 1000 + random.below(1000)).unwrap();
            array.resize(all).unwrap();
            array.resize(all + 500).unwrap();
            read(object, WORDS, 0, 0);
            cap_holds(heap);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

/// Threads share a pool; each knows the objects it allocated.
fn pool_round(heap: &Heap, seed: u64, for_how_long: Duration) {
    const WORDS: usize = 25;
    const EACH_MAX: usize = 25_000;
    let pool = heap.pool(8 * WORDS as u32, 1 << 20).unwrap();
    let ends = Instant::now() + for_how_long;
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(seed ^ thread << 20);
                let mut mine: Vec<(usize, u64)> = Vec::new();
                while Instant::now() < ends {
                    for _ in 0..200 {
                        if mine.is_empty() || (mine.len() < EACH_MAX && random.below(3) == 0) {
                            let object = pool.alloc().unwrap();
                            read(object.cast(), WORDS, 0, object as u64);
                            mine.push((object as usize, 0));
                        }
                        let at = random.below(mine.len() as u64) as usize;
                        let (object, value) = &mut mine[at];
                        read(*object as *mut u64, WORDS, *value, *object as u64);
                        match random.below(8) {
                            0 => {
                                pool.free(*object as *mut u8).unwrap();
                                mine.swap_remove(at);
                            }
                            1..=3 => {
                                *value = random_value(&mut random);
                                write(*object as *mut u64, WORDS, *value);
                            }
                            _ => {}
                        }
                    }
                }
                for (object, value) in mine {
                    read(object as *mut u64, WORDS, value, object as u64);
                    pool.free(object as *mut u8).unwrap();
                }
            });
        }
        while Instant::now() < ends {
            cap_holds(heap);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(pool.is_empty());
}

/// Threads share a pool of objects of different sizes, and change those: what stays is as it was, what comes is zeros.
fn sized_round(heap: &Heap, seed: u64, for_how_long: Duration) {
    const WORDS_MAX: u64 = 400;
    const EACH_MAX: usize = 8_000;
    let pool = heap
        .pool_of_any_size(8 * WORDS_MAX as u32, 1 << 20)
        .unwrap();
    let ends = Instant::now() + for_how_long;
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(seed ^ thread << 24);
                let size = |random: &mut Random| {
                    let most = 1 << random.below(9);
                    1 + random.below(most).min(WORDS_MAX - 1) as usize
                };
                let mut mine: Vec<(usize, usize, u64)> = Vec::new();
                while Instant::now() < ends {
                    if mine.is_empty() || (mine.len() < EACH_MAX && random.below(3) == 0) {
                        let words = size(&mut random);
                        let object = pool.alloc_sized(8 * words as u32).unwrap();
                        read(object.cast(), words, 0, object as u64);
                        mine.push((object as usize, words, 0));
                    }
                    let at = random.below(mine.len() as u64) as usize;
                    let (object, words, value) = &mut mine[at];
                    read(*object as *mut u64, *words, *value, *object as u64);
                    match random.below(8) {
                        0 => {
                            pool.free(*object as *mut u8).unwrap();
                            mine.swap_remove(at);
                        }
                        1 | 2 => {
                            *value = random_value(&mut random);
                            write(*object as *mut u64, *words, *value);
                        }
                        3 | 4 => {
                            let (before, after) = (*words, size(&mut random));
                            // SAFETY: only this thread has the object.
                            unsafe { pool.resize(*object as *mut u8, 8 * after as u32) }.unwrap();
                            read(
                                *object as *mut u64,
                                before.min(after),
                                *value,
                                *object as u64,
                            );
                            if after > before {
                                read(
                                    (*object + 8 * before) as *mut u64,
                                    after - before,
                                    0,
                                    *object as u64,
                                );
                            }
                            *words = after;
                            *value = random_value(&mut random);
                            write(*object as *mut u64, *words, *value);
                        }
                        _ => {}
                    }
                }
                for (object, words, value) in mine {
                    read(object as *mut u64, words, value, object as u64);
                    assert_eq!(pool.bytes_of(object as *mut u8).unwrap(), 8 * words);
                    pool.free(object as *mut u8).unwrap();
                }
            });
        }
        while Instant::now() < ends {
            cap_holds(heap);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(pool.is_empty());
}

/// Whole pages, part of which lz4 shortens.
fn pages_round(heap: &Heap, seed: u64, for_how_long: Duration) {
    const PAGES: u64 = 20_000;
    const WORDS: usize = PAGE_BYTES / 8;
    let pages = Arc::new(Pages::new(heap.store().clone(), 4000).unwrap());
    let region = heap.memory().region(PAGES, pages.clone()).unwrap();
    let ends = Instant::now() + for_how_long;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = &region;
            scope.spawn(move || {
                let mut random = Random::new(seed + 77 * thread as u64);
                let mut shadow = vec![0u64; PAGES as usize * WORDS / THREADS / 8];
                while Instant::now() < ends {
                    // A word of this thread's on each line, and one of 8 lines.
                    let page = random.below(PAGES) as usize;
                    let line = random.below((WORDS / THREADS / 8) as u64) as usize;
                    let word = region.word(page * WORDS + line * THREADS * 8 + thread);
                    let shadow = &mut shadow[page * (WORDS / THREADS / 8) + line];
                    assert_eq!(
                        word.load(Ordering::Relaxed),
                        *shadow,
                        "page {page} line {line}"
                    );
                    if random.below(2) == 0 {
                        *shadow = random.next();
                        word.store(*shadow, Ordering::Relaxed);
                    }
                }
            });
        }
        while Instant::now() < ends {
            cap_holds(heap);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    drop(region);
    pages.drop_table().unwrap();
}

/// What frees room asks for none, however full it is.
#[test]
fn an_object_can_be_made_shorter_where_no_more_can_be_promised() {
    let (_dir, heap) = heap(Way::InThread, 64 << 20);
    let pool = heap.pool_of_any_size(PAGE_BYTES as u32, 1 << 22).unwrap();
    let first = pool.alloc_sized(PAGE_BYTES as u32).unwrap();
    let fill = |bytes| while pool.alloc_sized(bytes).is_ok() {};
    [PAGE_BYTES as u32, 256, 1].into_iter().for_each(fill);
    let count = pool.len();
    // SAFETY: nobody else uses it.
    unsafe {
        let more = pool.resize(first, PAGE_BYTES as u32 - 64);
        more.expect("shorter");
        pool.resize(first, 100).expect("shorter still");
    }
    assert_eq!(pool.len(), count);
    // What it had is another's.
    pool.alloc_sized(2048).expect("room");
}

/// Who does not say how many objects leaves addresses for others.
#[test]
fn places_for_as_many_as_there_may_be_leave_addresses_for_more() {
    let (_dir, heap) = heap(Way::InThread, 1 << 30);
    let memory = heap.memory();
    let backing = Arc::new(Pages::new(heap.store().clone(), 9).expect("a table"));
    // Of the 4 TiB that a small pool has, so much that the rest has fewer pages than the SSD takes objects.
    let large = (7 << 39) / PAGE_BYTES as u64;
    let _others = memory.region(large, backing).expect("addresses");
    let mut before = u64::MAX;
    let places: Vec<_> = (0..12)
        .map(|_| {
            let most = heap.objects_that_fit(1);
            assert!((1..=before).contains(&most), "{most} after {before}");
            before = most;
            heap.pool(1, most).expect("a place")
        })
        .collect();
    assert!(places.iter().all(|place| place.alloc().is_ok()));
    cap_holds(&heap);
}

#[test]
fn arrays_pools_and_pages_against_plain_copies() {
    let seed = seed();
    for way in WAYS {
        let (_dir, heap) = heap(way, 400 << 20);
        array_round(&heap, seed, ROUND);
        pool_round(&heap, seed, ROUND);
        sized_round(&heap, seed, ROUND);
        pages_round(&heap, seed, ROUND);
        let stats = heap.memory().stats();
        assert_eq!(
            (stats.resident_pages, stats.dirty_pages, stats.failed_faults),
            (0, 0, 0),
            "{stats:?}"
        );
        println!("{way:?}: {stats:?}");
    }
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn soak_opp() {
    let seconds: u64 = std::env::var("SOAK_SECONDS").map_or(60, |s| s.parse().unwrap());
    let ends = Instant::now() + Duration::from_secs(seconds);
    let mut seed = seed();
    while Instant::now() < ends {
        for way in WAYS {
            let (_dir, heap) = heap(way, 400 << 20);
            array_round(&heap, seed, ROUND * 4);
            pool_round(&heap, seed, ROUND * 4);
            sized_round(&heap, seed, ROUND * 4);
            pages_round(&heap, seed, ROUND * 4);
        }
        seed += 1;
    }
}

#[test]
fn a_full_ssd_refuses_allocations_and_kills_nothing() {
    let (_dir, heap) = heap(Way::InThread, 64 << 20);
    let pool = heap.pool(1024, 1 << 20).unwrap();
    let mut objects = Vec::new();
    let refused = loop {
        match pool.alloc() {
            Ok(object) => {
                write(object.cast(), 128, objects.len() as u64 + 1);
                objects.push(object as usize);
            }
            Err(e) => break e,
        }
    };
    assert!(
        matches!(&refused, HeapError::Store(e) if e.is_full()),
        "{refused}"
    );
    assert!(objects.len() as u64 > heap.store().usable_bytes() / 1024 / 2);
    for (n, object) in objects.iter().enumerate() {
        read(*object as *mut u64, 128, n as u64 + 1, n as u64);
    }
    // All is overwritten while it is full.
    for (n, object) in objects.iter().enumerate() {
        write(*object as *mut u64, 128, n as u64 + 2);
    }
    let refused = heap.array(1 << 20, 1024, 1 << 20).err().unwrap();
    assert!(refused.to_string().contains("no room for"), "{refused}");
    for object in objects.drain(..objects.len() / 2) {
        pool.free(object as *mut u8).unwrap();
    }
    write(pool.alloc().unwrap().cast(), 128, 1);
}

/// Which half of a pool's objects is freed is the program's choice: no lane is left with more than it can store. Two lanes, where there are two processors.
#[test]
fn what_is_promised_is_there_whichever_objects_were_freed() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&StoreOptions::scratch(dir.path(), 128 << 20, 160 << 20)).unwrap();
    let heap = Heap::open(store, Way::InThread).unwrap();
    let pool = heap.pool(1024, 1 << 20).unwrap();
    let mut random = Random::new(seed());
    let mut put = |backing: &dyn Backing, page: u64| {
        let mut bytes = Page::ZERO;
        for word in bytes.0.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let changed = Changed {
            page,
            bytes: &bytes,
            surely: true,
        };
        let stored = backing.store(&[changed]);
        assert!(matches!(stored, Ok(1)), "page {page}: {stored:?}");
    };
    let mut objects = Vec::new();
    while let Ok(object) = pool.alloc() {
        objects.push(object as usize);
    }
    let (base, _) = pool.addresses();
    let number = |object: &usize| (object - base) / PAGE_BYTES;
    for object in objects.iter().filter(|object| number(object) % 2 == 1) {
        pool.free(*object as *mut u8).unwrap();
    }
    let half = objects.len() as u64 / 2 - 1;
    let array = heap.array(half, 1024, half).unwrap();
    for n in 0..half {
        put(&*array.backing(), n);
    }
    for object in objects.iter().filter(|object| number(object) % 2 == 0) {
        put(&*pool.backing(), number(object) as u64);
    }
}

#[test]
fn what_is_promised_to_large_objects_is_there_in_small_segments() {
    // From eleven in a segment of this cap to three, which fill it well or badly.
    for bytes in [23_000_u32, 45_000, 60_000, 65_536] {
        let (_dir, heap) = heap(Way::InThread, 64 << 20);
        let table = Table::new(&heap, bytes).unwrap();
        let object = |n: u64| {
            let words = 0..u64::from(bytes) / 8;
            let words = words.map(|word| (n * 8192 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            words.flat_map(u64::to_le_bytes).collect::<Vec<_>>()
        };
        let mut ids = Vec::new();
        let refused = loop {
            match table.insert(&object(ids.len() as u64)) {
                Ok(id) => ids.push(id),
                Err(e) => break e,
            }
        };
        assert!(refused.to_string().contains("no room for"), "{refused}");
        let least = heap.store().usable_bytes() / 3 / u64::from(bytes);
        assert!(ids.len() as u64 > least, "{} objects", ids.len());
        for (n, id) in ids.iter().enumerate() {
            table.put(*id, &object(n as u64 + 1)).unwrap();
        }
        let mut seen = vec![0; bytes as usize];
        for (n, id) in ids.iter().enumerate() {
            assert!(table.get(*id, &mut seen).unwrap());
            assert!(seen == object(n as u64 + 1), "object {n}");
        }
    }
}

#[test]
fn an_object_that_is_removed_while_it_is_replaced_stays_removed() {
    const OBJECTS: u64 = 20_000;
    let (_dir, heap) = heap(Way::InThread, 64 << 20);
    let table = Table::new(&heap, 64).unwrap();
    for wrong in [0, 63, 65] {
        assert!(table.insert(&vec![1; wrong]).is_err(), "{wrong} bytes");
    }
    assert_eq!(table.len(), 0);
    let ids: Vec<u64> = (0..OBJECTS)
        .map(|_| table.insert(&[1; 64]).unwrap())
        .collect();
    let (begun, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (n, id) in (1..).zip(&ids) {
                begun.store(n, Ordering::Release);
                while removed.load(Ordering::Acquire) < n {
                    let _ = table.put(*id, &[2; 64]);
                }
            }
        });
        for (n, id) in (1..).zip(&ids) {
            while begun.load(Ordering::Acquire) < n {
                std::hint::spin_loop();
            }
            table.remove(*id).unwrap();
            removed.store(n, Ordering::Release);
        }
    });
    assert!(table.is_empty());
    let there = |id: &&u64| table.get(**id, &mut [0; 64]).unwrap();
    assert_eq!(ids.iter().filter(there).count(), 0, "they are back");
}

/// Threads that together never have more objects than a pool may have, while its last slots come and go: none is refused.
#[test]
fn a_number_that_is_free_is_found() {
    const OBJECTS: u64 = 20_000;
    let (_dir, heap) = heap(Way::InThread, 64 << 20);
    let pool = heap.pool(64, OBJECTS).unwrap();
    let (seed, end) = (seed(), Instant::now() + ROUND);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                while Instant::now() < end {
                    let most = OBJECTS / THREADS as u64;
                    let objects = 1 + random.below(most);
                    let objects: Vec<_> = (0..objects).map(|_| pool.alloc().unwrap()).collect();
                    objects
                        .into_iter()
                        .for_each(|object| pool.free(object).unwrap());
                }
            });
        }
    });
    assert!(pool.is_empty());
}

/// Faults, evictions, and waits for room on the SSD, all in a thread with a stack of 64 KiB (and what the thread itself needs).
#[test]
fn a_fault_needs_little_stack() {
    let (_dir, heap) = heap(Way::InThread, 200 << 20);
    let array = heap.array(160_000, 256, 160_000).unwrap();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(80 << 10);
        let work = || {
            for round in 0..2 {
                for index in 0..array.len() {
                    let word = array.word(index, 3);
                    let expected = if round == 0 { 0 } else { index + round };
                    assert_eq!(word.load(Ordering::Relaxed), expected);
                    word.store(index + round + 1, Ordering::Relaxed);
                }
            }
        };
        thread.spawn_scoped(scope, work).unwrap();
    });
}

#[test]
fn a_pool_has_as_many_objects_as_it_was_made_for() {
    let (_dir, heap) = heap(Way::InThread, 64 << 20);
    let pool = heap.pool(64, 100).unwrap();
    let mut objects = Vec::new();
    let refused = loop {
        match pool.alloc() {
            Ok(object) => objects.push(object),
            Err(e) => break e,
        }
    };
    assert!(
        matches!(refused, HeapError::TooMany { max: 100, .. }),
        "{refused}"
    );
    assert!(objects.len() > 90, "{} objects", objects.len());
    let distinct: std::collections::HashSet<_> = objects.iter().collect();
    assert_eq!(distinct.len(), objects.len());
    pool.free(objects.pop().unwrap()).unwrap();
    pool.alloc().unwrap();
}
