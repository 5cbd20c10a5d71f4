//! pthread_create, in front of the C library's, and what is to be done when a thread ends.
//!
//! Promises: what a new thread's tables of thread-local storage take comes from the arena, so that reading a thread-local variable never faults in served
//! memory; the runtime's own threads are inside for good, the program's signals do not reach them, and they never wait for the loader's lock, which a
//! thread holds that faults in a library's constructor. Never: changes a thread of the program.

use crate::{dispatch, next, raw, runtime, tls};
use libc::{c_int, c_void};
use std::sync::OnceLock;

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

/// What a thread is made with, where its stack is not one that the program has in served memory: the C library puts the thread's own variables there, without which a fault cannot be
/// taken in the thread.
struct Attributes(libc::pthread_attr_t);

unsafe extern "C" {
    fn pthread_attr_getdetachstate(of: *const libc::pthread_attr_t, detached: *mut c_int) -> c_int;
}

impl Attributes {
    /// The same as the program's, with a stack of the C library's, as large; none if the program's can be used.
    ///
    /// # Safety
    /// Null, or attributes.
    unsafe fn unserved(of: *const libc::pthread_attr_t) -> Option<Attributes> {
        let (mut stack, mut bytes, mut detached) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: the caller's promise; room for the answers; attributes that are made before they are set.
        unsafe {
            if of.is_null()
                || libc::pthread_attr_getstack(of, &mut stack, &mut bytes) != 0
                || !runtime::overlaps(stack as usize, bytes)
            {
                return None;
            }
            let mut made: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&mut made);
            libc::pthread_attr_setstacksize(&mut made, bytes);
            pthread_attr_getdetachstate(of, &mut detached);
            libc::pthread_attr_setdetachstate(&mut made, detached);
            let (mut inherits, mut policy) = (0, 0);
            let mut with: libc::sched_param = std::mem::zeroed();
            libc::pthread_attr_getinheritsched(of, &mut inherits);
            libc::pthread_attr_getschedpolicy(of, &mut policy);
            libc::pthread_attr_getschedparam(of, &mut with);
            libc::pthread_attr_setschedpolicy(&mut made, policy);
            libc::pthread_attr_setschedparam(&mut made, &with);
            libc::pthread_attr_setinheritsched(&mut made, inherits);
            Some(Attributes(made))
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: made by `unserved`.
        unsafe { libc::pthread_attr_destroy(&mut self.0) };
    }
}

/// A thread of the program whose calls are dispatched.
extern "C" fn run_dispatched(own: *mut c_void) -> *mut c_void {
    let Own { start, arg } = {
        let _inside = tls::enter();
        dispatch::begin_thread();
        // SAFETY: the Box that was made for this thread.
        *unsafe { Box::from_raw(own.cast::<Own>()) }
    };
    tls::dispatch_now();
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
    if !is_own && !dispatch::is_on() {
        // SAFETY: the program's promise.
        return unsafe { next::pthread_create(thread, attr, start, arg) };
    }
    let own = Box::into_raw(Box::new(Own { start, arg }));
    if !is_own {
        // SAFETY: the program's promise; the Box is the new thread's.
        return unsafe {
            let other = Attributes::unserved(attr);
            let attr = other.as_ref().map_or(attr, |other| &raw const other.0);
            let said = next::pthread_create(thread, attr, run_dispatched, own.cast());
            if said != 0 {
                drop(Box::from_raw(own));
            }
            said
        };
    }
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

/// What is called when a thread ends.
pub type AtEnd = unsafe extern "C" fn(*mut c_void);

/// What a thread of the runtime's own is to call when it ends: the last first.
struct Last {
    call: AtEnd,
    with: *mut c_void,
    before: *mut Last,
}

/// Under which each of them has its list.
static LISTS: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

fn lists() -> Option<libc::pthread_key_t> {
    *LISTS.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a place for the key, and a plain function.
        let said = unsafe { libc::pthread_key_create(&mut key, Some(end_of_own)) };
        (said == 0).then_some(key)
    })
}

unsafe extern "C" fn end_of_own(list: *mut c_void) {
    let mut next = list.cast::<Last>();
    while !next.is_null() {
        // SAFETY: each was made by a Box, for this list only.
        let last = unsafe { Box::from_raw(next) };
        // SAFETY: as who registered it promised: it is called once, in its thread, when that ends.
        unsafe { (last.call)(last.with) };
        next = last.before;
    }
}

/// As the C library's, which C++ and Rust register thread-local destructors with. There it takes the loader's lock: the first time that a thread of ours waits would then
/// wait for a program's thread that is in dlopen, and waits for us.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __cxa_thread_atexit_impl(
    call: AtEnd,
    with: *mut c_void,
    library: *mut c_void,
) -> c_int {
    if !tls::is_inside() {
        // SAFETY: the caller's promise.
        return unsafe { next::__cxa_thread_atexit_impl(call, with, library) };
    }
    let Some(key) = lists() else {
        return libc::ENOMEM;
    };
    // SAFETY: the key is ours, and so is what is under it in this thread.
    unsafe {
        let before = libc::pthread_getspecific(key).cast::<Last>();
        let last = Box::into_raw(Box::new(Last { call, with, before }));
        let said = libc::pthread_setspecific(key, last.cast());
        if said != 0 {
            drop(Box::from_raw(last));
        }
        said
    }
}
