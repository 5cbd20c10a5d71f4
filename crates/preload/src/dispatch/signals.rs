//! The signals of a program whose calls are dispatched: SIGSYS brings its calls, SIGBUS its faults, and both stay possible whatever it blocks.
//!
//! Promises: the program's own handlers for both are called where the signal is not ours; it is told the actions, masks and stacks that it set. A handler
//! of the program's returns to the kernel without being dispatched. Never: allocates.

use super::actions::{
    Action, MASK_BYTES, NO_ACTION, OF_THE_C_LIBRARY, SA_RESTORER, act, kernels, put, restorer,
    terrace_preload_return,
};
use super::own_stack::{self, MUST_COME, mask_of};
use super::{Thread, altstack, fronted, process};
use crate::{raw, runtime, tls};
use libc::{c_int, c_long, c_void};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// In a siginfo of SIGSYS: a call was dispatched.
const SYS_USER_DISPATCH: c_int = 2;
/// Numbers from SIGBUS to SIGSYS have places here.
const OURS: [c_int; 2] = [libc::SIGBUS, libc::SIGSYS];

/// What the program asked for of the two signals that are ours.
struct Asked {
    taken: AtomicBool,
    actions: UnsafeCell<[Action; 2]>,
}

// SAFETY: reached by who has `taken` only.
unsafe impl Sync for Asked {}

static ASKED: Asked = Asked {
    taken: AtomicBool::new(false),
    actions: UnsafeCell::new([NO_ACTION; 2]),
};

/// Whether the program has a handler for SIGBUS.
static HANDLED: AtomicBool = AtomicBool::new(false);

impl Asked {
    /// The action of a signal of ours; changed, if there is a new one.
    fn swap(&self, place: usize, new: Option<Action>) -> Action {
        self.alone(|| {
            // SAFETY: `taken` is ours.
            let actions = unsafe { &mut *self.actions.get() };
            let was = actions[place];
            if let Some(new) = new {
                actions[place] = new;
                if place == 0 {
                    HANDLED.store(new.is_function(), Ordering::Relaxed);
                }
            }
            was
        })
    }

    /// One thread at a time, for a few instructions in which nothing faults; a signal handler that interrupted them would wait for its own thread.
    fn alone<T>(&self, f: impl FnOnce() -> T) -> T {
        let before = raw::block_all();
        while self.taken.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let done = f();
        self.taken.store(false, Ordering::Release);
        raw::set_mask(before);
        done
    }
}

/// Installs the handlers; what was there for the two signals is kept for the program.
pub fn install() {
    let sysgen: unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigsys;
    let base = Action {
        handler: 0,
        flags: (libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK) as u64 | SA_RESTORER,
        restorer: restorer(),
        mask: 0,
    };
    let call = Action {
        handler: sysgen as usize,
        mask: word(&terrace_vm::deferred()) | OF_THE_C_LIBRARY,
        ..base
    };
    process::note_storage();
    let said = act(libc::SIGSYS, &call, None) | take_sigbus();
    if said != 0 {
        raw::die(format_args!("handlers of signals are refused: {said}"));
    }
}

/// Those that were set before calls were dispatched. `our_own` may come in the middle of malloc.
pub fn take_handlers(our_own: usize) {
    for signal in 1..=c_long::from(libc::SIGRTMAX()) {
        let there = kernels(signal);
        if !OURS.iter().any(|ours| c_long::from(*ours) == signal)
            && there.is_function()
            && there.handler != our_own
        {
            put(signal, &fronted::given(signal, there));
        }
    }
}

/// In the child of a fork: whoever changed an action in the parent at that moment is not there.
pub fn after_fork() {
    ASKED.taken.store(false, Ordering::Release);
}

/// Puts the handler of SIGBUS in front of whatever is there.
pub fn take_sigbus() -> c_long {
    act(libc::SIGBUS, &fault_action(), None)
}

fn fault_action() -> Action {
    let fault: unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    Action {
        handler: fault as usize,
        flags: (libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK) as u64 | SA_RESTORER,
        restorer: restorer(),
        mask: word(&terrace_vm::deferred()),
    }
}

