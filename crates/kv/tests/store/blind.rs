//! Sets that are answered before what they replace was read.
//!
//! What must hold from the moment of the reply: the new value is the only one, whatever command comes next, and whatever
//! becomes of the read; a crash shows one state or the other.

use crate::common::{Rig, Shape, clock};
use terrace_kv::{Cond, Expiry, NewValue, Step, Value};
use terrace_log::Directory;
use terrace_media::sim::{Fault, SimDevice};
use terrace_pool::Durability;

const KEYS: usize = 2000;

fn key(n: usize) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}
fn old(n: usize) -> Vec<u8> {
    vec![n as u8; 600]
}

fn shape() -> Shape {
    Shape {
        durability: Durability::Async,
        memory_segments: 48,
        segments_per_lane: 256,
        ..Shape::default()
    }
}

/// More keys than DRAM holds, all durable.
fn cold() -> (SimDevice, Rig) {
    let device = shape().device(7);
    let mut rig = Rig::open(&device, shape(), clock());
    for n in 0..KEYS {
        rig.set(&key(n), &old(n), Expiry::None).unwrap();
    }
    rig.settle();
    (device, rig)
}

fn unverified(rig: &Rig) -> u64 {
    rig.pool.with_lane(0, |l| l.stats().unverified)
}

/// Sets `n` in one call, which must not wait; false: its entry was in memory.
fn set_at_once(rig: &mut Rig, n: usize, value: &[u8]) -> bool {
    let before = unverified(rig);
    let mut task = rig.worker.task(1);
    let mut new = NewValue::Inline(value);
    let step = terrace_kv::put(&mut rig.worker, &mut task, &key(n), &mut new, Expiry::None);
    assert_eq!(step.unwrap(), Step::Done(()), "key {n}");
    rig.worker.finish(task);
    unverified(rig) > before
}

/// A cold key whose set was answered before it was verified.
fn one_unverified(rig: &mut Rig, value: &[u8]) -> usize {
    (0..KEYS)
        .find(|&n| set_at_once(rig, n, value))
        .expect("some key is cold")
}

fn dump(rig: &mut Rig, n: usize) -> Option<Vec<u8>> {
    rig.get(&key(n)).unwrap()
}

#[test]
fn a_set_of_a_cold_key_does_not_wait_and_is_all_there_is() {
    let (device, mut rig) = cold();
    let n = one_unverified(&mut rig, b"new");
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
    assert_eq!(dump(&mut rig, n), Some(b"new".to_vec()));
    let shown = rig.keys().unwrap();
    assert_eq!(shown.len(), KEYS);
    rig.settle();
    assert_eq!(unverified(&rig), 0);
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
    assert_eq!(dump(&mut rig, n), Some(b"new".to_vec()));
    rig.close();
    let mut rig = Rig::open(&device, shape(), clock());
    assert_eq!(dump(&mut rig, n), Some(b"new".to_vec()));
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
}

/// SCAN shows a key once, also while its old entry still has a slot.
#[test]
fn a_scan_shows_an_unverified_key_once() {
    let (_, mut rig) = cold();
    let n = one_unverified(&mut rig, b"new");
    let (mut cursor, mut met) = (0, 0);
    loop {
        // In one call, without a turn in which it would be verified: pages that must be read are passed over by size.
        let wanted = key(n);
        let next = rig.run(|w, t| {
            let mut count = 0;
            let step = terrace_kv::scan(w, t, cursor, 10, &mut |k| {
                count += usize::from(k == wanted);
            })?;
            Ok(match step {
                Step::Done(next) => Step::Done((next, count)),
                Step::Wait(wait) => Step::Wait(wait),
            })
        });
        let ((next, count), _) = next.unwrap();
        met += count;
        cursor = next;
        if next == 0 {
            break;
        }
    }
    assert_eq!(met, 1);
}

