//! Terrace's RESP door: a server that Redis's clients talk to. Sockets, parsing, execution and replies of a connection
//! stay on one thread, which also owns its part of the store. Memory is bounded whatever clients do: all buffers of
//! connections come out of one budget, and what finds no room there waits, or is cut off with an error. Without a password and without TLS it
//! listens on loopback only, and it keeps no data itself: everything goes to a [`store::Store`].

mod at_once;
pub mod auth;
mod budget;
mod commands;
mod conn;
mod delayed;
mod door;
mod env;
mod execute;
mod glob;
mod held;
mod info;
mod intake;
mod kv_store;
pub mod limits;
mod lines;
mod linger;
mod lookout;
mod memcached;
mod metadata;
mod outgo;
mod overlay;
mod release;
mod relief;
mod resp;
mod service;
mod session;
mod shared;
mod sight;
mod step;
pub mod store;
mod stream;
mod sync;
mod table;
mod thread;
pub mod tls;
mod together;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::door::tls_clients_max;
pub use crate::kv_store::{KvStore, PoolFactory};
use crate::limits::{
    KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, LISTEN_BACKLOG, SOCKET_BUFFER_BYTES,
    TLS_CONN_BYTES, reserved_fds,
};
use crate::shared::{Inbox, Shared};
use crate::sight::http::MetricsDoor;
use crate::store::StoreFactory;
use crate::thread::{Listener, Thread, WAKER};

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where to listen. Port 0 chooses a free one.
    pub listen: SocketAddr,
    /// Where to listen for memcached's protocol, if at all.
    pub memcached: Option<SocketAddr>,
    /// Where to serve the metrics, if at all; loopback only, without a password.
    pub metrics: Option<SocketAddr>,
    /// Threads, each of which serves its own connections.
    pub threads: usize,
    /// The most connections at once.
    pub max_clients: usize,
    /// What clients must say first. Without one and without TLS, only loopback addresses are served.
    pub password: Option<auth::Password>,
    /// Who the server is, for clients that all speak TLS then.
    pub tls: Option<tls::Identity>,
    /// The longest value, bytes; from `INLINE_MAX_BYTES` to `VALUE_MAX_BYTES`.
    pub max_value_bytes: u64,
    /// A connection from which nothing has come, or which has taken nothing, for so long is closed.
    pub idle_timeout: Option<std::time::Duration>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            memcached: None,
            metrics: None,
            threads: 1,
            max_clients: 10_000,
            password: None,
            tls: None,
            max_value_bytes: limits::VALUE_MAX_BYTES,
            idle_timeout: None,
        }
    }
}

impl ServerOptions {
    /// Whether an address may be listened on: beyond this machine only with a password or TLS.
    ///
    /// # Errors
    /// When it may not.
    pub fn may_listen(&self, addr: SocketAddr) -> Result<(), ServerError> {
        match addr.ip().is_loopback() || self.password.is_some() || self.tls.is_some() {
            true => Ok(()),
            false => Err(ServerError::NotLoopback(addr)),
        }
    }

    /// Whether the metrics may be served where they are to be: beyond loopback only with a password, since they are not encrypted.
    ///
    /// # Errors
    /// When they may not.
    pub fn may_serve_metrics(&self) -> Result<(), ServerError> {
        match self.metrics {
            Some(addr) if !addr.ip().is_loopback() && self.password.is_none() => {
                Err(ServerError::MetricsNotLoopback(addr))
            }
            _ => Ok(()),
        }
    }
}

/// Why a server did not start, or did not stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is not one of this machine alone.
    #[error(
        "{0} is not a loopback address, where anybody in the network could read and delete everything; without a password and \
         without TLS the server listens on loopback only: use 127.0.0.1 or [::1], or say --requirepass-file FILE, or --tls-cert FILE \
         --tls-key FILE (with --tls-ca FILE for clients that show a certificate), or both"
    )]
    NotLoopback(SocketAddr),
    /// The metrics' address is not one of this machine alone.
    #[error(
        "{0} is not a loopback address; the metrics are not encrypted, and without a password they are served on loopback only: \
         use 127.0.0.1 or [::1], or say --requirepass-file FILE"
    )]
    MetricsNotLoopback(SocketAddr),
    /// The address is taken or not allowed.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// What was asked for.
        addr: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A number of threads that makes no sense.
    #[error("{0} threads were asked for; 1 to {THREADS_MAX} are allowed")]
    Threads(usize),
    /// Anything else that the system refused.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// A thread could not begin, go on or end.
    #[error("{0}")]
    Thread(String),
}

