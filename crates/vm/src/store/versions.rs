//! Pages of a region as several processes see them: a fork's child has them as they were, while its parent changes them.
//!
//! A *view* says of each page in which of a few tables its contents are. A page is stored where it is if no other view means that place, else in a
//! table in which no other view has this page; of so many views there is always one. So a fork copies a byte a page at most, and nothing of the
//! pages; what no view means any more is freed. Promises: what one view stores or discards, others do not see. Never: more tables than
//! [`VIEWS_MAX`], or a version that no view means (but while a view ends).

use super::error::ObjectError;
use super::open::Store;
use super::pages::Pages;
use super::under_way::UnderWay;
use crate::{Backing, Changed, FetchError, Fetched, Page, Put, StoreError};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Views at a time: the process that has the pool, and its descendants.
pub const VIEWS_MAX: usize = 64;
/// How long another view waits for what is being stored: longer than that may wait for room itself (`ROOM_WAIT_MAX`).
const STORES_WAIT_MAX: Duration = Duration::from_secs(15);
const STORES_LOOK: Duration = Duration::from_micros(100);
/// Pages looked at under one lock when a view ends.
const END_PAGES: u64 = 4096;

/// One region's pages, in all views.
pub struct Versions {
    store: Arc<Store>,
    pages: u64,
    /// Made when first used.
    tables: [OnceLock<Pages>; VIEWS_MAX],
    views: Mutex<Vec<Arc<Tab>>>,
    live: AtomicUsize,
    /// What is being stored or discarded, by who may know of fewer views than there are.
    stores: UnderWay,
    /// Views are made one after the other.
    making: Mutex<()>,
    /// Pages from here on are in table 0 for all, and pages from `stored_end` on were never stored.
    moved_end: AtomicU64,
    stored_end: AtomicU64,
}

/// Which table each page is in.
struct Tab(Box<[AtomicU8]>);

impl Tab {
    fn new(pages: u64) -> Tab {
        // SAFETY: all zeros is a value of an AtomicU8. From the system's zeroed pages, so that what is not used takes no DRAM.
        Tab(unsafe { Box::<[AtomicU8]>::new_zeroed_slice(pages as usize).assume_init() })
    }

    fn get(&self, page: u64) -> u8 {
        self.0[page as usize].load(Ordering::Acquire)
    }

    fn set(&self, page: u64, table: u8) {
        self.0[page as usize].store(table, Ordering::Release);
    }
}

/// One process's pages: what its region is made of.
pub struct View {
    versions: Arc<Versions>,
    tab: Arc<Tab>,
}

impl Versions {
    /// Pages with one view, in table `table`.
    pub fn of(store: Arc<Store>, table: u16, pages: u64) -> Result<View, ObjectError> {
        let first = OnceLock::new();
        let made = Pages::new(store.clone(), table)?;
        store.remember_used();
        // It was empty.
        let _ = first.set(made);
        let mut tables = [const { OnceLock::new() }; VIEWS_MAX];
        tables[0] = first;
        let tab = Arc::new(Tab::new(pages));
        let versions = Arc::new(Versions {
            store,
            pages,
            tables,
            views: Mutex::new(vec![tab.clone()]),
            live: AtomicUsize::new(1),
            stores: UnderWay::new(),
            making: Mutex::new(()),
            moved_end: AtomicU64::new(0),
            stored_end: AtomicU64::new(0),
        });
        Ok(View { versions, tab })
    }

    fn views(&self) -> MutexGuard<'_, Vec<Arc<Tab>>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self, number: u8) -> Result<&Pages, StoreError> {
        let table = &self.tables[usize::from(number)];
        if let Some(pages) = table.get() {
            return Ok(pages);
        }
        let number = self.store.take_table().ok_or(StoreError::Closed)?;
        let made = Pages::new(self.store.clone(), number).map_err(|_| StoreError::Closed)?;
        // Two threads may make it at the same time: one of the tables is not needed then.
        if let Err(made) = table.set(made) {
            self.drop_table(&made);
        }
        table.get().ok_or(StoreError::Closed)
    }

    fn drop_table(&self, pages: &Pages) {
        if let Err(error) = pages.drop_table() {
            tracing::warn!(%error, "a table of an earlier fork could not be dropped and is not used again");
        }
    }
}

/// Whether another view means this place of a page.
fn is_shared(views: &[Arc<Tab>], own: &Arc<Tab>, page: u64, table: u8) -> bool {
    let mut others = views.iter().filter(|tab| !Arc::ptr_eq(tab, own));
    others.any(|tab| tab.get(page) == table)
}

impl View {
    /// Another view, of the pages as they are in this one when it returns: nothing is stored to it any more. None: there are as many as there may be, or what was being stored
    /// before is not stored within 15 s.
    pub fn fork(&self) -> Option<View> {
        let versions = &self.versions;
        let _alone = versions
            .making
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let view = self.make()?;
        let until = Instant::now() + STORES_WAIT_MAX;
        let ended = versions.stores.wait(|| {
            std::thread::sleep(STORES_LOOK);
            Instant::now() < until
        });
        ended.then_some(view)
    }

