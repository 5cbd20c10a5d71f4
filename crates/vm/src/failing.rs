//! Memory over a device that fails, end to end on the simulated one: what a program sees.
//!
//! Each test runs in a process of its own, this file's started again: some are ended by a signal, and `measure` has a SIGBUS handler for itself.

use crate::heap::{AllocError, PageHeap};
use crate::kept::Regions;
use crate::opp::{Heap, HeapError, ObjectPool};
use crate::store::tests::{device, options, pool};
use crate::store::{ObjectError, Store, Work};
use crate::{VmError, Way};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_media::sim::{Fault, SimDevice};
use terrace_pool::Options;

const WORDS: usize = 16;
/// The child's part, and how it takes faults: the number of handler threads.
const CHILD: &str = "TERRACE_FAILING_CHILD";

fn heap(device: &SimDevice, way: Way) -> Heap {
    let store = Store::on_pool(pool(device, options(false)), Work::Both).expect("a store");
    Heap::open(store, way).expect("a heap")
}

fn write(object: *mut u8, value: u64) {
    // SAFETY: an object of so many words, which is the test's own.
    (0..WORDS).for_each(|at| unsafe { object.cast::<u64>().add(at).write_volatile(value) });
}

fn read(object: *mut u8) -> u64 {
    // SAFETY: as above.
    let words = (0..WORDS).map(|at| unsafe { object.cast::<u64>().add(at).read_volatile() });
    let words: Vec<u64> = words.collect();
    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
    words[0]
}

/// Objects, each with its number: more than DRAM takes.
fn fill(pool: &ObjectPool, count: u64) -> Vec<*mut u8> {
    let object = |n| {
        let object = pool.alloc().expect("an object");
        write(object, n);
        object
    };
    (0..count).map(object).collect()
}

