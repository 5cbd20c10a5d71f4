//! Model test: the whole core against a plain map with expiry, on a simulated
//! device, with restarts, in one and two lanes, with two and three terraces.

use crate::common::{Rig, Shape};
use proptest::prelude::*;
use std::collections::BTreeMap;
use terrace_kv::{Cond, Edit, ExpireCond, Expiry, Held, KvError, Meta, NewValue};
use terrace_pool::{Durability, ManualClock};

#[derive(Debug, Clone)]
enum Op {
    Set(u8, u16, Option<u16>),
    SetNx(u8, u16),
    Get(u8),
    Del(Vec<u8>),
    Mset(Vec<(u8, u16)>),
    Incr(u8, i8),
    Expire(u8, u16),
    Persist(u8),
    Append(u8, u8),
    Rename(u8, u8),
    Swap(u8, u8, bool),
    Bring(u8, u8, bool),
    Random,
    Keys,
    Pass(u16),
    Turns(u8),
    FlushAll,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..60u8;
    prop_oneof![
        30 => (key.clone(), 0..1500u16, proptest::option::weighted(0.2, 1..400u16)).prop_map(|(k, v, e)| Op::Set(k, v, e)),
        1 => (key.clone(), 8000..9000u16).prop_map(|(k, v)| Op::Set(k, v, None)),
        4 => (key.clone(), 0..800u16).prop_map(|(k, v)| Op::SetNx(k, v)),
        20 => key.clone().prop_map(Op::Get),
        8 => proptest::collection::vec(key.clone(), 1..4).prop_map(Op::Del),
        5 => proptest::collection::vec((key.clone(), 0..600u16), 1..6).prop_map(Op::Mset),
        5 => (key.clone(), any::<i8>()).prop_map(|(k, d)| Op::Incr(k, d)),
        5 => (key.clone(), 1..400u16).prop_map(|(k, e)| Op::Expire(k, e)),
        3 => key.clone().prop_map(Op::Persist),
        5 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::Append(k, n)),
        5 => (key.clone(), key.clone()).prop_map(|(a, b)| Op::Rename(a, b)),
        3 => (key.clone(), key.clone(), any::<bool>()).prop_map(|(a, b, mark)| Op::Swap(a, b, mark)),
        1 => (key.clone(), key, any::<bool>()).prop_map(|(a, b, late)| Op::Bring(a, b, late)),
        1 => Just(Op::Random),
        1 => Just(Op::Keys),
        5 => (1..200u16).prop_map(Op::Pass),
        5 => (1..20u8).prop_map(Op::Turns),
        1 => Just(Op::FlushAll),
        1 => Just(Op::Restart),
    ]
}

fn key(k: u8) -> Vec<u8> {
    format!("key-{k}").into_bytes()
}
fn value(len: u16, salt: usize) -> Vec<u8> {
    (0..len as usize).map(|i| (i * 7 + salt) as u8).collect()
}

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

