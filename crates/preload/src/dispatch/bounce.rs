//! A dispatched call: what of its memory is served is copied, to or from memory that is always there, and the kernel gets that.
//!
//! Long transfers go piece by piece, as the kernel itself may cut them. Promises: the answer is the kernel's; a thread has at most [`BUFFERS_MAX`] buffers of
//! [`BUFFER_BYTES`], whatever its handlers of signals do. Never: asks any malloc.

use super::memory::{self, Bytes, Piece, Way};
use super::{PAGE_BYTES, own, process, signals, vectors};
use crate::{raw, runtime, sandbox};
use libc::c_long;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

type Args = [c_long; 6];

/// What a call has on its own stack.
const SMALL_BYTES: usize = 4096;
/// A buffer of a thread: a long transfer's piece, and a vector beside it.
pub const BUFFER_BYTES: usize = PIECE_BYTES + (32 << 10);
/// Copied at a time.
pub const PIECE_BYTES: usize = 256 << 10;
/// Buffers of a thread: calls that are under way in it at a time, each in a handler of a signal that came in the one before.
pub const BUFFERS_MAX: usize = 4;
/// What is taken begins at a multiple of this.
const ALIGN_BYTES: usize = 16;
/// What devices transfer directly.
const SECTOR_BYTES: usize = 512;
/// The longest text that the kernel takes, and its zero.
const TEXT_BYTES_MAX: usize = 4096;
/// How often a call that is not known is tried again.
const TRIES_MAX: u32 = 64;
/// Of one argument of such a call, so much is brought in before.
const TOUCHED_BYTES_MAX: usize = 64 << 10;

fn error(number: i32) -> c_long {
    -c_long::from(number)
}

/// Whether it is an address of served memory.
#[inline]
pub fn is_served(address: c_long) -> bool {
    runtime::has(address as usize)
}

/// A thread's buffers.
#[derive(Default)]
pub struct Buffers([Buffer; BUFFERS_MAX]);

struct Buffer {
    at: *mut u8,
    /// Where the stack was of the call that has it; 0: nobody has.
    stack: usize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer {
            at: std::ptr::null_mut(),
            stack: 0,
        }
    }
}

/// What a call copies through.
pub struct Frame {
    small: Aligned,
    used: usize,
    large: *mut u8,
    large_used: usize,
    place: usize,
}

/// How well what takes the place of so many bytes must be aligned.
pub fn align_of(named: usize, bytes: usize) -> usize {
    let both = named | bytes;
    [PAGE_BYTES, SECTOR_BYTES].into_iter().find(|align| bytes > 0 && both % align == 0).unwrap_or(ALIGN_BYTES)
}

/// As direct reads and writes of sectors want it.
#[repr(C, align(512))]
struct Aligned(MaybeUninit<[u8; SMALL_BYTES]>);

impl Frame {
    #[inline]
    pub fn new() -> Frame {
        Frame {
            small: Aligned(MaybeUninit::uninit()),
            used: 0,
            large: std::ptr::null_mut(),
            large_used: 0,
            place: BUFFERS_MAX,
        }
    }

