//! A dispatched call: what of its memory is served is copied, to or from memory that is always there, and the kernel gets that.
//!
//! Long transfers go piece by piece, as the kernel itself may cut them; what is one whole, as a datagram is, or a request of /dev/fuse, goes at once, up to [`WHOLE_BYTES_MAX`]. Promises: the answer
//! is the kernel's; a thread keeps at most [`BUFFERS_MAX`] buffers of [`BUFFER_BYTES`], whatever its handlers of signals do, and what is longer for the call alone. Never: asks any malloc.

use super::arguments::{CALL_BYTES_MAX, error, is_served, is_too_long};
use super::brought::touched;
use super::files::{Next, is_whole, read_at_once};
use super::memory::{self, Bytes, Piece, Way};
use super::{PAGE_BYTES, own};
use crate::raw;
use libc::c_long;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

type Args = [c_long; 6];

/// What a call has on its own stack.
pub const SMALL_BYTES: usize = 4096;
/// A buffer of a thread: a long transfer's piece, and a vector beside it.
pub const BUFFER_BYTES: usize = PIECE_BYTES + (32 << 10);
/// Copied at a time.
pub const PIECE_BYTES: usize = 256 << 10;
/// Copied at a time of what is one whole: in memory that a call which waits has touched none of yet, and that is given back at its end. libfuse asks for 1 MiB and a page.
pub const WHOLE_BYTES_MAX: usize = (4 << 20) + (64 << 10);
/// Beside what is copied, a frame of its own length has this for vectors, names and control data.
const BESIDE_BYTES: usize = 64 << 10;
/// Buffers of a thread: calls that are under way in it at a time, each in a handler of a signal that came in the one before.
pub const BUFFERS_MAX: usize = 4;
/// What is taken begins at a multiple of this.
const ALIGN_BYTES: usize = 16;
/// What devices transfer directly.
const SECTOR_BYTES: usize = 512;
/// The longest text that the kernel takes, and its zero.
const TEXT_BYTES_MAX: usize = 4096;

/// A thread's buffers.
#[derive(Default)]
pub struct Buffers([Buffer; BUFFERS_MAX]);

impl Buffers {
    /// Its thread has ended.
    pub fn free(&mut self) {
        self.0
            .iter_mut()
            .for_each(|buffer| *buffer.stack.get_mut() = 0);
    }
}

struct Buffer {
    at: *mut u8,
    /// Where the stack was of the call that has it; 0: nobody has. A signal's handler may come between a look at it and its taking, and go over to another stack.
    stack: AtomicUsize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer {
            at: std::ptr::null_mut(),
            stack: AtomicUsize::new(0),
        }
    }
}

impl Buffer {
    /// Takes it from who had its frame at `stack`, for one at `here`.
    fn is_taken(&self, stack: usize, here: usize) -> bool {
        let relaxed = Ordering::Relaxed;
        let taken = self.stack.compare_exchange(stack, here, relaxed, relaxed);
        taken.is_ok()
    }
}

/// What a call copies through.
pub struct Frame<'a> {
    small: *mut u8,
    _small: PhantomData<&'a mut Small>,
    used: usize,
    large: *mut u8,
    large_bytes: usize,
    large_used: usize,
    /// Of what is copied, so much at a time.
    piece_bytes: usize,
    place: usize,
}

/// How well what takes the place of so many bytes must be aligned.
pub fn align_of(named: usize, bytes: usize) -> usize {
    let both = named | bytes;
    [PAGE_BYTES, SECTOR_BYTES]
        .into_iter()
        .find(|align| bytes > 0 && both.is_multiple_of(*align))
        .unwrap_or(ALIGN_BYTES)
}

/// What a call has on its own stack, aligned as direct reads and writes of sectors want it. Beside the frame and not in it: what a compiler sets a part of to zero it
/// may set all of, and did, 4 KiB at each call.
#[repr(C, align(512))]
pub struct Small(MaybeUninit<[u8; SMALL_BYTES]>);

impl Small {
    #[inline]
    pub fn new() -> Small {
        Small(MaybeUninit::uninit())
    }
}

impl<'a> Frame<'a> {
    #[inline]
    pub fn new(small: &'a mut Small) -> Frame<'a> {
        Frame {
            small: small.0.as_mut_ptr().cast(),
            _small: PhantomData,
            used: 0,
            large: std::ptr::null_mut(),
            large_bytes: BUFFER_BYTES,
            large_used: 0,
            piece_bytes: PIECE_BYTES,
            place: BUFFERS_MAX,
        }
    }

    /// For so many bytes to or from a file, before anything is taken: where they are more than a piece, and one whole, they have a mapping of this frame's own.
    #[inline]
    pub fn make_room(&mut self, fd: c_long, bytes: usize) {
        if bytes > PIECE_BYTES && is_whole(fd) {
            self.make_longer(bytes.min(WHOLE_BYTES_MAX));
        }
    }

    #[cold]
    fn make_longer(&mut self, piece_bytes: usize) {
        let bytes = piece_bytes + BESIDE_BYTES;
        let at = raw::map_zeros(bytes);
        // Where there is none it goes piece by piece.
        if !at.is_null() {
            (self.large, self.large_bytes, self.piece_bytes) = (at, bytes, piece_bytes);
        }
    }

    /// How much is copied at a time.
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Room for so many bytes, until the frame ends.
    pub fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        self.take_aligned(bytes, ALIGN_BYTES)
    }

