//! A block that the device does not give at a start, in the middle of what is read for it.
//!
//! What must hold: it costs the entries in it, or the batch whose header it has, and is told; what else was acknowledged is there, in
//! this lane and in others. It was not so: all batches of its segment were lost, and with them, where that was a lane's newest, the
//! youngest epoch in all lanes.

use crate::common::{Model, Rig, SEGMENT, Shape, clock, value};
use std::ops::Range;
use terrace_kv::Expiry;
use terrace_media::sim::{Fault, Rng, SimDevice};
use terrace_pool::{Durability, check_on_device};

const BLOCK: usize = 4096;
/// Of the header of a batch: docs/format.md.
const BATCH_MAGIC: u32 = 0x5442_4154;
const FIRST_BATCH: usize = 64;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Where batches lie on the device, and their epochs.
fn batches(image: &[u8], first: usize) -> Vec<(Range<usize>, u64)> {
    let mut found = Vec::new();
    for block in (first..image.len()).step_by(BLOCK) {
        let starts_segment = (block - first).is_multiple_of(SEGMENT);
        let at = block + if starts_segment { FIRST_BATCH } else { 0 };
        if u32_at(image, at) == BATCH_MAGIC {
            let epoch = u64::from_le_bytes(image[at + 16..at + 24].try_into().unwrap());
            let len = u32_at(image, at + 40) as usize;
            found.push((at..at + len, epoch));
        }
    }
    found
}

/// What may be lost with a block: what is in it, the batch whose header it has, all of a segment that has lost its own.
fn lost_with(block: usize, first: usize, batches: &[(Range<usize>, u64)]) -> Range<usize> {
    if (block - first).is_multiple_of(SEGMENT) {
        return block..block + SEGMENT;
    }
    let of_header = |(range, _): &&(Range<usize>, u64)| range.start == block;
    let to = batches.iter().find(of_header).map_or(0, |(r, _)| r.end);
    block..to.max(block + BLOCK)
}

