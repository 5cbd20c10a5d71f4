//! A thread of the server that the test turns itself, so that what comes in one poll, or is true at one moment, is what the test
//! wants.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::Events;

use super::double::{Double, Factory, Settings, Shared};
use super::plain;
use crate::conn::Block;
use crate::limits::{OUTPUT_LIMIT_BYTES, STANDING_BYTES, STUCK_AFTER_MS};
use crate::shared::Message;
use crate::store::StoreFactory;
use crate::thread::Thread;
use crate::{Server, ServerOptions};

struct ByHand {
    thread: Thread<Double>,
    shared: Arc<crate::shared::Shared>,
    factory: Arc<Factory>,
    addr: SocketAddr,
    events: Events,
}

impl ByHand {
    fn new(settings: Settings) -> ByHand {
        let factory = Factory::new(settings);
        let home = Arc::new(Shared(factory.clone()));
        let options = ServerOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            ..Default::default()
        };
        let server = Server::bind(&options, home.clone()).unwrap();
        let addr = server.local_addr();
        let Server {
            shared,
            mut polls,
            listeners,
            ..
        } = server;
        let store = home.open(0, Arc::new(|| ())).unwrap();
        let poll = polls.pop().unwrap();
        ByHand {
            thread: Thread::new(0, store, shared.clone(), poll, listeners).unwrap(),
            shared,
            factory,
            addr,
            events: Events::with_capacity(64),
        }
    }

    fn poll(&mut self) {
        let soon = Duration::from_millis(5);
        self.thread.poll_once(&mut self.events, soon).unwrap();
    }

    fn turn(&mut self) {
        self.poll();
        self.thread.turn();
    }

    /// A client whose connection is there, which does not wait when it reads.
    fn client(&mut self) -> TcpStream {
        let before = self.thread.conns.len();
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        while self.thread.conns.len() == before {
            self.turn();
        }
        // That it can be written to is told once.
        self.turn();
        stream
    }

    /// Sends, and turns until so many bytes have come back.
    fn ask(&mut self, client: &mut TcpStream, mut sent: &[u8], reply_bytes: usize) -> Vec<u8> {
        let mut got = Vec::new();
        for _ in 0..10_000 {
            if let Ok(n) = client.write(sent) {
                sent = &sent[n..];
            }
            self.turn();
            read_all(client, &mut got);
            if got.len() >= reply_bytes {
                return got;
            }
        }
        panic!("only {} of {reply_bytes} bytes came", got.len());
    }

    fn stop(self) {
        self.thread.stop().unwrap();
        assert_eq!(self.factory.leaks(), (0, 0));
    }
}

/// Reads what there is; false: that was all that ever comes.
fn read_all(client: &mut TcpStream, got: &mut Vec<u8>) -> bool {
    let mut chunk = vec![0; 256 << 10];
    loop {
        match client.read(&mut chunk) {
            Ok(0) => return false,
            Ok(n) => got.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return true,
            Err(e) => panic!("{e}"),
        }
    }
}

/// In one poll: a connection is to be killed, another one comes and gets its place, and the first one's client is gone.
#[test]
fn the_last_words_of_a_connection_do_not_end_the_one_in_its_place() {
    let mut server = ByHand::new(plain());
    let first = server.client();
    let id = server.thread.conns[0].session.client.id;
    server.shared.inboxes[0].send(Message::Kill(id));
    let mut second = TcpStream::connect(server.addr).unwrap();
    second.set_nonblocking(true).unwrap();
    // Reset, and not ended.
    let at_once = Some(Duration::ZERO);
    socket2::SockRef::from(&first).set_linger(at_once).unwrap();
    drop(first);
    std::thread::sleep(Duration::from_millis(50));
    server.poll();
    let ids: Vec<u64> = (server.thread.conns.iter())
        .map(|(_, c)| c.session.client.id)
        .collect();
    assert_eq!(ids, [id + 1]);
    assert_eq!(server.ask(&mut second, b"PING\r\n", 7), b"+PONG\r\n");
    server.stop();
}

