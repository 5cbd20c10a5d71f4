//! What serving a connection needs of its thread: the store, buffers, counters and the time. Never: knows a connection.

use std::sync::Arc;

use crate::budget::Budget;
use crate::limits::{OUTPUT_LIMIT_BYTES, SCRATCH_BYTES};
use crate::session::Session;
use crate::shared::{Counters, Shared};
use crate::store::Store;

/// Reply memory beyond this is not kept between commands.
pub const OUT_KEPT_BYTES: usize = 4 * OUTPUT_LIMIT_BYTES;

/// What serving a connection needs of its thread.
pub struct Env<S: Store> {
    /// The thread's number.
    pub index: usize,
    /// Its access to the store.
    pub store: S,
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// Its part of the buffer budget.
    pub budget: Budget,
    /// Where sockets are read to.
    pub scratch: Vec<u8>,
    /// Where replies are written to.
    pub out: Vec<u8>,
    /// Memory for arguments; always empty here.
    pub args: Vec<&'static [u8]>,
    /// Buffers were short a moment ago.
    pub tight: bool,
    /// Milliseconds since the server started, as of this turn.
    pub now_ms: u64,
    /// Reads the processor's clock: two looks at the kernel's for each command would be felt.
    clock: quanta::Clock,
    /// When the last command was through, or the next one looked at.
    mark: u64,
}

impl<S: Store> Env<S> {
    /// Of a thread that has not served yet.
    pub fn new(index: usize, store: S, shared: Arc<Shared>, budget: Budget) -> Env<S> {
        Env {
            index,
            store,
            shared,
            budget,
            scratch: vec![0; SCRATCH_BYTES],
            out: Vec::with_capacity(2 * OUTPUT_LIMIT_BYTES),
            args: Vec::new(),
            tight: false,
            now_ms: 0,
            clock: quanta::Clock::new(),
            mark: 0,
        }
    }

    /// This thread's counters.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters[self.index]
    }

    /// Takes the time: what is executed next begins now.
    #[inline]
    pub fn look_at_clock(&mut self) {
        self.mark = self.clock.raw();
    }

    /// When what is executed next begins.
    #[inline]
    pub fn begins(&self) -> u64 {
        self.mark
    }

    /// Counts a command that began at `began` and is through; the next one begins.
    #[inline]
    pub fn took(&mut self, session: &Session, args: &[&[u8]], began: u64) {
        let now = self.clock.raw();
        let ns = self.clock.delta_as_nanos(began, now);
        self.mark = now;
        self.counters().calls.took(session.kind, ns);
        if self.shared.slow.is_slow(ns) {
            let slow = &self.shared.slow;
            slow.note_command(session.kind, &session.client, args, ns);
        }
    }

    /// Empties the reply buffer.
    #[inline]
    pub fn forget_out(&mut self) {
        self.out.clear();
        if self.out.capacity() > OUT_KEPT_BYTES {
            self.out = Vec::with_capacity(2 * OUTPUT_LIMIT_BYTES);
        }
    }
}
