//! fork, in front of the C library's: the child sees its parent's memory as it was.
//!
//! In the parent, before: nobody allocates or frees; changed pages go to the store; the process that has the pool makes a view of all pages as they are
//! (`vm`'s versions), and a thread that serves it. In the child, after: the same addresses are mapped anew, and their pages come from that view. So a
//! child costs its parent the writing back of what it has changed in DRAM, and itself a fault for each page that it touches.
//!
//! Ours are the first handlers that are registered with pthread_atfork: so they run last before the fork, when other allocators have taken their locks in
//! served memory, and first after it. Promises: child and parent see nothing of each other's changes; what a child holds comes back when it ends.
//! Never: lets a fork wait for a child.

use crate::arena::ARENA;
use crate::mappings::Mappings;
use crate::remote::{Remote, RemoteGround, RemotePages};
use crate::runtime::{self, Area, Pool, Runtime};
use crate::serve::ForChild;
use crate::{
    answer, cancel, dispatch, grow, next, opening, own, raw, report, serve, settings, small,
    streams, tls, token,
};
use libc::{c_int, c_void};
use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use terrace_vm::heap::{Closable, HeldHeap, none_closed};
use terrace_vm::{Memory, Options, PAGES_MIN, VmError, Way, descriptors};

/// Handler threads of a child.
const THREADS: usize = 2;

/// Between the handlers before and after a fork, in the thread that forks.
struct Forking {
    /// What the child gets, or why it gets nothing.
    given: Result<ForChild, i32>,
    _heaps: [HeldHeap<'static>; 2],
    mappings: [MutexGuard<'static, Mappings>; 2],
    signals: libc::sigset_t,
    runtime: &'static Runtime,
    _inside: tls::Inside,
    whole: Option<cancel::Off>,
}

struct Turn(UnsafeCell<Option<Forking>>);

// SAFETY: only the thread that has FORKING reaches it.
unsafe impl Sync for Turn {}

/// The same of a fork without a pool: the signals that its thread held back, which is not cancelled.
struct Bare(UnsafeCell<Option<(libc::sigset_t, cancel::Off)>>);

// SAFETY: only the thread that has all locks of the arena reaches it.
unsafe impl Sync for Bare {}

static BARE: Bare = Bare(UnsafeCell::new(None));

static TURN: Turn = Turn(UnsafeCell::new(None));
/// One fork at a time.
static FORKING: AtomicBool = AtomicBool::new(false);
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers the handlers, before any others.
pub fn register() {
    if !settings::are_there() || REGISTERED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _inside = tls::enter();
    terrace_vm::watch_forks();
    // SAFETY: plain functions of the right type.
    let said = unsafe {
        next::__register_atfork(
            Some(before),
            Some(after_in_parent),
            Some(after_in_child),
            std::ptr::null_mut(),
        )
    };
    if said != 0 {
        raw::die(format_args!("handlers of fork are refused: error {said}"));
    }
}

/// What pthread_atfork calls.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<unsafe extern "C" fn()>,
    parent: Option<unsafe extern "C" fn()>,
    child: Option<unsafe extern "C" fn()>,
    whose: *mut c_void,
) -> c_int {
    register();
    // The C library's list of them is read in a child before that has its memory.
    let _inside = tls::enter_for_program();
    // SAFETY: the program's promise.
    unsafe { next::__register_atfork(prepare, parent, child, whose) }
}

/// As fork(2). Fails with ENOMEM where a second version of what is served has no room on the SSD or in DRAM for its slots, or children have their part of the cap already.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    if !tls::is_inside() {
        let _whole = cancel::off();
        let _inside = tls::enter();
        let errno = raw::errno();
        opening::wait_before_fork();
        raw::set_errno(errno);
        if runtime::get().is_some_and(|runtime| !runtime.may_fork()) {
            raw::set_errno(libc::ENOMEM);
            return -1;
        }
    }
    // SAFETY: as asked.
    unsafe { next::fork() }
}

impl Runtime {
    /// How many more pages a second version of all would come to.
    fn second_pages(&self) -> u64 {
        self.malloc.heap.promised_pages() + self.maps.heap.promised_pages()
    }

    fn may_fork(&self) -> bool {
        self.malloc.heap.cool();
        let pages = self.second_pages();
        match &self.pool {
            Pool::Home(home) => serve::may_fork(&home.heap, pages),
            Pool::Away(remote) => remote.may_fork(pages),
        }
    }

