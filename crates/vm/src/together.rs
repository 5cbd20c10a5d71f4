//! Pages that are brought in together: made this thread's to fill one after the other, then fetched in one call and put in place in the order in
//! which they were named; those that are absent are zeros, which take one call for all that lie side by side.
//!
//! Promises: a page that cannot be had at once is left to the fault that will ask for it, and so are those behind it. Never: waits for room, or for another thread.

use crate::backing::{FetchError, Fetched, PAGE_BYTES, Page};
use crate::extent::RegionCore;
use crate::fault::{Begun, Cause, Fault, Step};
use crate::page::Phase;
use crate::parts::Core;
use crate::policy::AHEAD_PAGES_MAX;
use crate::space::{Pinned, place};
use crate::stats::Counters;
use crate::touch::Touch;
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
        opened: bool,
    },
    /// It cannot be had at once.
    Left,
}

/// What became of pages that were to be brought in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brought {
    /// None had to be left.
    pub whole: bool,
    /// The one that was asked for was filled, or opened.
    pub asked: bool,
}

/// Hears what came of a page.
type End<'a> = dyn FnMut(&Filling<'_>, Result<Fetched, Cause>) + 'a;

impl Core {
    /// Makes pages of one region accessible, as far as they can be had at once, and after them the one that was `asked` for, if any. The others that were not there count as
    /// brought ahead, for such a touch.
    pub fn bring_together(
        &self,
        ahead: impl Iterator<Item = u64>,
        touch_ahead: Touch,
        asked: Option<u64>,
        touch: Touch,
    ) -> Brought {
        let mut filling: [Option<Filling<'_>>; TOGETHER_MAX] = [const { None }; TOGETHER_MAX];
        let (mut region, mut count) = (None, 0);
        let (mut came, mut brought) = (
            0,
            Brought {
                whole: true,
                asked: false,
            },
        );
        for page in ahead.take(TOGETHER_MAX - 1).chain(asked) {
            let touch = match Some(page) == asked {
                true => touch,
                false => touch_ahead,
            };
            match self.begin_together(page, &mut region, touch) {
                Look::Filling(begun) => {
                    filling[count] = Some(begun);
                    count += 1;
                }
                Look::There { opened } if Some(page) == asked => brought.asked = opened,
                Look::There { opened } => came += u64::from(opened),
                Look::Left => {
                    brought.whole = false;
                    break;
                }
            }
        }
        if let (Some(region), Some(first)) = (region, &filling[0]) {
            // The pins of pages end as they come, and with the last of them the region could go while its backing still has things to put away.
            let held = self.space.pin(first.pinned.block).ok();
            let (others, is_there) = self.fill_together(region, &filling[..count], asked);
            came += others;
            brought.asked |= is_there;
            if let Some(held) = held {
                self.unpin(held, 1);
            }
        }
        Counters::add(&self.counters.ahead, came);
        brought
    }

    /// Looks at one page; the region is that of the first.
    fn begin_together<'a>(
        &'a self,
        page: u64,
        region: &mut Option<&'a RegionCore>,
        touch: Touch,
    ) -> Look<'a> {
        let (block, at) = place(page);
        // What comes after the last page of all lies nowhere.
        if !self.space.has(page) {
            return Look::Left;
        }
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
                    Step::Done { woken } => return Look::There { opened: woken },
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

