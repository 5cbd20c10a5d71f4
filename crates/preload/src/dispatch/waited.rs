//! How threads wait for a mutex of the C library's and wake each other, by the protocol of its word, beside those that do so by the C library's own code.
//!
//! | the word | means | becomes |
//! |---|---|---|
//! | 0 | free | taken, by who takes it; by the C library's code after a wait waited for |
//! | 1 | taken | waited for, by who finds it taken; free, by who has it |
//! | 2 | taken, and somebody may sleep until the word is another and he is woken | free, and one is woken; or taken, by who has it and wakes one later |
//!
//! Promises: who sleeps is woken after the mutex was given back, as long as each that was woken and took it says for those that still sleep that it is waited for. Never: makes a call itself; what it runs on is checked by loom (`tests/e2e/waiting.rs`).

use crate::sync::atomic::{AtomicI32, Ordering};

/// Nobody has it.
pub const FREE: i32 = 0;
/// Somebody has it.
pub const TAKEN: i32 = 1;
/// Somebody has it, and others may sleep.
pub const WAITED_FOR: i32 = 2;

/// A mutex, and what the C library and the kernel do to it.
pub trait Mutex {
    /// What they refuse with.
    type Error;

    /// Its word.
    fn word(&self) -> &AtomicI32;
    /// Takes it if it is free, as the C library does; whether it was.
    fn try_take(&self) -> Result<bool, Self::Error>;
    /// Gives it back, as the C library does, which wakes one if the word says that it is waited for.
    fn give(&self) -> Result<(), Self::Error>;
    /// Sleeps if the word is [`WAITED_FOR`], until it is woken; may return before.
    fn sleep(&self);
    /// Wakes one that sleeps. It may be gone: its address alone is used.
    fn wake(&self);
}

/// Says that a mutex that is taken is waited for; what it was, if it was not only taken.
fn say_waited_for(word: &AtomicI32) -> Result<i32, i32> {
    let relaxed = Ordering::Relaxed;
    word.compare_exchange(TAKEN, WAITED_FOR, relaxed, relaxed)
}

/// Takes a mutex that somebody has, once it is given back.
pub fn take<M: Mutex>(mutex: &M) -> Result<(), M::Error> {
    loop {
        if say_waited_for(mutex.word()) != Err(FREE) {
            mutex.sleep();
        }
        if mutex.try_take()? {
            // For others that sleep since before; or one wake too many.
            let _ = say_waited_for(mutex.word());
            return Ok(());
        }
    }
}

/// Gives a mutex back that may be waited for, and wakes one of those who wait.
pub fn give<M: Mutex>(mutex: &M) -> Result<(), M::Error> {
    let relaxed = Ordering::Relaxed;
    // Who sleeps does so until it is woken below. Who comes between says so again, and the C library wakes it. (With a plain store loom loses a wake.)
    let was = mutex
        .word()
        .compare_exchange(WAITED_FOR, TAKEN, relaxed, relaxed);
    mutex.give()?;
    if was.is_ok() {
        mutex.wake();
    }
    Ok(())
}
