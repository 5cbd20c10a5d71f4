//! Actions of signals as the kernel has them, and the way to change them past everything that is in front of it.
//!
//! Promises: a handler returns to the kernel by code of this library, so that its return is not dispatched. Never: knows what the program asked for; allocates.

use crate::raw;
use libc::{c_int, c_long};

pub const SA_RESTORER: u64 = 0x0400_0000;
/// Those by which it cancels threads and changes their users: sets that it fills have not got them.
pub const OF_THE_C_LIBRARY: u64 = 1 << 31 | 1 << 32;
/// The kernel's masks have so many bytes.
pub const MASK_BYTES: c_long = 8;
/// An action as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

impl Action {
    /// Whether a function of the program's is called.
    pub fn is_function(&self) -> bool {
        !matches!(self.handler, libc::SIG_DFL | libc::SIG_IGN)
    }
}

pub const NO_ACTION: Action = Action {
    handler: libc::SIG_DFL,
    flags: 0,
    restorer: 0,
    mask: 0,
};

// Where handlers return to: in this library, so that the call is not dispatched. By these bytes unwinders know it, and by this name gdb does.
std::arch::global_asm!(
    ".globl __restore_rt",
    ".hidden __restore_rt",
    ".type __restore_rt,@function",
    "nop",
    "__restore_rt:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00",
    "syscall",
    ".size __restore_rt,.-__restore_rt",
    // Ends a handler whose frame lies at the address that it is given.
    ".globl terrace_preload_return",
    ".hidden terrace_preload_return",
    ".type terrace_preload_return,@function",
    "terrace_preload_return:",
    "mov rsp, rdi",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".size terrace_preload_return,.-terrace_preload_return",
);

unsafe extern "C" {
    fn __restore_rt();
    pub fn terrace_preload_return(frame: usize) -> !;
}

/// What a handler returns to.
pub fn restorer() -> usize {
    __restore_rt as unsafe extern "C" fn() as usize
}

/// Changes an action past everything that is in front of it.
pub fn act(signal: c_int, action: &Action, was: Option<&mut Action>) -> c_long {
    let was = was.map_or(0, |was| (&raw mut *was) as c_long);
    let args = [
        signal.into(),
        (&raw const *action) as c_long,
        was,
        MASK_BYTES,
        0,
        0,
    ];
    // SAFETY: the kernel's own structure, of which the handlers are functions of the right type.
    unsafe { raw::call(libc::SYS_rt_sigaction, args) }
}

/// What the kernel has for a signal.
pub fn kernels(signal: c_long) -> Action {
    let mut there = NO_ACTION;
    let args = [signal, 0, (&raw mut there) as c_long, MASK_BYTES, 0, 0];
    // SAFETY: room for the answer.
    unsafe { raw::call(libc::SYS_rt_sigaction, args) };
    there
}

/// Has the kernel do so.
pub fn put(signal: c_long, action: &Action) {
    act(signal as c_int, action, None);
}

/// A handler that is called once is, now.
pub fn reset(signal: c_int) {
    let default = Action {
        flags: SA_RESTORER,
        restorer: restorer(),
        ..NO_ACTION
    };
    act(signal, &default, None);
}
