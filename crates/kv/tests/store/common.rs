//! Driving a pool on simulated devices, one step at a time, from one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use terrace_kv::{Expiry, Maintainer, Outcome, Step, Task, Worker};
use terrace_media::sim::{Rng, SimDevice};
use terrace_media::{Arena, Device};
use terrace_pool::{Durability, ManualClock, Options, Pool, Rule, Superblock};

pub const SEGMENT: usize = 16 << 10;

/// How a simulated pool is made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub lanes: usize,
    pub segments_per_lane: u64,
    pub segment_bytes: usize,
    pub memory_segments: u64,
    pub middle_segments: u64,
    pub durability: Durability,
    pub recovery_threads: usize,
    pub without_rule: Option<Rule>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            lanes: 1,
            segments_per_lane: 64,
            segment_bytes: SEGMENT,
            memory_segments: 24,
            middle_segments: 0,
            durability: Durability::Sync,
            recovery_threads: 1,
            without_rule: None,
        }
    }
}

impl Shape {
    pub fn options(&self) -> Options {
        Options {
            // The ledger keeps slack and buffers out of what segments may take.
            dram_bytes: ((self.memory_segments + 8) * self.segment_bytes as u64 + (1 << 20))
                * self.lanes as u64,
            middle_bytes: self.middle_segments * self.segment_bytes as u64 * self.lanes as u64,
            durability: self.durability,
            flush_interval: Duration::from_millis(50),
            threads: self.lanes,
            // One reads after the other, so that a seed's faults hit the same reads each time.
            recovery_threads: self.recovery_threads,
            segment_bytes: self.segment_bytes,
            without_rule: self.without_rule,
            ..Options::default()
        }
    }
    pub fn device_bytes(&self) -> u64 {
        let head = (2 + 2 * self.lanes as u64) * 4096;
        head.next_multiple_of(self.segment_bytes as u64)
            + self.lanes as u64 * self.segments_per_lane * self.segment_bytes as u64
    }
    /// A device with an empty pool on it.
    pub fn device(&self, seed: u64) -> SimDevice {
        let device = SimDevice::new(self.device_bytes(), seed);
        let secret = [seed | 1, 2, 3];
        let superblock = Superblock::plan(&self.options(), self.device_bytes(), secret).unwrap();
        superblock.write(&mut *device.queue(8).unwrap()).unwrap();
        device
    }
}

/// An open pool with one worker that looks after all lanes.
pub struct Rig {
    pub pool: Arc<Pool>,
    pub worker: Worker,
    pub maintainer: Maintainer,
    pub clock: ManualClock,
    pub shape: Shape,
    pub disk: SimDevice,
    /// The system's clock, ms, where it was set back; else it goes with the pool's.
    pub set_back_ms: Option<u64>,
    /// Called after every turn with the durable epoch.
    pub on_turn: Option<Box<dyn FnMut(u64)>>,
}

/// Turns that a command may take before the test calls it stuck.
const TURNS_MAX: usize = 30_000;

impl Rig {
    pub fn open(device: &SimDevice, shape: Shape, clock: ManualClock) -> Rig {
        Rig::try_open(device, shape, clock).expect("the pool opens")
    }
    pub fn try_open(
        device: &SimDevice,
        shape: Shape,
        clock: ManualClock,
    ) -> Result<Rig, terrace_pool::PoolError> {
        let mut options = shape.options();
        options.threads = 1;
        let arena = Arena::new_plain(shape.segment_bytes, 4096)?;
        let pool = Pool::on_device(
            Arc::new(device.clone()),
            options,
            Box::new(clock.clone()),
            Some(arena),
        )?;
        let worker = pool.worker(0, Arc::new(|| {}))?;
        Ok(Rig {
            pool,
            worker,
            maintainer: Maintainer::new(u64::MAX),
            clock,
            shape,
            disk: device.clone(),
            set_back_ms: None,
            on_turn: None,
        })
    }

    /// One turn of everything; time passes a little.
    pub fn turn(&mut self) {
        let now = self.set_back_ms.unwrap_or(self.worker.now_ms()) + 1;
        self.clock.set(now);
        self.set_back_ms = self.set_back_ms.map(|_| now);
        self.worker.turn();
        self.maintainer.turn(&mut self.worker);
        if let Some(f) = &mut self.on_turn {
            f(self.worker.durable_epoch());
        }
    }

    /// Runs a command to its end. Errors and a pool that failed end it too.
    pub fn run<T>(
        &mut self,
        mut f: impl FnMut(&mut Worker, &mut Task) -> Outcome<T>,
    ) -> Result<(T, Option<u64>), String> {
        let mut task = self.worker.task(1);
        for _ in 0..TURNS_MAX {
            match f(&mut self.worker, &mut task) {
                Ok(Step::Done(r)) => {
                    let durable_at = task.durable_at();
                    self.worker.finish(task);
                    return Ok((r, durable_at));
                }
                Ok(Step::Wait(_)) => self.turn(),
                Err(e) => {
                    self.worker.finish(task);
                    return Err(e.to_string());
                }
            }
            if let Some(why) = self.worker.failed() {
                self.worker.finish(task);
                return Err(why);
            }
        }
        self.stuck("stuck")
    }

    /// The same, until its reply may go out.
    pub fn run_durable<T>(
        &mut self,
        f: impl FnMut(&mut Worker, &mut Task) -> Outcome<T>,
    ) -> Result<T, String> {
        let (r, at) = self.run(f)?;
        let Some(epoch) = at else { return Ok(r) };
        for _ in 0..TURNS_MAX {
            if self.worker.durable_epoch() >= epoch {
                return Ok(r);
            }
            if let Some(why) = self.worker.failed() {
                return Err(why);
            }
            self.turn();
        }
        self.stuck("not durable")
    }

