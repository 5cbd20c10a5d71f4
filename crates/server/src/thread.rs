//! One thread of the server: its poll, its access to the store and its connections. A turn of its loop polls, serves
//! what moved, lets the store work, and serves what the store has finished. Nothing in it blocks but the poll.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::at_once::AtOnce;
use crate::budget::Budget;
use crate::conn::{Block, Conn};
use crate::env::{Env, OUT_KEPT_BYTES};
use crate::held::Held;
use crate::limits::{
    AT_ONCE_QUICK, AT_ONCE_WHILE_READING, EVENTS_MAX, LINGERING_MAX, MANY_READS, ROOM_RETRY_MS,
    SCRATCH_BYTES, SLEEP_MAX_MS, STANDING_BYTES, START_GRANT_MS, STOP_DRAIN_MS,
};
use crate::lookout::Lookout;
use crate::service::service;
use crate::shared::{Message, Shared};
use crate::sight::rate::SAMPLE_MS;
use crate::step::Status;
use crate::store::Store;
use crate::sync::{Seldom, lock};
use crate::together::{TOGETHER_BYTES, TOGETHER_MAX, Together};

/// The token of the thread's waker.
pub const WAKER: Token = Token(usize::MAX - 1);
/// The token of the first listener; the others' are below it.
pub(crate) const LISTENER_0: usize = usize::MAX - 3;
const STORE: Token = Token(usize::MAX - 2);
/// Listeners of a thread, one for each protocol.
const LISTENERS_MAX: usize = 2;

/// What a thread's own buffers take.
pub(crate) const OWN_BYTES: usize = SCRATCH_BYTES + OUT_KEPT_BYTES + TOGETHER_BYTES;

/// A socket that is listened on, and what is spoken there.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// memcached's protocol, else Redis's.
    pub memcached: bool,
}

/// A thread of the server.
pub struct Thread<S: Store> {
    pub(crate) env: Env<S>,
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) conns: Slab<Conn<S>>,
    pub(crate) serial: u32,
    pub(crate) next_thread: usize,
    /// When to accept again after that failed; 0: it did not.
    pub(crate) accept_again_ms: u64,
    pub(crate) told_of_accept: Seldom,
    /// Slots to be served again.
    again: Vec<usize>,
    /// Keys of connections that wait for room.
    waiters: Vec<u64>,
    pub(crate) held: Held,
    at_once: AtOnce,
    /// Keys of connections that only have to read why they end.
    pub(crate) lingering: Vec<u64>,
    /// Connections that agree on keys, and since when (ms).
    pub(crate) handshaking: Vec<(u64, u64)>,
    pub(crate) handshakes_checked_ms: u64,
    retried: Instant,
    pub(crate) starve_checked_ms: u64,
    pub(crate) reads_checked_ms: u64,
    pub(crate) idle_checked_ms: u64,
    sampled_ms: u64,
    /// A flush that was delayed and is under way.
    pub(crate) flush_task: Option<S::Task>,
    ready: Vec<u64>,
    /// Slots that moved; empty in between.
    moved: Vec<usize>,
    together: Together,
    lookout: Lookout,
}

impl<S: Store> Thread<S> {
    /// A thread that has not begun.
    ///
    /// # Errors
    /// When the listener or the store cannot be polled, or when the budget is too small for a thread's buffers.
    pub fn new(
        index: usize,
        mut store: S,
        shared: Arc<Shared>,
        poll: Poll,
        mut listeners: Vec<Listener>,
    ) -> io::Result<Self> {
        for (at, listener) in listeners.iter_mut().enumerate() {
            let token = Token(LISTENER_0 - at);
            let socket = &mut listener.socket;
            poll.registry()
                .register(socket, token, Interest::READABLE)?;
        }
        if let Some(fd) = store.poll_fd() {
            poll.registry()
                .register(&mut SourceFd(&fd), STORE, Interest::READABLE)?;
        }
        let mut budget = Budget::default();
        reserve(&mut store, &mut budget, index)?;
        let env = Env::new(index, store, shared, budget);
        Ok(Thread {
            env,
            poll,
            listeners,
            conns: Slab::new(),
            serial: 0,
            next_thread: 0,
            accept_again_ms: 0,
            told_of_accept: Seldom::default(),
            again: Vec::new(),
            waiters: Vec::new(),
            held: Held::default(),
            at_once: AtOnce::default(),
            lingering: Vec::new(),
            handshaking: Vec::new(),
            handshakes_checked_ms: 0,
            retried: Instant::now(),
            starve_checked_ms: 0,
            reads_checked_ms: 0,
            idle_checked_ms: 0,
            sampled_ms: 0,
            flush_task: None,
            ready: Vec::new(),
            moved: Vec::new(),
            together: Together::default(),
            lookout: Lookout::default(),
        })
    }

