//! A thread that evicts before anybody needs room, where the threads of a program that does not know this library take their faults themselves: who faults would do it else, often with a lock of the
//! program's in its hands, and a batch takes as long as several reads.
//!
//! Promises: sleeps while there is room. Never: keeps anybody from evicting by himself who finds no room.

use crate::bell::Bell;
use crate::inside;
use crate::parts::Core;
use crate::policy;
use crate::servant::Work;
use std::sync::atomic::{AtomicBool, Ordering};

/// The thread: it packs pages, and writes to the log.
pub(crate) static EVICTOR: Work = Work {
    name: "terrace-evict",
    starting: "starting a thread that evicts pages",
    stack_bytes: 256 << 10,
    bell: |core| core.little_room.as_ref(),
    run: evict,
};

fn evict(core: &Core, bell: &Bell, stop: &AtomicBool) {
    inside::run(|| {
        while !stop.load(Ordering::SeqCst) {
            if !core.evict_ahead(policy::batch_pages(core.pages_now())) {
                // What cannot leave now is left to who needs it; who finds little room from now on rings, or the next after it.
                bell.sleep(|| stop.load(Ordering::SeqCst));
            }
        }
    });
}
