//! How the runtime comes to be: opened by the first allocation that is large enough, so that a program that never makes one costs nothing, and one that
//! turns itself into a daemon does so before.
//!
//! Promises: opened once; other threads that need it wait; where it cannot be had the program ends, or one of several goes on without, with a line that says why. Never: opens another.

use crate::mappings::Mappings;
use crate::reserved::{self, Heaps};
use crate::runtime::{self, Area, Pool, Runtime};
use crate::serve::Home;
use crate::settings::{self, Settings};
use crate::{answer, cancel, dispatch, own, raw, report, rings, small, tls, token};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrace_vm::heap::PageHeap;
use terrace_vm::opp::Heap;
use terrace_vm::store::{Store, StoreOptions};
use terrace_vm::{Memory, Options, Way};

/// This process is not served.
const OFF: u8 = 0;
/// It is, and nothing was asked for yet.
const WAITING: u8 = 1;
const OPENING: u8 = 2;
const READY: u8 = 3;

/// Of a tenth of a millisecond each: 10 s.
const FORK_WAITS_MAX: u32 = 100_000;

/// Exit status when the pool cannot be had: what env, nohup and others use for failures of their own.
pub const EXIT_CANNOT: i32 = 125;

/// Who asked for so many bytes, at once or in all, opens the pool.
const FIRST_BYTES: usize = 1 << 20;
/// Where several processes may be served, small ones are not to keep others from that: it has so much then, or would have.
const HAS_OF_SEVERAL_BYTES: usize = 16 << 20;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(FIRST_BYTES);
/// That this process is not served.
static SAID: AtomicBool = AtomicBool::new(false);
static SETTINGS: OnceLock<Settings> = OnceLock::new();
static STATE: AtomicU8 = AtomicU8::new(OFF);
/// Smaller allocations stay where they are, as far as `small` lets them.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Takes note that this process is to be served.
pub fn prepare(settings: Settings) {
    MIN_BYTES.store(settings.min_bytes.max(1), Ordering::Relaxed);
    // Said once.
    let _ = SETTINGS.set(settings);
    STATE.store(WAITING, Ordering::Release);
}

/// Whether this process is to be served, now or later.
pub fn is_asked_for() -> bool {
    STATE.load(Ordering::Relaxed) != OFF
}

/// The runtime for a mapping of so many bytes, if it is to serve that; opens it if need be.
pub fn for_mapping(bytes: usize) -> Option<&'static Runtime> {
    match bytes < MIN_BYTES.load(Ordering::Relaxed) {
        true => None,
        false => ready_or_open(bytes),
    }
}

/// The same for an allocation that the code at `caller` asks for.
#[inline]
pub fn for_bytes(bytes: usize, caller: usize) -> Option<&'static Runtime> {
    let is_small = bytes < MIN_BYTES.load(Ordering::Relaxed);
    match is_small && !small::are_enough() || small::stays(bytes, caller) {
        true => None,
        false => {
            if is_small && small::passed() {
                own::look();
            }
            ready_or_open(bytes)
        }
    }
}

/// Opens the pool now, where it would be opened later: what comes next may forbid it. A small one of several does without for good.
pub fn open_early() {
    if STATE.load(Ordering::Acquire) != WAITING {
        return;
    }
    match settings::is_another() && is_small(0) {
        true => STATE.store(OFF, Ordering::Release),
        false => drop(open_or_wait()),
    }
}

/// Whether this process, of several that may be served, has little, with so many bytes more.
fn is_small(bytes: usize) -> bool {
    let (errno, inside) = (raw::errno(), tls::enter());
    let has = report::status_bytes("RssAnon:") as usize;
    drop(inside);
    raw::set_errno(errno);
    // Without /proc it is taken for a large one.
    has > 0 && has.saturating_add(bytes) < HAS_OF_SEVERAL_BYTES
}

/// A thread that is about to fork waits for one that opens the pool, since the child would have it half open; not for ever, as that one may wait for a lock of the first.
pub fn wait_before_fork() {
    for _ in 0..FORK_WAITS_MAX {
        if STATE.load(Ordering::Acquire) != OPENING {
            break;
        }
        // SAFETY: sleeps a tenth of a millisecond.
        unsafe { libc::usleep(100) };
    }
}

/// In the child of a fork: what its parent had to say of itself it has not said, and a thread that was opening the pool is not there.
pub fn forked() {
    let (before, now) = (Ordering::AcqRel, Ordering::Acquire);
    // Else it is in another state, which holds.
    let _ = STATE.compare_exchange(OPENING, WAITING, before, now);
    if SAID.swap(false, Ordering::Relaxed) {
        ASKED.store(0, Ordering::Relaxed);
        FIRST.store(FIRST_BYTES, Ordering::Relaxed);
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
        READY => runtime::get(),
        // A program that hardly asks for anything costs nothing.
        WAITING if !is_enough(bytes) => None,
        _ => open_or_wait(),
    }
}

fn is_enough(bytes: usize) -> bool {
    let before = ASKED.fetch_add(bytes, Ordering::Relaxed);
    if before.max(bytes) < FIRST.load(Ordering::Relaxed) {
        return false;
    }
    let waits = settings::are_several() && is_small(bytes);
    if waits {
        FIRST.store(before + FIRST_BYTES, Ordering::Relaxed);
    }
    !waits
}

