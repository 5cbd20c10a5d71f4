//! Large tables that cost memory only where they are used: a mapping of zeros, seen as an array.
//!
//! Promises: an entry never moves. Never: grows, or clears what was written; the memory of an entry once touched stays until the
//! table goes.

use super::SystemError;
use rustix::mm::munmap;
use std::ops::Index;
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
    #[should_panic(expected = "entry 8 of a table of 8")]
    fn nothing_behind_the_end() {
        let table: Table<AtomicU64> = Table::new(8).unwrap();
        table[8].load(Ordering::Relaxed);
    }
}
