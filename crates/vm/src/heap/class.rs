//! Sizes of small allocations, and how many pages a span of each has; alignments of all. Pure functions.
//!
//! Sizes are 16 bytes apart up to 128, then four for each doubling, and eight beyond a KiB: at most a fifth of an allocation is padding, and a ninth of those
//! that fill a page or so, as databases' buffers do (sqlite3's of 4.3 KiB). Promises: a size that is a power of two is aligned to itself (up to a page),
//! since spans begin at pages. Never: touches memory.

use crate::PAGE_BYTES;

/// The least alignment of an allocation, as malloc's on 64-bit machines.
pub(super) const ALIGN_MIN: usize = 16;
/// The largest alignment: a heap begins at a multiple of it.
pub const ALIGN_MAX_BYTES: usize = crate::space::SLOT_BYTES;
/// The largest small allocation: longer ones are runs of pages.
pub(super) const SMALL_MAX_BYTES: usize = 16 << 10;
/// Sizes of small allocations.
pub(super) const CLASSES: usize = classes_of(7).0;
/// Of these, how many are 16 bytes apart, and where that ends.
const FINE: usize = 8;
const FINE_MAX_BYTES: usize = 128;
/// Sizes of each of the first doublings beyond, and of the others.
const FEW: usize = 4;
const FEW_DOUBLINGS: usize = 3;
const MANY: usize = 8;
/// Most pages of a span.
const SPAN_PAGES_MAX: usize = 32;
/// A span leaves at most one part in this many of its bytes unused, where that is possible.
const SPAN_WASTE: usize = 16;

/// The first class of a doubling, and how many it has.
const fn classes_of(doubling: usize) -> (usize, usize) {
    match doubling < FEW_DOUBLINGS {
        true => (FINE + doubling * FEW, FEW),
        false => (
            FINE + FEW_DOUBLINGS * FEW + (doubling - FEW_DOUBLINGS) * MANY,
            MANY,
        ),
    }
}

/// The bytes of an allocation of a class.
pub(super) const fn class_bytes(class: usize) -> usize {
    if class < FINE {
        return (class + 1) * ALIGN_MIN;
    }
    let (many_from, _) = classes_of(FEW_DOUBLINGS);
    let doubling = match class < many_from {
        true => (class - FINE) / FEW,
        false => FEW_DOUBLINGS + (class - many_from) / MANY,
    };
    let (first, count) = classes_of(doubling);
    (FINE_MAX_BYTES << doubling) / count * (count + 1 + class - first)
}

/// The class for `bytes` bytes at a multiple of `align`; none if that takes a run of pages.
pub(super) fn class_of(bytes: usize, align: usize) -> Option<usize> {
    let bytes = match align <= ALIGN_MIN {
        true => bytes.max(1),
        // Powers of two are aligned to themselves.
        false => bytes.max(align).checked_next_power_of_two()?,
    };
    if bytes > SMALL_MAX_BYTES || align > PAGE_BYTES {
        return None;
    }
    if bytes <= FINE_MAX_BYTES {
        return Some(bytes.div_ceil(ALIGN_MIN) - 1);
    }
    let doubling = ((bytes - 1) / FINE_MAX_BYTES).ilog2() as usize;
    let (first, count) = classes_of(doubling);
    let step = (FINE_MAX_BYTES << doubling) / count;
    Some(first + bytes.div_ceil(step) - count - 1)
}

/// Pages of a span of a class.
pub(super) fn span_pages(class: usize) -> usize {
    let bytes = class_bytes(class);
    let waste = |pages: usize| (pages * PAGE_BYTES) % bytes;
    let least = bytes.div_ceil(PAGE_BYTES);
    let good = |pages: &usize| waste(*pages) * SPAN_WASTE <= pages * PAGE_BYTES;
    (least..=SPAN_PAGES_MAX).find(good).unwrap_or(least)
}

/// Allocations of a span of a class.
pub(super) fn span_slots(class: usize) -> usize {
    span_pages(class) * PAGE_BYTES / class_bytes(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for bytes in 1..=SMALL_MAX_BYTES {
            let class = class_of(bytes, 16).expect("small");
            assert!(class_bytes(class) >= bytes, "{bytes} bytes");
            assert!(
                class == 0 || class_bytes(class - 1) < bytes,
                "{bytes} bytes"
            );
        }
        assert_eq!(class_bytes(CLASSES - 1), SMALL_MAX_BYTES);
        for bytes in 129..=SMALL_MAX_BYTES {
            let class = class_of(bytes, 16).expect("small");
            let one_in = if bytes > 1024 { 9 } else { 5 };
            assert!((class_bytes(class) - bytes) * one_in < class_bytes(class));
        }
        assert_eq!(class_of(SMALL_MAX_BYTES + 1, 16), None);
        assert_eq!(class_of(usize::MAX, 64), None);
    }

    #[test]
    fn alignments_hold_in_every_slot_and_spans_waste_little() {
        for align in (4..=12).map(|n| 1 << n) {
            for bytes in [1, 17, 100, 4096, 5000] {
                let class = class_of(bytes, align).expect("small");
                assert_eq!(class_bytes(class) % align, 0, "{bytes} at {align}");
            }
        }
        for class in 0..CLASSES {
            let used = span_slots(class) * class_bytes(class);
            assert!(span_pages(class) <= SPAN_PAGES_MAX);
            assert!(
                used * 16 >= span_pages(class) * PAGE_BYTES * 15,
                "{}",
                class_bytes(class)
            );
        }
    }
}
