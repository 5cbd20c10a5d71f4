//! A malloc over a region whose pages are a store's (MP): allocations of any size, next to one another.
//!
//! Small ones are cut from spans of one size, larger ones are runs of pages. What is known of an allocation is outside of the region:
//! 4 bytes a page and a bit for each small allocation. So freeing a cold block reads nothing, and a double free or a foreign pointer is found.
//! Why no allocator from elsewhere does both: ADR 0019.
//!
//! Promises: pages that hold allocations have room on the SSD and their slots in DRAM, so that a full SSD or cap is met by an allocation that is refused; what was never used is
//! known to be zeros; pages without allocations go back to the region, and take no DRAM and no SSD, but for a few that were freed last (`warm`). Never: touches
//! the memory it hands out with a lock held.

mod alloc;
mod class;
mod closed;
mod error;
mod fork;
mod ground;
mod map;
mod pages;
mod runs;
mod span;
mod warm;

use crate::PAGE_BYTES;
use crate::Stats;
use crate::backing::Backing;
use crate::opp::{Heap, HeapError};
use crate::policy;
use crate::region::Region;
use crate::store::View;
use crate::store::{ObjectError, Pages, Shape, Store, Versions};
use crate::sys::Lock;
pub use class::ALIGN_MAX_BYTES;
use class::CLASSES;
pub use closed::{Closable, Closing, none_closed};
pub use error::AllocError;
pub use fork::HeldHeap;
pub use ground::Ground;
use runs::Runs;
use slab::Slab;
use span::Span;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use warm::Warm;

/// The most bytes of addresses of a heap: a page's number and a span's must fit 26 bits.
pub const HEAP_MAX_BYTES: u64 = 1 << 38;
/// In the map of pages: what is above is the class, what is below the span.
const SPAN_BITS: u32 = 26;
/// The class of a run of pages.
const RUN: u32 = 63;

const _: () =
    assert!((CLASSES as u32) < RUN - 1 && HEAP_MAX_BYTES / PAGE_BYTES as u64 == 1 << SPAN_BITS);

/// What a heap holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of allocations, each rounded up to its size class.
    pub allocated_bytes: u64,
    /// Bytes of pages that hold them, or did until they were freed just now.
    pub page_bytes: u64,
    /// DRAM that is taken to know which is which.
    pub table_bytes: u64,
}

/// A run of pages.
struct Run {
    first_page: u32,
    pages: u32,
}

/// Spans of one class.
#[derive(Default)]
struct Class {
    spans: Slab<Span>,
    /// First page and number of those with room: the lowest is used first, so that others become empty.
    partial: BTreeSet<(u32, u32)>,
    /// Spans without any allocation that are kept, so that one that comes and goes takes no new span each time: 0 or 1.
    empty: u32,
}

/// Free pages, and runs that are taken.
struct Space {
    free: Runs,
    warm: Warm,
    runs: Slab<Run>,
}

impl Space {
    /// In the child of a fork.
    fn in_child(self) -> Space {
        Space {
            warm: self.warm.in_child(),
            ..self
        }
    }
}

/// See the head of the file.
pub struct PageHeap {
    ground: Box<dyn Ground>,
    /// Whose table its pages are in, which goes with it; none in a fork.
    home: Option<(Heap, u16)>,
    /// None only while it is dropped.
    region: Option<Region>,
    /// What each page belongs to: 0, nothing; or a class, plus one, above the number of its span or run. Of a run only its first page.
    owner: Box<[AtomicU32]>,
    classes: [Lock<Class>; CLASSES],
    space: Lock<Space>,
    /// Held while pages that were kept are given back, when they are nobody's.
    cooling: Lock<()>,
    allocated_bytes: AtomicU64,
    page_bytes: AtomicU64,
    table_bytes: AtomicU64,
    /// Pages of `owner` up to the last that was written to: they stay in DRAM.
    owner_pages: AtomicUsize,
}

/// What the first pages take of DRAM for their slots, whichever they are: a chunk of each lane.
fn first_slots_bytes(heap: &Heap, pages: u64) -> u64 {
    let chunks = heap.store().chunks(Shape::Any);
    chunks.bytes(pages.min(chunks.numbers))
}

impl PageHeap {
    /// A heap with `bytes_max` bytes of addresses, rounded up to pages; they cost nothing until they are used.
    pub fn new(heap: &Heap, bytes_max: u64) -> Result<PageHeap, AllocError> {
        let made = PageHeap::make(heap, bytes_max, |store, table, _| {
            Ok((Arc::new(Pages::new(store, table)?), ()))
        });
        Ok(made?.0)
    }

