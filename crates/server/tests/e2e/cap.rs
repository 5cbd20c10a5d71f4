//! The cap on DRAM: a server in a cgroup of its cap and 32 MiB, with ten times the cap in data of all sizes, deletes,
//! expiries and transactions, by clients of both protocols; fifty long values that arrive at once; and hundreds of encrypted connections, some
//! of which read nothing. Never killed, never over, every read right. Without a
//! cgroup (no root) the process's own peak is judged, and the reason is printed.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::certs::Authority;
use crate::support::cgroup::Cgroup;
use crate::support::resp::{Client, Reply, encode, memcached_store};
use crate::support::{Rng, Server, TempDir, beside, busy, free_addr, seed, soak_time, value_of};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const ABOVE_CAP_BYTES: u64 = 32 << 20;
const MIB: u64 = 1 << 20;
/// Ten times the cap is loaded for so long at least after it was filled.
const LOAD_MIN: Duration = Duration::from_secs(10);

/// A server in a group, and how it kept the cap.
struct Bounded {
    server: Server,
    group: Option<Cgroup>,
    limit_bytes: u64,
}

impl Bounded {
    fn start(dir: &TempDir, cap_mib: u64, more: &[&str]) -> Bounded {
        let limit_bytes = cap_mib * MIB + ABOVE_CAP_BYTES;
        let group = Cgroup::new(limit_bytes)
            .map_err(|why| println!("judging by the process's peak, since {why}"))
            .ok();
        let cap = format!("{cap_mib}M");
        let mut args = vec!["--dram", &cap, "--threads", "2", "--durability", "async"];
        args.extend(more);
        let server = Server::start_in(&dir.pool(), &args, group.as_ref());
        Bounded {
            server,
            group,
            limit_bytes,
        }
    }

    fn judge(&mut self, name: &str) {
        let resident = self.server.status_bytes("VmHWM");
        let group = self.group.as_ref().map_or(String::new(), Cgroup::report);
        println!("{name}: peak resident {} MiB; {group}", resident / MIB);
        assert!(
            self.server.is_alive(),
            "{name}: the server is gone; {group}"
        );
        match &self.group {
            Some(group) => group.assert_kept(),
            None => assert!(
                resident <= self.limit_bytes,
                "{name}: {resident} bytes resident"
            ),
        }
    }
}

/// What a key holds: its value's id and length, and within which time it expires.
#[derive(Clone, Copy)]
struct Held {
    id: u64,
    len: usize,
    expires: Option<(Instant, Instant)>,
}

/// One client's keys.
struct Load {
    number: u64,
    keys: u64,
    rng: Rng,
    held: HashMap<u64, Held>,
    ids: u64,
    done: u64,
    /// It speaks memcached's protocol.
    memcached: bool,
}

/// Sends in memcached's words and receives.
fn ask(client: &mut Client, text: &[u8]) -> Reply {
    client.stream.write_all(text).expect("sent");
    client.memcached_reply().expect("a reply")
}

impl Load {
    fn length(&mut self) -> usize {
        match self.rng.within(0..100) {
            0 => self.rng.length(64 << 10, 1 << 20),
            1..10 => self.rng.length(2 << 10, 64 << 10),
            _ => self.rng.within(1..2_048) as usize,
        }
    }

    fn name(&self, key: u64) -> Vec<u8> {
        format!("cap:{}:{key}", self.number).into_bytes()
    }

    fn set(&mut self, client: &mut Client, key: u64, expire: bool) {
        let len = self.length();
        self.ids += 1;
        let id = self.number << 48 | self.ids;
        let (name, value) = (self.name(key), value_of(id, len));
        let px = match self.memcached {
            true => self.rng.within(1..4) * 1_000,
            false => self.rng.within(200..3_000),
        };
        let sent = Instant::now();
        let reply = match (self.memcached, expire) {
            (true, _) => {
                let mut text = Vec::new();
                let exptime_s = if expire { px / 1_000 } else { 0 };
                memcached_store(&mut text, "set", &name, exptime_s, &value);
                ask(client, &text)
            }
            (false, true) => {
                client.call(&[b"SET", &name, &value, b"PX", px.to_string().as_bytes()])
            }
            (false, false) => client.call(&[b"SET", &name, &value]),
        };
        assert!(reply.is_ok(), "SET of {len} bytes: {reply:?}");
        // The wall clock that expiry goes by and this one may differ a little; memcached's has whole seconds.
        let slack_ms = if self.memcached { 1_050 } else { 50 };
        let (px, slack) = (Duration::from_millis(px), Duration::from_millis(slack_ms));
        let expires = expire.then(|| (sent + px - slack, Instant::now() + px + slack));
        self.held.insert(key, Held { id, len, expires });
    }

