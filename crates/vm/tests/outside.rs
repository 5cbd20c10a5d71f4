//! What others do to a pool's files while a program has it open: remove them, cut them short, open them too, keep them from growing.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::Way;
use terrace_vm::kept::{RegionError, Regions};
use terrace_vm::opp::{Array, Heap, HeapError, ObjectPool};
use terrace_vm::store::{ObjectError, Store, StoreOptions};

const CAP: u64 = 32 << 20;
const SSD: u64 = 128 << 20;
const OBJECTS: u64 = 12_000;
const BYTES: u32 = 4000;
/// Where the child's pool is, and what it is to do.
const CHILD: &str = "TERRACE_OUTSIDE_CHILD";

fn scratch(dir: &Path) -> StoreOptions {
    StoreOptions::scratch(dir, CAP, SSD)
}

fn heap(dir: &Path, way: Way) -> Heap {
    let store: Arc<Store> = Store::open(&scratch(dir)).unwrap();
    Heap::open(store, way).unwrap()
}

/// An array of several times the cap, each object with its number, and so much noise beside that it does not pack.
fn filled(heap: &Heap) -> Array {
    let array = heap.array(OBJECTS, BYTES, OBJECTS).unwrap();
    for n in 0..OBJECTS {
        for word in 0..BYTES as usize / 8 {
            let noise = (n * 256 + word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            array.word(n, word).store(noise, Relaxed);
        }
        array.word(n, 3).store(n + 1, Relaxed);
    }
    array
}

fn sum(array: &Array) -> u64 {
    (0..OBJECTS).map(|n| array.word(n, 3).load(Relaxed)).sum()
}

fn in_child(test: &str, dir: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, dir)
        .output()
        .unwrap()
}

fn child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

#[test]
fn a_pool_that_is_removed_serves_on_until_it_is_closed() {
    for way in [Way::InThread, Way::Handlers(2)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let heap = heap(&path, way);
        let array = filled(&heap);
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(sum(&array), OBJECTS * (OBJECTS + 1) / 2);
        (0..OBJECTS).for_each(|n| array.word(n, 3).store(1, Relaxed));
        assert_eq!(sum(&array), OBJECTS);
        drop((array, heap));
        assert!(!path.exists());
    }
}

