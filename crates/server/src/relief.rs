//! Who is cut off: connections that hold buffers without getting on while others starve, and those that have been idle for
//! longer than allowed; and those that had their time to read why they end. What was read ahead for clients that take nothing is let go where others want reads. Never: touches one whose command waits for the store.

use std::sync::atomic::Ordering;

use crate::commands::ahead::let_go;
use crate::conn::{Block, Conn};
use crate::limits::{
    GRANT_WAIT_MAX_MS, IDLE_CHECK_MS, SLEEP_MAX_MS, STARVE_CHECK_MS, STUCK_AFTER_MS,
    TLS_HANDSHAKE_CHECK_MS, TLS_HANDSHAKE_MAX_MS,
};
use crate::linger::Linger;
use crate::store::Store;
use crate::sync::add;
use crate::thread::Thread;

/// Connections cut off in one go.
const CUT_OFF_MAX: usize = 16;

impl<S: Store> Thread<S> {
    /// When buffers run out anywhere, cuts off those who have held theirs longest without getting on.
    pub(crate) fn relieve(&mut self) {
        let now = self.env.now_ms;
        if std::mem::take(&mut self.env.budget.refused) {
            self.env
                .shared
                .starved_ms
                .store(now.max(1), Ordering::Relaxed);
        }
        let mut returns = std::mem::take(&mut self.env.budget.returned);
        let starved = self.env.shared.starved_ms.load(Ordering::Relaxed);
        let recent = starved > 0 && now.saturating_sub(starved) < 2 * SLEEP_MAX_MS;
        self.env.tight = recent;
        let looks = recent && now >= self.starve_checked_ms + STARVE_CHECK_MS;
        // What the store has to do with will come back.
        let is_with_store =
            |c: &Conn<S>| matches!(c.block, Block::Io | Block::Room) && c.held_bytes() > 0;
        returns |= looks && self.conns.iter().any(|(_, c)| is_with_store(c));
        if returns {
            self.env.shared.returned_ms.store(now, Ordering::Relaxed);
        }
        if !looks {
            return;
        }
        self.starve_checked_ms = now;
        // Who waits for a buffer is not to blame, as long as buffers come back.
        let patience_ms =
            match now.saturating_sub(self.env.shared.returned_ms.load(Ordering::Relaxed)) {
                0..STUCK_AFTER_MS => GRANT_WAIT_MAX_MS,
                _ => STUCK_AFTER_MS,
            };
        let is_stuck = |c: &Conn<S>| {
            let most_ms = match c.block {
                Block::Grant => patience_ms,
                _ if c.is_peers_fault() => STUCK_AFTER_MS,
                _ => return false,
            };
            c.held_bytes() > 0 && now.saturating_sub(c.progress_ms) >= most_ms
        };
        let mut stuck: Vec<(u64, usize)> = self
            .conns
            .iter()
            .filter(|(_, c)| is_stuck(c))
            .map(|(slot, c)| (c.progress_ms, slot))
            .collect();
        stuck.sort_unstable();
        for (_, slot) in stuck.into_iter().take(CUT_OFF_MAX) {
            self.cut_off(slot);
        }
    }

    fn cut_off(&mut self, slot: usize) {
        let conn = &mut self.conns[slot];
        let held = conn.held_bytes();
        tracing::warn!(
            client = conn.session.client.id,
            held,
            "cut off: it held buffers without progress while others starved; if this comes often, raise --dram"
        );
        if conn.output.pending() == 0 && !conn.is_replying() {
            let error = if conn.session.memcached {
                "SERVER_ERROR"
            } else {
                "-ERR"
            };
            let text = format!(
                "{error} connection cut off: it held {held} bytes of buffers for {STUCK_AFTER_MS} ms without progress while others \
                 waited for them; read replies and finish commands faster\r\n"
            );
            // One attempt, since there is no buffer to keep it in.
            let _ = conn.stream.write(text.as_bytes());
        }
        add(&self.env.counters().cut_off, 1);
        self.close(slot);
    }

    /// Lets go what was read ahead for those who take no replies while reads are short.
    pub(crate) fn let_reads_go(&mut self) {
        let now = self.env.now_ms;
        if now < self.reads_checked_ms + STARVE_CHECK_MS || !self.env.store.reads_are_short() {
            return;
        }
        self.reads_checked_ms = now;
        let stuck = (self.conns.iter_mut()).filter(|(_, c)| {
            c.is_peers_fault() && now.saturating_sub(c.progress_ms) >= STUCK_AFTER_MS
        });
        for (_, conn) in stuck {
            if let Some(parked) = conn.work.as_mut().and_then(|work| work.parked.as_mut()) {
                let_go(&mut self.env.store, &mut parked.progress);
            }
        }
    }

    /// Closes connections from which nothing has come, or which have taken nothing, for longer than is allowed.
    pub(crate) fn close_idle(&mut self) {
        let Some(most) = self.env.shared.idle_timeout else {
            return;
        };
        let now = self.env.now_ms;
        if now < self.idle_checked_ms + IDLE_CHECK_MS {
            return;
        }
        self.idle_checked_ms = now;
        let is_idle = |c: &Conn<S>| {
            c.is_peers_fault() && now.saturating_sub(c.progress_ms) as u128 >= most.as_millis()
        };
        let idle = self.conns.iter().filter(|(_, c)| is_idle(c));
        let slots: Vec<usize> = idle.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.close(slot);
        }
    }

    /// Closes connections that take too long to agree on keys.
    pub(crate) fn end_handshakes(&mut self) {
        let now = self.env.now_ms;
        if now < self.handshakes_checked_ms + TLS_HANDSHAKE_CHECK_MS {
            return;
        }
        self.handshakes_checked_ms = now;
        let mut handshaking = std::mem::take(&mut self.handshaking);
        handshaking.retain(|&(key, since_ms)| {
            let Some(slot) = self.slot_of(key) else {
                return false;
            };
            if !self.conns[slot].stream.is_handshaking() {
                return false;
            }
            let over = now.saturating_sub(since_ms) >= TLS_HANDSHAKE_MAX_MS;
            if over {
                let client = self.conns[slot].session.client.addr;
                tracing::debug!(%client, "no agreement on keys in {TLS_HANDSHAKE_MAX_MS} ms; connection closed");
                add(&self.env.counters().tls_failed, 1);
                self.close(slot);
            }
            !over
        });
        self.handshaking = handshaking;
    }

    /// Closes those that had their time to read why they end.
    pub(crate) fn end_lingering(&mut self) {
        let mut lingering = std::mem::take(&mut self.lingering);
        lingering.retain(|key| {
            let Some(slot) = self.slot_of(*key) else {
                return false;
            };
            let now_ms = self.env.now_ms;
            let is_over = |l: &Linger| l.is_over(now_ms);
            let over = self.conns[slot].linger.as_deref().is_none_or(is_over);
            if over {
                self.close(slot);
            }
            !over
        });
        self.lingering = lingering;
    }
}
