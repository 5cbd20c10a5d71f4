//! Records of big values when there are few of them, or when everything is deleted while one is given back.
//!
//! What must hold: what needs no record does not wait for one; what waits for one that is to come gets it; and none is given
//! back, or deleted, that has become another's.

use super::common::Rig;
use super::{BIG_BYTES, big, free_records, internal_slots, leave_records, rig};
use crate::large::{RecordSlot, find_record};
use crate::maintain::delete_pieces;
use crate::shared::{Doomed, registry};
use crate::{
    Edit, ExpireCond, Expiry, Held, KvError, LargeRef, Maintainer, Seen, Step, Upload, Wait,
};

fn begin(rig: &mut Rig) -> Upload {
    let begun = rig.run(|w, t| crate::upload_begin(w, t, BIG_BYTES as u64));
    begun.unwrap().0
}

/// Takes all records, as uploads that are under way have them. They may come back, so they are waited for.
fn take_records(rig: &Rig) -> Vec<u16> {
    let shared = registry(&rig.worker);
    let mut registry = shared.registry.lock();
    std::iter::from_fn(|| registry.take(0)).collect()
}

fn give_records(rig: &Rig, records: Vec<u16>) {
    let shared = registry(&rig.worker);
    let mut registry = shared.registry.lock();
    records.into_iter().for_each(|r| registry.give(0, r));
}

/// With one record, the end of the second waits until the pieces of the first are gone: both are the maintainer's.
#[test]
fn big_values_whose_time_is_up_go_with_one_record_among_them() {
    let (_device, mut rig) = rig();
    leave_records(&rig, 1);
    let soon = rig.worker.now_ms() + 1_000_000;
    for n in 0..3u8 {
        rig.set(&[n], &big(n), Expiry::At(soon)).unwrap();
    }
    rig.settle();
    rig.clock.set(soon + 1);
    rig.worker.turn();
    for n in 0..3u8 {
        // No turn in between: they are met together.
        let got = rig.run(|w, t| crate::strlen(w, t, &[n]));
        assert_eq!(got.unwrap().0, 0);
    }
    (0..2000).for_each(|_| rig.turn());
    rig.settle();
    assert_eq!(internal_slots(&rig), 0, "no piece and no record is left");
    assert_eq!((free_records(&rig), rig.pool.keys()), (1, 0));
}

/// An upload that began after everything was deleted has the record that was another's.
#[test]
fn a_record_that_became_anothers_is_not_deleted() {
    let (_device, mut rig) = rig();
    let old = begin(&mut rig);
    let doomed = Doomed {
        record: old.record,
        binder: old.binder,
    };
    let flushes = rig.pool.flushes_of_all();
    rig.run(crate::flush_all).unwrap();
    let new = begin(&mut rig);
    assert_eq!(new.record, old.record, "it is the next one again");
    let pieces = doomed.binder.pieces(crate::piece_bytes(&rig.worker));
    let mut delete = |from| {
        let step = rig.run(|w, t| delete_pieces(w, t, &doomed, from, flushes));
        step.unwrap().0
    };
    assert_eq!(delete(0), Some(pieces));
    assert_eq!(delete(pieces), None);
    let task = rig.worker.task(1);
    let found = find_record(&rig.worker, &task, &mut rig.worker.lane(0), new.record);
    assert!(matches!(found, Ok(RecordSlot::Slot(_))), "it is there");
    rig.worker.finish(task);
}

/// A turn that began before everything was deleted would count what was doomed since as gone.
#[test]
fn what_is_doomed_behind_a_deletion_of_everything_goes() {
    let (_device, mut rig) = rig();
    let all = free_records(&rig);
    let upload = begin(&mut rig);
    let (record, binder) = (upload.record, upload.binder);
    let mut other = rig.pool.worker(1, std::sync::Arc::new(|| {})).unwrap();
    let mut maintainer = std::mem::replace(&mut rig.maintainer, Maintainer::new(0));
    let shared = registry(&rig.worker);
    std::thread::scope(|scope| {
        let mut registry = shared.registry.lock();
        let turn = scope.spawn(move || {
            maintainer.turn(&mut other);
            maintainer
        });
        // It has begun by now, and waits for the registry.
        std::thread::sleep(std::time::Duration::from_millis(200));
        rig.pool.note_flush_of_all();
        registry.doom(Doomed { record, binder });
        drop(registry);
        rig.maintainer = turn.join().unwrap();
    });
    (0..200).for_each(|_| rig.turn());
    assert_eq!(free_records(&rig), all, "its record came back");
}

