//! How a call ends: a value, or errno and a text that the thread keeps until its next failure.
//!
//! Promises: a panic becomes an error. Never: prints.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_pool::PoolError;
use terrace_vm::heap::AllocError;
use terrace_vm::kept::RegionError;
use terrace_vm::opp::HeapError;
use terrace_vm::store::ObjectError;
use terrace_vm::{StoreError, SystemError, VmError};

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub errno: c_int,
    pub text: String,
}

impl Failure {
    /// Of something that the caller passed.
    pub fn invalid(text: impl Into<String>) -> Failure {
        Failure {
            errno: libc::EINVAL,
            text: text.into(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What is said where no text of the thread's is left.
const GONE: &CStr =
    c"the thread has ended but for its destructors, and keeps no texts: errno says what was wrong";

/// Runs a call: what it returns, or `failed` with errno and the text set.
pub(crate) fn call<R>(name: &str, failed: R, run: impl FnOnce() -> Result<R, Failure>) -> R {
    let ended = catch_unwind(AssertUnwindSafe(run));
    let ended = ended.unwrap_or_else(|panic| Err(of_panic(&*panic)));
    ended.unwrap_or_else(|failure| {
        // A text with a zero byte can only come from a path; then it ends there.
        let text = format!("{name}: {}", failure.text).replace('\0', "?");
        let text = CString::new(text).unwrap_or_default();
        // In a thread that ends it may be gone already; then errno alone says what was wrong.
        let _gone = LAST.try_with(|last| last.replace(text));
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = failure.errno };
        failed
    })
}

fn of_panic(panic: &(dyn std::any::Any + Send)) -> Failure {
    let said =
        (panic.downcast_ref::<String>().map(String::as_str)).or(panic.downcast_ref().copied());
    Failure {
        errno: libc::ENOTRECOVERABLE,
        text: format!(
            "a bug in Terrace, please report it: {}",
            said.unwrap_or("no text")
        ),
    }
}

/// What the calling thread's last call that failed said, in words: what was asked, what is allowed and what to do. Never NULL; empty if none
/// failed. Valid until the thread's next call that fails. In a destructor of thread-specific data, and after main has returned, it may say only that errno has to do.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_last_error() -> *const c_char {
    let last = LAST.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or(GONE.as_ptr())
}

impl From<PoolError> for Failure {
    fn from(e: PoolError) -> Failure {
        let errno = match &e {
            PoolError::Locked { .. } => libc::EBUSY,
            PoolError::Missing(_) | PoolError::NoParent(_) => libc::ENOENT,
            PoolError::Exists(_) => libc::EEXIST,
            PoolError::Setting { .. } | PoolError::Contents { .. } => libc::EINVAL,
            e => e.errno().unwrap_or(libc::EIO),
        };
        let text = e.to_string();
        Failure { errno, text }
    }
}

fn of_system(e: &SystemError) -> c_int {
    match e {
        SystemError::Taken { .. } => libc::EADDRINUSE,
        SystemError::Addresses { .. } => libc::ENOMEM,
        // What this process has too little of is no want of the machine's.
        SystemError::Call { errno, .. } | SystemError::Refused { errno, .. } => {
            match errno.raw_os_error() {
                few @ (libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN) => few,
                _ => libc::ENOSYS,
            }
        }
        SystemError::TooOld { .. } => libc::ENOSYS,
    }
}

impl From<VmError> for Failure {
    fn from(e: VmError) -> Failure {
        let errno = match &e {
            VmError::Bounds { .. } => libc::EINVAL,
            VmError::NoAddresses { .. } | VmError::TooMany { .. } => libc::ENOMEM,
            VmError::Store(StoreError::Full { .. }) => libc::ENOMEM,
            VmError::Forked => libc::EPERM,
            VmError::System(e) => of_system(e),
            VmError::Store(_) => libc::EIO,
        };
        let text = e.to_string();
        Failure { errno, text }
    }
}

impl From<HeapError> for Failure {
    fn from(e: HeapError) -> Failure {
        let errno = match &e {
            HeapError::Memory(e) => return e.clone().into(),
            HeapError::NoTable { .. } | HeapError::TooMany { .. } => libc::ENOMEM,
            HeapError::NotAnObject { .. } | HeapError::Size { .. } | HeapError::Kept => {
                libc::EINVAL
            }
            HeapError::Store(e) => match e {
                ObjectError::Full { .. } | ObjectError::Slots { .. } => libc::ENOMEM,
                ObjectError::ReadOnly => libc::EROFS,
                ObjectError::Forked => libc::EPERM,
                ObjectError::Free { .. } => libc::ENOENT,
                ObjectError::Io { errno, .. } => *errno,
                ObjectError::Damaged { .. } => libc::EIO,
                ObjectError::Taken { .. } => libc::EINVAL,
                ObjectError::Late { .. } => libc::ETIMEDOUT,
                ObjectError::Outside { .. } => libc::E2BIG,
                ObjectError::Length { .. }
                | ObjectError::Range { .. }
                | ObjectError::NoTable { .. } => libc::EINVAL,
            },
        };
        let text = e.to_string();
        Failure { errno, text }
    }
}

impl From<RegionError> for Failure {
    fn from(e: RegionError) -> Failure {
        let errno = match e {
            RegionError::Pool(e) => return e.into(),
            RegionError::Heap(e) => return e.into(),
            RegionError::Name { .. } | RegionError::Bounds { .. } => libc::EINVAL,
            RegionError::InUse { .. } => libc::EBUSY,
            RegionError::Missing { .. } => libc::ENOENT,
            RegionError::TooMany { .. } | RegionError::NoAddresses { .. } => libc::ENOMEM,
        };
        let text = e.to_string();
        Failure { errno, text }
    }
}

impl From<AllocError> for Failure {
    fn from(e: AllocError) -> Failure {
        let errno = match e {
            AllocError::Heap(e) => return e.into(),
            AllocError::NoAddresses { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        };
        let text = e.to_string();
        Failure { errno, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let ended = call("terrace_test", -1, || panic!("seven {}", 7));
        assert_eq!(ended, -1);
        // SAFETY: never null, ends with zero, and this thread does nothing meanwhile.
        let said = unsafe { std::ffi::CStr::from_ptr(terrace_last_error()) };
        assert_eq!(
            said.to_str().unwrap(),
            "terrace_test: a bug in Terrace, please report it: seven 7"
        );
    }
}
