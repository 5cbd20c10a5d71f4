//! What a fork is to find: no lock of the library's in the hands of a thread that the child does not have.
//!
//! Promises: a child can open a pool of its own, whatever other threads of its parent called meanwhile. Never: holds back a fork for longer than a look-up takes.

use crate::handle::{self, Places};
use crate::ranges::{self, Ranges};
use crate::state::{self, Thing};
use std::cell::UnsafeCell;
use std::sync::{Once, RwLockWriteGuard};

/// Of the thread that forks, from before until after it.
struct Held {
    _places: RwLockWriteGuard<'static, Places<Thing>>,
    _ranges: RwLockWriteGuard<'static, Ranges>,
}

struct Turn(UnsafeCell<Option<Held>>);

// SAFETY: only the thread that has the locks in it reaches it.
unsafe impl Sync for Turn {}

static TURN: Turn = Turn(UnsafeCell::new(None));
static WATCH: Once = Once::new();

extern "C" fn before() {
    // Nobody who has the second takes the first.
    let held = Held {
        _places: state::hold(),
        _ranges: ranges::hold(),
    };
    // SAFETY: this thread has the locks, and another that forks waits for them above.
    unsafe { *TURN.0.get() = Some(held) };
}

extern "C" fn after() {
    // SAFETY: this thread has the locks, or is its copy in the child.
    let held = unsafe { (*TURN.0.get()).take() };
    drop(held);
}

extern "C" fn after_in_child() {
    handle::forked();
    after();
}

/// From now on handles know when they are used in a fork, and a fork waits for who looks one up.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: plain functions of the right type. It fails for want of memory alone; then a fork is told by the memory itself.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
    });
}
