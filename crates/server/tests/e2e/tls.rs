//! TLS of the real binary with real clients: openssl s_client, redis-cli, redis-benchmark and redis-py; who is refused, and what
//! addresses beyond loopback need.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::certs::Authority;
use crate::support::port::free_addr_of;
use crate::support::python::{python, run_python};
use crate::support::{self, TempDir, binary, free_addr, log_path, said};

const START_MAX: Duration = Duration::from_secs(60);

/// A server whose clients encrypt, which is why `support::Server` cannot ask it for a first reply.
struct Encrypted {
    child: Child,
    resp: SocketAddr,
    memcached: SocketAddr,
}

impl Encrypted {
    fn start(pool: &Path, more: &[&str]) -> Encrypted {
        Encrypted::start_on(pool, free_addr(), more)
    }

    fn start_on(pool: &Path, resp: SocketAddr, more: &[&str]) -> Encrypted {
        let memcached = free_addr();
        let log = std::fs::File::create(log_path(pool)).expect("a file for the log");
        let child = Command::new(binary())
            .args(["serve", "--dram", "64M", "--ssd", "256M", "--threads", "2"])
            .args(["--resp", &resp.to_string()])
            .args(["--memcached", &memcached.to_string(), "--pool"])
            .arg(pool)
            .args(more)
            .stderr(log)
            .spawn();
        let mut server = Encrypted {
            child: child.expect("the server starts"),
            resp,
            memcached,
        };
        let begun = Instant::now();
        while TcpStream::connect(memcached).is_err() {
            assert!(begun.elapsed() < START_MAX, "not served in {START_MAX:?}");
            let ended = server.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the server ended before it served");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        assert!(self.child.wait().expect("a child").success());
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client with words to its stdin, to its end.
fn run(program: &str, args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    // A client that was refused may be gone already.
    let mut pipe = child.stdin.take().expect("stdin");
    let _ = pipe.write_all(stdin.as_bytes());
    drop(pipe);
    child.wait_with_output().expect("the client ends")
}

fn redis_cli(addr: SocketAddr, args: &[&str], command: &[&str]) -> String {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let mut all = vec!["-h", &host, "-p", &port, "--tls"];
    all.extend_from_slice(args);
    all.extend_from_slice(command);
    said(&run("redis-cli", &all, "")).trim().to_string()
}

fn s_client(addr: SocketAddr, args: &[&str], stdin: &str) -> String {
    let addr = addr.to_string();
    let mut all = vec!["s_client", "-connect", &addr, "-verify_return_error"];
    all.extend_from_slice(args);
    // QUIT ends the connection from the server's side.
    all.push("-ign_eof");
    said(&run("openssl", &all, stdin))
}

const REDIS_PY: &str = r#"
import sys, redis
host, port, ca, cert, key = sys.argv[1:]
c = redis.Redis(host=host, port=int(port), ssl=True, ssl_ca_certs=ca, ssl_certfile=cert, ssl_keyfile=key, socket_timeout=20)
for n in [0, 1, 1000, 16384, 70000, 5000000]:
    v = bytes(i * 7 % 251 for i in range(n))
    assert c.set("k", v) and c.get("k") == v, n
with c.pipeline(transaction=True) as p:
    p.set("a", 1); p.incr("a"); p.get("a")
    assert p.execute() == [True, 2, b"2"]
with c.pipeline(transaction=False) as p:
    for i in range(3000): p.set("p%d" % i, "x" * 200)
    assert all(p.execute())
bare = redis.Redis(host=host, port=int(port), ssl=True, ssl_ca_certs=ca, socket_timeout=20)
try:
    bare.ping(); assert False, "came in without a certificate"
except redis.exceptions.ConnectionError:
    pass
"#;

#[test]
fn e2e_real_clients_speak_tls() {
    let dir = TempDir::new("tls");
    let authority = Authority::new(dir.path(), "ours");
    let (cert, key) = authority.certify("server", 2200);
    let ca = authority.ca();
    let server = Encrypted::start(&dir.pool(), &["--tls-cert", &cert, "--tls-key", &key]);
    for version in ["-tls1_2", "-tls1_3"] {
        let text = s_client(
            server.resp,
            &["-CAfile", &ca, version],
            "SET k hello\r\nGET k\r\nQUIT\r\n",
        );
        assert!(
            text.contains("Verify return code: 0 (ok)")
                && text.contains("+OK\r\n$5\r\nhello\r\n+OK"),
            "{version}: {text}"
        );
    }
    let text = s_client(server.memcached, &["-CAfile", &ca], "get k\r\nquit\r\n");
    assert!(text.contains("VALUE k 0 5\r\nhello\r\nEND"), "{text}");
    assert_eq!(
        redis_cli(server.resp, &["--cacert", &ca], &["GET", "k"]),
        "hello"
    );
    let port = server.resp.port().to_string();
    let bench = run(
        "redis-benchmark",
        &[
            "-p", &port, "--tls", "--cacert", &ca, "-t", "set,get", "-n", "20000", "-c", "40",
            "-P", "8", "-d", "3000", "-q",
        ],
        "",
    );
    let text = said(&bench);
    assert!(
        bench.status.success() && text.contains("GET") && !text.contains("rror"),
        "{text}"
    );
    server.stop();
}

#[test]
fn e2e_who_has_no_business_here_is_refused() {
    let dir = TempDir::new("tls-refused");
    let authority = Authority::new(dir.path(), "ours");
    let stranger = Authority::new(dir.path(), "theirs");
    let (cert, key) = authority.certify("server", 2200);
    let ca = authority.ca();
    let args = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &ca];
    let server = Encrypted::start(&dir.pool(), &args);
    let ping = |shows: &(String, String), ca: &str| {
        let args = ["--cacert", ca, "--cert", &shows.0, "--key", &shows.1];
        redis_cli(server.resp, &args, &["PING"])
    };
    let good = authority.certify("client", 2200);
    assert_eq!(ping(&good, &ca), "PONG");
    for shows in [
        authority.certify("expired", 2001),
        stranger.certify("client", 2200),
    ] {
        let text = ping(&shows, &ca);
        assert!(!text.contains("PONG"), "{text}");
    }
    let bare = redis_cli(server.resp, &["--cacert", &ca], &["PING"]);
    assert!(!bare.contains("PONG"), "{bare}");
    // The wrong authority on the client's side.
    let text = ping(&good, &stranger.ca());
    assert!(text.contains("certificate verify failed"), "{text}");
    // Without TLS to the same port.
    let port = server.resp.port().to_string();
    let text = said(&run("redis-cli", &["-p", &port, "PING"], ""));
    assert!(text.contains("this server speaks TLS only"), "{text}");
    let redis_py = python(&["redis"]);
    let script_args = ["127.0.0.1", &port, &ca, &good.0, &good.1].map(str::to_string);
    run_python(&redis_py, REDIS_PY, &script_args);
    server.stop();

    // A server whose certificate is no longer good is refused by its clients.
    let (cert, key) = authority.certify("server", 2001);
    let server = Encrypted::start(&dir.pool(), &["--tls-cert", &cert, "--tls-key", &key]);
    let text = redis_cli(server.resp, &["--cacert", &ca], &["PING"]);
    assert!(text.contains("certificate"), "{text}");
    let text = s_client(server.resp, &["-CAfile", &ca], "QUIT\r\n");
    assert!(text.contains("certificate has expired"), "{text}");
    server.stop();
}

/// An address of this machine that others reach, if it has one; asking for a route sends nothing.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

fn refused(args: &[&str]) -> String {
    let mut all = vec!["serve", "--dram", "64M"];
    all.extend_from_slice(args);
    let output = support::run(&all);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    said(&output)
}

#[test]
fn e2e_addresses_beyond_loopback_need_a_password_or_tls() {
    let dir = TempDir::new("beyond");
    let pool = dir.pool();
    let pool_arg = pool.to_str().expect("UTF-8");
    let ip = own_address().unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let everywhere = free_addr_of(IpAddr::from([0, 0, 0, 0])).to_string();
    let own = free_addr_of(ip);
    for addr in [own.to_string(), everywhere] {
        for listen in [["--resp", &addr], ["--memcached", &addr]] {
            let text = refused(&[&["--pool", pool_arg][..], &listen].concat());
            assert!(
                text.contains("is not a loopback address") && text.contains("--requirepass-file"),
                "{text}"
            );
        }
    }
    let text = refused(&["--pool", pool_arg, "--tls-cert", "x"]);
    assert!(text.contains("--tls-key"), "{text}");
    assert!(!pool.exists(), "a refusal makes no pool");

    let password = dir.path().join("password");
    std::fs::write(&password, "open sesame\n").expect("a file");
    std::fs::set_permissions(&password, PermissionsExt::from_mode(0o600)).expect("a mode");
    let password = password.to_str().expect("UTF-8");
    let server = Encrypted::start_on(&pool, own, &["--requirepass-file", password]);
    let reach = SocketAddr::new(
        match own.ip() {
            ip if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            ip => ip,
        },
        own.port(),
    );
    let (host, port_arg) = (reach.ip().to_string(), reach.port().to_string());
    let cli = |args: &[&str]| {
        let mut all = vec!["-h", &host, "-p", &port_arg];
        all.extend_from_slice(args);
        said(&run("redis-cli", &all, ""))
    };
    assert!(cli(&["PING"]).contains("NOAUTH Authentication required"));
    assert!(cli(&["-a", "wrong", "PING"]).contains("WRONGPASS"));
    let args = ["-a", "open sesame", "--no-auth-warning", "SET", "k", "v"];
    assert_eq!(cli(&args), "OK\n");
    server.stop();

    // TLS alone serves too, and says in the log who is let in.
    let authority = Authority::new(dir.path(), "ours");
    let (cert, key) = authority.certify("server", 2200);
    let own = SocketAddr::new(ip, free_addr_of(ip).port());
    let server = Encrypted::start_on(&pool, own, &["--tls-cert", &cert, "--tls-key", &key]);
    let reach = SocketAddr::new(reach.ip(), own.port());
    // The certificate names 127.0.0.1 and localhost; redis-cli does not compare names.
    assert_eq!(
        redis_cli(reach, &["--cacert", &authority.ca()], &["GET", "k"]),
        "v"
    );
    let log = std::fs::read_to_string(log_path(&pool)).expect("a log");
    assert!(log.contains("may read and delete everything"), "{log}");
    server.stop();
}

#[test]
fn e2e_a_signal_brings_the_renewed_certificate() {
    let dir = TempDir::new("tls-renewed");
    let (old, new) = (
        Authority::new(dir.path(), "old"),
        Authority::new(dir.path(), "new"),
    );
    let (cert, key) = old.certify("server", 2200);
    let server = Encrypted::start(&dir.pool(), &["--tls-cert", &cert, "--tls-key", &key]);
    let ping =
        |authority: &Authority| redis_cli(server.resp, &["--cacert", &authority.ca()], &["PING"]);
    assert_eq!(ping(&old), "PONG");
    let hang_up = || {
        let pid = rustix::process::Pid::from_child(&server.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("a signal");
    };
    let said_in_the_log = |what: &str| {
        let begun = Instant::now();
        let log = || std::fs::read_to_string(log_path(&dir.pool())).expect("a log");
        while !log().contains(what) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // What cannot be used changes nothing.
    std::fs::write(&cert, "no certificate").expect("a file");
    hang_up();
    said_in_the_log("stays as it was");
    assert_eq!(ping(&old), "PONG");
    let renewed = new.certify("server", 2200);
    std::fs::copy(&renewed.0, &cert).expect("a copy");
    std::fs::copy(&renewed.1, &key).expect("a copy");
    hang_up();
    said_in_the_log("read anew");
    assert_eq!(ping(&new), "PONG");
    assert!(!ping(&old).contains("PONG"));
    server.stop();
}
