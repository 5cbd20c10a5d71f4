//! The words of pages and blocks between threads, under a model checker: each test is run in every order of its threads' steps (up
//! to a bound on preemptions), with every value that an atomic may give under its memory ordering.
//!
//! What is checked is `src/page.rs` and `src/block.rs` themselves, with loom's atomics in the place of std's. Around them is a
//! machine of one block with two pages: page tables that can be absent or protected, a backing, and the steps that `fault.rs`,
//! `evict.rs` and `region.rs` take with the real ones, in the same order. Waiting is without time-outs: a lost wake-up is a
//! deadlock, which loom reports.

mod backing {
    pub const PAGE_BYTES: usize = 4096;
}
#[path = "../../src/block.rs"]
#[allow(dead_code)]
mod block;
mod machine;
#[path = "../../src/page.rs"]
#[allow(dead_code)]
mod page;
mod sync {
    pub(crate) use loom::sync::atomic;
}
#[path = "../../src/store/under_way.rs"]
mod under_way;

use loom::sync::Arc;
use loom::thread;
use machine::Machine;

/// Times that a thread is interrupted at most in one schedule.
const PREEMPTIONS_MAX: usize = 3;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(f);
}

fn both(
    machine: &Arc<Machine>,
    here: impl Fn(&Machine),
    there: impl Fn(&Machine) + Send + 'static,
) {
    let other = machine.clone();
    let thread = thread::spawn(move || there(&other));
    here(machine);
    thread.join().unwrap();
}

/// A store goes to where all views look as long as there is one view. Who makes another finds, when the wait is over, that none goes there later; also if it is the second that is made.
#[test]
fn nothing_is_stored_to_a_view_that_was_made() {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    model(|| {
        let shared = Arc::new((
            under_way::UnderWay::new(),
            AtomicUsize::new(1),
            AtomicUsize::new(0),
        ));
        let others = shared.clone();
        let storer = thread::spawn(move || {
            let (stores, live, stored) = &*others;
            for _ in 0..2 {
                let _begun = stores.begin();
                let seen = live.load(Ordering::Acquire);
                // To the place of as many views as it knows of.
                stored.swap(10 - seen, Ordering::AcqRel);
            }
        });
        let (stores, live, stored) = &*shared;
        for views in 2..4 {
            live.store(views, Ordering::Release);
            let pause = || {
                thread::yield_now();
                true
            };
            assert!(stores.wait(pause));
            // From here on nobody stores who knows of fewer.
            stored.swap(0, Ordering::AcqRel);
            assert!(stored.fetch_add(0, Ordering::AcqRel) <= 10 - views);
        }
        storer.join().unwrap();
        assert!(stored.fetch_add(0, Ordering::AcqRel) <= 10 - 3);
    });
}

#[test]
fn two_faults_on_a_page_fetch_it_once() {
    model(|| {
        let machine = Machine::new([Some(5), None]);
        both(
            &machine,
            |m| assert_eq!(m.read(0), 5),
            |m| assert_eq!(m.read(0), 5),
        );
        assert_eq!(*machine.fetches.lock().unwrap(), 1);
    });
}

#[test]
fn a_write_and_an_eviction_lose_nothing() {
    model(|| {
        let machine = Machine::new([Some(5), None]);
        machine.read(0);
        both(&machine, |m| m.write(0, 6), |m| m.evict(true));
        assert_eq!(machine.read(0), 6);
    });
}

#[test]
fn a_write_and_a_capture_lose_nothing() {
    model(|| {
        let machine = Machine::new([Some(5), None]);
        machine.write(0, 1);
        both(
            &machine,
            |m| {
                m.write(0, 6);
                m.write(0, 7);
            },
            |m| m.evict_captured(true),
        );
        assert_eq!(machine.read(0), 7);
        machine.evict_captured(true);
        assert_eq!(machine.read(0), 7);
    });
}

#[test]
fn what_a_capture_does_not_store_comes_back_with_its_block() {
    model(|| {
        let machine = Machine::new([Some(5), Some(6)]);
        machine.write(0, 1);
        both(&machine, |m| m.write(1, 8), |m| m.evict_captured(false));
        assert_eq!((machine.read(0), machine.read(1)), (1, 8));
        assert_eq!(
            machine.stored.lock().unwrap()[0],
            Some(5),
            "nothing was stored"
        );
        machine.evict_captured(true);
        assert_eq!((machine.read(0), machine.read(1)), (1, 8));
        assert!(machine.free.lock().unwrap().len() == 2, "a record was lost");
    });
}

