//! The contract of block media: [`Device`], its queues ([`Disk`]) and operations ([`Op`]), and
//! helpers that wait for one operation.
//!
//! Promises: whatever is submitted ends in exactly one [`Done`], also on error; buffers come back
//! with it. A flush covers the writes whose `Done` was reaped before the flush was submitted.
//! Never: orders operations that are in flight together, or retries a failed flush.

use crate::{BLOCK_BYTES, Buf, Frozen, MediaError, OP_BYTES_MAX};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// One operation. Offsets are in bytes from the start of the device.
#[derive(Debug)]
pub enum Op {
    /// Fill `buf` from `offset` on.
    Read {
        /// First byte, a multiple of [`Device::read_unit_bytes`].
        offset: u64,
        /// Filled over its whole length, a multiple of [`Device::read_unit_bytes`]; comes back in [`Done::buf`].
        buf: Buf,
    },
    /// Write a frozen range of a segment.
    Write {
        /// First byte, a multiple of [`BLOCK_BYTES`].
        offset: u64,
        /// What to write; its length is a multiple of [`BLOCK_BYTES`].
        data: Frozen,
    },
    /// Write a frozen range of a segment; it is durable when this has ended, if the device can that ([`Device::writes_through`]). Says nothing of other writes.
    WriteThrough {
        /// First byte, a multiple of [`BLOCK_BYTES`].
        offset: u64,
        /// What to write; its length is a multiple of [`BLOCK_BYTES`].
        data: Frozen,
    },
    /// Write an owned buffer.
    WriteBuf {
        /// First byte, a multiple of [`BLOCK_BYTES`].
        offset: u64,
        /// Written over its whole length, a multiple of [`BLOCK_BYTES`]; comes back in [`Done::buf`].
        buf: Buf,
    },
    /// Make durable what was written and reaped before this was submitted.
    Flush,
}

impl Op {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Op::Read { .. } => "read",
            Op::Write { .. } | Op::WriteThrough { .. } | Op::WriteBuf { .. } => "write",
            Op::Flush => "flush",
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        match self {
            Op::Read { offset, .. }
            | Op::Write { offset, .. }
            | Op::WriteThrough { offset, .. }
            | Op::WriteBuf { offset, .. } => *offset,
            Op::Flush => 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Op::Read { buf, .. } | Op::WriteBuf { buf, .. } => buf.len(),
            Op::Write { data, .. } | Op::WriteThrough { data, .. } => data.len(),
            Op::Flush => 0,
        }
    }

    /// The buffer that goes back to the caller.
    pub(crate) fn into_buf(self) -> Option<Buf> {
        match self {
            Op::Read { buf, .. } | Op::WriteBuf { buf, .. } => Some(buf),
            Op::Write { .. } | Op::WriteThrough { .. } | Op::Flush => None,
        }
    }

    /// Panics on a misaligned or overlong operation (a mistake of the caller, not of the world);
    /// an error if the range does not lie on a device of `device_bytes`, which reads by `read_unit_bytes`.
    pub(crate) fn check(
        &self,
        device_bytes: u64,
        read_unit_bytes: usize,
    ) -> Result<(), MediaError> {
        let (offset, len) = (self.offset(), self.len());
        let unit_bytes = match self {
            Op::Read { .. } => read_unit_bytes,
            _ => BLOCK_BYTES,
        };
        assert!(
            offset.is_multiple_of(unit_bytes as u64),
            "{} at byte {offset}",
            self.name()
        );
        assert!(
            len.is_multiple_of(unit_bytes),
            "{} of {len} bytes",
            self.name()
        );
        assert!(
            len <= OP_BYTES_MAX,
            "{} of {len} bytes, allowed is {OP_BYTES_MAX}",
            self.name()
        );
        match offset.checked_add(len as u64) {
            Some(end) if end <= device_bytes => Ok(()),
            _ => Err(MediaError::OutOfRange {
                op: self.name(),
                offset,
                len,
                device_bytes,
            }),
        }
    }

    /// Of `moved_bytes`, how many need not be moved again (see [`resumable_bytes`]).
    pub(crate) fn resumable_bytes(&self, moved_bytes: usize) -> usize {
        resumable_bytes(self.offset(), self.len(), moved_bytes)
    }

    pub(crate) fn io_error(&self, errno: i32) -> MediaError {
        MediaError::Io {
            op: self.name(),
            offset: self.offset(),
            len: self.len(),
            errno,
        }
    }

    pub(crate) fn short_error(&self, moved_bytes: usize) -> MediaError {
        MediaError::Short {
            op: self.name(),
            offset: self.offset(),
            len: self.len(),
            moved_bytes,
        }
    }
}

