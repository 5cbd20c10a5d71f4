//! Whether a thread is inside the runtime: its own threads always, the program's while they run its code.
//!
//! Promises: reading the mark allocates nothing and takes no lock, in any thread at any time, since it lies in the thread's static block (the model
//! *initial-exec*, which a library that is there at the start may use). Never: has a destructor.

/// How deep this thread is inside. Rust has no stable way to ask for a model of thread-local storage, and the one it uses may allocate.
#[cfg(target_arch = "x86_64")]
mod word {
    std::arch::global_asm!(
        ".section .tbss.terrace_preload_inside,\"awT\",@nobits",
        ".globl terrace_preload_inside",
        ".hidden terrace_preload_inside",
        ".type terrace_preload_inside,@object",
        ".size terrace_preload_inside,4",
        ".p2align 2",
        "terrace_preload_inside:",
        ".zero 4",
        ".previous",
    );

    fn address() -> *mut u32 {
        let address: *mut u32;
        // SAFETY: the thread's own block begins where fs points, and the word's offset in it stands in the table of offsets.
        unsafe {
            std::arch::asm!(
                "mov {0}, qword ptr [rip + terrace_preload_inside@GOTTPOFF]",
                "add {0}, qword ptr fs:[0]",
                out(reg) address,
                options(pure, readonly, nostack)
            );
        }
        address
    }

    pub fn get() -> u32 {
        // SAFETY: this thread's own word, which lives as long as it.
        unsafe { address().read() }
    }

    pub fn set(depth: u32) {
        // SAFETY: as above.
        unsafe { address().write(depth) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    thread_local! {
        static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    pub fn get() -> u32 {
        DEPTH.get()
    }

    pub fn set(depth: u32) {
        DEPTH.set(depth);
    }
}

/// Whether this thread is inside: then what it asks for is the runtime's own.
#[inline]
pub fn is_inside() -> bool {
    word::get() != 0
}

/// Held while this thread is inside.
pub struct Inside {
    /// A guard belongs to its thread.
    _thread: std::marker::PhantomData<*mut ()>,
}

/// From now on this thread is inside, until the guard is dropped.
pub fn enter() -> Inside {
    word::set(word::get() + 1);
    Inside {
        _thread: std::marker::PhantomData,
    }
}

/// In the word of a thread of the runtime's own.
const OWN: u32 = 1 << 31;

/// This thread is the runtime's for good.
pub fn stay() {
    word::set(word::get() | OWN);
}

/// Whether this thread is the runtime's.
pub fn is_own() -> bool {
    word::get() & OWN != 0
}

/// In the child of a fork: ends what a guard of the parent's began in this thread.
pub fn leave() {
    word::set(word::get() - 1);
}

impl Drop for Inside {
    fn drop(&mut self) {
        word::set(word::get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_depth() {
        assert!(!is_inside());
        let outer = enter();
        let inner = enter();
        std::thread::spawn(|| assert!(!is_inside())).join().unwrap();
        drop(inner);
        assert!(is_inside());
        drop(outer);
        assert!(!is_inside());
    }

    #[test]
    fn a_thread_that_stays_is_the_runtimes() {
        std::thread::spawn(|| {
            drop(enter());
            assert!(!is_own());
            stay();
            drop(enter());
            assert!(is_inside() && is_own());
        })
        .join()
        .unwrap();
    }
}
