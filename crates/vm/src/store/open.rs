//! Opening a store, its tables, and what it tells of itself.

use super::buffers::{Buffers, Queues};
use super::chunks::Chunks;
use super::driver::{Driver, Work};
use super::error::ObjectError;
use super::here::Opener;
use super::room::Room;
use super::same::Same;
use super::table::{CHUNK_SLOTS, Places, Shape, State, Table};
use super::tables::{Dealt, OBJECTS_MAX, TABLES_MAX, Tables, subject};
use crate::PAGE_BYTES;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use terrace_log::entry::entry_bytes;
use terrace_log::{INLINE_MAX_BYTES, ObjectId, addr};
use terrace_media::Buf;
use terrace_pool::{Contents, Durability, Lane, Options, Pool, PoolError, Stats, Superblock};
use terrace_pool::{RwLock, Turns};

/// Cap for each lane, about: more lanes are locked less often, and each takes 4 MiB of buffers, and 6 MiB of segments at least.
const CAP_PER_LANE_BYTES: u64 = 64 << 20;
/// Lanes of a store that is made, at most; and no more than there are processors to use them at the same time (docs/adr/0046).
const LANES_MAX: u64 = 4;
/// Segments of a lane in the cap, about. Its buffers and what is free or half filled are some twenty segments: with larger ones a small cap has little else
/// (docs/adr/0075).
const SEGMENTS_PER_LANE: u64 = 512;
/// An entry is a quarter of a segment at most: of longer ones too few fit to fill it well (`terrace_tiers::policy::is_well_filled`).
const SEGMENT_MIN_BYTES: u64 = 256 << 10;
const SEGMENT_MAX_BYTES: u64 = 512 << 10;
/// What is known of each segment on the SSD takes about so much of the cap, and all of them one part in so many at most.
const KNOWN_OF_SEGMENT_BYTES: u64 = 96;
const KNOWN_ONE_IN: u64 = 64;
/// Longest object: what one entry takes.
pub(crate) const OBJECT_MAX_BYTES: usize = INLINE_MAX_BYTES;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Directory of the pool.
    pub dir: PathBuf,
    /// DRAM in bytes, everything counted: tables, segments, buffers, and pages that a program sees.
    pub cap_bytes: u64,
    /// Size on the SSD, bytes; 0: four times the cap.
    pub ssd_bytes: u64,
    /// Whether objects outlive the program.
    pub durable: bool,
    /// Whether the pool's file is written once when it is made: takes a while, and makes the first write of each part cheaper.
    pub prewrite: bool,
    /// Longest time a change of a durable object stays in DRAM only.
    pub flush_interval: Duration,
    /// Whether threads that want room do some of the store's work, which is quicker than to wait for it. What they begin at the device ends in them: the kernel tells them in
    /// a way that may end another system call early that waits (EINTR, or a part of what was asked), as a signal would.
    pub helped: bool,
}

impl StoreOptions {
    /// Objects that do not outlive the program, in the directory `dir`.
    pub fn scratch(dir: impl Into<PathBuf>, cap_bytes: u64, ssd_bytes: u64) -> StoreOptions {
        StoreOptions {
            dir: dir.into(),
            cap_bytes,
            ssd_bytes,
            durable: false,
            prewrite: true,
            flush_interval: Duration::from_secs(1),
            helped: true,
        }
    }

    /// A pool that is kept, in the directory `dir`.
    pub fn kept(dir: impl Into<PathBuf>, cap_bytes: u64, ssd_bytes: u64) -> StoreOptions {
        StoreOptions {
            durable: true,
            ..StoreOptions::scratch(dir, cap_bytes, ssd_bytes)
        }
    }

    /// The pool's settings.
    pub(crate) fn pool(&self) -> Options {
        let processors = std::thread::available_parallelism().map_or(LANES_MAX, |n| n.get() as u64);
        let lanes = (self.cap_bytes / CAP_PER_LANE_BYTES).clamp(1, LANES_MAX.min(processors));
        // A power of two, so that an id says its lane by some bits.
        let lanes = 1 << lanes.ilog2();
        Options {
            dir: self.dir.clone(),
            dram_bytes: self.cap_bytes,
            ssd_bytes: self.ssd_bytes,
            threads: lanes as usize,
            segment_bytes: segment_bytes(self.cap_bytes, self.ssd_bytes, lanes) as usize,
            durability: Durability::Async,
            flush_interval: self.flush_interval,
            prewrite: self.prewrite,
            contents: match self.durable {
                true => Contents::Objects,
                false => Contents::Scratch,
            },
            ..Options::default()
        }
    }
}

