//! Ports for the servers of tests. Never: a listening socket, not even for a moment; see [`free_addr`].

#![allow(dead_code)] // every user takes its part

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// An address of loopback that nobody listens on.
///
/// The socket that finds it is bound and does not listen. A `TcpListener` listens at once, and a process that another
/// test's thread has just forked keeps it open until it executes its program: a connection made meanwhile succeeds, and
/// is taken for the server's.
pub fn free_addr() -> SocketAddr {
    free_addr_of(Ipv4Addr::LOCALHOST.into())
}

/// The same with an address of the caller's.
pub fn free_addr_of(ip: IpAddr) -> SocketAddr {
    let addr = SocketAddr::new(ip, 0);
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).expect("a socket");
    // The server may bind the port while a forked process still holds this socket.
    socket.set_reuse_address(true).expect("an option");
    socket.bind(&addr.into()).expect("a free port");
    let bound = socket.local_addr().expect("its address");
    bound.as_socket().expect("an address of the internet")
}
