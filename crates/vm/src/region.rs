//! A range of addresses whose pages fault in from a backing.
//!
//! Promises: reads as zeros where nothing was written; the addresses stay the region's until it is dropped, and dropping waits for
//! faults under way. Never: keeps what is in it past its drop; a backing that should have it is written to before
//! ([`Region::write_back`]).

use crate::backing::{Backing, PAGE_BYTES};
use crate::block::BLOCK_PAGES;
use crate::error::VmError;
use crate::extent::{RegionCore, Sampler};
use crate::inside::Inside;
use crate::memory::Memory;
use crate::page::{Phase, Then};
use crate::parts::{Core, Way};
use crate::say::die;
use crate::space::{SLOT_PAGES, page_number, place, slot_page, slots_of};
use crate::sys::Range;
use std::ops;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The most pages of a region: 32 TiB.
pub const REGION_PAGES_MAX: u64 = 1 << 33;

/// Memory made of a backing's pages. See the head of the file.
pub struct Region {
    memory: Memory,
    core: *mut RegionCore,
    first_slot: usize,
    slots: usize,
}

// SAFETY: the pointer is to a RegionCore that this Region owns and frees; it is Sync, since a Backing is, and the rest is atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Memory {
    /// A region of `pages` pages that are made of what `backing` has; none is materialised.
    pub fn region(&self, pages: u64, backing: Arc<dyn Backing>) -> Result<Region, VmError> {
        Region::new(self, pages, backing, None)
    }

    /// The same at a place: so many multiples of [`ADDRESSES_ALIGN_BYTES`] behind the base. A memory has either regions at said places or others.
    pub fn region_at(
        &self,
        slot: usize,
        pages: u64,
        backing: Arc<dyn Backing>,
    ) -> Result<Region, VmError> {
        Region::new(self, pages, backing, Some(slot))
    }
}

impl Memory {
    /// Pages that the largest region has which can be made now.
    pub(crate) fn free_pages(&self) -> u64 {
        let taken = (self.core.taken.lock()).unwrap_or_else(|e| e.into_inner());
        let runs = taken.chunk_by(|a, b| a == b).filter(|run| !run[0]);
        runs.map(<[bool]>::len).max().unwrap_or(0) as u64 * SLOT_PAGES
    }
}

impl Region {
    /// A region that begins at slot `slot`; None: wherever so many are free.
    pub(crate) fn new(
        memory: &Memory,
        pages: u64,
        backing: Arc<dyn Backing>,
        slot: Option<usize>,
    ) -> Result<Region, VmError> {
        if pages == 0 || pages > REGION_PAGES_MAX {
            return Err(VmError::Bounds {
                what: "pages of a region",
                asked: pages,
                allowed: format!("1 to {REGION_PAGES_MAX}"),
            });
        }
        let core = &memory.core;
        core.check_not_forked()?;
        let slots = slots_of(pages);
        let first_slot = take_slots(core, slots, slot).ok_or_else(|| VmError::NoAddresses {
            asked_bytes: pages * PAGE_BYTES as u64,
            reserved_bytes: core.space.addresses().1 as u64,
        })?;
        let first_page = slot_page(first_slot);
        let region = Box::into_raw(Box::new(RegionCore {
            first_page,
            pages,
            backing,
            sampler: Sampler::default(),
        }));
        if core.way != Way::InThread {
            // Marks of accesses when it was nobody's.
            let start = core.space.address_of(first_page);
            let len = pages as usize * PAGE_BYTES;
            core.drop_ranges(&[Range { start, len }]);
        }
        let blocks_end = place(first_page + pages - 1).0 + 1;
        core.blocks_end.fetch_max(blocks_end, Ordering::AcqRel);
        for slot in first_slot..first_slot + slots {
            core.space.slot(slot).store(region, Ordering::Release);
        }
        Ok(Region {
            memory: memory.clone(),
            core: region,
            first_slot,
            slots,
        })
    }

