//! Faults taken in the thread that has them, for a program that does not know it: its system calls come here first (Syscall User Dispatch), so that the
//! kernel never meets a page that is not in DRAM.
//!
//! A call's memory is copied, to or from memory that is always there (`route`, `bounce`), but for streams that do not wait until a page first leaves (`in_place`); the copying faults as the program's own accesses do, in the thread. Calls that the
//! program makes by the usual functions of the C library are met by functions of ours in front of them (`front`), which costs nothing, and so do mutexes (`mutexes`); all others come as SIGSYS, which costs a signal, and go on on the program's stack if they may wait (`own_stack`).
//! Instructions of this library itself are never dispatched. Promises: a call that names served memory answers as it would without Terrace, as far as
//! `memory` knows what it takes; what it does not know is tried with pages brought in before. Never: waits, or keeps anything of a call beyond it.
//!
//! | of a thread | before | after |
//! |---|---|---|
//! | its selector (`tls`) | passes | dispatched, but while the thread is inside the runtime |
//! | SIGBUS, SIGSYS | the program's to block and to handle | never blocked; handled here, then by the program's handlers (`signals`) |
//! | alternate signal stack | the program's | ours, since a fault must find one; the program is told what it set |

mod actions;
mod altstack;
mod arguments;
mod bounce;
mod brought;
mod files;
mod front;
mod fronted;
mod in_place;
mod many;
mod memory;
mod mutexes;
mod named;
mod own_stack;
mod positions;
mod process;
mod route;
mod section;
mod signals;
mod spawn;
mod vectors;
mod waited;

use crate::{loaded, raw, tls};
use altstack::Longer;
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

pub use front::is_here;
pub use in_place::{change as files_change, serve};
pub use process::Copied;
pub use route::call;
pub use signals::{take_sigbus, while_faults_come};

const PR_SET_SYSCALL_USER_DISPATCH: c_long = 59;
const PR_SYS_DISPATCH_ON: c_long = 1;
const PAGE_BYTES: usize = 4096;
/// A thread's stack for signals: a fault reads a page back on it, and handlers of the program's may run on it, too.
const STACK_BYTES: usize = 256 << 10;
/// Threads that are looked at for one that has ended before a new one is made.
const LOOKS_MAX: usize = 8;

/// Calls of this process's threads go to the kernel.
const OFF: u8 = 0;
/// They are dispatched, which may be given up.
const ON: u8 = 1;
/// They are, for good: memory is served so, or it was asked for.
const FIXED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(OFF);
/// Where this library's instructions lie: start and length.
static OWN_START: AtomicUsize = AtomicUsize::new(0);
static OWN_BYTES: AtomicUsize = AtomicUsize::new(0);

/// What is kept of a thread: at the end of its stack for signals.
#[repr(C)]
pub struct Thread {
    /// The kernel's number of it.
    tid: std::sync::atomic::AtomicI32,
    stack: *mut u8,
    /// The stack for signals that the program asked for.
    asked: libc::stack_t,
    /// Ours in its place, where that is longer than `stack`.
    longer: Longer,
    buffers: bounce::Buffers,
    section: section::Section,
    /// What programs are started with is copied to; null until one is.
    texts: *mut u8,
    texts_taken: bool,
    /// The one that was made before it, or null.
    next: *mut Thread,
}

/// It has a page.
const _: () = assert!(size_of::<Thread>() <= PAGE_BYTES);

impl Thread {
    /// Whether the call that had its frame at `stack` was left by a jump, seen from a frame at `here`.
    fn has_left(&self, stack: usize, here: usize) -> bool {
        stack <= here && self.is_for_signals(stack) == self.is_for_signals(here)
    }

    /// Whether an address is of its stack for signals.
    fn is_for_signals(&self, at: usize) -> bool {
        at.wrapping_sub(self.stack as usize) < STACK_BYTES || self.longer.has(at)
    }

