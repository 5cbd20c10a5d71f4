//! A pool at its start, on a medium that was damaged anywhere. What must hold: it opens or says why not; no key ever shows a value that
//! was never written under it; and what is written after that, and acknowledged, is there at the next start.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use terrace_kv::{Expiry, Maintainer, NewValue, Outcome, Step, Task, Value, Worker};
use terrace_media::sim::{Rng, SimDevice};
use terrace_media::{Arena, BLOCK_BYTES, Device};
use terrace_pool::{Durability, ManualClock, Options, Pool, PoolError, Superblock};

const SEGMENT_BYTES: usize = 16 << 10;
const SEGMENTS: u64 = 48;
const LANES: usize = 2;
const KEYS: u64 = 80;
/// More turns than any command takes.
const TURNS_MAX: usize = 30_000;

/// All values that a key ever had.
type Written = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// Images of a pool at different moments of its life, and what was written to it.
struct Bed {
    images: Vec<Vec<u8>>,
    written: Written,
}

fn options() -> Options {
    Options {
        dram_bytes: (32 * SEGMENT_BYTES as u64 + (1 << 20)) * LANES as u64,
        durability: Durability::Sync,
        flush_interval: Duration::from_millis(50),
        threads: LANES,
        recovery_threads: 1,
        segment_bytes: SEGMENT_BYTES,
        ..Options::default()
    }
}

fn device_bytes() -> u64 {
    let head = (2 + 2 * LANES as u64) * BLOCK_BYTES as u64;
    head.next_multiple_of(SEGMENT_BYTES as u64) + LANES as u64 * SEGMENTS * SEGMENT_BYTES as u64
}

/// An open pool and its one worker.
struct Rig {
    pool: Arc<Pool>,
    worker: Worker,
    maintainer: Maintainer,
    clock: ManualClock,
}

impl Rig {
    fn open(device: &SimDevice) -> Result<Rig, PoolError> {
        let clock = ManualClock::default();
        clock.set(1_000_000);
        let options = Options {
            threads: 1,
            ..options()
        };
        let arena = Arena::new_plain(SEGMENT_BYTES, BLOCK_BYTES)?;
        let device = Arc::new(device.clone());
        let pool = Pool::on_device(device, options, Box::new(clock.clone()), Some(arena))?;
        let worker = pool.worker(0, Arc::new(|| {}))?;
        Ok(Rig {
            pool,
            worker,
            maintainer: Maintainer::new(u64::MAX),
            clock,
        })
    }

    fn turn(&mut self) {
        self.clock.set(self.worker.now_ms() + 1);
        self.worker.turn();
        self.maintainer.turn(&mut self.worker);
    }

    /// Runs a command to its end and until it is durable.
    fn run<T>(
        &mut self,
        mut f: impl FnMut(&mut Worker, &mut Task) -> Outcome<T>,
    ) -> Result<T, String> {
        let mut task = self.worker.task(1);
        let mut done = None;
        for _ in 0..TURNS_MAX {
            if let Some(why) = self.worker.failed() {
                self.worker.finish(task);
                return Err(why);
            }
            match done.take() {
                Some((r, epoch)) if self.worker.durable_epoch() >= epoch => {
                    self.worker.finish(task);
                    return Ok(r);
                }
                Some(waits) => done = Some(waits),
                None => match f(&mut self.worker, &mut task) {
                    Ok(Step::Done(r)) => {
                        done = Some((r, task.durable_at().unwrap_or(0)));
                        continue;
                    }
                    Ok(Step::Wait(_)) => {}
                    Err(e) => {
                        self.worker.finish(task);
                        return Err(e.to_string());
                    }
                },
            }
            self.turn();
        }
        panic!("a command does not end");
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let mut new = NewValue::Inline(value);
        self.run(|w, t| terrace_kv::put(w, t, key, &mut new, Expiry::None))
            .map(|_| ())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.run(|w, t| {
            terrace_kv::get(w, t, key, |v| match v {
                Value::Inline(b) => Some(b.to_vec()),
                Value::Absent | Value::Large(_) => None,
            })
        })
    }

    fn close(self) {
        self.worker.close();
        let _ = self.pool.close();
    }
}

