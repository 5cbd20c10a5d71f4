//! A file mapped into memory, as words: what users have today, the peer that `terrace bench memory` measures beside us.
//!
//! Promises: the mapping lives as long as the value, and is advised as random. Never: used by the product.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io::Error;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A shared mapping of a whole file.
pub struct Mapped {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the words are atomics, and the mapping stays until it is dropped.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `file`, which nobody may shorten meanwhile.
    pub fn new(file: &File) -> Result<Mapped, Error> {
        let words = file.metadata()?.len() as usize / size_of::<AtomicU64>();
        let len = words * size_of::<AtomicU64>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        // SAFETY: advice on the mapping just made changes no content.
        unsafe { madvise(base, len, Advice::Random) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::other("mapped at address 0"))?;
        Ok(Mapped { base, words })
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, aligned to a page, and atomics may be shared with anybody.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the mapping is ours, and no slice of it outlives `self`.
        // It cannot fail on a range that is mapped; if it does, the addresses stay taken.
        let _unmapped = unsafe { munmap(base, self.words * size_of::<AtomicU64>()) };
    }
}
