//! A store over a simulated device: what it does when reads, writes and checksums fail.

use super::driver::Work;
use super::open::{StoreOptions, make_tables};
use super::{ObjectError, Shape, Store, Value};
use std::sync::Arc;
use std::time::Duration;
use terrace_log::INLINE_MAX_BYTES;
use terrace_media::sim::{Fault, SimDevice};
use terrace_media::{Arena, Device};
use terrace_pool::{ManualClock, Options, Pool, Superblock};

const SEGMENT: usize = 64 << 10;
const BYTES: usize = 128;
const TABLE: u16 = 3;
/// Rounds of reading after which what is to happen has happened.
const ROUNDS_MAX: u32 = 200;

pub(crate) fn options(durable: bool) -> Options {
    let mut options = StoreOptions::scratch("sim", 4 << 20, 0);
    options.durable = durable;
    Options {
        segment_bytes: SEGMENT,
        recovery_threads: 1,
        ..options.pool()
    }
}

/// A device with an empty pool of objects.
pub(crate) fn device(options: &Options, segments: u64, seed: u64) -> SimDevice {
    let len = (segments + 1) * SEGMENT as u64;
    let device = SimDevice::new(len, seed);
    let plan = Superblock::plan(options, len, [seed | 1, 2, 3]).expect("a plan");
    plan.write(&mut *device.queue(8).expect("a queue"))
        .expect("written");
    device
}

pub(crate) fn pool(device: &SimDevice, options: Options) -> Arc<Pool<super::tables::Tables>> {
    let arena = Arena::new_plain(SEGMENT, 4096).expect("an arena");
    let make = make_tables(&options);
    let device = Arc::new(device.clone());
    let clock = Box::new(ManualClock::default());
    Pool::objects_on_device(device, options, clock, Some(arena), &make).expect("a pool")
}

fn store(device: &SimDevice) -> Arc<Store> {
    let store = Store::on_pool(pool(device, options(false)), Work::Both).expect("a store");
    store
        .make_table(TABLE, Shape::Fixed(BYTES as u32))
        .expect("a table");
    store
}

fn value(id: u64) -> [u8; BYTES] {
    let mut value = [id as u8; BYTES];
    value[..8].copy_from_slice(&id.to_le_bytes());
    value
}

/// Stores `count` objects, more than DRAM takes.
fn fill(store: &Store, count: u64) {
    for id in 0..count {
        store.put(TABLE, id, &value(id)).expect("put");
    }
}

fn read(store: &Store, id: u64) -> Result<bool, ObjectError> {
    let mut out = [0; BYTES];
    let len = store.get(TABLE, id, &mut out)?;
    Ok(len == Some(BYTES) && out == value(id))
}

#[test]
fn an_object_that_cannot_be_read_is_an_error_with_its_place_and_only_that() {
    let device = device(&options(false), 512, 1);
    let store = store(&device);
    fill(&store, 60_000);
    device.faults().fail_read(Fault::eio().always());
    let errors: Vec<ObjectError> = (0..60_000)
        .filter_map(|id| read(&store, id).err())
        .collect();
    assert!(
        errors.len() > 10_000,
        "{} objects were on the device",
        errors.len()
    );
    let io = |e: &ObjectError| matches!(e, ObjectError::Io { errno: 5, offset, .. } if *offset > 0);
    assert!(errors.iter().all(io), "{:?}", errors[0]);
    let ids: Vec<u64> = (0..500).collect();
    assert!(store.get_many(TABLE, &ids, |_, _| {}).is_err());
    device.faults().clear();
    for id in 0..60_000 {
        assert_eq!(read(&store, id), Ok(true), "object {id}");
    }
    assert_eq!(store.failure(), None);
}

#[test]
fn a_damaged_object_is_an_error_and_its_place_is_used_again() {
    let device = device(&options(false), 512, 2);
    let store = store(&device);
    fill(&store, 60_000);
    // Every block of the log but the first segment loses a bit.
    for block in (SEGMENT as u64..device.len_bytes()).step_by(4096) {
        device.faults().flip_bit(block + 700, 3);
    }
    let damaged =
        (0..60_000).filter(|&id| matches!(read(&store, id), Err(ObjectError::Damaged { .. })));
    let damaged: Vec<u64> = damaged.collect();
    assert!(damaged.len() > 500, "{} objects", damaged.len());
    for id in damaged {
        store.put(TABLE, id, &value(id)).expect("put");
        assert_eq!(read(&store, id), Ok(true));
    }
}