fn in_child(test: &str, part: &str, handlers: usize) -> std::process::Output {
    Command::new(std::env::current_exe().expect("this test's file"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, format!("{part} {handlers}"))
        .output()
        .expect("started")
}

/// Whether this is the child for `part`, and how it takes faults.
fn child(part: &str) -> Option<Way> {
    let asked = std::env::var(CHILD).ok()?;
    let (wanted, handlers) = asked.split_once(' ')?;
    let way = match handlers.parse().expect("a number") {
        0 => Way::InThread,
        handlers => Way::Handlers(handlers),
    };
    (wanted == part).then_some(way)
}

#[test]
fn a_page_that_the_device_cannot_read_ends_the_program_with_page_and_error() {
    if let Some(way) = child("read") {
        let device = device(&options(false), 512, 1);
        let heap = heap(&device, way);
        let pool = heap.pool(8 * WORDS as u32, 1 << 20).expect("a pool");
        let objects = fill(&pool, 40_000);
        heap.memory().evict_all().expect("evicted");
        device.faults().fail_read(Fault::eio().always());
        let sum: u64 = objects.iter().map(|object| read(*object)).sum();
        panic!("all was read: {sum}");
    }
    let name = "failing::a_page_that_the_device_cannot_read_ends_the_program_with_page_and_error";
    for handlers in [0, 2] {
        let ended = in_child(name, "read", handlers);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{said}");
        for word in [
            "SIGBUS: page ",
            " of the region at 0x",
            "reading bytes ",
            "error 5 (input/output error)",
        ] {
            assert!(said.contains(word), "{word:?} in: {said}");
        }
    }
}

/// Runs a test's part alone, and says whether it came to its end.
fn alone(test: &str, part: &str, handlers: usize) {
    let ended = in_child(&format!("failing::{test}"), part, handlers);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{handlers} handlers: {said}");
}

#[test]
fn a_write_back_that_fails_loses_nothing_and_new_objects_are_refused() {
    if let Some(way) = child("write") {
        return write_back_fails(way);
    }
    for handlers in [0, 2] {
        alone(
            "a_write_back_that_fails_loses_nothing_and_new_objects_are_refused",
            "write",
            handlers,
        );
    }
}

/// Objects, each with its number, of which some cannot be written any more.
fn write_until_refused(device: &SimDevice, pool: &ObjectPool) -> Vec<*mut u8> {
    let mut objects = fill(pool, 20_000);
    device.faults().fail_write(Fault::eio().always());
    let refused = loop {
        match pool.alloc() {
            Ok(object) => {
                write(object, objects.len() as u64);
                objects.push(object);
            }
            Err(e) => break e,
        }
        assert!(objects.len() < 200_000, "writes fail and nobody says so");
    };
    assert_eq!(refused, HeapError::Store(ObjectError::ReadOnly));
    objects
}

fn write_back_fails(way: Way) {
    let device = device(&options(false), 512, 3);
    let heap = heap(&device, way);
    let pool = heap.pool(8 * WORDS as u32, 1 << 20).expect("a pool");
    let objects = write_until_refused(&device, &pool);
    assert_eq!(
        heap.array(1, 8, 1).err(),
        Some(HeapError::Store(ObjectError::ReadOnly))
    );
    // What is there can be read, freed, and for a while be written to.
    (0..500).for_each(|n| write(objects[n * 7], n as u64 + 1_000_000));
    for (n, object) in objects.iter().enumerate() {
        let expected = match n % 7 == 0 && n < 3500 {
            true => n as u64 / 7 + 1_000_000,
            false => n as u64,
        };
        assert_eq!(read(*object), expected, "object {n}");
    }
    objects
        .iter()
        .for_each(|object| pool.free(*object).expect("freed"));
}

#[test]
fn memory_is_refused_where_writes_fail_also_where_some_is_at_hand() {
    let name = "memory_is_refused_where_writes_fail_also_where_some_is_at_hand";
    if child("memory").is_none() {
        return alone(name, "memory", 0);
    }
    const RUN_BYTES: usize = 8 * 4096;
    let device = device(&options(false), 512, 3);
    let heap = heap(&device, Way::InThread);
    let pool = heap.pool(8 * WORDS as u32, 1 << 20).expect("a pool");
    let memory = PageHeap::new(&heap, 1 << 28).expect("a heap");
    // Part of a span, and a run with pages behind it that were freed last.
    let alloc = |bytes| memory.alloc(bytes, 16).expect("memory");
    let (small, [run, behind]) = (alloc(32), [(); 2].map(|()| alloc(RUN_BYTES)));
    assert_eq!(behind as usize, run as usize + RUN_BYTES);
    memory.free(behind).expect("freed");
    write_until_refused(&device, &pool);
    let refused = Some(AllocError::Heap(HeapError::Store(ObjectError::ReadOnly)));
    for bytes in [32, RUN_BYTES, 100 * RUN_BYTES] {
        assert_eq!(memory.alloc(bytes, 16).err(), refused, "{bytes} bytes");
        assert_eq!(memory.alloc_zeroed(bytes, 16).err(), refused);
    }
    // SAFETY: the test's own, and nobody else uses them.
    let realloc = |address, bytes| unsafe { memory.realloc(address, bytes) };
    assert_eq!(realloc(small, 500).err(), refused);
    assert_eq!(realloc(run, RUN_BYTES + 1).err(), refused);
    // What is there stays, also smaller, and is freed.
    assert_eq!(realloc(run, RUN_BYTES / 2), Ok(run));
    memory.free(small).expect("freed");
    memory.free(run).expect("freed");
}

#[test]
fn a_page_buffer_leaves_the_cap_a_half() {
    if child("buffer").is_none() {
        return alone("a_page_buffer_leaves_the_cap_a_half", "buffer", 0);
    }
    let device = device(&options(false), 512, 1);
    let heap = heap(&device, Way::InThread);
    let (cap, _) = heap.store().cap_and_used_bytes();
    let pages = (cap / 4096) as usize;
    let said = heap.set_pages_max(pages).expect_err("too many");
    assert!(
        matches!(&said, HeapError::Memory(VmError::Bounds { asked, .. }) if *asked == pages as u64)
    );
    assert!(
        said.to_string()
            .contains(&format!("under a cap of {cap} bytes")),
        "{said}"
    );
    heap.set_pages_max(pages / 12).expect("fits");
    let pool = heap.pool(8 * WORDS as u32, 1 << 20).expect("a pool");
    let objects = fill(&pool, 20_000);
    assert!(
        objects
            .iter()
            .enumerate()
            .all(|(n, object)| read(*object) == n as u64)
    );
}

/// A device that takes long to make a sync durable: longer than a fault waits for room. Threads that write to the region meanwhile wait for the sync, and so does another sync.
#[test]
fn a_sync_that_takes_long_ends_nobody() {
    if let Some(way) = child("sync") {
        return syncs_slowly(way);
    }
    std::thread::scope(|scope| {
        for handlers in [0, 8] {
            scope.spawn(move || alone("a_sync_that_takes_long_ends_nobody", "sync", handlers));
        }
    });
}

fn syncs_slowly(way: Way) {
    const PAGES: usize = 3000;
    const WORDS: usize = crate::PAGE_BYTES / 8;
    const WRITERS: usize = 6;
    const SLOW: Duration = Duration::from_secs(13);
    let options = Options {
        dram_bytes: 32 << 20,
        ..options(true)
    };
    let device = device(&options, 1024, 1);
    let store = Store::on_pool(pool(&device, options), Work::Both).expect("a store");
    let regions = Regions::on_store(store, way).expect("regions");
    let bytes = PAGES * crate::PAGE_BYTES;
    let region = regions.region("r", bytes as u64, 0).expect("a region");
    let word = |page: usize, of: usize| region.word(page * WORDS + of);
    (0..PAGES)
        .for_each(|page| (0..=WRITERS).for_each(|of| word(page, of).store(page as u64, Relaxed)));
    region.sync_all().expect("synced");
    let (slow, done) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let is_slow = slow.clone();
    device.set_hook(Some(Box::new(move |_, _| {
        if is_slow.swap(false, Relaxed) {
            std::thread::sleep(SLOW);
        }
    })));
    // What a thread wrote last is what it finds.
    let writes = |of: usize| {
        let (mut seed, mut last) = (of as u64, vec![None; PAGES]);
        while !done.load(Relaxed) {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let page = (seed >> 33) as usize % PAGES;
            let seen = word(page, of).load(Relaxed);
            assert_eq!(seen, last[page].unwrap_or(page as u64), "page {page}");
            word(page, of).store(seed, Relaxed);
            last[page] = Some(seed);
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|of| {
                let writes = &writes;
                scope.spawn(move || writes(of))
            })
            .collect();
        // One that is begun meanwhile comes after it.
        let another = scope.spawn(|| {
            std::thread::sleep(SLOW / 8);
            region.set_root(Some(4096)).expect("set");
            region.sync_all().expect("synced");
        });
        word(0, 0).store(7, Relaxed);
        slow.store(true, Relaxed);
        let began = Instant::now();
        region.sync_all().expect("synced");
        assert!(began.elapsed() > SLOW - Duration::from_secs(1));
        another.join().expect("no panic");
        done.store(true, Relaxed);
        writers
            .into_iter()
            .for_each(|writer| writer.join().expect("no panic"));
    });
    assert_eq!(word(0, 0).load(Relaxed), 7);
}
