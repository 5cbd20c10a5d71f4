//! Pages that are brought in together: made this thread's to fill one after the other, fetched in one call, and put in place in the order in which they were named.
//!
//! Promises: a page that cannot be had at once is left to the fault that will ask for it, and so are those behind it. Never: waits for room, or for another thread.

use crate::backing::{Fetched, PAGE_BYTES, Page};
use crate::fault::{Begun, Cause, Fault, Step, Touch};
use crate::memory::Core;
use crate::page::Phase;
use crate::policy::AHEAD_PAGES_MAX;
use crate::region::RegionCore;
use crate::space::{Pinned, place};
use crate::stats::Counters;
use std::time::Instant;

/// Pages of one call: those that come ahead, and the one that faulted.
const TOGETHER_MAX: usize = AHEAD_PAGES_MAX as usize + 1;
/// How often a page is looked at before it is left: each time others have changed it or room was made.
const TRIES_MAX: u32 = 4;

/// A page that is this thread's to fill.
struct Filling<'a> {
    fault: Fault<'a>,
    pinned: Pinned,
    writable: bool,
}

/// What beginning with a page came to.
enum Look<'a> {
    Filling(Filling<'a>),
    /// It is there already, or was opened just now.
    There {
        came: bool,
    },
    /// It cannot be had at once.
    Left,
}

impl Core {
    /// Makes pages of one region accessible, as far as they can be had at once, and after them the one that was `asked` for. The others that were not there count as
    /// brought ahead.
    pub fn bring_together(&self, ahead: impl Iterator<Item = u64>, asked: u64, touch: Touch) {
        let mut filling: [Option<Filling<'_>>; TOGETHER_MAX] = [const { None }; TOGETHER_MAX];
        let (mut numbers, mut count) = ([0; TOGETHER_MAX], 0);
        let (mut region, mut opened) = (None, 0);
        for page in ahead.take(TOGETHER_MAX - 1).chain([asked]) {
            match self.begin_together(page, &mut region, touch) {
                Look::Filling(begun) => {
                    numbers[count] = page;
                    filling[count] = Some(begun);
                    count += 1;
                }
                Look::There { came } => opened += u64::from(came && page != asked),
                Look::Left => break,
            }
        }
        let Some(region) = region.filter(|_| count > 0) else {
            Counters::add(&self.counters.ahead, opened);
            return;
        };
        let numbers = &mut numbers[..count];
        numbers
            .iter_mut()
            .for_each(|page| *page -= region.first_page);
        let came = self.fill_together(region, numbers, &filling[..count], asked);
        Counters::add(&self.counters.ahead, opened + came);
    }

    /// Looks at one page; the region is that of the first.
    fn begin_together<'a>(
        &'a self,
        page: u64,
        region: &mut Option<&'a RegionCore>,
        touch: Touch,
    ) -> Look<'a> {
        let (block, at) = place(page);
        let mut fault = Fault::ahead(self, page, touch);
        for _ in 0..TRIES_MAX {
            let Ok(pinned) = self.space.pin(block) else {
                return Look::Left;
            };
            let here = self.space.region(page);
            let Some(here) =
                here.filter(|here| region.is_none_or(|first| std::ptr::eq(first, *here)))
            else {
                self.unpin(pinned, 1);
                return Look::Left;
            };
            let seen = self.space.record(pinned).pages[at].look();
            if seen.phase() != Phase::Absent {
                match fault.step(pinned, here) {
                    Step::Done { woken } => return Look::There { came: woken },
                    Step::Again => continue,
                    Step::Failed(_) => {
                        self.unpin(pinned, 1);
                        return Look::Left;
                    }
                }
            }
            match fault.begin_fill(pinned, here, seen) {
                Begun::Filling { writable } => {
                    // Its pin keeps the region.
                    *region = Some(here);
                    return Look::Filling(Filling {
                        fault,
                        pinned,
                        writable,
                    });
                }
                Begun::Changed => self.unpin(pinned, 1),
                Begun::NoRoom { for_dirty } => {
                    let made = fault.make_room(for_dirty);
                    self.unpin(pinned, 1);
                    if made.is_err() {
                        return Look::Left;
                    }
                }
            }
        }
        Look::Left
    }

    /// Fetches pages that are this thread's, by their numbers in the region, and puts them in place. How many came beside the one that was asked for.
    fn fill_together(
        &self,
        region: &RegionCore,
        numbers: &[u64],
        filling: &[Option<Filling<'_>>],
        asked: u64,
    ) -> u64 {
        // Asked after they were noted: who closes pages sees them, or is seen here.
        let ended = self.ahead.has_ended();
        let (began, mut first_read) = (Instant::now(), true);
        let mut came = 0;
        let mut end = |at: usize, put: Result<Fetched, Cause>, contents: &Page| {
            let Some(Filling {
                fault,
                pinned,
                writable,
            }) = &filling[at]
            else {
                return;
            };
            if std::mem::take(&mut first_read) {
                let ns = began.elapsed().as_nanos() as u64;
                Counters::add(&self.counters.read_ns, ns);
            }
            let put = put.and_then(|fetched| fault.place_contents(fetched, contents, *writable));
            match fault.end_fill(*pinned, region, *writable, put) {
                Step::Done { .. } => came += u64::from(fault.page != asked),
                Step::Again | Step::Failed(_) => self.unpin(*pinned, 1),
            }
        };
        if ended {
            for (at, filling) in filling.iter().enumerate() {
                if let Some(filling) = filling {
                    end(at, Err(filling.fault.no_room()), &Page::ZERO);
                }
            }
            return 0;
        }
        self.scratch.with(0..PAGE_BYTES, |scratch| {
            let mut put = |at, fetched: Result<_, _>, page: &Page| {
                end(at, fetched.map_err(Cause::Fetch), page);
            };
            region.backing.fetch_several(numbers, scratch, &mut put);
        });
        came
    }
}
