//! Room in lanes that are nearly full: what is accepted at all is done in the end, however little the cleaner keeps free.

use crate::common::{Rig, SEGMENT, Shape, clock, value};
use terrace_kv::Expiry;
use terrace_media::sim::{Fault, Rng};
use terrace_pool::{Durability, Part};

/// The cleaner keeps less free than one command may change at once; it must make more when such a command waits. A fifth of the seeds
/// was stuck before an epoch was begun on the lowest step: a victim was moved in part, and nobody went on.
#[test]
fn the_largest_command_finds_room() {
    (0..12).for_each(largest_command);
}

fn largest_command(seed: u64) {
    let shape = Shape {
        segments_per_lane: 2048,
        memory_segments: 200,
        durability: Durability::Async,
        ..Shape::default()
    };
    let device = shape.device(seed);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(seed);
    let lane = |rig: &Rig| rig.pool.stats().lanes;
    let mut keys = 0;
    while lane(&rig).ssd_live_bytes < lane(&rig).ssd_usable_bytes / 100 * 90 {
        let v = value(&mut rng, 1000);
        rig.set(format!("key:{keys}").as_bytes(), &v, Expiry::None)
            .unwrap();
        keys += 1;
        if keys % 50 == 0 {
            // The live bytes are an estimate that follows.
            rig.settle();
        }
    }
    // Until the cleaner has to work for each segment.
    for _ in 0..3 * keys {
        let v = value(&mut rng, 1000);
        let key = format!("key:{}", rng.below(keys));
        rig.set(key.as_bytes(), &v, Expiry::None).unwrap();
    }
    let each = lane(&rig).dirty_max_bytes as usize / 2 / 1600;
    let kept = lane(&rig).ssd_free_segments as usize * SEGMENT;
    assert!(each > 100 && kept < each * 1100 * 3 / 2, "{each} {kept}");
    for round in 0..5 {
        let pairs: Vec<_> = (0..each)
            .map(|n| (format!("key:{}", n * 7 % keys), vec![round; 1000]))
            .map(|(key, v)| (key.into_bytes(), v))
            .collect();
        rig.settle();
        rig.mset(&pairs).unwrap();
    }
}

/// Small values: the index grows while the lane fills, and with it what a checkpoint takes, beyond what was kept for it. Where nothing was
/// begun then, writers waited for ever in 14 of these 24.
#[test]
fn a_full_lane_goes_on_when_a_checkpoint_takes_more_than_is_left() {
    for (segments_per_lane, memory_segments, len, fill_percent) in [
        (2048, 200, 400, 103),
        (2048, 100, 400, 89),
        (2048, 40, 400, 105),
        (700, 40, 100, 101),
    ] {
        for seed in 0..6 {
            let durability = match seed % 2 {
                0 => Durability::Async,
                _ => Durability::Sync,
            };
            let shape = Shape {
                segments_per_lane,
                memory_segments,
                durability,
                ..Shape::default()
            };
            updates_when_full(shape, len, fill_percent, seed);
        }
    }
}

fn updates_when_full(shape: Shape, len: usize, fill_percent: u64, seed: u64) {
    let device = shape.device(seed);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(seed);
    let filled = |rig: &Rig| {
        let lane = rig.pool.stats().lanes;
        lane.ssd_live_bytes >= lane.ssd_usable_bytes / 100 * fill_percent
    };
    // Whether it was taken: the SSD may be full, or the cap with the index.
    let set = |rig: &mut Rig, rng: &mut Rng, key: usize| {
        let longer = rng.below(len);
        let v = value(rng, len / 2 + longer);
        let done = rig.set(format!("key:{key}").as_bytes(), &v, Expiry::None);
        if let Err(e) = &done {
            assert!(e.contains(" is full"), "{e}");
        }
        done.is_ok()
    };
    let (mut keys, mut refused) = (0, 0);
    while refused < 5 && !filled(&rig) {
        match set(&mut rig, &mut rng, keys) {
            true => keys += 1,
            false => refused += 1,
        }
        if keys % 50 == 0 {
            rig.settle();
        }
    }
    for n in 0..keys / 2 {
        let key = rng.below(keys);
        if n % 20 == 0 {
            rig.del(&[format!("key:{key}").as_bytes()]).unwrap();
        } else {
            set(&mut rig, &mut rng, key);
        }
    }
    rig.settle();
    rig.close();
    assert!(Rig::open(&device, shape, clock()).pool.damage().is_empty());
}

