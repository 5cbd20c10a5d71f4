//! Buffers that a ring knows: memory that is registered with the kernel once, so that a read into it looks up, pins and marks no pages.
//!
//! Promises: a slot is lent to one buffer at a time, and comes back when that is dropped; the memory lives as long as any of them.
//! Never: grows, or waits.

use crate::pages::Pages;
use std::sync::{Arc, Mutex, PoisonError};

/// See the head of the file.
pub(crate) struct Stock {
    pages: Pages,
    slot_bytes: usize,
    free: Mutex<Vec<u16>>,
}

/// A slot that is lent.
pub(crate) struct Loan {
    stock: Arc<Stock>,
    slot: u16,
}

impl Stock {
    /// `slots` slots of `slot_bytes`, a multiple of [`crate::BLOCK_BYTES`], each.
    pub(crate) fn new(slots: u16, slot_bytes: usize) -> Stock {
        Stock {
            pages: Pages::zeroed(usize::from(slots) * slot_bytes),
            slot_bytes,
            free: Mutex::new((0..slots).rev().collect()),
        }
    }

    /// All of the memory, as the kernel is told of it.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.pages.as_ptr(), self.pages.len())
    }

    /// A slot for `len` bytes. None: it is too small, or all are lent.
    pub(crate) fn lend(self: &Arc<Self>, len: usize) -> Option<Loan> {
        if len > self.slot_bytes {
            return None;
        }
        let slot = self.free().pop()?;
        Some(Loan {
            stock: Arc::clone(self),
            slot,
        })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u16>> {
        // A list of numbers is whole whoever panicked.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loan {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        let at = usize::from(self.slot) * self.stock.slot_bytes;
        self.stock.pages.as_ptr().wrapping_add(at)
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.stock.slot_bytes
    }

    pub(crate) fn is_of(&self, stock: &Arc<Stock>) -> bool {
        Arc::ptr_eq(&self.stock, stock)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.stock.free().push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK_BYTES, Buf};

    #[test]
    fn slots_are_lent_once_and_come_back() {
        let stock = Arc::new(Stock::new(3, 2 * BLOCK_BYTES));
        assert!(stock.lend(2 * BLOCK_BYTES + 1).is_none());
        let mut bufs: Vec<Buf> = (1..=3)
            .map(|n| {
                let mut buf = Buf::lent(stock.lend(BLOCK_BYTES).unwrap(), BLOCK_BYTES);
                buf.fill(n);
                buf
            })
            .collect();
        assert!(stock.lend(1).is_none(), "all are lent");
        for (n, buf) in (1..=3).zip(&bufs) {
            assert!(buf.len() == BLOCK_BYTES && buf.iter().all(|b| *b == n));
        }
        bufs.remove(1);
        let again = stock.lend(2 * BLOCK_BYTES).unwrap();
        assert!(again.is_of(&stock) && stock.lend(1).is_none());
        drop(stock);
        assert!(bufs[1].iter().all(|b| *b == 3), "a buffer keeps the memory");
    }
}
