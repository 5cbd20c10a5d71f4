//! Tests of the server over real sockets and the double, and what they share: starting one, and talking to it.

mod batches;
mod by_hand;
mod commands;
mod differential;
mod door;
mod double;
mod hostile;
mod http;
mod insight;
mod large;
mod lists;
mod long;
mod memcached;
mod memcached_long;
mod memcached_meta;
mod memcached_too_long;
mod parser;
#[path = "../../tests/e2e/support/port.rs"]
mod port;
mod sight;
mod tls;
mod transactions;
mod walk;
mod watched;
mod way;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Server, ServerError, ServerOptions, Stopper};
use double::{Factory, Settings, Shared};

/// A running server.
pub struct Running {
    pub addr: SocketAddr,
    pub memcached: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub factory: Arc<Factory>,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Running {
    pub fn start(settings: Settings, threads: usize) -> Self {
        Self::start_with(
            settings,
            ServerOptions {
                threads,
                ..Default::default()
            },
        )
    }

    pub fn start_with(settings: Settings, options: ServerOptions) -> Self {
        let factory = Factory::new(settings);
        let options = ServerOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            ..options
        };
        let server = Server::bind(&options, Arc::new(Shared(factory.clone()))).unwrap();
        let (addr, stopper) = (server.local_addr(), server.stopper());
        let memcached = server.memcached_addr();
        let metrics = server.metrics_addr();
        let thread = Some(std::thread::spawn(move || server.run()));
        Running {
            addr,
            memcached,
            metrics,
            factory,
            stopper,
            thread,
        }
    }

    pub fn client(&self) -> Talk {
        Talk::new(self.addr)
    }

    /// Stops, and checks that everything was given back.
    pub fn stop(mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert_eq!(
            self.factory.leaks(),
            (0, 0),
            "tasks, holds and uploads; granted bytes"
        );
    }

    /// Waits for the server to stop by itself.
    pub fn ended(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert_eq!(self.factory.leaks(), (0, 0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

/// The usual settings: a budget of 32 MiB, no waits.
pub fn plain() -> Settings {
    Settings {
        budget_bytes: 32 << 20,
        ..Default::default()
    }
}

/// One connection.
pub struct Talk {
    pub stream: TcpStream,
    buf: Vec<u8>,
}

impl Talk {
    pub fn new(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Talk {
            stream,
            buf: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a command and answers its reply, raw.
    pub fn ask(&mut self, args: &[&str]) -> String {
        let args: Vec<&[u8]> = args.iter().map(|a| a.as_bytes()).collect();
        self.send(encode(&args));
        String::from_utf8_lossy(&self.reply()).into_owned()
    }

    /// The next whole reply, raw.
    pub fn reply(&mut self) -> Vec<u8> {
        loop {
            if let Some(len) = reply_len(&self.buf) {
                return self.buf.drain(..len).collect();
            }
            let mut chunk = vec![0; 256 << 10];
            let n = match self.stream.read(&mut chunk) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.expect("a reply in time"),
            };
            assert!(
                n > 0,
                "the connection ended within {:?}",
                String::from_utf8_lossy(&self.buf[..self.buf.len().min(200)])
            );
            self.buf.extend_from_slice(&chunk[..n]);
        }
    }

    /// What has come and was not looked at, and a little more.
    pub fn stream_text(&mut self) -> String {
        let mut chunk = [0; 4096];
        let n = self.stream.read(&mut chunk).expect("more in time");
        assert!(n > 0, "the connection ended");
        self.buf.extend_from_slice(&chunk[..n]);
        String::from_utf8_lossy(&self.buf).into_owned()
    }

    /// Everything up to the end of the connection.
    pub fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.buf);
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// A command as clients send it.
pub fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// The length of the reply at the start of `data`, if it is whole.
pub fn reply_len(data: &[u8]) -> Option<usize> {
    let line = data.windows(2).position(|w| w == b"\r\n")?;
    let number = || {
        std::str::from_utf8(&data[1..line])
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    let end = line + 2;
    let elements = match data[0] {
        b'$' | b'=' if number() >= 0 => {
            let whole = end + number() as usize + 2;
            return (data.len() >= whole).then_some(whole);
        }
        b'*' | b'~' => number().max(0),
        b'%' => 2 * number(),
        _ => 0,
    };
    let mut at = end;
    for _ in 0..elements {
        at += reply_len(&data[at..])?;
    }
    Some(at)
}

/// Of as many draws the kernel repeats dozens.
#[test]
fn no_test_is_given_another_ones_port() {
    let given = std::iter::repeat_with(|| port::free_addr().port());
    let different: std::collections::BTreeSet<u16> = given.take(1_000).collect();
    assert_eq!(different.len(), 1_000);
}
