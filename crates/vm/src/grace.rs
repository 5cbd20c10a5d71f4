//! Page tables that were given back and that the kernel has not freed yet: it does so a grace period of RCU later, some 20 ms, now and then
//! many times that. At 60,000 faults a second over scattered pages that is 5 MiB on the average, which a memory cgroup counts.
//!
//! A thread waits for grace periods, one after the other, as long as tables wait; between, it sleeps. So what waits is known: some DRAM is kept
//! for it, more is taken from the page buffer, and who evicts waits when it is too much.
//!
//! Promises: a table counts until it is freed, or a little longer. Never: wakes while no table is given back.

use crate::bell::Bell;
use crate::memory::Core;
use crate::signal;
use crate::sys::{SystemError, await_grace};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The stack of the thread: it calls the kernel and nothing else.
const STACK_BYTES: usize = 64 << 10;

/// What waits.
pub(crate) struct Grace {
    given_back: AtomicU64,
    freed: AtomicU64,
    bell: Bell,
    /// DRAM that is kept for them beside the page buffer.
    pub kept_bytes: usize,
}

impl Grace {
    pub fn new(kept_bytes: usize) -> Result<Grace, SystemError> {
        Ok(Grace {
            given_back: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            bell: Bell::new()?,
            kept_bytes,
        })
    }

    /// Tables that were given back and may not be free yet.
    pub fn tables(&self) -> usize {
        let freed = self.freed.load(Ordering::SeqCst);
        (self.given_back.load(Ordering::SeqCst)).saturating_sub(freed) as usize
    }

    /// What they come to.
    pub fn bytes(&self) -> usize {
        self.tables() * crate::PAGE_BYTES
    }

    /// So many were given back.
    pub fn give_back(&self, tables: usize) {
        self.given_back.fetch_add(tables as u64, Ordering::SeqCst);
        if tables > 0 {
            self.bell.ring();
        }
    }
}

/// The thread. Stopped and joined when dropped.
pub(crate) struct Watch {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(core: &Arc<Core>) -> Result<Watch, SystemError> {
        let stop = Arc::new(AtomicBool::new(false));
        let own = (core.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("terrace-tables".into())
            .stack_size(STACK_BYTES)
            .spawn(move || watch(&own.0, &own.1))
            .map_err(|e| SystemError::Call {
                what: "starting a thread that watches page tables",
                errno: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
            })?;
        Ok(Watch {
            core: core.clone(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.core.grace.bell.ring_anyway();
        if let Some(thread) = self.thread.take() {
            // It does nothing that panics.
            let _ = thread.join();
        }
    }
}

fn watch(core: &Core, stop: &AtomicBool) {
    // SAFETY: blocks signals of this thread only.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal::deferred(), std::ptr::null_mut()) };
    let grace = &core.grace;
    while !stop.load(Ordering::SeqCst) {
        if grace.tables() == 0 {
            grace
                .bell
                .sleep(|| grace.tables() > 0 || stop.load(Ordering::SeqCst));
            continue;
        }
        let given_back = grace.given_back.load(Ordering::SeqCst);
        await_grace();
        grace.freed.store(given_back, Ordering::SeqCst);
        if core.waiting.load(Ordering::Acquire) > 0 {
            core.freed.wake(0);
        }
    }
}
