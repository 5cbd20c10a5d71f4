//! One simulated life: a seeded workload, a crash image at every write and
//! flush, and what each image must hold.
//!
//! The oracle is exact. Commands run one after the other, and every commit is a
//! cut through them, so after a crash the pool must be in the state after the
//! first P commands for some P: no fewer than were acknowledged under the mode's
//! promise, no more than were begun. Multi-key commands are whole in any P.

use super::oracle::{Effect, State, apply, explain, key, same, value};
use crate::common::{Rig, SEGMENT, Shape};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use terrace_kv::{Edit, ExpireCond, Expiry, KvError, NewValue};
use terrace_media::sim::{Crashed, Fault, Rng, SimDevice};
use terrace_media::{BLOCK_BYTES, Buf, Device, flush_blocking, write_blocking};
use terrace_pool::{Durability, ManualClock};

/// Progress that a crash image is judged by.
#[derive(Debug, Clone, Default)]
struct Progress {
    acked: usize,
    begun: usize,
    /// State after the first `acked` commands.
    state: State,
    now: u64,
    waiting: Vec<(usize, u64)>,
    effects: Vec<(Effect, u64)>,
}

impl Progress {
    fn ack(&mut self, upto: usize) {
        while self.acked < upto {
            let (effect, at) = self.effects[self.acked].clone();
            apply(&mut self.state, self.acked, &effect, at);
            self.acked += 1;
        }
    }
    fn durable(&mut self, epoch: u64) {
        let done = self.waiting.iter().take_while(|(_, e)| *e <= epoch).count();
        let newest = self.waiting.drain(..done).next_back();
        if let Some((n, _)) = newest {
            self.ack(n + 1);
        }
    }
}

struct Crash {
    left: Crashed,
    acked: usize,
    begun: usize,
    state: State,
    now: u64,
    event: u64,
}

/// How a life is lived.
#[derive(Clone, Copy)]
pub struct Plan {
    pub shape: Shape,
    pub seed: u64,
    pub commands: usize,
    pub keys: u8,
    /// One image in this many events.
    pub every: u64,
    /// One crash in this many is also judged by a full scan.
    pub scan_every: u64,
    /// Crashes inside recoveries: how deep.
    pub depth: u32,
    /// Every start, in the life and after a crash, is by full scan.
    pub only_scans: bool,
    /// Values are longer by this, bytes.
    pub more_bytes: usize,
    /// Writes that fail in the life.
    pub failing_writes: usize,
}

/// What a life came to.
#[derive(Default)]
pub struct Lived {
    /// Crash states judged.
    pub judged: u64,
    /// How full the fullest lane ever was, percent of what it accepts.
    pub full_percent: u64,
    /// Checkpoints made, and segments emptied, in all.
    pub checkpoints: u64,
    pub emptied: u64,
}

/// Lives one life and judges every crash in it. Returns the crash states judged.
pub fn live(plan: &Plan) -> Result<u64, String> {
    lived(plan).map(|l| l.judged)
}

/// Lives one life and judges every crash in it.
pub fn lived(plan: &Plan) -> Result<Lived, String> {
    let device = plan.shape.device(plan.seed);
    let clock = ManualClock::default();
    clock.set(1_000_000);
    let progress = Arc::new(Mutex::new(Progress::default()));
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let watch = |device: &SimDevice| watch(device, plan, &progress, &crashes);
    watch(&device);
    let mut rig = open(&device, plan, clock.clone(), &progress)?;
    let mut rng = Rng::new(plan.seed ^ 0x5eed);
    let mut faults = Rng::new(plan.seed ^ 0xfa17);
    let mut out = Lived::default();
    for n in 0..plan.commands {
        if faults.below(plan.commands) < plan.failing_writes {
            let later = faults.below(8) as u64;
            device.faults().fail_write(Fault::eio().after(later));
        }
        rig = command(rig, &device, plan, &mut rng, n, &progress, &watch)?;
        out.look_at(&rig);
        let taken = std::mem::take(&mut *crashes.lock().unwrap());
        for crash in taken {
            let effects = &progress.lock().unwrap().effects;
            out.judged += judge(plan, &crash, effects, plan.depth)?;
        }
    }
    Ok(out)
}

