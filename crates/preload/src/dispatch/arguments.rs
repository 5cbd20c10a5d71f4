//! What a number in a system call is: an error as it is answered, an address that is served, a length that none has.
//!
//! Promises: says so of the number alone. Never: looks at memory, or makes a call.

use super::PAGE_BYTES;
use crate::runtime;
use libc::c_long;

/// The kernel moves no more by one call: where more is asked for, so much is done.
pub const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// An error as the kernel answers it.
pub fn error(number: i32) -> c_long {
    -c_long::from(number)
}

/// Whether it is an address of served memory.
#[inline]
pub fn is_served(address: c_long) -> bool {
    runtime::has(address as usize)
}

/// Whether so many bytes are more than a process has addresses for (x86_64): the kernel refuses them before it looks at any.
#[inline]
pub fn is_too_long(bytes: usize) -> bool {
    bytes >> 47 != 0
}

/// Whether an address is null or near it, where no program has memory: what is there is the kernel's to refuse.
#[inline]
pub fn is_nowhere(at: c_long) -> bool {
    (0..PAGE_BYTES as c_long).contains(&at)
}
