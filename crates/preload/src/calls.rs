//! syscall, in front of the C library's: a call by its number is the same as by its name.
//!
//! Promises: what this library stands in front of by name, it stands in front of here; every other call goes to the kernel as it was asked. Never: sees a call that
//! a program makes by an instruction of its own.

// Its arguments come in registers there, whatever their number; elsewhere the C library's own is called.
#![cfg(target_arch = "x86_64")]

use crate::{descriptors, direct, dispatch, maps, raw, report, rings, sandbox, tls};
use libc::{c_int, c_long, c_uint, c_ulong, c_void};

/// As syscall(2), whose arguments are as many as the call has: those behind are whatever is there.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let args = [a, b, c, d, e, f];
    if !tls::is_inside() {
        // SAFETY: the program's promise.
        let ours = unsafe {
            match number {
                libc::SYS_mmap..=libc::SYS_munmap
                | libc::SYS_mremap
                | libc::SYS_madvise
                | libc::SYS_pkey_mprotect
                | libc::SYS_mlock
                | libc::SYS_mlock2
                | libc::SYS_mlockall => memory(number, args),
                _ => other(number, args),
            }
        };
        if let Some(said) = ours {
            return said;
        }
    }
    // SAFETY: the program's promise.
    unsafe {
        match dispatch::is_dispatched() {
            true => raw::answered(dispatch::call(number, args)),
            false => raw::system(number, args),
        }
    }
}

/// Calls about memory.
unsafe fn memory(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<c_long> {
    let (at, len) = (a as *mut c_void, b as usize);
    // SAFETY: the program's promise.
    unsafe {
        Some(match number {
            libc::SYS_mmap => {
                maps::mmap64(at, len, c as c_int, d as c_int, e as c_int, f) as c_long
            }
            libc::SYS_munmap => maps::munmap(at, len).into(),
            libc::SYS_mprotect => maps::mprotect(at, len, c as c_int).into(),
            libc::SYS_pkey_mprotect => maps::pkey_mprotect(at, len, c as c_int, d as c_int).into(),
            libc::SYS_madvise => maps::madvise(at, len, c as c_int).into(),
            libc::SYS_mremap => {
                maps::mremap(at, len, c as usize, d as c_int, e as *mut c_void) as c_long
            }
            libc::SYS_mlock => maps::mlock(at, len).into(),
            libc::SYS_mlock2 => maps::mlock2(at, len, c as c_uint).into(),
            libc::SYS_mlockall => maps::mlockall(a as c_int).into(),
            _ => return None,
        })
    }
}

/// Calls about files, limits and the process.
unsafe fn other(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<c_long> {
    let (fd, at, len) = (a as c_int, b as *mut c_void, c as usize);
    let (limit, parts) = (b as *const libc::rlimit, b as *const libc::iovec);
    // SAFETY: the program's promise.
    unsafe {
        Some(match number {
            libc::SYS_read => direct::read(fd, at, len) as c_long,
            libc::SYS_pread64 => direct::pread64(fd, at, len, d) as c_long,
            libc::SYS_readv => direct::readv(fd, parts, c as c_int) as c_long,
            libc::SYS_preadv => direct::preadv64(fd, parts, c as c_int, d) as c_long,
            libc::SYS_preadv2 => direct::preadv2(fd, parts, c as c_int, d, f as c_int) as c_long,
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_dup2 => descriptors::dup2(fd, b as c_int).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_close_range => {
                descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into()
            }
            libc::SYS_setrlimit => sandbox::setrlimit(a as c_uint, limit).into(),
            libc::SYS_prlimit64 => {
                let (limit, was) = (c as *const libc::rlimit, d as *mut libc::rlimit);
                sandbox::prlimit(fd, b as c_uint, limit, was).into()
            }
            libc::SYS_prctl => {
                let [b, c, d, e] = [b, c, d, e].map(|arg| arg as c_ulong);
                sandbox::prctl(fd, b, c, d, e).into()
            }
            libc::SYS_seccomp if !sandbox::may_filter(a, b) => -1,
            libc::SYS_io_submit => {
                rings::before_submit(b, c as *const *const rings::Iocb);
                return None;
            }
            libc::SYS_io_uring_register if !rings::may_register(b, c, d) => -1,
            libc::SYS_io_uring_setup if !rings::may_set_up(b) => -1,
            libc::SYS_exit_group => report::_exit(fd),
            _ => return None,
        })
    }
}
