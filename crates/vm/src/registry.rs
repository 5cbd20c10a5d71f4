//! Which memories take faults in this process, so that a signal handler finds the one an address belongs to.
//!
//! Promises: a memory that was found stays until the finder is done. Never: allocates or takes a lock.

use crate::error::VmError;
use crate::forks;
use crate::parts::Core;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Memories of a process.
const MEMORIES_MAX: usize = 16;

struct Entry {
    /// Of which process it is (`forks`): what a child of a fork has of its parent is free there, whoever was looking at it.
    generation: AtomicU32,
    core: AtomicPtr<Core>,
    /// Threads that are looking at it.
    users: AtomicU32,
}

/// Of no process: never used, or being taken by a thread.
const UNUSED: u32 = u32::MAX;
const BEING_TAKEN: u32 = u32::MAX - 1;

static ENTRIES: [Entry; MEMORIES_MAX] = [const {
    Entry {
        generation: AtomicU32::new(UNUSED),
        core: AtomicPtr::new(std::ptr::null_mut()),
        users: AtomicU32::new(0),
    }
}; MEMORIES_MAX];

/// From now on faults find it.
pub(crate) fn add(core: &Arc<Core>) -> Result<(), VmError> {
    let pointer = Arc::as_ptr(core).cast_mut();
    let (own, relaxed) = (forks::generation(), Ordering::Relaxed);
    let free = ENTRIES.iter().find(|entry| {
        let whose = entry.generation.load(Ordering::SeqCst);
        if whose == own {
            let null = std::ptr::null_mut();
            let taken = (entry.core).compare_exchange(null, pointer, Ordering::SeqCst, relaxed);
            return taken.is_ok();
        }
        let taken =
            (entry.generation).compare_exchange(whose, BEING_TAKEN, Ordering::SeqCst, relaxed);
        if whose == BEING_TAKEN || taken.is_err() {
            return false;
        }
        // Nobody looks at it before it is of this process.
        entry.users.store(0, Ordering::SeqCst);
        entry.core.store(pointer, Ordering::SeqCst);
        entry.generation.store(own, Ordering::SeqCst);
        true
    });
    free.map(drop).ok_or(VmError::TooMany { max: MEMORIES_MAX })
}

/// From now on nobody has it.
pub(crate) fn remove(core: &Arc<Core>) {
    let pointer = Arc::as_ptr(core).cast_mut();
    for entry in &ENTRIES {
        if entry.core.load(Ordering::Relaxed) == pointer {
            entry.core.store(std::ptr::null_mut(), Ordering::SeqCst);
            while entry.users.load(Ordering::SeqCst) > 0 {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "once for each memory, at its end"
                )]
                std::thread::yield_now();
            }
        }
    }
}

/// Runs `with` on the memory whose addresses these are; none if there is no such.
pub(crate) fn find<R>(address: usize, with: impl FnOnce(&Core) -> R) -> Option<R> {
    for entry in &ENTRIES {
        let is_own = entry.generation.load(Ordering::Acquire) == forks::generation();
        if !is_own || entry.core.load(Ordering::Relaxed).is_null() {
            continue;
        }
        entry.users.fetch_add(1, Ordering::SeqCst);
        let core = entry.core.load(Ordering::SeqCst);
        // SAFETY: `remove` clears the pointer and then waits for users, and this thread became one before it read the pointer; the
        // memory's owner calls `remove` before it lets go.
        let core = unsafe { core.as_ref() };
        if let Some(core) = core.filter(|core| core.space.page_at(address).is_some()) {
            let result = with(core);
            entry.users.fetch_sub(1, Ordering::SeqCst);
            return Some(result);
        }
        entry.users.fetch_sub(1, Ordering::SeqCst);
    }
    None
}
