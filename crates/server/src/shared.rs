//! What all threads of a server know together: its settings, its counters, the list of clients and the way to stop.
//! Counters are written by one thread each and summed up by INFO; nothing here is locked while commands execute,
//! except by the commands that ask for it (CLIENT LIST, INFO).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mio::Waker;
use mio::net::TcpStream;

use crate::session::{Client, Session};
use crate::sight::Errors;
use crate::sight::calls::{KINDS, Summed};
use crate::sight::rate::Rate;
use crate::sight::slow::Slow;
use crate::sync::{Seldom, add, lock};

/// What is sent to a thread.
pub enum Message {
    /// A new connection.
    Accepted(TcpStream, Box<Session>),
    /// Cut this one off.
    Kill(u64),
}

/// A thread's inbox.
pub struct Inbox {
    messages: Mutex<Vec<Message>>,
    /// Gets the thread out of its poll.
    pub waker: Waker,
}

impl Inbox {
    /// An empty one.
    pub fn new(waker: Waker) -> Self {
        Inbox {
            messages: Mutex::new(Vec::new()),
            waker,
        }
    }

    /// Sends; a failing wake-up only delays the message to the thread's next turn.
    pub fn send(&self, message: Message) {
        lock(&self.messages).push(message);
        let _ = self.waker.wake();
    }

    /// Everything that was sent.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *lock(&self.messages))
    }
}

/// Counters of one thread. Written by that thread only, so that adding is a load and a store.
#[derive(Default)]
#[repr(align(128))]
pub struct Counters {
    /// Commands that were executed.
    pub commands: AtomicU64,
    /// Keys that a GET or MGET found.
    pub hits: AtomicU64,
    /// Keys that it did not.
    pub misses: AtomicU64,
    /// Bytes read from sockets.
    pub input_bytes: AtomicU64,
    /// Bytes written to sockets.
    pub output_bytes: AtomicU64,
    /// Error replies.
    pub errors: AtomicU64,
    /// Connections cut off because they held buffers that others needed.
    pub cut_off: AtomicU64,
    /// Connections that came to no agreement on keys.
    pub tls_failed: AtomicU64,
    /// Bytes of connection buffers.
    pub buffer_bytes: AtomicU64,
    /// Commands that wait for the device or for room right now.
    pub waiting: AtomicU64,
    /// What became of each command.
    pub calls: crate::sight::calls::Calls,
}

/// Until when commands wait, by CLIENT PAUSE.
#[derive(Default)]
pub struct Paused {
    /// All of them, ms since the server started.
    pub all_until_ms: AtomicU64,
    /// Those that write.
    pub writes_until_ms: AtomicU64,
}

impl Paused {
    /// Whether any command may have to wait.
    #[inline]
    pub fn is_on(&self) -> bool {
        let all = self.all_until_ms.load(Ordering::Relaxed);
        all != 0 || self.writes_until_ms.load(Ordering::Relaxed) != 0
    }

    /// Whether a command waits at this time.
    #[cold]
    pub fn holds(&self, now_ms: u64, writes: bool) -> bool {
        let all = self.all_until_ms.load(Ordering::Relaxed);
        now_ms < all || (writes && now_ms < self.writes_until_ms.load(Ordering::Relaxed))
    }

    /// Ends it.
    pub fn end(&self) {
        self.all_until_ms.store(0, Ordering::Relaxed);
        self.writes_until_ms.store(0, Ordering::Relaxed);
    }
}

/// What INFO and CONFIG ask the store's owner.
pub trait About: Send + Sync {
    /// See `StoreFactory::tiers`.
    fn tiers(&self) -> Vec<(String, String)>;
    /// See `StoreFactory::keys`.
    fn keys(&self) -> u64;
    /// See `StoreFactory::dram_bytes`.
    fn dram_bytes(&self) -> u64;
    /// See `StoreFactory::durability`.
    fn durability(&self) -> &'static str;
}

impl<F: crate::store::StoreFactory> About for F {
    fn tiers(&self) -> Vec<(String, String)> {
        crate::store::StoreFactory::tiers(self)
    }
    fn keys(&self) -> u64 {
        crate::store::StoreFactory::keys(self)
    }
    fn dram_bytes(&self) -> u64 {
        crate::store::StoreFactory::dram_bytes(self)
    }
    fn durability(&self) -> &'static str {
        crate::store::StoreFactory::durability(self)
    }
}

