//! Tests that need a hand inside: what the records of big values allow, and how a
//! start goes on where one cannot be read. Everything that a caller can see is
//! tested from outside, in `tests/`.

#[path = "../tests/store/common.rs"]
#[allow(dead_code)] // It is the integration tests' and used here in part.
mod common;
mod records;

use crate::large::{self, RECORDS, record_places};
use crate::shared::{binder, registry};
use crate::{Cond, ExpireCond, Expiry, NewValue, Value};
use common::{Rig, Shape, flip_all};
use terrace_media::sim::SimDevice;
use terrace_pool::ManualClock;

const BIG_BYTES: usize = 5000;

fn rig() -> (SimDevice, Rig) {
    let shape = Shape {
        segments_per_lane: 128,
        ..Shape::default()
    };
    let device = shape.device(7);
    let clock = ManualClock::default();
    clock.set(1_000_000);
    let mut rig = Rig::open(&device, shape, clock);
    started(&mut rig);
    (device, rig)
}

fn started(rig: &mut Rig) {
    for _ in 0..10_000 {
        rig.turn();
        if registry(&rig.worker).registry.lock().started {
            return;
        }
    }
    panic!("the start never ends");
}

fn big(salt: u8) -> Vec<u8> {
    (0..BIG_BYTES)
        .map(|i| (i as u8).wrapping_mul(7) ^ salt)
        .collect()
}

fn free_records(rig: &Rig) -> usize {
    let shared = registry(&rig.worker);
    let registry = shared.registry.lock();
    (0..usize::from(RECORDS))
        .take_while(|&n| registry.peek(0, n).is_some())
        .count()
}

/// Pieces and records in the lane's directory.
fn internal_slots(rig: &Rig) -> u64 {
    use terrace_log::Snapshot;
    rig.pool.with_lane(0, |lane| lane.dir.len(1))
}

/// Loses all but `left` of the lane's records.
fn leave_records(rig: &Rig, left: usize) {
    let shared = registry(&rig.worker);
    let mut registry = shared.registry.lock();
    while registry.peek(0, left).is_some() {
        registry.take(0);
        registry.lose(0);
    }
}

#[test]
fn get_del_shows_the_value_and_the_key_is_gone() {
    let (device, mut rig) = rig();
    rig.set(b"small", b"here", Expiry::None).unwrap();
    let mut take = |key: &[u8]| {
        let seen = rig.run_durable(|w, t| {
            crate::get_del(w, t, key, |v| match v {
                Value::Inline(b) => Some(b.to_vec()),
                _ => None,
            })
        });
        (seen.unwrap(), rig.get(key).unwrap())
    };
    assert_eq!(take(b"small"), (Some(b"here".to_vec()), None));
    assert_eq!(take(b"small"), (None, None));
    assert_eq!(take(b"never"), (None, None));

    // What is only on the SSD too, and for good.
    rig.set(b"below", &[3; 900], Expiry::None).unwrap();
    for n in 0..800u16 {
        rig.set(&n.to_le_bytes(), &[4; 900], Expiry::None).unwrap();
    }
    rig.settle();
    let seen = rig.run_durable(|w, t| {
        crate::get_del(
            w,
            t,
            b"below",
            |v| matches!(v, Value::Inline(b) if b == [3; 900]),
        )
    });
    assert!(seen.unwrap());
    assert!(rig.pool.stats().lanes.verify_reads > 0, "it was read");
    let (shape, clock) = (rig.shape, rig.clock.clone());
    rig.close();
    let mut rig = Rig::open(&device, shape, clock);
    assert_eq!(rig.get(b"below").unwrap(), None);
    assert_eq!(rig.get(b"small").unwrap(), None);
    assert_eq!(rig.pool.keys(), 800);
}

