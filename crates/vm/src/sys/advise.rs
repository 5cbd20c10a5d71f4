//! Pages taken out of a process in batches: one call and one flush of the processors' caches of translations for all of them.
//!
//! Promises: when `unmap` returns, no thread sees what was in the ranges. Never: takes memory that was not named. Where the kernel
//! has no `process_madvise` on oneself (before Linux 6.13) it asks range by range, which costs ten times as much.

use super::SystemError;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use terrace_media::descriptors::keep;

/// Ranges of one call.
pub(crate) const RANGES_MAX: usize = 1024;

/// Bytes of addresses, as the kernel takes them (`struct iovec`).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Range {
    pub start: usize,
    pub len: usize,
}

impl Range {
    pub const NONE: Range = Range { start: 0, len: 0 };
}

/// Takes pages of this process away.
pub(crate) struct Unmapper {
    /// Ourselves; none where the kernel does not take batches.
    batches: Option<OwnedFd>,
}

impl Unmapper {
    /// Tries batches on a page of its own.
    pub fn new() -> Result<Unmapper, SystemError> {
        let batches = pidfd_open(getpid(), PidfdFlags::empty()).ok().map(keep);
        let mut unmapper = Unmapper { batches };
        if !unmapper
            .works()
            .map_err(SystemError::call("mapping a page"))?
        {
            unmapper.batches = None;
        }
        Ok(unmapper)
    }

    /// Asks range by range, as where the kernel does not take batches.
    pub fn one_by_one() -> Unmapper {
        Unmapper { batches: None }
    }

    fn works(&self) -> Result<bool, Errno> {
        let len = 4096;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous page at an address the kernel chooses.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let byte = page.cast::<u8>();
        // SAFETY: our own fresh page; volatile since the kernel changes it between the two.
        let cleared = unsafe {
            byte.write_volatile(1);
            let range = Range {
                start: page as usize,
                len,
            };
            self.call(&[range]) == Ok(len) && byte.read_volatile() == 0
        };
        // SAFETY: the page mapped above; nothing refers to it any more.
        unsafe { munmap(page, len) }?;
        Ok(cleared)
    }

    /// # Safety
    /// What lies in the ranges is the caller's to drop.
    unsafe fn call(&self, ranges: &[Range]) -> Result<usize, Errno> {
        let Some(process) = &self.batches else {
            return Err(Errno::NOSYS);
        };
        // SAFETY: `Range` is laid out like iovec; dropping what is there is the caller's promise.
        let said = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                ranges.as_ptr(),
                ranges.len(),
                libc::MADV_DONTNEED,
                0,
            )
        };
        usize::try_from(said).map_err(|_| last_errno())
    }

    /// Takes away what lies in `ranges` (whole pages, [`RANGES_MAX`] ranges at most).
    ///
    /// # Safety
    /// What lies there is the caller's to drop, and mapped.
    pub unsafe fn unmap(&self, ranges: &[Range]) -> Result<(), Errno> {
        assert!(ranges.len() <= RANGES_MAX);
        let mut done = 0;
        if self.batches.is_some() {
            // SAFETY: the caller's promise.
            let taken = unsafe { self.call(ranges) }.unwrap_or(0);
            let mut left = taken;
            while done < ranges.len() && left >= ranges[done].len {
                left -= ranges[done].len;
                done += 1;
            }
        }
        // What a batch left out, which says no more than that, is asked for one by one, which says why.
        for range in &ranges[done..] {
            // SAFETY: the caller's promise.
            let said = unsafe {
                libc::madvise(
                    range.start as *mut libc::c_void,
                    range.len,
                    libc::MADV_DONTNEED,
                )
            };
            if said != 0 {
                return Err(last_errno());
            }
        }
        Ok(())
    }
}

fn last_errno() -> Errno {
    let errno = std::io::Error::last_os_error();
    Errno::from_raw_os_error(errno.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_and_nothing_else() {
        for unmapper in [Unmapper::new().unwrap(), Unmapper::one_by_one()] {
            let len = 8 * 4096;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh anonymous mapping.
            let base =
                unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }
                    .unwrap()
                    .cast::<u8>();
            // SAFETY: our own mapping, as long as this test; nothing else refers to it.
            unsafe {
                for page in 0..8 {
                    base.add(page * 4096).write_volatile(1);
                }
                let range = |page: usize, pages: usize| Range {
                    start: base as usize + page * 4096,
                    len: pages * 4096,
                };
                unmapper.unmap(&[range(1, 1), range(4, 2)]).unwrap();
                let seen =
                    [0, 1, 2, 3, 4, 5, 6, 7].map(|page| base.add(page * 4096).read_volatile());
                assert_eq!(seen, [1, 0, 1, 1, 0, 0, 1, 1]);
                munmap(base.cast(), len).unwrap();
            }
        }
    }
}
