//! Where system calls cannot be dispatched: another kind of processor.
//!
//! Promises: nothing is on. Never: is asked for a call.

use libc::{c_char, c_long};

/// Nobody sees the program set handlers.
pub fn signals_wait() -> bool {
    false
}

pub fn is_dispatched() -> bool {
    false
}

pub fn while_faults_come<T>(f: impl FnOnce() -> T) -> T {
    f()
}

pub fn is_on() -> bool {
    false
}

pub fn is_for_memory() -> bool {
    false
}

pub fn give_up() -> bool {
    true
}

pub fn is_here() -> bool {
    false
}

pub fn after_fork() {}

pub fn begin_thread() {}

pub fn begin(_: bool, _: usize) {
    crate::raw::say(format_args!(
        "system calls cannot be dispatched on this kind of processor: faults are taken by threads"
    ));
}

pub fn files_change(_: c_long, _: c_long) {}

pub fn serve(_: &terrace_vm::Memory) {}

pub fn take_sigbus() -> c_long {
    0
}

/// # Safety
/// Never called: nothing is on.
pub unsafe fn call(_: c_long, _: [c_long; 6]) -> c_long {
    -c_long::from(libc::ENOSYS)
}

type Texts = *const *const c_char;

pub struct Copied;

impl Copied {
    pub fn new() -> Copied {
        Copied
    }

    pub fn for_exec() -> Copied {
        Copied
    }

    /// # Safety
    /// None.
    pub unsafe fn text(&mut self, text: *const c_char) -> Option<*const c_char> {
        Some(text)
    }

    /// # Safety
    /// None.
    pub unsafe fn texts(&mut self, list: Texts) -> Option<Texts> {
        Some(list)
    }
}
