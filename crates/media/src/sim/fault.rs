//! Faults of a simulated device: rules for operations that fail, flipped bits, and the order in
//! which operations end.
//!
//! Promises: a rule counts the operations that match it as they are submitted, so the same calls
//! meet the same fault. Never: fails an operation without naming an errno.

use super::SimDevice;
use crate::Op;
use rustix::io::Errno;
use std::ops::Range;

/// A rule: which operations fail, and how. Starts as "the next one, with EIO".
#[derive(Debug, Clone)]
pub struct Fault {
    range: Range<u64>,
    skip: u64,
    errno: i32,
    always: bool,
}

impl Fault {
    /// The next operation fails with EIO.
    pub fn eio() -> Fault {
        let errno = Errno::IO.raw_os_error();
        Fault {
            range: 0..u64::MAX,
            skip: 0,
            errno,
            always: false,
        }
    }

    /// The next operation fails with ENOSPC; a write then changes nothing.
    pub fn enospc() -> Fault {
        Fault {
            errno: Errno::NOSPC.raw_os_error(),
            ..Fault::eio()
        }
    }

    /// Only operations that touch this byte range (flushes touch none and always match).
    pub fn in_range(mut self, range: Range<u64>) -> Fault {
        self.range = range;
        self
    }

    /// Lets `count` matching operations pass first.
    pub fn after(mut self, count: u64) -> Fault {
        self.skip = count;
        self
    }

    /// Fails every matching operation from then on, not just one.
    pub fn always(mut self) -> Fault {
        self.always = true;
        self
    }

    fn matches(&self, op: &Op) -> bool {
        let (start, end) = (op.offset(), op.offset() + op.len() as u64);
        matches!(op, Op::Flush) || (start < self.range.end && end > self.range.start)
    }
}

/// The rules in force on a device.
#[derive(Debug, Default)]
pub(super) struct Rules {
    read: Vec<Fault>,
    write: Vec<Fault>,
    flush: Vec<Fault>,
}

impl Rules {
    /// The errno with which this operation, submitted now, will end.
    pub(super) fn draw(&mut self, op: &Op) -> Option<i32> {
        let Rules { read, write, flush } = self;
        match op {
            Op::Read { .. } => hit(read, op),
            Op::Write { .. } | Op::WriteBuf { .. } => hit(write, op),
            // It is a write and a flush in one.
            Op::WriteThrough { .. } => hit(write, op).or_else(|| hit(flush, op)),
            Op::Flush => hit(flush, op),
        }
    }
}

/// The errno that one of `rules` has for `op`, if any.
fn hit(rules: &mut Vec<Fault>, op: &Op) -> Option<i32> {
    let mut hit = None;
    for (index, rule) in rules
        .iter_mut()
        .enumerate()
        .filter(|(_, rule)| rule.matches(op))
    {
        if rule.skip > 0 {
            rule.skip -= 1;
        } else if hit.is_none() {
            hit = Some((index, rule.errno, rule.always));
        }
    }
    let (index, errno, always) = hit?;
    if !always {
        rules.remove(index);
    }
    Some(errno)
}

/// Sets faults on a device; each takes effect at once.
pub struct Faults<'a> {
    device: &'a SimDevice,
}

impl<'a> Faults<'a> {
    pub(super) fn new(device: &'a SimDevice) -> Self {
        Faults { device }
    }

    /// Reads fail by this rule; what is in their buffers then is unspecified.
    pub fn fail_read(&self, fault: Fault) -> &Self {
        self.device.state().rules.read.push(fault);
        self
    }

    /// Writes fail by this rule. With EIO any sectors of them may have been written.
    pub fn fail_write(&self, fault: Fault) -> &Self {
        self.device.state().rules.write.push(fault);
        self
    }

    /// Flushes fail by this rule. As on real systems the writes a failed flush should have covered
    /// are never made durable by a later flush; only writing them again helps.
    pub fn fail_flush(&self, fault: Fault) -> &Self {
        self.device.state().rules.flush.push(fault);
        self
    }

    /// Flips one bit (0 to 7) of the byte at `offset` on the medium, unnoticed: reads see it now
    /// and after a crash. Panics if the device has no such byte.
    pub fn flip_bit(&self, offset: u64, bit: u8) -> &Self {
        assert!(bit < 8, "bit {bit} of a byte");
        assert!(
            offset < self.device.inner.len_bytes,
            "byte {offset} of the device"
        );
        self.device.state().flip_bit(offset as usize, 1 << bit);
        self
    }

    /// Whether operations end late and out of order (the default), or all at the next reap in the
    /// order of their submission.
    pub fn set_reorder(&self, reorder: bool) -> &Self {
        self.device.state().reorder = reorder;
        self
    }

    /// Reads of at most `bytes` bytes stay in flight until this is set to 0: a slow device. What
    /// they bring is what is there when they end.
    pub fn hold_reads(&self, bytes: usize) -> &Self {
        self.device.state().held_read_bytes = bytes;
        self
    }

    /// Takes away all rules. Flipped bits stay.
    pub fn clear(&self) -> &Self {
        self.device.state().rules = Rules::default();
        self
    }
}
