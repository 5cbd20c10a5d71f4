//! Bare faults, in a process of their own, since they take its handler of SIGBUS from all other tests; one bed of them waits for the other.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_vm::floor::{Bare, Sizes};
use terrace_vm::measure::{Cycle, bare};

#[test]
fn a_bare_cycle_touches_and_takes_away() {
    for (stride_pages, write) in [(1, false), (1, true), (600, false), (600, true)] {
        let cycle = Cycle {
            pages: 300,
            resident: 150,
            batch: 128,
            stride_pages,
            write,
        };
        let times = bare(&cycle).unwrap();
        assert!(times.fault > Duration::ZERO && times.evict > Duration::ZERO);
    }
}

/// Few pages for so many objects.
fn sizes(objects: usize, object_bytes: usize, kept_bytes: usize) -> Sizes {
    Sizes {
        objects,
        object_bytes,
        kept_bytes,
        passing: 256,
    }
}

#[test]
fn objects_come_from_dram_and_from_the_file() {
    // Such of which several places are in a page, and such that fill a quarter of it, or are kept in part.
    for (object_bytes, kept_bytes) in KEPT {
        come_from_dram_and_from_the_file(object_bytes, kept_bytes);
    }
}

const KEPT: [(usize, usize); 3] = [(128, 128), (1024, 1024), (1024, 600)];

fn come_from_dram_and_from_the_file(object_bytes: usize, kept_bytes: usize) {
    const OBJECTS: usize = 4096;
    let words = object_bytes / 8;
    let word = |object: u64, at: usize| object * 31 + at as u64;
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..OBJECTS as u64)
        .flat_map(|object| (0..words).flat_map(move |at| word(object, at).to_ne_bytes()))
        .collect();
    file.write_all_at(&bytes, 0).unwrap();
    let near = (0..OBJECTS as u64).step_by(3);
    let sizes = sizes(OBJECTS, object_bytes, kept_bytes);
    let bare = Bare::new(file, sizes, near, 100, word).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let bare = &bare;
            scope.spawn(move || {
                for n in 0..20_000 {
                    let object = (n * 389 + thread * 7) % OBJECTS as u64;
                    for at in [5, kept_bytes / 8 - 1] {
                        let seen = bare.word(object, at).load(Ordering::Relaxed);
                        assert_eq!(seen, word(object, at));
                    }
                }
            });
        }
    });
    assert!(bare.reads() > OBJECTS as u64 && bare.faults() > bare.reads());
}

#[test]
fn what_is_written_is_kept() {
    for (object_bytes, kept_bytes) in KEPT {
        written_is_kept(object_bytes, kept_bytes);
    }
}

fn written_is_kept(object_bytes: usize, kept_bytes: usize) {
    const OBJECTS: usize = 8192;
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&vec![0; OBJECTS * object_bytes], 0)
        .unwrap();
    let near = (0..OBJECTS as u64).step_by(3);
    let sizes = sizes(OBJECTS, object_bytes, kept_bytes);
    let bare = Bare::new(file, sizes, near, 100, |_, _| 0).unwrap();
    bare.keeps_writes(true);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bare = &bare;
            // Each has objects of its own, and knows what it wrote to them.
            scope.spawn(move || {
                let mut written = vec![0; OBJECTS];
                for n in 0..20_000 {
                    let object = (n * 389) % (OBJECTS / 4) * 4 + thread;
                    let word = bare.word(object as u64, kept_bytes / 8 - 1);
                    let before = word.swap(n as u64, Ordering::Relaxed);
                    assert_eq!(before, written[object], "object {object}, round {n}");
                    written[object] = n as u64;
                }
            });
        }
    });
    assert!(bare.reads() > OBJECTS as u64);
}
