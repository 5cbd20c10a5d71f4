//! Stores that are under way, so that who makes another view of pages can wait for those that may not know of it.
//!
//! Who stores counts itself under one of two numbers, and only then asks how many views there are. Who has made one turns the number that new ones count themselves
//! under, and waits until nobody is left under the old; twice, since who read the number before may count itself under it later.
//! Promises: when the wait is over, none is under way that has not seen what was written before it. Never: holds up who stores.

use crate::sync::atomic::{AtomicUsize, Ordering, fence};

/// See the head of the file.
pub(crate) struct UnderWay {
    turn: AtomicUsize,
    counts: [AtomicUsize; 2],
}

/// A store that is under way until this is dropped.
pub(crate) struct Begun<'a>(&'a AtomicUsize);

impl UnderWay {
    pub fn new() -> UnderWay {
        UnderWay {
            turn: AtomicUsize::new(0),
            counts: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    /// A store begins: what decides where it goes is looked at after this.
    pub fn begin(&self) -> Begun<'_> {
        let count = &self.counts[self.turn.load(Ordering::Relaxed) & 1];
        count.fetch_add(1, Ordering::Relaxed);
        // Who waits sees this one counted, or this one sees what that one wrote before.
        fence(Ordering::SeqCst);
        Begun(count)
    }

    /// Waits for all that began before what the caller wrote last. `pause` passes some time, and says whether to go on waiting. One thread at a time.
    pub fn wait(&self, mut pause: impl FnMut() -> bool) -> bool {
        fence(Ordering::SeqCst);
        for _ in 0..self.counts.len() {
            let turn = self.turn.fetch_xor(1, Ordering::AcqRel) & 1;
            while self.counts[turn].load(Ordering::Acquire) > 0 {
                if !pause() {
                    return false;
                }
            }
            fence(Ordering::SeqCst);
        }
        true
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
