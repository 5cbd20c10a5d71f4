//! Calls to sockets that are given the program's memory as it lies, without a copy: as long as no page of it has left DRAM (`terrace_vm`'s calm).
//!
//! Each is made so that it does not wait (MSG_DONTWAIT): so a page that is to leave waits for it only for moments. Where the program's own call would wait, it is copied. Pages that have not come yet are touched before. Promises: the answer is what the kernel gives the program's call, and a call that
//! was not made here has done nothing. Never: more than [`BYTES_MAX`] at a time; once a page has left, anything.

use super::bounce::{is_nowhere, is_served, touch};
use super::{PAGE_BYTES, Thread, each_other, own};
use crate::{raw, runtime};
use libc::{c_int, c_long, iovec, msghdr, timespec};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence};
use terrace_vm::Memory;

type Args = [c_long; 6];

/// Of one call: what a read could fill is touched, so more than this would take memory that native calls do not.
const BYTES_MAX: usize = 16 << 10;
/// Parts of a vector.
const PARTS_MAX: usize = 16;
/// Names and control data of a message.
const ASIDE_BYTES_MAX: usize = 4096;
/// Files whose kind is remembered.
const FILES: usize = 1 << 16;
/// Calls that are copied without a look, after one that could not be made here.
const COPIED_AFTER: u8 = 100;
/// What is waited for calls under way, at most, when calm ends; each is one that does not wait: a handler of a signal came in between, or a jump left it.
const WAIT_NS: i64 = 1_000_000_000;
const PAUSE_NS: i64 = 50_000;
/// Flags that change nothing of what is said here.
const SEND_FLAGS: c_long = (libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_DONTWAIT) as c_long;
const RECEIVE_FLAGS: c_long = (libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT) as c_long;
const DONTWAIT: c_long = libc::MSG_DONTWAIT as c_long;

const MEMBARRIER_EXPEDITED: c_long = 1 << 3;
const MEMBARRIER_REGISTER_EXPEDITED: c_long = 1 << 4;

/// Whether it is done at all: the kernel makes fences for us, and no socket waits for more than some bytes.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// What was seen of files: calls that are to be copied without a look, for sending and for receiving.
struct Files([AtomicU8; FILES]);

static SENDS: Files = Files([const { AtomicU8::new(0) }; FILES]);
static RECEIVES: Files = Files([const { AtomicU8::new(0) }; FILES]);

impl Files {
    /// Whether a call to this one may be made here.
    #[inline]
    fn may(&self, fd: c_long) -> bool {
        let Some(left) = usize::try_from(fd).ok().and_then(|fd| self.0.get(fd)) else {
            return false;
        };
        let copied = left.load(Ordering::Relaxed);
        if copied > 0 {
            // Of two threads one may count: it is a guess.
            left.store(copied - 1, Ordering::Relaxed);
        }
        copied == 0
    }

    /// It was none that could.
    #[cold]
    fn could_not(&self, fd: c_long) {
        if let Some(left) = usize::try_from(fd).ok().and_then(|fd| self.0.get(fd)) {
            left.store(COPIED_AFTER, Ordering::Relaxed);
        }
    }
}

/// When the process's calls come to be dispatched.
pub fn begin() {
    let args = [MEMBARRIER_REGISTER_EXPEDITED, 0, 0, 0, 0, 0];
    // SAFETY: says what this process will ask for.
    let said = unsafe { raw::call(libc::SYS_membarrier, args) };
    IS_ON.store(said == 0, Ordering::Relaxed);
}

/// A socket's option changes: of one that waits for more than a byte (SO_RCVLOWAT), a call that does not wait gets less.
pub fn option_changes(args: Args) {
    if args[1] == libc::SOL_SOCKET.into() && args[2] == libc::SO_RCVLOWAT.into() {
        IS_ON.store(false, Ordering::Relaxed);
    }
}

/// The memory that is served: no page of it leaves while a call has it.
pub fn serve(memory: &Memory) {
    memory.while_calm(Box::new(wait_for_calls));
}

