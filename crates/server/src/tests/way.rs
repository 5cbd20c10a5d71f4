//! Commands that could keep a thread, or take much memory, make way: what they are asked for has bounds, or they go in steps.

use std::io::Read;
use std::time::Duration;

use super::double::Settings;
use super::{Running, encode, plain};

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
