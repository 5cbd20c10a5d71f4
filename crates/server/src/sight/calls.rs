//! How often each command was called, how long it took, and how often it failed: for each thread a histogram for each
//! command that was called at all.
//!
//! Promises: written by one thread with plain loads and stores, read by any; a time is told at most an eighth too long. The
//! time of a command is that from when its bytes were looked at (or the command before it was through) to its complete
//! reply: waits for the device and for room are in it, the wait for durability and the network are not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::add;
use crate::table::{COMMANDS, COUNT};

/// memcached's commands.
pub const MEMCACHED: [&str; 25] = [
    "get",
    "set",
    "mg",
    "ms",
    "md",
    "ma",
    "mn",
    "me",
    "gets",
    "add",
    "replace",
    "cas",
    "append",
    "prepend",
    "gat",
    "gats",
    "incr",
    "decr",
    "delete",
    "touch",
    "flush_all",
    "stats",
    "version",
    "verbosity",
    "quit",
];
/// Commands of both protocols.
pub const KINDS: usize = COUNT + MEMCACHED.len();
/// What is no command.
pub const NO_KIND: u16 = u16::MAX;

/// The number of a command of memcached's protocol.
#[inline]
pub fn memcached_kind(name: &[u8]) -> u16 {
    MEMCACHED
        .iter()
        .position(|known| known.as_bytes() == name)
        .map_or(NO_KIND, |at| (COUNT + at) as u16)
}

/// Which protocol a command is of, and its name.
pub fn name_of(kind: usize) -> (&'static str, &'static str) {
    match COMMANDS.get(kind) {
        Some(command) => ("redis", command.name),
        None => ("memcached", MEMCACHED[kind - COUNT]),
    }
}

/// The name as INFO shows it.
pub fn shown(kind: usize) -> String {
    match name_of(kind) {
        ("redis", name) => name.to_string(),
        (protocol, name) => format!("{protocol}|{name}"),
    }
}

/// Buckets of a power of two: 2^3.
const FINE_BITS: u32 = 3;
/// Longer times (18 minutes) count as this.
const TIME_MAX_NS: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket_of(TIME_MAX_NS) + 1;

