//! io_uring's and the kernel's older asynchronous requests, as far as they name memory that the kernel keeps beyond a call.
//!
//! There the device, or the kernel, has the page itself: when it leaves DRAM, what comes later goes to a page that the program does not have any more. Promises: once the program makes
//! an io_uring, pages that a device has stay (`vm`'s `aside`), where the kernel can tell; a direct read
//! of the older kind into served memory is right: it is done twice, the first time by way of other memory, so that what may miss its page is there already;
//! buffers and rings that io_uring would keep for good are refused with ENOMEM, as beyond the limit of locked memory, and a line says why. Never: sees
//! what is handed in without the C library's or liburing's functions.

use crate::{direct, dispatch, next, raw, runtime, tls};
use libc::{c_int, c_long, c_uint, c_void, iovec, size_t};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A request of the older kind, as the kernel has it.
#[repr(C)]
pub struct Iocb {
    data: u64,
    key_and_flags: u64,
    operation: u16,
    priority: i16,
    fd: u32,
    at: u64,
    len: u64,
    offset: i64,
    _rest: [u64; 2],
}

const PREAD: u16 = 0;
const PREADV: u16 = 7;

/// Reads of these requests that need it are done once more, before.
///
/// # Safety
/// As io_submit's.
pub unsafe fn before_submit(count: c_long, requests: *const *const Iocb) {
    if runtime::get().is_none() || tls::is_inside() || requests.is_null() {
        return;
    }
    let errno = raw::errno();
    for n in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program's promise: so many pointers to requests, which name memory of its own. What a read answers, the kernel's own will answer.
        unsafe {
            let Some(request) = requests.add(n).read().as_ref() else {
                break;
            };
            let (fd, at) = (request.fd as c_int, request.at as *mut c_void);
            match request.operation {
                PREAD => direct::read_if_direct(fd, at, request.len as usize, request.offset),
                PREADV => {
                    direct::read_parts_if_direct(
                        fd,
                        at.cast(),
                        request.len as c_int,
                        request.offset,
                    );
                }
                _ => {}
            }
        }
    }
    raw::set_errno(errno);
}

/// libaio's function: it answers a number of an error as a negative one.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_submit(
    context: *mut c_void,
    count: c_long,
    requests: *const *const Iocb,
) -> c_int {
    let errno = raw::errno();
    // SAFETY: the program's promise.
    let said = unsafe {
        before_submit(count, requests);
        let args = [context as _, count, requests as _, 0, 0, 0];
        raw::system(libc::SYS_io_submit, args)
    };
    let said = match said {
        -1 => -raw::errno(),
        taken => taken as c_int,
    };
    raw::set_errno(errno);
    said
}

/// Numbers of what io_uring_register does, and a mark on them.
const REGISTER_BUFFERS: c_long = 0;
const REGISTER_BUFFERS2: c_long = 15;
const REGISTER_BUFFERS_UPDATE: c_long = 16;
const REGISTER_BUFFER_RING: c_long = 22;
const OF_REGISTERED_RING: c_long = 1 << 31;
/// A ring of buffers has so many bytes for each.
const BUFFER_BYTES: usize = 16;
/// In the flags of a new ring: it lies in memory of the program's.
const SETUP_NO_MMAP: u32 = 1 << 14;
/// Buffers that one call may register, and more than that.
const BUFFERS_MAX: usize = 1 << 16;

/// What the calls with tags have.
#[repr(C)]
struct Tagged {
    count: u32,
    flags: u32,
    _reserved: u64,
    parts: *const iovec,
    tags: u64,
}

/// The same for a change of some.
#[repr(C)]
struct Update {
    first: u32,
    _reserved: u32,
    parts: *const iovec,
    tags: u64,
    count: u32,
    _rest: u32,
}

/// A ring of buffers.
#[repr(C)]
pub struct BufferRing {
    at: u64,
    count: u32,
    _group_and_flags: u32,
}

/// What a new ring is asked for with, as far as it is looked at.
#[repr(C)]
struct Setup {
    _sizes: [u32; 2],
    flags: u32,
    _until_queue: [u32; 7],
    _queue: [u32; 8],
    queue_at: u64,
    _completions: [u32; 8],
    completions_at: u64,
}

/// Whether none of these is served memory; else it is said why not.
unsafe fn may_keep(parts: *const iovec, count: usize) -> bool {
    if runtime::get().is_none() || tls::is_inside() || parts.is_null() || count > BUFFERS_MAX {
        return true;
    }
    // SAFETY: the program's promise: so many of them.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let is_served = |part: &iovec| runtime::overlaps(part.iov_base as usize, part.iov_len);
    !parts.iter().any(is_served) || refuse()
}

/// Says once why, and answers false.
fn refuse() -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "buffers for io_uring to keep (io_uring_register) in served memory are refused with ENOMEM: pages of it leave DRAM, and the kernel would go on with \
             others; buffers from mmap with MAP_SHARED or MAP_STACK are possible"
        ));
    }
    raw::set_errno(libc::ENOMEM);
    false
}

