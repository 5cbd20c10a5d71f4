//! Frames around entries: the segment header and the batch header.
//!
//! A segment starts with a [`SegmentHeader`] (64 bytes) and the first batch
//! right behind it; each later batch starts at the next 4 KiB block. A batch is
//! what one write made durable together; its `seq` counts the lane's batches,
//! and `seq` and an entry's unit in the segment are the entry's version. Batches of
//! one commit have the same `epoch`; the last one of a lane carries `END`.
//! Never: says whether an epoch is complete; recovery does, over all lanes.

use crate::entry::{rd_u32, rd_u64};

/// Length of the segment header, and offset of the first batch.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// Length of the batch header.
pub const BATCH_HEADER_BYTES: usize = 64;
/// A lane's last batch of an epoch.
pub const BATCH_END: u8 = 1;
/// A lane's first batch of an epoch.
pub const BATCH_FIRST: u8 = 2;
/// Low bits of a version: the entry's unit in its segment.
pub const VERSION_UNIT_BITS: u32 = 16;
/// Longest segment: its units fit into a version's low bits.
pub const SEGMENT_MAX_BYTES: usize = 16 << VERSION_UNIT_BITS;

/// Seqs, epochs, floors, numbers of checkpoints and times are below this. What is not was not counted by anybody, and a start could not
/// count on from it.
pub const NUMBERS_END: u64 = 1 << 63;

const SEGMENT_MAGIC: u32 = 0x5453_4547; // "TSEG"
const BATCH_MAGIC: u32 = 0x5442_4154; // "TBAT"

/// What identifies the life of a segment; entries and batches are bound to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Random number of the pool.
    pub pool: u64,
    /// Lane.
    pub lane: u16,
    /// Number of the segment in its lane.
    pub segment: u32,
    /// How often the segment was taken into use.
    pub generation: u32,
}

impl Life {
    /// Seed for checksums of what starts at `offset_bytes` of the segment.
    pub fn seed(&self, offset_bytes: usize) -> u32 {
        let mut x = self.pool ^ (u64::from(self.lane) << 48) ^ u64::from(self.segment);
        x = mix(x ^ (u64::from(self.generation) << 32) ^ (offset_bytes as u64) << 8);
        (x ^ (x >> 32)) as u32
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Use {
    /// Batches of entries.
    Log = 1,
    /// Part of a checkpoint.
    Checkpoint = 2,
    /// Part of the warm image of a clean stop.
    Warm = 3,
}

/// First bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Identity.
    pub life: Life,
    /// What the segment holds.
    pub used_for: Use,
    /// For parts of a checkpoint or image: the next part's segment number + 1, 0 at the end.
    pub next: u32,
    /// For parts of a checkpoint or image: bytes of payload behind the header.
    pub len_bytes: u32,
    /// For parts of a checkpoint or image: checksum of the payload.
    pub payload_crc: u32,
}

impl SegmentHeader {
    /// Writes the header at the start of `out`.
    pub fn write(&self, out: &mut [u8]) {
        out[..SEGMENT_HEADER_BYTES].fill(0);
        out[0..4].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.life.pool.to_le_bytes());
        out[16..20].copy_from_slice(&self.life.segment.to_le_bytes());
        out[20..24].copy_from_slice(&self.life.generation.to_le_bytes());
        out[24..26].copy_from_slice(&self.life.lane.to_le_bytes());
        out[26] = self.used_for as u8;
        out[28..32].copy_from_slice(&self.next.to_le_bytes());
        out[32..36].copy_from_slice(&self.len_bytes.to_le_bytes());
        out[36..40].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&out[8..SEGMENT_HEADER_BYTES]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Whether a header of pool `pool` was there, and is damaged. What else may lie in a segment that was never written is not taken for one.
    pub fn is_damaged(bytes: &[u8], pool: u64) -> bool {
        let (is_header, ours) = (rd_u32(bytes, 0) == SEGMENT_MAGIC, rd_u64(bytes, 8) == pool);
        let checks = crc32c::crc32c(&bytes[8..SEGMENT_HEADER_BYTES]) == rd_u32(bytes, 4);
        (is_header && !checks) || (!is_header && ours && pool != 0)
    }

