//! Objects on pages of their own whose faults the touching thread takes: the yardstick of OPP.
//!
//! A fault copies the object out of DRAM if it is one of those that are told to lie there, or reads the file's page that it is in; then the page is put in
//! place, and others are taken away, 128 at a time, by a hand that goes round over the addresses, when too many are there. Which objects lie in DRAM and which pages
//! stay is told beforehand by whoever knows how often each will be wanted: no policy has to find out, and no heat is kept.
//!
//! While a load writes ([`Bare::keeps_writes`]) all pages count as written to: a pipe holds those that leave while they are taken away, and
//! their objects go back to where they lie in DRAM, or to the end of a log. That is the least that loses nothing: no entry has a head, nothing is compared, protected or cleaned.
//!
//! Where fewer bytes of an object are kept than it has ([`Sizes::kept_bytes`]), it is as if packing and unpacking cost nothing: DRAM and the log have the first of them, and the
//! rest reads as zeros.
//!
//! Promises: one at a time in a process. Never: used by the product.

use crate::backing::{PAGE_BYTES, Page};
use crate::block::{BLOCK_BYTES, BLOCK_PAGES};
use crate::error::VmError;
use crate::floor::log::Log;
use crate::measure::Bed;
use crate::say::die;
use crate::sys::{HeldPages, Range};
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const BATCH_PAGES: usize = 128;
/// So many places within a page at most, so that objects do not share the same sets of a cache.
const PLACES: usize = 16;

const ABSENT: u8 = 0;
const FILLING: u8 = 1;
const THERE: u8 = 2;
const LEAVING: u8 = 3;
const STATE: u8 = 3;
/// Beside the state: the page stays once it is there.
const STAYS: u8 = 4;

/// In a block's word: its page table is being taken away.
const BLOCK_LEAVES: u32 = 1 << 31;
/// Sleep of who meets a page that is on its way. Yielding would give up a slice of milliseconds (docs/adr/0052).
const LOOKS_AGAIN: Duration = Duration::from_micros(20);
/// No place in DRAM, and never written.
const ON_FILE: u32 = u32::MAX;
/// With this, a slot of the log.
const IN_LOG: u32 = 1 << 31;
/// 16 GiB of objects of 128 B.
const LOG_SLOTS_MAX: u32 = 1 << 27;

/// A pipe for the pages of a batch, and room for what is read of them.
struct Holds {
    pipe: HeldPages,
    bytes: Vec<u8>,
}

/// How many objects of what size, and how many pages may be there beside those that stay.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Objects, each on a page.
    pub objects: usize,
    /// Bytes of an object: a power of two from 8 up to a page.
    pub object_bytes: usize,
    /// Of these, the first that are kept in DRAM and in the log: a multiple of 8.
    pub kept_bytes: usize,
    /// Pages that come and go.
    pub passing: usize,
}

/// See the head of the file.
pub struct Bare {
    bed: Bed,
    base: usize,
    sizes: Sizes,
    file: File,
    pages: Vec<AtomicU8>,
    blocks: Vec<AtomicU32>,
    places: Vec<AtomicU32>,
    near: Vec<AtomicU64>,
    log: Log,
    keeps_writes: AtomicBool,
    /// Those that no thread uses now.
    holds: Mutex<Vec<Holds>>,
    /// How many pages are there or on their way, and how many may be.
    there: AtomicUsize,
    there_max: usize,
    /// The page where the next batch begins.
    hand: Mutex<usize>,
    faults: AtomicU64,
    reads: AtomicU64,
}

static CURRENT: AtomicPtr<Bare> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a valid siginfo; `Bare` takes itself out of CURRENT before it goes, and nobody touches its pages after that.
    let (address, bare) = unsafe { ((*info).si_addr() as usize, CURRENT.load(Ordering::Acquire)) };
    // SAFETY: as above.
    let Some(bare) = (unsafe { bare.as_ref() }) else {
        die(format_args!("a fault at {address:#x} is nobody's"));
    };
    if let Err(error) = bare.fault(address & !(PAGE_BYTES - 1)) {
        die(format_args!("a bare fault failed: {error}"));
    }
}

