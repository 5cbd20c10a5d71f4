//! How connections come in: the listeners of the first thread, and the dealing of what they accept to all threads.
//! Never: serves a connection.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::net::TcpStream;
use mio::{Interest, Token};

use crate::conn::Conn;
use crate::limits::{
    ACCEPT_MAX, ACCEPT_RETRY_MS, CONNECTIONS_ONE_IN, STANDING_BYTES, TLS_CONN_BYTES,
};
use crate::session::{Client, Session};
use crate::shared::Message;
use crate::store::Store;
use crate::stream::Stream;
use crate::sync::lock;
use crate::thread::{LISTENER_0, OWN_BYTES, Thread};
use crate::tls::Tls;

/// The most TLS connections of a server: what each takes in any case is at most half of what connections may take, and leaves a
/// quarter of what the threads leave.
pub(crate) fn tls_clients_max(dram_bytes: u64, threads: usize) -> usize {
    let share = dram_bytes / CONNECTIONS_ONE_IN;
    let of_threads = threads * (OWN_BYTES + STANDING_BYTES as usize);
    let left = share.saturating_sub(of_threads as u64);
    let bytes = (share / 2).min(left - left / 4);
    (bytes / TLS_CONN_BYTES as u64).max(1) as usize
}

impl<S: Store> Thread<S> {
    /// Accepts what waits at a listener, unless that was in vain a moment ago.
    pub(crate) fn accept(&mut self, at: usize) {
        if self.env.now_ms < self.accept_again_ms {
            return;
        }
        for _ in 0..ACCEPT_MAX {
            let Some(listener) = self.listeners.get(at) else {
                return;
            };
            let memcached = listener.memcached;
            match listener.socket.accept() {
                Ok((stream, addr)) => self.deal(stream, addr, memcached),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e)
                    if e.kind() == io::ErrorKind::Interrupted
                        || e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return self.accept_later(&e),
            }
        }
        // The edge was not used up: come back for the rest.
        let _ = self.env.shared.inboxes[self.env.index].waker.wake();
        if let Some(listener) = self.listeners.get_mut(at) {
            let token = Token(LISTENER_0 - at);
            let registry = self.poll.registry();
            let _ = registry.reregister(&mut listener.socket, token, Interest::READABLE);
        }
    }

    /// For want of files or memory the next attempt would fail as well, and whoever waits is no news: a while later, then.
    #[cold]
    fn accept_later(&mut self, why: &io::Error) {
        let now_ms = self.env.now_ms;
        self.accept_again_ms = now_ms + ACCEPT_RETRY_MS;
        if self.told_of_accept.may(now_ms) {
            tracing::warn!(error = %why, "a connection could not be accepted; if too many files are open, raise the limit (ulimit -n) or lower --max-clients");
        }
    }

    /// Accepts what could not be accepted before, once it is time to.
    pub(crate) fn accept_again(&mut self) {
        if self.accept_again_ms > 0 && self.env.now_ms >= self.accept_again_ms {
            self.accept_again_ms = 0;
            (0..self.listeners.len()).for_each(|at| self.accept(at));
        }
    }

    /// Gives a new connection to the thread whose turn it is.
    fn deal(&mut self, stream: TcpStream, addr: std::net::SocketAddr, memcached: bool) {
        let shared = self.env.shared.clone();
        if shared.connected.fetch_add(1, Ordering::Relaxed) >= shared.max_clients {
            shared.connected.fetch_sub(1, Ordering::Relaxed);
            shared.rejected.fetch_add(1, Ordering::Relaxed);
            // One attempt: whoever does not read it sees the closed connection.
            let text: &[u8] = match memcached {
                _ if shared.tls.is_some() => b"",
                true => b"ERROR Too many open connections\r\n",
                false => b"-ERR max number of clients reached\r\n",
            };
            let _ = io::Write::write(&mut &stream, text);
            return;
        }
        let id = shared.accepted_ever.fetch_add(1, Ordering::Relaxed) + 1;
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nodelay(true);
        let thread = self.next_thread % shared.inboxes.len();
        self.next_thread += 1;
        let client = Arc::new(Client {
            id,
            addr,
            thread,
            fd: stream.as_raw_fd(),
            since_s: shared.uptime_s(),
            active_s: shared.uptime_s().into(),
            last_command: u8::MAX.into(),
            resp: 2.into(),
            name: None.into(),
        });
        lock(&shared.clients).insert(id, client.clone());
        let session = Session::new(client, memcached, shared.password.is_none());
        if thread == self.env.index {
            self.adopt(stream, session);
        } else {
            shared.inboxes[thread].send(Message::Accepted(stream, Box::new(session)));
        }
    }

    /// Takes in a connection that was dealt to this thread.
    pub(crate) fn adopt(&mut self, mut stream: TcpStream, session: Session) {
        let Some((tls, counted_bytes)) = self.tls_for() else {
            return self.turn_away(&session);
        };
        let entry = self.conns.vacant_entry();
        let slot = entry.key();
        self.serial = self.serial.wrapping_add(1);
        let key = u64::from(self.serial) << 32 | slot as u64;
        if let Err(e) = self.poll.registry().register(
            &mut stream,
            Token(slot),
            Interest::READABLE | Interest::WRITABLE,
        ) {
            tracing::warn!(error = %e, "a connection could not be polled and is closed");
            if counted_bytes > 0 {
                self.env.budget.give(&mut self.env.store, counted_bytes);
            }
            return self.turn_away(&session);
        }
        if tls.is_some() {
            self.handshaking.push((key, self.env.now_ms));
        }
        let stream = Stream::new(stream, tls, counted_bytes);
        entry.insert(Conn::new(stream, key, session, self.env.now_ms));
        // An edge from before the registration is reported by it: nothing to do until then.
    }

    /// The encryption of a new connection, if this server has one, and what was granted for it. `None`: there is no room for it.
    fn tls_for(&mut self) -> Option<(Option<Box<Tls>>, usize)> {
        let Some(tls) = &self.env.shared.tls else {
            return Some((None, 0));
        };
        let identity = lock(tls).clone();
        let tls = Tls::new(&identity)
            .inspect_err(|e| tracing::warn!(error = %e, "a connection cannot be encrypted"))
            .ok()?;
        let granted = self.env.budget.ask(&mut self.env.store, TLS_CONN_BYTES);
        granted.then(|| (Some(Box::new(tls)), TLS_CONN_BYTES))
    }

    /// Forgets a connection that was counted already and cannot be served.
    fn turn_away(&mut self, session: &Session) {
        lock(&self.env.shared.clients).remove(&session.client.id);
        self.env.shared.connected.fetch_sub(1, Ordering::Relaxed);
        self.env.shared.rejected.fetch_add(1, Ordering::Relaxed);
    }
}
