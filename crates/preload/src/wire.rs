//! What a fork's child and the process that has the pool say to each other, over a socket pair.
//!
//! Promises: a message is read and written whole, through interruptions. Never: allocates, waits for one who is gone (that is an end of file), or calls what a thread may be cancelled in: a fault of the program's threads comes here.

use crate::raw;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use terrace_vm::descriptors::keep;

/// Pages of one message.
pub const PAGES_MAX: usize = 64;

/// Room for the answers to one message, which are sent while what was read for them is held: the kernel counts some 5 KiB for a page, and doubles this.
const ANSWERS_BYTES: libc::c_int = (PAGES_MAX * 4096) as libc::c_int;

/// One page's contents are asked for.
pub const FETCH: u32 = 1;
/// Changed pages follow: their numbers, then their bytes.
pub const STORE: u32 = 2;
/// Pages are not needed any more. No answer.
pub const DISCARD: u32 = 3;
/// Room for so many pages.
pub const PROMISE: u32 = 4;
/// It is not needed any more. No answer.
pub const UNPROMISE: u32 = 5;
/// Tables take so many bytes, where they took so many. No answer.
pub const COUNT: u32 = 6;
/// The child forks, and needs a socket for its child, which comes with the answer; `first` is what the two will have in DRAM together.
pub const FORK: u32 = 7;
/// The contents of so many pages are asked for, whose numbers follow: an answer for each, in their order.
pub const FETCH_SEVERAL: u32 = 8;
/// The child's pages would have `count` bytes; what they may have is the answer's `count`. Less than they have: to be given back.
pub const SHARE: u32 = 9;
/// They have given back all but `count` bytes. No answer.
pub const GAVE_BACK: u32 = 10;
/// Whether the child may fork: `count` is how many pages a second version of all would come to.
pub const MAY_FORK: u32 = 11;

/// In a page's number: it was surely written to.
pub const SURELY: u64 = 1 << 63;

/// A question.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Ask {
    /// What is asked.
    pub what: u32,
    /// Which of the two heaps.
    pub area: u32,
    /// A page, or bytes before.
    pub first: u64,
    /// How many, or bytes after.
    pub count: u64,
}

/// An answer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Say {
    /// 0, or the number of an error.
    pub errno: i32,
    /// Of a page: [`ABSENT`], or what follows.
    pub found: u32,
    /// How many were taken; what a child's pages may take, bytes.
    pub count: u64,
}

/// No contents follow: all zeros.
pub const ABSENT: u32 = 0;
/// Contents follow, from DRAM.
pub const FILLED: u32 = 1;
/// The same, and the device was read.
pub const READ: u32 = 2;

/// The other end is gone.
#[derive(Debug, Clone, Copy)]
pub struct Gone;

/// Values whose bytes can be sent: integers without gaps between them.
///
/// # Safety
/// Every pattern of bits is a value, and no byte is padding.
pub unsafe trait Plain: Copy {}
// SAFETY: integers in order of their size without gaps.
unsafe impl Plain for Ask {}
// SAFETY: as above.
unsafe impl Plain for Say {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}

/// Two ends of a connection that are closed when another program is run; the first is told who greets it.
pub fn pair() -> Result<[OwnedFd; 2], i32> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    match unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } {
        0 => {
            let yes: libc::c_int = 1;
            let room: libc::c_int = ANSWERS_BYTES;
            // SAFETY: numbers that are there; without them nobody greets, or who answers may wait, and all else is as ever.
            unsafe {
                let level = libc::SOL_SOCKET;
                libc::setsockopt(
                    ends[0],
                    level,
                    libc::SO_PASSCRED,
                    (&raw const yes).cast(),
                    4,
                );
                libc::setsockopt(ends[0], level, libc::SO_SNDBUF, (&raw const room).cast(), 4);
            };
            // SAFETY: made just now, for us.
            Ok(ends.map(|fd| keep(unsafe { OwnedFd::from_raw_fd(fd) })))
        }
        _ => Err(raw::errno()),
    }
}

/// Sends bytes from anywhere.
pub fn send_bytes(to: &OwnedFd, bytes: &[u8]) -> Result<(), Gone> {
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = &bytes[sent..];
        let (at, len, flags) = (rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL);
        // SAFETY: bytes that are there.
        match unsafe { raw::send(to.as_raw_fd(), at, len, flags) } {
            -1 if raw::errno() == libc::EINTR => {}
            -1 => return Err(Gone),
            more => sent += more as usize,
        }
    }
    Ok(())
}

/// Sends a value and bytes behind it in one call, so that who waits for both is woken once.
pub fn send_with_bytes<T: Plain>(to: &OwnedFd, value: &T, bytes: &[u8]) -> Result<(), Gone> {
    // SAFETY: plain values are their bytes.
    let head =
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) };
    let mut parts = [head, bytes].map(|part: &[u8]| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: integers and pointers; all zeros is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: bytes that are there, and are only read.
    let sent = match unsafe { raw::sendmsg(to.as_raw_fd(), &message, libc::MSG_NOSIGNAL) } {
        -1 if raw::errno() == libc::EINTR => 0,
        -1 => return Err(Gone),
        sent => sent as usize,
    };
    send_bytes(to, head.get(sent..).unwrap_or_default())?;
    send_bytes(to, &bytes[sent.saturating_sub(head.len())..])
}

