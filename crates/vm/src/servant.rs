//! A thread of the runtime that sleeps on a bell until there is work for it.
//!
//! Promises: takes none of the program's signals; stopped and joined when dropped. Never: keeps the runtime's memory from being dropped.

use crate::bell::Bell;
use crate::inside::Quiet;
use crate::parts::Core;
use crate::sys::SystemError;
use rustix::io::Errno;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What such a thread is for.
pub(crate) struct Work {
    /// Its name.
    pub name: &'static str,
    /// What a failure to start it says.
    pub starting: &'static str,
    pub stack_bytes: usize,
    /// What it sleeps on. None: it is not needed.
    pub bell: fn(&Core) -> Option<&Bell>,
    /// What it does until it is to stop.
    pub run: fn(&Core, &Bell, &AtomicBool),
}

/// The thread.
pub(crate) struct Servant {
    core: Arc<Core>,
    bell: fn(&Core) -> Option<&Bell>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Servant {
    /// None where there is no bell for it.
    pub fn start(core: &Arc<Core>, work: &'static Work) -> Result<Option<Servant>, SystemError> {
        if (work.bell)(core).is_none() {
            return Ok(None);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let own = (core.clone(), stop.clone());
        // The thread has what is blocked here from its first instruction on.
        let quiet = Quiet::new();
        let thread = std::thread::Builder::new()
            .name(work.name.into())
            .stack_size(work.stack_bytes)
            .spawn(move || serve(&own.0, work, &own.1))
            .map_err(|e| SystemError::Call {
                what: work.starting,
                errno: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
            })?;
        drop(quiet);
        Ok(Some(Servant {
            core: core.clone(),
            bell: work.bell,
            stop,
            thread: Some(thread),
        }))
    }
}

fn serve(core: &Core, work: &Work, stop: &AtomicBool) {
    if let Some(bell) = (work.bell)(core) {
        (work.run)(core, bell, stop);
    }
}

/// Whether it is the calling thread. Asks nothing that the standard library keeps for this one: in a destructor of thread-specific data, where a program may close a pool, that is gone,
/// and to ask for it would panic.
pub(crate) fn is_own(thread: &JoinHandle<()>) -> bool {
    // SAFETY: asks for a number.
    thread.as_pthread_t() == unsafe { libc::pthread_self() }
}

impl Drop for Servant {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(bell) = (self.bell)(&self.core) {
            bell.ring_anyway();
        }
        // If it looked at the last moment how the cap is shared, it is this thread.
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|thread| !is_own(thread)) {
            // It aborts the program rather than panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Memory, Options};
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    /// What the thread drops: itself.
    static SLOT: Mutex<Option<Servant>> = Mutex::new(None);
    static ENDED: AtomicBool = AtomicBool::new(false);

    /// It looks how the cap is shared at the last moment, and so has the last of the owners in its hands.
    #[test]
    fn a_thread_that_drops_itself_does_not_wait_for_itself() {
        static WORK: Work = Work {
            name: "terrace-test",
            starting: "starting a thread of a test",
            stack_bytes: 256 << 10,
            bell: |core| core.little_room.as_ref(),
            run: |_, _, stop| {
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(20) {
                    if let Some(own) = SLOT.lock().unwrap().take() {
                        drop(own);
                        ENDED.store(stop.load(Ordering::SeqCst), Ordering::SeqCst);
                        return;
                    }
                }
            },
        };
        let memory = Memory::new(Options {
            unmodified: true,
            ..Options::default()
        })
        .unwrap();
        let servant = Servant::start(&memory.core, &WORK).unwrap();
        *SLOT.lock().unwrap() = servant;
        let until = Instant::now() + Duration::from_secs(20);
        while !ENDED.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "it waits for itself");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
