//! A dispatched call that may wait is made on the stack that its thread was on, and not on that for signals: what a signal meets meanwhile is where the program was.
//!
//! Collectors of garbage stop threads by a signal and look for what these use from where its handler's frame lies up to the end of the thread's stack (Boehm's, SBCL's), and handlers may want more
//! than the stack for signals has. So the frame that the kernel made for SIGSYS, registers and all, is copied to where it would have made it without SA_ONSTACK, and returned from there.
//! Promises: signals that came since the call was dispatched wait until then. Never: moves to memory that is served, since the kernel makes the next signal's frame there.

use super::arguments::is_served;
use super::own;
use crate::raw;
use libc::{c_int, c_long, ucontext_t};

/// Signals, as a mask: those that must come.
pub const MUST_COME: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);
/// What a function may use below its stack pointer.
const RED_ZONE_BYTES: usize = 128;
/// The kernel aligns what a processor saves so.
const ALIGN_BYTES: usize = 64;
/// What every processor saves, and where in it the kernel says how much it is in all (`struct _fpx_sw_bytes`).
const SAVED_BYTES: usize = 512;
const SAVED_IN_ALL_AT: usize = 464;
const SAVED_IN_ALL: u32 = 0x4650_5853;
/// More than any processor saves.
const FRAME_BYTES_MAX: usize = 32 << 10;

// Goes on with a function, as the kernel does with a handler: its frame at the address that it is given begins with where it returns to.
std::arch::global_asm!(
    ".globl terrace_preload_go_on",
    ".hidden terrace_preload_go_on",
    ".type terrace_preload_go_on,@function",
    "terrace_preload_go_on:",
    "mov rsp, rsi",
    "jmp rdx",
    ".size terrace_preload_go_on,.-terrace_preload_go_on",
);

type Handler = unsafe extern "C-unwind" fn(*mut ucontext_t);

unsafe extern "C" {
    fn terrace_preload_go_on(context: *mut ucontext_t, frame: usize, with: Handler) -> !;
}

/// Calls that are made where they came, with signals waiting: none of them waits for anybody, and the C library makes some of them when little of a stack is left, or when it takes it away.
fn is_quick(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mprotect
            | libc::SYS_mremap
            | libc::SYS_madvise
            | libc::SYS_brk
            | libc::SYS_exit
            | libc::SYS_exit_group
            | libc::SYS_set_robust_list
            | libc::SYS_set_tid_address
            | libc::SYS_rseq
            | libc::SYS_arch_prctl
            | libc::SYS_rt_sigaction
            | libc::SYS_getpid
            | libc::SYS_gettid
    )
}

/// Makes the call that the registers of a signal's frame name, and answers in them. May come back by that frame's return instead of its own.
///
/// # Safety
/// In a handler of SIGSYS with this frame, whose signals wait and which has nothing left to do.
pub unsafe fn make(context: *mut ucontext_t) {
    let registers = |place: c_int| {
        // SAFETY: the caller's promise.
        unsafe { (*context).uc_mcontext.gregs[place as usize] }
    };
    let stack = registers(libc::REG_RSP) as usize;
    // SAFETY: the caller's promise.
    unsafe {
        if is_quick(registers(libc::REG_RAX)) {
            return answer(context);
        }
        let is_there = own().is_some_and(|thread| thread.is_for_signals(stack));
        if !is_there
            && !is_served(stack as c_long)
            && let Some(frame) = copied(context, stack - RED_ZONE_BYTES)
        {
            let context = (frame + size_of::<usize>()) as *mut ucontext_t;
            terrace_preload_go_on(context, frame, waits);
        }
        waits(context);
    }
}

/// The kernel's frame of a signal, from where its handler returns to up to what the processor saved, copied to below an address. None: it is not as it is known.
unsafe fn copied(context: *const ucontext_t, below: usize) -> Option<usize> {
    let frame = context as usize - size_of::<usize>();
    // SAFETY: the kernel's; what it saved of the processor is behind the rest.
    unsafe {
        let saved = (*context).uc_mcontext.fpregs as usize;
        let says = ((saved + SAVED_IN_ALL_AT) as *const [u32; 2]).read();
        let saved_bytes = match says {
            [SAVED_IN_ALL, bytes] => bytes as usize,
            _ => SAVED_BYTES,
        };
        let bytes = saved.checked_sub(frame)?.checked_add(saved_bytes)?;
        if bytes > FRAME_BYTES_MAX {
            return None;
        }
        let to = below - bytes;
        let to = to - to.wrapping_sub(frame) % ALIGN_BYTES;
        (to as *mut u8).copy_from_nonoverlapping(frame as *const u8, bytes);
        let context = (to + size_of::<usize>()) as *mut ucontext_t;
        (*context).uc_mcontext.fpregs = (saved - frame + to) as _;
        Some(to)
    }
}

/// The mask that the thread of a signal's frame had, without what must come.
///
/// # Safety
/// The kernel's frame.
pub unsafe fn mask_of(context: *const ucontext_t) -> u64 {
    // SAFETY: the caller's promise: the kernel's 64 bits.
    unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() & !MUST_COME }
}

/// Gives it another, with which the thread goes on.
unsafe fn keep_mask(context: *mut ucontext_t, mask: u64) {
    // SAFETY: as above.
    unsafe { (&raw mut (*context).uc_sigmask).cast::<u64>().write(mask) };
}

/// With the program's mask, so that what it lets through comes; what a handler changed of it is kept, and the stack for signals that it set.
unsafe extern "C-unwind" fn waits(context: *mut ucontext_t) {
    // SAFETY: as `make`.
    unsafe {
        raw::set_mask(mask_of(context));
        answer(context);
        keep_mask(context, raw::block_all());
        if let Some(thread) = own() {
            (*context).uc_stack = thread.for_signals();
        }
    }
}

#[inline(never)]
unsafe extern "C-unwind" fn answer(context: *mut ucontext_t) {
    // SAFETY: as `make`.
    unsafe {
        let registers = (&raw mut (*context).uc_mcontext.gregs).cast::<c_long>();
        let at = |place: c_int| registers.add(place as usize);
        let args = [
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RDX,
            libc::REG_R10,
            libc::REG_R8,
            libc::REG_R9,
        ];
        let said = super::call(*at(libc::REG_RAX), args.map(|place| *at(place)));
        at(libc::REG_RAX).write(said);
    }
}
