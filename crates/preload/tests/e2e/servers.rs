//! Unmodified servers under `terrace run`, with several times the cap in data: every value is what was stored, the cgroup of the cap and 32 MiB
//! is enough, and memcapable finds nothing wrong.

use crate::support::{self, Server, command, free_port, group, judge, output, reported, value};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;

const CAP_MIB: u64 = 64;
const VALUES: u64 = 150_000;
const VALUE_BYTES: usize = 1024;

fn memcached(
    port: u16,
    report: &std::path::Path,
    group: Option<&support::cgroup::Cgroup>,
) -> Server {
    let report = report.to_str().expect("a name");
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", report], group);
    command.args(["memcached", "-m", "512", "-t", "4", "-U", "0", "-u", "root"]);
    command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
    Server::start(&mut command, port)
}

#[test]
fn e2e_memcached_keeps_three_times_the_cap() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = dir.path().join("report");
    let group = group(CAP_MIB);
    let server = memcached(free_port(), &report, group.as_ref());
    let stream = server.connect();
    let (mut ask, mut reply) = (stream.try_clone().expect("a copy"), BufReader::new(stream));
    for first in (0..VALUES).step_by(100) {
        let mut batch = Vec::new();
        for n in first..(first + 100).min(VALUES) {
            write!(batch, "set k{n} 0 0 {VALUE_BYTES} noreply\r\n").expect("to memory");
            batch.extend(value(n, VALUE_BYTES));
            batch.extend(b"\r\n");
        }
        ask.write_all(&batch).expect("sent");
    }
    let mut seen = 0;
    for n in (0..VALUES).map(|n| n * 7919 % VALUES).take(20_000) {
        write!(ask, "get k{n}\r\n").expect("sent");
        let mut line = String::new();
        reply.read_line(&mut line).expect("a reply");
        assert_eq!(line.trim_end(), format!("VALUE k{n} 0 {VALUE_BYTES}"));
        let mut got = vec![0; VALUE_BYTES + 7];
        reply.read_exact(&mut got).expect("a value");
        assert!(
            got.starts_with(&value(n, VALUE_BYTES)),
            "value {n} is wrong"
        );
        seen += 1;
    }
    assert_eq!(seen, 20_000);
    assert!(server.stop().success());
    let report = std::fs::read_to_string(report).expect("a report");
    assert!(reported(&report, "served_malloc_bytes") > 2 * (CAP_MIB << 20));
    assert!(reported(&report, "device_reads") > 0, "{report}");
    judge("memcached", group.as_ref());
}

#[test]
fn e2e_memcapable_finds_nothing_wrong_under_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let server = memcached(port, &dir.path().join("report"), None);
    let tool = ["memccapable", "memcapable"]
        .into_iter()
        .find(|tool| Command::new(tool).arg("-V").output().is_ok())
        .expect("memcapable; run: make setup");
    let mut asked = Command::new(tool);
    asked.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-a"]);
    let (passed, said) = output(&mut asked);
    assert!(passed && said.contains("All tests passed"), "{said}");
    drop(server);
}

fn redis(port: u16, group: Option<&support::cgroup::Cgroup>, dir: &std::path::Path) -> Server {
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], group);
    command.args(["redis-server", "--port", &port.to_string(), "--save", ""]);
    command.args([
        "--bind",
        "127.0.0.1",
        "--enable-debug-command",
        "yes",
        "--logfile",
        REDIS_LOG,
        "--dir",
    ]);
    command.arg(dir);
    Server::start(&mut command, port)
}

/// Where redis-server says what it does, in its directory.
const REDIS_LOG: &str = "redis.log";

fn redis_cli(port: u16, args: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port.to_string()]).args(args);
    let (well, said) = output(&mut command);
    assert!(well, "{args:?}: {said}");
    said.trim().to_owned()
}

