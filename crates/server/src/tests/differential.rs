//! The same commands to this server and to redis-server, when that is installed: replies must be the same byte for
//! byte. What differs on purpose is not in the list.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::lists::{COMMANDS, INSIGHT, STRINGS, TRANSACTIONS};
use super::{Running, Talk, plain, port};

pub struct Redis {
    child: Child,
    pub port: u16,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn redis() -> Option<Redis> {
    let port = port::free_addr().port();
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
    let lists = COMMANDS
        .iter()
        .chain(INSIGHT)
        .chain(STRINGS)
        .chain(TRANSACTIONS);
    for command in lists {
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
        "POST / HTTP/1.1\r\nPING\r\n".into(),
        "host: x\r\nPING\r\n".into(),
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
