//! One connection's state and buffers. Input is kept only when a command is incomplete or waits; output only when the
//! peer does not take it or its durability is awaited. Replies leave strictly in order, and never before the epoch
//! they wait for is durable.

use std::collections::VecDeque;
use std::io;

use crate::budget::Budget;
use crate::commands::Progress;
use crate::commands::multi::Multi;
use crate::env::Env;
use crate::linger::Linger;
use crate::resp::assemble::Assembly;
use crate::session::Session;
use crate::store::Store;
use crate::stream::Stream;
use crate::sync::add;

/// What a connection waits for, beside its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// Nothing.
    None,
    /// A read of the device.
    Io,
    /// Room in the store.
    Room,
    /// Room for a buffer.
    Grant,
}

/// A command that could not finish.
pub struct Parked<S: Store> {
    /// Its task.
    pub task: S::Task,
    /// Where it stands.
    pub progress: Progress<S>,
    /// When it began, by the processor's clock.
    pub began: u64,
}

/// A long value on its way out.
pub struct Sending<S: Store> {
    /// The hold.
    pub large: S::Large,
    /// The next piece.
    pub piece: u32,
    /// Bytes of it that are not wanted.
    pub skip_bytes: usize,
    /// Bytes still to come.
    pub left_bytes: u64,
    /// What follows them before the line's end.
    pub tail: Vec<u8>,
    /// The task of the piece being read.
    pub task: Option<S::Task>,
}

/// What only a connection in the middle of something has.
pub struct Work<S: Store> {
    /// A command that could not finish.
    pub parked: Option<Parked<S>>,
    /// A command on its way in.
    pub assembly: Option<Assembly<S::Upload>>,
    /// What the assembly was granted.
    pub assembly_granted_bytes: usize,
    /// The task of the upload call that waits.
    pub upload_task: Option<S::Task>,
    /// A long value on its way out.
    pub sending: Option<Sending<S>>,
}

impl<S: Store> Default for Work<S> {
    fn default() -> Self {
        Work {
            parked: None,
            assembly: None,
            assembly_granted_bytes: 0,
            upload_task: None,
            sending: None,
        }
    }
}

impl<S: Store> Work<S> {
    fn is_idle(&self) -> bool {
        self.parked.is_none()
            && self.assembly.is_none()
            && self.sending.is_none()
            && self.upload_task.is_none()
            // The assembly is elsewhere while its command runs.
            && self.assembly_granted_bytes == 0
    }
}

/// Bytes for the peer that have not left.
#[derive(Debug, Default)]
pub struct Output {
    buf: Vec<u8>,
    at: usize,
    /// How many bytes have left since the connection came.
    sent: u64,
    /// From this position on, bytes wait for this epoch; both grow.
    marks: VecDeque<(u64, u64)>,
}

impl Output {
    /// How many bytes wait.
    #[inline]
    pub fn pending(&self) -> usize {
        self.buf.len() - self.at
    }

    /// The position behind the last byte, `more` of which are still elsewhere.
    #[inline]
    pub fn end(&self, more: usize) -> u64 {
        self.sent + self.pending() as u64 + more as u64
    }

    /// Bytes from `position` on wait for `epoch`.
    #[inline]
    pub fn hold(&mut self, position: u64, epoch: u64) {
        // Bytes behind a mark wait for it anyway, so an epoch that is not later needs no mark of its own.
        if self.marks.back().is_none_or(|&(_, last)| last < epoch) {
            self.marks.push_back((position, epoch));
        }
    }

    /// How many of the waiting bytes may leave.
    #[inline]
    fn sendable(&mut self, durable: u64) -> u64 {
        while self
            .marks
            .front()
            .is_some_and(|&(_, epoch)| epoch <= durable)
        {
            self.marks.pop_front();
        }
        match self.marks.front() {
            None => {
                if self.marks.capacity() > 0 {
                    self.marks = VecDeque::new();
                }
                u64::MAX
            }
            Some(&(position, _)) => position - self.sent,
        }
    }

