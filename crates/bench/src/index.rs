//! `bench index`: DRAM of the key map for each key, and its longest operation, while it grows to 20 M keys and shrinks again.
//!
//! The index alone, on one CPU, with hashes that look like a pool's. The same keys go in and out in every pass: on a machine that
//! others share the longest time is whenever the thread was not running, but what an operation itself costs comes back at the
//! same operation in each pass. So the bar is on the longest of each operation's shortest time, and the plain longest stands
//! beside it. Bytes a key are looked at after every single operation. Never measures the pool around the index.

use crate::progress::Progress;
use crate::report::plot::{self, Frame, Line};
use crate::report::{Bar, Part, Report, Row, Samples, Side};
use crate::{Setting, machine, stop};
use anyhow::{Result, anyhow, bail};
use hdrhistogram::Histogram;
use std::collections::HashMap;
use std::time::Instant;
use terrace_index::{Config, Index};

const KEYS_FIRST: u64 = 1_000;
const KEYS_LAST: u64 = 20_000_000;
/// As a pool of 16 shards makes it: one more for what belongs to no key.
const SHARDS: u32 = 17;
const PAYLOAD_BITS: u32 = 46;
/// Bars.
const BYTES_PER_KEY_MAX: f64 = 12.0;
const OPERATION_US_MAX: f64 = 2_000.0;
/// Operations that take longer are remembered and compared between passes; shorter ones cannot matter.
const SLOW_NS: u64 = 20_000;
/// An operation is judged by its shortest time, so there must be some to choose from.
const PASSES_MIN: u32 = 3;
const OPERATION_NS_MAX: u64 = 60_000_000_000;
/// A point of the plot whenever the number of keys has changed by one part in this many.
const STEPS_PER_SIZE: u64 = 64;
/// How many operations pass between two looks at the wish to stop.
const STOP_EVERY: u64 = 1 << 20;

const COLUMNS: &[&str] = &[
    "bytes_per_key_max",
    "longest_us",
    "longest_repeated_us",
    "latency_p50_us",
    "latency_p9999_us",
    "slower_than_2_ms",
];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Grow,
    Shrink,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Grow => "grow, 1 k to 20 M keys",
            Way::Shrink => "shrink, 20 M to 1 k keys",
        }
    }
}

/// One way of one pass.
struct Trip {
    times_ns: Histogram<u64>,
    /// Time of each slow operation, by the number of keys it began with.
    slow_ns: HashMap<u64, u64>,
    bytes_per_key_max: f64,
    /// Keys and bytes a key, one point a step.
    bytes_per_key: Vec<(f64, f64)>,
}

impl Trip {
    fn new() -> Trip {
        Trip {
            times_ns: Histogram::new_with_bounds(1, OPERATION_NS_MAX, 2)
                .expect("constant bounds are valid"),
            slow_ns: HashMap::new(),
            bytes_per_key_max: 0.0,
            bytes_per_key: Vec::new(),
        }
    }

    fn time(&mut self, started: Instant, keys: u64) {
        let ns = started.elapsed().as_nanos() as u64;
        self.times_ns.saturating_record(ns.max(1));
        if ns > SLOW_NS {
            self.slow_ns.insert(keys, ns);
        }
    }

    /// Looks at the memory after an operation that left `keys` keys.
    fn look(&mut self, index: &Index, keys: u64) {
        if keys < KEYS_FIRST {
            return;
        }
        let bytes_per_key = index.bytes() as f64 / keys as f64;
        self.bytes_per_key_max = self.bytes_per_key_max.max(bytes_per_key);
        let last = self
            .bytes_per_key
            .last()
            .map_or(0, |(keys, _)| *keys as u64);
        if keys.abs_diff(last) * STEPS_PER_SIZE >= keys.max(last) {
            self.bytes_per_key.push((keys as f64, bytes_per_key));
        }
    }

    fn longest_us(&self) -> f64 {
        self.times_ns.max() as f64 / 1e3
    }