    pub(crate) fn memory_core(&self) -> &Core {
        &self.memory.core
    }

    pub(crate) fn inner(&self) -> &RegionCore {
        // SAFETY: freed only when this Region is dropped.
        unsafe { &*self.core }
    }

    /// Where it begins. Valid for reads and writes of all its pages as long as the region lives; what of it one may refer to with
    /// Rust's references is the caller's to keep.
    pub fn base(&self) -> *mut u8 {
        self.memory.core.space.address_of(self.inner().first_page) as *mut u8
    }

    /// Length in pages.
    pub fn pages(&self) -> u64 {
        self.inner().pages
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.inner().pages as usize * PAGE_BYTES
    }

    /// The 8 bytes at `at` times 8, as an atomic: memory that faults for code that is not unsafe. Who touches it may be killed by SIGBUS
    /// if it cannot be read back, as with any memory of a region.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(
            at < self.bytes() / 8,
            "word {at} of a region of {} bytes",
            self.bytes()
        );
        // SAFETY: within the region, aligned, and as old as it; any bits are a value, and atomics may be shared.
        unsafe { &*self.base().cast::<AtomicU64>().add(at) }
    }

    /// Frees pages: they read as zeros, and the backing is told to discard them. Nobody may touch them meanwhile.
    ///
    /// Errors: pages that the region does not have; a fork.
    pub fn discard(&self, pages: ops::Range<u64>) -> Result<(), VmError> {
        self.check(&pages)?;
        let core = &self.memory.core;
        let inside = Inside::enter(core)?;
        for pages in self.in_blocks(pages) {
            discard_in_block(core, pages, Some(self.inner()))?;
        }
        drop(inside);
        Ok(())
    }

    /// The same of those of the pages that are not in DRAM; the others keep what they hold.
    pub(crate) fn discard_absent(&self, pages: ops::Range<u64>) -> Result<(), VmError> {
        self.check(&pages)?;
        let core = &self.memory.core;
        let inside = Inside::enter(core)?;
        for pages in self.in_blocks(pages) {
            discard_absent_in_block(core, pages, self.inner());
        }
        drop(inside);
        Ok(())
    }

    /// Pages of the region, by block, as the space counts them.
    fn in_blocks(&self, pages: ops::Range<u64>) -> impl Iterator<Item = ops::Range<u64>> {
        let first = self.inner().first_page;
        let (mut at, end) = (first + pages.start, first + pages.end);
        std::iter::from_fn(move || {
            let next = ((at / BLOCK_PAGES as u64 + 1) * BLOCK_PAGES as u64).min(end);
            let pages = at..next;
            at = next;
            (!pages.is_empty()).then_some(pages)
        })
    }

    /// What was on a page before it was given out anew: the mark of somebody who touched it when it was nobody's.
    pub(crate) fn renew(&self, page: u64) -> Result<(), VmError> {
        let core = &self.memory.core;
        if core.way != Way::InThread {
            let inside = Inside::enter(core)?;
            core.lift_poison(self.inner().first_page + page);
            drop(inside);
        }
        Ok(())
    }

    /// The same of many, most of which nobody ever touched.
    pub(crate) fn renew_all(&self, pages: ops::Range<u64>) -> Result<(), VmError> {
        let core = &self.memory.core;
        if core.way == Way::InThread {
            return Ok(());
        }
        let inside = Inside::enter(core)?;
        for pages in self.in_blocks(pages) {
            if !core.space.is_empty(place(pages.start).0) {
                pages.for_each(|page| core.lift_poison(page));
            }
        }
        drop(inside);
        Ok(())
    }

    pub(crate) fn check(&self, pages: &ops::Range<u64>) -> Result<(), VmError> {
        if pages.start <= pages.end && pages.end <= self.pages() {
            return Ok(());
        }
        Err(VmError::Bounds {
            what: "a page of the region",
            asked: pages.start.max(pages.end),
            allowed: format!("0 to {}, start before end,", self.pages()),
        })
    }
}

