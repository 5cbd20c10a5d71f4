//! Calls whose memory is not known, or more than can be copied: its pages are brought in before.
//!
//! How long an argument is nobody says, so it is its page and the next, and each time that the call wants more twice as many. Promises: a call is made again only where it answered
//! that memory is not there; behind the page that an argument is in nothing is touched that the kernel does not say is there, and nothing is written to that may only be read. Never: holds a page.

use super::PAGE_BYTES;
use super::arguments::{error, is_served};
use crate::raw;
use libc::{c_int, c_long};

type Args = [c_long; 6];

/// How often a call that is not known is tried again.
pub const TRIES_MAX: u32 = 64;
/// Of one argument of such a call, so many pages are brought in at first.
const PAGES: usize = 2;
/// And so many at last: 64 KiB, wherever they begin.
const PAGES_MAX: usize = 17;

/// Brings a page in, and makes it writable, since the kernel may write to it.
pub unsafe fn touch(at: usize) {
    // SAFETY: served memory of the program's, which this does not change; where it is nobody's, the touch is an error of its own. A compiler makes a read of an atomic
    // operation that changes nothing.
    unsafe { std::arch::asm!("lock or byte ptr [{0}], 0", in(reg) at, options(nostack)) };
}

/// What the kernel says of a page where it is asked to have it there, to be read or to be written to. It faults none of ours in: that is EFAULT. EINVAL where that is not allowed; before Linux 5.14 of all.
fn asked(at: usize, how: c_int) -> c_long {
    let page = (at & !(PAGE_BYTES - 1)) as c_long;
    let args = [page, PAGE_BYTES as c_long, how.into(), 0, 0, 0];
    // SAFETY: changes nothing of what is there.
    unsafe { raw::call(libc::SYS_madvise, args) }
}

/// Whether the kernel can be asked so: of a page that is there, this stack's.
fn can_ask() -> bool {
    let here = 0u8;
    asked(&raw const here as usize, libc::MADV_POPULATE_READ) == 0
}

/// Brings in the page of an address; where it is `surely` the program's, since an argument names it, also where the kernel does not know. Whether there was one.
unsafe fn bring(at: usize, surely: bool) -> bool {
    let [absent, refused] = [libc::EFAULT, libc::EINVAL].map(error);
    let writes = asked(at, libc::MADV_POPULATE_WRITE);
    if writes == 0 {
        return true;
    }
    // SAFETY: the program's promise for what an argument names; the kernel's word for the rest.
    unsafe {
        if writes == absent || writes != refused && surely {
            touch(at);
            return true;
        }
        match asked(at, libc::MADV_POPULATE_READ) {
            0 => return true,
            reads if reads == absent => {
                (at as *const u8).read_volatile();
            }
            _ if surely && !can_ask() => touch(at),
            // Closed to every access, or nobody's.
            _ => return false,
        }
    }
    true
}

/// Brings in the page that an argument names, and as many more as follow it, up to so many in all.
///
/// # Safety
/// The program's promise that there is something at the address.
pub unsafe fn bring_in(at: usize, pages: usize) {
    let first = at & !(PAGE_BYTES - 1);
    // SAFETY: the caller's.
    let mut goes_on = unsafe { bring(at, true) };
    for nth in 1..pages {
        let next = first.saturating_add(nth * PAGE_BYTES);
        // SAFETY: only if the kernel says that it is there.
        goes_on = goes_on && is_served(next as c_long) && unsafe { bring(next, false) };
    }
}

/// A call that is not known, or whose memory is more than can be copied: where it answers that memory is not there, its pages are brought in and it is made again; and again if one has left
/// meanwhile. Not before it was tried: what it does not take may be any number that was left over, and an address that is nobody's.
pub unsafe fn touched(number: c_long, args: Args) -> c_long {
    // SAFETY: the program's promise.
    let mut said = unsafe { raw::call(number, args) };
    let mut pages = PAGES;
    for _ in 0..TRIES_MAX {
        if said != error(libc::EFAULT) {
            break;
        }
        // SAFETY: the program's promise.
        unsafe {
            for arg in args.iter().filter(|arg| is_served(**arg)) {
                bring_in(*arg as usize, pages);
            }
            said = raw::call(number, args);
        }
        pages = (2 * pages).min(PAGES_MAX);
    }
    said
}
