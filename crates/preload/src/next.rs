//! The functions that this library stands in front of: those of the program's own allocator, or of the C library.
//!
//! Promises: found once each, without asking any malloc but our own; where the program has no other malloc than ours, the C library's own names for
//! its are used. Never: calls one itself.

use crate::{raw, tls};
use libc::{c_char, c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function further down, looked up when it is first needed.
pub struct Next {
    name: &'static CStr,
    /// Of the C library, which nobody interposes.
    other: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr, other: Option<&'static CStr>) -> Next {
        Next {
            name,
            other,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline]
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        match found.is_null() {
            true => self.look_up(),
            false => found,
        }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // What dlsym allocates is ours, so it does not come back here.
        let _inside = tls::enter();
        let find = |name: &CStr| {
            let name: *const c_char = name.as_ptr();
            // SAFETY: a name that ends in a zero.
            unsafe { libc::dlsym(libc::RTLD_NEXT, name) }
        };
        let mut found = find(self.name);
        if found.is_null() {
            found = self.other.map_or(found, find);
        }
        if found.is_null() && self.name.to_bytes().starts_with(b"io_uring_") {
            found = in_liburing(self.name);
        }
        if found.is_null() {
            raw::die(format_args!(
                "the C library has no function {:?}: is this program statically linked in part?",
                self.name
            ));
        }
        self.found.store(found, Ordering::Release);
        found
    }
}

/// One of liburing's functions, where a library brought it in for itself alone; else one that answers as where the system has no io_uring.
fn in_liburing(name: &CStr) -> *mut c_void {
    extern "C" fn is_not_there() -> c_int {
        -libc::ENOSYS
    }
    let how = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: names that end in a zero; a library that is there anyway.
    let found = unsafe {
        match libc::dlopen(c"liburing.so.2".as_ptr(), how) {
            library if library.is_null() => library,
            library => libc::dlsym(library, name.as_ptr()),
        }
    };
    match found.is_null() {
        true => is_not_there as *mut c_void,
        false => found,
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $other:expr;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub unsafe fn $name($($arg: $kind),*) -> $result {
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                };
                static NEXT: Next = Next::new(NAME, $other);
                // SAFETY: the function of this name has this type.
                let function: unsafe extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(NEXT.get()) };
                // SAFETY: the caller's promise.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

functions! {
    /// As malloc(3).
    malloc(bytes: size_t) -> *mut c_void = Some(c"__libc_malloc");
    /// As calloc(3).
    calloc(count: size_t, bytes: size_t) -> *mut c_void = Some(c"__libc_calloc");
    /// As realloc(3).
    realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void = Some(c"__libc_realloc");
    /// As free(3).
    free(memory: *mut c_void) -> () = Some(c"__libc_free");
    /// As aligned_alloc(3), without its rules.
    memalign(align: size_t, bytes: size_t) -> *mut c_void = Some(c"__libc_memalign");
    /// As malloc_usable_size(3).
    malloc_usable_size(memory: *mut c_void) -> size_t = None;
    /// As fork(2).
    fork() -> libc::pid_t = Some(c"__libc_fork");
    /// As pthread_atfork(3), with whose handlers they are.
    __register_atfork(prepare: Option<unsafe extern "C" fn()>, parent: Option<unsafe extern "C" fn()>, child: Option<unsafe extern "C" fn()>, whose: *mut c_void) -> c_int = None;
    /// As close(2).
    close(fd: c_int) -> c_int = Some(c"__close");
    /// As dup2(2).
    dup2(from: c_int, to: c_int) -> c_int = Some(c"__dup2");
    /// As dup3(2).
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int = None;
    /// As fopen(3).
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE = None;
    /// As fopen64(3).
    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE = None;
    /// As fdopen(3).
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE = None;
    /// As fmemopen(3).
    fmemopen(memory: *mut c_void, bytes: size_t, mode: *const c_char) -> *mut libc::FILE = None;
    /// As open_memstream(3).
    open_memstream(memory: *mut *mut c_char, bytes: *mut size_t) -> *mut libc::FILE = None;
    /// As tmpfile(3).
    tmpfile() -> *mut libc::FILE = None;
    /// As popen(3).
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE = None;
    /// As read(2).
    read(fd: c_int, at: *mut c_void, len: size_t) -> ssize_t = None;
    /// As pread(2).
    pread(fd: c_int, at: *mut c_void, len: size_t, offset: off_t) -> ssize_t = None;
    /// As pread64(2).
    pread64(fd: c_int, at: *mut c_void, len: size_t, offset: off_t) -> ssize_t = None;
    /// As readv(2).
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = None;
    /// As preadv(2).
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t = None;
    /// As preadv64(2).
    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t = None;
    /// As preadv2(2).
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = None;
    /// As liburing's.
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int = None;
    /// As liburing's.
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, setup: *mut c_void) -> c_int = None;
    /// As liburing's.
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, setup: *mut c_void, memory: *mut c_void, bytes: size_t) -> c_int = None;
    /// As liburing's.
    io_uring_setup(entries: c_uint, setup: *mut c_void) -> c_int = None;
    /// As liburing's.
    io_uring_register_buffers(ring: *mut c_void, parts: *const iovec, count: c_uint) -> c_int = None;
    /// As liburing's.
    io_uring_register_buffers_tags(ring: *mut c_void, parts: *const iovec, tags: *const u64, count: c_uint) -> c_int = None;
    /// As liburing's.
    io_uring_register_buffers_update_tag(ring: *mut c_void, first: c_uint, parts: *const iovec, tags: *const u64, count: c_uint) -> c_int = None;
    /// As liburing's.
    io_uring_register_buf_ring(ring: *mut c_void, buffers: *const c_void, flags: c_uint) -> c_int = None;
    /// As the C library's.
    __cxa_thread_atexit_impl(call: unsafe extern "C" fn(*mut c_void), with: *mut c_void, library: *mut c_void) -> c_int = None;
    /// As pthread_create(3).
    pthread_create(thread: *mut libc::pthread_t, attr: *const libc::pthread_attr_t, start: extern "C" fn(*mut c_void) -> *mut c_void, arg: *mut c_void) -> c_int = None;
}