    fn stuck(&self, what: &str) -> ! {
        let lanes = (0..self.pool.superblock().lanes)
            .map(|l| self.pool.with_lane(l, |lane| format!("{lane:?}\n")));
        panic!("{what}: {}", lanes.collect::<String>());
    }

    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut large = None;
        let got = self.run_durable(|w, t| {
            terrace_kv::get(w, t, key, |v| match v {
                terrace_kv::Value::Absent => None,
                terrace_kv::Value::Inline(b) => Some(b.to_vec()),
                terrace_kv::Value::Large(r) => {
                    large = Some(r);
                    Some(Vec::new())
                }
            })
        })?;
        let Some(held) = large else { return Ok(got) };
        let mut out = Vec::new();
        for n in 0..held.pieces() {
            let piece = self
                .run(|w, t| terrace_kv::read_piece(w, t, &held, n, |b| b.to_vec()))?
                .0;
            out.extend_from_slice(&piece);
        }
        Ok(Some(out))
    }

    /// Sets without waiting for durability; returns the epoch to wait for.
    pub fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        expiry: terrace_kv::Expiry,
    ) -> Result<Option<u64>, String> {
        let mut new = self.value(value)?;
        let r = self.run(|w, t| terrace_kv::put(w, t, key, &mut new, expiry));
        r.map(|(_, epoch)| epoch)
    }

    /// A value as it is handed over; a long one is brought in.
    pub fn value<'a>(&mut self, value: &'a [u8]) -> Result<terrace_kv::NewValue<'a>, String> {
        if value.len() <= terrace_kv::inline_max_bytes(&self.worker) {
            return Ok(terrace_kv::NewValue::Inline(value));
        }
        let mut upload = self
            .run(|w, t| terrace_kv::upload_begin(w, t, value.len() as u64))?
            .0;
        for piece in value.chunks(terrace_kv::piece_bytes(&self.worker)) {
            self.run(|w, t| terrace_kv::upload_piece(w, t, &mut upload, piece))?;
        }
        Ok(terrace_kv::NewValue::Large(upload))
    }

    pub fn del(&mut self, keys: &[&[u8]]) -> Result<(u64, Option<u64>), String> {
        self.run(|w, t| terrace_kv::del(w, t, keys))
    }

    pub fn mset(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Option<u64>, String> {
        let r = self.run(|w, t| {
            let mut list: Vec<(&[u8], terrace_kv::NewValue<'_>)> = pairs
                .iter()
                .map(|(k, v)| (&k[..], terrace_kv::NewValue::Inline(&v[..])))
                .collect();
            terrace_kv::mset(w, t, &mut list)
        });
        r.map(|(_, epoch)| epoch)
    }

    /// All keys by SCAN.
    pub fn keys(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            let next = self
                .run(|w, t| terrace_kv::scan(w, t, cursor, 50, &mut |k| keys.push(k.to_vec())))?
                .0;
            if next == 0 {
                keys.sort();
                keys.dedup();
                return Ok(keys);
            }
            cursor = next;
        }
    }

    /// Turns until nothing is dirty and nothing is under way.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            let s = self.pool.stats();
            if s.lanes.dirty_bytes == 0 && s.durable_epoch + 1 == s.epoch {
                return;
            }
            self.worker.want_durable();
        }
        self.stuck("does not settle")
    }

    /// A clean stop.
    pub fn close(self) {
        self.worker.close();
        self.pool.close().expect("a clean stop");
    }
}

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn clock() -> ManualClock {
    let clock = ManualClock::default();
    clock.set(1_000_000);
    clock
}

pub fn value(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.bits() as u8).collect()
}

/// A pool with some keys, all durable.
pub fn filled(shape: Shape, seed: u64, keys: usize) -> (SimDevice, Rig, Model) {
    let device = shape.device(seed);
    let mut rig = Rig::open(&device, shape, clock());
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    for n in 0..keys {
        let key = format!("key:{n}").into_bytes();
        let v = value(&mut rng, 100 + n % 400);
        rig.set(&key, &v, Expiry::None).unwrap();
        model.insert(key, v);
    }
    rig.settle();
    (device, rig, model)
}

/// Flips a bit in every copy of `bytes` on the device.
pub fn flip_all(device: &SimDevice, bytes: &[u8]) {
    let image = device.image();
    let windows = image.windows(bytes.len()).enumerate();
    let places: Vec<usize> = windows.filter(|(_, w)| *w == bytes).map(|w| w.0).collect();
    assert!(!places.is_empty(), "it is on the device");
    for at in places {
        device.faults().flip_bit(at as u64 + 2, 3);
    }
}

/// Keys of a pool of which nothing is in DRAM, and bytes of each one's value, all sevens.
pub const COLD_KEYS: usize = 640;
pub const COLD_VALUE_BYTES: usize = 1900;

/// Such a pool, opened after its power went, and its keys.
pub fn cold(shape: Shape, expiry: Expiry) -> (Rig, Vec<Vec<u8>>) {
    let device = shape.device(3);
    let mut rig = Rig::open(&device, shape, clock());
    let key = |n| format!("key:{n}").into_bytes();
    let keys: Vec<Vec<u8>> = (0..COLD_KEYS).map(key).collect();
    for key in &keys {
        rig.set(key, &[7; COLD_VALUE_BYTES], expiry).unwrap();
    }
    rig.settle();
    let device = SimDevice::with_image(device.durable_image(), 3);
    let mut rig = Rig::open(&device, shape, clock());
    // The records of values in pieces are looked at.
    (0..100).for_each(|_| rig.turn());
    (rig, keys)
}
