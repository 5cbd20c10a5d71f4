//! Where a location's unit lies: which segment, and how far in it.
//!
//! Promises: no division, since a segment's size is a power of two. Never: knows which segments there are.

use terrace_log::UNIT_BYTES;

/// How many units a segment has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Units {
    bits: u32,
}

impl Units {
    /// Of segments of `segment_bytes`, which is a power of two.
    pub(crate) fn of(segment_bytes: usize) -> Units {
        assert!(
            segment_bytes.is_power_of_two() && segment_bytes >= UNIT_BYTES,
            "segments of {segment_bytes} bytes; a power of two is allowed"
        );
        Units {
            bits: (segment_bytes / UNIT_BYTES).trailing_zeros(),
        }
    }
    /// The segment of a unit, and its offset there in bytes.
    #[inline]
    pub(crate) fn split(self, unit: u64) -> (u32, usize) {
        let within = unit & ((1 << self.bits) - 1);
        ((unit >> self.bits) as u32, within as usize * UNIT_BYTES)
    }
    /// The unit at `offset` bytes of a segment.
    #[inline]
    pub(crate) fn unit(self, id: u32, offset: usize) -> u64 {
        (u64::from(id) << self.bits) + (offset / UNIT_BYTES) as u64
    }
}
