//! Starts of a pool of which the device does not give something, a segment's header or all of it, or gives a header that is damaged.
//!
//! What must hold: a key that is not found any more lies where damage was told of, or the start was refused. It was not so: without a
//! checkpoint such a header counted as none, and what was in the segment as no longer in use.

mod common;

use common::{Rig, SEGMENT, Shape, clock, filled};
use terrace_kv::Expiry;
use terrace_media::sim::{Fault, SimDevice};

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
        let device = SimDevice::with_image(device.crash_image(3), 12);
        let mut rig = Rig::open(&device, shape, clock());
        for n in 0..40 {
            let key = format!("new:{n}");
            assert!(rig.get(key.as_bytes()).unwrap().is_some(), "{key}");
        }
    }
}