#[test]
fn a_write_back_that_fails_loses_nothing_and_refuses_what_is_new() {
    let device = device(&options(false), 512, 3);
    let store = store(&device);
    fill(&store, 30_000);
    device.faults().fail_write(Fault::eio().always());
    let mut stored = 30_000;
    let refused = loop {
        match store.put(TABLE, stored, &value(stored)) {
            Ok(()) => stored += 1,
            Err(e) => break e,
        }
        assert!(stored < 200_000, "writes fail and nobody says so");
    };
    assert_eq!(refused, ObjectError::ReadOnly);
    assert!(
        store
            .failure()
            .is_some_and(|why| why.contains("keep failing"))
    );
    assert_eq!(store.insert(TABLE, &value(0)), Err(ObjectError::ReadOnly));
    for id in 0..stored {
        assert_eq!(read(&store, id), Ok(true), "object {id}");
    }
}

#[test]
fn a_write_that_fails_once_is_made_elsewhere() {
    let device = device(&options(false), 512, 4);
    let store = store(&device);
    for n in 0..6 {
        device.faults().fail_write(Fault::eio().after(7 * n));
    }
    fill(&store, 60_000);
    for id in 0..60_000 {
        assert_eq!(read(&store, id), Ok(true), "object {id}");
    }
    assert_eq!(store.failure(), None);
    assert!(store.stats().lanes.failed_writes >= 6);
}

#[test]
fn what_was_written_long_ago_leaves_dram_where_others_are_read() {
    let device = device(&options(false), 512, 6);
    let store = store(&device);
    fill(&store, 60_000);
    let before = store.stats().lanes;
    assert!(
        before.dirty_bytes * 4 > before.dirty_max_bytes,
        "{before:?}"
    );
    let left = (0..ROUNDS_MAX).map(|_| {
        for id in 0..60_000 {
            assert_eq!(read(&store, id), Ok(true), "object {id}");
        }
        // The background thread looks every 50 ms.
        std::thread::sleep(Duration::from_millis(10));
        store.stats().lanes.dirty_bytes
    });
    let mut left = left.skip_while(|left| left * 16 > before.dirty_bytes);
    assert!(left.next().is_some(), "still dirty: {:?}", store.stats());
}

/// Reads an object that does not come up to DRAM then.
fn pass(store: &Store, id: u64) {
    let whole = store.read_if(
        TABLE,
        id,
        |_| false,
        |seen, _| matches!(seen, Value::Bytes(bytes) if bytes == value(id)),
    );
    assert!(whole.expect("read"), "object {id}");
}

#[test]
fn what_is_read_and_stays_below_counts_as_recalled_as_well() {
    let device = device(&options(false), 512, 12);
    let store = store(&device);
    fill(&store, 60_000);
    (0..60_000).for_each(|id| pass(&store, id));
    let (recalled, bytes, _) = store.recalled();
    assert!(recalled > 1000, "{recalled}");
    assert!(bytes > recalled * BYTES as u64);
}

#[test]
fn what_was_used_is_remembered_where_that_is_asked() {
    const USED: u64 = 5000;
    for asked in [false, true] {
        let device = device(&options(false), 512, 11);
        let store = store(&device);
        if asked {
            store.remember_used();
        }
        fill(&store, USED);
        assert!((0..USED).all(|id| read(&store, id).unwrap()));
        let mut left: Vec<u64> = (0..USED).collect();
        for chunk in 0..60 {
            let others = USED + chunk * 2000..USED + (chunk + 1) * 2000;
            for id in others.clone() {
                store.put(TABLE, id, &value(id)).expect("put");
            }
            // Used as well: nothing else takes the place of what is.
            assert!(others.into_iter().all(|id| read(&store, id).unwrap()));
            left.retain(|id| {
                let near = store.near_is(TABLE, *id, |_| true);
                if !near {
                    pass(&store, *id);
                }
                near
            });
        }
        let gone = USED - left.len() as u64;
        assert!(gone > 1000, "{gone} left");
        let (recalled, ..) = store.recalled();
        match asked {
            true => assert!(recalled > gone / 2, "{recalled} of {gone}"),
            false => assert!(recalled < gone / 20, "{recalled} of {gone}"),
        }
    }
}

