//! Dispatched calls whose memory stands in vectors and messages.
//!
//! Promises: as `bounce`; a vector with more served bytes than a piece is cut there, and goes on where the kernel would not wait. Never: changes what the program handed in, but where
//! the call answers in it.

use super::arguments::{CALL_BYTES_MAX, error, is_nowhere, is_served, is_too_long};
use super::bounce::{Frame, Small, align_of, copy};
use super::brought::touched;
use super::files::{Next, drops, next_piece, read_at_once, waits_for_more};
use super::in_place;
use super::positions::{self, What};
use crate::raw;
use libc::{c_long, iovec, msghdr};

type Args = [c_long; 6];

/// Parts of a vector, as the kernel has it.
pub const PARTS_MAX: usize = 1024;
/// Of a message's control data: more than any that comes (253 files, and what a socket says of a datagram).
const CONTROL_BYTES_MAX: usize = 16 << 10;
/// The kernel takes a name that is said to be longer as one of so many, and no socket has a longer one.
const NAME_BYTES_MAX: usize = size_of::<libc::sockaddr_storage>();

/// A vector that names no served memory.
struct Parts {
    at: *mut iovec,
    count: usize,
    /// Bytes that it has.
    bytes: usize,
    /// Whether it has all that were asked for.
    whole: bool,
}

/// The program's vector, if the kernel would take it.
unsafe fn vector<'a>(at: c_long, count: c_long) -> Option<&'a [iovec]> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= PARTS_MAX)?;
    match (at, count) {
        (at, _) if is_nowhere(at) => None,
        (_, 0) => None,
        // SAFETY: the program's promise.
        _ => Some(unsafe { std::slice::from_raw_parts(at as *const iovec, count) }),
    }
    .filter(|parts| !parts.iter().any(|part| is_too_long(part.iov_len)))
}

/// Bytes that the frame may need for what of a vector is served.
fn room_of(parts: &[iovec]) -> usize {
    let served = parts
        .iter()
        .filter(|part| is_served(part.iov_base as c_long));
    let sum = |sum: usize, part: &iovec| {
        let align = align_of(part.iov_base as usize, part.iov_len);
        sum.saturating_add(part.iov_len).saturating_add(align)
    };
    served.fold(0, sum)
}

fn names_served(at: c_long, parts: &[iovec]) -> bool {
    is_served(at) || parts.iter().any(|part| is_served(part.iov_base as c_long))
}

/// The vector from the byte `from` on, with room in the frame in place of served memory; `filled`: with what is there.
unsafe fn replaced(
    frame: &mut Frame,
    parts: &[iovec],
    mut from: usize,
    filled: bool,
) -> Option<Parts> {
    let at: *mut iovec = frame.take(size_of_val(parts))?.cast();
    let mut left = frame.piece_bytes();
    let most = CALL_BYTES_MAX.saturating_sub(from);
    let mut now = Parts {
        at,
        count: 0,
        bytes: 0,
        whole: true,
    };
    for part in parts {
        let skipped = from.min(part.iov_len);
        from -= skipped;
        let (base, mut len) = (
            part.iov_base.wrapping_byte_add(skipped),
            (part.iov_len - skipped).min(most - now.bytes),
        );
        if len == 0 {
            continue;
        }
        let mut to = base;
        if is_served(base as c_long) {
            let align = align_of(base as usize, len);
            let room = left.min(frame.left(align));
            now.whole = len <= room;
            if !now.whole {
                // Of a part that is cut whole pages are taken.
                len = room / align * align;
            }
            if len == 0 {
                break;
            }
            left -= len;
            to = frame.take_aligned(len, align)?.cast();
            if filled {
                // SAFETY: the program's promise, and the frame's room.
                unsafe { copy(to.cast(), base.cast(), len) };
            }
        }
        // SAFETY: room for as many as there are.
        unsafe {
            at.add(now.count).write(iovec {
                iov_base: to,
                iov_len: len,
            });
        }
        now.count += 1;
        now.bytes += len;
        if !now.whole {
            break;
        }
    }
    Some(now)
}

/// Copies what came into a replaced vector to where it belongs.
unsafe fn put_back(now: &Parts, parts: &[iovec], mut from: usize, mut came: usize) {
    let mut nth = 0;
    for part in parts {
        let skipped = from.min(part.iov_len);
        from -= skipped;
        if part.iov_len == skipped || came == 0 || nth == now.count {
            continue;
        }
        let base = part.iov_base.wrapping_byte_add(skipped);
        // SAFETY: written by `replaced`, in this order.
        let room = unsafe { now.at.add(nth).read() };
        nth += 1;
        let bytes = came.min(room.iov_len);
        came -= bytes;
        if room.iov_base != base {
            // SAFETY: the program's promise, and the frame's room.
            unsafe { copy(base.cast(), room.iov_base.cast(), bytes) };
        }
    }
}

