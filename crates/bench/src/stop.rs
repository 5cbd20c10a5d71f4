//! The user's wish to stop: ctrl-c, a TERM, or a terminal that is gone.
//!
//! Promises that after [`listen`] the first signal makes [`check`] fail everywhere, so that every guard (swap file, cgroup, child
//! process) is dropped on the way out. A second signal ends the process at once.

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Starts to listen for INT, TERM, HUP and QUIT. Calling it again does nothing.
pub fn listen() -> Result<()> {
    let mut registered = Ok(());
    ASKED.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // In this order: the first signal finds the flag down and only raises it, the second finds it up and ends us.
            let second =
                signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
            let first = signal_hook::flag::register(signal, Arc::clone(&flag));
            registered = second.and(first).map(|_| ());
        }
        flag
    });
    Ok(registered?)
}

/// Fails once the user has asked to stop.
pub fn check() -> Result<()> {
    if ASKED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("stopped by a signal; servers, swap file and cgroups are taken down");
    }
    Ok(())
}

/// Sleeps, but not past a wish to stop.
pub fn sleep_s(seconds: f64) -> Result<()> {
    let until = std::time::Instant::now() + std::time::Duration::from_secs_f64(seconds);
    loop {
        check()?;
        let left = until.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(50)));
    }
}