    /// Whether there is no such thread any more.
    fn has_ended(&self) -> bool {
        // SAFETY: asks whether there is one.
        unsafe {
            let process = raw::call(libc::SYS_getpid, [0; 6]);
            let there = [process, self.tid.load(Ordering::Acquire).into(), 0, 0, 0, 0];
            raw::call(libc::SYS_tgkill, there) == -c_long::from(libc::ESRCH)
        }
    }
}

/// What a thread has that asked for none.
const NO_STACK: libc::stack_t = libc::stack_t {
    ss_sp: std::ptr::null_mut(),
    ss_flags: libc::SS_DISABLE,
    ss_size: 0,
};

/// All that were ever made: each is a thread's, or free for the next.
static THREADS: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
/// Which of them is looked at next for one that is free: the search goes round, so that all are looked at in time, however many live. Null: the first.
static LOOKED: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());

/// Whether calls of this process's threads are dispatched.
#[inline]
pub fn is_on() -> bool {
    STATE.load(Ordering::Relaxed) != OFF
}

/// Whether what this thread calls is the program's, and dispatched.
#[inline]
pub fn is_dispatched() -> bool {
    is_on() && !tls::is_inside()
}

/// Whether signals wait by themselves while a thread is in malloc (`fronted`): where calls are not dispatched nobody sees the program set handlers.
#[inline]
pub fn signals_wait() -> bool {
    is_on() && !fronted::keeps_order()
}

/// Whether this system can: tried on the calling thread, and undone.
fn is_possible() -> bool {
    let selector = tls::PASSES;
    let args = [
        PR_SET_SYSCALL_USER_DISPATCH,
        PR_SYS_DISPATCH_ON,
        0,
        0,
        (&raw const selector) as c_long,
        0,
    ];
    let off = [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0];
    // SAFETY: while the selector says so, calls pass; it ends before the selector does.
    unsafe {
        let said = raw::call(libc::SYS_prctl, args);
        if said == 0 {
            raw::call(libc::SYS_prctl, off);
        }
        said == 0
    }
}

/// From now on calls of this process are dispatched: those of the calling thread, and of all that it makes. At the start of the program, before it has threads.
/// If it is not possible, it is left to threads, unless it `must` be. `our_own`: a handler of this library's that takes nothing, and need not wait.
pub fn begin(must: bool, our_own: usize) {
    if !must && !is_possible() {
        return;
    }
    find_own();
    mutexes::learn();
    in_place::begin();
    signals::install();
    STATE.store(if must { FIXED } else { ON }, Ordering::SeqCst);
    fronted::learn();
    signals::take_handlers(our_own);
    begin_thread();
}

/// Gives it up for this process, where the program is about to need what cannot be had so, and its memory is yet to come: threads will take its faults. Whether that was possible. Each
/// thread of the program is told at its next call.
pub fn give_up() -> bool {
    match STATE.compare_exchange(ON, OFF, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => fronted::leave(),
        Err(FIXED) => return false,
        Err(_) => {}
    }
    true
}

/// Whether memory that is served from now on is served so.
pub fn is_for_memory() -> bool {
    STATE.compare_exchange(ON, FIXED, Ordering::SeqCst, Ordering::SeqCst) != Err(OFF)
}

/// In the child of a fork: the kernel dispatches its calls no more, and from now on does again.
pub fn after_fork() {
    if !is_on() {
        return;
    }
    in_place::begin();
    signals::after_fork();
    match own() {
        // It may be on its stack for signals, or within a call.
        Some(thread) => {
            thread.tid.store(number(), Ordering::Release);
            begin_with(thread);
        }
        None => begin_thread(),
    }
}

/// Calls of this thread are dispatched from now on.
pub fn begin_thread() {
    match taken().or_else(made) {
        Some(thread) => begin_with(thread),
        None => raw::die(format_args!("no memory for a thread's stack for signals")),
    }
}

