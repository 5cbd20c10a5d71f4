//! Replies that wait for their epoch to be durable, and which of them are released when: half of them at once, the others a turn of the
//! thread later. The first half's clients send again meanwhile, so the epoch that is closed in between has them in it, and the
//! device writes it while the second half is sent (ADR 0049).
//!
//! Promises: nothing leaves before it is durable; what is durable leaves within two turns; what never will be is answered with an
//! error. Never: waits, or closes an epoch.

use std::collections::VecDeque;

/// Connections of a thread with held output, by key.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) waiting: Vec<u64>,
    /// Durable, and to be served in the next turn.
    pub(crate) due: VecDeque<u64>,
    /// The last durable epoch that was looked at.
    pub(crate) seen: u64,
}

impl Held {
    pub(crate) fn add(&mut self, key: u64) {
        self.waiting.push(key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.due.is_empty()
    }

    /// Whether some wait for the device.
    pub(crate) fn awaits_device(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether some can be served at once.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// How many of those that are due to serve now, once `durable` is durable. `is_due` tells of a key whether what it waits for
    /// is, or None if there is no such connection any more.
    pub(crate) fn release(
        &mut self,
        durable: u64,
        mut is_due: impl FnMut(u64) -> Option<bool>,
    ) -> usize {
        if durable == self.seen {
            return self.due.len();
        }
        self.seen = durable;
        // Those have waited a turn already.
        let carried = self.due.len();
        let due = &mut self.due;
        self.waiting.retain(|&key| match is_due(key) {
            Some(true) => {
                due.push_back(key);
                false
            }
            Some(false) => true,
            None => false,
        });
        carried + (self.due.len() - carried).div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_released_at_once_and_the_rest_next() {
        let mut held = Held::default();
        (0..5).for_each(|key| held.add(key));
        // 0 to 2 wait for epoch 7, 3 for the next, and 4 is gone.
        let is_due = |key| (key < 4).then_some(key < 3);
        assert_eq!(held.release(7, is_due), 2);
        held.due.drain(..2);
        assert!(held.has_due() && held.awaits_device());
        assert_eq!(held.release(7, |_| unreachable!()), 1);
        held.due.clear();
        assert_eq!(held.release(7, |_| unreachable!()), 0);
        assert_eq!(held.release(8, |key| Some(key == 3)), 1);
        held.due.clear();
        assert!(held.is_empty());
        // What was left for the next turn goes whole, also when more has become due.
        (0..4).for_each(|key| held.add(key));
        assert_eq!(held.release(9, |_| Some(true)), 2);
        held.due.drain(..2);
        (4..8).for_each(|key| held.add(key));
        assert_eq!(held.release(10, |_| Some(true)), 2 + 2);
    }
}
