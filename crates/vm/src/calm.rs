//! Whether every page that came is still there, so that a system call may be given memory of a region as it lies.
//!
//! | a memory is | pages that are there | becomes |
//! |---|---|---|
//! | calm | stay, and stay writable once they are, until the program gives them back or closes them | ending, by who first makes one leave or protects one |
//! | ending | the same; others who would make pages leave wait | over, once nobody builds on it any more |
//! | over | may leave, or be protected, at any time | – |
//!
//! Promises: once it is over it stays so; no page leaves before it is. Never: waits for itself; who builds on calm says how that is waited for, boundedly.

use crate::sys::Lock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

const CALM: u8 = 0;
const ENDING: u8 = 1;
const OVER: u8 = 2;

/// See the head of the file.
pub(crate) struct Calm {
    state: AtomicU8,
    /// Held by who ends it.
    ending: Lock<()>,
    /// Returns when nobody builds on calm any more, or after a time.
    others: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Calm {
    pub fn new() -> Calm {
        Calm {
            state: AtomicU8::new(CALM),
            ending: Lock::new(()),
            others: OnceLock::new(),
        }
    }

    /// Who builds on it: `others` is called once, when it is ending, and returns when nobody does any more. Without, nobody may.
    pub fn build_on(&self, others: Box<dyn Fn() + Send + Sync>) {
        // A second one has nothing to wait for that the first has not.
        let _first = self.others.set(others);
    }

    /// Whether it is calm, and may be built on.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.state.load(Ordering::Acquire) == CALM
    }

    /// Before a page leaves, or is protected.
    #[inline]
    pub fn end(&self) {
        if self.state.load(Ordering::Acquire) != OVER {
            self.end_now();
        }
    }

    #[cold]
    fn end_now(&self) {
        let _only = self.ending.lock();
        if self.state.load(Ordering::Acquire) == OVER {
            return;
        }
        // Seen by who begins from here on, or who began is seen by `others`: that has a fence for both.
        self.state.store(ENDING, Ordering::SeqCst);
        if let Some(others) = self.others.get() {
            others();
        }
        self.state.store(OVER, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn it_ends_once_and_nobody_goes_on_before() {
        let calm = Arc::new(Calm::new());
        let waited = Arc::new(AtomicUsize::new(0));
        let (seen, counted) = (calm.clone(), waited.clone());
        calm.build_on(Box::new(move || {
            assert!(!seen.is_here());
            std::thread::sleep(std::time::Duration::from_millis(20));
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        assert!(calm.is_here());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    calm.end();
                    assert_eq!(waited.load(Ordering::SeqCst), 1);
                });
            }
        });
        assert!(!calm.is_here());
    }
}