    /// Whether something waits for an epoch.
    pub fn is_held(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Whether nothing waits for an epoch above `durable`, or what does is not first in line.
    pub fn is_due(&self, durable: u64) -> bool {
        self.marks
            .front()
            .is_none_or(|&(_, epoch)| epoch <= durable)
    }

    /// Drops what waits for an epoch that will never be durable.
    pub fn drop_held(&mut self) {
        if let Some(&(position, _)) = self.marks.front() {
            self.buf.truncate(self.at + (position - self.sent) as usize);
            self.marks.clear();
        }
    }
}

/// A connection.
pub struct Conn<S: Store> {
    /// The socket.
    pub stream: Stream,
    /// What the store knows it by: slot and serial number.
    pub key: u64,
    /// What commands see of it.
    pub session: Session,
    /// Its transaction that is being queued.
    pub multi: Option<Box<Multi<S::Upload>>>,
    /// Received bytes that were not consumed.
    pub input: Vec<u8>,
    /// Where they begin.
    pub input_at: usize,
    /// The input ends within a command.
    pub need_more: bool,
    /// The socket may have bytes.
    pub readable: bool,
    /// The peer has ended its side; what it sent before may still be read.
    pub read_closed: bool,
    /// The socket may take bytes.
    pub writable: bool,
    /// The peer sends no more.
    pub eof: bool,
    /// When the output is gone, so is the connection.
    pub closing: bool,
    /// It is in the thread's list of those that wait for room.
    pub queued: bool,
    /// It is in the thread's list of those with held output.
    pub listed: bool,
    /// It is in the thread's list of those to be served again.
    pub again: bool,
    /// What it waits for.
    pub block: Block,
    /// When it last got on, in milliseconds of the thread's clock.
    pub progress_ms: u64,
    /// What waits to be sent.
    pub output: Output,
    /// What is being done.
    pub work: Option<Box<Work<S>>>,
    /// It was told of a protocol error and has yet to read that.
    pub linger: Option<Box<Linger>>,
}

impl<S: Store> Conn<S> {
    /// A new one.
    pub fn new(stream: Stream, key: u64, session: Session, now_ms: u64) -> Self {
        Conn {
            stream,
            key,
            session,
            multi: None,
            input: Vec::new(),
            input_at: 0,
            need_more: true,
            readable: true,
            read_closed: false,
            writable: true,
            eof: false,
            closing: false,
            queued: false,
            listed: false,
            again: false,
            block: Block::None,
            progress_ms: now_ms,
            output: Output::default(),
            work: None,
            linger: None,
        }
    }

    /// The state of work, made when needed.
    pub fn work(&mut self) -> &mut Work<S> {
        self.work.get_or_insert_default()
    }

    /// Frees the state of work when nothing is in it.
    pub fn rest(&mut self) {
        if self.work.as_ref().is_some_and(|w| w.is_idle()) {
            self.work = None;
        }
    }

    /// Keeps bytes for later, in a buffer of exactly their length.
    pub fn keep_input(&mut self, budget: &mut Budget, rest: &[u8]) {
        if !rest.is_empty() {
            self.input = rest.to_vec();
            self.input_at = 0;
            budget.take(self.input.capacity());
        }
    }

    /// Frees the input buffer.
    pub fn free_input(&mut self, store: &mut S, budget: &mut Budget) {
        if self.input.capacity() > 0 {
            budget.give(store, self.input.capacity());
            self.input = Vec::new();
        }
        self.input_at = 0;
    }

    /// Bytes of buffers it holds, with those of its transaction and of the keys it watches.
    pub fn held_bytes(&self) -> usize {
        let work = self.work.as_ref().map_or(0, |w| w.assembly_granted_bytes);
        let queued = self.multi.as_ref().map_or(0, |m| m.granted_bytes());
        let buffers = self.input.capacity() + self.output.buf.capacity();
        buffers + work + queued + self.session.watched.granted_bytes + self.stream.held_bytes()
    }

    /// Whether a command is under way that may have replied a part: what is written now would be taken for the rest of it.
    pub fn is_replying(&self) -> bool {
        let work = self.work.as_ref();
        work.is_some_and(|w| w.sending.is_some() || w.parked.is_some())
    }

    /// Whether it holds buffers and waits for its peer, and not for the store or for a buffer.
    pub fn is_peers_fault(&self) -> bool {
        self.block == Block::None && !self.output.is_held()
    }

    /// Whether it can take more without the thread's reserve: into the buffer that a long value was granted.
    pub fn is_provided_for(&self) -> bool {
        let assembly = self.work.as_ref().and_then(|w| w.assembly.as_ref());
        assembly.is_some_and(|a| a.is_provided_for() && (self.input.is_empty() || !self.need_more))
    }

