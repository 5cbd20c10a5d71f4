//! The process that a load of `bench memory` runs in: one kind of memory, in a cgroup of its own, under commands from its parent.
//!
//! Objects of one size, all in one of: a store's handles, objects on pages (OPP), packed pages (MP), anonymous memory that is swapped, a
//! mapped file, bare faults. It loads them, says so, and for each line `DISTRIBUTION WRITES% THREADS SECONDS` on its standard input runs that load and
//! answers with one line. Promises: every kind does the same to the same objects: a read sums all words of an object, a write
//! changes those that were not made to pack. Never: measures the device; its parent does.

use super::kind::Kind;
use super::paths::{Paths, Pattern};
use crate::load::keys::{KeyChoice, KeySource, Rng, mix};
use crate::swap::SWAP_OVER_DATA;
use anyhow::{Context, Result, bail};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_vm::floor::{Bare, Sizes};
use terrace_vm::mapped::Mapped;
use terrace_vm::opp::{Array, Heap};
use terrace_vm::store::{Pages, Shape, Store, StoreOptions, Value};
use terrace_vm::{Backing, Changed, PAGE_BYTES, Page, Region, Way};

/// Of the limit, what the program itself and its stacks may take beside what a store counts; a part of it where that is less.
const OWN_BYTES: u64 = 12 << 20;
const OWN_ONE_IN: u64 = 10;
/// The exponent of Zipf's law.
const THETA: f64 = 0.99;
/// Of a limit, a page that comes and goes for each so many bytes, and at least four times as many as leave together.
const PASSING_ONE_IN: u64 = 300 << 10;
const PASSING_MIN: u64 = 512;
/// What a page takes that lies alone in its block: a page table and the product's record, too.
const SCATTERED_BYTES: u64 = PAGE_BYTES as u64 + TABLE_BYTES;
const TABLE_BYTES: u64 = 4704;
/// Pages of a page table.
const BLOCK_PAGES: u64 = 512;
/// What a read costs a processor beside a fault (docs/adr/0022).
const READ_OVER_FAULT: f64 = 3.0;
/// Objects asked for together where that is possible.
const TOGETHER: usize = 256;
/// Operations between two looks at the clock.
const BREATH: u64 = 64;
/// Objects stored by one call while loading.
const LOAD_TOGETHER: u64 = 256;
/// Pages stored by one call while loading.
const PAGES_TOGETHER: usize = 64;

/// What a load says when it is over.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Ran {
    /// Operations.
    pub ops: u64,
    /// Time they took, seconds.
    pub seconds: f64,
    /// Faults that put a page in place, where they are ours.
    pub faults: Option<u64>,
}

/// What the objects are.
#[derive(Debug, Clone, Copy)]
pub struct Data {
    /// How many.
    pub objects: u64,
    /// Length of each, a multiple of 16 that divides a page.
    pub object_bytes: u64,
    /// Half of each is zeros, and stays so: then pages pack to about half.
    pub packs: bool,
    /// Which of them an operation touches.
    pub pattern: Pattern,
}

impl Data {
    fn words(&self) -> usize {
        self.object_bytes as usize / 8
    }

    /// Words of an object that are not zeros.
    fn full_words(&self) -> usize {
        self.words() / if self.packs { 2 } else { 1 }
    }

    /// Word `at` of object `n` when it is loaded: nothing that packs, but for what is to.
    fn word(&self, n: u64, at: usize) -> u64 {
        match at < self.full_words() {
            true => mix(n * self.words() as u64 + at as u64 + 1),
            false => 0,
        }
    }

    /// The bytes of object `n`.
    fn bytes(&self, n: u64) -> impl Iterator<Item = u8> + '_ {
        (0..self.words()).flat_map(move |at| self.word(n, at).to_le_bytes())
    }
}

/// One kind of memory with the objects in it.
enum Objects {
    Handles(Arc<Store>),
    Opp(Array, Heap),
    /// The region, and the heap that keeps its share of the cap.
    Mp(Region, Heap),
    Swapped(Vec<AtomicU64>),
    Mapped(Mapped),
    Bare(Box<Bare>),
}

