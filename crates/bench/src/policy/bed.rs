//! A whole pool in this process, over memory instead of a device and a clock that counts operations.
//!
//! Promises that a run with the same seed does the same again: no thread, no real time and no real device takes part, so a figure
//! is a count and not a timing. The code under it is the product's own. Never: says anything about speed.

use anyhow::{Result, anyhow, bail};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrace_kv::{Expiry, NewValue, Outcome, Step, Task, Value, Worker};
use terrace_media::{Arena, BLOCK_BYTES, Counters, Device, Disk, Done, MediaError, Op, Wait};
use terrace_pool::{Durability, ManualClock, Options, Pool, Stats, Superblock};

const SEGMENT_BYTES: usize = 512 << 10;
/// Operations a second that the clock pretends.
const OPS_PER_S: u64 = 50_000;
/// Operations between two turns of the background work, as a busy server has them.
const OPS_PER_TURN: u64 = 16;
/// Turns that an operation may wait before the run counts as stuck.
const TURNS_MAX: u32 = 100_000;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 4096;

struct Memory {
    bytes: Vec<u8>,
    counters: Counters,
}

/// A block medium in memory, done with an operation as soon as it is reaped.
#[derive(Clone)]
struct MemoryDevice(Arc<Mutex<Memory>>, u64);

struct MemoryDisk(MemoryDevice, Vec<(u64, Op)>);

impl Device for MemoryDevice {
    fn len_bytes(&self) -> u64 {
        self.1
    }
    fn queue(&self, _depth: u32) -> Result<Box<dyn Disk>, MediaError> {
        Ok(Box::new(MemoryDisk(self.clone(), Vec::new())))
    }
    fn describe(&self) -> String {
        "memory".into()
    }
    fn counters(&self) -> Counters {
        self.0.lock().expect("no panic under it").counters
    }
}

impl Disk for MemoryDisk {
    fn submit(&mut self, token: u64, op: Op) {
        self.1.push((token, op));
    }
    fn kick(&mut self) {}
    fn reap(&mut self, _wait: Wait, done: &mut Vec<Done>) {
        let mut memory = self.0.0.lock().expect("no panic under it");
        for (token, op) in self.1.drain(..) {
            let buf = memory.run(op);
            done.push(Done {
                token,
                result: Ok(()),
                buf,
            });
        }
    }
    fn in_flight(&self) -> usize {
        self.1.len()
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
}

impl Memory {
    fn run(&mut self, op: Op) -> Option<terrace_media::Buf> {
        match op {
            Op::Read { offset, mut buf } => {
                let len = buf.len();
                buf.copy_from_slice(&self.bytes[offset as usize..][..len]);
                self.counters.reads += 1;
                self.counters.read_bytes += len as u64;
                Some(buf)
            }
            Op::Write { offset, data } | Op::WriteThrough { offset, data } => {
                self.write(offset, &data);
                None
            }
            Op::WriteBuf { offset, buf } => {
                self.write(offset, &buf);
                Some(buf)
            }
            Op::Flush => {
                self.counters.flushes += 1;
                None
            }
        }
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        self.bytes[offset as usize..][..data.len()].copy_from_slice(data);
        self.counters.writes += 1;
        self.counters.write_bytes += data.len() as u64;
    }
}

/// A pool that is driven operation by operation.
pub struct Bed {
    pool: Arc<Pool>,
    worker: Worker,
    clock: ManualClock,
    operations: u64,
    value: Vec<u8>,
}

/// The key of a number, 16 bytes.
fn key_of(number: u32) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Bytes that a value of `value_bytes` takes in a terrace with its key and header.
pub fn entry_bytes(value_bytes: usize) -> usize {
    terrace_log::entry::entry_bytes(key_of(0).len(), value_bytes, false, false)
}

impl Bed {
    /// An empty pool of one lane in async mode.
    pub fn new(dram_bytes: u64, ssd_bytes: u64) -> Result<Bed> {
        let options = Options {
            dram_bytes,
            ssd_bytes,
            durability: Durability::Async,
            flush_interval: Duration::from_secs(1),
            threads: 1,
            segment_bytes: SEGMENT_BYTES,
            ..Options::default()
        };
        // Superblock and roots lie before the first segment.
        let bytes = (ssd_bytes as usize + SEGMENT_BYTES).next_multiple_of(BLOCK_BYTES);
        let memory = Memory {
            bytes: vec![0; bytes],
            counters: Counters::default(),
        };
        let device = MemoryDevice(Arc::new(Mutex::new(memory)), bytes as u64);
        let superblock = Superblock::plan(&options, bytes as u64, [0x5eed, 2, 3])?;
        superblock.write(&mut *device.queue(8)?)?;
        let arena = Arena::new_plain(SEGMENT_BYTES, dram_bytes as usize / SEGMENT_BYTES + 64)?;
        let clock = ManualClock::default();
        clock.set(1 << 40);
        let time = Box::new(clock.clone());
        let pool = Pool::on_device(Arc::new(device), options, time, Some(arena))?;
        let worker = pool.worker(0, Arc::new(|| {}))?;
        Ok(Bed {
            pool,
            worker,
            clock,
            operations: 0,
            value: vec![b'v'; VALUE_BYTES_MAX],
        })
    }

    /// Counters and gauges of the pool.
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// Reads a key.
    pub fn get(&mut self, number: u32) -> Result<()> {
        let key = key_of(number);
        self.run(|w, t| terrace_kv::get(w, t, &key, |v| matches!(v, Value::Inline(_))))
            .map(|_| ())
    }

    /// Writes a key.
    pub fn set(&mut self, number: u32, value_bytes: usize) -> Result<()> {
        let key = key_of(number);
        let value = std::mem::take(&mut self.value);
        let done = self.run(|w, t| {
            let mut new = NewValue::Inline(&value[..value_bytes]);
            terrace_kv::put(w, t, &key, &mut new, Expiry::None)
        });
        self.value = value;
        done.map(|_| ())
    }

    /// Deletes a key.
    pub fn del(&mut self, number: u32) -> Result<()> {
        let key = key_of(number);
        self.run(|w, t| terrace_kv::del(w, t, &[&key])).map(|_| ())
    }

    fn run<T>(&mut self, mut f: impl FnMut(&mut Worker, &mut Task) -> Outcome<T>) -> Result<T> {
        self.operations += 1;
        self.clock
            .set((1 << 40) + self.operations * 1000 / OPS_PER_S);
        if self.operations.is_multiple_of(OPS_PER_TURN) {
            self.worker.turn();
        }
        let mut task = self.worker.task(1);
        for _ in 0..TURNS_MAX {
            match f(&mut self.worker, &mut task) {
                Ok(Step::Done(result)) => {
                    self.worker.finish(task);
                    return Ok(result);
                }
                Ok(Step::Wait(wait)) => {
                    if wait == terrace_kv::Wait::Room {
                        self.worker.want_room();
                    }
                    self.worker.turn();
                }
                Err(e) => {
                    self.worker.finish(task);
                    return Err(anyhow!("operation {}: {e}", self.operations));
                }
            }
        }
        bail!("operation {} is stuck", self.operations)
    }
}
