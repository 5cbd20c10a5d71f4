//! Each rule that keeps data, taken out: something must notice.
//!
//! A life that goes wrong without a rule is lived again with it, and must go well
//! then: else what was found is no proof of the rule but a real error, and the test
//! says so with the seed.

use super::sim::{Plan, drop_roots, live, shapes};
use crate::common::{Rig, Shape};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};
use terrace_kv::{Expiry, Step, Value, Wait};
use terrace_media::sim::{EventKind, Rng, SimDevice};
use terrace_media::{BLOCK_BYTES, Buf, Device, flush_blocking, write_blocking};
use terrace_pool::ManualClock;
use terrace_pool::Rule;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`; a panic in it is an error, and is not shown.
pub fn quietly<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                shown(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(false);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "a panic".into()))
    })
}

fn without(shape: Shape, rule: Rule) -> Shape {
    Shape {
        without_rule: Some(rule),
        ..shape
    }
}

/// With a rule taken out, some life must go wrong: else nothing tests the rule.
fn rule_matters(rule: Rule, only_scans: bool) {
    let until = Instant::now() + Duration::from_secs(120);
    let mut seed = 90_000;
    while Instant::now() < until {
        seed += 1;
        let plan = Plan {
            shape: shapes()[seed as usize % shapes().len()],
            seed,
            commands: 1500,
            keys: [70, 25, 200][seed as usize % 3],
            every: 5 + seed % 7,
            scan_every: 1,
            depth: 0,
            only_scans,
            more_bytes: 0,
            failing_writes: 0,
        };
        // What is free then is taken again soon.
        let full = Plan {
            keys: 250,
            more_bytes: 1100,
            shape: Shape {
                segments_per_lane: 48,
                ..plan.shape
            },
            ..plan
        };
        let plan = match rule {
            Rule::FreedIsTold => full,
            _ => plan,
        };
        let broken = Plan {
            shape: without(plan.shape, rule),
            ..plan
        };
        if let Err(without) = quietly(|| live(&broken)) {
            let whole = quietly(|| live(&plan));
            assert!(
                whole.is_ok(),
                "seed {seed} goes wrong with {rule:?} in force: {}\nand without it: {without}",
                whole.unwrap_err()
            );
            println!("seed {seed} noticed that {rule:?} was taken out: {without}");
            return;
        }
    }
    panic!("no crash noticed that {rule:?} was taken out");
}

macro_rules! rules {
    ($($name:ident $rule:ident $only_scans:literal)*) => { $(
        #[test]
        fn $name() {
            rule_matters(Rule::$rule, $only_scans);
        }
    )* };
}

rules! {
    rule_1_dead_only_when_the_successor_is_durable DeadWhenSuccessorDurable false
    rule_1_reuse_only_after_a_checkpoint ReuseAfterCheckpoint false
    rule_1_what_is_reused_before_a_checkpoint_is_told FreedIsTold false
    rule_2_a_link_keeps_alive LinkKeepsAlive false
    rule_3_tombstones_stay TombstonesStay false
    rule_4_an_append_names_what_it_replaces AppendNamesReplaced false
    rule_5_an_epoch_needs_its_end EpochNeedsEnd false
    rule_5_bytes_are_bound_to_a_life_of_their_segment BoundToGeneration true
    rule_7_a_move_is_compare_and_set MoveIsCompareAndSet false
    an_epoch_keeps_what_was_superseded_later KeepSuperseded false
    only_the_open_epoch_is_written_over OverwriteOnlyOpen false
    what_is_staged_is_known_to_replace_what_it_does StageOnlyVerified false
    flush_before_acknowledge FlushBeforeAcknowledge false
}

/// With the rule all goes well; without it something does not.
fn matters(rule: Rule, scenario: impl Fn(Shape) -> Result<(), String>) {
    let shape = shapes()[0];
    scenario(shape).unwrap_or_else(|e| panic!("with {rule:?} in force: {e}"));
    let without = quietly(|| scenario(without(shape, rule)));
    let noticed = without.expect_err("nothing noticed that the rule was taken out");
    println!("noticed that {rule:?} was taken out: {noticed}");
}

fn clock() -> ManualClock {
    let clock = ManualClock::default();
    clock.set(1_000_000);
    clock
}

fn sure(what: bool, or: &str) -> Result<(), String> {
    what.then_some(()).ok_or_else(|| or.to_string())
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Sets keys `name`0 to `name`n, some 700 bytes each.
fn fill(
    rig: &mut Rig,
    model: &mut Model,
    rng: &mut Rng,
    name: &str,
    n: usize,
) -> Result<(), String> {
    for i in 0..n {
        let key = format!("{name}{i}").into_bytes();
        let value = vec![rng.bits() as u8; 600 + rng.below(200)];
        rig.set(&key, &value, Expiry::None)?;
        model.insert(key, value);
    }
    Ok(())
}

/// What a full scan of `device` as it is now finds must be the model.
fn scan_finds(device: &SimDevice, shape: Shape, model: &Model, now: u64) -> Result<(), String> {
    let scanned = SimDevice::with_image(device.image(), 1);
    drop_roots(&scanned, shape.lanes);
    let clock = ManualClock::default();
    clock.set(now);
    let mut rig = Rig::try_open(&scanned, shape, clock).map_err(|e| e.to_string())?;
    finds(&mut rig, model)
}

fn finds(rig: &mut Rig, model: &Model) -> Result<(), String> {
    for key in rig.keys()? {
        let found = rig.get(&key)?;
        sure(
            found.as_ref() == model.get(&key),
            &format!(
                "{} is not what was last written",
                String::from_utf8_lossy(&key)
            ),
        )?;
    }
    for key in model.keys() {
        sure(rig.get(key)?.is_some(), "a key is gone")?;
    }
    Ok(())
}

/// An old version rests in a segment that is never cleaned; the newer one, with an expiry,
/// in one that soon is. When that is gone, only a tombstone says that the old one is no more.
#[test]
fn rule_3_expiry_leaves_a_tombstone() {
    matters(Rule::ExpiryLeavesTombstone, |shape| {
        let device = shape.device(11);
        let mut rig = Rig::open(&device, shape, clock());
        let (mut rng, mut model) = (Rng::new(11), Model::new());
        rig.set(b"mortal", b"first life", Expiry::None)?;
        // Small, so that they fill their segments, which are not worth cleaning then.
        for i in 0..1800 {
            let (key, value) = (format!("rests{i}").into_bytes(), vec![i as u8; 100]);
            rig.set(&key, &value, Expiry::None)?;
            model.insert(key, value);
        }
        rig.settle();
        let soon = rig.worker.now_ms() + 10;
        rig.set(b"mortal", b"second life", Expiry::At(soon))?;
        rig.settle();
        rig.clock.set(soon + 1);
        for round in 0..200 {
            // Segments that die slowly, so that live entries of them are moved.
            for _ in 0..20 {
                let name = format!("moves{}-", rng.below(100));
                fill(&mut rig, &mut model, &mut rng, &name, 1)?;
            }
            // Reads press what is cold out of DRAM.
            for _ in 0..100 {
                rig.get(format!("rests{}", rng.below(1800)).as_bytes())?;
            }
            rig.settle();
            if round % 10 == 9 {
                scan_finds(&device, shape, &model, rig.worker.now_ms())?;
            }
        }
        Ok(())
    });
}

/// A pool that is made where another was shows nothing of it, however it is found.
#[test]
fn rule_5_bytes_are_bound_to_their_pool() {
    matters(Rule::BoundToPool, |shape| {
        let device = shape.device(12);
        let mut rig = Rig::open(&device, shape, clock());
        let (mut rng, mut model) = (Rng::new(12), Model::new());
        fill(&mut rig, &mut model, &mut rng, "other's", 100)?;
        rig.settle();
        drop(rig);
        let other = shape.device(99).image();
        let mut disk = device.queue(1).unwrap();
        let mut superblock = Buf::zeroed(2 * BLOCK_BYTES);
        superblock.copy_from_slice(&other[..2 * BLOCK_BYTES]);
        write_blocking(&mut *disk, 0, superblock).unwrap();
        flush_blocking(&mut *disk).unwrap();
        for scan in [false, true] {
            let mut image = device.image();
            if scan {
                image[2 * BLOCK_BYTES..4 * BLOCK_BYTES].fill(0);
            }
            let device = SimDevice::with_image(image, 1);
            let mut rig = Rig::try_open(&device, shape, clock()).map_err(|e| e.to_string())?;
            let mut mine = Model::new();
            finds(&mut rig, &mine)?;
            fill(&mut rig, &mut mine, &mut rng, "mine", 30)?;
            rig.settle();
            scan_finds(&device, shape, &mine, rig.worker.now_ms())?;
        }
        Ok(())
    });
}

/// A read stays under way while everything around it is written anew many times: what it
/// brings is still what was there.
#[test]
fn rule_7_a_read_holds_its_segment() {
    matters(Rule::ReadersHold, |shape| {
        let device = shape.device(13);
        let mut rig = Rig::open(&device, shape, clock());
        let (mut rng, mut model) = (Rng::new(13), Model::new());
        rig.set(b"cold", b"as it was", Expiry::None)?;
        fill(&mut rig, &mut model, &mut rng, "soon dead", 20)?;
        fill(&mut rig, &mut model, &mut rng, "more than DRAM", 450)?;
        for i in 0..20 {
            rig.del(&[format!("soon dead{i}").as_bytes()])?;
        }
        rig.settle();
        device.faults().hold_reads(2 * BLOCK_BYTES);
        let mut task = rig.worker.task(1);
        let seen = |v: Value<'_>| match v {
            Value::Inline(b) => Some(b.to_vec()),
            _ => None,
        };
        let mut begun = terrace_kv::get(&mut rig.worker, &mut task, b"cold", seen);
        // Where the cleaner has just moved it, it is read from the buffer of the segment that is being filled.
        for round in 0..20 {
            if matches!(begun, Ok(Step::Wait(_))) {
                break;
            }
            rig.worker.reset(&mut task);
            fill(
                &mut rig,
                &mut model,
                &mut rng,
                &format!("behind it {round} "),
                5,
            )?;
            rig.settle();
            begun = terrace_kv::get(&mut rig.worker, &mut task, b"cold", seen);
        }
        sure(
            matches!(begun, Ok(Step::Wait(_))) && task.reads_under_way() == 1,
            "the read is not under way",
        )?;
        // New keys, since a key that is cold would be read first.
        let taken = rig.pool.stats().lanes.written_log_bytes;
        let mut round = 0;
        while rig.pool.stats().lanes.written_log_bytes < taken + 3 * shape.device_bytes() {
            round += 1;
            for i in 0..20 {
                let key = format!("new{round}-{i}").into_bytes();
                rig.set(&key, &[round as u8; 700], Expiry::None)?;
                rig.del(&[&key])?;
            }
            rig.settle();
        }
        device.faults().hold_reads(0);
        // It may have been moved meanwhile, and then is read again where it is now.
        let mut ended = Ok(Step::Wait(Wait::Io));
        for _ in 0..5 {
            if matches!(ended, Ok(Step::Wait(_))) {
                (0..20).for_each(|_| rig.turn());
                ended = terrace_kv::get(&mut rig.worker, &mut task, b"cold", seen);
            }
        }
        let value = match ended {
            Ok(Step::Done(v)) => v,
            Ok(Step::Wait(_)) => return Err("the read brought something else".into()),
            Err(e) => return Err(e.to_string()),
        };
        rig.worker.finish(task);
        sure(value.as_deref() == Some(b"as it was"), "another value")?;
        sure(
            rig.pool.stats().lanes.damaged_reads == 0,
            "a read brought other bytes",
        )
    });
}

/// At every write of a root block the power goes and the block is torn in the middle of a
/// sector, which no simulated device does by itself. The other root must be whole: the
/// start is from a checkpoint, and what was acknowledged is there.
#[test]
fn rule_8_two_checkpoints_alternate() {
    matters(Rule::TwoRoots, |shape| {
        let device = shape.device(14);
        let torn = Arc::new(Mutex::new(Vec::new()));
        let images = torn.clone();
        device.set_hook(Some(Box::new(move |device, event| {
            let roots = 2 * BLOCK_BYTES as u64..4 * BLOCK_BYTES as u64;
            if let EventKind::WriteSubmitted { offset, .. } = event.kind
                && roots.contains(&offset)
            {
                let mut image = device.crash_image(event.number);
                image[offset as usize + 60..][..200].fill(0xa5);
                images.lock().unwrap().push(image);
            }
        })));
        let mut rig = Rig::open(&device, shape, clock());
        let (mut rng, mut model) = (Rng::new(14), Model::new());
        let mut roots = 0;
        for round in 0..8 {
            fill(&mut rig, &mut model, &mut rng, "key", 30 + round)?;
            rig.settle();
            rig.pool.with_lane(0, |l| l.ask_checkpoint());
            let number = |rig: &Rig| rig.pool.with_lane(0, |l| l.checkpoint_number());
            let before = number(&rig);
            (0..200).for_each(|_| rig.turn());
            sure(number(&rig) > before, "no checkpoint was made")?;
            for image in torn.lock().unwrap().drain(..) {
                roots += 1;
                let device = SimDevice::with_image(image, roots);
                let mut rig = Rig::try_open(&device, shape, clock()).map_err(|e| e.to_string())?;
                let from = number(&rig);
                sure(roots == 1 || from > 0, "no checkpoint is left")?;
                finds(&mut rig, &model)?;
            }
        }
        sure(roots >= 8, "too few root blocks were written")
    });
}