/// Faults are taken while `f` runs, whatever the child of a vfork has done to SIGBUS before it runs another program: its calls are not seen.
pub fn while_faults_come<T>(f: impl FnOnce() -> T) -> T {
    let change = |how: c_int, to: &u64, was: *mut u64| {
        let args = [
            how.into(),
            (&raw const *to) as c_long,
            was as c_long,
            MASK_BYTES,
            0,
            0,
        ];
        // SAFETY: the kernel's masks, on this stack.
        unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
    };
    let (mut action, mut mask) = (NO_ACTION, 0);
    act(libc::SIGBUS, &fault_action(), Some(&mut action));
    change(libc::SIG_UNBLOCK, &(1 << (libc::SIGBUS - 1)), &raw mut mask);
    let done = f();
    change(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
    act(libc::SIGBUS, &action, None);
    done
}

/// A set of the C library's as the kernel has it.
fn word(set: &libc::sigset_t) -> u64 {
    // SAFETY: it begins with the kernel's 64 bits.
    unsafe { (&raw const *set).cast::<u64>().read() }
}

/// The two signals come to this thread, on a stack of its own.
pub fn begin_thread(thread: &Thread) {
    let mask = MUST_COME;
    let mask_args = [
        libc::SIG_UNBLOCK.into(),
        (&raw const mask) as c_long,
        0,
        MASK_BYTES,
        0,
        0,
    ];
    altstack::install(thread);
    // SAFETY: the kernel's mask, on this stack.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, mask_args) };
}

unsafe extern "C-unwind" fn on_sigsys(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: what the kernel gives for SA_SIGINFO.
    unsafe {
        if (*info).si_code != SYS_USER_DISPATCH {
            return forward(1, signal, info, context);
        }
        if !super::is_on() {
            // Given up since: this is the last one.
            tls::selector().write_volatile(tls::PASSES);
        }
        let context = context.cast::<libc::ucontext_t>();
        let registers = (*context).uc_mcontext.gregs;
        let at = |place: c_int| registers[place as usize] as c_long;
        let args = [
            at(libc::REG_RDI),
            at(libc::REG_RSI),
            at(libc::REG_RDX),
            at(libc::REG_R10),
            at(libc::REG_R8),
            at(libc::REG_R9),
        ];
        let said = match at(libc::REG_RAX) {
            // The mask that the thread goes on with is the one in the frame of this signal.
            libc::SYS_rt_sigprocmask => masked(args, &mut (*context).uc_sigmask),
            libc::SYS_rt_sigreturn => terrace_preload_return(at(libc::REG_RSP) as usize),
            number @ (libc::SYS_clone | libc::SYS_clone3) => {
                // The new one has the mask of who makes it.
                raw::set_mask(mask_of(context));
                match number {
                    libc::SYS_clone => process::clone(args, &registers),
                    _ => process::clone3(args, &registers),
                }
            }
            // It would come back twice on this stack.
            libc::SYS_vfork => -c_long::from(libc::ENOSYS),
            _ => return own_stack::make(context),
        };
        (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = said;
    }
}

unsafe extern "C-unwind" fn on_sigbus(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    if !process::has_storage() {
        // SAFETY: as below.
        return unsafe { met_by_stranger(signal, info, context) };
    }
    let ends = !HANDLED.load(Ordering::Relaxed);
    let again = {
        let _inside = tls::enter();
        // SAFETY: the kernel's own; the action's mask has all other signals.
        unsafe { terrace_vm::take_sigbus(info, context, ends) }
    };
    if !again {
        // SAFETY: as above.
        unsafe { forward(0, signal, info, context) };
    }
}

/// In a thread whose storage is not of the C library's making: nothing here may run that keeps anything there.
unsafe fn met_by_stranger(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: what the kernel gives for SA_SIGINFO.
    unsafe {
        let address = (*info).si_addr() as usize;
        if !runtime::has(address) {
            return forward(0, signal, info, context);
        }
        raw::say(format_args!(
            "address {address:#x} is not in DRAM, and its thread was made by a raw clone with thread-local storage of its own: `--faults thread` serves such threads"
        ));
    }
    let default = Action {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: restorer(),
        mask: 0,
    };
    // It tries again, and ends.
    act(signal, &default, None);
}

/// To the program's own handler, as the kernel would.
unsafe fn forward(place: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = ASKED.swap(place, None);
    // SAFETY: the kernel's own.
    let (sent, mask) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        ((*info).si_code <= 0, word(&context.uc_sigmask))
    };
    if action.handler == libc::SIG_IGN && sent {
        return;
    }
    if matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN) {
        let default = Action {
            handler: libc::SIG_DFL,
            ..action
        };
        act(signal, &default, None);
        if sent {
            // SAFETY: ends the process, as this signal does.
            unsafe {
                let process = raw::call(libc::SYS_getpid, [0; 6]);
                let thread = raw::call(libc::SYS_gettid, [0; 6]);
                let args = [process, thread, signal.into(), 0, 0, 0];
                raw::call(libc::SYS_tgkill, args);
            }
        }
        return;
    }
    if action.flags & libc::SA_RESETHAND as u64 != 0 {
        let default = Action {
            handler: libc::SIG_DFL,
            ..action
        };
        ASKED.swap(place, Some(default));
    }
    raw::set_mask((mask | action.mask) & !MUST_COME);
    // SAFETY: the program's promise: a function of the type that its flags say.
    unsafe {
        if action.flags & libc::SA_SIGINFO as u64 != 0 {
            let handler: extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(action.handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C-unwind" fn(c_int) = std::mem::transmute(action.handler);
            handler(signal);
        }
    }
}

/// As rt_sigaction.
///
/// # Safety
/// As there.
pub unsafe fn action([signal, new, old, bytes, ..]: [c_long; 6]) -> c_long {
    if bytes != MASK_BYTES {
        return -c_long::from(libc::EINVAL);
    }
    let new = match new {
        0 => None,
        // SAFETY: the program's promise.
        at => Some(unsafe { (at as *const Action).read_unaligned() }),
    };
    let (said, was) = match OURS.iter().position(|ours| c_long::from(*ours) == signal) {
        Some(place) => (0, ASKED.swap(place, new)),
        None => ASKED.alone(|| {
            let mut was = NO_ACTION;
            let known = fronted::known(signal);
            let new = new.map(|new| {
                let new = Action {
                    restorer: restorer(),
                    flags: new.flags | SA_RESTORER,
                    mask: new.mask & !MUST_COME,
                    ..new
                };
                fronted::given(signal, new)
            });
            let at = new.as_ref().map_or(0, |new| (&raw const *new) as c_long);
            let args = [signal, at, (&raw mut was) as c_long, MASK_BYTES, 0, 0];
            // SAFETY: the kernel's own structure; the handler is the program's promise.
            let said = unsafe { raw::call(libc::SYS_rt_sigaction, args) };
            if said != 0 {
                fronted::refused(signal, known);
            }
            (said, fronted::told(was, known))
        }),
    };
    if said == 0 && old != 0 {
        // SAFETY: the program's promise.
        unsafe { (old as *mut Action).write_unaligned(was) };
    }
    said
}

/// A mask of the program's, without what must come.
///
/// # Safety
/// Null or the address of eight bytes.
pub unsafe fn mask(at: c_long) -> u64 {
    match at {
        0 => 0,
        // SAFETY: the caller's promise.
        _ => unsafe { (at as *const u64).read_unaligned() & !MUST_COME },
    }
}

/// rt_sigprocmask for the mask in a signal's frame.
unsafe fn masked([how, new, old, bytes, ..]: [c_long; 6], set: &mut libc::sigset_t) -> c_long {
    if bytes != MASK_BYTES {
        return -c_long::from(libc::EINVAL);
    }
    let was = word(set);
    // SAFETY: the program's promise.
    let wanted = unsafe { mask(new) };
    let now = match how as c_int {
        _ if new == 0 => was,
        libc::SIG_BLOCK => was | wanted,
        libc::SIG_UNBLOCK => was & !wanted,
        libc::SIG_SETMASK => wanted,
        _ => return -c_long::from(libc::EINVAL),
    };
    // SAFETY: the kernel's 64 bits; the program's promise for the old ones.
    unsafe {
        (&raw mut *set).cast::<u64>().write(now);
        if old != 0 {
            (old as *mut u64).write_unaligned(was);
        }
    }
    0
}

/// As rt_sigprocmask, from outside of a handler.
///
/// # Safety
/// As there.
pub unsafe fn procmask([how, new, old, bytes, ..]: [c_long; 6]) -> c_long {
    if bytes != MASK_BYTES {
        return -c_long::from(libc::EINVAL);
    }
    let mut was = 0u64;
    // SAFETY: the program's promise.
    let wanted = unsafe { mask(new) };
    let at = match new {
        0 => 0,
        _ => (&raw const wanted) as c_long,
    };
    let args = [how, at, (&raw mut was) as c_long, MASK_BYTES, 0, 0];
    // SAFETY: the kernel's masks, on this stack.
    let said = unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
    if said == 0 && old != 0 {
        // SAFETY: the program's promise.
        unsafe { (old as *mut u64).write_unaligned(was) };
    }
    said
}
