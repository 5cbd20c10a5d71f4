//! The one runtime of the process: the pool, the heap over it, and what is known of the program's mappings.
//!
//! Opened by the first allocation that is large enough, so that a program that never makes one costs nothing, and one that turns itself into a
//! daemon does so before. Promises: opened once; other threads that need it wait. Never: closed; it ends with the process.

use crate::mappings::Mappings;
use crate::remote::Remote;
use crate::serve::Home;
use crate::settings::Settings;
use crate::{answer, dispatch, raw, report, rings, sandbox, tls, token};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use terrace_vm::heap::{Closing, HEAP_MAX_BYTES, PageHeap};
use terrace_vm::opp::Heap;
use terrace_vm::store::{Store, StoreOptions};
use terrace_vm::{Memory, Options, Way};

/// This process is not served.
const OFF: u8 = 0;
/// It is, and nothing was asked for yet.
const WAITING: u8 = 1;
const OPENING: u8 = 2;
const READY: u8 = 3;

/// Addresses for each byte that the SSD takes: what is reserved and never used costs none.
const ADDRESSES_PER_BYTE: u64 = 4;
/// Exit status when the pool cannot be had: what env, nohup and others use for failures of their own.
pub const EXIT_CANNOT: i32 = 125;

/// What may be asked for before the pool is opened, bytes.
const UNSERVED_BYTES: usize = 1 << 20;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static SETTINGS: OnceLock<Settings> = OnceLock::new();
static STATE: AtomicU8 = AtomicU8::new(OFF);
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
/// Smaller allocations stay where they are.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
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

/// Takes note that this process is to be served.
pub fn prepare(settings: Settings) {
    token::prepare();
    MIN_BYTES.store(settings.min_bytes.max(1), Ordering::Relaxed);
    // Said once.
    let _ = SETTINGS.set(settings);
    STATE.store(WAITING, Ordering::Release);
}

/// Whether this process is to be served, now or later.
pub fn is_asked_for() -> bool {
    STATE.load(Ordering::Relaxed) != OFF
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

/// The runtime for an allocation of so many bytes, if it is to serve that; opens it if need be.
#[inline]
pub fn for_bytes(bytes: usize) -> Option<&'static Runtime> {
    match bytes < MIN_BYTES.load(Ordering::Relaxed) {
        true => None,
        false => ready_or_open(bytes),
    }
}

/// The runtime, if it is open.
#[inline]
pub fn get() -> Option<&'static Runtime> {
    let runtime = RUNTIME.load(Ordering::Acquire);
    // SAFETY: made by Box::leak, and never freed.
    unsafe { runtime.as_ref() }
}

/// Opens the pool now, where it would be opened later: what comes next may forbid it.
pub fn open_early() {
    if STATE.load(Ordering::Acquire) == WAITING {
        open_or_wait();
    }
}

/// Length of the pool's file; 0 if this process is not served.
pub fn pool_bytes() -> u64 {
    match is_asked_for() {
        true => SETTINGS.get().map_or(0, |settings| settings.ssd_bytes),
        false => 0,
    }
}

fn ready_or_open(bytes: usize) -> Option<&'static Runtime> {
    match STATE.load(Ordering::Acquire) {
        OFF => None,
        READY => get(),
        // A program that hardly asks for anything costs nothing.
        WAITING
            if bytes < UNSERVED_BYTES
                && ASKED.fetch_add(bytes, Ordering::Relaxed) < UNSERVED_BYTES =>
        {
            None
        }
        _ => open_or_wait(),
    }
}

