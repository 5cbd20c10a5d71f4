//! The index against a plain multimap: whatever is done to it, it must show what the map shows and nothing that the map cannot
//! explain. Hashes are drawn even, clustered and from a handful, so that pages split deep, merge and run out of bits.

use std::collections::HashMap;

use proptest::prelude::*;
use terrace_index::{BadPage, Config, Full, Index};

const SHARDS: u32 = 3;

/// The index and what it should hold. Payloads are unique, so that each slot has a name.
struct Pair {
    index: Index,
    map: HashMap<(u32, u64), Vec<u64>>,
    next_payload: u64,
}

impl Pair {
    fn new(payload_bits: u32) -> Pair {
        let index = Index::new(Config {
            shards: SHARDS,
            payload_bits,
        });
        Pair {
            index,
            map: HashMap::new(),
            next_payload: 1,
        }
    }

    fn insert(&mut self, shard: u32, hash: u64) -> Result<(), Full> {
        let payload = self.next_payload;
        self.next_payload += 1;
        let before = (self.index.total(), self.index.bytes());
        let growth_max = self.index.max_insert_growth_bytes(shard);
        let result = self.index.insert(shard, hash, payload);
        match result {
            Ok(()) => self.map.entry((shard, hash)).or_default().push(payload),
            Err(Full) => assert_eq!(before.0, self.index.total()),
        }
        assert!(self.index.bytes() <= before.1 + growth_max);
        result
    }

    fn remove(&mut self, shard: u32, hash: u64) {
        let Some(payloads) = self.map.get_mut(&(shard, hash)) else {
            return;
        };
        let payload = payloads.pop().expect("lists in the map are not empty");
        if payloads.is_empty() {
            self.map.remove(&(shard, hash));
        }
        let removed = self.index.remove(shard, hash, |other| other == payload);
        assert_eq!(removed, Some(payload));
        assert_eq!(
            self.index.remove(shard, hash, |other| other == payload),
            None
        );
    }

    fn replace(&mut self, shard: u32, hash: u64, refresh: bool) {
        let Some(payload) = self
            .map
            .get_mut(&(shard, hash))
            .and_then(|all| all.last_mut())
        else {
            return;
        };
        let at = self.index.find(shard, hash, |_, other| other == *payload);
        let (at, _) = at.expect("a slot in the map is in the index");
        *payload = self.next_payload;
        self.next_payload += 1;
        match refresh {
            true => self.index.set_refresh(shard, hash, at, *payload),
            false => self.index.set(at, *payload),
        }
    }

    fn check(&self) {
        let mut count = 0;
        for ((shard, hash), payloads) in &self.map {
            let mut seen = Vec::new();
            self.index.find(*shard, *hash, |_, payload| {
                seen.push(payload);
                false
            });
            for payload in payloads {
                let times = seen.iter().filter(|other| *other == payload).count();
                assert_eq!(times, 1, "payload {payload} of hash {hash:#x}");
            }
            count += payloads.len();
        }
        assert_eq!(self.index.total(), count as u64);
        let walked: usize = (0..SHARDS)
            .map(|shard| walk(&self.index, shard).len())
            .sum();
        assert_eq!(walked, count);
    }
}

/// All payloads of a shard that stands still; checks that pages follow one another without a gap.
fn walk(index: &Index, shard: u32) -> Vec<u64> {
    let mut payloads = Vec::new();
    let mut cursor = Some(0);
    while let Some(hash) = cursor {
        let page = index.page_from(shard, hash);
        assert_eq!(page.prefix_start(), hash);
        payloads.extend(page.slots());
        cursor = page.next_cursor();
    }
    assert_eq!(payloads.len() as u64, index.len(shard));
    payloads
}

fn restored(index: &Index, payload_bits: u32) -> Index {
    let mut copy = Index::new(Config {
        shards: SHARDS,
        payload_bits,
    });
    for shard in 0..SHARDS {
        let mut cursor = Some(0);
        while let Some(hash) = cursor {
            let page = index.page_from(shard, hash);
            copy.restore_page(shard, page.prefix_start(), page.depth(), page.raw())
                .expect("a page of a sound index");
            cursor = page.next_cursor();
            assert_eq!(copy.is_restored(shard), cursor.is_none());
        }
    }
    copy
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64),
    InsertMany(u32, u64, u16),
    Remove(usize),
    RemoveMany(u16),
    Set(usize, bool),
    Walk(u32, u16),
    Restore,
    ClearShard(u32),
}

