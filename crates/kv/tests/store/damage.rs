//! Keys whose value or whose whole entry is damaged on the medium; and what a clean stop has left there, with bytes that are wrong
//! and have the right checksums all the same, as chance or a mistake of ours would leave them.
//!
//! What must hold: no wrong value is shown, the error names the place, and the key may be
//! replaced or deleted for good. Nothing panics. Never: harms other keys.

use crate::common::{Model, Rig, SEGMENT, Shape, clock, filled, flip_all};
use terrace_kv::Expiry;
use terrace_log::frame::{SEGMENT_HEADER_BYTES, SegmentHeader, Use};
use terrace_log::{Entry, Kind, Loc, Terrace};
use terrace_media::sim::SimDevice;
use terrace_media::{BLOCK_BYTES, Buf, Device, write_blocking};
use terrace_tiers::Root;

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

/// Lanes so large that nothing is cleaned for want of segments.
const ROOMY: Shape = Shape {
    lanes: 1,
    segments_per_lane: 200,
    segment_bytes: SEGMENT,
    memory_segments: 24,
    middle_segments: 0,
    durability: terrace_pool::Durability::Async,
    recovery_threads: 1,
    without_rule: None,
};

/// What a clean stop of a pool of one lane has left.
struct Left {
    bytes: Vec<u8>,
    model: Model,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
fn put_u32(bytes: &mut [u8], at: usize, n: u32) {
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
}
fn crc(bytes: &[u8]) -> u32 {
    crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(bytes)
}

impl Left {
    fn new(keys: usize) -> Left {
        let (device, rig, model) = filled(ROOMY, 12, keys);
        rig.close();
        let bytes = device.durable_image();
        Left { bytes, model }
    }
    fn pool(&self) -> u64 {
        u64::from_le_bytes(self.bytes[16..24].try_into().unwrap())
    }
    fn segment(&mut self, id: u32) -> &mut [u8] {
        let first = self.bytes.len() - ROOMY.segments_per_lane as usize * SEGMENT;
        &mut self.bytes[first + id as usize * SEGMENT..][..SEGMENT]
    }
    fn header(&mut self, id: u32) -> Option<SegmentHeader> {
        let pool = self.pool();
        SegmentHeader::read(self.segment(id), pool, 0, id)
    }

    /// Changes the image of the newest checkpoint, and leaves no other.
    fn change_image(&mut self, f: impl FnOnce(&mut [u8])) {
        let pool = self.pool();
        let roots = [2 * BLOCK_BYTES, 3 * BLOCK_BYTES].map(|at| {
            let root = Root::read(&self.bytes[at..at + BLOCK_BYTES], pool, 0);
            self.bytes[at..at + BLOCK_BYTES].fill(0);
            root.map(|root| (root.number, at, root))
        });
        let newest = roots.into_iter().flatten().max_by_key(|r| r.0);
        let (_, at, mut root) = newest.expect("a checkpoint");
        let (mut image, mut chain, mut next) = (Vec::new(), Vec::new(), root.first + 1);
        while next > 0 {
            let id = next - 1;
            let header = self.header(id).expect("a part");
            let len = header.len_bytes as usize;
            image.extend_from_slice(&self.segment(id)[SEGMENT_HEADER_BYTES..][..len]);
            chain.push((id, len));
            next = header.next;
        }
        f(&mut image);
        root.crc = crc(&image);
        for (id, len) in chain {
            let rest = image.split_off(len);
            self.segment(id)[SEGMENT_HEADER_BYTES..][..len].copy_from_slice(&image);
            image = rest;
        }
        self.bytes[at..at + BLOCK_BYTES].copy_from_slice(&root.write(pool, 0));
    }

    /// Changes the parts of the warm image.
    fn change_warm(&mut self, f: impl Fn(&mut SegmentHeader, &mut Vec<u8>)) {
        let mut parts = 0;
        for id in 0..ROOMY.segments_per_lane as u32 {
            let Some(mut header) = self.header(id).filter(|h| h.used_for == Use::Warm) else {
                continue;
            };
            let from = SEGMENT_HEADER_BYTES;
            let mut payload = self.segment(id)[from..][..header.len_bytes as usize].to_vec();
            f(&mut header, &mut payload);
            header.len_bytes = payload.len() as u32;
            header.payload_crc = crc(&payload);
            let segment = self.segment(id);
            segment[from..][..payload.len()].copy_from_slice(&payload);
            header.write(segment);
            parts += 1;
        }
        assert!(parts > 1, "{parts} parts of a warm image");
    }

