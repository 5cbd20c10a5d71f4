//! A connection as its commands know it: what it brings to them, and what others may know of it.
//!
//! Promises: what others read is written without a lock, but for its name. Never: knows the socket or the buffers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32};
use std::sync::{Arc, Mutex};

use crate::sight::calls::NO_KIND;
use crate::store::{Store, Watched};

/// What others may know of a connection.
pub struct Client {
    /// Its number, never used again.
    pub id: u64,
    /// The other side.
    pub addr: SocketAddr,
    /// The thread that serves it.
    pub thread: usize,
    /// Its file descriptor.
    pub fd: i32,
    /// Seconds after the server's start at which it came.
    pub since_s: u32,
    /// Seconds after the server's start at which it last sent a command.
    pub active_s: AtomicU32,
    /// Its last command (an index into the table, 255: none).
    pub last_command: AtomicU8,
    /// 2 or 3.
    pub resp: AtomicU8,
    /// CLIENT SETNAME.
    pub name: Mutex<Option<Box<str>>>,
}

/// What CLIENT REPLY says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Replies are sent.
    On,
    /// None is.
    Off,
    /// Not that of the next command.
    SkipNext,
    /// Not that of this command.
    Skip,
}

/// Keys that are watched for a connection, and what was granted for them.
#[derive(Default)]
pub struct Watches {
    /// The keys.
    pub keys: Vec<Watched>,
    /// See `WATCH_COST_BYTES`.
    pub granted_bytes: usize,
}

impl Watches {
    /// Ends them, and gives back what they took.
    pub fn end<S: Store>(&mut self, store: &mut S) {
        for watched in std::mem::take(&mut self.keys) {
            store.unwatch(watched);
        }
        // A transaction's UNWATCH has none to end, and must not ask for what only the store has.
        if self.granted_bytes > 0 {
            store.ungrant(std::mem::take(&mut self.granted_bytes));
        }
    }
}

/// What the connection itself brings to its commands.
pub struct Session {
    /// Whether it may execute commands: there is no password, or it said it.
    pub trusted: bool,
    /// Whether it speaks memcached's protocol.
    pub memcached: bool,
    /// Whether the client asked for RESP3.
    pub resp3: bool,
    /// What others may know of it.
    pub client: Arc<Client>,
    /// The command it executed last, as it is counted.
    pub kind: u16,
    /// Whether it is told what became of its commands.
    pub reply: Reply,
    /// Its transaction is being executed, perhaps not for the last time: nothing is counted yet.
    pub in_exec: bool,
    /// Keys that are watched for it.
    pub watched: Watches,
}

impl Session {
    /// Of a new connection.
    pub fn new(client: Arc<Client>, memcached: bool, trusted: bool) -> Self {
        Session {
            trusted,
            memcached,
            resp3: false,
            client,
            kind: NO_KIND,
            reply: Reply::On,
            in_exec: false,
            watched: Watches::default(),
        }
    }
}