    /// Serves until the server stops, then leaves the store.
    ///
    /// # Errors
    /// When the poll fails, or the store could not be left cleanly.
    pub fn run(mut self) -> Result<(), String> {
        let mut many = Events::with_capacity(EVENTS_MAX);
        let mut few = Events::with_capacity(AT_ONCE_WHILE_READING);
        let mut fewer = Events::with_capacity(AT_ONCE_QUICK);
        let mut timeout = Duration::ZERO;
        while !self.env.shared.stopping.load(Ordering::Acquire) {
            let events = match self.env.store.reads_under_way() >= MANY_READS {
                true if self.at_once.connections() == AT_ONCE_QUICK => &mut fewer,
                true => &mut few,
                false => &mut many,
            };
            self.poll_once(events, timeout)?;
            let came = !events.is_empty();
            timeout = self.turn();
            let awaits_device = self.held.awaits_device();
            if timeout > Duration::ZERO && self.lookout.looks_again(awaits_device, came) {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the kernel's own threads, which flush the device, may have only this processor"
                )]
                std::thread::yield_now();
                timeout = Duration::ZERO;
            }
        }
        self.stop()
    }

    pub(crate) fn poll_once(
        &mut self,
        events: &mut Events,
        timeout: Duration,
    ) -> Result<(), String> {
        match self.poll.poll(events, Some(timeout)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(format!("polling the sockets failed: {e}")),
        }
        self.env.now_ms = self.env.shared.started.elapsed().as_millis() as u64;
        self.env.store.tick();
        let mut moved = std::mem::take(&mut self.moved);
        let (mut woken, mut knocked) = (false, [false; LISTENERS_MAX]);
        for event in events.iter() {
            match event.token() {
                WAKER => woken = true,
                STORE => {}
                Token(at) if at > LISTENER_0 - LISTENERS_MAX => knocked[LISTENER_0 - at] = true,
                Token(slot) => {
                    let Some(conn) = self.conns.get_mut(slot) else {
                        continue;
                    };
                    conn.readable |=
                        event.is_readable() || event.is_read_closed() || event.is_error();
                    conn.read_closed |= event.is_read_closed();
                    conn.writable |= event.is_writable();
                    if event.is_error()
                        || (event.is_write_closed() && event.is_read_closed() && conn.eof)
                    {
                        // Nobody is there to read a reply.
                        self.close(slot);
                        continue;
                    }
                    moved.push(slot);
                }
            }
        }
        self.serve_chunks(moved);
        // Who comes may get the slot of one that left: an event of that one must not be left here.
        if woken {
            self.messages();
        }
        for at in (0..LISTENERS_MAX).filter(|at| knocked[*at]) {
            self.accept(at);
        }
        Ok(())
    }

    /// Serves connections that moved, so many together as there is memory for, and hands their list back, empty.
    fn serve_chunks(&mut self, mut moved: Vec<usize>) {
        for slots in moved.chunks(TOGETHER_MAX) {
            self.serve_together(slots);
        }
        moved.clear();
        self.moved = moved;
    }

    /// Serves connections that moved at the same time: first what they sent is executed for all, then all is sent.
    fn serve_together(&mut self, slots: &[usize]) {
        let mut together = std::mem::take(&mut self.together);
        together.execute(&mut self.env, &mut self.conns, slots);
        // The device reads while replies are sent.
        self.env.store.kick();
        for (at, slot) in slots.iter().enumerate() {
            together.lend(&mut self.env, at);
            self.serve(*slot);
            together.restore(&mut self.env, at);
        }
        self.together = together;
    }

    /// Lets the store work and serves what that made possible; answers how long to sleep.
    pub(crate) fn turn(&mut self) -> Duration {
        self.env.store.set_replies_wait(self.held.awaits_device());
        let under_way = self.env.store.reads_under_way();
        let turn = self.env.store.turn();
        let mut ready = std::mem::take(&mut self.ready);
        let waiting = ready.len();
        self.env.store.take_ready(&mut ready);
        self.at_once.turn(under_way, ready.len() - waiting);
        // What is served below may have begun reads or filled an epoch.
        let served = !ready.is_empty() || !self.again.is_empty() || turn.room;
        let mut moved = std::mem::take(&mut self.moved);
        for key in ready.drain(..ready.len().min(self.at_once.connections())) {
            if let Some(slot) = self.slot_of(key)
                && self.conns[slot].block == Block::Io
            {
                self.conns[slot].block = Block::None;
                moved.push(slot);
            }
        }
        self.serve_chunks(moved);
        self.ready = ready;
        self.retry(turn.room);
        self.release_held();
        for slot in std::mem::take(&mut self.again) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.again = false;
                self.serve(slot);
            }
        }
        self.accept_again();
        self.relieve();
        self.let_reads_go();
        self.close_idle();
        self.sample();
        let flushing = self.flush_if_due();
        if !self.lingering.is_empty() {
            self.end_lingering();
        }
        if !self.handshaking.is_empty() {
            self.end_handshakes();
        }
        self.env
            .counters()
            .buffer_bytes
            .store(self.env.budget.used_bytes(), Ordering::Relaxed);
        self.env
            .counters()
            .waiting
            .store(self.waiters.len() as u64, Ordering::Relaxed);
        self.env.store.kick();
        if turn.busy || served || !self.again.is_empty() || self.held.has_due() {
            return Duration::ZERO;
        }
        let most_ms = match self.accept_again_ms {
            _ if !self.waiters.is_empty() || flushing => ROOM_RETRY_MS,
            0 => SLEEP_MAX_MS,
            at_ms => at_ms.saturating_sub(self.env.now_ms).min(SLEEP_MAX_MS),
        };
        turn.sleep_at_most.min(Duration::from_millis(most_ms))
    }

    /// The first thread tells how fast commands come.
    fn sample(&mut self) {
        let now_ms = self.env.now_ms;
        if self.env.index == 0 && now_ms >= self.sampled_ms + SAMPLE_MS {
            self.sampled_ms = now_ms;
            let shared = &self.env.shared;
            shared.rate.sample(now_ms, shared.traffic());
        }
    }

    pub(crate) fn slot_of(&self, key: u64) -> Option<usize> {
        let slot = key as u32 as usize;
        (self.conns.get(slot)?.key == key).then_some(slot)
    }

    /// Tries those that wait for room, when there may be some.
    fn retry(&mut self, room: bool) {
        let due = self.retried.elapsed() >= Duration::from_millis(ROOM_RETRY_MS);
        if self.waiters.is_empty() || !(room || due) {
            return;
        }
        self.retried = Instant::now();
        for key in std::mem::take(&mut self.waiters) {
            let Some(slot) = self.slot_of(key) else {
                continue;
            };
            let conn = &mut self.conns[slot];
            conn.queued = false;
            if matches!(conn.block, Block::Room | Block::Grant) {
                conn.block = Block::None;
                self.serve(slot);
            }
        }
    }

    pub(crate) fn serve(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        let status = service(&mut self.env, conn);
        conn.stream.count(&mut self.env.budget, &mut self.env.store);
        match status {
            Status::Close => return self.close(slot),
            Status::Again if !conn.again => {
                conn.again = true;
                self.again.push(slot);
            }
            _ => {}
        }
        if matches!(conn.block, Block::Room | Block::Grant) && !conn.queued {
            conn.queued = true;
            self.waiters.push(conn.key);
        }
        if let Some(linger) = &mut conn.linger
            && !std::mem::replace(&mut linger.listed, true)
        {
            self.lingering.push(conn.key);
            if self.lingering.len() > LINGERING_MAX {
                conn.linger = None;
            }
        }
        if conn.output.is_held() && !conn.listed {
            conn.listed = true;
            self.held.add(conn.key);
        }
    }

    pub(crate) fn close(&mut self, slot: usize) {
        self.env.forget_out();
        let mut conn = self.conns.remove(slot);
        conn.stream.say_goodbye();
        conn.stream
            .uncount(&mut self.env.budget, &mut self.env.store);
        conn.tear_down(&mut self.env);
        // A failure to deregister has no consequence: the socket is closed right after.
        let _ = self.poll.registry().deregister(conn.stream.socket());
        lock(&self.env.shared.clients).remove(&conn.session.client.id);
        self.env.shared.connected.fetch_sub(1, Ordering::Relaxed);
        if self.conns.is_empty() {
            self.conns.shrink_to_fit();
        }
    }

    fn messages(&mut self) {
        for message in self.env.shared.inboxes[self.env.index].take() {
            match message {
                Message::Accepted(stream, session) => self.adopt(stream, *session),
                Message::Kill(id) => {
                    let found = self
                        .conns
                        .iter()
                        .find(|(_, c)| c.session.client.id == id)
                        .map(|(slot, _)| slot);
                    if let Some(slot) = found {
                        self.close(slot);
                    }
                }
            }
        }
    }

    /// Sends what waits for durability, as long as that helps, then closes everything.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        self.listeners.clear();
        let deadline = Instant::now() + Duration::from_millis(STOP_DRAIN_MS);
        while !self.held.is_empty() && Instant::now() < deadline {
            self.env.store.turn();
            // Only what is answered already: nothing new is executed.
            for (_, conn) in &mut self.conns {
                conn.closing = true;
            }
            self.release_held();
            std::thread::sleep(Duration::from_micros(200));
        }
        let slots: Vec<usize> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let _ = self.conns[slot].settle(&mut self.env);
            self.close(slot);
        }
        if let Some(task) = self.flush_task.take() {
            self.env.store.finish(task);
        }
        self.env.budget.close(&mut self.env.store);
        self.env.store.ungrant(OWN_BYTES);
        self.env.store.close()
    }
}

/// Takes what the thread itself needs of the budget. After a warm start memory may be full, and gives way in a moment.
fn reserve<S: Store>(store: &mut S, budget: &mut Budget, index: usize) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_millis(START_GRANT_MS);
    let mut own = false;
    loop {
        own = own || store.grant(OWN_BYTES);
        if own && budget.ready(store) {
            return Ok(());
        }
        store.turn();
        if Instant::now() > deadline {
            let needed = OWN_BYTES + STANDING_BYTES as usize;
            return Err(io::Error::other(format!(
                "an eighth of the DRAM cap is for connection buffers, and thread {index} found less than the {needed} bytes \
                 it needs there; raise --dram or lower --threads"
            )));
        }
        std::thread::sleep(Duration::from_millis(ROOM_RETRY_MS));
    }
}
