//! User faults (userfaultfd): raw ioctls, as far as they are used.
//!
//! Promises: changes page tables of registered ranges only. Never: decides what a fault means. Layouts and numbers are those of
//! linux/userfaultfd.h, which older headers lack in part.

use super::SystemError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use terrace_media::descriptors::{self, keep_file};

const UFFD_API: u64 = 0xAA;
const GROUP: u8 = 0xAA;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_SIGBUS: u64 = 1 << 7;
/// Since Linux 5.18: a fault's address, not only its page's.
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const FEATURE_POISON: u64 = 1 << 14;
/// Since Linux 6.8.
const FEATURE_MOVE: u64 = 1 << 16;
const USER_MODE_ONLY: i32 = 1;
const REGISTER_MISSING_AND_WP: u64 = 1 | 2;
const COPY_WRITE_PROTECTED: u64 = 2;
/// Nobody waits where pages come to lie.
const MOVE_DONT_WAKE: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_WRITE: u64 = 1;
const PAGEFAULT_WP: u64 = 2;
/// How often a call is repeated that was interrupted because the process's mappings changed.
const AGAIN_MAX: u32 = 10_000;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct Protect {
    span: Span,
    mode: u64,
}

#[repr(C)]
struct Poison {
    span: Span,
    mode: u64,
    updated: i64,
}

#[repr(C)]
struct Move {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

const IOCTL_API: Opcode = opcode::read_write::<Api>(GROUP, 0x3F);
const IOCTL_REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
const IOCTL_WAKE: Opcode = opcode::read::<Span>(GROUP, 0x02);
const IOCTL_COPY: Opcode = opcode::read_write::<Copy>(GROUP, 0x03);
const IOCTL_MOVE: Opcode = opcode::read_write::<Move>(GROUP, 0x05);
const IOCTL_PROTECT: Opcode = opcode::read_write::<Protect>(GROUP, 0x06);
const IOCTL_POISON: Opcode = opcode::read_write::<Poison>(GROUP, 0x08);
/// Of /dev/userfaultfd.
const IOCTL_NEW: Opcode = opcode::none(GROUP, 0x00);

/// A fault that a handler thread was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// What was accessed.
    pub address: usize,
    pub write: bool,
}

/// What pages of zeros are copied from. Atomics, so that it lies where the kernel shows its one page of zeros for all that was never written: it takes no DRAM, and stays in
/// the processor's cache.
static ZEROS: Zeros = Zeros([const { AtomicU64::new(0) }; ZEROS_BYTES / 8]);
/// More at a time are no quicker.
const ZEROS_BYTES: usize = 128 << 10;

#[repr(C, align(4096))]
struct Zeros([AtomicU64; ZEROS_BYTES / 8]);

/// The process's faults in registered ranges.
pub(crate) struct Uffd {
    fd: OwnedFd,
    moves: bool,
}

impl Uffd {
    /// Faults come as SIGBUS in the faulting thread, or as events.
    pub fn new(in_thread: bool) -> Result<Uffd, SystemError> {
        let needed = match in_thread {
            true => FEATURE_PAGEFAULT_FLAG_WP | FEATURE_SIGBUS,
            false => FEATURE_PAGEFAULT_FLAG_WP | FEATURE_EXACT_ADDRESS | FEATURE_POISON,
        };
        let there = Uffd::open(in_thread)?.handshake(0)?;
        if there & needed != needed {
            return Err(SystemError::TooOld {
                what: "write-protecting and poisoning of user faults",
                since: "6.6",
            });
        }
        let uffd = Uffd {
            fd: descriptors::keep(Uffd::open(in_thread)?.fd),
            moves: there & FEATURE_MOVE != 0,
        };
        uffd.handshake(needed | there & FEATURE_MOVE)?;
        Ok(uffd)
    }

