//! Devices that fail: EIO on reads, writes and flushes, flipped bits, a full SSD.
//!
//! What must hold: no wrong value is ever shown, an error names its place, other
//! keys are unharmed, nothing acknowledged is lost, and `check` finds the damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Model, Rig, SEGMENT, Shape, clock, filled, value};
use crate::crash::quietly;
use terrace_kv::Expiry;
use terrace_media::Device;
use terrace_media::sim::{EventKind, Fault, Rng, SimDevice};
use terrace_pool::{Durability, ManualClock, Rule, check_on_device};

#[test]
fn a_failed_write_goes_elsewhere_and_nothing_is_lost() {
    for seed in 0..40 {
        let shape = Shape {
            lanes: 1 + seed as usize % 2,
            ..Shape::default()
        };
        let (device, mut rig, mut model) = filled(shape, seed, 60);
        let mut rng = Rng::new(seed);
        for round in 0..3 {
            device
                .faults()
                .fail_write(Fault::eio().after(rng.below(6) as u64));
            for n in 0..40 {
                let key = format!("key:{}", rng.below(80)).into_bytes();
                let v = value(&mut rng, 50 + n * 5);
                rig.set(&key, &v, Expiry::None)
                    .unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
                model.insert(key, v);
            }
            rig.settle();
        }
        assert!(
            rig.pool.stats().lanes.failed_writes > 0,
            "seed {seed}: no write failed"
        );
        for (k, v) in &model {
            assert_eq!(rig.get(k).unwrap().as_ref(), Some(v), "seed {seed}");
        }
        // After a crash, by checkpoint and by the log, it is the same.
        let image = device.durable_image();
        let device = SimDevice::with_image(image, seed);
        let mut rig = Rig::open(&device, shape, clock());
        for (k, v) in &model {
            assert_eq!(
                rig.get(k).unwrap().as_ref(),
                Some(v),
                "seed {seed} after a crash"
            );
        }
    }
}

#[test]
fn a_device_that_fails_every_write_makes_the_pool_read_only() {
    let (device, mut rig, model) = filled(Shape::default(), 7, 40);
    device.faults().fail_write(Fault::eio().always());
    let durable = rig.worker.durable_epoch();
    let error = rig
        .set(b"new", b"value", Expiry::None)
        .map(drop)
        .and_then(|_| {
            rig.run_durable(|w, t| terrace_kv::incr_by(w, t, b"n", 1))
                .map(drop)
        })
        .unwrap_err();
    assert!(
        error.contains("device") || error.contains("durable"),
        "{error}"
    );
    for (k, v) in &model {
        assert_eq!(rig.get(k).unwrap().as_ref(), Some(v), "reads go on");
    }
    assert!(
        rig.set(b"other", b"value", Expiry::None)
            .unwrap_err()
            .contains("read-only")
    );
    // The epoch whose batch was given up is never called durable, although nothing is under way any more.
    (0..200).for_each(|_| rig.turn());
    assert_eq!(rig.worker.durable_epoch(), durable);
}

#[test]
fn a_failed_flush_makes_the_pool_read_only_and_acknowledges_nothing() {
    let (device, mut rig, model) = filled(Shape::default(), 8, 40);
    device.faults().fail_flush(Fault::eio().always());
    let error = rig
        .run_durable(|w, t| terrace_kv::incr_by(w, t, b"n", 1))
        .unwrap_err();
    assert!(error.contains("flush"), "{error}");
    device.faults().clear();
    assert!(
        rig.set(b"other", b"value", Expiry::None)
            .unwrap_err()
            .contains("read-only")
    );
    let device = SimDevice::after(&device.after_crash(3), 8);
    let mut rig = Rig::open(&device, Shape::default(), clock());
    for (k, v) in &model {
        assert_eq!(
            rig.get(k).unwrap().as_ref(),
            Some(v),
            "what was acknowledged before is there"
        );
    }
}

