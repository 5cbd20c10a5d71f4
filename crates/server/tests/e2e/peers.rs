//! Bad peers: garbage, half commands, huge lengths, ten thousand silent connections, readers that never read. While
//! they do their worst, a good client is answered within a second each time, the server's memory stays below its cap
//! and 32 MiB, and errors have the texts that Redis's clients know.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::cgroup::Cgroup;
use crate::support::resp::{Client, Reply, encode};
use crate::support::{Rng, Server, TempDir, alone, seed, status_bytes, value_of};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CAP_BYTES: u64 = 64 << 20;
const LIMIT_BYTES: u64 = CAP_BYTES + (32 << 20);
const ANSWER_MAX: Duration = Duration::from_secs(1);
const SILENT: usize = 10_000;
/// Descriptors of the test beside its connections.
const OTHER_FDS: u64 = 200;

/// A client that behaves, all the time, and a look at the server's memory.
struct Good {
    stop: Arc<AtomicBool>,
    peak_bytes: Arc<AtomicU64>,
    thread: JoinHandle<(Duration, u64)>,
}

impl Good {
    fn start(server: &Server) -> Good {
        let (stop, peak_bytes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (mut client, pid) = (server.client(), server.pid());
        let (stopped, peak) = (stop.clone(), peak_bytes.clone());
        let thread = std::thread::spawn(move || {
            let (mut worst, mut asked) = (Duration::ZERO, 0);
            while !stopped.load(Ordering::Relaxed) {
                let key = format!("good:{}", asked % 500);
                let value = value_of(asked, 300);
                let begun = Instant::now();
                assert!(client.call(&[b"SET", key.as_bytes(), &value]).is_ok());
                worst = worst.max(begun.elapsed());
                let begun = Instant::now();
                assert_eq!(client.call(&[b"GET", key.as_bytes()]), Reply::Bulk(value));
                worst = worst.max(begun.elapsed());
                asked += 1;
                peak.fetch_max(status_bytes(pid, "VmRSS"), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            (worst, asked)
        });
        Good {
            stop,
            peak_bytes,
            thread,
        }
    }

    fn judge(self, name: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let (worst, asked) = self.thread.join().expect("the good client was served");
        let peak = self.peak_bytes.load(Ordering::Relaxed);
        println!(
            "{name}: {asked} good rounds, slowest answer {worst:?}, peak resident {} MiB",
            peak >> 20
        );
        assert!(asked >= 2, "{name}: only {asked} good rounds");
        assert!(worst < ANSWER_MAX, "{name}: an answer took {worst:?}");
        assert!(
            peak > 0 && peak <= LIMIT_BYTES,
            "{name}: {peak} bytes resident"
        );
    }
}

/// A server in a group where there can be one; `work` is done while a good client is watched.
fn with_bad_peers(name: &str, work: impl FnOnce(&Server)) {
    let _alone = alone();
    let dir = TempDir::new(name);
    let group = Cgroup::new(LIMIT_BYTES)
        .map_err(|why| println!("{name}: judging by resident memory, since {why}"))
        .ok();
    let args = [
        "--dram",
        "64M",
        "--ssd",
        "1G",
        "--threads",
        "2",
        "--durability",
        "async",
        "--max-clients",
        "12000",
    ];
    let mut server = Server::start_in(&dir.pool(), &args, group.as_ref());
    let good = Good::start(&server);
    work(&server);
    good.judge(name);
    let report = group.as_ref().map_or(String::new(), Cgroup::report);
    println!("{name}: {report}");
    assert!(server.is_alive(), "{name}: the server is gone; {report}");
    if let Some(group) = &group {
        group.assert_kept();
    }
    assert_eq!(server.client().words("PING"), Reply::Simple("PONG".into()));
    server.shutdown();
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("a connection");
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("a timeout");
    stream
        .set_write_timeout(Some(Duration::from_secs(5)))
        .expect("a timeout");
    stream
}

/// What the server says to these bytes, until it closes or has said a line.
fn answer_to(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(addr);
    // The server may close before it has taken all.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    let mut buf = [0; 4096];
    while !said.ends_with(b"\r\n") {
        match stream.read(&mut buf) {
            Ok(n) if n > 0 => said.extend_from_slice(&buf[..n]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn e2e_garbage_gets_errors_and_harms_nobody() {
    let seed = seed();
    println!("garbage: seed {seed}");
    with_bad_peers("garbage", |server| {
        let mut rng = Rng::new(seed, 1);
        let heads: [&[u8]; 6] = [
            b"",
            b"*",
            b"*3\r\n$3\r\nSET\r\n",
            b"*2\r\n$",
            b"GET ",
            b"*1\r\n$4\r\n",
        ];
        for _ in 0..300 {
            let mut bytes = heads[rng.within(0..6) as usize].to_vec();
            let mut noise = vec![0; rng.length(1, 100_000)];
            rng.fill(&mut noise);
            bytes.extend_from_slice(&noise);
            let mut stream = connect(server.addr);
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut said = Vec::new();
            // It ends: with a close, or because we said no more.
            let ended = stream.read_to_end(&mut said);
            assert!(
                !matches!(&ended, Err(e) if e.kind() == io::ErrorKind::WouldBlock),
                "not closed"
            );
            assert!(
                said.is_empty() || b"-+$:*".contains(&said[0]),
                "{:?}",
                &said[..said.len().min(80)]
            );
        }
    });
}

#[test]
fn e2e_huge_lengths_are_refused_in_rediss_words() {
    with_bad_peers("lengths", |server| {
        let long_line = vec![b'x'; 100_000];
        let cases: [(&[u8], &str); 9] = [
            (
                b"*1000000000\r\n",
                "-ERR Protocol error: invalid multibulk length\r\n",
            ),
            (
                b"*99999999999999999999\r\n",
                "-ERR Protocol error: invalid multibulk length\r\n",
            ),
            (
                b"*1\r\n$9999999999\r\n",
                "-ERR Protocol error: invalid bulk length\r\n",
            ),
            (
                b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9999999999\r\n",
                "-ERR Protocol error: invalid bulk length\r\n",
            ),
            (
                b"*2\r\n$3\r\nGET\r\n$-5\r\n",
                "-ERR Protocol error: invalid bulk length\r\n",
            ),
            (
                b"*1\r\n:3\r\n",
                "-ERR Protocol error: expected '$', got ':'\r\n",
            ),
            (
                &long_line,
                "-ERR Protocol error: too big inline request\r\n",
            ),
            (
                b"SET k \"open\r\n",
                "-ERR Protocol error: unbalanced quotes in request\r\n",
            ),
            (
                b"NONSENSE a b\r\n",
                "-ERR unknown command 'NONSENSE', with args beginning with: 'a' 'b' \r\n",
            ),
        ];
        for _ in 0..20 {
            for (bytes, expected) in cases {
                let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
                assert_eq!(answer_to(server.addr, bytes), expected, "{shown:?}");
            }
        }
        // A value beyond the limit: refused by name, as soon as its length is known and without being taken in.
        let head = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$134217728\r\n";
        let mut stream = connect(server.addr);
        stream.write_all(head).expect("sent");
        let piece = vec![0; 1 << 20];
        for _ in 0..128 {
            if stream.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = stream.write_all(b"\r\n");
        let said = Client::over(stream).reply();
        let text = said
            .as_ref()
            .ok()
            .and_then(Reply::error)
            .unwrap_or_else(|| panic!("{said:?}"));
        assert!(
            text.contains("134217728") && text.contains("67108864"),
            "{text}"
        );
        assert_eq!(server.client().words("GET k"), Reply::Nil);
    });
}

#[test]
fn e2e_half_commands_wait_without_harm() {
    with_bad_peers("half", |server| {
        let value = value_of(5, 3_000_000);
        let mut whole = Vec::new();
        encode(&mut whole, &[b"SET", b"half", &value]);
        let mut rng = Rng::new(1, 1);
        // Cut anywhere: in the head, in a short value, in the middle of a long one.
        let mut halves: Vec<TcpStream> = Vec::new();
        for i in 0..400usize {
            let mut stream = connect(server.addr);
            let cut = match i % 4 {
                0 => rng.within(1..30) as usize,
                1 => rng.within(30..20_000) as usize,
                _ => rng.within(20_000..70_000) as usize,
            };
            // A server that holds all it may hold does not take everything.
            stream
                .set_write_timeout(Some(Duration::from_millis(50)))
                .expect("a timeout");
            let _ = stream.write_all(&whole[..cut]);
            halves.push(stream);
        }
        std::thread::sleep(Duration::from_secs(4));
        drop(halves);
        // The others' halves are gone, so a whole one finds its room.
        let mut client = server.client();
        assert!(client.call(&[b"SET", b"half", &value]).is_ok());
        assert!(client.call(&[b"GET", b"half"]) == Reply::Bulk(value));
    });
}

/// Raises the test's limit of open files as far as allowed; how many connections that leaves, at most `wanted`.
fn connections_allowed(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let need = wanted as u64 + OTHER_FDS;
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let new = Rlimit {
        current: Some(need.min(hard).max(limit.current.unwrap_or(need))),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, new).expect("the soft limit can be raised");
    // The server needs as many of its own, under the same hard limit.
    (hard.saturating_sub(OTHER_FDS) as usize).min(wanted)
}

#[test]
fn e2e_ten_thousand_silent_connections_harm_nobody() {
    with_bad_peers("silent", |server| {
        let count = connections_allowed(SILENT);
        if count < SILENT {
            println!("silent: only {count} connections, for the hard limit of open files");
        }
        let silent: Vec<TcpStream> = (0..count).map(|_| connect(server.addr)).collect();
        let mut client = server.client();
        let begun = Instant::now();
        while client.info("clients", "connected_clients") < count as u64 {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "not all are accepted"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_secs(2));
        // They are silent, and not dead.
        for stream in silent.iter().step_by(500) {
            let mut late = Client::over(stream.try_clone().expect("a handle"));
            assert_eq!(late.words("PING"), Reply::Simple("PONG".into()));
        }
    });
}

#[test]
fn e2e_readers_that_never_read_are_held_back() {
    with_bad_peers("never-read", |server| {
        let mut client = server.client();
        let (large, small) = (value_of(1, 16 << 20), value_of(2, 60_000));
        assert!(client.call(&[b"SET", b"large", &large]).is_ok());
        assert!(client.call(&[b"SET", b"small", &small]).is_ok());
        let mut greedy = Vec::new();
        for i in 0..100 {
            let key: &[u8] = if i % 2 == 0 { b"large" } else { b"small" };
            let mut asks = Vec::new();
            (0..1_000).for_each(|_| encode(&mut asks, &[b"GET", key]));
            let mut stream = connect(server.addr);
            stream
                .set_write_timeout(Some(Duration::from_millis(20)))
                .expect("a timeout");
            let _ = stream.write_all(&asks);
            greedy.push(stream);
        }
        std::thread::sleep(Duration::from_secs(5));
        let held = client.info("clients", "buffer_bytes");
        println!(
            "never-read: {held} bytes of buffers for {} greedy peers",
            greedy.len()
        );
        assert!(
            held <= CAP_BYTES / 8,
            "{held} bytes of buffers, above an eighth of the cap"
        );
        // A good reader of a long value gets it beside them.
        assert!(client.call(&[b"GET", b"large"]) == Reply::Bulk(large));
        drop(greedy);
        let begun = Instant::now();
        while client.info("clients", "connected_clients") > 3
            || client.info("clients", "buffer_bytes") > held / 2 + 65_536
        {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "buffers of closed connections stay"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}
