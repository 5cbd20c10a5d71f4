//! The program's own handlers of signals, where its calls are dispatched: each runs outside, whatever it interrupts.
//!
//! malloc's functions hold no signals back there, which would take ten times as long as they do. So a handler may come while its thread is inside the heap, and its calls would be taken for the runtime's: not
//! dispatched, so EFAULT at cold memory, and what it maps nobody's. One function stands in front of all handlers, and steps out for them.
//!
//! Promises: the program is told the handlers that it set. Never: holds a signal back, or allocates.

use super::process;
use crate::tls;
use libc::{c_int, c_long, c_void, siginfo_t};
use std::sync::atomic::{AtomicUsize, Ordering};

const SIGNALS: usize = 65;
/// The program's functions by signal. A signal between its change and the kernel's is the new one's.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

fn in_front() -> usize {
    let function: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = on_signal;
    function as usize
}

/// What the kernel is to call for a handler of the program's, and the one that was known before.
pub fn set(signal: c_long, handler: usize) -> (usize, usize) {
    let place = usize::try_from(signal).ok().and_then(|n| HANDLERS.get(n));
    match (place, handler) {
        (Some(place), own) if !matches!(own, libc::SIG_DFL | libc::SIG_IGN) => {
            (in_front(), place.swap(own, Ordering::SeqCst))
        }
        (Some(place), other) => (other, place.load(Ordering::SeqCst)),
        (None, other) => (other, other),
    }
}

/// The kernel refused that.
pub fn unset(signal: c_long, before: usize) {
    if let Some(place) = usize::try_from(signal).ok().and_then(|n| HANDLERS.get(n)) {
        place.store(before, Ordering::SeqCst);
    }
}

/// What the program set, of what the kernel has; `before` its change was this.
pub fn told(kernels: usize, before: usize) -> usize {
    match kernels == in_front() {
        true => before,
        false => kernels,
    }
}

unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let handler = HANDLERS[signal as usize].load(Ordering::SeqCst);
    // What has storage of its own making is never inside.
    let _outside = process::has_storage().then(tls::step_out);
    // SAFETY: the program's promise: a function for a handler, which takes the first argument or all three; the kernel gives all, whatever the flags say.
    unsafe {
        let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            std::mem::transmute(handler);
        handler(signal, info, context);
    }
}
