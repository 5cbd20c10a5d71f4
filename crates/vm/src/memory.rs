//! The memory of a process that is larger than DRAM: one page buffer for all its regions.
//!
//! Promises: at most `pages_max` pages are materialised at a time; whoever needs one more evicts others or waits, boundedly. Never:
//! starts a thread where faults are taken in the faulting thread, but for one that waits for the kernel to free page tables, and of a program that does not know this library one that evicts.

use crate::ahead::Ahead;
use crate::aside::Aside;
use crate::bell::Bell;
use crate::beside::Beside;
use crate::block::BLOCK_BYTES;
use crate::calm::Calm;
use crate::error::VmError;
use crate::evictor::EVICTOR;
use crate::follow::Follow;
use crate::ghost::Ghost;
use crate::grace::Grace;
use crate::handler::Handlers;
use crate::indices::Indices;
use crate::inside::Inside;
use crate::late::Late;
use crate::parts::{Core, Way};
use crate::policy::{self, EVICTORS_MAX, HANDLERS_MAX, PAGES_MIN};
use crate::reaper::WATCH;
use crate::scratch::Scratch;
use crate::servant::Servant;
use crate::shares;
use crate::space::Space;
use crate::stats::{Counters, Stats};
use crate::sys::{Going, Lock, PageTables, Rooms, Uffd, Unmapper};
use crate::victims::{Capture, Workspace};
use crate::{forks, registry, signal};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Regions begin at multiples of this.
pub const ADDRESSES_ALIGN_BYTES: usize = crate::space::SLOT_BYTES;
/// How a [`Memory`] is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// How faults are taken.
    pub way: Way,
    /// Pages materialised at a time, at least [`PAGES_MIN`]. Their page tables come on top: up to as much again, if they are scattered.
    pub pages_max: usize,
    /// Addresses that all regions together can have; they cost nothing.
    pub reserve_bytes: usize,
    /// Where they begin, a multiple of [`ADDRESSES_ALIGN_BYTES`]; an error if anything is there. None: anywhere.
    pub base: Option<usize>,
    /// Whether pages are taken away many at a time, where the kernel can. Without, as on Linux before 6.13: one call each, ten times as slow.
    pub batches: bool,
    /// Whether page tables of empty blocks are given back by advice, where the kernel can. Without, as on Linux before 6.14: by mapping
    /// their addresses anew, some calls a block; with handler threads not at all.
    pub advised_tables: bool,
    /// Whether the program does not know this library, though its faults are taken in the thread: pages come ahead of faults that go along the addresses, and the time that faults take is
    /// counted. With handler threads both are so in any case.
    pub unmodified: bool,
    /// Pages remembered after they left, 4 bytes each; None: 16 for each of `pages_max`.
    pub remembered: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            way: Way::InThread,
            pages_max: 6400,
            reserve_bytes: 1 << 44,
            base: None,
            batches: true,
            advised_tables: true,
            unmodified: false,
            remembered: None,
        }
    }
}

/// Memory larger than DRAM. Dropped after its regions (each holds it).
///
/// A fork leaves its regions with the parent: a child that touches one gets SIGSEGV, calls about it answer [`VmError::Forked`], and
/// what the child drops changes nothing; it can make a memory of its own. A thread that takes its faults itself needs up to 64 KiB of
/// stack for that, and its stack must not lie in a region. A signal handler that touches a region must not run while its thread is in a call of
/// this crate or of the allocator: the fault needs locks that the call has, and both would wait for ever. Hold such signals back around calls; while a fault is taken they wait anyway.
#[derive(Clone)]
pub struct Memory {
    pub(crate) core: Arc<Core>,
    /// Ends with the last of the memory's owners.
    _life: Arc<Life>,
}

struct Life {
    core: Arc<Core>,
    handlers: Option<Handlers>,
    servants: [Option<Servant>; 2],
}

