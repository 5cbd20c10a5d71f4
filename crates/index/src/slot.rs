//! The arithmetic of one slot: `[tag][payload]` in 64 bits.
//!
//! The tag holds the hash bits that follow the prefix of the slot's page, ended by a sentinel: some valid bits, then a 1, then
//! zeros. Promises: a split takes the first valid bit away, a merge gives it back, and neither ever makes a slot stop matching
//! its own hash or changes the order of slots. Never looks at a key, never touches memory.

/// How the 64 bits of a slot are divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    payload_bits: u32,
}

impl Layout {
    pub(crate) const PAYLOAD_BITS_MIN: u32 = 32;
    pub(crate) const PAYLOAD_BITS_MAX: u32 = 46;

    pub(crate) fn new(payload_bits: u32) -> Layout {
        assert!(
            (Self::PAYLOAD_BITS_MIN..=Self::PAYLOAD_BITS_MAX).contains(&payload_bits),
            "a payload of {payload_bits} bits was asked for; {} to {} are allowed",
            Self::PAYLOAD_BITS_MIN,
            Self::PAYLOAD_BITS_MAX
        );
        Layout { payload_bits }
    }

    fn tag_bits(self) -> u32 {
        64 - self.payload_bits
    }

    /// Hash bits that a fresh tag holds: all but the sentinel.
    pub(crate) fn valid_bits_max(self) -> u32 {
        self.tag_bits() - 1
    }

    pub(crate) fn payload_mask(self) -> u64 {
        (1 << self.payload_bits) - 1
    }

    pub(crate) fn payload(self, slot: u64) -> u64 {
        slot & self.payload_mask()
    }

    pub(crate) fn tag(self, slot: u64) -> u64 {
        slot >> self.payload_bits
    }

    /// The same tag over another payload. A payload that is too wide would corrupt the tag, so it is refused loudly.
    pub(crate) fn with_payload(self, slot: u64, payload: u64) -> u64 {
        assert!(
            payload <= self.payload_mask(),
            "payload {payload:#x} does not fit into {} bits",
            self.payload_bits
        );
        (slot & !self.payload_mask()) | payload
    }

    /// A slot of payload 0 with as many bits of `hash` as a tag can hold, for a page whose prefix is `depth` bits long.
    pub(crate) fn probe(self, hash: u64, depth: u32) -> u64 {
        ((hash << depth) & !self.payload_mask()) | (1 << self.payload_bits)
    }

    /// Number of hash bits the tag still holds. The slot must be well formed.
    pub(crate) fn valid_bits(self, slot: u64) -> u32 {
        self.valid_bits_max() - self.tag(slot).trailing_zeros()
    }

    /// Whether a tag has its sentinel; zero bytes from a disk do not.
    pub(crate) fn is_well_formed(self, slot: u64) -> bool {
        self.tag(slot) != 0
    }

    /// Whether the valid bits of `slot` are a prefix of the bits in `probe`.
    pub(crate) fn matches(self, slot: u64, probe: u64) -> bool {
        let sentinel = self.payload_bits + self.tag(slot).trailing_zeros();
        // Two shifts: with no valid bits left the sum is 64, which one shift cannot express.
        (((slot ^ probe) >> sentinel) >> 1) == 0
    }

    /// The slot one level deeper: its first valid bit has become part of the page's prefix.
    pub(crate) fn deepen(self, slot: u64) -> u64 {
        debug_assert!(self.valid_bits(slot) > 0);
        ((slot & !self.payload_mask()) << 1) | self.payload(slot)
    }

    /// The slot one level higher: the last bit of the page's prefix, `bit`, comes back as its first valid bit.
    pub(crate) fn lift(self, slot: u64, bit: u64) -> u64 {
        let tag = self.tag(slot);
        // A tag that was full gives up its last valid bit, in whose place the sentinel goes.
        let lifted = (bit << (self.tag_bits() - 1)) | (tag >> 1) | (tag & 1);
        (lifted << self.payload_bits) | self.payload(slot)
    }

    /// Number of leading hash bits in which two slots' tags agree, at most `valid_bits_max`.
    pub(crate) fn common_bits(self, a: u64, b: u64) -> u32 {
        ((a ^ b) & !self.payload_mask())
            .leading_zeros()
            .min(self.valid_bits_max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_slot_matches_its_own_hash_through_splits_and_merges(
            hash: u64, payload_bits in 32u32..=46, levels in 0u32..30, back in 0u32..30
        ) {
            let layout = Layout::new(payload_bits);
            let mut slot = layout.with_payload(layout.probe(hash, 0), 5);
            let levels = levels.min(layout.valid_bits_max());
            for depth in 1..=levels {
                slot = layout.deepen(slot);
                prop_assert_eq!(layout.valid_bits(slot), layout.valid_bits_max() - depth);
                prop_assert!(layout.matches(slot, layout.probe(hash, depth)));
            }
            for depth in (levels.saturating_sub(back)..levels).rev() {
                slot = layout.lift(slot, (hash >> (63 - depth)) & 1);
                prop_assert!(layout.matches(slot, layout.probe(hash, depth)));
            }
            prop_assert_eq!(layout.payload(slot), 5);
        }

        #[test]
        fn a_slot_does_not_match_a_hash_that_differs_in_a_valid_bit(hash: u64, depth in 0u32..17, bit in 0u32..17) {
            let layout = Layout::new(46);
            let mut slot = layout.probe(hash, 0);
            for _ in 0..depth {
                slot = layout.deepen(slot);
            }
            let other = hash ^ (1 << (63 - bit));
            if bit >= depth {
                prop_assert!(!layout.matches(slot, layout.probe(other, depth)));
            }
        }

        #[test]
        fn lifting_keeps_the_order(a: u64, b: u64, bit in 0u64..2) {
            let layout = Layout::new(46);
            prop_assume!(layout.is_well_formed(a) && layout.is_well_formed(b));
            let (a, b) = if layout.tag(a) <= layout.tag(b) { (a, b) } else { (b, a) };
            prop_assert!(layout.tag(layout.lift(a, bit)) <= layout.tag(layout.lift(b, bit)));
        }
    }
}
