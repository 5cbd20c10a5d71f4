//! Memory of the runtime itself: an allocator on raw mmap, so that nothing in here ever asks the program's malloc.
//!
//! Small sizes are cut from one reservation, by classes with a list of free ones each; large ones are mappings of their own. Two faces: Rust's
//! global allocator, which says sizes when it frees, and C's, for what the C library allocates on behalf of the runtime, which writes the size
//! in front. Promises: whatever C's face handed out lies in the reservation, so that an address tells whose it is; works before and after
//! everything else in the process. Never: gives small memory back to the kernel (there are some MiB of it).

use crate::raw;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Addresses for small sizes; they cost nothing.
pub const RESERVED_BYTES: usize = 16 << 30;
/// As many where a limit refuses that, in a process that is not served: it needs hardly any.
const RESERVED_LEAST_BYTES: usize = 16 << 20;
/// Larger ones are mappings of their own.
const SMALL_MAX_BYTES: usize = 64 << 10;
/// Powers of two from 16 bytes to [`SMALL_MAX_BYTES`].
const CLASSES: usize = 13;
const CLASS_MIN_SHIFT: u32 = 4;
/// Taken from the reservation at a time, for classes smaller than that.
const SPAN_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;
/// In front of what C's face hands out: the size that was asked for, and where the allocation begins.
const HEAD_BYTES: usize = 16;

/// A lock that neither allocates nor sleeps on anything; held for some instructions.
struct Spin(AtomicBool);

impl Spin {
    fn lock(&self) {
        let mut tries = 0u32;
        while self.0.swap(true, Ordering::Acquire) {
            tries += 1;
            match tries {
                ..100 => std::hint::spin_loop(),
                #[expect(
                    clippy::disallowed_methods,
                    reason = "who has it may have been put off this processor, and nothing here may sleep"
                )]
                _ => std::thread::yield_now(),
            }
        }
    }

    fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

struct Class {
    lock: Spin,
    /// Free ones, each with the address of the next at its start.
    free: UnsafeCell<*mut usize>,
    /// Not yet used, of the span that was taken last.
    fresh: UnsafeCell<(usize, usize)>,
}

/// See the head of the file.
pub struct Arena {
    base: AtomicUsize,
    /// Length of the reservation; 0 until it is known.
    reserved: AtomicUsize,
    used: AtomicUsize,
    classes: [Class; CLASSES],
}

// SAFETY: what is not atomic is reached with the lock of its class held.
unsafe impl Sync for Arena {}

/// The only one.
#[cfg_attr(not(test), global_allocator)]
pub static ARENA: Arena = Arena::new();

fn class_of(bytes: usize) -> usize {
    let shift = bytes.max(1 << CLASS_MIN_SHIFT).next_power_of_two().ilog2();
    (shift - CLASS_MIN_SHIFT) as usize
}

fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + CLASS_MIN_SHIFT)
}

impl Arena {
    const fn new() -> Arena {
        Arena {
            base: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            classes: [const {
                Class {
                    lock: Spin(AtomicBool::new(false)),
                    free: UnsafeCell::new(std::ptr::null_mut()),
                    fresh: UnsafeCell::new((0, 0)),
                }
            }; CLASSES],
        }
    }

    /// Whether C's face handed this out, or a small one of Rust's.
    #[inline]
    pub fn owns(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && address.wrapping_sub(base) < self.reserved.load(Ordering::Acquire)
    }