/// Whether io_uring_register may be called with these.
///
/// # Safety
/// As its own.
pub unsafe fn may_register(operation: c_long, arg: c_long, count: c_long) -> bool {
    if arg == 0 {
        return true;
    }
    // SAFETY: the program's promise: what the operation takes.
    unsafe {
        match operation & 0xffff_ffff & !OF_REGISTERED_RING {
            REGISTER_BUFFERS => may_keep(arg as *const iovec, count as u32 as usize),
            REGISTER_BUFFERS2 => {
                let tagged = (arg as *const Tagged).read_unaligned();
                may_keep(tagged.parts, tagged.count as usize)
            }
            REGISTER_BUFFERS_UPDATE => {
                let update = (arg as *const Update).read_unaligned();
                may_keep(update.parts, update.count as usize)
            }
            REGISTER_BUFFER_RING => may_keep_ring(arg as *const BufferRing),
            _ => true,
        }
    }
}

unsafe fn may_keep_ring(ring: *const BufferRing) -> bool {
    // SAFETY: the program's promise.
    let ring = unsafe { ring.read_unaligned() };
    let bytes = ring.count as usize * BUFFER_BYTES;
    tls::is_inside() || !runtime::overlaps(ring.at as usize, bytes) || refuse()
}

/// Whether the program has made an io_uring, or is about to; so it is in its forks' children, which have them too.
static MADE: AtomicBool = AtomicBool::new(false);

/// A ring is about to be made: from now on devices write to served memory.
fn will_be_made() {
    if dispatch::is_on() && !dispatch::give_up() {
        // It will be refused.
        return;
    }
    if tls::is_inside() || MADE.swap(true, Ordering::SeqCst) {
        return;
    }
    // Either this thread sees the runtime, or who publishes it sees that there is a ring.
    fence(Ordering::SeqCst);
    tell_runtime();
}

/// After the runtime was published: it is told of rings that were made before.
pub fn runtime_is_there() {
    fence(Ordering::SeqCst);
    if MADE.load(Ordering::SeqCst) {
        tell_runtime();
    }
}

fn tell_runtime() {
    if let Some(runtime) = runtime::get()
        && !runtime.memory.devices_write()
    {
        raw::say(format_args!(
            "this kernel cannot tell which pages a device has (Linux 6.8 can): what io_uring reads from files with O_DIRECT into served memory may be lost; \
             buffers from mmap with MAP_SHARED or MAP_STACK are possible"
        ));
    }
}

/// Whether a new ring may be made: one in served memory may not.
///
/// # Safety
/// As io_uring_setup's.
pub unsafe fn may_set_up(setup: c_long) -> bool {
    will_be_made();
    if setup == 0 || tls::is_inside() {
        return true;
    }
    // SAFETY: the program's promise.
    let setup = unsafe { (setup as *const Setup).read_unaligned() };
    let is_served = |at: u64| runtime::overlaps(at as usize, 1);
    setup.flags & SETUP_NO_MMAP == 0
        || !(is_served(setup.queue_at) || is_served(setup.completions_at))
        || refuse()
}

/// The same for a ring in memory that is named: whether it may be there.
fn will_lie_at(memory: *const c_void, bytes: size_t) -> bool {
    will_be_made();
    tls::is_inside() || !runtime::overlaps(memory as usize, bytes.max(1)) || refuse()
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_queue_init(
    entries: c_uint,
    ring: *mut c_void,
    flags: c_uint,
) -> c_int {
    will_be_made();
    // SAFETY: the program's promise.
    unsafe { next::io_uring_queue_init(entries, ring, flags) }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    setup: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match may_set_up(setup as c_long) {
            true => next::io_uring_queue_init_params(entries, ring, setup),
            false => -libc::ENOMEM,
        }
    }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut c_void,
    setup: *mut c_void,
    memory: *mut c_void,
    bytes: size_t,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match will_lie_at(memory, bytes) {
            true => next::io_uring_queue_init_mem(entries, ring, setup, memory, bytes),
            false => -libc::ENOMEM,
        }
    }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_setup(entries: c_uint, setup: *mut c_void) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match may_set_up(setup as c_long) {
            true => next::io_uring_setup(entries, setup),
            false => -libc::ENOMEM,
        }
    }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_register_buffers(
    ring: *mut c_void,
    parts: *const iovec,
    count: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match may_keep(parts, count as usize) {
            true => next::io_uring_register_buffers(ring, parts, count),
            false => -libc::ENOMEM,
        }
    }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_register_buffers_tags(
    ring: *mut c_void,
    parts: *const iovec,
    tags: *const u64,
    count: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match may_keep(parts, count as usize) {
            true => next::io_uring_register_buffers_tags(ring, parts, tags, count),
            false => -libc::ENOMEM,
        }
    }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_register_buffers_update_tag(
    ring: *mut c_void,
    first: c_uint,
    parts: *const iovec,
    tags: *const u64,
    count: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match may_keep(parts, count as usize) {
            true => next::io_uring_register_buffers_update_tag(ring, first, parts, tags, count),
            false => -libc::ENOMEM,
        }
    }
}

/// As liburing's.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_register_buf_ring(
    ring: *mut c_void,
    buffers: *const BufferRing,
    flags: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        match buffers.is_null() || may_keep_ring(buffers) {
            true => next::io_uring_register_buf_ring(ring, buffers.cast(), flags),
            false => -libc::ENOMEM,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structures_lie_as_the_kernels_do() {
        assert_eq!((size_of::<Iocb>(), offset_of!(Iocb, at)), (64, 24));
        assert_eq!(offset_of!(Iocb, offset), 40);
        assert_eq!((size_of::<Tagged>(), offset_of!(Tagged, parts)), (32, 16));
        assert_eq!((size_of::<Update>(), offset_of!(Update, count)), (32, 24));
        assert_eq!((size_of::<Setup>(), offset_of!(Setup, queue_at)), (120, 72));
    }
}
