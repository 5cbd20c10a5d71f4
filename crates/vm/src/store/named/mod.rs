//! The pages of a named region: durable memory that is always as at a completed sync.
//!
//! Between two syncs pages are evicted, and what they hold must not be seen after a crash. So each page has two places, in two tables;
//! the version of the last sync keeps its own until the next one, and what comes after goes to the other. Each entry begins with the
//! *generation* it was written in; one small entry, the [`Control`], says which generation was synced last, how long the region is and
//! where its root:
//!
//! | a version is | if |
//! |---|---|
//! | committed | its generation is not above the control's, nor dead; of two the higher one |
//! | pending | its generation is above: only this process knows that it is the page's newest |
//! | dead | its generation lies in a range that an earlier process left pending |
//! | stale | the page has a newer committed one: it goes when there is time |
//!
//! A sync (`sync.rs`) stores the control behind the pending versions and waits for its epoch: before that is durable nothing has
//! happened, after it all has. Pending pages outside of what is synced are written again under the next generation first.
//! Promises: a sync of any size is atomic; a page costs one write a sync. Never: moves committed bytes.

mod control;
mod marks;
mod sync;

use super::error::ObjectError;
use super::open::Store;
use super::pack::{Packer, unpack};
use super::read::Value;
use super::table::Shape;
use crate::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, StoreError};
use control::{Control, DEAD_MAX, NO_ROOT};
use marks::{Mark, Marks};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_log::ObjectId;
use terrace_log::entry::entry_bytes;
use terrace_pool::RwLock;

/// Pages of a named region: 16 TiB.
pub const NAMED_PAGES_MAX: u64 = 1 << 32;
/// Regions of a store: each has three tables.
pub const NAMED_MAX: u16 = 1024;
/// Pages outside of what is synced that may have been changed and evicted since they were synced: each is written again first.
pub const SYNC_OUTSIDE_PAGES_MAX: u64 = 1 << 14;
const GENERATION_BYTES: usize = 8;
/// How often a page that is to be zeros waits for a sync, some 20 ms each: longer than one takes.
const CLEARING_LOOKS: u32 = 3_000;

struct State {
    /// As it is in the pool, if there is no doubt.
    control: Control,
    /// What is written now; above the control's if a sync failed.
    working: u64,
    root: u64,
    /// A sync failed when its control was stored already: the one before must be stored again before anything else is.
    doubt: bool,
}

/// The pages of one named region.
pub struct Named {
    pub(super) store: Arc<Store>,
    /// The control's table, and the two that pages alternate between.
    control_table: u16,
    tables: [u16; 2],
    marks: Marks,
    /// Pages below this are the region's.
    len: AtomicU64,
    /// As it was found: it judges pages that this process has not written yet.
    found: Control,
    /// Written by a sync, which therefore waits for write-backs under way and refuses new ones for now.
    state: RwLock<State>,
}

impl Named {
    /// What `pages` pages can take of the SSD: two versions each.
    pub fn promise_bytes(pages: u64) -> u64 {
        let len = GENERATION_BYTES + PAGE_BYTES;
        pages.saturating_mul(2 * entry_bytes(ObjectId::KEY_BYTES, len, false, false) as u64)
    }

    /// DRAM that is taken to know where the versions of so many pages are, beside their slots.
    pub fn marks_bytes(pages: u64) -> u64 {
        Marks::bytes(pages)
    }

    fn tables_of(store: &Store, number: u16) -> Result<(u16, [u16; 2]), ObjectError> {
        let control = number.saturating_mul(3);
        if !store.keeps || number >= NAMED_MAX {
            return Err(ObjectError::NoTable { table: control });
        }
        let tables = [control + 1, control + 2];
        for table in [control, tables[0], tables[1]] {
            store.make_owned_table(table, Shape::Any)?;
        }
        Ok((control, tables))
    }

    /// Makes region `number` of a durable store: `pages` pages of zeros. It must have been erased, or never made.
    pub fn make(store: &Store, number: u16, pages: u64) -> Result<(), ObjectError> {
        let (control, _) = Named::tables_of(store, number)?;
        store.put_own(control, 0, &Control::new(pages).encode())
    }

    /// Opens region `number`, which was made and is open nowhere else; it can grow to `pages_max` pages.
    pub fn open(store: Arc<Store>, number: u16, pages_max: u64) -> Result<Named, ObjectError> {
        let (control_table, tables) = Named::tables_of(&store, number)?;
        let missing = ObjectError::Free {
            table: control_table,
            id: 0,
        };
        let found = store.read(control_table, 0, |value| match value {
            Value::Bytes(bytes) => Control::decode(bytes),
            _ => None,
        })?;
        let mut control = found.ok_or(missing)?;
        let pages_max = pages_max.max(control.pages);
        if pages_max > NAMED_PAGES_MAX {
            return Err(ObjectError::Range {
                table: tables[0],
                id: pages_max,
            });
        }
        control.take_over();
        let named = Named {
            marks: Marks::new(pages_max),
            len: AtomicU64::new(control.pages),
            found: control.clone(),
            store,
            control_table,
            tables,
            state: RwLock::new(State {
                working: control.working,
                root: control.root,
                control,
                doubt: false,
            }),
        };
        named.bury()?;
        // Before anything is written under a new generation.
        let control = named.state.read().control.encode();
        named.store.put_own(control_table, 0, &control)?;
        named.store.make_durable()?;
        Ok(named)
    }