fn hashes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => any::<u64>(),
        // A cluster under a deep prefix.
        2 => any::<u64>().prop_map(|bits| 0xabcd_0000_0000_0000 | bits >> 20),
        1 => (0u64..4).prop_map(|i| i << 61 | 7),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..SHARDS, hashes()).prop_map(|(shard, hash)| Step::Insert(shard, hash)),
        4 => (0..SHARDS, hashes(), 1u16..600).prop_map(|(s, h, n)| Step::InsertMany(s, h, n)),
        8 => any::<usize>().prop_map(Step::Remove),
        3 => (1u16..900).prop_map(Step::RemoveMany),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(i, refresh)| Step::Set(i, refresh)),
        3 => (0..SHARDS, 0u16..400).prop_map(|(shard, n)| Step::Walk(shard, n)),
        1 => Just(Step::Restore),
        1 => (0..SHARDS).prop_map(Step::ClearShard),
    ];
    prop::collection::vec(step, 1..40)
}

/// Spreads one drawn hash into many: even ones, or a cluster when `seed`'s lowest bit says so.
fn spread(seed: u64, i: u64) -> u64 {
    let mixed = (seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = mixed ^ mixed >> 32;
    match seed & 7 {
        0 => seed & 0xfff0_0000_0000_0000 | mixed >> 12,
        _ => mixed,
    }
}

fn nth_key(pair: &Pair, n: usize) -> Option<(u32, u64)> {
    let mut keys: Vec<_> = pair.map.keys().copied().collect();
    keys.sort_unstable();
    keys.get(n % keys.len().max(1)).copied()
}

fn run(pair: &mut Pair, step: Step, payload_bits: u32) {
    match step {
        Step::Insert(shard, hash) => drop(pair.insert(shard, hash)),
        Step::InsertMany(shard, seed, n) => {
            for i in 0..u64::from(n) {
                let _ = pair.insert(shard, spread(seed, i));
            }
        }
        Step::Remove(n) => {
            if let Some((shard, hash)) = nth_key(pair, n) {
                pair.remove(shard, hash);
            }
        }
        Step::RemoveMany(n) => {
            let mut keys: Vec<_> = pair.map.keys().copied().collect();
            keys.sort_unstable_by_key(|(shard, hash)| hash.rotate_left(*shard + 40));
            for (shard, hash) in keys.into_iter().take(n.into()) {
                pair.remove(shard, hash);
            }
        }
        Step::Set(n, refresh) => {
            if let Some((shard, hash)) = nth_key(pair, n) {
                pair.replace(shard, hash, refresh);
            }
        }
        Step::Walk(shard, changes) => walk_while_changing(pair, shard, changes),
        Step::Restore => pair.index = restored(&pair.index, payload_bits),
        Step::ClearShard(shard) => {
            pair.index.clear_shard(shard);
            pair.map.retain(|(other, _), _| *other != shard);
        }
    }
}

/// Walks a shard as SCAN does, while keys come and go between its steps: those that stay must all be seen.
fn walk_while_changing(pair: &mut Pair, shard: u32, changes: u16) {
    let staying: Vec<(u64, Vec<u64>)> = pair
        .map
        .iter()
        .filter(|((s, hash), _)| *s == shard && hash % 3 == 0)
        .map(|((_, hash), payloads)| (*hash, payloads.clone()))
        .collect();
    let mut going: Vec<u64> = pair
        .map
        .keys()
        .filter(|(s, hash)| *s == shard && hash % 3 != 0)
        .map(|(_, hash)| *hash)
        .collect();
    going.sort_unstable_by_key(|hash| hash.rotate_left(33));
    let mut seen = std::collections::HashSet::new();
    let mut cursor = Some(0);
    let mut round = 0;
    while let Some(hash) = cursor {
        let page = pair.index.page_from(shard, hash);
        seen.extend(page.slots());
        cursor = page.next_cursor();
        for _ in 0..changes / 8 {
            round += 1;
            match going.pop() {
                Some(hash) => pair.remove(shard, hash),
                None => drop(pair.insert(shard, spread(0x5555_0003, round) | 3)),
            }
        }
        assert!(round < 1_000_000, "the walk does not end");
        if round > 5_000 {
            going.clear();
            break;
        }
    }
    if cursor.is_none() {
        for (hash, payloads) in staying {
            assert!(
                payloads.iter().all(|payload| seen.contains(payload)),
                "a slot of hash {hash:#x} was not visited"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_index_agrees_with_a_multimap(payload_bits in prop_oneof![Just(46u32), Just(40), Just(32)], steps in steps()) {
        let mut pair = Pair::new(payload_bits);
        for step in steps {
            run(&mut pair, step, payload_bits);
            pair.check();
        }
        let keys: Vec<_> = pair.map.keys().copied().collect();
        for (shard, hash) in keys {
            while pair.map.contains_key(&(shard, hash)) {
                pair.remove(shard, hash);
            }
        }
        pair.check();
        let empty = Index::new(Config { shards: SHARDS, payload_bits }).bytes();
        prop_assert_eq!(pair.index.bytes(), empty, "an index that was emptied keeps memory");
    }

    #[test]
    fn equal_hashes_end_in_full(hash: u64, others in prop::collection::vec(any::<u64>(), 0..4)) {
        let mut pair = Pair::new(46);
        let mut refused = 0;
        for i in 0..2_000 {
            let hash = if i % 5 == 0 { others.get(i % 7).copied().unwrap_or(hash) } else { hash };
            refused += u32::from(pair.insert(0, hash).is_err());
        }
        prop_assert!(refused >= 2_000 - 63 * 6, "{} refused", refused);
        pair.check();
        prop_assert!(pair.index.bytes() < 32 << 10, "{} bytes", pair.index.bytes());
        // Removing makes room again.
        pair.remove(0, hash);
        prop_assert_eq!(pair.insert(0, hash), Ok(()));
    }

    #[test]
    fn a_damaged_checkpoint_never_panics(
        pages in prop::collection::vec(
            (any::<u64>(), 0u32..70, prop::collection::vec(any::<u64>(), 0..70), any::<bool>()), 1..30)
    ) {
        let mut index = Index::new(Config { shards: SHARDS, payload_bits: 46 });
        let mut next = Some(0);
        for (start, depth, mut raw, plausible) in pages {
            let (start, depth) = match (plausible, next) {
                (true, Some(next)) => {
                    raw.sort_unstable();
                    raw.truncate(63);
                    (next, depth % 25)
                }
                _ => (start, depth),
            };
            let before = (index.total(), index.bytes());
            match index.restore_page(1, start, depth, &raw) {
                Ok(()) => next = start.checked_add(1u64.checked_shl(64 - depth).unwrap_or(0)),
                Err(_) => prop_assert_eq!(before, (index.total(), index.bytes())),
            }
        }
        prop_assert!(index.bytes() < 2 << 20);
        walk(&index, 1);
        let page = index.page_from(1, 0);
        for (i, slot) in page.raw().iter().enumerate() {
            // The sentinel's bits are of no hash; any hash with the valid bits in front must find the slot.
            let hash = (slot & !0 << 46) >> page.depth();
            let payload = page.slots().nth(i).expect("as many payloads as slots");
            prop_assert!(index.find(1, hash, |_, other| other == payload).is_some());
        }
        index.clear_shard(1);
        prop_assert_eq!(index.total(), 0);
    }
}

#[test]
fn restore_refuses_each_kind_of_damage() {
    let mut index = Index::new(Config {
        shards: 1,
        payload_bits: 46,
    });
    let (half, slot) = (1 << 63, 1 << 46);
    let gap = |expected, prefix_start| BadPage::Gap {
        expected,
        prefix_start,
    };
    let mut refuse = |start, depth, raw: &[u64], why| {
        assert_eq!(index.restore_page(0, start, depth, raw), Err(why));
    };
    refuse(0, 25, &[], BadPage::Depth { depth: 25 });
    refuse(0, 1, &[slot; 64], BadPage::Count { slots: 64 });
    refuse(0, 1, &[slot, 5], BadPage::Sentinel { slot: 1 });
    refuse(0, 1, &[2 * slot, slot], BadPage::Order { slot: 1 });
    refuse(half, 1, &[slot], gap(Some(0), half));
    refuse(1, 1, &[slot], gap(Some(0), 1));
    index.restore_page(0, 0, 1, &[slot]).expect("a sound page");
    assert_eq!(
        index.insert(0, 0, 1),
        Err(Full),
        "half a shard takes no key"
    );
    assert!(!index.is_restored(0));
    let entries = (1 << 23) + 1;
    let refused = index.restore_page(0, half, 24, &[slot]);
    assert_eq!(refused, Err(BadPage::Directory { entries }));
    index.restore_page(0, half, 1, &[]).expect("a sound page");
    assert_eq!(index.restore_page(0, half, 1, &[]), Err(gap(None, half)));
    assert_eq!(index.insert(0, 0, 1), Ok(()));
}

/// Keys of a large shard go while its checkpoint is saved: what is saved then is loaded, and what is saved later, whatever came and went meanwhile.
#[test]
fn what_is_saved_while_most_keys_go_can_be_restored() {
    const KEYS: u64 = 2_600_000;
    // Twice, or all pages would have as many.
    let hash = |i| spread(1, spread(3, i));
    let mut index = Index::new(Config {
        shards: SHARDS,
        payload_bits: 46,
    });
    for i in 0..KEYS {
        index.insert(1, hash(i), i).expect("even hashes");
    }
    index.keep_pages(true);
    let remove = |index: &mut Index, i| {
        let removed = index.remove(1, hash(i), |payload| payload == i);
        assert_eq!(removed, Some(i));
    };
    for i in 1_000..KEYS {
        remove(&mut index, i);
    }
    assert_eq!(restored(&index, 46).len(1), 1_000);
    index.keep_pages(false);
    // What is small has merged, or a directory of 512 KiB would stay for 8 KB of slots.
    assert!(index.bytes() < 100_000, "{}", index.bytes());
    for i in KEYS..KEYS + 50_000 {
        index.insert(1, hash(i), i).expect("even hashes");
        remove(&mut index, i);
    }
    let copy = restored(&index, 46);
    assert_eq!(walk(&copy, 1).len(), 1_000);
}

/// Keys as a pool would hash them, and the bar of the issue at its hardest size.
#[test]
fn small_pools_stay_under_twelve_bytes_a_key() {
    for (shards, used) in [(17, 17u64), (17, 16)] {
        for keys in [1_000u64, 1_500, 2_000, 5_000, 10_000, 50_000] {
            let mut index = Index::new(Config {
                shards,
                payload_bits: 46,
            });
            for i in 0..keys {
                let hash = spread(1, i);
                let shard = (spread(3, i) % used) as u32;
                index.insert(shard, hash, i).expect("even hashes");
            }
            let bytes_per_key = index.bytes() as f64 / keys as f64;
            assert!(
                bytes_per_key <= 12.0,
                "{keys} keys in {used}: {bytes_per_key}"
            );
        }
    }
}

/// A page of 63 slots of which one has lost all its bits: it cannot split until that one is refreshed.
#[test]
fn a_tag_without_bits_blocks_a_split_until_it_is_refreshed() {
    let mut index = Index::new(Config {
        shards: 1,
        payload_bits: 46,
    });
    let worn = 1 << 63 | 1_000;
    let mut raw: Vec<u64> = (0..62).map(|i| i << 58 | 1 << 46 | i).collect();
    raw.insert(raw.partition_point(|slot| *slot < worn), worn);
    index.restore_page(0, 0, 0, &raw).expect("a sound page");
    let bytes = index.bytes();
    assert_eq!(index.insert(0, 5 << 59, 2_000), Err(Full));
    assert_eq!((index.total(), index.bytes()), (63, bytes));
    // It matches every hash; whoever looks for its key finds it and can refresh it.
    let hash = 0x7777_0000_0000_0000;
    let found = index.find(0, hash, |_, payload| payload == 1_000);
    let (at, _) = found.expect("a slot without bits matches");
    index.set_refresh(0, hash, at, 1_000);
    assert_eq!(index.insert(0, 5 << 59, 2_000), Ok(()));
    assert_eq!(index.page_from(0, 0).depth(), 1);
    for (hash, payload) in [(hash, 1_000), (5 << 59, 2_000), (61 << 58, 61)] {
        let found = index.find(0, hash, |_, other| other == payload);
        assert!(found.is_some(), "payload {payload}");
    }
    let other = index.find(0, 1 << 63, |_, payload| payload == 1_000);
    assert!(
        other.is_none(),
        "a refreshed tag no longer matches every hash"
    );
}
