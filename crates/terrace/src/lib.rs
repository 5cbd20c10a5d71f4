//! Memory that is larger than DRAM, for programs in Rust.
//!
//! Here: the face of Terrace's memory that is meant to last; the crates below may change. Promises: each example is run as a test. Never: code of
//! its own beyond opening.
//!
//! A pool is a file on an SSD and a bound on DRAM. What is allocated from it is plain memory: what is not in DRAM is read when it is touched. The
//! same in C is `terrace.h`; what it says on system calls, signals and fork holds here.
//!
//! # Objects, each moved by itself (OPP)
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let heap = terrace_memory::open(dir.path(), 32 << 20, 128 << 20)?;
//! let pool = heap.pool(128, 1 << 20)?;
//! let object = pool.alloc()?.cast::<u64>();
//! // SAFETY: allocated with 128 bytes, which are zeros; nobody else has it.
//! unsafe {
//!     assert_eq!(object.read(), 0);
//!     object.write(42);
//! }
//! pool.free(object.cast())?;
//! assert!(pool.free(object.cast()).is_err(), "freed already");
//!
//! // Of any size up to 1,000 bytes, which can change; the object stays where it is.
//! let names = heap.pool_of_any_size(1000, 1 << 20)?;
//! let name = names.alloc_sized(10)?;
//! // SAFETY: nobody else has it.
//! unsafe { names.resize(name, 500)? };
//! assert_eq!(names.bytes_of(name)?, 500);
//! # Ok(()) }
//! ```
//!
//! # Arrays
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use std::sync::atomic::Ordering::Relaxed;
//! let heap = terrace_memory::open(dir.path(), 32 << 20, 128 << 20)?;
//! // 30,000 objects of 64 bytes, which may become 40,000.
//! let counters = heap.array(30_000, 64, 40_000)?;
//! for index in 0..30_000 {
//!     counters.word(index, 0).store(index, Relaxed);
//! }
//! assert!((0..30_000).all(|index| counters.word(index, 0).load(Relaxed) == index));
//! counters.resize(40_000)?;
//! assert_eq!(counters.word(39_999, 0).load(Relaxed), 0);
//! # Ok(()) }
//! ```
//!
//! # A malloc whose pages step down (MP)
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use terrace_memory::PageHeap;
//! let heap = terrace_memory::open(dir.path(), 32 << 20, 128 << 20)?;
//! let pages = PageHeap::new(&heap, 256 << 20)?;
//! let text = pages.alloc_zeroed(1000, 16)?;
//! // SAFETY: allocated with 1,000 bytes; nobody else has it.
//! let text = unsafe { pages.realloc(text, 100_000)? };
//! pages.free(text)?;
//! # Ok(()) }
//! ```
//!
//! # Handles: no faults, many reads at a time
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use terrace_memory::Table;
//! let heap = terrace_memory::open(dir.path(), 32 << 20, 128 << 20)?;
//! let table = Table::new(&heap, 100)?;
//! let ids: Vec<u64> = (0..1000u64)
//!     .map(|n| table.insert(&[n as u8; 100]))
//!     .collect::<Result<_, _>>()?;
//! let mut sum = 0;
//! table.get_many(&ids, |_, object| sum += object.map_or(0, |o| u64::from(o[0])))?;
//! assert_eq!(sum, (0..1000u64).map(|n| n % 256).sum());
//! table.update(ids[7], |object| object.fill(9))?;
//! let mut object = [0; 100];
//! assert!(table.get(ids[7], &mut object)? && object == [9; 100]);
//! # Ok(()) }
//! ```
//!
//! # Named regions: durable memory
//!
//! A pool that is kept has regions by name. What was synced is there again after a crash, at the same addresses; what was not is gone.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use std::sync::atomic::Ordering::Relaxed;
//! let regions = terrace_memory::open_kept(dir.path(), 32 << 20, 128 << 20)?;
//! // 16 MiB, which may grow to 1 GiB.
//! let region = regions.region("counters", 16 << 20, 1 << 30)?;
//! region.word(100).store(42, Relaxed);
//! region.set_root(Some(100 * 8))?;
//! region.sync_all()?;
//! region.word(100).store(43, Relaxed);
//! let base = region.base();
//! drop((region, regions));
//!
//! let regions = terrace_memory::open_kept(dir.path(), 32 << 20, 0)?;
//! let region = regions.region("counters", 16 << 20, 0)?;
//! assert_eq!(region.base(), base);
//! let root = region.root().expect("set before");
//! assert_eq!(region.word(root / 8).load(Relaxed), 42);
//! # Ok(()) }
//! ```

pub use terrace_pool::PoolError;
pub use terrace_vm::handles::Table;
pub use terrace_vm::heap::{ALIGN_MAX_BYTES, AllocError, HEAP_MAX_BYTES, HeapStats, PageHeap};
pub use terrace_vm::kept::{
    NAME_MAX_BYTES, NamedRegion, RegionError, RegionInfo, Regions, SYNC_RANGES_MAX,
};
pub use terrace_vm::opp::{Array, Heap, HeapError, OBJECTS_MAX_DEFAULT, ObjectPool};
pub use terrace_vm::store::{ObjectError, SYNC_OUTSIDE_PAGES_MAX, Store, StoreOptions};
pub use terrace_vm::{Memory, Options, Stats, VmError, Way};

use std::path::Path;

/// Why a pool cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Its directory, file or settings.
    Pool(PoolError),
    /// The memory that shows it.
    Memory(HeapError),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Pool(e) => e.fmt(f),
            OpenError::Memory(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// Opens the pool in `dir`, or makes it: at most `cap_bytes` of DRAM, `ssd_bytes` on the SSD (0: four times the cap). Faults are taken in the
/// thread that touches memory. What is in it does not outlive the program.
///
/// For other settings: [`Store::open`], then [`Heap::open`].
pub fn open(dir: impl AsRef<Path>, cap_bytes: u64, ssd_bytes: u64) -> Result<Heap, OpenError> {
    let options = StoreOptions::scratch(dir.as_ref(), cap_bytes, ssd_bytes);
    let store = Store::open(&options).map_err(OpenError::Pool)?;
    Heap::open(store, Way::InThread).map_err(OpenError::Memory)
}

/// Opens the pool in `dir`, which outlives the program, or makes it: as [`open`], for named regions.
///
/// For other settings: [`Regions::open`].
pub fn open_kept(
    dir: impl AsRef<Path>,
    cap_bytes: u64,
    ssd_bytes: u64,
) -> Result<Regions, RegionError> {
    let options = StoreOptions::kept(dir.as_ref(), cap_bytes, ssd_bytes);
    Regions::open(&options, Way::InThread)
}
