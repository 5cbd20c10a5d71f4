//! Stacks for signals: a thread whose calls are dispatched has one of ours, since a fault must find one, and the program is told of what it set.
//!
//! Promises: ours is as long as the program's. Never: runs anything on the program's own, which may be served memory.

use super::{NO_STACK, PAGE_BYTES, STACK_BYTES, Thread, own};
use crate::raw;
use libc::{c_long, stack_t};

/// A bit beside what a stack is to be (`linux/signal.h`); it is told, and ours is not taken away.
const SS_AUTODISARM: i32 = 1 << 31;
/// Each at least twice as long as the one before.
const LONGER_MAX: usize = 8;

/// Stacks of ours in place of longer ones of the program's than threads have from the start. Those before the last stay: the frame of a signal, whose handler set the next, may have the kernel
/// go back to one.
pub struct Longer([Stack; LONGER_MAX]);

/// A page that nobody may touch, and behind it so many bytes; 0: there is none.
#[derive(Clone, Copy)]
struct Stack {
    at: *mut u8,
    bytes: usize,
}

impl Longer {
    pub const NONE: Longer = Longer(
        [Stack {
            at: std::ptr::null_mut(),
            bytes: 0,
        }; LONGER_MAX],
    );

    /// One more: as long as one of the program's, and beyond that what a fault takes at its end.
    fn add(&mut self, asked: usize) -> Option<()> {
        let last = self.last().map_or(0, |last| last.bytes);
        let bytes = asked.checked_next_multiple_of(PAGE_BYTES)?;
        let bytes = bytes.checked_add(STACK_BYTES)?.max(last * 2);
        let free = self.0.iter_mut().find(|stack| stack.bytes == 0)?;
        let at = raw::map_zeros(bytes.checked_add(PAGE_BYTES)?);
        if at.is_null() {
            return None;
        }
        // SAFETY: the first page of a new mapping.
        unsafe { raw::mprotect(at.cast(), PAGE_BYTES, libc::PROT_NONE) };
        *free = Stack { at, bytes };
        Some(())
    }

    fn last(&self) -> Option<&Stack> {
        self.0.iter().rfind(|stack| stack.bytes > 0)
    }

    /// Whether an address is of one.
    pub fn has(&self, at: usize) -> bool {
        let is_of = |stack: &Stack| at.wrapping_sub(stack.at as usize + PAGE_BYTES) < stack.bytes;
        self.0.iter().any(is_of)
    }

    /// Their thread has ended.
    pub fn free(&mut self) {
        for stack in self.0.iter().filter(|stack| stack.bytes > 0) {
            // SAFETY: a mapping of its own, which nobody uses any more.
            unsafe { raw::munmap(stack.at.cast(), stack.bytes + PAGE_BYTES) };
        }
        *self = Longer::NONE;
    }
}

impl Thread {
    /// The one that it has now.
    pub fn for_signals(&self) -> stack_t {
        let (at, ss_size) = match self.longer.last() {
            None => (self.stack, STACK_BYTES),
            Some(last) => (last.at.wrapping_add(PAGE_BYTES), last.bytes),
        };
        stack_t {
            ss_sp: at.cast(),
            ss_flags: 0,
            ss_size,
        }
    }
}

/// Gives the calling thread its own.
pub fn install(thread: &Thread) {
    let stack = thread.for_signals();
    let args = [(&raw const stack) as c_long, 0, 0, 0, 0, 0];
    // SAFETY: the stack is this thread's as long as it lives.
    unsafe { raw::call(libc::SYS_sigaltstack, args) };
}

/// As sigaltstack: the thread keeps ours, or has a longer one, and the program is told what it asked for.
///
/// # Safety
/// As there.
pub unsafe fn set(args @ [new, old, ..]: [c_long; 6]) -> c_long {
    let Some(thread) = own() else {
        // SAFETY: the program's promise.
        return unsafe { raw::call(libc::SYS_sigaltstack, args) };
    };
    let was = thread.asked;
    if new != 0 {
        // SAFETY: the program's promise.
        let wanted = unsafe { (new as *const stack_t).read_unaligned() };
        if let Err(errno) = provide(thread, &wanted) {
            return -c_long::from(errno);
        }
        thread.asked = match wanted.ss_flags & libc::SS_DISABLE {
            0 => stack_t {
                // As the kernel tells who is not on it.
                ss_flags: wanted.ss_flags & SS_AUTODISARM,
                ..wanted
            },
            _ => NO_STACK,
        };
    }
    if old != 0 {
        // SAFETY: the program's promise.
        unsafe { (old as *mut stack_t).write_unaligned(was) };
    }
    0
}

/// One that is as long as what the program wants.
fn provide(thread: &mut Thread, wanted: &stack_t) -> Result<(), i32> {
    match wanted.ss_flags & !SS_AUTODISARM {
        libc::SS_DISABLE => return Ok(()),
        0 | libc::SS_ONSTACK => {}
        _ => return Err(libc::EINVAL),
    }
    if wanted.ss_size < libc::MINSIGSTKSZ {
        return Err(libc::ENOMEM);
    }
    let has = match thread.longer.last() {
        None => STACK_BYTES,
        Some(last) => last.bytes - STACK_BYTES,
    };
    if wanted.ss_size <= has {
        return Ok(());
    }
    let here = 0u8;
    if thread.is_for_signals(&raw const here as usize) {
        // As the kernel has it.
        return Err(libc::EPERM);
    }
    thread.longer.add(wanted.ss_size).ok_or(libc::ENOMEM)?;
    install(thread);
    Ok(())
}
