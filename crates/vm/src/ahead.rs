//! Faults that go along the addresses: what will be touched next is brought in by the handler that has such a fault at hand.
//!
//! A handler thread takes ten times as long to be woken as to fill a page. So after a few faults in a row the pages behind come with the one that faulted, twice as
//! many each time. Promises: bounded by [`policy::ahead_pages`]; a page that cannot be had ahead is left to the fault that will ask for it; none once
//! [`Ahead::end`] has returned, but those that are filling. Never: waits for room, or for another thread.

use crate::fault::Touch;
use crate::memory::Core;
use crate::policy;
use crate::stats::Counters;
use crate::sys::Lock;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Sequences followed at a time; the one that was not seen for longest gives way.
const STREAMS: usize = 16;
/// Faults in a row before anything is brought in: what lies across the border of two pages is no sequence.
const RUN_MIN: u32 = 3;

/// A sequence of faults.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// The page that would go on with it.
    next: u64,
    /// Faults in a row.
    run: u32,
    /// Pages that came with the last one.
    window: u64,
    /// When it was seen last, in faults.
    seen: u64,
}

#[derive(Default)]
struct Streams {
    all: [Stream; STREAMS],
    faults: u64,
}

impl Streams {
    /// How many pages behind this one are to come with it.
    fn behind(&mut self, page: u64, most: u64) -> u64 {
        self.faults += 1;
        let faults = self.faults;
        if let Some(stream) = self.all.iter_mut().find(|s| s.seen > 0 && s.next == page) {
            stream.run += 1;
            stream.window = match stream.run < RUN_MIN {
                true => 0,
                false => (stream.window * 2).max(RUN_MIN.into()).min(most),
            };
            stream.next = page + 1 + stream.window;
            stream.seen = faults;
            return stream.window;
        }
        if let Some(oldest) = self.all.iter_mut().min_by_key(|stream| stream.seen) {
            *oldest = Stream {
                next: page + 1,
                run: 0,
                window: 0,
                seen: faults,
            };
        }
        0
    }
}

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Ahead {
    streams: Lock<Streams>,
    ended: AtomicBool,
}

impl Ahead {
    /// From now on nothing is brought in ahead: the program closes pages, which the runtime itself could not read to take them away.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Asked by who has begun to fill a page and noted that: whoever ended it before either is seen here, or finds that page.
    pub fn has_ended(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ended.load(Ordering::SeqCst)
    }
}

impl Core {
    /// Brings in what follows a page that faults, if faults come in sequence.
    pub fn bring_ahead(&self, address: usize, touch: Touch) {
        let Some(page) = self.space.page_at(address) else {
            return;
        };
        let most = policy::ahead_pages(self.pages_now());
        // Who is not alone here leaves it: it is a hint.
        let behind = match self.ahead.streams.try_lock() {
            Some(mut streams) => streams.behind(page, most),
            None => return,
        };
        for next in page + 1..=page + behind {
            if self.ahead.has_ended() {
                return;
            }
            match self.bring(next, touch) {
                Some(came) => Counters::add(&self.counters.ahead, came.into()),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_grow_and_others_bring_nothing() {
        let mut streams = Streams::default();
        let mut page = 100;
        let mut windows = Vec::new();
        for at in 0..9u64 {
            let behind = streams.behind(page, 32);
            windows.push(behind);
            page += 1 + behind;
            // Faults elsewhere meanwhile, two of them side by side.
            assert_eq!(streams.behind(1_000_000 + at * 50, 32), 0);
            assert_eq!(streams.behind(1_000_001 + at * 50, 32), 0);
        }
        assert_eq!(windows, [0, 0, 0, 3, 6, 12, 24, 32, 32]);
    }

    #[test]
    fn a_sequence_that_is_not_seen_for_long_is_forgotten() {
        let mut streams = Streams::default();
        for page in 10..16 {
            streams.behind(page, 0);
        }
        for other in 0..STREAMS as u64 {
            assert_eq!(streams.behind(5_000 + other * 9, 32), 0);
        }
        assert_eq!(streams.behind(16, 32), 0);
    }
}
