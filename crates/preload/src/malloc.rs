//! malloc and its family, in front of the program's own.
//!
//! An allocation belongs to whoever made it, and its address says who that is: the heap over the pool (large ones), the runtime's arena (what the C
//! library allocates on behalf of the runtime), or the allocator further down (all else, up to a bound: `small`). Promises: what the C standard and glibc say of each
//! function, errno included; a wrong free ends the program with a message, as glibc does. Never: holds anything of ours while it calls down.

use crate::arena::ARENA;
use crate::{dispatch, next, opening, own, raw, runtime, small, tls};
use libc::{c_char, c_int, c_void, size_t};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_vm::heap::AllocError;

/// As glibc's.
const ALIGN_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;
/// Up to here there are always addresses enough.
const ALIGN_USUAL_BYTES: usize = 1 << 20;
/// Nothing is known of who asks.
const NOBODY: usize = 0;

/// The program has a malloc of its own, in front of this one: what allocates here and is freed there must be the C library's, which calls that malloc.
static BEHIND: AtomicBool = AtomicBool::new(false);

/// Looks whose malloc comes first.
pub fn prepare() {
    BEHIND.store(!next::malloc_is_ours(), Ordering::Relaxed);
}

#[inline]
fn is_behind() -> bool {
    BEHIND.load(Ordering::Relaxed)
}

fn refused() -> *mut c_void {
    raw::set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

fn given(taken: Result<*mut u8, AllocError>) -> *mut c_void {
    match taken {
        Ok(address) => address.cast(),
        Err(_) => refused(),
    }
}

/// See [`enter`].
enum In {
    Held(#[allow(dead_code)] tls::Quietly),
    Malloc(#[allow(dead_code)] tls::InMalloc),
}

/// This thread is inside, and the program's signals wait: where nobody sees to that, the kernel holds them back, by two system calls, which take ten times as long as a small malloc and free do.
#[inline]
fn enter() -> In {
    match dispatch::signals_wait() {
        true => In::Malloc(tls::enter_malloc()),
        false => In::Held(tls::enter_quietly()),
    }
}

/// The arena's, with NULL as malloc means it.
fn own(bytes: usize, align: usize) -> *mut c_void {
    let address = ARENA.malloc(bytes, align);
    match address.is_null() {
        true => refused(),
        false => address.cast(),
    }
}

fn allocate(bytes: usize, zeros: bool, caller: usize) -> *mut c_void {
    if tls::is_inside() {
        // What is fresh of the arena may have been used before.
        let address = own(bytes, ALIGN_BYTES);
        if zeros && !address.is_null() {
            // SAFETY: just allocated, with so many bytes.
            unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        }
        return address;
    }
    match opening::for_bytes(bytes, caller) {
        Some(runtime) => {
            let _inside = enter();
            given(match zeros {
                true => runtime.malloc.heap.alloc_zeroed(bytes, ALIGN_BYTES),
                false => runtime.malloc.heap.alloc(bytes, ALIGN_BYTES),
            })
        }
        // SAFETY: as the caller asked.
        None => unsafe {
            theirs(match zeros {
                true => next::calloc(1, bytes),
                false => next::malloc(bytes),
            })
        },
    }
}

/// The program's own malloc has given out so many bytes more, or less.
#[inline]
fn count(bytes: i64) {
    if small::count(bytes) && own::look() {
        small::looked();
    }
}

/// A block that the program's own malloc made just now.
///
/// # Safety
/// It is, or is NULL.
unsafe fn theirs(block: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    count(unsafe { small::bytes(block) });
    block
}

fn aligned(align: usize, bytes: usize) -> *mut c_void {
    if tls::is_inside() {
        return own(bytes, align);
    }
    if let Some(runtime) = opening::for_bytes(bytes, NOBODY) {
        let _inside = enter();
        match runtime.malloc.heap.alloc(bytes, align.max(ALIGN_BYTES)) {
            // Few addresses are such multiples, and others may have them: no reason for a program to do without.
            Err(AllocError::NoAddresses { .. } | AllocError::Alignment { .. })
                if align > ALIGN_USUAL_BYTES =>
            {
                say_too_aligned(bytes, align);
            }
            taken => return given(taken),
        }
    }
    // SAFETY: as the caller asked.
    unsafe { theirs(next::memalign(align, bytes)) }
}

/// An allocation at a multiple that served memory has no more of.
#[cold]
fn say_too_aligned(bytes: usize, align: usize) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "an allocation of {bytes} bytes at a multiple of {align}: served memory has no such place free; it is not served, and not under --dram"
        ));
    }
}

