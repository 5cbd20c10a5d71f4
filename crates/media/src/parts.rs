//! Parts of a block of 2 MiB that moves to one huge page when it is full: for memory that is looked at here and there and seldom given back.
//!
//! Such a look misses the processor's table of addresses, and under a hypervisor the walk that follows costs more than the memory
//! itself (docs/adr/0028, 0046).
//!
//! Promises: a part has one owner, is zero when taken first, and takes no memory before it is touched; what is dropped goes back to the
//! kernel (of a block on a huge page: as soon as the kernel is short). Never: holds memory for parts that nobody has, or matters to anything but speed where the
//! kernel refuses.

use crate::huge::{BLOCK_BYTES, reserve_aligned};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A block, cut into parts from its beginning.
struct Block {
    base: NonNull<u8>,
    /// Bytes that were handed out.
    cut: AtomicUsize,
}

// SAFETY: the base pointer is an address that never changes; each byte behind it is reached only through the one Part that owns it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// A part of a block.
pub struct Part {
    block: Arc<Block>,
    at: usize,
    len: usize,
}

impl Part {
    /// The first part, of `len` bytes, of a new block. None: the system has no addresses left, or `len` is no multiple of a page or more than a block.
    pub fn first(len: usize) -> Option<Part> {
        if !len.is_multiple_of(crate::BLOCK_BYTES) || !(1..=BLOCK_BYTES).contains(&len) {
            return None;
        }
        let around = reserve_aligned(BLOCK_BYTES).ok()?;
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        );
        // SAFETY: replaces the reservation just made, of this very length.
        let base = unsafe { mmap_anonymous(around.cast(), BLOCK_BYTES, access, flags) };
        let block = Arc::new(Block {
            base: NonNull::new(base.ok()?.cast())?,
            cut: AtomicUsize::new(len),
        });
        Some(Part { block, at: 0, len })
    }

    /// The part behind this one, as long as it. None: the block has no more room, or the part has an owner.
    pub fn next(&self) -> Option<Part> {
        let at = self.at + self.len;
        let fits = at + self.len <= BLOCK_BYTES;
        let cut = &self.block.cut;
        let is_free = fits
            && cut
                .compare_exchange(at, at + self.len, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        is_free.then(|| Part {
            block: self.block.clone(),
            at,
            len: self.len,
        })
    }

    /// Whether no part of this length fits behind it.
    pub fn is_last(&self) -> bool {
        self.at + 2 * self.len > BLOCK_BYTES
    }

    /// Bytes behind the last of the parts of `len` bytes in a block, which a huge page has too.
    pub fn rest_bytes(len: usize) -> usize {
        BLOCK_BYTES % len
    }

    /// Lets the kernel put the block on one page when it comes by: for who has filled the last part. Asking for it at once would take up to some milliseconds.
    pub fn make_huge(&self) {
        let base = self.block.base.as_ptr().cast();
        // SAFETY: the block's own mapping; the advice changes no content. Where the kernel refuses, all stays as it is.
        let _refused = unsafe { madvise(base, BLOCK_BYTES, Advice::LinuxHugepage) };
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: memory of this part, whose only owner is gone.
        let given = unsafe {
            let at = self.block.base.as_ptr().add(self.at).cast();
            madvise(at, self.len, Advice::LinuxDontNeed)
        };
        debug_assert!(given.is_ok(), "giving memory back: {given:?}");
        // The part behind it may still be there; then this one stays cut, and its addresses idle until the block goes.
        let _behind = self.block.cut.compare_exchange(
            self.at + self.len,
            self.at,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: our mapping of this very length; every Part holds the block, so none lives.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), BLOCK_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

impl Deref for Part {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: within the block's mapping, which lives as long as this part; nobody else has these bytes.
        unsafe { std::slice::from_raw_parts(self.block.base.as_ptr().add(self.at), self.len) }
    }
}

impl DerefMut for Part {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this part is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.block.base.as_ptr().add(self.at), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_come_back() {
        let len = 160 << 10;
        let mut first = Part::first(len).unwrap();
        assert!(
            first
                .next()
                .is_some_and(|second| second.iter().all(|b| *b == 0))
        );
        let mut second = first.next().expect("it was given back");
        assert!(first.next().is_none(), "it has an owner");
        first.fill(1);
        second.fill(2);
        let mut parts = vec![second];
        while let Some(mut next) = parts.last().unwrap().next() {
            next.fill(parts.len() as u8 + 2);
            parts.push(next);
        }
        assert_eq!(parts.len() + 1, BLOCK_BYTES / len);
        assert!(parts.last().unwrap().is_last() && !first.is_last());
        first.make_huge();
        assert!(first.iter().all(|b| *b == 1));
        for (at, part) in parts.iter().enumerate() {
            assert!(part.iter().all(|b| usize::from(*b) == at + 2));
        }
        // From the end, as they are dropped by who grew; what is taken again is zero.
        let last = parts.pop().unwrap();
        drop(last);
        let again = parts.last().unwrap().next().unwrap();
        assert!(again.iter().all(|b| *b == 0));
    }

    #[test]
    fn what_does_not_fit_a_block_is_none() {
        assert!(Part::first(0).is_none() && Part::first(1).is_none());
        assert!(Part::first(BLOCK_BYTES + crate::BLOCK_BYTES).is_none());
        assert!(
            Part::first(BLOCK_BYTES).is_some_and(|whole| whole.next().is_none() && whole.is_last())
        );
    }
}