#[test]
fn a_delete_behind_it_leaves_nothing() {
    let (device, mut rig) = cold();
    let n = one_unverified(&mut rig, b"new");
    let gone = key(n);
    // No turn in between: the deletion meets the entry before it is verified.
    let mut task = rig.worker.task(1);
    let step = terrace_kv::del(&mut rig.worker, &mut task, &[&gone]).unwrap();
    assert_eq!(step, Step::Done(1));
    rig.worker.finish(task);
    assert_eq!(dump(&mut rig, n), None);
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64 - 1);
    rig.settle();
    assert_eq!(dump(&mut rig, n), None);
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64 - 1);
    for image in [device.durable_image(), device.image()] {
        let device = SimDevice::with_image(image, 1);
        let mut rig = Rig::open(&device, shape(), clock());
        assert_eq!(dump(&mut rig, n), None, "after a crash");
    }
}

#[test]
fn changes_behind_it_build_on_the_new_value() {
    let (_, mut rig) = cold();
    let n = one_unverified(&mut rig, b"41");
    let counted = key(n);
    let (sum, _) = rig
        .run(|w, t| terrace_kv::incr_by(w, t, &counted, 1))
        .unwrap();
    assert_eq!(sum, 42);
    // As long, so it is written over; then longer, so it is not.
    for value in [&b"77"[..], b"a longer one"] {
        assert!(!set_at_once(&mut rig, n, value), "one at a time");
        assert_eq!(dump(&mut rig, n), Some(value.to_vec()));
    }
    let taken = rig.run(|w, t| {
        let mut new = NewValue::Inline(b"x");
        terrace_kv::set(
            w,
            t,
            &counted,
            &mut new,
            Cond::IfAbsent,
            Expiry::None,
            |_| (),
        )
    });
    assert_eq!(taken.unwrap().0, (false, ()));
    rig.settle();
    assert_eq!(dump(&mut rig, n), Some(b"a longer one".to_vec()));
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
}

/// A command that had read the old entry already sees the new one when it goes on.
#[test]
fn a_command_that_was_reading_the_old_value_sees_the_new_one() {
    let (_, mut rig) = cold();
    for n in 0..KEYS {
        let cold_key = key(n);
        let mut reader = rig.worker.task(2);
        let mut seen = None;
        let mut get = |rig: &mut Rig, t: &mut terrace_kv::Task| {
            terrace_kv::get(&mut rig.worker, t, &cold_key, |v| match v {
                Value::Inline(b) => seen = Some(b.to_vec()),
                _ => seen = None,
            })
        };
        if let Step::Done(()) = get(&mut rig, &mut reader).unwrap() {
            rig.worker.finish(reader);
            continue;
        }
        assert!(set_at_once(&mut rig, n, b"new"));
        // The read comes back, but the batch of the set has not begun.
        for _ in 0..3 {
            rig.worker.kick();
            rig.worker.turn();
        }
        assert_eq!(get(&mut rig, &mut reader).unwrap(), Step::Done(()));
        rig.worker.finish(reader);
        assert_eq!(seen, Some(b"new".to_vec()));
        rig.settle();
        assert_eq!(
            dump(&mut rig, n),
            Some(b"new".to_vec()),
            "nothing old came up"
        );
        return;
    }
    panic!("no key was cold");
}

#[test]
fn a_flush_of_all_keys_takes_it_along() {
    let (_, mut rig) = cold();
    one_unverified(&mut rig, b"new");
    rig.run(terrace_kv::flush_all).unwrap();
    assert_eq!(terrace_kv::dbsize(&rig.worker), 0);
    rig.settle();
    assert_eq!(unverified(&rig), 0);
    assert_eq!(rig.keys().unwrap(), Vec::<Vec<u8>>::new());
    rig.set(&key(1), b"again", Expiry::None).unwrap();
    rig.settle();
    assert_eq!(terrace_kv::dbsize(&rig.worker), 1);
}

/// What cannot be read is taken for the key's own, as when the set had waited (docs/adr/0010).
#[test]
fn an_entry_that_cannot_be_read_is_replaced() {
    let (device, mut rig) = cold();
    device.faults().fail_read(Fault::eio().always());
    let n = one_unverified(&mut rig, b"new");
    rig.settle();
    device.faults().clear();
    assert_eq!(unverified(&rig), 0);
    assert_eq!(dump(&mut rig, n), Some(b"new".to_vec()));
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
}

