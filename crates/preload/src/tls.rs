//! Whether a thread is inside the runtime: its own threads always, the program's while they run its code.
//!
//! Promises: reading the mark allocates nothing and takes no lock, in any thread at any time, since it lies in the thread's static block (the model
//! *initial-exec*, which a library that is there at the start may use). Never: has a destructor.

use crate::raw;
use std::sync::atomic::{Ordering, compiler_fence};
use terrace_vm::Held;

/// How deep this thread is inside. Rust has no stable way to ask for a model of thread-local storage, and the one it uses may allocate.
#[cfg(target_arch = "x86_64")]
mod word {
    std::arch::global_asm!(
        ".section .tbss.terrace_preload_inside,\"awT\",@nobits",
        ".globl terrace_preload_inside",
        ".hidden terrace_preload_inside",
        ".type terrace_preload_inside,@object",
        ".size terrace_preload_inside,24",
        ".p2align 3",
        "terrace_preload_inside:",
        ".zero 24",
        ".previous",
    );

    /// The mark, what the kernel reads at each system call of a thread whose calls are dispatched (`dispatch`), and that thread's own things.
    #[repr(C)]
    pub struct Words {
        depth: u32,
        selector: u8,
        /// The thread is in one of malloc's functions; a signal came meanwhile, with what mask the thread had before.
        pub in_malloc: bool,
        pub waits: bool,
        pub own: *mut std::ffi::c_void,
        pub mask: u64,
    }

    pub fn address() -> *mut Words {
        let address: *mut Words;
        // SAFETY: the thread's own block begins where fs points, and the word's offset in it stands in the table of offsets.
        unsafe {
            std::arch::asm!(
                "mov {0}, qword ptr [rip + terrace_preload_inside@GOTTPOFF]",
                "add {0}, qword ptr fs:[0]",
                out(reg) address,
                options(pure, readonly, nostack)
            );
        }
        address
    }

    pub fn get() -> u32 {
        // SAFETY: this thread's own word, which lives as long as it.
        unsafe { (*address()).depth }
    }

    pub fn set(depth: u32) {
        // SAFETY: as above.
        unsafe { (*address()).depth = depth }
    }

