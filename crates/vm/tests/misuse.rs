//! What programs do wrong with objects: it is an error, or ends with a message, and takes nothing.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_vm::Way;
use terrace_vm::handles::Table;
use terrace_vm::opp::{Array, Heap, HeapError};
use terrace_vm::store::{Shape, Store, StoreOptions};

fn heap() -> (tempfile::TempDir, Heap) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20);
    let store = Store::open(&options).unwrap();
    (dir, Heap::open(store, Way::InThread).unwrap())
}

/// An array whose objects are not there yet, and a table by number.
fn array_and_table() -> (tempfile::TempDir, Heap, Array) {
    let (dir, heap) = heap();
    let array = heap.array(10, 64, 10).unwrap();
    heap.store().make_table(9, Shape::Any).unwrap();
    (dir, heap, array)
}

#[test]
fn misuse_is_an_error() {
    let (_dir, heap) = heap();
    let pool = heap.pool(100, 1000).unwrap();
    let object = pool.alloc().unwrap();
    let wrong = [
        object.wrapping_add(8),
        std::ptr::null_mut(),
        object.wrapping_add(4096 * 5000),
    ];
    for address in wrong {
        let refused = pool.free(address).unwrap_err();
        assert!(
            matches!(refused, HeapError::NotAnObject { .. }),
            "{refused}"
        );
    }
    pool.free(object).unwrap();
    let twice = pool.free(object).unwrap_err().to_string();
    assert!(twice.contains("freed already"), "{twice}");
    assert!(heap.pool(4097, 10).is_err());
    let array = heap.array(10, 64, 20).unwrap();
    let refused = array.resize(21).unwrap_err().to_string();
    assert!(
        refused.contains("21 objects") && refused.contains("20"),
        "{refused}"
    );
}

#[test]
fn what_is_refused_takes_no_table() {
    let (_dir, heap) = heap();
    // More than there are tables.
    for n in 0..5000 {
        let objects_max = [0, 1 << 40, u64::MAX][n % 3];
        let refused = heap.pool_of_any_size(100, objects_max).err().unwrap();
        assert!(
            refused.to_string().contains("pages of a region"),
            "{refused}"
        );
        assert!(heap.pool_of_any_size(4097, 10).is_err());
        assert!(heap.pool(100, objects_max).is_err());
        assert!(Table::new(&heap, 1 << 20).is_err());
    }
    let pool = heap.pool_of_any_size(100, 1 << 20).unwrap();
    pool.alloc().unwrap();
}

/// What would otherwise wait for itself ends with a message.
#[test]
fn a_buffer_for_the_store_must_not_lie_in_a_region() {
    ends_with_a_message("child_stores_from_a_region");
}

#[test]
fn who_is_shown_many_objects_must_not_touch_a_region() {
    ends_with_a_message("child_touches_a_region_while_it_is_shown");
}

/// Runs an ignored test in a process of its own, which must not wait.
fn ends_with_a_message(name: &str) {
    let exe = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(exe)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > Duration::from_secs(20) => {
                child.kill().unwrap();
                panic!("{name} waits");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut said = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    std::io::Read::read_to_string(stderr, &mut said).unwrap();
    assert!(!status.success());
    assert!(said.contains("must not lie in a region"), "{said}");
}

#[test]
#[ignore = "run by a_buffer_for_the_store_must_not_lie_in_a_region"]
fn child_stores_from_a_region() {
    let (_dir, heap, array) = array_and_table();
    // SAFETY: the array has it, and nobody writes to it; it is not there yet.
    let object = unsafe { std::slice::from_raw_parts(array.address(3), 64) };
    let _ = heap.store().put(9, 1, object);
}

#[test]
#[ignore = "run by who_is_shown_many_objects_must_not_touch_a_region"]
fn child_touches_a_region_while_it_is_shown() {
    let (_dir, heap, array) = array_and_table();
    heap.store().put(9, 1, &[1; 64]).unwrap();
    let shown = heap.store().get_many(9, &[1], |_, _| {
        array.word(3, 0).store(1, Ordering::Relaxed);
    });
    shown.unwrap();
}

#[test]
fn an_array_names_no_object_that_it_has_not() {
    let (_dir, heap) = heap();
    let array = heap.array(10, 64, 20).unwrap();
    let names = |index: u64, word: usize| {
        let name = std::panic::AssertUnwindSafe(|| array.word(index, word).load(Ordering::Relaxed));
        std::panic::catch_unwind(name).is_ok()
    };
    assert!(names(9, 7) && !names(9, 8) && !names(10, 0) && !names(9, usize::MAX));
    array.resize(16).unwrap();
    assert!(names(15, 0) && !names(16, 0));
}