    /// The same for what takes the place of `named`: aligned as well as that, as far as direct transfers ask for it.
    pub fn take_for(&mut self, named: usize, bytes: usize) -> Option<*mut u8> {
        self.take_aligned(bytes, align_of(named, bytes))
    }

    /// Room at a multiple of a power of two up to a page.
    pub fn take_aligned(&mut self, bytes: usize, align: usize) -> Option<*mut u8> {
        let from = self.used.next_multiple_of(align);
        if align <= SECTOR_BYTES && bytes <= SMALL_BYTES && from + bytes <= SMALL_BYTES {
            self.used = from + bytes;
            // SAFETY: within the array.
            return Some(unsafe { self.small.add(from) });
        }
        if self.large.is_null() && !self.take_buffer() {
            return None;
        }
        let from = self.large_used.next_multiple_of(align);
        if from + bytes > self.large_bytes {
            return None;
        }
        self.large_used = from + bytes;
        // SAFETY: within the buffer.
        Some(unsafe { self.large.add(from) })
    }

    /// Bytes that [`take_aligned`](Frame::take_aligned) still has in one.
    pub fn left(&self, align: usize) -> usize {
        self.large_bytes
            .saturating_sub(self.large_used.next_multiple_of(align))
    }

    #[cold]
    fn take_buffer(&mut self) -> bool {
        let Some(thread) = own() else { return false };
        let here = (&raw const *self) as usize;
        // One that nobody has before one that seems left: a handler may have gone over to another stack with a call under way on this one (coroutines that are preempted).
        for left in [false, true] {
            for place in 0..BUFFERS_MAX {
                let stack = thread.buffers.0[place].stack.load(Ordering::Relaxed);
                let may = stack == 0 || left && thread.has_left(stack, here);
                if may && thread.buffers.0[place].is_taken(stack, here) {
                    return self.has_taken(place, &mut thread.buffers.0[place]);
                }
            }
        }
        // Calls that were left by jumps from frames above this one cannot be told from those that go on.
        self.large = raw::map_zeros(BUFFER_BYTES);
        !self.large.is_null()
    }

