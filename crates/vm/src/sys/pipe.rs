//! What lies in pages held by a pipe while the pages are taken away: whoever empties it reads their last bytes.
//!
//! A pipe that is given memory by `vmsplice` has the pages themselves, not a copy. What is written to them until they are unmapped is in what is read later. So nobody need be kept from
//! writing before, which costs a walk over a page table for each page that lies alone in one (docs/adr/0073).
//!
//! Promises: holds all that it is asked to, or nothing; what is read is as long as what was held, in that order. Never: waits, or allocates after it was made; or calls
//! what a thread may be cancelled in (glibc's own vmsplice and readv): it is in a fault then, with locks in hand.

use super::Range;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use terrace_media::descriptors::keep;

/// Bytes that are thrown away together.
const DRAINED_BYTES: usize = 512;

/// See the head of the file.
pub(crate) struct HeldPages {
    reads: OwnedFd,
    holds: OwnedFd,
}

impl HeldPages {
    /// For up to `pages` pages. None: this process may not have such a pipe.
    pub fn new(pages: usize) -> Option<HeldPages> {
        let (reads, holds) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A place for each page, however little of it is held.
        fcntl_setpipe_size(&holds, pages * crate::PAGE_BYTES).ok()?;
        let (reads, holds) = (keep(reads), keep(holds));
        Some(HeldPages { reads, holds })
    }

    /// Holds what lies in `spans`, each within a page. False: nothing is held. The error: some of it may be, and the pipe is of no use any more.
    ///
    /// # Safety
    /// The spans are memory of this process until they are unmapped, and what is written to them meanwhile may be seen or not by whoever reads.
    pub unsafe fn hold(&self, spans: &[Range]) -> Result<bool, Errno> {
        let asked: usize = spans.iter().map(|span| span.len).sum();
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: `Range` is laid out as `iovec`, and the caller promises what lies in them; the kernel only takes references to the pages.
        let held = unsafe {
            libc::syscall(
                libc::SYS_vmsplice,
                self.holds.as_raw_fd(),
                spans.as_ptr(),
                spans.len(),
                flags,
            )
        };
        let held = usize::try_from(held).unwrap_or(0);
        if held < asked {
            self.drain(held)?;
        }
        Ok(held == asked)
    }

    /// Throws away what was held in vain: were any left, it would be taken for what is held next.
    fn drain(&self, mut left: usize) -> Result<(), Errno> {
        let mut thrown = [0u8; DRAINED_BYTES];
        while left > 0 {
            let some = left.min(DRAINED_BYTES);
            match rustix::io::read(&self.reads, &mut thrown[..some]) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(read) => left -= read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Reads the next of what is held into `spans`, as long together. The error: there was less.
    ///
    /// # Safety
    /// The spans are the caller's to write to.
    pub unsafe fn read(&self, spans: &mut [Range]) -> Result<(), Errno> {
        let mut rest = spans;
        loop {
            while rest.first().is_some_and(|span| span.len == 0) {
                rest = &mut rest[1..];
            }
            if rest.is_empty() {
                return Ok(());
            }
            // SAFETY: `Range` is laid out as `iovec`; the caller promises that they may be written to.
            let read = unsafe {
                libc::syscall(
                    libc::SYS_readv,
                    self.reads.as_raw_fd(),
                    rest.as_ptr(),
                    rest.len(),
                )
            };
            let mut read = match usize::try_from(read) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(read) => read,
                Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR) => continue,
                    errno => return Err(errno.unwrap_or(Errno::IO)),
                },
            };
            for span in rest.iter_mut() {
                let some = read.min(span.len);
                (span.start, span.len) = (span.start + some, span.len - some);
                read -= some;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;
    use crate::sys::{Unmapper, map_addresses};

    const PAGES: usize = 4;

    /// A span of 100 bytes of each of some pages that were written to.
    fn spans() -> (usize, [Range; PAGES]) {
        let base = map_addresses(PAGES * PAGE_BYTES).expect("addresses") as usize;
        let spans = std::array::from_fn(|nth| Range {
            start: base + nth * PAGE_BYTES + 64,
            len: 100,
        });
        for (nth, span) in spans.iter().enumerate() {
            write(span, nth as u8 + 1);
        }
        (base, spans)
    }

    fn write(span: &Range, byte: u8) {
        // SAFETY: a span of this test's own mapping.
        unsafe { std::ptr::write_bytes(span.start as *mut u8, byte, span.len) };
    }

    fn read(pipe: &HeldPages, into: &mut [[u8; 100]]) -> Result<(), Errno> {
        let spans = into.iter_mut().map(|bytes| Range {
            start: bytes.as_mut_ptr() as usize,
            len: bytes.len(),
        });
        let mut spans: Vec<Range> = spans.collect();
        // SAFETY: arrays of this test's own.
        unsafe { pipe.read(&mut spans) }
    }

    #[test]
    fn what_is_written_until_a_page_goes_is_read_after_it() {
        let (base, spans) = spans();
        let pipe = HeldPages::new(PAGES).expect("a pipe");
        // SAFETY: the mapping above.
        assert_eq!(unsafe { pipe.hold(&spans) }, Ok(true));
        write(&spans[2], 9);
        let whole = Range {
            start: base,
            len: PAGES * PAGE_BYTES,
        };
        let unmapper = Unmapper::new().expect("an unmapper");
        // SAFETY: nothing of it is wanted any more.
        unsafe { unmapper.unmap(&[whole]) }.expect("unmapped");
        write(&spans[1], 8);
        let mut seen = [[0; 100]; PAGES];
        // In two parts, as batches are read.
        read(&pipe, &mut seen[..1]).expect("the first");
        read(&pipe, &mut seen[1..]).expect("the others");
        assert_eq!(seen, [[1; 100], [2; 100], [9; 100], [4; 100]]);
        assert!(read(&pipe, &mut seen[..1]).is_err(), "there is no more");
    }

    #[test]
    fn what_cannot_be_held_whole_is_not_held() {
        let (_, spans) = spans();
        let pipe = HeldPages::new(PAGES).expect("a pipe");
        let nowhere = Range {
            start: 4096,
            len: 100,
        };
        // SAFETY: the mapping above; the kernel refuses what is none.
        let held = unsafe { pipe.hold(&[spans[0], spans[1], nowhere]) };
        assert_eq!(held, Ok(false));
        // SAFETY: the mapping above.
        assert_eq!(unsafe { pipe.hold(&spans[3..]) }, Ok(true));
        let mut seen = [[0; 100]];
        read(&pipe, &mut seen).expect("the only one");
        assert_eq!(seen, [[4; 100]]);
        let many = [spans[0]; 64];
        // SAFETY: the mapping above.
        let held = unsafe { pipe.hold(&many) };
        assert_eq!(held, Ok(false), "more than it has places for");
        assert_eq!(read(&pipe, &mut seen), Err(Errno::AGAIN));
    }
}
