//! What regions promise besides holding what was written: bounds, freeing, page tables, failures, threads, forks.

mod common;

use common::{Plain, Random, read_into};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use terrace_vm::{Memory, Options, PAGE_BYTES, Region, VmError, Way};

const WAYS: [Way; 2] = [Way::InThread, Way::Handlers(2)];

fn memory(way: Way, pages_max: usize) -> Memory {
    Memory::new(Options {
        way,
        pages_max,
        reserve_bytes: 64 << 30,
        ..Options::default()
    })
    .unwrap()
}

fn word(region: &Region, page: u64) -> *mut u64 {
    assert!(page < region.pages());
    // SAFETY: within the region.
    unsafe { region.base().add(page as usize * PAGE_BYTES).cast() }
}

fn read(region: &Region, page: u64) -> u64 {
    // SAFETY: within the region, and aligned; tests do not write meanwhile.
    unsafe { word(region, page).read_volatile() }
}

fn write(region: &Region, page: u64, value: u64) {
    // SAFETY: as for `read`.
    unsafe { word(region, page).write_volatile(value) }
}

#[test]
fn regions_lie_apart_and_read_as_zeros() {
    for way in WAYS {
        let memory = memory(way, 64);
        let regions: Vec<_> = [1, 300_000, 5]
            .map(|pages| memory.region(pages, Arc::new(Plain::new())).unwrap())
            .into();
        for (n, region) in regions.iter().enumerate() {
            assert_eq!(read(region, region.pages() - 1), 0);
            write(region, region.pages() - 1, n as u64 + 1);
        }
        memory.evict_all().unwrap();
        for (n, region) in regions.iter().enumerate() {
            assert_eq!(read(region, region.pages() - 1), n as u64 + 1);
        }
    }
}

#[test]
fn a_dropped_regions_addresses_are_used_again() {
    let memory = Memory::new(Options {
        reserve_bytes: 2 << 30,
        ..Options::default()
    })
    .unwrap();
    for round in 1..50 {
        let a = memory.region(1000, Arc::new(Plain::new())).unwrap();
        let b = memory.region(1 << 18, Arc::new(Plain::new())).unwrap();
        let refused = memory.region(1, Arc::new(Plain::new()));
        assert!(matches!(refused, Err(VmError::NoAddresses { .. })));
        for page in 0..20 {
            assert_eq!((read(&a, page), read(&b, page * 1000)), (0, 0));
            write(&a, page, round);
            write(&b, page * 1000, round);
        }
    }
    let stats = memory.stats();
    assert_eq!(
        (stats.resident_pages, stats.dirty_pages),
        (0, 0),
        "{stats:?}"
    );
}

#[test]
fn clean_pages_are_not_stored_again() {
    for way in WAYS {
        let memory = memory(way, 64);
        let backing = Arc::new(Plain::new());
        let region = memory.region(1000, backing.clone()).unwrap();
        (0..1000).for_each(|page| write(&region, page, page + 1));
        memory.evict_all().unwrap();
        let stores = backing.stores.load(Ordering::Relaxed);
        // With handlers some come ahead that leave before they are written to.
        assert!(stores == 1000 || (way != Way::InThread && stores > 1000));
        (0..1000).for_each(|page| assert_eq!(read(&region, page), page + 1));
        memory.evict_all().unwrap();
        assert_eq!(backing.stores.load(Ordering::Relaxed), stores);
        let stats = memory.stats();
        assert_eq!(stats.evicted, stats.fetched + stats.absent);
    }
}

#[test]
fn freed_pages_are_zeros_and_the_backing_knows() {
    for way in WAYS {
        let memory = memory(way, 64);
        let backing = Arc::new(Plain::new());
        let region = memory.region(2000, backing.clone()).unwrap();
        (0..2000).for_each(|page| write(&region, page, page + 1));
        region.discard(500..1500).unwrap();
        assert_eq!(backing.discards.load(Ordering::Relaxed), 1000);
        for page in 0..2000 {
            let freed = (500..1500).contains(&page);
            assert_eq!(read(&region, page), if freed { 0 } else { page + 1 });
        }
        let refused = region.discard(1999..2001).unwrap_err().to_string();
        assert!(refused.contains("2001 asked, 0 to 2000"), "{refused}");
    }
}

