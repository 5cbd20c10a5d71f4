//! Commands that could keep a thread, or take much memory, make way: what they are asked for has bounds, or they go in steps.

use std::io::Read;
use std::time::Duration;

use super::double::Settings;
use super::{Running, Talk, encode, plain};

/// Names that are there often do not make a reply that is there at once.
#[test]
fn descriptions_of_commands_are_told_in_parts() {
    const NAMES: usize = 4_000;
    let budget_bytes = 4 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let (mut c, mut other) = (server.client(), server.client());
    for (sub, elements) in [("DOCS", 2), ("INFO", 1)] {
        let one = c.ask(&["COMMAND", sub, "SET"]);
        let body = one.split_once("\r\n").unwrap().1;
        let names = [
            &[&b"COMMAND"[..], sub.as_bytes()][..],
            &[&b"SET"[..]; NAMES],
        ]
        .concat();
        c.send(encode(&names));
        let want = format!("*{}\r\n{}", elements * NAMES, body.repeat(NAMES));
        // Nothing is read for longer than others starve.
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
        }
        let mut got = vec![0; want.len()];
        c.stream.read_exact(&mut got).unwrap();
        assert!(got == want.as_bytes(), "{sub}");
        assert_eq!(c.ask(&["PING"]), "+PONG\r\n");
    }
    let peak = (server.factory.granted_peak).load(std::sync::atomic::Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    // What is not known is left out there, and null here.
    assert_eq!(c.ask(&["COMMAND", "DOCS", "none"]), "*0\r\n");
    assert_eq!(c.ask(&["COMMAND", "INFO", "none"]), "*1\r\n$-1\r\n");
    server.stop();
}

/// Whether somebody else is served before this command has its reply.
fn makes_way(server: &Running, args: &[&str]) {
    let (mut asks, mut other) = (server.client(), server.client());
    assert_eq!(asks.ask(&["PING"]), "+PONG\r\n");
    let args: Vec<&[u8]> = args.iter().map(|a| a.as_bytes()).collect();
    asks.send(encode(&args));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    asks.stream.set_nonblocking(true).unwrap();
    let early = asks.stream.read(&mut [0; 64]);
    assert!(early.is_err(), "its reply was there before");
    asks.stream.set_nonblocking(false).unwrap();
    let reply = String::from_utf8(asks.reply()).unwrap();
    assert!(reply.ends_with("*0\r\n"), "{reply}");
}

fn fill(c: &mut Talk, keys: &[String]) {
    for some in keys.chunks(1_000) {
        let pairs = some.iter().flat_map(|key| [key.as_bytes(), b"v"]);
        c.send(encode(
            &std::iter::once(&b"MSET"[..])
                .chain(pairs)
                .collect::<Vec<_>>(),
        ));
        assert_eq!(c.reply(), b"+OK\r\n");
    }
}

#[test]
fn a_scan_of_everything_that_finds_nothing_makes_way() {
    let server = Running::start(plain(), 1);
    let keys: Vec<String> = (0..20_000).map(|i| format!("key:{i}")).collect();
    fill(&mut server.client(), &keys);
    makes_way(
        &server,
        &["SCAN", "0", "MATCH", "none*", "COUNT", "1000000000"],
    );
    makes_way(
        &server,
        &["SCAN", "0", "TYPE", "none", "COUNT", "1000000000"],
    );
    server.stop();
}

#[test]
fn a_pattern_that_is_much_work_makes_way_and_one_that_is_more_is_refused() {
    let server = Running::start(plain(), 1);
    let keys: Vec<String> = (0..24)
        .map(|i| format!("{}{i}", "a".repeat(20_000)))
        .collect();
    fill(&mut server.client(), &keys);
    let most = format!("*{}b", "a".repeat(1_022));
    makes_way(&server, &["KEYS", &most]);
    makes_way(&server, &["SCAN", "0", "MATCH", &most, "COUNT", "64"]);
    let more = format!("{most}b");
    let refused = "-ERR the pattern is 1025 bytes long; at most 1024 are allowed\r\n";
    let mut c = server.client();
    assert_eq!(c.ask(&["KEYS", &more]), refused);
    assert_eq!(c.ask(&["SCAN", "0", "MATCH", &more]), refused);
    server.stop();
}
