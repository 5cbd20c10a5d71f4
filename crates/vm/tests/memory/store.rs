//! A store under a small cap against a plain copy, by several threads, on a real file.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_vm::store::{ObjectError, Shape, Store, StoreOptions, Value};

const CAP: u64 = 32 << 20;
const FIXED: usize = 128;
/// Tables of the shadow test: objects of one size, of any size.
const ONE_SIZE: u16 = 1;
const ANY_SIZE: u16 = 2;

/// Numbers from a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What version `version` of an object looks like: whoever reads it can tell whether it is whole.
fn bytes_of(table: u16, id: u64, version: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(id << 20 ^ version << 4 ^ u64::from(table));
    let mut bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    bytes.truncate(len);
    if len >= 16 {
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8..16].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

fn is_whole(table: u16, id: u64, bytes: &[u8]) -> bool {
    if bytes.len() < 16 {
        return true;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    word(0) == id && bytes_of(table, id, word(8), bytes.len()) == bytes
}

fn open(dir: &tempfile::TempDir, cap: u64, ssd: u64) -> Arc<Store> {
    let store = Store::open(&StoreOptions::scratch(dir.path(), cap, ssd)).expect("a store");
    store
        .make_table(ONE_SIZE, Shape::Fixed(FIXED as u32))
        .expect("a table");
    store.make_table(ANY_SIZE, Shape::Any).expect("a table");
    store
}

/// What one thread knows of its own objects: those whose id is its number modulo the threads.
struct Shadow {
    store: Arc<Store>,
    rng: Rng,
    me: u64,
    threads: u64,
    objects: u64,
    known: HashMap<(u16, u64), (u64, usize)>,
    version: u64,
}

impl Shadow {
    fn own(&mut self) -> (u16, u64) {
        let table = [ONE_SIZE, ANY_SIZE][self.rng.below(2) as usize];
        // Some are asked for more often than others.
        let n = self
            .rng
            .below(self.objects)
            .min(self.rng.below(self.objects));
        (table, n / self.threads * self.threads + self.me)
    }
    fn len(&mut self, table: u16) -> usize {
        match table {
            ONE_SIZE => FIXED,
            _ => match self.rng.below(20) {
                0 => 4096 + self.rng.below(20_000) as usize,
                _ => self.rng.below(600) as usize,
            },
        }
    }
    fn step(&mut self) {
        let (table, id) = self.own();
        match self.rng.below(16) {
            0..4 => {
                self.version += 1;
                let len = self.len(table);
                let bytes = bytes_of(table, id, self.version, len);
                self.store.put(table, id, &bytes).expect("put");
                self.known.insert((table, id), (self.version, len));
            }
            4 => {
                let was = self.store.free(table, id).expect("free");
                assert_eq!(was, self.known.remove(&(table, id)).is_some());
            }
            5 => self.update(table, id),
            6 => self.read_many(table),
            7 => {
                // Another's object: whole, whatever it is now.
                let id = self.rng.below(self.objects);
                let whole = self.store.read(table, id, |v| match v {
                    Value::Bytes(bytes) => is_whole(table, id, bytes),
                    _ => true,
                });
                assert!(whole.expect("read"), "object {id} of {table} is torn");
            }
            _ => self.read(table, id),
        }
    }
    fn read(&mut self, table: u16, id: u64) {
        let known = self.known.get(&(table, id));
        let expected = known.map(|&(version, len)| bytes_of(table, id, version, len));
        let seen = self.store.read(table, id, |v| match v {
            Value::Bytes(bytes) => Some(bytes.to_vec()),
            Value::Free => None,
            other => panic!("{other:?}"),
        });
        assert!(
            seen.expect("read") == expected,
            "object {id} of table {table}"
        );
    }
    fn update(&mut self, table: u16, id: u64) {
        let Some(&(_, len)) = self.known.get(&(table, id)) else {
            let e = self
                .store
                .update(table, id, |_| panic!("nothing to change"));
            assert_eq!(e, Err(ObjectError::Free { table, id }));
            return;
        };
        self.version += 1;
        let new = bytes_of(table, id, self.version, len);
        self.store
            .update(table, id, |bytes| bytes.copy_from_slice(&new))
            .expect("update");
        self.known.insert((table, id), (self.version, len));
    }
    fn read_many(&mut self, table: u16) {
        let count = self.rng.below(200) + 1;
        let ids: Vec<u64> = (0..count).map(|_| self.rng.below(self.objects)).collect();
        let mut seen = vec![0; ids.len()];
        let all = self.store.get_many(table, &ids, |i, v| {
            seen[i] += 1;
            let id = ids[i];
            match v {
                Value::Bytes(bytes) => assert!(is_whole(table, id, bytes), "object {id} is torn"),
                Value::Free => assert!(!self.known.contains_key(&(table, id))),
                other => panic!("{other:?}"),
            }
        });
        all.expect("get_many");
        assert!(seen.iter().all(|&n| n == 1), "each is shown once");
    }
}

#[test]
fn several_threads_see_what_they_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir, CAP, 88 << 20);
    let seed = std::env::var("TERRACE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(7);
    let seconds = std::env::var("TERRACE_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(8);
    let until = Instant::now() + Duration::from_secs(seconds);
    let threads = 4;
    let steps: u64 = std::thread::scope(|scope| {
        let run = |me| {
            let store = store.clone();
            scope.spawn(move || {
                let own = store.clone();
                let mut shadow = Shadow {
                    store,
                    rng: Rng(seed + me),
                    me,
                    threads,
                    objects: 120_000,
                    known: HashMap::new(),
                    version: 0,
                };
                let mut steps = 0u64;
                // On a busy machine it takes longer until there is something to clean.
                let cleans = || own.stats().lanes.segments_cleaned > 0;
                let late = until + Duration::from_secs(60);
                while Instant::now() < until || (!cleans() && Instant::now() < late) {
                    (0..64).for_each(|_| shadow.step());
                    steps += 64;
                }
                let all: Vec<_> = shadow.known.keys().copied().collect();
                all.into_iter()
                    .for_each(|(table, id)| shadow.read(table, id));
                steps
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running
            .into_iter()
            .map(|t| t.join().expect("a thread"))
            .sum()
    });
    let s = store.stats();
    let (cap, used) = store.cap_and_used_bytes();
    println!(
        "{steps} steps, {} device reads, {} MiB written, {used} of {cap} bytes",
        s.disk_reads,
        s.device_write_bytes >> 20
    );
    assert!(used <= cap, "{used} of {cap} bytes");
    assert!(
        s.disk_reads > 1000 && s.lanes.segments_cleaned > 0,
        "too small a load: {s:?}"
    );
    assert_eq!(store.failure(), None);
}

#[test]
fn a_full_ssd_refuses_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir, CAP, 48 << 20);
    let mut stored = 0u64;
    let refused = loop {
        match store.put(ONE_SIZE, stored, &bytes_of(ONE_SIZE, stored, 1, FIXED)) {
            Ok(()) => stored += 1,
            Err(e) => break e,
        }
        assert!(stored < 1 << 20, "it never gets full");
    };
    assert!(refused.is_full(), "{refused}");
    assert!(stored > 150_000, "full after {stored} objects");
    let mut out = [0; FIXED];
    for id in (0..stored).step_by(7) {
        assert_eq!(store.get(ONE_SIZE, id, &mut out).expect("get"), Some(FIXED));
        assert!(is_whole(ONE_SIZE, id, &out), "object {id}");
    }
    // What takes the place of as much is taken.
    for id in 0..stored {
        let value = bytes_of(ONE_SIZE, id, 2, FIXED);
        let put = store.put(ONE_SIZE, id, &value);
        assert!(put.is_ok(), "object {id} of {stored}: {put:?}");
    }
    for id in (0..stored).step_by(7) {
        assert_eq!(store.get(ONE_SIZE, id, &mut out).expect("get"), Some(FIXED));
        assert!(out == bytes_of(ONE_SIZE, id, 2, FIXED)[..], "object {id}");
    }
    // Freed objects make room again.
    for id in (0..stored).filter(|id| id % 3 == 0) {
        assert!(store.free(ONE_SIZE, id).expect("free"));
    }
    for id in (0..stored).filter(|id| id % 6 == 0) {
        store
            .put(ONE_SIZE, id, &bytes_of(ONE_SIZE, id, 3, FIXED))
            .expect("room again");
    }
    for id in (0..stored).step_by(7) {
        let got = store.get(ONE_SIZE, id, &mut out).expect("get");
        let expected = (id % 3 != 0 || id % 6 == 0).then_some(FIXED);
        assert_eq!(got, expected, "object {id}");
        assert!(got.is_none() || is_whole(ONE_SIZE, id, &out), "object {id}");
    }
}

#[test]
fn new_objects_get_numbers_that_are_free() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir, CAP, 64 << 20);
    let ids: Vec<u64> = (0..1000)
        .map(|_| store.insert(ONE_SIZE, &[]).expect("insert"))
        .collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!((unique.len(), unique.last()), (1000, Some(&999)), "dense");
    let mut out = [1; FIXED];
    assert_eq!(
        store.get(ONE_SIZE, ids[5], &mut out).expect("get"),
        Some(FIXED)
    );
    assert_eq!(out, [0; FIXED], "never written: zeros");
    for id in &ids[..500] {
        assert!(store.free(ONE_SIZE, *id).expect("free"));
        assert!(!store.free(ONE_SIZE, *id).expect("free"), "freed twice");
    }
    let value = bytes_of(ONE_SIZE, 1, 1, FIXED);
    let again: Vec<u64> = (0..500)
        .map(|_| store.insert(ONE_SIZE, &value).expect("insert"))
        .collect();
    assert!(
        again.iter().all(|id| ids[..500].contains(id)),
        "freed numbers are used again"
    );
    store.drop_table(ONE_SIZE).expect("drop");
    assert_eq!(
        store.get(ONE_SIZE, 0, &mut out),
        Err(ObjectError::NoTable { table: ONE_SIZE })
    );
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir, CAP, 64 << 20);
    let mut out = [0; FIXED];
    let said = |e: ObjectError| e.to_string();
    assert!(said(store.put(9, 1, &out).unwrap_err()).contains("no table 9"));
    assert!(said(store.put(ONE_SIZE, 1, &out[1..]).unwrap_err()).contains("127 bytes"));
    assert!(
        said(store.put(ANY_SIZE, 1, &vec![0; 1 << 17]).unwrap_err()).contains("65536 are allowed")
    );
    assert!(said(store.get(ONE_SIZE, 1 << 36, &mut out).unwrap_err()).contains("below 2^36"));
    store.put(ONE_SIZE, 1, &out).expect("put");
    assert!(said(store.get(ONE_SIZE, 1, &mut out[..5]).unwrap_err()).contains("5 bytes"));
    let second = Store::open(&StoreOptions::scratch(dir.path(), CAP, 64 << 20));
    let why = second.err().expect("one process a pool").to_string();
    assert!(why.contains("in use by process"), "{why}");
    drop(store);
    let mut durable = StoreOptions::scratch(dir.path(), CAP, 64 << 20);
    durable.durable = true;
    let why = Store::open(&durable)
        .err()
        .expect("other contents")
        .to_string();
    assert!(why.contains("do not outlive"), "{why}");
}
