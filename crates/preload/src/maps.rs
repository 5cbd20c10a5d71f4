//! mmap and its family, in front of the C library's.
//!
//! Served is private anonymous memory that is large enough and asks for nothing special: it is carved out of the heap's addresses, so that a process's
//! mappings stay few. Everything else, and everything that is not in those addresses, goes to the kernel as it was asked. Promises: what was mapped
//! or advised away reads as zeros; parts can be unmapped, protected, grown. Never: puts anything but the heap's pages at the heap's addresses: what
//! asks for that (a file over served memory) is refused.

use crate::mappings::Mappings;
use crate::runtime::{self, Area};
use crate::{opening, raw, reserved, tls};
use libc::{c_int, c_long, c_void, off_t, size_t};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use terrace_vm::heap::Closing;

const PAGE_BYTES: usize = 4096;
const OPEN: i32 = libc::PROT_READ | libc::PROT_WRITE;
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

/// The errno of a refusal.
type Refused = c_int;

impl Area {
    /// The pages of a range of addresses that lies in the heap's altogether.
    fn pages(&self, start: usize, len: usize) -> Option<Range<u32>> {
        let first = self.heap.page_of(start)?;
        let last = self.heap.page_of(start.checked_add(len)?.checked_sub(1)?)?;
        Some(first..last + 1)
    }

    fn at(&self, pages: &Range<u32>) -> (*mut c_void, usize) {
        let len = (pages.end - pages.start) as usize * PAGE_BYTES;
        (self.heap.address_of(pages.start).cast(), len)
    }

    fn map(&self, len: usize, prot: c_int) -> Result<*mut c_void, Refused> {
        let pages = u32::try_from(len.div_ceil(PAGE_BYTES)).map_err(|_| libc::ENOMEM)?;
        // What cannot be touched takes no room until it can.
        let room = prot != libc::PROT_NONE;
        let map = || self.heap.map(pages, 1, room).ok();
        let first = match room {
            true => with_all_room(map),
            false => map(),
        };
        let first = first.ok_or(libc::ENOMEM)?;
        let range = first..first + pages;
        self.mappings().mapped.add(range.clone(), room);
        if prot != OPEN
            && let Err(errno) = self.protect(range.clone(), prot)
        {
            self.unmap(range);
            return Err(errno);
        }
        Ok(self.heap.address_of(first).cast())
    }

    /// Ends the mappings in a range; what is not mapped there stays.
    fn unmap(&self, pages: Range<u32>) {
        let taken = self.mappings().mapped.take(pages);
        for (piece, room) in taken {
            self.open(piece.clone());
            self.heap.unmap(piece, room);
        }
    }

    /// Protections of a range end: it can be read and written.
    fn open(&self, pages: Range<u32>) {
        if self.closed.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut mappings = self.mappings();
        for (piece, _) in mappings.closed.take(pages) {
            let (start, len) = self.at(&piece);
            // SAFETY: addresses of the heap, which are readable and writable unless the program said otherwise.
            if unsafe { raw::mprotect(start, len, OPEN) } != 0 {
                raw::die(format_args!(
                    "pages at {start:?} stay protected: error {}; raise vm.max_map_count",
                    raw::errno()
                ));
            }
        }
        self.count_closed(&mappings);
    }

    /// The same for the allocation at an address, before it is freed or changes its size.
    pub fn open_again(&self, address: usize) {
        if self.closed.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Ok(bytes) = self.heap.usable_bytes(address as *mut u8)
            && let Some(pages) = self.pages(address, bytes)
        {
            self.open(pages);
        }
    }

    /// Counts what is closed, after it changed.
    fn count_closed(&self, mappings: &Mappings) {
        let (mut all, mut unreadable) = (0, 0);
        for (_, prot) in mappings.closed.all() {
            all += 1;
            unreadable += usize::from(is_unreadable(prot));
        }
        self.closed.store(all, Ordering::Release);
        let mut counted = self
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *counted = Closing::new(unreadable);
    }

    /// In the child of a fork: what the program closed is closed in the new mapping too.
    pub fn protect_again(&self) {
        let mappings = self.mappings();
        self.count_closed(&mappings);
        for (piece, prot) in mappings.closed.all() {
            self.heap.end_ahead();
            let (start, len) = self.at(&piece);
            // SAFETY: addresses of the heap, which nobody has touched yet.
            if unsafe { raw::mprotect(start, len, prot) } != 0 {
                raw::die(format_args!("pages at {start:?} cannot be protected"));
            }
        }
    }