    /// Bytes of the reservation that were used at least once.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn base(&self) -> Option<usize> {
        match self.base.load(Ordering::Acquire) {
            0 => self.reserve(),
            base => Some(base),
        }
    }

    fn reserve(&self) -> Option<usize> {
        // More than is used, so that spans begin at multiples of their length.
        let lens = [RESERVED_BYTES, RESERVED_LEAST_BYTES].map(|bytes| bytes + SPAN_BYTES);
        let found = lens
            .into_iter()
            .find_map(|len| match raw::map_zeros(len) as usize {
                0 => None,
                mapped => Some((mapped, len)),
            });
        let (mapped, len) = found?;
        let base = mapped.next_multiple_of(SPAN_BYTES);
        let (before, now) = (Ordering::AcqRel, Ordering::Acquire);
        match self.base.compare_exchange(0, base, before, now) {
            Ok(_) => {
                self.reserved.store(len - SPAN_BYTES, Ordering::Release);
                Some(base)
            }
            Err(first) => {
                // SAFETY: mapped just now, and nobody knows of it.
                unsafe { raw::munmap(mapped as *mut _, len) };
                Some(first)
            }
        }
    }

    fn take_span(&self, bytes: usize) -> Option<usize> {
        let base = self.base()?;
        // The thread that reserved it is about to say how much it is.
        while self.reserved.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        let reserved = self.reserved.load(Ordering::Acquire);
        // What is refused takes nothing.
        let end = |at: usize| at.checked_add(bytes).filter(|end| *end <= reserved);
        let order = Ordering::Relaxed;
        let taken = self.used.fetch_update(order, order, end);
        taken.ok().map(|at| base + at)
    }

    fn take(&self, number: usize) -> *mut u8 {
        let class = &self.classes[number];
        class.lock.lock();
        let (free, fresh) = (class.free.get(), class.fresh.get());
        // SAFETY: the lock is held; what is free was handed out once, so it is mapped, and its first word says the next.
        let taken = unsafe {
            if !(*free).is_null() {
                let taken = *free;
                *free = taken.read() as *mut usize;
                taken as usize
            } else {
                let bytes = class_bytes(number);
                if (*fresh).0 == (*fresh).1 {
                    let span = SPAN_BYTES.max(bytes);
                    let start = self.take_span(span).unwrap_or(0);
                    *fresh = (start, if start == 0 { 0 } else { start + span });
                }
                let taken = (*fresh).0;
                (*fresh).0 += if taken == 0 { 0 } else { bytes };
                taken
            }
        };
        class.lock.unlock();
        taken as *mut u8
    }

    fn give(&self, number: usize, address: *mut u8) {
        let class = &self.classes[number];
        class.lock.lock();
        // SAFETY: the lock is held; the allocation is the caller's to give, and at least a word long.
        unsafe {
            address.cast::<usize>().write(*class.free.get() as usize);
            *class.free.get() = address.cast();
        }
        class.lock.unlock();
    }

    /// Takes all locks: what a fork copies is whole then.
    pub fn lock_all(&self) {
        self.classes.iter().for_each(|class| class.lock.lock());
    }

    /// Gives them back, in parent and child.
    pub fn unlock_all(&self) {
        self.classes.iter().for_each(|class| class.lock.unlock());
    }

    /// C's face: `bytes` bytes at a multiple of `align`, a power of two; NULL if there are none.
    pub fn malloc(&self, bytes: usize, align: usize) -> *mut u8 {
        let align = align.max(HEAD_BYTES);
        let Some(whole) = bytes
            .checked_add(align + HEAD_BYTES)
            .filter(|whole| *whole <= RESERVED_BYTES)
        else {
            return std::ptr::null_mut();
        };
        let start = match whole <= SMALL_MAX_BYTES {
            true => self.take(class_of(whole)),
            // It must lie in the reservation; nothing that the C library asks for on the runtime's behalf is as large, so it is not reused.
            false => self
                .take_span(whole.next_multiple_of(SPAN_BYTES))
                .unwrap_or(0) as *mut u8,
        };
        if start.is_null() {
            return start;
        }
        let address = (start as usize + HEAD_BYTES).next_multiple_of(align);
        // SAFETY: within the allocation, which has room for the head in front of the first multiple.
        unsafe { (address as *mut [usize; 2]).sub(1).write([bytes, whole]) };
        address as *mut u8
    }

    /// The bytes of what C's face handed out.
    ///
    /// # Safety
    /// It did, and they are not freed.
    pub unsafe fn size_of(&self, address: *mut u8) -> usize {
        // SAFETY: the head lies in front.
        unsafe { address.cast::<[usize; 2]>().sub(1).read()[0] }
    }

    /// Frees what C's face handed out.
    ///
    /// # Safety
    /// It did, and nobody uses it any more.
    pub unsafe fn free(&self, address: *mut u8) {
        // SAFETY: the head lies in front.
        let [_, whole] = unsafe { address.cast::<[usize; 2]>().sub(1).read() };
        if whole > SMALL_MAX_BYTES {
            return;
        }
        // Small ones are aligned to their size, and begin within it.
        let bytes = class_bytes(class_of(whole));
        let start = (address as usize - HEAD_BYTES) & !(bytes - 1);
        self.give(class_of(whole), start as *mut u8);
    }
}

/// Whether a layout is served from a class, and which.
fn small(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align());
    (bytes <= SMALL_MAX_BYTES).then(|| class_of(bytes))
}

fn mapped_bytes(layout: Layout) -> usize {
    layout.size().next_multiple_of(PAGE_BYTES)
}