/// Whose reply is on its way is cut off without a word, which would be taken for a part of it.
#[test]
fn nothing_is_written_into_a_value_when_its_reader_is_cut_off() {
    for command in [&b"GET big\r\n"[..], b"MGET big big\r\n"] {
        let mut server = ByHand::new(plain());
        let mut client = server.client();
        let value = vec![b'v'; 2 << 20];
        let set = super::encode(&[b"SET", b"big", &value]);
        assert_eq!(server.ask(&mut client, &set, 5), b"+OK\r\n");
        // The beginning of another command stays in a buffer.
        client.write_all(&[command, b"PIN"].concat()).unwrap();
        let mut got = Vec::new();
        while !server.thread.conns[0].is_replying() {
            server.turn();
        }
        // What is sent already is read, and there is no room for the next piece.
        server.factory.take_all(true);
        let standing = STANDING_BYTES as usize;
        server.thread.env.budget.take(standing);
        let waits = |server: &ByHand| {
            let conn = &server.thread.conns[0];
            conn.block == Block::Grant && conn.output.pending() == 0
        };
        while !waits(&server) {
            server.turn();
            assert!(read_all(&mut client, &mut got));
        }
        let conn = &server.thread.conns[0];
        assert!(conn.is_replying() && conn.held_bytes() > 0);
        // First what has come back is seen, then that nothing has for long enough.
        server.thread.relieve();
        server.thread.env.now_ms += STUCK_AFTER_MS + 100;
        server.thread.relieve();
        assert!(server.thread.conns.is_empty());
        let cut_off = &server.shared.counters[0].cut_off;
        assert_eq!(cut_off.load(Ordering::Relaxed), 1);
        while read_all(&mut client, &mut got) {}
        let text = String::from_utf8(got).unwrap();
        assert!(text.contains("$2097152\r\nvvv"));
        let others: String = text
            .chars()
            .filter(|c| !"$*0123456789\r\nv".contains(*c))
            .collect();
        assert_eq!(others, "");
        let thread = &mut server.thread;
        thread.env.budget.give(&mut thread.env.store, standing);
        server.factory.take_all(false);
        server.stop();
    }
}

/// What was read ahead for a client that takes nothing: others may want the room for their reads.
#[test]
fn a_client_that_takes_nothing_keeps_no_reads_from_others() {
    let settings = Settings {
        wait_per_mille: 1000,
        ..plain()
    };
    let mut server = ByHand::new(settings);
    let mut client = server.client();
    let value = vec![b'v'; 16 << 10];
    let set = super::encode(&[b"SET", b"k", &value]);
    assert_eq!(server.ask(&mut client, &set, 5), b"+OK\r\n");
    let keys = 1000;
    let mut words: Vec<&[u8]> = vec![b"k"; keys + 1];
    words[0] = b"MGET";
    client.write_all(&super::encode(&words)).unwrap();
    let pending = |server: &ByHand| server.thread.conns[0].output.pending();
    while pending(&server) <= OUTPUT_LIMIT_BYTES || server.thread.conns[0].block != Block::None {
        server.turn();
    }
    let tasks = |server: &ByHand| server.factory.leaks().0;
    let stuck = |server: &mut ByHand| {
        server.thread.env.now_ms += STUCK_AFTER_MS + 100;
        server.thread.let_reads_go();
    };
    // The command's, and what was read ahead: nobody wants it yet.
    stuck(&mut server);
    assert!(tasks(&server) > 2);
    server.factory.short_of_reads(true);
    stuck(&mut server);
    assert_eq!(tasks(&server), 1);
    // It goes on when the client does.
    let reply_bytes = keys * (value.len() + "$16384\r\n\r\n".len()) + "*1000\r\n".len();
    let got = server.ask(&mut client, b"", reply_bytes);
    assert_eq!(got.len(), reply_bytes);
    assert!(got.ends_with(b"v\r\n"));
    server.stop();
}