/// Fewer than a batch are read for once time has passed; where the pool's clock stands still, since the system's was set back, it does as well.
#[test]
fn it_is_verified_whatever_the_clock_says() {
    let (_, mut rig) = cold();
    rig.set_back_ms = Some(1_000);
    for value in [b"one", b"two"] {
        one_unverified(&mut rig, value);
        (0..100).for_each(|_| rig.turn());
        assert_eq!(unverified(&rig), 0);
    }
}

/// Many at once: those that find no place wait for their read, as before.
#[test]
fn as_many_as_there_is_room_for_are_answered_at_once() {
    let (_, mut rig) = cold();
    for n in 0..KEYS {
        rig.set(&key(n), format!("new {n}").as_bytes(), Expiry::None)
            .unwrap();
        assert!(unverified(&rig) <= 256);
    }
    rig.settle();
    assert_eq!(unverified(&rig), 0);
    assert_eq!(terrace_kv::dbsize(&rig.worker), KEYS as u64);
    for n in 0..KEYS {
        assert_eq!(dump(&mut rig, n), Some(format!("new {n}").into_bytes()));
    }
}

/// A value in pieces below is ended in the same epoch, so its set waits.
#[test]
fn what_may_bind_pieces_is_read_first() {
    let (_, mut rig) = cold();
    let long = vec![5; 200_000];
    rig.set(b"long", &long, Expiry::None).unwrap();
    for n in 0..KEYS {
        rig.set(&key(n), &old(n), Expiry::None).unwrap();
    }
    rig.settle();
    let mut task = rig.worker.task(1);
    let mut new = NewValue::Inline(b"short");
    let step = terrace_kv::put(&mut rig.worker, &mut task, b"long", &mut new, Expiry::None);
    assert!(matches!(step.unwrap(), Step::Wait(_)), "it is cold");
    rig.worker.finish(task);
    rig.set(b"long", b"short", Expiry::None).unwrap();
    assert_eq!(rig.get(b"long").unwrap(), Some(b"short".to_vec()));
}

/// A set of a key whose big value is known ends that value, for which a record is found: by a read, if a slot of something else below looks like the
/// record's. That read tells nothing of the key: taken for its own, the key had two entries in DRAM.
#[test]
fn the_read_of_a_record_is_not_that_of_the_key() {
    let device = shape().device(7);
    let mut rig = Rig::open(&device, shape(), clock());
    rig.set(b"long", &[5; 200_000], Expiry::None).unwrap();
    rig.settle();
    let records: Vec<_> = (0..2048u16)
        .map(|n| [b'r', n as u8, (n >> 8) as u8])
        .map(|key| rig.worker.place(1, &key).1)
        .collect();
    rig.pool.with_lane(0, |lane| {
        let mut piece = None;
        lane.each_slot(|s| {
            let below = !s.loc().in_memory() && lane.buffered(s).is_none();
            piece = piece.or(below.then_some(s));
        });
        let piece = piece.expect("pieces do not stay in DRAM");
        for who in records {
            lane.dir.insert(who, piece).unwrap();
        }
    });
    let mut task = rig.worker.task(1);
    let mut new = NewValue::Inline(b"short");
    let step = terrace_kv::put(&mut rig.worker, &mut task, b"long", &mut new, Expiry::None);
    assert!(matches!(step.unwrap(), Step::Wait(_)), "for the record");
    rig.worker.finish(task);
    rig.set(b"long", b"short", Expiry::None).unwrap();
    assert_eq!(terrace_kv::dbsize(&rig.worker), 1);
    assert_eq!(rig.get(b"long").unwrap(), Some(b"short".to_vec()));
    assert_eq!(rig.del(&[b"long"]).unwrap().0, 1);
    assert_eq!(rig.get(b"long").unwrap(), None);
}
