//! Calls to stream sockets and pipes that do not wait (O_NONBLOCK), given the program's memory as it lies, without a copy: as long as no page of it has left DRAM (`terrace_vm`'s calm).
//!
//! They are the program's own calls, as it made them; pages that have not come yet are touched before. Since none of them waits, a page that is to leave waits for them only for moments; what may wait is copied. Promises: what is said of a file holds until the program changes that. Never: more than
//! [`BYTES_MAX`] at a time; once a page has left, anything.
//!
//! | of a file is known | since | until |
//! |---|---|---|
//! | nothing | the start; a call of the program's that closes it, puts another in its place or changes whether it waits | the next call that would go this way |
//! | it does not wait | it was asked for its flags and kind | that is changed |
//! | it may wait, or is none of these | the same | the same |

use super::arguments::{error, is_nowhere, is_served};
use super::brought::touch;
use super::{PAGE_BYTES, Thread, each_other, own};
use crate::{raw, runtime};
use libc::{c_int, c_long, iovec, msghdr, timespec};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, compiler_fence};
use std::time::{Duration, Instant};
use terrace_vm::Memory;

type Args = [c_long; 6];

/// Of one call: what a read could fill is touched, so more than this would take memory that native calls do not.
const BYTES_MAX: usize = 16 << 10;
/// Parts of a vector.
const PARTS_MAX: usize = 16;
/// Names and control data of a message.
const ASIDE_BYTES_MAX: usize = 4096;
/// What calls under way are waited for, all together, when calm ends: they do not wait, but a handler of a signal may have come in between, or another process changed that.
const WAIT_MAX: Duration = Duration::from_secs(1);
const PAUSE_NS: i64 = 50_000;
const ZEROCOPY: c_long = libc::MSG_ZEROCOPY as c_long;

const MEMBARRIER_EXPEDITED: c_long = 1 << 3;
const MEMBARRIER_REGISTER_EXPEDITED: c_long = 1 << 4;

/// Whether it is done at all: the kernel makes fences for us.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Files of which something is known, by their numbers.
const FILES: usize = 1 << 16;
const UNKNOWN: u8 = 0;
const DOES_NOT_WAIT: u8 = 1;
const OTHER: u8 = 2;
const ASKING: u8 = 3;
static KNOWN: [AtomicU8; FILES] = [const { AtomicU8::new(UNKNOWN) }; FILES];
/// The highest number of which something may be known.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

fn known(fd: c_long) -> Option<&'static AtomicU8> {
    KNOWN.get(usize::try_from(fd).ok()?)
}

/// Whether a call to this one does not wait.
#[inline]
fn does_not_wait(fd: c_long) -> bool {
    known(fd).is_some_and(|known| match known.load(Ordering::Relaxed) {
        UNKNOWN => ask(fd, known),
        // While another thread asks, it is copied.
        found => found == DOES_NOT_WAIT,
    })
}

