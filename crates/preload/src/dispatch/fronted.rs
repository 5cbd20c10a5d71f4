//! The program's own handlers of signals. One function of ours stands in front of each, and lets a signal that comes in the middle of malloc wait until its end.
//!
//! A handler in the middle would be inside itself (`tls`), and might wait for a lock that its own thread has. To hold signals back by the kernel takes two system calls, ten times as long as a
//! small malloc and free. So the signal comes; if its thread is in malloc, it is handed to the kernel once more, and the thread goes on with signals blocked; who ends malloc gives
//! it its mask back, and the signal comes then. Not while malloc opens the pool, once: a handler comes in the middle then. Where a filter of system calls refuses to hand signals over, the
//! kernel holds them back. Promises: who asks is told the action that the program set. Never: lets wait what an instruction may have raised; allocates.

use super::actions::{self, Action, OF_THE_C_LIBRARY};
use super::process;
use crate::{raw, tls};
use libc::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SIGNALS: usize = 64;

/// What the program set for one signal.
struct Set {
    handler: AtomicUsize,
    flags: AtomicU64,
}

static SETS: [Set; SIGNALS] = [const {
    Set {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicU64::new(0),
    }
}; SIGNALS];

/// From this one on several of a signal wait, in their order, and one that is handed to the kernel once more would come behind those that came later.
const QUEUED_FROM: c_long = 32;
/// Whether the program has set a handler for such a signal, or signals cannot be handed over.
static QUEUED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel has to hold signals back, to keep their order. A thread that is in malloc when another sets the first such handler may see two of its signals change places.
#[inline]
pub fn keeps_order() -> bool {
    QUEUED.load(Ordering::Relaxed)
}

type Handler = extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn front() -> usize {
    let front: unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_signal;
    front as usize
}

fn of(signal: c_long) -> Option<&'static Set> {
    let at = usize::try_from(signal - 1).ok()?;
    SETS.get(at)
}

/// Handler and flags of a signal, as the program set them last.
pub fn known(signal: c_long) -> (usize, u64) {
    of(signal).map_or((libc::SIG_DFL, 0), |set| {
        let flags = set.flags.load(Ordering::Acquire);
        (set.handler.load(Ordering::Acquire), flags)
    })
}

/// No function of ours is in front of any from now on: what the program sets is not seen any more.
pub fn leave() {
    for signal in 1..=SIGNALS as c_long {
        let (kernels, known) = (actions::kernels(signal), known(signal));
        if kernels.handler == front() {
            actions::put(signal, &told(kernels, known));
        }
    }
}

/// What the kernel is to have for an action of the program's, which is kept.
pub fn given(signal: c_long, action: Action) -> Action {
    match of(signal) {
        Some(set)
            if super::is_on()
                && action.is_function()
                && action.handler != front()
                && OF_THE_C_LIBRARY & 1 << (signal - 1) == 0 =>
        {
            keep(set, (action.handler, action.flags));
            if signal >= QUEUED_FROM {
                QUEUED.store(true, Ordering::SeqCst);
            }
            let flags = action.flags | libc::SA_SIGINFO as u64;
            Action {
                handler: front(),
                // Once: when it is called.
                flags: flags & !(libc::SA_RESETHAND as u64),
                ..action
            }
        }
        _ => action,
    }
}

/// The kernel refused it.
pub fn refused(signal: c_long, known: (usize, u64)) {
    if let Some(set) = of(signal) {
        keep(set, known);
    }
}

fn keep(set: &Set, (handler, flags): (usize, u64)) {
    set.flags.store(flags, Ordering::Release);
    set.handler.store(handler, Ordering::Release);
}

/// An action of the kernel's as the program knows it, by what was known then.
pub fn told(action: Action, known: (usize, u64)) -> Action {
    match action.handler == front() {
        true => Action {
            handler: known.0,
            flags: known.1,
            ..action
        },
        false => action,
    }
}

unsafe extern "C-unwind" fn on_signal(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let in_malloc = process::has_storage() && tls::is_in_malloc();
    // SAFETY: what the kernel gives for SA_SIGINFO.
    if in_malloc && unsafe { waits(signal, info, context) } {
        return;
    }
    let Some(set) = of(signal.into()) else { return };
    let handler = set.handler.load(Ordering::Acquire);
    if set.flags.load(Ordering::Acquire) & libc::SA_RESETHAND as u64 != 0 {
        actions::reset(signal);
    }
    // SAFETY: the program's promise; one that takes only the signal looks at no other argument.
    let handler: Handler = unsafe { std::mem::transmute(handler) };
    if !in_malloc {
        return handler(signal, info, context);
    }
    // It may jump out, or wait for another signal, which must not wait for malloc then.
    let before = raw::hold_signals();
    tls::set_in_malloc(false);
    handler(signal, info, context);
    tls::set_in_malloc(true);
    raw::let_signals(&before);
}

/// Finds out whether a signal can be handed to the kernel once more: asks for none.
pub fn learn() {
    // SAFETY: the kernel's structure, of which all zeros are a value: who asks is this very process.
    let said = unsafe {
        let mut info = std::mem::zeroed::<libc::siginfo_t>();
        again(0, &raw mut info)
    };
    if said != 0 {
        QUEUED.store(true, Ordering::SeqCst);
    }
}

/// To this thread.
///
/// # Safety
/// `info` is what a signal came with, or as much zeroed, and is read only.
unsafe fn again(signal: c_int, info: *mut libc::siginfo_t) -> c_long {
    // SAFETY: what a signal came with.
    unsafe {
        let process = raw::call(libc::SYS_getpid, [0; 6]);
        let thread = raw::call(libc::SYS_gettid, [0; 6]);
        let args = [process, thread, signal.into(), info as c_long, 0, 0];
        raw::call(libc::SYS_rt_tgsigqueueinfo, args)
    }
}

/// Lets it come again when malloc has ended. False: it cannot wait.
///
/// # Safety
/// In the handler of a signal, with what that was given.
unsafe fn waits(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    if terrace_vm::RAISED.contains(&signal) {
        return false;
    }
    // SAFETY: the kernel's own.
    unsafe {
        let before = raw::block_all();
        if again(signal, info) != 0 {
            // There are too many that wait.
            raw::set_mask(before);
            return false;
        }
        let context = context.cast::<libc::ucontext_t>();
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        tls::keep_for_after_malloc(mask.read());
        mask.write(mask.read() | raw::held_signals());
    }
    true
}
