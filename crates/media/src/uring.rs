//! A queue over io_uring: submission, completion, and the wait for it.
//!
//! Promises: an operation's buffer stays in its slot until the kernel has answered, also when the
//! queue is dropped or the ring breaks (then the memory is leaked rather than freed under the
//! device). What moves in part is resumed, or reported as short.
//! Never: more operations in the kernel than slots, so the completion ring cannot overflow.

use crate::disk::SharedCounters;
use crate::stock::Stock;
use crate::{Buf, Disk, Done, MediaError, Op, Wait, descriptors};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often an operation that the kernel answers with EINTR or EAGAIN is handed in again.
const RESUBMITS_MAX: u8 = 8;
/// How often the ring itself may answer EINTR, EAGAIN or EBUSY in a row before it counts as broken.
const ENTER_RETRIES_MAX: u32 = 10_000;
/// Where the ring's table of buffers has the stock: it is the only one there.
const STOCK_INDEX: u16 = 0;
/// One wait of the destructor for what is still in the kernel.
const DROP_WAIT: Duration = Duration::from_millis(100);

/// Who runs the kernel's part of a completion, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRun {
    /// At once, by interrupting the thread; works on every kernel with io_uring.
    Interrupt,
    /// At the thread's next system call, without an interrupt (Linux 5.19).
    Coop,
    /// Only when the thread reaps (Linux 6.1). The thread that uses the queue first owns it, and
    /// there is no descriptor to poll: Linux 6.18 was seen not to wake a poll on such a ring.
    Defer,
}

/// How a queue waits. The defaults are chosen by measurement; see docs/adr/0002-completion-wait.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// How the kernel hands over completions; steps down to what the kernel has.
    pub task_run: TaskRun,
    /// How long a wait looks at the completion queue, in microseconds, before it sleeps.
    pub spin_us: u32,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            task_run: TaskRun::Coop,
            spin_us: 0,
        }
    }
}

/// A ring broke with operations under way, which nobody waits for.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether any ring of this process did.
pub(crate) fn has_left_operations() -> bool {
    LEFT.load(Ordering::Relaxed)
}

struct Slot {
    token: u64,
    op: Op,
    moved_bytes: usize,
    resubmits: u8,
}

pub(crate) struct UringDisk {
    ring: IoUring,
    file: Arc<File>,
    /// The ring holds the file in its own table, so that no operation looks it up.
    file_is_fixed: bool,
    /// Buffers that the ring holds, too.
    stock: Option<Arc<Stock>>,
    device_bytes: u64,
    read_unit_bytes: usize,
    spin: Duration,
    counters: Arc<SharedCounters>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    backlog: VecDeque<(u64, Op)>,
    /// Operations that ended without the kernel.
    ready: Vec<Done>,
    completions: Vec<(usize, i32)>,
    /// Set when the ring itself failed: from then on every operation ends with this errno.
    broken: Option<i32>,
    /// Who made it.
    process: u32,
    /// The ring starts disabled, so that the thread that uses it first becomes its owner.
    starts_disabled: bool,
}

/// Builds a ring, stepping down to what the kernel has. The ring has the features waiting needs.
pub(crate) fn build_ring(depth: u32, task_run: TaskRun) -> std::io::Result<(IoUring, TaskRun)> {
    let steps: &[TaskRun] = match task_run {
        TaskRun::Defer => &[TaskRun::Defer, TaskRun::Coop, TaskRun::Interrupt],
        TaskRun::Coop => &[TaskRun::Coop, TaskRun::Interrupt],
        TaskRun::Interrupt => &[TaskRun::Interrupt],
    };
    let mut refused = std::io::Error::from(Errno::INVAL);
    for &step in steps {
        let mut builder = IoUring::builder();
        match step {
            TaskRun::Defer => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_taskrun_flag();
                builder.setup_submit_all().setup_r_disabled();
            }
            TaskRun::Coop => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            TaskRun::Interrupt => {}
        }
        match builder.build(depth) {
            Ok(ring)
                if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() =>
            {
                return Err(Errno::OPNOTSUPP.into());
            }
            Ok(ring) => return Ok((keep(ring)?, step)),
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => refused = e,
            Err(e) => return Err(e),
        }
    }
    Err(refused)
}

