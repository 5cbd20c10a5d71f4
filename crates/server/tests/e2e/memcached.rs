//! memcached's real clients over the real binary: memcapable of libmemcached (its ASCII tests) and pymemcache, which is
//! installed from PyPI into a virtual environment of the tests' own.

use std::net::SocketAddr;
use std::process::Command;

use crate::support::python::{python, run_python};
use crate::support::{self, Server, TempDir, free_addr, said};

fn start(dir: &TempDir, durability: &str) -> (Server, SocketAddr) {
    let addr = free_addr();
    let memcached = addr.to_string();
    let args = [
        "--dram",
        "64M",
        "--ssd",
        "256M",
        "--threads",
        "2",
        "--durability",
        durability,
        "--memcached",
        &memcached,
    ];
    (Server::start(&dir.pool(), &args), addr)
}

#[test]
fn e2e_memcapable_finds_nothing_wrong() {
    let program = ["memccapable", "memcapable"]
        .into_iter()
        .find(|name| Command::new(name).arg("--help").output().is_ok());
    let program = program.expect("memcapable (apt-get install libmemcached-tools)");
    for durability in ["async", "sync"] {
        let dir = TempDir::new(&format!("memcapable-{durability}"));
        let (server, addr) = start(&dir, durability);
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let ran = Command::new(program)
            .args(["-a", "-h", &host, "-p", &port])
            .output();
        let ran = ran.expect("memcapable runs");
        let text = said(&ran);
        let passed = text.lines().filter(|l| l.contains("[pass]")).count();
        assert!(
            ran.status.success() && passed >= 20,
            "{durability}: {passed} passed\n{text}"
        );
        println!("memcapable, {durability}: {passed} passed");
        server.shutdown();
    }
}

const PYMEMCACHE: &str = r#"
import sys, random
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError
c = Client((sys.argv[1], int(sys.argv[2])), timeout=20)
assert c.set("a", b"1", expire=100, noreply=False)
assert c.get("a") == b"1"
assert c.add("a", b"2", noreply=False) is False
assert c.replace("a", b"2", noreply=False) is True
assert c.append("a", b"3", noreply=False) and c.prepend("a", b"1", noreply=False)
assert c.get("a") == b"123"
assert c.incr("a", 7, noreply=False) == 130 and c.decr("a", 200, noreply=False) == 0
value, token = c.gets("a")
assert c.cas("a", b"x", token, noreply=False) is True
assert c.cas("a", b"y", token, noreply=False) is False
assert c.cas("none", b"y", token, noreply=False) is None
assert c.touch("a", 50, noreply=False)
assert c.delete("a", noreply=False) and not c.delete("a", noreply=False)
assert c.set("f", b"v", flags=0xffffffff, noreply=False)
assert c.raw_command(b"mg f f") == b"HD f4294967295"
try:
    c.set("f", b"abc", noreply=False); c.incr("f", 1, noreply=False); assert False
except MemcacheClientError:
    pass
r = random.Random(7)
model = {}
for round in range(30):
    batch = {"k%d" % r.randrange(2000): bytes(r.getrandbits(8) for _ in range(r.choice([0, 5, 300, 5000]))) for _ in range(60)}
    assert c.set_many(batch, noreply=False) == []
    model.update(batch)
    asked = ["k%d" % r.randrange(2200) for _ in range(100)]
    assert c.get_many(asked) == {k: model[k] for k in asked if k in model}
big = bytes(range(256)) * 20000
assert c.set("big", big, noreply=False) and c.get("big") == big
assert c.stats()[b"curr_items"] > 0
assert c.version().startswith(b"1.6")
assert c.flush_all(noreply=False) and c.get_many(list(model)) == {}
print("ok")
"#;

#[test]
fn e2e_pymemcache_finds_what_it_stored() {
    let dir = TempDir::new("pymemcache");
    let (server, addr) = start(&dir, "async");
    let program = python(&["pymemcache"]);
    let args = [addr.ip().to_string(), addr.port().to_string()];
    run_python(&program, PYMEMCACHE, &args);
    server.shutdown();
}

/// What one protocol wrote is read through the other after a restart, flags and tokens too.
#[test]
fn e2e_items_outlive_a_restart() {
    use std::io::{Read, Write};
    let ask = |addr: SocketAddr, text: &str| {
        let mut stream = std::net::TcpStream::connect(addr).expect("a connection");
        stream.write_all(text.as_bytes()).expect("sent");
        stream.write_all(b"quit\r\n").expect("sent");
        let mut got = String::new();
        stream.read_to_string(&mut got).expect("a reply");
        got
    };
    let dir = TempDir::new("items");
    let (server, addr) = start(&dir, "sync");
    assert_eq!(
        ask(addr, "set k 77 0 5\r\nhello\r\nms e 0 F9\r\n\r\n"),
        "STORED\r\nHD\r\n"
    );
    assert_eq!(ask(addr, "touch k 1000\r\nmd e I\r\n"), "TOUCHED\r\nHD\r\n");
    let before = ask(addr, "gets k\r\nmg k f c s\r\n");
    server.shutdown();
    let (server, addr) = start(&dir, "sync");
    assert_eq!(ask(addr, "gets k\r\nmg k f c s\r\n"), before);
    assert!(before.starts_with("VALUE k 77 5 "), "{before}");
    assert_eq!(
        ask(addr, "mg e f\r\nmg e f\r\n"),
        "HD f9 X W\r\nHD f9 Z X\r\n"
    );
    let mut client = server.client();
    assert_eq!(
        client.words("GET k"),
        support::resp::Reply::Bulk(b"hello".to_vec())
    );
    assert!(client.words("TTL k").int() > 900);
    server.shutdown();
}