    fn del(&mut self, client: &mut Client, key: u64) {
        let name = self.name(key);
        let reply = match self.memcached {
            true => ask(client, &[b"delete ", &name[..], b"\r\n"].concat()),
            false => client.call(&[b"DEL", &name]),
        };
        match self.held.remove(&key) {
            None => assert_eq!(reply, Reply::Int(0)),
            Some(Held { expires: None, .. }) => assert_eq!(reply, Reply::Int(1)),
            Some(_) => assert!(matches!(reply, Reply::Int(_)), "{reply:?}"),
        }
    }

    fn get(&mut self, client: &mut Client, key: u64) {
        let asked = Instant::now();
        let name = self.name(key);
        let reply = match self.memcached {
            true => ask(client, &[b"get ", &name[..], b"\r\n"].concat()),
            false => client.call(&[b"GET", &name]),
        };
        let right = match self.held.get(&key) {
            None => reply == Reply::Nil,
            Some(held) => {
                let there = reply == Reply::Bulk(value_of(held.id, held.len));
                let (may_be_gone, must_be_gone) = match held.expires {
                    None => (false, false),
                    Some((earliest, latest)) => (Instant::now() >= earliest, asked > latest),
                };
                (there && !must_be_gone) || (reply == Reply::Nil && may_be_gone)
            }
        };
        assert!(right, "cap:{}:{key}: {}", self.number, reply.shown());
    }

    /// A transaction that gives several keys new values.
    fn multi(&mut self, client: &mut Client) {
        let mut keys: Vec<u64> = (0..8).map(|_| self.rng.within(0..self.keys)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut text = Vec::new();
        encode(&mut text, &[b"MULTI"]);
        for &key in &keys {
            self.ids += 1;
            let held = Held {
                id: self.number << 48 | self.ids,
                // Rarely, or the data would outgrow the SSD on a machine that is quick enough.
                len: match self.rng.one_in(200) {
                    true => self.rng.length(64 << 10, 200_000),
                    false => self.rng.length(100, 40_000),
                },
                expires: None,
            };
            let (name, value) = (self.name(key), value_of(held.id, held.len));
            encode(&mut text, &[b"SET", &name, &value]);
            self.held.insert(key, held);
        }
        encode(&mut text, &[b"EXEC"]);
        client.stream.write_all(&text).expect("sent");
        // OK of MULTI, and a QUEUED for each.
        (0..=keys.len()).for_each(|_| drop(client.reply().expect("a reply")));
        let reply = client.reply().expect("a reply");
        let done = matches!(&reply, Reply::Array(all) if all.len() == keys.len() && all.iter().all(Reply::is_ok));
        assert!(done, "EXEC: {reply:?}");
    }

    fn run(&mut self, mut client: Client, until: Instant) {
        for key in 0..self.keys {
            self.set(&mut client, key, false);
        }
        // However long the fill took beside other tests.
        let until = until.max(Instant::now() + LOAD_MIN);
        while Instant::now() < until {
            let key = self.rng.within(0..self.keys);
            match self.rng.within(0..100) {
                0..50 => self.get(&mut client, key),
                50..55 if !self.memcached => self.multi(&mut client),
                50..90 => self.set(&mut client, key, false),
                90..95 => self.set(&mut client, key, true),
                _ => self.del(&mut client, key),
            }
            self.done += 1;
        }
        for key in 0..self.keys {
            self.get(&mut client, key);
        }
    }
}

/// Ten times the cap, for a while.
fn ten_times_the_cap(name: &str, time: Duration) {
    let _busy = busy();
    const CAP_MIB: u64 = 64;
    const CLIENTS: u64 = 6;
    /// With values of about 5 KB on average, less what is deleted, ten times the cap.
    const KEYS: u64 = 132_000 / CLIENTS;
    let seed = seed();
    println!("{name}: seed {seed}");
    let dir = TempDir::new(name);
    let memcached_addr = free_addr();
    let addr = memcached_addr.to_string();
    let more = ["--ssd", "1G", "--memcached", &addr];
    let mut bounded = Bounded::start(&dir, CAP_MIB, &more);
    let until = Instant::now() + time;
    let loads: Vec<Load> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let memcached = number % 3 == 2;
                let client = match memcached {
                    true => Client::connect(memcached_addr),
                    false => bounded.server.client(),
                };
                let mut load = Load {
                    number,
                    keys: KEYS,
                    rng: Rng::new(seed, number),
                    held: HashMap::new(),
                    ids: 0,
                    done: 0,
                    memcached,
                };
                scope.spawn(move || {
                    load.run(client, until);
                    load
                })
            })
            .collect();
        running
            .into_iter()
            .map(|r| r.join().expect("a client"))
            .collect()
    });
    let bytes: u64 = loads
        .iter()
        .flat_map(|l| l.held.values())
        .map(|h| h.len as u64)
        .sum();
    let done: u64 = loads.iter().map(|l| l.done).sum();
    println!(
        "{name}: {} MiB held in the end, {done} commands after the fill",
        bytes / MIB
    );
    bounded.judge(name);
    assert!(
        bytes > 9 * CAP_MIB * MIB,
        "only {} MiB of data",
        bytes / MIB
    );
    assert!(
        done > 1_000,
        "hardly any load after the fill: {done} commands"
    );
    bounded.server.shutdown();
}