fn check(shape: Shape, ops: Vec<Op>, seed: u64) {
    let device = shape.device(seed);
    let clock = ManualClock::default();
    clock.set(1_000_000);
    let mut rig = Rig::open(&device, shape, clock.clone());
    let mut model = Model::new();
    for (n, op) in ops.into_iter().enumerate() {
        // Every turn of the rig moves time, so an expiry is compared at the moment
        // the command was executed: the model drops what is due before and after.
        match op {
            Op::Set(k, len, ttl) => {
                let v = value(len, n);
                let at = ttl.map(|ms| rig.worker.now_ms() + 10_000 + u64::from(ms) * 100);
                rig.set(&key(k), &v, at.map_or(Expiry::None, Expiry::At))
                    .unwrap();
                model.insert(key(k), (v, at));
            }
            Op::SetNx(k, len) => {
                let v = value(len, n);
                let kk = key(k);
                let was = rig.run(|w, t| {
                    terrace_kv::set(
                        w,
                        t,
                        &kk,
                        &mut NewValue::Inline(&v),
                        Cond::IfAbsent,
                        Expiry::None,
                        |_| (),
                    )
                });
                expire(&mut model, rig.worker.now_ms());
                let ((done, ()), _) = was.unwrap();
                assert_eq!(done, !model.contains_key(&kk), "setnx {k}");
                if done {
                    model.insert(kk, (v, None));
                }
            }
            Op::Get(k) => {
                let got = rig.get(&key(k)).unwrap();
                expire(&mut model, rig.worker.now_ms());
                assert_eq!(
                    got.as_ref(),
                    model.get(&key(k)).map(|(v, _)| v),
                    "get {k} at op {n}"
                );
            }
            Op::Del(ks) => {
                let keys: Vec<Vec<u8>> = ks.iter().map(|&k| key(k)).collect();
                let refs: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
                let (count, _) = rig.del(&refs).unwrap();
                expire(&mut model, rig.worker.now_ms());
                let expected = keys.iter().filter(|k| model.remove(*k).is_some()).count();
                assert_eq!(count, expected as u64);
            }
            Op::Mset(pairs) => {
                let pairs: Vec<_> = pairs
                    .iter()
                    .map(|&(k, len)| (key(k), value(len, n)))
                    .collect();
                rig.mset(&pairs).unwrap();
                for (k, v) in pairs {
                    model.insert(k, (v, None));
                }
            }
            Op::Incr(k, d) => {
                let kk = format!("n-{k}").into_bytes();
                let got = rig
                    .run(|w, t| terrace_kv::incr_by(w, t, &kk, i64::from(d)))
                    .unwrap()
                    .0;
                let entry = model.entry(kk).or_insert((b"0".to_vec(), None));
                let now: i64 = String::from_utf8(entry.0.clone()).unwrap().parse().unwrap();
                assert_eq!(got, now + i64::from(d));
                entry.0 = got.to_string().into_bytes();
            }
            Op::Expire(k, ms) => {
                let at = rig.worker.now_ms() + 10_000 + u64::from(ms) * 100;
                let kk = key(k);
                let got = rig
                    .run(|w, t| terrace_kv::expire(w, t, &kk, Some(at), ExpireCond::Always))
                    .unwrap()
                    .0;
                expire(&mut model, rig.worker.now_ms());
                assert_eq!(got, model.contains_key(&kk), "expire {k}");
                if let Some(e) = model.get_mut(&kk) {
                    e.1 = Some(at);
                }
            }
            Op::Persist(k) => {
                let kk = key(k);
                let got = rig
                    .run(|w, t| terrace_kv::expire(w, t, &kk, None, ExpireCond::Always))
                    .unwrap()
                    .0;
                expire(&mut model, rig.worker.now_ms());
                let had = model.get_mut(&kk).and_then(|e| e.1.take()).is_some();
                assert_eq!(got, had, "persist {k}");
            }
            Op::Append(k, n_bytes) => {
                append(&mut rig, &mut model, &key(k), &value(n_bytes.into(), n))
            }
            Op::Rename(a, b) => rename(&mut rig, &mut model, &key(a), &key(b)),
            Op::Swap(a, b, mark) if a != b => swap(&mut rig, &mut model, &key(a), &key(b), mark),
            Op::Swap(..) => {}
            Op::Bring(a, b, late) => bring(
                &mut rig,
                &mut model,
                (&key(a), &key(b)),
                &value(8500, n),
                late,
            ),
            Op::Random => {
                let (mut cursor, mut got) = (0, None);
                while got.is_none() {
                    rig.run(|w, t| {
                        terrace_kv::random_key(w, t, &mut cursor, &mut |k| got = Some(k.to_vec()))
                    })
                    .unwrap();
                    if cursor == 0 {
                        break;
                    }
                }
                expire(&mut model, rig.worker.now_ms());
                match got {
                    Some(k) => assert!(model.contains_key(&k)),
                    None => assert!(model.is_empty()),
                }
            }
            Op::Keys => {
                let got = rig.keys().unwrap();
                expire(&mut model, rig.worker.now_ms());
                let expected: Vec<Vec<u8>> = model.keys().cloned().collect();
                assert_eq!(got, expected);
                assert!(rig.pool.keys() >= expected.len() as u64);
            }
            Op::Pass(ms) => {
                clock.set(rig.worker.now_ms() + u64::from(ms) * 200);
                rig.turn();
                expire(&mut model, rig.worker.now_ms());
            }
            Op::Turns(turns) => (0..turns).for_each(|_| rig.turn()),
            Op::FlushAll => {
                rig.run(terrace_kv::flush_all).unwrap();
                model.clear();
                assert_eq!(rig.pool.keys(), 0);
            }
            Op::Restart => {
                rig.close();
                rig = Rig::open(&device, shape, clock.clone());
                assert!(
                    rig.pool.was_clean() && rig.pool.damage().is_empty(),
                    "{:?}",
                    rig.pool.damage()
                );
            }
        }
    }
    rig.settle();
    let now = rig.worker.now_ms();
    expire(&mut model, now);
    for (k, (v, at)) in &model {
        let got = rig.get(k).unwrap();
        if at.is_none_or(|at| at > rig.worker.now_ms()) {
            assert_eq!(got.as_ref(), Some(v), "{}", String::from_utf8_lossy(k));
        }
    }
}