    /// Opens what is left, and has the background work do what it does.
    fn open(self) -> (Rig, Model) {
        let device = SimDevice::with_image(self.bytes, 1);
        let mut rig = Rig::open(&device, ROOMY, clock());
        (0..500).for_each(|_| rig.turn());
        (rig, self.model)
    }
}

/// All keys are there, can be written, and are there at the next start.
fn holds(mut rig: Rig, mut model: Model, what: &str) {
    assert_eq!(rig.keys().unwrap().len(), model.len(), "{what}");
    for (key, v) in &model {
        assert_eq!(rig.get(key).unwrap().as_ref(), Some(v), "{what}");
    }
    for round in 0..8u8 {
        for (key, v) in &mut model {
            v.push(round);
            rig.set(key, v, Expiry::None).unwrap();
        }
        rig.settle();
    }
    assert_eq!(rig.pool.stats().lanes.ssd_bad_segments, 0, "{what}");
    let device = rig.disk.clone();
    rig.close();
    let mut rig = Rig::open(&device, ROOMY, clock());
    assert_eq!(rig.pool.damage(), [], "{what}");
    for (key, v) in &model {
        assert_eq!(rig.get(key).unwrap().as_ref(), Some(v), "{what}");
    }
}

/// Where the records of segments and the pieces of the directory begin in an image.
fn places(image: &[u8]) -> (usize, usize) {
    let records = 16 + 4 * (u32_at(image, 8) + u32_at(image, 12)) as usize;
    (records, records + 44 * u32_at(image, 4) as usize)
}

/// A look-up that meets a slot which names DRAM looked there, where nothing was yet, and the process was gone.
#[test]
fn slots_that_name_no_place_cost_their_keys_and_no_more() {
    let ways: [fn(u64) -> u64; 3] = [
        // DRAM, no terrace at all, and behind the lane's end.
        |slot| slot & !(3 << 7),
        |slot| slot & !(1 << 7),
        |slot| slot | 1 << 38,
    ];
    for way in ways {
        let mut left = Left::new(100);
        let (mut met, mut hurt) = (0, 0);
        left.change_image(|image| {
            let mut at = places(image).1;
            while u32_at(image, at) < u32::MAX {
                let end = at + 24 + u32_at(image, at) as usize;
                at += 24;
                while at < end {
                    let slots = usize::from(image[at + 5]);
                    for slot in image[at + 16..][..8 * slots].chunks_exact_mut(8) {
                        met += 1;
                        if met % 4 == 0 {
                            let was = u64::from_le_bytes(slot.try_into().unwrap());
                            slot.copy_from_slice(&way(was).to_le_bytes());
                            hurt += 1;
                        }
                    }
                    at += 16 + 8 * slots;
                }
            }
        });
        let (mut rig, mut model) = left.open();
        assert!(met == 100 && rig.pool.damage().len() == 1);
        assert!(rig.pool.damage()[0].what.contains("25 slots point outside"));
        model.retain(|key, v| match rig.get(key).unwrap() {
            Some(found) => found == *v,
            None => false,
        });
        assert_eq!(
            (model.len(), rig.pool.keys()),
            (100 - hurt, 100 - hurt as u64)
        );
        holds(rig, model, "slots");
    }
}

/// A victim was read as far as the image said that it is used, over its end, or into a buffer that has not so much.
#[test]
fn an_image_that_says_more_of_a_segment_than_it_takes_is_none() {
    for (field, n) in [
        (0, 0),
        (2, SEGMENT as u32 + 1),
        (2, u32::MAX),
        (3, u32::MAX),
        (4, u32::MAX),
    ] {
        let mut left = Left::new(300);
        left.change_image(|image| {
            let (from, to) = places(image);
            for record in image[from..to].chunks_exact_mut(44) {
                if field > 0 && u32_at(record, 8) > 0 {
                    put_u32(record, 4 * field, n);
                }
            }
        });
        let (rig, model) = left.open();
        // The whole log was read: a checkpoint comes then.
        let made = rig.pool.stats().lanes.checkpoints;
        assert_eq!(made, u64::from(field > 0), "{n} in field {field}");
        holds(rig, model, "records");
    }
}

fn each_entry(payload: &mut [u8], f: impl Fn(&mut [u8])) {
    let mut at = 0;
    while at < payload.len() {
        let len = Entry::in_memory(&payload[at..]).len_bytes();
        f(&mut payload[at..at + len]);
        at += len;
    }
}

/// A warm image costs warmth alone, whatever is in it.
#[test]
fn a_warm_image_is_not_trusted() {
    type Way = fn(&mut SegmentHeader, &mut Vec<u8>);
    let outside = Loc::new(Terrace::Ssd, 3, 1 << 36).raw();
    assert_eq!(outside, 3 | 3 << 5 | 1 << 43);
    let ways: [(&str, Way); 8] = [
        ("as it is", |_, _| ()),
        ("cut off", |_, payload| {
            let len = Entry::in_memory(payload).len_bytes();
            payload.truncate(len + 10);
        }),
        ("cut off in an entry", |_, payload| {
            payload.truncate(payload.len() - 16);
        }),
        ("a value beyond the end", |_, payload| {
            put_u32(payload, 20, 65_000);
        }),
        ("links outside", |_, payload| {
            each_entry(payload, |e| {
                e[8..16].copy_from_slice(&(3u64 | 3 << 5 | 1 << 43).to_le_bytes());
            });
        }),
        ("links to DRAM", |_, payload| {
            each_entry(payload, |e| e[8] &= !(3 << 5));
        }),
        ("tombstones", |_, payload| {
            each_entry(payload, |e| e[18] = Kind::Tombstone as u8);
        }),
        // Of an earlier stop: what it says of places is of what was there then.
        ("another life", |header, payload| {
            header.life.generation -= 1;
            each_entry(payload, |e| {
                let at = e.len() - 17;
                e[at] ^= 1;
            });
        }),
    ];
    for (what, way) in ways {
        let mut left = Left::new(150);
        left.change_warm(way);
        let (rig, model) = left.open();
        let warmed = rig.pool.stats().lanes.warmed;
        match what {
            "as it is" => assert!(warmed > 50, "{warmed}"),
            "another life" => assert_eq!(warmed, 0),
            _ => assert!(warmed < 150, "{warmed} with {what}"),
        }
        holds(rig, model, what);
    }
}
