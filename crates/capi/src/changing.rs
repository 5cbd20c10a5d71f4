//! Which threads run what a program gave to `terrace_update`, with an object in hand.
//!
//! Promises: what would wait for its own thread is refused. Never: holds anything.

use crate::error::Failure;
use std::cell::Cell;

thread_local! {
    /// Whether this thread is in what a program gave to `terrace_update`.
    static CHANGING: Cell<bool> = const { Cell::new(false) };
}

/// Refuses what would wait for the calling thread itself: it has an object in hand, and so may another have whose own is asked for.
pub(crate) fn refuse_inside() -> Result<(), Failure> {
    match CHANGING.get() {
        false => Ok(()),
        true => Err(Failure {
            errno: libc::EDEADLK,
            text: "called by what terrace_update calls, which has an object in hand and would wait for itself: return first".into(),
        }),
    }
}

/// Runs the program's own code with an object in hand.
pub(crate) fn inside<R>(run: impl FnOnce() -> R) -> R {
    CHANGING.set(true);
    let ran = run();
    CHANGING.set(false);
    ran
}