    fn make(&self) -> Option<View> {
        let versions = &self.versions;
        let mut views = versions.views();
        if views.len() == VIEWS_MAX {
            return None;
        }
        let tab = Tab::new(versions.pages);
        for page in 0..versions.moved_end.load(Ordering::Acquire) {
            let table = self.tab.get(page);
            if table != 0 {
                tab.set(page, table);
            }
        }
        let tab = Arc::new(tab);
        views.push(tab.clone());
        versions.live.store(views.len(), Ordering::Release);
        let versions = versions.clone();
        Some(View { versions, tab })
    }

    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.versions.pages
    }

    /// The table to store a page in.
    fn place(&self, page: u64) -> u8 {
        let versions = &self.versions;
        versions.stored_end.fetch_max(page + 1, Ordering::AcqRel);
        if versions.live.load(Ordering::Acquire) == 1 {
            return self.tab.get(page);
        }
        let views = versions.views();
        let now = self.tab.get(page);
        if !is_shared(&views, &self.tab, page, now) {
            return now;
        }
        let free = (0..VIEWS_MAX as u8).find(|table| !is_shared(&views, &self.tab, page, *table));
        let table = free.expect("one table for each view");
        versions.moved_end.fetch_max(page + 1, Ordering::AcqRel);
        self.tab.set(page, table);
        table
    }
}

/// The lowest so many bits, up to 64.
fn bits(count: usize) -> u64 {
    u64::MAX.checked_shr(64 - count as u32).unwrap_or(0)
}

impl Backing for View {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        match self.versions.tables[usize::from(self.tab.get(page))].get() {
            Some(pages) => pages.fetch(page, into),
            None => Ok(Fetched::Absent),
        }
    }

    fn fetch_several(&self, pages: &[u64], into: &mut Page, put: &mut Put<'_>) {
        let mut first = 0;
        for run in pages.chunk_by(|a, b| self.tab.get(*a) == self.tab.get(*b)) {
            let table = self.versions.tables[usize::from(self.tab.get(run[0]))].get();
            match table {
                Some(table) => {
                    let mut put = |at, fetched, page: &Page| put(first + at, fetched, page);
                    table.fetch_several(run, into, &mut put);
                }
                None => (0..run.len()).for_each(|at| put(first + at, Ok(Fetched::Absent), into)),
            }
            first += run.len();
        }
    }

    fn absent(&self, pages: &[u64]) -> u64 {
        // What others store meanwhile is not of these pages: whoever asks has them.
        let stored_end = self.versions.stored_end.load(Ordering::Acquire);
        if pages.iter().all(|page| *page >= stored_end) {
            return bits(pages.len());
        }
        let (mut first, mut absent) = (0, 0);
        for run in pages.chunk_by(|a, b| self.tab.get(*a) == self.tab.get(*b)) {
            let table = self.versions.tables[usize::from(self.tab.get(run[0]))].get();
            absent |= match table {
                Some(table) => table.absent(run) << first,
                None => bits(run.len()) << first,
            };
            first += run.len();
        }
        absent
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        let _begun = self.versions.stores.begin();
        if self.versions.live.load(Ordering::Acquire) == 1
            && self.versions.moved_end.load(Ordering::Acquire) == 0
        {
            let end = pages.iter().map(|changed| changed.page + 1).max();
            self.versions
                .stored_end
                .fetch_max(end.unwrap_or(0), Ordering::AcqRel);
            return self.versions.table(0)?.store(pages);
        }
        for (at, changed) in pages.iter().enumerate() {
            let table = self.versions.table(self.place(changed.page));
            let stored = table.and_then(|table| table.store(std::slice::from_ref(changed)));
            match stored {
                Ok(_) => {}
                Err(error) if at == 0 => return Err(error),
                Err(_) => return Ok(at),
            }
        }
        Ok(pages.len())
    }

    fn discard(&self, page: u64) {
        let versions = &self.versions;
        if page >= versions.stored_end.load(Ordering::Acquire) {
            return;
        }
        let _begun = versions.stores.begin();
        let table = self.place(page);
        if let Some(pages) = versions.tables[usize::from(table)].get() {
            pages.discard(page);
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let versions = &self.versions;
        if !versions.store.is_here() {
            return;
        }
        let stored_end = versions.stored_end.load(Ordering::Acquire);
        {
            let mut views = versions.views();
            views.retain(|tab| !Arc::ptr_eq(tab, &self.tab));
            if views.is_empty() {
                // The tables go with the region.
                return;
            }
        }
        let mut page = 0;
        while page < stored_end {
            let views = versions.views();
            let end = (page + END_PAGES).min(stored_end);
            for page in page..end {
                let table = self.tab.get(page);
                if !is_shared(&views, &self.tab, page, table)
                    && let Some(pages) = versions.tables[usize::from(table)].get()
                {
                    pages.discard(page);
                }
            }
            page = end;
        }
        // Only now may others store without looking.
        let views = versions.views();
        versions.live.store(views.len(), Ordering::Release);
    }
}

impl Drop for Versions {
    fn drop(&mut self) {
        if !self.store.is_here() {
            return;
        }
        for table in self.tables[1..].iter().filter_map(OnceLock::get) {
            self.drop_table(table);
        }
    }
}
