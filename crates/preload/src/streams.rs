//! The functions that open streams, in front of the C library's, and its list of those that are open: its lock at a fork, and what is in them at an end.
//!
//! Promises: what the C library keeps of a stream lies in the arena, or is never served: it resets the locks of all streams in the child of a fork, before the child has
//! its served memory. Never: touches a stream's buffer or contents; waits long for a stream that another thread has.

use crate::{cancel, dispatch, environment, next, tls};
use libc::{FILE, c_char, c_int, c_void, size_t};
use std::sync::OnceLock;
use std::time::Duration;

macro_rules! opens {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> *mut FILE {
                let _inside = tls::enter_for_program();
                // SAFETY: the program's promise.
                unsafe { next::$name($($arg),*) }
            }
        )*
    };
}

opens! {
    /// As fopen(3).
    fopen(path: *const c_char, mode: *const c_char);
    /// As fopen64(3).
    fopen64(path: *const c_char, mode: *const c_char);
    /// As fdopen(3).
    fdopen(fd: c_int, mode: *const c_char);
    /// As open_memstream(3).
    open_memstream(memory: *mut *mut c_char, bytes: *mut size_t);
    /// As tmpfile(3).
    tmpfile();
}

/// Contents of streams that are longer are the program's allocations, bytes: the arena does not give them back.
const CONTENTS_BYTES_MAX: size_t = 32 << 10;

/// As fmemopen(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fmemopen(
    memory: *mut c_void,
    bytes: size_t,
    mode: *const c_char,
) -> *mut FILE {
    // The stream itself is short, and what the C library allocates for itself below a KiB is never served.
    let outside = memory.is_null() && bytes > CONTENTS_BYTES_MAX;
    let _inside = (!outside).then(tls::enter_for_program);
    // SAFETY: the program's promise.
    unsafe { next::fmemopen(memory, bytes, mode) }
}

/// As popen(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let _inside = tls::enter_for_program();
    let mut copied = dispatch::Copied::new();
    // SAFETY: the program's promise. The child that it makes for a moment has pages brought in by nobody.
    unsafe {
        match copied.text(command) {
            Some(command) => {
                if dispatch::is_on() {
                    environment::touch();
                }
                next::popen(command, mode)
            }
            None => std::ptr::null_mut(),
        }
    }
}

type OfList = unsafe extern "C" fn();

/// The C library's list of open streams.
struct List {
    /// Its lock, which a thread may take several times.
    lock: OfList,
    unlock: OfList,
    /// Nobody has it, in the child of a fork.
    reset: OfList,
    /// Where the first stands.
    first: *const *mut Stream,
}

// SAFETY: functions, and the address of a variable that is there as long as the process.
unsafe impl Send for List {}
// SAFETY: likewise; the variable is read with the lock only.
unsafe impl Sync for List {}

/// None in another C library than glibc.
static LIST: OnceLock<Option<List>> = OnceLock::new();

/// As <bits/types/struct_FILE.h> has had it since glibc 2.1, where pointers have 64 bits: what the macros of old programs' getc and putc know.
#[repr(C)]
struct Stream {
    _pointers: [usize; 13],
    next: *mut Stream,
    _numbers: [u64; 3],
    lock: *mut c_void,
}

/// Times that a stream is asked for which another thread has, and between two of them.
const FLUSH_TRIES_MAX: u32 = 50;
const FLUSH_PAUSE: Duration = Duration::from_millis(2);

/// Finds the list, since nothing may be looked up at a fork.
pub fn prepare() {
    let function = |name| {
        let found = next::if_there(name);
        // SAFETY: the C library's functions of these names take nothing and answer nothing.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, OfList>(found) })
    };
    LIST.get_or_init(|| {
        let first = next::if_there(c"_IO_list_all");
        Some(List {
            lock: function(c"_IO_list_lock")?,
            unlock: function(c"_IO_list_unlock")?,
            reset: function(c"_IO_list_resetlock")?,
            first: (!first.is_null()).then_some(first.cast())?,
        })
    });
}

fn list() -> Option<&'static List> {
    LIST.get()?.as_ref()
}

