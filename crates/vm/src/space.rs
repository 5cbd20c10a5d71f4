//! The addresses that regions are carved from, and what is known of each page in them: a word for each block of 2 MiB, and a
//! record of page words for each block that has a page in DRAM.
//!
//! Promises: one mapping and one registration for all regions, since a process may have 65,530 mappings only; a look-up takes no
//! lock; DRAM of 8 bytes for a block of a region, [`RECORD_BYTES`] for one with resident pages, kept for the next. Never: moves
//! anything, or reads or writes the addresses themselves.

use crate::backing::PAGE_BYTES;
use crate::block::{BLOCK_BYTES, BLOCK_PAGES, BlockWord, Pin, RECORD_BYTES, Unpin};
use crate::extent::RegionCore;
use crate::page::PageState;
use crate::sys::{Lock, Rooms, SystemError, Table, ZeroIsValid, map_addresses};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Regions begin and end at multiples of this: 1 GiB of addresses, which cost nothing.
pub(crate) const SLOT_BYTES: usize = 1 << 30;
const SLOT_BLOCKS: usize = SLOT_BYTES / BLOCK_BYTES;
pub(crate) const SLOT_PAGES: u64 = (SLOT_BYTES / PAGE_BYTES) as u64;
/// The most addresses: half of what a process has.
const RESERVE_BYTES_MAX: usize = 1 << 46;
/// The most blocks with resident pages.
const RECORDS_MAX: usize = 1 << 22;
/// Blocks whose memory is asked for at once.
const ASKED_TOGETHER: usize = 16;

/// The words of a block's pages.
#[repr(C, align(64))]
pub(crate) struct Record {
    pub pages: [PageState; BLOCK_PAGES],
    /// A bit for each page that may be resident, so that an evictor needs not look at all.
    maybe: [AtomicU64; BLOCK_PAGES / 64],
    next_free: AtomicU32,
    /// Whether the block may have a page table: not if all that ever was done in it is to say that pages which are not there are not needed.
    has_table: AtomicBool,
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

// SAFETY: integers, atomic integers and an atomic bool, of which zero is false; a page word of zero is an absent page.
unsafe impl ZeroIsValid for Record {}
// SAFETY: an atomic integer; zero is an empty block.
unsafe impl ZeroIsValid for BlockWord {}
// SAFETY: an atomic pointer; zero is null.
unsafe impl ZeroIsValid for AtomicPtr<RegionCore> {}

impl Record {
    pub fn note(&self, page: usize) {
        self.note_table();
        self.maybe[page / 64].fetch_or(1 << (page % 64), Ordering::AcqRel);
    }

    /// The kernel makes the table before it says that a page is not there.
    pub fn note_table(&self) {
        if !self.has_table.load(Ordering::Relaxed) {
            self.has_table.store(true, Ordering::Relaxed);
        }
    }

    /// For who releases the block.
    pub fn may_have_table(&self) -> bool {
        self.has_table.load(Ordering::Relaxed)
    }

    pub fn forget(&self, page: usize) {
        self.maybe[page / 64].fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
    }

    /// Pages from `from` on that may be resident, in order.
    pub fn noted(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        let words = (from / 64..self.maybe.len()).map(move |at| {
            let word = self.maybe[at].load(Ordering::Acquire);
            let hidden = if at == from / 64 { from % 64 } else { 0 };
            (at, word >> hidden << hidden)
        });
        words.flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(at * 64 + bit)
            })
        })
    }
}

#[derive(Default)]
struct Records {
    /// Index plus one of the record that was freed last.
    freed: u32,
}

/// A block that the holder is a user of. Given back by [`Space::unpin`].
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    pub block: usize,
    pub record: u32,
}

/// No record is left.
#[derive(Debug)]
pub(crate) struct NoRecord;

/// See the head of the file. Pages and blocks are numbered from its base.
pub(crate) struct Space {
    mapped: (usize, usize),
    base: usize,
    blocks: Table<BlockWord>,
    /// A bit for each block that is not empty.
    summary: Table<AtomicU64>,
    records: Table<Record>,
    free: Lock<Records>,
    /// Records below this were used at least once. Changed with `free` locked.
    records_used: AtomicU32,
    slots: Table<AtomicPtr<RegionCore>>,
    live: AtomicUsize,
    /// Where threads wait for a busy page or block.
    pub rooms: Rooms,
}

