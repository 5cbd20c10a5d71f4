//! pthread_create, in front of the C library's.
//!
//! Promises: what a new thread's tables of thread-local storage take comes from the arena, so that reading a thread-local variable never faults in served
//! memory; the runtime's own threads are inside for good, and the program's signals do not reach them. Never: changes a thread of the program.

use crate::{next, raw, tls};
use libc::{c_int, c_void};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

struct Own {
    start: Start,
    arg: *mut c_void,
}

extern "C" fn run_own(own: *mut c_void) -> *mut c_void {
    tls::stay();
    // SAFETY: the Box that was made for this thread.
    let Own { start, arg } = *unsafe { Box::from_raw(own.cast::<Own>()) };
    start(arg)
}

/// As pthread_create(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    start: Start,
    arg: *mut c_void,
) -> c_int {
    let is_own = tls::is_inside();
    let _inside = tls::enter();
    if !is_own {
        // SAFETY: the program's promise.
        return unsafe { next::pthread_create(thread, attr, start, arg) };
    }
    let own = Box::into_raw(Box::new(Own { start, arg }));
    // A new thread inherits the mask of its maker, which has its own again afterwards.
    let before = raw::block_signals();
    // SAFETY: the program's promise; the Box is the new thread's.
    unsafe {
        let said = next::pthread_create(thread, attr, run_own, own.cast());
        raw::restore_signals(&before);
        if said != 0 {
            drop(Box::from_raw(own));
        }
        said
    }
}
