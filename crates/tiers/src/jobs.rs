//! What a lane has begun and not ended: a checkpoint, victims of the cleaner, a warm image, emptied segments, and who waits for room.
//!
//! Here: their states. What is done in each is in `checkpoint`, `clean_ssd`, `warm`, `release` and `room`. Never: does anything to a lane.

use crate::image::ImageWriter;
use crate::root::Root;
use terrace_log::Order;
use terrace_log::frame::BatchHeader;
use terrace_media::Buf;

/// How long it is believed that the end of an epoch left the SSD full, ms: all who waited for it hear so.
const FULL_KNOWN_MS: u64 = 100;

/// How far it is.
pub(crate) enum CheckpointStep {
    /// Memory segments still to be written, newest last.
    Warm(Vec<u32>, ImageWriter),
    Begin,
    Pieces(Order),
    Durable(u64),
    Flush,
    Root,
    RootFlush,
}

/// A checkpoint being made.
pub(crate) struct CheckpointJob {
    pub(crate) step: CheckpointStep,
    pub(crate) image: ImageWriter,
    pub(crate) root: Root,
    /// Segments, and which lives of them, that are free once this is durable, if they are not before.
    pub(crate) frees: Vec<(u32, u32)>,
    /// Everything of epochs below this is in the image.
    pub(crate) epoch: u64,
    /// Segments that were being filled or written when it was begun.
    pub(crate) heads: Vec<u32>,
    pub(crate) waiting: bool,
    pub(crate) failed: bool,
}

/// One victim.
pub(crate) struct CleanJob {
    pub(crate) segment: u32,
    pub(crate) buf: Option<Buf>,
    pub(crate) tries: u8,
    pub(crate) batches: Vec<(usize, BatchHeader)>,
    pub(crate) batch: usize,
    pub(crate) at: usize,
    pub(crate) damaged: bool,
    /// Oldest batch that any other segment may still have, as of the start.
    pub(crate) oldest_seq: u64,
}

/// The warm image being read back.
pub(crate) struct WarmJob {
    pub(crate) segment: u32,
    pub(crate) buf: Option<Buf>,
    pub(crate) at: usize,
    pub(crate) end: usize,
    pub(crate) left: usize,
    /// The lane's when it began: in a segment that was taken since lies something else.
    pub(crate) generation: u32,
}

/// Emptied segments by what they wait for.
#[derive(Default)]
pub(crate) struct Release {
    /// Emptied in the epoch under way.
    pub(crate) emptied: Vec<u32>,
    /// Emptied and durable, and not needed: the next epoch tells of them.
    pub(crate) unneeded: Vec<u32>,
    /// The epoch under way tells of them.
    pub(crate) told: Vec<u32>,
    /// Emptied and durable: a checkpoint must list them.
    pub(crate) waiting: Vec<u32>,
    /// The last durable checkpoint has everything that epochs below this appended. 0: not known.
    pub(crate) saved_epoch: u64,
    /// Its heads, which replay reads from their start.
    pub(crate) saved_heads: Vec<u32>,
    /// The victim whose entries are being moved is free with the epoch, without a checkpoint.
    pub(crate) victim_comes_back: bool,
}

impl Release {
    /// Segments on their way, in all.
    pub(crate) fn len(&self) -> usize {
        self.emptied.len() + self.unneeded.len() + self.told.len() + self.waiting.len()
    }
}

/// What is known of room that is not there.
#[derive(Default)]
pub(crate) struct Lacks {
    pub ssd: Full,
    pub dram: Starved,
    /// The clock for intervals, by which both go.
    pub now_ms: u64,
}

/// How long memory must have been without room before that is the answer, and how long it is one, ms: reads and buffers take some of it for
/// a moment.
const STARVED_MS: u64 = 1000;

/// What is known of memory in which nothing makes room for deletions: since when it is so, and when that was seen last, ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Starved(Option<(u64, u64)>);

impl Starved {
    /// It is so; whether that is the answer.
    pub(crate) fn is_known(&mut self, now_ms: u64) -> bool {
        let since = match self.0 {
            Some((since, seen)) if now_ms < seen + STARVED_MS => since,
            _ => now_ms,
        };
        self.0 = Some((since, now_ms));
        now_ms >= since + STARVED_MS
    }
    /// There was room.
    pub(crate) fn ended(&mut self) {
        self.0 = None;
    }
}

/// What is known of an SSD without room for an update. Deletions and replacements in DRAM free room when they step down, so a
/// refusal waits for the end of the epoch that was open; for one only, since others may go on replacing for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Full {
    #[default]
    Unknown,
    /// Somebody waits for the end of this epoch.
    Asked(u64),
    /// It ended at this time.
    Ended(u64),
}

impl Full {
    /// Whether that it is full is the answer; if not, the end of the open epoch is waited for.
    pub(crate) fn is_known(&mut self, open_epoch: u64, now_ms: u64) -> bool {
        match *self {
            Full::Ended(at_ms) if now_ms < at_ms + FULL_KNOWN_MS => true,
            Full::Asked(_) => false,
            Full::Ended(_) | Full::Unknown => {
                *self = Full::Asked(open_epoch);
                false
            }
        }
    }
    pub(crate) fn epoch_ended(&mut self, epoch: u64, now_ms: u64) {
        if matches!(*self, Full::Asked(asked) if epoch >= asked) {
            *self = Full::Ended(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL_KNOWN_MS, Full, STARVED_MS, Starved};

    #[test]
    fn memory_without_room_is_waited_for_a_while() {
        let mut starved = Starved::default();
        for at_ms in (0..STARVED_MS).step_by(100) {
            assert!(!starved.is_known(at_ms), "{at_ms}");
        }
        assert!(starved.is_known(STARVED_MS) && starved.is_known(STARVED_MS + 1));
        starved.ended();
        assert!(!starved.is_known(STARVED_MS + 2));
        assert!(
            !starved.is_known(2 * STARVED_MS + 2),
            "nobody has asked in between"
        );
    }

    #[test]
    fn who_is_refused_waits_for_one_epoch_and_no_more() {
        let mut full = Full::default();
        assert!(!full.is_known(7, 0), "the open epoch may free room");
        full.epoch_ended(6, 10);
        assert!(!full.is_known(7, 10), "that was the one before");
        full.epoch_ended(7, 20);
        for _ in 0..2 {
            assert!(full.is_known(8, 20), "all who waited hear so");
        }
        assert!(full.is_known(9, 20 + FULL_KNOWN_MS - 1));
        assert!(
            !full.is_known(9, 20 + FULL_KNOWN_MS),
            "things have changed since"
        );
        assert_eq!(full, Full::Asked(9));
    }
}