#[test]
fn two_captures_and_a_neighbour_lose_nothing() {
    model(|| {
        let machine = Machine::new([Some(5), Some(6)]);
        machine.write(0, 7);
        both(
            &machine,
            |m| {
                m.write(1, 8);
                m.evict_captured(true);
            },
            |m| m.evict_captured(true),
        );
        assert_eq!((machine.read(0), machine.read(1)), (7, 8));
    });
}

#[test]
fn two_writes_and_two_evictions_lose_nothing() {
    model(|| {
        let machine = Machine::new([None, None]);
        machine.write(0, 1);
        both(
            &machine,
            |m| {
                m.write(0, 2);
                m.write(0, 3);
            },
            |m| m.evict(true),
        );
        machine.evict(true);
        assert_eq!(machine.read(0), 3);
    });
}

#[test]
fn a_neighbour_survives_the_release_of_its_block() {
    model(|| {
        let machine = Machine::new([Some(5), Some(6)]);
        machine.write(0, 7);
        both(&machine, |m| m.write(1, 8), |m| m.evict(true));
        assert_eq!((machine.read(0), machine.read(1)), (7, 8));
        assert!(machine.free.lock().unwrap().len() == 2, "a record was lost");
    });
}

#[test]
fn what_is_not_stored_stays() {
    model(|| {
        let machine = Machine::new([None, None]);
        machine.write(0, 1);
        both(&machine, |m| m.write(0, 2), |m| m.evict(false));
        assert_eq!(*machine.fetches.lock().unwrap(), 1, "it never left");
        assert_eq!(machine.read(0), 2);
    });
}

#[test]
fn what_was_written_before_a_write_back_is_stored_after_it() {
    for evicts in [Machine::evict, Machine::evict_captured] {
        model(move || {
            let machine = Machine::new([None, None]);
            machine.write(0, 1);
            both(
                &machine,
                |m| {
                    m.write_back();
                    assert!(m.stored.lock().unwrap()[0] >= Some(1));
                },
                move |m| evicts(m, true),
            );
            assert_eq!(machine.read(0), 1);
        });
    }
    model(|| {
        let machine = Machine::new([None, None]);
        machine.write(0, 1);
        both(
            &machine,
            |m| {
                m.write_back();
                assert!(m.stored.lock().unwrap()[0] >= Some(1));
            },
            |m| m.write(0, 2),
        );
        machine.evict(true);
        assert_eq!(
            machine.read(0),
            2,
            "a page written back is clean and protected"
        );
    });
}

/// Who occupies a block may not have come to showing it when another has written there.
#[test]
fn what_was_written_in_a_block_that_another_occupies_is_found() {
    model(|| {
        let machine = Machine::new([Some(5), None]);
        both(
            &machine,
            |m| {
                m.write(1, 7);
                m.write_back();
                assert_eq!(m.stored.lock().unwrap()[1], Some(7));
            },
            |m| assert_eq!(m.read(0), 5),
        );
    });
}

#[test]
fn a_freed_page_is_gone_whoever_evicts_or_reads_it() {
    model(|| {
        let machine = Machine::new([Some(5), None]);
        machine.write(0, 6);
        both(&machine, |m| m.discard(0), |m| m.evict(true));
        assert_eq!(machine.read(0), 0);
        assert_eq!(machine.stored.lock().unwrap()[0], None);
    });
    model(|| {
        let machine = Machine::new([Some(5), None]);
        both(
            &machine,
            |m| m.discard(0),
            |m| assert!([0, 5].contains(&m.read(0))),
        );
        assert_eq!(machine.read(0), 0);
    });
}

#[test]
fn three_threads_that_fault_write_and_evict() {
    model(|| {
        let machine = Machine::new([Some(5), None]);
        let (a, b) = (machine.clone(), machine.clone());
        let reader = thread::spawn(move || assert!([5, 6].contains(&a.read(0))));
        let evictor = thread::spawn(move || b.evict(true));
        machine.write(0, 6);
        reader.join().unwrap();
        evictor.join().unwrap();
        assert_eq!(machine.read(0), 6);
    });
}
