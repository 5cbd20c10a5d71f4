//! Fills one segment, batch by batch.
//!
//! Promises: bytes handed out for writing never change again; an entry is
//! readable in the buffer from the moment it is appended. Never: does I/O.

use crate::addr::UNIT_BYTES;
use crate::entry::{Entry, NewEntry};
use crate::frame::{
    BATCH_HEADER_BYTES, BatchHeader, Life, SEGMENT_HEADER_BYTES, SegmentHeader, Use,
};
use terrace_media::{BLOCK_BYTES, Frozen, SegBuf};

/// What a batch's header says beside its length and count.
#[derive(Debug, Clone, Copy)]
pub struct BatchInfo {
    /// Commit it belongs to.
    pub epoch: u64,
    /// The pool's clock, ms.
    pub clock_ms: u64,
    /// Lowest valid batch seq of the lane.
    pub floor: u64,
    /// [`crate::frame::BATCH_END`] or 0.
    pub flags: u8,
    /// Attempt of this batch.
    pub attempt: u8,
}

struct OpenBatch {
    seq: u64,
    start: usize,
    count: u32,
}

/// A segment being filled.
pub struct SegmentWriter {
    buf: SegBuf,
    life: Life,
    pos: usize,
    batch: Option<OpenBatch>,
}

impl SegmentWriter {
    /// Starts a segment in `buf`; its header goes out with the first batch.
    pub fn new(mut buf: SegBuf, life: Life) -> SegmentWriter {
        let header = SegmentHeader {
            life,
            used_for: Use::Log,
            next: 0,
            len_bytes: 0,
            payload_crc: 0,
        };
        header.write(buf.open_mut());
        SegmentWriter {
            buf,
            life,
            pos: SEGMENT_HEADER_BYTES,
            batch: None,
        }
    }

    /// Identity of the segment.
    pub fn life(&self) -> &Life {
        &self.life
    }
    /// Bytes used so far, headers included.
    pub fn used_bytes(&self) -> usize {
        self.pos
    }
    /// Whether a batch is open.
    pub fn batch_open(&self) -> bool {
        self.batch.is_some()
    }
    /// Seq of the open batch.
    pub fn batch_seq(&self) -> Option<u64> {
        self.batch.as_ref().map(|b| b.seq)
    }
    /// Longest entry that still fits (0 if none).
    pub fn room_bytes(&self) -> usize {
        let header = if self.batch.is_some() {
            0
        } else {
            BATCH_HEADER_BYTES
        };
        (self.buf.len() - self.pos).saturating_sub(header)
    }

    /// Opens batch `seq`. None may be open.
    pub fn begin_batch(&mut self, seq: u64) {
        assert!(self.batch.is_none() && self.buf.len() - self.pos >= BATCH_HEADER_BYTES);
        self.batch = Some(OpenBatch {
            seq,
            start: self.pos,
            count: 0,
        });
        self.pos += BATCH_HEADER_BYTES;
    }

    /// Appends to the open batch; None if it does not fit. Returns the offset in the segment.
    pub fn append(&mut self, new: &NewEntry<'_>) -> Option<usize> {
        let len = new.len_bytes();
        if len > self.room_bytes() {
            return None;
        }
        let batch = self.batch.as_mut().expect("a batch is open");
        let at = self.pos;
        let frozen = self.buf.frozen_len();
        let out = &mut self.buf.open_mut()[at - frozen..at - frozen + len];
        new.write_sealed(out, self.life.seed(at));
        batch.count += 1;
        self.pos += len;
        debug_assert_eq!(self.pos % UNIT_BYTES, 0);
        Some(at)
    }

    /// Closes the open batch: its bytes from the returned offset are to be written.
    /// The next batch starts at a block boundary.
    pub fn end_batch(&mut self, info: &BatchInfo) -> (usize, BatchHeader, Frozen) {
        let batch = self.batch.take().expect("a batch is open");
        let header = BatchHeader {
            seq: batch.seq,
            epoch: info.epoch,
            clock_ms: info.clock_ms,
            floor: info.floor,
            len_bytes: (self.pos - batch.start) as u32,
            count: batch.count,
            flags: info.flags,
            attempt: info.attempt,
        };
        let frozen = self.buf.frozen_len();
        let end = self.pos.next_multiple_of(BLOCK_BYTES);
        let open = self.buf.open_mut();
        open[self.pos - frozen..end - frozen].fill(0);
        header.write_at(&mut open[batch.start - frozen..], &self.life, batch.start);
        self.pos = end;
        (frozen, header, self.buf.freeze(end))
    }

    /// The segment's bytes as filled so far.
    pub fn bytes(&self) -> &[u8] {
        self.buf.filled(self.pos)
    }

    /// The entry at `offset`, appended before.
    pub fn entry(&self, offset: usize) -> Entry<'_> {
        Entry::in_memory(&self.bytes()[offset..])
    }

    /// Gives the buffer back.
    pub fn into_buf(self) -> SegBuf {
        self.buf
    }
}
