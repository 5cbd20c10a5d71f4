//! An open pool: what its workers share, and what is known of it.
//!
//! Promises: what is changed through `lane` is part of the open epoch. Never: makes, opens or closes a pool; `open` does.

use crate::Lane;
use crate::clock::Clamped;
use crate::commit::Commit;
use crate::ledger::{Ledger, Part};
use crate::lock::PoolLock;
use crate::locks::Mutex;
use crate::options::{Durability, Options};
use crate::stats::Stats;
use crate::superblock::Superblock;
use std::any::Any;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrace_index::KeyMap;
use terrace_log::{Hasher, Snapshot};
use terrace_media::{Arena, Device};
use terrace_tiers::{Damage, Phase};

/// An open pool, shared by its workers.
pub struct Pool<D = KeyMap> {
    pub(crate) lanes: Vec<Mutex<Lane<D>>>,
    pub(crate) commit: Commit,
    pub(crate) clock: Clamped,
    pub(crate) ledger: Ledger,
    pub(crate) hasher: Hasher,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) superblock: Superblock,
    pub(crate) options: Options,
    pub(crate) failed: OnceLock<String>,
    pub(crate) wakers: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
    /// Names versions of big values; see `kv`.
    pub(crate) next_version: AtomicU64,
    pub(crate) flushes_of_all: AtomicU64,
    pub(crate) extension: OnceLock<Arc<dyn Any + Send + Sync>>,
    pub(crate) damage: Vec<Damage>,
    pub(crate) recovery_ms: u64,
    pub(crate) clean: bool,
    pub(crate) _lock: Option<PoolLock>,
}

impl<D: Snapshot + Send> Pool<D> {
    /// Why the pool takes no more updates, if it does not.
    pub fn failure(&self) -> Option<String> {
        self.failed.get().cloned()
    }
    /// Why the pool takes no more updates, from now on.
    pub(crate) fn fail(&self, why: &str) {
        if self.failed.set(why.to_string()).is_ok() {
            tracing::error!(
                why,
                "the pool is read-only from now on, and reads go on: look after the device (the kernel's log), then start again"
            );
            self.wake_all();
        }
    }
    pub(crate) fn wake_all(&self) {
        for wake in self.wakers.lock().iter() {
            wake();
        }
    }

    /// Whether replies wait for durability.
    pub fn is_sync(&self) -> bool {
        self.options.durability == Durability::Sync
    }
    /// The settings it was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }
    /// What the pool is.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
    /// What recovery found damaged.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }
    /// Whether the last stop was clean.
    pub fn was_clean(&self) -> bool {
        self.clean
    }
    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
    /// How often everything was deleted; uploads of big values do not outlive it.
    pub fn flushes_of_all(&self) -> u64 {
        self.flushes_of_all.load(Ordering::Acquire)
    }
    /// Takes note that everything was deleted.
    pub fn note_flush_of_all(&self) {
        self.flushes_of_all.fetch_add(1, Ordering::AcqRel);
    }
    /// A number that no other version of a big value has.
    pub fn new_version(&self) -> u64 {
        self.next_version.fetch_add(1, Ordering::Relaxed)
    }

    /// State that the layer above keeps with the pool; made at the first call.
    pub fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let any = self.extension.get_or_init(|| Arc::new(T::default()));
        let one = any.clone().downcast::<T>();
        one.unwrap_or_else(|_| panic!("one layer above keeps its state with the pool"))
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            lane_count: self.lanes.len() as u64,
            cap_bytes: self.ledger.cap_bytes(),
            used_bytes: self.ledger.total(),
            segment_bytes: self.ledger.held(Part::Segments),
            directory_bytes: self.ledger.held(Part::Index),
            page_bytes: self.ledger.held(Part::Pages),
            dram_huge_bytes: self.arena.huge_bytes() as u64,
            connection_bytes: self.ledger.held(Part::Connections),
            io_bytes: self.ledger.held(Part::Io),
            epoch: self.commit.open(),
            durable_epoch: self.commit.durable(),
            recovery_ms: self.recovery_ms,
            damage: self.damage.len() as u64,
            ..Stats::default()
        };
        for lane in &self.lanes {
            stats.add(&lane.lock().stats());
        }
        let disk = self.device.counters();
        stats.disk_reads = disk.reads;
        stats.disk_read_bytes = disk.read_bytes;
        stats.disk_writes = disk.writes;
        stats.device_write_bytes = disk.write_bytes;
        stats.disk_flushes = disk.flushes;
        stats
    }

    /// Live bytes of the SSD terrace and how many it accepts, over all lanes. `held` is
    /// a lane that the caller has locked: lanes that are busy count as much as it does,
    /// since waiting for them with one held might never end.
    pub fn ssd_use(&self, held: &Lane<D>) -> (u64, u64) {
        let own = held.stats();
        let sums = self.lanes.iter().map(|lane| {
            let other = lane.try_lock().map(|lane| lane.stats());
            let s = other.as_ref().unwrap_or(&own);
            (s.ssd_live_bytes, s.ssd_usable_bytes)
        });
        sums.fold((0, 0), |(live, usable), (l, u)| (live + l, usable + u))
    }

    /// Keys of the user.
    pub fn keys(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.lock().keys()).sum()
    }

    /// Locks one lane, in the open epoch: for threads that have no worker.
    pub fn lane(&self, lane: u16) -> MutexGuard<'_, Lane<D>> {
        let mut guard = self.lanes[lane as usize].lock();
        self.catch_up(&mut guard, self.commit.open());
        guard
    }
    /// Brings a lane to the open epoch.
    pub(crate) fn catch_up(&self, lane: &mut Lane<D>, open: u64) {
        if let Phase::Arrived(epoch) = lane.phase()
            && epoch <= self.commit.durable()
        {
            lane.made_durable(epoch);
        }
        while lane.open_epoch() < open {
            lane.close_epoch();
        }
    }
    /// Everything up to this epoch is durable.
    pub fn durable_epoch(&self) -> u64 {
        self.commit.durable()
    }
    /// Its device, for reads in the calling thread.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// A lane, for tests and tools.
    pub fn with_lane<R>(&self, lane: u16, f: impl FnOnce(&mut Lane<D>) -> R) -> R {
        f(&mut self.lanes[lane as usize].lock())
    }
}
