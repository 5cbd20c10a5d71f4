//! Objects on pages of their own whose faults the touching thread takes: the yardstick of OPP.
//!
//! A fault copies the object out of DRAM if it is one of those that are told to lie there, or reads the file's page that it is in; then the page is put in
//! place, and others are taken away, 128 at a time, when too many are there. Which objects lie in DRAM and which pages stay is told beforehand by
//! whoever knows how often each will be wanted: no policy has to find out, and no heat is kept.
//!
//! Pages are never protected, and nothing is written back: what was written to a page is lost when it leaves, so that a program that writes pays for
//! its faults and reads, and for nothing else.
//!
//! Promises: one at a time in a process. Never: used by the product.

use crate::backing::{PAGE_BYTES, Page};
use crate::block::{BLOCK_BYTES, BLOCK_PAGES};
use crate::measure::Bed;
use crate::memory::VmError;
use crate::signal::die;
use crate::sys::Range;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const BATCH_PAGES: usize = 128;
/// So many places within a page, so that objects do not share the same sets of a cache.
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
/// No place in DRAM.
const ON_FILE: u32 = u32::MAX;

/// How many objects of what size, and how many pages may be there beside those that stay.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Objects, each on a page.
    pub objects: usize,
    /// Bytes of an object; a divisor of 256.
    pub object_bytes: usize,
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
    places: Vec<u32>,
    near: Vec<AtomicU64>,
    passing: AtomicUsize,
    queue: Mutex<VecDeque<u32>>,
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
            places: vec![ON_FILE; sizes.objects],
            near: Vec::new(),
            passing: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::with_capacity(sizes.passing + BATCH_PAGES)),
            faults: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        });
        let words = sizes.object_bytes / size_of::<u64>();
        bare.near.reserve_exact(near.size_hint().0 * words);
        for (n, object) in near.enumerate() {
            bare.places[object as usize] = n as u32;
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

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Of these, those that read the file.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn offset(&self, object: usize) -> usize {
        object % PLACES * (PAGE_BYTES / PLACES)
    }

    fn fault(&self, address: usize) -> std::io::Result<()> {
        let at = (address - self.base) / PAGE_BYTES;
        let state = &self.pages[at];
        loop {
            let seen = state.load(Ordering::Acquire);
            let stays = seen & STAYS;
            let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
            let next = stays | FILLING;
            match seen & STATE {
                ABSENT if state.compare_exchange(seen, next, done, not).is_ok() => {
                    return self.fill(at, address, stays);
                }
                THERE => return Ok(()),
                _ => std::thread::sleep(LOOKS_AGAIN),
            }
        }
    }

    fn fill(&self, at: usize, address: usize, stays: u8) -> std::io::Result<()> {
        self.faults.fetch_add(1, Ordering::Relaxed);
        if stays == 0 && self.passing.fetch_add(1, Ordering::AcqRel) >= self.sizes.passing {
            self.evict()?;
        }
        let (mut page, offset) = (Page::ZERO, self.offset(at));
        let object = &mut page.0[offset..][..self.sizes.object_bytes];
        match self.near_words(at) {
            Some(words) => {
                let bytes = object.chunks_exact_mut(size_of::<u64>());
                for (to, word) in bytes.zip(words) {
                    to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                }
            }
            None => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let lies = at * self.sizes.object_bytes;
                let within = lies % PAGE_BYTES;
                self.file
                    .read_exact_at(&mut page.0, (lies - within) as u64)?;
                let bytes = within..within + self.sizes.object_bytes;
                page.0.copy_within(bytes, offset);
            }
        }
        self.enter_block(at / BLOCK_PAGES);
        self.bed.uffd().copy(address, &page, false)?;
        self.pages[at].store(stays | THERE, Ordering::Release);
        if stays == 0 {
            self.queue().push_back(at as u32);
        }
        Ok(())
    }

    fn near_words(&self, object: usize) -> Option<&[AtomicU64]> {
        let words = self.sizes.object_bytes / size_of::<u64>();
        match self.places[object] {
            ON_FILE => None,
            place => Some(&self.near[place as usize * words..][..words]),
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Takes the oldest of the pages that come and go, with their tables where they are alone in their block.
    fn evict(&self) -> std::io::Result<()> {
        let mut batch = [0; BATCH_PAGES];
        let mut count = 0;
        {
            let mut queue = self.queue();
            while let (true, Some(at)) = (count < BATCH_PAGES, queue.pop_front()) {
                batch[count] = at as usize;
                count += 1;
            }
        }
        let batch = &batch[..count];
        let mut ranges = [Range::NONE; BATCH_PAGES];
        for (at, range) in batch.iter().zip(&mut ranges) {
            *range = self.leave(*at);
        }
        // SAFETY: pages of the bed that are this thread's to take away, and blocks in which there is no other.
        unsafe { self.bed.unmapper().unmap(&ranges[..count]) }?;
        for (at, range) in batch.iter().zip(&ranges) {
            self.pages[*at].store(ABSENT, Ordering::Release);
            let block = &self.blocks[at / BLOCK_PAGES];
            match range.len {
                BLOCK_BYTES => block.store(0, Ordering::Release),
                _ => {
                    block.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        self.passing.fetch_sub(count, Ordering::AcqRel);
        Ok(())
    }

    /// Begins to take a page away, whose turn it is since nobody else has it: what is to be taken.
    fn leave(&self, at: usize) -> Range {
        let address = self.base + at * PAGE_BYTES;
        self.pages[at].store(LEAVING, Ordering::Release);
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
