//! What the process has in DRAM beside its pages and the pool, as the kernel counts it, and what pages give for it: small allocations, what the C library keeps of freed ones, stacks, libraries' data.
//!
//! A part of it fits beside the cap ([`beside_bytes`]). What is more, pages give, up to a quarter of the cap; and if nobody said what small allocations may have, they may have so much less as the C library
//! keeps besides. It is looked at when small allocations have grown or shrunk by a MiB: little else grows. Where they are not counted (`small`), nothing of this is done. Promises: one look at a time, in the process
//! that has the pool and in no other that was made of it; some 20 µs where nothing changes, and a few hundred times a second at most. Never: makes a call of the system's once a thread has a filter of them; counts what
//! a fork's child has; that is counted when it is forked (`serve`).

use crate::runtime::{self, Pool};
use crate::serve::Home;
use crate::{given, raw, report, small, tls};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrace_vm::heap::Ground;

/// Beside the cap there is room for so much in any case, or for a part of the cap: a container has 32 MiB beside it.
const BESIDE_MIN_BYTES: u64 = 16 << 20;
const BESIDE_ONE_IN: u64 = 32;
/// Of the cap, what small allocations may have if nobody says how much, and what pages give at most.
const GIVES_ONE_IN: u64 = 4;
/// Pages keep half of what they and entries have.
const KEEPS_ONE_IN: u64 = 2;
/// Pages give and get it back in such steps.
const STEP_BYTES: u64 = 1 << 20;
/// Time between two looks.
const LOOKS_AGAIN: Duration = Duration::from_millis(3);

/// What stacks and tables of the runtime grow by, and what is counted in the cap and touched later, is not taken for what the C library keeps.
const OTHER_BYTES: u64 = 12 << 20;
/// What the C library may keep of freed blocks before it is asked to give it back; and again when it keeps so much more than it did not give.
const TRIMS_BYTES: u64 = 8 << 20;
/// And not sooner, since it looks at all of them.
const TRIMS_AGAIN: Duration = Duration::from_secs(1);
/// /proc/self/status is some 1.5 KB.
const STATUS_BYTES_MAX: usize = 4096;

/// What is known from the moment at which the pool was opened.
struct Begun {
    /// What the kernel says of the process: asked each time, opened once, since another descriptor of the program's numbers is seen by a thread of it.
    status: Option<File>,
    /// Whose it is: a child of a clone or of vfork has a copy of this, or the thing itself.
    process: u32,
    at: Instant,
}

impl Begun {
    fn us(&self) -> u64 {
        self.at.elapsed().as_micros() as u64
    }

    fn may_trim(&self) -> bool {
        let again = TRIMMED_US.load(Ordering::Relaxed) + TRIMS_AGAIN.as_micros() as u64;
        self.us() >= again
    }
}

static BEGUN: OnceLock<Begun> = OnceLock::new();
static LOOKING: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);
/// When it was looked at last, µs.
static LOOKED_US: AtomicU64 = AtomicU64::new(0);
/// When the C library was asked last.
static TRIMMED_US: AtomicU64 = AtomicU64::new(0);
/// What the process had least beside its small allocations.
static BASE_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
/// What the C library kept when it had been asked to give it back.
static KEPT_STILL_BYTES: AtomicU64 = AtomicU64::new(0);

/// Under a cap, what fits beside it.
pub fn beside_bytes(cap_bytes: u64) -> u64 {
    (cap_bytes / BESIDE_ONE_IN).max(BESIDE_MIN_BYTES)
}

/// Under a cap, what small allocations may have if nobody says how much.
pub fn small_bytes(cap_bytes: u64) -> u64 {
    (cap_bytes / GIVES_ONE_IN).max(BESIDE_MIN_BYTES)
}

/// The pool is open: it is looked at, now and from now on.
pub fn begin() {
    if small::are_counted() {
        let status = File::open("/proc/self/status").ok();
        let _first = BEGUN.set(Begun {
            status: status.map(terrace_vm::descriptors::keep_file),
            process: std::process::id(),
            at: Instant::now(),
        });
        settle_alone();
    }
}

/// A filter of system calls comes, which may forbid what a look needs: what pages have given stays given, and small allocations have no more than there are, or than fits beside the cap.
pub fn end() {
    // A child of vfork may do as it likes.
    let is_other = |begun: &Begun| begun.process != std::process::id();
    if BEGUN.get().is_some_and(is_other) {
        return;
    }
    if let Some(runtime) = runtime::get()
        && !ENDED.swap(true, Ordering::AcqRel)
    {
        small::bound_from_now(beside_bytes(runtime.cap_bytes));
    }
}

