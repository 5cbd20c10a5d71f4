//! Sets of values that are too long, beside memcached's, where that is installed: its longest value is ours here.

use std::io::Write;

use super::double::Settings;
use super::memcached::{Ask, as_memcached, ask, connect};
use super::{Running, plain};
use crate::ServerOptions;

const MOST_BYTES: usize = 1 << 20;

/// A set leaves nothing of what there was, and a command that depends on it leaves all of it.
fn too_long(ask: &mut Ask<'_>) {
    const LEN: usize = MOST_BYTES + 1;
    let block = "x".repeat(LEN);
    for (line, is_left) in [
        (format!("set k 0 0 {LEN}"), false),
        (format!("ms k {LEN}"), false),
        (format!("ms k {LEN} ME C1 q"), false),
        (format!("ms aw== {LEN} F5 b"), false),
        (format!("add k 0 0 {LEN}"), true),
        (format!("replace k 0 0 {LEN}"), true),
        (format!("append k 0 0 {LEN}"), true),
        (format!("prepend k 0 0 {LEN}"), true),
        (format!("cas k 0 0 {LEN} 1"), true),
    ] {
        assert_eq!(ask(b"set k 0 0 1\r\na\r\n"), "STORED\r\n");
        let refused = "SERVER_ERROR object too large for cache\r\n";
        let sent = format!("{line}\r\n{block}\r\n");
        assert_eq!(ask(sent.as_bytes()), refused, "{line}");
        let want = if is_left { "HD\r\n" } else { "EN\r\n" };
        assert_eq!(ask(b"mg k\r\n"), want, "{line}");
    }
}

fn start(settings: Settings) -> Running {
    Running::start_with(
        settings,
        ServerOptions {
            memcached: Some(([127, 0, 0, 1], 0).into()),
            max_value_bytes: MOST_BYTES as u64,
            ..Default::default()
        },
    )
}

#[test]
fn a_set_that_is_too_long_lets_go_of_what_there_was() {
    for wait_per_mille in [0, 300] {
        let server = start(Settings {
            wait_per_mille,
            sync: wait_per_mille > 0,
            ..plain()
        });
        let mut c = connect(&server);
        too_long(&mut |sent| ask(&mut c, sent));
        // One with an error is none, and neither is one whose block never ends.
        assert_eq!(ask(&mut c, b"set k 0 0 1\r\na\r\n"), "STORED\r\n");
        for len in [u64::MAX, 1 << 40] {
            let mut endless = connect(&server);
            let line = format!("set k 0 0 {len}\r\nabc");
            endless.write_all(line.as_bytes()).unwrap();
        }
        let sent = format!(
            "ms k {0} z\r\n{1}\r\n",
            MOST_BYTES + 1,
            "x".repeat(MOST_BYTES + 1)
        );
        assert!(ask(&mut c, sent.as_bytes()).starts_with("SERVER_ERROR"));
        assert_eq!(ask(&mut c, b"mg k\r\n"), "HD\r\n");
        drop(c);
        server.stop();
    }
}

#[test]
fn one_that_is_too_long_is_so_for_memcached() {
    as_memcached(too_long);
}