/// What all threads share.
pub struct Shared {
    /// The address that is listened on for Redis's protocol.
    pub addr: SocketAddr,
    /// And for memcached's.
    pub memcached_addr: Option<SocketAddr>,
    /// The most connections at once.
    pub max_clients: usize,
    /// What clients must say first.
    pub password: Option<crate::auth::Password>,
    /// Who it is, if its clients speak TLS.
    pub tls: Option<Mutex<crate::tls::Identity>>,
    /// The longest value.
    pub max_value_bytes: u64,
    /// See `ServerOptions`.
    pub idle_timeout: Option<std::time::Duration>,
    /// When the server started.
    pub started: Instant,
    /// One for each thread.
    pub counters: Box<[Counters]>,
    /// One for each thread.
    pub inboxes: Box<[Inbox]>,
    /// Connections right now.
    pub connected: AtomicUsize,
    /// Connections since the start or CONFIG RESETSTAT.
    pub accepted: AtomicU64,
    /// Connections ever; the last one's number.
    pub accepted_ever: AtomicU64,
    /// Connections refused because there were too many.
    pub rejected: AtomicU64,
    /// When (in milliseconds since the start) a thread last found no room for a buffer; 0: never.
    pub starved_ms: AtomicU64,
    /// When a buffer last came back or was got on with, likewise.
    pub returned_ms: AtomicU64,
    /// Set once, when the server is to stop.
    pub stopping: AtomicBool,
    /// Who is connected.
    pub clients: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// The store's owner.
    pub about: Arc<dyn About>,
    /// Errors by kind.
    pub errors: Errors,
    /// How fast commands come.
    pub rate: Rate,
    /// What took long.
    pub slow: Slow,
    /// CLIENT PAUSE.
    pub paused: Paused,
    /// That somebody speaks HTTP.
    pub told_of_http: Seldom,
    /// When everything is to be flushed, ms since the start; 0: never.
    pub flush_at_ms: AtomicU64,
    /// Gets the door of the metrics out of its poll, if there is one.
    pub metrics_waker: Option<Waker>,
}

impl Shared {
    /// Makes every thread stop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for inbox in &self.inboxes {
            let _ = inbox.waker.wake();
        }
        if let Some(waker) = &self.metrics_waker {
            let _ = waker.wake();
        }
    }

    /// The commands that were called or refused, over all threads.
    pub fn commands_called(&self) -> Vec<Summed> {
        let of = |kind| Summed::of(kind, self.counters.iter().map(|c| &c.calls));
        (0..KINDS).map(of).filter(|c| !c.is_empty()).collect()
    }

    /// Counts an error reply of the calling thread's by its first word.
    #[cold]
    pub fn count_error(&self, counters: &Counters, kind: &str) {
        add(&counters.errors, 1);
        self.errors.count(kind);
    }

    /// Commands, bytes in and bytes out, all threads'.
    pub fn traffic(&self) -> [u64; 3] {
        [
            self.sum(|c| &c.commands),
            self.sum(|c| &c.input_bytes),
            self.sum(|c| &c.output_bytes),
        ]
    }

    /// Seconds since the start.
    pub fn uptime_s(&self) -> u32 {
        self.started.elapsed().as_secs() as u32
    }

    /// A counter, over all threads.
    pub fn sum(&self, pick: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.counters
            .iter()
            .map(|c| pick(c).load(Ordering::Relaxed))
            .sum()
    }

    /// Sets the counters of CONFIG RESETSTAT back.
    pub fn reset_counters(&self) {
        for c in &self.counters {
            for counter in [
                &c.commands,
                &c.hits,
                &c.misses,
                &c.input_bytes,
                &c.output_bytes,
                &c.errors,
                &c.cut_off,
                &c.tls_failed,
            ] {
                counter.store(0, Ordering::Relaxed);
            }
            c.calls.reset();
        }
        self.errors.reset();
        self.rate.reset();
        self.accepted.store(0, Ordering::Relaxed);
        self.rejected.store(0, Ordering::Relaxed);
    }
}