/// readv and its family; of a file, piece by piece.
pub unsafe fn read(number: c_long, args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        let Some(parts) = vector(args[1], args[2]).filter(|parts| names_served(args[1], parts))
        else {
            return raw::call(number, args);
        };
        let at_offset = |at| read(libc::SYS_preadv, offset(args, at));
        if number == libc::SYS_readv
            && let Some(said) = positions::claimed(args[0], bytes_of(parts), What::Reads, at_offset)
        {
            return said;
        }
        let has_offset = number != libc::SYS_readv && args[3] != -1;
        let room = room_of(parts);
        let (mut done, mut next) = (0, Next::Same);
        let mut small = Small::new();
        loop {
            let mut frame = Frame::new(&mut small);
            frame.make_room(args[0], room);
            let now = match replaced(&mut frame, parts, done, false) {
                Some(now) => now,
                None if done > 0 => return done as c_long,
                // To try it where it lies would be to lose what came, if a page of it is not there.
                None => return error(libc::ENOMEM),
            };
            let mut these = with(args, &now);
            if has_offset {
                these[3] += done as c_long;
            }
            let said = match next {
                Next::Same => raw::call(number, these),
                _ => read_at_once(next, args[0], now.at, now.count),
            };
            if said > 0 {
                put_back(&now, parts, done, said as usize);
            }
            if let Some(said) = after(&mut done, said, &now) {
                return said;
            }
            next = next_piece(args[0]);
            if next == Next::Ends {
                return done as c_long;
            }
        }
    }
}

/// All that a vector asks for, as far as it is done at once.
pub fn bytes_of(parts: &[iovec]) -> usize {
    let sum = |sum: usize, part: &iovec| sum.saturating_add(part.iov_len);
    parts.iter().fold(0, sum).min(CALL_BYTES_MAX)
}

/// The same vector from an offset of its own on.
fn offset(args: Args, at: c_long) -> Args {
    [args[0], args[1], args[2], at, 0, 0]
}

fn with(mut args: Args, now: &Parts) -> Args {
    (args[1], args[2]) = (now.at as c_long, now.count as c_long);
    args
}

/// writev and its family: all of it, piece by piece, as long as all of a piece is taken.
pub unsafe fn write(number: c_long, args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        let Some(parts) = vector(args[1], args[2]).filter(|parts| names_served(args[1], parts))
        else {
            return raw::call(number, args);
        };
        let has_offset = number != libc::SYS_writev && args[3] != -1;
        let mut done = 0;
        if number == libc::SYS_writev
            && let Some(said) = in_place::send_parts(args)
        {
            return said;
        }
        let at_offset = |at| write(libc::SYS_pwritev, offset(args, at));
        if number == libc::SYS_writev
            && let Some(said) =
                positions::claimed(args[0], bytes_of(parts), What::Writes, at_offset)
        {
            return said;
        }
        let room = room_of(parts);
        let mut small = Small::new();
        loop {
            let mut frame = Frame::new(&mut small);
            frame.make_room(args[0], room);
            let now = match replaced(&mut frame, parts, done, true) {
                Some(now) => now,
                None if done > 0 => return done as c_long,
                None => return touched(number, args),
            };
            let mut these = with(args, &now);
            if has_offset {
                these[3] += done as c_long;
            }
            let said = raw::call(number, these);
            match after(&mut done, said, &now) {
                Some(said) => return said,
                None => continue,
            }
        }
    }
}

/// Counts what was taken; answers what the call answers, if it ends.
fn after(done: &mut usize, said: c_long, now: &Parts) -> Option<c_long> {
    if said < 0 {
        return Some(match *done {
            0 => said,
            done => done as c_long,
        });
    }
    *done += said as usize;
    (now.whole || (said as usize) < now.bytes).then_some(*done as c_long)
}

/// A message as the kernel is given it.
pub struct Message {
    header: msghdr,
    theirs: *mut msghdr,
}

/// The one that lies at an address; none if nothing can.
///
/// # Safety
/// The program's promises for it.
pub unsafe fn message(at: c_long) -> Option<Message> {
    if is_nowhere(at) {
        return None;
    }
    let theirs = at as *mut msghdr;
    // SAFETY: the program's promise.
    let header = unsafe { theirs.read_unaligned() };
    Some(Message { header, theirs })
}

