//! Syncing a named region, and closing it.
//!
//! Promises: after an error nothing of the sync has happened, what was pending is pending still, and nothing is stored before it is sure that it will not; where the device failed or is late, a crash before that
//! may leave it done, as a whole. Never: waits for room to free what the
//! sync before left.

use super::control::Control;
use super::marks::RUN_PAGES;
use super::{Named, SYNC_OUTSIDE_PAGES_MAX, State};
use crate::store::ObjectError;
use crate::store::pages::store_error;
use crate::sys::pause;
use crate::{Page, StoreError};
use std::ops::Range;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Pages whose stale versions are freed while write-backs wait.
const FREE_AT_ONCE: u64 = 256;
/// And for so long in a row.
const FREE_MAX: Duration = Duration::from_millis(10);

/// How often a write-back looks whether it may, and how long it waits in between: some 20 ms in all. Who evicts has one of a few workspaces in hand then, and others need those for pages that leave
/// without a write-back.
const LOOKS: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Which pages a sync is about: ranges in order, none touching another.
struct Wanted(Vec<Range<u64>>);

impl Wanted {
    fn new(ranges: &[Range<u64>]) -> Wanted {
        let mut sorted: Vec<Range<u64>> =
            ranges.iter().filter(|r| !r.is_empty()).cloned().collect();
        sorted.sort_by_key(|range| range.start);
        let mut all: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match all.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => all.push(range),
            }
        }
        Wanted(all)
    }

    fn has(&self, page: u64) -> bool {
        let at = self.0.partition_point(|range| range.end <= page);
        self.0.get(at).is_some_and(|range| range.start <= page)
    }
}

