//! mmap and its family, in front of the C library's.
//!
//! Served is private anonymous memory that is large enough and asks for nothing special: it is carved out of the heap's addresses, so that a process's
//! mappings stay few. Everything else, and everything that is not in those addresses, goes to the kernel as it was asked. Promises: what was mapped
//! or advised away reads as zeros; parts can be unmapped, protected, grown. Never: puts anything but the heap's pages at the heap's addresses: what
//! asks for that (a file over served memory) is refused.

use crate::mapped::{PAGE_BYTES, Refused, whole};
use crate::runtime::{self, Area};
use crate::{moves, opening, raw, reserved, tls};
use libc::{c_int, c_long, c_void, off_t, size_t};
use std::ops::Range;

/// Of these, one asks for something that the heap does not do.
const SPECIAL: c_int = libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_STACK
    | MAP_32BIT
    | libc::MAP_SHARED;
#[cfg(target_arch = "x86_64")]
const MAP_32BIT: c_int = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const MAP_32BIT: c_int = 0;

fn fail(errno: c_int) -> *mut c_void {
    raw::set_errno(errno);
    libc::MAP_FAILED
}

fn fail_int(errno: c_int) -> c_int {
    raw::set_errno(errno);
    -1
}

/// Calls and jumps reach so far.
const NEAR_BYTES: usize = 4 << 30;

/// Whether a mapping is wanted near the program's code: by who makes code of its own there (V8), and maps files into it. Served memory is elsewhere.
fn is_for_code(at: usize) -> bool {
    // SAFETY: a number that the kernel gave the program at its start.
    let code = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
    at != 0 && code.abs_diff(at) < NEAR_BYTES
}

fn is_servable(len: usize, prot: c_int, flags: c_int, fd: c_int) -> bool {
    let fixed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    len > 0
        && flags & plain == plain
        && flags & (SPECIAL | fixed) == 0
        && prot & libc::PROT_EXEC == 0
        && (fd == -1 || flags & libc::MAP_ANONYMOUS != 0)
}

/// # Safety
/// As mmap's.
unsafe fn map(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if tls::is_inside() {
        // SAFETY: as asked.
        return unsafe { raw::mmap(at, len, prot, flags, fd, offset) };
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
        && runtime::overlaps(at as usize, len)
    {
        return fixed(at as usize, len, prot, flags);
    }
    if is_servable(len, prot, flags, fd)
        && !is_for_code(at as usize)
        && let Some(runtime) = opening::for_mapping(len)
    {
        let _inside = tls::enter_quietly();
        let most = runtime.maps.heap.bytes() / 4 * 3;
        if len > most {
            reserved::say_too_long(len, most);
        } else if at.is_null() || prot != libc::PROT_NONE || !reserved::insists(len) {
            return runtime.maps.map(len, prot).unwrap_or_else(fail);
        }
    }
    // SAFETY: as asked, and not at addresses of ours.
    unsafe { raw::mmap(at, len, prot, flags, fd, offset) }
}

fn fixed(at: usize, len: usize, prot: c_int, flags: c_int) -> *mut c_void {
    let _inside = tls::enter_quietly();
    if len == 0 || !at.is_multiple_of(PAGE_BYTES) {
        return fail(libc::EINVAL);
    }
    let replaces = flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    let plain = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_SHARED == 0;
    let pages = || {
        let (start, len) = whole(at, len)?;
        let area = &runtime::get()?.maps;
        Some((area, area.pages(start, len)?))
    };
    match pages() {
        Some((area, pages)) if plain => area.map_over(pages, prot, replaces).unwrap_or_else(fail),
        // Who asks so can take another place.
        _ if !replaces => fail(libc::EEXIST),
        _ => fail(libc::ENOMEM),
    }
}

/// As mmap(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the program's promise.
    unsafe { map(at, len, prot, flags, fd, offset) }
}

/// As mmap(2), where file offsets had 32 bits.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the program's promise.
    unsafe { map(at, len, prot, flags, fd, offset) }
}

/// What a failure ends: of mprotect all that comes behind it; of madvise nothing, where it says that something is not mapped.
#[derive(PartialEq)]
enum Behind {
    Stays,
    IsDone,
}

/// Calls `ours` with the pages of a range that are the heap's, and `theirs` with the rest of it.
fn split(
    start: usize,
    len: usize,
    behind: Behind,
    ours: impl Fn(&Area, Range<u32>) -> Result<(), Refused>,
    theirs: impl Fn(*mut c_void, usize) -> c_int,
) -> c_int {
    let asked = || theirs(start as *mut c_void, len);
    if tls::is_inside() || !runtime::overlaps(start, len) {
        return asked();
    }
    let _inside = tls::enter_quietly();
    let (Some((start, whole_len @ 1..)), Some(runtime)) = (whole(start, len), runtime::get())
    else {
        // The kernel says what it says of no pages, and of what are none; it changes nothing.
        return asked();
    };
    let mut parts = [&runtime.malloc, &runtime.maps].map(|area| (area, area.addresses()));
    parts.sort_by_key(|(_, own)| own.start);
    let (mut at, end, mut said) = (start, start + whole_len, Ok(()));
    let mut goes_on = |done: Result<(), Refused>| {
        if done.is_err() {
            said = done;
        }
        done.is_ok() || behind == Behind::IsDone && done == Err(libc::ENOMEM)
    };
    let theirs = |from: usize, to: usize| match from < to {
        true if theirs(from as *mut c_void, to - from) != 0 => Err(raw::errno()),
        _ => Ok(()),
    };
    let all = parts.into_iter().all(|(area, own)| {
        let (from, to) = (own.start.clamp(at, end), own.end.clamp(at, end));
        let before = at;
        at = to.max(at);
        let pages = (from < to).then(|| area.pages(from, to - from)).flatten();
        goes_on(theirs(before, from)) && pages.is_none_or(|pages| goes_on(ours(area, pages)))
    });
    if all {
        goes_on(theirs(at, end));
    }
    match said {
        Ok(()) => 0,
        Err(errno) => fail_int(errno),
    }
}