    /// Reads a header of pool `pool`, lane `lane`, segment `segment`; None if it is not one.
    pub fn read(bytes: &[u8], pool: u64, lane: u16, segment: u32) -> Option<SegmentHeader> {
        if bytes.len() < SEGMENT_HEADER_BYTES || rd_u32(bytes, 0) != SEGMENT_MAGIC {
            return None;
        }
        if crc32c::crc32c(&bytes[8..SEGMENT_HEADER_BYTES]) != rd_u32(bytes, 4) {
            return None;
        }
        let used_for = match bytes[26] {
            1 => Use::Log,
            2 => Use::Checkpoint,
            3 => Use::Warm,
            _ => return None,
        };
        let life = Life {
            pool: rd_u64(bytes, 8),
            lane: u16::from_le_bytes([bytes[24], bytes[25]]),
            segment: rd_u32(bytes, 16),
            generation: rd_u32(bytes, 20),
        };
        let mine = life.pool == pool && life.lane == lane && life.segment == segment;
        mine.then_some(SegmentHeader {
            life,
            used_for,
            next: rd_u32(bytes, 28),
            len_bytes: rd_u32(bytes, 32),
            payload_crc: rd_u32(bytes, 36),
        })
    }
}

/// First bytes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Number among the lane's batches.
    pub seq: u64,
    /// Commit it belongs to.
    pub epoch: u64,
    /// The pool's clock when it was closed, ms.
    pub clock_ms: u64,
    /// Batches of this lane with a seq below this are void (flush of everything).
    pub floor: u64,
    /// Length with this header, without padding to the block.
    pub len_bytes: u32,
    /// Entries in it.
    pub count: u32,
    /// [`BATCH_END`], [`BATCH_FIRST`].
    pub flags: u8,
    /// How often its write failed elsewhere before; the highest attempt of a seq is the true one.
    pub attempt: u8,
}

impl BatchHeader {
    /// Writes the header at `offset` of the segment's bytes.
    pub fn write(&self, segment: &mut [u8], life: &Life, offset: usize) {
        let out = &mut segment[offset..offset + BATCH_HEADER_BYTES];
        self.write_at(out, life, offset);
    }

    /// Writes the header into `out`, which lies at `offset` of its segment.
    pub fn write_at(&self, out: &mut [u8], life: &Life, offset: usize) {
        out[..BATCH_HEADER_BYTES].fill(0);
        out[0..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        out[24..32].copy_from_slice(&self.clock_ms.to_le_bytes());
        out[32..40].copy_from_slice(&self.floor.to_le_bytes());
        out[40..44].copy_from_slice(&self.len_bytes.to_le_bytes());
        out[44..48].copy_from_slice(&self.count.to_le_bytes());
        out[48] = self.flags;
        out[49] = self.attempt;
        let crc = crc32c::crc32c_append(life.seed(offset), &out[8..BATCH_HEADER_BYTES]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the header at `offset` of a segment; None if there is none of this life, or one with numbers beyond [`NUMBERS_END`].
    pub fn read(segment: &[u8], life: &Life, offset: usize) -> Option<BatchHeader> {
        BatchHeader::read_in(segment, 0, segment.len(), life, offset)
    }

    /// The same when `bytes` are only a part of the segment of `size` bytes, from `base` on.
    pub fn read_in(
        bytes: &[u8],
        base: usize,
        size: usize,
        life: &Life,
        offset: usize,
    ) -> Option<BatchHeader> {
        let b = bytes.get(offset - base..offset - base + BATCH_HEADER_BYTES)?;
        if rd_u32(b, 0) != BATCH_MAGIC {
            return None;
        }
        if crc32c::crc32c_append(life.seed(offset), &b[8..BATCH_HEADER_BYTES]) != rd_u32(b, 4) {
            return None;
        }
        let len_bytes = rd_u32(b, 40);
        let fits =
            (len_bytes as usize) >= BATCH_HEADER_BYTES && offset + len_bytes as usize <= size;
        let header = BatchHeader {
            seq: rd_u64(b, 8),
            epoch: rd_u64(b, 16),
            clock_ms: rd_u64(b, 24),
            floor: rd_u64(b, 32),
            len_bytes,
            count: rd_u32(b, 44),
            flags: b[48],
            attempt: b[49],
        };
        let numbers = [header.seq, header.epoch, header.clock_ms, header.floor];
        (fits && numbers.iter().all(|n| *n < NUMBERS_END)).then_some(header)
    }
}

/// Version of the entry of batch `seq` at `offset_bytes` of its segment.
pub fn version(seq: u64, offset_bytes: usize) -> u64 {
    seq << VERSION_UNIT_BITS | (offset_bytes / crate::UNIT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_nothing_has_counted_up_to_are_no_batch() {
        let life = Life {
            pool: 7,
            lane: 1,
            segment: 3,
            generation: 9,
        };
        let new = BatchHeader {
            seq: 1,
            epoch: 1,
            clock_ms: 0,
            floor: 0,
            len_bytes: 64,
            count: 0,
            flags: 0,
            attempt: 0,
        };
        let set: [fn(&mut BatchHeader, u64); 4] = [
            |h, n| h.seq = n,
            |h, n| h.epoch = n,
            |h, n| h.clock_ms = n,
            |h, n| h.floor = n,
        ];
        for set in set {
            for n in [1 << 40, NUMBERS_END - 1, NUMBERS_END, u64::MAX] {
                let (mut header, mut segment) = (new, vec![0; 4096]);
                set(&mut header, n);
                header.write(&mut segment, &life, 64);
                let expected = Some(header).filter(|_| n < NUMBERS_END);
                assert_eq!(BatchHeader::read(&segment, &life, 64), expected);
            }
        }
    }
}
