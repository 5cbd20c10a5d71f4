//! What is asked of a file before a call goes on with its next piece.
//!
//! Promises: nothing of it is taken, and no error that is the next call's. Never: waits, but where the call would (`waits_for_more`).

use crate::raw;
use libc::c_long;

/// The number that /dev/zero, /dev/urandom and their like have in common.
const MEMORY_DEVICES: u32 = 1;

/// How a read that got a whole piece goes on with the next, since the kernel would have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing more is there, or something says where it ends, as datagrams have.
    Ends,
    /// By the same call: it does not wait, or it is asked to.
    Same,
    /// From a socket or a pipe, where another may have taken what was there: without waiting.
    Socket,
    Pipe,
}

/// Asked between two pieces. Who is told of new bytes at an edge (EPOLLET) takes a read of fewer than it asked for as the last.
pub fn next_piece(fd: c_long) -> Next {
    match kind(fd) {
        libc::S_IFREG | libc::S_IFBLK => Next::Same,
        libc::S_IFCHR if is_readable(fd) => Next::Same,
        libc::S_IFIFO if has_bytes(fd) => Next::Pipe,
        libc::S_IFSOCK if is_stream(fd) && has_bytes(fd) => Next::Socket,
        _ => Next::Ends,
    }
}

/// A read into these parts that does not wait.
///
/// # Safety
/// As readv(2).
pub unsafe fn read_at_once(
    next: Next,
    fd: c_long,
    parts: *mut libc::iovec,
    count: usize,
) -> c_long {
    // SAFETY: the caller's promise, and a header of this frame's.
    unsafe {
        match next {
            Next::Pipe => {
                let flags = c_long::from(libc::RWF_NOWAIT);
                raw::call(
                    libc::SYS_preadv2,
                    [fd, parts as c_long, count as c_long, -1, -1, flags],
                )
            }
            _ => {
                let mut header = std::mem::zeroed::<libc::msghdr>();
                (header.msg_iov, header.msg_iovlen) = (parts, count as _);
                let flags = libc::MSG_DONTWAIT.into();
                raw::call(
                    libc::SYS_recvmsg,
                    [fd, (&raw mut header) as c_long, flags, 0, 0, 0],
                )
            }
        }
    }
}

fn kind(fd: c_long) -> u32 {
    status(fd).map_or(0, |status| u32::from(status.stx_mode) & libc::S_IFMT)
}

/// Kind and device of a file, as they are known here: a file system that asks another machine is not made to write back what it has for that.
fn status(fd: c_long) -> Option<libc::statx> {
    // SAFETY: an empty name, and room for the answer, of which all zeros are one.
    unsafe {
        let mut status = std::mem::zeroed::<libc::statx>();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let args = [
            fd,
            c"".as_ptr() as c_long,
            flags.into(),
            libc::STATX_TYPE.into(),
            (&raw mut status) as c_long,
            0,
        ];
        (raw::call(libc::SYS_statx, args) == 0).then_some(status)
    }
}

/// Whether what a call reads or writes there is one whole, of which a call with less room has less: a datagram, a request (/dev/fuse), a record (a tape), all that was seen (inotify).
pub fn is_whole(fd: c_long) -> bool {
    let Some(status) = status(fd) else {
        return false;
    };
    match u32::from(status.stx_mode) & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFDIR => false,
        libc::S_IFSOCK => !is_stream(fd),
        // Zeros and noise have no end.
        libc::S_IFCHR => status.stx_rdev_major != MEMORY_DEVICES,
        _ => true,
    }
}

fn is_stream(fd: c_long) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// What a socket has of an option, or the head of it; 0 where that is nothing.
fn option(fd: c_long, level: i32, name: i32) -> Option<i32> {
    let (mut value, mut bytes) = (0, size_of::<i32>() as u32);
    let (at, bytes_at) = ((&raw mut value) as c_long, (&raw mut bytes) as c_long);
    let args = [fd, level.into(), name.into(), at, bytes_at, 0];
    // SAFETY: room for the answer.
    unsafe { (raw::call(libc::SYS_getsockopt, args) == 0).then_some(value) }
}

/// Whether a socket drops what it is asked for with these flags and writes none of it: TCP's rule for MSG_TRUNC, which what lies above it (TLS) does not have, nor other streams. Programs give no memory then, or less than they say.
pub fn drops(fd: c_long, flags: i32) -> bool {
    let asked = libc::MSG_TRUNC | libc::MSG_ERRQUEUE;
    flags & asked == libc::MSG_TRUNC
        && is_stream(fd)
        && match option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) {
            Some(libc::IPPROTO_TCP) => {
                option(fd, libc::IPPROTO_TCP, libc::TCP_ULP).unwrap_or(0) == 0
            }
            Some(libc::IPPROTO_MPTCP) => true,
            _ => false,
        }
}

/// Whether a socket or a pipe has bytes; if so, reading them takes no error that is the next read's.
fn has_bytes(fd: c_long) -> bool {
    let mut bytes = 0i32;
    let args = [
        fd,
        libc::FIONREAD as c_long,
        (&raw mut bytes) as c_long,
        0,
        0,
        0,
    ];
    // SAFETY: room for the answer.
    unsafe { raw::call(libc::SYS_ioctl, args) == 0 && bytes > 0 }
}

/// Whether a socket that is asked for all there will be (MSG_WAITALL) has more, which is waited for, unless it does not wait: as a call waits that has some already, which a signal ends, also where
/// one that has none would begin anew after the handler (SA_RESTART). An error is left to the next call, as is the end.
pub fn waits_for_more(fd: c_long, flags: i32) -> bool {
    let getfl = [fd, libc::F_GETFL.into(), 0, 0, 0, 0];
    // SAFETY: takes no memory.
    let flags_of = || unsafe { raw::call(libc::SYS_fcntl, getfl) };
    has_bytes(fd)
        || flags & libc::MSG_DONTWAIT != 0
        || flags_of() & c_long::from(libc::O_NONBLOCK) != 0
        // Then poll would wait for more than is asked for.
        || option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_some_and(|least| least > 1)
        || polled(fd, longest_ms(fd)) == libc::POLLIN
}

/// How long a socket waits for something at most, as poll has it.
fn longest_ms(fd: c_long) -> c_long {
    let mut time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut bytes = size_of_val(&time) as u32;
    let (level, name) = (libc::SOL_SOCKET.into(), libc::SO_RCVTIMEO.into());
    let (at, bytes_at) = ((&raw mut time) as c_long, (&raw mut bytes) as c_long);
    // SAFETY: room for the answer.
    let said = unsafe { raw::call(libc::SYS_getsockopt, [fd, level, name, at, bytes_at, 0]) };
    let ms = time
        .tv_sec
        .saturating_mul(1000)
        .saturating_add((time.tv_usec + 999) / 1000);
    match (said, ms) {
        (0, 1..) => ms.min(i32::MAX.into()),
        _ => -1,
    }
}

/// Whether there is something to read.
fn is_readable(fd: c_long) -> bool {
    polled(fd, 0) == libc::POLLIN
}

/// What of something to read, an error and nothing at all there is by a time; none if a signal came before.
fn polled(fd: c_long, ms: c_long) -> i16 {
    let mut asked = libc::pollfd {
        fd: fd as i32,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one of them.
    unsafe { raw::call(libc::SYS_poll, [(&raw mut asked) as c_long, 1, ms, 0, 0, 0]) };
    asked.revents & (libc::POLLIN | libc::POLLERR | libc::POLLNVAL)
}