/// As munmap(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    let ours = |area: &Area, pages| {
        area.unmap(pages);
        Ok(())
    };
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, Behind::Stays, ours, |at, len| unsafe {
        raw::munmap(at, len)
    })
}

/// As the kernel does it: up to the first page that is not mapped.
fn protect(area: &Area, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
    match area.there(pages.clone()).into_iter().next() {
        Some(first) if first == pages => area.protect(pages, prot),
        Some(first) if first.start == pages.start => {
            area.protect(first, prot)?;
            Err(libc::ENOMEM)
        }
        _ => Err(libc::ENOMEM),
    }
}

/// As mprotect(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(at: *mut c_void, len: size_t, prot: c_int) -> c_int {
    let ours = |area: &Area, pages| protect(area, pages, prot);
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, Behind::Stays, ours, |at, len| unsafe {
        raw::mprotect(at, len, prot)
    })
}

/// As pkey_mprotect(2): served memory has the default key only.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    key: c_int,
) -> c_int {
    let ours = |area: &Area, pages| match key {
        -1 | 0 => protect(area, pages, prot),
        _ => Err(libc::EINVAL),
    };
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, Behind::Stays, ours, |at, len| unsafe {
        let args = [at as c_long, len as c_long, prot.into(), key.into(), 0, 0];
        raw::system(libc::SYS_pkey_mprotect, args) as c_int
    })
}

fn advise(area: &Area, pages: Range<u32>, advice: c_int) -> Result<(), Refused> {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_DONTNEED_LOCKED => {
            // SAFETY: the program's mappings, of which it asked for that.
            unsafe { area.heap.clear(pages) }.map_err(|_| libc::ENOMEM)
        }
        // What these ask for is the runtime's to decide, or holds anyway.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_DODUMP
        | libc::MADV_DONTDUMP
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_DOFORK
        | libc::MADV_KEEPONFORK => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

/// Of newer headers.
const MADV_DONTNEED_LOCKED: c_int = 24;

/// As madvise(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let ours = |area: &Area, pages: Range<u32>| {
        let there = area.there(pages.clone());
        for piece in &there {
            advise(area, piece.clone(), advice)?;
        }
        match there.as_slice() {
            [all] if *all == pages => Ok(()),
            _ => Err(libc::ENOMEM),
        }
    };
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, Behind::IsDone, ours, |at, len| unsafe {
        raw::madvise(at, len, advice)
    })
}

/// As mremap(2). The kernel takes a fifth argument with MREMAP_FIXED only; C's way of passing it is that of the others.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let to_ours = flags & libc::MREMAP_FIXED != 0 && runtime::overlaps(to as usize, new_len);
    let from_ours = runtime::overlaps(at as usize, old_len.max(1));
    if tls::is_inside() || !(to_ours || from_ours) {
        // SAFETY: the program's promise; not at addresses of ours.
        return unsafe { raw::mremap(at, old_len, new_len, flags, to) };
    }
    let _inside = tls::enter_quietly();
    if !from_ours {
        // Of other memory into served memory.
        return fail(libc::EINVAL);
    }
    moves::remap(at as usize, old_len, new_len, flags, to as usize).unwrap_or_else(fail)
}

/// Whether a range may be locked in DRAM: served memory is not.
fn may_lock(at: *const c_void, len: usize) -> bool {
    tls::is_inside() || !runtime::overlaps(at as usize, len)
}

/// As mlock(2); of served memory it is refused, as beyond the limit of locked memory.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(at: *const c_void, len: size_t) -> c_int {
    match may_lock(at, len) {
        // SAFETY: the program's promise.
        true => unsafe {
            raw::system(libc::SYS_mlock, [at as c_long, len as c_long, 0, 0, 0, 0]) as c_int
        },
        false => fail_int(libc::ENOMEM),
    }
}

/// As mlock2(2), likewise.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(at: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    match may_lock(at, len) {
        // SAFETY: the program's promise.
        true => unsafe {
            raw::system(
                libc::SYS_mlock2,
                [at as c_long, len as c_long, flags.into(), 0, 0, 0],
            ) as c_int
        },
        false => fail_int(libc::ENOMEM),
    }
}

/// As mlockall(2), which is refused in a process that is served: all of its memory cannot be in DRAM.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    match opening::is_asked_for() && !tls::is_inside() {
        // SAFETY: locks memory, which changes nothing else.
        false => unsafe { raw::system(libc::SYS_mlockall, [flags.into(), 0, 0, 0, 0, 0]) as c_int },
        true => fail_int(libc::ENOMEM),
    }
}
