//! The one runtime of the process: the pool, the heap over it, and what is known of the program's mappings.
//!
//! Promises: what is there once stays, but in a fork's child, which has its own; who asks whether an address is served takes no lock. Never: closed; it ends with the process. How it comes to be is in
//! `opening`.

use crate::mappings::Mappings;
use crate::remote::Remote;
use crate::serve::Home;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrace_vm::Memory;
use terrace_vm::heap::{Closing, PageHeap};

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
/// What malloc hands out, and what mmap does: apart, since the program's own allocator lives in what it mapped, and an address must say whose an
/// allocation is.
static MALLOC: Addresses = Addresses::new();
static MAPS: Addresses = Addresses::new();

/// Addresses that are served: 0 until there are some.
struct Addresses {
    base: AtomicUsize,
    bytes: AtomicUsize,
}

impl Addresses {
    const fn new() -> Addresses {
        Addresses {
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    fn set(&self, heap: &PageHeap) {
        self.bytes.store(heap.bytes(), Ordering::Relaxed);
        self.base.store(heap.base() as usize, Ordering::Relaxed);
    }

    #[inline]
    fn has(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && address.wrapping_sub(base) < self.bytes.load(Ordering::Relaxed)
    }

    fn overlap(&self, start: usize, len: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        let end = base + self.bytes.load(Ordering::Relaxed);
        base != 0 && start < end && base < start.saturating_add(len)
    }
}

/// A heap, and what the program mapped or protected in it.
pub struct Area {
    pub heap: PageHeap,
    mappings: Mutex<Mappings>,
    /// Ranges of it whose protection differs: nothing is looked up while there is none.
    pub closed: AtomicUsize,
    /// Of these, those that nobody may read.
    pub unreadable: Mutex<Closing>,
}

impl Area {
    /// With what is known of mappings in it.
    pub fn new(heap: PageHeap, mappings: Mappings) -> Area {
        Area {
            heap,
            mappings: Mutex::new(mappings),
            closed: AtomicUsize::new(0),
            unreadable: Mutex::new(Closing::new(0)),
        }
    }

    /// What is known of mappings in it.
    pub fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its addresses begin and end.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let base = self.heap.base() as usize;
        base..base + self.heap.bytes()
    }
}

/// See the head of the file.
pub struct Runtime {
    pub malloc: Area,
    pub maps: Area,
    /// Of all its memory: start and length.
    pub addresses: (usize, usize),
    pub memory: Memory,
    pub cap_bytes: u64,
    pub pool: Pool,
}

/// Where pages come from.
pub enum Pool {
    /// This process has the pool.
    Home(Home),
    /// A process that it descends from has.
    Away(Arc<Remote>),
}

/// Whether an address is one of an allocation of ours.
#[inline]
pub fn is_malloc(address: usize) -> bool {
    MALLOC.has(address)
}

/// Whether an address is served.
#[inline]
pub fn has(address: usize) -> bool {
    MALLOC.has(address) || MAPS.has(address)
}

/// Whether a range has addresses that are served.
pub fn overlaps(start: usize, len: usize) -> bool {
    MALLOC.overlap(start, len) || MAPS.overlap(start, len)
}

/// Whether the program has taken rights from served memory, anywhere.
#[inline]
pub fn has_closed() -> bool {
    let any = |area: &Area| area.closed.load(Ordering::Relaxed) > 0;
    get().is_some_and(|runtime| any(&runtime.malloc) || any(&runtime.maps))
}

/// The runtime, if it is open.
#[inline]
pub fn get() -> Option<&'static Runtime> {
    let runtime = RUNTIME.load(Ordering::Acquire);
    // SAFETY: made by Box::leak, and never freed.
    unsafe { runtime.as_ref() }
}

/// In a fork's child that has no memory: nothing is served any more, and what was is nobody's. The parent's heaps and locks are left behind.
pub fn leave() {
    for addresses in [&MALLOC, &MAPS] {
        addresses.base.store(0, Ordering::Relaxed);
    }
    RUNTIME.store(std::ptr::null_mut(), Ordering::Release);
}

/// From now on it is there.
pub fn set(runtime: Runtime) {
    let runtime = Box::leak(Box::new(runtime));
    MALLOC.set(&runtime.malloc.heap);
    MAPS.set(&runtime.maps.heap);
    RUNTIME.store(runtime, Ordering::Release);
}