#[cold]
fn ask(fd: c_long, known: &AtomicU8) -> bool {
    HIGHEST.fetch_max(fd.max(0) as usize, Ordering::AcqRel);
    known.store(ASKING, Ordering::SeqCst);
    let found = if is_one(fd) { DOES_NOT_WAIT } else { OTHER };
    // Not if it changed meanwhile.
    let (seq, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
    known.compare_exchange(ASKING, found, seq, relaxed) == Ok(ASKING) && found == DOES_NOT_WAIT
}

/// Whether it is a stream or a pipe that does not wait. Of these nothing is lost where a read fails for want of memory; of a datagram all is.
fn is_one(fd: c_long) -> bool {
    let (mut kind, mut len) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    let (socket, type_of) = (libc::SOL_SOCKET.into(), libc::SO_TYPE.into());
    let (at, len_at) = ((&raw mut kind) as c_long, (&raw mut len) as c_long);
    // SAFETY: asks for flags, for a socket's type and for a file's status; there is room for the answers.
    unsafe {
        let flags = raw::call(libc::SYS_fcntl, [fd, libc::F_GETFL.into(), 0, 0, 0, 0]);
        if flags < 0 || flags & c_long::from(libc::O_NONBLOCK) == 0 {
            return false;
        }
        let args = [fd, socket, type_of, at, len_at, 0];
        if raw::call(libc::SYS_getsockopt, args) == 0 {
            return kind == libc::SOCK_STREAM;
        }
        let mut status = std::mem::zeroed::<libc::stat>();
        let args = [fd, (&raw mut status) as c_long, 0, 0, 0, 0];
        raw::call(libc::SYS_fstat, args) == 0 && status.st_mode & libc::S_IFMT == libc::S_IFIFO
    }
}

/// The program closes files of these numbers, or changes them: before it does and after.
pub fn change(first: c_long, last: c_long) {
    let highest = HIGHEST.load(Ordering::Acquire);
    let last = usize::try_from(last).map_or(0, |last| last.min(highest));
    let first = usize::try_from(first).unwrap_or(0);
    for known in KNOWN.iter().take(last + 1).skip(first) {
        if known.load(Ordering::Relaxed) != UNKNOWN {
            known.store(UNKNOWN, Ordering::Relaxed);
        }
    }
}

/// A call by which a number comes to stand for another file, or for none.
pub fn changing(fd: c_long, call: impl FnOnce() -> c_long) -> c_long {
    change(fd, fd);
    let said = call();
    change(fd, fd);
    said
}

/// A call after which a file waits, or does not; `waits` says which. Other numbers may stand for the same one: if it waits, nothing is known of any.
pub fn turning(fd: c_long, call: impl FnOnce() -> c_long, waits: impl FnOnce() -> bool) -> c_long {
    let said = call();
    match said < 0 || !waits() {
        true => change(fd, fd),
        false => change(0, c_long::MAX),
    }
    said
}

/// When the process's calls come to be dispatched.
pub fn begin() {
    let args = [MEMBARRIER_REGISTER_EXPEDITED, 0, 0, 0, 0, 0];
    // SAFETY: says what this process will ask for.
    let said = unsafe { raw::call(libc::SYS_membarrier, args) };
    IS_ON.store(said == 0, Ordering::Relaxed);
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
    let began = Instant::now();
    each_other(|thread| {
        while thread.section.at() != 0 && began.elapsed() < WAIT_MAX && !thread.has_ended() {
            pause();
        }
    });
}

fn pause() {
    let time = timespec {
        tv_sec: 0,
        tv_nsec: PAUSE_NS,
    };
    let at = (&raw const time) as c_long;
    // SAFETY: sleeps.
    unsafe { raw::call(libc::SYS_nanosleep, [at, 0, 0, 0, 0, 0]) };
}

#[inline]
fn is_calm() -> bool {
    runtime::get().is_some_and(|runtime| runtime.memory.is_calm())
}

/// Whether a call may be made here; what it names is touched after that, and before [`made`].
#[inline]
fn may(fd: c_long, bytes: usize) -> bool {
    IS_ON.load(Ordering::Relaxed)
        && (1..=BYTES_MAX).contains(&bytes)
        && is_calm()
        && does_not_wait(fd)
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

/// The answer, unless it says that a page has left.
#[inline]
fn answer(said: Option<c_long>) -> Option<c_long> {
    said.filter(|said| *said != error(libc::EFAULT) || is_calm())
}

/// read, or recv into `at`: None, and nothing was done, where it is to be copied.
///
/// # Safety
/// The program's promises for the call.
#[inline]
pub unsafe fn receive(number: c_long, args: Args) -> Option<c_long> {
    let [fd, at, bytes, ..] = args;
    if !is_served(at) || !may(fd, bytes as usize) || runtime::has_closed() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        touch_to_write(at, bytes as usize);
        answer(made(number, args))
    }
}

/// write, or send without MSG_ZEROCOPY.
///
/// # Safety
/// The program's promises for the call.
#[inline]
pub unsafe fn send(number: c_long, args: Args) -> Option<c_long> {
    let [fd, at, bytes, ..] = args;
    if !is_served(at) || !may(fd, bytes as usize) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        touch_to_read(at, bytes as usize);
        answer(made(number, args))
    }
}

/// A vector of so many parts at `at`, touched with what they name, but for parts that are not served. Whether it is one for here.
///
/// # Safety
/// The program's promise for it.
#[inline]
unsafe fn touch_parts(at: *const iovec, count: usize) -> bool {
    if count > PARTS_MAX || is_nowhere(at as c_long) {
        return false;
    }
    let mut left = BYTES_MAX;
    // SAFETY: the caller's promise.
    unsafe {
        touch_to_read(at as c_long, count * size_of::<iovec>());
        for nth in 0..count {
            let part = at.add(nth).read_unaligned();
            if part.iov_len > left {
                return false;
            }
            left -= part.iov_len;
            touch_to_read(part.iov_base as c_long, part.iov_len);
        }
    }
    true
}

/// writev.
///
/// # Safety
/// The program's promises for the call.
#[inline]
pub unsafe fn send_parts(args: Args) -> Option<c_long> {
    let [fd, at, count, ..] = args;
    if !may(fd, 1) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match touch_parts(at as *const iovec, usize::try_from(count).ok()?) {
            true => answer(made(libc::SYS_writev, args)),
            false => None,
        }
    }
}

/// sendmsg.
///
/// # Safety
/// The program's promises for the call; there is a header at `args[1]`.
#[inline]
pub unsafe fn send_message(args: Args) -> Option<c_long> {
    let [fd, at, flags, ..] = args;
    if flags & ZEROCOPY != 0 || !may(fd, 1) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        touch_to_read(at, size_of::<msghdr>());
        let header = (at as *const msghdr).read_unaligned();
        let (name, control) = (header.msg_namelen as usize, header.msg_controllen);
        if name.max(control) > ASIDE_BYTES_MAX {
            return None;
        }
        touch_to_read(header.msg_name as c_long, name);
        touch_to_read(header.msg_control as c_long, control);
        match touch_parts(header.msg_iov, header.msg_iovlen) {
            true => answer(made(libc::SYS_sendmsg, args)),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(started.elapsed() >= WAIT_MAX && started.elapsed() < 2 * WAIT_MAX);
        section.end();
    }
}