/// Takes so many slots in a row; those from `first` on, if it is said.
fn take_slots(core: &Core, slots: usize, first: Option<usize>) -> Option<usize> {
    let mut taken = core.taken.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(first) = first {
        let wanted = taken.get_mut(first..first.checked_add(slots)?)?;
        if wanted.contains(&true) {
            return None;
        }
        wanted.fill(true);
        return Some(first);
    }
    let mut free = 0;
    let end = (0..taken.len()).find(|slot| {
        free = if taken[*slot] { 0 } else { free + 1 };
        free == slots
    })? + 1;
    taken[end - slots..end].fill(true);
    Some(end - slots)
}

/// Tells the backing that the contents of those pages of one block that are not resident are not needed. Those that are busy stay as they become.
fn discard_absent_in_block(core: &Core, pages: ops::Range<u64>, region: &RegionCore) {
    let (block, _) = place(pages.start);
    let Ok(pinned) = core.space.pin(block) else {
        return;
    };
    let record = core.space.record(pinned);
    for page in pages {
        let (_, at) = place(page);
        // One that could not be fetched is not there either.
        if record.pages[at].look().poisoned() {
            core.lift_poison(page);
        }
        let seen = record.pages[at].look();
        if seen.phase() == Phase::Absent && record.pages[at].begin_discard(seen) {
            region.backing.discard(page - region.first_page);
            if record.pages[at].end(Phase::Discarding, Then::Absent) {
                core.space.rooms.wake(page_number(page));
            }
        }
    }
    core.unpin(pinned, 1);
}

/// Makes pages of one block absent, whatever they hold. With a region its backing is told, also of pages that are not resident;
/// without one those are left out.
fn discard_in_block(
    core: &Core,
    pages: ops::Range<u64>,
    region: Option<&RegionCore>,
) -> Result<(), VmError> {
    let (block, _) = place(pages.start);
    let pinned = match region {
        Some(_) => core.space.pin(block).map_err(|_| VmError::Bounds {
            what: "blocks of 2 MiB with resident pages",
            asked: core.space.live() as u64 + 1,
            allowed: format!("{}", core.space.live()),
        })?,
        None => match core.space.pin_live(block) {
            Some(pinned) => pinned,
            None => return Ok(()),
        },
    };
    let record = core.space.record(pinned);
    let (mut resident, mut dirty) = (0, 0);
    let mut mine = [0u64; BLOCK_PAGES / 64];
    let mut ranges = [Range::NONE; BLOCK_PAGES / 2];
    let mut len = 0;
    for page in pages.clone() {
        let (_, at) = place(page);
        let was = loop {
            let ticket = core.space.rooms.ticket(page_number(page));
            let seen = record.pages[at].look();
            match seen.phase() {
                Phase::Absent if region.is_none() => break None,
                phase @ (Phase::Absent | Phase::Clean | Phase::Dirty)
                    if record.pages[at].begin_discard(seen) =>
                {
                    break Some(phase);
                }
                Phase::Absent | Phase::Clean | Phase::Dirty => {}
                _ if record.pages[at].await_change(seen) => core.space.rooms.wait(&ticket),
                _ => {}
            }
        };
        let Some(was) = was else { continue };
        mine[at / 64] |= 1 << (at % 64);
        if was == Phase::Absent {
            continue;
        }
        resident += 1;
        dirty += usize::from(was == Phase::Dirty);
        let start = core.space.address_of(page);
        if len > 0 && ranges[len - 1].start + ranges[len - 1].len == start {
            ranges[len - 1].len += PAGE_BYTES;
        } else {
            ranges[len] = Range {
                start,
                len: PAGE_BYTES,
            };
            len += 1;
        }
    }
    core.drop_ranges(&ranges[..len]);
    for page in pages {
        let (_, at) = place(page);
        if mine[at / 64] >> (at % 64) & 1 == 0 {
            continue;
        }
        if let Some(region) = region {
            region.backing.discard(page - region.first_page);
        }
        record.forget(at);
        if record.pages[at].end(Phase::Discarding, Then::Absent) {
            core.space.rooms.wake(page_number(page));
        }
    }
    core.leave(resident);
    core.undirty(true, dirty);
    core.unpin(pinned, resident as u32 + 1);
    Ok(())
}

