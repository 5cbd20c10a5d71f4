//! A thread that evicts before anybody needs room, where the threads of a program that does not know this library take their faults themselves: who faults would do it else, often with a lock of the
//! program's in its hands, and a batch takes as long as several reads.
//!
//! Promises: sleeps while there is room; stopped and joined when dropped. Never: keeps anybody from evicting by himself who finds no room.

use crate::inside;
use crate::memory::Core;
use crate::policy;
use crate::signal;
use crate::sys::SystemError;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The stack of the thread: it packs pages, and writes to the log.
const STACK_BYTES: usize = 256 << 10;

/// The thread.
pub(crate) struct Evictor {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Evictor {
    /// None where there is no bell for it.
    pub fn start(core: &Arc<Core>) -> Result<Option<Evictor>, SystemError> {
        if core.little_room.is_none() {
            return Ok(None);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let own = (core.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("terrace-evict".into())
            .stack_size(STACK_BYTES)
            .spawn(move || evict(&own.0, &own.1))
            .map_err(|e| SystemError::Call {
                what: "starting a thread that evicts pages",
                errno: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
            })?;
        Ok(Some(Evictor {
            core: core.clone(),
            stop,
            thread: Some(thread),
        }))
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(bell) = &self.core.little_room {
            bell.ring_anyway();
        }
        // If it looked at the last moment how the cap is shared, it is this thread.
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            // It aborts the program rather than panic.
            let _ = thread.join();
        }
    }
}

fn evict(core: &Core, stop: &AtomicBool) {
    let Some(bell) = &core.little_room else {
        return;
    };
    // SAFETY: blocks signals of this thread only.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal::deferred(), std::ptr::null_mut()) };
    inside::run(|| {
        while !stop.load(Ordering::SeqCst) {
            if !core.evict_ahead(policy::batch_pages(core.pages_now())) {
                // What cannot leave now is left to who needs it; who finds little room from now on rings, or the next after it.
                bell.sleep(|| stop.load(Ordering::SeqCst));
            }
        }
    });
}