fn meets(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn wait_for_checkpoints(rig: &mut Rig, lanes: u16) {
    (0..lanes).for_each(|l| rig.pool.with_lane(l, |lane| lane.ask_checkpoint()));
    rig.turn();
    while (0..lanes).any(|l| rig.pool.with_lane(l, |lane| lane.checkpointing())) {
        rig.turn();
    }
}

/// Keys in several epochs, more than a block of each in every lane, but for the last ones, which lie side by side.
fn written(shape: Shape, checkpoint: bool) -> (Vec<u8>, Model) {
    let device = shape.device(9);
    let mut rig = Rig::open(&device, shape, clock());
    let (mut rng, mut model) = (Rng::new(9), Model::new());
    rig.set(b"first", b"1", Expiry::None).unwrap();
    rig.settle();
    if checkpoint {
        wait_for_checkpoints(&mut rig, shape.lanes as u16);
    }
    for epoch in 0..8 {
        let name = if epoch == 7 { "last" } else { "key" };
        let keys = if epoch < 5 { 24 } else { 6 };
        let pairs: Vec<_> = (0..keys)
            .map(|n| format!("{name}:{epoch}:{n}").into_bytes())
            .map(|key| (key, value(&mut rng, 500)))
            .collect();
        rig.mset(&pairs).unwrap();
        rig.settle();
        model.extend(pairs);
    }
    (device.durable_image(), model)
}

/// Opens it without `block`, and looks for all keys. Answers how many of its segment's were there.
fn without(image: &[u8], block: usize, shape: Shape, model: &Model) -> usize {
    let first = (shape.device_bytes() - (shape.lanes * 64 * SEGMENT) as u64) as usize;
    let batches = batches(image, first);
    let youngest = batches.iter().map(|b| b.1).max().unwrap();
    let gone = lost_with(block, first, &batches);
    let judged = batches
        .iter()
        .any(|(range, epoch)| *epoch == youngest && meets(range, &gone));
    let segment = block - (block - first) % SEGMENT;
    let segment = segment..segment + SEGMENT;

    let device = SimDevice::with_image(image.to_vec(), 7);
    let range = block as u64..(block + BLOCK) as u64;
    device
        .faults()
        .fail_read(Fault::eio().in_range(range).always());
    let report = check_on_device(&device).unwrap();
    let covers = |d: &terrace_tiers::Damage| {
        let nr = usize::from(d.lane) * 64 + d.segment as usize;
        let at = first + nr * SEGMENT;
        d.unknown && meets(&(at + d.from_bytes..at + d.to_bytes), &gone)
    };
    assert!(report.damage.iter().any(covers), "{:?}", report.damage);
    let mut rig = Rig::open(&device, shape, clock());
    let damage = rig.pool.damage();
    assert!(damage.iter().any(covers), "{damage:?}");
    let told: usize = damage.iter().filter(|d| d.unknown).count();
    assert!(told <= 2, "{damage:?}");
    device.faults().clear();

    let (mut lost, mut beside) = (0, 0);
    for (key, v) in model {
        let at = place_of(image, first, &v[..16]);
        let range = at - 64..at + v.len();
        if rig.get(key).unwrap().as_ref() == Some(v) {
            beside += usize::from(meets(&range, &segment));
            continue;
        }
        lost += 1;
        let of_youngest = judged && key.starts_with(b"last");
        assert!(
            of_youngest || meets(&range, &gone),
            "{} at {range:?} is lost with {gone:?}",
            String::from_utf8_lossy(key)
        );
    }
    assert!(report.keys as usize + lost >= model.len());
    beside
}

fn place_of(image: &[u8], first: usize, needle: &[u8]) -> usize {
    let mut places = image[first..].windows(needle.len());
    first + places.position(|w| w == needle).unwrap()
}

#[test]
fn a_block_that_cannot_be_read_costs_what_is_in_it() {
    let mut before_youngest = [0; 2];
    for (lanes, checkpoint, threads) in [(1, false, 1), (1, true, 3), (2, false, 1), (2, true, 1)] {
        let shape = Shape {
            lanes,
            durability: Durability::Async,
            recovery_threads: threads,
            ..Shape::default()
        };
        let (image, model) = written(shape, checkpoint);
        let first = image.len() - lanes * 64 * SEGMENT;
        let mut beside = 0;
        let all = batches(&image, first);
        let youngest = all.iter().map(|b| b.1).max().unwrap();
        for block in (first..image.len()).step_by(BLOCK) {
            let of = |b: &&(Range<usize>, u64)| meets(&b.0, &(block..block + BLOCK));
            let Some((_, epoch)) = all.iter().find(of) else {
                continue;
            };
            let behind = |b: &(Range<usize>, u64)| b.0.start == block + BLOCK && b.1 == youngest;
            let in_newest = *epoch < youngest && block % SEGMENT > 0 && all.iter().any(behind);
            before_youngest[lanes - 1] += usize::from(in_newest);
            // Some of them, since a start waits before it gives one up; and of what a checkpoint has, it reads nothing.
            let chosen = in_newest || (block / BLOCK).is_multiple_of(3);
            if chosen && (!checkpoint || *epoch > 2) {
                beside += without(&image, block, shape, &model);
            }
        }
        assert!(beside > 40, "{beside}");
    }
    assert!(before_youngest[1] > 0, "{before_youngest:?}");
}

/// Two epochs behind a checkpoint: in the first all keys are replaced, in others each is replaced again or deleted. Answers what a
/// crash leaves, the keys, and that epoch.
fn replaced_twice(shape: Shape) -> (Vec<u8>, Model, u64) {
    let device = shape.device(5);
    let mut rig = Rig::open(&device, shape, clock());
    let (mut rng, mut model) = (Rng::new(5), Model::new());
    let keys: Vec<Vec<u8>> = (0..40).map(|n| format!("key:{n}").into_bytes()).collect();
    let mut replace = |rig: &mut Rig, keys: &[Vec<u8>]| {
        let pairs: Vec<_> = (keys.iter())
            .map(|k| (k.clone(), value(&mut rng, 300)))
            .collect();
        let epoch = rig.pool.stats().epoch;
        rig.mset(&pairs).unwrap();
        rig.settle();
        (epoch, pairs)
    };
    replace(&mut rig, &keys);
    wait_for_checkpoints(&mut rig, shape.lanes as u16);
    let (lost, _) = replace(&mut rig, &keys);
    let (kept, gone) = keys.split_at(20);
    let gone: Vec<&[u8]> = gone.iter().map(|k| &k[..]).collect();
    let (_, pairs) = replace(&mut rig, kept);
    model.extend(pairs);
    rig.del(&gone).unwrap();
    rig.settle();
    rig.set(b"last", b"1", Expiry::None).unwrap();
    rig.settle();
    model.insert(b"last".to_vec(), b"1".to_vec());
    (device.durable_image(), model, lost)
}

/// What a lost update replaced is older than the update after it, which names only the lost one: a deleted key was back, and one that
/// was replaced had two slots.
#[test]
fn what_is_older_than_a_lost_update_does_not_come_back() {
    let shape = Shape {
        durability: Durability::Async,
        ..Shape::default()
    };
    let (image, model, lost) = replaced_twice(shape);
    let first = image.len() - 64 * SEGMENT;
    let all = batches(&image, first);
    let mut judged = 0;
    for block in (first..image.len()).step_by(BLOCK) {
        let of = |b: &&(Range<usize>, u64)| meets(&b.0, &(block..block + BLOCK));
        let is_of_lost = all.iter().find(of).is_some_and(|b| b.1 == lost);
        if !is_of_lost || (block - first).is_multiple_of(SEGMENT) {
            continue;
        }
        judged += 1;
        let device = SimDevice::with_image(image.clone(), 5);
        let range = block as u64..(block + BLOCK) as u64;
        device
            .faults()
            .fail_read(Fault::eio().in_range(range).always());
        let mut rig = Rig::open(&device, shape, clock());
        device.faults().clear();
        assert!(!rig.pool.damage().is_empty());
        for n in 0..40 {
            let key = format!("key:{n}").into_bytes();
            let found = rig.get(&key);
            assert!(found.as_ref() == Ok(&model.get(&key).cloned()), "key {n}");
        }
        assert_eq!(rig.pool.keys() as usize, model.len());
        assert_eq!(rig.keys().unwrap().len(), model.len());
    }
    assert!(judged > 1, "{judged}");
}