    /// The same, with the view of its pages: what a fork's child sees is made of another.
    pub fn with_views(heap: &Heap, bytes_max: u64) -> Result<(PageHeap, Arc<View>), AllocError> {
        PageHeap::make(heap, bytes_max, |store, table, pages| {
            let view = Arc::new(Versions::of(store, table, pages)?);
            let closable: Arc<dyn Backing> = Arc::new(Closable::new(view.clone()));
            Ok((closable, view))
        })
    }

    fn make<V>(
        heap: &Heap,
        bytes_max: u64,
        backing: impl FnOnce(Arc<Store>, u16, u64) -> Result<(Arc<dyn Backing>, V), ObjectError>,
    ) -> Result<(PageHeap, V), AllocError> {
        let bytes_max = bytes_max.clamp(1, HEAP_MAX_BYTES);
        let pages = bytes_max.div_ceil(PAGE_BYTES as u64) as usize;
        let table = heap.take_table()?;
        let (addresses, slots) = (
            policy::addresses_bytes(pages as u64),
            first_slots_bytes(heap, pages as u64),
        );
        let made = backing(heap.store().clone(), table, pages as u64)
            .map_err(HeapError::from)
            .and_then(|(backing, v)| Ok((heap.memory().region(pages as u64, backing)?, v)))
            .and_then(|made| {
                heap.take_dram(addresses)?;
                let promised = heap.promise_slots(slots);
                promised.inspect_err(|_| heap.store().count_pages(addresses, 0))?;
                Ok(made)
            });
        let (region, v) = match made {
            Ok(made) => made,
            Err(e) => {
                heap.store().give_table(table);
                return Err(e.into());
            }
        };
        // SAFETY: all zeros is a value of an AtomicU32. From the system's zeroed pages, so that what is not used takes no DRAM.
        let owner = unsafe { Box::<[AtomicU32]>::new_zeroed_slice(pages).assume_init() };
        let heap = PageHeap {
            ground: Box::new(heap.clone()),
            home: Some((heap.clone(), table)),
            region: Some(region),
            owner,
            classes: std::array::from_fn(|_| Lock::default()),
            space: Lock::new(Space {
                free: Runs::new(pages as u32),
                warm: Warm::of_cap(heap.store().cap_and_used_bytes().0),
                runs: Slab::new(),
            }),
            cooling: Lock::default(),
            allocated_bytes: AtomicU64::new(0),
            page_bytes: AtomicU64::new(0),
            table_bytes: AtomicU64::new(0),
            owner_pages: AtomicUsize::new(0),
        };
        Ok((heap, v))
    }

    /// Where it begins; its end is [`PageHeap::bytes`] further.
    pub fn base(&self) -> *mut u8 {
        self.region().base()
    }

    /// Bytes of addresses.
    pub fn bytes(&self) -> usize {
        self.region().bytes()
    }

    /// What it holds.
    pub fn stats(&self) -> HeapStats {
        HeapStats {
            allocated_bytes: self.allocated_bytes.load(Ordering::Relaxed),
            page_bytes: self.page_bytes.load(Ordering::Relaxed),
            table_bytes: self.table_bytes.load(Ordering::Relaxed),
        }
    }

    /// What the memory that shows it did so far.
    pub fn memory_stats(&self) -> Stats {
        self.region().memory_core().stats()
    }

    fn region(&self) -> &Region {
        self.region.as_ref().expect("there until it is dropped")
    }

    /// Takes note of what is about to be written of `owner`, below `end`. Addresses are given from the lowest on, so hardly any page of it is left out.
    fn count_owners(&self, end: u32) {
        let pages = (end as usize * size_of::<AtomicU32>()).div_ceil(PAGE_BYTES);
        let before = self.owner_pages.fetch_max(pages, Ordering::Relaxed);
        self.count_table(before * PAGE_BYTES, before.max(pages) * PAGE_BYTES);
    }

    /// Takes note of DRAM for what is known of allocations.
    fn count_table(&self, before: usize, after: usize) {
        let change = (after as u64).wrapping_sub(before as u64);
        self.table_bytes.fetch_add(change, Ordering::Relaxed);
        self.ground.count(before as u64, after as u64);
    }
}

impl Drop for PageHeap {
    fn drop(&mut self) {
        let Some((heap, table)) = self.home.take() else {
            return;
        };
        if !heap.store().is_here() {
            // In a fork all of it is the parent's.
            return;
        }
        let addresses = policy::addresses_bytes(self.region().pages());
        heap.store().count_pages(addresses, 0);
        // First what shows it, so that nothing is written to the table after it is gone.
        self.region = None;
        let pages = self.page_bytes.load(Ordering::Relaxed) / PAGE_BYTES as u64;
        self.ground.unpromise(pages);
        heap.unpromise_slots(first_slots_bytes(&heap, self.owner.len() as u64));
        self.count_table(self.table_bytes.load(Ordering::Relaxed) as usize, 0);
        match heap.store().drop_own_table(table) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(table, %error, "a table could not be dropped and is not used again");
            }
        }
    }
}