    /// Room for so many bytes; the frame must not move from then on.
    pub fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        self.take_aligned(bytes, ALIGN_BYTES)
    }

    /// The same for what takes the place of `named`: aligned as well as that, as far as direct transfers ask for it.
    pub fn take_for(&mut self, named: usize, bytes: usize) -> Option<*mut u8> {
        self.take_aligned(bytes, align_of(named, bytes))
    }

    fn take_aligned(&mut self, bytes: usize, align: usize) -> Option<*mut u8> {
        let from = self.used.next_multiple_of(align);
        if align <= SECTOR_BYTES && bytes <= SMALL_BYTES && from + bytes <= SMALL_BYTES {
            self.used = from + bytes;
            // SAFETY: within the array.
            return Some(unsafe { self.small.0.as_mut_ptr().cast::<u8>().add(from) });
        }
        if self.large.is_null() && !self.take_buffer() {
            return None;
        }
        let from = self.large_used.next_multiple_of(align);
        if from + bytes > BUFFER_BYTES {
            return None;
        }
        self.large_used = from + bytes;
        // SAFETY: within the buffer.
        Some(unsafe { self.large.add(from) })
    }

    /// Bytes that [`take`](Frame::take) still has in one, if they need no better alignment.
    pub fn left(&self) -> usize {
        BUFFER_BYTES - self.large_used.next_multiple_of(ALIGN_BYTES)
    }

    #[cold]
    fn take_buffer(&mut self) -> bool {
        let Some(thread) = own() else { return false };
        let here = (&raw const *self) as usize;
        let on_signals = |stack: usize| stack.wrapping_sub(thread.stack as usize) < super::STACK_BYTES;
        for (place, buffer) in thread.buffers.0.iter_mut().enumerate() {
            // A call whose stack is gone was left by a jump.
            let left = buffer.stack <= here && on_signals(buffer.stack) == on_signals(here);
            if buffer.stack != 0 && !left {
                continue;
            }
            buffer.stack = here;
            if buffer.at.is_null() {
                buffer.at = raw::map_zeros(BUFFER_BYTES);
            }
            if buffer.at.is_null() {
                buffer.stack = 0;
                return false;
            }
            (self.large, self.place) = (buffer.at, place);
            return true;
        }
        false
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        if let Some(thread) = own().filter(|_| self.place < BUFFERS_MAX) {
            thread.buffers.0[self.place].stack = 0;
        }
    }
}

/// Copies bytes of which either side may fault.
///
/// # Safety
/// Both sides have so many.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise; they do not overlap, since one is a frame's.
    unsafe { to.copy_from_nonoverlapping(from, bytes) };
}

/// Any call of the program, as the kernel would answer it.
///
/// # Safety
/// The program's own promises for it.
#[inline]
pub unsafe fn call(number: c_long, args: Args) -> c_long {
    // SAFETY: the caller's promise, all along.
    unsafe {
        match number {
            libc::SYS_rt_sigaction => signals::action(args),
            libc::SYS_rt_sigprocmask => signals::procmask(args),
            libc::SYS_sigaltstack => signals::altstack(args),
            libc::SYS_rt_sigsuspend => masked(number, args, 0),
            libc::SYS_ppoll => masked(number, args, 3),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => masked(number, args, 4),
            libc::SYS_pselect6 => masked_set(args),
            libc::SYS_execve | libc::SYS_execveat => process::exec(number, args),
            libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
                vectors::read(number, args)
            }
            libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => {
                vectors::write(number, args)
            }
            libc::SYS_sendmsg => vectors::send(args),
            libc::SYS_recvmsg => vectors::receive(args),
            libc::SYS_sendmmsg => vectors::send_many(args),
            libc::SYS_recvmmsg => vectors::receive_many(args),
            libc::SYS_process_vm_readv => vectors::of_process(number, args, true),
            libc::SYS_process_vm_writev => vectors::of_process(number, args, false),
            libc::SYS_io_uring_setup | libc::SYS_io_setup => by_kernel(number, args),
            libc::SYS_seccomp if !sandbox::may_filter(args[0], args[1]) => error(libc::EPERM),
            libc::SYS_prctl
                if args[0] == c_long::from(libc::PR_SET_SECCOMP)
                    && !sandbox::may_filter_this_thread() =>
            {
                error(libc::EPERM)
            }
            // It is ours.
            libc::SYS_prctl if args[0] == super::PR_SET_SYSCALL_USER_DISPATCH => error(libc::EINVAL),
            _ => match args.iter().any(|arg| is_served(*arg)) {
                true => served(number, args),
                false => raw::call(number, args),
            },
        }
    }
}

