//! Faults taken by handler threads: for programs that do not know this library, since the kernel's own accesses fault too.
//!
//! Promises: threads that the application's signals do not reach; stopped and joined when dropped. Never: touches a region.

use crate::backing::PAGE_BYTES;
use crate::error::VmError;
use crate::fault::{Outcome, report};
use crate::inside::{self, Quiet};
use crate::parts::Core;
use crate::policy;
use crate::say::die;
use crate::servant::is_own;
use crate::stats::Counters;
use crate::sys::{Event, SystemError};
use crate::touch::Touch;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use terrace_media::descriptors::keep;

/// The stack of a handler thread: reading a page back needs little.
const STACK_BYTES: usize = 256 << 10;

/// What a thread is woken for.
const FAULT: u64 = 0;
const STOP: u64 = 1;

/// The threads.
pub(crate) struct Handlers {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Handlers {
    pub fn start(core: &Arc<Core>, threads: usize) -> Result<Handlers, VmError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(keep)
            .map_err(SystemError::call("making an eventfd"))?;
        let mut handlers = Handlers {
            stop: Arc::new(stop),
            threads: Vec::with_capacity(threads),
        };
        // The threads have what is blocked here from their first instruction on.
        let _quiet = Quiet::new();
        for _ in 0..threads {
            let (core, stop) = (core.clone(), handlers.stop.clone());
            let bell = bell(&core, &stop).map_err(SystemError::call("waiting for faults"))?;
            let thread = std::thread::Builder::new()
                .name("terrace-faults".into())
                .stack_size(STACK_BYTES)
                .spawn(move || serve(&core, &bell))
                .map_err(|e| SystemError::Call {
                    what: "starting a handler thread",
                    errno: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
                })?;
            handlers.threads.push(thread);
        }
        Ok(handlers)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // If one of them looked at the last moment how the cap is shared, it is this thread.
        let others = self.threads.drain(..).filter(|thread| !is_own(thread));
        for thread in others {
            // It says nothing when it ends, and aborts the program rather than panic.
            let _ = thread.join();
        }
    }
}

/// What one thread sleeps on. A fault wakes one thread that sleeps, where polling the faults would wake all of them.
fn bell(core: &Core, stop: &OwnedFd) -> Result<OwnedFd, Errno> {
    let bell = keep(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let one = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    epoll::add(&bell, &core.uffd, epoll::EventData::new_u64(FAULT), one)?;
    let all = epoll::EventFlags::IN;
    epoll::add(&bell, stop, epoll::EventData::new_u64(STOP), all)?;
    Ok(bell)
}

fn serve(core: &Core, bell: &OwnedFd) {
    inside::run(|| {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(FAULT),
        }; 2];
        loop {
            let came = match epoll::wait(bell, &mut events, None) {
                Ok(came) => came,
                Err(Errno::INTR) => 0,
                Err(errno) => die(format_args!("waiting for faults failed: {errno}")),
            };
            if events[..came].iter().any(|event| event.data.u64() == STOP) {
                return;
            }
            serve_ready(core);
        }
    });
}

/// Serves faults until there is none.
fn serve_ready(core: &Core) {
    loop {
        match core.uffd.next() {
            Ok(Some(event)) => serve_one(core, event),
            Ok(None) => return,
            Err(errno) => die(format_args!("reading a fault failed: {errno}")),
        }
        core.evict_ahead(policy::ahead_of_faults(core.pages_now()));
    }
}

fn serve_one(core: &Core, event: Event) {
    let touch = match event.write {
        true => Touch::Write,
        false => Touch::Read,
    };
    let began = Instant::now();
    // Before the thread goes on, or it would meet the next page while that is filling, and wake another handler.
    let came = core.bring_ahead(event.address, touch) || core.bring_followed(event.address, touch);
    let resolved = match came {
        true => Outcome::Ready { woken: true },
        false => core.resolve(event.address, touch),
    };
    let ns = began.elapsed().as_nanos() as u64;
    Counters::add(&core.counters.fault_ns, ns);
    let address = event.address & !(PAGE_BYTES - 1);
    match resolved {
        Outcome::Ready { woken: true } => {}
        Outcome::Ready { woken: false } => wake(core, address),
        Outcome::Failed(failure) => {
            report(&failure);
            refuse(core, address);
        }
        Outcome::Foreign => {
            // By its address: whose page it is there is nobody to say.
            if !core.late.may_be((address / PAGE_BYTES) as u64) {
                let _ = core.uffd.poison(address);
            }
            wake(core, address);
        }
    }
}

/// The thread meets SIGBUS when it tries again, unless the page has come since.
fn refuse(core: &Core, address: usize) {
    if let Some(page) = core.space.page_at(address) {
        core.poison(page);
    }
    wake(core, address);
}

fn wake(core: &Core, address: usize) {
    if let Err(errno) = core.uffd.wake(address) {
        die(format_args!(
            "waking a thread after its fault failed: {errno}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Way;
    use crate::opp::{Heap, ObjectPool};
    use crate::store::{Store, StoreOptions};

    fn alloc_at(pool: &ObjectPool, wanted: *mut u8) {
        let mut others = Vec::new();
        loop {
            match pool.alloc().unwrap() {
                object if object == wanted => break,
                other => others.push(other),
            }
        }
        for other in others {
            pool.free(other).unwrap();
        }
    }

    /// It was seen to kill a program that made no mistake: an object that was allocated where a freed one had been.
    #[test]
    fn a_fault_whose_thread_has_gone_on_harms_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20)).unwrap();
        let heap = Heap::open(store, Way::Handlers(1)).unwrap();
        let pool = heap.pool(64, 1000).unwrap();
        let core = &heap.memory().core;
        for late_faults in [1, 2] {
            let object = pool.alloc().unwrap();
            // SAFETY: an object that is allocated.
            unsafe { object.write_volatile(7) };
            pool.free(object).unwrap();
            let failed = heap.memory().stats().failed_faults;
            for _ in 0..late_faults {
                inside::run(|| {
                    serve_one(
                        core,
                        Event {
                            address: object as usize,
                            write: false,
                        },
                    );
                });
            }
            let told = heap.memory().stats().failed_faults - failed;
            assert_eq!(told, late_faults - 1);
            alloc_at(&pool, object);
            // SAFETY: as above.
            assert_eq!(unsafe { object.read_volatile() }, 0);
            pool.free(object).unwrap();
        }
    }
}
