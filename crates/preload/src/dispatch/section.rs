//! A call of a thread's that is given memory as it lies, and who waits for all such calls before a page leaves.
//!
//! | the caller, each time | who ends calm, once |
//! |---|---|
//! | says that its call begins | says that calm ends |
//! | (a fence) | (a fence) |
//! | asks whether it is calm: if not, makes no call | |
//! | the call | waits until each section that says so has ended |
//! | says that it has ended | |
//!
//! Promises: of the two one sees the other, so that no page leaves under a call. Never: makes a fence itself: the caller's is one of the compiler alone, since who ends calm has the kernel make all processors that run the
//! process have one (membarrier); loom (`tests/e2e/sections.rs`) runs it with two that are alike.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Of one thread: where the stack was of its call; 0: none is under way.
pub struct Section(AtomicUsize);

impl Section {
    pub fn new() -> Section {
        Section(AtomicUsize::new(0))
    }

    /// Where the stack was of the call under way; 0: none is.
    #[inline]
    pub fn at(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Begins one of a call whose stack is at `here`, if it is calm then.
    #[inline]
    pub fn begin(&self, here: usize, fence: impl Fn(), is_calm: impl Fn() -> bool) -> bool {
        self.0.store(here, Ordering::Relaxed);
        fence();
        let calm = is_calm();
        if !calm {
            self.end();
        }
        calm
    }

    /// It has ended, or its thread has.
    #[inline]
    pub fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}
