//! Encrypted connections over real sockets: who is let in and who is not, values of all lengths in both directions, slow readers
//! and silent ones, and that all memory comes back. Clients are rustls's own; openssl's and redis-cli are in tests/e2e/tls.rs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::double::Settings;
use super::{Running, encode, plain, reply_len};
use crate::ServerOptions;
use crate::tls::Identity;

/// An authority and files of its certificates, in a directory of their own.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { dir, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Files of a certificate and its key that are good until the end of a year.
    fn certify(&self, name: &str, last_year: i32) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let (cert_path, key_path) = (
            self.path(&format!("{name}.pem")),
            self.path(&format!("{name}.key")),
        );
        std::fs::write(&cert_path, cert.pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        chmod(&key_path, 0o600);
        (cert_path, key_path)
    }

    fn identity(&self, ca: Option<&Path>) -> Identity {
        let (cert, key) = self.certify("server", 2200);
        Identity::from_files(&cert, &key, ca).unwrap()
    }

    /// A client that trusts this authority and shows a certificate, if it has one.
    fn client(&self, running: &Running, shows: Option<&(PathBuf, PathBuf)>) -> Client {
        Client::new(self.config(shows), running.addr)
    }

    fn config(&self, shows: Option<&(PathBuf, PathBuf)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.ca()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match shows {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(cert).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
        })
    }
}

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    buf: Vec<u8>,
}

impl Client {
    fn new(config: Arc<ClientConfig>, addr: std::net::SocketAddr) -> Client {
        let socket = TcpStream::connect(addr).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let conn = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        Client {
            stream: StreamOwned::new(conn, socket),
            buf: Vec::new(),
        }
    }