    fn has_taken(&mut self, place: usize, buffer: &mut Buffer) -> bool {
        if buffer.at.is_null() {
            buffer.at = raw::map_zeros(BUFFER_BYTES);
        }
        if buffer.at.is_null() {
            *buffer.stack.get_mut() = 0;
            return false;
        }
        (self.large, self.place) = (buffer.at, place);
        true
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.place < BUFFERS_MAX {
            if let Some(thread) = own() {
                *thread.buffers.0[self.place].stack.get_mut() = 0;
            }
        } else if !self.large.is_null() {
            // SAFETY: a mapping of this frame's own.
            unsafe { raw::munmap(self.large.cast(), self.large_bytes) };
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

/// What a piece of a call came to.
#[derive(Clone, Copy)]
struct Copied {
    to: *mut u8,
    from: *mut u8,
    bytes: usize,
    piece: Piece,
}

/// Bytes of a piece of a call, without looking at more than it takes; of what the answer cuts not more than are copied at a time.
unsafe fn bytes_of(piece: &Piece, args: &Args) -> usize {
    let from = args[usize::from(piece.arg)] as *const u8;
    let number_of = |arg: u8| args[usize::from(arg)].max(0) as usize & 0x7fff_ffff;
    let cut = |count: usize, by: u32| count.saturating_mul(by as usize).min(PIECE_BYTES);
    // SAFETY: the caller's promise: what the call takes is there.
    unsafe {
        match piece.bytes {
            Bytes::Fixed(bytes) => bytes as usize,
            Bytes::Times(arg, 0) => memory::of_set(args[usize::from(arg)]),
            Bytes::Times(arg, by) => number_of(arg).saturating_mul(by as usize),
            Bytes::Answered(arg, by) => cut(args[usize::from(arg)] as usize, by),
            Bytes::Counted(arg, by) => cut(args[usize::from(arg)] as i32 as usize, by),
            Bytes::Message(arg) => number_of(arg) + size_of::<c_long>(),
            Bytes::Polled(arg) => number_of(arg) * size_of::<libc::pollfd>(),
            Bytes::Ioctl => memory::of_ioctl(args[1]).unwrap_or(0),
            Bytes::Text => text_bytes(from),
            // Where it begins there is a page; what is behind that may be nobody's.
            Bytes::Page => text_bytes(from).max(PAGE_BYTES - from as usize % PAGE_BYTES),
        }
    }
}

/// A call whose memory its arguments name.
pub unsafe fn flat(number: c_long, args: Args, pieces: &[Piece]) -> c_long {
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    let mut now = args;
    let mut copied: [Option<Copied>; 6] = [None; 6];
    for (piece, copied) in pieces.iter().zip(&mut copied) {
        let named = args[usize::from(piece.arg)];
        if !is_served(named) {
            continue;
        }
        if let Bytes::Counted(arg, _) = piece.bytes
            && (args[usize::from(arg)] as i32) < 0
        {
            continue;
        }
        let from = named as *mut u8;
        // SAFETY: the program's promise: what the call takes is there.
        let bytes = unsafe { bytes_of(piece, &args) };
        let room = match piece.bytes {
            Bytes::Page => PAGE_BYTES,
            _ => bytes,
        };
        let Some(to) = frame.take(room) else {
            // SAFETY: the program's promise.
            return unsafe { touched(number, args) };
        };
        // SAFETY: both have so many bytes.
        unsafe {
            // What a call does not write stays what it was.
            if piece.way != Way::Out || piece.bytes.answered().is_none() {
                copy(to, from, bytes);
            }
            to.add(bytes).write_bytes(0, room - bytes);
        }
        now[usize::from(piece.arg)] = to as c_long;
        if let Some((arg, by)) = piece.bytes.answered() {
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
            (_, Bytes::Answered(_, by) | Bytes::Counted(_, by)) => {
                (said.max(0) as usize * by as usize).min(bytes)
            }
            (Way::Out, _) if said < 0 => 0,
            (Way::Out, Bytes::Message(_)) => (said as usize + size_of::<c_long>()).min(bytes),
            _ => bytes,
        };
        // SAFETY: as above.
        unsafe {
            match piece.bytes {
                Bytes::Polled(_) => put_back_seen(from.cast(), to.cast(), back),
                _ => put_back(from, to, back, piece.bytes == Bytes::Ioctl),
            }
        }
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

/// Copies what poll saw: what it was asked for may have been changed by another thread since.
unsafe fn put_back_seen(to: *mut libc::pollfd, from: *const libc::pollfd, bytes: usize) {
    for nth in 0..bytes / size_of::<libc::pollfd>() {
        // SAFETY: the caller's promise: both have so many bytes, wherever they lie.
        unsafe {
            let seen = (&raw const (*from.add(nth)).revents).read_unaligned();
            (&raw mut (*to.add(nth)).revents).write_unaligned(seen);
        }
    }
}

/// Bytes of a text with its zero, as far as the kernel looks.
pub unsafe fn text_bytes(at: *const u8) -> usize {
    // SAFETY: the program's promise: it ends in a zero, unless it is longer than any may be.
    let is_end = |n: &usize| unsafe { at.add(*n).read() } == 0;
    (0..TEXT_BYTES_MAX)
        .find(is_end)
        .map_or(TEXT_BYTES_MAX, |n| n + 1)
}

/// A call that writes to one piece of memory, of which the answer says how much: `at` names it, its length is behind, and where in the file it begins stands at `offset`.
pub unsafe fn read(
    number: c_long,
    args: Args,
    at: usize,
    offset: Option<usize>,
    next_piece: impl Fn(&Args) -> Next,
) -> c_long {
    let (to, len) = (args[at] as *mut u8, args[at + 1] as usize);
    if is_too_long(len) && number != libc::SYS_recvfrom {
        // SAFETY: the program's promise.
        return unsafe { raw::call(number, args) };
    }
    let len = len.min(CALL_BYTES_MAX);
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    // Noise (getrandom) is of no file.
    if at > 0 {
        frame.make_room(args[0], len);
    }
    let piece = len.min(frame.piece_bytes());
    let Some(from) = frame.take_for(to as usize, piece) else {
        // To try it where it lies would be to lose what came, if a page of it is not there.
        return error(libc::ENOMEM);
    };
    let (mut done, mut next) = (0, Next::Same);
    loop {
        let step = piece.min(len - done);
        let mut now = args;
        (now[at], now[at + 1]) = (from as c_long, step as c_long);
        if let Some(offset) = offset {
            now[offset] += done as c_long;
        }
        let mut part = libc::iovec {
            iov_base: from.cast(),
            iov_len: step,
        };
        // SAFETY: as asked, with a piece of so many bytes.
        let got = unsafe {
            match next {
                Next::Same => raw::call(number, now),
                _ => read_at_once(next, args[0], &mut part, 1),
            }
        };
        if got <= 0 {
            return if done > 0 { done as c_long } else { got };
        }
        // SAFETY: the program's promise: `len` bytes are there.
        unsafe { copy(to.add(done), from, (got as usize).min(step)) };
        done += got as usize;
        if (got as usize) < step || done >= len {
            return done as c_long;
        }
        next = next_piece(&args);
        if next == Next::Ends {
            return done as c_long;
        }
    }
}

/// The same for one that reads it.
pub unsafe fn write(number: c_long, args: Args, at: usize, offset: Option<usize>) -> c_long {
    let (from, len) = (args[at] as *const u8, args[at + 1] as usize);
    if is_too_long(len) && number != libc::SYS_sendto {
        // SAFETY: the program's promise.
        return unsafe { raw::call(number, args) };
    }
    let len = len.min(CALL_BYTES_MAX);
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    frame.make_room(args[0], len);
    let piece = len.min(frame.piece_bytes());
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
