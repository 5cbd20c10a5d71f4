//! Starts of a pool of which the device does not give something, a segment's header or all of it, or gives a header that is damaged.
//!
//! And what a worker makes of a queue that keeps a read's buffer, and of flushes that fail beside others.
//!
//! What must hold: a key that is not found any more lies where damage was told of, or the start was refused. It was not so: without a
//! checkpoint such a header counted as none, and what was in the segment as no longer in use.

use crate::common::{Rig, SEGMENT, Shape, clock, filled, value};
use std::sync::{Arc, Mutex};
use terrace_kv::Expiry;
use terrace_media::sim::{EventKind, Fault, Rng, SimDevice};

/// Bits of both roots of the only lane, so that there is no checkpoint.
const ROOTS: [u64; 2] = [2 * 4096 + 8, 3 * 4096 + 8];

/// Keys that are missing after a start that `harm` was done before to the bytes of `segment`; none if it was refused.
fn missing(segment: u64, checkpoint: bool, harm: &dyn Fn(&SimDevice, u64)) -> usize {
    let shape = Shape::default();
    let (device, mut rig, model) = filled(shape, 11, 60);
    rig.settle();
    drop(rig);
    if !checkpoint {
        ROOTS.iter().for_each(|&at| {
            device.faults().flip_bit(at, 0);
        });
    }
    harm(
        &device,
        shape.device_bytes() - (shape.segments_per_lane - segment) * SEGMENT as u64,
    );
    let opened = Rig::try_open(&device, shape, clock());
    device.faults().clear();
    let Ok(mut rig) = opened else { return 0 };
    let told = rig.pool.damage().iter();
    let told = told.filter(|d| u64::from(d.segment) == segment).count();
    let mut missing = 0;
    for (key, value) in &model {
        let found = rig.get(key).is_ok_and(|v| v.as_ref() == Some(value));
        missing += usize::from(!found);
    }
    assert!(
        missing == 0 || told > 0,
        "segment {segment}, checkpoint {checkpoint}: {missing} keys"
    );
    missing
}

fn judge(harm: &dyn Fn(&SimDevice, u64)) {
    for checkpoint in [false, true] {
        let segments = 0..Shape::default().segments_per_lane;
        let missing = segments.map(|s| missing(s, checkpoint, harm));
        let hurt = missing.filter(|&n| n > 0).count();
        // Behind a checkpoint little is read.
        assert!(hurt > 0 || checkpoint, "nothing was judged");
    }
}

#[test]
fn what_cannot_be_read_at_a_start_is_told() {
    let all = SEGMENT as u64;
    for (from, to) in [(0, 4096), (0, all), (4096, all), (8192, 8200)] {
        judge(&|device, at| {
            let fault = Fault::eio().in_range(at + from..at + to).always();
            device.faults().fail_read(fault);
        });
    }
}

#[test]
fn a_header_that_is_damaged_is_told_at_a_start() {
    // The mark of a header, its checksum, the pool's number, the generation, the use.
    for byte in [1, 6, 9, 21, 26] {
        judge(&|device, at| {
            device.faults().flip_bit(at + byte, 1);
        });
    }
}

/// The other root is taken, or else the log is read whole: it is there.
#[test]
fn roots_that_cannot_be_read_keep_no_pool_closed() {
    for roots in [&ROOTS[..1], &ROOTS[1..], &ROOTS[..]] {
        let shape = Shape::default();
        let (device, mut rig, model) = filled(shape, 12, 60);
        rig.settle();
        rig.close();
        Rig::open(&device, shape, clock()).close();
        for &at in roots {
            device
                .faults()
                .fail_read(Fault::eio().in_range(at..at + 1).always());
        }
        let mut rig = Rig::open(&device, shape, clock());
        assert!(rig.pool.damage().is_empty(), "{:?}", rig.pool.damage());
        for (key, value) in &model {
            assert_eq!(rig.get(key).unwrap().as_ref(), Some(value));
        }
        // They are readable again after what was written since, and a crash.
        device.faults().clear();
        for n in 0..40 {
            let key = format!("new:{n}");
            rig.set(key.as_bytes(), &[7; 900], Expiry::None).unwrap();
            if n == roots.len() * 9 {
                rig.settle();
            }
        }
        rig.settle();
        let device = SimDevice::after(&device.after_crash(3), 12);
        let mut rig = Rig::open(&device, shape, clock());
        for n in 0..40 {
            let key = format!("new:{n}");
            assert!(rig.get(key.as_bytes()).unwrap().is_some(), "{key}");
        }
    }
}

