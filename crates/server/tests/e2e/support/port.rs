//! Ports for the servers of tests, each given once. Never: a listening socket, not even for a moment; see [`free_addr`].

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use socket2::{Domain, Socket, Type};

/// From the moment a port is found until its server binds it, which may first make a pool for a second, nobody holds it: the kernel may
/// find it for another test, and one of the two then talks to the other's server, which answers whatever it is asked.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
/// So often another is looked for. The kernel chooses among thousands.
const TRIES_MAX: usize = 1_000;

/// An address of loopback that nobody listens on, and that no other test of this process was given.
///
/// The socket that finds it is bound and does not listen. A `TcpListener` listens at once, and a process that another
/// test's thread has just forked keeps it open until it executes its program: a connection made meanwhile succeeds, and
/// is taken for the server's.
pub fn free_addr() -> SocketAddr {
    free_addr_of(Ipv4Addr::LOCALHOST.into())
}

/// The same with an address of the caller's.
pub fn free_addr_of(ip: IpAddr) -> SocketAddr {
    let found = std::iter::repeat_with(|| unused(ip)).take(TRIES_MAX);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut new = found.filter(|addr| given.insert(addr.port()));
    new.next().expect("a port that was not given yet")
}

fn unused(ip: IpAddr) -> SocketAddr {
    let addr = SocketAddr::new(ip, 0);
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).expect("a socket");
    // The server may bind the port while a forked process still holds this socket.
    socket.set_reuse_address(true).expect("an option");
    socket.bind(&addr.into()).expect("a free port");
    let bound = socket.local_addr().expect("its address");
    bound.as_socket().expect("an address of the internet")
}
