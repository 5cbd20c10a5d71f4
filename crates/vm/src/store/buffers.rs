//! Buffers and queues that a store keeps for its reads.
//!
//! Promises: what is kept is counted in the cap, and no more is kept than the limits here say; a buffer for one read is counted as long as it is lent. What a queue's
//! call takes beyond its stock in buffers of a block is counted once the call is over, [`QUEUE_READS_MAX`] at most, and what is longer as long as it is lent. Never: reads, or waits for a buffer; or lends a queue that is broken.

use super::tables::Tables;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_media::{BLOCK_BYTES, Buf, Disk};
use terrace_pool::{Ledger, Mutex, Part, Pool};

/// Buffers that are kept for reuse, beside those on the huge page, and the length of each: what an entry of one page spans.
const SPARE_MAX: usize = 64;
pub(super) const SPARE_BYTES: usize = 16 << 10;
/// Long buffers, one for each call that reads objects together, and their length: 32 entries of a page side by side.
pub(super) const LONG_MAX: usize = 2;
pub(super) const LONG_BYTES: usize = 192 << 10;
/// Under caps from here on buffers are on one huge page, as many as fit: it is a fiftieth of the cap (docs/adr/0053).
const HUGE_PAGE_CAP_MIN_BYTES: u64 = 100 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Calls that have a queue at once.
const QUEUES_MAX: usize = 32;
/// Reads of one queue under way at once.
pub(super) const QUEUE_READS_MAX: usize = 64;

/// Buffers of a store.
#[derive(Default)]
pub(super) struct Buffers {
    spare: Mutex<Vec<Buf>>,
    long: Mutex<Vec<Buf>>,
    long_made: AtomicUsize,
}

impl Buffers {
    /// With those that there are from the beginning.
    pub fn new(ledger: &Ledger) -> Buffers {
        let mut lens = vec![LONG_BYTES; LONG_MAX];
        let left = HUGE_PAGE_BYTES - lens.iter().sum::<usize>();
        lens.resize(lens.len() + left / SPARE_BYTES, SPARE_BYTES);
        let made = match ledger.cap_bytes() >= HUGE_PAGE_CAP_MIN_BYTES {
            true => Buf::side_by_side(&lens),
            false => None,
        };
        let Some(mut long) = made else {
            return Buffers::default();
        };
        ledger.change(Part::Io, 0, HUGE_PAGE_BYTES as u64);
        let spare = long.split_off(LONG_MAX);
        Buffers {
            spare: Mutex::new(spare),
            long_made: AtomicUsize::new(long.len()),
            long: Mutex::new(long),
        }
    }

    /// A buffer for `len` bytes.
    pub fn take(&self, ledger: &Ledger, len: usize) -> Buf {
        if len > SPARE_BYTES {
            let buf = Buf::zeroed(len);
            ledger.change(Part::Io, 0, buf.len() as u64);
            return buf;
        }
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| {
            ledger.change(Part::Io, 0, SPARE_BYTES as u64);
            Buf::zeroed(SPARE_BYTES)
        })
    }

    /// A long one, if there is one left.
    pub fn take_long(&self, ledger: &Ledger) -> Option<Buf> {
        if let Some(buf) = self.long.lock().pop() {
            return Some(buf);
        }
        if self.long_made.fetch_add(1, Ordering::Relaxed) >= LONG_MAX {
            self.long_made.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        ledger.change(Part::Io, 0, LONG_BYTES as u64);
        Some(Buf::zeroed(LONG_BYTES))
    }

    /// Gives one back that `take` gave.
    pub fn keep(&self, ledger: &Ledger, buf: Buf) {
        if buf.len() == SPARE_BYTES {
            let mut spare = self.spare.lock();
            if buf.is_beside_others() || spare.len() < SPARE_MAX {
                spare.push(buf);
                return;
            }
        }
        ledger.change(Part::Io, buf.len() as u64, 0);
    }

    /// Gives one back that `take_long` gave.
    pub fn keep_long(&self, buf: Buf) {
        self.long.lock().push(buf);
    }
}

/// Memory of a caller's for what it reads, in the cap until this is dropped.
pub(crate) struct Counted<'a> {
    ledger: &'a Ledger,
    bytes: u64,
}

impl Counted<'_> {
    pub fn new(ledger: &Ledger, bytes: u64) -> Counted<'_> {
        ledger.change(Part::Io, 0, bytes);
        Counted { ledger, bytes }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.ledger.change(Part::Io, self.bytes, 0);
    }
}

/// A queue of the device, with buffers of one block: its own, or where there are none such that were used before.
pub(super) struct Queue {
    pub disk: Box<dyn Disk>,
    stock_bytes: usize,
    blocks: Vec<Buf>,
    /// What of it is in the ledger.
    counted: u64,
}