impl Bare {
    /// Objects that lie in `file` one after the other, which is opened for direct reads. Those of `near` lie in DRAM, with what `word` says is in them; the
    /// pages of the first `stay` of them stay once they are there.
    pub fn new(
        file: File,
        sizes: Sizes,
        near: impl Iterator<Item = u64>,
        stay: usize,
        word: impl Fn(u64, usize) -> u64,
    ) -> Result<Box<Bare>, VmError> {
        let bed = Bed::new(sizes.objects * PAGE_BYTES, on_fault)?;
        let base = bed.base().next_multiple_of(BLOCK_BYTES);
        let mut bare = Box::new(Bare {
            bed,
            base,
            sizes,
            file,
            pages: (0..sizes.objects).map(|_| AtomicU8::new(ABSENT)).collect(),
            blocks: (0..sizes.objects.div_ceil(BLOCK_PAGES))
                .map(|_| AtomicU32::new(0))
                .collect(),
            places: (0..sizes.objects)
                .map(|_| AtomicU32::new(ON_FILE))
                .collect(),
            near: Vec::new(),
            log: Log::new(
                (sizes.objects * sizes.object_bytes).next_multiple_of(PAGE_BYTES) as u64,
                sizes.kept_bytes,
                LOG_SLOTS_MAX,
            ),
            keeps_writes: AtomicBool::new(false),
            holds: Mutex::new(Vec::new()),
            there: AtomicUsize::new(0),
            there_max: sizes.passing + stay,
            hand: Mutex::new(0),
            faults: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        });
        let words = sizes.kept_bytes / size_of::<u64>();
        bare.near.reserve_exact(near.size_hint().0 * words);
        for (n, object) in near.enumerate() {
            bare.places[object as usize] = AtomicU32::new(n as u32);
            bare.near
                .extend((0..words).map(|at| AtomicU64::new(word(object, at))));
            if n < stay {
                bare.pages[object as usize] = AtomicU8::new(STAYS);
            }
        }
        CURRENT.store(std::ptr::from_ref(&*bare).cast_mut(), Ordering::Release);
        Ok(bare)
    }

    /// Word `at` of an object.
    pub fn word(&self, object: u64, at: usize) -> &AtomicU64 {
        let object = object as usize;
        assert!(object < self.sizes.objects && at * size_of::<u64>() < self.sizes.object_bytes);
        let address = self.base + object * PAGE_BYTES + self.offset(object);
        // SAFETY: within the bed, which is as old as `self`, and a multiple of 8; a touch of a page that is not there is a fault of ours.
        unsafe { &*(address as *const AtomicU64).add(at) }
    }

    /// Where the page of the first object is.
    pub fn base(&self) -> *mut u8 {
        self.base as *mut u8
    }

    /// Whether what is written to pages is kept from now on. If not, what was written before and is still there is lost when it leaves.
    pub fn keeps_writes(&self, keeps: bool) {
        self.keeps_writes.store(keeps, Ordering::Release);
    }

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Of these, those that read the file.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn offset(&self, object: usize) -> usize {
        let apart = self.sizes.object_bytes.max(PAGE_BYTES / PLACES);
        object % (PAGE_BYTES / apart) * apart
    }

    fn fault(&self, address: usize) -> std::io::Result<()> {
        let at = (address - self.base) / PAGE_BYTES;
        let state = &self.pages[at];
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        loop {
            let seen = state.load(Ordering::Acquire);
            let next = seen & STAYS | FILLING;
            match seen & STATE {
                ABSENT if state.compare_exchange(seen, next, done, not).is_ok() => {
                    return self.fill(at, address, seen & STAYS);
                }
                // Another thread brought it.
                THERE => return Ok(()),
                ABSENT => {}
                _ => std::thread::sleep(LOOKS_AGAIN),
            }
        }
    }

    fn fill(&self, at: usize, address: usize, stays: u8) -> std::io::Result<()> {
        self.faults.fetch_add(1, Ordering::Relaxed);
        if self.there.fetch_add(1, Ordering::AcqRel) >= self.there_max {
            self.evict()?;
        }
        let (mut page, offset) = (Page::ZERO, self.offset(at));
        let object = &mut page.0[offset..][..self.sizes.object_bytes];
        match self.places[at].load(Ordering::Acquire) {
            ON_FILE => {
                let lies = (at * self.sizes.object_bytes) as u64;
                self.read(&mut page, offset, lies, self.sizes.object_bytes)?;
            }
            slot if slot & IN_LOG != 0 => {
                let slot = slot ^ IN_LOG;
                let kept = self.sizes.kept_bytes;
                if !self.log.near(slot, &mut object[..kept]) {
                    self.read(&mut page, offset, self.log.offset(slot), kept)?;
                }
            }
            place => {
                let bytes = object.chunks_exact_mut(size_of::<u64>());
                for (to, word) in bytes.zip(self.near_words(place)) {
                    to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                }
            }
        }
        self.enter_block(at / BLOCK_PAGES);
        self.bed.uffd().copy(address, &page, false)?;
        self.pages[at].store(stays | THERE, Ordering::Release);
        Ok(())
    }

