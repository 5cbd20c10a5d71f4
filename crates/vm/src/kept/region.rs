//! One named region that is open.
//!
//! Promises: a sync is all or nothing, and an error leaves everything as it was. Never: outlives its addresses: they are the pool's, and the
//! region has the same the next time.

use super::catalogue::Record;
use super::error::{RegionError, out_of_bounds};
use super::shared::{Counted, Shared, pages_of};
use crate::error::VmError;
use crate::inside::Inside;
use crate::region::Region;
use crate::store::{Named, ObjectError};
use crate::{PAGE_BYTES, StoreError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use terrace_pool::Mutex;

/// Longest wait for others before a sync's pages are written back.
const WRITE_BACK_WAIT_MAX: Duration = Duration::from_secs(30);
/// Ranges of one sync.
pub const SYNC_RANGES_MAX: usize = 4096;

/// Durable memory. See [`super::Regions`].
///
/// Dropping it closes it: what was not synced is gone then.
pub struct NamedRegion {
    shared: Arc<Shared>,
    number: u16,
    /// None only while it is dropped, this one first.
    region: Option<Region>,
    named: Option<Arc<Named>>,
    counted: Counted,
    /// One sync at a time: the others' write-backs would be refused meanwhile.
    syncing: Mutex<()>,
    /// One that makes it longer at a time.
    growing: Mutex<()>,
}

impl NamedRegion {
    pub(super) fn open(
        shared: &Arc<Shared>,
        number: u16,
        record: &Record,
        counted: Counted,
    ) -> Result<NamedRegion, RegionError> {
        let store = shared.store();
        let named = Arc::new(Named::open(store.clone(), number, record.pages_max)?);
        let memory = shared.heap.memory();
        let slot = record.first_slot as usize;
        let region = memory.region_at(slot, record.pages_max, named.clone())?;
        Ok(NamedRegion {
            shared: shared.clone(),
            number,
            region: Some(region),
            named: Some(named),
            counted,
            syncing: Mutex::new(()),
            growing: Mutex::new(()),
        })
    }

    fn region(&self) -> &Region {
        self.region.as_ref().expect("there until it is dropped")
    }

    fn named(&self) -> &Named {
        self.named.as_ref().expect("there until it is dropped")
    }

    /// Where it begins, now and whenever it is open. Valid for reads and writes of [`NamedRegion::bytes`] as long as it is.
    pub fn base(&self) -> *mut u8 {
        self.region().base()
    }

    /// Its length, in whole pages.
    pub fn bytes(&self) -> usize {
        self.named().pages() as usize * PAGE_BYTES
    }

    /// What it can grow to.
    pub fn bytes_max(&self) -> usize {
        self.region().bytes()
    }

    /// The 8 bytes at `at` times 8, as an atomic.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        let bytes = self.bytes();
        assert!(at < bytes / 8, "word {at} of a region of {bytes} bytes");
        self.region().word(at)
    }

    /// Its root: the offset of a byte, as it was set last.
    pub fn root(&self) -> Option<usize> {
        self.named().root().map(|root| root as usize)
    }

    /// Sets its root; kept from the next sync on.
    pub fn set_root(&self, root: Option<usize>) -> Result<(), RegionError> {
        let bytes = self.bytes();
        if let Some(root) = root.filter(|root| *root >= bytes) {
            return Err(RegionError::Bounds {
                what: "the root of a region",
                asked: root as u64,
                allowed: format!("0 to {}", bytes - 1),
            });
        }
        let _inside = Inside::enter(self.region().memory_core())?;
        self.named().set_root(root.map(|root| root as u64));
        Ok(())
    }

    /// Makes it `bytes` long, at least as long as it is; what comes is zeros. Kept from the next sync on.
    pub fn grow(&self, bytes: usize) -> Result<(), RegionError> {
        self.shared.store().here()?;
        let _one = self.growing.lock();
        let _inside = Inside::enter(self.region().memory_core())?;
        let (have, most) = (self.bytes(), self.bytes_max());
        if bytes < have || bytes > most {
            return Err(RegionError::Bounds {
                what: "bytes of a region",
                asked: bytes as u64,
                allowed: format!("{have} to {most}"),
            });
        }
        let shared = &self.shared;
        let pages = pages_of(bytes as u64);
        let mut held = shared.held.lock();
        let mut record = held.catalogue.records[&self.number].clone();
        let before = record.pages;
        if pages > before {
            shared.promise(before..pages)?;
            let counted = self.counted.grow(before..pages);
            counted.inspect_err(|_| shared.unpromise(before..pages))?;
            record.pages = pages;
            if let Err(e) = held.catalogue.put(shared.store(), self.number, record) {
                self.counted.shrink(before..pages);
                shared.unpromise(before..pages);
                return Err(e.into());
            }
        }
        // A sync of this one is waited for from here on: all others go on.
        drop(held);
        self.named().grow(pages)?;
        // The kernel may have been refused there when it was too short.
        self.region().renew_all((have / PAGE_BYTES) as u64..pages)?;
        Ok(())
    }

    /// Makes everything that was written to these ranges of bytes durable, at once or not at all, with the region's length and root. Whole pages
    /// are synced; what other threads write into them meanwhile may be part of it or not. All other pages stay as at the sync before.
    ///
    /// Errors: more ranges than [`SYNC_RANGES_MAX`], or one that the region does not have; too many pages outside of them that were changed and have
    /// left DRAM ([`crate::store::SYNC_OUTSIDE_PAGES_MAX`]); no room, or the device failed or is late. Nothing was synced then, and all is as before; but where the device failed or is
    /// late a crash before the next sync, or before the region is closed, may leave this one done, as a whole.
    pub fn sync(&self, ranges: &[Range<usize>]) -> Result<(), RegionError> {
        if ranges.len() > SYNC_RANGES_MAX {
            return Err(out_of_bounds(
                "ranges of a sync",
                ranges.len() as u64,
                SYNC_RANGES_MAX as u64,
            ));
        }
        let bytes = self.bytes();
        let pages =
            ranges.iter().map(
                |range| match range.start <= range.end && range.end <= bytes {
                    // No byte is on no page.
                    true if range.is_empty() => Ok(0..0),
                    true => Ok((range.start / PAGE_BYTES) as u64..pages_of(range.end as u64)),
                    false => Err(RegionError::Bounds {
                        what: "a byte of the region",
                        asked: range.start.max(range.end) as u64,
                        allowed: format!("0 to {bytes}, start before end,"),
                    }),
                },
            );
        let pages = pages.collect::<Result<Vec<Range<u64>>, RegionError>>()?;
        self.shared.store().here()?;
        let _one = self.syncing.lock();
        let inside = Inside::enter(self.region().memory_core())?;
        let until = Instant::now() + WRITE_BACK_WAIT_MAX;
        for range in &pages {
            self.write_back(range, until)?;
        }
        self.named().sync(&pages)?;
        drop(inside);
        Ok(())
    }

    fn write_back(&self, pages: &Range<u64>, until: Instant) -> Result<(), RegionError> {
        loop {
            match self.region().write_back(pages.clone()) {
                // Who has what is known of the region (to set its root, say) has it for a moment.
                Err(VmError::Store(StoreError::Syncing)) if Instant::now() < until => {}
                Err(VmError::Store(StoreError::Syncing)) => {
                    let waited_s = WRITE_BACK_WAIT_MAX.as_secs();
                    return Err(ObjectError::Late { waited_s }.into());
                }
                // Of a page that could not be stored it is not known why.
                Err(VmError::Store(_)) if self.shared.store().failure().is_some() => {
                    return Err(ObjectError::ReadOnly.into());
                }
                done => return Ok(done?),
            }
        }
    }

    /// The same of everything.
    pub fn sync_all(&self) -> Result<(), RegionError> {
        self.sync(std::slice::from_ref(&(0..self.bytes())))
    }
}

impl Drop for NamedRegion {
    fn drop(&mut self) {
        if self.region().memory_core().check_not_forked().is_err() {
            // All of it is the parent's.
            std::mem::forget((self.region.take(), self.named.take()));
            return;
        }
        // First what shows it, so that nothing is written back to it any more.
        self.region = None;
        self.named = None;
        self.shared.held.lock().open.remove(&self.number);
    }
}
