//! Pages of a range made absent, with what they hold kept by their backing: what is done before nobody may read them any more.
//!
//! Promises: each page of the range was absent at some moment after the call began. Never: takes a page whose contents the backing has not got.

use crate::backing::{PAGE_BYTES, StoreError};
use crate::block::BLOCK_PAGES;
use crate::error::VmError;
use crate::extent::RegionCore;
use crate::inside::Inside;
use crate::page::{Phase, Then};
use crate::parts::Core;
use crate::region::Region;
use crate::space::{Pinned, page_number, place};
use crate::stats::Counters;
use crate::sys::Range;
use std::ops;
use std::time::Duration;

/// Ranges unmapped by one call.
const RANGES_MAX: usize = 64;
/// How often a page that a device has is looked at again, and how long it is left alone in between: ten seconds.
const PINNED_LOOKS_MAX: u32 = 10_000;
/// The first so many times it is looked at at once: another thread may have written to it.
const LOOKS_AT_ONCE: u32 = 3;
const PINNED_PAUSE: Duration = Duration::from_millis(1);

impl Region {
    /// Makes all pages of a range leave DRAM; changed ones are given to the backing first. Who touches one meanwhile brings it back.
    ///
    /// Errors: pages that the region does not have; the backing took not all of them; a device has one and does not let go (EBUSY); a fork.
    pub fn take_away(&self, pages: ops::Range<u64>) -> Result<(), VmError> {
        self.check(&pages)?;
        let core = self.memory_core();
        let inside = Inside::enter(core)?;
        let first = self.inner().first_page;
        let (mut at, end) = (first + pages.start, first + pages.end);
        while at < end {
            let (from, last) = (place(at).0, place(end - 1).0);
            let Some(block) = core.space.next_live(from, last + 1) else {
                break;
            };
            let start = (block * BLOCK_PAGES) as u64;
            let next = start + BLOCK_PAGES as u64;
            if let Some(pinned) = core.space.pin_filled(block) {
                let done = core.take_away(self.inner(), pinned, at.max(start)..end.min(next));
                core.unpin(pinned, 1);
                done?;
            }
            at = next;
        }
        drop(inside);
        Ok(())
    }
}

impl Core {
    fn take_away(
        &self,
        region: &RegionCore,
        pinned: Pinned,
        pages: ops::Range<u64>,
    ) -> Result<(), VmError> {
        let record = self.space.record(pinned);
        let first = pages.start - pages.start % BLOCK_PAGES as u64;
        let mut held = Leaving {
            ranges: [Range::NONE; RANGES_MAX],
            len: 0,
        };
        for at in record.noted((pages.start - first) as usize) {
            let page = first + at as u64;
            if page >= pages.end {
                break;
            }
            let mut looks = 0;
            loop {
                let ticket = self.space.rooms.ticket(page_number(page));
                let seen = record.pages[at].look();
                match seen.phase() {
                    Phase::Absent => break,
                    Phase::Clean if record.pages[at].begin_leave(seen) => {
                        held.add(self.space.address_of(page));
                        break;
                    }
                    Phase::Clean => {}
                    Phase::Dirty => {
                        self.end_held(pinned, &mut held);
                        let own = page - region.first_page;
                        self.write_back(region, own..own + 1)?;
                        looks += 1;
                        await_device(looks)?;
                    }
                    // Nothing is held while another thread is waited for.
                    _ if held.len > 0 => self.end_held(pinned, &mut held),
                    _ if record.pages[at].await_change(seen) => self.space.rooms.wait(&ticket),
                    _ => {}
                }
            }
            if held.len == RANGES_MAX {
                self.end_held(pinned, &mut held);
            }
        }
        self.end_held(pinned, &mut held);
        Ok(())
    }

    /// Unmaps pages of one block that are leaving, and ends that.
    fn end_held(&self, pinned: Pinned, held: &mut Leaving) {
        let ranges = &held.ranges[..std::mem::take(&mut held.len)];
        self.drop_ranges(ranges);
        let record = self.space.record(pinned);
        let mut left = 0;
        let addresses = ranges
            .iter()
            .flat_map(|range| (range.start..range.start + range.len).step_by(PAGE_BYTES));
        for page in addresses.filter_map(|address| self.space.page_at(address)) {
            let (_, at) = place(page);
            record.forget(at);
            left += 1;
            if record.pages[at].end(Phase::LeavingClean, Then::Absent) {
                self.space.rooms.wake(page_number(page));
            }
        }
        self.leave(left);
        Counters::add(&self.counters.evicted, left as u64);
        // The caller has the block pinned, so it is not released here.
        self.unpin(pinned, left as u32);
        if left > 0 {
            self.tell_waiting();
        }
    }
}

/// A page that was written back is changed again: somebody wrote to it, or a device has it, and lets go of it soon.
fn await_device(looks: u32) -> Result<(), StoreError> {
    if looks > PINNED_LOOKS_MAX {
        return Err(StoreError::Io { errno: libc::EBUSY });
    }
    if looks > LOOKS_AT_ONCE {
        std::thread::sleep(PINNED_PAUSE);
    }
    Ok(())
}

/// Pages of one block that the caller holds as leaving, all of them clean.
struct Leaving {
    ranges: [Range; RANGES_MAX],
    len: usize,
}

impl Leaving {
    fn add(&mut self, start: usize) {
        if let Some(last) = self.ranges[..self.len].last_mut()
            && last.start + last.len == start
        {
            last.len += PAGE_BYTES;
            return;
        }
        self.ranges[self.len] = Range {
            start,
            len: PAGE_BYTES,
        };
        self.len += 1;
    }
}
