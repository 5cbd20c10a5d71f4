//! How much of the program's small allocations its own malloc keeps: up to a bound; beyond it they are served as large ones are, so that what is not served cannot outgrow a cgroup.
//!
//! A block's size is read where the C library's malloc keeps it, in the word before the block: malloc_usable_size looks at the block behind, too, which is a miss of the cache for each free. Promises: what is
//! counted is what blocks take, but for [`UNCOUNTED_BYTES`] of each thread; what is freed makes room for others. Never: counts
//! where the program has another malloc than the C library's: that one maps its memory, which is served.

use crate::{next, tls};
use libc::c_void;
use std::sync::atomic::{AtomicI64, Ordering};

/// A thread keeps so much to itself, so that threads do not wait for each other's cache line.
const UNCOUNTED_BYTES: u64 = 4096;
/// Nothing is bounded.
const NO_BOUND: i64 = i64::MAX;

/// What the C library's malloc has given out, bytes. Below zero where blocks are freed that were made before anything was counted.
static KEPT: AtomicI64 = AtomicI64::new(0);
static BOUND: AtomicI64 = AtomicI64::new(NO_BOUND);

/// From now on what the C library's malloc keeps is bounded.
pub fn prepare(bound_bytes: u64) {
    if next::malloc_is_glibcs() && has_sizes_in_front() {
        let bound = i64::try_from(bound_bytes).unwrap_or(NO_BOUND);
        BOUND.store(bound, Ordering::Relaxed);
    }
}

/// What a block takes with its head, as it stands in front of it, beside three bits.
///
/// # Safety
/// A block of the C library's.
#[inline]
unsafe fn size(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { block.cast::<usize>().sub(1).read() & !7 }
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

/// What it has, bytes; 0 if that is not counted.
pub fn kept_bytes() -> u64 {
    KEPT.load(Ordering::Relaxed).max(0) as u64
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

/// The program's malloc keeps so much more, or less.
#[inline]
pub fn count(bytes: i64) {
    let sum = tls::small() + bytes;
    let stays = sum.unsigned_abs() < UNCOUNTED_BYTES;
    tls::set_small(if stays { sum } else { 0 });
    if !stays {
        KEPT.fetch_add(sum, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_adds_up() {
        assert!(!are_enough());
        BOUND.store(1 << 20, Ordering::Relaxed);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..600 {
                        count(512);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let kept = KEPT.load(Ordering::Relaxed);
        let all = 4 * 600 * 512;
        assert!(
            (all - 4 * UNCOUNTED_BYTES as i64..=all).contains(&kept),
            "{kept}"
        );
        assert!(are_enough());
        count(-all);
        assert!(!are_enough());
        BOUND.store(NO_BOUND, Ordering::Relaxed);
    }
}