/// Looks at what the process has. False: not now.
pub fn look() -> bool {
    if tls::is_inside() {
        return false;
    }
    if ENDED.load(Ordering::Acquire) {
        return true;
    }
    let errno = raw::errno();
    let inside = tls::enter();
    let done = settle_alone();
    drop(inside);
    raw::set_errno(errno);
    done
}

fn settle_alone() -> bool {
    let (Some(runtime), Some(begun)) = (runtime::get(), BEGUN.get()) else {
        return true;
    };
    let Pool::Home(home) = &runtime.pool else {
        return true;
    };
    let now_us = begun.us();
    let last_us = LOOKED_US.load(Ordering::Relaxed);
    if last_us > 0 && now_us < last_us + LOOKS_AGAIN.as_micros() as u64 {
        return false;
    }
    if begun.process != std::process::id() {
        return false;
    }
    let signals = raw::block_signals();
    let alone = !LOOKING.swap(true, Ordering::AcqRel);
    if alone {
        settle(home, runtime.cap_bytes, begun);
        LOOKED_US.store(begun.us().max(1), Ordering::Relaxed);
        LOOKING.store(false, Ordering::Release);
    }
    raw::restore_signals(&signals);
    alone
}

fn settle(home: &Home, cap_bytes: u64, begun: &Begun) {
    let small = small::kept_bytes();
    let own = match own_bytes(home, begun) {
        // Without /proc.
        None => small,
        Some(own) => {
            let own = trimmed(home, begun, own, small);
            small::leave_room_for(kept_by_libc(own, small));
            own
        }
    };
    // What is counted and not touched yet hides as much; small allocations are known.
    let wanted = own.max(small).saturating_sub(beside_bytes(cap_bytes));
    let given = given::OWN.bytes();
    let shared = home.heap.between_them_bytes() + given + given::COPIES.bytes();
    let most = (shared / KEEPS_ONE_IN).saturating_sub(given::COPIES.bytes());
    let most = most
        .min(cap_bytes / GIVES_ONE_IN)
        .min(given + home.heap.unpromised_bytes());
    let wanted = wanted.next_multiple_of(STEP_BYTES).min(most);
    if wanted > given {
        let more = home.heap.make_way(wanted - given);
        given::OWN.set(given + more);
    } else if wanted + STEP_BYTES < given {
        home.heap.count(given, wanted);
        given::OWN.set(wanted);
    }
}

/// What the process has when the C library has given back what it can, if that is worth asking.
fn trimmed(home: &Home, begun: &Begun, own: u64, small: u64) -> u64 {
    let kept = kept_by_libc(own, small);
    let still = KEPT_STILL_BYTES.fetch_min(kept, Ordering::Relaxed);
    if kept <= still + TRIMS_BYTES || !begun.may_trim() {
        return own;
    }
    // SAFETY: a function of the C library's that takes its own locks; this thread has none of them, since it is not within malloc.
    unsafe { libc::malloc_trim(0) };
    TRIMMED_US.store(begun.us(), Ordering::Relaxed);
    let now = own_bytes(home, begun).unwrap_or(own);
    KEPT_STILL_BYTES.store(kept_by_libc(now, small), Ordering::Relaxed);
    now
}

/// What of `own` the C library keeps of freed blocks, as far as can be told: what the process has more than its small allocations and what it had least beside them.
fn kept_by_libc(own: u64, small: u64) -> u64 {
    let others = own.saturating_sub(small);
    let base = BASE_BYTES.fetch_min(others, Ordering::Relaxed).min(others);
    others.saturating_sub(base + OTHER_BYTES)
}

/// What the process has in DRAM beside what is counted in the cap, tables of pages with it. What is counted and not touched yet is taken for nothing.
fn own_bytes(home: &Home, begun: &Begun) -> Option<u64> {
    let mut text = [0u8; STATUS_BYTES_MAX];
    let (fd, into) = (begun.status.as_ref()?.as_raw_fd(), text.as_mut_ptr());
    // Not by the C library, where a thread may be cancelled.
    // SAFETY: room for so many bytes.
    let len = unsafe {
        let args = [fd.into(), into as _, STATUS_BYTES_MAX as _, 0, 0, 0];
        raw::system(libc::SYS_pread64, args)
    };
    let text = text.get(..usize::try_from(len).ok()?)?;
    let pages = Some(report::bytes_of(text, "RssAnon:")).filter(|bytes| *bytes > 0)?;
    let all = pages + report::bytes_of(text, "VmPTE:");
    let elsewhere = given::OWN.bytes() + given::CHILDREN.bytes();
    let counted = home.heap.held_bytes().saturating_sub(elsewhere);
    Some(all.saturating_sub(counted))
}