impl Lived {
    fn look_at(&mut self, rig: &Rig) {
        for lane in 0..rig.shape.lanes as u16 {
            let s = rig.pool.with_lane(lane, |l| l.stats());
            let full = (s.ssd_live_bytes + s.dirty_bytes) * 100 / s.ssd_usable_bytes.max(1);
            self.full_percent = self.full_percent.max(full);
            self.checkpoints = self.checkpoints.max(s.checkpoints);
            self.emptied = self.emptied.max(s.segments_cleaned);
        }
    }
}

fn open(
    device: &SimDevice,
    plan: &Plan,
    clock: ManualClock,
    progress: &Arc<Mutex<Progress>>,
) -> Result<Rig, String> {
    let mut rig = Rig::try_open(device, plan.shape, clock).map_err(|e| format!("open: {e}"))?;
    for lane in 0..plan.shape.lanes as u16 {
        // Fine steps: commands fall between a close, the staging and the moves of an epoch.
        let entries = 1 + (plan.seed % 3) as usize;
        rig.pool.with_lane(lane, |l| l.slice_entries = entries);
    }
    let told = progress.clone();
    rig.on_turn = Some(Box::new(move |durable| {
        told.lock().unwrap().durable(durable)
    }));
    Ok(rig)
}

fn watch(
    device: &SimDevice,
    plan: &Plan,
    progress: &Arc<Mutex<Progress>>,
    crashes: &Arc<Mutex<Vec<Crash>>>,
) {
    let (progress, crashes) = (progress.clone(), crashes.clone());
    let (seed, every) = (plan.seed, plan.every);
    device.set_hook(Some(Box::new(move |device, _| {
        let event = device.events();
        if event % every != seed % every {
            return;
        }
        let p = progress.lock().unwrap();
        crashes.lock().unwrap().push(Crash {
            left: device.after_crash(seed ^ event.wrapping_mul(0x9e37)),
            acked: p.acked,
            begun: p.begun,
            state: p.state.clone(),
            now: p.now,
            event,
        });
    })));
}

fn command(
    mut rig: Rig,
    device: &SimDevice,
    plan: &Plan,
    rng: &mut Rng,
    n: usize,
    progress: &Arc<Mutex<Progress>>,
    watch: &dyn Fn(&SimDevice),
) -> Result<Rig, String> {
    let now = rig.worker.now_ms();
    let pick =
        |rng: &mut Rng| (rng.below(plan.keys as usize) as f64 * rng.below(100) as f64 / 99.0) as u8;
    let expiry =
        |rng: &mut Rng| (rng.below(4) == 0).then(|| now + 100_000 + rng.below(600_000) as u64);
    let kind = rng.below(100);
    let effect = match kind {
        0..=44 => {
            let len = rng.below(900) + plan.more_bytes;
            Effect::Put(vec![(pick(rng), len, expiry(rng))])
        }
        45..=48 => Effect::Put(vec![(pick(rng), 2100 + rng.below(6000), expiry(rng))]),
        49..=60 => {
            let mut keys: BTreeMap<u8, usize> = BTreeMap::new();
            (0..2 + rng.below(5)).for_each(|_| {
                keys.insert(pick(rng), rng.below(500) + plan.more_bytes);
            });
            Effect::Put(keys.into_iter().map(|(k, len)| (k, len, None)).collect())
        }
        61..=76 => Effect::Remove((0..1 + rng.below(3)).map(|_| pick(rng)).collect()),
        77..=82 => Effect::ExpireAt(pick(rng), now + 50_000 + rng.below(300_000) as u64),
        83..=84 if rng.below(12) == 0 => Effect::Clear,
        85..=86 => {
            rig.clock.set(now + rng.below(100_000) as u64);
            rig.turn();
            Effect::Remove(vec![])
        }
        87 if rng.below(6) == 0 => {
            // A clean stop and a new start.
            rig.on_turn = None;
            rig.close();
            let clock = ManualClock::default();
            clock.set(now + 1);
            let all = progress.lock().unwrap().effects.len();
            progress.lock().unwrap().ack(all);
            progress.lock().unwrap().waiting.clear();
            if plan.only_scans {
                device.set_hook(None);
                drop_roots(device, plan.shape.lanes);
                watch(device);
            }
            rig = open(device, plan, clock, progress)?;
            Effect::Remove(vec![])
        }
        88..=93 => {
            let k = pick(rng);
            rig.get(&key(k))?;
            Effect::Remove(vec![])
        }
        _ => {
            (0..rng.below(12)).for_each(|_| rig.turn());
            Effect::Remove(vec![])
        }
    };
    {
        let mut p = progress.lock().unwrap();
        p.effects.push((effect.clone(), rig.worker.now_ms()));
        p.begun = n + 1;
        p.now = rig.worker.now_ms();
    }
    let done = execute(&mut rig, n, &effect);
    let refused = matches!(&done, Err(why) if why.contains("SSD is full"));
    let mut p = progress.lock().unwrap();
    if refused {
        // It changed nothing.
        p.effects[n].0 = Effect::Remove(vec![]);
    }
    let epoch = match refused {
        true => rig.pool.stats().epoch,
        false => done?,
    };
    p.now = rig.worker.now_ms();
    p.waiting.push((n, epoch));
    drop(p);
    if plan.shape.durability == Durability::Sync && rng.coin() {
        let turns = rng.below(30);
        (0..turns).for_each(|_| rig.turn());
    }
    Ok(rig)
}