#[test]
fn discarding_and_touching_at_the_same_time() {
    let memory = memory(Way::InThread, 64);
    let backing = Arc::new(Plain::new());
    let region = memory.region(512 * 3, backing.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let region = &region;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..30_000 {
                    // Its own third of each block's pages.
                    let page = random.below(512) * 3 + thread;
                    match random.below(4) {
                        0 => region.discard(page..page + 1).unwrap(),
                        _ => {
                            let seen = read(region, page);
                            assert!(seen == 0 || seen == page + 7, "page {page}: {seen}");
                            write(region, page, page + 7);
                        }
                    }
                }
            });
        }
    });
    region.discard(0..region.pages()).unwrap();
    assert_eq!(memory.stats().resident_pages, 0);
    assert_eq!(backing.stored_pages(), 0);
}

fn page_table_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmPTE"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// In a process of its own, since others' page tables count as well.
#[test]
fn page_tables_are_given_back() {
    for child in ["child_page_tables", "child_page_tables_by_mapping"] {
        in_child(child, |output| {
            assert!(output.status.success(), "{output:?}")
        });
    }
}

#[test]
#[ignore = "run by page_tables_are_given_back"]
fn child_page_tables() {
    page_tables(true);
}

/// As on a kernel before 6.14.
#[test]
#[ignore = "run by page_tables_are_given_back"]
fn child_page_tables_by_mapping() {
    let before = mappings();
    page_tables(false);
    assert!(mappings() <= before + 8, "mappings do not join again");
}

