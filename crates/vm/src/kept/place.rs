//! Where the regions of a pool lie: addresses that a program normally has nothing at, the same in every process.
//!
//! A pool has one place, chosen when it is first opened and recorded in it. On x86-64 and arm64 (48 bits of addresses) Linux puts programs and their
//! heap at 0x5555… (0xaaaa… on arm64) and above or at 0x400000, libraries, stacks and what they map at the upper end, and, where stacks are unlimited,
//! from 0x2aaa… on; sanitizers have their tables below 0x1100…. Between these are the two areas here.
//!
//! Promises: pure functions; places of one size do not overlap. Never: asks whether something is there.

/// Fewest addresses of a pool: 1 TiB.
const BYTES_MIN: u64 = 1 << 40;
/// Most: so that each area has several places.
const BYTES_MAX: u64 = 1 << 43;
/// Addresses for each byte of its SSD: regions begin at multiples of a GiB and may grow.
const PER_SSD_BYTE: u64 = 8;
/// From and to; multiples of [`BYTES_MIN`].
const AREAS: [(u64, u64); 2] = [
    (0x1100_0000_0000, 0x2800_0000_0000),
    (0x3000_0000_0000, 0x5000_0000_0000),
];

/// How many addresses a pool of so many bytes of SSD has.
pub(super) fn bytes_for(ssd_bytes: u64) -> u64 {
    let wanted = ssd_bytes.saturating_mul(PER_SSD_BYTE);
    wanted.clamp(BYTES_MIN, BYTES_MAX).next_power_of_two()
}

/// All places of so many bytes, in an order that `seed` chooses: two pools seldom begin with the same.
pub(super) fn places(bytes: u64, seed: u64) -> impl Iterator<Item = u64> {
    let of_area = move |(from, to): (u64, u64)| {
        (from.next_multiple_of(bytes)..to)
            .step_by(bytes as usize)
            .filter(move |base| base + bytes <= to)
    };
    let all: Vec<u64> = AREAS.into_iter().flat_map(of_area).collect();
    let first = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (0..all.len()).map(move |n| all[(first as usize + n) % all.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn places_lie_in_the_areas_and_apart() {
        for ssd in [0, 1 << 30, 1 << 38, 1 << 40, 1 << 60] {
            let bytes = bytes_for(ssd);
            for seed in 0..50 {
                let all: Vec<u64> = places(bytes, seed).collect();
                assert!(all.len() >= 4);
                assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
                let inside = |base: &u64| {
                    let fits = |&(from, to): &(u64, u64)| (from..=to - bytes).contains(base);
                    base.is_multiple_of(bytes) && AREAS.iter().any(fits)
                };
                assert!(all.iter().all(inside));
            }
        }
        let first: HashSet<u64> = (0..500)
            .filter_map(|seed| places(1 << 40, seed).next())
            .collect();
        assert!(first.len() > 40, "{} places are begun with", first.len());
    }
}