    fn protect(&self, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
        self.promise(pages.clone(), prot)?;
        let (start, len) = self.at(&pages);
        let closing = is_unreadable(prot).then(|| Closing::new(1));
        if closing.is_some() {
            // Read past their protection they cost more: they leave first, with nobody writing to them.
            // SAFETY: addresses of the heap, which the program asks to close.
            unsafe { raw::mprotect(start, len, libc::PROT_READ) };
            let taken = self.heap.take_away(pages.clone());
            taken.map_err(|_| libc::ENOMEM)?;
        }
        // What can be written to can be read here.
        let asked = match prot & libc::PROT_WRITE {
            0 => prot,
            _ => prot | libc::PROT_READ,
        };
        let mut mappings = self.mappings();
        // SAFETY: the program asks for it.
        if unsafe { raw::mprotect(start, len, asked) } != 0 {
            return Err(raw::errno());
        }
        drop(mappings.closed.take(pages.clone()));
        if asked != OPEN {
            mappings.closed.add(pages, asked);
        }
        self.count_closed(&mappings);
        Ok(())
    }

    /// Room for pages that were mapped without, when they can be touched from now on.
    fn promise(&self, pages: Range<u32>, prot: c_int) -> Result<(), Refused> {
        if prot == libc::PROT_NONE {
            return Ok(());
        }
        with_all_room(|| self.try_promise(pages.clone()).ok()).ok_or(libc::ENOMEM)
    }

    fn try_promise(&self, pages: Range<u32>) -> Result<(), Refused> {
        let mut mappings = self.mappings();
        for (piece, room) in mappings.mapped.look(pages) {
            if room {
                continue;
            }
            let promised = self.heap.promise_pages(piece.end - piece.start);
            promised.map_err(|_| libc::ENOMEM)?;
            drop(mappings.mapped.take(piece.clone()));
            mappings.mapped.add(piece, true);
        }
        Ok(())
    }

    /// A mapping over mappings, as MAP_FIXED asks: what was there is gone.
    fn map_over(&self, pages: Range<u32>, prot: c_int) -> Result<*mut c_void, Refused> {
        if !self.mappings().mapped.covers(pages.clone()) {
            return Err(libc::ENOMEM);
        }
        self.open(pages.clone());
        let cleared = self.heap.clear(pages.clone());
        cleared.map_err(|_| libc::ENOMEM)?;
        if prot != OPEN {
            self.protect(pages.clone(), prot)?;
        }
        self.promise(pages.clone(), prot)?;
        Ok(self.at(&pages).0)
    }

    fn resize(
        &self,
        pages: Range<u32>,
        new_len: usize,
        may_move: bool,
    ) -> Result<*mut c_void, Refused> {
        let wants = u32::try_from(new_len.div_ceil(PAGE_BYTES)).map_err(|_| libc::ENOMEM)?;
        let has = pages.end - pages.start;
        let mapped = self.mappings().mapped.look(pages.clone());
        let room = match mapped.as_slice() {
            [(piece, room)] if *piece == pages => *room,
            // Of several mappings, or of none.
            _ => return Err(libc::EFAULT),
        };
        if wants == 0 {
            return Err(libc::EINVAL);
        }
        if wants <= has {
            self.unmap(pages.start + wants..pages.end);
            return Ok(self.at(&pages).0);
        }
        let closed = self.mappings().closed.look(pages.clone());
        let end = pages.start + wants;
        if closed.is_empty() && self.heap.map_at(pages.end, wants - has, room) {
            self.mappings().mapped.add(pages.end..end, room);
            return Ok(self.at(&pages).0);
        }
        if !may_move {
            return Err(libc::ENOMEM);
        }
        let new = self.map(new_len, OPEN)?;
        let (old, len) = self.at(&pages);
        let all_closed = closed
            .iter()
            .any(|(_, prot)| prot & (libc::PROT_READ | libc::PROT_WRITE) == 0);
        if !all_closed {
            // SAFETY: both are mapped with so many bytes, and do not overlap; the program gives the old one up.
            unsafe {
                new.cast::<u8>()
                    .copy_from_nonoverlapping(old.cast::<u8>(), len)
            };
        }
        if let [(piece, prot)] = closed.as_slice()
            && *piece == pages
            && let Some(new_pages) = self.pages(new as usize, new_len)
        {
            self.protect(new_pages, *prot)?;
        }
        self.unmap(pages);
        Ok(new)
    }
}

/// Whether pages of such a protection are closed to every access.
fn is_unreadable(prot: c_int) -> bool {
    prot & (libc::PROT_READ | libc::PROT_WRITE) == 0
}

