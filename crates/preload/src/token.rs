//! Which of a program's processes has the pool, before one has: a word that they share.
//!
//! A program that forks before it asks for memory, a daemon for example, has its memory in the child; one with many such children would open many pools
//! under one cap. Promises: one at a time has it; who died has it no more. Never: waits.

use crate::raw;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the word, before anything forks.
pub fn prepare() {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping overlaps nothing.
    let word = unsafe { raw::mmap(std::ptr::null_mut(), size_of::<u32>(), prot, flags, -1, 0) };
    if word != libc::MAP_FAILED {
        WORD.store(word.cast(), Ordering::Release);
    }
}

/// Whether this process has it now.
pub fn take() -> bool {
    // SAFETY: mapped above, for good; zeros are a value.
    let Some(word) = (unsafe { WORD.load(Ordering::Acquire).as_ref() }) else {
        return false;
    };
    let own = std::process::id();
    loop {
        let holder = word.load(Ordering::Acquire);
        // SAFETY: signal 0 asks whether the process is there.
        let is_there = holder != 0 && unsafe { libc::kill(holder as i32, 0) } == 0;
        if is_there && holder != own {
            return false;
        }
        let (before, now) = (Ordering::AcqRel, Ordering::Acquire);
        if word.compare_exchange(holder, own, before, now).is_ok() {
            return true;
        }
    }
}