/// Where nothing is dead there is nothing to gain, however little is free: the cleaner comes to rest, and so does a stop.
#[test]
fn the_cleaner_rests_where_nothing_is_dead() {
    for len in [300, 700, 1100, 1170, 1300, 1900, 2600, 3700, 4500] {
        let shape = Shape {
            segments_per_lane: 64,
            memory_segments: 16,
            durability: Durability::Async,
            ..Shape::default()
        };
        let device = shape.device(5);
        let mut rig = Rig::open(&device, shape, clock());
        let mut rng = Rng::new(5);
        let lane = |rig: &Rig| rig.pool.stats().lanes;
        // Until no more is taken; several in an epoch, so that blocks are full.
        for n in 0.. {
            let longer = rng.below(len / 2);
            let v = value(&mut rng, len + longer);
            if rig
                .set(format!("key:{n}").as_bytes(), &v, Expiry::None)
                .is_err()
            {
                break;
            }
            if n % 8 == 0 {
                rig.settle();
            }
        }
        let before = lane(&rig).segments_cleaned;
        (0..3000).for_each(|_| rig.turn());
        let cleaned = lane(&rig).segments_cleaned - before;
        assert!(
            cleaned < 300,
            "{cleaned} segments cleaned with values of {len} bytes"
        );
        rig.close();
    }
}

/// A segment that cannot be read, which is set aside, has bytes older than all tombstones written since, so that these stay. To clean the
/// oldest of the others for that gains nothing, and was done again and again: three times as much was moved.
#[test]
fn tombstones_that_stay_for_a_segment_set_aside_are_not_moved_round() {
    for seed in 0..4 {
        let shape = Shape {
            segments_per_lane: 64,
            memory_segments: 16,
            durability: Durability::Async,
            ..Shape::default()
        };
        let device = shape.device(seed);
        let mut rig = Rig::open(&device, shape, clock());
        let mut rng = Rng::new(seed);
        let first = shape.device_bytes() - shape.segments_per_lane * SEGMENT as u64;
        let unreadable = first..first + 2 * SEGMENT as u64;
        let fault = Fault::eio().in_range(unreadable).always();
        device.faults().fail_read(fault);
        for n in 0..5000 {
            let v = value(&mut rng, 300);
            let stays = format!("key:{}", rng.below(60)).into_bytes();
            let goes = format!("goes:{n}").into_bytes();
            rig.set(&stays, &v, Expiry::None).unwrap();
            rig.set(&goes, b"1", Expiry::None).unwrap();
            rig.settle();
            rig.del(&[&goes]).unwrap();
        }
        let lane = rig.pool.stats().lanes;
        assert!(lane.ssd_bad_segments > 0, "nothing was judged");
        let (moved, staged) = (lane.moved_bytes, lane.staged_bytes);
        assert!(moved < 6 * staged, "seed {seed}: {moved} of {staged}");
        rig.close();
    }
}

/// A segment that is set aside pins all tombstones that are younger than it: nothing that is cleaned for their sake makes them go, and who asks for room hears that there is none.
#[test]
fn a_full_ssd_whose_tombstones_are_pinned_says_so() {
    let shape = Shape {
        segments_per_lane: 90,
        memory_segments: 40,
        ..Shape::default()
    };
    let device = shape.device(4);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(4);
    let mut key = 0;
    let mut fill = |rig: &mut Rig, rng: &mut Rng, refusals: usize| {
        let mut refused = 0;
        while refused < refusals {
            let v = value(rng, 1000);
            match rig.set(format!("key:{key}").as_bytes(), &v, Expiry::None) {
                Ok(_) => key += 1,
                Err(e) => {
                    assert!(e.contains("SSD is full"), "{e}");
                    refused += 1;
                }
            }
        }
        key
    };
    let keys = fill(&mut rig, &mut rng, 1);
    rig.settle();
    // The oldest segments lose a bit in each block.
    for block in (16 << 10..(16 << 10) + 4 * SEGMENT as u64).step_by(4096) {
        device.faults().flip_bit(block + 700, 3);
    }
    for k in (0..keys).filter(|k| k % 3 > 0) {
        let _of_a_damaged_one = rig.del(&[format!("key:{k}").as_bytes()]);
    }
    for _ in 0..40 {
        fill(&mut rig, &mut rng, 50);
        rig.settle();
    }
    assert!(rig.pool.stats().lanes.ssd_bad_segments > 0);
}

/// Of the longest values seven fit into a segment, and an eighth of it is left: no cleaning gains that, so it counts as taken. Where it did not, nothing
/// said that the SSD is full, no segment was free for an update or a deletion, and all waited for ever.
#[test]
fn the_ends_of_segments_are_not_room() {
    for shorter_by_one_in in [u64::MAX, 3] {
        let shape = Shape {
            segments_per_lane: 1024,
            segment_bytes: 128 << 10,
            memory_segments: 16,
            durability: Durability::Async,
            ..Shape::default()
        };
        ends_of_segments(shape, shorter_by_one_in);
    }
}