    fn try_ask(&mut self, args: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        self.stream.write_all(&encode(args))?;
        self.reply()
    }

    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.try_ask(args).expect("a reply")
    }

    fn reply(&mut self) -> std::io::Result<Vec<u8>> {
        loop {
            if let Some(len) = reply_len(&self.buf) {
                return Ok(self.buf.drain(..len).collect());
            }
            let mut chunk = vec![0; 64 << 10];
            match self.stream.read(&mut chunk)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                n => self.buf.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

fn start(settings: Settings, identity: Identity, memcached: bool) -> Running {
    let options = ServerOptions {
        tls: Some(identity),
        memcached: memcached.then(|| ([127, 0, 0, 1], 0).into()),
        threads: 2,
        ..Default::default()
    };
    Running::start_with(settings, options)
}

fn value(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

#[test]
fn values_of_all_lengths_come_and_go_encrypted() {
    for (wait_per_mille, sync) in [(0, false), (300, true)] {
        let authority = Authority::new();
        let settings = Settings {
            wait_per_mille,
            sync,
            ..plain()
        };
        let server = start(settings, authority.identity(None), false);
        let mut c = authority.client(&server, None);
        for len in [0, 1, 100, 4_000, 16_383, 16_384, 40_000, 65_536, 5 << 20] {
            let v = value(len);
            assert_eq!(c.ask(&[b"SET", b"k", &v]), b"+OK\r\n", "{len}");
            let mut want = format!("${len}\r\n").into_bytes();
            want.extend_from_slice(&v);
            want.extend_from_slice(b"\r\n");
            assert_eq!(c.ask(&[b"GET", b"k"]), want, "{len}");
        }
        // Many commands in one record, and one command in many.
        let mut many = Vec::new();
        (0..1_000).for_each(|i: u32| {
            many.extend(encode(&[b"SET", format!("k{i}").as_bytes(), &value(300)]))
        });
        c.stream.write_all(&many).unwrap();
        (0..1_000).for_each(|_| assert_eq!(c.reply().unwrap(), b"+OK\r\n"));
        for byte in encode(&[b"GET", b"k7"]) {
            c.stream.write_all(&[byte]).unwrap();
            c.stream.flush().unwrap();
        }
        assert_eq!(c.reply().unwrap().len(), 300 + 8);
        assert_eq!(c.ask(&[b"QUIT"]), b"+OK\r\n");
        // An end that is said, not one that could be somebody's who cuts the line.
        assert_eq!(c.stream.read(&mut [0; 8]).unwrap(), 0);
        server.stop();
    }
}

#[test]
fn a_reader_that_waits_gets_all_and_nobody_else_waits() {
    let authority = Authority::new();
    let server = start(plain(), authority.identity(None), false);
    let (mut slow, mut quick) = (
        authority.client(&server, None),
        authority.client(&server, None),
    );
    let v = value(60_000);
    assert_eq!(slow.ask(&[b"SET", b"k", &v]), b"+OK\r\n");
    for _ in 0..200 {
        slow.stream.write_all(&encode(&[b"GET", b"k"])).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(quick.ask(&[b"PING"]), b"+PONG\r\n");
    let reply = slow.reply().unwrap();
    assert_eq!(&reply[8..60_008], v);
    (1..200).for_each(|_| assert_eq!(slow.reply().unwrap(), reply));
    server.stop();
}

#[test]
fn a_slow_reader_is_cut_off_when_others_starve() {
    let authority = Authority::new();
    let budget_bytes = 6 << 20;
    let settings = Settings {
        budget_bytes,
        ..plain()
    };
    let server = start(settings, authority.identity(None), false);
    let v = value(60_000);
    let mut good = authority.client(&server, None);
    assert_eq!(good.ask(&[b"SET", b"k", &v]), b"+OK\r\n");
    let mut slow: Vec<Client> = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    let cut_off = |good: &mut Client| {
        let info = String::from_utf8(good.ask(&[b"INFO", b"stats"])).unwrap();
        let line = info
            .lines()
            .find_map(|l| l.strip_prefix("cut_off_connections:"));
        line.map_or(0, |n| n.parse::<u64>().unwrap())
    };
    while cut_off(&mut good) == 0 {
        assert!(Instant::now() < until, "nobody was cut off");
        if slow.len() < 200 {
            let mut c = authority.client(&server, None);
            for _ in 0..20 {
                let _ = c.stream.write_all(&encode(&[b"GET", b"k"]));
            }
            slow.push(c);
        } else {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let peak = server.factory.granted_peak.load(Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    drop((slow, good));
    server.stop();
}

#[test]
fn only_clients_of_the_authority_come_in() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let identity = authority.identity(Some(&authority.ca()));
    assert!(identity.is_mutual());
    let server = start(plain(), identity, false);
    let good = authority.certify("client", 2200);
    let expired = authority.certify("expired", 2001);
    let foreign = stranger.certify("foreign", 2200);
    for shows in [None, Some(&expired), Some(&foreign)] {
        let refused = authority.client(&server, shows).try_ask(&[b"PING"]);
        let why = refused.expect_err("not let in").to_string();
        assert!(why.contains("alert"), "{why}");
    }
    let mut c = authority.client(&server, Some(&good));
    assert_eq!(c.ask(&[b"PING"]), b"+PONG\r\n");
    let info = String::from_utf8(c.ask(&[b"INFO"])).unwrap();
    assert!(info.contains("tls_handshakes_failed:3\r\n"), "{info}");
    assert!(info.contains("connected_clients:1\r\n"), "{info}");
    // Who does not trust the server leaves by itself.
    let mistrusts = Client::new(stranger.config(None), server.addr).try_ask(&[b"PING"]);
    assert!(mistrusts.is_err());
    server.stop();
}

#[test]
fn who_does_not_encrypt_is_told_so_in_its_own_words() {
    let authority = Authority::new();
    let server = start(plain(), authority.identity(None), true);
    let mut c = server.client();
    c.send("*1\r\n$4\r\nPING\r\n");
    assert_eq!(
        c.rest(),
        "-ERR this server speaks TLS only; connect with TLS (redis-cli --tls)\r\n"
    );
    let mut m = super::Talk::new(server.memcached.unwrap());
    m.send("get k\r\n");
    assert!(m.rest().starts_with("CLIENT_ERROR this server speaks TLS"));
    // What begins like TLS and is none.
    let mut random = 88_172_645_463_325_252u64;
    for round in 0..200 {
        let mut garbage = vec![0x16, 3, 1, round as u8 / 20, 40];
        for _ in 0..500 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            garbage.push(random as u8);
        }
        let mut bad = TcpStream::connect(server.addr).unwrap();
        let _ = bad.write_all(&garbage);
    }
    let mut good = Client::new(authority.config(None), server.memcached.unwrap());
    good.stream.write_all(b"set k 0 0 1\r\nv\r\n").unwrap();
    let mut got = [0; 8];
    good.stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"STORED\r\n");
    server.stop();
}

#[test]
fn who_says_nothing_instead_of_agreeing_on_keys_is_closed() {
    let authority = Authority::new();
    let server = start(plain(), authority.identity(None), false);
    let mut silent = TcpStream::connect(server.addr).unwrap();
    let mut slow = TcpStream::connect(server.addr).unwrap();
    slow.write_all(&[0x16, 3, 1]).unwrap();
    let since = Instant::now();
    let most = Duration::from_millis(crate::limits::TLS_HANDSHAKE_MAX_MS);
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(2 * most)).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    }
    assert!(since.elapsed() >= most - Duration::from_millis(500));
    let mut c = authority.client(&server, None);
    assert_eq!(c.ask(&[b"PING"]), b"+PONG\r\n");
    server.stop();
}

#[test]
fn an_idle_encrypted_connection_holds_no_buffers() {
    let authority = Authority::new();
    let server = start(plain(), authority.identity(None), false);
    let config = authority.config(None);
    // One after the other: each is to agree on keys in its time, however slow this machine is.
    let talked = |_| {
        let mut c = Client::new(config.clone(), server.addr);
        assert_eq!(c.ask(&[b"SET", b"k", &value(50_000)]), b"+OK\r\n");
        assert_eq!(c.ask(&[b"GET", b"k"]).len(), 50_010);
        c
    };
    let mut all: Vec<Client> = (0..200).map(talked).collect();
    let info = String::from_utf8(all[0].ask(&[b"INFO", b"clients"])).unwrap();
    let line = info.lines().find_map(|l| l.strip_prefix("buffer_bytes:"));
    let held: usize = line.unwrap().parse().unwrap();
    assert!(held <= 201 * crate::limits::TLS_CONN_BYTES, "{held}");
    server.stop();
}

#[test]
fn a_renewed_certificate_is_met_by_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = start(plain(), old.identity(None), false);
    let mut before = old.client(&server, None);
    assert_eq!(before.ask(&[b"PING"]), b"+PONG\r\n");
    server.stopper.renew(new.identity(None));
    assert_eq!(before.ask(&[b"PING"]), b"+PONG\r\n");
    assert_eq!(new.client(&server, None).ask(&[b"PING"]), b"+PONG\r\n");
    assert!(old.client(&server, None).try_ask(&[b"PING"]).is_err());
    server.stop();
}

#[test]
fn what_is_wrong_with_the_files_is_said() {
    let authority = Authority::new();
    let (cert, key) = authority.certify("one", 2200);
    let (_, other) = authority.certify("other", 2200);
    let none = authority.path("none");
    let said = |cert: &Path, key: &Path, ca: Option<&Path>| {
        Identity::from_files(cert, key, ca).expect_err("refused")
    };
    assert!(said(&none, &key, None).contains("none"));
    assert!(said(&key, &key, None).contains("holds no certificate"));
    chmod(&cert, 0o600);
    assert!(said(&cert, &cert, None).contains("private key"));
    assert!(said(&cert, &other, None).contains("cannot be used together"));
    assert!(said(&cert, &key, Some(&key)).contains("holds no certificate"));
    chmod(&key, 0o644);
    assert!(said(&cert, &key, None).contains("chmod 600"));
    chmod(&key, 0o640);
    Identity::from_files(&cert, &key, Some(&authority.ca())).unwrap();
}

/// What each takes in any case leaves the others something to talk with.
#[test]
fn silent_encrypted_connections_starve_nobody() {
    let budget_bytes = 4 << 20;
    let authority = Authority::new();
    let settings = Settings {
        budget_bytes,
        ..plain()
    };
    let server = start(settings, authority.identity(None), false);
    let mut good = authority.client(&server, None);
    let info = String::from_utf8(good.ask(&[b"INFO", b"clients"])).unwrap();
    let most = info.lines().find_map(|l| l.strip_prefix("maxclients:"));
    let most: usize = most.unwrap().parse().unwrap();
    assert!(
        most * crate::limits::TLS_CONN_BYTES <= budget_bytes as usize / 2,
        "{most}"
    );
    let silent: Vec<TcpStream> = (0..600)
        .map(|_| TcpStream::connect(server.addr).unwrap())
        .collect();
    let since = Instant::now();
    assert_eq!(good.ask(&[b"SET", b"k", &value(1 << 20)]), b"+OK\r\n");
    assert_eq!(good.ask(&[b"GET", b"k"]).len(), (1 << 20) + 12);
    // And not only when the others had their time to agree on keys.
    assert!(since.elapsed() < Duration::from_secs(5));
    let info = String::from_utf8(good.ask(&[b"INFO"])).unwrap();
    assert!(!info.contains("rejected_connections:0\r\n"), "{info}");
    drop((silent, good));
    server.stop();
}

#[test]
fn as_many_encrypted_connections_as_the_cap_has_room_for() {
    let most = crate::door::tls_clients_max;
    // Half of the eighth.
    assert_eq!(most(64 << 20, 2), 512);
    assert_eq!(most(1 << 30, 2), 8_192);
    // Or what many threads leave.
    assert!((1..400).contains(&most(64 << 20, 4)));
    assert_eq!(most(64 << 20, 64), 1);
}