impl Named {
    /// The state for write-backs, once no failed sync can come to pass any more. `Syncing`: not now, since a sync is under way.
    pub(super) fn settled(&self) -> Result<RwLockReadGuard<'_, State>, StoreError> {
        for _ in 0..LOOKS {
            match self.state.try_read() {
                Some(state) if !state.doubt => return Ok(state),
                Some(state) => {
                    drop(state);
                    if let Some(mut state) = self.state.try_write() {
                        self.settle(&mut state).map_err(store_error)?;
                        return Ok(RwLockWriteGuard::downgrade(state));
                    }
                }
                None => {}
            }
            pause(LOOK_AGAIN);
        }
        Err(StoreError::Syncing)
    }

    fn settle(&self, state: &mut State) -> Result<(), ObjectError> {
        if state.doubt {
            let control = state.control.encode();
            self.store.put_own(self.control_table, 0, &control)?;
            state.doubt = false;
        }
        Ok(())
    }

    /// Makes everything that was written back of these pages durable, at once or not at all, with the region's length and root. What is not synced
    /// stays pending; of that there are at most [`SYNC_OUTSIDE_PAGES_MAX`] pages.
    pub fn sync(&self, ranges: &[Range<u64>]) -> Result<(), ObjectError> {
        self.store.here()?;
        let wanted = Wanted::new(ranges);
        let mut state = self.state.write();
        self.settle(&mut state)?;
        let outside = |(page, _): &(u64, _)| !wanted.has(*page);
        let pages = self.marks.pending().filter(outside).count() as u64;
        if pages > SYNC_OUTSIDE_PAGES_MAX {
            return Err(ObjectError::Outside {
                pages,
                pages_max: SYNC_OUTSIDE_PAGES_MAX,
            });
        }
        if let Err(e) = self.sync_pages(&mut state, &wanted) {
            // Everything is pending as it was; what was written again is so under a later generation.
            state.working += 1;
            return Err(e);
        }
        drop(state);
        self.free_stale();
        Ok(())
    }

    fn sync_pages(&self, state: &mut State, wanted: &Wanted) -> Result<(), ObjectError> {
        let mut control = Control {
            synced: state.working,
            working: state.working + 1,
            pages: self.pages(),
            root: state.root,
            ..state.control.clone()
        };
        for (page, _) in self.marks.pending().filter(|(page, _)| !wanted.has(*page)) {
            let mut bytes = Page::ZERO;
            self.read(page, &mut bytes)?;
            // Under the new generation, whatever it holds.
            self.write(page, &bytes.0, true, control.working)?;
        }
        // Epochs are in order: where the control is durable, what was stored before it is too.
        self.store
            .put_own(self.control_table, 0, &control.encode())?;
        state.doubt = true;
        self.store.make_durable()?;
        state.doubt = false;
        for (page, mark) in self.marks.pending().filter(|(page, _)| wanted.has(*page)) {
            self.marks.set(page, mark.synced());
        }
        state.working = control.working;
        std::mem::swap(&mut state.control, &mut control);
        Ok(())
    }

    /// Frees versions that a sync has replaced. Where there is no room for that, they stay until their page is written again.
    fn free_stale(&self) {
        let mut others = Instant::now();
        for first in self.marks.busy_runs() {
            let mut rests = true;
            for from in (first..first + RUN_PAGES).step_by(FREE_AT_ONCE as usize) {
                // Write-backs look once in a while: they find it free now and then.
                if others.elapsed() > FREE_MAX {
                    pause(2 * LOOK_AGAIN);
                    others = Instant::now();
                }
                // Nobody writes to the place that is freed.
                let _state = self.state.write();
                match self.free_stale_of(from..from + FREE_AT_ONCE) {
                    Ok(done) => rests &= done,
                    Err(_) => return,
                }
            }
            let _state = self.state.write();
            let busy = |(_, mark): (u64, super::Mark)| mark.pending.is_some() || mark.stale;
            if rests && !self.marks.known(first..first + RUN_PAGES).any(busy) {
                self.marks.rest(first);
            }
        }
    }

    /// True: nothing is left to do for these pages.
    fn free_stale_of(&self, pages: Range<u64>) -> Result<bool, ObjectError> {
        let mut rests = true;
        for (page, mark) in self.marks.known(pages) {
            if mark.pending.is_some() {
                rests = false;
            } else if mark.stale {
                for (at, table) in self.tables.into_iter().enumerate() {
                    if mark.committed != Some(at) {
                        self.store.free_now(table, page)?;
                    }
                }
                let stale = false;
                self.marks.set(page, super::Mark { stale, ..mark });
            }
        }
        Ok(rests)
    }

    /// Frees what was not synced, and says in the pool that nothing is left of it: the next opening has no dead generation to name.
    pub(super) fn close(&self) -> Result<(), ObjectError> {
        let mut state = self.state.write();
        if self.store.failure().is_some() {
            return Err(ObjectError::ReadOnly);
        }
        self.settle(&mut state)?;
        for (page, mark) in self.marks.pending() {
            self.store.free_own(self.tables[mark.next()], page)?;
        }
        let control = Control {
            closed: true,
            working: state.working,
            ..state.control.clone()
        };
        self.store.put_own(self.control_table, 0, &control.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{device, options, pool};
    use crate::store::{Store, Work};
    use crate::{Backing, Changed, Fetched};
    use std::sync::Arc;
    use std::time::Instant;
    use terrace_media::sim::SimDevice;

    fn open(device: &SimDevice, make: bool) -> (Arc<Store>, Named) {
        let store = Store::on_pool(pool(device, options(true)), Work::Callers).expect("a store");
        if make {
            Named::make(&store, 0, 2).expect("made");
        }
        let named = Named::open(store.clone(), 0, 2).expect("open");
        (store, named)
    }

    fn put(named: &Named, page: u64, byte: u8) {
        let bytes = Page([byte; crate::PAGE_BYTES]);
        let changed = Changed {
            page,
            bytes: &bytes,
            surely: true,
        };
        assert_eq!(named.store(&[changed]).expect("stored"), 1);
    }

    #[test]
    fn a_sync_in_doubt_is_taken_back_before_anything_else_is_stored() {
        let device = device(&options(true), 160, 1);
        let (store, named) = open(&device, true);
        (0..2).for_each(|page| put(&named, page, 7));
        {
            // As when the wait for its epoch took too long.
            let mut state = named.state.write();
            let mut control = state.control.clone();
            (control.synced, control.working) = (state.working, state.working + 1);
            let stored = store.put_own(named.control_table, 0, &control.encode());
            stored.expect("stored");
            state.doubt = true;
            state.working += 1;
        }
        // One of its pages is written over; were it to come to pass now, it would in part.
        put(&named, 0, 8);
        store.make_durable().expect("durable");
        let after = SimDevice::after(&device.after_crash(1), 1);
        let (_store, named) = open(&after, false);
        for page in 0..2 {
            let mut bytes = Page::ZERO;
            assert_eq!(
                named.fetch(page, &mut bytes),
                Ok(Fetched::Absent),
                "page {page}"
            );
        }
    }

    /// Who writes back has what faults need: a workspace.
    #[test]
    fn a_write_back_waits_for_a_sync_for_a_moment_only() {
        let device = device(&options(true), 160, 1);
        let (_store, named) = open(&device, true);
        let bytes = Page([7; crate::PAGE_BYTES]);
        let changed = [Changed {
            page: 0,
            bytes: &bytes,
            surely: true,
        }];
        let state = named.state.write();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| named.store(&changed));
            assert_eq!(refused.join().expect("no panic"), Err(StoreError::Syncing));
        });
        let took = began.elapsed();
        assert!(
            took >= LOOKS * LOOK_AGAIN && took < Duration::from_secs(5),
            "{took:?}"
        );
        drop(state);
        assert_eq!(named.store(&changed), Ok(1));
    }

    /// A version that a sync replaced leaves a tombstone, which was never cleaned for as long as enough segments were free; but they count, and the room that was promised to the region's
    /// pages ended after some rounds.
    #[test]
    fn what_says_that_replaced_versions_are_gone_goes_too() {
        const PAGES: u64 = 3000;
        const ROUNDS: u64 = 30;
        let device = device(&options(true), 512, 5);
        let store = Store::on_pool(pool(&device, options(true)), Work::Both).expect("a store");
        Named::make(&store, 0, PAGES).expect("made");
        let named = Named::open(store, 0, PAGES).expect("open");
        let mut word = 1u64;
        for round in 0..ROUNDS {
            for page in 0..PAGES {
                let mut bytes = Page::ZERO;
                for at in bytes.0.chunks_exact_mut(8) {
                    word = word.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    at.copy_from_slice(&word.to_le_bytes());
                }
                let changed = Changed {
                    page,
                    bytes: &bytes,
                    surely: true,
                };
                let stored = named.store(&[changed]).map_err(|e| e.to_string());
                assert_eq!(stored, Ok(1), "round {round}, page {page}");
            }
            named
                .sync(std::slice::from_ref(&(0..PAGES)))
                .expect("synced");
        }
    }

    #[test]
    fn ranges_are_joined_and_asked_quickly() {
        let wanted = Wanted::new(&[10..12, 3..5, 5..6, 11..20, 7..7, 30..31]);
        assert_eq!(wanted.0, [3..6, 10..20, 30..31]);
        let has: Vec<u64> = (0..40).filter(|&page| wanted.has(page)).collect();
        let expected = (3..6).chain(10..20).chain(30..31);
        assert_eq!(has, expected.collect::<Vec<u64>>());
        assert!(!Wanted::new(&[]).has(0));
    }
}