fn put_of(view: terrace_kv::View<terrace_kv::LargeRef>, from: usize, mark: bool) -> Edit {
    let meta = mark.then_some(Meta {
        cas: 7,
        client_flags: 9,
        state: 0,
    });
    let expiry_ms = view.expiry_ms;
    match view.value {
        Held::Inline(value) => Edit::Put {
            value,
            expiry_ms,
            meta: meta.or(view.meta),
        },
        Held::Large(_) => Edit::Bind {
            from,
            expiry_ms,
            meta: meta.or(view.meta),
        },
        Held::Absent => Edit::Delete,
    }
}

fn append(rig: &mut Rig, model: &mut Model, k: &[u8], tail: &[u8]) {
    // Values in pieces stay as they are.
    let done = rig.run(|w, t| {
        terrace_kv::edit::<bool, KvError>(w, t, &[k], &[], &mut |seen| {
            let view = seen.views.into_iter().next().unwrap();
            let (expiry_ms, meta) = (view.expiry_ms, view.meta);
            let mut value = match view.value {
                Held::Absent => Vec::new(),
                Held::Inline(value) if value.len() + tail.len() <= 2000 => value,
                _ => return Ok((Vec::new(), false)),
            };
            value.extend_from_slice(tail);
            let put = Edit::Put {
                value,
                expiry_ms,
                meta,
            };
            Ok((vec![(0, put)], true))
        })
    });
    expire(model, rig.worker.now_ms());
    if done.unwrap().0 {
        let entry = model.entry(k.to_vec()).or_default();
        entry.0.extend_from_slice(tail);
    }
}

fn rename(rig: &mut Rig, model: &mut Model, a: &[u8], b: &[u8]) {
    if a == b {
        return;
    }
    let done = rig.run(|w, t| {
        terrace_kv::edit::<bool, KvError>(w, t, &[a, b], &[], &mut |seen| {
            let source = seen.views.into_iter().next().unwrap();
            if !source.exists() {
                return Ok((Vec::new(), false));
            }
            Ok((vec![(1, put_of(source, 0, false)), (0, Edit::Delete)], true))
        })
    });
    expire(model, rig.worker.now_ms());
    let moved = model.remove(a);
    assert_eq!(done.unwrap().0, moved.is_some(), "rename");
    if let Some(entry) = moved {
        model.insert(b.to_vec(), entry);
    }
}

