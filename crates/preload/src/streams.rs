//! The functions that open streams, in front of the C library's.
//!
//! Promises: what the C library keeps of a stream lies in the arena, or is never served: it resets the locks of all streams in the child of a fork, before the child has
//! its served memory. Never: touches a stream's buffer or contents.

use crate::{dispatch, environment, next, tls};
use libc::{FILE, c_char, c_int, c_void, size_t};

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
