//! Segments that a command's reads hold while others write.
//!
//! What must hold: they are not overwritten, and they do not stop anybody for ever.

use crate::common::{self, COLD_KEYS as KEYS, COLD_VALUE_BYTES as VALUE_BYTES, Rig, Shape};
use terrace_kv::{Expiry, NewValue, Outcome, Step, Task, Worker};
use terrace_pool::Durability;

/// A pool of which nothing is in DRAM.
fn cold(segments_per_lane: u64) -> (Rig, Vec<Vec<u8>>) {
    let shape = Shape {
        segments_per_lane,
        memory_segments: 40,
        durability: Durability::Async,
        ..Shape::default()
    };
    common::cold(shape, Expiry::None)
}

fn holds(rig: &Rig) -> u64 {
    rig.pool.with_lane(0, |lane| lane.reads_planned())
}

/// Drives a command until its reads hold so many segments, one counted as often as it is read.
fn drive<T: std::fmt::Debug>(
    rig: &mut Rig,
    task: &mut Task,
    reads: u64,
    mut f: impl FnMut(&mut Worker, &mut Task) -> Outcome<T>,
) {
    for _ in 0..1000 {
        let step = f(&mut rig.worker, task).unwrap();
        assert!(matches!(step, Step::Wait(_)), "{step:?}");
        rig.turn();
        while rig.worker.reads_under_way() > 0 {
            rig.turn();
        }
        if holds(rig) >= reads {
            return;
        }
    }
    panic!("{} reads", holds(rig));
}

/// A deletion has read nearly all of what it deletes, and for long nothing more comes of it. Others write all of the SSD anew, several times. What
/// it held was counted as free when the cleaner had emptied it: nothing more was cleaned, nothing could be taken, and no epoch ended.
#[test]
fn what_a_long_command_holds_does_not_stop_others() {
    let (mut rig, keys) = cold(400);
    let names: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
    let mut task = rig.worker.task(2);
    let mut del = |w: &mut Worker, t: &mut Task| terrace_kv::del(w, t, &names);
    drive(&mut rig, &mut task, KEYS as u64 - 64, &mut del);
    for round in 0..12 {
        for key in &keys {
            rig.set(key, &[round; VALUE_BYTES], Expiry::None).unwrap();
        }
    }
    assert!(holds(&rig) >= KEYS as u64 - 64, "it has let go");
    let deleted = (0..20_000).find_map(|_| {
        rig.turn();
        match del(&mut rig.worker, &mut task).unwrap() {
            Step::Done(n) => Some(n),
            Step::Wait(_) => None,
        }
    });
    assert_eq!(deleted, Some(KEYS as u64));
    rig.worker.finish(task);
    rig.settle();
    assert_eq!((rig.pool.keys(), holds(&rig)), (0, 0));
}

/// All that the cleaner could gain is held by a command that has read it, and that waits for room itself. It lets go, or both wait for ever.
#[test]
fn who_waits_for_room_does_not_hold_it() {
    let (mut rig, keys) = cold(150);
    // Some in each segment.
    let some = keys.iter().enumerate().filter(|(n, _)| n % 5 > 0);
    let mut pairs: Vec<_> = some
        .map(|(_, k)| (&k[..], NewValue::Inline(b"new")))
        .collect();
    let asked = pairs.len() as u64;
    let mut task = rig.worker.task(2);
    let mut mset = |w: &mut Worker, t: &mut Task| terrace_kv::mset(w, t, &mut pairs);
    drive(&mut rig, &mut task, asked - 64, &mut mset);
    let (mut sets, mut stuck, mut let_go) = (0, 0, false);
    let mut other = rig.worker.task(3);
    while sets < 2 * KEYS {
        let mut new = NewValue::Inline(&[1; VALUE_BYTES]);
        let key = &keys[sets % KEYS];
        let step = terrace_kv::put(&mut rig.worker, &mut other, key, &mut new, Expiry::None);
        if step.unwrap() == Step::Done(()) {
            rig.worker.reset(&mut other);
            (sets, stuck) = (sets + 1, 0);
            continue;
        }
        stuck += 1;
        rig.turn();
        // For long nobody looks at it. Then it is tried again, as those are that wait for room.
        if stuck > 1000 && !let_go {
            assert!(stuck < 5000, "{stuck} turns after {sets} sets");
            let step = mset(&mut rig.worker, &mut task).unwrap();
            assert!(matches!(step, Step::Wait(_)), "{sets} sets");
            let_go = holds(&rig) < 64;
        }
    }
    rig.worker.finish(other);
    assert!(let_go, "nobody waited for room: nothing was judged");
    let done = (0..20_000).any(|_| {
        rig.turn();
        mset(&mut rig.worker, &mut task).unwrap() == Step::Done(())
    });
    assert!(done, "it does not end");
    rig.worker.finish(task);
    rig.settle();
    for (n, key) in keys.iter().enumerate() {
        let expected = match n % 5 {
            0 => vec![1; VALUE_BYTES],
            _ => b"new".to_vec(),
        };
        assert_eq!(rig.get(key).unwrap(), Some(expected), "{n}");
    }
}

/// Somebody reads in each segment at all times. The cleaner takes them all the same: no new reads come where nothing is.
#[test]
fn reads_that_never_cease_do_not_keep_the_cleaner_from_segments() {
    let (mut rig, keys) = cold(150);
    // One in each segment, and all others.
    let (read, written): (Vec<_>, Vec<_>) =
        (keys.iter().enumerate()).partition(|(n, _)| n % 8 == 0);
    let names: Vec<&[u8]> = read.iter().map(|(_, k)| &k[..]).collect();
    let mut ready = [None, None];
    let mut at = 0;
    let mut other = rig.worker.task(9);
    let (mut sets, mut waited) = (0, 0);
    while sets < 4 * written.len() {
        // While the one looks for its keys, the other has found them.
        let mut task = ready[at]
            .take()
            .unwrap_or_else(|| rig.worker.task(at as u64));
        match terrace_kv::exists(&mut rig.worker, &mut task, &names).unwrap() {
            Step::Wait(_) => ready[at] = Some(task),
            Step::Done(n) => {
                assert_eq!(n, names.len() as u64);
                ready[at] = Some(task);
                at = 1 - at;
                if let Some(task) = ready[at].take() {
                    rig.worker.finish(task);
                }
            }
        }
        let mut new = NewValue::Inline(&[1; VALUE_BYTES]);
        let key = written[sets % written.len()].1;
        let step = terrace_kv::put(&mut rig.worker, &mut other, key, &mut new, Expiry::None);
        waited += 1;
        if step.unwrap() == Step::Done(()) {
            rig.worker.reset(&mut other);
            (sets, waited) = (sets + 1, 0);
        }
        assert!(waited < 20_000, "stuck after {sets} sets");
        rig.turn();
    }
    assert!(holds(&rig) >= names.len() as u64 / 2, "nobody read");
}
