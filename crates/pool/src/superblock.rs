//! The superblock: what a pool is, written once when it is made, in two copies.
//!
//! Blocks 0 and 1 of the data are the copies, then two root blocks a lane, then,
//! from a multiple of the segment size on, the lanes' segments.

use crate::PoolError;
use crate::options::{Contents, LANES_MAX, Options, SEGMENTS_PER_LANE_MIN};
use terrace_log::HashKey;
use terrace_media::{BLOCK_BYTES, Buf, Disk, flush_blocking, read_blocking, write_blocking};

const MAGIC: u64 = u64::from_le_bytes(*b"TERRACE1");
/// Version of everything on the media.
pub const FORMAT_VERSION: u32 = 1;
/// Most bytes of a lane: what 37 bits of 16-byte units can name.
const LANE_MAX_BYTES: u64 = 2 << 40;
/// Bytes of a lane that one shard of the key map serves, about.
const SHARD_BYTES: u64 = 512 << 20;

/// Where the two copies lie.
const COPIES: [u64; 2] = [0, BLOCK_BYTES as u64];

/// What a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Random number that checksums are bound to.
    pub pool: u64,
    /// Key of the hash.
    pub hash_key: HashKey,
    /// Lanes.
    pub lanes: u16,
    /// Shards of the user's keys in each lane.
    pub user_shards: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Segments of a lane.
    pub segments_per_lane: u32,
    /// What the pool holds.
    pub contents: Contents,
}

impl Superblock {
    /// Plans a pool of `len_bytes` for these options.
    pub fn plan(
        options: &Options,
        len_bytes: u64,
        secret: [u64; 3],
    ) -> Result<Superblock, PoolError> {
        let lanes = options.threads.clamp(1, LANES_MAX) as u64;
        let segment = options.segment_bytes as u64;
        if !segment.is_power_of_two() || !(16 << 10..=1 << 20).contains(&segment) {
            return Err(PoolError::Setting {
                what: "the segment size",
                asked: format!("{segment} bytes"),
                allowed: "it must be a power of two from 16K to 1M".into(),
            });
        }
        let per_lane =
            len_bytes.saturating_sub(data_start(lanes as u16, segment)) / segment / lanes;
        if per_lane < SEGMENTS_PER_LANE_MIN {
            let least = data_start(lanes as u16, segment) + lanes * SEGMENTS_PER_LANE_MIN * segment;
            return Err(PoolError::Setting {
                what: "the size of the SSD terrace",
                asked: format!("{len_bytes} bytes"),
                allowed: format!(
                    "{lanes} lanes need at least {} MiB",
                    least.div_ceil(1 << 20)
                ),
            });
        }
        if per_lane * segment > LANE_MAX_BYTES {
            return Err(PoolError::Setting {
                what: "the size of the SSD terrace",
                asked: format!("{len_bytes} bytes"),
                allowed: format!("a lane has at most 2 TiB; use more --threads (now {lanes})"),
            });
        }
        let shards = (per_lane * segment / SHARD_BYTES).next_power_of_two();
        Ok(Superblock {
            pool: secret[0],
            hash_key: HashKey(secret[1], secret[2]),
            lanes: lanes as u16,
            user_shards: shards.clamp(16, 4096) as u32,
            segment_bytes: segment as u32,
            segments_per_lane: per_lane.min(u64::from(u32::MAX) - 1) as u32,
            contents: options.contents,
        })
    }

    /// Bits that the largest location of a lane needs, in 16-byte units.
    pub fn unit_bits(&self) -> u32 {
        let units = u64::from(self.segments_per_lane) * u64::from(self.segment_bytes) / 16;
        // DRAM may be larger than a small SSD: leave room for 16 GiB a lane.
        (64 - units.leading_zeros()).max(30)
    }
    /// Offset of a lane's two root blocks.
    pub fn root_base(&self, lane: u16) -> u64 {
        (2 + 2 * u64::from(lane)) * BLOCK_BYTES as u64
    }
    /// Offset of a lane's first segment.
    pub fn lane_base(&self, lane: u16) -> u64 {
        let lane_bytes = u64::from(self.segments_per_lane) * u64::from(self.segment_bytes);
        data_start(self.lanes, u64::from(self.segment_bytes)) + u64::from(lane) * lane_bytes
    }
    /// Bytes of the device that the pool uses.
    pub fn len_bytes(&self) -> u64 {
        self.lane_base(self.lanes)
    }

