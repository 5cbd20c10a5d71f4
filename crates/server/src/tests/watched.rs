//! What WATCH keeps, and what a transaction queues: granted by the connections' budget, given back however it ends, and taken
//! from who does nothing with it while others starve.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::double::Settings;
use super::{Running, Talk, plain};

const BUDGET_BYTES: i64 = 2 << 20;

fn start() -> Running {
    Running::start(
        Settings {
            budget_bytes: BUDGET_BYTES,
            ..plain()
        },
        1,
    )
}

/// What is sent with it is parsed where it lies: it asks for no buffer.
const LONG_KEY_BYTES: usize = 7_000;

fn key(at: usize, len: usize) -> String {
    format!("{at}{}", "k".repeat(len))
}

/// Watches keys of this length until there is no room for one; answers how many.
fn watch_all(c: &mut Talk, key_bytes: usize) -> usize {
    (0..2_000)
        .find(|at| {
            let reply = c.ask(&["WATCH", &key(*at, key_bytes)]);
            let refused = reply.starts_with("-OOM");
            assert!(refused || reply == "+OK\r\n", "{reply}");
            refused
        })
        .expect("an end of the room")
}

#[test]
fn watched_keys_are_granted_and_given_back() {
    let server = start();
    let granted = || server.factory.leaks().1;
    let mut c = server.client();
    assert_eq!(c.ask(&["PING"]), "+PONG\r\n");
    let before = granted();
    let watched = watch_all(&mut c, LONG_KEY_BYTES);
    assert!((30..90).contains(&watched), "{watched}");
    assert!(granted() - before > (2 * watched * LONG_KEY_BYTES) as i64);
    let peak = server.factory.granted_peak.load(Ordering::SeqCst);
    assert!(peak <= BUDGET_BYTES, "{peak}");
    // One that is watched already takes nothing more, and the others are watched still.
    assert_eq!(c.ask(&["WATCH", &key(0, LONG_KEY_BYTES)]), "+OK\r\n");
    let changes = ["SET", &key(0, LONG_KEY_BYTES), "1"];
    assert_eq!(server.client().ask(&changes), "+OK\r\n");
    c.ask(&["MULTI"]);
    assert_eq!(c.ask(&["EXEC"]), "*-1\r\n");
    let is_back = || granted() < before + 100_000;
    assert!(is_back(), "{} {before}", granted());
    for ends in [
        &[&["UNWATCH"][..]][..],
        &[&["RESET"]],
        &[&["MULTI"], &["DISCARD"]],
        &[&["MULTI"], &["PING"], &["EXEC"]],
        &[&["MULTI"], &["UNWATCH"], &["EXEC"]],
    ] {
        for at in 0..20 {
            assert_eq!(c.ask(&["WATCH", &key(at, LONG_KEY_BYTES)]), "+OK\r\n");
        }
        assert!(!is_back());
        ends.iter().for_each(|command| drop(c.ask(command)));
        assert!(is_back(), "{ends:?}: {} {before}", granted());
    }
    // Left by its connection: that nothing stays is asserted at the end.
    assert_eq!(c.ask(&["WATCH", "k"]), "+OK\r\n");
    drop(c);
    server.stop();
}

/// Others that want a buffer, and get one only if who was idle is cut off.
fn takes_from_the_idle(fill: impl Fn(&mut Talk)) {
    let server = start();
    let (mut idle, mut other) = (server.client(), server.client());
    fill(&mut idle);
    std::thread::sleep(Duration::from_millis(2 * crate::limits::STUCK_AFTER_MS));
    let value = "x".repeat(300_000);
    assert_eq!(other.ask(&["SET", "k", &value]), "+OK\r\n");
    let told = idle.rest();
    assert!(
        told.starts_with("-ERR connection cut off: it held "),
        "{told}"
    );
    server.stop();
}

#[test]
fn who_queues_much_and_is_idle_is_cut_off_when_others_starve() {
    takes_from_the_idle(|idle| {
        assert_eq!(idle.ask(&["MULTI"]), "+OK\r\n");
        for command in [&["SET", "k", &key(0, LONG_KEY_BYTES)][..], &["PING"]] {
            while idle.ask(command) == "+QUEUED\r\n" {}
        }
    });
}

/// What it asks for again and again, and never gets, is no progress.
#[test]
fn who_waits_for_a_buffer_that_never_comes_is_cut_off() {
    let server = start();
    let (mut waits, mut other) = (server.client(), server.client());
    let pair = format!("$1\r\nk\r\n$60000\r\n{}\r\n", "x".repeat(60_000));
    let sent = format!("*33\r\n$4\r\nMSET\r\n{}", pair.repeat(16));
    // It may be cut off while it still sends.
    let _ = std::io::Write::write_all(&mut waits.stream, sent.as_bytes());
    let until = Instant::now() + Duration::from_secs(10);
    while !other
        .ask(&["INFO", "stats"])
        .contains("cut_off_connections:1\r\n")
    {
        assert!(Instant::now() < until, "it still waits");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop((waits, other));
    server.stop();
}

#[test]
fn who_watches_much_and_is_idle_is_cut_off_when_others_starve() {
    takes_from_the_idle(|idle| {
        watch_all(idle, LONG_KEY_BYTES);
        watch_all(idle, 500);
    });
}
