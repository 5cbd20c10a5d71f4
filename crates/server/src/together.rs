//! Connections that moved at the same time are served together: first all are received, then what their keys need is
//! asked for at once, then all are executed, and only then the replies are sent. So memory is waited for once and not
//! for each key, and a client that has several connections is woken once and finds all its replies.
//!
//! Promises: holds at most `TOGETHER_BYTES`; what does not fit is served alone. Never: sends.

use slab::Slab;

use crate::conn::Conn;
use crate::env::Env;
use crate::limits::OUTPUT_LIMIT_BYTES;
use crate::resp::parse;
use crate::service::{go_on, may_execute, read_early, take_early};
use crate::store::Store;

/// Connections that are served together.
pub const TOGETHER_MAX: usize = 32;
/// What is received of each; one that sent more goes on alone.
const EARLY_BYTES: usize = 4 << 10;
/// Longest reply buffer that is kept.
const REPLY_KEPT_BYTES: usize = 4 << 10;
/// All that it takes: received bytes, kept replies, and replies up to the limit and one command beyond, in buffers that
/// grow by doubling.
pub const TOGETHER_BYTES: usize =
    TOGETHER_MAX * (EARLY_BYTES + REPLY_KEPT_BYTES) + 4 * OUTPUT_LIMIT_BYTES;

/// Buffers for connections that are served together.
pub struct Together {
    early: Vec<u8>,
    replies: [Vec<u8>; TOGETHER_MAX],
}

impl Default for Together {
    fn default() -> Self {
        Together {
            early: Vec::new(),
            replies: std::array::from_fn(|_| Vec::new()),
        }
    }
}

impl Together {
    /// Receives and executes for each connection as far as nothing need be sent before.
    pub fn execute<S: Store>(
        &mut self,
        env: &mut Env<S>,
        conns: &mut Slab<Conn<S>>,
        slots: &[usize],
    ) {
        if slots.len() < 2 || !env.budget.ready(&mut env.store) {
            return;
        }
        self.early.resize(TOGETHER_MAX * EARLY_BYTES, 0);
        let mut lens = [0; TOGETHER_MAX];
        let rooms = self.early.chunks_mut(EARLY_BYTES);
        for ((slot, len), room) in slots.iter().zip(&mut lens).zip(rooms) {
            if let Some(conn) = conns.get_mut(*slot).filter(|c| may_execute(c)) {
                *len = read_early(env, conn, room);
            }
        }
        let early = self.early.chunks(EARLY_BYTES).zip(lens);
        let keys = slots.iter().zip(early).filter_map(|(slot, (early, len))| {
            let waiting = conns.get(*slot).filter(|c| may_execute(c) && !c.need_more);
            // What waited for the device, say, is executed again from its start.
            let bytes = waiting.map_or(&early[..len], |c| &c.input[c.input_at..]);
            parse::first_key(bytes)
        });
        env.store.prefetch(keys);
        let mut replied_bytes = 0;
        for (at, slot) in slots.iter().enumerate() {
            let Some(conn) = conns.get_mut(*slot).filter(|c| may_execute(c)) else {
                continue;
            };
            std::mem::swap(&mut env.out, &mut self.replies[at]);
            match &self.early[at * EARLY_BYTES..][..lens[at]] {
                // What was received must be taken in; what waits can wait.
                [] if replied_bytes < OUTPUT_LIMIT_BYTES => go_on(env, conn),
                [] => {}
                bytes if replied_bytes < OUTPUT_LIMIT_BYTES => take_early(env, conn, bytes),
                bytes => {
                    conn.need_more = false;
                    conn.keep_input(&mut env.budget, bytes);
                }
            }
            std::mem::swap(&mut env.out, &mut self.replies[at]);
            replied_bytes += self.replies[at].len();
        }
    }

    /// Before connection number `at` is served: its reply is what is to be sent.
    pub fn lend<S: Store>(&mut self, env: &mut Env<S>, at: usize) {
        std::mem::swap(&mut env.out, &mut self.replies[at]);
    }

    /// And after: what was in it is sent or kept.
    pub fn restore<S: Store>(&mut self, env: &mut Env<S>, at: usize) {
        std::mem::swap(&mut env.out, &mut self.replies[at]);
        // Nothing of one connection must ever reach another.
        self.replies[at].clear();
        if self.replies[at].capacity() > REPLY_KEPT_BYTES {
            self.replies[at] = Vec::new();
        }
    }
}