    pub fn selector() -> *mut u8 {
        // SAFETY: as above; the kernel reads it, and only this thread and its signal handlers write it.
        unsafe { &raw mut (*address()).selector }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    thread_local! {
        static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    pub fn get() -> u32 {
        DEPTH.get()
    }

    pub fn set(depth: u32) {
        DEPTH.set(depth);
    }

    thread_local! {
        static SELECTOR: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
    }

    pub fn selector() -> *mut u8 {
        SELECTOR.with(std::cell::Cell::as_ptr)
    }
}

/// Where this thread's selector lies: while it is [`PASSES`], its system calls go to the kernel, whoever makes them.
pub fn selector() -> *mut u8 {
    word::selector()
}

/// What the dispatch of system calls keeps of this thread; null where they are not dispatched.
#[cfg(target_arch = "x86_64")]
pub fn own() -> *mut std::ffi::c_void {
    // SAFETY: this thread's own word.
    unsafe { (*word::address()).own }
}

/// Sets that.
#[cfg(target_arch = "x86_64")]
pub fn set_own(own: *mut std::ffi::c_void) {
    // SAFETY: this thread's own word.
    unsafe { (*word::address()).own = own }
}

/// Whether this thread is in one of malloc's functions, so that a signal of the program's waits.
#[cfg(target_arch = "x86_64")]
pub fn is_in_malloc() -> bool {
    // SAFETY: this thread's own word; volatile, since handlers of signals read and write it between any two instructions.
    unsafe { (&raw const (*word::address()).in_malloc).read_volatile() }
}

/// A signal waits until that is over: what mask the thread has then.
#[cfg(target_arch = "x86_64")]
pub fn keep_for_after_malloc(mask: u64) {
    let words = word::address();
    // SAFETY: as above.
    unsafe {
        (&raw mut (*words).mask).write_volatile(mask);
        (&raw mut (*words).waits).write_volatile(true);
    }
}

/// Held while this thread is in one of malloc's functions, and so inside.
#[cfg(target_arch = "x86_64")]
pub struct InMalloc(Option<Inside>);

/// From now on it is, until the guard is dropped; signals wait (`dispatch`).
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn enter_malloc() -> InMalloc {
    set_in_malloc(true);
    compiler_fence(Ordering::SeqCst);
    InMalloc(Some(enter()))
}

/// For a handler of a signal that cannot wait.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn set_in_malloc(is: bool) {
    // SAFETY: as above.
    unsafe { (&raw mut (*word::address()).in_malloc).write_volatile(is) };
}

#[cfg(target_arch = "x86_64")]
impl Drop for InMalloc {
    #[inline]
    fn drop(&mut self) {
        drop(self.0.take());
        compiler_fence(Ordering::SeqCst);
        let words = word::address();
        // SAFETY: as above. Outside before what waits can come.
        unsafe {
            (&raw mut (*words).in_malloc).write_volatile(false);
            if (&raw const (*words).waits).read_volatile() {
                (&raw mut (*words).waits).write_volatile(false);
                raw::set_mask((&raw const (*words).mask).read_volatile());
            }
        }
    }
}

/// Calls are not dispatched, so this is not entered.
#[cfg(not(target_arch = "x86_64"))]
pub type InMalloc = Inside;

/// See above.
#[cfg(not(target_arch = "x86_64"))]
pub fn enter_malloc() -> InMalloc {
    enter()
}

/// Calls go to the kernel.
pub const PASSES: u8 = 0;
/// Calls come to `dispatch`, but those that this library makes by an instruction of its own.
pub const DISPATCHED: u8 = 1;

/// Calls of this thread are dispatched, now that it is outside.
pub fn dispatch_now() {
    select(DISPATCHED);
}

fn select(to: u8) {
    // SAFETY: this thread's own byte; volatile, since the kernel reads it between any two instructions.
    unsafe { word::selector().write_volatile(to) };
}

/// Whether this thread is inside: then what it asks for is the runtime's own.
#[inline]
pub fn is_inside() -> bool {
    word::get() != 0
}

/// Held while this thread is inside.
pub struct Inside {
    selector: u8,
    /// A guard belongs to its thread.
    _thread: std::marker::PhantomData<*mut ()>,
}

/// From now on this thread is inside, until the guard is dropped: what is allocated is the runtime's, and its system calls are.
pub fn enter() -> Inside {
    let inside = enter_for_program();
    select(PASSES);
    inside
}

/// The same with the handlers of the program's signals waiting until it is over: one that ran in the middle would be inside itself, so that its calls were not dispatched and what it maps nobody's, and whoever it
/// waits for might wait for a lock of ours.
pub fn enter_quietly() -> Quietly {
    let before = raw::hold_signals();
    Quietly {
        before,
        held: Some((enter(), Held::new())),
    }
}

/// See [`enter_quietly`].
pub struct Quietly {
    before: raw::Mask,
    /// Ends before signals come again.
    held: Option<(Inside, Held)>,
}

impl Drop for Quietly {
    fn drop(&mut self) {
        if let Some((inside, held)) = self.held.take() {
            // The one inside says whose storage the other lies in.
            drop(held);
            drop(inside);
        }
        raw::let_signals(&self.before);
    }
}

/// The same for a call of the C library's that works for the program: what it allocates is the runtime's, but its system calls name the program's memory.
pub fn enter_for_program() -> Inside {
    // SAFETY: this thread's own byte.
    let selector = unsafe { word::selector().read_volatile() };
    word::set(word::get() + 1);
    Inside {
        selector,
        _thread: std::marker::PhantomData,
    }
}

/// In the word of a thread of the runtime's own.
const OWN: u32 = 1 << 31;

/// This thread is the runtime's for good.
pub fn stay() {
    word::set(word::get() | OWN);
}

#[cfg(test)]
/// Whether this thread is the runtime's.
pub fn is_own() -> bool {
    word::get() & OWN != 0
}

/// In the child of a fork: ends what a guard of the parent's began in this thread.
pub fn leave() {
    word::set(word::get() - 1);
}

impl Drop for Inside {
    fn drop(&mut self) {
        // In this order: a handler that comes in between has its calls dispatched.
        select(self.selector);
        compiler_fence(Ordering::SeqCst);
        word::set(word::get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_depth() {
        assert!(!is_inside());
        let outer = enter();
        let inner = enter();
        std::thread::spawn(|| assert!(!is_inside())).join().unwrap();
        drop(inner);
        assert!(is_inside());
        drop(outer);
        assert!(!is_inside());
    }

    #[test]
    fn a_thread_that_stays_is_the_runtimes() {
        std::thread::spawn(|| {
            drop(enter());
            assert!(!is_own());
            stay();
            drop(enter());
            assert!(is_inside() && is_own());
        })
        .join()
        .unwrap();
    }
}