const fn bucket_of(ns: u64) -> usize {
    let ns = if ns > TIME_MAX_NS { TIME_MAX_NS } else { ns };
    if ns < 1 << FINE_BITS {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    let fine = (ns >> (exponent - FINE_BITS)) & ((1 << FINE_BITS) - 1);
    (((exponent - FINE_BITS + 1) as usize) << FINE_BITS) + fine as usize
}

/// The first time that is above the bucket, ns.
const fn end_of(bucket: usize) -> u64 {
    if bucket < 1 << FINE_BITS {
        return bucket as u64 + 1;
    }
    let exponent = (bucket >> FINE_BITS) as u32 + FINE_BITS - 1;
    let fine = (bucket & ((1 << FINE_BITS) - 1)) as u64;
    ((1 << FINE_BITS) + fine + 1) << (exponent - FINE_BITS)
}

struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

#[derive(Default)]
struct Kind {
    // Made at the first call: most commands are never called.
    times: OnceLock<Box<Histogram>>,
    rejected: AtomicU64,
    failed: AtomicU64,
}

/// What a thread counts of its commands.
pub struct Calls(Box<[Kind]>);

impl Default for Calls {
    fn default() -> Self {
        Calls((0..KINDS).map(|_| Kind::default()).collect())
    }
}

impl Calls {
    /// A command is through. By the thread itself only.
    #[inline]
    pub fn took(&self, kind: u16, ns: u64) {
        let Some(kind) = self.0.get(usize::from(kind)) else {
            return;
        };
        let times = kind.times.get_or_init(empty);
        add(&times.counts[bucket_of(ns)], 1);
        add(&times.sum_ns, ns);
    }

    /// A command ended with an error (`run`: of its own), or was refused before it ran.
    #[cold]
    pub fn failed(&self, kind: u16, run: bool) {
        if let Some(kind) = self.0.get(usize::from(kind)) {
            add(if run { &kind.failed } else { &kind.rejected }, 1);
        }
    }

    /// Sets everything back.
    pub fn reset(&self) {
        for kind in &self.0 {
            kind.rejected.store(0, Ordering::Relaxed);
            kind.failed.store(0, Ordering::Relaxed);
            let Some(times) = kind.times.get() else {
                continue;
            };
            for count in &times.counts {
                count.store(0, Ordering::Relaxed);
            }
            times.sum_ns.store(0, Ordering::Relaxed);
        }
    }
}

#[cold]
fn empty() -> Box<Histogram> {
    Box::new(Histogram {
        counts: [const { AtomicU64::new(0) }; BUCKETS],
        sum_ns: AtomicU64::new(0),
    })
}

/// A command over all threads, at one moment.
#[derive(Debug, Clone)]
pub struct Summed {
    /// Which command.
    pub kind: usize,
    /// Refused before they ran: a wrong number of arguments, no password.
    pub rejected: u64,
    /// Ended with an error.
    pub failed: u64,
    /// All times together.
    pub sum_ns: u64,
    /// Calls that were through.
    pub calls: u64,
    counts: Vec<u64>,
}

impl Summed {
    /// Adds up what `threads` counted of a command.
    pub fn of<'c>(kind: usize, threads: impl Iterator<Item = &'c Calls>) -> Summed {
        let mut sum = Summed {
            kind,
            rejected: 0,
            failed: 0,
            sum_ns: 0,
            calls: 0,
            counts: Vec::new(),
        };
        for calls in threads {
            let of = &calls.0[kind];
            sum.rejected += of.rejected.load(Ordering::Relaxed);
            sum.failed += of.failed.load(Ordering::Relaxed);
            let Some(times) = of.times.get() else {
                continue;
            };
            sum.counts.resize(BUCKETS, 0);
            sum.sum_ns += times.sum_ns.load(Ordering::Relaxed);
            for (count, one) in sum.counts.iter_mut().zip(&times.counts) {
                *count += one.load(Ordering::Relaxed);
            }
        }
        sum.calls = sum.counts.iter().sum();
        sum
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.calls == 0 && self.rejected == 0 && self.failed == 0
    }

    /// The time that so many percent of the calls did not exceed, ns.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = ((self.calls as f64) * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return end_of(bucket) - 1;
            }
        }
        0
    }

    /// Calls by the power of two of their time: (the first time above, ns; calls below it and not below the one before).
    pub fn by_power(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .chunks(1 << FINE_BITS)
            .enumerate()
            .map(|(at, counts)| {
                let last = (at << FINE_BITS) + counts.len() - 1;
                (end_of(last), counts.iter().sum())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_time_is_told_at_most_an_eighth_too_long(ns in 0u64..2_000_000_000_000) {
            let bucket = bucket_of(ns);
            let ns = ns.min(TIME_MAX_NS);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(ns < end_of(bucket));
            prop_assert!(bucket == 0 || end_of(bucket - 1) <= ns);
            prop_assert!(end_of(bucket) - 1 <= ns + ns / 8);
        }
    }

    #[test]
    fn threads_are_summed_and_percentiles_are_of_all() {
        let threads = [Calls::default(), Calls::default()];
        for ns in 1..=100 {
            threads[ns % 2].took(3, ns as u64 * 1000);
        }
        threads[0].failed(3, true);
        threads[1].failed(3, false);
        threads[1].took(NO_KIND, 1);
        let sum = Summed::of(3, threads.iter());
        assert_eq!((sum.calls, sum.failed, sum.rejected), (100, 1, 1));
        assert_eq!(sum.sum_ns, 5_050_000);
        let p50 = sum.percentile_ns(50.0);
        assert!((50_000..57_000).contains(&p50), "{p50}");
        assert!(sum.percentile_ns(100.0) >= 100_000);
        assert_eq!(sum.by_power().map(|(_, n)| n).sum::<u64>(), 100);
        let below_64_us: u64 = sum
            .by_power()
            .filter(|(end, _)| *end <= 1 << 16)
            .map(|(_, n)| n)
            .sum();
        assert_eq!(below_64_us, 65);
        threads[0].reset();
        assert_eq!(Summed::of(3, threads.iter()).calls, 50);
    }

    #[test]
    fn commands_of_both_protocols_have_names() {
        assert_eq!(shown(usize::from(memcached_kind(b"get"))), "memcached|get");
        assert_eq!(memcached_kind(b"nonsense"), NO_KIND);
        assert_eq!(name_of(0).0, "redis");
    }
}