/// What a start could not read may be read by the next one: it is older than what was acknowledged in between.
#[test]
fn a_segment_that_was_unreadable_for_a_moment_replaces_nothing_newer() {
    let shape = Shape::default();
    let (device, mut rig, model) = filled(shape, 11, 60);
    rig.pool.with_lane(0, |lane| lane.ask_checkpoint());
    while rig.pool.with_lane(0, |lane| lane.checkpointing()) {
        rig.turn();
    }
    for (key, value) in &model {
        rig.set(key, value, Expiry::None).unwrap();
    }
    rig.settle();
    drop(rig);
    let before = device.durable_image();
    let mut judged = 0;
    // Also where the first try of the checkpoint that comes first fails.
    let all = (1..=shape.segments_per_lane).flat_map(|segment| [(segment, false), (segment, true)]);
    for (segment, fails) in all {
        let device = SimDevice::with_image(before.clone(), segment);
        let at = shape.device_bytes() - segment * SEGMENT as u64;
        let all = at..at + SEGMENT as u64;
        device
            .faults()
            .fail_read(Fault::eio().in_range(all).always());
        let opened = Rig::try_open(&device, shape, clock());
        device.faults().clear();
        let Ok(mut rig) = opened else { continue };
        let keys = match fails {
            true => 1,
            false => 8,
        };
        if fails {
            device.faults().fail_write(Fault::eio());
        }
        judged += u32::from(!rig.pool.damage().is_empty());
        for key in model.keys().take(keys) {
            let mut newer = rig.value(b"newer").unwrap();
            rig.run_durable(|w, t| terrace_kv::put(w, t, key, &mut newer, Expiry::None))
                .unwrap();
        }
        let device = SimDevice::after(&device.after_crash(segment), segment);
        let mut rig = Rig::open(&device, shape, clock());
        for key in model.keys().take(keys) {
            let found = rig.get(key).unwrap();
            assert!(
                found.as_deref() == Some(b"newer"),
                "segment {segment}, {fails}, {}",
                String::from_utf8_lossy(key)
            );
        }
    }
    assert!(judged > 0, "nothing was judged");
}

/// A ring that the kernel does not serve any longer keeps the buffers of what it had.
#[test]
fn a_read_whose_buffer_does_not_come_back_is_an_error() {
    let (device, rig, model) = filled(Shape::default(), 9, 40);
    drop(rig);
    let device = SimDevice::with_image(device.durable_image(), 9);
    let mut rig = Rig::open(&device, Shape::default(), clock());
    device.faults().fail_read(Fault::refused());
    let mut errors = 0;
    for (k, v) in &model {
        match rig.get(k) {
            Ok(got) => assert_eq!(got.as_ref(), Some(v)),
            Err(e) => {
                assert!(e.contains("cannot be read back"), "{e}");
                errors += 1;
            }
        }
    }
    assert_eq!(errors, 1);
}

/// A flush that fails leaves nothing that was written before it sure, and one beside it may end well all the same: checkpoints have their own.
#[test]
fn no_epoch_is_acknowledged_beside_a_flush_that_failed() {
    let mut failed = 0;
    for seed in 0..150 {
        let shape = Shape {
            lanes: 1 + seed as usize % 2,
            ..Shape::default()
        };
        let (device, mut rig, mut model) = filled(shape, seed, 20);
        let mut rng = Rng::new(seed);
        // Flushes of epochs are most: what fails is one of them, or a checkpoint's among them.
        device
            .faults()
            .fail_flush(Fault::eio().after(rng.below(40) as u64));
        for n in 0..60 {
            let lanes = rig.pool.superblock().lanes;
            (0..lanes).for_each(|l| rig.pool.with_lane(l, |lane| lane.ask_checkpoint()));
            let key = format!("new:{n}").into_bytes();
            let v = value(&mut rng, 200);
            let mut new = rig.value(&v).unwrap();
            match rig.run_durable(|w, t| terrace_kv::put(w, t, &key, &mut new, Expiry::None)) {
                Ok(_) => drop(model.insert(key, v)),
                Err(_) => break,
            }
        }
        failed += u32::from(rig.worker.failed().is_some());
        let device = SimDevice::after(&device.after_crash(seed), seed);
        let mut rig = Rig::open(&device, shape, clock());
        for (k, v) in &model {
            let key = String::from_utf8_lossy(k);
            assert_eq!(rig.get(k).unwrap().as_ref(), Some(v), "seed {seed}, {key}");
        }
    }
    assert!(failed > 100, "{failed} pools failed");
}

