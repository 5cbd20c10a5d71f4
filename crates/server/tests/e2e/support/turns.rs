//! Which tests run beside one another. Never: knows of other processes: cargo runs one test binary after the other.
//!
//! | a test | holds | runs beside |
//! |---|---|---|
//! | that judges moments, or takes most of the ports | [`alone`], first of all | none |
//! | that keeps the machine busy | [`busy`], before its directory | all but these and those that are alone |
//! | any other | its directory, which has [`beside`] | all but those that are alone |

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static ALL: RwLock<()> = RwLock::new(());
static BUSY: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread's test has its turn: who asks twice while another waits to be alone would wait for itself.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// No other test runs while this is held.
pub struct Alone {
    _all: RwLockWriteGuard<'static, ()>,
}

/// Waits until the tests that run have ended. Others wait from then on.
pub fn alone() -> Alone {
    let all = ALL.write().unwrap_or_else(PoisonError::into_inner);
    HAS_TURN.set(true);
    Alone { _all: all }
}

impl Drop for Alone {
    fn drop(&mut self) {
        HAS_TURN.set(false);
    }
}

/// A test that is alone waits for this one.
pub struct Beside {
    all: Option<RwLockReadGuard<'static, ()>>,
}

/// Waits while a test is alone or is about to be. A test that has its turn already gets nothing more.
pub fn beside() -> Beside {
    let is_first = !HAS_TURN.replace(true);
    let all = is_first.then(|| ALL.read().unwrap_or_else(PoisonError::into_inner));
    Beside { all }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if self.all.is_some() {
            HAS_TURN.set(false);
        }
    }
}

/// Waits until no other test of those that hold this runs: two of them take no less time beside one another.
pub fn busy() -> MutexGuard<'static, ()> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}
