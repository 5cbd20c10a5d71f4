//! Calls whose memory is not known, or more than can be copied: its pages are brought in before.
//!
//! Promises: a call is made again only where it answered that memory is not there. Never: holds a page.

use super::PAGE_BYTES;
use super::bounce::{error, is_served};
use crate::raw;
use libc::c_long;

type Args = [c_long; 6];

/// How often a call that is not known is tried again.
pub const TRIES_MAX: u32 = 64;
/// Of one argument of such a call, so much is brought in before.
const TOUCHED_BYTES_MAX: usize = 64 << 10;

/// Brings a page in, and makes it writable, since the kernel may write to it.
pub unsafe fn touch(at: usize) {
    // SAFETY: served memory of the program's, which this does not change; where it is nobody's, the touch is an error of its own. A compiler makes a read of an atomic
    // operation that changes nothing.
    unsafe { std::arch::asm!("lock or byte ptr [{0}], 0", in(reg) at, options(nostack)) };
}

/// A call that is not known, or whose memory is more than can be copied: where it answers that memory is not there, its pages are brought in and it is made again; and again if one has left
/// meanwhile. Not before it was tried: what it does not take may be any number that was left over, and an address that is nobody's.
pub unsafe fn touched(number: c_long, args: Args) -> c_long {
    // SAFETY: the program's promise.
    let mut said = unsafe { raw::call(number, args) };
    for _ in 0..TRIES_MAX {
        if said != error(libc::EFAULT) {
            break;
        }
        for (n, arg) in args.iter().enumerate().filter(|(_, arg)| is_served(**arg)) {
            // If a length is behind it; mostly it is.
            let len = args.get(n + 1).map_or(0, |len| *len as usize);
            let len = if len > TOUCHED_BYTES_MAX {
                1
            } else {
                len.max(1)
            };
            let end = *arg as usize + len;
            let mut at = *arg as usize;
            while at < end && is_served(at as c_long) {
                // SAFETY: the program's promise.
                unsafe { touch(at) };
                at = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            }
        }
        // SAFETY: the program's promise.
        said = unsafe { raw::call(number, args) };
    }
    said
}