/// A range in whole pages, as the kernel rounds it.
fn whole(start: usize, len: usize) -> Option<(usize, usize)> {
    let len = len.checked_next_multiple_of(PAGE_BYTES)?;
    (start.is_multiple_of(PAGE_BYTES) && start.checked_add(len).is_some()).then_some((start, len))
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
        let _inside = tls::enter();
        let most = runtime.maps.heap.bytes() / 4 * 3;
        if len <= most {
            return runtime.maps.map(len, prot).unwrap_or_else(fail);
        }
        reserved::say_too_long(len, most);
    }
    // SAFETY: as asked, and not at addresses of ours.
    unsafe { raw::mmap(at, len, prot, flags, fd, offset) }
}

fn fixed(at: usize, len: usize, prot: c_int, flags: c_int) -> *mut c_void {
    let _inside = tls::enter();
    if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
        return fail(libc::EEXIST);
    }
    let plain = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_SHARED == 0;
    let pages = || {
        let (start, len) = whole(at, len)?;
        let area = &runtime::get()?.maps;
        Some((area, area.pages(start, len)?))
    };
    match pages() {
        Some((area, pages)) if plain => area.map_over(pages, prot).unwrap_or_else(fail),
        _ => fail(libc::ENOMEM),
    }
}

/// What malloc keeps of freed pages has room that a mapping may want: it is asked for again without.
fn with_all_room<R>(what: impl Fn() -> Option<R>) -> Option<R> {
    what().or_else(|| {
        let runtime = runtime::get()?;
        runtime.malloc.heap.cool();
        what()
    })
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

/// Calls `ours` with the pages of a range that are the heap's, and `theirs` with the rest of it; the first failure ends it.
fn split(
    start: usize,
    len: usize,
    ours: impl Fn(&Area, Range<u32>) -> Result<(), Refused>,
    theirs: impl Fn(*mut c_void, usize) -> c_int,
) -> c_int {
    if tls::is_inside() || !runtime::overlaps(start, len) {
        return theirs(start as *mut c_void, len);
    }
    let _inside = tls::enter();
    let (Some((start, len)), Some(runtime)) = (whole(start, len), runtime::get()) else {
        return fail_int(libc::EINVAL);
    };
    let mut areas = [&runtime.malloc, &runtime.maps];
    areas.sort_by_key(|area| area.addresses().start);
    let (mut at, end) = (start, start + len);
    for area in areas {
        let own = area.addresses();
        let (from, to) = (own.start.clamp(at, end), own.end.clamp(at, end));
        if at < from && theirs(at as *mut c_void, from - at) != 0 {
            return -1;
        }
        if from < to
            && let Some(pages) = area.pages(from, to - from)
            && let Err(errno) = ours(area, pages)
        {
            return fail_int(errno);
        }
        at = to.max(at);
    }
    match at < end {
        true => theirs(at as *mut c_void, end - at),
        false => 0,
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
    split(at as usize, len, ours, |at, len| unsafe {
        raw::munmap(at, len)
    })
}

/// As mprotect(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(at: *mut c_void, len: size_t, prot: c_int) -> c_int {
    let ours = |area: &Area, pages| area.protect(pages, prot);
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, ours, |at, len| unsafe {
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
        -1 | 0 => area.protect(pages, prot),
        _ => Err(libc::EINVAL),
    };
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, ours, |at, len| unsafe {
        let args = [at as c_long, len as c_long, prot.into(), key.into(), 0, 0];
        raw::system(libc::SYS_pkey_mprotect, args) as c_int
    })
}

fn advise(area: &Area, pages: Range<u32>, advice: c_int) -> Result<(), Refused> {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_DONTNEED_LOCKED => {
            area.heap.clear(pages).map_err(|_| libc::ENOMEM)
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
    let ours = |area: &Area, pages| advise(area, pages, advice);
    // SAFETY: the program's promise; not at addresses of ours.
    split(at as usize, len, ours, |at, len| unsafe {
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
    let _inside = tls::enter();
    if to_ours || flags & !libc::MREMAP_MAYMOVE != 0 || old_len == 0 {
        return fail(libc::EINVAL);
    }
    let pages = whole(at as usize, old_len).and_then(|(start, len)| {
        let area = &runtime::get()?.maps;
        Some((area, area.pages(start, len)?))
    });
    match pages {
        Some((area, pages)) => area
            .resize(pages, new_len, flags & libc::MREMAP_MAYMOVE != 0)
            .unwrap_or_else(fail),
        None => fail(libc::EINVAL),
    }
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