/// Bytes of a segment of a store that is made.
fn segment_bytes(cap_bytes: u64, ssd_bytes: u64, lanes: u64) -> u64 {
    let of_cap = cap_bytes / lanes / SEGMENTS_PER_LANE;
    let known_max = (cap_bytes / KNOWN_ONE_IN / KNOWN_OF_SEGMENT_BYTES).max(1);
    let bytes = of_cap.max(ssd_bytes.div_ceil(known_max));
    let bytes = bytes.clamp(SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES);
    bytes.next_power_of_two()
}

/// Pages whose contents are known, for each page that the cap could hold: another page takes the place of one in four while it is there.
const SAME_PER_PAGE: u64 = 4;

/// A table that was made.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Made {
    shape: Shape,
    /// Whoever has it promises room for what is in it, and nobody else may use it by number.
    pub(super) owned: bool,
}

/// Objects by table and id, for any number of threads.
pub struct Store {
    pub(crate) pool: Arc<Pool<Tables>>,
    pub(crate) driver: Driver,
    pub(crate) dealt: Dealt,
    pub(crate) keeps: bool,
    pub(super) opener: Opener,
    pub(super) shapes: RwLock<Vec<Option<Made>>>,
    pub(crate) room: Room,
    pub(super) buffers: Buffers,
    same: OnceLock<Same>,
    pub(super) queues: Queues,
    /// Where the next new object goes.
    pub(crate) next_lane: AtomicU64,
}

/// Makes the empty tables of a lane for these settings.
pub(crate) fn make_tables(options: &Options) -> impl Fn(u16, &Superblock) -> Tables + use<> {
    let dram_bytes = options.dram_bytes;
    move |lane, superblock| empty_tables(lane, superblock, dram_bytes)
}

/// How a pool deals numbers to its lanes.
fn dealt(superblock: &Superblock) -> Dealt {
    let keeps = superblock.contents == Contents::Objects;
    Dealt::new(superblock.lanes.ilog2(), !keeps)
}

/// The empty tables of a lane of this pool, whose lanes have up to `dram_bytes` together.
pub(super) fn empty_tables(lane: u16, superblock: &Superblock, dram_bytes: u64) -> Tables {
    let lanes = u64::from(superblock.lanes);
    let segments = u64::from(superblock.segments_per_lane);
    let units = |bytes: u64| bytes.div_ceil(addr::UNIT_BYTES as u64);
    let places = Places {
        ssd: units(segments * u64::from(superblock.segment_bytes)),
        dram: units(dram_bytes / lanes),
    };
    let keeps = superblock.contents == Contents::Objects;
    Tables::new(lane, dealt(superblock), places, keeps)
}

impl Store {
    /// Opens the store in `options.dir`, or makes it.
    pub fn open(options: &StoreOptions) -> Result<Arc<Store>, PoolError> {
        let work = match options.helped {
            true => Work::Both,
            false => Work::Thread,
        };
        let options = options.pool();
        let make = make_tables(&options);
        let pool = Pool::open_objects(options, &make, &mut |_, _, _| {})?;
        Store::on_pool(pool, work)
    }

    /// Over a pool that is open.
    pub(crate) fn on_pool(pool: Arc<Pool<Tables>>, work: Work) -> Result<Arc<Store>, PoolError> {
        let superblock = pool.superblock();
        if !superblock.lanes.is_power_of_two() {
            return Err(PoolError::Setting {
                what: "the number of lanes",
                asked: superblock.lanes.to_string(),
                allowed: "a pool of objects has a power of two; make it anew".into(),
            });
        }
        let opener = Opener::new(&pool)?;
        let driver = Driver::start(&pool, work)?;
        let usable_bytes = (0..superblock.lanes)
            .map(|lane| pool.lane(lane).usable_bytes())
            .sum();
        Ok(Arc::new(Store {
            room: Room::new(usable_bytes),
            opener,
            dealt: dealt(superblock),
            keeps: pool.options().contents == Contents::Objects,
            driver,
            shapes: RwLock::new(Vec::new()),
            buffers: Buffers::new(pool.ledger()),
            same: OnceLock::new(),
            queues: Queues::default(),
            next_lane: AtomicU64::new(0),
            pool,
        }))
    }

