//! Sends the replies that have become durable (`held`), or says that they never will.
//!
//! Promises: what never will be durable is answered with an error. Never: waits, or closes an epoch.

use crate::resp::encode;
use crate::store::Store;
use crate::thread::Thread;

impl<S: Store> Thread<S> {
    /// Sends what has become durable; and when nothing ever will, says so to those who wait for it.
    pub(crate) fn release_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let durable = self.env.store.durable_epoch();
        let mut held = std::mem::take(&mut self.held);
        let now = held.release(durable, |key| {
            let slot = self.slot_of(key)?;
            let conn = &mut self.conns[slot];
            let due = conn.output.is_due(durable);
            conn.listed = !due;
            Some(due)
        });
        // Whom serving makes wait anew comes to the list, not to what is served here.
        self.held.seen = held.seen;
        for key in held.due.drain(..now) {
            if let Some(slot) = self.slot_of(key) {
                self.serve(slot);
            }
        }
        held.waiting.append(&mut self.held.waiting);
        self.held = held;
        if let Some(reason) = self.env.store.failed() {
            for key in std::mem::take(&mut self.held.waiting) {
                if let Some(slot) = self.slot_of(key) {
                    self.fail_held(slot, &reason);
                }
            }
        }
    }

    /// The replies cannot be told apart any more, so one error takes the place of all, and the connection ends.
    fn fail_held(&mut self, slot: usize, reason: &str) {
        let conn = &mut self.conns[slot];
        conn.listed = false;
        if conn.output.is_held() {
            conn.output.drop_held();
            conn.closing = true;
            let text = format!("the write was not made durable: {reason}");
            let kind = match conn.session.memcached {
                true => "SERVER_ERROR",
                false => "ERR",
            };
            match conn.session.memcached {
                true => crate::memcached::say(&mut self.env.out, &format!("{kind} {text}")),
                false => encode::error(&mut self.env.out, kind, &text),
            }
            self.env.shared.count_error(self.env.counters(), kind);
        }
        self.serve(slot);
    }
}
