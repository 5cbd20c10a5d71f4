//! Whether SIGPIPE was ignored when this process began. Rust's runtime ignores it before `main`, and a program that takes the place of a process has the default again.
//!
//! Promises: that program has it as this process had. Never: changes what this process does about it.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static IGNORED: AtomicBool = AtomicBool::new(false);

/// Called before the runtime begins.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    // SAFETY: asks only; all zeros is a value of what the answer goes to.
    let ignored = unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    };
    IGNORED.store(ignored, Ordering::Relaxed);
}

/// Puts a program in this process's place, with SIGPIPE as this one was started. Comes back only if that fails.
pub fn exec_as_started(command: &mut Command) -> std::io::Error {
    // What nothing names may be left out by the linker.
    std::hint::black_box(&AT_START);
    if IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: a system call, which is allowed where a program is about to be started.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: as said; it touches nothing of this process.
        unsafe { command.pre_exec(ignore) };
    }
    command.exec()
}
