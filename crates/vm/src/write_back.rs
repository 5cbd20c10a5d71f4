//! Changed pages given to their backing while they stay where they are: what a sync needs. Where devices write to memory, one that is pinned stays a changed one.
//!
//! Promises: what was written to a page before the call is with the backing after it, whoever gave it; a page is given as it was at one moment.
//! Never: holds a page while it waits for another, or takes one away.

use crate::StoreError;
use crate::aside::{Lies, Stage};
use crate::backing::{Changed, Page};
use crate::block::BLOCK_PAGES;
use crate::error::VmError;
use crate::extent::RegionCore;
use crate::inside::Inside;
use crate::page::{Phase, Seen, Then};
use crate::parts::Core;
use crate::region::Region;
use crate::space::{Pinned, page_number, place};
use crate::stats::Counters;
use std::ops;

/// Pages given to a backing in one call.
const BATCH_PAGES_MAX: usize = 64;

/// Where a held page lies, and the address that it is stored from.
type Away = (Lies, usize);

/// A page that the caller holds as leaving.
#[derive(Clone, Copy)]
struct Held {
    page: u64,
    seen: Seen,
}

impl Region {
    /// Gives the changed pages of a range to the backing; they stay in DRAM, and are clean then. What other threads write meanwhile may be
    /// part of it or not.
    ///
    /// Errors: pages that the region does not have; the backing took not all of them, the rest is changed still; a fork.
    pub fn write_back(&self, pages: ops::Range<u64>) -> Result<(), VmError> {
        self.check(&pages)?;
        let core = self.memory_core();
        let inside = Inside::enter(core)?;
        let done = core.write_back(self.inner(), pages);
        drop(inside);
        Ok(done?)
    }
}

impl Core {
    pub fn write_back(
        &self,
        region: &RegionCore,
        pages: ops::Range<u64>,
    ) -> Result<(), StoreError> {
        let (mut at, end) = (
            region.first_page + pages.start,
            region.first_page + pages.end,
        );
        while at < end {
            let (from, last) = (place(at).0, place(end - 1).0);
            let Some(block) = self.space.next_live(from, last + 1) else {
                return Ok(());
            };
            let first = (block * BLOCK_PAGES) as u64;
            let next = first + BLOCK_PAGES as u64;
            if let Some(pinned) = self.space.pin_filled(block) {
                let done = self.write_back_block(region, pinned, at.max(first)..end.min(next));
                self.unpin(pinned, 1);
                done?;
            }
            at = next;
        }
        Ok(())
    }

    fn write_back_block(
        &self,
        region: &RegionCore,
        pinned: Pinned,
        pages: ops::Range<u64>,
    ) -> Result<(), StoreError> {
        let record = self.space.record(pinned);
        let first = pages.start - pages.start % BLOCK_PAGES as u64;
        let mut held = [None; BATCH_PAGES_MAX];
        let mut len = 0;
        for at in record.noted((pages.start - first) as usize) {
            let page = first + at as u64;
            if page >= pages.end {
                break;
            }
            let taken = loop {
                let ticket = self.space.rooms.ticket(page_number(page));
                let seen = record.pages[at].look();
                match seen.phase() {
                    Phase::Absent | Phase::Clean => break None,
                    Phase::Dirty if record.pages[at].begin_leave(seen) => break Some(seen),
                    Phase::Dirty => {}
                    // An evictor has it, or it is on its way in and was changed before.
                    _ if len > 0 => {
                        self.write_back_held(region, pinned, &held[..len])?;
                        len = 0;
                    }
                    _ if record.pages[at].await_change(seen) => self.space.rooms.wait(&ticket),
                    _ => {}
                }
            };
            let Some(seen) = taken else { continue };
            held[len] = Some(Held { page, seen });
            len += 1;
            if len == BATCH_PAGES_MAX {
                self.write_back_held(region, pinned, &held[..len])?;
                len = 0;
            }
        }
        self.write_back_held(region, pinned, &held[..len])
    }