#[test]
fn objects_of_every_length_come_back_from_the_device() {
    let device = device(&options(false), 512, 5);
    let store = Store::on_pool(pool(&device, options(false)), Work::Both).expect("a store");
    store.make_table(1, Shape::Any).expect("a table");
    let lengths: Vec<usize> = (0..4000).map(|n| n * 37 % (8 << 10)).collect();
    for (id, len) in lengths.iter().enumerate() {
        store.put(1, id as u64, &vec![id as u8; *len]).expect("put");
    }
    for (id, len) in lengths.iter().enumerate() {
        let whole = store.read(1, id as u64, |v| match v {
            super::Value::Bytes(b) => b.len() == *len && b.iter().all(|x| *x == id as u8),
            _ => false,
        });
        assert_eq!(whole, Ok(true), "object {id} of {len} bytes");
    }
    assert!(store.put(1, 1, &vec![0; INLINE_MAX_BYTES + 1]).is_err());
}

#[test]
fn a_table_is_not_made_twice_for_other_objects() {
    let device = device(&options(false), 64, 5);
    let store = store(&device);
    store.put(TABLE, 7, &value(7)).expect("put");
    let taken = Err(super::ObjectError::Taken { table: TABLE });
    let same = Shape::Fixed(BYTES as u32);
    for other in [Shape::Fixed(64 * BYTES as u32), Shape::Any] {
        assert_eq!(store.make_table(TABLE, other), taken);
        assert_eq!(store.make_owned_table(TABLE, other), taken);
    }
    assert_eq!(store.make_owned_table(TABLE, same), taken);
    store.make_table(TABLE, same).expect("said again");
    let right = store.read(TABLE, 7, |v| v == super::Value::Bytes(&value(7)));
    assert_eq!(right, Ok(true));
    // Once it is dropped it may be another's.
    store.drop_table(TABLE).expect("dropped");
    store.make_owned_table(TABLE, Shape::Any).expect("made");
    assert_eq!(store.make_table(TABLE, Shape::Any), taken);
}

/// How many of the gathered objects were read; each as it was put.
fn taken(store: &Store, ids: &[u64]) -> usize {
    let mut gathered = store.gather(TABLE, ids);
    let mut taken = 0;
    for (at, id) in ids.iter().enumerate() {
        let same = |v: super::Value<'_>| v == super::Value::Bytes(&value(*id));
        if let Some(same) = gathered.take(at, |_| id % 2 == 0, same) {
            assert!(same && at < super::gather::GATHER_MAX, "object {id}");
            taken += 1;
        }
        assert!(gathered.take(at, |_| true, |_| ()).is_none(), "once");
    }
    taken
}

#[test]
fn what_is_gathered_is_what_a_read_gives_with_fewer_reads() {
    let device = device(&options(false), 512, 6);
    let store = store(&device);
    fill(&store, 60_000);
    let before = store.stats().lanes.device_reads;
    // Side by side, with gaps, in another order; more than are looked at; some in DRAM, some free.
    let near: Vec<Vec<u64>> = (0..50)
        .map(|n| (0..40).map(|at| n * 997 + at * (1 + n % 3)).collect())
        .collect();
    let all: usize = near.iter().map(|ids| taken(&store, ids)).sum();
    let reads = store.stats().lanes.device_reads - before;
    assert!(all > 1000, "{all} of {} objects", 50 * 40);
    assert!(reads < all as u64 / 8, "{reads} reads of {all} objects");
    let scattered: Vec<u64> = (0..33).map(|n| n * 7919 % 50_000).rev().collect();
    assert!(taken(&store, &scattered) > 20);
    assert_eq!(taken(&store, &[]), 0);
    assert_eq!(taken(&store, &[70_000, 70_001]), 0, "free");
}

#[test]
fn what_cannot_be_gathered_is_left_and_nothing_stays_held() {
    let device = device(&options(false), 512, 7);
    let store = store(&device);
    fill(&store, 60_000);
    device.faults().fail_read(Fault::eio().always());
    let ids: Vec<u64> = (100..130).collect();
    assert_eq!(taken(&store, &ids), 0);
    device.faults().clear();
    // As many at a time as there are buffers for.
    let held: Vec<_> = (0..4)
        .map(|n| store.gather(TABLE, &[n * 1000, n * 1000 + 1, n * 1000 + 2]))
        .collect();
    assert_eq!(taken(&store, &ids), 0, "no buffer is left");
    drop(held);
    assert!(taken(&store, &ids) > 0);
    // Every segment is written anew several times: one that stays held would not be.
    for first in (0..59_000).step_by(33) {
        let ids: Vec<u64> = (first..first + 33).collect();
        drop(store.gather(TABLE, &ids));
    }
    for _ in 0..12 {
        fill(&store, 60_000);
    }
    for id in 0..60_000 {
        assert_eq!(read(&store, id), Ok(true), "object {id}");
    }
    let counters = store.stats().lanes;
    assert_eq!(counters.damaged_reads, 0);
}