    /// Whether [`move_pages`](Uffd::move_pages) is there.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// By right, or by the device, or without faults of the kernel's own: those cannot come as signals anyway.
    fn open(in_thread: bool) -> Result<Uffd, SystemError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let refused = match create(flags) {
            Ok(uffd) => return Ok(uffd),
            Err(errno) => errno,
        };
        let opened = match DEVICE.get() {
            Some(device) => device.try_clone(),
            None => File::open(DEVICE_PATH),
        };
        if let Ok(device) = opened {
            // SAFETY: takes flags as its argument, and answers with a new descriptor.
            let fd =
                unsafe { libc::ioctl(device.as_raw_fd(), libc::c_ulong::from(IOCTL_NEW), flags) };
            if fd >= 0 {
                // SAFETY: made for us by the call above.
                return Ok(Uffd::of(unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let refused = match in_thread.then(|| create(flags | USER_MODE_ONLY)) {
            Some(Ok(uffd)) => return Ok(uffd),
            Some(Err(few)) if is_want(few) => few,
            _ => refused,
        };
        if is_want(refused) {
            return Err(SystemError::Call {
                what: "asking for user faults",
                errno: refused,
            });
        }
        // The device is asked all the same, since a tool that runs the program may not know the system call.
        if refused == Errno::NOSYS {
            return Err(SystemError::TooOld {
                what: "userfaultfd",
                since: "6.6",
            });
        }
        Err(SystemError::Refused {
            errno: refused,
            in_thread,
        })
    }

    /// One that nothing is agreed on with yet.
    fn of(fd: OwnedFd) -> Uffd {
        Uffd { fd, moves: false }
    }

    fn handshake(&self, features: u64) -> Result<u64, SystemError> {
        let mut api = Api {
            api: UFFD_API,
            features,
            ioctls: 0,
        };
        // SAFETY: opcode and layout of UFFDIO_API.
        unsafe { ioctl(&self.fd, Updater::<IOCTL_API, Api>::new(&mut api)) }
            .map_err(SystemError::call("agreeing on user faults"))?;
        Ok(api.features)
    }

    /// From now on faults of absent and of protected pages in the range are ours.
    pub fn register(&self, start: usize, len: usize) -> Result<(), SystemError> {
        self.register_raw(start, len)
            .map_err(SystemError::call("registering a range for user faults"))
    }

    /// The same, with the system's own error.
    pub fn register_raw(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut register = Register {
            span: span(start, len),
            mode: REGISTER_MISSING_AND_WP,
            ioctls: 0,
        };
        // SAFETY: opcode and layout of UFFDIO_REGISTER; the range is the caller's mapping.
        unsafe {
            ioctl(
                &self.fd,
                Updater::<IOCTL_REGISTER, Register>::new(&mut register),
            )
        }
    }

    /// Puts `len` bytes of zeros at `to` (whole pages), where none are, and wakes who waits for them: how many were put, and why not all. One call for many pages takes half the
    /// time of one for each.
    pub fn copy_zeros(&self, to: usize, len: usize, protected: bool) -> (usize, Option<Errno>) {
        in_steps(len, |done| {
            let mut copy = Copy {
                to: (to + done) as u64,
                from: ZEROS.0.as_ptr() as u64,
                len: (len - done).min(ZEROS_BYTES) as u64,
                mode: if protected { COPY_WRITE_PROTECTED } else { 0 },
                copied: 0,
            };
            // SAFETY: opcode and layout of UFFDIO_COPY; it changes only absent pages of registered ranges.
            let said = unsafe { ioctl(&self.fd, Updater::<IOCTL_COPY, Copy>::new(&mut copy)) };
            (copy.copied, said)
        })
    }

    /// Puts a page with the contents of `page` at `address`, where none is, and wakes who waits for it.
    pub fn copy(&self, address: usize, page: &crate::Page, protected: bool) -> Result<(), Errno> {
        self.copy_from(address, std::ptr::from_ref(page) as usize, protected)
    }

    /// The same from an address, of which others may change what is there.
    pub fn copy_from(&self, address: usize, from: usize, protected: bool) -> Result<(), Errno> {
        again(|| {
            let mut copy = Copy {
                to: address as u64,
                from: from as u64,
                len: crate::PAGE_BYTES as u64,
                mode: if protected { COPY_WRITE_PROTECTED } else { 0 },
                copied: 0,
            };
            // SAFETY: opcode and layout of UFFDIO_COPY; it fails where it cannot read, and changes only absent pages of registered ranges.
            unsafe { ioctl(&self.fd, Updater::<IOCTL_COPY, Copy>::new(&mut copy)) }
        })
    }

    /// Protects the pages that are in the range from writing, or takes that away and wakes who waits.
    pub fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        again(|| {
            let mut protect = Protect {
                span: span(start, len),
                mode: u64::from(on),
            };
            // SAFETY: opcode and layout of UFFDIO_WRITEPROTECT; it works on registered ranges only.
            unsafe {
                ioctl(
                    &self.fd,
                    Updater::<IOCTL_PROTECT, Protect>::new(&mut protect),
                )
            }
        })
    }

    /// Moves so many bytes of pages, in order, to where none are, until one is refused: how many bytes it were, and why not all. EBUSY: somebody has the page pinned.
    ///
    /// # Safety
    /// Nobody but the caller, or whoever waits for a fault of it, touches the pages, and both ranges are the caller's to change.
    pub unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> (usize, Option<Errno>) {
        in_steps(len, |done| {
            let mut call = Move {
                to: (to + done) as u64,
                from: (from + done) as u64,
                len: (len - done) as u64,
                mode: MOVE_DONT_WAKE,
                moved: 0,
            };
            // SAFETY: opcode and layout of UFFDIO_MOVE; what lies in both ranges is the caller's to change.
            let said = unsafe { ioctl(&self.fd, Updater::<IOCTL_MOVE, Move>::new(&mut call)) };
            (call.moved, said)
        })
    }

    /// Who touches the absent page at `address` gets SIGBUS, until the page is unmapped.
    pub fn poison(&self, address: usize) -> Result<(), Errno> {
        again(|| {
            let mut poison = Poison {
                span: span(address, crate::PAGE_BYTES),
                mode: 0,
                updated: 0,
            };
            // SAFETY: opcode and layout of UFFDIO_POISON; it works on absent pages of registered ranges only.
            unsafe { ioctl(&self.fd, Updater::<IOCTL_POISON, Poison>::new(&mut poison)) }
        })
    }

    /// Lets those who wait for the page at `address` try again.
    pub fn wake(&self, address: usize) -> Result<(), Errno> {
        let mut range = span(address, crate::PAGE_BYTES);
        // SAFETY: opcode and layout of UFFDIO_WAKE.
        unsafe { ioctl(&self.fd, Updater::<IOCTL_WAKE, Span>::new(&mut range)) }
    }

    /// The next fault, if there is one; its thread sleeps until the page is there.
    pub fn next(&self) -> Result<Option<Event>, Errno> {
        let mut message = [0u8; 32];
        match rustix::io::read(&self.fd, &mut message) {
            Ok(32) => {}
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        if message[0] != EVENT_PAGEFAULT {
            return Ok(None);
        }
        let word = |at: usize| {
            u64::from_ne_bytes(
                message[at..at + 8]
                    .try_into()
                    .expect("eight bytes are eight"),
            )
        };
        Ok(Some(Event {
            address: word(16) as usize,
            write: word(8) & (PAGEFAULT_WRITE | PAGEFAULT_WP) != 0,
        }))
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What says nothing of rights: the process, or the system, has too much already.
fn is_want(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

const DEVICE_PATH: &str = "/dev/userfaultfd";
static DEVICE: OnceLock<File> = OnceLock::new();

/// Opens the device that faults can be had from, if it is there and may be opened, and keeps it: for a process that gives its rights up before it needs
/// memory. Calling it again changes nothing.
pub fn hold_device() {
    if DEVICE.get().is_none()
        && let Ok(device) = File::open(DEVICE_PATH)
    {
        // Another thread's is as good.
        let _ = DEVICE.set(keep_file(device));
    }
    if let Some(device) = DEVICE.get() {
        descriptors::list(device.as_raw_fd());
    }
}

fn create(flags: i32) -> Result<Uffd, Errno> {
    // SAFETY: takes flags and answers with a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EPERM)));
    }
    // SAFETY: made for us by the call above.
    Ok(Uffd::of(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

fn span(start: usize, len: usize) -> Span {
    Span {
        start: start as u64,
        len: len as u64,
    }
}

/// Goes along `len` bytes by calls that get from the offset they are given as far as they say, and answers how far all got, and why
/// no further.
fn in_steps(
    len: usize,
    mut step: impl FnMut(usize) -> (i64, Result<(), Errno>),
) -> (usize, Option<Errno>) {
    let (mut done, mut tries) = (0, 0);
    while done < len {
        let (bytes, said) = step(done);
        match (usize::try_from(bytes), said) {
            // It got on: why it stopped is what the next call says.
            (Ok(bytes @ 1..), _) => (done, tries) = (done + bytes, 0),
            (_, Err(Errno::AGAIN | Errno::INTR)) if tries < AGAIN_MAX => tries += 1,
            (_, Err(errno)) => return (done, Some(errno)),
            // It says that it is done and has not moved: not a kernel that we know.
            (_, Ok(())) => return (done, Some(Errno::NOSYS)),
        }
    }
    (done, None)
}

/// Repeats what the kernel broke off because mappings were changing.
fn again(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 0..AGAIN_MAX {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => std::hint::spin_loop(),
            ended => return ended,
        }
    }
    Err(Errno::AGAIN)
}