/// Clients that each send a long value at once, then each read theirs.
fn long_values_at_once(name: &str, clients: u64, value_bytes: u64) {
    const PIECE_BYTES: usize = 64 << 10;
    let dir = TempDir::new(name);
    let ssd = format!("{}M", (clients * value_bytes / MIB * 3 / 2).max(1024));
    let mut bounded = Bounded::start(&dir, 256, &["--ssd", &ssd]);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..clients {
            let mut client = bounded.server.client();
            scope.spawn(move || {
                let key = format!("long:{number}");
                let head = format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${value_bytes}\r\n",
                    key.len()
                );
                let mut rng = Rng::new(number, 99);
                let mut piece = vec![0; PIECE_BYTES];
                client.stream.set_write_timeout(None).expect("no timeout");
                client.stream.write_all(head.as_bytes()).expect("sent");
                for _ in 0..value_bytes / PIECE_BYTES as u64 {
                    rng.fill(&mut piece);
                    client
                        .stream
                        .write_all(&piece)
                        .unwrap_or_else(|e| panic!("{key} cut off: {e}"));
                }
                client.stream.write_all(b"\r\n").expect("sent");
                let reply = client
                    .reply()
                    .unwrap_or_else(|e| panic!("{key}: no reply: {e}"));
                assert!(reply.is_ok(), "{key}: {reply:?}");
            });
        }
    });
    let stored = begun.elapsed();
    bounded.judge(&format!("{name}, stored"));
    std::thread::scope(|scope| {
        for number in 0..clients {
            let mut client = bounded.server.client();
            scope.spawn(move || {
                let key = format!("long:{number}");
                client.send(&[b"GET", key.as_bytes()]).expect("sent");
                let mut expected = Rng::new(number, 99);
                let mut piece = vec![0; PIECE_BYTES];
                let mut at = PIECE_BYTES;
                let len = client.bulk_in_pieces(|mut got| {
                    while !got.is_empty() {
                        if at == PIECE_BYTES {
                            expected.fill(&mut piece);
                            at = 0;
                        }
                        let n = got.len().min(PIECE_BYTES - at);
                        assert!(got[..n] == piece[at..at + n], "{key} differs");
                        at += n;
                        got = &got[n..];
                    }
                });
                assert_eq!(
                    len.unwrap_or_else(|e| panic!("{key}: {e}")) as u64,
                    value_bytes
                );
            });
        }
    });
    println!(
        "{name}: {clients} × {} MiB stored in {stored:?}, all read in {:?}",
        value_bytes / MIB,
        begun.elapsed() - stored
    );
    bounded.judge(&format!("{name}, read"));
    let size = bounded.server.client().words("DBSIZE");
    assert_eq!(size, Reply::Int(clients as i64));
}

/// The same again and again for a while, and at least once.
fn long_values_for(name: &str, time: Duration) {
    let _busy = busy();
    // Whoever waits to be alone would have all the time between two of them.
    let _turn = beside();
    let begun = Instant::now();
    loop {
        long_values_at_once(name, 50, 64 * MIB);
        if begun.elapsed() >= time {
            return;
        }
    }
}

/// A client that encrypts.
type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn encrypted(config: &Arc<ClientConfig>, addr: SocketAddr) -> Encrypted {
    let socket = TcpStream::connect(addr).expect("a connection");
    let most = Some(Duration::from_secs(60));
    socket.set_read_timeout(most).expect("a timeout");
    socket.set_write_timeout(most).expect("a timeout");
    let name = "localhost".try_into().expect("a name");
    let conn = ClientConnection::new(config.clone(), name).expect("a client");
    let mut client = StreamOwned::new(conn, socket);
    // The server does not wait long for it.
    while client.conn.is_handshaking() {
        let agreed = client.conn.complete_io(&mut client.sock);
        agreed.expect("agreement on keys");
    }
    client
}