/// A ring for what can be done without it. None: there is none to be had, or only at the cost of a number of the program's.
pub(crate) fn build_spare_ring(depth: u32) -> Option<IoUring> {
    let (ring, _) = build_ring(depth, TaskRun::Coop).ok()?;
    if !descriptors::is_moved(ring.as_raw_fd()) {
        descriptors::unlist(ring.as_raw_fd());
        return None;
    }
    Some(ring)
}

/// The ring at a number that stays (`descriptors`): the crate has no other way than one more ring of its own over the same queues.
fn keep(ring: IoUring) -> std::io::Result<IoUring> {
    if !descriptors::are_kept() {
        return Ok(ring);
    }
    // SAFETY: only used to make another descriptor of it, while the ring is there.
    let low = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    let high = descriptors::keep(low.try_clone_to_owned()?);
    // SAFETY: a descriptor of a ring that was made with these parameters, which nobody else owns.
    unsafe { IoUring::from_fd(high.into_raw_fd(), ring.params().clone()) }
}

/// The submission entry for what is left of an operation on the file `$fd`, which has one of two types; reads into `$stock` are told so.
macro_rules! entry_of {
    ($slot:expr, $fd:expr, $stock:expr) => {{
        let slot: &mut Slot = $slot;
        let moved = slot.moved_bytes;
        let offset = slot.op.offset() + moved as u64;
        let len = (slot.op.len() - moved) as u32;
        match &mut slot.op {
            Op::Read { buf, .. } if $stock.is_some_and(|stock| buf.is_of(stock)) => {
                opcode::ReadFixed::new($fd, buf[moved..].as_mut_ptr(), len, STOCK_INDEX)
                    .offset(offset)
                    .build()
            }
            Op::Read { buf, .. } => opcode::Read::new($fd, buf[moved..].as_mut_ptr(), len)
                .offset(offset)
                .build(),
            Op::Write { data, .. } => opcode::Write::new($fd, data[moved..].as_ptr(), len)
                .offset(offset)
                .build(),
            Op::WriteThrough { data, .. } => opcode::Write::new($fd, data[moved..].as_ptr(), len)
                .offset(offset)
                .rw_flags(libc::RWF_DSYNC)
                .build(),
            Op::WriteBuf { buf, .. } => opcode::Write::new($fd, buf[moved..].as_ptr(), len)
                .offset(offset)
                .build(),
            Op::Flush => opcode::Fsync::new($fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        }
    }};
}

impl UringDisk {
    pub(crate) fn new(
        file: Arc<File>,
        device_bytes: u64,
        read_unit_bytes: usize,
        depth: u32,
        options: QueueOptions,
        counters: Arc<SharedCounters>,
    ) -> std::io::Result<UringDisk> {
        let (ring, task_run) = build_ring(depth, options.task_run)?;
        // Where the kernel does not take it, each operation names the file by its descriptor.
        let file_is_fixed = ring.submitter().register_files(&[file.as_raw_fd()]).is_ok();
        Ok(UringDisk {
            ring,
            file_is_fixed,
            stock: None,
            file,
            device_bytes,
            read_unit_bytes,
            spin: Duration::from_micros(options.spin_us.into()),
            counters,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth as usize).rev().collect(),
            backlog: VecDeque::new(),
            ready: Vec::new(),
            completions: Vec::with_capacity(depth as usize),
            broken: None,
            process: std::process::id(),
            starts_disabled: task_run == TaskRun::Defer,
        })
    }

    fn in_kernel(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Moves the backlog into free slots and their entries onto the submission ring.
    fn fill_slots(&mut self) {
        while self.broken.is_none() {
            let Some(&index) = self.free.last() else {
                return;
            };
            let Some((token, op)) = self.backlog.pop_front() else {
                return;
            };
            self.free.pop();
            self.slots[index] = Some(Slot {
                token,
                op,
                moved_bytes: 0,
                resubmits: 0,
            });
            self.push_entry(index);
        }
    }

    fn push_entry(&mut self, index: usize) {
        let slot = self.slots[index]
            .as_mut()
            .expect("only filled slots are pushed");
        let stock = self.stock.as_ref();
        let entry = match self.file_is_fixed {
            true => entry_of!(slot, types::Fixed(0), stock),
            false => entry_of!(slot, types::Fd(self.file.as_raw_fd()), stock),
        };
        let entry = entry.user_data(index as u64);
        // SAFETY: the entry points into a buffer owned by the slot, which keeps it until the
        // kernel has answered (see `finish`, `break_ring` and `drop`); the file outlives the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // Each slot has at most one entry there, and the ring has at least as many as slots.
        assert!(
            pushed.is_ok(),
            "the submission ring has room for every slot"
        );
    }

    /// One `io_uring_enter`: submits what is on the ring, and with `wait` sleeps until a
    /// completion or the time. Returns when it made sense of the answer.
    fn enter(&mut self, wait: Option<Duration>) {
        if self.broken.is_some() || !self.enable() {
            return;
        }
        for _ in 0..ENTER_RETRIES_MAX {
            let entered = match wait {
                None => self.ring.submitter().submit(),
                Some(time) => {
                    let timespec = types::Timespec::from(time);
                    let args = types::SubmitArgs::new().timespec(&timespec);
                    self.ring.submitter().submit_with_args(1, &args)
                }
            };
            match entered.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
                Ok(_) | Err(Errno::TIME) => return,
                // The kernel is short of memory or wants completions taken first: let the caller
                // reap, and come back with the next kick.
                #[expect(clippy::disallowed_methods, reason = "rare, and the kernel needs time")]
                Err(Errno::AGAIN | Errno::BUSY) => return std::thread::yield_now(),
                Err(Errno::INTR) if wait.is_some() => return,
                Err(Errno::INTR) => {}
                Err(errno) => return self.break_ring(errno.raw_os_error()),
            }
        }
        self.break_ring(Errno::INTR.raw_os_error());
    }

    /// The first use makes this thread the owner of a ring with deferred completions.
    fn enable(&mut self) -> bool {
        if std::mem::take(&mut self.starts_disabled)
            && let Err(e) = self.ring.submitter().register_enable_rings()
        {
            self.break_ring(e.raw_os_error().unwrap_or(Errno::IO.raw_os_error()));
        }
        self.broken.is_none()
    }

    /// The ring refuses to be served: ends everything with this errno. Buffers that the kernel
    /// may still use are leaked, never freed or given back.
    #[cold]
    fn break_ring(&mut self, errno: i32) {
        self.broken = Some(errno);
        LEFT.store(true, Ordering::Relaxed);
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            let result = Err(slot.op.io_error(errno));
            self.ready.push(Done {
                token: slot.token,
                result,
                buf: None,
            });
            std::mem::forget(slot.op);
        }
        self.free = (0..self.slots.len()).rev().collect();
        for (token, op) in self.backlog.drain(..) {
            let result = Err(op.io_error(errno));
            self.ready.push(Done {
                token,
                result,
                buf: op.into_buf(),
            });
        }
    }

    /// Takes everything on the completion ring; whether anything ended.
    fn drain(&mut self, done: &mut Vec<Done>) -> bool {
        let ended_before = done.len();
        done.append(&mut self.ready);
        if self.broken.is_none() {
            let mut completions = std::mem::take(&mut self.completions);
            completions.extend(
                self.ring
                    .completion()
                    .map(|cqe| (cqe.user_data() as usize, cqe.result())),
            );
            for (index, result) in completions.drain(..) {
                self.complete(index, result, done);
            }
            self.completions = completions;
        }
        done.len() > ended_before
    }

    fn complete(&mut self, index: usize, result: i32, done: &mut Vec<Done>) {
        let slot = self.slots[index]
            .as_mut()
            .expect("the kernel answers what it was asked");
        if let Ok(moved_bytes) = usize::try_from(result) {
            let rest_bytes = slot.op.len() - slot.moved_bytes;
            if moved_bytes >= rest_bytes {
                return self.finish(index, Ok(()), done);
            }
            let resumable_bytes = slot.op.resumable_bytes(moved_bytes);
            if resumable_bytes == 0 {
                let error = slot.op.short_error(slot.moved_bytes + moved_bytes);
                return self.finish(index, Err(error), done);
            }
            slot.moved_bytes += resumable_bytes;
            return self.push_entry(index);
        }
        let again = [Errno::INTR, Errno::AGAIN, Errno::CANCELED]
            .iter()
            .any(|e| e.raw_os_error() == -result);
        // A flush is never tried again: what it failed to cover may be gone.
        if again && slot.resubmits < RESUBMITS_MAX && !matches!(slot.op, Op::Flush) {
            slot.resubmits += 1;
            return self.push_entry(index);
        }
        if result == -Errno::CANCELED.raw_os_error() && matches!(slot.op, Op::Flush) {
            // It never began: the kernel had no thread for it.
            let flushed = rustix::fs::fdatasync(&*self.file);
            let flushed = flushed.map_err(|e| Op::Flush.io_error(e.raw_os_error()));
            return self.finish(index, flushed, done);
        }
        let error = slot.op.io_error(-result);
        self.finish(index, Err(error), done);
    }

    fn finish(&mut self, index: usize, result: Result<(), MediaError>, done: &mut Vec<Done>) {
        let slot = self.slots[index].take().expect("a slot is finished once");
        self.free.push(index);
        if result.is_ok() {
            self.counters.count(&slot.op);
        }
        done.push(Done {
            token: slot.token,
            result,
            buf: slot.op.into_buf(),
        });
    }

    /// Looks at the completion ring until something has ended or the spin is over.
    fn spin(&mut self, deadline: Instant, done: &mut Vec<Done>) -> bool {
        let spin_end = deadline.min(Instant::now() + self.spin);
        loop {
            if self.drain(done) {
                return true;
            }
            let submission = self.ring.submission();
            // Also resumed operations lie on the ring and want handing over.
            let enter = submission.taskrun() || !submission.is_empty();
            drop(submission);
            if enter {
                self.enter(None);
            } else if Instant::now() >= spin_end {
                return false;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits until something has ended or the time is up.
    fn wait(&mut self, time: Duration, done: &mut Vec<Done>) {
        let deadline = Instant::now() + time;
        if !self.spin.is_zero() {
            self.kick();
            if self.spin(deadline, done) {
                return;
            }
        }
        while self.in_flight() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            self.enter(Some(left));
            if self.drain(done) || left.is_zero() {
                return;
            }
            self.fill_slots();
        }
    }
}

impl Disk for UringDisk {
    fn submit(&mut self, token: u64, op: Op) {
        let checked = match self.broken {
            None => op.check(self.device_bytes, self.read_unit_bytes),
            Some(errno) => Err(op.io_error(errno)),
        };
        match checked {
            Ok(()) => {
                self.backlog.push_back((token, op));
                self.fill_slots();
            }
            Err(e) => self.ready.push(Done {
                token,
                result: Err(e),
                buf: op.into_buf(),
            }),
        }
    }

    fn kick(&mut self) {
        self.fill_slots();
        if !self.ring.submission().is_empty() {
            self.enter(None);
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let ended = self.drain(done);
        self.fill_slots();
        match wait {
            Wait::For(time) if !ended && !time.is_zero() && self.in_flight() > 0 => {
                self.wait(time, done);
            }
            _ if self.in_kernel() > 0 => {
                let submission = self.ring.submission();
                let enter = submission.taskrun() || !submission.is_empty();
                drop(submission);
                if enter {
                    self.enter(None);
                }
                self.drain(done);
            }
            _ => {}
        }
        // What ended made room for the backlog, and may have been resumed.
        self.kick();
    }

    fn stock_up(&mut self, count: u16, each_bytes: usize) -> usize {
        if self.stock.is_some() {
            return 0;
        }
        let stock = Stock::new(count, each_bytes);
        let (start, len) = stock.memory();
        let memory = libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        };
        // SAFETY: the kernel holds these pages by itself from here on. The addresses stay the stock's, which `self` and every buffer
        // of it keep; a buffer that is being read into is kept by its slot (see `push_entry`).
        let registered = unsafe { self.ring.submitter().register_buffers(&[memory]) };
        // Refused where less memory may be locked (RLIMIT_MEMLOCK): each read pins its own pages then.
        if registered.is_err() {
            return 0;
        }
        self.stock = Some(Arc::new(stock));
        len
    }

    fn lend(&mut self, len: usize) -> Option<Buf> {
        Some(Buf::lent(self.stock.as_ref()?.lend(len)?, len))
    }

    fn in_flight(&self) -> usize {
        self.in_kernel() + self.backlog.len() + self.ready.len()
    }

    fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        (!self.ring.params().is_setup_single_issuer()).then(|| self.ring.as_raw_fd())
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        self.backlog.clear();
        let mut done = Vec::new();
        while self.in_kernel() > 0 {
            // The kernel may still write to these buffers: they are freed only when it is through.
            self.wait(DROP_WAIT, &mut done);
            done.clear();
        }
        // Not a fork's, whose files these are as well; and not where the kernel may not be through.
        if self.file_is_fixed && self.broken.is_none() && self.process == std::process::id() {
            // The kernel takes a ring apart some time after it is closed: until then a block device would be in use.
            let _kept = self.ring.submitter().unregister_files();
        }
    }
}
