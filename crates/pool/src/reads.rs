//! Reads of the device that a worker's commands wait for.
//!
//! Promises: each read begun ends in one `Fetched` of its task, or, if the task is gone by
//! then, in the hold on its segment being handed back to be let go. Never: submits, locks a
//! lane, or keeps more than [`spare_max_bytes`] of buffers.

use crate::task::{Fetched, Keep, Task, buf_bytes};
use slab::Slab;
use terrace_media::{BLOCK_BYTES, Buf, Disk, Done};
use terrace_tiers::ReadPlan;

/// In the tokens of reads at the device.
pub(crate) const TOKEN_READ: u64 = 1 << 62;
/// Read buffers kept for reuse, of all lengths together, and what part of the cap those of all threads may take.
const SPARE_MAX_BYTES: u64 = 512 << 10;
const SPARE_ONE_IN: u64 = 128;
/// Longest read whose buffer is kept, blocks.
const SPARE_BLOCKS_MAX: usize = 4;
/// Buffers that the device reads into at less cost: an entry of a kilobyte or two lies in two blocks at most.
const STOCK_BUFS: u16 = 32;
const STOCK_BUF_BYTES: usize = 2 * BLOCK_BYTES;

struct Read {
    task: usize,
    lane: u16,
    plan: ReadPlan,
    keys_only: bool,
}

struct TaskReads {
    owner: u64,
    under_way: usize,
    cancelled: bool,
    finished: Vec<Fetched>,
}

/// All of a worker's.
#[derive(Default)]
pub(crate) struct Reads {
    reads: Slab<Read>,
    /// By `Task::reads`.
    tasks: Slab<TaskReads>,
    /// By blocks.
    spare_bufs: [Vec<Buf>; SPARE_BLOCKS_MAX],
    spare_bytes: usize,
    spare_max_bytes: usize,
    /// Owners of tasks whose reads are finished.
    pub(crate) ready: Vec<u64>,
    /// What the queue's own buffers take, bytes; None: it was not asked for any.
    stock_bytes: Option<usize>,
}

/// What came of a read.
pub(crate) struct Ended {
    pub lane: u16,
    /// Bytes that its buffer took, and bytes that are kept for the task.
    pub len_bytes: usize,
    pub kept_bytes: usize,
    pub damaged: bool,
    /// Its task is gone: this segment's hold must be let go.
    pub unpin: Option<u32>,
}

fn spare_at(len: usize) -> Option<usize> {
    let blocks = buf_bytes(len) / BLOCK_BYTES;
    (1..=SPARE_BLOCKS_MAX).contains(&blocks).then(|| blocks - 1)
}

/// What each of `threads` may keep of buffers under a cap, bytes.
pub(crate) fn spare_max_bytes(cap_bytes: u64, threads: usize) -> usize {
    (cap_bytes / SPARE_ONE_IN / threads.max(1) as u64).min(SPARE_MAX_BYTES) as usize
}

/// What a spare buffer takes.
fn spare_at_bytes(at: usize) -> usize {
    (at + 1) * BLOCK_BYTES
}

impl Reads {
    /// Of a worker that may keep so many bytes of buffers.
    pub(crate) fn new(spare_max_bytes: usize) -> Reads {
        Reads {
            spare_max_bytes,
            ..Reads::default()
        }
    }

    /// Has the queue make buffers of its own, once; answers what that takes more, bytes.
    pub(crate) fn stock_up(&mut self, disk: &mut dyn Disk) -> usize {
        if self.stock_bytes.is_some() {
            return 0;
        }
        let bytes = disk.stock_up(STOCK_BUFS, STOCK_BUF_BYTES);
        self.stock_bytes = Some(bytes);
        bytes
    }

    /// What the queue's own buffers take, bytes.
    pub(crate) fn stock_bytes(&self) -> usize {
        self.stock_bytes.unwrap_or(0)
    }

    fn buf(&mut self, disk: &mut dyn Disk, len: usize) -> Buf {
        let buf = disk.lend(len).or_else(|| self.take_spare(spare_at(len)?));
        let mut buf = buf.unwrap_or_else(|| Buf::zeroed(len));
        buf.set_len(len);
        buf
    }