impl Memory {
    /// Reserves addresses and takes over the faults in them. Errors say what to set on a machine that does not allow it.
    pub fn new(options: Options) -> Result<Memory, VmError> {
        check(&options)?;
        let space = Space::new(options.reserve_bytes, options.base)?;
        let uffd = Uffd::new(options.way == Way::InThread)?;
        let (start, len) = space.addresses();
        uffd.register(start, len)?;
        let aside = Aside::new(&uffd)?;
        let ahead = Ahead::new(len / BLOCK_BYTES)?;
        let core = Arc::new(Core {
            taken: Mutex::new(vec![false; space.slots()]),
            space,
            uffd,
            unmapper: match options.batches {
                true => Unmapper::new()?,
                false => Unmapper::one_by_one(),
            },
            tables: PageTables::new(
                options.advised_tables,
                options.way == Way::InThread && !options.unmodified,
            ),
            way: options.way,
            unmodified: options.unmodified,
            whole: AtomicBool::new(false),
            generation: forks::generation(),
            pages_max: AtomicUsize::new(options.pages_max),
            bytes_max: AtomicUsize::new(policy::scattered_bytes(options.pages_max)),
            balance: OnceLock::new(),
            resident: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            scratch: Scratch::new(),
            ahead,
            beside: Beside::new(),
            follow: (options.way != Way::InThread).then(|| Follow::new(start, len)),
            indices: (Indices::ARE_SEEN && options.way == Way::InThread && options.unmodified)
                .then(Indices::new),
            ghost: Ghost::new(
                options
                    .remembered
                    .unwrap_or(policy::remembered(options.pages_max)),
            ),
            grace: Grace::new(policy::tables_waiting_bytes(
                options.pages_max,
                options.way != Way::InThread || options.unmodified,
            ))?,
            workspaces: std::array::from_fn(|nth| {
                Lock::new(Workspace::new(aside.stage(nth), !options.unmodified))
            }),
            aside,
            calm: Calm::new(),
            late: Late::new(),
            hand: Lock::default(),
            making_room: Lock::new(()),
            little_room: match options.way == Way::InThread && options.unmodified {
                true => Some(Bell::new()?),
                false => None,
            },
            freed: Rooms::new(),
            waiting: AtomicUsize::new(0),
            failed: Lock::new(None),
            failed_ms: AtomicU64::new(0),
            counters: Counters::default(),
            blocks_end: AtomicUsize::new(0),
        });
        signal::install()?;
        if core.tables.going() == Going::ByMapping {
            signal::install_for_remapping()?;
        }
        registry::add(&core)?;
        // From here on its end is the memory's, also where a thread is refused.
        let mut life = Life {
            core: core.clone(),
            handlers: None,
            servants: [None, None],
        };
        for (servant, work) in life.servants.iter_mut().zip([&WATCH, &EVICTOR]) {
            *servant = Servant::start(&core, work)?;
        }
        if let Way::Handlers(threads) = options.way {
            life.handlers = Some(Handlers::start(&core, threads)?);
        }
        Ok(Memory {
            core,
            _life: Arc::new(life),
        })
    }

    /// From now on devices write to pages, which they have pinned: with io_uring and O_DIRECT they do. Said before the first does. A page is taken away only while nobody has
    /// it pinned then, which costs a few microseconds for each. False: this kernel cannot do that, and nothing has changed (before Linux 6.8).
    ///
    /// What is not covered: pages whose addresses are made read-only while a device writes to them, and file systems that do not pin what they read into (NFS).
    pub fn devices_write(&self) -> bool {
        let begun = self.core.aside.begin();
        if begun && !self.core.unmodified {
            // Batches that were begun before capture pages, which a device would not be noticed in.
            for work in &self.core.workspaces {
                drop(work.lock());
            }
        }
        begun
    }

    /// Changes how many pages may be materialised. When it falls, the caller evicts what is too much before this returns.
    ///
    /// Errors: out of bounds; changed pages could not be written back (then the bound holds for all other pages).
    pub fn set_pages_max(&self, pages_max: usize) -> Result<(), VmError> {
        check_pages(pages_max)?;
        let inside = Inside::enter(&self.core)?;
        self.core.pages_max.store(pages_max, Ordering::Relaxed);
        let bytes = policy::scattered_bytes(pages_max);
        self.core.bytes_max.store(bytes, Ordering::Relaxed);
        let shrunk = self.core.shrink_to(|| pages_max);
        drop(inside);
        Ok(shrunk?)
    }

    /// Changes what pages and their tables together may come to, in bytes: so it is more pages where they lie close. When it falls,
    /// faults to come evict what is too much.
    pub fn set_buffer_bytes(&self, bytes: usize) {
        let pages = policy::pages_of_bytes(bytes, 0);
        self.core.bytes_max.store(bytes, Ordering::Relaxed);
        self.core.pages_max.store(pages, Ordering::Relaxed);
    }

    /// What its faults and reads cost.
    pub(crate) fn costs(&self) -> shares::Costs {
        shares::costs(self.core.way != Way::InThread, self.core.unmodified)
    }

    /// Whether pages take as much in the terrace below as in the buffer.
    pub(crate) fn pages_are_whole(&self, whole: bool) {
        self.core.whole.store(whole, Ordering::Relaxed);
    }

    /// Evicts what is above the bound now. The error says why changed pages stay.
    pub fn shrink_to_bound(&self) -> Result<(), VmError> {
        let inside = Inside::enter(&self.core)?;
        let shrunk = self.core.shrink_to(|| self.core.pages_now());
        drop(inside);
        Ok(shrunk?)
    }

    /// What pages and their tables may come to, and what they come to now; bytes.
    pub fn buffer_bytes(&self) -> (usize, usize) {
        let core = &self.core;
        let pages = core.resident.load(Ordering::Relaxed) * crate::PAGE_BYTES;
        let tables = core.tables_bytes();
        (core.bytes_max.load(Ordering::Relaxed), pages + tables)
    }

