//! In sync mode what comes upon an epoch's replies is in the next epoch, which waits two turns for it and not longer (ADR 0045).

mod common;

use common::{Rig, Shape, clock};
use terrace_kv::Expiry;
use terrace_pool::Durability;

const TURNS_MAX: usize = 1000;

/// Turns until `epoch` is durable.
fn until_durable(rig: &mut Rig, epoch: u64) {
    (1..=TURNS_MAX)
        .find(|_| {
            rig.worker.turn();
            rig.worker.durable_epoch() >= epoch
        })
        .expect("durable in time");
}

#[test]
fn what_comes_upon_replies_is_in_the_next_epoch() {
    let shape = Shape {
        durability: Durability::Sync,
        ..Shape::default()
    };
    let device = shape.device(33);
    let mut rig = Rig::open(&device, shape, clock());
    let set = |rig: &mut Rig, key: &str| {
        let set = rig.set(key.as_bytes(), b"value", Expiry::None);
        set.unwrap().expect("a set in sync mode waits for an epoch")
    };
    for round in 0..20 {
        let first = set(&mut rig, &format!("first:{round}"));
        // It is at the device when the second comes.
        rig.worker.turn();
        let second = set(&mut rig, &format!("second:{round}"));
        assert_eq!(second, first + 1);
        until_durable(&mut rig, first);
        // The first's replies go out, and its client asks again.
        let third = set(&mut rig, &format!("third:{round}"));
        assert_eq!(third, second, "round {round}");
        // It is not waited for longer: the epoch is closed within the turns that gather, in each of which there is more to do.
        let mut busy = 0;
        while rig.pool.stats().epoch == second {
            assert!(busy < 2, "round {round}");
            busy += usize::from(rig.worker.turn().busy);
        }
        until_durable(&mut rig, second);
        // Nobody asks: nothing keeps the thread awake.
        rig.settle();
        for _ in 0..4 {
            rig.worker.turn();
        }
        assert!(!rig.worker.turn().busy, "round {round}");
    }
}