/// A page table that never was is not given back, and takes nothing of the buffer until the kernel has freed it.
#[test]
fn freeing_what_was_never_touched_gives_back_no_page_table() {
    let memory = memory(Way::InThread, 256);
    let region = memory.region(1000 * 512, Arc::new(Plain::new())).unwrap();
    for block in 0..1000 {
        region.discard(block * 512..block * 512 + 1).unwrap();
    }
    assert_eq!(memory.stats().tables_released, 0);
    write(&region, 512, 1);
    region.discard(512..513).unwrap();
    assert_eq!(memory.stats().tables_released, 1);
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

fn page_tables(advised_tables: bool) {
    let memory = Memory::new(Options {
        pages_max: 256,
        reserve_bytes: 64 << 30,
        advised_tables,
        ..Options::default()
    })
    .unwrap();
    let mapped = mappings();
    let region = memory.region(20_000 * 512, Arc::new(Plain::new())).unwrap();
    let before = page_table_kib();
    let mut random = Random::new(1);
    for _ in 0..20_000 {
        let page = random.below(region.pages());
        write(&region, page, page + 1);
    }
    let stats = memory.stats();
    assert!(stats.tables_released > 19_000, "{stats:?}");
    let grown = page_table_kib().saturating_sub(before);
    // 256 pages resident, each with a table of 4 KiB, and the levels above: a table for each GiB, 40 of them, twice over.
    assert!(
        grown <= 256 * 4 + 80 * 4 + 400,
        "{grown} KiB of page tables for 256 pages"
    );
    assert!(stats.table_bytes >= 250 * 4096, "{stats:?}");
    memory.evict_all().unwrap();
    assert!(page_table_kib().saturating_sub(before) <= 600);
    assert!(
        mappings() <= mapped + 8,
        "a region is one mapping with the rest"
    );
}

/// The kernel frees a page table some time after it was given back, and until then it counts.
#[test]
fn page_tables_that_are_not_freed_yet_count() {
    const PAGES_MAX: u64 = 256;
    /// Tables that all evictors have in hand at a time: an eighth of the buffer each.
    const IN_HAND: u64 = 4 * 32 + 64;
    const RECORD_BYTES: u64 = 1024;
    let memory = memory(Way::InThread, PAGES_MAX as usize);
    let region = memory.region(30_000 * 512, Arc::new(Plain::new())).unwrap();
    let running = AtomicU64::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (region, running) = (&region, &running);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..15_000 {
                    let page = random.below(30_000) * 512;
                    assert_eq!(read(region, page), 0);
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while running.load(Ordering::Relaxed) > 0 {
            let stats = memory.stats();
            let held = stats.resident_pages * PAGE_BYTES as u64 + stats.table_bytes;
            // Thrice its size is kept for them beside the buffer.
            let most = stats.buffer_max_bytes * 4 + IN_HAND * PAGE_BYTES as u64;
            assert!(held <= most, "{held} of {most} bytes: {stats:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    memory.evict_all().unwrap();
    let began = std::time::Instant::now();
    // Records are kept, tables are not.
    while memory.stats().table_bytes > 2 * PAGES_MAX * RECORD_BYTES {
        assert!(began.elapsed().as_secs() < 10, "{:?}", memory.stats());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A program that does not know of it may have protected pages; addresses that are mapped anew would be open.
#[test]
fn what_an_unmodified_program_has_protected_stays_so() {
    let memory = Memory::new(Options {
        pages_max: 64,
        reserve_bytes: 4 << 30,
        advised_tables: false,
        unmodified: true,
        ..Options::default()
    })
    .unwrap();
    let region = memory.region(512, Arc::new(Plain::new())).unwrap();
    write(&region, 0, 7);
    // SAFETY: a page of the region, which is only read from here on.
    let said = unsafe { libc::mprotect(region.base().cast(), PAGE_BYTES, libc::PROT_READ) };
    assert_eq!(said, 0);
    memory.evict_all().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let at = format!("{:x}-", region.base() as usize);
    let line = maps.lines().find(|line| line.starts_with(&at));
    assert!(line.is_some_and(|line| line.contains(" r--p")), "{line:?}");
    assert_eq!(read(&region, 0), 7);
}

/// What the kernel was refused where no region was is not held against one that is made there.
#[test]
fn a_region_begins_without_marks_of_accesses_before_it() {
    in_child("child_makes_a_region_where_one_was_asked_for", |output| {
        assert!(output.status.success(), "{output:?}")
    });
}

#[test]
#[ignore = "run by a_region_begins_without_marks_of_accesses_before_it"]
fn child_makes_a_region_where_one_was_asked_for() {
    // As in a program that does not handle it: Rust's tests do.
    // SAFETY: before anything of this process is a region.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let memory = memory(Way::Handlers(1), 64);
    let make = || memory.region(100, Arc::new(Plain::new())).unwrap();
    let first = make();
    let base = first.base();
    drop(first);
    // The first could be a fault that came late.
    for _ in 0..2 {
        assert_eq!(read_into(base), libc::EFAULT);
    }
    let second = make();
    assert_eq!(second.base(), base);
    write(&second, 0, 7);
    assert_eq!(read(&second, 0), 7);
}

/// Blocks are mapped anew under threads that touch them at the same time: each waits, none reads zeros, none is killed.
#[test]
fn a_touch_while_addresses_are_mapped_anew_waits() {
    in_child("child_touches_while_mapped_anew", |output| {
        assert!(output.status.success(), "{output:?}")
    });
}

#[test]
#[ignore = "run by a_touch_while_addresses_are_mapped_anew_waits"]
fn child_touches_while_mapped_anew() {
    const BLOCKS: u64 = 100;
    let memory = Memory::new(Options {
        pages_max: 64,
        reserve_bytes: 64 << 30,
        advised_tables: false,
        ..Options::default()
    })
    .unwrap();
    let region = memory.region(BLOCKS * 512, Arc::new(Plain::new())).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let region = &region;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut last = [0; BLOCKS as usize];
                for n in 1..40_000 {
                    let block = random.below(BLOCKS);
                    let page = block * 512 + thread;
                    assert_eq!(read(region, page), last[block as usize], "page {page}");
                    if n % 4 == 0 {
                        write(region, page, n);
                        last[block as usize] = n;
                    }
                }
            });
        }
    });
    let stats = memory.stats();
    assert!(stats.tables_released > 10_000, "{stats:?}");
}

fn in_child(test: &str, check: impl FnOnce(std::process::Output)) {
    let exe = std::env::current_exe().unwrap();
    let output = Command::new(exe)
        .args([
            "--exact",
            test,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .output()
        .unwrap();
    check(output);
}

#[test]
fn a_page_that_cannot_be_read_back_kills_who_touches_it_with_a_message() {
    for child in ["child_touches_in_thread", "child_touches_by_handler"] {
        in_child(child, |output| {
            use std::os::unix::process::ExitStatusExt;
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{said}");
            assert!(
                said.contains("SIGBUS: page 7 of the region at 0x"),
                "{said}"
            );
            assert!(said.contains("input/output error"), "{said}");
            assert!(said.contains("others are fine"), "{said}");
        });
    }
}

fn touch_what_cannot_be_read(way: Way) {
    let memory = memory(way, 64);
    let backing = Arc::new(Plain::new());
    let region = memory.region(10, backing.clone()).unwrap();
    write(&region, 3, 3);
    backing.fetch_fails.store(true, Ordering::Relaxed);
    assert_eq!(read(&region, 3), 3);
    eprintln!("others are fine");
    read(&region, 7);
    eprintln!("this is not reached");
}

#[test]
#[ignore = "run by a_page_that_cannot_be_read_back_kills_who_touches_it_with_a_message"]
fn child_touches_in_thread() {
    touch_what_cannot_be_read(Way::InThread);
}

#[test]
#[ignore = "run by a_page_that_cannot_be_read_back_kills_who_touches_it_with_a_message"]
fn child_touches_by_handler() {
    touch_what_cannot_be_read(Way::Handlers(1));
}

static FAILING: AtomicPtr<Plain> = AtomicPtr::new(std::ptr::null_mut());
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// A program's own handler, there before the memory: it repairs the device, once.
extern "C" fn repair(_: i32) {
    if SIGNALS.fetch_add(1, Ordering::Relaxed) > 0 {
        // SAFETY: ends the process; the access did not ask again.
        unsafe { libc::_exit(9) };
    }
    // SAFETY: set before it is needed, to a backing that lives as long as the process.
    let backing = unsafe { &*FAILING.load(Ordering::Relaxed) };
    backing.fetch_fails.store(false, Ordering::Relaxed);
}

/// In a process of its own, for the handler.
#[test]
fn a_page_that_could_not_be_read_is_asked_for_again() {
    in_child("child_repairs", |output| {
        assert!(output.status.success(), "{output:?}");
    });
}

#[test]
#[ignore = "run by a_page_that_could_not_be_read_is_asked_for_again"]
fn child_repairs() {
    let handler: extern "C" fn(i32) = repair;
    // SAFETY: a function of the right type that only stores to atomics, or exits.
    unsafe { libc::signal(libc::SIGBUS, handler as usize) };
    for way in WAYS {
        let memory = memory(way, 64);
        let backing = Arc::new(Plain::new());
        let region = memory.region(10, backing.clone()).unwrap();
        write(&region, 7, 5);
        memory.evict_all().unwrap();
        backing.fetch_fails.store(true, Ordering::Relaxed);
        FAILING.store(Arc::as_ptr(&backing).cast_mut(), Ordering::Relaxed);
        SIGNALS.store(0, Ordering::Relaxed);
        assert_eq!(read(&region, 7), 5);
        assert_eq!(SIGNALS.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn what_cannot_be_written_back_stays() {
    for way in WAYS {
        let memory = memory(way, 64);
        let backing = Arc::new(Plain::new());
        let region = memory.region(200, backing.clone()).unwrap();
        (0..50).for_each(|page| write(&region, page, page + 1));
        backing.store_fails.store(true, Ordering::Relaxed);
        let refused = memory.evict_all().unwrap_err().to_string();
        assert!(refused.contains("input/output error"), "{refused}");
        assert!(memory.stats().failed_stores > 0);
        // Reading goes on in the rest of the buffer, and so does writing to what is dirty.
        (50..200).for_each(|page| assert_eq!(read(&region, page), 0));
        (0..50).for_each(|page| {
            assert_eq!(read(&region, page), page + 1);
            write(&region, page, page + 2);
        });
        assert_eq!(backing.stored_pages(), 0);
        backing.store_fails.store(false, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(50));
        memory.evict_all().unwrap();
        (0..50).for_each(|page| assert_eq!(read(&region, page), page + 2));
    }
}

#[test]
fn threads_come_and_go() {
    for way in WAYS {
        let memory = memory(way, 64);
        let region = memory.region(5000, Arc::new(Plain::new())).unwrap();
        for round in 0..40 {
            std::thread::scope(|scope| {
                for thread in 0..8u64 {
                    let region = &region;
                    scope.spawn(move || {
                        for page in (0..50).map(|n| (n * 97 + thread * 613 + round) % 5000) {
                            let seen = read(region, page);
                            assert!(seen == 0 || seen == page + 1);
                            write(region, page, page + 1);
                        }
                    });
                }
            });
        }
    }
}

fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status
}

#[test]
fn a_fork_fails_loudly_and_leaves_its_parent_alone() {
    let memory = memory(Way::InThread, 64);
    let region = memory.region(100, Arc::new(Plain::new())).unwrap();
    (0..100).for_each(|page| write(&region, page, page + 1));
    let base = region.base();
    // SAFETY: the child only reads memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: in the child nothing is there: this ends it.
        let seen = unsafe { base.read_volatile() };
        // SAFETY: ends the child if that did not.
        unsafe { libc::_exit(i32::from(seen == 0)) };
    }
    let killed = libc::WIFSIGNALED(wait(child));
    assert!(killed, "the child read what is not there");
    // SAFETY: the child uses memory of its own, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = memory.evict_all();
        let own = Memory::new(Options::default()).unwrap();
        let own = own.region(10, Arc::new(Plain::new())).unwrap();
        write(&own, 3, 3);
        let well = refused == Err(VmError::Forked) && read(&own, 3) == 3;
        // What it has of the parent's is dropped as at a clean exit, and changes nothing there.
        drop((region, memory));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    assert_eq!(wait(child), 0);
    (0..100).for_each(|page| assert_eq!(read(&region, page), page + 1));
}

#[test]
fn a_kernel_access_is_served_by_handlers_and_refused_in_the_thread() {
    for way in WAYS {
        let memory = memory(way, 64);
        let region = memory.region(4, Arc::new(Plain::new())).unwrap();
        let mut fds = [0; 2];
        // SAFETY: two descriptors are written.
        assert_eq!(unsafe { libc::pipe(fds.as_mut_ptr()) }, 0);
        let text = *b"through the kernel";
        // SAFETY: our own pipe; the buffers are as long as said.
        let read_bytes = unsafe {
            libc::write(fds[1], text.as_ptr().cast(), text.len());
            libc::read(fds[0], region.base().cast(), text.len())
        };
        match way {
            Way::InThread => assert_eq!(read_bytes, -1, "a page was there"),
            Way::Handlers(_) => {
                assert_eq!(read_bytes, text.len() as isize);
                // SAFETY: within the region.
                let seen = unsafe { region.base().cast::<[u8; 18]>().read_volatile() };
                assert_eq!(seen, text);
            }
        }
    }
}

#[test]
fn refusals_name_what_is_allowed() {
    let refused = |options: Options| Memory::new(options).err().unwrap().to_string();
    let few = refused(Options {
        pages_max: 3,
        ..Options::default()
    });
    assert!(few.contains("3 asked, 64 or more is allowed"), "{few}");
    let many = refused(Options {
        way: Way::Handlers(65),
        ..Options::default()
    });
    assert!(many.contains("65 asked, 1 to 64"), "{many}");
    let memory = memory(Way::InThread, 64);
    let none = memory.region(0, Arc::new(Plain::new())).err().unwrap();
    assert!(matches!(none, VmError::Bounds { .. }), "{none}");
}
