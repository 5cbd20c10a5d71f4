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
#[path = "../src/block.rs"]
#[allow(dead_code)]
mod block;
#[path = "../src/page.rs"]
#[allow(dead_code)]
mod page;
mod sync {
    pub(crate) use loom::sync::atomic;
}

use block::{BlockWord, Pin, Unpin};
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use page::{PageState, Phase, Then};

/// Times that a thread is interrupted at most in one schedule.
const PREEMPTIONS_MAX: usize = 3;
const PAGES: usize = 2;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(f);
}

/// A page as the processor sees it.
#[derive(Clone, Copy)]
struct Mapped {
    value: u32,
    protected: bool,
}

struct Machine {
    block: BlockWord,
    /// Its bit in the summary of blocks that are not empty.
    shown: AtomicBool,
    records: [[PageState; PAGES]; 3],
    free: Mutex<Vec<u32>>,
    mapped: Mutex<[Option<Mapped>; PAGES]>,
    stored: Mutex<[Option<u32>; PAGES]>,
    fetches: Mutex<u32>,
    /// One waiting room: how often it was woken.
    room: Mutex<u32>,
    woken: Condvar,
}

const CLEAN: Then = Then::Clean { heat: 0 };
const DIRTY: Then = Then::Dirty {
    heat: 0,
    unsure: false,
};

impl Machine {
    fn new(stored: [Option<u32>; PAGES]) -> Arc<Machine> {
        let record = || [PageState::new(), PageState::new()];
        Arc::new(Machine {
            block: BlockWord::new(),
            shown: AtomicBool::new(false),
            records: [record(), record(), record()],
            free: Mutex::new(vec![0, 1, 2]),
            mapped: Mutex::new([None; PAGES]),
            stored: Mutex::new(stored),
            fetches: Mutex::new(0),
            room: Mutex::new(0),
            woken: Condvar::new(),
        })
    }

    fn ticket(&self) -> u32 {
        *self.room.lock().unwrap()
    }

    fn wait(&self, ticket: u32) {
        let mut room = self.room.lock().unwrap();
        while *room == ticket {
            room = self.woken.wait(room).unwrap();
        }
    }

    fn wake_if(&self, awaited: bool) {
        if awaited {
            *self.room.lock().unwrap() += 1;
            self.woken.notify_all();
        }
    }

    fn pin(&self) -> u32 {
        loop {
            let ticket = self.ticket();
            match self.block.pin() {
                Pin::Live(record) => {
                    self.show();
                    return record;
                }
                Pin::Releasing => {
                    if self.block.await_change() {
                        self.wait(ticket);
                    }
                }
                Pin::Empty => {
                    let record = self
                        .free
                        .lock()
                        .unwrap()
                        .pop()
                        .expect("a record for each thread");
                    if self.block.occupy(record) {
                        self.show();
                        return record;
                    }
                    self.free.lock().unwrap().push(record);
                }
            }
        }
    }

    fn show(&self) {
        if !self.shown.load(Relaxed) {
            self.shown.fetch_or(true, AcqRel);
        }
    }

    fn unpin(&self, users: u32) {
        if let Unpin::Last(record) = self.block.unpin(users) {
            *self.mapped.lock().unwrap() = [None; PAGES];
            self.vacate(record);
        }
    }

    fn vacate(&self, record: u32) {
        for page in &self.records[record as usize] {
            assert_eq!(
                page.look().phase(),
                Phase::Absent,
                "a released block has pages"
            );
        }
        self.shown.fetch_and(false, AcqRel);
        let awaited = self.block.vacate();
        self.free.lock().unwrap().push(record);
        self.wake_if(awaited);
    }

    fn read(&self, page: usize) -> u32 {
        loop {
            if let Some(mapped) = self.mapped.lock().unwrap()[page] {
                return mapped.value;
            }
            self.fault(page, false);
        }
    }

