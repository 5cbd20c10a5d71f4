//! Sets of keys below DRAM that replace an entry without reading it (`tiers::fingerprints`).
//!
//! What must hold: they cost no read, the new value is the only one, and nobody else's is touched, whatever has become of the
//! entry's place since it was remembered.

use crate::common::{Model, Rig, SEGMENT, Shape, clock, value};
use terrace_kv::{Expiry, NewValue, Step};
use terrace_media::sim::{Fault, Rng, SimDevice};
use terrace_pool::Durability;

const KEYS: usize = 2000;

fn key(n: usize) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn shape(durability: Durability) -> Shape {
    Shape {
        durability,
        memory_segments: 48,
        segments_per_lane: 256,
        ..Shape::default()
    }
}

fn recognised(rig: &Rig) -> u64 {
    rig.pool.stats().lanes.recognised
}

/// More keys than DRAM holds, all durable, with the table made and full.
fn cold(durability: Durability) -> (SimDevice, Rig, Model) {
    let device = shape(durability).device(7);
    let mut rig = Rig::open(&device, shape(durability), clock());
    let mut model = Model::new();
    for round in 0..2 {
        for n in 0..KEYS {
            let v = vec![(n + round) as u8; 500 + n % 100];
            rig.set(&key(n), &v, Expiry::None).unwrap();
            model.insert(key(n), v);
        }
        rig.settle();
    }
    (device, rig, model)
}

fn is_all_there(rig: &mut Rig, model: &Model) {
    assert_eq!(terrace_kv::dbsize(&rig.worker), model.len() as u64);
    for (key, value) in model {
        let got = rig.get(key).unwrap();
        assert_eq!(got.as_ref(), Some(value), "{}", key.escape_ascii());
    }
}

/// A key that is known below: its set is done in one call, verified, and reads nothing. The key's number.
fn set_unread(rig: &mut Rig, new: &[u8]) -> usize {
    let reads = |rig: &Rig| rig.pool.stats().lanes.device_reads;
    for n in 0..KEYS {
        let (before, known) = (reads(rig), recognised(rig));
        let mut task = rig.worker.task(1);
        let mut value = NewValue::Inline(new);
        let step = terrace_kv::put(
            &mut rig.worker,
            &mut task,
            &key(n),
            &mut value,
            Expiry::None,
        );
        let is_done = matches!(step.unwrap(), Step::Done(()));
        rig.worker.finish(task);
        if recognised(rig) > known {
            assert!(is_done, "it waits for nothing");
            assert_eq!(reads(rig), before, "it reads nothing");
            assert_eq!(rig.pool.stats().lanes.unverified, 0, "nothing is open");
            return n;
        }
        rig.settle();
    }
    panic!("no key was known");
}

fn a_set_reads_nothing(durability: Durability) {
    let (device, mut rig, mut model) = cold(durability);
    // All keys that were met before the one in question have this value by then, too.
    let n = set_unread(&mut rig, b"new");
    (0..=n).for_each(|n| drop(model.insert(key(n), b"new".to_vec())));
    rig.settle();
    is_all_there(&mut rig, &model);
    for image in [device.durable_image(), device.image()] {
        let crashed = SimDevice::with_image(image, 1);
        let mut rig = Rig::open(&crashed, shape(durability), clock());
        is_all_there(&mut rig, &model);
    }
    rig.close();
    let mut rig = Rig::open(&device, shape(durability), clock());
    is_all_there(&mut rig, &model);
}

#[test]
fn a_set_of_a_known_key_reads_nothing() {
    a_set_reads_nothing(Durability::Async);
}
#[test]
fn nor_does_a_durable_one() {
    a_set_reads_nothing(Durability::Sync);
}

/// What cannot be read any more is replaced all the same.
#[test]
fn a_known_key_is_replaced_where_the_disk_fails() {
    let (device, mut rig, _) = cold(Durability::Async);
    device.faults().fail_read(Fault::eio().always());
    let n = set_unread(&mut rig, b"new");
    device.faults().clear();
    rig.settle();
    assert_eq!(rig.get(&key(n)).unwrap(), Some(b"new".to_vec()));
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
}

/// Sets, reads, deletions and values in pieces while segments are emptied, moved and taken again: a place that was remembered is
/// another's by then, or another life's.
#[test]
fn nobody_elses_value_is_replaced() {
    for (seed, durability) in [
        (1, Durability::Async),
        (2, Durability::Async),
        (3, Durability::Sync),
    ] {
        let shape = Shape {
            segments_per_lane: 160,
            ..shape(durability)
        };
        let device = shape.device(seed);
        let mut rig = Rig::open(&device, shape, clock());
        let (mut rng, mut model) = (Rng::new(seed), Model::new());
        for step in 0..20_000 {
            let name = key(rng.below(1300));
            match rng.below(16) {
                0 => {
                    let (gone, _) = rig.del(&[&name]).unwrap();
                    assert_eq!(
                        gone,
                        u64::from(model.remove(&name).is_some()),
                        "seed {seed}, step {step}"
                    );
                }
                1..5 => assert_eq!(
                    rig.get(&name).unwrap(),
                    model.get(&name).cloned(),
                    "seed {seed}, step {step}"
                ),
                what => {
                    let len = match what {
                        15 if step % 32 == 0 => 2 * SEGMENT,
                        _ => 300 + rng.below(500),
                    };
                    let v = value(&mut rng, len);
                    rig.set(&name, &v, Expiry::None).unwrap();
                    model.insert(name, v);
                }
            }
        }
        rig.settle();
        let s = rig.pool.stats().lanes;
        assert!(
            s.recognised > 1000,
            "{} of {} updates",
            s.recognised,
            s.updates
        );
        assert!(s.segments_cleaned > 100, "{} segments", s.segments_cleaned);
        is_all_there(&mut rig, &model);
        rig.close();
        let mut rig = Rig::open(&device, shape, clock());
        is_all_there(&mut rig, &model);
    }
}

/// Each lane has its table, however many ask for one after the other.
#[test]
fn every_lane_has_its_table() {
    let shape = Shape {
        lanes: 3,
        ..shape(Durability::Async)
    };
    let device = shape.device(9);
    let mut rig = Rig::open(&device, shape, clock());
    for round in 0..4 {
        for n in 0..3 * KEYS {
            rig.set(&key(n), &[round; 1000], Expiry::None).unwrap();
        }
        rig.settle();
    }
    for lane in 0..3 {
        let known = rig.pool.with_lane(lane, |l| l.stats().recognised);
        assert!(known > 100, "lane {lane}: {known}");
    }
}

/// The table gives way where DRAM becomes short, and is made anew where it does not stay so.
#[test]
fn the_table_gives_way() {
    let (_, mut rig, _) = cold(Durability::Async);
    set_unread(&mut rig, b"new");
    let (full, short) = rig.pool.with_lane(0, |lane| {
        let (full, quota) = (lane.index_bytes(), lane.memory_segments());
        lane.set_memory_segments(quota / 5);
        lane.keep_fingerprints();
        (full, lane.index_bytes())
    });
    assert!(short + 4096 <= full, "{short} of {full} bytes are left");
    for n in 0..KEYS {
        rig.set(&key(n), b"newer", Expiry::None).unwrap();
    }
    rig.settle();
    for n in 0..KEYS {
        rig.set(&key(n), &[1; 600], Expiry::None).unwrap();
    }
    rig.settle();
    set_unread(&mut rig, b"newest");
}