fn ends_of_segments(shape: Shape, shorter_by_one_in: u64) {
    let device = shape.device(3);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(3);
    let longest = terrace_kv::inline_max_bytes(&rig.worker);
    let mut set = |rig: &mut Rig, n: u64| {
        let shorter = rng.below((longest as u64 / shorter_by_one_in) as usize + 1);
        let v = vec![n as u8; longest - shorter];
        rig.set(format!("key:{n}").as_bytes(), &v, Expiry::None)
    };
    let keys = (0..).find(|&n| {
        let done = set(&mut rig, n);
        done.is_err_and(|e| e.contains("SSD is full"))
    });
    let keys = keys.expect("it is finite");
    // Beside the reserve and the twentieth all is used.
    assert!(keys > 1024 * 6, "{keys}");
    rig.close();
    let mut rig = Rig::open(&device, shape, clock());
    let full = set(&mut rig, keys).expect_err("it is as full as before");
    assert!(full.contains("SSD is full"), "{full}");
    for n in 0..100 {
        let key = format!("key:{}", n * 50);
        assert_eq!(rig.del(&[key.as_bytes()]).unwrap().0, 1);
    }
    rig.settle();
    for n in 0..50 {
        set(&mut rig, keys + n).unwrap();
    }
    rig.settle();
    rig.close();
}

/// The same of what blocks are filled up with, where segments are so small that this is a part of them that counts.
#[test]
fn the_ends_of_blocks_are_not_room_where_nothing_is_dead() {
    for (segments_per_lane, memory_segments, len) in
        [(348, 67, 918), (151, 31, 917), (432, 55, 951)]
    {
        let shape = Shape {
            segments_per_lane,
            memory_segments,
            durability: Durability::Async,
            ..Shape::default()
        };
        let device = shape.device(5);
        let mut rig = Rig::open(&device, shape, clock());
        let full = (0..).find_map(|n| {
            if n % 8 == 1 {
                rig.settle();
            }
            rig.set(format!("key:{n}").as_bytes(), &vec![1; len], Expiry::None)
                .err()
        });
        let why = full.expect("it is finite");
        assert!(why.contains("SSD is full"), "{why}");
        assert_eq!(rig.del(&[b"key:1"]).unwrap().0, 1);
        rig.close();
    }
}

/// Leaves the only lane so many segments of DRAM, as an index that grew would.
fn squeeze(rig: &mut Rig, segments: u64) {
    let ledger = rig.pool.ledger();
    let left = ledger.cap_bytes() - ledger.beside_segments();
    // Part of one more is what a read takes.
    let kept = (segments + 1) * SEGMENT as u64 - 1;
    ledger.change(Part::Pages, 0, left - kept);
    (0..40).for_each(|_| rig.turn());
    let has = rig.pool.with_lane(0, |lane| lane.memory_segments());
    assert_eq!(has as u64, segments);
}

/// Deletions are what helps where DRAM is full, however little is left: with two segments, of which the head of updates is one that is
/// not cleaned, they waited for ever. What can have no end is refused.
#[test]
fn deletions_go_on_where_the_cap_is_all_but_used_up() {
    let shape = Shape {
        segments_per_lane: 200,
        durability: Durability::Async,
        ..Shape::default()
    };
    for segments in [2, 1] {
        let device = shape.device(3);
        let mut rig = Rig::open(&device, shape, clock());
        let keys: Vec<Vec<u8>> = (0..2400).map(|n| format!("key:{n}").into_bytes()).collect();
        for key in &keys {
            rig.set(key, &[7; 200], Expiry::None).unwrap();
        }
        rig.settle();
        squeeze(&mut rig, segments);
        let mut gone = 0;
        let refused = keys.iter().find_map(|key| {
            let done = rig.del(&[key]);
            gone += u64::from(done.as_ref().is_ok_and(|(n, _)| *n == 1));
            done.err()
        });
        assert_eq!(rig.pool.keys(), keys.len() as u64 - gone);
        match segments {
            2 => assert!(
                refused.is_none() && gone == 2400,
                "{refused:?} after {gone}"
            ),
            // As far as the head goes.
            _ => {
                let why = refused.expect("it is full");
                assert!(why.contains("DRAM is full") && gone > 100, "{why}, {gone}");
            }
        }
    }
}

/// More at once than will ever have a place.
#[test]
fn a_deletion_that_never_finds_room_is_refused() {
    let shape = Shape {
        segments_per_lane: 200,
        durability: Durability::Async,
        ..Shape::default()
    };
    let device = shape.device(3);
    let mut rig = Rig::open(&device, shape, clock());
    let keys: Vec<Vec<u8>> = (0..1200).map(|n| format!("key:{n}").into_bytes()).collect();
    for key in &keys {
        rig.set(key, &[7; 200], Expiry::None).unwrap();
    }
    rig.settle();
    squeeze(&mut rig, 2);
    let many: Vec<&[u8]> = keys.iter().map(|k| &k[..]).take(45).collect();
    let refused = keys[100..].iter().find_map(|key| {
        rig.del(&[key]).unwrap();
        rig.del(&many).err()
    });
    let why = refused.expect("the head fills up");
    assert!(why.contains("DRAM is full"), "{why}");
}