    fn add_to(&self, samples: &mut Samples) {
        samples.round();
        samples.add("bytes_per_key_max", self.bytes_per_key_max);
        samples.add("longest_us", self.longest_us());
        samples.add(
            "latency_p50_us",
            self.times_ns.value_at_quantile(0.5) as f64 / 1e3,
        );
        samples.add(
            "latency_p9999_us",
            self.times_ns.value_at_quantile(0.9999) as f64 / 1e3,
        );
        let slow = self
            .slow_ns
            .values()
            .filter(|ns| **ns as f64 > OPERATION_US_MAX * 1e3)
            .count();
        samples.add("slower_than_2_ms", slow as f64);
    }
}

/// Runs the bench.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    report.repeats = setting.options.repeats.max(PASSES_MIN);
    let keys_last = (KEYS_LAST / setting.options.scale_divisor).max(KEYS_FIRST * 4);
    let passes = report.repeats;
    let trips = std::thread::scope(|scope| {
        let thread = scope.spawn(|| all_passes(passes, keys_last));
        thread
            .join()
            .unwrap_or_else(|_| bail!("the index failed inside itself"))
    })?;
    judge(setting, report, &trips);
    Ok(())
}

fn all_passes(passes: u32, keys_last: u64) -> Result<Vec<(Trip, Trip)>> {
    machine::pin_this_thread(machine::SERVER_CPU)?;
    let progress = Progress::new(u64::from(passes) * 2);
    let mut trips = Vec::new();
    for pass in 1..=passes {
        let mut index = Index::new(Config {
            shards: SHARDS,
            payload_bits: PAYLOAD_BITS,
        });
        progress.step(format!("pass {pass}: growing"));
        let grown = grow(&mut index, keys_last)?;
        progress.step(format!("pass {pass}: shrinking"));
        trips.push((grown, shrink(&mut index, keys_last)?));
    }
    Ok(trips)
}

fn grow(index: &mut Index, keys_last: u64) -> Result<Trip> {
    let mut trip = Trip::new();
    for key in 0..keys_last {
        let (shard, hash) = place(key);
        let started = Instant::now();
        let inserted = index.insert(shard, hash, key);
        trip.time(started, key);
        inserted.map_err(|e| anyhow!("key {key}: {e}"))?;
        trip.look(index, key + 1);
        check_stop(key)?;
    }
    Ok(trip)
}

fn shrink(index: &mut Index, keys_last: u64) -> Result<Trip> {
    let mut trip = Trip::new();
    for key in 0..keys_last - KEYS_FIRST {
        let (shard, hash) = place(key);
        let keys = keys_last - key;
        let started = Instant::now();
        let removed = index.remove(shard, hash, |payload| payload == key);
        trip.time(started, keys);
        if removed != Some(key) {
            bail!("the index has lost key {key}");
        }
        trip.look(index, keys - 1);
        check_stop(key)?;
    }
    Ok(trip)
}

fn check_stop(operation: u64) -> Result<()> {
    if operation.is_multiple_of(STOP_EVERY) {
        stop::check()
    } else {
        Ok(())
    }
}

/// Shard and hash of a key, from different bits, as a wide keyed hash gives them.
fn place(key: u64) -> (u32, u64) {
    (
        (crate::load::mix(!key) % u64::from(SHARDS - 1)) as u32,
        crate::load::mix(key ^ 0x9e37_79b9_7f4a_7c15),
    )
}

/// The operations that were slow in every pass, by keys, with their shortest time.
fn repeated(trips: &[&Trip]) -> HashMap<u64, u64> {
    let Some((first, others)) = trips.split_first() else {
        return HashMap::new();
    };
    let shortest = |keys: &u64, ns: &u64| {
        others.iter().try_fold(*ns, |least, trip| {
            trip.slow_ns.get(keys).map(|ns| least.min(*ns))
        })
    };
    first
        .slow_ns
        .iter()
        .filter_map(|(keys, ns)| Some((*keys, shortest(keys, ns)?)))
        .collect()
}

