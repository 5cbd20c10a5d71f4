//! How much of the program's small allocations its own malloc keeps: up to a bound; beyond it they are served as large ones are, so that a program of nothing else stays near its cap, too.
//!
//! What the loader allocates is never served, nor what the C library does for itself where it is small: tables of thread-local storage, which a fault is taken with; what a fork's child writes to before it has its
//! memory; what a child of posix_spawn reads. A block's size is read where glibc keeps it, in the word before the block: malloc_usable_size looks at the block behind, too, which is a miss of the
//! cache for each free. Promises: what is counted is what blocks take that are not freed, but for [`SHARDS`] times [`UNCOUNTED_BYTES`]; what is freed makes room for others. Never: counts where the program has
//! another malloc than the C library's, whose memory is served, since it maps it; or what the C library keeps of freed blocks.

use crate::{loaded, next, tls};
use libc::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

/// Below this an allocation of the C library's own stays, bytes: all of these that must not fault are shorter. The loader's are not: its list of who has thread-local storage is read when a thread is made,
/// also the one that brings a fork's child its memory.
const OWN_BYTES_MAX: usize = 1024;
/// Threads count in one of so many places, a power of two. Not by one operation: that waits for all misses of the cache before it (a fifth of the time of a program that only allocates). Of two threads with
/// the same place that count at the same nanosecond, one may be lost, of what is allocated as of what is freed.
const SHARDS: usize = 256;
/// What is counted there before all threads see it.
const UNCOUNTED_BYTES: u64 = 4096;
/// The process's own memory is looked at when so much more or less is kept.
const LOOKS_BYTES: u64 = 1 << 20;
/// And at every so manyth small allocation beyond the bound.
const LOOKS_EVERY: usize = 4096;
static PASSED: AtomicUsize = AtomicUsize::new(0);
/// Nothing is bounded.
const NO_BOUND: i64 = i64::MAX;

#[repr(align(64))]
struct Shard(AtomicI64);

static COUNTED: [Shard; SHARDS] = [const { Shard(AtomicI64::new(0)) }; SHARDS];
/// What the C library's malloc has given out, bytes. Below zero where blocks are freed that were made before anything was counted.
static KEPT: AtomicI64 = AtomicI64::new(0);
static BOUND: AtomicI64 = AtomicI64::new(NO_BOUND);
/// The same, if the C library keeps nothing besides.
static BOUND_MAX: AtomicI64 = AtomicI64::new(NO_BOUND);
/// The user said how much: then it is that.
static IS_SAID: AtomicBool = AtomicBool::new(false);
/// What was kept when the process's own memory was looked at last.
static LOOKED: AtomicI64 = AtomicI64::new(0);
/// Code of the C library and of the loader: start and length.
static LIBC: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
static LOADER: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// From now on what the C library's malloc keeps is bounded: by what the user said, or by `else_bytes`.
pub fn prepare(said_bytes: Option<u64>, else_bytes: u64) {
    let of_libc = next::libcs_malloc();
    let places = [(of_libc, &LIBC), (loaded::loaders_function(), &LOADER)];
    let known = places.into_iter().all(|(address, (start, len))| {
        let part = loaded::part_with(address);
        if let Some((at, bytes)) = part {
            start.store(at, Ordering::Relaxed);
            len.store(bytes, Ordering::Relaxed);
        }
        part.is_some()
    });
    // Who asks is known on x86_64 only (`malloc`).
    if cfg!(target_arch = "x86_64") && known && next::malloc_is(of_libc) && has_sizes_in_front() {
        let bound = i64::try_from(said_bytes.unwrap_or(else_bytes)).unwrap_or(NO_BOUND);
        IS_SAID.store(said_bytes.is_some(), Ordering::Relaxed);
        BOUND_MAX.store(bound, Ordering::Relaxed);
        BOUND.store(bound, Ordering::Relaxed);
    }
}

/// Whether anything is.
pub fn are_counted() -> bool {
    BOUND_MAX.load(Ordering::Relaxed) != NO_BOUND
}

fn may_change() -> bool {
    are_counted() && !IS_SAID.load(Ordering::Relaxed)
}

/// The C library keeps so much of freed blocks, which leaves as much less for what is not freed.
pub fn leave_room_for(bytes: u64) {
    if may_change() {
        let max = BOUND_MAX.load(Ordering::Relaxed);
        let bytes = i64::try_from(bytes).unwrap_or(NO_BOUND);
        BOUND.store((max - bytes).max(0), Ordering::Relaxed);
    }
}

/// What there is may stay, and so much in any case: no pages give way for more.
pub fn bound_from_now(least_bytes: u64) {
    if may_change() {
        let most = KEPT.load(Ordering::Relaxed).max(least_bytes as i64);
        let bound = BOUND_MAX.load(Ordering::Relaxed).min(most);
        BOUND_MAX.store(bound, Ordering::Relaxed);
        BOUND.fetch_min(bound, Ordering::Relaxed);
    }
}

