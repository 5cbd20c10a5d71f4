//! Reads of many commands at once, and what they keep.
//!
//! What must hold: reads have their part of the cap and no more, however many commands ask, and each command ends.

use crate::common::{self, COLD_VALUE_BYTES as VALUE_BYTES, Rig, Shape, clock};
use terrace_kv::{Expiry, NewValue, Outcome, Step, Task, Worker};
use terrace_pool::{Durability, Part};

/// Two blocks: an entry of that length may begin anywhere.
const READ_MAX_BYTES: u64 = 8192;

/// A pool of which nothing is in DRAM.
fn cold(memory_segments: u64) -> (Rig, Vec<Vec<u8>>) {
    cold_with(memory_segments, Expiry::None)
}

fn cold_with(memory_segments: u64, expiry: Expiry) -> (Rig, Vec<Vec<u8>>) {
    let shape = Shape {
        segments_per_lane: 400,
        memory_segments,
        durability: Durability::Async,
        ..Shape::default()
    };
    common::cold(shape, expiry)
}

fn by_reads(rig: &Rig) -> u64 {
    rig.pool.ledger().held_by_reads()
}

/// Runs one command for each of `parts`, all at once; `f` says what one comes to. Answers the most that reads had.
fn at_once<T>(
    rig: &mut Rig,
    parts: &[&[Vec<u8>]],
    f: impl Fn(&mut Worker, &mut Task, &[&[u8]]) -> Outcome<T>,
    done: impl Fn(T, usize),
) -> u64 {
    let mut most = 0;
    let mut tasks = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let keys: Vec<&[u8]> = part.iter().map(|k| &k[..]).collect();
        tasks.push(Some((rig.worker.task(n as u64), keys)));
    }
    for _ in 0..20_000 {
        for place in &mut tasks {
            let Some((mut task, keys)) = place.take() else {
                continue;
            };
            match f(&mut rig.worker, &mut task, &keys).unwrap() {
                Step::Wait(_) => *place = Some((task, keys)),
                Step::Done(result) => {
                    rig.worker.finish(task);
                    done(result, keys.len());
                }
            }
            most = most.max(by_reads(rig));
        }
        if tasks.iter().all(Option::is_none) {
            return most;
        }
        rig.turn();
    }
    panic!("commands wait for ever");
}

fn exists(w: &mut Worker, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
    terrace_kv::exists(w, t, keys)
}

#[test]
fn reads_of_many_commands_take_an_eighth_of_the_cap() {
    let all = |count, asked| assert_eq!(count, asked as u64);
    let (mut rig, keys) = cold(24);
    let parts: Vec<&[Vec<u8>]> = keys.chunks(64).collect();
    let most = at_once(&mut rig, &parts, exists, all);
    // A few more go on whatever others keep.
    let eighth = rig.pool.stats().cap_bytes / 8 + 3 * READ_MAX_BYTES;
    assert!(most <= eighth, "{most} of {eighth}");
    assert!(most > eighth / 2, "{most} of {eighth}: nothing was bounded");

    // One each, whose values are kept until they are answered.
    let (mut rig, keys) = cold(24);
    let parts: Vec<&[Vec<u8>]> = keys.chunks(1).collect();
    let get = |w: &mut Worker, t: &mut Task, keys: &[&[u8]]| {
        terrace_kv::get(
            w,
            t,
            keys[0],
            |v| matches!(v, terrace_kv::Value::Inline(b) if b == [7; VALUE_BYTES]),
        )
    };
    let most = at_once(&mut rig, &parts, get, |found, _| assert!(found));
    assert!(most <= eighth, "{most} of {eighth}");
}

/// Where others have all of it, a few reads at a time go on.
#[test]
fn a_command_ends_where_there_is_no_room_for_reads() {
    let (mut rig, keys) = cold(24);
    let cap = rig.pool.stats().cap_bytes;
    rig.pool.ledger().change(Part::Io, 0, cap / 8);
    let parts: Vec<&[Vec<u8>]> = keys.chunks(64).take(3).collect();
    let most = at_once(&mut rig, &parts, exists, |count, _| assert_eq!(count, 64)) - cap / 8;
    // And what is kept of the keys.
    assert!(most <= 4 * READ_MAX_BYTES + 64 * 3 * 100, "{most} bytes");
    assert_eq!(by_reads(&rig), cap / 8);
}

/// Commands that ask nothing of the values before keep none of them.
#[test]
fn deletions_and_msets_keep_no_value_that_they_read() {
    let (mut rig, keys) = cold(24);
    let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
    let (gone, set) = (&keys[..20], &keys[20..40]);
    let mut pairs: Vec<_> = (set.iter())
        .map(|k| (*k, NewValue::Inline(b"new")))
        .collect();
    let mut t = rig.worker.task(1);
    let mut step = |rig: &mut Rig, t: &mut Task, del: bool| match del {
        true => terrace_kv::del(&mut rig.worker, t, gone).map(|s| s == Step::Done(20)),
        false => terrace_kv::mset(&mut rig.worker, t, &mut pairs).map(|s| s == Step::Done(())),
    };
    for del in [true, false] {
        assert!(!step(&mut rig, &mut t, del).unwrap(), "it is cold");
        while rig.worker.reads_under_way() > 0 {
            rig.turn();
        }
        let kept = by_reads(&rig);
        assert!(kept > 0 && kept < 20 * 100, "{kept} bytes");
        while !step(&mut rig, &mut t, del).unwrap() {
            rig.turn();
        }
        rig.worker.reset(&mut t);
    }
    rig.worker.finish(t);
    for (n, key) in keys.iter().enumerate().take(50) {
        let expected = match n {
            ..20 => None,
            20..40 => Some(b"new".to_vec()),
            _ => Some(vec![7; VALUE_BYTES]),
        };
        assert_eq!(rig.get(key).unwrap(), expected);
    }
}