/// A call of which an argument may be served memory.
unsafe fn served(number: c_long, args: Args) -> c_long {
    // SAFETY: the caller's promise.
    unsafe {
        match number {
            libc::SYS_read => read(number, args, 1, None, goes_on_reading),
            libc::SYS_pread64 => read(number, args, 1, Some(3), goes_on_reading),
            libc::SYS_getrandom => read(number, args, 0, None, |_, _| true),
            libc::SYS_recvfrom => receive_from(args),
            libc::SYS_write => write(number, args, 1, None),
            libc::SYS_pwrite64 => write(number, args, 1, Some(3)),
            libc::SYS_sendto => send_to(args),
            libc::SYS_futex => futex(args),
            libc::SYS_fcntl => fcntl(args),
            libc::SYS_prctl => prctl(args),
            // What the kernel keeps of these is an address, or only names a range of addresses.
            libc::SYS_munmap
            | libc::SYS_mprotect
            | libc::SYS_madvise
            | libc::SYS_mmap
            | libc::SYS_set_robust_list
            | libc::SYS_set_tid_address
            | libc::SYS_brk => raw::call(number, args),
            _ => match memory::of_call(number) {
                Some(pieces) => flat(number, args, pieces),
                None => touched(number, args),
            },
        }
    }
}

/// A call with a mask of signals at one of its arguments.
unsafe fn masked(number: c_long, mut args: Args, at: usize) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        let mask = signals::mask(args[at]);
        if args[at] != 0 {
            args[at] = (&raw const mask) as c_long;
        }
        match args.iter().any(|arg| is_served(*arg)) {
            true => served(number, args),
            false => raw::call(number, args),
        }
    }
}

/// Calls by which devices and threads of the kernel come to have memory, which would meet absent pages there: possible as long as faults can be left to threads.
unsafe fn by_kernel(number: c_long, args: Args) -> c_long {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !super::is_on() || super::give_up() {
        // SAFETY: the program's promise.
        return unsafe { raw::call(number, args) };
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "io_uring and io_setup are refused with ENOSYS while faults are taken in the program's threads; --faults thread has them"
        ));
    }
    error(libc::ENOSYS)
}

/// pselect6, whose mask is behind a pointer more.
unsafe fn masked_set(mut args: Args) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        let mut set = [0; 2];
        let mut mask = 0;
        if args[5] != 0 {
            set = (args[5] as *const [c_long; 2]).read_unaligned();
            mask = signals::mask(set[0]);
            if set[0] != 0 {
                set[0] = (&raw const mask) as c_long;
            }
            args[5] = (&raw const set) as c_long;
        }
        let said = match args.iter().any(|arg| is_served(*arg)) {
            true => served(libc::SYS_pselect6, args),
            false => raw::call(libc::SYS_pselect6, args),
        };
        // Used until here.
        std::hint::black_box((&set, &mask));
        said
    }
}

/// What a piece of a call came to.
#[derive(Clone, Copy)]
struct Copied {
    to: *mut u8,
    from: *mut u8,
    bytes: usize,
    piece: Piece,
}