impl Message {
    /// None: a vector that the kernel refuses.
    ///
    /// # Safety
    /// The program's promises for it.
    pub unsafe fn parts<'a>(&self) -> Option<&'a [iovec]> {
        match self.header.msg_iovlen as c_long {
            0 => Some(&[]),
            // SAFETY: the program's promise.
            count => unsafe { vector(self.header.msg_iov as c_long, count) },
        }
    }

    /// Whether anything of it is served memory.
    pub fn names_served(&self, parts: &[iovec]) -> bool {
        let header = &self.header;
        is_served(self.theirs as c_long)
            || is_served(header.msg_name as c_long)
            || is_served(header.msg_control as c_long)
            || names_served(header.msg_iov as c_long, parts)
    }

    /// A copy of a piece of it, in the frame.
    unsafe fn copied(
        frame: &mut Frame,
        at: *mut libc::c_void,
        bytes: usize,
    ) -> Option<*mut libc::c_void> {
        if !is_served(at as c_long) {
            return Some(at);
        }
        let to = frame.take(bytes)?;
        // SAFETY: the program's promise.
        unsafe { copy(to, at.cast(), bytes) };
        Some(to.cast())
    }

    /// Its header for the kernel, without vector and with this much of its control data.
    unsafe fn for_kernel(&self, frame: &mut Frame, control: usize) -> Option<msghdr> {
        let mut header = self.header;
        header.msg_controllen = control;
        // Where no name is asked for its length is not looked at, and programs leave there what was. One below zero is the kernel's to refuse.
        let name = (header.msg_namelen as i32).clamp(0, NAME_BYTES_MAX as i32) as usize;
        // SAFETY: the program's promise.
        unsafe {
            header.msg_name = Message::copied(frame, header.msg_name, name)?;
            header.msg_control = Message::copied(frame, header.msg_control, control)?;
        }
        Some(header)
    }

    /// How much control data a send copies.
    fn control_to_copy(&self) -> usize {
        match is_served(self.header.msg_control as c_long) {
            true => self.header.msg_controllen,
            false => 0,
        }
    }

    /// How much control data the kernel may write: not more than is copied, where it is.
    fn control_room(&self) -> usize {
        match is_served(self.header.msg_control as c_long) {
            true => self.header.msg_controllen.min(CONTROL_BYTES_MAX),
            false => self.header.msg_controllen,
        }
    }

    /// What a recvmsg of its vector from the byte `from` on answers, with all of it where it belongs, and what it could have taken. None: there is no room for it in the frame.
    unsafe fn received(
        &self,
        frame: &mut Frame,
        mut args: Args,
        parts: &[iovec],
        from: usize,
    ) -> Option<(c_long, Parts)> {
        // SAFETY: the program's promise, all along.
        unsafe {
            let mut header = self.for_kernel(frame, self.control_room())?;
            let now = replaced(frame, parts, from, false)?;
            (header.msg_iov, header.msg_iovlen) = (now.at, now.count as _);
            let given = header;
            args[1] = (&raw mut header) as c_long;
            let said = raw::call(libc::SYS_recvmsg, args);
            if said < 0 {
                return Some((said, now));
            }
            let theirs = &self.header;
            put_back(&now, parts, from, said as usize);
            let back = |to: *mut libc::c_void, from: *mut libc::c_void, bytes: usize| {
                if to != from && !to.is_null() {
                    copy(to.cast(), from.cast(), bytes);
                }
            };
            let name = header.msg_namelen.min(given.msg_namelen) as usize;
            back(theirs.msg_name, given.msg_name, name.min(NAME_BYTES_MAX));
            let control = header.msg_controllen.min(given.msg_controllen);
            back(theirs.msg_control, given.msg_control, control);
            let mut answered = *theirs;
            answered.msg_namelen = header.msg_namelen;
            answered.msg_controllen = header.msg_controllen;
            answered.msg_flags = header.msg_flags;
            self.theirs.write_unaligned(answered);
            Some((said, now))
        }
    }
}

/// sendmsg.
#[inline]
pub unsafe fn send(args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        if is_nowhere(args[1]) {
            return raw::call(libc::SYS_sendmsg, args);
        }
        match in_place::send_message(args) {
            Some(said) => said,
            None => send_copied(args),
        }
    }
}

