//! Starts of a pool of which the device does not give something, a segment's header or all of it.
//!
//! What must hold: a key that is not found any more lies where damage was told of, or the start was refused. It was not so: without a
//! checkpoint a header that could not be read counted as none, and what was in the segment as no longer in use.

mod common;

use common::{Rig, SEGMENT, Shape, clock, filled};
use terrace_media::sim::Fault;

/// Bits of both roots of the only lane, so that there is no checkpoint.
const ROOTS: [u64; 2] = [2 * 4096 + 8, 3 * 4096 + 8];

/// Keys that are missing after a start with the first `len` bytes of `segment` unreadable; none if it was refused.
fn missing(segment: u64, len: u64, checkpoint: bool) -> usize {
    let shape = Shape::default();
    let (device, mut rig, model) = filled(shape, 11, 60);
    rig.settle();
    drop(rig);
    if !checkpoint {
        ROOTS.iter().for_each(|&at| {
            device.faults().flip_bit(at, 0);
        });
    }
    let first = shape.device_bytes() - (shape.segments_per_lane - segment) * SEGMENT as u64;
    let fault = Fault::eio().in_range(first..first + len).always();
    device.faults().fail_read(fault);
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
        "segment {segment}, {len} bytes, checkpoint {checkpoint}: {missing} keys"
    );
    missing
}

#[test]
fn what_cannot_be_read_at_a_start_is_told() {
    for checkpoint in [false, true] {
        for len in [4096, SEGMENT as u64] {
            let segments = 0..Shape::default().segments_per_lane;
            let missing = segments.map(|s| missing(s, len, checkpoint));
            let hurt = missing.filter(|&n| n > 0).count();
            // Behind a checkpoint little is read.
            assert!(hurt > 0 || checkpoint, "nothing was judged");
        }
    }
}
