//! The thread that waits for the kernel to free page tables that were given back (`grace`).
//!
//! Promises: who waits for room is told when there are fewer. Never: does anything else.

use crate::bell::Bell;
use crate::parts::Core;
use crate::servant::Work;
use crate::sys::await_grace;
use std::sync::atomic::{AtomicBool, Ordering};

/// The thread that waits for the kernel: it calls it and does nothing else.
pub(crate) static WATCH: Work = Work {
    name: "terrace-tables",
    starting: "starting a thread that watches page tables",
    stack_bytes: 64 << 10,
    bell: |core| Some(&core.grace.bell),
    run: watch,
};

fn watch(core: &Core, bell: &Bell, stop: &AtomicBool) {
    let grace = &core.grace;
    while !stop.load(Ordering::SeqCst) {
        if grace.tables() == 0 {
            bell.sleep(|| grace.tables() > 0 || stop.load(Ordering::SeqCst));
            continue;
        }
        let given_back = grace.given_back.load(Ordering::SeqCst);
        await_grace();
        grace.freed.store(given_back, Ordering::SeqCst);
        core.tell_waiting();
    }
}
