//! The pages of a named region: durable memory that is always as at a completed sync.
//!
//! Between two syncs pages are evicted, and what they hold must not be seen after a crash. So each page has two places, in two tables;
//! the version of the last sync keeps its own until the next one, and what comes after goes to the other. Each entry begins with the
//! *generation* it was written in; one small entry, the control, says which generation was synced last:
//!
//! | a version is | if |
//! |---|---|
//! | committed | its generation is not above the control's, nor dead; of two the higher one |
//! | pending | its generation is above: only this process knows that it is the page's newest |
//! | dead | its generation lies in a range that an earlier process left pending |
//!
//! A sync stores the control behind the pending versions and waits for its epoch: before that is durable nothing has
//! happened, after it all has. Pending pages outside of what is synced are written again under the next generation first.
//! Promises: a sync of any size is atomic; a page costs one write a sync. Never: moves committed bytes.

use super::error::ObjectError;
use super::open::Store;
use super::pack::{pack, unpack};
use super::read::Value;
use super::table::Shape;
use crate::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, StoreError};
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Pages of a named region.
pub const NAMED_PAGES_MAX: u64 = 1 << 32;
/// Regions of a store: each has three tables.
pub const NAMED_MAX: u16 = 1024;
/// Generations that a process may leave pending when it dies: more than it can write, since the control names only the first.
const LEFT_PENDING: u64 = 1 << 32;
/// Ranges of dead generations that the control has room for. When they are used up, every page is looked at once.
const DEAD_MAX: usize = 64;
const GENERATION_BYTES: usize = 8;

/// What is known of a page. Two bits say where its committed version is, two where the pending one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    committed: Option<usize>,
    pending: Option<usize>,
}

const UNKNOWN: u8 = 0xff;

impl Mark {
    fn code(self) -> u8 {
        let two = |at: Option<usize>| at.map_or(0, |at| at as u8 + 1);
        two(self.committed) | two(self.pending) << 2
    }
    fn of(code: u8) -> Option<Mark> {
        let two = |bits: u8| (bits & 3).checked_sub(1).map(usize::from);
        (code != UNKNOWN).then(|| Mark {
            committed: two(code),
            pending: two(code >> 2),
        })
    }
    fn newest(self) -> Option<usize> {
        self.pending.or(self.committed)
    }
}

/// Which generations count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Control {
    synced: u64,
    /// What is written now; above `synced` and every dead range.
    working: u64,
    dead: Vec<(u64, u64)>,
    pages: u64,
}

impl Control {
    fn counts(&self, generation: u64) -> bool {
        let dead = |&(first, last): &(u64, u64)| (first..=last).contains(&generation);
        generation <= self.synced && !self.dead.iter().any(dead)
    }
    /// What a new process begins with: everything above the last sync is dead.
    fn take_over(&mut self) {
        let last = self.working + LEFT_PENDING;
        match self.dead.last_mut() {
            Some((first, end)) if *first == self.synced + 1 => *end = last,
            _ => self.dead.push((self.synced + 1, last)),
        }
        self.working = last + 1;
    }
    fn encode(&self) -> Vec<u8> {
        let words = [self.synced, self.working, self.pages].into_iter();
        let dead = self.dead.iter().flat_map(|&(a, b)| [a, b]);
        words.chain(dead).flat_map(u64::to_le_bytes).collect()
    }
    fn decode(bytes: &[u8]) -> Option<Control> {
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("eight bytes"));
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let [synced, working, pages, ref dead @ ..] = words[..] else {
            return None;
        };
        Some(Control {
            synced,
            working,
            pages,
            dead: dead.chunks_exact(2).map(|two| (two[0], two[1])).collect(),
        })
    }
}

struct State {
    control: Control,
    /// Pages that have a pending version.
    pending: Vec<u64>,
}

