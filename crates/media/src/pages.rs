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

/// From this length on memory is mapped, not taken from the allocator: the allocator would clear
/// it by hand and keep it after it is freed.
const MAPPED_FROM_BYTES: usize = 128 * 1024;

/// What one page table entry of the second level covers on x86-64 and on ARM with pages of 4 KiB.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Owned memory of a fixed length. Dropping it frees it.
pub(crate) struct Pages {
    ptr: NonNull<u8>,
    len: usize,
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
            Some(ptr) => Pages { ptr, len },
            None => handle_alloc_error(layout),
        }
    }

    /// [`HUGE_BYTES`] of zeros: on one huge page, if the system has one when they are first touched. None: there are no addresses for it.
    pub(crate) fn huge() -> Option<Pages> {
        let base = reserve_aligned(HUGE_BYTES).ok()?;
        let pages = Pages {
            ptr: NonNull::new(base)?,
            len: HUGE_BYTES,
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