    /// Sends what may leave of the output and of `env.out`, and keeps the rest.
    ///
    /// # Errors
    /// When the connection is broken.
    #[inline]
    pub fn settle(&mut self, env: &mut Env<S>) -> io::Result<()> {
        if self.stream.has_unsent() && self.writable {
            self.flush(env)?;
        }
        if self.output.buf.is_empty() {
            if env.out.is_empty() {
                if self.output.is_held() {
                    // A command that says nothing left its mark all the same.
                    self.output.sendable(env.store.durable_epoch());
                }
                return Ok(());
            }
            let sendable = self
                .output
                .sendable(env.store.durable_epoch())
                .min(env.out.len() as u64) as usize;
            let sent = self.write(env, sendable, true)?;
            if sent < env.out.len() {
                self.output.buf = env.out[sent..].to_vec();
                env.budget.take(self.output.buf.capacity());
            }
            env.forget_out();
            return Ok(());
        }
        self.settle_kept(env)
    }

    #[cold]
    fn flush(&mut self, env: &Env<S>) -> io::Result<()> {
        match self.stream.flush() {
            Ok(()) => self.progress_ms = env.now_ms,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Whether something is still to be sent.
    pub fn has_unsent(&self) -> bool {
        self.output.pending() > 0 || self.stream.has_unsent()
    }

    /// Notes that a read brought `n` of `want` bytes: whether the socket may have more.
    #[inline]
    pub fn was_read(&mut self, n: usize, want: usize) {
        // The peer's end has no edge of its own once bytes came with it, and what is encrypted comes in records.
        self.readable &= n == want || self.read_closed || self.stream.is_tls();
    }

    fn settle_kept(&mut self, env: &mut Env<S>) -> io::Result<()> {
        if !env.out.is_empty() {
            let mut whole = Vec::with_capacity(self.output.pending() + env.out.len());
            whole.extend_from_slice(&self.output.buf[self.output.at..]);
            whole.extend_from_slice(&env.out);
            env.budget.take(whole.capacity());
            env.budget.give(&mut env.store, self.output.buf.capacity());
            self.output.buf = whole;
            self.output.at = 0;
            env.forget_out();
        }
        let sendable = self
            .output
            .sendable(env.store.durable_epoch())
            .min(self.output.pending() as u64) as usize;
        let sent = self.write(env, sendable, false)?;
        self.output.at += sent;
        if self.output.pending() == 0 {
            env.budget.give(&mut env.store, self.output.buf.capacity());
            self.output.buf = Vec::new();
            self.output.at = 0;
        }
        Ok(())
    }

    /// Writes up to `len` bytes of `env.out` or of the kept output; answers how many the socket took.
    fn write(&mut self, env: &mut Env<S>, len: usize, from_env: bool) -> io::Result<usize> {
        let mut done = 0;
        while done < len && self.writable {
            let bytes = if from_env {
                &env.out[done..len]
            } else {
                &self.output.buf[self.output.at + done..][..len - done]
            };
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if done > 0 {
            self.output.sent += done as u64;
            self.progress_ms = env.now_ms;
            add(&env.counters().output_bytes, done as u64);
        }
        Ok(done)
    }

    /// Ends all work and gives back everything it holds; the socket closes when this is dropped.
    pub fn tear_down(&mut self, env: &mut Env<S>) {
        self.free_input(&mut env.store, &mut env.budget);
        crate::commands::multi::end(&mut self.multi, &mut self.session, &mut env.store);
        if self.output.buf.capacity() > 0 {
            env.budget.give(&mut env.store, self.output.buf.capacity());
            self.output = Output::default();
        }
        let Some(work) = self.work.take() else { return };
        let Work {
            parked,
            assembly,
            assembly_granted_bytes,
            upload_task,
            sending,
        } = *work;
        if let Some(parked) = parked {
            finish_parked(&mut env.store, parked);
        }
        if let Some(task) = upload_task {
            env.store.finish(task);
        }
        if let Some(assembly) = assembly {
            for upload in assembly.large.into_iter().filter_map(|l| l.upload) {
                env.store.upload_abort(upload);
            }
        }
        env.budget.give(&mut env.store, assembly_granted_bytes);
        if let Some(Sending { large, task, .. }) = sending {
            if let Some(task) = task {
                env.store.finish(task);
            }
            env.store.release(large);
        }
    }
}

/// Gives all tasks of a parked command back.
pub fn finish_parked<S: Store>(store: &mut S, parked: Parked<S>) {
    parked.progress.end(store);
    store.finish(parked.task);
}