/// Buffers that are kept for the next reads are the cap's too, and bounded.
#[test]
fn spare_buffers_are_counted() {
    let (mut rig, keys) = cold(1000);
    let io = |rig: &Rig| rig.pool.ledger().held(Part::Io);
    let before = io(&rig);
    let parts: Vec<&[Vec<u8>]> = keys.chunks(64).collect();
    let most = at_once(&mut rig, &parts, exists, |_, _| ());
    assert!(most > 1 << 20, "{most} bytes at once");
    (0..20).for_each(|_| rig.turn());
    let spare = io(&rig) - before;
    let part = rig.pool.stats().cap_bytes / 128;
    assert!(spare > 0 && spare <= part, "{spare} of {part} bytes");
    let pool = rig.pool.clone();
    rig.worker.close();
    assert_eq!(pool.ledger().held(Part::Io), 0);
}

/// When keys expire, ms: later than what a pool of these tests begins with and takes to be filled.
const SOON_MS: u64 = 50_000_000;
/// Slots of the index's largest page.
const PAGE_SLOTS: u64 = 63;

/// Calls `f` with a new task until it says that it is done; what is read before an answer, and kept with none under way, must be of one page.
fn in_steps(rig: &mut Rig, mut f: impl FnMut(&mut Worker, &mut Task) -> Outcome<bool>) -> usize {
    for answers in 1..1000 {
        let mut task = rig.worker.task(1);
        let over = loop {
            let step = f(&mut rig.worker, &mut task).unwrap();
            let planned = rig.pool.with_lane(0, |lane| lane.reads_planned());
            assert!(planned <= PAGE_SLOTS, "{planned} reads in one answer");
            if let Step::Done(over) = step {
                break over;
            }
            while rig.worker.reads_under_way() > 0 {
                rig.turn();
            }
            let kept = by_reads(rig);
            assert!(kept <= PAGE_SLOTS * 100, "{kept} bytes");
        };
        rig.worker.finish(task);
        if over {
            return answers;
        }
    }
    panic!("it goes on for ever");
}

fn all_by_scan(rig: &mut Rig) -> (usize, usize) {
    let (mut cursor, mut shown) = (0, 0);
    let answers = in_steps(rig, |w, t| {
        let step = terrace_kv::scan(w, t, cursor, 10, &mut |_| shown += 1)?;
        Ok(match step {
            Step::Wait(wait) => Step::Wait(wait),
            Step::Done(next) => {
                cursor = next;
                Step::Done(next == 0)
            }
        })
    });
    (shown, answers)
}

fn any_key(rig: &mut Rig) -> (Option<Vec<u8>>, usize) {
    let (mut cursor, mut key) = (0, None);
    let answers = in_steps(rig, |w, t| {
        let step = terrace_kv::random_key(w, t, &mut cursor, &mut |k| key = Some(k.to_vec()))?;
        Ok(match step {
            Step::Wait(wait) => Step::Wait(wait),
            Step::Done(found) => Step::Done(found || cursor == 0),
        })
    });
    (key, answers)
}

/// All keys but one have expired, and lie on the SSD.
fn expired_below() -> Rig {
    let (mut rig, _) = cold_with(24, Expiry::At(SOON_MS));
    rig.set(b"lives", b"here", Expiry::None).unwrap();
    rig.settle();
    rig.clock.set(SOON_MS + 1);
    rig.turn();
    rig
}

/// Who goes through keys that have expired and were not met since reads a page, answers, and goes on.
#[test]
fn a_walk_over_expired_keys_holds_one_pages_reads() {
    let mut rig = expired_below();
    let (shown, answers) = all_by_scan(&mut rig);
    assert_eq!(shown, 1);
    assert!(answers > 5, "{answers} answers");
}

#[test]
fn a_random_key_among_expired_ones_is_found_with_one_pages_reads() {
    let mut rig = expired_below();
    assert_eq!(any_key(&mut rig).0.as_deref(), Some(&b"lives"[..]));
    rig.del(&[b"lives"]).unwrap();
    rig.settle();
    let (none, answers) = any_key(&mut rig);
    assert_eq!(none, None);
    assert!(answers > 5, "{answers} answers");
}

/// Nor does one call go through all of them where none must be read.
#[test]
fn a_walk_over_expired_keys_in_dram_answers_in_between() {
    let shape = Shape {
        segments_per_lane: 400,
        memory_segments: 64,
        ..Shape::default()
    };
    let mut rig = Rig::open(&shape.device(3), shape, clock());
    for n in 0..5000u16 {
        rig.set(&n.to_le_bytes(), b"v", Expiry::At(SOON_MS))
            .unwrap();
    }
    rig.settle();
    rig.clock.set(SOON_MS + 1);
    rig.turn();
    let reads = rig.pool.stats().lanes.device_reads;
    let (shown, answers) = all_by_scan(&mut rig);
    assert_eq!(shown, 0);
    assert!((4..=8).contains(&answers), "{answers} answers");
    let (none, answers) = any_key(&mut rig);
    assert_eq!(none, None);
    assert!((4..=16).contains(&answers), "{answers} answers");
    assert_eq!(rig.pool.stats().lanes.device_reads, reads, "all is in DRAM");
}