/// Brings a value in and puts it under a key by an edit.
fn bring(rig: &mut Rig, key: &[u8], v: &[u8], expiry_ms: Option<u64>) -> Result<(), String> {
    let NewValue::Large(upload) = rig.value(v)? else {
        return rig
            .set(key, v, expiry_ms.map_or(Expiry::None, Expiry::At))
            .map(|_| ());
    };
    let mut uploads = [Some(upload)];
    let put = (
        0,
        Edit::Upload {
            nr: 0,
            expiry_ms,
            meta: None,
        },
    );
    let done = rig.run(|w, t| {
        terrace_kv::edit_with::<(), KvError>(w, t, &[key], &[], &mut uploads, &mut |_| {
            Ok((vec![put.clone()], ()))
        })
    });
    for upload in uploads.into_iter().flatten() {
        terrace_kv::upload_abort(&mut rig.worker, upload);
    }
    done.map(|_| ())
}

/// Runs the command; returns the epoch that makes it durable.
fn execute(rig: &mut Rig, n: usize, effect: &Effect) -> Result<u64, String> {
    match effect {
        // Every other long one as a command that changes a long value does: by an edit.
        Effect::Put(keys) if keys.len() == 1 && keys[0].1 > 2100 && n.is_multiple_of(2) => {
            let (k, len, at) = keys[0];
            bring(rig, &key(k), &value(n, k, len), at)?;
        }
        Effect::Put(keys) if keys.len() == 1 => {
            let (k, len, at) = keys[0];
            rig.set(
                &key(k),
                &value(n, k, len),
                at.map_or(Expiry::None, Expiry::At),
            )?;
        }
        Effect::Put(keys) => {
            let pairs: Vec<_> = keys
                .iter()
                .map(|&(k, len, _)| (key(k), value(n, k, len)))
                .collect();
            rig.mset(&pairs)?;
        }
        Effect::Remove(keys) if keys.is_empty() => {}
        Effect::Remove(keys) => {
            let keys: Vec<Vec<u8>> = keys.iter().map(|&k| key(k)).collect();
            let refs: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
            rig.del(&refs)?;
        }
        Effect::ExpireAt(k, at) => {
            let kk = key(*k);
            rig.run(|w, t| terrace_kv::expire(w, t, &kk, Some(*at), ExpireCond::Always))?;
        }
        Effect::Clear => {
            rig.run(terrace_kv::flush_all)?;
        }
    }
    let stats = rig.pool.stats();
    Ok(stats.epoch)
}

