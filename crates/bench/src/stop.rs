//! The user's wish to stop: ctrl-c, a TERM, or a terminal that is gone.
//!
//! Promises that after [`listen`] the first signal makes [`check`] fail everywhere, so that every guard (swap file, cgroup, child
//! process) is dropped on the way out. A second signal ends the process at once, but for those that a terminal sends when it goes: it may send two.

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Starts to listen for INT, TERM, HUP and QUIT. Calling it again does nothing.
pub fn listen() -> Result<()> {
    let mut registered = Ok(());
    ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        registered = register(&asked);
        asked
    });
    Ok(registered?)
}

fn register(asked: &Arc<AtomicBool>) -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGQUIT] {
        // In this order: the first signal finds the flag down and only raises it, the second finds it up and ends us.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(asked))?;
        flag::register(signal, Arc::clone(asked))?;
    }
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, Arc::clone(asked))?;
    }
    Ok(())
}

/// Whether we were started so that a signal is nothing to us (nohup).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Fails once the user has asked to stop.
pub fn check() -> Result<()> {
    if ASKED
        .get()
        .is_some_and(|asked| asked.load(Ordering::Relaxed))
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_what_the_kernel_says() {
        // Rust ignores SIGPIPE when it starts, and nothing else.
        assert!(is_ignored(signal_hook::consts::SIGPIPE));
        assert!(!is_ignored(SIGTERM));
    }
}