#[test]
fn a_panic_of_who_is_shown_objects_leaves_nothing_held() {
    let device = device(&options(false), 512, 8);
    let store = store(&device);
    fill(&store, 60_000);
    for n in 0..80 {
        let ids: Vec<u64> = (0..200).map(|at| n * 709 + at * 17).collect();
        let mut left = n % 50;
        let shown = std::panic::AssertUnwindSafe(|| {
            store.get_many(TABLE, &ids, |_, _| {
                left = left.checked_sub(1).expect("enough was shown");
            })
        });
        assert!(std::panic::catch_unwind(shown).is_err());
    }
    for _ in 0..12 {
        fill(&store, 60_000);
    }
    for id in 0..60_000 {
        assert_eq!(read(&store, id), Ok(true), "object {id}");
    }
}

#[test]
fn what_was_freed_is_not_there_where_a_store_keeps_its_data() {
    let device = device(&options(true), 64, 1);
    let store = Store::on_pool(pool(&device, options(true)), Work::Both).expect("a store");
    store.make_table(TABLE, Shape::Any).expect("a table");
    store.put(TABLE, 5, &[1; 100]).expect("put");
    store.make_durable().expect("durable");
    assert_eq!(store.contains(TABLE, 5), Ok(true));
    assert_eq!(store.free(TABLE, 5), Ok(true));
    assert_eq!(store.contains(TABLE, 5), Ok(false));
    assert!(store.replace(TABLE, 5, &[2; 100]).is_err());
    assert_eq!(store.free(TABLE, 5), Ok(false));
    assert!(store.drop_table(TABLE).is_err(), "it is kept");
}

#[test]
fn a_new_object_that_is_changed_has_nothing_of_the_one_before() {
    let device = device(&options(false), 64, 3);
    let store = store(&device);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    // It may be free now.
                    let _ = store.update(TABLE, 0, |bytes| bytes[8] = bytes[8].wrapping_add(1));
                }
            });
        }
        let wrong = (0..30_000).find(|_| {
            let old = store.insert(TABLE, &[9; BYTES]).expect("insert");
            store.free(TABLE, old).expect("free");
            let new = store.insert(TABLE, &[]).expect("insert");
            assert_eq!((old, new), (0, 0));
            // Until it was changed, or a few times without.
            let mut others = vec![];
            for _ in 0..4 {
                let shown = store.read(TABLE, new, |v| match v {
                    Value::Bytes(bytes) => [&bytes[..8], &bytes[9..]].concat(),
                    _ => vec![],
                });
                others = shown.expect("there");
            }
            store.free(TABLE, new).expect("free");
            others.iter().any(|byte| *byte != 0)
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
}

#[test]
fn beside_what_is_promised_the_ends_of_segments_count_as_taken() {
    let store = store(&device(&options(false), 512, 1));
    let (large, any) = (20_000, TABLE + 1);
    store.make_table(any, Shape::Any).expect("a table");
    store.room.promise(1).expect("a promise");
    let mut stored = 0;
    let refused = loop {
        match store.put(any, stored, &vec![stored as u8; large]) {
            Ok(()) => stored += 1,
            Err(e) => break e,
        }
    };
    assert!(refused.is_full(), "{refused}");
    // Three are in a segment.
    let (max, each) = (store.room.max_bytes, SEGMENT as u64 / 3);
    assert_eq!(stored, (max - 1) / each, "of {max} bytes");
    for id in 0..stored {
        // Shorter first: what is given back is what was taken.
        store.put(any, id, &[1; 100]).expect("shorter");
        assert!(store.free(any, id).expect("free"));
    }
    store.room.promise(max - 1).expect("all is free again");
}

#[test]
fn an_object_that_is_first_changed_in_place_takes_room_and_gives_it_back() {
    let store = store(&device(&options(false), 512, 1));
    store.room.promise(1).expect("a promise");
    let most = store.room.max_bytes - 1;
    let id = store.insert(TABLE, &[]).expect("zeros");
    store
        .update(TABLE, id, |bytes| bytes[0] = 1)
        .expect("change");
    let refused = store.room.promise(most).expect_err("it has room");
    assert!(refused.is_full(), "{refused}");
    assert!(store.free(TABLE, id).expect("free"));
    store.room.promise(most).expect("all is free again");
}