#[test]
fn a_pool_that_is_cut_short_ends_who_touches_what_is_gone() {
    if let Some(dir) = child() {
        let heap = heap(&dir, Way::InThread);
        let array = filled(&heap);
        heap.memory().evict_all().unwrap();
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(dir.join("data"));
        file.unwrap().set_len(4096).unwrap();
        panic!("all was read: {}", sum(&array));
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "a_pool_that_is_cut_short_ends_who_touches_what_is_gone";
    let ended = in_child(name, &dir.path().join("pool"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{said}");
    // Where the log has gone on since, zeros were read in the place of what was cut.
    let cause = said.contains("reading bytes ") || said.contains("are damaged");
    assert!(said.contains("SIGBUS: page ") && cause, "{said}");
}

#[test]
fn tables_that_the_cap_cannot_hold_are_refused_when_objects_are_allocated() {
    let name = "tables_that_the_cap_cannot_hold_are_refused_when_objects_are_allocated";
    if let Some(dir) = child() {
        let heap = sparse(&dir);
        // 32 Mi slots of 4 bytes are four times the cap. Of the largest array that is to be had all may be written to: one of a thousand makes all slots, and of
        // 64 bytes those that are packed take a byte more.
        for bytes in [8, 64] {
            let mut objects = 1 << 25;
            let array = loop {
                match heap.array(objects, bytes, objects) {
                    Ok(array) => break array,
                    Err(e) => println!("{objects}: {e}"),
                }
                objects = objects / 8 * 7;
            };
            for n in (0..objects).step_by(1 << 10) {
                array.word(n, 0).store(n + 1, Relaxed);
            }
            heap.memory().evict_all().unwrap();
            for n in (0..objects).step_by(1 << 10) {
                assert_eq!(array.word(n, 0).load(Relaxed), n + 1);
            }
            let (cap, used) = heap.store().cap_and_used_bytes();
            assert!(used <= cap, "{used} bytes of {cap}");
            println!("all of {objects} were there, {used} bytes are used");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ended = in_child(name, &dir.path().join("pool"));
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let all = said.matches("were there").count() == 2;
    assert!(ended.status.success() && all, "{said}");
    assert!(said.contains("33554432: no DRAM for"), "{said}");
}

fn sparse(dir: &Path) -> Heap {
    let options = StoreOptions {
        prewrite: false,
        ..StoreOptions::scratch(dir, CAP, 4 << 30)
    };
    Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap()
}

/// About the largest array that the cap has slots for.
fn largest(heap: &Heap) -> Array {
    let mut objects = 1 << 25;
    loop {
        match heap.array(objects, 8, objects) {
            Ok(array) => return array,
            Err(_) => objects = objects / 8 * 7,
        }
    }
}

/// Objects until no more is to be had: those, and why.
fn all_of(pool: &ObjectPool) -> (Vec<*mut u8>, HeapError) {
    let mut objects = Vec::new();
    loop {
        match pool.alloc() {
            Ok(object) => objects.push(object),
            Err(e) => return (objects, e),
        }
    }
}

#[test]
fn what_is_freed_is_given_out_again_where_no_more_is_to_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let heap = sparse(dir.path());
    let few = heap.pool(8, 5000).unwrap();
    few.free(few.alloc().unwrap()).unwrap();
    let [many, other] = [1, 2].map(|_| heap.pool(8, 1 << 24).unwrap());
    let array = largest(&heap);
    for (pool, of_slots) in [(&few, false), (&many, true)] {
        let (objects, refused) = all_of(pool);
        let slots = matches!(refused, HeapError::Store(ObjectError::Slots { .. }));
        assert!(objects.len() >= 5000 && slots == of_slots, "{refused}");
        for object in [objects[0], objects[2500], objects[objects.len() - 1]] {
            assert_eq!(pool.alloc().err(), Some(refused.clone()));
            pool.free(object).unwrap();
            assert_eq!(pool.alloc(), Ok(object));
        }
        assert_eq!(pool.len(), objects.len() as u64);
        // What was freed others may have, but for a chunk or two.
        objects
            .iter()
            .for_each(|object| pool.free(*object).unwrap());
        let (others, _) = all_of(&other);
        assert!(
            others.len() + 3 * (1 << 14) >= objects.len(),
            "{}",
            others.len()
        );
        others
            .iter()
            .for_each(|object| other.free(*object).unwrap());
    }
    assert!(!array.is_empty());
}

#[test]
fn a_page_buffer_is_not_given_what_slots_are_promised() {
    let dir = tempfile::tempdir().unwrap();
    let heap = sparse(dir.path());
    let pages = heap.memory().pages_max();
    let array = largest(&heap);
    let refused = heap.set_pages_max(1800).unwrap_err();
    assert!(refused.to_string().contains("no DRAM for"), "{refused}");
    assert_eq!(heap.memory().pages_max(), pages);
    drop(array);
    heap.set_pages_max(1800).unwrap();
}

#[test]
fn the_table_of_a_pool_that_was_refused_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let heap = sparse(dir.path());
    let array = largest(&heap);
    assert!(heap.pool(64, 1 << 27).is_err());
    drop(array);
    // In the table that objects of one size were to have.
    let pool = heap.pool_of_any_size(256, 1000).unwrap();
    let object = pool.alloc_sized(200).unwrap();
    // SAFETY: an object of so many bytes, which is the test's.
    unsafe { object.write_bytes(7, 200) };
    heap.memory().evict_all().unwrap();
    // SAFETY: as above.
    let seen = unsafe { std::slice::from_raw_parts(object, 200) };
    assert!(seen.iter().all(|byte| *byte == 7));
}

#[test]
fn regions_whose_slots_the_cap_cannot_hold_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions::kept(dir.path(), CAP, SSD);
    let regions = Regions::open(&options, Way::InThread).unwrap();
    let mut all = Vec::new();
    let refused = loop {
        match regions.region(&format!("r{}", all.len()), 64 << 10, 64 << 10) {
            Ok(region) => all.push(region),
            Err(e) => break e,
        }
        assert!(all.len() < 1000, "nothing was refused");
    };
    let slots = |e: &RegionError| {
        matches!(
            e,
            RegionError::Heap(HeapError::Store(ObjectError::Slots { .. }))
        )
    };
    assert!(
        all.len() > 10 && slots(&refused),
        "{}: {refused}",
        all.len()
    );
    // Each page has two versions then.
    for round in 0..3u64 {
        for region in &all {
            (0..16).for_each(|page| region.word(page * 512).store(round + 7, Relaxed));
            region.sync_all().unwrap();
        }
    }
    let sum: u64 = all.iter().map(|region| region.word(0).load(Relaxed)).sum();
    assert_eq!(sum, 9 * all.len() as u64);
}

#[test]
fn a_pool_is_one_programs_at_a_time() {
    if let Some(dir) = child() {
        let said = Store::open(&scratch(&dir.join("scratch")))
            .map(drop)
            .unwrap_err();
        println!("scratch: {said}");
        let kept = StoreOptions::kept(dir.join("kept"), CAP, SSD);
        let said = Regions::open(&kept, Way::InThread).map(drop).unwrap_err();
        println!("kept: {said}");
        let said = terrace_pool::destroy(&dir.join("kept")).unwrap_err();
        println!("destroy: {said}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let one = heap(&dir.path().join("scratch"), Way::InThread);
    let kept = StoreOptions::kept(dir.path().join("kept"), CAP, SSD);
    let other = Regions::open(&kept, Way::InThread).unwrap();
    let ended = in_child("a_pool_is_one_programs_at_a_time", dir.path());
    let said = String::from_utf8_lossy(&ended.stdout);
    for what in ["scratch", "kept", "destroy"] {
        let line = said
            .lines()
            .find_map(|line| line.split_once(&format!("{what}: the pool ")));
        let holder = format!("is in use by process {}", std::process::id());
        assert!(
            line.is_some_and(|(_, rest)| rest.contains(&holder)),
            "{what}: {said}"
        );
    }
    drop((one, other));
    // What holds one kind is not opened for another.
    let said = Store::open(&scratch(&dir.path().join("kept")))
        .map(drop)
        .unwrap_err();
    assert!(said.to_string().contains("holds durable objects"), "{said}");
    let said = Regions::open(
        &StoreOptions::kept(dir.path().join("scratch"), CAP, SSD),
        Way::InThread,
    );
    assert!(said.is_err_and(
        |e| matches!(&e, RegionError::Pool(e) if e.to_string().contains("do not outlive"))
    ));
}

#[test]
fn a_directory_that_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("a/b/pool");
    let said = Store::open(&scratch(&missing)).map(drop).unwrap_err();
    assert!(
        matches!(&said, terrace_pool::PoolError::NoParent(path) if *path == missing),
        "{said}"
    );
    assert!(!dir.path().join("a").exists());
    // A file in its place.
    std::fs::write(dir.path().join("file"), "x").unwrap();
    assert!(Store::open(&scratch(&dir.path().join("file"))).is_err());
    assert!(Store::open(&scratch(&dir.path().join("file/pool"))).is_err());
}

#[test]
fn a_pool_that_is_looked_at_from_outside_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, scratch_dir) = (dir.path().join("kept"), dir.path().join("scratch"));
    let options = StoreOptions::kept(&kept, CAP, SSD);
    {
        let regions = Regions::open(&options, Way::InThread).unwrap();
        let region = regions.region("r", 8 << 20, 0).unwrap();
        for round in 0..3u64 {
            (0..2048).for_each(|page| {
                region
                    .word(page * 512 + page % 512)
                    .store(round + 1, Relaxed)
            });
            region.sync_all().unwrap();
        }
        drop(heap(&scratch_dir, Way::InThread));
    }
    let report = terrace_vm::store::check(&kept, &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(
        report.clean_stop && report.keys >= 2048 && report.entries >= 2048,
        "{report:?}"
    );
    assert_eq!(terrace_vm::store::info(&kept).unwrap().keys, report.keys);
    let report = terrace_vm::store::check(&scratch_dir, &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty() && report.entries == 0);
    // Every entry that lies in the first segments loses a bit.
    let path = kept.join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    for block in (1 << 20..8 << 20).step_by(4096) {
        bytes[block + 1000] ^= 4;
    }
    std::fs::write(&path, bytes).unwrap();
    let report = terrace_vm::store::check(&kept, &mut |_, _| {}).unwrap();
    assert!(!report.damage.is_empty());
}
