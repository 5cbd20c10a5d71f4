//! A pool that nobody uses lets its threads sleep, and what is written to it then is durable as soon as it is otherwise.

use crate::common::{Rig, Shape, clock};
use std::time::Duration;
use terrace_kv::Expiry;
use terrace_media::sim::Fault;
use terrace_pool::Durability;

/// It was seen to look a thousand times a second from one flush interval after the last update on.
#[test]
fn a_pool_with_nothing_to_do_is_left_alone() {
    for lanes in [1, 2] {
        let shape = Shape {
            lanes,
            durability: Durability::Async,
            ..Shape::default()
        };
        let device = shape.device(31);
        let mut rig = Rig::open(&device, shape, clock());
        let interval = shape.options().flush_interval;
        for round in 0..20u32 {
            let key = format!("key:{round}");
            rig.set(key.as_bytes(), b"value", Expiry::None).unwrap();
            let began = rig.worker.now_ms();
            let mut now = began;
            while rig.pool.stats().lanes.dirty_bytes > 0 {
                let turn = rig.worker.turn();
                assert!(turn.sleep_at_most <= interval, "{:?}", turn.sleep_at_most);
                now += match turn.busy {
                    true => 1,
                    false => turn.sleep_at_most.as_millis() as u64,
                };
                rig.clock.set(now);
                assert!(now < began + 1000, "durable in time");
            }
            for _ in 0..40 {
                rig.clock.set(rig.worker.now_ms() + 50 * u64::from(round));
                rig.worker.turn();
            }
            rig.clock
                .set(rig.worker.now_ms() + 2 * interval.as_millis() as u64);
            let turn = rig.worker.turn();
            assert!(!turn.busy && turn.sleep_at_most >= Duration::from_millis(50));
        }
    }
}

/// What it still had not written stayed overdue, and the thread awake.
#[test]
fn a_pool_that_failed_is_left_alone() {
    let shape = Shape {
        durability: Durability::Async,
        ..Shape::default()
    };
    let device = shape.device(32);
    let mut rig = Rig::open(&device, shape, clock());
    device.faults().fail_write(Fault::eio().always());
    rig.set(b"key", b"value", Expiry::None).unwrap();
    for _ in 0..1000 {
        rig.turn();
    }
    assert!(rig.worker.failed().is_some() && rig.pool.stats().lanes.dirty_bytes > 0);
    let interval = shape.options().flush_interval.as_millis() as u64;
    rig.clock.set(rig.worker.now_ms() + 2 * interval);
    let turn = rig.worker.turn();
    assert!(!turn.busy && turn.sleep_at_most >= Duration::from_millis(50));
}