    /// What buffers that are kept for reuse take, bytes.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.spare_bytes
    }

    fn take_spare(&mut self, at: usize) -> Option<Buf> {
        let buf = self.spare_bufs[at].pop()?;
        self.spare_bytes -= spare_at_bytes(at);
        Some(buf)
    }

    /// Keeps a buffer. Those of lengths that are not read any more make way, the longest first.
    fn keep_spare(&mut self, at: usize, buf: Buf) {
        self.spare_bufs[at].push(buf);
        self.spare_bytes += spare_at_bytes(at);
        while self.spare_bytes > self.spare_max_bytes {
            let others = (0..SPARE_BLOCKS_MAX).rev();
            let other = others
                .filter(|o| *o != at)
                .find(|o| !self.spare_bufs[*o].is_empty());
            self.take_spare(other.unwrap_or(at));
        }
    }

    /// Notes a read of `task` by `disk`; answers its token and a buffer for it.
    pub(crate) fn begin(
        &mut self,
        disk: &mut dyn Disk,
        task: &mut Task,
        lane: u16,
        plan: ReadPlan,
        keys_only: bool,
    ) -> (usize, Buf) {
        let at = *task.reads.get_or_insert_with(|| {
            self.tasks.insert(TaskReads {
                owner: task.owner,
                under_way: 0,
                cancelled: false,
                finished: Vec::new(),
            })
        });
        self.tasks[at].under_way += 1;
        task.under_way += 1;
        let token = self.reads.insert(Read {
            task: at,
            lane,
            plan,
            keys_only,
        });
        (token, self.buf(disk, plan.len))
    }

    /// How many reads are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.reads.len()
    }

    /// Moves finished reads into the task. False: some are still under way.
    pub(crate) fn collect(&mut self, task: &mut Task) -> bool {
        let Some(at) = task.reads else { return true };
        let reads = &mut self.tasks[at];
        task.take_in(&mut reads.finished);
        task.under_way = reads.under_way;
        if reads.under_way == 0 {
            self.tasks.remove(at);
            task.reads = None;
        }
        task.under_way == 0
    }

    /// What `task` still reads is dropped when it comes.
    pub(crate) fn cancel(&mut self, task: &mut Task) {
        if !self.collect(task)
            && let Some(at) = task.reads.take()
        {
            self.tasks[at].cancelled = true;
        }
    }

    /// The read of `token` ended. None: there is no such read.
    pub(crate) fn ended(&mut self, token: usize, d: Done) -> Option<Ended> {
        let read = self.reads.try_remove(token)?;
        let is_first = self.tasks[read.task].finished.is_empty();
        // Of many reads copies take a quarter of the memory, which a large command needs for what it changes; and a buffer that is not
        // lent is wanted for the next read.
        let keep = match is_first && d.buf.as_ref().is_some_and(Buf::is_lent) {
            _ if read.keys_only => Keep::Key,
            true => Keep::Buffer,
            false => Keep::Copy,
        };
        let (fetched, buf) = match d.buf {
            Some(buf) => Fetched::new(read.lane, read.plan, d.result, buf, keep),
            // The ring broke, and the kernel may write to it still.
            None => (Fetched::lost(read.lane, read.plan, d.result), None),
        };
        if let Some(buf) = buf
            && !buf.is_lent()
            && let Some(at) = spare_at(read.plan.len)
        {
            self.keep_spare(at, buf);
        }
        let reads = &mut self.tasks[read.task];
        reads.under_way -= 1;
        let mut ended = Ended {
            lane: read.lane,
            len_bytes: buf_bytes(read.plan.len),
            kept_bytes: fetched.kept_bytes(),
            damaged: fetched.entry().is_err() || fetched.damage().is_some(),
            unpin: None,
        };
        match reads.cancelled {
            true => {
                ended.unpin = Some(read.plan.segment);
                ended.kept_bytes = 0;
                if reads.under_way == 0 {
                    self.tasks.remove(read.task);
                }
            }
            false => {
                reads.finished.push(fetched);
                if reads.under_way == 0 {
                    self.ready.push(reads.owner);
                }
            }
        }
        Some(ended)
    }
}