/// Opens what a crash left, twice (by checkpoint and by full scan), and compares.
fn judge(plan: &Plan, crash: &Crash, effects: &[(Effect, u64)], depth: u32) -> Result<u64, String> {
    let what = |e: String| {
        format!(
            "seed {} event {} depth left {depth}: {e}\n(acknowledged {}, begun {})",
            plan.seed, crash.event, crash.acked, crash.begun
        )
    };
    let mut judged = 1;
    let device = SimDevice::after(&crash.left, plan.seed ^ crash.event);
    if plan.only_scans {
        drop_roots(&device, plan.shape.lanes);
    }
    let inner = Arc::new(Mutex::new(Vec::new()));
    if depth > 0 && crash.event.is_multiple_of(7) {
        let same = Arc::new(Mutex::new(Progress {
            acked: crash.acked,
            begun: crash.begun,
            state: crash.state.clone(),
            now: crash.now,
            ..Progress::default()
        }));
        watch(&device, &Plan { every: 1, ..*plan }, &same, &inner);
    }
    let state = found(plan, crash, &device, effects, plan.only_scans).map_err(what)?;
    device.set_hook(None);
    for crash in inner.lock().unwrap().drain(..).take(20) {
        judged += judge(plan, &crash, effects, depth - 1)?;
    }
    if !plan.only_scans && crash.event.is_multiple_of(plan.scan_every) {
        let scanned = SimDevice::after(&crash.left, plan.seed);
        drop_roots(&scanned, plan.shape.lanes);
        let other = found(plan, crash, &scanned, effects, true)
            .map_err(|e| what(format!("full scan: {e}")))?;
        if other != state {
            return Err(what(format!(
                "the full scan finds another state: {other} instead of {state}"
            )));
        }
    }
    Ok(judged)
}

pub fn drop_roots(device: &SimDevice, lanes: usize) {
    let mut disk = device.queue(1).unwrap();
    let roots = Buf::zeroed(2 * lanes * BLOCK_BYTES);
    write_blocking(&mut *disk, 2 * BLOCK_BYTES as u64, roots).unwrap();
    flush_blocking(&mut *disk).unwrap();
}

/// Recovers and finds the number of commands whose state the pool is in.
fn found(
    plan: &Plan,
    crash: &Crash,
    device: &SimDevice,
    effects: &[(Effect, u64)],
    by_scan: bool,
) -> Result<usize, String> {
    let clock = ManualClock::default();
    clock.set(crash.now);
    let mut rig = Rig::try_open(device, plan.shape, clock).map_err(|e| format!("open: {e}"))?;
    // What a failed write has left in a segment whose earlier entries live on is damage to a full scan.
    let remains = by_scan && plan.failing_writes > 0;
    if !rig.pool.damage().is_empty() && !remains {
        return Err(format!("damage: {:?}", rig.pool.damage()));
    }
    // A start does not know which batches a write that failed has left behind; a full scan cannot tell what was free
    // and half written anew from what is damaged, which is rare where little is taken again: in lanes that are not full, and whose
    // epochs fill their blocks.
    let taken_again = plan.more_bytes > 0 || plan.shape.durability == Durability::Sync;
    let told_apart = plan.failing_writes == 0 && !(by_scan && taken_again);
    if crash.event.is_multiple_of(3) {
        let check = terrace_pool::check_on_device(device).map_err(|e| format!("check: {e}"))?;
        if told_apart && check.checkpoint && !check.damage.is_empty() {
            return Err(format!("after the start: {:?}", check.damage));
        }
    }
    let got = dump(&mut rig)?;
    let now = rig.worker.now_ms();
    let mut state = crash.state.clone();
    let mut matched = None;
    let begun = effects[crash.acked..crash.begun].iter();
    for (n, next) in (crash.acked..).zip(begun.map(Some).chain([None])) {
        if same(&state, &got, now) {
            matched = Some(n);
            break;
        }
        if let Some((effect, at)) = next {
            apply(&mut state, n, effect, *at);
        }
    }
    let Some(matched) = matched else {
        return Err(explain(&crash.state, &state, &got, now));
    };
    // The pool takes writes; one that is as full as it may be takes deletions.
    match rig.set(b"after", b"crash", Expiry::None) {
        Ok(_) if rig.get(b"after")? != Some(b"crash".to_vec()) => {
            return Err("a write after recovery is not read back".into());
        }
        Err(why) if !(plan.more_bytes > 0 && why.contains("SSD is full")) => return Err(why),
        Err(_) => {
            if let Some(k) = got.keys().next() {
                rig.del(&[&key(*k)])?;
            }
        }
        Ok(_) => {}
    }
    if crash.event.is_multiple_of(4) {
        leaks(&mut rig, plan, &got)?;
    }
    if crash.event.is_multiple_of(5) && told_apart {
        rig.close();
        let damage = terrace_pool::check_on_device(device).map_err(|e| format!("check: {e}"))?;
        if !damage.damage.is_empty() {
            return Err(format!("after a clean stop: {:?}", damage.damage));
        }
    }
    Ok(matched)
}

