//! The position of a file that is read or written piece by piece: the kernel holds it for the whole of a call, and so several that share a descriptor have what they read and write in one
//! piece each. Here the range is claimed at once, and its pieces have offsets of their own.
//!
//! Promises: where it cannot be claimed, or where that is not needed, the call is made as it is. Never: claims what is appended, whose place only the kernel knows.

use super::arguments::CALL_BYTES_MAX;
use super::bounce::PIECE_BYTES;
use crate::raw;
use libc::c_long;

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    Reads,
    Writes,
}

/// `by_offset` with where the claimed range begins, if it is one; its answer is the call's.
///
/// # Safety
/// Reads and writes of so many bytes of this file, as the program asks for them.
pub unsafe fn claimed(
    fd: c_long,
    bytes: usize,
    what: What,
    by_offset: impl FnOnce(c_long) -> c_long,
) -> Option<c_long> {
    if !(PIECE_BYTES + 1..=CALL_BYTES_MAX).contains(&bytes) || !has_position(fd, what) {
        return None;
    }
    let end = moved(fd, bytes as c_long);
    if end < 0 {
        return None;
    }
    let said = by_offset(end - bytes as c_long);
    let left = bytes as c_long - said.max(0);
    if left > 0 {
        moved(fd, -left);
    }
    Some(said)
}

/// Whether the file has a position that several calls of it may meet at. Of what is read, only what is longer than a piece: files of the kernel's own (/proc) say that they are not, and cannot go anywhere.
fn has_position(fd: c_long, what: What) -> bool {
    // SAFETY: room for the answer.
    unsafe {
        let mut status = std::mem::zeroed::<libc::stat>();
        let at = (&raw mut status) as c_long;
        raw::call(libc::SYS_fstat, [fd, at, 0, 0, 0, 0]) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && match what {
                What::Reads => status.st_size as usize > PIECE_BYTES,
                What::Writes => {
                    let flags = raw::call(libc::SYS_fcntl, [fd, libc::F_GETFL.into(), 0, 0, 0, 0]);
                    flags & c_long::from(libc::O_APPEND) == 0
                }
            }
    }
}

/// Where the position is after it has moved by so many bytes.
fn moved(fd: c_long, by: c_long) -> c_long {
    let args = [fd, by, libc::SEEK_CUR.into(), 0, 0, 0];
    // SAFETY: takes no memory.
    unsafe { raw::call(libc::SYS_lseek, args) }
}