fn begin_with(thread: *mut Thread) {
    // SAFETY: this thread's own, from now on.
    unsafe {
        signals::begin_thread(&*thread);
        tls::set_own(thread.cast());
        tls::selector().write_volatile(match tls::is_inside() {
            true => tls::PASSES,
            false => tls::DISPATCHED,
        });
        let args = [
            PR_SET_SYSCALL_USER_DISPATCH,
            PR_SYS_DISPATCH_ON,
            OWN_START.load(Ordering::Relaxed) as c_long,
            OWN_BYTES.load(Ordering::Relaxed) as c_long,
            tls::selector() as c_long,
            0,
        ];
        let said = raw::call(libc::SYS_prctl, args);
        if said != 0 {
            raw::die(format_args!(
                "system calls cannot be dispatched (error {}): --faults thread does without",
                -said
            ));
        }
    }
}

/// What is kept of the calling thread.
fn own() -> Option<&'static mut Thread> {
    let own: *mut Thread = tls::own().cast();
    // SAFETY: set by `begin_thread`, never unmapped; only this thread and its signal handlers, which run to their end before it goes on, have it.
    unsafe { own.as_mut() }
}

/// Calls `with` for each thread but the calling one, also for some that have ended.
fn each_other(mut with: impl FnMut(&Thread)) {
    let mut at = THREADS.load(Ordering::Acquire);
    // SAFETY: made by `made`, never unmapped; what others look at of it is atomic.
    while let Some(thread) = unsafe { at.as_ref() } {
        if !std::ptr::eq(at, tls::own().cast()) {
            with(thread);
        }
        at = thread.next;
    }
}

fn number() -> c_int {
    // SAFETY: always answers.
    unsafe { raw::call(libc::SYS_gettid, [0; 6]) as c_int }
}

/// One whose thread has ended.
fn taken() -> Option<*mut Thread> {
    let own = number();
    let mut at = LOOKED.load(Ordering::Acquire);
    for _ in 0..LOOKS_MAX {
        if at.is_null() {
            at = THREADS.load(Ordering::Acquire);
        }
        // SAFETY: made by `made`, never unmapped.
        let thread = unsafe { at.as_ref() }?;
        let before = thread.tid.load(Ordering::Acquire);
        // One of this number, which is this thread's or was another's before, is nobody else's.
        if (before == own || thread.has_ended())
            && thread
                .tid
                .compare_exchange(before, own, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            LOOKED.store(thread.next, Ordering::Release);
            // SAFETY: nobody else's, from the exchange on.
            unsafe {
                (*at).asked = NO_STACK;
                (*at).longer.free();
                (*at).buffers.free();
                (*at).section.end();
                (*at).texts_taken = false;
            }
            return Some(at);
        }
        at = thread.next;
    }
    LOOKED.store(at, Ordering::Release);
    None
}

fn made() -> Option<*mut Thread> {
    let all = STACK_BYTES + 2 * PAGE_BYTES;
    let stack = raw::map_zeros(all);
    if stack.is_null() {
        return None;
    }
    // SAFETY: a new mapping: a page that nobody may touch, the stack, and a page for what is kept.
    unsafe {
        raw::mprotect(stack.cast(), PAGE_BYTES, libc::PROT_NONE);
        let thread: *mut Thread = stack.add(PAGE_BYTES + STACK_BYTES).cast();
        thread.write(Thread {
            tid: number().into(),
            stack: stack.add(PAGE_BYTES),
            asked: NO_STACK,
            longer: Longer::NONE,
            buffers: bounce::Buffers::default(),
            section: section::Section::new(),
            texts: std::ptr::null_mut(),
            texts_taken: false,
            next: THREADS.load(Ordering::Acquire),
        });
        loop {
            let next = (*thread).next;
            match THREADS.compare_exchange_weak(next, thread, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(thread),
                Err(now) => (*thread).next = now,
            }
        }
    }
}

/// Finds the instructions of this library.
fn find_own() {
    let Some((start, len)) = loaded::part_with(find_own as fn() as usize) else {
        raw::die(format_args!(
            "where this library lies cannot be found: --faults thread does without"
        ));
    };
    OWN_START.store(start, Ordering::Relaxed);
    OWN_BYTES.store(len, Ordering::Relaxed);
}
