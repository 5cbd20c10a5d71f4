//! What takes rights away from the process, in front of the C library's: filters of system calls, and limits.
//!
//! The runtime's threads need their system calls as long as the program lives. A filter of the calling thread alone is the program's business, and the pool
//! is opened before it comes; one for all threads, or a limit below the pool's file, would cost the program its memory later, in the middle of
//! anything. Promises: those are refused with EPERM and a line that says why. Never: changes what is asked.

use crate::{dispatch, opening, own, raw, report, reserved, runtime, settings, tls};
use libc::{c_int, c_long, c_uint, c_ulong, rlimit};

const SECCOMP_FILTER_FLAG_TSYNC: c_ulong = 1;

/// Before a filter: what it may forbid is done now. Whether it may come: not where faults are taken in the thread, which needs the calls that it would forbid.
pub fn may_filter_this_thread() -> bool {
    if tls::is_inside() {
        return true;
    }
    if dispatch::is_on() && !dispatch::give_up() {
        raw::say(format_args!(
            "a filter of system calls is refused with EPERM while faults are taken in the program's threads, which would lose their memory; --faults thread has it"
        ));
        raw::set_errno(libc::EPERM);
        return false;
    }
    opening::open_early();
    own::end();
    true
}

/// Whether seccomp(2) may be called with these.
pub fn may_filter(operation: c_long, flags: c_long) -> bool {
    if operation != c_long::from(libc::SECCOMP_SET_MODE_FILTER) || tls::is_inside() {
        return true;
    }
    if !may_filter_this_thread() {
        return false;
    }
    if flags as c_ulong & SECCOMP_FILTER_FLAG_TSYNC == 0 || !opening::is_asked_for() {
        return true;
    }
    raw::say(format_args!(
        "a filter of system calls for all threads (SECCOMP_FILTER_FLAG_TSYNC) is refused: it would forbid the threads that bring memory back theirs; \
         one of the calling thread alone is possible"
    ));
    raw::set_errno(libc::EPERM);
    false
}

/// As prctl(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(
    what: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if what == libc::PR_SET_SECCOMP && !may_filter_this_thread() {
        return -1;
    }
    let args = [what.into(), a as _, b as _, c as _, d as _, 0];
    // SAFETY: the program's promise.
    unsafe {
        match dispatch::is_dispatched() {
            true => raw::answered(dispatch::call(libc::SYS_prctl, args)) as c_int,
            false => raw::system(libc::SYS_prctl, args) as c_int,
        }
    }
}

/// A fork's child has the pool from its parent: limits are mostly for the program that it becomes.
fn is_a_childs() -> bool {
    runtime::get().is_some_and(|runtime| matches!(runtime.pool, runtime::Pool::Away(_)))
}

/// Whether a limit may be set. One of addresses in a child that was forked before there is a pool is looked at when it wants one.
fn may_limit(resource: c_uint, to: *const rlimit) -> bool {
    if to.is_null() || tls::is_inside() || !opening::is_asked_for() || is_a_childs() {
        return true;
    }
    // SAFETY: the program's promise.
    let bytes = unsafe { (*to).rlim_cur };
    // One that has no pool may never want one.
    if runtime::get().is_none() && !settings::is_first() {
        return true;
    }
    if resource == libc::RLIMIT_FSIZE as c_uint {
        let pool_bytes = opening::pool_bytes();
        if pool_bytes <= bytes {
            return true;
        }
        raw::say(format_args!(
            "a limit of {bytes} bytes a file (RLIMIT_FSIZE) is refused: the pool's file, of {pool_bytes} bytes, is written by this process"
        ));
    } else if [libc::RLIMIT_AS, libc::RLIMIT_DATA].contains(&(resource as _)) {
        let there = {
            let _inside = tls::enter();
            report::status_bytes("VmSize:")
        };
        let needed = reserved::addresses_bytes() + there;
        if needed <= bytes {
            return true;
        }
        raw::say(format_args!(
            "a limit of {bytes} bytes of addresses (RLIMIT_AS or RLIMIT_DATA) is refused: {needed} are needed, reserved for what is served more than used; \
             --dram and a cgroup limit memory"
        ));
    } else {
        return true;
    }
    raw::set_errno(libc::EPERM);
    false
}

/// As prlimit(2), with what it names where the program has it.
unsafe fn limit(pid: libc::pid_t, resource: c_uint, to: *const rlimit, was: *mut rlimit) -> c_int {
    let args = [
        pid.into(),
        resource.into(),
        to as c_long,
        was as c_long,
        0,
        0,
    ];
    // SAFETY: the program's promise.
    unsafe {
        match dispatch::is_dispatched() {
            true => raw::answered(dispatch::call(libc::SYS_prlimit64, args)) as c_int,
            false => raw::prlimit(pid, resource, to, was),
        }
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $set:ident, $of:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $set(resource: c_uint, to: *const rlimit) -> c_int {
                match may_limit(resource, to) {
                    // SAFETY: the program's promise.
                    true => unsafe { limit(0, resource, to, std::ptr::null_mut()) },
                    false => -1,
                }
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $of(pid: libc::pid_t, resource: c_uint, to: *const rlimit, was: *mut rlimit) -> c_int {
                let own = pid == 0 || pid as u32 == std::process::id();
                match !own || may_limit(resource, to) {
                    // SAFETY: the program's promise.
                    true => unsafe { limit(pid, resource, to, was) },
                    false => -1,
                }
            }
        )*
    };
}

limits! {
    /// As setrlimit(2), or prlimit(2).
    setrlimit, prlimit;
    /// The same, where limits had 32 bits.
    setrlimit64, prlimit64;
}
