//! Tells the service manager that started this process how it is doing (systemd's notify protocol: a datagram to the socket that
//! NOTIFY_SOCKET names). Without that, nothing is told. Never: fails, or waits: a manager that does not listen is not this
//! process's problem.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The server serves.
pub const READY: &str = "READY=1";
/// It is stopping.
pub const STOPPING: &str = "STOPPING=1";

/// Tells a state, and what it means in words.
pub fn tell(state: &str, status: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let addr = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
    };
    let text = match state {
        "" => format!("STATUS={status}"),
        state => format!("{state}\nSTATUS={status}"),
    };
    let told = addr.and_then(|addr| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(text.as_bytes(), &addr)
    });
    if let Err(e) = told {
        tracing::debug!(error = %e, "the service manager could not be told: {text}");
    }
}
