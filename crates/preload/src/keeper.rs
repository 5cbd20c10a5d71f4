//! After the end of a program that has the pool, while processes that it forked live: it stays, since their memory comes from it.
//!
//! Promises: it stays no longer than the last of them, and then ends as the program did; it holds nothing of the program's but stderr; SIGTERM is passed on to
//! those that it stays for, and other signals that would end it are ignored, so that only SIGKILL takes their memory; what has become of it is said once
//! on stderr, if it takes longer than a moment. Never: ends before them of its own accord.

use crate::{descriptors, raw, serve};
use libc::{c_int, useconds_t};
use std::sync::atomic::{AtomicBool, Ordering};

/// Between two looks at who lives: at first, since most children end soon, and later.
const LOOK_SOON_US: useconds_t = 5_000;
const LOOK_LATE_US: useconds_t = 100_000;
/// Looks of the first kind: two seconds, after which it is said.
const SOON_MAX: u32 = 400;
/// Signals that the kernel knows, and those of them that the C library keeps to itself.
const SIGNAL_MAX: c_int = 64;
const OF_THE_C_LIBRARY: std::ops::RangeInclusive<c_int> = 32..=33;

/// SIGTERM came.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Comes back when nobody needs this process any more. `answers`: whether SIGUSR2 is still answered with the report.
pub fn stay(answers: fn() -> bool) {
    if serve::children() == 0 {
        return;
    }
    take_signals(answers);
    let_go();
    let mut looks = 0;
    loop {
        reap();
        if TOLD.swap(false, Ordering::AcqRel) {
            serve::pass_on(libc::SIGTERM);
        }
        let children = serve::children();
        if children == 0 {
            return;
        }
        looks += 1;
        if looks == SOON_MAX {
            raw::say(format_args!(
                "process {} has ended, and stays until {children} that it forked are gone, too: their memory comes from it; SIGTERM is passed on to them, SIGKILL takes their memory",
                std::process::id()
            ));
        }
        let pause_us = match looks < SOON_MAX {
            true => LOOK_SOON_US,
            false => LOOK_LATE_US,
        };
        // SAFETY: sleeps; a signal ends it sooner.
        unsafe { libc::usleep(pause_us) };
    }
}

extern "C" fn on_term(_: c_int) {
    TOLD.store(true, Ordering::Release);
}

/// What the program's handlers would touch has ended. A terminal's signals are for the program, not for those that left it.
fn take_signals(answers: fn() -> bool) {
    let handler: extern "C" fn(c_int) = on_term;
    for signal in 1..=SIGNAL_MAX {
        let takes = match signal {
            libc::SIGTERM => handler as usize,
            libc::SIGUSR2 if answers() => continue,
            // Its own instructions raise these; those cannot be ignored; these stop it and let it go on.
            libc::SIGSEGV
            | libc::SIGBUS
            | libc::SIGILL
            | libc::SIGFPE
            | libc::SIGABRT
            | libc::SIGTRAP
            | libc::SIGSYS
            | libc::SIGKILL
            | libc::SIGSTOP
            | libc::SIGTSTP
            | libc::SIGTTIN
            | libc::SIGTTOU
            | libc::SIGCONT => continue,
            kept if OF_THE_C_LIBRARY.contains(&kept) => continue,
            // SIGCHLD among them: children that end from now on are waited for by the kernel.
            _ => libc::SIG_IGN,
        };
        // SAFETY: the handler sets a flag; the mask is this thread's.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = takes;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
    // SAFETY: a set that is filled before it is used; this thread may have been in a handler of the same signal.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// Gives up what an ended process has no more: its files, sockets and pipes, at whose ends somebody may wait.
fn let_go() {
    // SAFETY: the program's numbers, which it does not use any more; stderr stays for what is to be said.
    unsafe {
        let nothing = raw::system(
            libc::SYS_openat,
            [
                libc::AT_FDCWD.into(),
                c"/dev/null".as_ptr() as _,
                (libc::O_RDWR | libc::O_CLOEXEC).into(),
                0,
                0,
                0,
            ],
        ) as c_int;
        if nothing >= 0 {
            for number in [0, 1] {
                descriptors::dup3(nothing, number, libc::O_CLOEXEC);
            }
        }
    }
    descriptors::close_range(3, u32::MAX, 0);
}

/// Children that ended before.
fn reap() {
    // SAFETY: asks, and does not wait; nobody else wants to know.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}