/// Of the `moved_bytes` that came of `len` bytes at `offset`, how many need not be moved again: direct I/O resumes only at
/// whole units, and the device's is no coarser than what the operation itself was aligned to.
pub(crate) fn resumable_bytes(offset: u64, len: usize, moved_bytes: usize) -> usize {
    let aligned_to = 1
        << (offset | len as u64)
            .trailing_zeros()
            .min(BLOCK_BYTES.ilog2());
    moved_bytes - moved_bytes % aligned_to
}

/// The end of one operation.
#[derive(Debug)]
pub struct Done {
    /// The token it was submitted under.
    pub token: u64,
    /// Whether it was done in full.
    pub result: Result<(), MediaError>,
    /// The buffer of a `Read` or `WriteBuf`, also on error. Only a queue whose ring the kernel
    /// refuses to serve any longer keeps it: the device may still be writing to it.
    pub buf: Option<Buf>,
}

/// How long [`Disk::reap`] waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Only take what has finished.
    No,
    /// Until at least one operation has finished, or the time is up.
    For(Duration),
}

/// One thread's submission and completion queue on a device. Dropping it waits for what the
/// device has in hand, and forgets the backlog.
pub trait Disk: Send {
    /// Queues an operation and returns at once; beyond the ring's depth it waits in a local
    /// backlog, which the caller bounds by what it submits. Offsets and lengths are multiples of
    /// [`BLOCK_BYTES`], of reads of [`Device::read_unit_bytes`], and lengths at most [`OP_BYTES_MAX`], else this panics.
    fn submit(&mut self, token: u64, op: Op);

    /// Hands what is queued to the kernel, in one system call.
    fn kick(&mut self);

    /// Kicks, then adds everything that has finished to `done`.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>);

    /// Makes `count` buffers of `each_bytes`, a multiple of [`BLOCK_BYTES`], that the device reads into at less cost than into others.
    /// Answers what they take, bytes; 0 where there is no such thing, or they are there already.
    fn stock_up(&mut self, _count: u16, _each_bytes: usize) -> usize {
        0
    }

    /// One of them, of `len` bytes (a multiple of [`crate::SECTOR_BYTES`]) with whatever is there, for a read by this queue. None: there is none now.
    fn lend(&mut self, _len: usize) -> Option<Buf> {
        None
    }

    /// Operations submitted and not yet reaped, the backlog included.
    fn in_flight(&self) -> usize;

    /// Whether it takes nothing any more, whatever the device does: the system refused to serve the queue itself.
    fn is_broken(&self) -> bool {
        false
    }

    /// A descriptor that is readable while completions wait to be reaped, for `epoll`; `None` if
    /// this queue has none. It does not tell of operations that were refused without asking the
    /// device: reap once without waiting after submitting.
    fn poll_fd(&self) -> Option<RawFd>;
}

/// One of several reads: as [`Device::read_into`] takes it.
#[derive(Debug)]
pub struct ReadInto<'a> {
    /// First byte.
    pub offset: u64,
    /// Where to.
    pub into: &'a mut [u8],
    /// What came of it.
    pub result: Result<(), MediaError>,
}

/// A block medium.
pub trait Device: Send + Sync {
    /// Its length in bytes, a multiple of [`BLOCK_BYTES`]; never changes.
    fn len_bytes(&self) -> u64;

    /// What offsets, lengths and addresses of reads are multiples of: a power of two from [`crate::SECTOR_BYTES`] to [`BLOCK_BYTES`].
    fn read_unit_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    /// Whether [`Op::WriteThrough`] is durable when it has ended. Where this says no, it may be an ordinary write.
    fn writes_through(&self) -> bool {
        false
    }

    /// A new queue that keeps up to `depth` operations in the kernel's hands (1 to
    /// [`crate::QUEUE_DEPTH_MAX`]). It may move to another thread.
    fn queue(&self, depth: u32) -> Result<Box<dyn Disk>, MediaError>;

    /// A queue for a few operations, one after the other, whose end nobody else is told of: where [`queue`](Device::queue) makes a ring, closing that would end waits of the calling thread's some milliseconds later, as if a
    /// signal had come.
    fn plain_queue(&self) -> Result<Box<dyn Disk>, MediaError> {
        self.queue(1)
    }

    /// Fills `into` from `offset` on, in the calling thread, which blocks meanwhile; any number of threads
    /// may do so. Offset, length and address are multiples of [`Device::read_unit_bytes`], else this panics.
    fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<(), MediaError> {
        check_place(self.read_unit_bytes(), offset, into);
        let buf = read_blocking(&mut *self.queue(1)?, offset, into.len())?;
        into.copy_from_slice(&buf[..into.len()]);
        Ok(())
    }