    /// A view of all pages as they are, for a child.
    fn view(&self) -> Result<ForChild, i32> {
        if let Pool::Home(home) = &self.pool {
            home.heap.keep_terrace();
        }
        for area in [&self.malloc, &self.maps] {
            area.heap.write_back().map_err(|_| libc::ENOMEM)?;
        }
        let (pages, shared) = (self.second_pages(), self.shared_bytes());
        match &self.pool {
            Pool::Home(home) => {
                let views = [&*home.views[0], &*home.views[1]];
                serve::start(&home.heap, views, pages, shared)
            }
            Pool::Away(remote) => remote.fork(pages, shared),
        }
    }

    /// DRAM that a child has together with this process, a page of it until one of them writes to that page: all that is not served. Mostly it is tables of
    /// the runtime, which a parent that goes on allocating and faulting writes to everywhere.
    fn shared_bytes(&self) -> u64 {
        let served = self.memory.stats().resident_pages * terrace_vm::PAGE_BYTES as u64;
        match report::status_bytes("RssAnon:") {
            // Without /proc: what is counted of the tables.
            0 => self.malloc.heap.stats().table_bytes + self.maps.heap.stats().table_bytes,
            all => all.saturating_sub(served),
        }
    }
}

unsafe extern "C" fn before() {
    if tls::is_inside() {
        return;
    }
    let whole = cancel::off();
    let Some(runtime) = runtime::get() else {
        return before_bare(whole);
    };
    let inside = tls::enter();
    let signals = raw::block_signals();
    // The C library takes it after this, where a thread that has it may wait for a stream, and the stream's thread for memory: so it comes before all locks of ours.
    streams::lock_list();
    while FORKING.swap(true, Ordering::AcqRel) {
        // SAFETY: sleeps a tenth of a millisecond.
        unsafe { libc::usleep(100) };
    }
    // What it keeps of freed pages is not a child's business.
    runtime.malloc.heap.cool();
    let areas = [&runtime.malloc, &runtime.maps];
    let forking = Forking {
        mappings: areas.map(Area::mappings),
        _heaps: areas.map(|area| area.heap.hold()),
        given: runtime.view(),
        signals,
        runtime,
        _inside: inside,
        whole: Some(whole),
    };
    // SAFETY: FORKING is this thread's.
    unsafe { *TURN.0.get() = Some(forking) };
    ARENA.lock_all();
}

/// Where there is no pool: another thread may have a lock of the arena all the same, and a child would wait for it for ever.
fn before_bare(whole: cancel::Off) {
    // Held back until it is done: a handler's allocation would wait for its own thread.
    let signals = raw::block_signals();
    streams::lock_list();
    ARENA.lock_all();
    // SAFETY: only who has the arena's locks reaches it.
    unsafe { *BARE.0.get() = Some((signals, whole)) };
}

/// Ends that, in the thread that began it: it is the one that comes here from outside. Whether it was so.
fn after_bare(end_list: fn()) -> bool {
    if tls::is_inside() {
        return false;
    }
    // SAFETY: this thread has the arena's locks.
    let held = unsafe { (*BARE.0.get()).take() };
    ARENA.unlock_all();
    end_list();
    if let Some((signals, _whole)) = held {
        raw::restore_signals(&signals);
    }
    true
}

/// What `before` left, if it was there. `end_list`: what becomes of the lock of the list of streams.
fn turn(end_list: fn()) -> Option<Forking> {
    if after_bare(end_list) || !FORKING.load(Ordering::Acquire) {
        return None;
    }
    ARENA.unlock_all();
    end_list();
    // SAFETY: this thread forked, so FORKING is its own.
    unsafe { (*TURN.0.get()).take() }
}

unsafe extern "C" fn after_in_parent() {
    let Some(mut forking) = turn(streams::unlock_list) else {
        return;
    };
    let (signals, whole) = (forking.signals, forking.whole.take());
    drop(forking);
    FORKING.store(false, Ordering::Release);
    raw::restore_signals(&signals);
    drop(whole);
}