/// Ends the program as glibc would.
fn wrong(function: &str, error: AllocError) -> ! {
    raw::die(format_args!("{function}(): {error}"))
}

fn release(memory: *mut c_void) {
    let address = memory as usize;
    if memory.is_null() {
        return;
    }
    if runtime::is_malloc(address) {
        let errno = raw::errno();
        let _inside = enter();
        let runtime = runtime::get().expect("open, since it has addresses");
        runtime.malloc.open_again(address);
        if let Err(error) = runtime.malloc.heap.free(memory.cast()) {
            wrong("free", error);
        }
        raw::set_errno(errno);
    } else if ARENA.owns(address) {
        // SAFETY: C's face handed it out.
        unsafe { ARENA.free(memory.cast()) };
    } else {
        // SAFETY: neither ours nor NULL, so it is theirs.
        unsafe {
            count(-small::bytes(memory));
            next::free(memory);
        }
    }
}

fn usable(memory: *mut c_void) -> usize {
    let address = memory as usize;
    if memory.is_null() {
        return 0;
    }
    if runtime::is_malloc(address) {
        let _inside = enter();
        let runtime = runtime::get().expect("open, since it has addresses");
        match runtime.malloc.heap.usable_bytes(memory.cast()) {
            Ok(bytes) => bytes,
            Err(error) => wrong("malloc_usable_size", error),
        }
    } else if ARENA.owns(address) {
        // SAFETY: C's face handed it out.
        unsafe { ARENA.size_of(memory.cast()) }
    } else {
        // SAFETY: neither ours nor NULL, so it is theirs.
        unsafe { next::malloc_usable_size(memory) }
    }
}

/// # Safety
/// As realloc's.
unsafe fn change(memory: *mut c_void, bytes: usize, caller: usize) -> *mut c_void {
    let address = memory as usize;
    if memory.is_null() {
        return allocate(bytes, false, caller);
    }
    if runtime::is_malloc(address) {
        if bytes == 0 {
            release(memory);
            return std::ptr::null_mut();
        }
        let _inside = enter();
        let runtime = runtime::get().expect("open, since it has addresses");
        runtime.malloc.open_again(address);
        // SAFETY: the program's promise; what is not an allocation is refused.
        return match unsafe { runtime.malloc.heap.realloc(memory.cast(), bytes) } {
            Err(error @ (AllocError::NotAllocated { .. } | AllocError::Freed { .. })) => {
                wrong("realloc", error)
            }
            changed => given(changed),
        };
    }
    // Of no bytes it is a free, which is theirs to answer.
    let moves = ARENA.owns(address)
        || (bytes > 0 && !tls::is_inside() && opening::for_bytes(bytes, caller).is_some());
    if !moves {
        // SAFETY: theirs, and the caller's promise.
        return unsafe {
            let before = small::bytes(memory);
            let new = next::realloc(memory, bytes);
            // Where that fails the old one stays.
            if !new.is_null() || bytes == 0 {
                count(small::bytes(new) - before);
            }
            new
        };
    }
    let new = allocate(bytes, false, caller);
    if !new.is_null() {
        let len = usable(memory).min(bytes);
        // SAFETY: both have so many bytes, and two allocations do not overlap.
        unsafe {
            new.cast::<u8>()
                .copy_from_nonoverlapping(memory.cast(), len)
        };
        release(memory);
    }
    new
}

/// In front of these three, for they tell whose code asked: with the address that it goes on at behind the arguments.
#[cfg(target_arch = "x86_64")]
mod face {
    use libc::{c_void, size_t};
    use std::arch::naked_asm;

    /// As malloc(3).
    #[cfg_attr(not(test), unsafe(no_mangle))]
    #[unsafe(naked)]
    pub extern "C" fn malloc(bytes: size_t) -> *mut c_void {
        naked_asm!("mov rsi, qword ptr [rsp]", "jmp {}", sym super::malloc_for)
    }