    /// The same for several places, which the device has at the same time where that can be; each says what came of it.
    fn read_several(&self, reads: &mut [ReadInto<'_>]) {
        for read in reads {
            read.result = self.read_into(read.offset, read.into);
        }
    }

    /// What it is and how it is reached, for people.
    fn describe(&self) -> String;

    /// What all its queues together have finished without error since it was opened.
    fn counters(&self) -> Counters;
}

/// Panics unless direct I/O by units allows a read to there.
pub(crate) fn check_place(unit_bytes: usize, offset: u64, into: &[u8]) {
    let aligned = (into.as_ptr() as usize).is_multiple_of(unit_bytes)
        && into.len().is_multiple_of(unit_bytes)
        && offset.is_multiple_of(unit_bytes as u64);
    assert!(
        aligned,
        "read of {} bytes at byte {offset} to {:p}",
        into.len(),
        into.as_ptr()
    );
}

/// Operations finished without error, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes, and writes that were durable by themselves.
    pub flushes: u64,
}

/// [`Counters`] that many queues add to. Relaxed: they are statistics and order nothing.
#[derive(Debug, Default)]
pub(crate) struct SharedCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
}

impl SharedCounters {
    pub(crate) fn count_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn count(&self, op: &Op) {
        match op {
            Op::Read { .. } => self.count_read(op.len()),
            Op::Write { .. } | Op::WriteBuf { .. } => {
                self.writes.fetch_add(1, Relaxed);
                self.write_bytes.fetch_add(op.len() as u64, Relaxed);
            }
            Op::WriteThrough { .. } => {
                self.writes.fetch_add(1, Relaxed);
                self.write_bytes.fetch_add(op.len() as u64, Relaxed);
                self.flushes.fetch_add(1, Relaxed);
            }
            Op::Flush => {
                self.flushes.fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn read(&self) -> Counters {
        Counters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }
}

/// The token the blocking helpers submit under; callers use any other.
pub const BLOCKING_TOKEN: u64 = u64::MAX;

/// How long one wait of a blocking helper lasts before it looks again.
const BLOCKING_WAIT: Duration = Duration::from_millis(100);

/// Submits `op` under [`BLOCKING_TOKEN`] and waits for it; what else finishes meanwhile goes to
/// `others`. Nothing else in flight may use that token.
pub fn run_among(disk: &mut dyn Disk, op: Op, others: &mut Vec<Done>) -> Done {
    disk.submit(BLOCKING_TOKEN, op);
    let mut finished = Vec::new();
    let mut own = None;
    while own.is_none() {
        disk.reap(Wait::For(BLOCKING_WAIT), &mut finished);
        for done in finished.drain(..) {
            match done.token {
                BLOCKING_TOKEN => own = Some(done),
                _ => others.push(done),
            }
        }
    }
    own.expect("the loop ends only with it")
}

fn run_alone(disk: &mut dyn Disk, op: Op) -> Result<Option<Buf>, MediaError> {
    assert_eq!(
        disk.in_flight(),
        0,
        "a blocking helper needs an idle queue; see run_among"
    );
    let done = run_among(disk, op, &mut Vec::new());
    done.result.map(|()| done.buf)
}

/// Reads `len` bytes (a multiple of [`Device::read_unit_bytes`]) at `offset` and waits for them. Panics if
/// anything else is in flight; [`run_among`] allows that.
pub fn read_blocking(disk: &mut dyn Disk, offset: u64, len: usize) -> Result<Buf, MediaError> {
    let mut buf = Buf::zeroed(len);
    buf.set_len(len);
    let buf = run_alone(disk, Op::Read { offset, buf })?;
    Ok(buf.expect("a read that succeeded gives its buffer back"))
}

/// Writes `buf` at `offset`, waits, and gives the buffer back. Not durable before a flush. Panics
/// if anything else is in flight.
pub fn write_blocking(disk: &mut dyn Disk, offset: u64, buf: Buf) -> Result<Buf, MediaError> {
    let buf = run_alone(disk, Op::WriteBuf { offset, buf })?;
    Ok(buf.expect("a write that succeeded gives its buffer back"))
}

/// Makes all writes reaped so far durable and waits for it. Panics if anything else is in flight.
pub fn flush_blocking(disk: &mut dyn Disk) -> Result<(), MediaError> {
    run_alone(disk, Op::Flush).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_operations_go_on_where_their_own_alignment_allows() {
        for (offset, len, moved, resumable) in [
            (0, 8192, 5000, 4096),
            (0, 8192, 4095, 0),
            (4096, 1 << 20, 70_000, 69_632),
            (512, 1536, 1000, 512),
            (512, 1536, 511, 0),
            (2048, 2048, 2047, 0),
            (2048, 4096, 2049, 2048),
        ] {
            assert_eq!(
                resumable_bytes(offset, len, moved),
                resumable,
                "{len} at {offset}"
            );
        }
    }
}