unsafe extern "C" fn after_in_child() {
    dispatch::after_fork();
    descriptors::unlist_all();
    terrace_vm::hold_device();
    report::not_here();
    token::not_here();
    opening::forked();
    answer::close();
    let Some(mut forking) = turn(streams::reset_list) else {
        if !tls::is_inside() && runtime::get().is_some() {
            // Opened by another thread during the fork: nobody made a view of it, and nothing of this child's is in it.
            opening::serve_no_more();
        }
        return;
    };
    let (signals, whole) = (forking.signals, forking.whole.take());
    small::bound_from_now(own::beside_bytes(forking.runtime.cap_bytes));
    let (base, bytes) = forking.runtime.addresses;
    let kept = keep_free(base, bytes);
    serve::close_in_child();
    let mappings = [0, 1].map(|n| std::mem::take(&mut *forking.mappings[n]));
    let (old, inside) = (forking.runtime, tls::enter());
    let given = std::mem::replace(&mut forking.given, Err(0));
    // Locks, heaps and views in it are the parent's.
    std::mem::forget(forking);
    if let Pool::Away(remote) = &old.pool {
        remote.clone().close();
    }
    let made = given
        .map_err(|errno| format!("its parent's memory cannot be kept: error {errno}"))
        .and_then(|given| in_child(old, given, mappings, kept).map_err(|e| e.to_string()));
    match made {
        Ok(runtime) => opening::publish(runtime),
        Err(why) => {
            // What it allocates from now on is its own; its parent's heap is held for good.
            opening::serve_no_more();
            raw::say(format_args!(
                "a fork's child has no memory of its parent's: {why}"
            ));
        }
    }
    drop(inside);
    // What `before` entered in this thread, whose guard would have told the kernel so.
    tls::leave();
    if dispatch::is_on() && !tls::is_inside() {
        tls::dispatch_now();
    }
    FORKING.store(false, Ordering::Release);
    raw::restore_signals(&signals);
    drop(whole);
}

/// Takes the parent's addresses, which the kernel left out of the child, before anything else comes to lie there.
/// False: something does already.
fn keep_free(base: usize, bytes: usize) -> bool {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses it where anything is mapped; then what wants the addresses says so.
    let mapped = unsafe { raw::mmap(base as *mut c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
    mapped as usize == base
}

/// The runtime of a child: the parent's addresses, with pages that come over `end`, of which it has `share_bytes` in DRAM.
/// With `kept`, its addresses are taken.
fn in_child(
    old: &Runtime,
    (end, share_bytes): ForChild,
    mappings: [Mappings; 2],
    kept: bool,
) -> Result<Runtime, VmError> {
    descriptors::list(end.as_raw_fd());
    // If the other process is gone, the first page says so.
    let _ = crate::wire::greet(&end);
    let remote = Arc::new(Remote::new(end));
    let (base, bytes) = old.addresses;
    let buffer_bytes = grow::buffer_bytes(share_bytes, share_bytes);
    if kept {
        // SAFETY: what `keep_free` has mapped, in which nothing is; the next call takes it, before anything else is mapped.
        unsafe { raw::munmap(base as *mut c_void, bytes) };
    }
    let memory = Memory::new(Options {
        way: match dispatch::is_for_memory() {
            true => Way::InThread,
            false => Way::Handlers(THREADS),
        },
        unmodified: true,
        pages_max: (buffer_bytes / serve::PAGE_AND_TABLE_BYTES).max(PAGES_MIN),
        reserve_bytes: bytes,
        base: Some(base),
        ..Options::default()
    })?;
    // More pages where they lie close.
    memory.set_buffer_bytes(buffer_bytes);
    if dispatch::is_on() {
        dispatch::serve(&memory);
    }
    grow::watch(&memory, &remote, share_bytes);
    none_closed();
    let mut mappings = mappings.into_iter();
    let mut area = |number: u32, old: &Area| {
        let own = old.addresses();
        let slot = (own.start - base) / terrace_vm::ADDRESSES_ALIGN_BYTES;
        let pages = RemotePages {
            remote: remote.clone(),
            area: number,
        };
        let count = (own.len() / terrace_vm::PAGE_BYTES) as u64;
        let pages = Arc::new(Closable::new(Arc::new(pages)));
        let region = memory.region_at(slot, count, pages)?;
        let ground = Box::new(RemoteGround(remote.clone()));
        // SAFETY: this is the only thread of a child that was forked by the one that held the heap; the old one is not used again.
        let heap = unsafe { old.heap.in_child(region, ground) };
        let area = Area::new(heap, mappings.next().unwrap_or_default());
        area.protect_again();
        Ok::<Area, VmError>(area)
    };
    Ok(Runtime {
        malloc: area(0, &old.malloc)?,
        maps: area(1, &old.maps)?,
        addresses: old.addresses,
        memory: memory.clone(),
        cap_bytes: old.cap_bytes,
        pool: Pool::Away(remote),
    })
}
