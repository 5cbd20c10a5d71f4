//! Which process this is, among those that forked from one another.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the first that watched.
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// Which process this is: a number that a fork has not in common with its parent.
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// From now on a fork is noticed; memories see to that themselves. For who makes memories in the child of a fork, in a handler of pthread_atfork: this goes
/// before that handler is registered. Answers an error number, or 0.
pub fn watch_forks() -> i32 {
    let mut said = 0;
    WATCH.call_once(|| {
        // SAFETY: a plain function of the right type that only stores to an atomic.
        said = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
    said
}
