//! The warm image: what was in DRAM at a clean stop comes back in the background.
//!
//! At the stop each clean memory segment is written as it is, newest first, into
//! free SSD segments. At the start they are read one by one; an entry whose slot
//! still names its copy below is appended to DRAM. Promises: bytes of another image, or that are no entries, end it, and cost warmth
//! alone. Never: trusts the image more than the directory; delays a first reply.

use crate::image::ImageWriter;
use crate::io::Purpose;
use crate::jobs::WarmJob;
use crate::lane::Lane;
use crate::mem::Head;
use crate::policy::{CLEANER_SEGMENTS, SPARE_SEGMENTS};
use crate::ssd::State;
use terrace_log::entry::Entry;
use terrace_log::frame::{SEGMENT_HEADER_BYTES, SegmentHeader, Use};
use terrace_log::{Kind, NewEntry, Slot, Snapshot};
use terrace_media::{Buf, MediaError, Op};

impl<D: Snapshot> Lane<D> {
    /// Writes the live entries of one memory segment as one part; false when free
    /// segments run low: the next start needs some for epochs, a checkpoint and the
    /// cleaner before these are free again.
    pub(crate) fn write_warm_part(&mut self, image: &mut ImageWriter, id: u32) -> bool {
        let keep = 2 * self.checkpoint_segments() + 4 + CLEANER_SEGMENTS;
        if self.ssd.takeable() <= keep {
            return false;
        }
        let live = self.live_entries(id);
        let more = !image.segments().is_empty();
        let ended = !more || image.end_part(&mut self.ssd, &mut self.io, true).is_ok();
        ended && image.push(&mut self.ssd, &mut self.io, &live).is_ok()
    }

    /// Ends the warm image; returns its first segment.
    pub(crate) fn end_warm_image(&mut self, mut image: ImageWriter) -> Option<u32> {
        let ended = image.end_part(&mut self.ssd, &mut self.io, false);
        self.stats.written_image_bytes += image.written_bytes;
        self.warm_written = image.segments().to_vec();
        ended.ok()?;
        image.segments().first().copied()
    }

    /// The live entries of a memory segment, one after the other.
    fn live_entries(&self, id: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.mem.capacity_bytes());
        let mut at = 0;
        while let Some((loc, next)) = self.mem.victim_entry(id, at) {
            let e = self.mem.entry(loc);
            if e.kind() == Kind::Value && self.dir.names(e.subject(&self.cfg.hasher), loc) {
                out.extend_from_slice(e.as_bytes());
            }
            at = next;
        }
        out
    }

    /// Starts to read the image whose first segment is `first` back.
    pub(crate) fn start_warming(&mut self, first: u32) {
        self.warm = Some(WarmJob {
            segment: first,
            buf: None,
            at: 0,
            end: 0,
            left: self.ssd.count(),
            generation: self.ssd.generation,
        });
        self.read_warm(first);
    }

    /// Whether the image is still being read back.
    pub fn warming(&self) -> bool {
        self.warm.is_some()
    }

    fn read_warm(&mut self, segment: u32) {
        let op = Op::Read {
            offset: self.ssd.device_offset(segment),
            buf: Buf::zeroed(self.cfg.segment_bytes),
        };
        self.io.send(Purpose::WarmRead { segment }, op);
    }

    pub(crate) fn warm_read(
        &mut self,
        segment: u32,
        result: Result<(), MediaError>,
        buf: Option<Buf>,
    ) {
        let life = self.ssd.life(segment);
        let Some(job) = &mut self.warm else { return };
        let header = buf
            .as_ref()
            .filter(|_| result.is_ok() && job.segment == segment)
            .and_then(|b| SegmentHeader::read(b, life.pool, life.lane, segment));
        let good = match (&header, &buf) {
            (Some(h), Some(b)) => {
                let end = SEGMENT_HEADER_BYTES + h.len_bytes as usize;
                job.at = SEGMENT_HEADER_BYTES;
                job.end = end;
                // The checkpoint has the life of the segment that it was written in. One of an earlier stop may say of a place what
                // was there in another life.
                h.used_for == Use::Warm
                    && h.life == life
                    && end <= b.len()
                    && crc32c::crc32c(&b[SEGMENT_HEADER_BYTES..end]) == h.payload_crc
            }
            _ => false,
        };
        match good {
            true => job.buf = buf,
            // It only costs warmth.
            false => self.warm_drop(),
        }
    }

    /// Brings up to `entries` entries back. True if it could go on at once.
    pub fn warm_step(&mut self, entries: usize) -> bool {
        let Some(mut job) = self.warm.take() else {
            return false;
        };
        let Some(buf) = job.buf.take() else {
            self.warm = Some(job);
            return false;
        };
        for _ in 0..entries {
            if job.at >= job.end || self.mem.free_segments() <= SPARE_SEGMENTS + 1 {
                self.next_warm_part(job, &buf);
                return true;
            }
            let Some(e) = Entry::left_in_memory(&buf[job.at..job.end]) else {
                self.warm_drop();
                return true;
            };
            job.at += e.len_bytes();
            self.warm_entry(&e, job.generation);
        }
        job.buf = Some(buf);
        self.warm = Some(job);
        true
    }

    fn warm_entry(&mut self, e: &Entry<'_>, generation: u32) {
        let who = e.subject(&self.cfg.hasher);
        let below = e.link();
        let was_there = |loc| self.ssd.contains(loc) && self.ssd.generation_of(loc) <= generation;
        if e.kind() != Kind::Value || !was_there(below) {
            return;
        }
        let Some(slot) = self.dir.find(who, |s| s.loc() == below) else {
            return;
        };
        if self.has_newer_above(who, e.key()) {
            return;
        }
        let new = NewEntry {
            flags: e.prefix_flag(),
            ..e.to_new()
        };
        if let Some(up) = self.mem.append(Head::Main, &new, SPARE_SEGMENTS) {
            self.dir.swing(who, below, Slot::new(up, slot.heat()));
            self.stats.warmed += 1;
        }
    }

    fn next_warm_part(&mut self, job: WarmJob, buf: &Buf) {
        let life = self.ssd.life(job.segment);
        let next =
            SegmentHeader::read(buf, life.pool, life.lane, job.segment).map_or(0, |h| h.next);
        let full = self.mem.free_segments() <= SPARE_SEGMENTS + 1;
        let valid = next > 0 && (next as usize) <= self.ssd.count() && job.left > 0 && !full;
        if !valid {
            self.warm_drop();
            return;
        }
        self.warm = Some(WarmJob {
            segment: next - 1,
            buf: None,
            at: 0,
            end: 0,
            left: job.left - 1,
            generation: job.generation,
        });
        self.read_warm(next - 1);
    }

    /// Ends warming; the image's segments wait for the next checkpoint.
    pub(crate) fn warm_drop(&mut self) {
        self.warm = None;
        for id in std::mem::take(&mut self.warm_written) {
            if self.ssd.segment(id).state == State::Image {
                self.wait_for_release(id);
            }
        }
    }
}
