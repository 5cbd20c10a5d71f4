//! The process that a load of `bench memory` runs in: one kind of memory, in a cgroup of its own, under commands from its parent.
//!
//! Objects of 128 B, all in one of: a store's handles, objects on pages (OPP), packed pages (MP), anonymous memory that is swapped, a
//! mapped file. It loads them, says so, and for each line `DISTRIBUTION WRITES% THREADS SECONDS` on its standard input runs that load and
//! answers with one line. Promises: every kind does the same to the same objects: a read sums the 16 words of an object, a write
//! changes all of them. Never: measures the device; its parent does.

use super::kind::Kind;
use crate::load::keys::{KeyChoice, KeySource, Rng, mix};
use anyhow::{Context, Result, bail};
use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_vm::mapped::Mapped;
use terrace_vm::opp::{Array, Heap};
use terrace_vm::store::{Pages, Shape, Store, StoreOptions, Value};
use terrace_vm::{Memory, Options, PAGE_BYTES, Region, Way};

/// Length of an object.
pub const OBJECT_BYTES: u64 = 128;
const WORDS: usize = OBJECT_BYTES as usize / 8;
const OBJECTS_A_PAGE: u64 = PAGE_BYTES as u64 / OBJECT_BYTES;
/// Of the limit, what the program itself and its stacks may take beside what a store counts.
const OWN_BYTES: u64 = 20 << 20;
/// Objects asked for together where that is possible.
const TOGETHER: usize = 256;
/// Operations between two looks at the clock.
const BREATH: u64 = 64;
/// Objects stored by one call while loading.
const LOAD_TOGETHER: u64 = 256;
/// Part of the cap, in percent, that a page buffer of whole pages gets.
const PAGES_PERCENT: u64 = 25;

/// What a load says when it is over.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Ran {
    /// Operations.
    pub ops: u64,
    /// Time they took, seconds.
    pub seconds: f64,
}

/// One kind of memory with the objects in it.
enum Objects {
    Handles(Arc<Store>),
    Opp(Array),
    Mp(Region),
    Swapped(Vec<AtomicU64>),
    Mapped(Mapped),
}

/// What the parent says on the command line: kind, directory, limit in bytes, objects.
pub fn run(args: &[String]) -> Result<()> {
    let [kind, dir, limit_bytes, objects] = args else {
        bail!("a kind, a directory, a limit in bytes and a number of objects are needed");
    };
    let kind = Kind::parse(kind)?;
    let (limit_bytes, objects) = (limit_bytes.parse()?, objects.parse()?);
    let held = load(kind, &PathBuf::from(dir), limit_bytes, objects)?;
    answer("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [distribution, writes, threads, seconds] = words[..] else {
            bail!("`{line}` is no load");
        };
        let choice = match distribution {
            "zipf" => KeyChoice::Zipf { theta: 0.99 },
            _ => KeyChoice::Uniform,
        };
        let load = Load {
            choice,
            objects,
            writes_percent: writes.parse()?,
            threads: threads.parse()?,
            time: Duration::from_secs_f64(seconds.parse()?),
        };
        answer(&serde_json::to_string(&play(&held, &load)?)?)?;
    }
    Ok(())
}

fn answer(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().context("the parent is gone")
}

/// Word `at` of object `n` when it is loaded: nothing that packs.
fn word_of(n: u64, at: usize) -> u64 {
    mix(n * WORDS as u64 + at as u64 + 1)
}

fn load(kind: Kind, dir: &Path, limit_bytes: u64, objects: u64) -> Result<Objects> {
    let bytes = objects * OBJECT_BYTES;
    let cap_bytes = limit_bytes - OWN_BYTES;
    let store = || -> Result<Arc<Store>> {
        Ok(Store::open(&StoreOptions::scratch(
            dir,
            cap_bytes,
            2 * bytes,
        ))?)
    };
    Ok(match kind {
        Kind::Handles => {
            let store = store()?;
            store.make_table(0, Shape::Fixed(OBJECT_BYTES as u32))?;
            load_table(&store, objects)?;
            Objects::Handles(store)
        }
        Kind::Opp => {
            let heap = Heap::open(store()?, Way::InThread)?;
            let array = heap.array(objects, OBJECT_BYTES as u32, objects)?;
            // The heap's first table: by faults it would take minutes.
            load_table(heap.store(), objects)?;
            Objects::Opp(array)
        }
        Kind::Mp => {
            let store = store()?;
            let pages_max = (cap_bytes * PAGES_PERCENT / 100) as usize / PAGE_BYTES;
            store.count_pages(0, (pages_max * PAGE_BYTES) as u64);
            let memory = Memory::new(Options {
                pages_max,
                ..Options::default()
            })?;
            let pages = Arc::new(Pages::new(store.clone(), 0)?);
            let region = memory.region(objects / OBJECTS_A_PAGE, pages)?;
            (0..objects).for_each(|n| fill(n, |at| region.word(n as usize * WORDS + at)));
            Objects::Mp(region)
        }
        Kind::Swapped => {
            let mut words = Vec::with_capacity(objects as usize * WORDS);
            words.extend(
                (0..objects).flat_map(|n| (0..WORDS).map(move |at| AtomicU64::new(word_of(n, at)))),
            );
            Objects::Swapped(words)
        }
        Kind::Mapped => {
            let path = dir.join("mapped");
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path)?;
            let page = |first: u64| -> Vec<u8> {
                let words = (first..first + LOAD_TOGETHER)
                    .flat_map(|n| (0..WORDS).map(move |at| word_of(n, at)));
                words.flat_map(u64::to_le_bytes).collect()
            };
            for first in (0..objects).step_by(LOAD_TOGETHER as usize) {
                file.write_all_at(&page(first), first * OBJECT_BYTES)?;
            }
            file.sync_all()?;
            Objects::Mapped(Mapped::new(&file)?)
        }
    })
}