// SAFETY: classes are powers of two cut from spans that are aligned to them, so every allocation is aligned to its size; mappings are aligned to
// a page, or beyond by what is unmapped again; no allocation is handed out twice.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = small(layout) {
            return self.take(class);
        }
        if layout.align() <= PAGE_BYTES {
            return raw::map_zeros(mapped_bytes(layout));
        }
        let (bytes, align) = (mapped_bytes(layout), layout.align());
        let mapped = raw::map_zeros(bytes + align) as usize;
        if mapped == 0 {
            return std::ptr::null_mut();
        }
        let start = mapped.next_multiple_of(align);
        let (before, after) = (start - mapped, mapped + align - start);
        // SAFETY: ends of the mapping made just now.
        unsafe {
            if before > 0 {
                raw::munmap(mapped as *mut _, before);
            }
            if after > 0 {
                raw::munmap((start + bytes) as *mut _, after);
            }
        }
        start as *mut u8
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        match small(layout) {
            Some(class) => self.give(class, address),
            // SAFETY: the caller's mapping of this length.
            None => drop(unsafe { raw::munmap(address.cast(), mapped_bytes(layout)) }),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let address = unsafe { self.alloc(layout) };
        if !address.is_null() && small(layout).is_some() {
            // SAFETY: just allocated, with so many bytes. Mappings are zeros already.
            unsafe { address.write_bytes(0, layout.size()) };
        }
        address
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (small(layout), small(wanted)) {
            (Some(a), Some(b)) if a == b => return address,
            (None, None) if layout.align() <= PAGE_BYTES => {
                let (old, new) = (mapped_bytes(layout), mapped_bytes(wanted));
                // SAFETY: the caller's mapping, which may move.
                let moved = unsafe {
                    raw::mremap(
                        address.cast(),
                        old,
                        new,
                        libc::MREMAP_MAYMOVE,
                        std::ptr::null_mut(),
                    )
                };
                return match moved == libc::MAP_FAILED {
                    true => std::ptr::null_mut(),
                    false => moved.cast(),
                };
            }
            _ => {}
        }
        // SAFETY: the caller's promises; both have so many bytes, and are not the same.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                new.copy_from_nonoverlapping(address, layout.size().min(bytes));
                self.dealloc(address, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_aligned_and_apart() {
        let layouts: Vec<Layout> = [1, 16, 17, 100, 4096, 5000, 65536, 65537, 1 << 20]
            .iter()
            .flat_map(|bytes| (0..=14).map(|shift| Layout::from_size_align(*bytes, 1 << shift)))
            .map(|layout| layout.expect("a layout"))
            .collect();
        let mut taken = Vec::new();
        for (n, layout) in layouts.iter().enumerate() {
            // SAFETY: a size that is not 0.
            let address = unsafe { ARENA.alloc_zeroed(*layout) };
            assert!(!address.is_null() && (address as usize).is_multiple_of(layout.align()));
            // SAFETY: just allocated.
            let bytes = unsafe { std::slice::from_raw_parts_mut(address, layout.size()) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(n as u8 | 1);
            taken.push((address, *layout, n as u8 | 1));
        }
        for (address, layout, value) in taken {
            let bytes = layout.size() * 3;
            // SAFETY: allocated above, with this layout.
            unsafe {
                let grown = ARENA.realloc(address, layout, bytes);
                let kept = std::slice::from_raw_parts(grown, layout.size());
                assert!(kept.iter().all(|byte| *byte == value));
                ARENA.dealloc(
                    grown,
                    Layout::from_size_align(bytes, layout.align()).expect("a layout"),
                );
            }
        }
    }

    #[test]
    fn what_c_gets_lies_in_the_reservation_and_comes_back() {
        for align in [1, 16, 64, 4096] {
            for bytes in [0, 1, 24, 1000, 40_000, 100_000] {
                let first = ARENA.malloc(bytes, align);
                assert!(ARENA.owns(first as usize) && (first as usize).is_multiple_of(align));
                // SAFETY: allocated just now; written within its bytes.
                unsafe {
                    assert_eq!(ARENA.size_of(first), bytes);
                    first.write_bytes(7, bytes);
                    ARENA.free(first);
                }
            }
        }
        assert!(!ARENA.owns(&raw const ARENA as usize));
        // None of these takes anything.
        for bytes in [RESERVED_BYTES - (64 << 10), 1 << 40, usize::MAX] {
            let used_bytes = ARENA.used_bytes();
            assert!(ARENA.malloc(bytes, 16).is_null());
            assert!(ARENA.used_bytes() - used_bytes < 1 << 20);
        }
    }
}