/// Every piece belongs to a binder once the background is done.
fn leaks(rig: &mut Rig, plan: &Plan, got: &BTreeMap<u8, Vec<u8>>) -> Result<(), String> {
    // Big values whose time is up go when they are met.
    for k in 0..plan.keys {
        rig.get(&key(k))?;
    }
    (0..40).for_each(|_| rig.turn());
    let piece = terrace_kv::piece_bytes(&rig.worker);
    let inline = terrace_kv::inline_max_bytes(&rig.worker);
    let expected: usize = got
        .values()
        .filter(|v| v.len() > inline)
        .map(|v| v.len().div_ceil(piece))
        .sum();
    let mut pieces = 0;
    for _ in 0..2000 {
        pieces = 0;
        for lane in 0..plan.shape.lanes as u16 {
            use terrace_log::Snapshot;
            pieces += rig.pool.with_lane(lane, |l| l.dir.len(1)) as usize;
        }
        if pieces <= expected {
            return Ok(());
        }
        rig.turn();
        rig.worker.want_durable();
    }
    for lane in 0..plan.shape.lanes as u16 {
        rig.pool.with_lane(lane, |l| {
            let mut at = Some(terrace_log::Order { shard: 0, hash: 0 });
            while let Some(order) = at {
                let mut slots = Vec::new();
                at = l.dir.page(order, |s| slots.push(s));
                if at.is_none() && order.shard < l.dir.user_shards() {
                    at = Some(terrace_log::Order {
                        shard: l.dir.user_shards(),
                        hash: 0,
                    });
                }
                for s in slots {
                    let e = (s.loc().in_memory())
                        .then(|| l.entry(s))
                        .or_else(|| l.buffered(s));
                    let show = |e: terrace_log::Entry<'_>| {
                        format!(
                            "{:?} {:?} {:?} {:?}",
                            e.kind(),
                            e.key(),
                            e.expiry_ms(),
                            e.value().get(8..16)
                        )
                    };
                    let text = e.map(show);
                    let text = text.unwrap_or_else(|| {
                        let plan = l.plan_read(s.loc());
                        l.unpin(plan.segment);
                        let mut disk = rig.disk.queue(1).unwrap();
                        let b = terrace_media::read_blocking(&mut *disk, plan.offset, plan.len)
                            .unwrap();
                        let e = terrace_log::Entry::from_media(&b[plan.skip..], plan.seed).unwrap();
                        format!("ssd {}", show(e))
                    });
                    eprintln!("lane {lane} {text}");
                }
            }
            eprintln!("{l:?} now {}", l.now_ms());
        });
    }
    Err(format!(
        "{pieces} internal entries are left where {expected} pieces are needed"
    ))
}

fn dump(rig: &mut Rig) -> Result<BTreeMap<u8, Vec<u8>>, String> {
    let mut out = BTreeMap::new();
    for name in rig.keys()? {
        // Written by the judge of the life that this crash is inside of.
        if name == b"after" {
            continue;
        }
        let k: u8 = std::str::from_utf8(&name)
            .ok()
            .and_then(|s| s.strip_prefix("key:")?.parse().ok())
            .ok_or_else(|| format!("a key that nobody wrote: {name:?}"))?;
        if let Some(v) = rig.get(&name)? {
            out.insert(k, v);
        }
    }
    Ok(out)
}

/// Shapes that lives are lived in.
pub fn shapes() -> Vec<Shape> {
    let plain = Shape {
        segments_per_lane: 56,
        memory_segments: 16,
        ..Shape::default()
    };
    vec![
        plain,
        Shape {
            durability: Durability::Async,
            ..plain
        },
        Shape { lanes: 2, ..plain },
        Shape {
            lanes: 2,
            durability: Durability::Async,
            ..plain
        },
        Shape {
            middle_segments: 6,
            memory_segments: 14,
            durability: Durability::Async,
            ..plain
        },
    ]
}

const _: () = assert!(SEGMENT == 16 << 10);
