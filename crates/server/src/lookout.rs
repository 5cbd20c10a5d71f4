//! Whether a thread that has nothing to do looks again or sleeps. To sleep for the moments that a device's write and flush take
//! seems to cost more than they do where a hypervisor wakes a processor that halts (ADR 0045).
//!
//! Promises: a thread looks again only while replies wait for the device, and for `LOOK_OUT_US` after the last thing that
//! happened; so a slow device costs that much and no more. Never: waits, or looks itself.

use std::time::{Duration, Instant};

use crate::limits::LOOK_OUT_US;

/// Since when nothing has happened.
#[derive(Debug, Default)]
pub struct Lookout {
    quiet_since: Option<Instant>,
}

impl Lookout {
    /// Whether to look again at once. `awaits_device`: replies wait for it; `came`: the last look found something.
    pub fn looks_again(&mut self, awaits_device: bool, came: bool) -> bool {
        if !awaits_device {
            self.quiet_since = None;
            return false;
        }
        self.looks_again_at(Instant::now(), came)
    }

    fn looks_again_at(&mut self, now: Instant, came: bool) -> bool {
        if came {
            self.quiet_since = None;
        }
        let since = *self.quiet_since.get_or_insert(now);
        now.duration_since(since) < Duration::from_micros(LOOK_OUT_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_again_for_a_moment_and_then_sleeps() {
        let mut lookout = Lookout::default();
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        assert!(lookout.looks_again_at(at(0), false));
        assert!(lookout.looks_again_at(at(LOOK_OUT_US - 1), false));
        assert!(!lookout.looks_again_at(at(LOOK_OUT_US), false));
        // It has slept, and was woken for nothing: it sleeps on.
        assert!(!lookout.looks_again_at(at(50 * LOOK_OUT_US), false));
        assert!(lookout.looks_again_at(at(60 * LOOK_OUT_US), true));
        assert!(lookout.looks_again_at(at(61 * LOOK_OUT_US - 1), false));
        assert!(!lookout.looks_again_at(at(61 * LOOK_OUT_US), false));
    }

    #[test]
    fn nobody_looks_while_nothing_is_awaited() {
        let mut lookout = Lookout::default();
        assert!(!lookout.looks_again(false, true));
        assert!(!lookout.looks_again(false, false));
    }
}