#[cold]
fn open_or_wait() -> Option<&'static Runtime> {
    let _whole = cancel::off();
    let (before, now) = (Ordering::AcqRel, Ordering::Acquire);
    match STATE.compare_exchange(WAITING, OPENING, before, now) {
        Ok(_) => {
            let errno = raw::errno();
            let _inside = tls::enter();
            if let Some(limit) = reserved::too_low_a_limit() {
                reserved::say_too_low(limit);
                if !settings::is_another() {
                    raw::exit(EXIT_CANNOT);
                }
                STATE.store(OFF, Ordering::Release);
                raw::set_errno(errno);
                return None;
            }
            match open() {
                Ok(Some(runtime)) => {
                    publish(runtime);
                    own::begin();
                    report::here();
                    report::listen();
                    answer::listen();
                }
                Ok(None) => {
                    say_not_served();
                    STATE.store(WAITING, Ordering::Release);
                }
                Err(why) if settings::is_another() => {
                    raw::say(format_args!(
                        "process {} is not served, and its memory is not under the cap: {why}",
                        std::process::id()
                    ));
                    STATE.store(OFF, Ordering::Release);
                }
                Err(why) => {
                    raw::say(format_args!("{why}"));
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
    runtime::get()
}

/// Once; it tries again when it has asked for as much as so far, since another may have ended by then.
fn say_not_served() {
    let asked = ASKED.load(Ordering::Relaxed);
    let next = asked.saturating_mul(2).max(FIRST_BYTES);
    FIRST.store(next, Ordering::Relaxed);
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "process {} is not served, and its memory is not under the cap: {} of the program have pools, and no more may at a time (--processes)",
            std::process::id(),
            SETTINGS.get().map_or(0, |settings| settings.processes)
        ));
    }
}

/// Makes the directory of a pool that goes with the program, whose name others can see: where somebody else was quicker, what leaves DRAM would be his to read and to change.
fn own_dir(dir: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    // Of a process of this program that ended before it could take it away.
    let found = std::fs::symlink_metadata(dir)?;
    // SAFETY: asks for a number.
    let is_own = found.is_dir() && found.uid() == unsafe { libc::geteuid() };
    match is_own && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(std::io::Error::other(format!(
            "{} is there already, and not this user's alone: somebody else may have made it; choose another place with --pool DIR",
            dir.display()
        ))),
    }
}

/// The first pool that nobody has; none if all are taken.
fn open_store(settings: &Settings) -> Result<Option<Arc<Store>>, String> {
    let mut why = None;
    for nth in 0..settings.processes {
        match token::take(&settings.name, nth) {
            Ok(true) => {}
            Ok(false) => continue,
            // Where such sockets are refused: two of one program's with a pool are better than one without a bound.
            Err(_) if settings.processes == 1 => {}
            Err(e) => return Err(format!("a name for the pool cannot be had: {e}")),
        }
        let dir = settings.pool_dir(nth);
        let options = StoreOptions {
            prewrite: false,
            helped: false,
            ..StoreOptions::scratch(&dir, settings.dram_bytes, settings.ssd_bytes)
        };
        if settings.scratch {
            own_dir(&dir).map_err(|e| format!("the pool cannot be opened: {e}"))?;
        }
        let opened = Store::open(&options);
        if settings.scratch {
            // Nobody else opens it; the file goes with the last process that has it open. It may not be there yet.
            let _ = std::fs::remove_dir_all(&dir);
        }
        match opened {
            Ok(store) => return Ok(Some(store)),
            // Another run may have this one of the directory.
            Err(e) => why = Some(format!("the pool cannot be opened: {e}")),
        }
        token::not_here();
    }
    why.map_or(Ok(None), Err)
}

fn open() -> Result<Option<Runtime>, String> {
    let settings = SETTINGS
        .get()
        .ok_or("nothing says how it is to be served")?;
    let Some(store) = open_store(settings)? else {
        return Ok(None);
    };
    let heaps = Heaps::of(store.usable_bytes());
    let memory = Memory::new(Options {
        way: match dispatch::is_for_memory() {
            true => Way::InThread,
            false => Way::Handlers(settings.threads),
        },
        unmodified: true,
        reserve_bytes: heaps.reserved_bytes() as usize,
        ..Heap::options(&store)
    });
    let memory = memory.map_err(|e| e.to_string())?;
    if dispatch::is_on() {
        dispatch::take_sigbus();
        dispatch::serve(&memory);
    }
    let heap = Heap::new(memory.clone(), store).map_err(|e| e.to_string())?;
    let area = |bytes| PageHeap::with_views(&heap, bytes).map_err(|e| e.to_string());
    let (malloc, first) = area(heaps.malloc_bytes)?;
    let (maps, second) = area(heaps.maps_bytes)?;
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

/// In a fork's child that has no memory: what is asked for stays with the program's own malloc and the kernel.
pub fn serve_no_more() {
    STATE.store(OFF, Ordering::Release);
    runtime::leave();
}

/// From now on it serves.
pub fn publish(runtime: Runtime) {
    runtime::set(runtime);
    rings::runtime_is_there();
    STATE.store(READY, Ordering::Release);
}