/// The most threads of a server.
pub const THREADS_MAX: usize = 64;

/// Makes a running server stop, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Begins a clean stop; [`Server::run`] returns when it is done.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// New connections meet this identity from now on (a certificate that was renewed, say); of a server without TLS nothing changes.
    pub fn renew(&self, identity: tls::Identity) {
        if let Some(tls) = &self.0.tls {
            *sync::lock(tls) = identity;
        }
    }
}

/// A server that listens and does not serve yet.
pub struct Server<F: StoreFactory> {
    factory: Arc<F>,
    shared: Arc<Shared>,
    polls: Vec<Poll>,
    listeners: Vec<Listener>,
    metrics: Option<MetricsDoor>,
    metrics_addr: Option<SocketAddr>,
}

impl<F: StoreFactory> Server<F> {
    /// Checks the options and takes the address. Raises the limit of open files as far as the system allows, and
    /// lowers the most connections to what that leaves.
    ///
    /// # Errors
    /// When the options are refused or the address cannot be had.
    pub fn bind(options: &ServerOptions, factory: Arc<F>) -> Result<Self, ServerError> {
        for addr in [Some(options.listen), options.memcached]
            .into_iter()
            .flatten()
        {
            options.may_listen(addr)?;
        }
        options.may_serve_metrics()?;
        if !(1..=THREADS_MAX).contains(&options.threads) {
            return Err(ServerError::Threads(options.threads));
        }
        let mut listeners = vec![listen(options.listen, false)?];
        if let Some(addr) = options.memcached {
            listeners.push(listen(addr, true)?);
        }
        let memcached_addr = listeners.get(1).map(|l| l.socket.local_addr());
        let (mut metrics, mut metrics_addr, mut metrics_waker) = (None, None, None);
        if let Some(addr) = options.metrics {
            let socket = listen(addr, false)?.socket;
            metrics_addr = Some(socket.local_addr()?);
            let (door, waker) = MetricsDoor::new(socket)?;
            (metrics, metrics_waker) = (Some(door), Some(waker));
        }
        let max_clients = clients_allowed(options.max_clients, options.threads);
        let max_clients = match options.tls {
            Some(_) => tls_clients_allowed(max_clients, factory.dram_bytes(), options.threads),
            None => max_clients,
        };
        let mut polls = Vec::with_capacity(options.threads);
        let mut inboxes = Vec::with_capacity(options.threads);
        for _ in 0..options.threads {
            let poll = Poll::new()?;
            inboxes.push(Inbox::new(Waker::new(poll.registry(), WAKER)?));
            polls.push(poll);
        }
        let shared = Arc::new(Shared {
            addr: listeners[0].socket.local_addr()?,
            memcached_addr: memcached_addr.transpose()?,
            max_clients,
            password: options.password.clone(),
            tls: options.tls.clone().map(std::sync::Mutex::new),
            max_value_bytes: options.max_value_bytes,
            idle_timeout: options.idle_timeout,
            started: Instant::now(),
            counters: (0..options.threads).map(|_| Default::default()).collect(),
            inboxes: inboxes.into_boxed_slice(),
            connected: Default::default(),
            accepted: Default::default(),
            accepted_ever: Default::default(),
            rejected: Default::default(),
            starved_ms: Default::default(),
            returned_ms: Default::default(),
            stopping: Default::default(),
            clients: Default::default(),
            about: factory.clone(),
            errors: Default::default(),
            rate: Default::default(),
            slow: Default::default(),
            paused: Default::default(),
            told_of_http: Default::default(),
            flush_at_ms: Default::default(),
            metrics_waker,
        });
        Ok(Server {
            factory,
            shared,
            polls,
            listeners,
            metrics,
            metrics_addr,
        })
    }

    /// The address that the metrics are served on.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// The address that is listened on for memcached's protocol.
    pub fn memcached_addr(&self) -> Option<SocketAddr> {
        self.shared.memcached_addr
    }

