//! Verifying a recovered lane: every segment is read, every slot must be met.

use crate::bulk::{Patience, read_what_is_there};
use crate::lane::Lane;
use crate::probe::HEADER_DAMAGED;
use crate::ssd::State;
use crate::survey::Damage;
use std::collections::HashMap;
use terrace_log::frame::{SegmentHeader, Use};
use terrace_log::scan::{self, Found, Item};
use terrace_log::{Loc, Snapshot};
use terrace_media::{Disk, MediaError};

/// What `verify` saw.
#[derive(Debug, Default)]
pub struct Verified {
    /// Entries whose checksums hold.
    pub entries: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong.
    pub damage: Vec<Damage>,
}

impl<D: Snapshot> Lane<D> {
    /// Reads every segment in use and checks it, and that each slot names an entry
    /// of its own hash. `told` is called with bytes read.
    pub fn verify(
        &mut self,
        disk: &mut dyn Disk,
        told: &mut dyn FnMut(u64),
    ) -> Result<Verified, MediaError> {
        let mut out = Verified::default();
        let mut wanted: HashMap<u32, Vec<Loc>> = HashMap::new();
        let ssd = &self.ssd;
        self.dir.each(|slot| {
            wanted
                .entry(ssd.split(slot.loc()).0)
                .or_default()
                .push(slot.loc());
        });
        let mut patience = Patience::default();
        for id in 0..self.ssd.count() as u32 {
            told(self.cfg.segment_bytes as u64);
            let names = wanted.remove(&id).unwrap_or_default();
            if self.ssd.segment(id).state == State::Free && names.is_empty() {
                continue;
            }
            let (offset, size) = (self.ssd.device_offset(id), self.cfg.segment_bytes);
            let (image, holes) = match read_what_is_there(disk, offset, size, &mut patience) {
                Ok(read) => read,
                Err(e) => {
                    out.damage.push(self.unknown(id, size, &e.to_string()));
                    continue;
                }
            };
            out.damage.extend(holes.iter().map(|h| self.hole(id, 0, h)));
            out.bytes += image.len() as u64;
            let lost = holes.first().is_some_and(|h| h.from == 0);
            let header = SegmentHeader::read(&image, self.cfg.pool, self.cfg.lane, id);
            match header {
                Some(h) if h.used_for == Use::Log => {
                    self.verify_segment(id, &image, names, &mut out);
                }
                Some(h) => self.verify_part(id, &image, &h, &mut out),
                None if lost && self.ssd.segment(id).state == State::Image => {}
                None if lost => self.verify_segment(id, &image, names, &mut out),
                None => out.damage.push(self.hurt(id, 0, 64, HEADER_DAMAGED.into())),
            }
        }
        Ok(out)
    }

    fn verify_segment(&self, id: u32, image: &[u8], names: Vec<Loc>, out: &mut Verified) {
        let life = self.ssd.life(id);
        let mut missing: std::collections::HashSet<Loc> = names.into_iter().collect();
        let mut end = 0;
        for found in scan::batches(image, &life) {
            let (at, header) = match found {
                Found::Batch(at, header) => (at, header),
                Found::Damage(from, to) => {
                    out.damage
                        .push(self.hurt(id, from, to, "no batch header that checks".into()));
                    continue;
                }
            };
            end = (at + header.len_bytes as usize).next_multiple_of(terrace_media::BLOCK_BYTES);
            for item in scan::entries(image, &life, at, &header) {
                match item {
                    Item::Entry(offset, e, value) => {
                        let loc = self.ssd.loc(id, offset, e.len_bytes());
                        let who = e.subject(&self.cfg.hasher);
                        if self.dir.names(who, loc) {
                            missing.remove(&loc);
                        }
                        match value {
                            Ok(()) => out.entries += 1,
                            Err(e2) => {
                                let key = String::from_utf8_lossy(e.key()).into_owned();
                                let what = format!("{e2} (key {key:?})");
                                out.damage.push(self.hurt(
                                    id,
                                    offset,
                                    offset + e.len_bytes(),
                                    what,
                                ));
                            }
                        }
                    }
                    Item::Damage(from, to) => {
                        out.damage
                            .push(self.hurt(id, from, to, "no entry that checks".into()));
                    }
                }
            }
        }
        self.verify_padding(id, image, out);
        let used = self.ssd.segment(id).used_bytes as usize;
        if end < used {
            out.damage
                .push(self.hurt(id, end, used, "the last batches are missing".into()));
        }
        for loc in missing {
            let (_, offset) = self.ssd.split(loc);
            out.damage.push(self.hurt(
                id,
                offset,
                offset,
                "a key's entry is not where the directory says".into(),
            ));
        }
    }

    /// What no checksum covers is zero: between a batch's end and the next block.
    fn verify_padding(&self, id: u32, image: &[u8], out: &mut Verified) {
        for found in scan::batches(image, &self.ssd.life(id)) {
            let Found::Batch(at, header) = found else {
                continue;
            };
            let end = at + header.len_bytes as usize;
            let next = end
                .next_multiple_of(terrace_media::BLOCK_BYTES)
                .min(image.len());
            if image[end..next].iter().any(|b| *b != 0) {
                out.damage
                    .push(self.hurt(id, end, next, "padding is not zero".into()));
            }
        }
    }

    fn verify_part(&self, id: u32, image: &[u8], h: &SegmentHeader, out: &mut Verified) {
        let start = terrace_log::frame::SEGMENT_HEADER_BYTES;
        let payload = image.get(start..start + h.len_bytes as usize);
        if payload.map(crc32c::crc32c) != Some(h.payload_crc) {
            let end = start + h.len_bytes as usize;
            out.damage.push(self.hurt(
                id,
                start,
                end,
                "a part of a checkpoint fails its checksum".into(),
            ));
        }
    }

    fn hurt(&self, segment: u32, from_bytes: usize, to_bytes: usize, what: String) -> Damage {
        Damage {
            lane: self.cfg.lane,
            segment,
            from_bytes,
            to_bytes,
            what,
            unknown: false,
        }
    }
}