impl Core {
    /// Poisons an absent page: who touches it gets SIGBUS until it leaves, or until that is lifted.
    pub fn poison(&self, page: u64) {
        let (block, at) = place(page);
        let Ok(pinned) = self.space.pin(block) else {
            return;
        };
        let record = self.space.record(pinned);
        let seen = record.pages[at].look();
        if seen.phase() != Phase::Absent || !record.pages[at].begin_fill(seen) {
            return self.unpin(pinned, 1);
        }
        let start = self.space.address_of(page);
        if let Err(errno) = self.uffd.poison(start) {
            die(format_args!(
                "poisoning the page at {start:#x} failed: {errno}"
            ));
        }
        // One more than there may be, for as long as nobody evicts: it takes no memory.
        self.resident.fetch_add(1, Ordering::Relaxed);
        record.note(at);
        if record.pages[at].end(Phase::Filling, Then::Poisoned) {
            self.space.rooms.wake(page_number(page));
        }
    }

    /// Lifts the poison of a page, so that the next access asks for it again.
    pub fn lift_poison(&self, page: u64) {
        let (block, at) = place(page);
        let Some(pinned) = self.space.pin_live(block) else {
            return;
        };
        let record = self.space.record(pinned);
        let lifted = loop {
            let ticket = self.space.rooms.ticket(page_number(page));
            let seen = record.pages[at].look();
            match seen.phase() {
                Phase::Clean if seen.poisoned() && record.pages[at].begin_discard(seen) => {
                    break true;
                }
                Phase::Clean if seen.poisoned() => {}
                Phase::Absent | Phase::Clean | Phase::Dirty => break false,
                _ if record.pages[at].await_change(seen) => self.space.rooms.wait(&ticket),
                _ => {}
            }
        };
        if lifted {
            let start = self.space.address_of(page);
            let len = PAGE_BYTES;
            self.drop_ranges(&[Range { start, len }]);
            record.forget(at);
            if record.pages[at].end(Phase::Discarding, Then::Absent) {
                self.space.rooms.wake(page_number(page));
            }
            self.leave(1);
        }
        self.unpin(pinned, 1 + u32::from(lifted));
    }

    /// Empties all blocks of a region that has no slots any more.
    fn drain(&self, first_page: u64, pages: u64) {
        let (start, end) = (place(first_page).0, place(first_page + pages - 1).0 + 1);
        while let Some(block) = self.space.next_live(start, end) {
            let page = (block * BLOCK_PAGES) as u64;
            // Without a region it cannot fail.
            let _ = discard_in_block(self, page..page + BLOCK_PAGES as u64, None);
            // A fault may still hold the block.
            #[expect(
                clippy::disallowed_methods,
                reason = "once for each region, at its end"
            )]
            std::thread::yield_now();
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Ok(inside) = Inside::enter(&self.memory.core) else {
            // A fork: all this is the parent's.
            return;
        };
        let core = &self.memory.core;
        for slot in self.first_slot..self.first_slot + self.slots {
            core.space
                .slot(slot)
                .store(std::ptr::null_mut(), Ordering::Release);
        }
        // Who pins a block from now on finds no region, or its block is found here.
        fence(Ordering::SeqCst);
        let region = self.inner();
        core.drain(region.first_page, region.pages);
        // SAFETY: made by Box::into_raw in `new`. The slots are cleared and no block has users, so no fault has it; see
        // Space::region.
        drop(unsafe { Box::from_raw(self.core) });
        let mut taken = core.taken.lock().unwrap_or_else(|e| e.into_inner());
        taken[self.first_slot..self.first_slot + self.slots].fill(false);
        drop(taken);
        drop(inside);
    }
}
