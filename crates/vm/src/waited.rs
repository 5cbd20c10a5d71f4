//! How long a fault waits for room in the page buffer.
//!
//! Promises: time in which the process was stopped does not count. Never: waits.

/// The longest a fault waits.
pub(crate) const WAIT_MS_MAX: u64 = 10_000;
/// The same while changed pages cannot leave since their region is being synced: that ends after half as long, if the device is so slow (`store::write`).
const SYNC_MS_MAX: u64 = 60_000;
/// What one look for room and the wait after it count for at most: it takes longer where the process was stopped (SIGSTOP, a debugger), which is no
/// reason to fail when it goes on.
const LOOK_MS_MAX: u64 = 1_000;

/// Milliseconds that were waited in vain.
#[derive(Default)]
pub(crate) struct Waited(u64);

impl Waited {
    pub fn add(&mut self, ms: u64) {
        self.0 += ms.min(LOOK_MS_MAX);
    }

    /// Whether that is enough, where a sync is under way or not.
    pub fn is_over(&self, syncing: bool) -> bool {
        let most = if syncing { SYNC_MS_MAX } else { WAIT_MS_MAX };
        self.0 > most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_has_not_waited() {
        let mut waited = Waited::default();
        for _ in 0..3 {
            waited.add(180_000);
            waited.add(20);
        }
        assert!(!waited.is_over(false));
        (0..400).for_each(|_| waited.add(20));
        assert!(waited.is_over(false) && !waited.is_over(true));
        (0..3000).for_each(|_| waited.add(20));
        assert!(waited.is_over(true));
    }
}