#[cold]
fn open_or_wait() -> Option<&'static Runtime> {
    let (before, now) = (Ordering::AcqRel, Ordering::Acquire);
    match STATE.compare_exchange(WAITING, OPENING, before, now) {
        Ok(_) => {
            let errno = raw::errno();
            let _inside = tls::enter();
            if let Some(limit) = sandbox::too_low_a_limit() {
                sandbox::say_too_low(limit);
                raw::exit(EXIT_CANNOT);
            }
            match open() {
                Ok(Some(runtime)) => {
                    publish(runtime);
                    report::here();
                    report::listen();
                    answer::listen();
                }
                Ok(None) => {
                    raw::say(format_args!(
                        "process {} is not served: another process of the program has the pool",
                        std::process::id()
                    ));
                    STATE.store(OFF, Ordering::Release);
                }
                Err(why) => {
                    raw::say(format_args!("{why}"));
                    if let Some(settings) = SETTINGS.get().filter(|settings| settings.scratch) {
                        // It may not be there yet.
                        let _ = std::fs::remove_dir_all(&settings.pool);
                    }
                    // SAFETY: ends the process, without running what it left for its end.
                    unsafe {
                        raw::system(libc::SYS_exit_group, [EXIT_CANNOT.into(), 0, 0, 0, 0, 0])
                    };
                }
            }
            raw::set_errno(errno);
        }
        Err(_) => {
            while STATE.load(Ordering::Acquire) == OPENING {
                // SAFETY: sleeps a tenth of a millisecond.
                unsafe { libc::usleep(100) };
            }
        }
    }
    get()
}

/// Addresses of one of the two heaps over so much of the SSD.
fn heap_bytes(ssd_bytes: u64) -> u64 {
    (ssd_bytes * ADDRESSES_PER_BYTE).min(HEAP_MAX_BYTES)
}

/// Addresses that are reserved for both.
pub fn reserved_bytes(ssd_bytes: u64) -> u64 {
    2 * heap_bytes(ssd_bytes).next_multiple_of(terrace_vm::ADDRESSES_ALIGN_BYTES as u64)
}

fn open() -> Result<Option<Runtime>, String> {
    let settings = SETTINGS
        .get()
        .ok_or("nothing says how it is to be served")?;
    if !token::take() {
        return Ok(None);
    }
    let options = StoreOptions {
        prewrite: false,
        ..StoreOptions::scratch(&settings.pool, settings.dram_bytes, settings.ssd_bytes)
    };
    let store = Store::open(&options).map_err(|e| format!("the pool cannot be opened: {e}"))?;
    if settings.scratch {
        // Nobody else opens it; the file goes with the last process that has it open.
        let _ = std::fs::remove_dir_all(&settings.pool);
    }
    let bytes = heap_bytes(store.usable_bytes());
    let memory = Memory::new(Options {
        way: match dispatch::is_for_memory() {
            true => Way::InThread,
            false => Way::Handlers(settings.threads),
        },
        unmodified: true,
        reserve_bytes: reserved_bytes(store.usable_bytes()) as usize,
        ..Heap::options(&store)
    });
    let memory = memory.map_err(|e| e.to_string())?;
    if dispatch::is_on() {
        dispatch::take_sigbus();
    }
    let heap = Heap::new(memory.clone(), store).map_err(|e| e.to_string())?;
    let area = || PageHeap::with_views(&heap, bytes).map_err(|e| e.to_string());
    let ((malloc, first), (maps, second)) = (area()?, area()?);
    heap.begin_large();
    Ok(Some(Runtime {
        malloc: Area::new(malloc, Mappings::default()),
        maps: Area::new(maps, Mappings::default()),
        addresses: memory.addresses(),
        memory,
        cap_bytes: settings.dram_bytes,
        pool: Pool::Home(Home {
            heap,
            views: [first, second],
        }),
    }))
}

/// From now on it serves.
pub fn publish(runtime: Runtime) {
    let runtime = Box::leak(Box::new(runtime));
    MALLOC.set(&runtime.malloc.heap);
    MAPS.set(&runtime.maps.heap);
    RUNTIME.store(runtime, Ordering::Release);
    rings::runtime_is_there();
    STATE.store(READY, Ordering::Release);
}