#[test]
fn a_read_that_fails_harms_one_key() {
    let shape = Shape {
        memory_segments: 8,
        ..Shape::default()
    };
    let (device, rig, model) = filled(shape, 9, 150);
    // Cold: nothing in DRAM but what is read.
    drop(rig);
    let device = SimDevice::with_image(device.durable_image(), 9);
    let mut rig = Rig::open(&device, shape, clock());
    device.faults().fail_read(Fault::eio());
    let mut errors = 0;
    for (k, v) in &model {
        match rig.get(k) {
            Ok(got) => assert_eq!(got.as_ref(), Some(v)),
            Err(e) => {
                assert!(
                    e.contains("cannot be read back") && e.contains("segment"),
                    "{e}"
                );
                errors += 1;
            }
        }
    }
    assert_eq!(errors, 1, "one read failed");
    for (k, v) in &model {
        assert_eq!(
            rig.get(k).unwrap().as_ref(),
            Some(v),
            "it was the device's moment"
        );
    }
}

/// Flips one bit after a clean stop and looks at everything.
fn flip(image: &[u8], shape: Shape, model: &Model, offset: usize, bit: u8) -> (usize, bool) {
    let device = SimDevice::with_image(image.to_vec(), 1);
    device.faults().flip_bit(offset as u64, bit);
    let report = check_on_device(&device);
    let found = report.as_ref().map_or(true, |r| !r.damage.is_empty());
    let mut rig = match Rig::try_open(&device, shape, clock()) {
        Ok(rig) => rig,
        Err(e) => panic!("one flipped bit at {offset} keeps the pool from opening: {e}"),
    };
    let mut errors = 0;
    for (k, v) in model {
        match rig.get(k) {
            Ok(got) => assert_eq!(
                got.as_ref(),
                Some(v),
                "bit {bit} of byte {offset}: a wrong value"
            ),
            Err(e) => {
                assert!(e.contains("damaged entry"), "{e}");
                errors += 1;
            }
        }
    }
    (errors, found)
}

#[test]
fn one_flipped_bit_is_never_a_wrong_value_and_check_finds_it() {
    let shape = Shape::default();
    let (device, rig, model) = filled(shape, 10, 120);
    rig.close();
    let image = device.image();
    assert!(
        check_on_device(&device).unwrap().damage.is_empty(),
        "clean before"
    );
    let mut rng = Rng::new(77);
    // Anywhere in what was ever written.
    let used: Vec<usize> = (0..image.len() / 64)
        .filter(|b| image[b * 64..b * 64 + 64].iter().any(|x| *x != 0))
        .collect();
    let (mut hurt, mut noticed) = (0, 0);
    for _ in 0..400 {
        let offset = used[rng.below(used.len())] * 64 + rng.below(64);
        let (errors, found) = flip(&image, shape, &model, offset, rng.below(8) as u8);
        assert!(errors <= 1, "one bit at {offset} cost {errors} keys");
        assert!(
            errors == 0 || found,
            "a key is lost at {offset} and check does not see it"
        );
        hurt += errors;
        noticed += usize::from(found);
    }
    assert!(
        hurt > 0 && noticed > 200,
        "{hurt} keys hurt, {noticed} flips noticed of 400"
    );
}

#[test]
fn a_bit_in_a_value_costs_that_key_only() {
    let shape = Shape::default();
    let (device, rig, model) = filled(shape, 11, 60);
    rig.close();
    let image = device.image();
    let mut rng = Rng::new(5);
    for (key, v) in model.iter().take(30) {
        // The newest copy is the one that counts: flip in all of them.
        let places: Vec<usize> = image
            .windows(16)
            .enumerate()
            .filter(|(_, w)| *w == &v[..16])
            .map(|(at, _)| at)
            .collect();
        let device = SimDevice::with_image(image.clone(), 1);
        for &at in &places {
            device
                .faults()
                .flip_bit((at + rng.below(16)) as u64, rng.below(8) as u8);
        }
        let report = check_on_device(&device).unwrap();
        let name = String::from_utf8_lossy(key).into_owned();
        assert!(
            report.damage.iter().any(|d| d.what.contains(&name)),
            "{name}: {:?}",
            report.damage
        );
    }
}

