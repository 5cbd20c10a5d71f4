//! Pages taken away again, in batches.
//!
//! A hand goes round over all addresses and takes what it meets, except clean pages that came back soon after they left (`ghost`), each of which leaves in one of several rounds only:
//! who was touched since it came cannot be known without making every touch a fault, and without it no order of eviction beats
//! another (for independent accesses FIFO and random replacement hit equally often). In the order of addresses, though, pages to be protected lie in few ranges, and each range costs a flush of the
//! processors' caches of translations; and whole blocks empty together, so that their page tables go.
//!
//! A batch: take (each page is *leaving* now, nobody else changes it), let a pipe hold the dirty ones (`capture`), unmap all, give to their backing what the pipe has, end. Of a program that does not
//! know this library, or where there is no such pipe: protect the dirty ones, give them to their backing straight from where they lie, unmap all, end. Where devices write to memory, dirty ones are put
//! `aside` instead, and stored from there.
//!
//! Promises: a page is gone only when its backing has what was written to it; what could not be stored stays, dirty. Never:
//! allocates, or holds a lock while the backing works.

use crate::aside::Lies;
use crate::backing::{Changed, PAGE_BYTES, Page, StoreError};
use crate::block::{BLOCK_BYTES, BLOCK_PAGES};
use crate::ghost::HEAT_MAX;
use crate::page::{Phase, Then};
use crate::parts::Core;
use crate::policy::{self, BATCH_PAGES_MAX};
use crate::say::die;
use crate::space::{Pinned, page_number, place};
use crate::stats::Counters;
use crate::sys::{Going, Range, now_ms};
use crate::victims::{Group, Victim, Workspace};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Instant;

/// Pages given to a backing in one call.
const STORE_PAGES_MAX: usize = 64;
/// After a failure to write back, dirty pages are left alone for this long.
const STORE_AGAIN_MS: u64 = 20;
/// So long after a sync was in its way it is taken to be so still: all threads that evict may be about to find out.
const SYNC_SEEN_MS: u64 = 1_000;
/// Rounds of [`Core::shrink_to`] in which nothing could be evicted: a second.
const IDLE_MAX: u32 = 50;
/// Batches one after the other of which all pages are pinned, before anyone waits: 8 MiB, or the whole buffer where that is less.
const PINNED_BATCHES_MAX: u32 = 16;
/// Rounds of the hand in one batch: within them the hottest page leaves.
const ROUNDS_MAX: u64 = policy::rounds(HEAT_MAX) + 1;

/// What the hand takes.
#[derive(Clone, Copy)]
struct Look {
    with_dirty: bool,
    round: u64,
    /// Live blocks it came by in this batch.
    passed: u64,
}

/// What an eviction came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evicted {
    pub pages: usize,
    pub dirty: usize,
}

impl Core {
    /// Evicts up to `want` pages. None: as many threads evict already as can.
    pub fn evict(&self, want: usize) -> Option<Evicted> {
        let mut work = self.workspaces.iter().find_map(|work| work.try_lock())?;
        let began = Instant::now();
        let mut evicted = Evicted::default();
        // Where all of a batch are pinned, others may not be.
        for _ in 0..PINNED_BATCHES_MAX {
            evicted = self.evict_batch(&mut work, want.min(BATCH_PAGES_MAX));
            if evicted.pages > 0 || work.pinned == 0 {
                break;
            }
        }
        drop(work);
        let ns = began.elapsed().as_nanos() as u64;
        Counters::add(&self.counters.evict_ns, ns);
        if evicted.pages > 0 {
            self.tell_waiting();
        }
        Some(evicted)
    }

