//! A program in Rust that forks: whatever its child calls or drops, the parent's memory is as it was.
//!
//! The DRAM terrace is memory that both have. So a child that freed an object there, or brought one up from the SSD, changed its parent's.

use std::sync::Mutex;
use terrace_vm::handles::Table;
use terrace_vm::heap::PageHeap;
use terrace_vm::kept::Regions;
use terrace_vm::opp::{Array, Heap};
use terrace_vm::store::{ObjectError, Shape, Store, StoreOptions, Value};
use terrace_vm::{PAGE_BYTES, Way};

const CAP_BYTES: u64 = 32 << 20;
const OBJECTS: u64 = 20_000;
const BYTES: usize = 512;
/// A child that waits for what nobody lets go of ends then.
const CHILD_SECONDS_MAX: u32 = 20;

/// One test at a time: a fork is to find no lock in the hands of another's threads.
static ONE: Mutex<()> = Mutex::new(());

fn heap() -> (tempfile::TempDir, Heap) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&StoreOptions::scratch(dir.path(), CAP_BYTES, 256 << 20)).unwrap();
    (dir, Heap::open(store, Way::InThread).unwrap())
}

/// Does `f` in the child of a fork, which is to end well.
fn in_child(f: impl FnOnce() -> Result<(), String>) {
    // SAFETY: the child does what is tested, and ends; no other test runs, so no lock of this process's is in the hands of a thread that it has not.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: plain calls.
        unsafe { libc::alarm(CHILD_SECONDS_MAX) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let failed = match done {
            Ok(Ok(())) => 0,
            Ok(Err(what)) => {
                eprintln!("in the child: {what}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: as above.
        unsafe { libc::_exit(failed) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child's status");
}

/// Unlike any other word's, so that none of it packs.
fn word(object: u64, at: usize, round: u64) -> u64 {
    (object << 20 | (at as u64) << 8 | round).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn bytes(object: u64, round: u64) -> [u8; BYTES] {
    let mut all = [0; BYTES];
    for (at, eight) in all.chunks_exact_mut(8).enumerate() {
        eight.copy_from_slice(&word(object, at, round).to_ne_bytes());
    }
    all
}

/// Reads all and writes it anew, twice.
fn rewrite(array: &Array, mut round: u64) {
    for _ in 0..2 {
        for object in 0..OBJECTS {
            let address = array.address(object).cast::<u64>();
            for at in 0..BYTES / 8 {
                // SAFETY: an object of the array, which is the test's own.
                unsafe {
                    let seen = address.add(at).read_volatile();
                    assert_eq!(seen, word(object, at, round), "object {object}, word {at}");
                    address.add(at).write_volatile(word(object, at, round + 1));
                }
            }
        }
        round += 1;
    }
}

fn filled(heap: &Heap) -> Array {
    let array = heap.array(OBJECTS, BYTES as u32, OBJECTS).unwrap();
    for object in 0..OBJECTS {
        let address = array.address(object);
        // SAFETY: as above.
        unsafe { address.copy_from(bytes(object, 0).as_ptr(), BYTES) };
    }
    array
}

#[test]
fn an_array_that_a_child_drops_stays_its_parents() {
    let _one = ONE.lock();
    let (_dir, heap) = heap();
    let array = filled(&heap);
    // SAFETY: it is dropped once in each of the two processes.
    let childs = std::mem::ManuallyDrop::new(unsafe { std::ptr::read(&array) });
    heap.memory().evict_all().unwrap();
    in_child(|| {
        drop(std::mem::ManuallyDrop::into_inner(childs));
        Ok(())
    });
    // What is in DRAM is cleaned for it: an entry that was said to be dead was gone then.
    rewrite(&filled(&heap), 0);
    rewrite(&array, 0);
}

#[test]
fn all_that_a_child_drops_stays_its_parents() {
    let _one = ONE.lock();
    let (_dir, heap) = heap();
    let array = filled(&heap);
    let kept = (heap.pool(64, 1000).unwrap(), heap.array(10, 64, 10));
    let sized = heap.pool_of_any_size(1000, 1000).unwrap();
    let pages = PageHeap::new(&heap, 64 << 20).unwrap();
    let table = Table::new(&heap, BYTES as u32).unwrap();
    let ids: Vec<u64> = (0..OBJECTS)
        .map(|n| table.insert(&bytes(n, 0)).unwrap())
        .collect();
    let (object, named) = (kept.0.alloc().unwrap(), sized.alloc_sized(10).unwrap());
    let text = pages.alloc(100_000, 16).unwrap();
    // SAFETY: allocated just now, of so many bytes.
    unsafe {
        object.write_bytes(1, 64);
        named.write_bytes(2, 10);
        text.write_bytes(3, 100_000);
    }
    heap.memory().evict_all().unwrap();
    // What the child takes with it here its parent has as well.
    // SAFETY: each is dropped once in each of the two processes.
    let all = unsafe {
        (
            std::ptr::read(&array),
            std::ptr::read(&kept),
            std::ptr::read(&sized),
            std::ptr::read(&pages),
            std::ptr::read(&table),
            std::ptr::read(&heap),
        )
    };
    let all = std::mem::ManuallyDrop::new(all);
    in_child(|| {
        drop(std::mem::ManuallyDrop::into_inner(all));
        Ok(())
    });
    rewrite(&array, 0);
    for (n, id) in (0..).zip(&ids) {
        let mut seen = [0; BYTES];
        assert!(table.get(*id, &mut seen).unwrap());
        assert!(seen == bytes(n, 0), "object {n} of the table");
    }
    // SAFETY: as above.
    unsafe {
        assert!((0..64).all(|at| object.add(at).read() == 1));
        assert!((0..10).all(|at| named.add(at).read() == 2));
        assert!((0..100_000).all(|at| text.add(at).read() == 3));
    }
    sized.free(named).unwrap();
    pages.free(text).unwrap();
}

/// Without regions, which hold it, the store itself ends in the child.
#[test]
fn a_store_that_a_child_drops_stays_its_parents() {
    let _one = ONE.lock();
    let (_dir, heap) = heap();
    let table = Table::new(&heap, BYTES as u32).unwrap();
    let ids: Vec<u64> = (0..4 * OBJECTS)
        .map(|n| table.insert(&bytes(n, 0)).unwrap())
        .collect();
    // Leaves a queue behind that the next call has.
    table.get_many(&ids, |_, _| ()).unwrap();
    let store = std::sync::Arc::downgrade(heap.store());
    // SAFETY: each is dropped once in each of the two processes.
    let both = unsafe { (std::ptr::read(&table), std::ptr::read(&heap)) };
    let both = std::mem::ManuallyDrop::new(both);
    in_child(|| {
        drop(std::mem::ManuallyDrop::into_inner(both));
        match store.strong_count() {
            0 => Ok(()),
            owners => Err(format!("it has {owners} owners")),
        }
    });
    let mut seen = 0;
    let mut check = |at: usize, object: Option<&[u8]>| {
        assert!(object == Some(&bytes(at as u64, 0)), "object {at}");
        seen += 1;
    };
    table.get_many(&ids, &mut check).unwrap();
    assert_eq!(seen, ids.len());
    table.put(ids[0], &bytes(0, 1)).unwrap();
}

#[test]
fn what_a_child_calls_is_refused_and_changes_nothing() {
    let _one = ONE.lock();
    let (_dir, heap) = heap();
    let array = filled(&heap);
    let table = Table::new(&heap, BYTES as u32).unwrap();
    // More than DRAM takes, so that most are cold.
    let ids: Vec<u64> = (0..4 * OBJECTS)
        .map(|n| table.insert(&bytes(n, 0)).unwrap())
        .collect();
    let pool = heap.pool(64, 1000).unwrap();
    let object = pool.alloc().unwrap() as usize;
    let pages = PageHeap::new(&heap, 64 << 20).unwrap();
    let text = pages.alloc(100, 16).unwrap() as usize;
    let store = heap.store();
    let number = 4000;
    store.make_table(number, Shape::Fixed(8)).unwrap();
    store.put(number, 7, &[7; 8]).unwrap();
    heap.memory().evict_all().unwrap();
    in_child(|| {
        let refused = |what: &str, said: Result<(), String>| match said {
            Err(said) if said.contains("this process is a fork") => Ok(()),
            said => Err(format!("{what}: {said:?}")),
        };
        macro_rules! refused {
            ($call:expr) => {
                refused(
                    stringify!($call),
                    $call.map(drop).map_err(|e| e.to_string()),
                )?
            };
        }
        let mut out = [0; BYTES];
        for id in ids.iter().step_by(7) {
            refused!(table.get(*id, &mut out));
        }
        refused!(table.get_many(&ids, |_, _| ()));
        refused!(table.prefetch(&ids[..100]));
        refused!(table.put(ids[0], &out));
        refused!(table.update(ids[0], |object| object.fill(0)));
        refused!(table.remove(ids[0]));
        refused!(table.insert(&out));
        refused!(Table::new(&heap, 8));
        refused!(pool.alloc());
        refused!(pool.free(object as *mut u8));
        refused!(pool.bytes_of(object as *mut u8));
        refused!(array.clear(3));
        refused!(heap.array(10, 64, 10));
        refused!(heap.pool_of_any_size(10, 64));
        refused!(pages.alloc(100, 16));
        refused!(pages.alloc(1 << 20, 16));
        refused!(pages.free(text as *mut u8));
        refused!(PageHeap::new(&heap, 1 << 20));
        refused!(heap.set_pages_max(100));
        refused!(heap.memory().evict_all());
        heap.keep_terrace();
        heap.begin_large();
        refused!(store.get(number, 7, &mut out));
        refused!(store.put(number, 7, &[8; 8]));
        refused!(store.put_many(number, &[(7, &[8; 8])]));
        refused!(store.insert(number, &[8; 8]));
        refused!(store.free(number, 7));
        refused!(store.contains(number, 7));
        refused!(store.get_many(number, &[], |_, _: Value<'_>| ()));
        refused!(store.prefetch(number, &[]));
        refused!(store.make_table(number + 1, Shape::Any));
        refused!(store.drop_table(number));
        Ok(())
    });
    for (n, id) in (0..).zip(&ids) {
        let mut seen = [0; BYTES];
        assert!(table.get(*id, &mut seen).unwrap());
        assert!(seen == bytes(n, 0), "object {n} of the table");
    }
    rewrite(&array, 0);
    pool.free(object as *mut u8).unwrap();
    pages.free(text as *mut u8).unwrap();
    let mut out = [0; 8];
    assert_eq!(store.get(number, 7, &mut out), Ok(Some(8)));
    assert_eq!(out, [7; 8]);
    assert_eq!(store.get(number, 8, &mut out), Ok(None::<usize>));
    let missing = ObjectError::NoTable { table: number + 1 };
    assert_eq!(store.shape(number + 1), Err(missing));
}

#[test]
fn regions_of_a_parent_are_neither_opened_nor_removed_by_its_child() {
    let _one = ONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions::kept(dir.path(), CAP_BYTES, 256 << 20);
    let regions = Regions::open(&options, Way::InThread).unwrap();
    let region = regions.region("open", 1 << 20, 0).unwrap();
    drop(regions.region("closed", 1 << 20, 0).unwrap());
    region
        .word(9)
        .store(9, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: each is dropped once in each of the two processes.
    let both = unsafe { (std::ptr::read(&region), std::ptr::read(&regions)) };
    let both = std::mem::ManuallyDrop::new(both);
    in_child(|| {
        let (region, regions) = std::mem::ManuallyDrop::into_inner(both);
        let all = [
            regions.region("closed", 1 << 20, 0).map(drop),
            regions.region("new", 1 << 20, 0).map(drop),
            regions.remove("closed"),
            region.sync_all(),
            region.grow(2 << 20),
            region.set_root(Some(PAGE_BYTES)),
        ];
        for (nth, said) in all.into_iter().enumerate() {
            let said = said.map_err(|e| e.to_string());
            if !said
                .as_ref()
                .is_err_and(|e| e.contains("this process is a fork"))
            {
                return Err(format!("call {nth}: {said:?}"));
            }
        }
        drop((region, regions));
        Ok(())
    });
    region.sync_all().unwrap();
    assert_eq!(region.root(), None);
    let names: Vec<String> = regions.list().into_iter().map(|r| r.name).collect();
    assert_eq!(names, ["open", "closed"]);
    drop((region, regions));
    let regions = Regions::open(&options, Way::InThread).unwrap();
    let region = regions.region("open", 1 << 20, 0).unwrap();
    assert_eq!(region.word(9).load(std::sync::atomic::Ordering::Relaxed), 9);
}
