//! Which segments were written since the checkpoint, or at all: what their headers say.
//!
//! A header that the device does not give, or that is damaged, is damage of which nothing more is known, and its segment is not written anew where it might
//! have been in use. Never: takes such a header for none and says nothing; writes.

use crate::bulk::read_in_order;
use crate::lane::Lane;
use crate::ssd::State;
use crate::survey::{Damage, Survey};
use std::collections::HashSet;
use terrace_log::Snapshot;
use terrace_log::frame::{SegmentHeader, Use};
use terrace_media::{BLOCK_BYTES, Disk};

/// Segment headers without a new batch after which the free list is not probed further.
const PROBE_WINDOW: usize = 64;
/// Generations skipped at a start, for segments whose headers were lost in the crash.
const GENERATION_GAP: u32 = 1024;
/// What is wrong with a segment that has lost its header.
pub(crate) const HEADER_DAMAGED: &str = "the segment header does not check";

impl<D: Snapshot> Lane<D> {
    /// The header of each, if it has one. What is lost of them is damage.
    fn headers(
        &self,
        disk: &mut dyn Disk,
        ids: &[u32],
        damage: &mut Vec<Damage>,
    ) -> Vec<Option<SegmentHeader>> {
        let list: Vec<(u64, usize)> = ids
            .iter()
            .map(|&id| (self.ssd.device_offset(id), BLOCK_BYTES))
            .collect();
        let mut out = Vec::with_capacity(ids.len());
        read_in_order(disk, &list, 1, |at, block| {
            let (pool, lane, id) = (self.cfg.pool, self.cfg.lane, ids[at]);
            let header = match block {
                Ok(b) => match SegmentHeader::read(b.bytes, pool, lane, id) {
                    None if SegmentHeader::is_damaged(b.bytes, pool) => {
                        Err(HEADER_DAMAGED.to_string())
                    }
                    header => Ok(header),
                },
                Err(e) => Err(e.to_string()),
            };
            out.push(header.unwrap_or_else(|what| {
                damage.push(self.unknown(id, BLOCK_BYTES, &what));
                None
            }));
        });
        out
    }

    /// Finds the segments taken since the checkpoint; returns those to replay: its heads, and of the others those of the log.
    /// Behind a clean stop's checkpoint only segments of its free list are taken, from the front: a window without any ends
    /// it. Else segments that the log tells to be free may have been taken too, and all headers are read.
    pub(crate) fn probe_taken(
        &mut self,
        disk: &mut dyn Disk,
        s: &mut Survey,
        heads: Vec<u32>,
    ) -> Vec<u32> {
        let mut replay = heads;
        let mut ids: Vec<u32> = std::mem::take(&mut s.free).into();
        let listed: HashSet<u32> = ids.iter().copied().collect();
        let mut window = PROBE_WINDOW;
        if !s.clean {
            ids.extend((0..self.ssd.count() as u32).filter(|id| !listed.contains(id)));
            window = ids.len();
        }
        let mut rest = &ids[..];
        let mut any = true;
        while any && !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(window));
            any = false;
            let headers = self.headers(disk, now, &mut s.damage);
            for (id, header) in now.iter().copied().zip(headers) {
                let known = *self.ssd.segment(id);
                let newer = |h: &SegmentHeader| h.life.generation > known.generation;
                let taken = header.filter(|h| newer(h) && known.state != State::Bad);
                any |= taken.is_some();
                match taken {
                    Some(h) if self.begin_life(&h) == Use::Log => {
                        replay.push(id);
                        s.taken.push(id);
                    }
                    // A part of an image that no root names, or of the one that is read.
                    Some(_) => s.free.push_back(id),
                    None if listed.contains(&id) => s.free.push_back(id),
                    None => {}
                }
            }
            rest = later;
        }
        s.free.extend(rest);
        // What has lost its header may have been taken since.
        self.set_unknown_aside(&s.damage);
        self.ssd.generation = self.ssd.generation.saturating_add(GENERATION_GAP);
        replay
    }

    /// What is in a segment of which something is not known is left as it is.
    pub(crate) fn set_unknown_aside(&mut self, damage: &[Damage]) {
        for d in damage.iter().filter(|d| d.unknown) {
            self.ssd.set_aside(d.segment);
        }
    }

    /// The segment was taken since the checkpoint: what that knows of it is of an earlier life.
    fn begin_life(&mut self, header: &SegmentHeader) -> Use {
        let generation = header.life.generation;
        self.ssd.generation = self.ssd.generation.max(generation);
        self.ssd
            .next_life(header.life.segment, State::Sealed, generation);
        header.used_for
    }

    /// Without a checkpoint: every segment that has a header of the log.
    pub(crate) fn probe_all(&mut self, disk: &mut dyn Disk, s: &mut Survey) -> Vec<u32> {
        let all: Vec<u32> = (0..self.ssd.count() as u32).collect();
        let mut log = Vec::new();
        let mut highest = 0;
        let headers = self.headers(disk, &all, &mut s.damage);
        self.set_unknown_aside(&s.damage);
        for (id, header) in all.iter().copied().zip(headers) {
            if let Some(header) = header {
                highest = highest.max(header.life.generation);
                self.ssd.segment_mut(id).generation = header.life.generation;
                if header.used_for == Use::Log {
                    log.push(id);
                }
            }
        }
        self.ssd.generation = highest.saturating_add(GENERATION_GAP);
        s.free.clear();
        log
    }
}