    /// Fills pages that are this thread's. How many came beside the one that was asked for, and whether that did.
    fn fill_together(
        &self,
        region: &RegionCore,
        filling: &[Option<Filling<'_>>],
        asked: Option<u64>,
    ) -> (u64, bool) {
        let (mut came, mut is_there) = (0, false);
        let mut end = |filling: &Filling<'_>, put: Result<Fetched, Cause>| {
            let Filling {
                fault,
                pinned,
                writable,
            } = filling;
            match fault.end_fill(*pinned, region, *writable, put) {
                Step::Done { .. } if Some(fault.page) == asked => is_there = true,
                Step::Done { .. } => came += 1,
                Step::Again | Step::Failed(_) => self.unpin(*pinned, 1),
            }
        };
        // Asked after they were noted: who closes pages sees them, or is seen here.
        let pages = filling.iter().flatten().map(|filling| filling.fault.page);
        if self.ahead.is_closed(pages) {
            for filling in filling.iter().flatten() {
                end(filling, Err(filling.fault.no_room()));
            }
            return (0, false);
        }
        let mut numbers = [0; TOGETHER_MAX];
        for (number, filling) in numbers.iter_mut().zip(filling.iter().flatten()) {
            *number = filling.fault.page - region.first_page;
        }
        let absent = region.backing.absent(&numbers[..filling.len()]);
        // Who asked goes on as soon as its page is there: what that is among comes last.
        if absent >> (filling.len() - 1) & 1 == 1 {
            self.fetch_together(region, &numbers, filling, absent, &mut end);
            self.clear_together(filling, absent, &mut end);
        } else {
            self.clear_together(filling, absent, &mut end);
            self.fetch_together(region, &numbers, filling, absent, &mut end);
        }
        (came, is_there)
    }

    /// Those that are absent: zeros, in one call for all that lie side by side.
    fn clear_together(&self, filling: &[Option<Filling<'_>>], absent: u64, end: &mut End<'_>) {
        let absent = |at: usize| absent >> at & 1 == 1;
        let mut first = 0;
        let beside = |a: &Filling<'_>, b: &Filling<'_>| {
            a.fault.page.abs_diff(b.fault.page) == 1 && a.writable == b.writable
        };
        while let Some(Some(begun)) = filling.get(first) {
            if !absent(first) {
                first += 1;
                continue;
            }
            let more = filling[first..]
                .iter()
                .flatten()
                .zip(filling[first + 1..].iter().flatten());
            let more = more.zip(first + 1..);
            let count = 1 + more
                .take_while(|((a, b), at)| absent(*at) && beside(a, b))
                .count();
            let run = &filling[first..first + count];
            let pages = run.iter().flatten().map(|filling| filling.fault.page);
            let lowest = pages.min().unwrap_or(begun.fault.page);
            let address = self.space.address_of(lowest);
            // As in `place_contents`.
            Counters::add(&self.counters.absent, count as u64);
            let (done, refused) =
                self.uffd
                    .copy_zeros(address, count * PAGE_BYTES, !begun.writable);
            let done = lowest + (done / PAGE_BYTES) as u64;
            for filling in run.iter().flatten() {
                // Refused where a mapping of its own begins within the run (mprotect): then one by one.
                let left = refused.is_some() && filling.fault.page >= done;
                let put = match left {
                    true => filling.fault.copy_in(&Page::ZERO, filling.writable),
                    false => Ok(()),
                };
                end(filling, put.map(|()| Fetched::Absent));
            }
            first += count;
        }
    }

    /// The others, by their numbers in the region.
    fn fetch_together(
        &self,
        region: &RegionCore,
        numbers: &[u64; TOGETHER_MAX],
        filling: &[Option<Filling<'_>>],
        absent: u64,
        end: &mut End<'_>,
    ) {
        let (mut rest, mut begun) = ([0; TOGETHER_MAX], [const { None }; TOGETHER_MAX]);
        let mut count = 0;
        for (at, filling) in filling.iter().flatten().enumerate() {
            if absent >> at & 1 == 0 {
                (rest[count], begun[count]) = (numbers[at], Some(filling));
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        let (began, mut first_read) = (Instant::now(), true);
        let mut put = |at: usize, fetched: Result<Fetched, FetchError>, contents: &Page| {
            let Some(filling) = begun[at] else { return };
            if std::mem::take(&mut first_read) {
                let ns = began.elapsed().as_nanos() as u64;
                Counters::add(&self.counters.read_ns, ns);
            }
            let put = fetched.map_err(Cause::Fetch).and_then(|fetched| {
                let writable = filling.writable;
                filling.fault.place_contents(fetched, contents, writable)
            });
            end(filling, put);
        };
        self.scratch.with(0..PAGE_BYTES, |scratch| {
            region
                .backing
                .fetch_several(&rest[..count], scratch, &mut put);
        });
    }
}