    /// Makes table `table`, or says again what a table of a durable store looks like. Objects that are put into it take room that is not promised to
    /// others. Refuses a table that an array, pool or malloc has, and in a scratch store one that was made for objects of another size.
    pub fn make_table(&self, table: u16, shape: Shape) -> Result<(), ObjectError> {
        self.make(table, shape, false)
    }

    /// The same for who promises room for all that will be in it.
    pub(crate) fn make_owned_table(&self, table: u16, shape: Shape) -> Result<(), ObjectError> {
        self.make(table, shape, true)
    }

    /// The number of a table that nobody has; it is the caller's until it drops the table.
    pub(crate) fn take_table(&self) -> Option<u16> {
        self.here().ok()?;
        let mut shapes = self.shapes.write();
        let table = shapes.iter().position(Option::is_none);
        let table = table.unwrap_or(shapes.len());
        if table >= TABLES_MAX {
            return None;
        }
        if table == shapes.len() {
            shapes.push(None);
        }
        shapes[table] = Some(Made {
            shape: Shape::Any,
            owned: true,
        });
        Some(table as u16)
    }

    /// What numbers of a table that is made take of DRAM for their slots.
    pub(crate) fn chunks_of(&self, table: u16) -> Result<Chunks, ObjectError> {
        Ok(self.chunks(self.made(table)?.shape))
    }

    /// The same of a table of that shape.
    pub(crate) fn chunks(&self, shape: Shape) -> Chunks {
        let lanes = u64::from(self.lanes());
        Chunks {
            lanes,
            numbers: CHUNK_SLOTS as u64 * lanes,
            chunk_bytes: self.pool.lane(0).dir.chunk_bytes_max(shape) as u64,
        }
    }

    /// A number of a table from which on all are free, and have no slots.
    pub(crate) fn end_of(&self, table: u16) -> u64 {
        let ends = (0..self.lanes()).map(|lane| {
            let lane = self.pool.lane(lane);
            lane.dir.table(table).map_or(0, Table::end)
        });
        ends.max().unwrap_or(0) * u64::from(self.lanes())
    }

    /// Gives a number back whose table was not made, or is empty.
    pub(crate) fn give_table(&self, table: u16) {
        for lane in 0..self.lanes() {
            // Whoever has the number next makes one of another shape.
            self.pool.lane(lane).dir.drop_table(table);
        }
        self.shapes.write()[usize::from(table)] = None;
    }

    fn make(&self, table: u16, shape: Shape, owned: bool) -> Result<(), ObjectError> {
        self.here()?;
        if usize::from(table) >= TABLES_MAX {
            return Err(ObjectError::NoTable { table });
        }
        if let Shape::Fixed(bytes) = shape
            && !(1..=OBJECT_MAX_BYTES as u32).contains(&bytes)
        {
            return Err(ObjectError::Length {
                table,
                asked: bytes.into(),
                allowed: OBJECT_MAX_BYTES as u64,
            });
        }
        let mut shapes = self.shapes.write();
        let at = usize::from(table);
        if shapes.len() <= at {
            shapes.resize(at + 1, None);
        }
        let made = Made { shape, owned };
        let before = shapes[at];
        // Slots of a scratch store are those of the first shape, and what was put there unpromised has taken room.
        let fixed = !self.keeps && self.pool.lane(0).dir.table(table).is_some();
        let theirs = before.is_some_and(|before| before.owned) && !owned;
        if theirs || fixed && before != Some(made) {
            return Err(ObjectError::Taken { table });
        }
        for lane in 0..self.lanes() {
            self.pool.lane(lane).dir.make(table, shape);
        }
        shapes[at] = Some(made);
        Ok(())
    }