/// What the parent says on the command line: kind, directory, limit in bytes, objects, bytes of each, whether they pack, the pattern of operations.
pub fn run(args: &[String]) -> Result<()> {
    let [
        kind,
        dir,
        limit_bytes,
        objects,
        object_bytes,
        packs,
        pattern,
    ] = args
    else {
        bail!(
            "a kind, a directory, a limit in bytes, a number of objects, their length, whether they pack and a pattern are needed"
        );
    };
    let kind = Kind::parse(kind)?;
    let data = Data {
        objects: objects.parse()?,
        object_bytes: object_bytes.parse()?,
        packs: packs.parse()?,
        pattern: Pattern::parse(pattern)?,
    };
    let held = load(kind, &PathBuf::from(dir), limit_bytes.parse()?, data)?;
    answer("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [distribution, writes, threads, seconds] = words[..] else {
            bail!("`{line}` is no load");
        };
        let choice = match distribution {
            "zipf" => KeyChoice::Zipf { theta: THETA },
            _ => KeyChoice::Uniform,
        };
        let load = Load {
            choice,
            data,
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

impl Objects {
    /// Faults so far.
    fn faults(&self) -> Option<u64> {
        let of_heap = |heap: &Heap| {
            let stats = heap.memory().stats();
            stats.fetched + stats.absent
        };
        match self {
            Objects::Opp(_, heap) | Objects::Mp(_, heap) => Some(of_heap(heap)),
            Objects::Bare(bare) => Some(bare.faults()),
            Objects::Handles(_) | Objects::Swapped(_) | Objects::Mapped(_) => None,
        }
    }
}

fn load(kind: Kind, dir: &Path, limit_bytes: u64, data: Data) -> Result<Objects> {
    let Data {
        objects,
        object_bytes,
        ..
    } = data;
    let (bytes, words) = (objects * object_bytes, data.words());
    let cap_bytes = limit_bytes - OWN_BYTES.min(limit_bytes / OWN_ONE_IN);
    let store = || -> Result<Arc<Store>> {
        Ok(Store::open(&StoreOptions::scratch(
            dir,
            cap_bytes,
            SWAP_OVER_DATA * bytes,
        ))?)
    };
    Ok(match kind {
        Kind::Handles => {
            let store = store()?;
            store.make_table(0, Shape::Fixed(object_bytes as u32))?;
            load_table(&store, data)?;
            Objects::Handles(store)
        }
        Kind::Opp => {
            let heap = Heap::open(store()?, Way::InThread)?;
            let array = heap.array(objects, object_bytes as u32, objects)?;
            // By faults it would take minutes.
            load_pages(&*array.backing(), 1, data)?;
            Objects::Opp(array, heap)
        }
        Kind::Mp => {
            let heap = Heap::open(store()?, Way::InThread)?;
            let pages = Arc::new(Pages::new(heap.store().clone(), 0)?);
            let region = (heap.memory()).region(bytes / PAGE_BYTES as u64, pages.clone())?;
            // By faults it would take minutes.
            load_pages(&*pages, PAGE_BYTES as u64 / object_bytes, data)?;
            Objects::Mp(region, heap)
        }
        Kind::Swapped | Kind::SwappedTwice => {
            let mut all = Vec::with_capacity(objects as usize * words);
            let each = |n| (0..words).map(move |at| AtomicU64::new(data.word(n, at)));
            all.extend((0..objects).flat_map(each));
            Objects::Swapped(all)
        }
        Kind::Mapped => {
            let path = dir.join("mapped");
            load_file(&path, data)?;
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            Objects::Mapped(Mapped::new(&file)?)
        }
        Kind::Bare | Kind::BareBest | Kind::BarePacked => {
            let path = dir.join("bare");
            load_file(&path, data)?;
            Objects::Bare(bare(&path, limit_bytes, data, kind)?)
        }
    })
}

/// Objects in a file, one after the other.
fn load_file(path: &Path, data: Data) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    for first in (0..data.objects).step_by(LOAD_TOGETHER as usize) {
        let some = first..first + LOAD_TOGETHER;
        let some: Vec<u8> = some.flat_map(|n| data.bytes(n)).collect();
        file.write_all_at(&some, first * data.object_bytes)?;
    }
    Ok(file.sync_all()?)
}

/// Bare faults over a file of objects. With a limit of 512 MiB and 32 Mi objects by Zipf's law, 0.55 of the accesses fault and 0.205 read, as a simulation of
/// the product's own policies and sizes has it (docs/adr/0035); with the best choice, pages and objects for as much DRAM as the product has for each, or, for what
/// applications touch, as much for each as costs least (docs/adr/0058), packed or not.
fn bare(path: &Path, limit_bytes: u64, data: Data, kind: Kind) -> Result<Box<Bare>> {
    let passing = (limit_bytes / PASSING_ONE_IN).max(PASSING_MIN);
    // What is left of the limit beside tables as the product has them and some for all else: with 512 MiB and objects of 128 B 286 MiB.
    let tables_bytes = data.objects * 4;
    let room_bytes =
        (limit_bytes / 25 * 21).saturating_sub(tables_bytes + passing * SCATTERED_BYTES);
    let paths = Paths::new(data.pattern, data.objects);
    let kept_bytes = match kind {
        Kind::BarePacked => data.pattern.packed_bytes(data.object_bytes),
        _ => data.object_bytes,
    };
    let usual = passing * 2 * (data.object_bytes / 256).max(1);
    let (stay, near) = match data.pattern {
        Pattern::One => (
            usual,
            room_bytes.saturating_sub(usual * SCATTERED_BYTES) / data.object_bytes,
        ),
        _ => cheapest(&paths, room_bytes, kept_bytes),
    };
    let (stay, near) = match kind {
        Kind::Bare => (stay / 2, near / 5 * 2),
        _ => (stay, near),
    };
    let sizes = Sizes {
        objects: data.objects as usize,
        object_bytes: data.object_bytes as usize,
        kept_bytes: kept_bytes as usize,
        passing: passing as usize,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(path)?;
    // What loading left in the page cache would have to be reclaimed, page by page, by the faults that are measured.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let near = (paths.by_popularity(THETA))
        .map(|(object, _)| object)
        .take(near as usize);
    let word = |object, at| data.word(object, at);
    Ok(Bare::new(file, sizes, near, stay as usize, word)?)
}

/// How many pages stay and how many objects are in DRAM, in so many bytes for both, where faults and reads together cost least.
fn cheapest(paths: &Paths, room_bytes: u64, object_bytes: u64) -> (u64, u64) {
    let most = room_bytes / object_bytes;
    let popular: Vec<(u64, f64)> = paths.by_popularity(THETA).take(most as usize).collect();
    let shares: Vec<f64> = (popular.iter())
        .scan(0.0, |sum, (_, weight)| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    // The part of what is touched that is among the first `n`, where all are 1.
    let among = |n: u64| match n.min(shares.len() as u64) {
        0 => 0.0,
        n => shares[n as usize - 1],
    };
    let all = paths.weight(THETA);
    let (mut blocks, mut best) = (HashSet::new(), (0, most));
    let mut least = f64::MAX;
    for stay in 0..popular.len() as u64 {
        let taken = stay * PAGE_BYTES as u64 + blocks.len() as u64 * TABLE_BYTES;
        let Some(left) = room_bytes.checked_sub(taken) else {
            break;
        };
        let near = left / object_bytes;
        let cost = (all - among(stay)) + READ_OVER_FAULT * (all - among(near.max(stay)));
        if cost < least {
            (least, best) = (cost, (stay, near.max(stay)));
        }
        blocks.insert(popular[stay as usize].0 / BLOCK_PAGES);
    }
    best
}

fn load_table(store: &Store, data: Data) -> Result<()> {
    for first in (0..data.objects).step_by(LOAD_TOGETHER as usize) {
        let some = first..first + LOAD_TOGETHER;
        let values: Vec<u8> = some.clone().flat_map(|n| data.bytes(n)).collect();
        let each = values.chunks_exact(data.object_bytes as usize);
        let lent: Vec<(u64, &[u8])> = some.zip(each).collect();
        store.put_many(0, &lent)?;
    }
    Ok(())
}

/// Stores pages with so many objects each.
fn load_pages(pages: &dyn Backing, objects_a_page: u64, data: Data) -> Result<()> {
    let mut room = vec![Page::ZERO; PAGES_TOGETHER];
    let all = data.objects / objects_a_page;
    for first in (0..all).step_by(PAGES_TOGETHER) {
        let some = first..all.min(first + PAGES_TOGETHER as u64);
        for (page, n) in room.iter_mut().zip(some.clone()) {
            let objects = n * objects_a_page..(n + 1) * objects_a_page;
            let bytes = objects.flat_map(|n| data.bytes(n));
            let places = page.0[pages.span(n)].iter_mut();
            places.zip(bytes).for_each(|(to, from)| *to = from);
        }
        store_all(pages, room.iter().zip(some))?;
    }
    Ok(())
}

/// Stores pages that nobody has touched yet.
pub fn store_all<'a>(
    backing: &dyn Backing,
    pages: impl Iterator<Item = (&'a Page, u64)>,
) -> Result<()> {
    let changed: Vec<Changed<'_>> = pages
        .map(|(bytes, page)| Changed {
            page,
            bytes,
            surely: true,
        })
        .collect();
    let mut done = 0;
    while done < changed.len() {
        done += backing.store(&changed[done..])?;
    }
    Ok(())
}

/// What is done to the objects.
struct Load {
    choice: KeyChoice,
    data: Data,
    writes_percent: u64,
    threads: u64,
    time: Duration,
}

fn play(held: &Objects, load: &Load) -> Result<Ran> {
    let (stop, ops) = (AtomicBool::new(false), AtomicU64::new(0));
    // Made once: for many objects Zipf's sum takes seconds.
    let paths = Paths::new(load.data.pattern, load.data.objects);
    let keys = KeySource::new(load.choice, paths.keys());
    if let Objects::Bare(bare) = held {
        bare.keeps_writes(load.writes_percent > 0);
    }
    let (started, faults) = (Instant::now(), held.faults());
    let ended: Result<Vec<()>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (stop, ops, paths, keys) = (&stop, &ops, &paths, keys.clone());
                scope.spawn(move || play_thread(held, load, paths, thread, keys, stop, ops))
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
        faults: held.faults().zip(faults).map(|(now, then)| now - then),
    })
}

fn play_thread(
    held: &Objects,
    load: &Load,
    paths: &Paths,
    thread: u64,
    mut keys: KeySource,
    stop: &AtomicBool,
    ops: &AtomicU64,
) -> Result<()> {
    let seed =
        Instant::now().elapsed().as_nanos() as u64 ^ thread << 32 ^ u64::from(std::process::id());
    let mut rng = Rng::new(mix(seed.wrapping_add(SEEDS.fetch_add(1, Relaxed))));
    let data = load.data;
    let (words, full_words) = (data.words(), data.full_words());
    let mut value = vec![0; data.object_bytes as usize];
    let mut seen = Seen::default();
    let mut reads = Vec::with_capacity(TOGETHER);
    while !stop.load(Relaxed) {
        for _ in 0..BREATH {
            let (drawn, writes) = (keys.next(&mut rng), rng.below(100) < load.writes_percent);
            let mut path = paths.objects(thread, drawn).peekable();
            while let Some(n) = path.next() {
                let write = writes && path.peek().is_none();
                // What is written is another each time: pages that are as they were need not be stored.
                let fresh = write.then(|| rng.next());
                let word = |at| n as usize * words + at;
                match held {
                    Objects::Handles(store) if write => {
                        let words = value[..full_words * 8].chunks_exact_mut(8);
                        for (word, to) in words.zip(written(fresh.unwrap_or(1))) {
                            word.copy_from_slice(&to.to_le_bytes());
                        }
                        store.put(0, n, &value)?
                    }
                    Objects::Handles(_) => reads.push(n),
                    Objects::Opp(array, _) => {
                        touch(fresh, words, full_words, &mut seen, |at| array.word(n, at))
                    }
                    Objects::Bare(bare) => {
                        touch(fresh, words, full_words, &mut seen, |at| bare.word(n, at))
                    }
                    Objects::Mp(region, _) => touch(fresh, words, full_words, &mut seen, |at| {
                        region.word(word(at))
                    }),
                    Objects::Swapped(all) => {
                        touch(fresh, words, full_words, &mut seen, |at| &all[word(at)])
                    }
                    Objects::Mapped(mapped) => touch(fresh, words, full_words, &mut seen, |at| {
                        &mapped.words()[word(at)]
                    }),
                }
            }
        }
        if let Objects::Handles(store) = held
            && reads.len() + BREATH as usize > TOGETHER
        {
            store.get_many(0, &reads, |_, value| seen.value(value))?;
            reads.clear();
        }
        ops.fetch_add(BREATH, Relaxed);
    }
    std::hint::black_box(seen.sum);
    // Bare pages have no contents that anybody keeps.
    if seen.empty > 0 && !matches!(held, Objects::Bare(_)) {
        bail!(
            "{} objects were read as zeros; all were written to",
            seen.empty
        );
    }
    Ok(())
}

/// So that no two loads meet the same objects in the same order.
static SEEDS: AtomicU64 = AtomicU64::new(1);

/// The words of an object that is written to, by the number drawn for it.
fn written(fresh: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |at| mix(fresh ^ at) | 1)
}