    /// Bytes that the buffer would have to have more for pages counted as near to stay.
    pub(crate) fn near_bytes(&self) -> u64 {
        let core = &self.core;
        let resident = core.resident.load(Ordering::Relaxed).max(1);
        let near = core.ghost.pages_that_left(policy::near_pages(resident));
        near * self.buffer_bytes().1 as u64 / resident as u64
    }

    /// What it costs beside pages and tables, bytes.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let core = &self.core;
        let follow = core.follow.as_ref().map_or(0, |_| Follow::BYTES);
        let indices = core.indices.as_ref().map_or(0, |_| Indices::BYTES);
        (core.ghost.bytes()
            + crate::scratch::SCRATCH_BYTES
            + core.grace.kept_bytes()
            + core.free_records_bytes()
            // Who evicts packs, too.
            + EVICTORS_MAX * crate::lz4::State::BYTES
            + if core.unmodified {
                0
            } else {
                EVICTORS_MAX * Capture::BYTES
            }
            + follow
            + indices) as u64
    }

    /// Page tables that wait for the kernel: what is kept of the cap for them, and what should be, after what waited since the last call; bytes. One thread at a time calls it.
    pub(crate) fn tables_kept_bytes(&self) -> (usize, usize) {
        let grace = &self.core.grace;
        (grace.kept_bytes(), grace.wanted_bytes())
    }

    /// How much more than now may come to be kept for them, bytes.
    pub(crate) fn tables_unkept_bytes(&self) -> u64 {
        self.core.grace.unkept_bytes() as u64
    }

    /// Keeps so much for them: [`fixed_bytes`](Memory::fixed_bytes) is another then.
    pub(crate) fn keep_for_tables(&self, bytes: usize) {
        self.core.grace.keep(bytes);
    }

    /// What threads that evict call now and then, within a fault: it must touch no region. Only the first counts.
    pub fn on_eviction(&self, balance: Box<dyn Fn() + Send + Sync>) {
        // A second heap over one memory: the first one's balance goes on.
        let _first = self.core.balance.set(balance);
    }

    /// Whether every page that came is still there, and writable if it was: so a system call may be given those as they lie, by who said how that is waited for ([`while_calm`](Memory::while_calm)).
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.core.calm.is_here()
    }

    /// Who builds on [`is_calm`](Memory::is_calm) says first that it does (a call begins), has a fence, and asks then. `others` is called when calm ends, before the first page leaves: it has a fence, and returns when no call is under way that began before; it must not wait without a
    /// bound, nor touch a region. Only the first counts.
    pub fn while_calm(&self, others: Box<dyn Fn() + Send + Sync>) {
        self.core.calm.build_on(others);
    }

    /// Pages that may be materialised at a time, at most.
    pub fn pages_max(&self) -> usize {
        self.core.pages_max.load(Ordering::Relaxed)
    }

    /// Evicts every page that can be, of all regions; changed ones are written back first.
    pub fn evict_all(&self) -> Result<(), VmError> {
        let inside = Inside::enter(&self.core)?;
        let evicted = self.core.shrink_to(|| 0);
        drop(inside);
        Ok(evicted?)
    }

    /// Where the addresses of its regions begin, and how many there are.
    pub fn addresses(&self) -> (usize, usize) {
        self.core.space.addresses()
    }

    /// What it did so far, and what it holds.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }
}

fn check(options: &Options) -> Result<(), VmError> {
    check_pages(options.pages_max)?;
    match options.way {
        Way::Handlers(threads) if threads == 0 || threads > HANDLERS_MAX => Err(VmError::Bounds {
            what: "handler threads",
            asked: threads as u64,
            allowed: format!("1 to {HANDLERS_MAX}"),
        }),
        _ => Ok(()),
    }
}

fn check_pages(pages_max: usize) -> Result<(), VmError> {
    match pages_max {
        PAGES_MIN..=usize::MAX => Ok(()),
        _ => Err(VmError::Bounds {
            what: "pages materialised at a time",
            asked: pages_max as u64,
            allowed: format!("{PAGES_MIN} or more"),
        }),
    }
}

/// Takes a memory out of the registry when it is dropped.
struct Leaves<'c>(&'c Arc<Core>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        registry::remove(self.0);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.core.check_not_forked().is_err() {
            // Threads and addresses stayed with the parent: nothing of it is given back here.
            let threads = (self.handlers.take(), std::mem::take(&mut self.servants));
            std::mem::forget(threads);
            std::mem::forget(self.core.clone());
            return;
        }
        // Whatever comes of their end, nobody finds it after this.
        let _leaves = Leaves(&self.core);
        drop((self.handlers.take(), std::mem::take(&mut self.servants)));
    }
}