#[test]
fn what_changes_nothing_is_answered_when_nothing_is_written() {
    let (_device, mut rig) = rig();
    rig.set(b"here", b"v", Expiry::None).unwrap();
    rig.settle();
    let always = ExpireCond::Always;
    let keys: [&[u8]; 1] = [b"none"];
    assert_eq!(rig.run_durable(|w, t| crate::del(w, t, &keys)), Ok(0));
    let set = rig.run_durable(|w, t| {
        let mut value = NewValue::Inline(b"w");
        crate::set(
            w,
            t,
            b"here",
            &mut value,
            Cond::IfAbsent,
            Expiry::None,
            |_| (),
        )
    });
    assert_eq!(set, Ok((false, ())));
    let far = rig.worker.now_ms() + 1_000_000;
    for (key, at) in [(b"none", Some(far)), (b"none", Some(1)), (b"here", None)] {
        let done = rig.run_durable(|w, t| crate::expire(w, t, key, at, always));
        assert_eq!(done, Ok(false));
    }
    assert_eq!(rig.get(b"here").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn get_del_of_a_big_value_can_be_read_until_it_is_released() {
    let (_device, mut rig) = rig();
    let all = free_records(&rig);
    rig.set(b"big", &big(1), Expiry::None).unwrap();
    let held = rig.run_durable(|w, t| {
        crate::get_del(w, t, b"big", |v| match v {
            Value::Large(held) => Some(held),
            _ => None,
        })
    });
    let held = held.unwrap().expect("a value in pieces");
    (0..200).for_each(|_| rig.turn());
    assert_eq!(rig.get(b"big").unwrap(), None);
    assert_eq!(
        free_records(&rig),
        all - 1,
        "its record waits for the reader"
    );
    let mut read = Vec::new();
    for n in 0..held.pieces() {
        let piece = rig
            .run(|w, t| crate::read_piece(w, t, &held, n, |b| b.to_vec()))
            .unwrap()
            .0;
        read.extend(piece);
    }
    assert!(read == big(1));
    drop(held);
    rig.settle();
    (0..200).for_each(|_| rig.turn());
    assert_eq!(
        free_records(&rig),
        all,
        "the pieces and the record are gone"
    );
}

#[test]
fn an_expiry_that_has_passed_deletes_what_its_condition_saw() {
    let (_device, mut rig) = rig();
    let far = rig.worker.now_ms() + 1_000_000;
    rig.set(b"k", b"v", Expiry::At(far)).unwrap();
    let mut past = |cond| {
        rig.run(|w, t| crate::expire(w, t, b"k", Some(1), cond))
            .unwrap()
            .0
    };
    assert!(!past(ExpireCond::Nx));
    assert!(!past(ExpireCond::Gt));
    assert!(past(ExpireCond::XxLt));
    assert!(!past(ExpireCond::Always), "it is gone");
    assert_eq!(rig.get(b"k").unwrap(), None);
}

/// Both halves of a condition are of one moment.
#[test]
fn an_earlier_expiry_takes_the_place_of_one_that_there_is() {
    let (_device, mut rig) = rig();
    let now = rig.worker.now_ms();
    rig.set(b"k", b"v", Expiry::None).unwrap();
    let mut expire = |at: Option<u64>, cond| {
        rig.run(|w, t| crate::expire(w, t, b"k", at, cond))
            .unwrap()
            .0
    };
    assert!(!expire(Some(now + 2_000_000), ExpireCond::XxLt));
    assert!(!expire(Some(1), ExpireCond::XxLt));
    assert!(expire(Some(now + 2_000_000), ExpireCond::Lt));
    assert!(!expire(Some(now + 3_000_000), ExpireCond::XxLt));
    assert!(expire(Some(now + 1_000_000), ExpireCond::XxLt));
    assert!(!expire(Some(now + 1_000_000), ExpireCond::XxLt));
}

#[test]
fn more_big_values_than_records_are_refused_and_not_waited_for() {
    let (_device, mut rig) = rig();
    for n in 0..3u8 {
        rig.set(&[b'a', n], &big(n), Expiry::None).unwrap();
    }
    rig.settle();
    leave_records(&rig, 2);
    let keys: [&[u8]; 3] = [&[b'a', 0], &[b'a', 1], &[b'a', 2]];
    let text = rig.del(&keys).unwrap_err();
    assert!(text.contains("at most 2 are allowed"), "{text}");
    for n in 0..3u8 {
        assert!(
            rig.get(&[b'a', n]).unwrap() == Some(big(n)),
            "nothing is half done"
        );
    }
    // One named twice ends once.
    let twice: [&[u8]; 4] = [&[b'a', 0], &[b'a', 0], &[b'a', 1], &[b'a', 1]];
    assert_eq!(rig.del(&twice).unwrap().0, 2);
    // Their records come back, and the third goes as well.
    assert_eq!(rig.del(&keys).unwrap().0, 1);
}

#[test]
fn a_big_value_set_over_one_in_the_same_command_needs_a_record() {
    let (_device, mut rig) = rig();
    let all = free_records(&rig);
    let uploads: Vec<_> = (0..2u8)
        .map(|n| {
            let mut upload = rig
                .run(|w, t| crate::upload_begin(w, t, BIG_BYTES as u64))
                .unwrap()
                .0;
            for piece in big(n).chunks(crate::piece_bytes(&rig.worker)) {
                rig.run(|w, t| crate::upload_piece(w, t, &mut upload, piece))
                    .unwrap();
            }
            upload
        })
        .collect();
    let mut pairs: Vec<(&[u8], NewValue<'_>)> = uploads
        .into_iter()
        .map(|u| (&b"k"[..], NewValue::Large(u)))
        .collect();
    rig.run(|w, t| crate::mset(w, t, &mut pairs)).unwrap();
    assert!(
        rig.get(b"k").unwrap() == Some(big(1)),
        "the last one counts"
    );
    rig.settle();
    (0..200).for_each(|_| rig.turn());
    assert_eq!(free_records(&rig), all, "the first one's pieces went");
}

/// What a command has looked at with the lane held is what it takes, whoever gives records back meanwhile; and nobody takes one
/// without the lane. Else the last one could be gone between the look and the change, and a part of the command done.
#[test]
fn records_are_taken_as_they_were_seen_and_with_the_lane_held() {
    let (_device, mut rig) = rig();
    let upload = rig
        .run(|w, t| crate::upload_begin(w, t, BIG_BYTES as u64))
        .unwrap()
        .0;
    {
        let shared = registry(&rig.worker);
        let mut registry = shared.registry.lock();
        let seen = [registry.peek(0, 0), registry.peek(0, 1)];
        registry.give(0, upload.record);
        assert_eq!([registry.take(0), registry.take(0)], seen);
        seen.iter().flatten().for_each(|&r| registry.give(0, r));
    }
    let free = free_records(&rig);
    let mut other = rig.pool.worker(1, std::sync::Arc::new(|| {})).unwrap();
    let pool = rig.pool.clone();
    let lane = pool.lane(0);
    std::thread::scope(|scope| {
        let begins = scope.spawn(move || {
            let mut task = other.task(7);
            let begun = crate::upload_begin(&mut other, &mut task, BIG_BYTES as u64);
            other.finish(task);
            begun.map(|_| ())
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(free_records(&rig), free, "taken without the lane");
        drop(lane);
        begins.join().unwrap().unwrap();
    });
}

/// The record that names them is gone, so pieces that came later would stay for good.
#[test]
fn an_upload_takes_no_pieces_after_everything_was_deleted() {
    let (_device, mut rig) = rig();
    let value = big(1);
    let len = value.len() as u64;
    let mut upload = rig.run(|w, t| crate::upload_begin(w, t, len)).unwrap().0;
    let piece_bytes = crate::piece_bytes(&rig.worker);
    let mut pieces = value.chunks(piece_bytes);
    let first = pieces.next().unwrap();
    rig.run(|w, t| crate::upload_piece(w, t, &mut upload, first))
        .unwrap();
    rig.run(crate::flush_all).unwrap();
    let second = pieces.next().unwrap();
    let refused = rig.run(|w, t| crate::upload_piece(w, t, &mut upload, second));
    let text = refused.unwrap_err();
    assert!(text.contains("everything was deleted (FLUSHALL)"), "{text}");
    crate::upload_abort(&mut rig.worker, upload);
    rig.settle();
    assert_eq!(internal_slots(&rig), 0, "no piece is left");
}

#[test]
fn a_record_that_cannot_be_read_is_set_aside_and_the_start_goes_on() {
    let (device, mut rig) = rig();
    let all = record_places(&rig.worker).count();
    // An upload that never ends leaves its record behind.
    let upload = rig
        .run(|w, t| crate::upload_begin(w, t, BIG_BYTES as u64))
        .unwrap()
        .0;
    let named = upload.binder.encode();
    rig.settle();
    let (shape, clock) = (rig.shape, rig.clock.clone());
    rig.close();
    flip_all(&device, &named);
    let mut rig = Rig::open(&device, shape, clock);
    started(&mut rig);
    let shared = registry(&rig.worker);
    assert_eq!(large::records_of(&rig.worker, &shared, 0), all - 1);
    assert_eq!(free_records(&rig), all - 1, "never given out");
    // What waits for the start's end works, and gives everything back.
    rig.set(b"k", &big(1), Expiry::None).unwrap();
    rig.run(crate::flush_all).unwrap();
    assert_eq!(free_records(&rig), all);
}

#[test]
fn a_command_that_needs_more_records_than_there_are_is_refused_and_not_waited_for() {
    let (_device, mut rig) = rig();
    leave_records(&rig, 1);
    let begin = |rig: &mut Rig| rig.run(|w, t| crate::upload_begin(w, t, BIG_BYTES as u64));
    let first = begin(&mut rig).unwrap().0;
    let text = begin(&mut rig).unwrap_err();
    assert!(text.contains("no more are allowed"), "{text}");
    // One that ends by itself is waited for.
    crate::upload_abort(&mut rig.worker, first);
    let second = begin(&mut rig).unwrap().0;
    // One that a reader keeps is not.
    crate::upload_abort(&mut rig.worker, second);
    rig.set(b"big", &big(1), Expiry::None).unwrap();
    let held = rig.run(|w, t| {
        crate::get_del(w, t, b"big", |v| match v {
            Value::Large(held) => Some(held),
            _ => None,
        })
    });
    let held = held.unwrap().0;
    let text = begin(&mut rig).unwrap_err();
    assert!(text.contains("no more are allowed"), "{text}");
    drop(held);
    begin(&mut rig).unwrap();
}

/// One piece's value and another's key are damaged: the value is refused, and all of it goes.
#[test]
fn pieces_that_cannot_be_read_are_deleted_with_the_others() {
    let (device, mut rig) = rig();
    let all = free_records(&rig);
    rig.set(b"big", &big(1), Expiry::None).unwrap();
    let version = rig
        .run(|w, t| {
            crate::read::read(w, t, 0, b"big", crate::read::Promote::Never, |e| {
                binder(e.expect("set").value()).expect("a binder")
            })
        })
        .unwrap()
        .0
        .version;
    rig.settle();
    let (shape, clock) = (rig.shape, rig.clock.clone());
    rig.close();
    let piece = 64 + 15 * common::SEGMENT / 128;
    flip_all(&device, &big(1)[piece..piece + 16]);
    flip_all(&device, &large::piece_key(version, 0));
    let mut rig = Rig::open(&device, shape, clock);
    started(&mut rig);
    assert_eq!(internal_slots(&rig), 3);
    let text = rig.get(b"big").unwrap_err();
    assert!(text.contains("damaged entry"), "{text}");
    rig.del(&[b"big"]).unwrap();
    (0..200).for_each(|_| rig.turn());
    rig.settle();
    assert_eq!(internal_slots(&rig), 0, "no piece and no record is left");
    assert_eq!(free_records(&rig), all);
}

#[test]
fn pieces_that_are_read_again_come_from_dram() {
    let shape = Shape {
        segments_per_lane: 128,
        memory_segments: 64,
        ..Shape::default()
    };
    let clock = ManualClock::default();
    clock.set(1_000_000);
    let device = shape.device(7);
    let mut rig = Rig::open(&device, shape, clock.clone());
    rig.set(b"big", &big(1), Expiry::None).unwrap();
    rig.settle();
    // After a crash nothing is in memory.
    let device = SimDevice::with_image(device.durable_image(), 7);
    let mut rig = Rig::open(&device, shape, clock);
    started(&mut rig);
    let mut reads = Vec::new();
    for _ in 0..4 {
        let before = rig.pool.stats().lanes.device_reads;
        assert!(rig.get(b"big").unwrap() == Some(big(1)));
        reads.push(rig.pool.stats().lanes.device_reads - before);
    }
    assert_eq!(
        (reads[0] > 0, reads[1] > 0, reads[2], reads[3]),
        (true, true, 0, 0),
        "{reads:?}"
    );
}

#[test]
fn a_big_value_whose_time_is_up_goes_with_its_pieces() {
    let (_device, mut rig) = rig();
    let all = free_records(&rig);
    let soon = rig.worker.now_ms() + 1000;
    rig.set(b"big", &big(1), Expiry::At(soon)).unwrap();
    rig.settle();
    rig.clock.set(soon + 1);
    rig.turn();
    assert_eq!(rig.get(b"big").unwrap(), None);
    (0..200).for_each(|_| rig.turn());
    rig.settle();
    assert_eq!(internal_slots(&rig), 0, "no piece and no record is left");
    assert_eq!((free_records(&rig), rig.pool.keys()), (all, 0));
}

#[test]
fn what_an_edit_is_shown_is_granted_until_it_is_over() {
    const KEYS: u16 = 100;
    let (_device, mut rig) = rig();
    for n in 0..KEYS {
        rig.set(&n.to_le_bytes(), &[5; 900], Expiry::None).unwrap();
    }
    let pool = rig.pool.clone();
    let held = move || pool.ledger().held(terrace_pool::Part::Connections);
    let before = held();
    let look = |rig: &mut Rig, keys: u16| {
        let names: Vec<[u8; 2]> = (0..keys).map(u16::to_le_bytes).collect();
        let names: Vec<&[u8]> = names.iter().map(|n| &n[..]).collect();
        rig.run(|w, t| {
            crate::edit::<_, crate::KvError>(w, t, &names, &[], &mut |seen| {
                assert!(seen.views.iter().all(|view| view.exists()));
                Ok((Vec::new(), held()))
            })
        })
        .map(|(held, _)| held)
    };
    assert_eq!(look(&mut rig, 10).unwrap(), before, "little is free");
    assert_eq!(look(&mut rig, KEYS).unwrap(), before + (64 << 10));
    assert_eq!(held(), before, "and given back");
    // The share is used up by others.
    let ledger = rig.pool.ledger();
    let mut taken = 0;
    while ledger.grant(1 << 10) {
        taken += 1 << 10;
    }
    let refused = look(&mut rig, KEYS).expect_err("there is no room");
    assert!(refused.contains("does not have now"), "{refused}");
    rig.pool.ledger().ungrant(taken);
    assert!(look(&mut rig, KEYS).is_ok());
}

/// A value that was brought in pieces is set only if they are still there when its lanes are held: whoever deletes everything may have had them until then.
#[test]
fn a_big_value_is_not_set_behind_a_deletion_of_everything() {
    let (_device, mut rig) = rig();
    let value = big(1);
    let mut new = rig.value(&value).unwrap();
    let mut other = rig.pool.worker(1, std::sync::Arc::new(|| {})).unwrap();
    let pool = rig.pool.clone();
    let lane = pool.lane(0);
    std::thread::scope(|scope| {
        let sets = scope.spawn(move || {
            let mut task = other.task(7);
            let set = crate::put(&mut other, &mut task, b"k", &mut new, crate::Expiry::None);
            other.finish(task);
            set.err().map(|e| e.to_string())
        });
        // It has looked at the value by now, and waits for the lane.
        std::thread::sleep(std::time::Duration::from_millis(200));
        pool.note_flush_of_all();
        drop(lane);
        let said = sets.join().unwrap();
        assert!(said.is_some_and(|said| said.contains("FLUSHALL")));
    });
}

/// Room for the tombstone of a key whose time is up may take its entry out of DRAM, so that it is found where it would have to be read. It is not read, so
/// its segment must not be held: it could never be taken again.
#[test]
fn a_key_whose_time_is_up_and_that_has_left_dram_holds_no_segment() {
    let (device, mut rig) = rig();
    rig.set(b"cold", b"here", Expiry::None).unwrap();
    rig.settle();
    drop(rig);
    // After a crash nothing is in memory.
    let device = SimDevice::with_image(device.durable_image(), 7);
    let mut rig = Rig::open(&device, Shape::default(), ManualClock::default());
    let at = crate::find::place(&rig.worker, 0, b"cold");
    let task = rig.worker.task(1);
    crate::read::expire_seen(&task, &mut rig.worker.lane(at.lane), at, b"cold");
    rig.worker.finish(task);
    let planned = rig.pool.with_lane(0, |lane| lane.reads_planned());
    assert_eq!(planned, 0);
    assert_eq!(rig.get(b"cold").unwrap(), Some(b"here".to_vec()));
}
