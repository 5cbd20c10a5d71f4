//! The root block of a lane: which checkpoint counts, and what it holds besides.
//!
//! Promises: a block that was torn, or is of another pool or lane, is none, nor is one with numbers that nothing has counted up to. Never: reads or writes a device.

use terrace_log::frame::NUMBERS_END;
use terrace_media::{BLOCK_BYTES, Buf};

/// Bytes of one segment's record in the image.
pub(crate) const SEGMENT_RECORD_BYTES: usize = 44;
pub(crate) const IMAGE_MAGIC: u32 = 0x5443_4b50; // "TCKP"
const ROOT_MAGIC: u32 = 0x5452_4f54; // "TROT"
/// End of the pieces in the image.
pub(crate) const PIECES_END: u32 = u32::MAX;

/// What a root block says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Root {
    /// Number of the checkpoint; the higher of the two blocks counts.
    pub number: u64,
    /// First segment of the image.
    pub first: u32,
    /// Bytes of the image.
    pub total_bytes: u64,
    /// Checksum of the image.
    pub crc: u32,
    /// Batches below this are in the image whole.
    pub replay_from_seq: u64,
    /// Seq of the next batch when it was made.
    pub next_seq: u64,
    /// Epochs up to this were durable.
    pub durable_epoch: u64,
    /// Batches below this are void.
    pub floor: u64,
    /// The pool's clock, ms.
    pub clock_ms: u64,
    /// Last generation given out.
    pub generation: u32,
    /// First segment of the warm image + 1; 0: none.
    pub warm: u32,
    /// Made by a clean stop.
    pub clean: bool,
}

impl Root {
    /// The block's bytes for a lane of a pool.
    pub fn write(&self, pool: u64, lane: u16) -> Buf {
        let mut b = Buf::zeroed(BLOCK_BYTES);
        b[0..4].copy_from_slice(&ROOT_MAGIC.to_le_bytes());
        b[8..16].copy_from_slice(&pool.to_le_bytes());
        b[16..18].copy_from_slice(&lane.to_le_bytes());
        b[18] = u8::from(self.clean);
        b[20..24].copy_from_slice(&self.first.to_le_bytes());
        b[24..28].copy_from_slice(&self.crc.to_le_bytes());
        b[28..32].copy_from_slice(&self.generation.to_le_bytes());
        b[32..36].copy_from_slice(&self.warm.to_le_bytes());
        for (i, word) in self.numbers().iter().enumerate() {
            b[40 + 8 * i..48 + 8 * i].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&b[8..128]);
        b[4..8].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a root block; None if it is not one of this pool and lane.
    pub fn read(b: &[u8], pool: u64, lane: u16) -> Option<Root> {
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight"));
        let right = b.len() >= 128
            && u32_at(0) == ROOT_MAGIC
            && u32_at(4) == crc32c::crc32c(&b[8..128])
            && u64_at(8) == pool
            && u16::from_le_bytes([b[16], b[17]]) == lane;
        let root = right.then(|| Root {
            number: u64_at(40),
            first: u32_at(20),
            total_bytes: u64_at(48),
            crc: u32_at(24),
            replay_from_seq: u64_at(56),
            next_seq: u64_at(64),
            durable_epoch: u64_at(72),
            floor: u64_at(80),
            clock_ms: u64_at(88),
            generation: u32_at(28),
            warm: u32_at(32),
            clean: b[18] != 0,
        });
        root.filter(Root::is_sane)
    }

    /// Whether a start can count on from its numbers.
    fn is_sane(&self) -> bool {
        // The first batch has seq 1.
        self.next_seq > 0 && self.numbers().iter().all(|n| *n < NUMBERS_END)
    }

    /// In their order on the medium.
    fn numbers(&self) -> [u64; 7] {
        [
            self.number,
            self.total_bytes,
            self.replay_from_seq,
            self.next_seq,
            self.durable_epoch,
            self.floor,
            self.clock_ms,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(root: Root) -> Option<Root> {
        Root::read(&root.write(7, 3), 7, 3)
    }

    #[test]
    fn numbers_that_nothing_has_counted_up_to_are_no_roots() {
        let new = Root {
            next_seq: 1,
            ..Root::default()
        };
        assert_eq!(read(new), Some(new));
        let nothing_follows = Root { next_seq: 0, ..new };
        assert_eq!(read(nothing_follows), None);
        let set: [fn(&mut Root, u64); 7] = [
            |r, n| r.number = n,
            |r, n| r.total_bytes = n,
            |r, n| r.replay_from_seq = n,
            |r, n| r.next_seq = n,
            |r, n| r.durable_epoch = n,
            |r, n| r.floor = n,
            |r, n| r.clock_ms = n,
        ];
        for set in set {
            for n in [1 << 40, NUMBERS_END - 1, NUMBERS_END, u64::MAX] {
                let mut root = new;
                set(&mut root, n);
                let expected = Some(root).filter(|_| n < NUMBERS_END);
                assert_eq!(read(root), expected, "{root:?}");
            }
        }
    }
}
