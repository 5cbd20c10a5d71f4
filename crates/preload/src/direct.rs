//! read and its family, in front of the C library's: only for O_DIRECT into served memory.
//!
//! There the device writes to the page itself, whenever it is done: a page that leaves DRAM meanwhile would miss it. So such a read goes to memory of the
//! runtime's first, a bounded piece at a time. Promises: what was read is in the program's memory when the call ends. Never: touches a read that is
//! neither direct nor into served memory.

use crate::{dispatch, next, raw, runtime, tls};
use libc::{c_int, c_long, c_void, iovec, off_t, size_t, ssize_t};
use std::alloc::{Layout, alloc, dealloc};

/// Read at a time.
const PIECE_BYTES: usize = 1 << 20;
const ALIGN_BYTES: usize = 4096;

/// Memory that is not served, for one call.
struct Piece {
    at: *mut u8,
    layout: Layout,
}

impl Piece {
    fn new(bytes: usize) -> Option<Piece> {
        let bytes = bytes.clamp(1, PIECE_BYTES);
        let layout = Layout::from_size_align(bytes, ALIGN_BYTES).ok()?;
        // SAFETY: more than no bytes.
        let at = unsafe { alloc(layout) };
        (!at.is_null()).then_some(Piece { at, layout })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) };
    }
}

/// Whether a read into these addresses needs a detour.
fn is_direct(fd: c_int, at: *const c_void, len: usize) -> bool {
    if !runtime::overlaps(at as usize, len) || tls::is_inside() {
        return false;
    }
    // SAFETY: asks for flags.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags != -1 && flags & libc::O_DIRECT != 0
}

/// Reads `len` bytes to `at` by way of other memory; `offset` as pread has it, none as read.
///
/// # Safety
/// As read's.
unsafe fn detour(fd: c_int, at: *mut c_void, len: usize, offset: Option<off_t>) -> ssize_t {
    let piece = {
        let _inside = tls::enter();
        Piece::new(len)
    };
    let Some(piece) = piece else {
        raw::set_errno(libc::ENOMEM);
        return -1;
    };
    let mut done = 0;
    while done < len {
        let step = (len - done).min(piece.layout.size());
        let into: *mut c_void = piece.at.cast();
        // SAFETY: the piece has so many bytes.
        let got = unsafe {
            match offset {
                Some(offset) => next::pread(fd, into, step, offset + done as off_t),
                None => next::read(fd, into, step),
            }
        };
        if got <= 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        // SAFETY: the program's memory has room for all of `len`; it may fault, and nothing is held.
        unsafe {
            at.cast::<u8>()
                .add(done)
                .copy_from_nonoverlapping(piece.at, got as usize);
        }
        done += got as usize;
        if (got as usize) < step {
            break;
        }
    }
    done as ssize_t
}

/// The same for a vector, part by part.
///
/// # Safety
/// As readv's.
unsafe fn detours(fd: c_int, parts: &[iovec], offset: Option<off_t>) -> ssize_t {
    let mut done = 0;
    for part in parts {
        let from = offset.map(|offset| offset + done as off_t);
        // SAFETY: the program's promise.
        let got = unsafe { detour(fd, part.iov_base, part.iov_len, from) };
        if got < 0 {
            return if done > 0 { done } else { got };
        }
        done += got;
        if (got as usize) < part.iov_len {
            break;
        }
    }
    done
}

/// The parts of a vector of which one needs a detour.
///
/// # Safety
/// As readv's.
unsafe fn direct_parts<'a>(fd: c_int, parts: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    if runtime::get().is_none()
        || tls::is_inside()
        || parts.is_null()
        || !(1..=1024).contains(&count)
    {
        return None;
    }
    // SAFETY: the program's promise.
    let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
    parts
        .iter()
        .any(|part| is_direct(fd, part.iov_base, part.iov_len))
        .then_some(parts)
}

/// What a direct read into served memory would bring, now; nothing where it is not one.
///
/// # Safety
/// As pread's.
pub unsafe fn read_if_direct(fd: c_int, at: *mut c_void, len: usize, offset: off_t) {
    if is_direct(fd, at, len) {
        // SAFETY: the program's promise.
        unsafe { detour(fd, at, len, Some(offset)) };
    }
}

/// The same for a vector.
///
/// # Safety
/// As preadv's.
pub unsafe fn read_parts_if_direct(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) {
    // SAFETY: the program's promise.
    unsafe {
        if let Some(parts) = direct_parts(fd, parts, count) {
            detours(fd, parts, Some(offset));
        }
    }
}

/// A dispatched call, which needs no detour: all of it goes by other memory.
#[inline(always)]
unsafe fn dispatched(number: c_long, args: [c_long; 6]) -> ssize_t {
    // SAFETY: the program's promise.
    raw::answered(unsafe { dispatch::call(number, args) }) as ssize_t
}

/// As read(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: c_int, at: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the program's promise.
    unsafe {
        if dispatch::is_here() {
            return dispatched(libc::SYS_read, [fd.into(), at as _, len as _, 0, 0, 0]);
        }
        match is_direct(fd, at, len) {
            true => detour(fd, at, len, None),
            false => next::read(fd, at, len),
        }
    }
}

macro_rules! positioned {
    ($($(#[$doc:meta])* $name:ident, $vector:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(fd: c_int, at: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
                // SAFETY: the program's promise.
                unsafe {
                    if dispatch::is_here() {
                        return dispatched(libc::SYS_pread64, [fd.into(), at as _, len as _, offset, 0, 0]);
                    }
                    match is_direct(fd, at, len) {
                        true => detour(fd, at, len, Some(offset)),
                        false => next::$name(fd, at, len, offset),
                    }
                }
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $vector(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
                // SAFETY: the program's promise.
                unsafe {
                    if dispatch::is_here() {
                        return dispatched(libc::SYS_preadv, [fd.into(), parts as _, count.into(), offset, 0, 0]);
                    }
                    match direct_parts(fd, parts, count) {
                        Some(parts) => detours(fd, parts, Some(offset)),
                        None => next::$vector(fd, parts, count, offset),
                    }
                }
            }
        )*
    };
}

positioned! {
    /// As pread(2), or preadv(2).
    pread, preadv;
    /// The same, where file offsets had 32 bits.
    pread64, preadv64;
}

/// As readv(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's promise.
    unsafe {
        if dispatch::is_here() {
            return dispatched(
                libc::SYS_readv,
                [fd.into(), parts as _, count.into(), 0, 0, 0],
            );
        }
        match direct_parts(fd, parts, count) {
            Some(parts) => detours(fd, parts, None),
            None => next::readv(fd, parts, count),
        }
    }
}

/// As preadv2(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's promise.
    unsafe {
        if dispatch::is_here() {
            let args = [fd.into(), parts as _, count.into(), offset, 0, flags.into()];
            return dispatched(libc::SYS_preadv2, args);
        }
        match direct_parts(fd, parts, count) {
            Some(parts) => detours(fd, parts, (offset != -1).then_some(offset)),
            None => next::preadv2(fd, parts, count, offset, flags),
        }
    }
}