/// Calls of other threads that were under way when calm ended.
fn wait_for_calls() {
    let args = [MEMBARRIER_EXPEDITED, 0, 0, 0, 0, 0];
    // Where it is refused, it was when it was asked for, and no call was made here.
    // SAFETY: a fence on each processor that runs this process.
    let _ = unsafe { raw::call(libc::SYS_membarrier, args) };
    let mut left = WAIT_NS / PAUSE_NS;
    each_other(|thread| {
        while thread.section.at() != 0 && left > 0 {
            left -= 1;
            pause();
        }
    });
}

fn pause() {
    let time = timespec {
        tv_sec: 0,
        tv_nsec: PAUSE_NS,
    };
    // SAFETY: sleeps.
    unsafe {
        raw::call(
            libc::SYS_nanosleep,
            [(&raw const time) as c_long, 0, 0, 0, 0, 0],
        )
    };
}

#[inline]
fn is_calm() -> bool {
    runtime::get().is_some_and(|runtime| runtime.memory.is_calm())
}

/// Whether a call may be tried here; what it names is touched after that, and before [`made`].
#[inline]
fn may(files: &Files, fd: c_long, bytes: usize) -> bool {
    IS_ON.load(Ordering::Relaxed) && (1..=BYTES_MAX).contains(&bytes) && is_calm() && files.may(fd)
}

/// Each page of a range that is served, by an address in it.
#[inline]
fn each_page(at: c_long, bytes: usize, with: impl Fn(usize)) {
    let (mut at, end) = (at as usize, (at as usize).saturating_add(bytes));
    while at < end && is_served(at as c_long) {
        with(at);
        at = (at | (PAGE_BYTES - 1)).saturating_add(1);
    }
}

/// # Safety
/// The program's promise: it can be read.
#[inline]
unsafe fn touch_to_read(at: c_long, bytes: usize) {
    // SAFETY: the caller's.
    each_page(at, bytes, |at| unsafe {
        (at as *const u8).read_volatile();
    });
}

/// # Safety
/// The program's promise: it can be written to.
#[inline]
unsafe fn touch_to_write(at: c_long, bytes: usize) {
    // SAFETY: the caller's.
    each_page(at, bytes, |at| unsafe { touch(at) });
}

/// The call, if it is still calm.
///
/// # Safety
/// The program's promises for it; all pages that it names are there.
#[inline]
unsafe fn made(number: c_long, args: Args) -> Option<c_long> {
    let thread: &Thread = own()?;
    let here = (&raw const args) as usize;
    let before = thread.section.at();
    if before != 0 && !thread.has_left(before, here) {
        // This is a handler of a signal that came in between.
        return None;
    }
    let fence = || compiler_fence(Ordering::SeqCst);
    if !thread.section.begin(here, fence, is_calm) {
        return None;
    }
    // SAFETY: the caller's.
    let said = unsafe { raw::call(number, args) };
    thread.section.end();
    Some(said)
}

/// Whether the program's own call would wait.
#[cold]
fn waits(fd: c_long, flags: c_long) -> bool {
    let get = [fd, libc::F_GETFL.into(), 0, 0, 0, 0];
    // SAFETY: asks for flags.
    flags & DONTWAIT == 0
        && unsafe { raw::call(libc::SYS_fcntl, get) } & c_long::from(libc::O_NONBLOCK) == 0
}

/// The answer of a call, if it is the program's.
#[inline]
fn answer(files: &Files, fd: c_long, flags: c_long, said: c_long) -> Option<c_long> {
    match -said as c_int {
        libc::ENOTSOCK => files.could_not(fd),
        libc::EAGAIN if waits(fd, flags) => files.could_not(fd),
        // Its memory is not what it should be: copying says it as it always does.
        libc::EFAULT => {}
        _ => return Some(said),
    }
    None
}

/// read, or recv: None, and nothing was done, where it is to be copied.
///
/// # Safety
/// The program's promises for the call.
#[inline]
pub unsafe fn receive(fd: c_long, at: c_long, bytes: c_long, flags: c_long) -> Option<c_long> {
    if flags & !RECEIVE_FLAGS != 0 || !may(&RECEIVES, fd, bytes as usize) {
        return None;
    }
    let args = [fd, at, bytes, flags | DONTWAIT, 0, 0];
    // SAFETY: the caller's promise.
    unsafe {
        touch_to_write(at, bytes as usize);
        answer(&RECEIVES, fd, flags, made(libc::SYS_recvfrom, args)?)
    }
}

