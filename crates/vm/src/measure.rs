//! What the kernel's part of a fault costs, without anything of this crate's around it: the yardstick of `terrace bench memory`.
//!
//! A bare cycle touches pages that are not there; a signal handler that does nothing else puts a prepared page in place; and every so
//! many pages all are taken away again by one call (pages that were written to are write-protected first, as they must be so that
//! nothing is lost while they are copied). The calls are the ones a [`Memory`](crate::Memory) makes, with the same ranges.
//!
//! Promises: measures in the calling thread, one at a time in a process. Never: used by the product.

use crate::backing::{PAGE_BYTES, Page};
use crate::block::{BLOCK_BYTES, BLOCK_PAGES};
use crate::error::VmError;
use crate::sys::{Range, SystemError, Uffd, Unmapper, map_addresses};
use rustix::mm::{Advice, madvise, munmap};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How pages lie and how they are used.
#[derive(Debug, Clone, Copy)]
pub struct Cycle {
    /// Pages touched.
    pub pages: usize,
    /// Pages that are there at a time: the oldest go when more are touched.
    pub resident: usize,
    /// Pages taken away together, at most 1,024.
    pub batch: usize,
    /// How far apart they lie, in pages; with 512 or more each has a page table of its own, which is given back with it.
    pub stride_pages: usize,
    /// Whether they are written to.
    pub write: bool,
}

/// Time that a cycle took, once as many pages were there as may be.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Pages that were touched, and as many taken away.
    pub pages: usize,
    /// Touching.
    pub fault: Duration,
    /// Protecting and taking away.
    pub evict: Duration,
}

static UFFD: AtomicPtr<Uffd> = AtomicPtr::new(std::ptr::null_mut());
static PROTECTED: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);
static PREPARED: Page = Page([1; PAGE_BYTES]);

extern "C" fn put_page(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo; `bare` keeps the userfaultfd while this handler is installed.
    let (address, uffd) = unsafe { ((*info).si_addr() as usize, &*UFFD.load(Ordering::Acquire)) };
    let protected = PROTECTED.load(Ordering::Relaxed) != 0;
    if uffd
        .copy(address & !(PAGE_BYTES - 1), &PREPARED, protected)
        .is_err()
    {
        FAILED.fetch_add(1, Ordering::Relaxed);
        crate::say::die(format_args!("a bare copy failed at {address:#x}"));
    }
}

/// What handles a fault.
pub(crate) type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Addresses of our own whose faults come to a handler, and the one that was there before.
pub(crate) struct Bed {
    base: usize,
    len: usize,
    uffd: Box<Uffd>,
    unmapper: Unmapper,
    before: libc::sigaction,
    _one: MutexGuard<'static, ()>,
}

/// One bed at a time: there is one handler in a process.
static ONE: Mutex<()> = Mutex::new(());

impl Bed {
    pub fn new(len: usize, handler: Handler) -> Result<Bed, VmError> {
        let one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        let uffd = Box::new(Uffd::new(true)?);
        let unmapper = Unmapper::new()?;
        let len = len.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
        let base = map_addresses(len)? as usize;
        // SAFETY: our own mapping.
        unsafe { madvise(base as *mut _, len, Advice::LinuxNoHugepage) }
            .map_err(SystemError::call("advising on reserved addresses"))?;
        uffd.register(base, len)?;
        let mut before = MaybeUninit::uninit();
        // SAFETY: a structure of integers; the handler has the type that SA_SIGINFO asks for.
        let before = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            action.sa_mask = crate::inside::deferred();
            libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr());
            before.assume_init()
        };
        Ok(Bed {
            base,
            len,
            uffd,
            unmapper,
            before,
            _one: one,
        })
    }

    /// Where the addresses begin; a block more than was asked for is there.
    pub fn base(&self) -> usize {
        self.base
    }

    pub fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    pub fn unmapper(&self) -> &Unmapper {
        &self.unmapper
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // SAFETY: what was installed before, and our own mapping.
        unsafe {
            libc::sigaction(libc::SIGBUS, &self.before, std::ptr::null_mut());
            let _ = munmap(self.base as *mut _, self.len);
        }
    }
}

/// Runs a bare cycle.
pub fn bare(cycle: &Cycle) -> Result<Times, VmError> {
    let stride = cycle.stride_pages * PAGE_BYTES;
    let bed = Bed::new(cycle.pages * stride, put_page)?;
    let uffd = std::ptr::from_ref(&*bed.uffd).cast_mut();
    UFFD.store(uffd, Ordering::Release);
    let base = bed.base.next_multiple_of(BLOCK_BYTES);
    PROTECTED.store(usize::from(!cycle.write), Ordering::Relaxed);
    let mut times = Times {
        pages: 0,
        fault: Duration::ZERO,
        evict: Duration::ZERO,
    };
    let mut ranges = Vec::with_capacity(cycle.batch);
    let mut at = 0;
    while at < cycle.pages {
        let batch = at..(at + cycle.batch).min(cycle.pages);
        let began = Instant::now();
        for page in batch.clone() {
            let pointer = (base + page * stride) as *mut u8;
            // SAFETY: within the bed.
            unsafe {
                match cycle.write {
                    true => pointer.write_volatile(2),
                    false => assert_eq!(pointer.read_volatile(), 1),
                }
            }
        }
        let touched = Instant::now();
        // As many go as came.
        if let Some(oldest) = batch.start.checked_sub(cycle.resident) {
            let pages = oldest..oldest + batch.len();
            evict(&bed, cycle, base, pages, &mut ranges)?;
            times.pages += batch.len();
            times.fault += touched - began;
            times.evict += touched.elapsed();
        }
        at = batch.end;
    }
    Ok(times)
}

/// Takes pages away.
fn evict(
    bed: &Bed,
    cycle: &Cycle,
    base: usize,
    pages: std::ops::Range<usize>,
    ranges: &mut Vec<Range>,
) -> Result<(), VmError> {
    let stride = cycle.stride_pages * PAGE_BYTES;
    let call = SystemError::call("a bare eviction");
    ranges.clear();
    for page in pages.clone() {
        let start = base + page * stride;
        match ranges.last_mut() {
            _ if cycle.stride_pages >= BLOCK_PAGES => ranges.push(Range {
                start: start & !(BLOCK_BYTES - 1),
                len: BLOCK_BYTES,
            }),
            Some(last) if last.start + last.len == start => last.len += PAGE_BYTES,
            _ => ranges.push(Range {
                start,
                len: PAGE_BYTES,
            }),
        }
    }
    if cycle.write {
        let len = (pages.len() - 1) * stride + PAGE_BYTES;
        let start = base + pages.start * stride;
        bed.uffd.protect(start, len, true).map_err(&call)?;
    }
    // SAFETY: pages of the bed, which nobody needs.
    unsafe { bed.unmapper.unmap(ranges) }.map_err(&call)?;
    Ok(())
}
