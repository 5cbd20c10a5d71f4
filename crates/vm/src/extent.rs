//! What a fault needs of a region: which pages are its own, what they are made of, and whether pages that are read are written to later.

use crate::backing::Backing;
use crate::policy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What a fault needs of a region.
pub(crate) struct RegionCore {
    pub first_page: u64,
    pub pages: u64,
    pub backing: Arc<dyn Backing>,
    pub sampler: Sampler,
}

impl RegionCore {
    pub fn contains(&self, page: u64) -> bool {
        page.wrapping_sub(self.first_page) < self.pages
    }

    /// How many of the first of these pages the backing does not have.
    pub fn absent(&self, pages: impl Iterator<Item = u64>) -> u64 {
        let mut pages = pages.take_while(|page| self.contains(*page)).peekable();
        let mut absent = 0;
        while pages.peek().is_some() {
            let (mut numbers, mut count) = ([0; 64], 0);
            for (number, page) in numbers.iter_mut().zip(pages.by_ref()) {
                *number = page - self.first_page;
                count += 1;
            }
            let run = self.backing.absent(&numbers[..count]).trailing_ones() as usize;
            absent += run.min(count) as u64;
            if run < count {
                break;
            }
        }
        absent
    }
}

/// Watches whether pages that are read are written to later.
#[derive(Default)]
pub(crate) struct Sampler {
    reads: AtomicU32,
    filled: AtomicU32,
    opened: AtomicU32,
    expects_writes: AtomicBool,
}

impl Sampler {
    /// Asked for each page filled by reading: whether it is made writable at once.
    pub fn writable_at_once(&self) -> bool {
        let expects = self.expects_writes.load(Ordering::Relaxed);
        let nth = self.reads.fetch_add(1, Ordering::Relaxed);
        if expects && !nth.is_multiple_of(policy::SAMPLE_EVERY) {
            return true;
        }
        if self.filled.fetch_add(1, Ordering::Relaxed) + 1 == policy::SAMPLE_FILLS {
            let opened = self.opened.swap(0, Ordering::Relaxed);
            let expects = policy::expects_writes(opened, policy::SAMPLE_FILLS);
            self.expects_writes.store(expects, Ordering::Relaxed);
            self.filled.store(0, Ordering::Relaxed);
        }
        false
    }

    /// A page that was not writable was written to.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }
}
