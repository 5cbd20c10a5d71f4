//! What a call answers with a length of its own: addresses of sockets, and values of their options.
//!
//! Promises: the kernel is never told of more room than there is; what it wrote goes to where the program wanted it, as far as the program had room, with the length that the kernel
//! answered, also where that comes with an error. Never: takes a length at its word, since one that nobody set may be anything.

use super::arguments::{is_nowhere, is_served};
use super::bounce::{Frame, PIECE_BYTES, SMALL_BYTES, Small, copy};
use super::brought::touched;
use crate::raw;
use libc::c_long;

type Args = [c_long; 6];

/// No address of a socket is longer.
const ADDRESS_BYTES_MAX: usize = SMALL_BYTES / 4;
/// Some options are asked for by what lies at the head of their value's room, and so much of it is copied.
const HEAD_BYTES: usize = 256;
/// The only option whose length is not in bytes, but in instructions (SO_GET_FILTER).
const FILTER: [c_long; 2] = [libc::SOL_SOCKET as c_long, libc::SO_ATTACH_FILTER as c_long];

/// Room for what a call answers, in the frame, and where it belongs.
pub struct Named {
    /// Null: the call has the program's own.
    at: *mut u8,
    theirs: *mut u8,
    len: *mut i32,
    len_theirs: *mut i32,
    /// The length that the kernel was told.
    told: i32,
    room: usize,
    /// Bytes of what the length counts.
    unit: usize,
}

impl Named {
    /// Takes its place in a call's arguments; none if there is no room for it.
    ///
    /// # Safety
    /// The program's promises for the call.
    pub unsafe fn address(
        frame: &mut Frame,
        args: &mut Args,
        at: usize,
        len_at: usize,
    ) -> Option<Named> {
        // SAFETY: the caller's promise.
        unsafe { Named::new(frame, args, [at, len_at], 1, ADDRESS_BYTES_MAX) }
    }

    unsafe fn new(
        frame: &mut Frame,
        args: &mut Args,
        [at, len_at]: [usize; 2],
        unit: usize,
        bytes_max: usize,
    ) -> Option<Named> {
        let mut named = Named {
            at: std::ptr::null_mut(),
            theirs: args[at] as *mut u8,
            len: std::ptr::null_mut(),
            len_theirs: args[len_at] as *mut i32,
            told: 0,
            room: 0,
            unit,
        };
        if !(is_served(args[at]) || is_served(args[len_at])) || is_nowhere(args[len_at]) {
            return Some(named);
        }
        // SAFETY: the caller's promise: a length is there; the frame's room for it.
        unsafe {
            named.told = named.len_theirs.read_unaligned();
            if is_served(args[at]) {
                // One below zero is the kernel's to refuse.
                named.told = named.told.min((bytes_max / unit) as i32);
                named.room = named.told.max(0) as usize * unit;
                named.at = frame.take(named.room)?;
                args[at] = named.at as c_long;
            }
            named.len = frame.take(size_of::<i32>())?.cast();
            named.len.write(named.told);
        }
        args[len_at] = named.len as c_long;
        Some(named)
    }

    /// What is asked by, at the head of the room.
    unsafe fn copy_head(&self) {
        if !self.at.is_null() {
            // SAFETY: the frame's room, and the program's promise.
            unsafe { copy(self.at, self.theirs, self.room.min(HEAD_BYTES)) };
        }
    }

    /// Puts what the call answered where it belongs.
    ///
    /// # Safety
    /// After the call, with the frame as it was, and the program's promises for the call.
    pub unsafe fn put_back(&self, answer: c_long) {
        if self.len.is_null() {
            return;
        }
        // SAFETY: the frame's own, and the program's promise for as many bytes as it said.
        unsafe {
            let len = self.len.read();
            if answer >= 0 && !self.at.is_null() {
                let bytes = (len.max(0) as usize).saturating_mul(self.unit);
                copy(self.theirs, self.at, bytes.min(self.room));
            }
            if len != self.told || answer >= 0 && !self.at.is_null() {
                self.len_theirs.write_unaligned(len);
            }
        }
    }
}

/// getsockname and its like: with an address at the second argument.
///
/// # Safety
/// The program's promises for the call.
#[inline(never)]
pub unsafe fn addressed(number: c_long, args: Args) -> c_long {
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    let mut now = args;
    // SAFETY: the caller's promise.
    unsafe {
        let Some(address) = Named::address(&mut frame, &mut now, 1, 2) else {
            return touched(number, args);
        };
        let said = raw::call(number, now);
        address.put_back(said);
        said
    }
}

/// getsockopt.
///
/// # Safety
/// The program's promises for the call.
#[inline(never)]
pub unsafe fn option(args: Args) -> c_long {
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    let mut now = args;
    let unit = match [args[1] as i32 as c_long, args[2] as i32 as c_long] == FILTER {
        true => size_of::<libc::sock_filter>(),
        false => 1,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let Some(value) = Named::new(&mut frame, &mut now, [3, 4], unit, PIECE_BYTES) else {
            return touched(libc::SYS_getsockopt, args);
        };
        value.copy_head();
        let said = raw::call(libc::SYS_getsockopt, now);
        value.put_back(said);
        said
    }
}
