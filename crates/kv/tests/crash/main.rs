//! Simulated crashes at every write and flush of seeded workloads.
//!
//! A failure prints its seed: `TERRACE_SEED=n cargo test -p terrace-kv --test crash`
//! lives that life alone. `TERRACE_CRASH_STATES` sets how many states are judged.

#[path = "../common/mod.rs"]
mod common;
mod sim;

use sim::{Plan, live, shapes};
use std::time::{Duration, Instant};
use terrace_pool::Rule;

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
        without_rule: None,
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

/// With a rule taken out, some life must go wrong: else nothing tests the rule.
fn rule_matters(rule: Rule) {
    std::panic::set_hook(Box::new(|_| {}));
    let until = Instant::now() + Duration::from_secs(120);
    let mut seed = 90_000;
    while Instant::now() < until {
        seed += 1;
        let shape = (seed % shapes().len() as u64) as usize;
        let plan = Plan {
            without_rule: Some(rule),
            commands: 1500,
            keys: [70, 25, 200][seed as usize % 3],
            every: 5 + seed % 7,
            scan_every: 1,
            depth: 0,
            ..plan(seed, shape)
        };
        let outcome = std::panic::catch_unwind(|| live(&plan));
        if !matches!(outcome, Ok(Ok(_))) {
            return;
        }
    }
    panic!("no crash noticed that {rule:?} was taken out");
}

macro_rules! rules {
    ($($name:ident $rule:ident)*) => { $(
        #[test]
        fn $name() {
            rule_matters(Rule::$rule);
        }
    )* };
}

rules! {
    rule_1_dead_only_when_the_successor_is_durable DeadWhenSuccessorDurable
    rule_1_reuse_only_after_a_checkpoint ReuseAfterCheckpoint
    rule_2_a_link_keeps_alive LinkKeepsAlive
    rule_3_tombstones_stay TombstonesStay
    rule_3_expiry_leaves_a_tombstone ExpiryLeavesTombstone
    rule_4_an_append_names_what_it_replaces AppendNamesReplaced
    rule_5_an_epoch_needs_its_end EpochNeedsEnd
    rule_7_a_move_is_compare_and_set MoveIsCompareAndSet
    an_epoch_keeps_what_was_superseded_later KeepSuperseded
    flush_before_acknowledge FlushBeforeAcknowledge
}
