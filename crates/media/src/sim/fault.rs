//! Faults of a simulated device: rules for operations that fail.
//!
//! Promises: a rule counts the operations that match it as they are submitted, so the same calls
//! meet the same fault. Never: fails an operation without naming an errno.

use crate::Op;
use rustix::io::Errno;
use std::ops::Range;

/// Of operations whose buffer does not come back.
pub(super) const REFUSED: Errno = Errno::PERM;

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

    /// The next operation ends as where the kernel does not serve a queue any longer: with EPERM, and a read's buffer stays with it.
    pub fn refused() -> Fault {
        Fault {
            errno: REFUSED.raw_os_error(),
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
    pub(super) read: Vec<Fault>,
    pub(super) write: Vec<Fault>,
    pub(super) flush: Vec<Fault>,
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
