//! Large tables that cost memory only where they are used: a mapping of zeros, seen as an array.
//!
//! Promises: an entry never moves. Never: grows; the memory of an entry once touched stays until the table goes, or its owner empties that part.

use super::SystemError;
use rustix::mm::{Advice, madvise, munmap};
use std::ops::{Index, Range};
use std::ptr::NonNull;

/// Types for which memory full of zeros is a value, and which need no drop.
///
/// # Safety
/// The implementer has looked at every field.
pub(crate) unsafe trait ZeroIsValid {}

/// `len` entries of zeros at first.
pub(crate) struct Table<T: ZeroIsValid> {
    base: NonNull<T>,
    len: usize,
}

// SAFETY: the table owns its mapping; its entries are shared as `&T` only, which is safe for T: Sync.
unsafe impl<T: ZeroIsValid + Sync + Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: ZeroIsValid + Sync + Send> Sync for Table<T> {}

impl<T: ZeroIsValid> Table<T> {
    pub fn new(len: usize) -> Result<Table<T>, SystemError> {
        let bytes = Self::bytes(len);
        let base = super::map_addresses(bytes)?;
        Ok(Table {
            base: NonNull::new(base.cast()).expect("the kernel maps no null page for us"),
            len,
        })
    }

    fn bytes(len: usize) -> usize {
        (len * size_of::<T>()).max(1).next_multiple_of(4096)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// These entries, and any behind them on the last one's page, are zeros again and take no memory; those on a page with an entry before them stay as they are.
    pub fn empty(&self, entries: Range<usize>) {
        let page = |entry: usize| (entry * size_of::<T>()).next_multiple_of(4096);
        let (start, end) = (
            page(entries.start),
            page(entries.end).min(Self::bytes(self.len)),
        );
        if start >= end {
            return;
        }
        // SAFETY: whole pages of our own mapping, which nobody else has; who looks at an entry meanwhile sees what was there, or zeros, which are a value of it.
        let emptied = unsafe {
            madvise(
                self.base.as_ptr().byte_add(start).cast(),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        debug_assert!(emptied.is_ok(), "madvise of our own mapping: {emptied:?}");
    }

    /// What of it is in DRAM.
    #[cfg(test)]
    pub fn resident_bytes(&self) -> usize {
        let bytes = Self::bytes(self.len);
        let mut pages = vec![0u8; bytes / 4096];
        // SAFETY: our own mapping, and a byte for each page of it.
        let said = unsafe { libc::mincore(self.base.as_ptr().cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(said, 0);
        pages.iter().filter(|page| **page & 1 != 0).count() * 4096
    }
}

impl<T: ZeroIsValid> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        assert!(at < self.len, "entry {at} of a table of {}", self.len);
        // SAFETY: within the mapping, which is aligned to a page and as old as the table; zeros are a valid T.
        unsafe { &*self.base.as_ptr().add(at) }
    }
}

impl<T: ZeroIsValid> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping of this length; references into it have ended with the table's borrow.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), Self::bytes(self.len)) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

// SAFETY: an integer; all bits may be zero.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU64 {}
// SAFETY: an integer; all bits may be zero.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU32 {}
// SAFETY: an integer; all bits may be zero.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU16 {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn entries_are_zero_and_stay_where_they_are() {
        let table: Table<AtomicU64> = Table::new(1 << 30).unwrap();
        assert_eq!(table.len(), 1 << 30);
        table[(1 << 30) - 1].store(7, Ordering::Relaxed);
        assert_eq!(table[(1 << 30) - 1].load(Ordering::Relaxed), 7);
        assert_eq!(table[12345].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_emptied_is_zero_and_what_is_not_stays() {
        let table: Table<AtomicU64> = Table::new(10_000).unwrap();
        (0..10_000).for_each(|at| table[at].store(7, Ordering::Relaxed));
        assert_eq!(table.resident_bytes(), 80_000_usize.next_multiple_of(4096));
        // The page that entry 600 lies on begins with 512.
        table.empty(600..10_000);
        assert_eq!(table.resident_bytes(), 8192);
        let kept = |at: usize| table[at].load(Ordering::Relaxed) == 7;
        assert!((0..1024).all(kept) && !(1024..10_000).any(kept));
        table.empty(700..700);
        table.empty(0..1);
        assert!(!(0..512).any(kept) && (512..1024).all(kept));
    }

    #[test]
    #[should_panic(expected = "entry 8 of a table of 8")]
    fn nothing_behind_the_end() {
        let table: Table<AtomicU64> = Table::new(8).unwrap();
        table[8].load(Ordering::Relaxed);
    }
}