/// The pages of one named region.
pub struct Named {
    store: Arc<Store>,
    /// The control's table, and the two that pages alternate between.
    control_table: u16,
    tables: [u16; 2],
    marks: Box<[AtomicU8]>,
    /// As it was found: it judges pages that this process has not written yet.
    found: Control,
    /// Written by a sync, which therefore waits for write-backs under way and holds new ones back.
    state: RwLock<State>,
    /// Serialises write-backs' notes of pending pages.
    noted: parking_lot::Mutex<Vec<u64>>,
}

impl Named {
    /// Opens region `number` of a durable store with `pages` pages, or makes it. One that is there keeps its pages; more are zeros.
    pub fn open(store: Arc<Store>, number: u16, pages: u64) -> Result<Named, ObjectError> {
        let control_table = number * 3;
        if !store.keeps || number >= NAMED_MAX || pages > NAMED_PAGES_MAX {
            return Err(ObjectError::NoTable {
                table: control_table,
            });
        }
        let tables = [control_table + 1, control_table + 2];
        for table in [control_table, tables[0], tables[1]] {
            store.make_table(table, Shape::Any)?;
        }
        let found = store.read(control_table, 0, |value| match value {
            Value::Bytes(bytes) => Control::decode(bytes),
            _ => Some(Control::default()),
        })?;
        let mut control = found.ok_or(ObjectError::NoTable {
            table: control_table,
        })?;
        control.take_over();
        control.pages = control.pages.max(pages);
        let named = Named {
            found: control.clone(),
            marks: (0..control.pages).map(|_| AtomicU8::new(UNKNOWN)).collect(),
            store,
            control_table,
            tables,
            state: RwLock::new(State {
                control,
                pending: Vec::new(),
            }),
            noted: parking_lot::Mutex::new(Vec::new()),
        };
        named.bury()?;
        // Before anything is written under a new generation.
        let control = named.state.read().control.encode();
        named.store.put(control_table, 0, &control)?;
        named.store.make_durable()?;
        Ok(named)
    }

    /// Pages it has.
    pub fn pages(&self) -> u64 {
        self.marks.len() as u64
    }

    /// Frees what dead generations left, when the control cannot name more of them.
    fn bury(&self) -> Result<(), ObjectError> {
        let mut state = self.state.write();
        if state.control.dead.len() <= DEAD_MAX {
            return Ok(());
        }
        for page in 0..self.pages() {
            for table in self.tables {
                let generation = self.generation(table, page)?;
                if generation.is_some_and(|g| !state.control.counts(g)) {
                    self.store.free(table, page)?;
                }
            }
        }
        self.store.make_durable()?;
        state.control.dead.clear();
        Ok(())
    }

    fn generation(&self, table: u16, page: u64) -> Result<Option<u64>, ObjectError> {
        self.store.read(table, page, |value| match value {
            Value::Bytes(bytes) => split(bytes).map(|(generation, _)| generation),
            _ => None,
        })
    }

    /// Where a page's versions are; found out by reading at the first use.
    fn mark(&self, page: u64) -> Result<Mark, ObjectError> {
        if let Some(mark) = Mark::of(self.marks[page as usize].load(Ordering::Acquire)) {
            return Ok(mark);
        }
        let mut committed = None;
        for (at, table) in self.tables.into_iter().enumerate() {
            let generation = self
                .generation(table, page)?
                .filter(|&g| self.found.counts(g));
            committed = committed.max(generation.map(|g| (g, at)));
        }
        let mark = Mark {
            committed: committed.map(|(_, at)| at),
            pending: None,
        };
        // A page is fetched or stored by one thread at a time.
        self.set_mark(page, mark);
        Ok(mark)
    }

    fn set_mark(&self, page: u64, mark: Mark) {
        self.marks[page as usize].store(mark.code(), Ordering::Release);
    }

