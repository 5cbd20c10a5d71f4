//! Faults taken in the faulting thread: the SIGBUS handler, and what forks and messages need; on kernels before Linux 6.14 a handler of
//! SIGSEGV too (`sys/page_tables.rs` says why).
//!
//! Promises: a SIGBUS that is not about a region, or about a page that cannot be had, goes to the handler that was there before;
//! signals wait while it runs; errno is as before. Never: takes a lock of the application's, but for the allocator's (what stores and reads may allocate, so a signal's handler that
//! may have interrupted the allocator must not fault); or runs inside itself: a fault of the runtime's own in a region ends the program with a message.
//!
//! The handler runs on the stack of the faulting thread, not on an alternate one: those are as small as 8 KiB, and reading a page
//! back needs more. So a stack must not lie in a region.

use crate::beside::{self, REGISTERS, Registers};
use crate::error::VmError;
use crate::fault::{Outcome, report};
use crate::forks;
use crate::inside::{self, deferred};
use crate::parts::{Core, Way};
use crate::registry;
use crate::say::die;
use crate::space::place;
use crate::stats::Counters;
use crate::sys::{Going, SystemError};
use crate::touch::Touch;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::time::Instant;

/// Times one thread may find a page there and fault on it again at once, before that is called an error.
const IN_VAIN_MAX: u32 = 1_000_000;

static INSTALL: Once = Once::new();
static INSTALL_FOR_REMAPPING: Once = Once::new();
/// What was there before, for SIGBUS and for SIGSEGV.
static mut PREVIOUS: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();
static mut PREVIOUS_FOR_REMAPPING: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();

thread_local! {
    /// Where this thread last found the page there already, and how often in a row.
    static IN_VAIN: std::cell::Cell<(usize, u32)> = const { std::cell::Cell::new((0, 0)) };
}

/// Installs the handler, once in a process; it stays.
pub(crate) fn install() -> Result<(), VmError> {
    let mut said = forks::watch_forks();
    INSTALL.call_once(|| {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        // SAFETY: the structure is made of integers; all zeros is a value of it.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // SIGBUS itself stays possible inside, so that it is met by a message.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        action.sa_mask = deferred();
        // SAFETY: the handler has the type that SA_SIGINFO asks for; PREVIOUS is written here only, before any fault of ours.
        let installed =
            unsafe { libc::sigaction(libc::SIGBUS, &action, (&raw mut PREVIOUS).cast()) };
        if installed != 0 {
            said = installed;
        }
    });
    match said {
        0 => Ok(()),
        _ => Err(SystemError::Call {
            what: "installing a handler for SIGBUS",
            errno: rustix::io::Errno::INVAL,
        })?,
    }
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written once, before this handler was there.
    let previous = unsafe { (&raw const PREVIOUS).cast::<libc::sigaction>().read() };
    let ends = matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    // SAFETY: what the kernel gives for SA_SIGINFO.
    if !unsafe { take_sigbus(info, context, ends) } {
        forward(previous, signal, info, context);
    }
}

/// What the handler of SIGBUS does, for who has one of its own in front of it: whether the access is to be tried again. Else the signal is not about a region, or its page cannot be had, which was said;
/// `ends`: then the process does. Errno is as before.
///
/// # Safety
/// The arguments are those that a handler with SA_SIGINFO has, and the signals of this thread wait but for those that its own instructions raise.
pub unsafe fn take_sigbus(
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    ends: bool,
) -> bool {
    // SAFETY: errno is this thread's own; the caller's promise for the rest.
    let (errno, address) = unsafe { (*libc::__errno_location(), (*info).si_addr() as usize) };
    // SAFETY: as above. Codes above zero come from the kernel: then the address is one.
    let from_kernel = unsafe { (*info).si_code } > 0;
    let mine = from_kernel
        .then(|| registry::find(address, |core| take(core, address, context, ends)))
        .flatten();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    mine == Some(true)
}

/// Installs the handler of SIGSEGV, for kernels where a block's addresses are mapped anew; once in a process, it stays.
pub(crate) fn install_for_remapping() -> Result<(), VmError> {
    let mut said = 0;
    INSTALL_FOR_REMAPPING.call_once(|| {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigsegv;
        // SAFETY: the structure is made of integers; all zeros is a value of it.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // On the alternate stack: it needs little, and a stack that is full goes on to whoever reports that.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        action.sa_mask = deferred();
        let previous = (&raw mut PREVIOUS_FOR_REMAPPING).cast();
        // SAFETY: the handler has the type that SA_SIGINFO asks for; what was there is written here only, before the handler needs it.
        said = unsafe { libc::sigaction(libc::SIGSEGV, &action, previous) };
    });
    match said {
        0 => Ok(()),
        _ => Err(SystemError::Call {
            what: "installing a handler for SIGSEGV",
            errno: rustix::io::Errno::INVAL,
        })?,
    }
}

