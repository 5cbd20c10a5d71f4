//! A pool's clock that stands still, since the system's was set back: what is to be done every so often is done all the same.

use crate::common::{Rig, Shape, clock};
use terrace_kv::Expiry;
use terrace_pool::Durability;

/// Longer than a flush interval, and than it is believed that the SSD is full.
const A_WHILE_TURNS: usize = 150;

fn shape() -> Shape {
    Shape {
        durability: Durability::Async,
        ..Shape::default()
    }
}

/// A pool that has met a later time than the system's.
fn rig() -> Rig {
    let mut rig = Rig::open(&shape().device(5), shape(), clock());
    rig.set(b"before", b"1", Expiry::None).unwrap();
    rig.settle();
    rig.set_back_ms = Some(1_000);
    a_while(&mut rig);
    rig
}

fn a_while(rig: &mut Rig) {
    (0..A_WHILE_TURNS).for_each(|_| rig.turn());
}

/// Nothing closed an epoch but what needed room.
#[test]
fn updates_become_durable_within_the_flush_interval() {
    let mut rig = rig();
    let now_ms = rig.worker.now_ms();
    for round in 0..3 {
        rig.set(b"key", &[round; 100], Expiry::None).unwrap();
        a_while(&mut rig);
        assert_eq!(rig.pool.stats().lanes.dirty_bytes, 0, "round {round}");
    }
    assert_eq!(rig.worker.now_ms(), now_ms);
}

/// That it is full was known for good.
#[test]
fn a_full_ssd_is_asked_again() {
    let mut rig = rig();
    let full = |rig: &mut Rig, n: usize| {
        let done = rig.set(format!("key:{n}").as_bytes(), &[1; 1000], Expiry::None);
        done.is_err_and(|e| e.contains("SSD is full"))
    };
    let keys = (0..).find(|&n| full(&mut rig, n)).expect("it is finite");
    a_while(&mut rig);
    let gone: Vec<Vec<u8>> = (0..50).map(|n| format!("key:{n}").into_bytes()).collect();
    let gone: Vec<&[u8]> = gone.iter().map(|key| &key[..]).collect();
    assert_eq!(rig.del(&gone).unwrap().0, 50);
    assert!(!full(&mut rig, keys), "what is deleted makes room");
}