/// The cleaner against a log that is never cleaned: the same commands, the same answers.
#[test]
fn a_cleaned_log_answers_as_one_that_is_never_cleaned() {
    for seed in 0..6 {
        let small = Shape {
            segments_per_lane: 56,
            memory_segments: 16,
            durability: Durability::Async,
            ..Shape::default()
        };
        let large = Shape {
            segments_per_lane: 4000,
            ..small
        };
        let mut rigs = [small, large].map(|shape| {
            let device = shape.device(seed);
            Rig::open(&device, shape, clock())
        });
        let mut rng = Rng::new(seed);
        for n in 0..6000 {
            // Time passes, also where no command waits.
            rigs.iter_mut().for_each(Rig::turn);
            let key = format!("key:{}", rng.below(120)).into_bytes();
            match rng.below(10) {
                0..=5 => {
                    let v = value(&mut rng, n % 700);
                    for r in &mut rigs {
                        r.set(&key, &v, Expiry::None).unwrap();
                    }
                }
                6 => {
                    let [a, b] = rigs.each_mut().map(|r| r.del(&[&key]).unwrap().0);
                    assert_eq!(a, b);
                }
                _ => {
                    let [a, b] = rigs.each_mut().map(|r| r.get(&key).unwrap());
                    assert_eq!(a, b, "seed {seed} op {n}");
                }
            }
        }
        let [cleaned, never] = rigs
            .each_mut()
            .map(|r| r.pool.stats().lanes.segments_cleaned);
        assert!(
            cleaned > 8 && never == 0,
            "{cleaned} and {never} segments cleaned"
        );
        let [a, b] = rigs.each_mut().map(|r| r.keys().unwrap());
        assert_eq!(a, b);
    }
}

#[test]
fn a_full_ssd_refuses_updates_takes_deletions_and_recovers() {
    for durability in [Durability::Sync, Durability::Async] {
        let shape = Shape {
            durability,
            segments_per_lane: 64,
            memory_segments: 16,
            ..Shape::default()
        };
        let device = shape.device(3);
        assert_eq!(device.len_bytes() as usize % SEGMENT, 0);
        let mut rig = Rig::open(&device, shape, clock());
        let mut rng = Rng::new(3);
        let mut model = Model::new();
        let mut refused = None;
        for n in 0..5000 {
            let key = format!("key:{n}").into_bytes();
            let v = value(&mut rng, 700);
            match rig.set(&key, &v, Expiry::None) {
                Ok(_) => drop(model.insert(key, v)),
                Err(e) => {
                    refused = Some(e);
                    break;
                }
            }
        }
        let refused = refused.expect("the SSD fills up");
        assert!(refused.contains("SSD is full"), "{refused}");
        for (k, v) in &model {
            assert_eq!(rig.get(k).unwrap().as_ref(), Some(v));
        }
        let gone: Vec<Vec<u8>> = model.keys().step_by(2).cloned().collect();
        for k in &gone {
            assert_eq!(rig.del(&[k]).unwrap().0, 1);
            model.remove(k);
        }
        let mut came_back = false;
        for _ in 0..3000 {
            rig.turn();
            if rig.set(b"again", b"room", Expiry::None).is_ok() {
                came_back = true;
                break;
            }
        }
        assert!(
            came_back,
            "space does not come back: {:?}",
            rig.pool.stats()
        );
        for (k, v) in &model {
            assert_eq!(rig.get(k).unwrap().as_ref(), Some(v));
        }
    }
}

