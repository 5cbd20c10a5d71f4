//! Buffers for direct I/O: [`Buf`] (owned), [`SegBuf`] (filled from the front) and [`Frozen`]
//! (a range of a `SegBuf` that is lent out).
//!
//! Promises: aligned to `BLOCK_BYTES`; bytes below a `SegBuf`'s frozen mark never change while
//! any `Frozen` lives; a `Frozen` keeps its memory alive whatever happens to the `SegBuf`.
//! Never: copies, or hands out a mutable view of frozen bytes.

use crate::BLOCK_BYTES;
use crate::pages::Pages;
use crate::stock::{Loan, Stock};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Owned, page-aligned memory.
pub struct Buf {
    memory: Memory,
    len: usize,
}

enum Memory {
    Own(Pages),
    /// Of a queue's stock, to which it goes back.
    Lent(Loan),
}

impl Buf {
    /// `len` zero bytes, rounded up to a multiple of [`BLOCK_BYTES`], at least one block.
    pub fn zeroed(len: usize) -> Buf {
        let pages = Pages::zeroed(len);
        Buf {
            len: pages.len(),
            memory: Memory::Own(pages),
        }
    }

    /// Buffers of `lens` zero bytes, each a multiple of [`BLOCK_BYTES`], together at most 2 MiB, side by side on one huge page where the system has one: a read into one
    /// of them is one piece for the device. Their memory, 2 MiB, is given back with the last of them. None: there are no addresses for it.
    pub fn side_by_side(lens: &[usize]) -> Option<Vec<Buf>> {
        let own = |pages: Pages| Buf {
            len: pages.len(),
            memory: Memory::Own(pages),
        };
        Some(Pages::side_by_side(lens)?.into_iter().map(own).collect())
    }

    /// Whether its memory stays where it is when it is dropped, since others have it too.
    pub fn is_beside_others(&self) -> bool {
        matches!(&self.memory, Memory::Own(pages) if pages.is_part())
    }

    /// The first `len` bytes of a slot, with whatever is there.
    pub(crate) fn lent(loan: Loan, len: usize) -> Buf {
        Buf {
            memory: Memory::Lent(loan),
            len,
        }
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // A Buf is never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that it has, a multiple of [`BLOCK_BYTES`].
    pub fn capacity_bytes(&self) -> usize {
        match &self.memory {
            Memory::Own(pages) => pages.len(),
            Memory::Lent(loan) => loan.len_bytes(),
        }
    }

    /// Shows the first `len` bytes from now on, with whatever is there. Panics if it has not got them.
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity_bytes();
        assert!(
            (1..=capacity).contains(&len),
            "{len} of {capacity} bytes asked"
        );
        self.len = len;
    }

