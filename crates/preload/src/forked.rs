//! daemon and forkpty, in front of the C library's, which fork and end within themselves, past the functions that this library stands in front of.
//!
//! Promises: what glibc's functions do, errors and their order included; a process that has the pool stays for the daemon that it made (`keeper`), and what has no room is refused (`fork`).
//! Never: is a place where a thread is cancelled.

use crate::{cancel, descriptors, fork, next, raw, report};
use libc::{c_char, c_int, c_void};

/// As daemon(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn daemon(keeps_dir: c_int, keeps_files: c_int) -> c_int {
    let _whole = cancel::off();
    // SAFETY: the child goes on as the program asked; its parent only ends.
    match unsafe { fork::fork() } {
        -1 => return -1,
        0 => {}
        _ => report::_exit(0),
    }
    // SAFETY: calls of the child's own process; a text that ends in a zero.
    unsafe {
        if libc::setsid() == -1 {
            return -1;
        }
        if keeps_dir == 0 {
            // As there: whether it can is not looked at.
            libc::chdir(c"/".as_ptr());
        }
    }
    match keeps_files {
        0 => from_and_to_nothing(),
        _ => 0,
    }
}

/// /dev/null in the place of the program's first three files, if that is what it should be.
fn from_and_to_nothing() -> c_int {
    // SAFETY: a text that ends in a zero, and room for the answer.
    let (nothing, is_known, is_null) = unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        let mut stat: libc::stat = std::mem::zeroed();
        let is_known = nothing != -1 && libc::fstat(nothing, &mut stat) == 0;
        let is_null =
            stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3);
        (nothing, is_known, is_null)
    };
    if is_known && is_null {
        for fd in 0..3 {
            descriptors::dup2(nothing, fd);
        }
        if nothing > 2 {
            descriptors::close(nothing);
        }
        return 0;
    }
    let errno = match is_known {
        true => libc::ENODEV,
        false => raw::errno(),
    };
    if nothing != -1 {
        descriptors::close(nothing);
    }
    raw::set_errno(errno);
    -1
}

/// As forkpty(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn forkpty(
    end: *mut c_int,
    name: *mut c_char,
    modes: *const c_void,
    size: *const c_void,
) -> libc::pid_t {
    let _whole = cancel::off();
    let (mut own, mut terminal) = (-1, -1);
    // SAFETY: the program's promise, and room for two numbers.
    if unsafe { next::openpty(&mut own, &mut terminal, name, modes, size) } == -1 {
        return -1;
    }
    // SAFETY: as the program asked; what each of the two does with its files.
    unsafe {
        let pid = fork::fork();
        match pid {
            -1 => {
                let errno = raw::errno();
                descriptors::close(own);
                descriptors::close(terminal);
                raw::set_errno(errno);
            }
            0 => {
                descriptors::close(own);
                if !takes(terminal) {
                    report::_exit(1);
                }
            }
            _ => {
                *end = own;
                descriptors::close(terminal);
            }
        }
        pid
    }
}

/// As login_tty(3), which may not be looked up in the child of a fork: this terminal is the process's from now on. Whether it is.
fn takes(terminal: c_int) -> bool {
    // SAFETY: calls of the child's own process.
    unsafe {
        libc::setsid();
        if libc::ioctl(terminal, libc::TIOCSCTTY, 0) == -1 {
            return false;
        }
    }
    for fd in 0..3 {
        // glibc's tries again where another thread is about to have the number (EBUSY): there is none here.
        descriptors::dup2(terminal, fd);
    }
    if terminal > 2 {
        descriptors::close(terminal);
    }
    true
}