    fn write(&self, page: usize, value: u32) {
        loop {
            if let Some(mapped) = &mut self.mapped.lock().unwrap()[page]
                && !mapped.protected
            {
                mapped.value = value;
                return;
            }
            self.fault(page, true);
        }
    }

    fn fault(&self, page: usize, write: bool) {
        let record = self.pin();
        let ticket = self.ticket();
        let state = &self.records[record as usize][page];
        let seen = state.look();
        match seen.phase() {
            Phase::Absent => {
                if !state.begin_fill(seen) {
                    return self.unpin(1);
                }
                *self.fetches.lock().unwrap() += 1;
                let value = self.stored.lock().unwrap()[page].unwrap_or(0);
                let before = self.mapped.lock().unwrap()[page].replace(Mapped {
                    value,
                    protected: !write,
                });
                assert!(before.is_none(), "a page was filled where one is");
                let then = if write { DIRTY } else { CLEAN };
                self.wake_if(state.end(Phase::Filling, then));
            }
            Phase::Clean | Phase::Dirty if write => {
                if state.begin_open(seen) {
                    let mut mapped = self.mapped.lock().unwrap();
                    mapped[page]
                        .as_mut()
                        .expect("an opened page is there")
                        .protected = false;
                    drop(mapped);
                    self.wake_if(state.end(Phase::Opening, DIRTY));
                }
                self.unpin(1);
            }
            Phase::Clean | Phase::Dirty => self.unpin(1),
            _ => {
                let asked = state.await_change(seen);
                self.unpin(1);
                if asked {
                    self.wait(ticket);
                }
            }
        }
    }

    /// One batch that takes whatever can leave.
    fn evict(&self, stores: bool) {
        let Pin::Live(record) = self.block.pin() else {
            return;
        };
        let pages = &self.records[record as usize];
        let mut leaving = [None; PAGES];
        for (page, state) in pages.iter().enumerate() {
            let seen = state.look();
            if matches!(seen.phase(), Phase::Clean | Phase::Dirty) && state.begin_leave(seen) {
                leaving[page] = Some((seen.phase() == Phase::Dirty, false));
            }
        }
        let victims = leaving.iter().flatten().count() as u32;
        // One range over all: pages that are not victims are protected as well.
        if leaving.iter().flatten().any(|(dirty, _)| *dirty) {
            let mut mapped = self.mapped.lock().unwrap();
            mapped
                .iter_mut()
                .flatten()
                .for_each(|page| page.protected = true);
        }
        for (page, leaving) in leaving.iter_mut().enumerate() {
            if let Some((true, stays)) = leaving {
                *stays = !stores;
                let value = self.mapped.lock().unwrap()[page]
                    .expect("a leaving page is there")
                    .value;
                if stores {
                    self.stored.lock().unwrap()[page] = Some(value);
                }
            }
        }
        let staying = leaving.iter().flatten().filter(|(_, stays)| *stays).count() as u32;
        let released = victims > 0 && staying == 0 && self.block.claim(victims + 1);
        {
            let mut mapped = self.mapped.lock().unwrap();
            for page in 0..PAGES {
                if released || leaving[page].is_some_and(|(_, stays)| !stays) {
                    mapped[page] = None;
                }
            }
        }
        for (page, leaving) in leaving.iter().enumerate() {
            let Some((dirty, stays)) = *leaving else {
                continue;
            };
            let from = if dirty {
                Phase::LeavingDirty
            } else {
                Phase::LeavingClean
            };
            let then = if stays { DIRTY } else { Then::Absent };
            self.wake_if(pages[page].end(from, then));
        }
        match released {
            true => self.vacate(record),
            false => self.unpin(victims - staying + 1),
        }
    }