/// A call whose memory its arguments name.
unsafe fn flat(number: c_long, args: Args, pieces: &[Piece]) -> c_long {
    let mut frame = Frame::new();
    let mut now = args;
    let mut copied: [Option<Copied>; 6] = [None; 6];
    for (piece, copied) in pieces.iter().zip(&mut copied) {
        let named = args[usize::from(piece.arg)];
        if !is_served(named) {
            continue;
        }
        let from = named as *mut u8;
        let number_of = |arg: u8| args[usize::from(arg)].max(0) as usize;
        // SAFETY: the program's promise: what the call takes is there.
        let bytes = unsafe {
            match piece.bytes {
                Bytes::Fixed(bytes) => bytes as usize,
                Bytes::Times(arg, 0) => memory::of_set(args[usize::from(arg)]),
                Bytes::Times(arg, by) | Bytes::Answered(arg, by) => {
                    (number_of(arg) & 0x7fff_ffff).saturating_mul(by as usize)
                }
                Bytes::At(arg) => match args[usize::from(arg)] {
                    0 => 0,
                    at => (at as *const u32).read_unaligned() as usize,
                },
                Bytes::Ioctl => memory::of_ioctl(args[1]),
                Bytes::Text => text_bytes(from),
            }
        };
        // More than any of these calls takes; an answer may be cut.
        let bytes = match piece.bytes {
            Bytes::Answered(..) | Bytes::At(_) => bytes.min(PIECE_BYTES),
            _ => bytes,
        };
        let Some(to) = frame.take(bytes) else {
            // SAFETY: the program's promise.
            return unsafe { touched(number, args) };
        };
        // What a call does not write stays what it was.
        if !matches!(piece.bytes, Bytes::Answered(..)) {
            // SAFETY: both have so many bytes.
            unsafe { copy(to, from, bytes) };
        }
        now[usize::from(piece.arg)] = to as c_long;
        if let Bytes::Answered(arg, by) = piece.bytes {
            now[usize::from(arg)] = (bytes / by as usize) as c_long;
        }
        *copied = Some(Copied {
            to,
            from,
            bytes,
            piece: *piece,
        });
    }
    // SAFETY: as asked, with memory as long.
    let said = unsafe { raw::call(number, now) };
    for Copied {
        to,
        from,
        bytes,
        piece,
    } in copied.into_iter().flatten()
    {
        let back = match (piece.way, piece.bytes) {
            (Way::In, _) => 0,
            (_, Bytes::Answered(_, by)) => (said.max(0) as usize * by as usize).min(bytes),
            (Way::Out, _) if said < 0 => 0,
            _ => bytes,
        };
        // SAFETY: as above.
        unsafe { put_back(from, to, back, piece.bytes == Bytes::Ioctl) };
    }
    said
}

/// Copies what the kernel wrote; of what may be more than it knows, only what differs.
unsafe fn put_back(to: *mut u8, from: *const u8, bytes: usize, differs: bool) {
    // SAFETY: the caller's promise: both have so many bytes.
    unsafe {
        if !differs {
            return copy(to, from, bytes);
        }
        for at in 0..bytes {
            let (old, new) = (to.add(at).read(), from.add(at).read());
            if old != new {
                to.add(at).write(new);
            }
        }
    }
}

/// Bytes of a text with its zero, as far as the kernel looks.
pub unsafe fn text_bytes(at: *const u8) -> usize {
    // SAFETY: the program's promise: it ends in a zero, unless it is longer than any may be.
    let is_end = |n: &usize| unsafe { at.add(*n).read() } == 0;
    (0..TEXT_BYTES_MAX).find(is_end).map_or(TEXT_BYTES_MAX, |n| n + 1)
}

/// Whether a read that got a whole piece goes on with the next: where the kernel would not wait for it.
fn goes_on_reading(args: &Args, _: usize) -> bool {
    is_file(args[0])
}

