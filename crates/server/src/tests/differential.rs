//! The same commands to this server and to redis-server, when that is installed: replies must be the same byte for
//! byte. What differs on purpose is not in the list.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Running, Talk, plain};

struct Redis {
    child: Child,
    port: u16,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn redis() -> Option<Redis> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").ok()?;
    let port = free.local_addr().ok()?.port();
    drop(free);
    let child = Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let redis = Redis { child, port };
    for _ in 0..100 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(redis);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

const COMMANDS: &[&str] = &[
    "PING",
    "PING a",
    "PING a b",
    "ECHO x",
    "ECHO",
    "SET a 1",
    "SET a",
    "SET a 1 FOO",
    "SET a 1 EX",
    "SET a 1 EX 0",
    "SET a 1 EX -1",
    "SET a 1 EX 1.5",
    "SET a 1 EX 10 PX 10",
    "SET a 1 KEEPTTL EX 10",
    "SET a 1 EX 10 KEEPTTL",
    "SET a 1 NX XX",
    "SET a 1 XX NX",
    "SET a 1 NX NX",
    "SET n 1 NX GET",
    "SET n 2 NX GET",
    "SET a 1 EX 9223372036854775807",
    "SET a 1 PX 9223372036854775807",
    "SET a 1 EXAT 9223372036854775807",
    "SET a 1 PXAT 1",
    "EXISTS a",
    "SET a 5 EX 100 GET",
    "TTL a",
    "SET a 6 KEEPTTL",
    "TTL a",
    "SET a 7",
    "TTL a",
    "PTTL none",
    "EXPIRETIME a",
    "PEXPIRETIME none",
    "GETSET a 8",
    "GETSET",
    "SETNX a 1",
    "SETNX b 1",
    "SETEX a 10 x",
    "SETEX a 0 x",
    "SETEX a x x",
    "PSETEX a -5 x",
    "SETEX a 9223372036854775807 x",
    "GETDEL a",
    "GETDEL a",
    "STRLEN b",
    "STRLEN none",
    "DEL b none",
    "UNLINK n",
    "INCR c",
    "INCRBY c 10",
    "INCRBY c x",
    "INCRBY c 9223372036854775807",
    "DECR c",
    "DECRBY c 3",
    "DECRBY c -9223372036854775808",
    "SET d abc",
    "INCR d",
    "DECRBY d 1",
    "SET e 01",
    "INCR e",
    "SET e +1",
    "INCR e",
    "SET e 9223372036854775807",
    "INCR e",
    "MSET a 1 b 2",
    "MSET a 1 b",
    "MSET a",
    "MGET a b none",
    "MGET",
    "EXPIRE a 10",
    "EXPIRE a 10 NX",
    "EXPIRE a 20 XX",
    "EXPIRE a 10 GT",
    "EXPIRE a 10 LT",
    "EXPIRE a 5 XX LT",
    "EXPIRE a 5 NX XX",
    "EXPIRE a 5 GT LT",
    "EXPIRE a 5 FOO",
    "EXPIRE a x",
    "EXPIRE a 9223372036854775807",
    "EXPIRE none 5",
    "PEXPIRE a 9223372036854775807",
    "EXPIREAT a 9223372036854775807",
    "EXPIRE a -9223372036854775808",
    "PERSIST a",
    "PERSIST a",
    "EXPIRE a 5 XX LT",
    "EXPIRE a 5 GT",
    "EXPIRE a -1",
    "EXISTS a",
    "PEXPIREAT b 1",
    "GET b",
    "TYPE c",
    "TYPE none",
    "TOUCH c none c",
    "SELECT 0",
    "SELECT x",
    "SELECT 16",
    "SELECT -1",
    "AUTH x",
    "AUTH default x",
    "AUTH a b",
    "AUTH a b c",
    "HELLO 1",
    "HELLO x",
    "HELLO 2 FOO",
    "HELLO 2 AUTH x",
    "SCAN 0 COUNT 0",
    "SCAN 0 COUNT x",
    "SCAN 0 MATCH",
    "SCAN x",
    "SCAN 0 FOO 1",
    "FLUSHALL FOO",
    "FLUSHDB ASYNC",
    "DBSIZE",
    "DBSIZE x",
    "SCAN 0",
    "CLIENT",
    "CLIENT FOO",
    "CLIENT KILL",
    "CLIENT KILL 1.2.3.4:1",
    "CLIENT KILL ID 0",
    "CLIENT KILL ID x",
    "CLIENT KILL FOO x",
    "CLIENT GETNAME",
    "CLIENT SETNAME a",
    "CLIENT GETNAME",
    "CLIENT SETNAME",
    "CLIENT NO-EVICT FOO",
    "CONFIG",
    "CONFIG FOO",
    "CONFIG GET",
    "CONFIG SET",
    "CONFIG SET nonsense 1",
    "CONFIG GET appendonly",
    "CONFIG GET save",
    "CONFIG GET nonsense",
    "CONFIG RESETSTAT",
    "CONFIG RESETSTAT x",
    "COMMAND COUNT x",
    "COMMAND FOO",
    "COMMAND GETKEYS GET a",
    "COMMAND GETKEYS MSET a 1 b 2",
    "COMMAND GETKEYS PING",
    "COMMAND GETKEYS",
    "COMMAND GETKEYS FOO",
    "COMMAND GETKEYS GET",
    "COMMAND INFO FOO",
    "FOO",
    "FOO bar baz",
    "foo",
    "FOO aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb ccccccccccccccccccccccccccc ddd",
    "GET",
    "GET a b",
    "SHUTDOWN FOO",
    "TIME x",
    "RESET",
    "RESET x",
    "INFO nonsense",
];

#[test]
fn replies_are_those_of_redis() {
    let Some(redis) = redis() else {
        println!("skipped: redis-server could not be started (apt-get install redis-server)");
        return;
    };
    let server = Running::start(plain(), 1);
    let (mut ours, mut theirs) = (
        server.client(),
        Talk::new(([127, 0, 0, 1], redis.port).into()),
    );
    let mut differences = Vec::new();
    for command in COMMANDS {
        let words: Vec<&str> = command.split(' ').collect();
        let (a, b) = (ours.ask(&words), theirs.ask(&words));
        if a != b {
            differences.push(format!("{command}\n  ours   {a:?}\n  theirs {b:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    server.stop();
}

#[test]
fn protocol_errors_are_those_of_redis() {
    let Some(redis) = redis() else {
        println!("skipped: redis-server could not be started (apt-get install redis-server)");
        return;
    };
    let server = Running::start(plain(), 1);
    let streams: Vec<String> = vec![
        "*x\r\n".into(),
        "*99999999999\r\n".into(),
        "*1\r\nx\r\n".into(),
        "*1\r\n$x\r\n".into(),
        "*1\r\n$-1\r\n".into(),
        "*1\r\n$600000000\r\n".into(),
        "*0\r\n\r\n*-1\r\nPING\r\nQUIT\r\n".into(),
        "SET a \"b\r\n".into(),
        "SET a \"b\"c\r\n".into(),
        "  SET   x  'a b'\r\nGET x\r\nQUIT\r\n".into(),
        "SET y \"\\x41\\n\\\"\"\nGET y\nQUIT\n".into(),
        format!("*1\r\n${}", "1".repeat(66_000)),
        format!("*{}", "1".repeat(66_000)),
        "a".repeat(66_000),
    ];
    for stream in streams {
        let talk = |addr| {
            let mut c = Talk::new(addr);
            c.send(&stream);
            c.rest()
        };
        let (a, b) = (talk(server.addr), talk(([127, 0, 0, 1], redis.port).into()));
        assert_eq!(a, b, "{:?}", &stream[..stream.len().min(60)]);
    }
    server.stop();
}