/// What a block takes with its head, as it stands in front of it, beside three bits, which another thread may change.
///
/// # Safety
/// A block of the C library's.
#[inline]
unsafe fn size(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise: the word is there, and aligned.
    unsafe { AtomicUsize::from_ptr(block.cast::<usize>().sub(1)).load(Ordering::Relaxed) & !7 }
}

/// Whether that is so here, by what the C library says of some blocks.
fn has_sizes_in_front() -> bool {
    [1, 24, 100, 1000].into_iter().all(|bytes| {
        // SAFETY: a block of the C library's, until it is freed.
        unsafe {
            let block = next::malloc(bytes);
            let is = !block.is_null()
                && size(block) == next::malloc_usable_size(block) + size_of::<usize>();
            next::free(block);
            is
        }
    })
}

/// Whether the program's malloc has as much as it may keep.
#[inline]
pub fn are_enough() -> bool {
    KEPT.load(Ordering::Relaxed) >= BOUND.load(Ordering::Relaxed)
}

/// A small allocation is asked for beyond the bound, where nothing is counted that would bring a look (`own`): whether this one does, since what lowered the bound may be over.
pub fn passed() -> bool {
    PASSED.fetch_add(1, Ordering::Relaxed) % LOOKS_EVERY == LOOKS_EVERY - 1
}

/// Whether an allocation of so many bytes is one that stays in any case, by the code that asked for it.
pub fn stays(bytes: usize, caller: usize) -> bool {
    let within = |(start, len): &(AtomicUsize, AtomicUsize)| {
        caller.wrapping_sub(start.load(Ordering::Relaxed)) < len.load(Ordering::Relaxed)
    };
    within(&LOADER) || bytes < OWN_BYTES_MAX && within(&LIBC)
}

/// What the program's malloc has, bytes; 0 if that is not counted.
pub fn kept_bytes() -> u64 {
    let apart = COUNTED.iter().map(|shard| shard.0.load(Ordering::Relaxed));
    (KEPT.load(Ordering::Relaxed) + apart.sum::<i64>()).max(0) as u64
}

/// What a block of the program's malloc takes, if that is counted; 0 for NULL.
///
/// # Safety
/// NULL, or such a block.
#[inline]
pub unsafe fn bytes(block: *mut c_void) -> i64 {
    if block.is_null() || BOUND.load(Ordering::Relaxed) == NO_BOUND {
        return 0;
    }
    // SAFETY: the caller's promise; it is the C library's, since there is a bound.
    unsafe { size(block) as i64 }
}

/// The program's malloc keeps so much more, or less. True: the process's own memory should be looked at (`own`), until [`looked`] says that it was.
#[inline]
#[must_use]
pub fn count(bytes: i64) -> bool {
    if bytes == 0 {
        return false;
    }
    // Threads' own variables lie pages apart.
    let thread = (tls::selector() as usize >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let shard = &COUNTED[thread >> (usize::BITS - SHARDS.trailing_zeros())].0;
    let sum = shard.load(Ordering::Relaxed) + bytes;
    let stays = sum.unsigned_abs() < UNCOUNTED_BYTES;
    shard.store(if stays { sum } else { 0 }, Ordering::Relaxed);
    if stays {
        return false;
    }
    let kept = KEPT.fetch_add(sum, Ordering::Relaxed) + sum;
    kept.abs_diff(LOOKED.load(Ordering::Relaxed)) >= LOOKS_BYTES
}

/// It was looked at.
pub fn looked() {
    LOOKED.store(KEPT.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_adds_up() {
        assert!(!are_enough());
        BOUND.store(1 << 20, Ordering::Relaxed);
        // Threads that end with less than is told to all.
        let all = |bytes: i64| {
            for n in 0..200 {
                let thread = std::thread::spawn(move || (0..n).for_each(|_| _ = count(bytes)));
                thread.join().unwrap();
            }
        };
        all(160);
        let counted = 160 * (0..200).sum::<i64>();
        assert_eq!(kept_bytes(), counted as u64);
        let apart = counted - KEPT.load(Ordering::Relaxed);
        assert!(
            apart.unsigned_abs() <= SHARDS as u64 * UNCOUNTED_BYTES,
            "{apart}"
        );
        assert!(are_enough());
        all(-160);
        assert_eq!(kept_bytes(), 0);
        assert!(!are_enough());
        BOUND.store(NO_BOUND, Ordering::Relaxed);
    }

    #[test]
    fn what_the_c_library_asks_for_itself_stays() {
        prepare(None, u64::MAX);
        let (libc, own) = (
            next::libcs_malloc(),
            stays as fn(usize, usize) -> bool as usize,
        );
        assert!(stays(1023, libc) && !stays(1024, libc) && !stays(16, own));
        assert!(stays(16, loaded::loaders_function()) && stays(4096, loaded::loaders_function()));
    }
}