#[test]
fn e2e_redis_keeps_three_times_the_cap() {
    let dir = tempfile::tempdir().expect("a directory");
    let group = group(CAP_MIB);
    let port = free_port();
    let server = redis(port, group.as_ref(), dir.path());
    let stream = server.connect();
    let (mut ask, mut reply) = (stream.try_clone().expect("a copy"), BufReader::new(stream));
    let mut line = String::new();
    for first in (0..VALUES).step_by(100) {
        let mut batch = Vec::new();
        for n in first..first + 100 {
            write!(
                batch,
                "*3\r\n$3\r\nSET\r\n$8\r\n{n:08}\r\n${VALUE_BYTES}\r\n"
            )
            .expect("to memory");
            batch.extend(value(n, VALUE_BYTES));
            batch.extend(b"\r\n");
        }
        ask.write_all(&batch).expect("sent");
        for _ in 0..100 {
            line.clear();
            reply.read_line(&mut line).expect("a reply");
            assert_eq!(line, "+OK\r\n");
        }
    }
    for n in (0..VALUES).map(|n| n * 7919 % VALUES).take(20_000) {
        write!(ask, "*2\r\n$3\r\nGET\r\n$8\r\n{n:08}\r\n").expect("sent");
        line.clear();
        reply.read_line(&mut line).expect("a reply");
        assert_eq!(line, format!("${VALUE_BYTES}\r\n"));
        let mut got = vec![0; VALUE_BYTES + 2];
        reply.read_exact(&mut got).expect("a value");
        assert!(
            got.starts_with(&value(n, VALUE_BYTES)),
            "value {n} is wrong"
        );
    }
    saves_what_it_had(&server, port, dir.path());
    let mut bench = Command::new("redis-benchmark");
    bench.args([
        "-p",
        &port.to_string(),
        "-t",
        "set,get,lpush,lrange_100,hset",
    ]);
    bench.args(["-n", "5000", "-d", "400", "-q"]);
    let (well, said) = output(&mut bench);
    assert!(well && !said.contains("Error"), "{said}");
    assert_eq!(redis_cli(port, &["ping"]), "PONG");
    assert!(server.stop().success());
    judge("redis", group.as_ref());
}

/// BGSAVE while values change: the dump, in another redis, is what was there when it began.
fn saves_what_it_had(server: &Server, port: u16, dir: &std::path::Path) {
    let digest = redis_cli(port, &["debug", "digest"]);
    assert_eq!(redis_cli(port, &["bgsave"]), "Background saving started");
    let stream = server.connect();
    let (mut ask, mut reply) = (stream.try_clone().expect("a copy"), BufReader::new(stream));
    let (mut changed, mut line) = (0, String::new());
    while redis_cli(port, &["info", "persistence"]).contains("rdb_bgsave_in_progress:1") {
        for n in changed..changed + 500 {
            let n = n * 31 % VALUES;
            write!(ask, "*3\r\n$3\r\nSET\r\n$8\r\n{n:08}\r\n$3\r\nnew\r\n").expect("sent");
        }
        for _ in 0..500 {
            line.clear();
            reply.read_line(&mut line).expect("a reply");
        }
        changed += 500;
    }
    assert!(changed > 0, "nothing changed meanwhile");
    let info = redis_cli(port, &["info", "persistence"]);
    let log = || std::fs::read_to_string(dir.join(REDIS_LOG)).unwrap_or_default();
    assert!(
        info.contains("rdb_last_bgsave_status:ok"),
        "{info}\n{}",
        log()
    );
    assert_ne!(redis_cli(port, &["debug", "digest"]), digest);
    let port = free_port();
    let mut plain = Command::new("redis-server");
    plain.args([
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--bind",
        "127.0.0.1",
    ]);
    plain
        .args(["--enable-debug-command", "yes", "--dir"])
        .arg(dir);
    let plain = Server::start(&mut plain, port);
    while redis_cli(port, &["ping"]) != "PONG" {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(
        redis_cli(port, &["debug", "digest"]),
        digest,
        "the dump differs"
    );
    drop(plain);
}
