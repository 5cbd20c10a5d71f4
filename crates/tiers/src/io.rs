//! The lane's device operations: what it wants done, and what is under way.
//!
//! Promises: every operation handed out is accounted until its completion came
//! in. Never: calls the device; the pool's worker does, outside the lane's lock.

use std::collections::HashMap;
use terrace_log::frame::BatchHeader;
use terrace_media::{Buf, MediaError, Op};

/// What a completion is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// A batch of entries, at this offset of its segment.
    Batch {
        segment: u32,
        header: BatchHeader,
        /// Where the batch starts in its segment, bytes.
        start: usize,
    },
    /// A whole segment, for the cleaner.
    CleanRead { segment: u32 },
    /// A part of a checkpoint or warm image.
    Image { segment: u32 },
    /// A flush, or the root block, of a checkpoint.
    CheckpointStep,
    /// A part of the warm image is read back.
    WarmRead { segment: u32 },
}

/// Operations of one lane.
#[derive(Default)]
pub(crate) struct Io {
    next_token: u64,
    under_way: HashMap<u64, Purpose>,
    outbox: Vec<(u64, Op)>,
    batches: usize,
    images: usize,
    batches_of: HashMap<u32, u32>,
    /// Writes of a root block that failed in a row.
    pub(crate) root_failures: u8,
}

/// A finished operation as the lane sees it.
pub(crate) struct Finished {
    pub purpose: Purpose,
    pub result: Result<(), MediaError>,
    pub buf: Option<Buf>,
}

impl Io {
    pub(crate) fn send(&mut self, purpose: Purpose, op: Op) {
        self.next_token += 1;
        if let Purpose::Batch { segment, .. } = purpose {
            self.batches += 1;
            *self.batches_of.entry(segment).or_default() += 1;
        }
        self.images += usize::from(matches!(purpose, Purpose::Image { .. }));
        self.under_way.insert(self.next_token, purpose);
        self.outbox.push((self.next_token, op));
    }
    pub(crate) fn take(&mut self) -> Vec<(u64, Op)> {
        std::mem::take(&mut self.outbox)
    }
    pub(crate) fn has_outbox(&self) -> bool {
        !self.outbox.is_empty()
    }
    pub(crate) fn finish(
        &mut self,
        token: u64,
        result: Result<(), MediaError>,
        buf: Option<Buf>,
    ) -> Option<Finished> {
        let purpose = self.under_way.remove(&token)?;
        if let Purpose::Batch { segment, .. } = purpose {
            self.batches -= 1;
            let left = self.batches_of.get_mut(&segment).expect("counted");
            *left -= 1;
            if *left == 0 {
                self.batches_of.remove(&segment);
            }
        }
        self.images -= usize::from(matches!(purpose, Purpose::Image { .. }));
        Some(Finished {
            purpose,
            result,
            buf,
        })
    }
    /// Batches whose writes are under way.
    pub(crate) fn batches(&self) -> usize {
        self.batches
    }
    /// Parts of images whose writes are under way.
    pub(crate) fn images(&self) -> usize {
        self.images
    }
    /// Batches of a segment whose writes are under way.
    pub(crate) fn batches_of(&self, segment: u32) -> u32 {
        self.batches_of.get(&segment).copied().unwrap_or(0)
    }
    /// Anything under way.
    pub(crate) fn busy(&self) -> bool {
        !self.under_way.is_empty()
    }
}