    /// The same where a pipe holds what is changed: all is unmapped first; what was there then is stored, or comes back.
    fn evict_captured(&self, stores: bool) {
        let Pin::Live(record) = self.block.pin() else {
            return;
        };
        let pages = &self.records[record as usize];
        let mut leaving = [None; PAGES];
        for (page, state) in pages.iter().enumerate() {
            let seen = state.look();
            if matches!(seen.phase(), Phase::Clean | Phase::Dirty) && state.begin_leave(seen) {
                leaving[page] = Some(seen.phase());
            }
        }
        let victims = leaving.iter().flatten().count() as u32;
        let released = victims > 0 && self.block.claim(victims + 1);
        let mut held = [None; PAGES];
        {
            let mut mapped = self.mapped.lock().unwrap();
            for page in (0..PAGES).filter(|page| released || leaving[*page].is_some()) {
                held[page] = mapped[page].take();
            }
        }
        let mut staying = 0;
        for (page, phase) in leaving.iter().enumerate() {
            let (from, then) = match phase {
                None => continue,
                Some(Phase::Clean) => (Phase::LeavingClean, Then::Absent),
                Some(_) => {
                    let value = held[page].expect("a leaving page is there").value;
                    let protected = false;
                    if stores {
                        self.stored.lock().unwrap()[page] = Some(value);
                    } else {
                        self.mapped.lock().unwrap()[page] = Some(Mapped { value, protected });
                        staying += 1;
                    }
                    let then = if stores { Then::Absent } else { DIRTY };
                    (Phase::LeavingDirty, then)
                }
            };
            self.wake_if(pages[page].end(from, then));
        }
        match released {
            true if staying > 0 => self.wake_if(self.block.keep(staying)),
            true => self.vacate(record),
            false => self.unpin(victims - staying + 1),
        }
    }

    /// Becomes a user of the block, if it has pages.
    fn pin_filled(&self) -> Option<u32> {
        if !self.shown.load(Acquire) {
            return None;
        }
        loop {
            let ticket = self.ticket();
            match self.block.pin() {
                Pin::Live(record) => return Some(record),
                Pin::Empty => return None,
                Pin::Releasing if self.block.await_change() => self.wait(ticket),
                Pin::Releasing => {}
            }
        }
    }

    /// Gives changed pages to the backing; they stay. What others own is waited for, as `write_back.rs` does.
    fn write_back(&self) {
        let Some(record) = self.pin_filled() else {
            return;
        };
        for (page, state) in self.records[record as usize].iter().enumerate() {
            let taken = loop {
                let ticket = self.ticket();
                let seen = state.look();
                match seen.phase() {
                    Phase::Absent | Phase::Clean => break false,
                    Phase::Dirty if state.begin_leave(seen) => break true,
                    Phase::Dirty => {}
                    _ if state.await_change(seen) => self.wait(ticket),
                    _ => {}
                }
            };
            if !taken {
                continue;
            }
            let value = {
                let mut mapped = self.mapped.lock().unwrap();
                mapped
                    .iter_mut()
                    .flatten()
                    .for_each(|page| page.protected = true);
                mapped[page].expect("a leaving page is there").value
            };
            self.stored.lock().unwrap()[page] = Some(value);
            self.wake_if(state.end(Phase::LeavingDirty, CLEAN));
        }
        self.unpin(1);
    }

    fn discard(&self, page: usize) {
        let record = self.pin();
        let state = &self.records[record as usize][page];
        let was = loop {
            let ticket = self.ticket();
            let seen = state.look();
            match seen.phase() {
                phase @ (Phase::Absent | Phase::Clean | Phase::Dirty)
                    if state.begin_discard(seen) =>
                {
                    break phase;
                }
                Phase::Absent | Phase::Clean | Phase::Dirty => {}
                _ if state.await_change(seen) => self.wait(ticket),
                _ => {}
            }
        };
        if was != Phase::Absent {
            self.mapped.lock().unwrap()[page] = None;
        }
        self.stored.lock().unwrap()[page] = None;
        self.wake_if(state.end(Phase::Discarding, Then::Absent));
        self.unpin(1 + u32::from(was != Phase::Absent));
    }
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