impl Space {
    /// Takes `reserve_bytes` of addresses (rounded up to slots), from `base` on if it is said, where nothing else may be.
    pub fn new(reserve_bytes: usize, base: Option<usize>) -> Result<Space, SystemError> {
        let len = reserve_bytes
            .clamp(SLOT_BYTES, RESERVE_BYTES_MAX)
            .next_multiple_of(SLOT_BYTES);
        let blocks = len / BLOCK_BYTES;
        // Anywhere else, the first multiple of a slot must be found in it.
        let asked = if base.is_some() {
            len
        } else {
            len + SLOT_BYTES
        };
        // Before the tables: the kernel would lay them where `base` is, if that is the highest place that is free.
        let mapped = map(asked, base)?;
        let tables = || {
            Ok((
                Table::new(blocks)?,
                Table::new(blocks.div_ceil(64))?,
                Table::new(blocks.min(RECORDS_MAX))?,
                Table::new(len / SLOT_BYTES)?,
            ))
        };
        let tables = tables().inspect_err(|_: &SystemError| {
            // SAFETY: mapped just now, and nobody knows of it.
            let _ = unsafe { munmap(mapped, asked) };
        })?;
        let space = Space {
            mapped: (mapped as usize, asked),
            base: (mapped as usize).next_multiple_of(SLOT_BYTES),
            blocks: tables.0,
            summary: tables.1,
            records: tables.2,
            free: Lock::default(),
            slots: tables.3,
            records_used: AtomicU32::new(0),
            live: AtomicUsize::new(0),
            rooms: Rooms::new(),
        };
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork] {
            // SAFETY: our own mapping; it stays without huge pages, and out of children: an access there fails loudly.
            unsafe { madvise(mapped, asked, advice) }
                .map_err(SystemError::call("advising on reserved addresses"))?;
        }
        Ok(space)
    }

    /// The addresses regions can have: start and length.
    pub fn addresses(&self) -> (usize, usize) {
        (self.base, self.slots.len() * SLOT_BYTES)
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn slot(&self, slot: usize) -> &AtomicPtr<RegionCore> {
        &self.slots[slot]
    }

    /// The number of the page at an address.
    pub fn page_at(&self, address: usize) -> Option<u64> {
        let (start, len) = self.addresses();
        let offset = address.checked_sub(start).filter(|offset| *offset < len)?;
        Some((offset / PAGE_BYTES) as u64)
    }

    /// Whether there is such a page.
    pub fn has(&self, page: u64) -> bool {
        let (_, len) = self.addresses();
        page < (len / PAGE_BYTES) as u64
    }

    pub fn address_of(&self, page: u64) -> usize {
        self.base + page as usize * PAGE_BYTES
    }

    /// Which slot's region a page may lie in, for comparing only: it is not looked into, and may go at any time. None: no region's.
    pub fn slot_of(&self, page: u64) -> Option<*const RegionCore> {
        let slot = self.slots[(page / SLOT_PAGES) as usize].load(Ordering::Acquire);
        (!slot.is_null()).then_some(slot.cast_const())
    }

    /// The region that page lies in; valid as long as the caller is a user of the page's block.
    pub fn region(&self, page: u64) -> Option<&RegionCore> {
        let region = self.slots[(page / SLOT_PAGES) as usize].load(Ordering::Acquire);
        // SAFETY: a region is freed only after its slots were cleared and then all its blocks have been empty; the caller, a
        // user of one of them, read the slot afterwards.
        let region = unsafe { region.as_ref() }?;
        region.contains(page).then_some(region)
    }

    pub fn record(&self, pinned: Pinned) -> &Record {
        &self.records[pinned.record as usize]
    }

    /// Becomes a user of a block, which gets a record if it has none. Waits while it is being released.
    pub fn pin(&self, block: usize) -> Result<Pinned, NoRecord> {
        let word = &self.blocks[block];
        let mut spare = None;
        let record = loop {
            match word.pin() {
                Pin::Live(record) => {
                    self.show(block);
                    break record;
                }
                Pin::Releasing => self.wait_for_block(block),
                Pin::Empty => {
                    let record = match spare {
                        Some(record) => record,
                        None => self.take_record()?,
                    };
                    spare = Some(record);
                    if word.occupy(record) {
                        self.live.fetch_add(1, Ordering::Relaxed);
                        self.show(block);
                        spare = None;
                        break record;
                    }
                }
            }
        };
        if let Some(record) = spare {
            self.free_record(record);
        }
        // Whoever clears a region's slots sees this block, or who pinned it sees the slots cleared: see `Region`'s drop.
        fence(Ordering::SeqCst);
        Ok(Pinned { block, record })
    }

    /// Puts a block that the caller is a user of among the live ones. Who occupied it may not have come to that, and what this user writes must be found.
    fn show(&self, block: usize) {
        let (word, bit) = (&self.summary[block / 64], 1 << (block % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Becomes a user of a block that is live; none if it is not.
    pub fn pin_live(&self, block: usize) -> Option<Pinned> {
        match self.blocks[block].pin() {
            Pin::Live(record) => Some(Pinned { block, record }),
            Pin::Empty | Pin::Releasing => None,
        }
    }

    /// The same of one that is not empty: what is in a block that is being released may still be on its way to the backing, or come back, so that is waited for.
    pub fn pin_filled(&self, block: usize) -> Option<Pinned> {
        loop {
            match self.blocks[block].pin() {
                Pin::Live(record) => return Some(Pinned { block, record }),
                Pin::Empty => return None,
                Pin::Releasing => self.wait_for_block(block),
            }
        }
    }

    /// Whether a block seemed to have no page a moment ago.
    pub fn is_empty(&self, block: usize) -> bool {
        self.blocks[block].record().is_none()
    }

    /// Waits while a block is being released, boundedly.
    pub fn wait_for_block(&self, block: usize) {
        let number = block_number(block);
        let ticket = self.rooms.ticket(number);
        if self.blocks[block].await_change() {
            self.rooms.wait(&ticket);
        }
    }

    /// Ends `users` uses of the caller. True: they were the last, the caller gives the page table back and calls
    /// [`vacate`](Space::vacate).
    #[must_use]
    pub fn unpin(&self, pinned: Pinned, users: u32) -> bool {
        match self.blocks[pinned.block].unpin(users) {
            Unpin::Kept => false,
            Unpin::Last(record) => {
                debug_assert_eq!(record, pinned.record);
                true
            }
        }
    }

    /// If `users`, all the caller's, are all there are, the block is released: the caller gives the page table back, ends what its
    /// pages are busy with, and calls [`vacate`](Space::vacate).
    pub fn claim(&self, pinned: Pinned, users: u32) -> bool {
        self.blocks[pinned.block].claim(users)
    }

    /// A released block, all pages of which are absent and whose page table is gone, becomes empty.
    pub fn vacate(&self, pinned: Pinned) {
        let record = self.record(pinned);
        for word in &record.maybe {
            debug_assert_eq!(word.load(Ordering::Relaxed), 0);
        }
        record.has_table.store(false, Ordering::Relaxed);
        self.summary[pinned.block / 64].fetch_and(!(1 << (pinned.block % 64)), Ordering::AcqRel);
        self.live.fetch_sub(1, Ordering::Relaxed);
        let awaited = self.blocks[pinned.block].vacate();
        self.free_record(pinned.record);
        if awaited {
            self.rooms.wake(block_number(pinned.block));
        }
    }

    /// A released block has `users` pages again, all the caller's: it is live as before.
    pub fn keep(&self, pinned: Pinned, users: u32) {
        if self.blocks[pinned.block].keep(users) {
            self.rooms.wake(block_number(pinned.block));
        }
    }

    /// The first block from `from` on, and before `end`, that is not empty.
    pub fn next_live(&self, from: usize, end: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut hidden = from % 64;
        while at * 64 < end {
            let word = self.summary[at].load(Ordering::Acquire) >> hidden << hidden;
            if word != 0 {
                let block = at * 64 + word.trailing_zeros() as usize;
                return (block < end).then_some(block);
            }
            (at, hidden) = (at + 1, 0);
        }
        None
    }

    /// Asks for the memory of the next few live blocks' words and records. One after the other each would be waited for alone. Where to ask again.
    pub fn ask_for(&self, from: usize, end: usize) -> usize {
        let mut next = from;
        let mut some = [0; ASKED_TOGETHER];
        let mut len = 0;
        while len < ASKED_TOGETHER
            && let Some(block) = self.next_live(next, end)
        {
            terrace_media::prefetch_line(&self.blocks[block]);
            some[len] = block;
            (len, next) = (len + 1, block + 1);
        }
        for block in &some[..len] {
            if let Some(record) = self.blocks[*block].record() {
                terrace_media::prefetch_line(&self.records[record as usize].maybe);
            }
        }
        next.max(from + 1)
    }

    /// Blocks that are not empty: each may have a page table.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    fn take_record(&self) -> Result<u32, NoRecord> {
        let mut free = self.free.lock();
        if let Some(record) = free.freed.checked_sub(1) {
            free.freed = self.records[record as usize]
                .next_free
                .load(Ordering::Relaxed);
            return Ok(record);
        }
        let used = self.records_used.load(Ordering::Relaxed);
        if used as usize == self.records.len() {
            return Err(NoRecord);
        }
        self.records_used.store(used + 1, Ordering::Relaxed);
        Ok(used)
    }

    fn free_record(&self, record: u32) {
        let mut free = self.free.lock();
        self.records[record as usize]
            .next_free
            .store(free.freed, Ordering::Relaxed);
        free.freed = record + 1;
    }

    /// Records that took DRAM so far.
    pub fn records_used(&self) -> u32 {
        self.records_used.load(Ordering::Relaxed)
    }
}

/// Addresses with nothing behind them.
fn map(len: usize, base: Option<usize>) -> Result<*mut std::ffi::c_void, SystemError> {
    let Some(base) = base else {
        return map_addresses(len);
    };
    let taken = |errno| SystemError::Taken {
        base: base as u64,
        bytes: len as u64,
        errno,
    };
    if !base.is_multiple_of(SLOT_BYTES) {
        return Err(taken(rustix::io::Errno::INVAL));
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the kernel refuses it where anything is mapped.
    let mapped = unsafe { mmap_anonymous(base as *mut std::ffi::c_void, len, access, flags) }
        .map_err(|errno| match errno {
            // No other place is any better, and nobody is in the way.
            rustix::io::Errno::NOMEM => SystemError::Addresses {
                asked_bytes: len as u64,
                errno,
            },
            errno => taken(errno),
        })?;
    if mapped as usize == base {
        return Ok(mapped);
    }
    // A kernel before 4.17 takes the address as a hint.
    // SAFETY: mapped just now, and nobody knows of it.
    let _ = unsafe { munmap(mapped, len) };
    Err(taken(rustix::io::Errno::EXIST))
}

impl Drop for Space {
    fn drop(&mut self) {
        let (start, len) = self.mapped;
        // SAFETY: our own mapping of this length; regions borrow the space, so none is left.
        let unmapped = unsafe { munmap(start as *mut _, len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

/// Pages and blocks wait in the same rooms, under different numbers.
pub(crate) fn page_number(page: u64) -> u64 {
    page
}

fn block_number(block: usize) -> u64 {
    1 << 63 | block as u64
}

/// Which block a page lies in, and where in it.
pub(crate) fn place(page: u64) -> (usize, usize) {
    let pages = BLOCK_PAGES as u64;
    ((page / pages) as usize, (page % pages) as usize)
}

/// The slots of a region of `pages` pages.
pub(crate) fn slots_of(pages: u64) -> usize {
    pages.div_ceil(SLOT_PAGES) as usize
}

/// The first page of a slot.
pub(crate) fn slot_page(slot: usize) -> u64 {
    (slot * SLOT_BLOCKS * BLOCK_PAGES) as u64
}
