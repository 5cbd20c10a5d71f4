//! Recovery by several threads: what it finds is what one thread finds, by replay and by a
//! full scan, on sound and on damaged media. Never: depends on which thread is faster.

use crate::common::{Rig, SEGMENT, Shape, clock, filled, value};
use std::sync::Arc;
use terrace_kv::Expiry;
use terrace_log::{Order, Snapshot};
use terrace_media::sim::{Rng, SimDevice};
use terrace_media::{Arena, BLOCK_BYTES, Buf, Device, write_blocking};
use terrace_pool::{Durability, Pool};
use terrace_tiers::Damage;

/// What a start found: the directories, byte for byte, and the damage.
fn found(image: &[u8], shape: Shape) -> (Vec<Vec<u8>>, Vec<Damage>, u64) {
    let device = SimDevice::with_image(image.to_vec(), 1);
    let arena = Arena::new_plain(SEGMENT, 256).unwrap();
    let clock = Box::new(clock());
    let pool = Pool::on_device(Arc::new(device), shape.options(), clock, Some(arena)).unwrap();
    let lanes = (0..shape.lanes as u16).map(|lane| {
        pool.with_lane(lane, |lane| {
            let (mut bytes, mut at) = (Vec::new(), Some(Order::default()));
            while let Some(from) = at {
                at = lane.dir.save(from, 1024, Some, &mut bytes);
            }
            bytes
        })
    });
    (lanes.collect(), pool.damage().to_vec(), pool.keys())
}

/// A crash image of a pool with overwritten, deleted and big values.
fn crashed(shape: Shape, seed: u64) -> Vec<u8> {
    let device = shape.device(seed);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(seed);
    for n in 0..3000 {
        let key = format!("key:{}", rng.below(300)).into_bytes();
        match rng.below(12) {
            0 => drop(rig.del(&[&key]).unwrap()),
            1 if n % 5 == 0 => drop(rig.set(&key, &vec![n as u8; 5000], Expiry::None).unwrap()),
            _ => {
                let v = value(&mut rng, n % 600);
                rig.set(&key, &v, Expiry::None).unwrap();
            }
        }
    }
    rig.settle();
    device.durable_image()
}

#[test]
fn several_threads_find_what_one_finds() {
    for seed in 0..6 {
        let one = Shape {
            lanes: 1 + seed as usize % 2,
            segments_per_lane: 200,
            durability: [Durability::Async, Durability::Sync][seed as usize / 2 % 2],
            ..Shape::default()
        };
        let many = Shape {
            recovery_threads: 3 * one.lanes,
            ..one
        };
        let mut image = crashed(one, seed);
        let mut rng = Rng::new(seed);
        let mut hurt = 0;
        for damaged in [false, true] {
            for scan in [false, true] {
                let mut image = image.clone();
                if scan {
                    let device = SimDevice::with_image(image, 1);
                    let roots = Buf::zeroed(2 * one.lanes * BLOCK_BYTES);
                    let mut disk = device.queue(1).unwrap();
                    write_blocking(&mut *disk, 2 * BLOCK_BYTES as u64, roots).unwrap();
                    image = device.image();
                }
                let (a, b) = (found(&image, one), found(&image, many));
                assert!(a == b, "seed {seed} scan {scan}: {:?} and {:?}", a.1, b.1);
                assert!(a.2 > 100, "seed {seed}: {} keys", a.2);
                hurt += a.1.len();
                assert!(damaged || hurt == 0, "seed {seed}: {:?}", a.1);
            }
            // Behind the roots, where something was written.
            let from = image.len() / 50;
            for _ in 0..300 {
                let at = from + rng.below(image.len() - from);
                image[at] ^= u8::from(image[at] != 0);
            }
        }
        assert!(hurt > 0, "seed {seed}: no damage was met");
    }
}

