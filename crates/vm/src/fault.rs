//! What is done about a fault, in whichever thread it is taken.
//!
//! Promises: when `resolve` says ready, the page was there a moment ago, as the access needs it; no lock is held while the backing
//! reads; every wait ends, after a while with a failure (`waited`). Never: allocates (its backing may), or touches the page it fills.

use crate::backing::{FetchError, Fetched, Page, StoreError};
use crate::extent::RegionCore;
use crate::page::{Phase, Seen, Then};
use crate::parts::{Core, Way};
use crate::policy;
use crate::say::say;
use crate::space::{NoRecord, Pinned, page_number, place};
use crate::stats::Counters;
use crate::sys::now_ms;
use crate::touch::Touch;
use crate::waited::{WAIT_MS_MAX, Waited};
use rustix::io::Errno;
use std::iter::once;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// How a fault ended.
pub(crate) enum Outcome {
    /// The access goes on when it is tried again. If not `woken`, a thread that sleeps in the fault must be woken.
    Ready { woken: bool },
    /// No region is there.
    Foreign,
    /// The page cannot be had.
    Failed(Failure),
}

/// Which page cannot be had, and why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub address: usize,
    pub region: usize,
    pub page: u64,
    pub cause: Cause,
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(crate) enum Cause {
    #[error("{0}")]
    Fetch(FetchError),
    #[error("no room for it in the page buffer of {pages_max} pages within {WAIT_MS_MAX} ms")]
    NoRoom { pages_max: usize },
    #[error(
        "no room for it in the page buffer of {pages_max} pages, since changed pages cannot be written back: {error}"
    )]
    Stuck { pages_max: usize, error: StoreError },
    #[error("the kernel refused to {what}: error {errno}")]
    Kernel { what: &'static str, errno: i32 },
}

impl Cause {
    fn kernel(what: &'static str) -> impl Fn(Errno) -> Cause {
        move |errno| Cause::Kernel {
            what,
            errno: errno.raw_os_error(),
        }
    }
}

/// Says which page cannot be had, and why.
pub(crate) fn report(failure: &Failure) {
    let Failure {
        address,
        region,
        page,
        cause,
    } = failure;
    say(format_args!(
        "SIGBUS: page {page} of the region at {region:#x} (address {address:#x}) cannot be had: {cause}"
    ));
}

/// A fault under way.
pub(crate) struct Fault<'a> {
    core: &'a Core,
    pub page: u64,
    touch: Touch,
    /// How long it has waited for room.
    waited: Waited,
    /// It did not wait the last time, since there was room then.
    looked_again: bool,
    /// Nobody waits for it yet: what cannot be done at once is not done.
    ahead: bool,
}

/// What beginning to fill a page came to.
pub(crate) enum Begun {
    /// It is this thread's; counted as dirty if it is `writable`.
    Filling {
        writable: bool,
    },
    NoRoom {
        for_dirty: bool,
    },
    /// Somebody else changed it.
    Changed,
}

/// What one look at the page came to.
pub(crate) enum Step {
    Done { woken: bool },
    Again,
    Failed(Cause),
}

impl Core {
    /// Makes the page at `address` accessible for such a touch.
    pub fn resolve(&self, address: usize, touch: Touch) -> Outcome {
        let Some(page) = self.space.page_at(address) else {
            return Outcome::Foreign;
        };
        let mut fault = Fault {
            core: self,
            page,
            touch,
            waited: Waited::default(),
            looked_again: false,
            ahead: false,
        };
        let (block, _) = place(page);
        loop {
            let pinned = match self.space.pin(block) {
                Ok(pinned) => pinned,
                Err(NoRecord) => match fault.make_room(false) {
                    Ok(()) => continue,
                    Err(cause) => return fault.failed(address, None, cause),
                },
            };
            self.space.record(pinned).note_table();
            let Some(region) = self.space.region(page) else {
                self.unpin(pinned, 1);
                return Outcome::Foreign;
            };
            match fault.step(pinned, region) {
                Step::Done { woken } => return Outcome::Ready { woken },
                Step::Again => {}
                Step::Failed(cause) => {
                    let failed = fault.failed(address, Some(region), cause);
                    self.unpin(pinned, 1);
                    return failed;
                }
            }
        }
    }

    /// Ends uses of a block; releases it if they were the last.
    pub fn unpin(&self, pinned: Pinned, users: u32) {
        if self.space.unpin(pinned, users) {
            self.release(pinned);
        }
    }
}