/// Whether reading does not wait for anybody.
pub fn is_file(fd: c_long) -> bool {
    // SAFETY: room for the answer.
    unsafe {
        let mut status = std::mem::zeroed::<libc::stat>();
        let said = raw::call(libc::SYS_fstat, [fd, (&raw mut status) as c_long, 0, 0, 0, 0]);
        said == 0 && matches!(status.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
    }
}

/// A call that writes to one piece of memory, of which the answer says how much: `at` names it, its length is behind, and where in the file it begins stands at `offset`.
pub unsafe fn read(
    number: c_long,
    args: Args,
    at: usize,
    offset: Option<usize>,
    goes_on: impl Fn(&Args, usize) -> bool,
) -> c_long {
    let (to, len) = (args[at] as *mut u8, args[at + 1] as usize);
    let mut frame = Frame::new();
    let piece = len.min(PIECE_BYTES);
    let Some(from) = frame.take_for(to as usize, piece) else {
        // SAFETY: the program's promise.
        return unsafe { touched(number, args) };
    };
    let mut done = 0;
    loop {
        let step = piece.min(len - done);
        let mut now = args;
        (now[at], now[at + 1]) = (from as c_long, step as c_long);
        if let Some(offset) = offset {
            now[offset] += done as c_long;
        }
        // SAFETY: as asked, with a piece of so many bytes.
        let got = unsafe { raw::call(number, now) };
        if got <= 0 {
            return if done > 0 { done as c_long } else { got };
        }
        // SAFETY: the program's promise: `len` bytes are there.
        unsafe { copy(to.add(done), from, (got as usize).min(step)) };
        done += got as usize;
        if (got as usize) < step || done == len || !goes_on(&args, done) {
            return done as c_long;
        }
    }
}

/// The same for one that reads it.
pub unsafe fn write(number: c_long, args: Args, at: usize, offset: Option<usize>) -> c_long {
    let (from, len) = (args[at] as *const u8, args[at + 1] as usize);
    let mut frame = Frame::new();
    let piece = len.min(PIECE_BYTES);
    let Some(to) = frame.take_for(from as usize, piece) else {
        // SAFETY: the program's promise.
        return unsafe { touched(number, args) };
    };
    let mut done = 0;
    loop {
        let step = piece.min(len - done);
        let mut now = args;
        (now[at], now[at + 1]) = (to as c_long, step as c_long);
        if let Some(offset) = offset {
            now[offset] += done as c_long;
        }
        // SAFETY: the program's promise, and a piece of so many bytes.
        let put = unsafe {
            copy(to, from.add(done), step);
            raw::call(number, now)
        };
        if put < 0 {
            return if done > 0 { done as c_long } else { put };
        }
        done += put as usize;
        if (put as usize) < step || done == len {
            return done as c_long;
        }
    }
}

/// recvfrom: its bytes, and whose they are.
unsafe fn receive_from(args: Args) -> c_long {
    let mut frame = Frame::new();
    let mut now = args;
    // SAFETY: the program's promise.
    unsafe {
        let Some(sender) = Sender::new(&mut frame, &mut now, 4, 5) else {
            return touched(libc::SYS_recvfrom, args);
        };
        let waits_for_all = |args: &Args, _| args[3] & c_long::from(libc::MSG_WAITALL) != 0;
        let said = match is_served(args[1]) {
            true => read(libc::SYS_recvfrom, now, 1, None, waits_for_all),
            false => raw::call(libc::SYS_recvfrom, now),
        };
        sender.put_back(said);
        said
    }
}

/// An address that a call answers, with its length.
pub struct Sender {
    address: *mut u8,
    address_at: *mut u8,
    len: *mut u32,
    len_at: *mut u32,
    room: usize,
}

impl Sender {
    /// Takes its place in a call's arguments; none if there is no room for it.
    pub unsafe fn new(frame: &mut Frame, args: &mut Args, at: usize, len_at: usize) -> Option<Sender> {
        let mut sender = Sender {
            address: std::ptr::null_mut(),
            address_at: args[at] as *mut u8,
            len: std::ptr::null_mut(),
            len_at: args[len_at] as *mut u32,
            room: 0,
        };
        if !(is_served(args[at]) || is_served(args[len_at])) || args[len_at] == 0 {
            return Some(sender);
        }
        // SAFETY: the program's promise.
        unsafe {
            let room = (sender.len_at.read_unaligned() as usize).min(SMALL_BYTES / 4);
            sender.len = frame.take(4)?.cast();
            sender.len.write(room as u32);
            sender.room = room;
            sender.address = frame.take(room)?;
        }
        if args[at] != 0 {
            args[at] = sender.address as c_long;
        }
        args[len_at] = sender.len as c_long;
        Some(sender)
    }

    pub unsafe fn put_back(&self, said: c_long) {
        if said < 0 || self.len.is_null() {
            return;
        }
        // SAFETY: the frame's own, and the program's promise.
        unsafe {
            let len = self.len.read();
            if !self.address_at.is_null() {
                copy(self.address_at, self.address, (len as usize).min(self.room));
            }
            self.len_at.write_unaligned(len);
        }
    }
}

/// sendto: its bytes, and whom they are for.
unsafe fn send_to(args: Args) -> c_long {
    let mut frame = Frame::new();
    let mut now = args;
    // SAFETY: the program's promise.
    unsafe {
        if is_served(args[4]) {
            let bytes = (args[5].max(0) as usize).min(SMALL_BYTES / 4);
            let Some(to) = frame.take(bytes) else {
                return touched(libc::SYS_sendto, args);
            };
            copy(to, args[4] as *const u8, bytes);
            now[4] = to as c_long;
        }
        match is_served(args[1]) {
            true => write(libc::SYS_sendto, now, 1, None),
            false => raw::call(libc::SYS_sendto, now),
        }
    }
}

/// futex: the kernel looks at the word at the call's beginning only, where it is; times are copied.
unsafe fn futex(mut args: Args) -> c_long {
    const WAITS: [c_long; 5] = [0, 6, 9, 11, 13];
    let mut time = [0 as c_long; 2];
    // SAFETY: the program's promise.
    unsafe {
        if WAITS.contains(&(args[1] & 0x7f)) && is_served(args[3]) {
            time = (args[3] as *const [c_long; 2]).read_unaligned();
            args[3] = (&raw const time) as c_long;
        }
        let mut said = error(libc::EFAULT);
        for _ in 0..TRIES_MAX {
            for word in [args[0], args[4]].into_iter().filter(|word| is_served(*word)) {
                touch(word as usize);
            }
            said = raw::call(libc::SYS_futex, args);
            if said != error(libc::EFAULT) {
                break;
            }
        }
        std::hint::black_box(&time);
        said
    }
}

/// fcntl, as far as its argument is memory.
unsafe fn fcntl(args: Args) -> c_long {
    const STRUCTURES: [i32; 10] = [
        libc::F_GETLK,
        libc::F_SETLK,
        libc::F_SETLKW,
        libc::F_OFD_GETLK,
        libc::F_OFD_SETLK,
        libc::F_OFD_SETLKW,
        15,
        16,
        1035,
        1036,
    ];
    let pieces = [Piece {
        arg: 2,
        way: Way::Both,
        bytes: Bytes::Fixed(32),
    }];
    // SAFETY: the program's promise.
    unsafe {
        match STRUCTURES.contains(&(args[1] as i32)) {
            true => flat(libc::SYS_fcntl, args, &pieces),
            false => raw::call(libc::SYS_fcntl, args),
        }
    }
}

/// prctl: names of threads; what else it takes is tried.
unsafe fn prctl(args: Args) -> c_long {
    let piece = |way, bytes| Piece { arg: 1, way, bytes };
    // SAFETY: the program's promise.
    unsafe {
        match args[0] as i32 {
            libc::PR_SET_NAME => flat(libc::SYS_prctl, args, &[piece(Way::In, Bytes::Text)]),
            libc::PR_GET_NAME => flat(libc::SYS_prctl, args, &[piece(Way::Out, Bytes::Fixed(16))]),
            _ => touched(libc::SYS_prctl, args),
        }
    }
}

/// Brings a page in, and makes it writable, since the kernel may write to it.
unsafe fn touch(at: usize) {
    // SAFETY: served memory of the program's, which this does not change; where it is nobody's, the touch is an error of its own. A compiler makes a read of an atomic
    // operation that changes nothing.
    unsafe { std::arch::asm!("lock or byte ptr [{0}], 0", in(reg) at, options(nostack)) };
}

/// A call that is not known, or whose memory is more than can be copied: its pages are brought in, and again if one has left meanwhile.
pub unsafe fn touched(number: c_long, args: Args) -> c_long {
    let mut said = error(libc::EFAULT);
    for _ in 0..TRIES_MAX {
        for (n, arg) in args.iter().enumerate().filter(|(_, arg)| is_served(**arg)) {
            let len = args.get(n + 1).map_or(0, |len| *len as usize);
            let end = *arg as usize + len.clamp(1, TOUCHED_BYTES_MAX);
            let mut at = *arg as usize;
            while at < end && is_served(at as c_long) {
                // SAFETY: the program's promise.
                unsafe { touch(at) };
                at = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            }
        }
        // SAFETY: the program's promise.
        said = unsafe { raw::call(number, args) };
        if said != error(libc::EFAULT) {
            return said;
        }
    }
    said
}