/// Receives bytes until all are there.
pub fn receive_bytes(from: &OwnedFd, bytes: &mut [u8]) -> Result<(), Gone> {
    let mut there = 0;
    while there < bytes.len() {
        let rest = &mut bytes[there..];
        // SAFETY: room for so many bytes.
        match unsafe {
            raw::recv(
                from.as_raw_fd(),
                rest.as_mut_ptr().cast(),
                rest.len(),
                libc::MSG_WAITALL,
            )
        } {
            -1 if raw::errno() == libc::EINTR => {}
            -1 | 0 => return Err(Gone),
            more => there += more as usize,
        }
    }
    Ok(())
}

/// Sends values.
pub fn send<T: Plain>(to: &OwnedFd, values: &[T]) -> Result<(), Gone> {
    // SAFETY: plain values are their bytes.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    send_bytes(to, bytes)
}

/// Receives values.
pub fn receive<T: Plain>(from: &OwnedFd, values: &mut [T]) -> Result<(), Gone> {
    // SAFETY: any bytes are plain values.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of_val(values))
    };
    receive_bytes(from, bytes)
}

/// The first thing that a child says: nothing, from which the kernel tells who it is.
pub fn greet(to: &OwnedFd) -> Result<(), Gone> {
    send_bytes(to, &[0])
}

/// Receives that: the number of the process as it is here, 0 if it has none.
pub fn receive_greeting(from: &OwnedFd) -> Result<libc::pid_t, Gone> {
    let (mut byte, mut control) = (0, Control([0; 32]));
    with_message(&mut byte, &mut control, |message| {
        message.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the message has room for a byte and for who sent it; what comes is looked at before it is taken.
        unsafe {
            let got = raw::recvmsg(from.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC);
            let head = libc::CMSG_FIRSTHDR(message);
            if got != 1 || head.is_null() || (*head).cmsg_type != libc::SCM_CREDENTIALS {
                return Err(Gone);
            }
            let who = libc::CMSG_DATA(head).cast::<libc::ucred>();
            Ok(who.read_unaligned().pid)
        }
    })
}

/// Room for one descriptor in a message, or for who sent it.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// A message with nothing but a byte, and room for a descriptor beside it.
fn with_message<R>(
    byte: &mut u8,
    control: &mut Control,
    work: impl FnOnce(&mut libc::msghdr) -> R,
) -> R {
    let mut part = libc::iovec {
        iov_base: std::ptr::from_mut(byte).cast(),
        iov_len: 1,
    };
    // SAFETY: integers and pointers; all zeros is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: a pure function of a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    work(&mut message)
}

/// Sends a descriptor; the other end gets one of its own for the same.
pub fn send_descriptor(to: &OwnedFd, fd: &OwnedFd) -> Result<(), Gone> {
    let (mut byte, mut control) = (0, Control([0; 32]));
    let sent = with_message(&mut byte, &mut control, |message| {
        // SAFETY: the control buffer has room for one header and one descriptor.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(head)
                .cast::<i32>()
                .write_unaligned(fd.as_raw_fd());
            raw::sendmsg(to.as_raw_fd(), message, libc::MSG_NOSIGNAL)
        }
    });
    (sent == 1).then_some(()).ok_or(Gone)
}

/// Receives one.
pub fn receive_descriptor(from: &OwnedFd) -> Result<OwnedFd, Gone> {
    let (mut byte, mut control) = (0, Control([0; 32]));
    with_message(&mut byte, &mut control, |message| {
        // SAFETY: the message has room for a byte and a descriptor; what comes is looked at before it is taken.
        unsafe {
            let got = raw::recvmsg(from.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC);
            let head = libc::CMSG_FIRSTHDR(message);
            if got != 1 || head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
                return Err(Gone);
            }
            let fd = libc::CMSG_DATA(head).cast::<i32>().read_unaligned();
            Ok(keep(OwnedFd::from_raw_fd(fd)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_descriptors_arrive_and_an_end_is_noticed() {
        let [there, here] = pair().unwrap();
        greet(&here).unwrap();
        let who = receive_greeting(&there).unwrap();
        assert_eq!(who.cast_unsigned(), std::process::id());
        let [there, here] = [here, there];
        let [a, b] = pair().unwrap();
        let ask = Ask {
            what: STORE,
            area: 1,
            first: 7,
            count: 9,
        };
        send(&here, &[ask]).unwrap();
        send_descriptor(&here, &a).unwrap();
        drop(a);
        let mut got = [Ask::default()];
        receive(&there, &mut got).unwrap();
        assert_eq!((got[0].what, got[0].first, got[0].count), (STORE, 7, 9));
        let a = receive_descriptor(&there).unwrap();
        send_with_bytes(&a, &5u64, b"and more").unwrap();
        let (mut number, mut more) = ([0u64], [0; 8]);
        receive(&b, &mut number).unwrap();
        receive_bytes(&b, &mut more).unwrap();
        assert_eq!((number, &more), ([5], b"and more"));
        drop(a);
        assert!(receive(&b, &mut number).is_err());
        drop(here);
        assert!(receive(&there, &mut number).is_err());
        assert!(send(&there, &number).is_err());
    }
}