fn judge(setting: &Setting, report: &mut Report, trips: &[(Trip, Trip)]) {
    let title = format!(
        "one index of {SHARDS} shards on one CPU; its longest operation in each pass, and as repeated in every pass"
    );
    let mut part = Part::new("index", &title, COLUMNS);
    let mut bytes_lines = Vec::new();
    let mut longest_lines = Vec::new();
    for way in [Way::Grow, Way::Shrink] {
        let of_way: Vec<&Trip> = trips
            .iter()
            .map(|(grown, shrunk)| if way == Way::Grow { grown } else { shrunk })
            .collect();
        let mut samples = Samples::default();
        of_way.iter().for_each(|trip| trip.add_to(&mut samples));
        let repeated = repeated(&of_way);
        // No slow operation came back: the longest is at most what counts as slow.
        let longest_us = repeated.values().copied().max().unwrap_or(SLOW_NS) as f64 / 1e3;
        let mut row = Row::measured(way.name(), "terrace", &samples);
        row.figures.extend(
            crate::report::Summary::of(&[longest_us])
                .map(|s| ("longest_repeated_us".to_owned(), s)),
        );
        part.rows.push(row);
        let bytes_max = of_way
            .iter()
            .map(|trip| trip.bytes_per_key_max)
            .reduce(f64::max);
        let name = |what: &str| format!("index, {}: {what}", way.name());
        report.bars.push(Bar::new(
            name("bytes a key, most"),
            Side::AtMost,
            BYTES_PER_KEY_MAX,
            bytes_max,
        ));
        report.bars.push(Bar::new(
            name("longest operation, µs"),
            Side::AtMost,
            OPERATION_US_MAX,
            Some(longest_us),
        ));
        let series = if way == Way::Grow {
            "growing"
        } else {
            "shrinking"
        };
        bytes_lines.push(Line {
            series: series.into(),
            points: ascending(of_way[0].bytes_per_key.clone()),
        });
        longest_lines.push(Line {
            series: series.into(),
            points: longest_by_step(&of_way[0].bytes_per_key, &repeated),
        });
    }
    report.parts.push(part);
    let limit = Some(BYTES_PER_KEY_MAX);
    let frame = Frame {
        title: "DRAM of the key map",
        x: "keys",
        y: "bytes a key",
        limit,
    };
    report.plot(&setting.out_dir, "index-bytes.png", |path| {
        plot::lines(path, &frame, &bytes_lines)
    });
    let limit = Some(OPERATION_US_MAX);
    let frame = Frame {
        title: "Longest operation of the key map, as repeated in every pass",
        x: "keys",
        y: "\u{b5}s",
        limit,
    };
    report.plot(&setting.out_dir, "index-longest.png", |path| {
        plot::lines(path, &frame, &longest_lines)
    });
}

fn ascending(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// The longest repeated operation of each step of the other plot; a step without one shows what counts as slow.
fn longest_by_step(steps: &[(f64, f64)], repeated: &HashMap<u64, u64>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = ascending(steps.to_vec())
        .iter()
        .map(|(keys, _)| (*keys, SLOW_NS as f64 / 1e3))
        .collect();
    for (keys, ns) in repeated {
        let step = points
            .partition_point(|(at, _)| *at < *keys as f64)
            .min(points.len().saturating_sub(1));
        if let Some(point) = points.get_mut(step) {
            point.1 = point.1.max(*ns as f64 / 1e3);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_shrinks_a_small_index() {
        let mut index = Index::new(Config {
            shards: SHARDS,
            payload_bits: PAYLOAD_BITS,
        });
        let grown = grow(&mut index, 20_000).unwrap();
        assert_eq!((index.total(), grown.times_ns.len()), (20_000, 20_000));
        assert!(
            grown.bytes_per_key_max >= 8.0,
            "a slot has 8 bytes, {} were seen",
            grown.bytes_per_key_max
        );
        let shrunk = shrink(&mut index, 20_000).unwrap();
        assert_eq!((index.total(), shrunk.times_ns.len()), (KEYS_FIRST, 19_000));
        assert!(ascending(shrunk.bytes_per_key).is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn only_what_comes_back_counts() {
        let trip = |slow: &[(u64, u64)]| Trip {
            slow_ns: slow.iter().copied().collect(),
            ..Trip::new()
        };
        let (a, b) = (
            trip(&[(5, 100_000), (9, 30_000)]),
            trip(&[(5, 40_000), (7, 9_000_000)]),
        );
        let kept = repeated(&[&a, &b]);
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), [(5, 40_000)]);
        let points = longest_by_step(&[(4.0, 8.0), (6.0, 8.0), (8.0, 8.0)], &repeated(&[&b]));
        assert_eq!(points, [(4.0, 20.0), (6.0, 40.0), (8.0, 9_000.0)]);
    }
}