fn fill<'a>(n: u64, word: impl Fn(usize) -> &'a AtomicU64) {
    (0..WORDS).for_each(|at| word(at).store(word_of(n, at), Relaxed));
}

fn load_table(store: &Store, objects: u64) -> Result<()> {
    for first in (0..objects).step_by(LOAD_TOGETHER as usize) {
        let values: Vec<(u64, [u8; OBJECT_BYTES as usize])> = (first..first + LOAD_TOGETHER)
            .map(|n| {
                let mut value = [0; OBJECT_BYTES as usize];
                for (at, word) in value.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&word_of(n, at).to_le_bytes());
                }
                (n, value)
            })
            .collect();
        let lent: Vec<(u64, &[u8])> = values.iter().map(|(n, value)| (*n, &value[..])).collect();
        store.put_many(0, &lent)?;
    }
    Ok(())
}

/// What is done to the objects.
struct Load {
    choice: KeyChoice,
    objects: u64,
    writes_percent: u64,
    threads: u64,
    time: Duration,
}

fn play(held: &Objects, load: &Load) -> Result<Ran> {
    let (stop, ops) = (AtomicBool::new(false), AtomicU64::new(0));
    // Made once: for many objects Zipf's sum takes seconds.
    let keys = KeySource::new(load.choice, load.objects);
    let started = Instant::now();
    let ended: Result<Vec<()>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (stop, ops, keys) = (&stop, &ops, keys.clone());
                scope.spawn(move || play_thread(held, load, thread, keys, stop, ops))
            })
            .collect();
        std::thread::sleep(load.time);
        stop.store(true, Relaxed);
        running
            .into_iter()
            .map(|t| t.join().expect("a load does not panic"))
            .collect()
    });
    ended?;
    Ok(Ran {
        ops: ops.load(Relaxed),
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn play_thread(
    held: &Objects,
    load: &Load,
    thread: u64,
    mut keys: KeySource,
    stop: &AtomicBool,
    ops: &AtomicU64,
) -> Result<()> {
    let seed =
        Instant::now().elapsed().as_nanos() as u64 ^ thread << 32 ^ u64::from(std::process::id());
    let mut rng = Rng::new(mix(seed.wrapping_add(SEEDS.fetch_add(1, Relaxed))));
    let mut sum = 0u64;
    let mut reads = Vec::with_capacity(TOGETHER);
    while !stop.load(Relaxed) {
        for _ in 0..BREATH {
            let (n, is_write) = (keys.next(&mut rng), rng.below(100) < load.writes_percent);
            match (held, is_write) {
                (Objects::Handles(store), true) => {
                    store.put(0, n, &[rng.next() as u8; OBJECT_BYTES as usize])?
                }
                (Objects::Handles(_), false) => reads.push(n),
                (Objects::Opp(array), write) => touch(write, &mut sum, |at| array.word(n, at)),
                (Objects::Mp(region), write) => {
                    touch(write, &mut sum, |at| region.word(n as usize * WORDS + at))
                }
                (Objects::Swapped(words), write) => {
                    touch(write, &mut sum, |at| &words[n as usize * WORDS + at])
                }
                (Objects::Mapped(mapped), write) => {
                    touch(write, &mut sum, |at| {
                        &mapped.words()[n as usize * WORDS + at]
                    });
                }
            }
        }
        if let Objects::Handles(store) = held
            && reads.len() + BREATH as usize > TOGETHER
        {
            store.get_many(0, &reads, |_, value| sum = sum.wrapping_add(sum_of(value)))?;
            reads.clear();
        }
        ops.fetch_add(BREATH, Relaxed);
    }
    std::hint::black_box(sum);
    Ok(())
}

/// So that no two loads meet the same objects in the same order.
static SEEDS: AtomicU64 = AtomicU64::new(1);

fn touch<'a>(write: bool, sum: &mut u64, word: impl Fn(usize) -> &'a AtomicU64) {
    for at in 0..WORDS {
        match write {
            true => word(at).store(*sum ^ at as u64, Relaxed),
            false => *sum = sum.wrapping_add(word(at).load(Relaxed)),
        }
    }
}

fn sum_of(value: Value<'_>) -> u64 {
    match value {
        Value::Bytes(bytes) => {
            let words = bytes
                .chunks_exact(8)
                .map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")));
            words.fold(0, u64::wrapping_add)
        }
        _ => 0,
    }
}
