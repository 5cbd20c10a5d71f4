//! Faults that go along the addresses: what will be touched next is brought in by the handler that has such a fault at hand.
//!
//! A handler thread takes ten times as long to be woken as to fill a page. So after a few faults in a row, upwards or downwards (as memmove and sorts go too), the pages
//! that follow come with the one that faulted, twice as many each time. Promises: bounded by [`policy::ahead_pages`], and by [`policy::ahead_absent_pages`] where the pages are absent from the backing too; a page that cannot be had ahead is left to the fault that will ask for it; none of a block
//! once [`Ahead::close`] of it has returned, but those that are filling. Never: waits for room, or for another thread.

use crate::space::place;
use crate::sys::{Lock, SystemError, Table};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Sequences followed at a time; the one that was not seen for longest gives way.
const STREAMS: usize = 16;
/// Faults in a row before anything is brought in: what lies across the border of two pages is no sequence.
const RUN_MIN: u32 = 3;

/// Pages that a sequence may leave out at a time: those that are there already, and those that lie between what is touched (sqlite3's headers of its pages,
/// of which some hold none).
const GAP_MAX: u64 = 3;

/// What no page has as its number.
const NO_PAGE: u64 = u64::MAX;

/// A sequence of faults.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// The page that would go on with it upwards, and downwards; none in the direction that it does not have.
    next: [u64; 2],
    /// Faults in a row.
    run: u32,
    /// Pages that came with the last one.
    window: u64,
    /// When it was seen last, in faults.
    seen: u64,
}

/// Pages that are to come with one that faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub pages: u64,
    pub downwards: bool,
}

impl Window {
    /// Which they are, the nearest first.
    pub fn of(self, page: u64) -> impl Iterator<Item = u64> {
        (1..=self.pages).map_while(move |n| match self.downwards {
            true => page.checked_sub(n),
            false => Some(page + n),
        })
    }
}