/// Fills the SSD, deletes half, fills it again: as long as nothing gets stuck, all ends.
fn fill_twice(rule: Option<Rule>) {
    let shape = Shape {
        segments_per_lane: 64,
        memory_segments: 16,
        without_rule: rule,
        ..Shape::default()
    };
    let device = shape.device(5);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(5);
    for round in 0..2 {
        let mut refused = false;
        for n in 0..5000 {
            let key = format!("key:{n}").into_bytes();
            let v = value(&mut rng, 700);
            if rig.set(&key, &v, Expiry::None).is_err() {
                refused = true;
                break;
            }
        }
        assert!(refused, "round {round}: it fills up");
        for n in (0..5000).step_by(2) {
            rig.del(&[format!("key:{n}").as_bytes()]).unwrap();
        }
    }
    rig.settle();
}

#[test]
fn rule_6_without_the_reserve_a_full_ssd_gets_stuck() {
    fill_twice(None);
    let without = quietly(|| {
        fill_twice(Some(Rule::ReserveStays));
        Ok(())
    });
    assert!(
        without.is_err(),
        "nothing noticed that the reserve was taken out"
    );
}

/// Rule 3: what has expired once stays expired when the system's clock is set back.
#[test]
fn a_clock_that_jumps_back_brings_nothing_back() {
    let shape = Shape::default();
    let device = shape.device(6);
    let clock = clock();
    let mut rig = Rig::open(&device, shape, clock.clone());
    let soon = rig.worker.now_ms() + 5_000;
    rig.set(b"short", b"lived", Expiry::At(soon)).unwrap();
    rig.set(b"long", b"lived", Expiry::At(soon + 3_600_000))
        .unwrap();
    clock.set(soon + 1);
    rig.turn();
    assert_eq!(rig.get(b"short").unwrap(), None);
    rig.settle();
    let seen = rig.worker.now_ms();
    clock.set(1_000_000);
    rig.turn();
    assert!(
        rig.worker.now_ms() >= seen,
        "time went back while the pool was open"
    );
    // A crash, and a start with a clock an hour behind.
    let device = SimDevice::with_image(device.durable_image(), 1);
    let behind = ManualClock::default();
    behind.set(1);
    let mut rig = Rig::open(&device, shape, behind);
    assert!(rig.worker.now_ms() >= soon, "the mark is persisted");
    assert_eq!(rig.get(b"short").unwrap(), None);
    assert_eq!(rig.get(b"long").unwrap(), Some(b"lived".to_vec()));
}

/// Full, half deleted, full again, restarted, over and over, in two lanes: never stuck.
#[test]
fn a_full_ssd_never_gets_stuck() {
    for durability in [Durability::Sync, Durability::Async] {
        let shape = Shape {
            lanes: 2,
            durability,
            segments_per_lane: 90,
            memory_segments: 40,
            ..Shape::default()
        };
        let device = shape.device(4);
        let mut rig = Rig::open(&device, shape, clock());
        let mut rng = Rng::new(4);
        let mut model = Model::new();
        let mut next = 0;
        for round in 0..6 {
            let mut refusals = 0;
            for _ in 0..6000 {
                let key = format!("key:{next}").into_bytes();
                let len = 20 + rng.below(1500);
                let v = value(&mut rng, len);
                match rig.set(&key, &v, Expiry::None) {
                    Ok(_) => {
                        next += 1;
                        model.insert(key, v);
                    }
                    Err(e) => {
                        assert!(e.contains("SSD is full"), "{e}");
                        refusals += 1;
                        rig.turn();
                    }
                }
                if refusals > 20 {
                    break;
                }
            }
            assert!(refusals > 20, "it fills up");
            if round % 2 == 1 {
                rig.close();
                rig = Rig::open(&device, shape, clock());
            }
            let gone: Vec<Vec<u8>> = model.keys().step_by(2).cloned().collect();
            for k in &gone {
                assert_eq!(rig.del(&[k]).unwrap().0, 1);
                model.remove(k);
            }
        }
        for (k, v) in &model {
            assert_eq!(rig.get(k).unwrap().as_ref(), Some(v));
        }
    }
}

