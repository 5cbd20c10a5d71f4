//! Measures the index alone: bytes of DRAM a key while it grows from 1 k to 20 M keys and shrinks again, the longest single
//! operation, and the time of a find.
//!
//! The same keys go in and out three times. On a machine that others share the longest operation is whenever the thread was not
//! running; what an operation itself costs comes back at the same operation each time. So the bar is on the shortest of its three
//! times, and the plain longest is shown beside it.
//!
//! Standard output is one CSV line each time the number of keys has changed by 1/64; the summary goes to standard error. Exit status
//! 1 when a bar is missed. Usage: `bytes_per_key [KEYS]`. Never measures the pool around the index.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use terrace_index::{Config, Index};

const KEYS_FIRST: u64 = 1_000;
const KEYS_LAST: u64 = 20_000_000;
/// What a pool of 16 shards makes: one more for what belongs to no key.
const SHARDS: u32 = 17;
const BYTES_PER_KEY_MAX: f64 = 12.0;
const OPERATION_NS_MAX: u64 = 2_000_000;

const PASSES: usize = 3;
/// Operations that take longer are compared between passes.
const SLOW_NS: u64 = 20_000;

/// A number that stands for a key's hash: even, and different for each key.
fn mix(key: u64) -> u64 {
    let mut x = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Shard and hash of a key, drawn from different bits as a 128-bit hash gives them.
fn place(key: u64) -> (u32, u64) {
    ((mix(!key) % u64::from(SHARDS - 1)) as u32, mix(key))
}

/// Durations in buckets of a sixteenth of a power of two.
struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    /// Those above `SLOW_NS`, by the number of keys at that time.
    slow_ns: HashMap<u64, u64>,
}

impl Histogram {
    fn new() -> Histogram {
        Histogram {
            buckets: vec![0; 64 * 16],
            count: 0,
            slow_ns: HashMap::new(),
        }
    }

    fn add(&mut self, ns: u64, keys: u64) {
        let power = ns.max(16).ilog2();
        let sixteenth = (ns.max(16) >> (power - 4)) & 15;
        self.buckets[(power * 16) as usize + sixteenth as usize] += 1;
        self.count += 1;
        if ns > SLOW_NS {
            self.slow_ns.insert(keys, ns);
        }
    }

    fn longest(&self) -> (u64, u64) {
        let slow = self.slow_ns.iter().map(|(keys, ns)| (*ns, *keys));
        slow.max().unwrap_or((SLOW_NS, 0))
    }

    /// Keeps, of each slow operation, the shorter of its times in two passes.
    fn merge(&mut self, other: &Histogram) {
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
        self.count += other.count;
        self.slow_ns.retain(|keys, ns| {
            let again = other.slow_ns.get(keys);
            *ns = (*ns).min(again.copied().unwrap_or(0));
            again.is_some()
        });
    }

    fn quantile_us(&self, part: f64) -> f64 {
        let rank = (self.count as f64 * part) as u64;
        let mut below = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            below += count;
            if below > rank {
                let power = bucket / 16;
                return ((16 + bucket as u64 % 16 + 1) << power >> 4) as f64 / 1e3;
            }
        }
        self.longest().0 as f64 / 1e3
    }

    fn report(&self, name: &str) {
        let (ns, keys) = self.longest();
        eprintln!(
            "{name}: p50 {:.2} µs, p99.99 {:.2} µs, longest {:.1} µs at {keys} keys",
            self.quantile_us(0.5),
            self.quantile_us(0.9999),
            ns as f64 / 1e3
        );
    }
}

/// The largest bytes a key seen, after every single operation.
#[derive(Default)]
struct Peak {
    bytes_per_key: f64,
    keys: u64,
}

