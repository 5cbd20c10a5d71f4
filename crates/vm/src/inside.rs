//! Which threads are inside the runtime, and whose signal handlers wait (`Quiet`).
//!
//! Promises: while a thread is inside, its signal handlers wait, and a fault of its own in a region ends the program with a
//! message: the runtime does not touch what it serves. Never: waits.

use crate::error::VmError;
use crate::parts::Core;
use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// How many [`Held`] this thread has.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// How deep this thread is inside.
pub(crate) fn depth() -> u32 {
    DEPTH.get()
}

/// Runs `work` as part of the runtime, without waiting signals: where they are blocked already, or for a moment.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    /// Counts down on a panic as well.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _leave = Leave;
    work()
}

/// Signals that a thread's own instructions raise.
pub const RAISED: [i32; 7] = [
    libc::SIGBUS,
    libc::SIGSEGV,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
];

/// Signals that wait while a thread is inside: all but those that its own instructions raise. As the mask of a handler it also has those by which the C library cancels a thread and changes its user, which
/// sigfillset leaves out (and pthread_sigmask lets be): a thread that may be cancelled at any instruction would be so in the middle of a fault, with locks in hand.
pub fn deferred() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a set is a bit for each signal, all of which may be set; then signals are taken out of it.
    unsafe {
        set.as_mut_ptr().write_bytes(0xff, 1);
        for signal in RAISED {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Held by a thread that has made the signals of [`deferred`] wait itself, from before this was made until after it is dropped: what it calls here meanwhile does not. Who has more to do than that call
/// needs it: signals that came would be handled as soon as the call is over, in the middle of the rest.
pub struct Held {
    /// A guard belongs to its thread.
    _thread: std::marker::PhantomData<*mut ()>,
}

impl Held {
    /// See there.
    #[allow(clippy::new_without_default)] // It says something of this thread, which nothing does by default.
    pub fn new() -> Held {
        HELD.set(HELD.get() + 1);
        Held {
            _thread: std::marker::PhantomData,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// Held by a thread whose signal handlers wait meanwhile: it has what they might ask for.
pub(crate) struct Quiet {
    /// None: they waited already.
    before: Option<libc::sigset_t>,
    /// A guard belongs to its thread.
    _thread: std::marker::PhantomData<*mut ()>,
}

impl Quiet {
    pub fn new() -> Quiet {
        let block = || {
            let mut before = MaybeUninit::uninit();
            // SAFETY: sets of the right type; blocking signals of our own thread has no other effect.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &deferred(), before.as_mut_ptr());
                before.assume_init()
            }
        };
        Quiet {
            before: (HELD.get() == 0).then(block),
            _thread: std::marker::PhantomData,
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the set that was in force before, in the same thread.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

/// Held by a thread that is inside because it called.
pub(crate) struct Inside {
    /// Ends after the drop, when the thread is outside.
    _quiet: Quiet,
}

impl Inside {
    /// Error: this process is a fork of the one that the memory belongs to.
    pub fn enter(core: &Core) -> Result<Inside, VmError> {
        core.check_not_forked()?;
        let quiet = Quiet::new();
        DEPTH.set(DEPTH.get() + 1);
        Ok(Inside { _quiet: quiet })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}