/// What was free before a crash is free after it, also what no checkpoint lists: else a lane that is nearly full
/// could neither write a checkpoint nor take updates. And it is taken again before a checkpoint lists it.
#[test]
fn a_crash_loses_no_free_segment() {
    let shape = Shape {
        durability: Durability::Async,
        segments_per_lane: 56,
        memory_segments: 16,
        ..Shape::default()
    };
    let device = shape.device(5);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(5);
    let stats = |rig: &Rig| rig.pool.stats().lanes;
    let (mut emptied_by_checkpoint, mut most) = ((0, 0), 0);
    for round in 0..300 {
        for _ in 0..12 {
            let key = format!("key:{}", rng.below(250)).into_bytes();
            let len = 1000 + rng.below(300);
            let v = value(&mut rng, len);
            rig.set(&key, &v, Expiry::None).unwrap();
        }
        rig.settle();
        let before = stats(&rig);
        if before.checkpoints != emptied_by_checkpoint.0 {
            emptied_by_checkpoint = (before.checkpoints, before.segments_cleaned);
        }
        most = most.max(before.segments_cleaned - emptied_by_checkpoint.1);
        let after = SimDevice::with_image(device.durable_image(), round);
        let after = stats(&Rig::open(&after, shape, clock()));
        assert!(
            after.ssd_free_segments >= before.ssd_free_segments,
            "round {round}: {} of {} free segments are left",
            after.ssd_free_segments,
            before.ssd_free_segments
        );
    }
    assert!(
        most > 20,
        "{most} segments were emptied between two checkpoints, and could be taken before the second"
    );
}

/// Until a deletion of everything is durable, a crash brings all of it back: who is told that a key is absent waits for it, too.
#[test]
fn what_is_absent_after_a_deletion_of_everything_is_told_once_that_is_durable() {
    let (_device, mut rig, model) = filled(Shape::default(), 3, 10);
    let (_, deleted) = rig.run(terrace_kv::flush_all).unwrap();
    let key = model.keys().next().unwrap();
    let (found, told) = rig
        .run(|w, t| terrace_kv::get(w, t, key, |v| !matches!(v, terrace_kv::Value::Absent)))
        .unwrap();
    assert!(!found);
    assert!(deleted.is_some() && told == deleted, "{told:?} {deleted:?}");
}

/// A process that was killed leaves its last epoch in the device's cache, where a start reads it. It may go with the power then: nobody
/// must be told that it is durable before it is. Where no checkpoint is left a start has no root to write, and flushed nothing.
#[test]
fn what_a_start_calls_durable_is_durable() {
    let shape = Shape {
        lanes: 2,
        ..Shape::default()
    };
    let mut told = 0;
    for turns in 0..12 {
        let (device, mut rig, _) = filled(shape, turns, 30);
        let durable = rig.worker.durable_epoch();
        rig.set(b"last", b"1", Expiry::None).unwrap();
        (0..turns).for_each(|_| rig.turn());
        drop(rig);
        for root in 0..2 * shape.lanes {
            let at = (2 + root) * BLOCK_BYTES + 8;
            device.faults().flip_bit(at as u64, 0);
        }
        let epoch = |device: &SimDevice| {
            let rig = Rig::open(device, shape, clock());
            rig.worker.durable_epoch()
        };
        let now = epoch(&device);
        told += u32::from(now > durable);
        let after_power_loss = SimDevice::with_image(device.durable_image(), turns);
        assert_eq!(epoch(&after_power_loss), now, "{turns} turns");
    }
    assert!(told > 0, "no epoch was left behind");
}

/// Each start reads what all lives since the last checkpoint have appended: the bound on that must not begin anew with each of them.
#[test]
fn what_a_start_replays_counts_towards_the_next_checkpoint() {
    let shape = Shape {
        segments_per_lane: 1000,
        memory_segments: 100,
        durability: Durability::Async,
        ..Shape::default()
    };
    let mut device = shape.device(4);
    let mut made = Vec::new();
    for life in 0..6 {
        let mut rig = Rig::open(&device, shape, clock());
        for n in 0..1000 {
            // A quarter of the bound in each life.
            let key = format!("key:{n}");
            rig.set(key.as_bytes(), &[life as u8; 2000], Expiry::None)
                .unwrap();
        }
        rig.settle();
        (0..300).for_each(|_| rig.turn());
        made.push(rig.pool.stats().lanes.checkpoints);
        device = SimDevice::with_image(device.durable_image(), life);
    }
    assert_eq!(made[0], 1, "that of a new pool");
    assert_eq!(made[1..].iter().sum::<u64>(), 1, "{made:?}");
}