/// Either copy of the superblock will do. The one that checks is not written: the power may go while it is. And that the other one cannot
/// be written keeps no pool closed.
#[test]
fn only_the_damaged_copy_of_the_superblock_is_written_again() {
    for (bad, writable) in [(0, true), (0, false), (1, true), (1, false)] {
        let shape = Shape::default();
        let (device, rig, model) = filled(shape, 3, 20);
        rig.close();
        let copy = |n: u64| n * 4096..(n + 1) * 4096;
        device.faults().flip_bit(copy(bad).start + 20, 1);
        if !writable {
            let fault = Fault::eio().in_range(copy(bad)).always();
            device.faults().fail_write(fault);
        }
        let written = Arc::new(Mutex::new(Vec::new()));
        let seen = written.clone();
        device.set_hook(Some(Box::new(move |_, event| {
            if let EventKind::WriteSubmitted { offset, .. } = event.kind {
                seen.lock().unwrap().push(offset);
            }
        })));
        let mut rig = Rig::open(&device, shape, clock());
        device.set_hook(None);
        let written = written.lock().unwrap();
        assert!(!written.contains(&copy(1 - bad).start), "{written:?}");
        assert!(written.contains(&copy(bad).start), "{written:?}");
        let image = device.durable_image();
        assert_eq!(image[..4096] == image[4096..8192], writable);
        for (key, value) in &model {
            assert_eq!(rig.get(key).unwrap().as_ref(), Some(value));
        }
    }
}

/// The youngest epoch is judged by the bodies of its batches. One that the device does not give keeps no pool closed, whether the power
/// tore it or not: the epoch does not count, and what could not be read is told.
#[test]
fn a_block_that_cannot_be_read_keeps_no_pool_closed() {
    let shape = Shape::default();
    let (device, mut rig, model) = filled(shape, 4, 40);
    rig.settle();
    // Batches that fill their segments: their headers are all that is read of them before they are judged.
    let pairs: Vec<_> = (0..24)
        .map(|n| (format!("last:{n}").into_bytes(), vec![n; 1200]))
        .collect();
    rig.mset(&pairs).unwrap();
    rig.settle();
    drop(rig);
    let (first, image) = (3 * 4096, device.durable_image());
    let mut dropped = 0;
    for block in (first..image.len()).step_by(4096) {
        if image[block..block + 4096].iter().all(|b| *b == 0) {
            continue;
        }
        let device = SimDevice::with_image(image.clone(), 4);
        let range = block as u64..block as u64 + 4096;
        device
            .faults()
            .fail_read(Fault::eio().in_range(range).always());
        let opened = Rig::try_open(&device, shape, clock());
        let mut rig = opened.unwrap_or_else(|e| panic!("block {}: {e}", block / 4096));
        device.faults().clear();
        let lost = |rig: &mut Rig, keys: &mut dyn Iterator<Item = (&Vec<u8>, &Vec<u8>)>| {
            keys.filter(|(k, v)| rig.get(k).ok().flatten().as_ref() != Some(v))
                .count()
        };
        let of_last = lost(&mut rig, &mut pairs.iter().map(|(k, v)| (k, v)));
        let others = lost(&mut rig, &mut model.iter());
        let told = !rig.pool.damage().is_empty();
        assert!(told || of_last + others == 0, "block {}", block / 4096);
        dropped += usize::from(of_last == pairs.len());
    }
    assert!(dropped > 0, "the youngest epoch was never judged");
}
