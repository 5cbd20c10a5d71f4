//! Keys whose value or whose whole entry is damaged on the medium.
//!
//! What must hold: no wrong value is shown, the error names the place, and the key may be
//! replaced or deleted for good. Never: harms other keys.

use crate::common::{Rig, Shape, clock, filled, flip_all};
use terrace_kv::Expiry;
use terrace_media::sim::SimDevice;
use terrace_media::{BLOCK_BYTES, Buf, Device, write_blocking};

/// A value that is damaged on the medium is refused by GET, and may be replaced or deleted.
#[test]
fn a_damaged_value_can_be_replaced_and_deleted() {
    let (device, rig, model) = filled(Shape::default(), 12, 60);
    rig.close();
    let image = device.image();
    let device = SimDevice::with_image(image.clone(), 1);
    let mut hurt = Vec::new();
    for (key, v) in model.iter().take(10) {
        for (at, _) in image
            .windows(16)
            .enumerate()
            .filter(|(_, w)| *w == &v[..16])
        {
            device.faults().flip_bit(at as u64 + 3, 2);
        }
        hurt.push(key.clone());
    }
    // The warm image is hurt too, so nothing comes from DRAM.
    let mut rig = Rig::open(&device, Shape::default(), clock());
    for (n, key) in hurt.iter().enumerate() {
        let error = rig.get(key).unwrap_err();
        assert!(error.contains("damaged entry"), "{error}");
        if n % 2 == 0 {
            rig.set(key, b"new", Expiry::None).unwrap();
            assert_eq!(rig.get(key).unwrap(), Some(b"new".to_vec()));
        } else {
            assert_eq!(rig.del(&[key]).unwrap().0, 1);
            assert_eq!(rig.get(key).unwrap(), None);
        }
    }
    assert_eq!(rig.pool.keys(), 55);
}

/// An entry whose key is damaged is refused by GET, and may be replaced or deleted: for
/// good, also through a crash, and when the whole log is scanned.
#[test]
fn an_entry_that_cannot_be_read_can_be_replaced_and_deleted() {
    let shape = Shape {
        lanes: 2,
        segments_per_lane: 128,
        ..Shape::default()
    };
    let (device, mut rig, mut model) = filled(shape, 13, 60);
    let binders: Vec<Vec<u8>> = (0..4).map(|n| format!("big:{n}").into_bytes()).collect();
    for key in &binders {
        rig.set(key, &[7; 5000], Expiry::None).unwrap();
    }
    rig.settle();
    rig.close();
    let mut hurt: Vec<Vec<u8>> = model.keys().take(10).cloned().collect();
    hurt.extend(binders);
    for key in &hurt {
        // The value behind it tells `key:1` from the start of `key:10`.
        let binder = 5000u64.to_le_bytes();
        let behind = model.get(key).map_or(&binder[..], |v| &v[..8]);
        flip_all(&device, &[key, behind].concat());
    }
    let mut rig = Rig::open(&device, shape, clock());
    let keys = rig.pool.keys();
    assert_eq!(keys, 64);
    for (n, key) in hurt.iter().enumerate() {
        let error = rig.get(key).unwrap_err();
        assert!(error.contains("damaged entry"), "{error}");
        let kept = rig.run(|w, t| {
            let mut new = terrace_kv::NewValue::Inline(b"new");
            let always = terrace_kv::Cond::Always;
            terrace_kv::set(w, t, key, &mut new, always, Expiry::Keep, |_| ())
        });
        assert!(kept.is_err(), "its expiry is not known");
        model.remove(key);
        if n % 2 == 0 {
            rig.set(key, b"new", Expiry::None).unwrap();
            model.insert(key.clone(), b"new".to_vec());
        } else {
            assert_eq!(rig.del(&[key]).unwrap().0, 1);
        }
        assert_eq!(rig.get(key).unwrap().as_ref(), model.get(key));
    }
    assert_eq!(rig.pool.keys(), keys - 7);
    rig.settle();
    let crashed = SimDevice::with_image(device.durable_image(), 1);
    rig.close();
    let scanned = SimDevice::with_image(device.durable_image(), 1);
    let mut disk = scanned.queue(1).unwrap();
    let roots = Buf::zeroed(2 * shape.lanes * BLOCK_BYTES);
    write_blocking(&mut *disk, 2 * BLOCK_BYTES as u64, roots).unwrap();
    for device in [crashed, device, scanned] {
        let mut rig = Rig::open(&device, shape, clock());
        assert_eq!(rig.pool.keys(), keys - 7);
        for key in &hurt {
            assert_eq!(rig.get(key).unwrap().as_ref(), model.get(key));
        }
        for (key, v) in &model {
            assert_eq!(rig.get(key).unwrap().as_ref(), Some(v));
        }
    }
}
