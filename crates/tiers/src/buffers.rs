//! Memory in which a lane fills and writes segments of the SSD, and into which it reads victims of the cleaner.
//!
//! A device is given memory by pieces that lie in a row, and under a hypervisor each piece costs: 512 KiB on small pages are 128 of them. So where the lane has DRAM enough, victims and as many
//! segments as there is room for lie on one huge page, for good, of what is counted for a lane's buffers anyway (docs/adr/0053, 0081).
//!
//! Promises: a buffer has a segment's size. Never: waits, or keeps more than [`SPARE_MAX`] segments beside those on the huge page.

use crate::config::Config;
use terrace_media::{Buf, HUGE_BYTES, SegBuf};

/// Segments whose memory is counted for a lane's buffers, however many it has: two heads and two closing, two victims, two parts of an image.
pub const LANE_BUFFERS: usize = 8;
/// Parts of an image that are filled or written at a time.
pub(crate) const IMAGE_PARTS_MAX: usize = 2;
/// Victims read or being read at once.
pub(crate) const VICTIMS_MAX: usize = 2;
/// Segments that were filled on small pages and are kept for reuse.
const SPARE_MAX: usize = 2;
/// A lane with less DRAM has no huge page, of which much would lie idle.
const HUGE_FROM_BYTES: usize = 48 << 20;

/// Buffers of a lane that nobody uses now.
pub(crate) struct Buffers {
    segment_bytes: usize,
    segments: Vec<SegBuf>,
    victims: Vec<Buf>,
}

impl Buffers {
    pub fn new(cfg: &Config) -> Buffers {
        let mut buffers = Buffers {
            segment_bytes: cfg.segment_bytes,
            segments: Vec::new(),
            victims: Vec::new(),
        };
        let on_one_page = (HUGE_BYTES / cfg.segment_bytes).min(LANE_BUFFERS);
        let fill_it = on_one_page * cfg.segment_bytes == HUGE_BYTES && on_one_page >= VICTIMS_MAX;
        if fill_it && cfg.memory_segments * cfg.segment_bytes >= HUGE_FROM_BYTES {
            // Without addresses for it there are none.
            let row = Buf::side_by_side(&vec![cfg.segment_bytes; on_one_page]);
            let mut row = row.unwrap_or_default().into_iter();
            buffers.victims.extend(row.by_ref().take(VICTIMS_MAX));
            buffers.segments.extend(row.filter_map(SegBuf::over));
        }
        buffers
    }

    /// For a segment that is to be filled, with whatever is there.
    pub fn take_segment(&mut self) -> SegBuf {
        let kept = self.segments.pop();
        kept.unwrap_or_else(|| SegBuf::zeroed(self.segment_bytes))
    }

    /// Gives one back; it is let go if the device has a part of it still.
    pub fn keep_segment(&mut self, buf: SegBuf) {
        let Ok(buf) = buf.recycle() else {
            return;
        };
        let small = self.segments.iter().filter(|b| !b.is_beside_others());
        match buf.is_beside_others() {
            // Taken first.
            true => self.segments.push(buf),
            false if small.count() < SPARE_MAX => self.segments.insert(0, buf),
            false => {}
        }
    }

    /// For `len` bytes of a victim, with whatever is there.
    pub fn take_victim(&mut self, len: usize) -> Buf {
        match self.victims.pop() {
            Some(mut buf) => {
                buf.set_len(len);
                buf
            }
            None => Buf::zeroed(len),
        }
    }

    /// Gives one back.
    pub fn keep_victim(&mut self, buf: Buf) {
        if buf.is_beside_others() {
            self.victims.push(buf);
        }
    }

    /// What is here, bytes.
    pub fn bytes(&self) -> usize {
        (self.segments.len() + self.victims.len()) * self.segment_bytes
    }
}