/// Sends a command and reads a reply that must be this.
fn expect(client: &mut Encrypted, args: &[&[u8]], reply: &[u8]) {
    let mut text = Vec::new();
    encode(&mut text, args);
    client.write_all(&text).expect("sent");
    let mut got = vec![0; reply.len()];
    client.read_exact(&mut got).expect("a reply");
    assert!(
        got == reply,
        "{}",
        String::from_utf8_lossy(&got[..got.len().min(80)])
    );
}

/// Hundreds of encrypted connections at once, each with values of its own, beside some that ask for much and read nothing.
#[test]
fn e2e_hundreds_of_encrypted_connections_stay_in_their_cgroup() {
    let _busy = busy();
    const CLIENTS: u64 = 400;
    const SILENT: u64 = 20;
    const ROUNDS: u64 = 6;
    let dir = TempDir::new("cap-tls");
    let authority = Authority::new(dir.path(), "ours");
    let (cert, key) = authority.certify("server", 2200);
    let plain = free_addr();
    // The server's first reply is asked for without TLS, so a server without it makes the pool.
    Server::start(&dir.pool(), &["--dram", "64M", "--ssd", "1G"]).shutdown();
    let limit_bytes = 64 * MIB + ABOVE_CAP_BYTES;
    let group = Cgroup::new(limit_bytes)
        .map_err(|why| println!("judging by the process's peak, since {why}"))
        .ok();
    let addr = plain.to_string();
    let args = [
        "--dram",
        "64M",
        "--threads",
        "2",
        "--memcached",
        &addr,
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ];
    let server = Server::spawn(&dir.pool(), &args, group.as_ref());
    let begun = Instant::now();
    while TcpStream::connect(plain).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not served");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut bounded = Bounded {
        server,
        group,
        limit_bytes,
    };
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(authority.ca()).expect("a certificate");
    roots.add(ca).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let addr = bounded.server.addr;
    let long = value_of(7, 2 << 20);
    expect(
        &mut encrypted(&config, addr),
        &[b"SET", b"long", &long],
        b"+OK\r\n",
    );
    // Who comes while all buffers are taken is turned away.
    let mut clients: Vec<Encrypted> = (0..CLIENTS).map(|_| encrypted(&config, addr)).collect();
    // They ask for 40 MiB each, and their sockets fill.
    let silent: Vec<Encrypted> = (0..SILENT)
        .map(|_| {
            let mut client = encrypted(&config, addr);
            let mut text = Vec::new();
            (0..20).for_each(|_| encode(&mut text, &[b"GET", b"long"]));
            client.write_all(&text).expect("sent");
            client.flush().expect("sent");
            client
        })
        .collect();
    let agreed = begun.elapsed();
    let quarter = clients.len() / 4;
    std::thread::scope(|scope| {
        for (part, clients) in clients.chunks_mut(quarter).enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for (n, client) in clients.iter_mut().enumerate() {
                        let id = (part * 1_000 + n) as u64 * ROUNDS + round;
                        let value = value_of(id, 500 + (id * 7_919 % 30_000) as usize);
                        let key = format!("tls:{part}:{n}");
                        expect(client, &[b"SET", key.as_bytes(), &value], b"+OK\r\n");
                        let reply =
                            [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
                        expect(client, &[b"GET", key.as_bytes()], &reply);
                    }
                }
            });
        }
    });
    println!(
        "cap-tls: {CLIENTS} connections after {agreed:?}, served until {:?}",
        begun.elapsed()
    );
    bounded.judge("cap-tls");
    // All of them are still there, beside those that read nothing.
    clients
        .iter_mut()
        .for_each(|client| expect(client, &[b"PING"], b"+PONG\r\n"));
    drop((clients, silent));
    bounded.server.terminate();
}

#[test]
fn e2e_ten_times_the_cap_stays_in_its_cgroup() {
    ten_times_the_cap("cap", Duration::from_secs(50));
}

#[test]
fn e2e_fifty_long_values_at_once_stay_in_their_cgroup() {
    long_values_for("long", Duration::ZERO);
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn e2e_soak_ten_times_the_cap() {
    ten_times_the_cap("soak-cap", soak_time());
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn e2e_soak_fifty_long_values_at_once() {
    long_values_for("soak-long", soak_time());
}