/// Two keys change places, in one: each one's pieces stay although the key it was under gets others.
fn swap(rig: &mut Rig, model: &mut Model, a: &[u8], b: &[u8], mark: bool) {
    rig.run(|w, t| {
        terrace_kv::edit::<(), KvError>(w, t, &[a, b], &[], &mut |seen| {
            let mut views = seen.views.into_iter();
            let (x, y) = (views.next().unwrap(), views.next().unwrap());
            let edits = vec![(1, put_of(x, 0, mark)), (0, put_of(y, 1, mark))];
            Ok((edits, ()))
        })
    })
    .unwrap();
    expire(model, rig.worker.now_ms());
    let (x, y) = (model.remove(a), model.remove(b));
    model.extend(y.map(|entry| (a.to_vec(), entry)));
    model.extend(x.map(|entry| (b.to_vec(), entry)));
}

/// Two long values are brought in and put under two keys in one edit, or one of them beside the end of a key, unless somebody
/// was faster.
fn bring(rig: &mut Rig, model: &mut Model, (a, b): (&[u8], &[u8]), v: &[u8], late: bool) {
    if a == b {
        return;
    }
    let watched = terrace_kv::watch(&rig.worker, a);
    let upload = |rig: &mut Rig| match rig.value(v).unwrap() {
        NewValue::Large(upload) => Some(upload),
        NewValue::Inline(_) => panic!("a long value"),
    };
    let mut uploads = [upload(rig), upload(rig)];
    let both = v.len().is_multiple_of(2);
    if late {
        rig.set(a, b"first", Expiry::None).unwrap();
        model.insert(a.to_vec(), (b"first".to_vec(), None));
    }
    let looked = std::slice::from_ref(&watched);
    let done = rig.run(|w, t| {
        terrace_kv::edit_with::<bool, KvError>(w, t, &[a, b], looked, &mut uploads, &mut |seen| {
            if !seen.unchanged {
                return Ok((Vec::new(), false));
            }
            let put = |nr: usize, at: usize| Edit::Upload {
                nr,
                expiry_ms: seen.views[at].expiry_ms,
                meta: seen.views[at].meta,
            };
            let second = if both { put(0, 1) } else { Edit::Delete };
            Ok((vec![(0, put(1, 0)), (1, second)], true))
        })
    });
    expire(model, rig.worker.now_ms());
    assert_eq!(done.unwrap().0, !late, "bring");
    terrace_kv::unwatch(&rig.worker, watched);
    assert_eq!(uploads[1].is_some(), late, "who has the upload");
    assert_eq!(uploads[0].is_some(), late || !both, "who has the other");
    for upload in uploads.into_iter().flatten() {
        terrace_kv::upload_abort(&mut rig.worker, upload);
    }
    if !late {
        model.entry(a.to_vec()).or_default().0 = v.to_vec();
        match both {
            true => model.entry(b.to_vec()).or_default().0 = v.to_vec(),
            false => drop(model.remove(b)),
        }
    }
}

fn expire(model: &mut Model, now: u64) {
    model.retain(|_, (_, at)| at.is_none_or(|at| at > now));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn one_lane_async(ops in proptest::collection::vec(op(), 1..2500), seed in any::<u64>()) {
        check(Shape { durability: Durability::Async, ..Shape::default() }, ops, seed);
    }
    #[test]
    fn one_lane_sync(ops in proptest::collection::vec(op(), 1..2500), seed in any::<u64>()) {
        check(Shape::default(), ops, seed);
    }
    #[test]
    fn two_lanes(ops in proptest::collection::vec(op(), 1..2500), seed in any::<u64>()) {
        check(Shape { lanes: 2, durability: Durability::Async, ..Shape::default() }, ops, seed);
    }
    #[test]
    fn three_terraces_and_little_memory(ops in proptest::collection::vec(op(), 1..2500), seed in any::<u64>()) {
        let shape = Shape { memory_segments: 14, middle_segments: 6, durability: Durability::Async, ..Shape::default() };
        check(shape, ops, seed);
    }
}
