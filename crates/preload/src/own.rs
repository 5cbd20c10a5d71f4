//! What the process has in DRAM beside its pages and the pool, as the kernel counts it, and what pages give for it: small allocations, what the C library keeps of freed ones, stacks, libraries' data.
//!
//! A part of it fits beside the cap ([`beside_bytes`]). What is more, pages give, as long as they keep half of what they have; and of small allocations the program's malloc may have so much less as the C
//! library keeps besides. It is looked at when small allocations have grown or shrunk by a MiB: little else grows. Promises: one look at a time, which takes some 20 µs where nothing changes. Never: counts what
//! a fork's child has; that is counted when it is forked (`serve`).

use crate::runtime::{self, Pool};
use crate::serve::{self, Home};
use crate::{raw, report, small, tls};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use terrace_vm::heap::Ground;

/// Beside the cap there is room for so much in any case, or for a part of the cap: a container has 32 MiB beside it.
const BESIDE_MIN_BYTES: u64 = 16 << 20;
const BESIDE_ONE_IN: u64 = 32;
/// Pages give and get it back in such steps.
const STEP_BYTES: u64 = 1 << 20;
/// Of what pages and entries have of the cap, what they give at most.
const GIVES_ONE_IN: u64 = 2;

/// Of what is no small allocation, so much is stacks, libraries' data and tables of the runtime.
const OTHER_BYTES: u64 = 8 << 20;
/// What the C library may keep of freed blocks before it is asked to give it back, and how long it is left alone then.
const TRIMS_BYTES: u64 = 16 << 20;
const TRIM_AGAIN_MS: u64 = 1000;
/// /proc/self/status is some 1.5 KB.
const STATUS_BYTES_MAX: usize = 4096;

/// What the kernel says of the process: asked each time, opened once, since another descriptor of the program's numbers is seen by a thread of it; and when.
static STATUS: OnceLock<(File, Instant)> = OnceLock::new();
static LOOKING: AtomicBool = AtomicBool::new(false);
static TRIMMED_MS: AtomicU64 = AtomicU64::new(0);
/// What pages have given.
static GIVEN_BYTES: AtomicU64 = AtomicU64::new(0);

/// Under a cap, what fits beside it.
pub fn beside_bytes(cap_bytes: u64) -> u64 {
    (cap_bytes / BESIDE_ONE_IN).max(BESIDE_MIN_BYTES)
}

/// What pages have given, bytes.
pub fn given_bytes() -> u64 {
    GIVEN_BYTES.load(Ordering::Relaxed)
}

/// The pool is open: it is looked at, now and from now on.
pub fn begin() {
    if let Ok(status) = File::open("/proc/self/status") {
        let status = terrace_vm::descriptors::keep_file(status);
        let _first = STATUS.set((status, Instant::now()));
        settle_alone();
    }
}

/// Looks at what the process has. False: not now.
pub fn look() -> bool {
    if tls::is_inside() {
        return false;
    }
    let errno = raw::errno();
    let inside = tls::enter();
    let done = settle_alone();
    drop(inside);
    raw::set_errno(errno);
    done
}

fn settle_alone() -> bool {
    let (Some(runtime), Some((status, begun))) = (runtime::get(), STATUS.get()) else {
        return true;
    };
    let Pool::Home(home) = &runtime.pool else {
        return true;
    };
    if LOOKING.swap(true, Ordering::AcqRel) {
        return false;
    }
    let signals = raw::block_signals();
    settle(home, runtime.cap_bytes, status, begun);
    LOOKING.store(false, Ordering::Release);
    raw::restore_signals(&signals);
    true
}

fn settle(home: &Home, cap_bytes: u64, status: &File, begun: &Instant) {
    let Some(own) = own_bytes(home, status) else {
        return;
    };
    let kept = small::kept_bytes() + OTHER_BYTES;
    let own = match own.saturating_sub(kept) > TRIMS_BYTES && may_trim(begun) {
        true => {
            // SAFETY: a function of the C library's that takes its own locks; this thread has none of them, since it is not within malloc.
            unsafe { libc::malloc_trim(0) };
            own_bytes(home, status).unwrap_or(own)
        }
        false => own,
    };
    small::bound_beside(own.saturating_sub(kept));
    let given = given_bytes();
    let most = (home.heap.between_them_bytes() + given) / GIVES_ONE_IN;
    // What is counted and not touched yet hides as much; small allocations are known.
    let own = own.max(kept - OTHER_BYTES);
    let wanted = own.saturating_sub(beside_bytes(cap_bytes)).min(most);
    let wanted = wanted.next_multiple_of(STEP_BYTES);
    if wanted > given {
        home.heap.make_way(wanted - given);
    } else if wanted + STEP_BYTES < given {
        home.heap.count(given, wanted);
    } else {
        return;
    }
    GIVEN_BYTES.store(wanted, Ordering::Relaxed);
}

/// What the process has in DRAM beside what is counted in the cap, tables of pages with it. What is counted and not touched yet is taken for nothing.
fn own_bytes(home: &Home, status: &File) -> Option<u64> {
    let mut text = [0; STATUS_BYTES_MAX];
    let len = status.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..len]).ok()?;
    let all = ["RssAnon:", "RssShmem:", "VmPTE:"].map(|name| report::bytes_of(text, name));
    let elsewhere = given_bytes() + serve::counted_bytes();
    let counted = home.heap.held_bytes().saturating_sub(elsewhere);
    Some(all.iter().sum::<u64>().saturating_sub(counted))
}

/// Whether the C library may be asked to give back what it keeps of freed blocks: now and then, since it looks at all of them.
fn may_trim(begun: &Instant) -> bool {
    let (now, before) = (begun.elapsed().as_millis() as u64, &TRIMMED_MS);
    let may = now >= before.load(Ordering::Relaxed) + TRIM_AGAIN_MS;
    if may {
        before.store(now, Ordering::Relaxed);
    }
    may
}