    /// Writes a page's pending version.
    fn write(
        &self,
        page: u64,
        bytes: &[u8; PAGE_BYTES],
        generation: u64,
    ) -> Result<(), ObjectError> {
        let mark = self.mark(page)?;
        let to = mark
            .pending
            .unwrap_or(mark.committed.map_or(0, |at| 1 - at));
        let mut room = self
            .store
            .take_buf(GENERATION_BYTES + super::pack::ROOM_BYTES);
        room[..GENERATION_BYTES].copy_from_slice(&generation.to_le_bytes());
        let len = pack(bytes, &mut room[GENERATION_BYTES..]);
        let put = self
            .store
            .put(self.tables[to], page, &room[..GENERATION_BYTES + len]);
        self.store.keep_buf(room);
        put?;
        if mark.pending.is_none() {
            self.noted.lock().push(page);
        }
        self.set_mark(
            page,
            Mark {
                pending: Some(to),
                ..mark
            },
        );
        Ok(())
    }

    /// Makes everything that was written back of these pages durable, at once or not at all. What is not synced stays pending.
    pub fn sync(&self, ranges: &[Range<u64>]) -> Result<(), ObjectError> {
        let mut state = self.state.write();
        let mut pending = std::mem::take(&mut state.pending);
        pending.append(&mut self.noted.lock());
        let synced = |page: &u64| ranges.iter().any(|range| range.contains(page));
        let (now, later): (Vec<u64>, Vec<u64>) = pending.into_iter().partition(synced);
        let mut control = state.control.clone();
        let done = self.sync_pages(&mut control, &now, &later);
        match done {
            Ok(()) => {
                state.control = control;
                state.pending = later;
            }
            // Everything is pending as it was; what was written again is so under a later generation.
            Err(_) => {
                state.control.working += 1;
                state.pending = now.into_iter().chain(later).collect();
            }
        }
        done
    }

    fn sync_pages(
        &self,
        control: &mut Control,
        now: &[u64],
        later: &[u64],
    ) -> Result<(), ObjectError> {
        for &page in later {
            let mut bytes = Page::ZERO;
            self.read(page, &mut bytes)?;
            self.write(page, &bytes.0, control.working + 1)?;
        }
        // Epochs are in order: where the control is durable, what was stored before it is too.
        control.synced = control.working;
        control.working += 1;
        self.store.put(self.control_table, 0, &control.encode())?;
        self.store.make_durable()?;
        for &page in now {
            let Some(mark) = Mark::of(self.marks[page as usize].load(Ordering::Acquire)) else {
                continue;
            };
            self.set_mark(
                page,
                Mark {
                    committed: mark.pending,
                    pending: None,
                },
            );
            // Where there is no room to free the version before, it stays until the page is written again.
            if let Some(old) = mark.committed {
                let _freed = self.store.free(self.tables[old], page);
            }
        }
        Ok(())
    }

    fn read(&self, page: u64, into: &mut Page) -> Result<Fetched, ObjectError> {
        let Some(at) = self.mark(page)?.newest() else {
            return Ok(Fetched::Absent);
        };
        let unpacked = self
            .store
            .read(self.tables[at], page, |value| match value {
                Value::Bytes(bytes) => {
                    split(bytes).is_some_and(|(_, packed)| unpack(packed, &mut into.0))
                }
                _ => false,
            })?;
        match unpacked {
            true => Ok(Fetched::Filled),
            // Its checksum was right, and it is not what was packed.
            false => Err(ObjectError::Damaged {
                offset: 0,
                len: PAGE_BYTES as u32,
            }),
        }
    }
}

fn split(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (generation, packed) = bytes.split_at_checked(GENERATION_BYTES)?;
    Some((u64::from_le_bytes(generation.try_into().ok()?), packed))
}

impl Backing for Named {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        self.read(page, into).map_err(super::pages::fetch_error)
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        let state = self.state.read();
        for (at, changed) in pages.iter().enumerate() {
            if let Err(e) = self.write(changed.page, &changed.bytes.0, state.control.working) {
                return match at {
                    0 => Err(super::pages::store_error(e)),
                    taken => Ok(taken),
                };
            }
        }
        Ok(pages.len())
    }

    fn discard(&self, page: u64) {
        let zeros = Page::ZERO;
        let changed = Changed {
            page,
            bytes: &zeros,
            surely: true,
        };
        if let Err(error) = self.store(&[changed]) {
            tracing::warn!(page, %error, "a page could not be cleared");
        }
    }
}
