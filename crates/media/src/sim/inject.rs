//! Sets what is to go wrong with a simulated device: rules for operations that fail, flipped bits, and the order in which
//! operations end.
//!
//! Promises: what is set holds at once, and until it is taken away. Never: takes anything away when it is dropped.

use super::fault::{Fault, Rules};
use super::state::{State, lock_state};
use std::sync::{Mutex, MutexGuard};

/// Sets faults on a device; each takes effect at once.
pub struct Faults<'a> {
    state: &'a Mutex<State>,
    len_bytes: u64,
}

impl<'a> Faults<'a> {
    /// Of a device of so many bytes.
    pub(super) fn new(state: &'a Mutex<State>, len_bytes: u64) -> Self {
        Faults { state, len_bytes }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock_state(self.state)
    }

    /// Reads fail by this rule; what is in their buffers then is unspecified.
    pub fn fail_read(&self, fault: Fault) -> &Self {
        self.state().rules.read.push(fault);
        self
    }

    /// Writes fail by this rule. With EIO any sectors of them may have been written.
    pub fn fail_write(&self, fault: Fault) -> &Self {
        self.state().rules.write.push(fault);
        self
    }

    /// Flushes fail by this rule. As on real systems the writes a failed flush should have covered
    /// are never made durable by a later flush; only writing them again helps.
    pub fn fail_flush(&self, fault: Fault) -> &Self {
        self.state().rules.flush.push(fault);
        self
    }

    /// Flips one bit (0 to 7) of the byte at `offset` on the medium, unnoticed: reads see it now
    /// and after a crash. Panics if the device has no such byte.
    pub fn flip_bit(&self, offset: u64, bit: u8) -> &Self {
        assert!(bit < 8, "bit {bit} of a byte");
        assert!(offset < self.len_bytes, "byte {offset} of the device");
        self.state().flip_bit(offset as usize, 1 << bit);
        self
    }

    /// Whether operations end late and out of order (the default), or all at the next reap in the
    /// order of their submission.
    pub fn set_reorder(&self, reorder: bool) -> &Self {
        self.state().reorder = reorder;
        self
    }

    /// Reads of at most `bytes` bytes stay in flight until this is set to 0: a slow device. What
    /// they bring is what is there when they end.
    pub fn hold_reads(&self, bytes: usize) -> &Self {
        self.state().held_read_bytes = bytes;
        self
    }

    /// Takes away all rules. Flipped bits stay.
    pub fn clear(&self) -> &Self {
        self.state().rules = Rules::default();
        self
    }
}