    /// What the objects of a table look like.
    pub fn shape(&self, table: u16) -> Result<Shape, ObjectError> {
        Ok(self.made(table)?.shape)
    }

    pub(super) fn made(&self, table: u16) -> Result<Made, ObjectError> {
        self.here()?;
        let shapes = self.shapes.read();
        let made = shapes.get(usize::from(table)).copied().flatten();
        made.ok_or(ObjectError::NoTable { table })
    }

    /// Refuses a table that an array, pool, region or the like has, as [`make_table`](Store::make_table) does: what is in it is changed by who has it alone.
    pub(super) fn refuse_owned(&self, table: u16) -> Result<(), ObjectError> {
        match self.made(table)?.owned {
            true => Err(ObjectError::Taken { table }),
            false => Ok(()),
        }
    }

    /// What the objects of a table look like, and whether each takes room when it is put there. In a durable store everything is promised: a slot there
    /// may be a tombstone's.
    pub(crate) fn shape_and_counted(&self, table: u16) -> Result<(Shape, bool), ObjectError> {
        let made = self.made(table)?;
        Ok((made.shape, !made.owned && !self.keeps))
    }

    /// Frees every object of a table of a scratch store, and the table. Calls of others on it must have ended: what they store meanwhile takes
    /// its room of the SSD for good, or is in the table that has its number next. Refuses a table that an array, pool or malloc has.
    pub fn drop_table(&self, table: u16) -> Result<(), ObjectError> {
        self.refuse_owned(table)?;
        self.drop_own_table(table)
    }

    /// The same for who has the table.
    pub(crate) fn drop_own_table(&self, table: u16) -> Result<(), ObjectError> {
        let (_, counted) = self.shape_and_counted(table)?;
        if self.keeps {
            // Its tables are those of named regions.
            return Err(ObjectError::Taken { table });
        }
        for lane in 0..self.lanes() {
            self.empty_table(lane, table, counted);
            self.pool.lane(lane).dir.drop_table(table);
        }
        self.shapes.write()[usize::from(table)] = None;
        Ok(())
    }

    fn empty_table(&self, lane: u16, table: u16, counted: bool) {
        let (mut at, mut turns) = (Some(0), Turns::begin());
        while let Some(n) = at {
            // Let go of the lane now and then: others want it.
            let mut held = self.pool.lane(lane);
            for n in n..n + EMPTY_AT_ONCE {
                let oid = held.dir.object(table, n);
                if counted {
                    self.room.give(self.taken_by(held.dir.get(oid)));
                }
                forget(&mut held, oid);
            }
            at = held
                .dir
                .table(table)
                .and_then(|t| t.skip_to(n + EMPTY_AT_ONCE));
            drop(held);
            turns.let_others();
        }
    }

    /// Lanes.
    pub(crate) fn lanes(&self) -> u16 {
        self.pool.superblock().lanes
    }
    /// The number of an object, and its lane.
    #[inline]
    pub(crate) fn place(&self, table: u16, id: u64) -> Result<(ObjectId, u16), ObjectError> {
        self.here()?;
        match id < OBJECTS_MAX {
            true => Ok((ObjectId::new(table, id), self.dealt.lane_of(id))),
            false => Err(ObjectError::Range { table, id }),
        }
    }

    /// From now on it knows the contents that it has of pages, where those ask.
    pub(super) fn know_pages(&self) {
        self.same.get_or_init(|| {
            let pages = self.pool.ledger().cap_bytes() / PAGE_BYTES as u64;
            let same = Same::of(pages * SAME_PER_PAGE, self.pool.superblock().hash_key.0);
            self.count_pages(0, same.bytes());
            same
        });
    }

    /// From now on also entries that were used in DRAM are remembered when they leave it: without, where most are written anew before they leave, nothing tells what a larger DRAM terrace would spare.
    pub(super) fn remember_used(&self) {
        for lane in 0..self.lanes() {
            self.pool.lane(lane).remember_used();
        }
    }

    /// Which contents it has of pages, if it knows.
    pub(super) fn same(&self) -> Option<&Same> {
        self.same.get()
    }

    /// Pages that were given back as the store had them.
    pub fn pages_same(&self) -> u64 {
        self.same.get().map_or(0, Same::found_so_far)
    }