    fn encode(&self) -> Buf {
        let mut b = Buf::zeroed(BLOCK_BYTES);
        b[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        b[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        b[16..24].copy_from_slice(&self.pool.to_le_bytes());
        b[24..32].copy_from_slice(&self.hash_key.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.hash_key.1.to_le_bytes());
        b[40..42].copy_from_slice(&self.lanes.to_le_bytes());
        b[42] = self.contents as u8;
        b[44..48].copy_from_slice(&self.user_shards.to_le_bytes());
        b[48..52].copy_from_slice(&self.segment_bytes.to_le_bytes());
        b[52..56].copy_from_slice(&self.segments_per_lane.to_le_bytes());
        let crc = checksum(&b);
        b[8..12].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads one copy; None if it is damaged or of another version.
    pub fn decode(b: &[u8]) -> Option<Superblock> {
        let u16_at = |at: usize| u16::from_le_bytes(b[at..at + 2].try_into().expect("two"));
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight"));
        let right = b.len() >= 64
            && u64_at(0) == MAGIC
            && u32_at(12) == FORMAT_VERSION
            && u32_at(8) == checksum(b);
        let contents = match b.get(42) {
            Some(0) => Contents::Keys,
            Some(1) => Contents::Objects,
            Some(2) => Contents::Scratch,
            _ => return None,
        };
        right.then(|| Superblock {
            contents,
            pool: u64_at(16),
            hash_key: HashKey(u64_at(24), u64_at(32)),
            lanes: u16_at(40),
            user_shards: u32_at(44),
            segment_bytes: u32_at(48),
            segments_per_lane: u32_at(52),
        })
    }

    /// Writes both copies, and empty root blocks, durably.
    pub fn write(&self, disk: &mut dyn Disk) -> Result<(), PoolError> {
        for lane in 0..self.lanes {
            write_blocking(disk, self.root_base(lane), Buf::zeroed(2 * BLOCK_BYTES))?;
        }
        for copy in COPIES {
            write_blocking(disk, copy, self.encode())?;
            flush_blocking(disk)?;
        }
        Ok(())
    }

    /// Writes the copy that does not check again, durably. Never the one that does: there would be none if the power went meanwhile.
    /// That the device refuses the write is only told, since one copy will do; a flush that fails is an error as everywhere.
    pub fn mend(&self, disk: &mut dyn Disk) -> Result<(), PoolError> {
        let damaged = match COPIES.map(|copy| read_copy(disk, copy) == Some(*self)) {
            [true, false] => COPIES[1],
            [false, true] => COPIES[0],
            _ => return Ok(()),
        };
        if let Err(error) = write_blocking(disk, damaged, self.encode()) {
            tracing::warn!(%error, "the copy of the superblock that is damaged cannot be written again: the other one is all there is of it; look after the device");
        }
        Ok(flush_blocking(disk)?)
    }

    /// Reads the first copy that checks, and says whether both do. None: no pool.
    pub fn read(disk: &mut dyn Disk) -> Result<Option<(Superblock, bool)>, PoolError> {
        let [a, b] = COPIES.map(|copy| read_copy(disk, copy));
        let both = a.is_some() && a == b;
        Ok(a.or(b).map(|s| (s, both)))
    }
}

/// Whether a pool was made there, of whichever version: at least one of the copies begins as a superblock, however damaged.
pub(crate) fn is_marked(disk: &mut dyn Disk) -> Result<bool, PoolError> {
    let begins = |b: &Buf| b[..8] == MAGIC.to_le_bytes();
    Ok(copies(disk)?.iter().any(begins))
}

/// Whether nothing was ever written where a superblock will be.
pub(crate) fn is_blank(disk: &mut dyn Disk) -> Result<bool, PoolError> {
    let is_zeros = |b: &Buf| b.iter().all(|byte| *byte == 0);
    Ok(copies(disk)?.iter().all(is_zeros))
}

/// Where one cannot be read nothing is known of what is there.
fn copies(disk: &mut dyn Disk) -> Result<[Buf; 2], PoolError> {
    let [first, second] = COPIES.map(|copy| read_blocking(disk, copy, BLOCK_BYTES));
    Ok([first?, second?])
}

/// A copy that cannot be read is as one that does not check.
fn read_copy(disk: &mut dyn Disk, offset: u64) -> Option<Superblock> {
    let block = read_blocking(disk, offset, BLOCK_BYTES).ok()?;
    Superblock::decode(&block)
}

fn checksum(b: &[u8]) -> u32 {
    crc32c::crc32c(&b[12..64])
}

fn data_start(lanes: u16, segment: u64) -> u64 {
    let head = (2 + 2 * u64::from(lanes)) * BLOCK_BYTES as u64;
    head.next_multiple_of(segment)
}