impl Queue {
    pub fn buf(&mut self, ledger: &Ledger, len: usize) -> Buf {
        let spare = || (len <= BLOCK_BYTES).then(|| self.blocks.pop()).flatten();
        let buf = self.disk.lend(len).or_else(spare);
        let mut buf = buf.unwrap_or_else(|| {
            let buf = Buf::zeroed(len);
            self.count_long(ledger, 0, long_bytes(&buf));
            buf
        });
        buf.set_len(len);
        buf
    }
    pub fn keep(&mut self, ledger: &Ledger, buf: Buf) {
        if !buf.is_lent() {
            self.count_long(ledger, long_bytes(&buf), 0);
        }
        if !buf.is_lent()
            && buf.capacity_bytes() == BLOCK_BYTES
            && self.blocks.len() < QUEUE_READS_MAX
        {
            self.blocks.push(buf);
        }
    }
    fn count_long(&mut self, ledger: &Ledger, before: u64, after: u64) {
        if before == after {
            return;
        }
        ledger.change(Part::Io, before, after);
        self.counted = self.counted + after - before;
    }
}

/// What a buffer takes, if it is longer than a block.
fn long_bytes(buf: &Buf) -> u64 {
    match buf.capacity_bytes() {
        ..=BLOCK_BYTES => 0,
        long => long as u64,
    }
}

/// Queues of a store.
#[derive(Default)]
pub(super) struct Queues {
    idle: Mutex<Vec<Queue>>,
    made: AtomicUsize,
}

impl Queues {
    /// A queue that nobody has, if there is one left and the device gives it.
    pub fn take(&self, pool: &Pool<Tables>) -> Option<Queue> {
        if let Some(queue) = self.idle.lock().pop() {
            return Some(queue);
        }
        if self.made.fetch_add(1, Ordering::Relaxed) >= QUEUES_MAX {
            self.made.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        match pool.device().queue(QUEUE_READS_MAX as u32) {
            Ok(mut disk) => {
                let stock_bytes = disk.stock_up(QUEUE_READS_MAX as u16, BLOCK_BYTES);
                let counted = stock_bytes as u64;
                pool.ledger().change(Part::Io, 0, counted);
                Some(Queue {
                    disk,
                    stock_bytes,
                    blocks: Vec::new(),
                    counted,
                })
            }
            // One by one it goes as well.
            Err(_) => {
                self.made.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Gives it back. One that is broken is nobody's any more: the next call makes another, or goes without.
    pub fn keep(&self, ledger: &Ledger, mut queue: Queue) {
        if queue.disk.is_broken() {
            ledger.change(Part::Io, queue.counted, 0);
            self.made.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let held = (queue.blocks.len() * BLOCK_BYTES + queue.stock_bytes) as u64;
        ledger.change(Part::Io, queue.counted, held);
        // Also where one that was lent did not come back.
        queue.counted = held;
        self.idle.lock().push(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{device, options, pool};
    use super::*;
    use terrace_media::{Done, Op, Wait};

    /// A queue whose ring the system does not serve any more.
    struct Broken;

    impl Disk for Broken {
        fn submit(&mut self, _token: u64, _op: Op) {}
        fn kick(&mut self) {}
        fn reap(&mut self, _wait: Wait, _done: &mut Vec<Done>) {}
        fn in_flight(&self) -> usize {
            0
        }
        fn is_broken(&self) -> bool {
            true
        }
        fn poll_fd(&self) -> Option<i32> {
            None
        }
    }

    #[test]
    fn long_buffers_of_a_queue_are_counted_while_they_are_lent() {
        const LEN: usize = 72 << 10;
        let device = device(&options(false), 128, 3);
        let (pool, queues) = (pool(&device, options(false)), Queues::default());
        let ledger = pool.ledger();
        let mut queue = queues.take(&pool).expect("a queue");
        let before = ledger.held(Part::Io);
        let mut bufs: Vec<Buf> = (0..QUEUE_READS_MAX)
            .map(|_| queue.buf(ledger, LEN))
            .collect();
        let lent = (QUEUE_READS_MAX * LEN) as u64;
        assert_eq!(ledger.held(Part::Io), before + lent);
        // As short as what was read into it was.
        bufs[0].set_len(10);
        let lost = bufs.pop();
        bufs.into_iter().for_each(|buf| queue.keep(ledger, buf));
        assert_eq!(ledger.held(Part::Io), before + LEN as u64);
        // One that the device never gave back is not counted for ever.
        queues.keep(ledger, queue);
        drop(lost);
        assert_eq!(ledger.held(Part::Io), before);
    }

    #[test]
    fn a_queue_that_broke_is_not_lent_again() {
        let device = device(&options(false), 128, 3);
        let (pool, queues) = (pool(&device, options(false)), Queues::default());
        let before = pool.ledger().held(Part::Io);
        for _ in 0..2 * QUEUES_MAX {
            let mut queue = queues.take(&pool).expect("another");
            assert!(!queue.disk.is_broken());
            queue.disk = Box::new(Broken);
            queues.keep(pool.ledger(), queue);
        }
        assert_eq!(pool.ledger().held(Part::Io), before);
    }
}
