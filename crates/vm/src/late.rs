//! Faults that come late: a handler reads one, another handler brings the same page in ahead, the thread goes on, and may free what it touched before the first
//! handler looks. What that meets then (no object, no region) is nobody's mistake, and must not be held against who has the page next.
//!
//! So the thread is woken without its page, once: if it is still there it faults again, and then it is told. Promises: a fault that cannot be served is told at the second
//! try, or a few later where many threads make such mistakes at once. Never: waits.

use crate::sys::{Lock, now_ms};

/// Faults remembered at a time: more than there are handlers that can meet one at once.
const FAULTS_MAX: usize = 2 * crate::policy::HANDLERS_MAX;
/// Whose thread has not come back by then is gone.
const BACK_MS_MAX: u64 = 1000;

#[derive(Clone, Copy)]
struct Woken {
    page: u64,
    at_ms: u64,
}

struct Ring {
    woken: [Option<Woken>; FAULTS_MAX],
    next: usize,
}

/// See the head of the file.
pub(crate) struct Late(Lock<Ring>);

impl Late {
    pub fn new() -> Late {
        Late(Lock::new(Ring {
            woken: [None; FAULTS_MAX],
            next: 0,
        }))
    }

    /// Asked for a fault that cannot be served: true where its thread may be gone, and is to be woken to see.
    pub fn may_be(&self, page: u64) -> bool {
        self.may_be_at(page, now_ms())
    }

    fn may_be_at(&self, page: u64, now_ms: u64) -> bool {
        let mut ring = self.0.lock();
        let is_it = |woken: &&mut Option<Woken>| woken.is_some_and(|woken| woken.page == page);
        if let Some(before) = ring.woken.iter_mut().find(is_it).and_then(Option::take)
            && now_ms.saturating_sub(before.at_ms) <= BACK_MS_MAX
        {
            return false;
        }
        let next = ring.next;
        ring.woken[next] = Some(Woken {
            page,
            at_ms: now_ms,
        });
        ring.next = (next + 1) % FAULTS_MAX;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_soon_is_told() {
        let late = Late::new();
        assert!(late.may_be_at(7, 100));
        assert!(late.may_be_at(8, 100));
        assert!(!late.may_be_at(7, 101));
        assert!(!late.may_be_at(8, 1100));
        // Told once: the next one is another thread's.
        assert!(late.may_be_at(7, 102));
        // It did not come back.
        assert!(late.may_be_at(7, 5000));
        assert!(!late.may_be_at(7, 5001));
    }
}
