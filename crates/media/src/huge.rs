//! Huge pages under an arena: which of its blocks of 2 MiB are whole, and the thread that puts whole ones on one page each.
//!
//! A look at memory that misses the processor's table of addresses walks the page tables, under a hypervisor two of them at
//! every step: with data scattered over hundreds of MiB that costs more than the memory itself. The kernel puts shared
//! memory on huge pages by itself only where the administrator says so; asking for a block (MADV_COLLAPSE) always works.
//!
//! Promises: only blocks whose pieces are all taken are asked for, so no memory is held for pieces that nobody has, but
//! for the moment of the move, which takes a second copy of the block; one block at a time, with a rest after each, which
//! is short only while the process does nothing else.
//! Never: changes what memory holds, or matters to anything but speed: where the kernel refuses, all stays as it is.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Blocks of an arena.
pub(crate) const BLOCK_BYTES: usize = crate::pages::HUGE_BYTES;
/// Smaller arenas stay as they are: their addresses fit the processor's table, and a second copy of a block is much to them.
const ARENA_BYTES_MIN: usize = 64 << 20;
/// Rest after each block: so many times what moving it took, and at least [`REST_MIN`]. The kernel takes 0.3 ms for a block, and 6 where both
/// processors are busy or the hypervisor has to find the memory; whoever touches the block meanwhile waits, and a server on the same processor loses
/// that time. One part in a hundred is less than anyone measures (docs/adr/0028 has the table), but where it comes in pieces of milliseconds it is
/// the hundredth request that waits: then it is one in a thousand.
const REST_TIMES: u32 = 100;
const REST_TIMES_LONG: u32 = 1000;
/// What a client notices.
const LONG: Duration = Duration::from_micros(500);
/// What a block that moved in no time is followed by.
const REST_MIN: Duration = Duration::from_millis(40);
/// A rest is over early when the process used less than one part in so many of a processor for so long: nobody is there to wait.
const IDLE_LOOK: Duration = Duration::from_millis(20);
const IDLE_ONE_IN: u32 = 200;

/// How the kernel answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The block is on one page.
    Moved,
    /// Not now: no such page is free, or something holds a part of the block.
    Busy,
    /// Not on this system.
    Refused,
}

/// Which pieces of which block are taken.
pub(crate) struct Blocks {
    pieces_a_block: usize,
    taken: Vec<bool>,
    blocks: Vec<Block>,
    whole: Sender<usize>,
}

#[derive(Clone, Copy, Default)]
struct Block {
    taken: usize,
    /// The thread was told and did not look yet.
    told: bool,
    huge: bool,
}

impl Blocks {
    /// For an arena of these sizes, and where its thread is told of whole blocks. None: huge pages are not for it.
    pub(crate) fn new(piece_bytes: usize, pieces: usize) -> Option<(Blocks, Receiver<usize>)> {
        let arena_bytes = piece_bytes * pieces;
        if arena_bytes < ARENA_BYTES_MIN || !BLOCK_BYTES.is_multiple_of(piece_bytes) {
            return None;
        }
        let (whole, told) = channel();
        let blocks = Blocks {
            pieces_a_block: BLOCK_BYTES / piece_bytes,
            taken: vec![false; pieces],
            blocks: vec![Block::default(); arena_bytes / BLOCK_BYTES],
            whole,
        };
        Some((blocks, told))
    }

    /// A piece was taken.
    pub(crate) fn took(&mut self, piece: usize) {
        self.taken[piece] = true;
        let at = piece / self.pieces_a_block;
        // The last block may lie beyond the arena's end in part.
        let Some(block) = self.blocks.get_mut(at) else {
            return;
        };
        block.taken += 1;
        if block.taken == self.pieces_a_block && !block.told && !block.huge {
            // Nobody listens any more: the kernel refused.
            block.told = self.whole.send(at).is_ok();
        }
    }

    /// A piece is about to be given back.
    pub(crate) fn leaves(&mut self, piece: usize) {
        self.taken[piece] = false;
        if let Some(block) = self.blocks.get_mut(piece / self.pieces_a_block) {
            block.taken -= 1;
            block.huge = false;
        }
    }

    /// Whether a block that the thread was told of is still whole.
    pub(crate) fn is_whole(&mut self, at: usize) -> bool {
        self.blocks[at].told = false;
        self.blocks[at].taken == self.pieces_a_block
    }

    /// The block was moved. Pieces of it that were given back meanwhile have memory again, which nobody has: they are named.
    pub(crate) fn moved(&mut self, at: usize) -> Vec<usize> {
        let first = at * self.pieces_a_block;
        let left: Vec<usize> = (first..first + self.pieces_a_block)
            .filter(|piece| !self.taken[*piece])
            .collect();
        self.blocks[at].huge = left.is_empty();
        left
    }

    /// Bytes on huge pages.
    pub(crate) fn huge_bytes(&self) -> usize {
        self.blocks.iter().filter(|b| b.huge).count() * BLOCK_BYTES
    }
}

/// The program's signals are for the program's threads.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is filled before it is used, and the mask is this thread's own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

fn rest_after(took: Duration) -> Duration {
    let times = if took > LONG {
        REST_TIMES_LONG
    } else {
        REST_TIMES
    };
    (took * times).max(REST_MIN)
}

/// Processor time of the whole process so far.
fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether a process that used `used` of a processor in `passed` does nothing that anyone could notice.
fn is_idle(used: Duration, passed: Duration) -> bool {
    used * IDLE_ONE_IN < passed
}

/// Sleeps for `rest`, or until the process is idle.
fn rest(rest: Duration) {
    let end = Instant::now() + rest;
    loop {
        let (began, used) = (Instant::now(), process_time());
        let left = end.saturating_duration_since(began);
        std::thread::sleep(left.min(IDLE_LOOK));
        let (passed, used) = (began.elapsed(), process_time().saturating_sub(used));
        if left <= IDLE_LOOK || is_idle(used, passed) {
            return;
        }
    }
}

/// Starts the thread, which has `make_huge` done to the blocks that it is told of. It ends when that is refused, or nobody is left who would tell.
pub(crate) fn start(told: Receiver<usize>, make_huge: impl Fn(usize) -> Answer + Send + 'static) {
    let run = move || {
        block_signals();
        for block in told {
            let began = Instant::now();
            if make_huge(block) == Answer::Refused {
                return;
            }
            rest(rest_after(began.elapsed()));
        }
    };
    // Without the thread all is as it would be where the kernel refuses.
    let _ = std::thread::Builder::new()
        .name("terrace-huge".into())
        .stack_size(128 << 10)
        .spawn(run);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_a_thousand_requests_a_second_is_not_idle() {
        // 10 µs each, in 20 ms.
        assert!(!is_idle(Duration::from_micros(20 * 10), IDLE_LOOK));
        assert!(is_idle(Duration::from_micros(50), IDLE_LOOK));
    }

    #[test]
    fn a_rest_is_as_long_as_asked_for_while_the_process_works() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            // A machine that stands still for 20 ms looks as if the process did.
            let was_whole = (0..5).any(|_| {
                let began = Instant::now();
                rest(Duration::from_millis(200));
                began.elapsed() >= Duration::from_millis(200)
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(was_whole);
        });
    }
}