/// The same by a copy. Apart, since it has a frame of pages.
#[inline(never)]
unsafe fn send_copied(args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        let Some(message) = message(args[1]) else {
            return raw::call(libc::SYS_sendmsg, args);
        };
        let Some(parts) = message.parts() else {
            return touched(libc::SYS_sendmsg, args);
        };
        if !message.names_served(parts) {
            return raw::call(libc::SYS_sendmsg, args);
        }
        if args[2] & c_long::from(libc::MSG_ZEROCOPY) != 0 {
            // The kernel would go on with what is used again.
            return -c_long::from(libc::ENOBUFS);
        }
        let room = room_of(parts).saturating_add(message.control_to_copy());
        let mut done = 0;
        let mut small = Small::new();
        loop {
            let mut frame = Frame::new(&mut small);
            frame.make_room(args[0], room);
            // What goes beside the bytes goes with the first of them.
            let control = match done {
                0 => message.header.msg_controllen,
                _ => 0,
            };
            let header = message.for_kernel(&mut frame, control);
            let (Some(mut header), Some(now)) = (header, replaced(&mut frame, parts, done, true))
            else {
                return match done {
                    0 => touched(libc::SYS_sendmsg, args),
                    _ => done as c_long,
                };
            };
            (header.msg_iov, header.msg_iovlen) = (now.at, now.count as _);
            let mut these = args;
            these[1] = (&raw const header) as c_long;
            let said = raw::call(libc::SYS_sendmsg, these);
            match after(&mut done, said, &now) {
                Some(said) => return said,
                None => continue,
            }
        }
    }
}

/// How one that got a whole piece with these flags goes on.
pub fn next_received(fd: c_long, flags: i32) -> Next {
    const MARKS: i32 = libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;
    match flags {
        _ if flags & MARKS != 0 => Next::Ends,
        _ if flags & libc::MSG_WAITALL != 0 => match waits_for_more(fd, flags) {
            true => Next::Same,
            false => Next::Ends,
        },
        _ => next_piece(fd),
    }
}

/// recvmsg; of a stream, piece by piece, if it takes nothing beside the bytes.
pub unsafe fn receive(args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        let Some(message) = message(args[1]) else {
            return raw::call(libc::SYS_recvmsg, args);
        };
        let Some(parts) = message.parts() else {
            return touched(libc::SYS_recvmsg, args);
        };
        if !message.names_served(parts) {
            return raw::call(libc::SYS_recvmsg, args);
        }
        let nowhere = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: bytes_of(parts),
        }];
        let parts = match drops(args[0], args[2] as i32) {
            true => &nowhere,
            false => parts,
        };
        let room = room_of(parts);
        let (mut these, mut done) = (args, 0);
        let mut small = Small::new();
        loop {
            let mut frame = Frame::new(&mut small);
            frame.make_room(args[0], room);
            let (said, now) = match message.received(&mut frame, these, parts, done) {
                Some(answer) => answer,
                None if done > 0 => return done as c_long,
                // To try it where it lies would be to lose what came, if a page of it is not there.
                None => return error(libc::ENOMEM),
            };
            if let Some(said) = after(&mut done, said, &now) {
                return said;
            }
            if message.header.msg_controllen > 0 {
                return done as c_long;
            }
            match next_received(args[0], args[2] as i32) {
                Next::Same => {}
                Next::Socket => these[2] |= c_long::from(libc::MSG_DONTWAIT),
                Next::Ends | Next::Pipe => return done as c_long,
            }
        }
    }
}

/// process_vm_readv and process_vm_writev: their own side, and the list of the other.
pub unsafe fn of_process(number: c_long, args: Args, reads: bool) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        let is_named = |parts: &&[iovec]| names_served(args[1], parts) || is_served(args[3]);
        let Some(parts) = vector(args[1], args[2]).filter(is_named) else {
            return raw::call(number, args);
        };
        let mut small = Small::new();
        let mut frame = Frame::new(&mut small);
        let mut these = args;
        if is_served(args[3])
            && let Some(theirs) = vector(args[3], args[4])
        {
            let Some(to) = frame.take(size_of_val(theirs)) else {
                return touched(number, args);
            };
            copy(to, theirs.as_ptr().cast(), size_of_val(theirs));
            these[3] = to as c_long;
        }
        let Some(now) = replaced(&mut frame, parts, 0, !reads) else {
            return touched(number, args);
        };
        let said = raw::call(number, with(these, &now));
        if reads && said > 0 {
            put_back(&now, parts, 0, said as usize);
        }
        said
    }
}
