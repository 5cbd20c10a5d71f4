//! Values above 64 KiB: brought in and sent piece by piece, refused where they make no sense, given up when the
//! connection dies.

use std::time::Duration;

use super::double::Settings;
use super::{Running, encode, plain};

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

fn bulk(value: &[u8]) -> Vec<u8> {
    let mut out = format!("${}\r\n", value.len()).into_bytes();
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    out
}

fn round_trips(settings: Settings) {
    let server = Running::start(settings, 1);
    let mut c = server.client();
    for len in [65_536, 65_537, 122_880, 122_881, 1 << 20, 5_000_001] {
        let value = bytes(len, 7);
        c.send(encode(&[b"SET", b"big", &value, b"EX", b"100"]));
        // A small command right behind a long one.
        c.send(encode(&[b"STRLEN", b"big"]));
        assert_eq!(c.reply(), b"+OK\r\n");
        assert_eq!(c.reply(), format!(":{len}\r\n").as_bytes());
        c.send(encode(&[b"GET", b"big"]));
        c.send(encode(&[b"PING"]));
        assert!(c.reply() == bulk(&value), "{len}");
        assert_eq!(c.reply(), b"+PONG\r\n");
    }
    let (one, two) = (bytes(100_000, 1), bytes(200_000, 2));
    c.send(encode(&[b"MSET", b"a", &one, b"b", b"small", b"c", &two]));
    assert_eq!(c.reply(), b"+OK\r\n");
    c.send(encode(&[b"MGET", b"a", b"b", b"none", b"c", b"a"]));
    let want = [
        b"*5\r\n".to_vec(),
        bulk(&one),
        bulk(b"small"),
        b"$-1\r\n".to_vec(),
        bulk(&two),
        bulk(&one),
    ]
    .concat();
    assert!(c.reply() == want);
    c.send(encode(&[b"GETSET", b"a", &two]));
    assert!(c.reply() == bulk(&one));
    c.send(encode(&[b"GETDEL", b"a"]));
    assert!(c.reply() == bulk(&two));
    c.send(encode(&[b"SET", b"c", &one, b"NX"]));
    assert_eq!(c.reply(), b"$-1\r\n");
    c.send(encode(&[b"SET", b"c", &one, b"WRONG"]));
    assert_eq!(c.reply(), b"-ERR syntax error\r\n");
    server.stop();
}

#[test]
fn round_trips_at_once() {
    round_trips(plain());
}

#[test]
fn round_trips_with_waits() {
    round_trips(Settings {
        wait_per_mille: 300,
        ..plain()
    });
}

#[test]
fn round_trips_in_sync_mode() {
    round_trips(Settings {
        wait_per_mille: 100,
        sync: true,
        ..plain()
    });
}

#[test]
fn long_arguments_in_the_wrong_place_are_passed_over() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    let long = bytes(300_000, 3);
    for (args, want) in [
        (
            vec![b"GET".as_slice(), &long],
            "-ERR argument 1 of 'get' is 300000 bytes long; at most 65536 are allowed there",
        ),
        (
            vec![b"SET", &long, b"x"],
            "-ERR argument 1 of 'set' is 300000 bytes long",
        ),
        (
            vec![b"SET", b"k", b"v", &long],
            "-ERR argument 3 of 'set' is 300000 bytes long",
        ),
        (vec![b"ECHO", &long], "-ERR argument 1 of 'echo'"),
        (
            vec![b"NOPE", b"x", &long],
            "-ERR unknown command 'NOPE', with args beginning with: 'x' ",
        ),
        (
            vec![b"SETNX", b"k", &long, &long],
            "-ERR wrong number of arguments for 'setnx' command",
        ),
        (
            vec![&long, b"x"],
            "-ERR unknown command: its name would be 300000 bytes long",
        ),
    ] {
        c.send(encode(&args));
        let got = String::from_utf8(c.reply()).unwrap();
        assert!(got.starts_with(want), "{got}");
        assert_eq!(c.ask(&["PING"]), "+PONG\r\n");
    }
    let key = bytes(65_536, 1);
    c.send(encode(&[b"SET", &key, b"x"]));
    assert!(
        c.reply()
            .starts_with(b"-ERR key is 65536 bytes long; at most 65535 are allowed")
    );
    server.stop();
}

#[test]
fn values_beyond_the_limit_are_passed_over() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    let len = (64 << 20) + 1;
    c.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\n"));
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        c.send(&chunk);
    }
    c.send("x\r\n");
    let got = String::from_utf8(c.reply()).unwrap();
    assert!(
        got.starts_with("-ERR value is 67108865 bytes long; at most 67108864 are allowed"),
        "{got}"
    );
    assert_eq!(c.ask(&["EXISTS", "k"]), ":0\r\n");
    server.stop();
}

#[test]
fn a_command_with_too_many_bytes_is_passed_over() {
    let server = Running::start(
        Settings {
            budget_bytes: 64 << 20,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    let part = bytes(60_000, 1);
    let mut args: Vec<&[u8]> = vec![b"MSET"];
    for _ in 0..300 {
        args.extend([b"k".as_slice(), &part]);
    }
    c.send(encode(&args));
    let got = String::from_utf8(c.reply()).unwrap();
    assert!(
        got.starts_with("-ERR the command's arguments are longer than 16777216 bytes together"),
        "{got}"
    );
    // Many small ones are fine.
    let mut args: Vec<&[u8]> = vec![b"DEL"];
    args.extend(std::iter::repeat_n(b"key".as_slice(), 200_000));
    c.send(encode(&args));
    assert_eq!(c.reply(), b":0\r\n");
    server.stop();
}

#[test]
fn a_connection_that_dies_midway_leaves_nothing() {
    let server = Running::start(
        Settings {
            wait_per_mille: 200,
            ..plain()
        },
        1,
    );
    for sent in [10, 70_000, 200_000] {
        let mut c = server.client();
        c.send(format!(
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n{}",
            "x".repeat(sent)
        ));
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut c = server.client();
    c.send(encode(&[b"SET", b"big", &bytes(10 << 20, 1)]));
    assert_eq!(c.reply(), b"+OK\r\n");
    let mut gone = server.client();
    gone.send(encode(&[b"GET", b"big"]));
    std::thread::sleep(Duration::from_millis(50));
    drop(gone);
    assert_eq!(c.ask(&["EXISTS", "k", "big"]), ":1\r\n");
    server.stop();
}

#[test]
fn fifty_long_values_at_once_stay_within_a_small_budget() {
    let budget_bytes = 3 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let value = std::sync::Arc::new(bytes(3 << 20, 9));
    let clients: Vec<_> = (0..50)
        .map(|n| {
            let (mut c, value) = (server.client(), value.clone());
            std::thread::spawn(move || {
                c.send(encode(&[b"SET", format!("k{n}").as_bytes(), &value]));
                assert_eq!(c.reply(), b"+OK\r\n");
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let peak = server
        .factory
        .granted_peak
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    assert_eq!(server.client().ask(&["DBSIZE"]), ":50\r\n");
    server.stop();
}