/// Before a fork takes any lock of ours: the C library takes this one before malloc's, since a thread that has it may wait for a stream whose thread allocates.
pub fn lock_list() {
    if let Some(list) = list() {
        // SAFETY: it takes a lock of the C library's, of which this thread's come before.
        unsafe { (list.lock)() };
    }
}

/// Ends that in the parent.
pub fn unlock_list() {
    if let Some(list) = list() {
        // SAFETY: this thread has it.
        unsafe { (list.unlock)() };
    }
}

/// Ends that in the child, where the C library may have done so, or not, if its parent had one thread.
pub fn reset_list() {
    if let Some(list) = list() {
        // SAFETY: the only thread of a process that was forked just now.
        unsafe { (list.reset)() };
    }
}

/// What streams have is written, as at the end of a process. One that another thread keeps is left to it: it may wait in there for ever.
pub fn flush_all() {
    let _whole = cancel::off();
    let _no_signal = NoPipeSignal::begin();
    for _ in 0..FLUSH_TRIES_MAX {
        if flush_those_that_are_free() {
            break;
        }
        std::thread::sleep(FLUSH_PAUSE);
    }
}

/// Held while a pipe that nobody reads raises no signal in this thread: it would end a process that others have their memory from.
struct NoPipeSignal {
    signal: libc::sigset_t,
    before: libc::sigset_t,
}

impl NoPipeSignal {
    fn begin() -> NoPipeSignal {
        // SAFETY: sets are integers, filled before they are used; only this thread's mask changes.
        unsafe {
            let (mut signal, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut signal);
            libc::sigaddset(&mut signal, libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before);
            NoPipeSignal { signal, before }
        }
    }
}

impl Drop for NoPipeSignal {
    fn drop(&mut self) {
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: sets that were filled; what came meanwhile is taken, unless the program holds it back itself.
        unsafe {
            if libc::sigismember(&self.before, libc::SIGPIPE) == 0 {
                libc::sigtimedwait(&self.signal, std::ptr::null_mut(), &at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut());
        }
    }
}

/// Whether it was all.
fn flush_those_that_are_free() -> bool {
    unsafe extern "C" {
        static stdout: *mut FILE;
    }
    let Some(list) = list() else {
        // SAFETY: the C library's own stream.
        return unsafe { stdout.is_null() || flush(stdout) };
    };
    let mut all = true;
    lock_list();
    // SAFETY: this thread has the list's lock, without which none comes or goes. One without a lock lies on the stack of the thread that prints by it.
    unsafe {
        let mut next = list.first.read();
        while let Some(stream) = next.as_ref() {
            if !stream.lock.is_null() {
                all &= flush(next.cast());
            }
            next = stream.next;
        }
    }
    unlock_list();
    all
}

/// False: another thread has it.
///
/// # Safety
/// A stream that stays open meanwhile.
unsafe fn flush(stream: *mut FILE) -> bool {
    unsafe extern "C" {
        fn ftrylockfile(stream: *mut FILE) -> c_int;
        fn funlockfile(stream: *mut FILE);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let is_free = ftrylockfile(stream) == 0;
        if is_free {
            libc::fflush(stream);
            funlockfile(stream);
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn bytes(stream: *mut FILE) -> i64 {
        // SAFETY: a stream that is open, and room for the answer.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(libc::fileno(stream), &mut stat), 0);
            stat.st_size
        }
    }

    #[test]
    fn streams_of_all_are_flushed_but_those_that_another_thread_has() {
        unsafe extern "C" {
            fn flockfile(stream: *mut FILE);
        }
        prepare();
        let list = list().expect("glibc");
        // SAFETY: streams of this test; the list is read with its lock.
        unsafe {
            let [held, free] = [libc::tmpfile(), libc::tmpfile()];
            lock_list();
            assert_eq!(list.first.read().cast(), free);
            assert!(!(*list.first.read()).lock.is_null());
            unlock_list();
            for stream in [held, free] {
                libc::fputs(c"text".as_ptr(), stream);
                assert_eq!(bytes(stream), 0);
            }
            let (at, barrier) = (held as usize, Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    flockfile(at as *mut FILE);
                    barrier.wait();
                    barrier.wait();
                });
                barrier.wait();
                flush_all();
                assert_eq!([bytes(held), bytes(free)], [0, 4]);
                barrier.wait();
            });
        }
    }
}