    /// Frees all that region `number` of up to `pages` pages has in the store. It is open nowhere.
    pub fn erase(store: &Store, number: u16, pages: u64) -> Result<(), ObjectError> {
        let (control, tables) = Named::tables_of(store, number)?;
        for page in 0..pages {
            for table in tables {
                if store.contains(table, page)? {
                    store.free_own(table, page)?;
                }
            }
        }
        store.free_own(control, 0)?;
        store.make_durable()
    }

    /// Pages it has.
    pub fn pages(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Pages it can have.
    pub fn pages_max(&self) -> u64 {
        self.marks.len()
    }

    /// Gives it more pages, zeros; they are durable with the next sync.
    pub fn grow(&self, pages: u64) -> Result<(), ObjectError> {
        self.store.here()?;
        let _state = self.state.write();
        if pages < self.pages() || pages > self.pages_max() {
            return Err(ObjectError::Range {
                table: self.tables[0],
                id: pages,
            });
        }
        self.len.store(pages, Ordering::Release);
        Ok(())
    }

    /// The byte of it that was set as its root.
    pub fn root(&self) -> Option<u64> {
        let root = self.state.read().root;
        (root != NO_ROOT).then_some(root)
    }

    /// Sets its root; durable with the next sync.
    pub fn set_root(&self, root: Option<u64>) {
        self.state.write().root = root.unwrap_or(NO_ROOT);
    }

    /// Frees what dead generations left, when the control cannot name more of them.
    fn bury(&self) -> Result<(), ObjectError> {
        let mut state = self.state.write();
        if state.control.dead.len() <= DEAD_MAX {
            return Ok(());
        }
        for page in 0..self.pages_max() {
            for table in self.tables {
                let generation = self.generation(table, page)?;
                if generation.is_some_and(|g| !state.control.counts(g)) {
                    self.store.free_own(table, page)?;
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
        if let Some(mark) = self.marks.get(page) {
            return Ok(mark);
        }
        let mut committed = None;
        let mut versions = 0;
        for (at, table) in self.tables.into_iter().enumerate() {
            let Some(generation) = self.generation(table, page)? else {
                continue;
            };
            versions += 1;
            if self.found.counts(generation) {
                committed = committed.max(Some((generation, at)));
            }
        }
        let mark = Mark {
            committed: committed.map(|(_, at)| at),
            pending: None,
            stale: versions > usize::from(committed.is_some()),
        };
        // A page is fetched or stored by one thread at a time.
        self.marks.set(page, mark);
        Ok(mark)
    }

    /// Writes a page's pending version. One that is not `surely` changed is compared with its newest version, if that is in DRAM.
    fn write(
        &self,
        page: u64,
        bytes: &[u8; PAGE_BYTES],
        surely: bool,
        generation: u64,
    ) -> Result<(), ObjectError> {
        let mark = self.mark(page)?;
        let mut room = self
            .store
            .take_buf(GENERATION_BYTES + super::pack::ROOM_BYTES);
        room[..GENERATION_BYTES].copy_from_slice(&generation.to_le_bytes());
        let len = Packer::default().pack(bytes, &mut room[GENERATION_BYTES..]);
        let entry = &room[..GENERATION_BYTES + len];
        let same = |value: Value<'_>| match value {
            Value::Bytes(bytes) => {
                split(bytes).map(|(_, packed)| packed) == Some(&entry[GENERATION_BYTES..])
            }
            _ => false,
        };
        let newest = mark.newest().filter(|_| !surely);
        let unchanged = newest.is_some_and(|at| self.store.near_is(self.tables[at], page, same));
        let put = match unchanged {
            true => Ok(()),
            false => self.store.put_own(self.tables[mark.next()], page, entry),
        };
        self.store.keep_buf(room);
        put?;
        if !unchanged {
            self.marks.set(page, mark.written());
        }
        Ok(())
    }

    fn read(&self, page: u64, into: &mut Page) -> Result<Fetched, ObjectError> {
        let Some(at) = self.mark(page)?.newest() else {
            return Ok(Fetched::Absent);
        };
        // One that is not packed would only be in DRAM twice.
        let comes_up = |len| len < GENERATION_BYTES + PAGE_BYTES;
        let table = self.tables[at];
        let unpacked = self.store.read_if(table, page, comes_up, |value, at| {
            let Value::Bytes(bytes) = value else {
                return None;
            };
            let (_, packed) = split(bytes)?;
            unpack(packed, &mut into.0).then(|| super::pages::from(at))
        })?;
        // Its checksum was right, and it is not what was packed.
        unpacked.ok_or(ObjectError::Damaged {
            offset: 0,
            len: PAGE_BYTES as u32,
        })
    }
}

fn split(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (generation, packed) = bytes.split_at_checked(GENERATION_BYTES)?;
    Some((u64::from_le_bytes(generation.try_into().ok()?), packed))
}

impl Backing for Named {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        match page < self.pages() {
            true => self.read(page, into).map_err(super::pages::fetch_error),
            false => Err(FetchError::Beyond {
                pages: self.pages(),
            }),
        }
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        let state = self.settled()?;
        for (at, changed) in pages.iter().enumerate() {
            let Changed {
                page,
                bytes,
                surely,
            } = *changed;
            if let Err(e) = self.write(page, &bytes.0, surely, state.working) {
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
        // A sync is waited for: as long as one takes.
        let mut looks = 0..CLEARING_LOOKS;
        while let Err(error) = self.store(&[changed]) {
            if !matches!(error, StoreError::Syncing) || looks.next().is_none() {
                return tracing::warn!(page, %error, "a page could not be cleared");
            }
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if self.store.is_here()
            && let Err(error) = self.close()
        {
            // The next opening finds out what was left, as after a crash.
            tracing::warn!(number = self.control_table / 3, %error, "a named region was not closed");
        }
    }
}