    /// Wakes who waits for room, after there is some.
    pub fn tell_waiting(&self) {
        // Whoever waits looked once more after it was counted: it has seen what was done before this, or is seen here.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.freed.wake(0);
        }
    }

    /// Whether there is room for fewer pages than `some`.
    fn has_little_room(&self, some: usize) -> bool {
        let max = self.pages_now();
        let is_near = |pages: &AtomicUsize, max| pages.load(Ordering::Relaxed) + some > max;
        is_near(&self.resident, max) || is_near(&self.dirty, policy::dirty_pages_max(max))
    }

    /// Whether there is room for a page that comes, or for one more dirty one.
    pub fn has_room(&self, for_dirty: bool) -> bool {
        let max = self.pages_now();
        match for_dirty {
            true => self.dirty.load(Ordering::Relaxed) < policy::dirty_pages_max(max),
            false => self.resident.load(Ordering::Relaxed) < max,
        }
    }

    /// Wakes who evicts before anybody needs room, if little is left.
    pub fn call_evictor(&self) {
        if let Some(bell) = &self.little_room
            && self.has_little_room(policy::ahead_of_faults(self.pages_now()))
        {
            bell.ring();
        }
    }

    /// Evicts up to `want` pages if little room is left, unless another thread does: for handler threads, when the thread that faulted goes on already, and for the one that does nothing else.
    /// Who waits for its page should not wait for others to leave as well. Whether pages left.
    pub fn evict_ahead(&self, want: usize) -> bool {
        let some = policy::ahead_of_faults(self.pages_now());
        if !self.has_little_room(some) || self.tables_wait() || !self.takes_dirty() {
            return false;
        }
        let Some(_only) = self.making_room.try_lock() else {
            return false;
        };
        self.balance();
        self.evict(want).is_some_and(|evicted| evicted.pages > 0)
    }

    fn evict_batch(&self, work: &mut Workspace, want: usize) -> Evicted {
        work.clear();
        self.calm.end();
        self.take(work, want, self.takes_dirty());
        if !self.aside.is_on() && self.capture(work) {
            self.unmap(work);
            self.store_captured(work);
            return self.finish(work);
        }
        if !self.aside.is_on() {
            self.protect(work);
        }
        // Asked again: since it was off, pages may have been pinned before they were protected.
        if self.aside.is_on() {
            self.put_victims_aside(work);
        }
        self.store(work);
        self.unmap(work);
        self.finish(work)
    }

    /// Whether dirty pages are evicted now: not right after the backing took none.
    pub fn takes_dirty(&self) -> bool {
        let failed_ms = self.failed_ms.load(Ordering::Relaxed);
        failed_ms == 0 || now_ms() >= failed_ms + STORE_AGAIN_MS
    }

    /// Whether changed pages stay since what they belong to is being synced.
    pub fn is_synced(&self) -> bool {
        let failed_ms = self.failed_ms.load(Ordering::Relaxed);
        let is_late = failed_ms == 0 || now_ms() >= failed_ms + SYNC_SEEN_MS;
        !is_late && matches!(*self.failed.lock(), Some(StoreError::Syncing))
    }

    /// Evicts until at most `pages` are resident, which is asked each time: it may grow as tables go. The error says why changed ones stay.
    pub fn shrink_to(&self, pages: impl Fn() -> usize) -> Result<(), StoreError> {
        let mut idle = 0;
        // Twice what is there: who needs more of it evicts pages that come as quickly.
        let mut left = 2 * self.resident.load(Ordering::Relaxed).max(policy::PAGES_MIN);
        loop {
            let pages = pages();
            let resident = self.resident.load(Ordering::Relaxed);
            if resident <= pages {
                return Ok(());
            }
            let failures = self.counters.failed_stores.load(Ordering::Relaxed);
            let evicted = self.evict(resident - pages).unwrap_or_default();
            let failed = self.counters.failed_stores.load(Ordering::Relaxed) > failures;
            match *self.failed.lock() {
                // It ends: until then they are busy.
                Some(StoreError::Syncing) | None => {}
                Some(error) if failed => return Err(error),
                Some(_) => {}
            }
            // What is left is busy, or faults as quickly as it is evicted: that ends, or is not to be ended.
            idle = if evicted.pages == 0 { idle + 1 } else { 0 };
            left = left.saturating_sub(evicted.pages);
            if idle > IDLE_MAX || left == 0 {
                return Ok(());
            }
            if evicted.pages == 0 {
                let ticket = self.freed.ticket(0);
                self.freed.wait(&ticket);
            }
        }
    }

    /// Makes up to `want` pages leave, from the hand on, at most so often round that each had its turn.
    fn take(&self, work: &mut Workspace, want: usize, with_dirty: bool) {
        let mut hand = self.hand.lock();
        let end = self.blocks_end.load(Ordering::Acquire);
        let (mut block, mut from) = place(hand.page);
        let mut look = Look {
            with_dirty,
            round: hand.round,
            passed: 0,
        };
        let last_round = hand.round + ROUNDS_MAX;
        let mut asked = block;
        while work.victims.len() < want {
            if block >= asked {
                asked = self.space.ask_for(block, end);
            }
            match self.space.next_live(block, end) {
                Some(live) => {
                    if live != block {
                        from = 0;
                    }
                    look.passed += 1;
                    let next = self.take_block(work, live, from, want, look);
                    (block, from) = next.map_or((live + 1, 0), |next| (live, next));
                }
                None if hand.round == last_round => break,
                None => {
                    hand.round += 1;
                    look.round = hand.round;
                    (block, from, asked) = (0, 0, 0);
                }
            }
        }
        hand.page = (block * BLOCK_PAGES + from) as u64;
    }

    /// The same within one block. The page to go on with, if it is not done.
    fn take_block(
        &self,
        work: &mut Workspace,
        block: usize,
        from: usize,
        want: usize,
        look: Look,
    ) -> Option<usize> {
        let pinned = self.space.pin_live(block)?;
        let record = self.space.record(pinned);
        let group = work.groups.len() as u16;
        let before = work.victims.len();
        let mut next = None;
        for at in record.noted(from) {
            if work.victims.len() == want {
                next = Some(at);
                break;
            }
            let seen = record.pages[at].look();
            let dirty = match seen.phase() {
                Phase::Clean => false,
                Phase::Dirty if look.with_dirty => true,
                _ => continue,
            };
            // A dirty page that stays is protected with its neighbours, and pays for that when it is written to: for a handler that is more than what a fault costs.
            let page = (block * BLOCK_PAGES + at) as u64;
            let stays =
                (!dirty || self.keeps_dirty()) && policy::stays(seen.heat(), page, look.round);
            if !stays && record.pages[at].begin_leave(seen) {
                self.ghost.prefetch(page);
                work.victims.push(Victim {
                    page,
                    dirty,
                    unsure: seen.unsure(),
                    heat: seen.heat(),
                    stays: false,
                    aside: false,
                    group,
                    held: (0, 0),
                });
            }
        }
        let victims = (work.victims.len() - before) as u32;
        if victims == 0 {
            self.unpin(pinned, 1);
        } else {
            work.groups.push(Group {
                pinned,
                victims,
                staying: 0,
                released: false,
                passed: look.passed,
            });
        }
        next
    }

    /// Write-protects dirty victims, in as few ranges as pay.
    fn protect(&self, work: &Workspace) {
        let mut dirty = work.victims.iter().filter(|victim| victim.dirty);
        let Some(first) = dirty.next() else { return };
        let (mut start, mut last) = (first, first);
        for victim in dirty {
            let (a, b) = (
                &work.groups[last.group as usize],
                &work.groups[victim.group as usize],
            );
            let tables = (b.passed - a.passed).saturating_sub(1);
            if victim.page < last.page || !policy::walk_on(tables) {
                self.protect_range(start.page, last.page);
                start = victim;
            }
            last = victim;
        }
        self.protect_range(start.page, last.page);
    }

    /// Write-protects what is there from one page to another.
    pub fn protect_range(&self, first: u64, last: u64) {
        let len = (last - first + 1) as usize * PAGE_BYTES;
        Counters::add(&self.counters.protects, 1);
        let start = self.space.address_of(first);
        let protected = self
            .tables
            .past_remapping(|| self.uffd.protect(start, len, true));
        if let Err(errno) = protected {
            die(format_args!(
                "write-protecting pages of a region failed: {errno}; were its addresses unmapped?"
            ));
        }
    }

    /// Puts dirty victims aside, those in a row together; marks those that are pinned.
    fn put_victims_aside(&self, work: &mut Workspace) {
        let mut at = 0;
        while let Some(first) = (at..work.victims.len()).find(|at| work.victims[*at].dirty) {
            let page = work.victims[first].page;
            let row = (page..).zip(&work.victims[first..]);
            let count = row.take_while(|(page, victim)| victim.dirty && victim.page == *page);
            let count = count.count();
            at = first + count;
            self.put_aside(work.stage, first, page, count, |nth, lies| {
                let victim = &mut work.victims[first + nth];
                match lies {
                    Lies::Aside => victim.aside = true,
                    Lies::Pinned => {
                        victim.stays = true;
                        work.groups[usize::from(victim.group)].staying += 1;
                        work.pinned += 1;
                    }
                    Lies::Here => self.protect_range(victim.page, victim.page),
                }
            });
        }
    }

    /// Gives dirty victims to their backings; marks those that stay.
    fn store(&self, work: &mut Workspace) {
        let (mut at, mut takes) = (0, true);
        let is_next = |work: &Workspace, at: usize| work.victims[at].is_to_be_stored();
        while let Some(first) = (at..work.victims.len()).find(|at| is_next(work, *at)) {
            at = first;
            // A region that is being dropped wants nothing kept.
            let Some(region) = self.space.region(work.victims[first].page) else {
                at += 1;
                continue;
            };
            let mut pages = [Changed::NONE; STORE_PAGES_MAX];
            let mut places = [0u16; STORE_PAGES_MAX];
            let mut len = 0;
            while at < work.victims.len() && len < STORE_PAGES_MAX {
                let victim = work.victims[at];
                if victim.is_to_be_stored() && !region.contains(victim.page) {
                    break;
                }
                if victim.is_to_be_stored() {
                    let address = match victim.aside {
                        true => work.stage.slot(at),
                        false => self.space.address_of(victim.page),
                    };
                    pages[len] = Changed {
                        page: victim.page - region.first_page,
                        // SAFETY: the page is there, and write-protected or on this thread's stage, and stays so while it is leaving,
                        // which only this thread ends: so nobody writes to it, and it is mapped as long as this reference is used.
                        bytes: unsafe { &*(address as *const Page) },
                        surely: !victim.unsure,
                    };
                    places[len] = at as u16;
                    len += 1;
                }
                at += 1;
            }
            // What took nothing once may have been asked for as long as anybody is to wait.
            let stored = match takes {
                true => self.store_some(region, &pages[..len]),
                false => 0,
            };
            takes = stored == len;
            for place in &places[stored..len] {
                let slot = work.stage.slot(usize::from(*place));
                let victim = &mut work.victims[usize::from(*place)];
                if std::mem::take(&mut victim.aside) {
                    self.put_back(slot, victim.page);
                }
                victim.stays = true;
                work.groups[usize::from(victim.group)].staying += 1;
            }
        }
    }

    /// How many of the first the backing took.
    pub fn store_some(&self, region: &crate::extent::RegionCore, pages: &[Changed<'_>]) -> usize {
        let mut done = 0;
        while done < pages.len() {
            match region.backing.store(&pages[done..]) {
                Ok(taken) => {
                    assert!(
                        (1..=pages.len() - done).contains(&taken),
                        "a backing takes at least one"
                    );
                    done += taken;
                }
                Err(error) => {
                    *self.failed.lock() = Some(error);
                    self.failed_ms.store(now_ms(), Ordering::Relaxed);
                    Counters::add(&self.counters.failed_stores, 1);
                    return done;
                }
            }
        }
        Counters::add(&self.counters.stored, done as u64);
        done
    }

    /// Unmaps all victims that go; where they are all that a block has, the block with its page table.
    fn unmap(&self, work: &mut Workspace) {
        for group in &mut work.groups {
            if group.staying == 0 && self.space.claim(group.pinned, group.victims + 1) {
                group.released = true;
                work.ranges.push(self.block_range(group.pinned.block));
            }
        }
        let blocks = work.ranges.len();
        for victim in &work.victims {
            if victim.stays || victim.aside || work.groups[usize::from(victim.group)].released {
                continue;
            }
            let start = self.space.address_of(victim.page);
            match work.ranges[blocks..].last_mut() {
                Some(last) if last.start + last.len == start => last.len += PAGE_BYTES,
                _ => work.ranges.push(Range {
                    start,
                    len: PAGE_BYTES,
                }),
            }
        }
        if work.victims.iter().any(|victim| victim.aside) {
            work.ranges.push(work.stage.slots(work.victims.len()));
        }
        self.drop_blocks(&work.ranges, blocks);
    }

    fn block_range(&self, block: usize) -> Range {
        Range {
            start: self.space.address_of((block * BLOCK_PAGES) as u64),
            len: BLOCK_BYTES,
        }
    }

    /// Drops what lies in ranges that the caller owns every page of. The first `blocks` of them are whole blocks, in order, that the
    /// caller releases: their page tables go as well.
    fn drop_blocks(&self, ranges: &[Range], blocks: usize) {
        match self.tables.going() {
            Going::ByMapping => {}
            going => {
                self.drop_ranges(ranges);
                return self.gave_back(if going == Going::ByAdvice { blocks } else { 0 });
            }
        }
        let runs = ranges[..blocks].chunk_by(|a, b| a.start + a.len == b.start);
        for run in runs {
            let whole = Range {
                start: run[0].start,
                len: run.len() * BLOCK_BYTES,
            };
            // SAFETY: nobody is a user of these blocks, nor becomes one before the caller vacates them; what was in them is stored.
            match unsafe { self.tables.remap(whole, &self.uffd) } {
                Ok(true) => self.gave_back(run.len()),
                Ok(false) => self.drop_ranges(run),
                Err(errno) => die(format_args!(
                    "mapping addresses of a region anew failed: {errno}; were they unmapped?"
                )),
            }
        }
        self.drop_ranges(&ranges[blocks..]);
    }

    fn gave_back(&self, tables: usize) {
        self.grace.give_back(tables);
        Counters::add(&self.counters.tables_released, tables as u64);
    }

    /// Drops what lies in ranges that the caller owns every page of.
    pub fn drop_ranges(&self, ranges: &[Range]) {
        if ranges.is_empty() {
            return;
        }
        // SAFETY: each page there is absent or leaving or being discarded by the caller, who has stored it or need not.
        let unmapped = unsafe { self.unmapper.unmap(ranges) };
        if let Err(errno) = unmapped {
            die(format_args!(
                "taking pages of a region away failed: {errno}; were its addresses unmapped or locked?"
            ));
        }
    }

    fn finish(&self, work: &mut Workspace) -> Evicted {
        let mut evicted = Evicted::default();
        let left = self.counters.evicted.load(Ordering::Relaxed);
        for victim in &work.victims {
            let (_, at) = place(victim.page);
            let record = self
                .space
                .record(work.groups[usize::from(victim.group)].pinned);
            let from = match victim.dirty {
                true => Phase::LeavingDirty,
                false => Phase::LeavingClean,
            };
            let then = match victim.stays {
                true => Then::Dirty {
                    heat: victim.heat,
                    unsure: victim.unsure,
                },
                false => Then::Absent,
            };
            if !victim.stays {
                evicted.pages += 1;
                evicted.dirty += usize::from(victim.dirty);
                self.ghost.leaves(victim.page, left, victim.heat);
                record.forget(at);
            }
            if record.pages[at].end(from, then) {
                self.space.rooms.wake(page_number(victim.page));
            }
        }
        for group in &work.groups {
            if group.released && group.staying > 0 {
                self.space.keep(group.pinned, group.staying);
            } else if group.released {
                self.space.vacate(group.pinned);
            } else {
                self.unpin(group.pinned, group.victims - group.staying + 1);
            }
        }
        self.leave(evicted.pages);
        self.undirty(true, evicted.dirty);
        Counters::add(&self.counters.evicted, evicted.pages as u64);
        Counters::add(&self.counters.evictions, 1);
        evicted
    }

    /// Gives back the page table of a block that has lost its last user, if it has one: what is counted here is taken from the buffer until the kernel has freed it.
    pub fn release(&self, pinned: Pinned) {
        if self.space.record(pinned).may_have_table() {
            self.drop_blocks(&[self.block_range(pinned.block)], 1);
        }
        self.space.vacate(pinned);
    }
}