impl Stream {
    /// Whether a fault on the page goes on with it, and if so whether downwards.
    fn goes_on(&self, page: u64) -> Option<bool> {
        let near = |first: u64, then: u64| then.checked_sub(first).is_some_and(|by| by <= GAP_MAX);
        let [up, down] = self.next;
        match self.seen > 0 {
            true if up != NO_PAGE && near(up, page) => Some(false),
            true if down != NO_PAGE && near(page, down) => Some(true),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Streams {
    all: [Stream; STREAMS],
    faults: u64,
}

impl Streams {
    /// What is to come with this page: of what a sequence calls for as many as `may` says.
    fn beside(&mut self, page: u64, may: impl FnOnce(Window) -> u64) -> Window {
        self.faults += 1;
        let faults = self.faults;
        let mut all = self.all.iter_mut();
        let found = all.find_map(|stream| Some((stream.goes_on(page)?, stream)));
        if let Some((downwards, stream)) = found {
            stream.run += 1;
            stream.window = match stream.run < RUN_MIN {
                true => 0,
                false => may(Window {
                    pages: (stream.window * 2).max(RUN_MIN.into()),
                    downwards,
                }),
            };
            let behind = 1 + stream.window;
            stream.next = match downwards {
                true => [NO_PAGE, page.checked_sub(behind).unwrap_or(NO_PAGE)],
                false => [page + behind, NO_PAGE],
            };
            stream.seen = faults;
            return Window {
                pages: stream.window,
                downwards,
            };
        }
        if let Some(oldest) = self.all.iter_mut().min_by_key(|stream| stream.seen) {
            *oldest = Stream {
                next: [page + 1, page.checked_sub(1).unwrap_or(NO_PAGE)],
                run: 0,
                window: 0,
                seen: faults,
            };
        }
        Window {
            pages: 0,
            downwards: false,
        }
    }
}

/// See the head of the file.
pub(crate) struct Ahead {
    streams: Lock<Streams>,
    /// A bit for each block in which the program closed pages.
    closed: Table<AtomicU64>,
    /// Whether any was ever set.
    any: AtomicBool,
}

impl Ahead {
    /// For so many blocks of addresses.
    pub fn new(blocks: usize) -> Result<Ahead, SystemError> {
        Ok(Ahead {
            streams: Lock::default(),
            closed: Table::new(blocks.div_ceil(64))?,
            any: AtomicBool::new(false),
        })
    }

    /// From now on nothing is brought in ahead in these blocks: the program closes pages there, which the runtime itself could not read to take them away.
    pub fn close(&self, blocks: Range<usize>) {
        self.any.store(true, Ordering::SeqCst);
        self.each(blocks, |word, bits| word.fetch_or(bits, Ordering::SeqCst));
        fence(Ordering::SeqCst);
    }

    /// No page of these is closed any more.
    pub fn open(&self, blocks: Range<usize>) {
        if self.any.load(Ordering::SeqCst) {
            self.each(blocks, |word, bits| word.fetch_and(!bits, Ordering::SeqCst));
        }
    }

    fn each(&self, blocks: Range<usize>, change: impl Fn(&AtomicU64, u64) -> u64) {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min((at / 64 + 1) * 64);
            let bits = u64::MAX >> (64 - (end - at)) << (at % 64);
            change(&self.closed[at / 64], bits);
            at = end;
        }
    }

    /// What is to come with a page that faults, of what a sequence calls for as many as `may` says; none where somebody else is at it: it is a hint.
    pub fn window(&self, page: u64, may: impl FnOnce(Window) -> u64) -> Option<Window> {
        Some(self.streams.try_lock()?.beside(page, may))
    }

    /// Whether any of these pages lies in a closed block. Asked by who has begun to fill them and noted that: whoever closed one before either is seen here, or finds that page.
    pub fn is_closed(&self, mut pages: impl Iterator<Item = u64>) -> bool {
        fence(Ordering::SeqCst);
        self.any.load(Ordering::SeqCst)
            && pages.any(|page| {
                let (block, _) = place(page);
                self.closed[block / 64].load(Ordering::SeqCst) >> (block % 64) & 1 != 0
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(pages: u64) -> impl FnOnce(Window) -> u64 {
        move |window| window.pages.min(pages)
    }

    #[test]
    fn sequences_grow_and_others_bring_nothing() {
        for downwards in [false, true] {
            let mut streams = Streams::default();
            let mut page = 10_000;
            let mut windows = Vec::new();
            for at in 0..9u64 {
                let window = streams.beside(page, most(32));
                windows.push(window.pages);
                assert!(window.pages == 0 || window.downwards == downwards);
                let last = window.of(page).last().unwrap_or(page);
                assert_eq!(last.abs_diff(page), window.pages);
                page = if downwards { last - 1 } else { last + 1 };
                // Faults elsewhere meanwhile, two of them side by side.
                assert_eq!(streams.beside(1_000_000 + at * 50, most(32)).pages, 0);
                assert_eq!(streams.beside(1_000_001 + at * 50, most(32)).pages, 0);
            }
            assert_eq!(windows, [0, 0, 0, 3, 6, 12, 24, 32, 32]);
        }
    }

    #[test]
    fn what_leaves_pages_out_is_a_sequence_if_they_are_few() {
        for (step, is) in [(2, true), (4, true), (5, false)] {
            for downwards in [false, true] {
                let mut streams = Streams::default();
                let mut came = 0;
                for n in 0..8 {
                    let page = match downwards {
                        true => 10_000 - n * step,
                        false => 10_000 + n * step,
                    };
                    came += streams.beside(page, most(2)).pages;
                }
                assert_eq!(came > 0, is, "{step} pages apart");
            }
        }
    }

    #[test]
    fn blocks_are_closed_and_opened_one_by_one() {
        let ahead = Ahead::new(300).unwrap();
        let is_closed = |block: u64| ahead.is_closed([block * 512 + 511].into_iter());
        let closed = || {
            (0..300)
                .filter(|block| is_closed(*block))
                .collect::<Vec<_>>()
        };
        assert_eq!(closed(), []);
        for range in [3..5, 60..70, 128..192, 299..300] {
            ahead.close(range.clone());
            let blocks: Vec<u64> = range.clone().map(|block| block as u64).collect();
            assert_eq!(closed(), blocks);
            ahead.open(range.start + 1..range.end);
            assert_eq!(closed(), blocks[..1]);
            ahead.open(range);
            assert_eq!(closed(), []);
        }
        ahead.close(7..8);
        assert!(ahead.is_closed([6 * 512, 7 * 512, 8 * 512].into_iter()));
        assert!(!ahead.is_closed([6 * 512, 8 * 512].into_iter()));
    }

    #[test]
    fn to_and_fro_is_no_sequence_and_nothing_comes_before_the_first_page() {
        let mut streams = Streams::default();
        for at in 0..20 {
            assert_eq!(streams.beside(500 + at % 2, most(32)).pages, 0);
        }
        let mut came = Vec::new();
        for page in (0..6).rev() {
            let window = streams.beside(page, most(32));
            came.extend(window.of(page));
        }
        assert_eq!(came, [1, 0]);
    }

    #[test]
    fn a_sequence_that_is_not_seen_for_long_is_forgotten() {
        let mut streams = Streams::default();
        for page in 10..16 {
            streams.beside(page, most(0));
        }
        for other in 0..STREAMS as u64 {
            assert_eq!(streams.beside(5_000 + other * 9, most(32)).pages, 0);
        }
        assert_eq!(streams.beside(16, most(32)).pages, 0);
    }
}
