//! What memory whose faults handler threads take can do at best: the yardstick beside which `terrace run` stands against swap.
//!
//! A file has each page at its place; a handler that has a fault reads that page and puts it in place, and takes others away, 64 at a time, when too many
//! are there. No directory, no log, no packing, and nothing is written back: what was written to a page is lost when it leaves.
//!
//! Promises: as many pages as asked for are there at most, and 64 for each handler. Never: used by the product.

use crate::backing::PAGE_BYTES;
use crate::error::VmError;
use crate::sys::{Range, SystemError, Uffd, Unmapper, map_addresses};
use rustix::event::epoll;
use rustix::mm::{Advice, madvise, munmap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use terrace_media::Buf;

/// Sleep of who meets a page that is leaving. Yielding would give up a slice of milliseconds (docs/adr/0052).
const LOOKS_AGAIN: std::time::Duration = std::time::Duration::from_micros(20);
const BATCH_PAGES: usize = 64;
/// How often a handler looks whether it is to end, ms.
const LOOK_MS: i64 = 100;

const ABSENT: u8 = 0;
const FILLING: u8 = 1;
const THERE: u8 = 2;
const LEAVING: u8 = 3;

/// Memory over a file.
pub struct Floor {
    shared: Arc<Shared>,
    handlers: Vec<JoinHandle<()>>,
}

struct Shared {
    base: usize,
    file: File,
    uffd: Uffd,
    unmapper: Unmapper,
    pages: Vec<AtomicU8>,
    resident: AtomicUsize,
    resident_max: usize,
    hand: Mutex<usize>,
    reads: AtomicU64,
    stop: AtomicBool,
}

impl Floor {
    /// `pages` pages, at most `resident_max` of them in DRAM, each at its place in `file`, which is read directly (O_DIRECT) or not as it was opened.
    pub fn new(
        file: File,
        pages: usize,
        resident_max: usize,
        handlers: usize,
    ) -> Result<Floor, VmError> {
        let len = pages * PAGE_BYTES;
        let base = map_addresses(len)? as usize;
        let shared = Arc::new(Shared {
            base,
            file,
            uffd: Uffd::new(false)?,
            unmapper: Unmapper::new()?,
            pages: (0..pages).map(|_| AtomicU8::new(ABSENT)).collect(),
            resident: AtomicUsize::new(0),
            resident_max,
            hand: Mutex::new(0),
            reads: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let call = SystemError::call("making memory over a file");
        // SAFETY: our own mapping.
        unsafe { madvise(base as *mut _, len, Advice::LinuxNoHugepage) }.map_err(&call)?;
        shared.uffd.register(base, len)?;
        let mut floor = Floor {
            shared,
            handlers: Vec::new(),
        };
        for _ in 0..handlers {
            let (shared, bell) = (floor.shared.clone(), floor.shared.bell().map_err(&call)?);
            let handler = std::thread::spawn(move || shared.serve(&bell));
            floor.handlers.push(handler);
        }
        Ok(floor)
    }

    /// Where the memory begins; it is there as long as this is.
    pub fn base(&self) -> *mut u8 {
        self.shared.base as *mut u8
    }

    /// Pages that were read so far.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for handler in self.handlers.drain(..) {
            let _ = handler.join();
        }
        let len = self.shared.pages.len() * PAGE_BYTES;
        // SAFETY: our own mapping, which nobody may use any more.
        let _ = unsafe { munmap(self.shared.base as *mut _, len) };
    }
}

impl Shared {
    /// Wakes one handler for a fault, as the product's do.
    fn bell(&self) -> Result<OwnedFd, rustix::io::Errno> {
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let one = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&bell, &self.uffd, epoll::EventData::new_u64(0), one)?;
        Ok(bell)
    }

    fn serve(&self, bell: &OwnedFd) {
        let mut page = Buf::zeroed(PAGE_BYTES);
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 1];
        let look = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_MS * 1_000_000,
        };
        while !self.stop.load(Ordering::Acquire) {
            let _ = epoll::wait(bell, &mut events, Some(&look));
            while let Ok(Some(event)) = self.uffd.next() {
                if let Err(error) = self.put(event.address & !(PAGE_BYTES - 1), &mut page) {
                    crate::say::die(format_args!("a bare fault failed: {error}"));
                }
            }
        }
    }

    fn put(&self, address: usize, page: &mut Buf) -> std::io::Result<()> {
        let at = (address - self.base) / PAGE_BYTES;
        let state = &self.pages[at];
        loop {
            match state.compare_exchange(ABSENT, FILLING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(LEAVING) => std::thread::sleep(LOOKS_AGAIN),
                // Who fills it wakes all that wait for it.
                Err(FILLING) => return Ok(()),
                Err(_) => return Ok(self.uffd.wake(address)?),
            }
        }
        if self.resident.fetch_add(1, Ordering::AcqRel) >= self.resident_max {
            self.evict()?;
        }
        self.file.read_exact_at(page, (at * PAGE_BYTES) as u64)?;
        self.uffd
            .copy_from(address, page.as_ptr() as usize, false)?;
        state.store(THERE, Ordering::Release);
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the next pages that are there, by address.
    fn evict(&self) -> std::io::Result<()> {
        let mut ranges = [Range::NONE; BATCH_PAGES];
        let mut count = 0;
        {
            let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..self.pages.len() {
                let at = *hand;
                *hand = (at + 1) % self.pages.len();
                let leaves = |state: &AtomicU8| {
                    let (done, seen) = (Ordering::AcqRel, Ordering::Relaxed);
                    state.compare_exchange(THERE, LEAVING, done, seen).is_ok()
                };
                if leaves(&self.pages[at]) {
                    ranges[count] = Range {
                        start: self.base + at * PAGE_BYTES,
                        len: PAGE_BYTES,
                    };
                    count += 1;
                    if count == BATCH_PAGES {
                        break;
                    }
                }
            }
        }
        // SAFETY: pages of our own, which are this thread's to take away.
        unsafe { self.unmapper.unmap(&ranges[..count]) }?;
        for range in &ranges[..count] {
            let at = (range.start - self.base) / PAGE_BYTES;
            self.pages[at].store(ABSENT, Ordering::Release);
        }
        self.resident.fetch_sub(count, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_those_of_the_file() {
        const PAGES: usize = 1024;
        let file = tempfile::tempfile().unwrap();
        for page in 0..PAGES {
            let contents = [(page % 251) as u8; PAGE_BYTES];
            file.write_all_at(&contents, (page * PAGE_BYTES) as u64)
                .unwrap();
        }
        let floor = Floor::new(file, PAGES, 128, 2).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let base = floor.base() as usize;
                scope.spawn(move || {
                    for n in 0..4000 {
                        let page = (n * 389 + thread * 7) % PAGES;
                        // SAFETY: within the memory, which is there until the threads have ended.
                        let byte = unsafe {
                            ((base + page * PAGE_BYTES + n % PAGE_BYTES) as *const u8)
                                .read_volatile()
                        };
                        assert_eq!(byte, (page % 251) as u8);
                    }
                });
            }
        });
        assert!(floor.reads() > PAGES as u64);
    }
}