    /// The address that is listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.addr
    }

    /// A handle that stops this server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    /// Serves until it is stopped (by a [`Stopper`] or by SHUTDOWN). Every thread has left the store when this
    /// returns.
    ///
    /// # Errors
    /// When a thread could not begin or end properly; the others are stopped then, too.
    pub fn run(self) -> Result<(), ServerError> {
        let Server {
            factory,
            shared,
            polls,
            mut listeners,
            metrics,
            ..
        } = self;
        let mut threads = Vec::new();
        if let Some(door) = metrics {
            let shared = shared.clone();
            let body = move || {
                door.run(&shared);
                Ok(())
            };
            let name = "metrics".to_string();
            threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        for (index, poll) in polls.into_iter().enumerate() {
            let (factory, shared) = (factory.clone(), shared.clone());
            let listeners = std::mem::take(&mut listeners);
            let stop = Stopper(shared.clone());
            let body = move || {
                // Also when this thread panics: a server that serves half of its clients helps nobody.
                let _stop = StopOnDrop(stop);
                run_thread(&*factory, index, shared, poll, listeners)
            };
            threads.push(
                std::thread::Builder::new()
                    .name(format!("resp-{index}"))
                    .spawn(body)?,
            );
        }
        let mut first_error = None;
        for thread in threads {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err("a server thread panicked".to_string()));
            first_error = first_error.or(ended.err());
        }
        first_error.map_or(Ok(()), |e| Err(ServerError::Thread(e)))
    }
}

struct StopOnDrop(Stopper);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn run_thread<F: StoreFactory>(
    factory: &F,
    index: usize,
    shared: Arc<Shared>,
    poll: Poll,
    listeners: Vec<Listener>,
) -> Result<(), String> {
    let waking = shared.clone();
    let store = factory.open(
        index,
        Arc::new(move || drop(waking.inboxes[index].waker.wake())),
    )?;
    Thread::new(index, store, shared, poll, listeners)
        .map_err(|e| e.to_string())?
        .run()
}

/// The kernel's buffers are bounded, too: what is set on the listener holds for what it accepts.
fn listen(addr: SocketAddr, memcached: bool) -> Result<Listener, ServerError> {
    let socket = listening(addr).map_err(|source| ServerError::Listen { addr, source })?;
    Ok(Listener { socket, memcached })
}

fn listening(addr: SocketAddr) -> std::io::Result<mio::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(addr),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    // Whoever is gone without a word would keep its place for ever.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(KEEPALIVE_IDLE_S))
        .with_interval(Duration::from_secs(KEEPALIVE_INTERVAL_S))
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.bind(&addr.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(mio::net::TcpListener::from_std(socket.into()))
}

/// How many clients the limit of open files leaves room for, after it was raised as far as needed and allowed.
fn clients_allowed(wanted: usize, threads: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let reserved = reserved_fds(threads);
    let needed = wanted as u64 + reserved;
    let Some(current) = limit.current.filter(|&current| current < needed) else {
        return wanted;
    };
    // Root may raise the hard limit, others only up to it.
    let hard = limit.maximum.map_or(needed, |maximum| maximum.max(needed));
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum: limit.maximum.map(|_| hard),
        },
    )
    .map(|()| needed)
    .or_else(|_| {
        let most = limit.maximum.unwrap_or(needed).min(needed);
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(most),
                maximum: limit.maximum,
            },
        )
        .map(|()| most)
    })
    .unwrap_or(current);
    let allowed = raised.saturating_sub(reserved).min(wanted as u64).max(1) as usize;
    if allowed < wanted {
        tracing::warn!(
            wanted,
            allowed,
            "the limit of open files allows fewer clients; raise it with ulimit -n"
        );
    }
    allowed
}

/// How many clients what each takes for TLS leaves room for: beyond that they could starve each other without saying a word.
fn tls_clients_allowed(wanted: usize, dram_bytes: u64, threads: usize) -> usize {
    let allowed = tls_clients_max(dram_bytes, threads).min(wanted);
    if allowed < wanted {
        tracing::warn!(
            wanted,
            allowed,
            "every TLS connection takes {TLS_CONN_BYTES} bytes of the connections' eighth of the DRAM cap, which allows fewer \
             clients; raise --dram"
        );
    }
    allowed
}