    /// Whether it is a queue's and goes back there when it is dropped: who has such a one for longer keeps others from it.
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Lent(_))
    }

    pub(crate) fn is_of(&self, stock: &Arc<Stock>) -> bool {
        matches!(&self.memory, Memory::Lent(loan) if loan.is_of(stock))
    }

    fn as_ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Own(pages) => pages.as_ptr(),
            Memory::Lent(loan) => loan.as_ptr(),
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised, at least `len` bytes long and lives as long as `self`, whose alone it is; only
        // `deref_mut` writes to it, and that needs `&mut self`.
        unsafe { std::slice::from_raw_parts(Buf::as_ptr(self), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialised, at least `len` bytes long, lives as long as `self`, and `&mut self` is the only
        // way to it.
        unsafe { std::slice::from_raw_parts_mut(Buf::as_ptr(self), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

/// A segment being filled by one writer. `[..frozen_len]` never changes again and may be lent out
/// as [`Frozen`]; `[frozen_len..]` is the writer's own.
pub struct SegBuf {
    pages: Arc<Pages>,
    frozen_len: usize,
}

impl SegBuf {
    /// `len` zero bytes, rounded up to a multiple of [`BLOCK_BYTES`], nothing frozen.
    pub fn zeroed(len: usize) -> SegBuf {
        SegBuf {
            pages: Arc::new(Pages::zeroed(len)),
            frozen_len: 0,
        }
    }

    /// Over the whole memory of `buf`, whatever is there, nothing frozen. None: it is lent.
    pub fn over(buf: Buf) -> Option<SegBuf> {
        match buf.memory {
            Memory::Own(pages) => Some(SegBuf {
                pages: Arc::new(pages),
                frozen_len: 0,
            }),
            Memory::Lent(_) => None,
        }
    }

    /// See [`Buf::is_beside_others`].
    pub fn is_beside_others(&self) -> bool {
        self.pages.is_part()
    }

    /// Length of the whole segment in bytes.
    #[allow(clippy::len_without_is_empty)] // A SegBuf is never empty.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Bytes that will not change again.
    pub fn frozen_len(&self) -> usize {
        self.frozen_len
    }

    /// The frozen bytes, `[..frozen_len]`.
    pub fn frozen(&self) -> &[u8] {
        self.filled(self.frozen_len)
    }

    /// The bytes still to be filled, `[frozen_len..]`.
    pub fn open_mut(&mut self) -> &mut [u8] {
        let open_len = self.len() - self.frozen_len;
        // SAFETY: the range lies in the memory (frozen_len <= len, kept by `freeze`) and is
        // initialised. Every Frozen ends at or before frozen_len, so none overlaps it, and all
        // other views of it borrow this SegBuf, which `&mut self` excludes.
        unsafe {
            std::slice::from_raw_parts_mut(self.pages.as_ptr().add(self.frozen_len), open_len)
        }
    }

    /// Any prefix, frozen or not, for the owner to read. Panics if `upto` exceeds the length.
    pub fn filled(&self, upto: usize) -> &[u8] {
        assert!(
            upto <= self.len(),
            "prefix of {upto} bytes of a segment of {}",
            self.len()
        );
        // SAFETY: in range and initialised. Frozen bytes have no writer; the open rest is written
        // only through `open_mut`, whose `&mut self` excludes this borrow.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr(), upto) }
    }

    /// Freezes `[frozen_len..upto]` and lends that range. `upto` is a multiple of
    /// [`BLOCK_BYTES`], not below the mark and not beyond the end, else this panics.
    pub fn freeze(&mut self, upto: usize) -> Frozen {
        assert!(
            upto.is_multiple_of(BLOCK_BYTES),
            "freeze up to {upto}: not a whole block"
        );
        assert!(
            (self.frozen_len..=self.len()).contains(&upto),
            "freeze up to {upto}: allowed is {}..={}",
            self.frozen_len,
            self.len()
        );
        let range = self.frozen_len..upto;
        self.frozen_len = upto;
        Frozen {
            pages: Arc::clone(&self.pages),
            range,
        }
    }

    /// Takes back the mark for filling the memory anew, if no [`Frozen`] lives any more; else
    /// gives the segment back unchanged. The old bytes stay: the next writer overwrites them.
    pub fn recycle(mut self) -> Result<SegBuf, SegBuf> {
        // `get_mut` synchronises with the drop of the last other handle, so that its reads are
        // over before the next write.
        if Arc::get_mut(&mut self.pages).is_none() {
            return Err(self);
        }
        self.frozen_len = 0;
        Ok(self)
    }
}

impl fmt::Debug for SegBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SegBuf({} of {} bytes frozen)",
            self.frozen_len,
            self.len()
        )
    }
}

/// A lent, immutable range of a [`SegBuf`]. Cloning lends the same bytes again.
#[derive(Clone)]
pub struct Frozen {
    pages: Arc<Pages>,
    range: Range<usize>,
}

impl Frozen {
    /// Where this range lies in its segment, in bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A part of this range, counted from its start. Panics if it does not lie in it.
    pub fn slice(&self, part: Range<usize>) -> Frozen {
        assert!(
            part.start <= part.end && part.end <= self.len(),
            "{part:?} of {} bytes",
            self.len()
        );
        let start = self.range.start + part.start;
        Frozen {
            pages: Arc::clone(&self.pages),
            range: start..start + part.len(),
        }
    }
}

impl Deref for Frozen {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: in range and initialised when it was frozen; the memory lives while this Arc
        // does; a SegBuf writes only above its mark, which falls only when no Frozen is left.
        unsafe {
            std::slice::from_raw_parts(self.pages.as_ptr().add(self.range.start), self.range.len())
        }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({:?})", self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_shows_as_much_of_its_memory_as_is_asked() {
        let mut buf = Buf::zeroed(5000);
        assert_eq!((buf.len(), buf.capacity_bytes()), (8192, 8192));
        buf[1535] = 7;
        buf.set_len(1536);
        assert_eq!((buf.len(), buf.capacity_bytes()), (1536, 8192));
        buf.set_len(8192);
        assert!(buf[1535] == 7 && buf[1536..].iter().all(|b| *b == 0));
        for len in [0, 8193] {
            let mut other = Buf::zeroed(8192);
            let set = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.set_len(len)));
            assert!(set.is_err(), "{len}");
        }
    }

    #[test]
    fn buffers_are_aligned_zeroed_and_rounded_up() {
        for len in [0, 1, 4096, 4097, 127 * 1024, 128 * 1024, 1 << 20] {
            let mut buf = Buf::zeroed(len);
            assert_eq!(buf.len(), len.max(1).next_multiple_of(BLOCK_BYTES));
            assert!(buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES));
            assert!(buf.iter().all(|&b| b == 0));
            buf.fill(7);
            assert!(buf.iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn frozen_bytes_stay_while_the_writer_goes_on() {
        let mut seg = SegBuf::zeroed(4 * BLOCK_BYTES);
        seg.open_mut()[..BLOCK_BYTES].fill(1);
        let first = seg.freeze(BLOCK_BYTES);
        seg.open_mut().fill(2);
        assert_eq!(seg.filled(BLOCK_BYTES + 1)[BLOCK_BYTES], 2);
        let second = seg.freeze(3 * BLOCK_BYTES);
        seg.open_mut().fill(3);
        assert!(first.iter().all(|&b| b == 1) && first.len() == BLOCK_BYTES);
        assert!(second.iter().all(|&b| b == 2) && second.range() == (4096..12288));
        assert_eq!(second.slice(4096..8192).range(), 8192..12288);
        assert_eq!(seg.frozen().len(), 3 * BLOCK_BYTES);
        drop(seg);
        assert!(
            second.iter().all(|&b| b == 2),
            "a Frozen outlives its segment"
        );
    }

    #[test]
    fn recycle_waits_for_the_last_frozen_on_another_thread() {
        let mut seg = SegBuf::zeroed(1 << 20);
        seg.open_mut().fill(5);
        let frozen = seg.freeze(1 << 20);
        let reader = std::thread::spawn(move || frozen.iter().map(|&b| u64::from(b)).sum::<u64>());
        let mut sum_known = None;
        loop {
            match seg.recycle() {
                Ok(recycled) => break assert_eq!(recycled.frozen_len(), 0),
                Err(given_back) => seg = given_back,
            }
            assert_eq!(seg.frozen_len(), 1 << 20);
            assert!(
                sum_known.is_none(),
                "the reader has ended, so no Frozen is left"
            );
            sum_known = reader.is_finished().then_some(());
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        assert_eq!(reader.join().unwrap(), 5 << 20);
    }

    #[test]
    #[should_panic(expected = "not a whole block")]
    fn freezing_part_of_a_block_is_refused() {
        SegBuf::zeroed(8192).freeze(100);
    }

    #[test]
    #[should_panic(expected = "allowed is 4096..=8192")]
    fn the_mark_never_moves_back() {
        let mut seg = SegBuf::zeroed(8192);
        let _first = seg.freeze(4096);
        seg.freeze(0);
    }

    #[test]
    fn buffers_side_by_side_share_nothing_but_the_page() {
        let lens = [192 << 10, BLOCK_BYTES, 16 << 10];
        let mut bufs = Buf::side_by_side(&lens).expect("addresses");
        for (n, (buf, len)) in (1..).zip(bufs.iter_mut().zip(lens)) {
            assert!(buf.len() == len && buf.capacity_bytes() == len && buf.is_beside_others());
            assert!((buf.as_ptr() as usize).is_multiple_of(BLOCK_BYTES));
            assert!(buf.iter().all(|byte| *byte == 0));
            buf.fill(n);
        }
        let row = Buf::as_ptr(&bufs[1]) as usize - Buf::as_ptr(&bufs[0]) as usize;
        assert_eq!(row, lens[0]);
        let last = bufs.pop().expect("three");
        drop(bufs);
        assert!(last.iter().all(|byte| *byte == 3), "it keeps the memory");
    }
}