fn touch<'a>(
    fresh: Option<u64>,
    words: usize,
    full_words: usize,
    seen: &mut Seen,
    word: impl Fn(usize) -> &'a AtomicU64,
) {
    match fresh {
        Some(fresh) => {
            let words = (0..full_words).zip(written(fresh));
            words.for_each(|(at, to)| word(at).store(to, Relaxed))
        }
        None => seen.object((0..words).map(|at| word(at).load(Relaxed))),
    }
}

/// What was read.
#[derive(Default)]
struct Seen {
    sum: u64,
    /// Objects without a bit that is set: none was written so.
    empty: u64,
}

impl Seen {
    fn object(&mut self, words: impl Iterator<Item = u64>) {
        let (sum, any) = words.fold((self.sum, 0), |(sum, any), word| {
            (word.wrapping_add(sum), word | any)
        });
        self.sum = sum;
        self.empty += u64::from(any == 0);
    }

    fn value(&mut self, value: Value<'_>) {
        match value {
            Value::Bytes(bytes) => {
                let words = bytes.chunks_exact(8);
                self.object(words.map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes"))));
            }
            _ => self.empty += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_contents_are_counted() {
        let mut seen = Seen::default();
        let whole = [0, 0, 1].map(u64::to_le_bytes).concat();
        seen.value(Value::Bytes(&whole));
        seen.object([0, 1 << 63].into_iter());
        assert_eq!((seen.empty, seen.sum), (0, 1 + (1 << 63)));
        for lost in [Value::Free, Value::Zeros, Value::Bytes(&[0; 24])] {
            seen.value(lost);
        }
        seen.object([0, 0].into_iter());
        assert_eq!(seen.empty, 4);
        // Whatever an object is loaded with, it is none of these.
        let data = |packs| Data {
            objects: 1000,
            object_bytes: 128,
            packs,
            pattern: Pattern::One,
        };
        for data in [data(false), data(true)] {
            (0..1000).for_each(|n| seen.object((0..16).map(|at| data.word(n, at))));
        }
        assert_eq!(seen.empty, 4);
    }

    #[test]
    fn what_costs_least_is_shared_between_pages_and_objects() {
        let (bytes, all) = (512, 16 * 4000);
        let paths = Paths::new(Pattern::Tree, all);
        let mut before = 0;
        for room in [1 << 20, 4 << 20, 16 << 20] {
            let (stay, near) = cheapest(&paths, room, bytes);
            assert!(stay > before && near > stay, "{stay} {near} of {room}");
            assert!(stay * PAGE_BYTES as u64 + near * bytes <= room);
            before = stay;
        }
        // The root of each shard is touched by every operation.
        assert!(before >= 16);
        // With room for all of them on pages, all stay that are ever touched.
        assert!(cheapest(&paths, 1 << 30, bytes).0 > all / 10 * 9);
        // Without room for a page, nothing but objects.
        assert_eq!(cheapest(&paths, 3 * bytes, bytes), (0, 3));
    }
}
