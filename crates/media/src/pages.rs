//! Raw page-aligned memory: the one place where buffers get and give back their bytes.
//!
//! A device is given memory by pieces that lie in a row, and on virtual machines each piece more costs as much as a sixth of a read: what is read into
//! by several pages at a time is better on one huge page (docs/adr/0053).
//!
//! Promises: aligned to `BLOCK_BYTES`, zero when made, given back to the kernel when dropped if
//! large (so that a freed segment lowers the process's memory at once).
//! Never: decides who may read or write; the owners in `buf` do.

use crate::BLOCK_BYTES;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// From this length on memory is mapped, not taken from the allocator: the allocator would clear
/// it by hand and keep it after it is freed.
const MAPPED_FROM_BYTES: usize = 128 * 1024;

/// What one page table entry of the second level covers on x86-64 and on ARM with pages of 4 KiB.
pub const HUGE_BYTES: usize = 2 << 20;

/// Owned memory of a fixed length. Dropping it frees it, or what it is a part of with the last such part.
pub(crate) struct Pages {
    ptr: NonNull<u8>,
    len: usize,
    part_of: Option<Arc<Pages>>,
}

// SAFETY: Pages owns its memory alone and has no thread affinity; it offers only a pointer, and
// whoever dereferences that answers for aliasing.
unsafe impl Send for Pages {}
// SAFETY: as above: sharing a Pages shares a pointer and a length, both immutable.
unsafe impl Sync for Pages {}

impl Pages {
    /// Zeroed memory of `len` bytes, rounded up to whole blocks and at least one. Aborts like any
    /// Rust allocation when there is no memory.
    pub(crate) fn zeroed(len: usize) -> Pages {
        let len = len.max(1).next_multiple_of(BLOCK_BYTES);
        let layout = Self::layout(len);
        let ptr = if len >= MAPPED_FROM_BYTES {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a fresh anonymous mapping at an address the kernel chooses overlaps nothing.
            let mapped = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                )
            };
            mapped.ok().map(|p| p.cast::<u8>())
        } else {
            // SAFETY: the layout's size is not zero, see the rounding above.
            Some(unsafe { alloc_zeroed(layout) })
        };
        match ptr.and_then(NonNull::new) {
            Some(ptr) => Pages {
                ptr,
                len,
                part_of: None,
            },
            None => handle_alloc_error(layout),
        }
    }

    /// Zeroed memory of `lens` bytes, each a multiple of [`BLOCK_BYTES`], together at most [`HUGE_BYTES`], side by side. The bytes are on one huge page, if the system has one when they are first
    /// touched. None: there are no addresses for it.
    pub(crate) fn side_by_side(lens: &[usize]) -> Option<Vec<Pages>> {
        let whole = Arc::new(Pages::huge()?);
        let mut from = 0;
        let part = |&len: &usize| {
            assert!(len > 0 && len.is_multiple_of(BLOCK_BYTES) && len <= whole.len - from);
            let ptr = whole.as_ptr().wrapping_add(from);
            from += len;
            Some(Pages {
                ptr: NonNull::new(ptr)?,
                len,
                part_of: Some(whole.clone()),
            })
        };
        lens.iter().map(part).collect()
    }

    /// Whether its memory stays where it is when it is dropped, as long as there are other parts.
    pub(crate) fn is_part(&self) -> bool {
        self.part_of.is_some()
    }

    /// [`HUGE_BYTES`] of zeros: on one huge page, if the system has one when they are first touched. None: there are no addresses for it.
    fn huge() -> Option<Pages> {
        let base = reserve_aligned(HUGE_BYTES).ok()?;
        let pages = Pages {
            ptr: NonNull::new(base)?,
            len: HUGE_BYTES,
            part_of: None,
        };
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the mapping just made, whole, which nobody knows of.
        unsafe { mprotect(base.cast(), HUGE_BYTES, access) }.ok()?;
        // SAFETY: advice; it changes no content. Refused where there are no huge pages: then it is on small ones.
        let _advised = unsafe { madvise(base.cast(), HUGE_BYTES, Advice::LinuxHugepage) };
        Some(pages)
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BLOCK_BYTES).expect("a buffer is far below isize::MAX bytes")
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Addresses for `len` bytes that begin where a huge page may.
pub(crate) fn reserve_aligned(len: usize) -> Result<*mut u8, Errno> {
    let all = len.checked_add(HUGE_BYTES).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, without any access, at an address the kernel chooses.
    let around = unsafe { mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), flags) }?;
    let around = around.cast::<u8>();
    let before = around.align_offset(HUGE_BYTES);
    let len = len.next_multiple_of(BLOCK_BYTES);
    let base = around.wrapping_add(before);
    for (from, bytes) in [
        (around, before),
        (base.wrapping_add(len), HUGE_BYTES - before),
    ] {
        if bytes > 0 {
            // SAFETY: a part of the mapping just made that nobody knows of.
            unsafe { munmap(from.cast(), bytes) }?;
        }
    }
    Ok(base)
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_part() {
            return;
        }
        if self.len >= MAPPED_FROM_BYTES {
            // SAFETY: the range was mapped by `zeroed` with this length, and the owner is gone.
            let unmapped = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        } else {
            // SAFETY: allocated by `zeroed` with this very layout, and the owner is gone.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) };
        }
    }
}
