//! What is let go while it is still needed, or never: buffers, what says that keys are deleted, and what reads hold.
//!
//! What must hold: what is durable stays as it was, and readable; nothing is held for ever.

use crate::common::{Model, Rig, Shape, clock, value};
use terrace_kv::{Expiry, Step, Value};
use terrace_media::sim::{Fault, Rng};
use terrace_pool::Durability;

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
        let shape = Shape {
            segments_per_lane: 56,
            memory_segments: 12,
            durability: Durability::Async,
            ..Shape::default()
        };
        let device = shape.device(seed);
        let mut rig = Rig::open(&device, shape, clock());
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
