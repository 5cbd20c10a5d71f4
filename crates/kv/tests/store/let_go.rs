//! What is let go while it is still needed: buffers and what says that keys are deleted.
//!
//! What must hold: what is durable stays as it was, and readable.

use crate::common::{Model, Rig, SEGMENT, Shape, clock, value};
use crate::crash::drop_roots;
use terrace_kv::{Expiry, Step, Value};
use terrace_media::sim::{Fault, Rng, SimDevice};
use terrace_pool::Durability;

/// A small pool, asynchronous.
fn opened(seed: u64, memory_segments: u64) -> (Shape, SimDevice, Rig) {
    let shape = Shape {
        segments_per_lane: 56,
        memory_segments,
        durability: Durability::Async,
        ..Shape::default()
    };
    let device = shape.device(seed);
    let rig = Rig::open(&device, shape, clock());
    (shape, device, rig)
}

/// Sets some keys anew, all in one epoch.
fn overwrite(rig: &mut Rig, rng: &mut Rng, model: &mut Model) {
    let pairs: Vec<_> = (0..3)
        .map(|n| (format!("hot:{n}").into_bytes(), value(rng, 1000)))
        .collect();
    rig.mset(&pairs).unwrap();
    model.extend(pairs);
}

/// The pool has these keys and no others.
fn holds(rig: &mut Rig, model: &Model, what: &str) {
    for (k, v) in model {
        let found = rig.get(k);
        let key = String::from_utf8_lossy(k);
        assert!(found.as_ref() == Ok(&Some(v.clone())), "{what}: {key}");
    }
    let expected: Vec<Vec<u8>> = model.keys().cloned().collect();
    assert!(rig.keys().unwrap() == expected, "{what}: other keys");
}

/// The segment's earlier life is there still, with keys that were deleted since: what says so must stay.
#[test]
fn tombstones_outlive_what_a_failed_write_has_left_in_place() {
    for seed in 0..8 {
        let (shape, device, mut rig) = opened(seed, 16);
        let (mut rng, mut model) = (Rng::new(seed), Model::new());
        let first = shape.device_bytes() - shape.segments_per_lane * SEGMENT as u64;
        for n in 0..1500 {
            if n % 300 == 200 {
                let at = first + (rng.below(56) * SEGMENT) as u64;
                let fault = Fault::enospc().in_range(at..at + 1);
                device.faults().fail_write(fault);
            }
            let goes = format!("goes:{n}").into_bytes();
            rig.set(&goes, b"1", Expiry::None).unwrap();
            overwrite(&mut rig, &mut rng, &mut model);
            rig.settle();
            rig.del(&[&goes]).unwrap();
            if n % 50 == 49 {
                rig.settle();
                let scanned = SimDevice::with_image(device.image(), seed);
                drop_roots(&scanned, 1);
                let mut scanned = Rig::open(&scanned, shape, clock());
                holds(&mut scanned, &model, &format!("seed {seed}, {n}"));
            }
        }
        assert!(rig.pool.stats().lanes.failed_writes > 0, "seed {seed}");
    }
}

/// Reads of a pool that takes no more updates.
fn get(rig: &mut Rig, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut task = rig.worker.task(1);
    let seen = |v: Value<'_>| match v {
        Value::Inline(b) => Some(b.to_vec()),
        _ => None,
    };
    for _ in 0..1000 {
        match terrace_kv::get(&mut rig.worker, &mut task, key, seen) {
            Ok(Step::Done(found)) => {
                rig.worker.finish(task);
                return Ok(found);
            }
            Ok(Step::Wait(_)) => rig.turn(),
            Err(e) => {
                rig.worker.finish(task);
                return Err(e.to_string());
            }
        }
    }
    panic!("a read does not end");
}

/// What could not be written anywhere is moved and replaced entries, of keys that are durable: they stay readable.
#[test]
fn keys_are_readable_after_no_write_went_through_any_more() {
    for seed in 0..30 {
        let (_, device, mut rig) = opened(seed, 12);
        let (mut rng, mut model) = (Rng::new(seed), Model::new());
        let mut set = |rig: &mut Rig, model: &mut Model, n: usize| {
            let (key, v) = (format!("key:{n}").into_bytes(), value(&mut rng, 700));
            let done = rig.set(&key, &v, Expiry::None);
            model.insert(key, v);
            done.is_ok()
        };
        for n in 0..2000 + 10 * seed as usize {
            assert!(set(&mut rig, &mut model, n * 7 % 400));
        }
        rig.settle();
        let durable = model.clone();
        device.faults().fail_write(Fault::eio().always());
        for n in 0..3000 {
            if !set(&mut rig, &mut model, n * 7 % 400) {
                break;
            }
        }
        (0..300).for_each(|_| rig.turn());
        assert!(rig.worker.failed().is_some(), "seed {seed}");
        for key in durable.keys() {
            let found = get(&mut rig, key);
            let name = String::from_utf8_lossy(key);
            assert!(
                matches!(found, Ok(Some(_))),
                "seed {seed}, {name}: {found:?}"
            );
        }
    }
}