#[test]
fn a_full_ssd_is_told_for_the_pool_and_for_the_lane() {
    let shape = Shape {
        lanes: 2,
        segments_per_lane: 400,
        memory_segments: 16,
        ..Shape::default()
    };
    let device = shape.device(3);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(3);
    let refused = (0..100_000).find_map(|n| {
        let v = value(&mut rng, 3000 / (1 + n % 2));
        rig.set(format!("key:{n}").as_bytes(), &v, Expiry::None)
            .err()
    });
    let refused = refused.expect("it fills up");
    let lanes = [0, 1].map(|l| rig.pool.with_lane(l, |lane| lane.stats().ssd_usable_bytes));
    let pool = format!("of {} MiB in use", (lanes[0] + lanes[1]) >> 20);
    let lane = format!("of {};", lanes[0] >> 20);
    assert!(
        refused.contains(&pool) && refused.contains(&lane),
        "{refused}"
    );
}

#[test]
fn a_checkpoint_that_was_unreadable_for_a_moment_is_outranked() {
    let shape = Shape::default();
    let (device, mut rig, model) = filled(shape, 7, 60);
    rig.settle();
    rig.close();
    Rig::open(&device, shape, clock()).close();
    let number = |rig: &Rig| rig.pool.with_lane(0, |l| l.checkpoint_number());
    let rig = Rig::open(&device, shape, clock());
    let before = number(&rig);
    rig.close();
    // Both images fail once, each at its first read.
    let segments = shape.device_bytes() - shape.segments_per_lane * SEGMENT as u64;
    for _ in 0..2 {
        let fault = Fault::eio().in_range(segments..shape.device_bytes());
        device.faults().fail_read(fault);
    }
    let mut rig = Rig::open(&device, shape, clock());
    device.faults().clear();
    for (k, v) in &model {
        assert_eq!(rig.get(k).unwrap().as_ref(), Some(v));
    }
    assert!(number(&rig) > before, "{} after {before}", number(&rig));
}

/// What a start takes for durable because an epoch that was acknowledged came after it: parts of an image, whose flush is the checkpoint's own.
#[test]
fn an_epoch_is_flushed_while_a_checkpoint_is_made_and_written_through_else() {
    let (device, mut rig, _) = filled(Shape::default(), 10, 60);
    rig.settle();
    let flushes = Arc::new(AtomicU64::new(0));
    let seen = flushes.clone();
    device.set_hook(Some(Box::new(move |_, event| {
        let is_flush = matches!(event.kind, EventKind::FlushCompleted);
        seen.fetch_add(u64::from(is_flush), Ordering::Relaxed);
    })));
    // Flushes, and writes that were durable by themselves.
    let one_more = |rig: &mut Rig| {
        let before = (flushes.load(Ordering::Relaxed), device.counters().flushes);
        rig.run_durable(|w, t| terrace_kv::incr_by(w, t, b"n", 1))
            .unwrap();
        let flushes = flushes.load(Ordering::Relaxed) - before.0;
        (flushes, device.counters().flushes - before.1 - flushes)
    };
    let checkpointing = |rig: &Rig| rig.pool.with_lane(0, |lane| lane.checkpointing());
    let (mut during, mut through) = (0, 0);
    for n in 0..200 {
        if n % 20 == 0 {
            rig.pool.with_lane(0, |lane| lane.ask_checkpoint());
        }
        let before = checkpointing(&rig);
        let said = one_more(&mut rig);
        match (before, checkpointing(&rig)) {
            (true, true) => {
                assert!(said.0 > 0 && said.1 == 0, "{said:?} in epoch {n}");
                during += 1;
            }
            // It may have begun and ended meanwhile, too.
            (false, false) if said.0 == 0 => {
                assert_eq!(said.1, 1);
                through += 1;
            }
            _ => {}
        }
    }
    assert!(during > 0 && through > 0, "{during} {through}");
    device.set_hook(None);
}