/// A touch of a block whose addresses are being mapped anew: waits until that is over. Then it is tried again, and is a fault like any.
extern "C" fn on_sigsegv(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own; the kernel gives a valid siginfo for SA_SIGINFO.
    let (errno, address) = unsafe { (*libc::__errno_location(), (*info).si_addr() as usize) };
    // SAFETY: as above. Codes above zero come from the kernel: then the address is one.
    let from_kernel = unsafe { (*info).si_code } > 0;
    let mine = from_kernel
        .then(|| registry::find(address, |core| wait_for_mapping(core, address)))
        .flatten();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if mine != Some(true) {
        // SAFETY: written once, before this handler was there.
        let previous = unsafe {
            (&raw const PREVIOUS_FOR_REMAPPING)
                .cast::<libc::sigaction>()
                .read()
        };
        forward(previous, signal, info, context);
    }
}

/// True: the access is to be tried again.
fn wait_for_mapping(core: &Core, address: usize) -> bool {
    if inside::depth() > 0 {
        die(format_args!(
            "the runtime itself touched a region at {address:#x}: a buffer given to it must not lie in a region"
        ));
    }
    let page = core.space.page_at(address);
    match page.filter(|_| core.tables.going() == Going::ByMapping) {
        Some(page) => {
            core.space.wait_for_block(place(page).0);
            in_vain(address, true);
            true
        }
        None => false,
    }
}

/// Takes a fault in a memory's addresses. True: the access is to be tried again. If the process `ends` where it is not, nothing is made ready for that.
fn take(core: &Core, address: usize, context: *mut libc::c_void, ends: bool) -> bool {
    if inside::depth() > 0 {
        die(format_args!(
            "the runtime itself touched an absent page of a region at {address:#x}: a buffer given to it must not lie in a region"
        ));
    }
    if core.way != Way::InThread {
        // A page that a handler thread could not read, and said so. Lifted where nobody handles the signal, it would be said once more.
        inside::run(|| {
            if let Some(page) = core.space.page_at(address).filter(|_| !ends) {
                core.lift_poison(page);
            }
        });
        return false;
    }
    let touch = touch(context);
    let resolved = inside::run(|| {
        if !core.unmodified {
            return core.resolve(address, touch);
        }
        let began = Instant::now();
        let registers = registers(context);
        let is_there = match core.bring_ahead(address, touch) {
            true => {
                beside::forget();
                true
            }
            false => {
                core.bring_indexed(address, touch, &registers)
                    || core.bring_beside(address, touch, &registers)
            }
        };
        let resolved = match is_there {
            true => Outcome::Ready { woken: true },
            false => core.resolve(address, touch),
        };
        let ns = began.elapsed().as_nanos() as u64;
        Counters::add(&core.counters.fault_ns, ns);
        core.call_evictor();
        resolved
    });
    match resolved {
        Outcome::Ready { woken } => {
            in_vain(address, !woken);
            true
        }
        Outcome::Foreign => false,
        Outcome::Failed(failure) => {
            report(&failure);
            false
        }
    }
}

/// A page that is there is not faulted on forever, unless somebody took it away behind our back.
fn in_vain(address: usize, nothing_done: bool) {
    let (last, times) = IN_VAIN.get();
    let times = if nothing_done && last == address {
        times + 1
    } else {
        0
    };
    IN_VAIN.set((address, times));
    if times > IN_VAIN_MAX {
        die(format_args!(
            "the page at {address:#x} faults though it is there: a region's addresses must not be unmapped, protected or advised on"
        ));
    }
}

#[cfg(target_arch = "x86_64")]
fn touch(context: *mut libc::c_void) -> Touch {
    const WRITE: i64 = 2;
    // SAFETY: the kernel gives a valid ucontext for SA_SIGINFO.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    match context.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE {
        0 => Touch::Read,
        _ => Touch::Write,
    }
}

#[cfg(target_arch = "x86_64")]
fn registers(context: *mut libc::c_void) -> Registers {
    // R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX and RCX lie before the stack's.
    const { assert!(libc::REG_R8 == 0 && libc::REG_RSP as usize == REGISTERS) };
    // SAFETY: the kernel gives a valid ucontext for SA_SIGINFO.
    let held = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    Registers {
        instruction: held[libc::REG_RIP as usize] as usize,
        stack: held[libc::REG_RSP as usize] as usize,
        values: std::array::from_fn(|nth| held[nth] as usize),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn registers(_: *mut libc::c_void) -> Registers {
    Registers::default()
}

#[cfg(not(target_arch = "x86_64"))]
fn touch(_: *mut libc::c_void) -> Touch {
    Touch::Unknown
}

/// To whoever handled the signal before.
fn forward(
    previous: libc::sigaction,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action comes back, and the access that faulted runs into it, as does a signal that was sent.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: installed with SA_SIGINFO, so it has this type.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: installed without SA_SIGINFO, so it has this type.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