impl<'a> Fault<'a> {
    /// Of a page that nobody waits for.
    pub fn ahead(core: &'a Core, page: u64, touch: Touch) -> Fault<'a> {
        Fault {
            core,
            page,
            touch,
            waited: Waited::default(),
            looked_again: false,
            ahead: true,
        }
    }

    fn failed(&self, address: usize, region: Option<&RegionCore>, cause: Cause) -> Outcome {
        let mut failure = match region {
            Some(region) => self.failure(region, cause),
            None => Failure {
                address,
                region: 0,
                page: self.page,
                cause,
            },
        };
        failure.address = address;
        Outcome::Failed(failure)
    }

    fn failure(&self, region: &RegionCore, cause: Cause) -> Failure {
        Counters::add(&self.core.counters.failed_faults, 1);
        Failure {
            address: self.core.space.address_of(self.page),
            region: self.core.space.address_of(region.first_page),
            page: self.page - region.first_page,
            cause,
        }
    }

    /// Looks at the page's word and does what it calls for. The pin is kept when the page becomes a user of its block in its place,
    /// and on failure; else it is given back.
    pub fn step(&mut self, pinned: Pinned, region: &RegionCore) -> Step {
        let core = self.core;
        let (_, at) = place(self.page);
        let state = &core.space.record(pinned).pages[at];
        // Before the look: who has the page wakes those whose tickets are older than its change.
        let ticket = core.space.rooms.ticket(page_number(self.page));
        let seen = state.look();
        match seen.phase() {
            Phase::Absent => self.fill(pinned, region, seen),
            Phase::Clean if seen.poisoned() => {
                core.unpin(pinned, 1);
                Step::Done { woken: false }
            }
            Phase::Dirty if self.ahead => {
                core.unpin(pinned, 1);
                Step::Done { woken: false }
            }
            Phase::Clean | Phase::Dirty if self.touch != Touch::Read => {
                let counts = seen.phase() == Phase::Clean;
                if !self.may_dirty(counts) {
                    return match self.make_room(true) {
                        Ok(()) => self.again(pinned),
                        Err(cause) => Step::Failed(cause),
                    };
                }
                if !state.begin_open(seen) {
                    core.undirty(counts, 1);
                    return self.again(pinned);
                }
                self.open(pinned, region, seen)
            }
            Phase::Clean | Phase::Dirty => {
                core.unpin(pinned, 1);
                Step::Done { woken: false }
            }
            _ if self.ahead => {
                core.unpin(pinned, 1);
                Step::Done { woken: false }
            }
            _ => {
                let asked = state.await_change(seen);
                core.unpin(pinned, 1);
                if asked {
                    Counters::add(&core.counters.waits, 1);
                    core.space.rooms.wait(&ticket);
                }
                Step::Again
            }
        }
    }

    fn again(&self, pinned: Pinned) -> Step {
        self.core.unpin(pinned, 1);
        Step::Again
    }

    fn end(&self, pinned: Pinned, from: Phase, then: Then) {
        let (_, at) = place(self.page);
        if self.core.space.record(pinned).pages[at].end(from, then) {
            self.core.space.rooms.wake(page_number(self.page));
        }
    }

    /// Takes a clean page's protection away, or a dirty one's if it has any.
    fn open(&self, pinned: Pinned, region: &RegionCore, seen: Seen) -> Step {
        let core = self.core;
        let address = core.space.address_of(self.page);
        let was_clean = seen.phase() == Phase::Clean;
        let opened = core.uffd.protect(address, crate::PAGE_BYTES, false);
        if was_clean {
            region.sampler.opened();
            Counters::add(&core.counters.opened, 1);
        }
        // On failure too: a page that may be writable must not pass for clean.
        let then = Then::Dirty {
            heat: seen.heat(),
            unsure: false,
        };
        self.end(pinned, Phase::Opening, then);
        match opened {
            Ok(()) => {
                core.unpin(pinned, 1);
                Step::Done { woken: true }
            }
            Err(errno) => Step::Failed(Cause::kernel("make it writable")(errno)),
        }
    }

    fn fill(&mut self, pinned: Pinned, region: &RegionCore, seen: Seen) -> Step {
        match self.begin_fill(pinned, region, seen) {
            Begun::Changed => self.again(pinned),
            Begun::NoRoom { for_dirty } => match self.make_room(for_dirty) {
                Ok(()) => self.again(pinned),
                Err(cause) => Step::Failed(cause),
            },
            Begun::Filling { writable } => {
                let put = match self.ahead && self.core.ahead.is_closed(once(self.page)) {
                    true => Err(self.no_room()),
                    false => self.put(region, writable),
                };
                self.end_fill(pinned, region, writable, put)
            }
        }
    }

    /// Makes an absent page this thread's to fill, if there is room for it.
    pub fn begin_fill(&self, pinned: Pinned, region: &RegionCore, seen: Seen) -> Begun {
        let core = self.core;
        let writable = self.touch == Touch::Write || region.sampler.writable_at_once();
        if writable && !self.may_dirty(true) {
            return Begun::NoRoom { for_dirty: true };
        }
        if !core.admit() {
            core.undirty(writable, 1);
            return Begun::NoRoom { for_dirty: false };
        }
        let (_, at) = place(self.page);
        let record = core.space.record(pinned);
        if !record.pages[at].begin_fill(seen) {
            core.undirty(writable, 1);
            core.leave(1);
            return Begun::Changed;
        }
        core.ghost.prefetch(self.page);
        // Noted before it is there: whoever is woken by its coming may ask for a write-back that must find it.
        record.note(at);
        Begun::Filling { writable }
    }

    /// The page was filled, or not.
    pub fn end_fill(
        &self,
        pinned: Pinned,
        region: &RegionCore,
        writable: bool,
        put: Result<Fetched, Cause>,
    ) -> Step {
        let core = self.core;
        match put {
            Ok(fetched) => {
                let heat = core.comes(self.page, fetched);
                let then = match writable {
                    true => Then::Dirty {
                        heat,
                        unsure: self.touch != Touch::Write,
                    },
                    false => Then::Clean { heat },
                };
                self.end(pinned, Phase::Filling, then);
                // The pin stays: the page is a user of its block now.
                Step::Done { woken: true }
            }
            Err(cause) => {
                core.undirty(writable, 1);
                let handled = core.way != Way::InThread && !self.ahead;
                let late = handled
                    && matches!(cause, Cause::Fetch(FetchError::Freed))
                    && core.late.may_be(self.page);
                // Ahead it is left to the fault that will ask for it.
                if handled && !late {
                    // Told before, since whoever waits for it wakes with the poison.
                    report(&self.failure(region, cause));
                    if core.uffd.poison(core.space.address_of(self.page)).is_ok() {
                        self.end(pinned, Phase::Filling, Then::Poisoned);
                        return Step::Done { woken: true };
                    }
                }
                core.leave(1);
                let (_, at) = place(self.page);
                core.space.record(pinned).forget(at);
                self.end(pinned, Phase::Filling, Then::Absent);
                if late {
                    core.unpin(pinned, 1);
                    return Step::Done { woken: false };
                }
                Step::Failed(cause)
            }
        }
    }

    /// Fetches the page and puts it in place.
    fn put(&self, region: &RegionCore, writable: bool) -> Result<Fetched, Cause> {
        let core = self.core;
        let page = self.page - region.first_page;
        core.scratch.with(region.backing.span_max(page), |scratch| {
            // Where a fault takes 4 µs, a look at the clock is not for nothing.
            let began = (core.way != Way::InThread || core.unmodified).then(Instant::now);
            let fetched = region.backing.fetch(page, scratch).map_err(Cause::Fetch)?;
            if let (Fetched::Read, Some(began)) = (fetched, began) {
                let ns = began.elapsed().as_nanos() as u64;
                Counters::add(&core.counters.read_ns, ns);
            }
            self.place_contents(fetched, scratch, writable)
        })
    }

    /// Puts what was fetched in place.
    pub fn place_contents(
        &self,
        fetched: Fetched,
        contents: &Page,
        writable: bool,
    ) -> Result<Fetched, Cause> {
        let core = self.core;
        let counter = match fetched {
            Fetched::Filled | Fetched::Read => &core.counters.fetched,
            Fetched::Absent => &core.counters.absent,
        };
        // Before it is there: who waits for it may look at the counts as soon as it is.
        Counters::add(counter, 1);
        if let Some(follow) = &core.follow {
            follow.came(core.space.address_of(self.page), contents);
        }
        self.copy_in(contents, writable)?;
        Ok(fetched)
    }

    /// Puts contents in place, not counted.
    pub fn copy_in(&self, contents: &Page, writable: bool) -> Result<(), Cause> {
        let to = self.core.space.address_of(self.page);
        let copied = self.core.uffd.copy(to, contents, !writable);
        copied.map_err(Cause::kernel("put it in place"))
    }

    pub fn no_room(&self) -> Cause {
        Cause::NoRoom {
            pages_max: self.core.pages_now(),
        }
    }

    /// Counts one more dirty page if there may be one more. A page that is dirty already needs no count.
    fn may_dirty(&self, counts: bool) -> bool {
        if !counts {
            return true;
        }
        let max = policy::dirty_pages_max(self.core.pages_now());
        if self.core.dirty.fetch_add(1, Ordering::Relaxed) < max {
            return true;
        }
        self.core.dirty.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Evicts some pages, or waits until somebody else has; for room for a dirty page it must be dirty ones in the end. An error
    /// after the longest wait.
    pub fn make_room(&mut self, for_dirty: bool) -> Result<(), Cause> {
        let (core, began_ms) = (self.core, now_ms());
        let ticket = core.freed.ticket(0);
        core.balance();
        let pages_max = core.pages_now();
        let tables_wait = core.tables_wait();
        let evicted = match tables_wait {
            true => Default::default(),
            false => core
                .evict(policy::batch_pages(pages_max))
                .unwrap_or_default(),
        };
        if evicted.pages > 0 {
            if !for_dirty || evicted.dirty > 0 {
                self.waited = Waited::default();
                return Ok(());
            }
            if core.takes_dirty() {
                return Ok(());
            }
        }
        if self.ahead {
            return Err(self.no_room());
        }
        if self.waited.is_over(core.is_synced()) {
            return Err(match *core.failed.lock() {
                Some(error) => Cause::Stuck { pages_max, error },
                None => self.no_room(),
            });
        }
        core.waiting.fetch_add(1, Ordering::Relaxed);
        // Looked at once more after it was counted: who made room before is seen here, who does later sees the count (`tell_waiting`).
        fence(Ordering::SeqCst);
        let has_changed = core.has_room(for_dirty) || tables_wait && !core.tables_wait();
        // Once in a row: it may be something else that is missing.
        self.looked_again = has_changed && !self.looked_again;
        if !self.looked_again {
            Counters::add(&core.counters.waits, 1);
            core.freed.wait(&ticket);
        }
        core.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waited.add(now_ms().saturating_sub(began_ms));
        Ok(())
    }
}

impl Core {
    /// Pages that may be resident, given what page tables take.
    pub fn pages_now(&self) -> usize {
        let max = self.pages_max.load(Ordering::Relaxed);
        let bytes = self.bytes_max.load(Ordering::Relaxed);
        policy::pages_of_bytes(bytes, self.tables_bytes()).min(max)
    }

    /// DRAM of page tables and of records; of tables that are not freed yet what is more than was kept for them.
    pub fn tables_bytes(&self) -> usize {
        let waiting = self.grace.bytes().saturating_sub(self.grace.kept_bytes());
        self.space.live() * policy::TABLE_BYTES + waiting
    }

    /// Whether so many page tables wait to be freed that evicting more does not help.
    pub fn tables_wait(&self) -> bool {
        let bytes = self.bytes_max.load(Ordering::Relaxed);
        policy::tables_wait(self.grace.bytes(), self.grace.kept_bytes(), bytes)
    }

    /// How hot a page is that comes; counts those that left a short while ago.
    pub fn comes(&self, page: u64, fetched: Fetched) -> u8 {
        let left = self.counters.evicted.load(Ordering::Relaxed);
        let back = self
            .ghost
            .comes(page, left, self.resident.load(Ordering::Relaxed));
        if back.heat > 0 && fetched != Fetched::Absent {
            Counters::add(&self.counters.again, 1);
        }
        if back.near && fetched != Fetched::Absent {
            Counters::add(&self.counters.near, 1);
            if fetched == Fetched::Read {
                Counters::add(&self.counters.near_read, 1);
            }
        }
        match self.keeps_dirty() && !self.whole.load(Ordering::Relaxed) {
            true => policy::heat_of_changed(back.heat, back.near),
            false => back.heat,
        }
    }

    /// Whether changed pages stay that come back again and again.
    pub fn keeps_dirty(&self) -> bool {
        self.unmodified && self.way == Way::InThread
    }

    /// Lets whoever shares a cap with the buffer look whether it is to grow or to shrink.
    pub fn balance(&self) {
        if let Some(balance) = self.balance.get() {
            balance();
        }
    }

    /// Counts one more resident page if there may be one more.
    fn admit(&self) -> bool {
        let max = self.pages_now();
        if self.resident.fetch_add(1, Ordering::Relaxed) < max {
            return true;
        }
        self.resident.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Counts pages that are absent again.
    pub fn leave(&self, pages: usize) {
        self.resident.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Counts pages that are not dirty any more, if they were.
    pub fn undirty(&self, counted: bool, pages: usize) {
        if counted {
            self.dirty.fetch_sub(pages, Ordering::Relaxed);
        }
    }
}
