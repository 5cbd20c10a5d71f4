//! close and its family, in front of the C library's: the pool's descriptors are not the program's.
//!
//! A daemon closes every number that it did not open, a shell puts a file at a number of its choice: if that is one of the pool's, its pages are lost, or
//! written into the program's file. So those have high numbers, and for these functions they are not open. Promises: every other number is closed as
//! asked. Never: keeps one open that is not listed.

use crate::{dispatch, next, raw, settings, tls};
use libc::{c_int, c_uint};
use terrace_vm::descriptors;

/// Where numbers of our own begin, if the limit allows that: programs do not look there.
const NUMBER_MIN: c_int = 900;
/// Below this many in all, ours are the last quarter.
const NUMBERS_MIN: libc::rlim_t = 1024;

/// From now on the pool's descriptors have high numbers.
pub fn prepare() {
    descriptors::keep_from(number_min());
    // Found now, since a program may ask for it in a handler of a signal.
    // SAFETY: there is no such number.
    unsafe { next::close(-1) };
}

/// Where numbers of our own begin.
pub fn number_min() -> c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    match limit.rlim_cur {
        NUMBERS_MIN.. => NUMBER_MIN,
        few => (few as c_int / 4 * 3).max(3),
    }
}

/// Whether this number is ours, and this thread not.
fn is_ours(fd: c_int) -> bool {
    descriptors::is_kept(fd) && !tls::is_inside()
}

fn not_open() -> c_int {
    raw::set_errno(libc::EBADF);
    -1
}

/// As close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        return not_open();
    }
    if tls::is_inside() {
        descriptors::unlist(fd);
    }
    // SAFETY: the program's descriptor, or one that the runtime gives up.
    unsafe { next::close(fd) }
}

/// As dup2(2); a number of ours is one beyond the limit.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    match is_ours(to) {
        true => not_open(),
        // SAFETY: the program's descriptors.
        false => unsafe { next::dup2(from, to) },
    }
}

/// As dup3(2), likewise.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    match is_ours(to) {
        true => not_open(),
        // SAFETY: the program's descriptors.
        false => unsafe { next::dup3(from, to, flags) },
    }
}

/// What is known of files of these numbers changes, until the end of this.
struct Changes(c_uint, c_uint);

impl Drop for Changes {
    fn drop(&mut self) {
        dispatch::files_change(self.0.into(), self.1.into());
    }
}

/// As close_range(2), around ours.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let range = |first: c_uint, last: c_uint| {
        // SAFETY: the program's descriptors.
        unsafe {
            raw::system(
                libc::SYS_close_range,
                [first.into(), last.into(), flags.into(), 0, 0, 0],
            ) as c_int
        }
    };
    if tls::is_inside() {
        return range(first, last);
    }
    dispatch::files_change(first.into(), last.into());
    let _changes = Changes(first, last);
    let mut at = first;
    while let Some(kept) = c_int::try_from(at).ok().and_then(descriptors::next_kept) {
        let kept = kept as c_uint;
        if kept > last {
            break;
        }
        if at < kept && range(at, kept - 1) != 0 {
            return -1;
        }
        at = kept + 1;
    }
    match at <= last || at == first {
        true => range(at, last),
        false => 0,
    }
}

/// As closefrom(3), likewise.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    if close_range(first as c_uint, c_uint::MAX, 0) != 0 && settings::are_there() {
        // A kernel without that call, which Terrace does not run on, or a sandbox.
        let last = number_min().max(first) + NUMBERS_MIN as c_int;
        for fd in first..last {
            close(fd);
        }
    }
}
