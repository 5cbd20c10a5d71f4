//! What the kernel is asked for: user faults, page tables changed in batches, futexes, signals, address space.
//!
//! Promises: raw and thin, each call once and typed; what this machine cannot do is an error that says what to set. Never:
//! knows what a page is for, or allocates from the heap after a process has begun to fault.

mod advise;
mod page_tables;
mod peek;
mod pipe;
mod sigpipe;
mod table;
mod uffd;
mod wait;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

pub(crate) use advise::{Range, Unmapper};
pub(crate) use page_tables::{Going, PageTables};
pub(crate) use peek::peek;
pub(crate) use pipe::HeldPages;
pub use sigpipe::exec_as_started;
pub(crate) use table::{Table, ZeroIsValid};
pub use uffd::hold_device;
pub(crate) use uffd::{Event, Uffd};
pub(crate) use wait::{Held, Lock, Rooms, await_grace, now_ms, pause};

/// `len` bytes of addresses with nothing behind them, wherever the kernel chooses; whoever has them gives them back by munmap.
pub(crate) fn map_addresses(len: usize) -> Result<*mut std::ffi::c_void, SystemError> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address the kernel chooses overlaps nothing.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
    mapped.map_err(|errno| SystemError::Addresses {
        asked_bytes: len as u64,
        errno,
    })
}

/// What a machine must have, and what to do if it has not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SystemError {
    /// This user may not handle page faults.
    #[error(
        "user faults were refused (userfaultfd: {errno}): set the sysctl vm.unprivileged_userfaultfd=1, give the program \
         CAP_SYS_PTRACE, or let it open /dev/userfaultfd{}",
        .in_thread.then_some("").unwrap_or("; or take faults in the faulting thread, which needs no right")
    )]
    Refused {
        /// What the system said.
        errno: rustix::io::Errno,
        /// Whether faults were to be taken in the faulting thread.
        in_thread: bool,
    },
    /// The kernel is too old.
    #[error("this kernel lacks {what}: Linux {since} or later is needed")]
    TooOld {
        /// What is missing.
        what: &'static str,
        /// The first kernel that has it.
        since: &'static str,
    },
    /// Address space could not be had.
    #[error(
        "reserving {asked_bytes} bytes of addresses failed ({errno}): ask for less, or lift the limit on address space (ulimit -v, \
         and vm.overcommit_memory must not be 2)"
    )]
    Addresses {
        /// Bytes asked for.
        asked_bytes: u64,
        /// What the system said.
        errno: rustix::io::Errno,
    },
    /// Something is at the addresses that must be had.
    #[error(
        "addresses {base:#x} to {:#x} cannot be had ({errno}): something else of this process is there; close it, or begin with this pool",
        *base + *bytes
    )]
    Taken {
        /// The first.
        base: u64,
        /// How many.
        bytes: u64,
        /// What the system said.
        errno: rustix::io::Errno,
    },
    /// Another call failed.
    #[error("{what}: {errno}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        errno: rustix::io::Errno,
    },
}

impl SystemError {
    pub(crate) fn call(what: &'static str) -> impl Fn(rustix::io::Errno) -> SystemError {
        move |errno| SystemError::Call { what, errno }
    }
}
