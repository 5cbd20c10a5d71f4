//! Simulated crashes at every write and flush of seeded workloads.
//!
//! A failure prints its seed: `TERRACE_SEED=n cargo test -p terrace-kv --test store crash::`
//! lives that life alone. `TERRACE_CRASH_STATES` sets how many states are judged.

mod oracle;
mod rules;
mod sim;

pub use rules::quietly;
pub use sim::drop_roots;

use crate::common::Shape;
use sim::{Plan, live, shapes};
use std::time::{Duration, Instant};

/// Crash states that `make test` judges, over all shapes.
const STATES: u64 = 50_000;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan(seed: u64, shape: usize) -> Plan {
    Plan {
        shape: shapes()[shape],
        seed,
        commands: 700,
        keys: 70,
        every: 1 + seed % 3,
        scan_every: 3,
        depth: 2,
        only_scans: false,
        more_bytes: 0,
        failing_writes: 0,
    }
}

/// Lives lives in one shape until `states` crashes were judged or the time is up.
fn lives(shape: usize, states: u64, time: Duration) -> u64 {
    if let Some(seed) = env("TERRACE_SEED") {
        return live(&plan(seed, shape)).unwrap_or_else(|e| panic!("shape {shape}: {e}"));
    }
    let until = Instant::now() + time;
    let (mut judged, mut seed) = (0, 1000 * shape as u64);
    while judged < states && Instant::now() < until {
        seed += 1;
        judged += live(&plan(seed, shape))
            .unwrap_or_else(|e| panic!("TERRACE_SEED={seed} shape {shape}: {e}"));
    }
    judged
}

fn share() -> u64 {
    env("TERRACE_CRASH_STATES").unwrap_or(STATES) / shapes().len() as u64
}

fn run(shape: usize) {
    let judged = lives(shape, share(), Duration::from_secs(600));
    assert!(
        env("TERRACE_SEED").is_some() || judged >= share(),
        "only {judged} states in the time given"
    );
    println!("{judged} crash states judged");
}

#[test]
fn one_lane_sync() {
    run(0);
}
#[test]
fn one_lane_async() {
    run(1);
}
#[test]
fn two_lanes_sync() {
    run(2);
}
#[test]
fn two_lanes_async() {
    run(3);
}
#[test]
fn three_terraces() {
    run(4);
}

/// Without end: seconds in SOAK_SECONDS.
#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn soak_crashes() {
    let seconds = env("SOAK_SECONDS").unwrap_or(3600);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut judged, mut seed) = (0, 1 << 32);
    while Instant::now() < until {
        seed += 1;
        let shape = (seed % shapes().len() as u64) as usize;
        let plan = Plan {
            commands: 3000,
            ..plan(seed, shape)
        };
        judged += live(&plan).unwrap_or_else(|e| panic!("TERRACE_SEED={seed} shape {shape}: {e}"));
    }
    println!("{judged} crash states judged");
}

/// Lives without a crash are quick, so many of them look for a lane that gets stuck: a
/// command that never ends, a stop that does.
#[test]
fn nothing_gets_stuck() {
    let lives = env("TERRACE_LIVES").unwrap_or(250);
    for seed in 90_001..90_001 + lives {
        let shape = (seed % shapes().len() as u64) as usize;
        let plan = Plan {
            commands: 1500,
            keys: [70, 25, 200][seed as usize % 3],
            every: u64::MAX,
            only_scans: seed % 2 == 0,
            ..plan(seed, shape)
        };
        live(&plan).unwrap_or_else(|e| panic!("seed {seed} shape {shape}: {e}"));
    }
}

/// Crashes whose full scan left a lane fewer free segments than an epoch was begun with, and
/// a tombstone in each of the others, so that none was freed without being cleaned.
#[test]
fn a_full_scan_leaves_a_way_to_free_segments() {
    for (seed, keys) in [(300_035, 200), (300_065, 200)] {
        let plan = Plan {
            commands: 1500,
            keys,
            every: 12,
            scan_every: 1,
            depth: 0,
            ..plan(seed, 0)
        };
        live(&plan).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Lanes that are so full that segments are emptied and taken again all the time, most of them before the next checkpoint.
#[test]
fn nearly_full() {
    let states = share() / 2;
    let (mut judged, mut fullest, mut seed) = (0, [0; 5], 500_000);
    while judged < states || fullest.contains(&0) {
        seed = env("TERRACE_SEED").unwrap_or(seed + 1);
        let shape = seed as usize % shapes().len();
        let plan = Plan {
            commands: 1200,
            keys: 250,
            every: 5 + seed % 7,
            depth: 1,
            more_bytes: 1100,
            shape: Shape {
                segments_per_lane: 48,
                ..shapes()[shape]
            },
            ..plan(seed, shape)
        };
        let life = match env("TERRACE_SEED") {
            Some(_) => {
                sim::lived(&plan).unwrap();
                return;
            }
            None => quietly(|| sim::lived(&plan)),
        };
        let life = life.unwrap_or_else(|e| panic!("TERRACE_SEED={seed} shape {shape}: {e}"));
        judged += life.judged;
        fullest[shape] = life.full_percent.max(fullest[shape]);
    }
    println!("{judged} crash states judged, at most {fullest:?} % full");
    // Blocks of small epochs are not full of data: the sync lanes turn over all the time with less.
    assert!(fullest.iter().all(|full| *full >= 40), "{fullest:?}");
    assert!(fullest.iter().any(|full| *full >= 95), "{fullest:?}");
}

/// Writes fail now and then, of batches, images and root blocks, and the power goes after.
#[test]
fn writes_fail_before_the_crash() {
    let states = share() / 2;
    let (mut judged, mut seed) = (0, 600_000);
    while judged < states {
        seed += 1;
        let shape = seed as usize % shapes().len();
        let plan = Plan {
            commands: 900,
            keys: 120,
            every: 5 + seed % 7,
            depth: 1,
            more_bytes: 300,
            failing_writes: 6,
            ..plan(seed, shape)
        };
        judged += live(&plan).unwrap_or_else(|e| panic!("TERRACE_SEED={seed} shape {shape}: {e}"));
    }
    println!("{judged} crash states judged");
}