    /// Gives pages of one block to the backing, and ends their leaving.
    fn write_back_held(
        &self,
        region: &RegionCore,
        pinned: Pinned,
        held: &[Option<Held>],
    ) -> Result<(), StoreError> {
        let (Some(Some(first)), Some(Some(last))) = (held.first(), held.last()) else {
            return Ok(());
        };
        self.calm.end();
        self.protect_range(first.page, last.page);
        // Asked after they were protected: see there.
        let spare = self.aside.is_on().then(|| self.aside.spare());
        let mut away = [(Lies::Here, 0); BATCH_PAGES_MAX];
        for (away, held) in away.iter_mut().zip(held.iter().flatten()) {
            away.1 = self.space.address_of(held.page);
        }
        if let Some(stage) = &spare {
            self.put_held_aside(**stage, held, &mut away);
        }
        let (stored, failed) = self.store_held(region, held, &away);
        let mut clean = 0;
        for (nth, (held, away)) in held.iter().flatten().zip(&away).enumerate() {
            let is_clean = self.is_back(held.page, *away, nth < stored);
            clean += usize::from(is_clean);
            let (_, at) = place(held.page);
            let heat = held.seen.heat();
            let then = match is_clean {
                true => Then::Clean { heat },
                false => Then::Dirty {
                    heat,
                    unsure: held.seen.unsure(),
                },
            };
            if self.space.record(pinned).pages[at].end(Phase::LeavingDirty, then) {
                self.space.rooms.wake(page_number(held.page));
            }
        }
        self.undirty(true, clean);
        if let Some(stage) = &spare {
            self.drop_ranges(&[stage.slots(held.len())]);
        }
        failed.map_or(Ok(()), Err)
    }

    /// How many of the first the backing took, and why not all.
    fn store_held(
        &self,
        region: &RegionCore,
        held: &[Option<Held>],
        away: &[Away],
    ) -> (usize, Option<StoreError>) {
        let mut changed = [Changed::NONE; BATCH_PAGES_MAX];
        let pages = held.iter().flatten().zip(away);
        for (changed, (held, (_, from))) in changed.iter_mut().zip(pages) {
            *changed = Changed {
                page: held.page - region.first_page,
                // SAFETY: the page is there and write-protected, or on this thread's stage, and stays so while it is leaving, which only this
                // thread ends: so nobody writes to it, and it is mapped as long as this reference is used.
                bytes: unsafe { &*(*from as *const Page) },
                surely: !held.seen.unsure(),
            };
        }
        let mut stored = 0;
        let mut failed = None;
        while stored < held.len() && failed.is_none() {
            match region.backing.store(&changed[stored..held.len()]) {
                Ok(taken) => stored += taken,
                Err(error) => failed = Some(error),
            }
        }
        Counters::add(&self.counters.stored, stored as u64);
        (stored, failed)
    }

    /// Puts pages of one block aside, those in a row together, and copies of pinned ones.
    fn put_held_aside(&self, stage: Stage, held: &[Option<Held>], away: &mut [Away]) {
        let mut at = 0;
        while let Some(first) = held.get(at).copied().flatten() {
            let row = (first.page..).zip(held[at..].iter().flatten());
            let count = row.take_while(|(page, held)| held.page == *page).count();
            self.put_aside(stage, at, first.page, count, |nth, lies| {
                let slot = stage.slot(at + nth);
                let copied = || self.copy_aside(slot, first.page + nth as u64).is_ok();
                let (was, from) = &mut away[at + nth];
                *was = lies;
                if lies == Lies::Aside || lies == Lies::Pinned && copied() {
                    *from = slot;
                }
            });
            at += count;
        }
    }

    /// Puts a page back in its place if it is away. True: it is clean now.
    fn is_back(&self, page: u64, (lies, slot): Away, stored: bool) -> bool {
        match lies {
            Lies::Here => stored,
            Lies::Pinned => false,
            Lies::Aside => {
                let clean = stored && self.copy_back(slot, page, true).is_ok();
                if !clean {
                    self.put_back(slot, page);
                }
                clean
            }
        }
    }
}