impl Peak {
    fn see(&mut self, index: &Index, keys: u64) {
        let bytes_per_key = index.bytes() as f64 / keys as f64;
        if keys >= KEYS_FIRST && bytes_per_key > self.bytes_per_key {
            (self.bytes_per_key, self.keys) = (bytes_per_key, keys);
        }
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn csv(phase: &str, index: &Index, keys: u64) {
    println!(
        "{phase},{keys},{},{:.3},{}",
        index.bytes(),
        index.bytes() as f64 / keys as f64,
        resident_bytes()
    );
}

fn grow(index: &mut Index, keys_last: u64, peak: &mut Peak) -> Histogram {
    let mut times = Histogram::new();
    let mut next_line = KEYS_FIRST;
    for key in 0..keys_last {
        let (shard, hash) = place(key);
        let start = Instant::now();
        index
            .insert(shard, hash, key)
            .expect("even hashes always fit");
        times.add(start.elapsed().as_nanos() as u64, key);
        peak.see(index, key + 1);
        if key + 1 == next_line {
            csv("grow", index, key + 1);
            next_line += next_line / 64;
        }
    }
    times
}

fn shrink(index: &mut Index, keys_last: u64, peak: &mut Peak) -> Histogram {
    let mut times = Histogram::new();
    let mut next_line = keys_last;
    for key in (0..keys_last).map(|i| keys_last - 1 - i) {
        // Oldest first would do as well; the hashes make either a random order.
        let (shard, hash) = place(keys_last - 1 - key);
        let start = Instant::now();
        let removed = index.remove(shard, hash, |payload| payload == keys_last - 1 - key);
        times.add(start.elapsed().as_nanos() as u64, key);
        assert!(removed.is_some(), "key {key} is lost");
        if key < KEYS_FIRST {
            break;
        }
        peak.see(index, key);
        if key <= next_line {
            csv("shrink", index, key);
            next_line = key - key / 64;
        }
    }
    times
}

/// Time of a find, with finds that overlap in the processor and with each waiting for the one before.
fn find(index: &Index, keys: u64) {
    const FINDS: u64 = 4_000_000;
    for (name, chained) in [("independent", 0), ("chained", u64::MAX)] {
        let mut shown = 0;
        let mut last = 0;
        let start = Instant::now();
        for i in 0..FINDS {
            let key = mix(i.wrapping_mul(3) ^ (last & chained)) % keys;
            let (shard, hash) = place(key);
            let found = index.find(shard, hash, |_, payload| {
                shown += 1;
                payload == key
            });
            last = black_box(found.expect("every key is there").1);
        }
        let ns = start.elapsed().as_nanos() as f64 / FINDS as f64;
        let false_matches = (shown - FINDS) as f64 / FINDS as f64;
        eprintln!("find, {name}: {ns:.0} ns; false matches a find: {false_matches:.5}");
    }
    let start = Instant::now();
    let mut shown = 0;
    for i in 0..FINDS {
        let (shard, hash) = place(keys + i);
        index.find(shard, hash, |_, _| {
            shown += 1;
            false
        });
    }
    let ns = start.elapsed().as_nanos() as f64 / FINDS as f64;
    let false_matches = f64::from(shown) / FINDS as f64;
    eprintln!("find, absent key: {ns:.0} ns; false matches a find: {false_matches:.5}");
}

fn main() {
    let argument = std::env::args().nth(1);
    let keys_last = argument.map_or(Ok(KEYS_LAST), |text| text.parse());
    let Ok(keys_last @ KEYS_FIRST..) = keys_last else {
        eprintln!("usage: bytes_per_key [KEYS], at least {KEYS_FIRST}");
        std::process::exit(2);
    };
    let mut peak = Peak::default();
    let mut all: Option<(Histogram, Histogram)> = None;
    println!("phase,keys,bytes,bytes_per_key,resident_bytes");
    for pass in 1..=PASSES {
        eprintln!("pass {pass}");
        let times = run(keys_last, &mut peak);
        match &mut all {
            Some(all) => {
                all.0.merge(&times.0);
                all.1.merge(&times.1);
            }
            None => all = Some(times),
        }
    }
    let (inserts, removes) = all.expect("at least one pass");
    eprintln!("each operation's shortest of {PASSES} passes");
    inserts.report("insert");
    removes.report("remove");
    eprintln!(
        "most bytes a key, after any operation: {:.2} at {} keys (bar {BYTES_PER_KEY_MAX})",
        peak.bytes_per_key, peak.keys
    );
    let longest_ns = inserts.longest().0.max(removes.longest().0);
    if peak.bytes_per_key > BYTES_PER_KEY_MAX || longest_ns > OPERATION_NS_MAX {
        eprintln!("a bar was missed");
        std::process::exit(1);
    }
}

/// Grows an index, measures finds in it, and shrinks it; the times of inserts and removes.
fn run(keys_last: u64, peak: &mut Peak) -> (Histogram, Histogram) {
    let mut index = Index::new(Config {
        shards: SHARDS,
        payload_bits: 46,
    });
    let inserts = grow(&mut index, keys_last, peak);
    inserts.report("insert");
    find(&index, keys_last);
    let removes = shrink(&mut index, keys_last, peak);
    removes.report("remove");
    (inserts, removes)
}
