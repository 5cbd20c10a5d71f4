//! Functions of the C library that programs call most, in front of its own where calls are dispatched: the same without a signal.
//!
//! Promises: what the C library's function does, errno included; once the program cancels a thread (pthread_cancel) these are the C library's own again, since they are where a thread may be cancelled. Never: does anything
//! else where calls are not dispatched.

use super::{call, is_on};
use crate::{next, raw, tls};
use libc::{
    c_int, c_long, c_uint, c_void, clockid_t, epoll_event, iovec, mmsghdr, msghdr, nfds_t, off_t,
    pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Of a set of signals the kernel takes so many bytes.
const KERNEL_SET_BYTES: c_long = 8;

/// Whether the program cancels threads.
static CANCELS: AtomicBool = AtomicBool::new(false);

/// Whether a call is made here.
#[inline]
pub fn is_here() -> bool {
    is_on() && !CANCELS.load(Ordering::Relaxed) && !tls::is_inside()
}

/// As pthread_cancel(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    CANCELS.store(true, Ordering::SeqCst);
    // SAFETY: the program's promise.
    unsafe { next::pthread_cancel(thread) }
}

macro_rules! in_front {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $number:ident [$($given:expr),*];)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: $kind),*) -> $result {
                // SAFETY: the program's promise.
                unsafe {
                    match is_here() {
                        true => raw::answered(call(libc::$number, [$($given as c_long),*])) as $result,
                        false => next::$name($($arg),*),
                    }
                }
            }
        )*
    };
}

in_front! {
    /// As write(2).
    write(fd: c_int, at: *const c_void, len: size_t) -> ssize_t = SYS_write [fd, at, len, 0, 0, 0];
    /// As pwrite(2).
    pwrite(fd: c_int, at: *const c_void, len: size_t, offset: off_t) -> ssize_t = SYS_pwrite64 [fd, at, len, offset, 0, 0];
    /// As pwrite64(2).
    pwrite64(fd: c_int, at: *const c_void, len: size_t, offset: off_t) -> ssize_t = SYS_pwrite64 [fd, at, len, offset, 0, 0];
    /// As writev(2).
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = SYS_writev [fd, parts, count, 0, 0, 0];
    /// As recv(2).
    recv(fd: c_int, at: *mut c_void, len: size_t, flags: c_int) -> ssize_t = SYS_recvfrom [fd, at, len, flags, 0, 0];
    /// As recvfrom(2).
    recvfrom(fd: c_int, at: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t = SYS_recvfrom [fd, at, len, flags, from, from_len];
    /// As send(2).
    send(fd: c_int, at: *const c_void, len: size_t, flags: c_int) -> ssize_t = SYS_sendto [fd, at, len, flags, 0, 0];
    /// As sendto(2).
    sendto(fd: c_int, at: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t = SYS_sendto [fd, at, len, flags, to, to_len];
    /// As recvmsg(2).
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = SYS_recvmsg [fd, message, flags, 0, 0, 0];
    /// As sendmsg(2).
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = SYS_sendmsg [fd, message, flags, 0, 0, 0];
    /// As sendmmsg(2).
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = SYS_sendmmsg [fd, messages, count, flags, 0, 0];
    /// As epoll_wait(2).
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, ms: c_int) -> c_int = SYS_epoll_wait [epoll, events, count, ms, 0, 0];
    /// As epoll_ctl(2).
    epoll_ctl(epoll: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int = SYS_epoll_ctl [epoll, what, fd, event, 0, 0];
    /// As poll(2).
    poll(files: *mut pollfd, count: nfds_t, ms: c_int) -> c_int = SYS_poll [files, count, ms, 0, 0, 0];
    /// As accept4(2).
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = SYS_accept4 [fd, address, len, flags, 0, 0];
    /// As sched_yield(2).
    sched_yield() -> c_int = SYS_sched_yield [0, 0, 0, 0, 0, 0];
    /// As nanosleep(2).
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int = SYS_nanosleep [time, left, 0, 0, 0, 0];
    /// As epoll_pwait(2).
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, ms: c_int, mask: *const sigset_t) -> c_int = SYS_epoll_pwait [epoll, events, count, ms, mask, KERNEL_SET_BYTES];
    /// As lseek(2).
    lseek(fd: c_int, to: off_t, from: c_int) -> off_t = SYS_lseek [fd, to, from, 0, 0, 0];
    /// As lseek64(3).
    lseek64(fd: c_int, to: off_t, from: c_int) -> off_t = SYS_lseek [fd, to, from, 0, 0, 0];
}

/// As clock_nanosleep(2): what is wrong is answered, and errno stays.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        // A thread's own clock is refused by the C library, where the kernel has another error for it.
        if !is_here() || clock == libc::CLOCK_THREAD_CPUTIME_ID {
            return next::clock_nanosleep(clock, flags, time, left);
        }
        let args = [clock.into(), flags.into(), time as _, left as _, 0, 0];
        -call(libc::SYS_clock_nanosleep, args) as c_int
    }
}

/// As usleep(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C-unwind" fn usleep(microseconds: c_uint) -> c_int {
    let time = timespec {
        tv_sec: (microseconds / 1_000_000).into(),
        tv_nsec: (microseconds % 1_000_000 * 1_000).into(),
    };
    // SAFETY: a time of this frame's, which the call does not keep.
    unsafe { nanosleep(&raw const time, std::ptr::null_mut()) }
}
