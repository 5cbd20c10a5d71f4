//! A large epoch that a power loss took but for a few segments: they stay lost, however many starts follow.

use crate::common::{Rig, SEGMENT, Shape, clock};
use std::sync::{Arc, Mutex};
use terrace_kv::Expiry;
use terrace_media::sim::SimDevice;
use terrace_pool::Durability;

const SEGMENTS: usize = 4096;
/// The first segment's place on the device.
const FIRST: usize = 16 << 10;
const OLD_KEYS: usize = 200;
/// More segments than two windows of headers that a start looks at.
const UNFLUSHED_MIN: usize = 140;
/// Of the segments that the epoch took those that the power left.
const LEFT: std::ops::Range<usize> = 130..160;

/// Unflushed writes, what is written, and what is durable.
type Shot = (usize, Vec<u8>, Vec<u8>);

fn value(tag: &str, n: usize) -> Vec<u8> {
    let mut value = format!("{tag}:{n}:").into_bytes();
    value.resize(1000, b'x');
    value
}

fn set(rig: &mut Rig, tag: &str, n: usize) {
    let key = format!("{tag}:{n}");
    let set = rig.set(key.as_bytes(), &value(tag, n), Expiry::None);
    assert!(set.is_ok(), "{key}: {set:?}");
}

fn shape() -> Shape {
    Shape {
        durability: Durability::Async,
        segments_per_lane: SEGMENTS as u64,
        memory_segments: 1200,
        ..Shape::default()
    }
}

/// A device after a clean stop.
fn stopped() -> Vec<u8> {
    let device = shape().device(7);
    let mut rig = Rig::open(&device, shape(), clock());
    (0..OLD_KEYS).for_each(|n| set(&mut rig, "old", n));
    rig.settle();
    rig.close();
    assert_eq!(device.image(), device.durable_image());
    device.image()
}

/// What is on it when the power goes before the flush of one large epoch, the first since then.
fn crashed() -> SimDevice {
    let device = SimDevice::with_image(stopped(), 1);
    let mut rig = Rig::open(&device, shape(), clock());
    assert!(rig.pool.was_clean());
    let most: Arc<Mutex<Shot>> = Arc::default();
    let seen = most.clone();
    device.set_hook(Some(Box::new(move |device, _| {
        let unflushed = device.unflushed_writes();
        let mut most = seen.lock().unwrap();
        if unflushed > most.0.max(UNFLUSHED_MIN) {
            *most = (unflushed, device.image(), device.durable_image());
        }
    })));
    (0..2800).for_each(|n| set(&mut rig, "lost", n));
    rig.settle();
    device.set_hook(None);
    let (unflushed, written, mut left) = std::mem::take(&mut *most.lock().unwrap());
    assert!(unflushed > UNFLUSHED_MIN, "{unflushed} writes");

    let generation = |at: usize| u32::from_le_bytes(written[at + 20..at + 24].try_into().unwrap());
    let places = (0..SEGMENTS).map(|segment| FIRST + segment * SEGMENT);
    let is_taken = |at: &usize| written[*at..at + SEGMENT] != left[*at..at + SEGMENT];
    let mut taken: Vec<usize> = places.filter(is_taken).collect();
    taken.sort_by_key(|at| generation(*at));
    for &at in &taken[LEFT.start..taken.len().min(LEFT.end)] {
        left[at..at + SEGMENT].copy_from_slice(&written[at..at + SEGMENT]);
    }
    SimDevice::with_image(left, 2)
}

/// That what was set since is there, and nothing of the lost epoch.
fn check(device: &SimDevice, set: usize) {
    let device = SimDevice::with_image(device.durable_image(), 3);
    let mut rig = Rig::open(&device, shape(), clock());
    assert_eq!(rig.pool.damage(), []);
    for n in 0..set {
        let got = rig.get(format!("since:{n}").as_bytes());
        assert!(got == Ok(Some(value("since", n))), "since:{n}");
    }
    let keys = rig.keys().expect("keys");
    let risen = keys.iter().filter(|key| key.starts_with(b"lost:")).count();
    assert_eq!((risen, keys.len()), (0, OLD_KEYS + set));
}

#[test]
fn what_is_behind_a_window_stays_lost_when_the_next_start_crashes_too() {
    let device = crashed();
    let mut rig = Rig::open(&device, shape(), clock());
    for n in 0..1250 {
        set(&mut rig, "since", n);
        if n % 250 == 249 {
            rig.settle();
        }
    }
    drop(rig);
    check(&device, 1250);
}

#[test]
fn what_is_behind_a_window_stays_lost_behind_a_clean_stop() {
    let device = crashed();
    let mut rig = Rig::open(&device, shape(), clock());
    (0..700).for_each(|n| set(&mut rig, "since", n));
    rig.settle();
    rig.close();
    check(&device, 700);
}

/// Numbers of batches are given out anew: of two with the same one is taken.
#[test]
fn what_was_acknowledged_since_is_not_taken_for_what_was_lost() {
    let device = crashed();
    let mut rig = Rig::open(&device, shape(), clock());
    for n in 0..300 {
        set(&mut rig, "since", n);
        rig.settle();
    }
    drop(rig);
    check(&device, 300);
}