    /// A buffer for a read of `len` bytes.
    pub(crate) fn take_buf(&self, len: usize) -> Buf {
        self.buffers.take(self.pool.ledger(), len)
    }
    /// Gives it back.
    pub(crate) fn keep_buf(&self, buf: Buf) {
        self.buffers.keep(self.pool.ledger(), buf);
    }

    /// Entries that were read again while they were remembered, their bytes, and how many are remembered at a time.
    pub(crate) fn recalled(&self) -> (u64, u64, u64) {
        (0..self.lanes()).fold((0, 0, 0), |sum, lane| {
            let lane = self.pool.lane(lane);
            let (keys, bytes) = lane.recalled();
            (sum.0 + keys, sum.1 + bytes, sum.2 + lane.remembers())
        })
    }
    /// Bytes of entries that its SSD takes, headers included.
    pub fn usable_bytes(&self) -> u64 {
        (0..self.lanes())
            .map(|lane| self.pool.lane(lane).usable_bytes())
            .sum()
    }
    /// What an object of so many bytes takes of it.
    pub(crate) fn room_of(&self, bytes: usize) -> u64 {
        self.ends_too(entry_bytes(ObjectId::KEY_BYTES, bytes, false, false) as u64)
    }
    /// Size of its SSD terrace.
    pub(crate) fn ssd_bytes(&self) -> u64 {
        self.pool.superblock().len_bytes()
    }
    /// A number that no other store has.
    pub(crate) fn identity(&self) -> u64 {
        self.pool.superblock().pool
    }
    /// Refuses in a fork of the process that opened it.
    #[inline]
    pub(crate) fn here(&self) -> Result<(), ObjectError> {
        self.opener.here()
    }
    /// Whether this is the process that opened it: for what ends.
    pub(crate) fn is_here(&self) -> bool {
        self.opener.is_here()
    }
    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        (self.here()).map_or_else(|_| Stats::default(), |()| self.pool.stats())
    }
    /// In a fork, where it is dropped: nothing of the parent's ends with it. A piece of the DRAM terrace would give its memory back, and a ring would wait for what the parent has under way.
    fn leave(&mut self) {
        self.driver.leave();
        std::mem::forget(self.pool.clone());
        std::mem::forget(std::mem::take(&mut self.queues));
    }
    /// Why it takes no more, if it does not.
    pub fn failure(&self) -> Option<String> {
        self.pool.failure()
    }
}

/// Slots freed under one lock.
const EMPTY_AT_ONCE: u64 = 1024;

/// Makes an object of a scratch lane free.
pub(crate) fn forget(lane: &mut Lane<Tables>, oid: ObjectId) {
    match lane.dir.get(oid) {
        State::At(slot) => lane.discard(subject(oid), slot),
        State::Free => {}
        State::Zeros | State::Fill(_) => lane.dir.set(oid, State::Free),
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !self.is_here() {
            return self.leave();
        }
        self.driver.stop();
        if self.keeps
            && self.pool.failure().is_none()
            && let Err(error) = self.pool.close()
        {
            tracing::error!(%error, "the store was not closed in time; the next start replays its log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_store_has_a_lane_for_each_processor_and_a_small_one_has_one() {
        let lanes = |cap_bytes| StoreOptions::scratch("p", cap_bytes, 0).pool().threads;
        let processors = std::thread::available_parallelism().map_or(4, usize::from);
        assert_eq!(lanes(32 << 20), 1);
        assert_eq!(lanes(8 << 30), 1 << processors.min(4).ilog2());
    }

    #[test]
    fn a_small_cap_has_small_segments_and_a_large_ssd_has_large_ones() {
        let of = |cap: u64, ssd: u64, lanes| segment_bytes(cap << 20, ssd << 20, lanes) >> 10;
        assert_eq!((of(32, 128, 1), of(59, 1280, 1)), (256, 256));
        assert_eq!((of(256, 1024, 2), of(512, 8192, 2)), (256, 512));
        // What is known of segments is a sixty-fourth of the cap, as far as the largest allow.
        assert_eq!((of(59, 4096, 1), of(59, 1 << 20, 1)), (512, 512));
        assert_eq!(of(0, 0, 1), 256);
    }
}