/// What a call that sends came to.
pub enum Sent {
    /// Its answer.
    All(c_long),
    /// So many bytes went; the rest is to be copied. A call of which nothing was done is one of these.
    Part(usize),
}

#[inline]
fn sent(fd: c_long, flags: c_long, said: Option<c_long>, bytes: usize) -> Sent {
    let said = said.and_then(|said| answer(&SENDS, fd, flags, said));
    match said {
        None => Sent::Part(0),
        Some(part) if part >= 0 && (part as usize) < bytes && waits(fd, flags) => {
            SENDS.could_not(fd);
            Sent::Part(part as usize)
        }
        Some(said) => Sent::All(said),
    }
}

/// write, or send.
///
/// # Safety
/// The program's promises for the call.
#[inline]
pub unsafe fn send(fd: c_long, at: c_long, bytes: c_long, flags: c_long) -> Sent {
    if flags & !SEND_FLAGS != 0 || !may(&SENDS, fd, bytes as usize) {
        return Sent::Part(0);
    }
    let args = [fd, at, bytes, flags | DONTWAIT, 0, 0];
    // SAFETY: the caller's promise.
    unsafe {
        touch_to_read(at, bytes as usize);
        sent(fd, flags, made(libc::SYS_sendto, args), bytes as usize)
    }
}

/// sendmsg, or writev with a header for it.
///
/// # Safety
/// The program's promises for the call; there is a header at `args[1]`.
#[inline]
pub unsafe fn send_message(args: Args) -> Sent {
    let [fd, at, flags, ..] = args;
    if flags & !SEND_FLAGS != 0 || !may(&SENDS, fd, 1) {
        return Sent::Part(0);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let header: *const msghdr = at as *const msghdr;
        let mut named = is_served(at);
        if named {
            touch_to_read(at, size_of::<msghdr>());
        }
        let header = header.read_unaligned();
        let (name, control) = (header.msg_namelen as usize, header.msg_controllen);
        let count = header.msg_iovlen as usize;
        if count > PARTS_MAX || name.max(control) > ASIDE_BYTES_MAX {
            return Sent::Part(0);
        }
        let mut touch = |at: c_long, bytes: usize| {
            if is_served(at) {
                named = true;
                touch_to_read(at, bytes);
            }
        };
        touch(header.msg_name as c_long, name);
        touch(header.msg_control as c_long, control);
        touch(header.msg_iov as c_long, count * size_of::<iovec>());
        if is_nowhere(header.msg_iov as c_long) {
            return Sent::Part(0);
        }
        let mut bytes = 0;
        for nth in 0..count {
            let part = header.msg_iov.add(nth).read_unaligned();
            if part.iov_len > BYTES_MAX - bytes {
                return Sent::Part(0);
            }
            bytes += part.iov_len;
            touch(part.iov_base as c_long, part.iov_len);
        }
        if !named {
            return Sent::All(raw::call(libc::SYS_sendmsg, args));
        }
        let now = [fd, at, flags | DONTWAIT, 0, 0, 0];
        sent(fd, flags, made(libc::SYS_sendmsg, now), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn who_ends_calm_waits_for_calls_under_way_but_not_for_ever() {
        // SAFETY: never unmapped; what is shared of it is atomic.
        let section = unsafe { &(*super::super::made().unwrap()).section };
        let begun = || assert!(section.begin(1, || (), || true));
        assert!(!section.begin(1, || (), || false) && section.at() == 0);
        begun();
        let (short, started) = (Duration::from_millis(50), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(short);
                section.end();
            });
            wait_for_calls();
        });
        assert!(started.elapsed() >= short && section.at() == 0);
        begun();
        let started = Instant::now();
        wait_for_calls();
        let bound = Duration::from_nanos(WAIT_NS as u64);
        assert!(started.elapsed() >= bound && started.elapsed() < 20 * bound);
        section.end();
    }
}
