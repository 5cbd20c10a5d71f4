//! Threads of the program are not cancelled in the middle of what this library does: the C library's functions in which they may be (read, open, usleep) would end them with locks of the runtime in hand, and
//! unwind code that cannot be unwound.
//!
//! Promises: a thread that is cancelled meanwhile is so at the next such function of the program's own. Never: changes what the program said of its thread, but until the guard is dropped; allocates.

use libc::c_int;

/// As <pthread.h> has it.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(to: c_int, was: *mut c_int) -> c_int;
}

/// Held while this thread is not cancelled.
pub struct Off {
    was: c_int,
    /// A guard belongs to its thread.
    _thread: std::marker::PhantomData<*mut ()>,
}

/// From now on this thread is not cancelled, until the guard is dropped: in the child of a fork, by the thread that is there.
pub fn off() -> Off {
    let mut was = 0;
    // SAFETY: a state that there is, and room for the one before.
    unsafe { pthread_setcancelstate(DISABLE, &mut was) };
    Off {
        was,
        _thread: std::marker::PhantomData,
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let mut was = 0;
        // SAFETY: the state that it was in, and room for the one before.
        unsafe { pthread_setcancelstate(self.was, &mut was) };
    }
}
