//! Making, opening, recovering and closing a pool.
//!
//! Promises: a pool half made is none; what is opened was made for what it is asked to hold, and fits the settings; a clean stop ends in a
//! checkpoint. Never: is on the way of a command.

use crate::clock::{Clamped, Clock, SystemClock};
use crate::commit::Commit;
use crate::ledger::Ledger;
use crate::lock::PoolLock;
use crate::locks::Mutex;
use crate::options::{Contents, DRAM_PER_LANE_MIN_BYTES, Options};
use crate::pool::Pool;
use crate::recover::{Recovered, recover};
use crate::superblock::{self, Superblock};
use crate::worker::Worker;
use crate::{Lane, PoolError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use terrace_index::KeyMap;
use terrace_log::{Hasher, Snapshot};
use terrace_media::{Arena, BLOCK_BYTES, Device, FileDevice};
use terrace_tiers::{Config, Rule};

/// Longest time a clean stop may take to write what is dirty, s.
const CLOSE_MAX_S: u64 = 120;

/// Makes the empty directory of a lane.
pub type MakeDirectory<'a, D> = &'a dyn Fn(u16, &Superblock) -> D;

pub(crate) fn key_map(_lane: u16, superblock: &Superblock) -> KeyMap {
    KeyMap::new(superblock.user_shards, superblock.unit_bits())
}

impl Pool {
    /// Opens the pool in `options.dir`, or makes it. `progress` is told what is
    /// being done, how far it is, and how much there is.
    pub fn open_or_create(
        options: Options,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<Arc<Pool>, PoolError> {
        make_missing(&options, progress)?;
        Pool::open(options)
    }

    /// Makes a pool; there must be none.
    pub fn create(
        options: &Options,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<Superblock, PoolError> {
        if is_there(&options.dir)? {
            return Err(PoolError::Exists(options.dir.clone()));
        }
        make(options, progress, &|_| Ok(()))
    }

    /// Opens a pool that exists.
    pub fn open(options: Options) -> Result<Arc<Pool>, PoolError> {
        if !is_there(&options.dir)? {
            return Err(PoolError::Missing(options.dir.clone()));
        }
        let path = data_path(&options.dir);
        let mut lock = PoolLock::take(&options.dir)?;
        let device = Arc::new(FileDevice::open(&path)?);
        lock.claim(&device)?;
        let clock = Box::new(SystemClock);
        Pool::with_device(device, options, clock, Some(lock), None, &key_map)
    }

    /// Opens a pool on any device, with any clock: what tests use. `arena`: memory
    /// for segments; None makes locked shared memory of the cap's size.
    pub fn on_device(
        device: Arc<dyn Device>,
        options: Options,
        clock: Box<dyn Clock>,
        arena: Option<Arc<Arena>>,
    ) -> Result<Arc<Pool>, PoolError> {
        Pool::with_device(device, options, clock, None, arena, &key_map)
    }
}

impl<D: Snapshot + Send> Pool<D> {
    /// Opens a pool whose directory is not the key map, or makes it; `options.contents` says
    /// which. One of scratch contents starts empty, and is made anew if its size differs.
    pub fn open_objects(
        options: Options,
        make: MakeDirectory<'_, D>,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<Arc<Pool<D>>, PoolError> {
        make_missing(&options, progress)?;
        let path = data_path(&options.dir);
        let mut lock = PoolLock::take(&options.dir)?;
        let mut device = FileDevice::open(&path)?;
        lock.claim(&device)?;
        if options.contents == Contents::Scratch {
            // A file that is to go would stay as long as the claim on it.
            lock.unclaim();
            device = format(&options, device, &path, &mut lock, progress)?;
            lock.claim(&device)?;
        }
        let clock = Box::new(SystemClock);
        Pool::with_device(Arc::new(device), options, clock, Some(lock), None, make)
    }

    /// The same on any device and with any clock: what tests use. The pool must have been made.
    pub fn objects_on_device(
        device: Arc<dyn Device>,
        options: Options,
        clock: Box<dyn Clock>,
        arena: Option<Arc<Arena>>,
        make: MakeDirectory<'_, D>,
    ) -> Result<Arc<Pool<D>>, PoolError> {
        Pool::with_device(device, options, clock, None, arena, make)
    }

    fn with_device(
        device: Arc<dyn Device>,
        options: Options,
        clock: Box<dyn Clock>,
        mut lock: Option<PoolLock>,
        arena: Option<Arc<Arena>>,
        make: MakeDirectory<'_, D>,
    ) -> Result<Arc<Pool<D>>, PoolError> {
        let started = Instant::now();
        let mut disk = device.plain_queue()?;
        let (superblock, both) = Superblock::read(&mut *disk)?.ok_or_else(|| {
            let path = data_path(&options.dir);
            match &mut lock {
                Some(lock) => lock.not_a_pool(path),
                None => PoolError::NotAPool { path },
            }
        })?;
        check_contents(&options, &superblock)?;
        // Tests bring an arena, which may be smaller.
        if arena.is_none() {
            check_dram(&options, &superblock)?;
        }
        if device.len_bytes() < superblock.len_bytes() {
            return Err(PoolError::Cut {
                path: data_path(&options.dir),
                bytes: device.len_bytes(),
                wanted_bytes: superblock.len_bytes(),
            });
        }
        if !both {
            tracing::warn!("one copy of the superblock is damaged; writing it again");
            superblock.mend(&mut *disk)?;
        }
        let segment = superblock.segment_bytes as usize;
        let pieces = ((options.dram_bytes + options.middle_bytes) as usize / segment).max(8);
        let arena = match arena {
            Some(arena) => arena,
            None => Arena::new(segment, pieces)?,
        };
        if !arena.is_locked() {
            tracing::debug!("DRAM segments are not locked in memory; see: terrace doctor");
        }
        let hasher = hasher_of(&superblock);
        let quota = pieces_for(&options, &superblock);
        let mut lanes: Vec<Lane<D>> = (0..superblock.lanes)
            .map(|lane| {
                let mut lane = new_lane(lane, &superblock, &options, hasher, quota, &arena, make);
                lane.set_device(device.read_unit_bytes(), device.writes_through());
                lane
            })
            .collect();
        drop(disk);
        let (found, valid) = match superblock.contents {
            Contents::Scratch => (Recovered::default(), 0),
            _ => recover(&device, &mut lanes, &options)?,
        };
        let clean = found.clean;
        let clamped = Clamped::new(clock);
        for lane in &lanes {
            clamped.at_least(lane.now_ms());
        }
        for d in &found.damage {
            tracing::error!(
                lane = d.lane,
                segment = d.segment,
                from = d.from_bytes,
                to = d.to_bytes,
                what = d.what,
                "these bytes of the pool are damaged; `terrace pool check` tells more"
            );
        }
        let pool = Pool {
            commit: Commit::new(lanes.len() as u32, valid + 1),
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            ledger: Ledger::new(options.dram_bytes),
            clock: clamped,
            hasher,
            device,
            arena,
            superblock,
            options,
            failed: OnceLock::new(),
            wakers: Mutex::new(Vec::new()),
            // Epochs of an earlier run that count are below this, so its versions are too.
            next_version: AtomicU64::new((valid + 1) << 32),
            flushes_of_all: AtomicU64::new(0),
            extension: OnceLock::new(),
            damage: found.damage,
            recovery_ms: started.elapsed().as_millis() as u64,
            clean,
            _lock: lock,
        };
        Ok(Arc::new(pool))
    }

    /// The worker of thread `i` of `options.threads`. `wake` is called from other
    /// threads when it should run a turn.
    pub fn worker(
        self: &Arc<Pool<D>>,
        i: usize,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Worker<D>, PoolError> {
        let threads = self.options.threads.max(1);
        let home: Vec<u16> = (0..self.superblock.lanes)
            .filter(|lane| usize::from(*lane) % threads == i)
            .collect();
        self.wakers.lock().push(wake);
        Worker::new(self.clone(), home)
    }

    /// The only worker of a pool: it looks after all lanes, whoever turns it.
    pub fn sole_worker(
        self: &Arc<Pool<D>>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Worker<D>, PoolError> {
        self.wakers.lock().push(wake);
        Worker::new(self.clone(), (0..self.superblock.lanes).collect())
    }

    /// A clean stop, after every worker was closed: everything durable, a
    /// checkpoint, and the warm image.
    pub fn close(self: &Arc<Pool<D>>) -> Result<(), PoolError> {
        let mut worker = Worker::new(self.clone(), (0..self.superblock.lanes).collect())?;
        let until = Instant::now() + Duration::from_secs(CLOSE_MAX_S);
        let settled = worker.run_until(until, |w| {
            let dirty = w.hold_all().each().any(|(_, l)| l.has_undurable());
            if dirty {
                w.want_durable();
            }
            let quiet = w
                .hold_all()
                .each()
                .all(|(_, l)| l.quiet() && !l.checkpointing());
            !dirty && quiet && !self.commit.under_way()
        });
        if !settled {
            return Err(self.not_closed());
        }
        let mut numbers = Vec::new();
        for (_, lane) in worker.hold_all().each() {
            lane.settle();
            lane.ask_checkpoint();
            numbers.push(lane.checkpoint_number());
        }
        worker.close_behind_checkpoint();
        let saved = worker.run_until(until, |w| {
            let mut held = w.hold_all();
            let mut lanes = held.each();
            lanes.all(|(id, l)| l.checkpoint_number() > numbers[id as usize] && l.quiet())
        });
        match saved {
            true => Ok(()),
            false => Err(self.not_closed()),
        }
    }

    fn not_closed(&self) -> PoolError {
        let failure = self.failure();
        PoolError::Failed(
            failure.unwrap_or_else(|| "the device did not finish in time".to_string()),
        )
    }
}

pub(crate) fn new_lane<D: Snapshot>(
    lane: u16,
    superblock: &Superblock,
    options: &Options,
    hasher: Hasher,
    quota: usize,
    arena: &Arc<Arena>,
    make: MakeDirectory<'_, D>,
) -> Lane<D> {
    let cfg = lane_config(lane, superblock, options, hasher, quota);
    Lane::new(cfg, make(lane, superblock), arena)
}

/// What says whose an entry is.
pub(crate) fn hasher_of(superblock: &Superblock) -> Hasher {
    match superblock.contents {
        Contents::Keys => Hasher::new(superblock.hash_key),
        Contents::Objects | Contents::Scratch => Hasher::of_objects(),
    }
}

fn lane_config(
    lane: u16,
    superblock: &Superblock,
    options: &Options,
    hasher: Hasher,
    quota: usize,
) -> Config {
    let segment = superblock.segment_bytes as usize;
    Config {
        lane,
        lanes: superblock.lanes,
        pool: match options.without_rule {
            Some(Rule::BoundToPool) => 0,
            _ => superblock.pool,
        },
        segment_bytes: segment,
        ssd_base: superblock.lane_base(lane),
        ssd_segments: superblock.segments_per_lane,
        root_base: superblock.root_base(lane),
        memory_segments: quota,
        middle_segments: options.middle_bytes as usize / segment / superblock.lanes as usize,
        dirty_max_bytes: u64::MAX,
        scratch: superblock.contents == Contents::Scratch,
        hasher,
        without_rule: options.without_rule,
    }
}

/// DRAM segments of a lane when nothing else is held yet.
pub(crate) fn pieces_for(options: &Options, superblock: &Superblock) -> usize {
    let segment = u64::from(superblock.segment_bytes);
    let bytes = options.dram_bytes - options.dram_bytes / 8;
    (bytes / segment / u64::from(superblock.lanes)) as usize
}

/// Makes the pool if there is none; what it could not be opened with afterwards is refused before that.
fn make_missing(
    options: &Options,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<(), PoolError> {
    if is_there(&options.dir)? {
        return Ok(());
    }
    match make(options, progress, &|planned| check_dram(options, planned)) {
        // Another process was quicker.
        Err(PoolError::Exists(_)) => Ok(()),
        made => made.map(drop),
    }
}

/// Makes a pool of which `fits` has nothing to say against the plan.
fn make(
    options: &Options,
    progress: &mut dyn FnMut(&str, u64, u64),
    fits: &dyn Fn(&Superblock) -> Result<(), PoolError>,
) -> Result<Superblock, PoolError> {
    let dir = &options.dir;
    let path = data_path(dir);
    let ssd_bytes = match options.ssd_bytes {
        0 => options.dram_bytes.saturating_mul(4),
        bytes => bytes,
    };
    let ssd_bytes = whole_blocks(ssd_bytes);
    let secret = new_secret(dir)?;
    let block = options.device.as_deref().map(FileDevice::open);
    let block = block.transpose()?;
    // What is refused for its settings leaves nothing behind.
    let plan = |bytes| Superblock::plan(options, bytes, secret);
    fits(&plan(block.as_ref().map_or(ssd_bytes, Device::len_bytes))?)?;
    if let (Some(device), Some(at)) = (&block, &options.device)
        && superblock::is_marked(&mut *device.plain_queue()?)?
    {
        return Err(PoolError::Setting {
            what: "the device",
            asked: at.display().to_string(),
            allowed: "there is a pool on it already; use it by a link to it named `data` in a pool's directory, or remove it there \
                with: terrace pool destroy"
                .into(),
        });
    }
    if let (Some(device), Some(at)) = (&block, &options.device)
        && !device.is_block_device()
        && !superblock::is_blank(&mut *device.plain_queue()?)?
    {
        return Err(PoolError::Setting {
            what: "the device",
            asked: at.display().to_string(),
            allowed: "it is a file that holds something: a block device, or a file that begins with zeros".into(),
        });
    }
    make_dir(dir)?;
    let _lock = PoolLock::take(dir)?;
    if is_there(dir)? {
        // Another process was quicker.
        return Err(PoolError::Exists(dir.clone()));
    }
    // Under another name until it is whole: a pool half made is none.
    let part = part_path(dir);
    let _ = std::fs::remove_file(&part);
    let device = match (block, &options.device) {
        (Some(device), Some(at)) => {
            // By the name that was said, which stays the same when devices are numbered anew.
            let linked =
                std::path::absolute(at).and_then(|at| std::os::unix::fs::symlink(at, &part));
            linked.map_err(|e| PoolError::io(&part, e))?;
            device
        }
        _ => make_file(options, &part, ssd_bytes, progress)?,
    };
    let superblock = plan(device.len_bytes())?;
    superblock.write(&mut *device.plain_queue()?)?;
    std::fs::rename(&part, &path).map_err(|e| PoolError::io(&path, e))?;
    sync_dir(dir)?;
    Ok(superblock)
}

/// A pool is opened for what it holds.
fn check_contents(options: &Options, superblock: &Superblock) -> Result<(), PoolError> {
    match options.contents == superblock.contents {
        true => Ok(()),
        false => Err(PoolError::Contents {
            path: data_path(&options.dir),
            is: superblock.contents.name(),
            asked: options.contents.name(),
        }),
    }
}

/// Gives a scratch pool new numbers, so that nothing of its last life checks any more, and the
/// size asked for. What holds anything else is left alone.
fn format(
    options: &Options,
    device: FileDevice,
    path: &Path,
    lock: &mut PoolLock,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<FileDevice, PoolError> {
    let found = Superblock::read(&mut *device.plain_queue()?)?;
    let (found, _) = found.ok_or_else(|| lock.not_a_pool(path.into()))?;
    check_contents(options, &found)?;
    let is_file = !device.is_block_device();
    let len_bytes = match options.ssd_bytes {
        asked if is_file && asked != 0 => whole_blocks(asked),
        _ => device.len_bytes(),
    };
    let secret = new_secret(&options.dir)?;
    // What is refused for its settings leaves the pool as it was.
    let superblock = Superblock::plan(options, len_bytes, secret)?;
    check_dram(options, &superblock)?;
    if len_bytes == device.len_bytes() {
        superblock.write(&mut *device.plain_queue()?)?;
        return Ok(device);
    }
    drop(device);
    // First, since the file system may not have room for both. A process that is ended after this leaves no pool, and the next one makes it.
    std::fs::remove_file(path).map_err(|e| PoolError::io(path, e))?;
    let plan = |bytes| Superblock::plan(options, bytes, secret);
    make_whole(options, path, len_bytes, &plan, progress)?;
    // By the name that it has from now on.
    Ok(FileDevice::open(path)?)
}

/// A file with a superblock at `path`, which it has as its name when it is whole: a pool half made is none.
fn make_whole(
    options: &Options,
    path: &Path,
    len_bytes: u64,
    plan: &dyn Fn(u64) -> Result<Superblock, PoolError>,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<(), PoolError> {
    let part = part_path(&options.dir);
    let _ = std::fs::remove_file(&part);
    let device = make_file(options, &part, len_bytes, progress)?;
    plan(device.len_bytes())?.write(&mut *device.plain_queue()?)?;
    std::fs::rename(&part, path).map_err(|e| PoolError::io(path, e))?;
    sync_dir(&options.dir)
}

/// A file for a pool.
fn make_file(
    options: &Options,
    path: &Path,
    len_bytes: u64,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<FileDevice, PoolError> {
    let mut told = |done: u64| progress("making the pool", done, len_bytes);
    Ok(match options.prewrite {
        true => FileDevice::create(path, len_bytes, &mut told)?,
        false => FileDevice::create_unwritten(path, len_bytes)?,
    })
}

/// What a file of at most so many bytes can be.
fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % BLOCK_BYTES as u64
}

/// Three numbers that nobody can guess.
fn new_secret(dir: &Path) -> Result<[u64; 3], PoolError> {
    let mut secret = [0u64; 3];
    for word in &mut secret {
        *word = getrandom::u64()
            .map_err(|e| PoolError::io(dir, std::io::Error::other(e.to_string())))?;
    }
    Ok(secret)
}

/// Whether the lanes of a pool can be had within the cap, and their directories name all of it.
fn check_dram(options: &Options, superblock: &Superblock) -> Result<(), PoolError> {
    let lanes = u64::from(superblock.lanes);
    let refused = |allowed| PoolError::Setting {
        what: "the DRAM cap",
        asked: format!("{} MiB", options.dram_bytes >> 20),
        allowed,
    };
    let least = DRAM_PER_LANE_MIN_BYTES * lanes;
    if options.dram_bytes < least {
        return Err(refused(format!(
            "a pool of {lanes} lanes (one for each thread that it is made for) needs at least {} MiB",
            least >> 20
        )));
    }
    let most = 16u64 << superblock.unit_bits();
    if options.dram_bytes / lanes > most {
        return Err(refused(format!(
            "a pool of this size and {lanes} lanes takes at most {} MiB",
            (most * lanes) >> 20
        )));
    }
    Ok(())
}

/// The file (or link to a block device) that holds a pool's data.
pub(crate) fn data_path(dir: &Path) -> PathBuf {
    dir.join("data")
}

/// Where that is while it is made; what a process left that was ended meanwhile.
pub(crate) fn part_path(dir: &Path) -> PathBuf {
    dir.join("data.part")
}

/// Whether there is a pool. A link to what is not there is one whose device is missing, and no place for another.
pub(crate) fn is_there(dir: &Path) -> Result<bool, PoolError> {
    let path = data_path(dir);
    match std::fs::symlink_metadata(&path) {
        Ok(found) if found.is_symlink() => match std::fs::metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) => Err(PoolError::NoDevice { path, error }),
        },
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(PoolError::io(&path, e)),
    }
}

/// Makes the pool's own directory; those above it must be there, since a path that was mistyped would be made as well.
fn make_dir(dir: &Path) -> Result<(), PoolError> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(PoolError::NoParent(dir.to_path_buf())),
        Err(e) => Err(PoolError::io(dir, e)),
        // What becomes durable in it is found by its name.
        Ok(()) => match dir.parent().filter(|above| !above.as_os_str().is_empty()) {
            Some(above) => sync_dir(above),
            None => sync_dir(Path::new(".")),
        },
    }
}

fn sync_dir(dir: &Path) -> Result<(), PoolError> {
    let synced = std::fs::File::open(dir).and_then(|d| d.sync_all());
    synced.map_err(|e| PoolError::io(dir, e))
}