fn edits(
    rig: &mut Rig,
    keys: &[&[u8]],
    f: impl Fn(&Seen<LargeRef>) -> Vec<(usize, Edit)>,
) -> Result<(), String> {
    let edited =
        rig.run(|w, t| crate::edit::<_, KvError>(w, t, keys, &[], &mut |seen| Ok((f(&seen), ()))));
    edited.map(|_| ())
}

fn bind(from: usize, expiry_ms: Option<u64>) -> Edit {
    let meta = None;
    Edit::Bind {
        from,
        expiry_ms,
        meta,
    }
}

#[test]
fn a_big_value_that_stays_needs_no_record() {
    let (_device, mut rig) = rig();
    rig.set(b"a", &big(1), Expiry::None).unwrap();
    let taken = take_records(&rig);
    let far = rig.worker.now_ms() + 1_000_000;
    // EXPIRE and PERSIST.
    for at in [Some(far), None] {
        let always = ExpireCond::Always;
        let done = rig.run(|w, t| crate::expire(w, t, b"a", at, always));
        assert!(done.unwrap().0);
    }
    // GETEX, and RENAME there and back.
    edits(&mut rig, &[b"a"], |seen| {
        assert!(matches!(seen.views[0].value, Held::Large(_)));
        vec![(0, bind(0, Some(far)))]
    })
    .unwrap();
    let renamed = |_: &Seen<LargeRef>| vec![(1, bind(0, None)), (0, Edit::Delete)];
    edits(&mut rig, &[b"a", b"b"], renamed).unwrap();
    let deleted_first = |_: &Seen<LargeRef>| vec![(0, Edit::Delete), (1, bind(0, None))];
    edits(&mut rig, &[b"b", b"a"], deleted_first).unwrap();
    assert!(rig.get(b"a").unwrap() == Some(big(1)));
    give_records(&rig, taken);
}

/// One over another ends that one, which needs a record.
#[test]
fn a_big_value_that_another_takes_the_place_of_ends() {
    let (_device, mut rig) = rig();
    for (key, salt) in [(b"a", 1), (b"b", 2)] {
        rig.set(key, &big(salt), Expiry::None).unwrap();
    }
    rig.settle();
    leave_records(&rig, 0);
    let renamed = |_: &Seen<LargeRef>| vec![(1, bind(0, None)), (0, Edit::Delete)];
    let text = edits(&mut rig, &[b"a", b"b"], renamed).unwrap_err();
    assert!(text.contains("at most 0 are allowed"), "{text}");
    assert!(
        rig.get(b"a").unwrap() == Some(big(1)),
        "nothing is half done"
    );
    assert!(rig.get(b"b").unwrap() == Some(big(2)));
}

/// Its time is up, so what comes in its place is new, and it ends.
#[test]
fn a_counter_in_the_place_of_a_big_value_that_has_expired_ends_it() {
    let (_device, mut rig) = rig();
    let soon = rig.worker.now_ms() + 1_000_000;
    rig.set(b"a", &big(1), Expiry::At(soon)).unwrap();
    rig.settle();
    rig.clock.set(soon + 1);
    rig.worker.turn();
    let taken = take_records(&rig);
    let mut task = rig.worker.task(1);
    let step = crate::incr_by(&mut rig.worker, &mut task, b"a", 1);
    assert_eq!(step, Ok(Step::Wait(Wait::Room)), "for a record");
    rig.worker.finish(task);
    give_records(&rig, taken);
    assert_eq!(rig.run(|w, t| crate::incr_by(w, t, b"a", 1)).unwrap().0, 1);
    (0..200).for_each(|_| rig.turn());
    rig.settle();
    assert_eq!(internal_slots(&rig), 0, "no piece and no record is left");
}