fn bed() -> &'static Bed {
    static BED: OnceLock<Bed> = OnceLock::new();
    BED.get_or_init(|| {
        let device = SimDevice::new(device_bytes(), 1);
        let superblock = Superblock::plan(&options(), device_bytes(), [1, 2, 3]).expect("a plan");
        let mut queue = device.queue(8).expect("a queue");
        superblock.write(&mut *queue).expect("a superblock");
        let mut rng = Rng::new(7);
        let mut bed = Bed {
            images: Vec::new(),
            written: Written::new(),
        };
        for life in 0..3 {
            let mut rig = Rig::open(&device).expect("it opens");
            for n in 0..200 {
                let key = format!("key:{}", rng.below(KEYS as usize)).into_bytes();
                if n % 9 == 8 {
                    rig.run(|w, t| terrace_kv::del(w, t, &[&key]))
                        .expect("deleted");
                    continue;
                }
                let value: Vec<u8> = (0..20 + rng.below(600)).map(|_| rng.bits() as u8).collect();
                rig.set(&key, &value).expect("written");
                bed.written.entry(key).or_default().push(value);
            }
            // As a crash leaves it, and as a stop does.
            bed.images.push(device.durable_image());
            if life == 1 {
                let mut scanned = device.durable_image();
                let roots = 2 * BLOCK_BYTES;
                scanned[roots..roots + 2 * LANES * BLOCK_BYTES].fill(0);
                bed.images.push(scanned);
            }
            rig.close();
            bed.images.push(device.durable_image());
        }
        bed
    })
}

/// Damages an image as the input says: a byte chooses it; then each five bytes are a damage and its place, with what it needs behind.
fn damaged(data: &[u8]) -> Vec<u8> {
    let images = &bed().images;
    let (which, mut rest) = data.split_first().unwrap_or((&0, &[]));
    let mut image = images[usize::from(*which) % images.len()].clone();
    while let [kind, a, b, c, n, behind @ ..] = rest {
        rest = behind;
        let place = u32::from_le_bytes([*a, *b, *c, 0]) as usize % image.len();
        let block = place / BLOCK_BYTES * BLOCK_BYTES;
        match kind % 6 {
            0 => image[place] ^= 1 << (n % 8),
            1 => {
                let len = usize::from(*n % 32)
                    .min(behind.len())
                    .min(image.len() - place);
                image[place..place + len].copy_from_slice(&behind[..len]);
                rest = &behind[len..];
            }
            2 => image[block..block + BLOCK_BYTES].fill(0),
            // A block that went elsewhere.
            3 => {
                let to = (block + (1 + usize::from(*n)) * BLOCK_BYTES) % image.len();
                image.copy_within(block..block + BLOCK_BYTES, to);
            }
            // A block as it was in another life, or as it will be.
            4 => {
                let other = &images[usize::from(*n) % images.len()];
                image[block..block + BLOCK_BYTES].copy_from_slice(&other[block..][..BLOCK_BYTES]);
            }
            _ => {
                let from = block / SEGMENT_BYTES * SEGMENT_BYTES;
                let len = SEGMENT_BYTES.min(image.len() - from);
                image[from..from + len].fill(*n);
            }
        }
    }
    image
}

/// See the module.
pub fn recovery(data: &[u8]) {
    let device = SimDevice::with_image(damaged(data), 1);
    let Ok(mut rig) = Rig::open(&device) else {
        return;
    };
    judge(&mut rig);
    let new = rig.set(b"new", b"written after the damage");
    rig.close();
    // A medium that is well from here on.
    let device = SimDevice::with_image(device.durable_image(), 1);
    match Rig::open(&device) {
        Ok(mut rig) => {
            judge(&mut rig);
            let found = rig.get(b"new");
            if new.is_ok() {
                assert_eq!(
                    found,
                    Ok(Some(b"written after the damage".to_vec())),
                    "acknowledged and lost"
                );
            }
            rig.close();
        }
        Err(e) => assert!(new.is_err(), "it was open, and does not open again: {e}"),
    }
}

fn judge(rig: &mut Rig) {
    for (key, values) in &bed().written {
        let Ok(Some(found)) = rig.get(key) else {
            continue;
        };
        let key = String::from_utf8_lossy(key);
        assert!(
            values.contains(&found),
            "{key} shows what was never its value"
        );
    }
}
