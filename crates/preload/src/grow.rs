//! In a fork's child: its share of the cap grows while its pages come back after they left, and falls when the process that has the pool wants some of it back (`shares`).
//!
//! Promises: nothing runs in a child that never evicts; pages leave before it is told that they did. Never: has more than it was given.

use crate::remote::Remote;
use crate::{raw, tls};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_vm::Memory;

/// Of a share, what is kept of arrays that faults go along (`vm`'s `follow`), and of pages that left: 64 bytes for each that the least share has room for.
const FOLLOW_BYTES: u64 = 68 << 10;
const REMEMBERED_ONE_IN: u64 = 128;
/// Pages that come back between two looks, for more to be worth asking for.
const AGAIN_PAGES: u64 = 32;
/// Between two looks: at first, and while it grows; and where nothing changes.
const SOON: Duration = Duration::from_millis(10);
const LATE: Duration = Duration::from_millis(500);
const STACK_BYTES: usize = 128 << 10;

/// What pages and tables may have of a share that began as the least.
pub fn buffer_bytes(share_bytes: u64, least_bytes: u64) -> usize {
    share_bytes.saturating_sub(FOLLOW_BYTES + least_bytes / REMEMBERED_ONE_IN) as usize
}

/// From the first page that leaves on, a thread asks for more where it is worth it.
pub fn watch(memory: &Memory, remote: &Arc<Remote>, least_bytes: u64) {
    let share = Share {
        memory: memory.clone(),
        remote: remote.clone(),
        least_bytes,
        has_bytes: least_bytes,
        is_full: Arc::new(AtomicBool::new(false)),
    };
    let is_full = share.is_full.clone();
    // Now, since who evicts first may be a thread of the program's within the C library.
    let thread = std::thread::Builder::new().name("terrace-share".into());
    // Without it, the share stays as it is.
    let Ok(looks) = thread.stack_size(STACK_BYTES).spawn(move || share.look()) else {
        return;
    };
    memory.on_eviction(Box::new(move || {
        if !is_full.load(Ordering::Relaxed) && !is_full.swap(true, Ordering::AcqRel) {
            looks.thread().unpark();
        }
    }));
}

struct Share {
    memory: Memory,
    remote: Arc<Remote>,
    least_bytes: u64,
    has_bytes: u64,
    /// A page was to leave.
    is_full: Arc<AtomicBool>,
}

impl Share {
    /// Until the other process is gone.
    fn look(mut self) {
        let _inside = tls::enter();
        raw::block_signals();
        while !self.is_full.load(Ordering::Acquire) {
            std::thread::park();
        }
        let (mut again, mut pause) = (0, SOON);
        loop {
            std::thread::sleep(pause);
            let now = self.memory.stats().again;
            let is_short = now - again >= AGAIN_PAGES;
            again = now;
            pause = match is_short {
                true => SOON,
                false => (pause * 2).min(LATE),
            };
            if !is_short && self.has_bytes == self.least_bytes {
                continue;
            }
            let wants = self.has_bytes * if is_short { 2 } else { 1 };
            let Ok(may) = self.remote.share(wants) else {
                return;
            };
            self.take(may);
        }
    }

    fn take(&mut self, may_bytes: u64) {
        if may_bytes == self.has_bytes {
            return;
        }
        let buffer = buffer_bytes(may_bytes, self.least_bytes);
        self.memory.set_buffer_bytes(buffer);
        if may_bytes < self.has_bytes {
            let shrunk = self.memory.shrink_to_bound();
            let (_, held) = self.memory.buffer_bytes();
            // What is in use, or could not be written back, leaves later.
            if shrunk.is_err() || held > buffer {
                return;
            }
            self.remote.gave_back(may_bytes);
        }
        self.has_bytes = may_bytes;
    }
}
