//! Writes checkpoints and warm images into segments: a chain of parts.
//!
//! Each part is a segment header with the next part's number, its payload's
//! length and checksum, and the payload. Never: decides when a chain counts;
//! the root block does.

use crate::io::{Io, Purpose};
use crate::ssd::{Ssd, Stalled, State};
use terrace_log::frame::{SEGMENT_HEADER_BYTES, SegmentHeader, Use};
use terrace_media::{BLOCK_BYTES, Buf, Op};

/// A chain being written.
pub(crate) struct ImageWriter {
    used_for: Use,
    segments: Vec<u32>,
    part: Option<Buf>,
    filled: usize,
    /// Payload bytes in all.
    pub total_bytes: u64,
    /// Checksum of the whole payload.
    pub crc: u32,
    /// Bytes sent to the device.
    pub written_bytes: u64,
}

impl ImageWriter {
    pub(crate) fn new(used_for: Use) -> ImageWriter {
        ImageWriter {
            used_for,
            segments: Vec::new(),
            part: None,
            filled: 0,
            total_bytes: 0,
            crc: 0,
            written_bytes: 0,
        }
    }

    /// Segments taken so far, in the chain's order.
    pub(crate) fn segments(&self) -> &[u32] {
        &self.segments
    }

    /// Appends payload. Stalled: no segment is free; the chain must be given up.
    pub(crate) fn push(
        &mut self,
        ssd: &mut Ssd,
        io: &mut Io,
        mut bytes: &[u8],
    ) -> Result<(), Stalled> {
        self.total_bytes += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        while !bytes.is_empty() {
            if self.part.is_none() {
                self.start(ssd)?;
            }
            let room = ssd.segment_bytes - self.filled;
            if room == 0 {
                self.end_part(ssd, io, true)?;
                continue;
            }
            let take = room.min(bytes.len());
            let part = self.part.as_mut().expect("started");
            part[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
            self.filled += take;
            bytes = &bytes[take..];
        }
        Ok(())
    }

    /// Ends the part being filled, so that what follows starts a segment of its own.
    pub(crate) fn end_part(
        &mut self,
        ssd: &mut Ssd,
        io: &mut Io,
        more: bool,
    ) -> Result<(), Stalled> {
        let Some(mut part) = self.part.take() else {
            return Ok(());
        };
        let segment = *self.segments.last().expect("started");
        let filled = self.filled;
        let next = match more {
            true => {
                self.start(ssd)?;
                self.segments.last().expect("started") + 1
            }
            false => 0,
        };
        let header = SegmentHeader {
            life: ssd.life(segment),
            used_for: self.used_for,
            next,
            len_bytes: (filled - SEGMENT_HEADER_BYTES) as u32,
            payload_crc: crc32c::crc32c(&part[SEGMENT_HEADER_BYTES..filled]),
        };
        header.write(&mut part);
        let len = filled.next_multiple_of(BLOCK_BYTES);
        if len < part.len() {
            let mut short = Buf::zeroed(len);
            short.copy_from_slice(&part[..len]);
            part = short;
        }
        self.written_bytes += part.len() as u64;
        let op = Op::WriteBuf {
            offset: ssd.device_offset(segment),
            buf: part,
        };
        io.send(Purpose::Image { segment }, op);
        Ok(())
    }

    fn start(&mut self, ssd: &mut Ssd) -> Result<(), Stalled> {
        let segment = ssd.take(State::Image).ok_or(Stalled)?;
        self.segments.push(segment);
        self.part = Some(Buf::zeroed(ssd.segment_bytes));
        self.filled = SEGMENT_HEADER_BYTES;
        Ok(())
    }
}
