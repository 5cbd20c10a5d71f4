//! The functions that this library stands in front of: those of the program's own allocator, or of the C library.
//!
//! Promises: found once each, without asking any malloc but our own; where the program has no other malloc than ours, the C library's own names for
//! its are used. Never: calls one itself.

use crate::{loaded, raw, tls};
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
        // Of C libraries since 2.39: before, who asks whether there is one finds ours.
        if found.is_null() && self.name.to_bytes().starts_with(b"pidfd_spawn") {
            found = cannot_start as *mut c_void;
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

/// One that answers as where the system cannot.
extern "C" fn cannot_start() -> c_int {
    libc::ENOSYS
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

/// Something of the C library's that need not be there; null if it is not.
pub fn if_there(name: &CStr) -> *mut c_void {
    let _inside = tls::enter();
    // SAFETY: a name that ends in a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Where the C library's own malloc is, whoever stands in front of it; 0 if it has none of that name.
pub fn libcs_malloc() -> usize {
    if_there(c"__libc_malloc") as usize
}

/// Whether it is this library's malloc that the C library's own functions and other libraries call: the program itself may have one, in front of all libraries.
pub fn malloc_is_ours() -> bool {
    // SAFETY: a name that ends in a zero.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    let ours = prepare as fn();
    loaded::part_with(first as usize) == loaded::part_with(ours as usize)
}

/// Whether the program's malloc is that function.
pub fn malloc_is(address: usize) -> bool {
    places::malloc.get() as usize == address
}

/// Whether one library has all that is done to a mutex here: else one that counts them, say, would miss what goes past it.
pub fn mutexes_are_of_one() -> bool {
    let of = |place: &Next| loaded::part_with(place.get() as usize);
    let lock = of(&places::pthread_mutex_lock);
    lock.is_some()
        && lock == of(&places::pthread_mutex_trylock)
        && lock == of(&places::pthread_mutex_unlock)
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $other:expr;)*) => {
        /// Where each was found.
        #[allow(non_upper_case_globals)]
        mod places {
            use super::Next;
            use std::ffi::CStr;
            $(
                pub static $name: Next = {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without zeros"),
                    };
                    Next::new(NAME, $other)
                };
            )*
        }
        $(
            $(#[$doc])*
            #[inline]
            pub unsafe fn $name($($arg: $kind),*) -> $result {
                // SAFETY: the function of this name has this type.
                let function: unsafe extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(places::$name.get()) };
                // SAFETY: the caller's promise.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

/// Finds those that a program may call from a handler of a signal, in the child of a fork, or, as malloc's are, from dlerror, where nothing may be looked up: a look-up frees what dlerror is at.
pub fn prepare() {
    use places::*;
    for place in [
        &malloc,
        &calloc,
        &realloc,
        &free,
        &memalign,
        &malloc_usable_size,
        &reallocarray,
        &strdup,
        &strndup,
        &read,
        &pread,
        &pread64,
        &readv,
        &write,
        &pwrite,
        &pwrite64,
        &writev,
        &recv,
        &recvfrom,
        &send,
        &sendto,
        &recvmsg,
        &sendmsg,
        &sendmmsg,
        &epoll_wait,
        &epoll_ctl,
        &poll,
        &accept4,
        &sched_yield,
        &nanosleep,
        &clock_nanosleep,
        &epoll_pwait,
        &lseek,
        &lseek64,
        &pthread_mutex_lock,
        &pthread_mutex_trylock,
        &pthread_mutex_unlock,
        &posix_spawn,
        &posix_spawnp,
        &system,
        &dup2,
        &dup3,
        &close,
    ] {
        place.get();
    }
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
    /// As reallocarray(3).
    reallocarray(memory: *mut c_void, count: size_t, bytes: size_t) -> *mut c_void = None;
    /// As strdup(3).
    strdup(text: *const c_char) -> *mut c_char = Some(c"__strdup");
    /// As strndup(3).
    strndup(text: *const c_char, most: size_t) -> *mut c_char = Some(c"__strndup");
    /// As fork(2).
    fork() -> libc::pid_t = Some(c"__libc_fork");
    /// As pthread_atfork(3), with whose handlers they are.
    __register_atfork(prepare: Option<unsafe extern "C" fn()>, parent: Option<unsafe extern "C" fn()>, child: Option<unsafe extern "C" fn()>, whose: *mut c_void) -> c_int = None;
    /// As openpty(3).
    openpty(end: *mut c_int, terminal: *mut c_int, name: *mut c_char, modes: *const c_void, size: *const c_void) -> c_int = None;
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
    /// As pthread_mutex_lock(3).
    pthread_mutex_lock(mutex: *mut libc::pthread_mutex_t) -> c_int = None;
    /// As pthread_mutex_trylock(3).
    pthread_mutex_trylock(mutex: *mut libc::pthread_mutex_t) -> c_int = None;
    /// As pthread_mutex_unlock(3).
    pthread_mutex_unlock(mutex: *mut libc::pthread_mutex_t) -> c_int = None;
    /// As pthread_cancel(3).
    pthread_cancel(thread: libc::pthread_t) -> c_int = None;
    /// As posix_spawn(3).
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: *const *const c_char, environment: *const *const c_char) -> c_int = None;
    /// As posix_spawnp(3).
    posix_spawnp(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: *const *const c_char, environment: *const *const c_char) -> c_int = None;
    /// As pidfd_spawn(3).
    pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: *const *const c_char, environment: *const *const c_char) -> c_int = None;
    /// As pidfd_spawnp(3).
    pidfd_spawnp(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: *const *const c_char, environment: *const *const c_char) -> c_int = None;
    /// As system(3).
    system(command: *const c_char) -> c_int = None;
    /// As write(2).
    write(fd: c_int, at: *const c_void, len: size_t) -> ssize_t = Some(c"__write");
    /// As pwrite(2).
    pwrite(fd: c_int, at: *const c_void, len: size_t, offset: off_t) -> ssize_t = None;
    /// As pwrite64(2).
    pwrite64(fd: c_int, at: *const c_void, len: size_t, offset: off_t) -> ssize_t = None;
    /// As writev(2).
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = None;
    /// As recv(2).
    recv(fd: c_int, at: *mut c_void, len: size_t, flags: c_int) -> ssize_t = None;
    /// As recvfrom(2).
    recvfrom(fd: c_int, at: *mut c_void, len: size_t, flags: c_int, from: *mut libc::sockaddr, from_len: *mut libc::socklen_t) -> ssize_t = None;
    /// As send(2).
    send(fd: c_int, at: *const c_void, len: size_t, flags: c_int) -> ssize_t = None;
    /// As sendto(2).
    sendto(fd: c_int, at: *const c_void, len: size_t, flags: c_int, to: *const libc::sockaddr, to_len: libc::socklen_t) -> ssize_t = None;
    /// As recvmsg(2).
    recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t = None;
    /// As sendmsg(2).
    sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t = None;
    /// As sendmmsg(2).
    sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int = None;
    /// As epoll_wait(2).
    epoll_wait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, ms: c_int) -> c_int = None;
    /// As epoll_ctl(2).
    epoll_ctl(epoll: c_int, what: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int = None;
    /// As poll(2).
    poll(files: *mut libc::pollfd, count: libc::nfds_t, ms: c_int) -> c_int = None;
    /// As accept4(2).
    accept4(fd: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t, flags: c_int) -> c_int = None;
    /// As sched_yield(2).
    sched_yield() -> c_int = None;
    /// As nanosleep(2).
    nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int = None;
    /// As clock_nanosleep(2).
    clock_nanosleep(clock: libc::clockid_t, flags: c_int, time: *const libc::timespec, left: *mut libc::timespec) -> c_int = None;
    /// As epoll_pwait(2).
    epoll_pwait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, ms: c_int, mask: *const libc::sigset_t) -> c_int = None;
    /// As lseek(2).
    lseek(fd: c_int, to: off_t, from: c_int) -> off_t = None;
    /// As lseek64(3).
    lseek64(fd: c_int, to: off_t, from: c_int) -> off_t = None;
    /// As pthread_create(3).
    pthread_create(thread: *mut libc::pthread_t, attr: *const libc::pthread_attr_t, start: extern "C" fn(*mut c_void) -> *mut c_void, arg: *mut c_void) -> c_int = None;
}
