//! Tags in the index: growth takes their bits, and who knows a key's whole hash gives them back.

use crate::common::{Rig, Shape, clock, value};
use terrace_kv::Expiry;
use terrace_log::addr::SLOT_LOW_BITS;
use terrace_log::{Order, Snapshot};
use terrace_media::sim::Rng;
use terrace_pool::Durability;

const PAGE_HEADER_BYTES: usize = 16;

/// Bits that the tags of all slots have lost.
fn lost_bits(rig: &Rig) -> u32 {
    let payload_bits = SLOT_LOW_BITS + rig.pool.superblock().unit_bits();
    let mut image = Vec::new();
    rig.pool.with_lane(0, |lane| {
        let rest = (lane.dir).save(Order::default(), usize::MAX, Some, &mut image);
        assert_eq!(rest, None);
    });
    let (mut left, mut lost) = (&image[..], 0);
    while let Some((header, rest)) = left.split_at_checked(PAGE_HEADER_BYTES) {
        let (slots, rest) = rest.split_at(usize::from(header[5]) * 8);
        for slot in slots.as_chunks::<8>().0 {
            lost += (u64::from_le_bytes(*slot) >> payload_bits).trailing_zeros();
        }
        left = rest;
    }
    lost
}

/// A page whose tags have no bits left cannot split, and where values are long and lie below, nobody but the cleaner comes by.
#[test]
fn what_the_cleaner_moves_gets_its_tag_back() {
    let shape = Shape {
        segments_per_lane: 120,
        memory_segments: 16,
        durability: Durability::Async,
        ..Shape::default()
    };
    let device = shape.device(3);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(3);
    let mut set = |rig: &mut Rig, n: usize| {
        let v = value(&mut rng, 300);
        let done = rig.set(format!("key:{n}").as_bytes(), &v, Expiry::None);
        done.unwrap();
    };
    (0..3000).for_each(|n| set(&mut rig, n));
    rig.settle();
    let before = lost_bits(&rig);
    assert!(before > 1000, "pages have split: {before}");
    // Two of three lie where they are until the cleaner moves them.
    for n in 0..15_000 {
        set(&mut rig, n % 1000 * 3);
    }
    rig.settle();
    let after = lost_bits(&rig);
    assert!(after < before / 4, "{after} of {before}");
    rig.close();
}
