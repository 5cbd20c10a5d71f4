//! The program's environment, where the C library's functions take it from by themselves.
//!
//! Promises: nothing of it is copied or changed. Never: keeps a page of it in DRAM.

use libc::c_char;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Names and values, up to a null.
pub fn get() -> *const *const c_char {
    // SAFETY: the C library's own; who changes it meanwhile must not call what reads it, by POSIX.
    unsafe { environ }
}

/// Brings in what of it is served. popen and system hand it to a child for which nobody brings pages in, and cannot be handed another: what was touched last is mostly there still.
pub fn touch() {
    let mut at = get();
    // SAFETY: as above.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            std::hint::black_box(libc::strlen(*at));
            at = at.add(1);
        }
    }
}