    /// Reads the page of the file that an object lies in, and puts `len` bytes of it at `offset`.
    fn read(&self, page: &mut Page, offset: usize, lies: u64, len: usize) -> std::io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let within = lies as usize % PAGE_BYTES;
        self.file.read_exact_at(&mut page.0, lies - within as u64)?;
        let bytes = within..within + len;
        page.0.copy_within(bytes, offset);
        Ok(())
    }

    fn near_words(&self, place: u32) -> &[AtomicU64] {
        let words = self.sizes.kept_bytes / size_of::<u64>();
        &self.near[place as usize * words..][..words]
    }

    /// One more page in the block, once nobody takes its table away.
    fn enter_block(&self, block: usize) {
        let word = &self.blocks[block];
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen & BLOCK_LEAVES != 0 {
                std::thread::sleep(LOOKS_AGAIN);
                continue;
            }
            let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
            let entered = word.compare_exchange_weak(seen, seen + 1, done, not);
            if entered.is_ok() {
                return;
            }
        }
    }

    /// Takes pages away, with their tables where they are alone in their block.
    fn evict(&self) -> std::io::Result<()> {
        let mut batch = [0; BATCH_PAGES];
        let count = self.take(&mut batch);
        let batch = &batch[..count];
        let held = match self.keeps_writes.load(Ordering::Acquire) {
            true => Some(self.hold(batch)?),
            false => None,
        };
        let mut ranges = [Range::NONE; BATCH_PAGES];
        for (page, range) in batch.iter().zip(&mut ranges) {
            *range = self.leave(*page);
        }
        // SAFETY: pages of the bed that are this thread's to take away, and blocks in which there is no other.
        unsafe { self.bed.unmapper().unmap(&ranges[..count]) }?;
        if let Some(held) = held {
            self.store(batch, held)?;
        }
        for (page, range) in batch.iter().zip(&ranges) {
            self.pages[*page].fetch_and(STAYS, Ordering::AcqRel);
            let block = &self.blocks[page / BLOCK_PAGES];
            match range.len {
                BLOCK_BYTES => block.store(0, Ordering::Release),
                _ => {
                    block.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        self.there.fetch_sub(count, Ordering::AcqRel);
        Ok(())
    }

    /// Makes a batch leave, from the hand on, once round at most: how many.
    fn take(&self, batch: &mut [usize; BATCH_PAGES]) -> usize {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut count, mut gone) = (0, 0);
        while count < BATCH_PAGES && gone < self.pages.len() {
            let block = *hand / BLOCK_PAGES;
            let end = ((block + 1) * BLOCK_PAGES).min(self.pages.len());
            if self.blocks[block].load(Ordering::Relaxed) != 0 {
                let pages = (*hand..end).filter(|at| self.begin_leave(*at));
                for page in pages.take(BATCH_PAGES - count) {
                    batch[count] = page;
                    count += 1;
                }
            }
            // A block in which the batch became full goes on behind the last of it.
            let next = match count {
                BATCH_PAGES => batch[count - 1] + 1,
                _ => end,
            };
            gone += next - *hand;
            *hand = next % self.pages.len();
        }
        count
    }

    fn begin_leave(&self, page: usize) -> bool {
        let state = &self.pages[page];
        let seen = state.load(Ordering::Relaxed);
        let leaves = seen & (STATE | STAYS) == THERE;
        let next = LEAVING;
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        leaves && state.compare_exchange(seen, next, done, not).is_ok()
    }

    /// Lets a pipe hold what is kept of each page of a batch.
    fn hold(&self, batch: &[usize]) -> std::io::Result<Holds> {
        let mut free = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = free.pop();
        drop(free);
        let held = match spare {
            Some(held) => held,
            None => Holds {
                pipe: HeldPages::new(BATCH_PAGES).ok_or(std::io::ErrorKind::OutOfMemory)?,
                bytes: vec![0; BATCH_PAGES * self.sizes.kept_bytes],
            },
        };
        let mut spans = [Range::NONE; BATCH_PAGES];
        for (page, span) in batch.iter().zip(&mut spans) {
            *span = Range {
                start: self.base + page * PAGE_BYTES + self.offset(*page),
                len: self.sizes.kept_bytes,
            };
        }
        // SAFETY: pages of the bed that this thread takes away; what is written until then is read.
        match unsafe { held.pipe.hold(&spans[..batch.len()]) }? {
            true => Ok(held),
            false => Err(std::io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Keeps what is held of pages that are gone.
    fn store(&self, batch: &[usize], mut held: Holds) -> std::io::Result<()> {
        let kept = self.sizes.kept_bytes;
        let mut all = [Range {
            start: held.bytes.as_mut_ptr() as usize,
            len: batch.len() * kept,
        }];
        // SAFETY: the room that came with the pipe.
        unsafe { held.pipe.read(&mut all) }?;
        for (page, object) in batch.iter().zip(held.bytes.chunks_exact(kept)) {
            match self.places[*page].load(Ordering::Acquire) {
                place if place & IN_LOG == 0 => {
                    let words = object.as_chunks::<{ size_of::<u64>() }>().0;
                    for (to, word) in self.near_words(place).iter().zip(words) {
                        to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                    }
                }
                _ => {
                    let slot = self.log.append(&self.file, object)?;
                    self.places[*page].store(IN_LOG | slot, Ordering::Release);
                }
            }
        }
        let mut free = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(held);
        Ok(())
    }

    /// What of a page that leaves is to be taken.
    fn leave(&self, at: usize) -> Range {
        let address = self.base + at * PAGE_BYTES;
        let block = &self.blocks[at / BLOCK_PAGES];
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        let alone = block.compare_exchange(1, BLOCK_LEAVES, done, not).is_ok();
        match alone {
            true => Range {
                start: address & !(BLOCK_BYTES - 1),
                len: BLOCK_BYTES,
            },
            false => Range {
                start: address,
                len: PAGE_BYTES,
            },
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    }
}