    /// As calloc(3).
    #[cfg_attr(not(test), unsafe(no_mangle))]
    #[unsafe(naked)]
    pub extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
        naked_asm!("mov rdx, qword ptr [rsp]", "jmp {}", sym super::calloc_for)
    }

    /// As realloc(3).
    ///
    /// # Safety
    /// As there.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    #[unsafe(naked)]
    pub unsafe extern "C" fn realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void {
        naked_asm!("mov rdx, qword ptr [rsp]", "jmp {}", sym super::change_for)
    }
}

/// The same where nothing is known of who asks.
#[cfg(not(target_arch = "x86_64"))]
mod face {
    use super::{NOBODY, calloc_for, change_for, malloc_for};
    use libc::{c_void, size_t};

    /// As malloc(3).
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn malloc(bytes: size_t) -> *mut c_void {
        malloc_for(bytes, NOBODY)
    }

    /// As calloc(3).
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
        calloc_for(count, bytes, NOBODY)
    }

    /// As realloc(3).
    ///
    /// # Safety
    /// As there.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void {
        // SAFETY: the program's promise.
        unsafe { change_for(memory, bytes, NOBODY) }
    }
}

extern "C" fn malloc_for(bytes: usize, caller: usize) -> *mut c_void {
    allocate(bytes, false, caller)
}

extern "C" fn calloc_for(count: usize, bytes: usize, caller: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        Some(all) => allocate(all, true, caller),
        None => refused(),
    }
}

unsafe extern "C" fn change_for(memory: *mut c_void, bytes: usize, caller: usize) -> *mut c_void {
    // SAFETY: the program's promise.
    unsafe { change(memory, bytes, caller) }
}

/// As reallocarray(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(
    memory: *mut c_void,
    count: size_t,
    bytes: size_t,
) -> *mut c_void {
    if is_behind() {
        // SAFETY: the program's promise.
        return unsafe { next::reallocarray(memory, count, bytes) };
    }
    match count.checked_mul(bytes) {
        // SAFETY: the program's promise.
        Some(all) => unsafe { change(memory, all, NOBODY) },
        None => refused(),
    }
}

/// A copy of so many bytes of a text, and a zero.
unsafe fn copied(text: *const c_char, len: usize) -> *mut c_char {
    let copy = allocate(len + 1, false, NOBODY).cast::<c_char>();
    if !copy.is_null() {
        // SAFETY: the program's promise, and room for all of it and the zero.
        unsafe {
            copy.copy_from_nonoverlapping(text, len);
            copy.add(len).write(0);
        }
    }
    copy
}

/// As strdup(3): what the C library's asks for is taken for its own.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn strdup(text: *const c_char) -> *mut c_char {
    // SAFETY: the program's promise.
    unsafe {
        match is_behind() {
            true => next::strdup(text),
            false => copied(text, libc::strlen(text)),
        }
    }
}

/// As strndup(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn strndup(text: *const c_char, most: size_t) -> *mut c_char {
    // SAFETY: the program's promise.
    unsafe {
        match is_behind() {
            true => next::strndup(text, most),
            false => copied(text, libc::strnlen(text, most)),
        }
    }
}

/// As free(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn free(memory: *mut c_void) {
    release(memory);
}

/// As free(3), under the name that older programs have.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn cfree(memory: *mut c_void) {
    release(memory);
}

/// As malloc_usable_size(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_usable_size(memory: *mut c_void) -> size_t {
    usable(memory)
}

/// As aligned_alloc(3). Before 2.38 it is the C library's memalign under another name; since then it refuses what is no power of two.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void {
    memalign(align, bytes)
}

/// As memalign(3): an alignment is rounded up to a power of two.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: size_t, bytes: size_t) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => aligned(align, bytes),
        None => {
            raw::set_errno(libc::EINVAL);
            std::ptr::null_mut()
        }
    }
}

/// As posix_memalign(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(
    memory: *mut *mut c_void,
    align: size_t,
    bytes: size_t,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let errno = raw::errno();
    let address = aligned(align, bytes);
    raw::set_errno(errno);
    if address.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the program's promise.
    unsafe { memory.write(address) };
    0
}

/// As valloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(bytes: size_t) -> *mut c_void {
    aligned(PAGE_BYTES, bytes)
}

/// As pvalloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(bytes: size_t) -> *mut c_void {
    match bytes.checked_next_multiple_of(PAGE_BYTES) {
        Some(bytes) => aligned(PAGE_BYTES, bytes.max(PAGE_BYTES)),
        None => refused(),
    }
}
