//! A machine of one block with two pages, as the processor and the steps of `fault.rs`, `evict.rs`, `write_back.rs` and `region.rs` see it. Waiting is without time-outs.

use crate::block::{BlockWord, Pin, Unpin};
use crate::page::{PageState, Phase, Then};
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use loom::sync::{Arc, Condvar, Mutex};

const PAGES: usize = 2;

/// A page as the processor sees it.
#[derive(Clone, Copy)]
pub struct Mapped {
    pub value: u32,
    pub protected: bool,
}

pub struct Machine {
    pub block: BlockWord,
    /// Its bit in the summary of blocks that are not empty.
    pub shown: AtomicBool,
    pub records: [[PageState; PAGES]; 3],
    pub free: Mutex<Vec<u32>>,
    pub mapped: Mutex<[Option<Mapped>; PAGES]>,
    pub stored: Mutex<[Option<u32>; PAGES]>,
    pub fetches: Mutex<u32>,
    /// One waiting room: how often it was woken.
    pub room: Mutex<u32>,
    pub woken: Condvar,
}

const CLEAN: Then = Then::Clean { heat: 0 };
const DIRTY: Then = Then::Dirty {
    heat: 0,
    unsure: false,
};

impl Machine {
    pub fn new(stored: [Option<u32>; PAGES]) -> Arc<Machine> {
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

    pub fn ticket(&self) -> u32 {
        *self.room.lock().unwrap()
    }

    pub fn wait(&self, ticket: u32) {
        let mut room = self.room.lock().unwrap();
        while *room == ticket {
            room = self.woken.wait(room).unwrap();
        }
    }

    pub fn wake_if(&self, awaited: bool) {
        if awaited {
            *self.room.lock().unwrap() += 1;
            self.woken.notify_all();
        }
    }

    pub fn pin(&self) -> u32 {
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

    pub fn show(&self) {
        if !self.shown.load(Relaxed) {
            self.shown.fetch_or(true, AcqRel);
        }
    }

    pub fn unpin(&self, users: u32) {
        if let Unpin::Last(record) = self.block.unpin(users) {
            *self.mapped.lock().unwrap() = [None; PAGES];
            self.vacate(record);
        }
    }

    pub fn vacate(&self, record: u32) {
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

    pub fn read(&self, page: usize) -> u32 {
        loop {
            if let Some(mapped) = self.mapped.lock().unwrap()[page] {
                return mapped.value;
            }
            self.fault(page, false);
        }
    }

    pub fn write(&self, page: usize, value: u32) {
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

    pub fn fault(&self, page: usize, write: bool) {
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
    pub fn evict(&self, stores: bool) {
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
    pub fn evict_captured(&self, stores: bool) {
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
    pub fn pin_filled(&self) -> Option<u32> {
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
    pub fn write_back(&self) {
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

    pub fn discard(&self, page: usize) {
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
