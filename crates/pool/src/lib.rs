//! A pool: what a user opens. Terraces, directories, threads and settings in one place.
//!
//! Here: making and opening a pool, its lock, its superblock, recovery, the
//! clock, the ledger that keeps the cap, the commit that all lanes share, and
//! the `Worker` through which a thread uses the lanes.
//! Never: knows what a command means; `kv` does.

mod check;
mod clock;
mod commit;
mod error;
mod fetch;
mod flushes;
mod held;
mod ledger;
mod lock;
mod locks;
mod near;
mod open;
mod options;
mod pool;
mod reads;
mod recover;
mod stats;
mod superblock;
mod sync;
mod task;
mod verify;
mod worker;

pub use check::{
    CheckReport, check, check_objects, check_on_device, contents, destroy, drop_checkpoints, info,
    info_objects,
};
pub use clock::{Clock, ManualClock, SystemClock};
pub use error::PoolError;
pub use held::Held;
pub use ledger::{Ledger, Part};
pub use locks::{Mutex, RwLock, Turns};
pub use open::MakeDirectory;
pub use options::{Contents, DRAM_PER_LANE_MIN_BYTES, Durability, Options};
pub use pool::Pool;
pub use stats::Stats;
pub use superblock::Superblock;
pub use task::{Fetched, Task};
pub use terrace_tiers::Rule;
pub use worker::{Turn, Worker};

/// A lane: a stack of terraces under a directory, by default the key map.
pub type Lane<D = terrace_index::KeyMap> = terrace_tiers::Lane<D>;
