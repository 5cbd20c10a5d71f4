//! Values above 64 KiB in transactions: brought, read, changed and moved by them, with waits, beside others who change the same
//! keys, within a small budget, begun again, and left by their connection midway.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::double::Settings;
use super::{Running, Talk, encode, plain};

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

/// Sends commands that wait for EXEC, and answers its reply.
fn exec(c: &mut Talk, commands: &[&[&[u8]]]) -> Vec<u8> {
    assert_eq!(c.ask(&["MULTI"]), "+OK\r\n");
    for command in commands {
        c.send(encode(command));
        assert_eq!(c.reply(), b"+QUEUED\r\n");
    }
    c.send(encode(&[b"EXEC"]));
    c.reply()
}

fn all(settings: Settings) {
    let server = Running::start(settings, 1);
    let mut c = server.client();
    let (a, b, tail) = (bytes(150_000, 1), bytes(70_000, 2), bytes(66_000, 3));
    c.send(encode(&[b"SET", b"old", &b, b"EX", b"100"]));
    assert_eq!(c.reply(), b"+OK\r\n");
    let packed = {
        c.send(encode(&[b"DUMP", b"old"]));
        let reply = c.reply();
        let at = reply.iter().position(|b| *b == b'\n').unwrap();
        reply[at + 1..reply.len() - 2].to_vec()
    };
    let got = exec(
        &mut c,
        &[
            &[b"SET", b"k", &a],
            &[b"GET", b"k"],
            &[b"APPEND", b"k", &tail],
            &[b"APPEND", b"k", b"x"],
            &[b"SETRANGE", b"k", b"1", b"yz"],
            &[b"GETRANGE", b"k", b"0", b"3"],
            &[b"GETRANGE", b"k", b"149990", b"-1"],
            &[b"STRLEN", b"k"],
            &[b"GET", b"old"],
            &[b"COPY", b"old", b"new"],
            &[b"RENAME", b"old", b"moved"],
            &[b"TTL", b"moved"],
            &[b"GETSET", b"moved", &tail],
            &[b"MGET", b"k", b"none", b"moved", b"new"],
            &[b"SETBIT", b"new", b"7", b"1"],
            &[b"BITCOUNT", b"new", b"0", b"-1"],
            &[b"BITOP", b"NOT", b"not", b"new"],
            &[b"DUMP", b"new"],
            &[b"SET", b"short", b"1"],
            &[b"INCR", b"short"],
            &[b"INCR", b"k"],
            &[b"RESTORE", b"back", b"0", &packed],
            &[b"GETDEL", b"back"],
            &[b"MSET", b"m1", &a, b"m2", b"2", b"m1", &b],
            &[b"MSETNX", b"n1", &a, b"n2", &b],
            &[b"MSETNX", b"n1", &b, b"n3", &a],
            &[b"SET", b"m2", &a, b"NX"],
        ],
    );
    let mut k = a.clone();
    k.extend_from_slice(&tail);
    k.push(b'x');
    k[1..3].copy_from_slice(b"yz");
    let mut new = b.clone();
    let bit = new[0] & 1;
    new[0] |= 1;
    let ones: u32 = new.iter().map(|byte| byte.count_ones()).sum();
    let dump = {
        c.send(encode(&[b"DUMP", b"new"]));
        c.reply()
    };
    let want: Vec<Vec<u8>> = vec![
        b"*27\r\n+OK\r\n".to_vec(),
        bulk(&a),
        b":216000\r\n:216001\r\n:216001\r\n".to_vec(),
        bulk(&k[..4]),
        bulk(&k[149_990..]),
        b":216001\r\n".to_vec(),
        bulk(&b),
        b":1\r\n+OK\r\n:100\r\n".to_vec(),
        bulk(&b),
        b"*4\r\n".to_vec(),
        bulk(&k),
        b"$-1\r\n".to_vec(),
        bulk(&tail),
        bulk(&b),
        format!(":{bit}\r\n:{ones}\r\n:70000\r\n").into_bytes(),
        dump,
        b"+OK\r\n:2\r\n-ERR value is not an integer or out of range\r\n+OK\r\n".to_vec(),
        bulk(&b),
        b"+OK\r\n:1\r\n:0\r\n$-1\r\n".to_vec(),
    ];
    let want = want.concat();
    if got != want {
        let at = got.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(0);
        let part = |v: &[u8]| String::from_utf8_lossy(&v[at..v.len().min(at + 60)]).into_owned();
        panic!("at {at}: {} not {}", part(&got), part(&want));
    }
    let not: Vec<u8> = new.iter().map(|byte| !byte).collect();
    for (key, value) in [
        ("k", &k),
        ("new", &new),
        ("moved", &tail),
        ("not", &not),
        ("m1", &b),
        ("n1", &a),
        ("n2", &b),
    ] {
        c.send(encode(&[b"GET", key.as_bytes()]));
        assert!(c.reply() == bulk(value), "{key}");
    }
    assert_eq!(c.ask(&["EXISTS", "old", "back", "n3"]), ":0\r\n");
    assert_eq!(
        c.ask(&["MGET", "short", "m2"]),
        "*2\r\n$1\r\n2\r\n$1\r\n2\r\n"
    );
    drop(c);
    // Also asserts that nothing is left held.
    server.stop();
}

#[test]
fn all_at_once() {
    all(plain());
}

#[test]
fn all_with_waits() {
    all(Settings {
        wait_per_mille: 300,
        ..plain()
    });
}

#[test]
fn all_in_sync_mode() {
    all(Settings {
        wait_per_mille: 100,
        sync: true,
        ..plain()
    });
}

/// A transaction that is begun again still has what it was brought; one whose watched key has changed does nothing.
#[test]
fn beside_others_it_is_one_moment() {
    let server = Running::start(
        Settings {
            wait_per_mille: 200,
            ..plain()
        },
        2,
    );
    let mut c = server.client();
    c.send(encode(&[
        b"MSET",
        b"a",
        &bytes(70_000, 1),
        b"b",
        &bytes(70_000, 1),
        b"n",
        b"0",
    ]));
    assert_eq!(c.reply(), b"+OK\r\n");
    let addr = server.addr;
    let writers: Vec<_> = (0..3u64)
        .map(|n| {
            std::thread::spawn(move || {
                let mut c = Talk::new(addr);
                let mut done = 0;
                for round in 0..12 {
                    let value = bytes(70_000 + (round % 3) as usize, n * 100 + round);
                    let got = exec(
                        &mut c,
                        &[
                            &[b"SET", b"a", &value],
                            &[b"APPEND", b"a", b"x"],
                            &[b"SET", b"b", &value],
                            &[b"INCR", b"n"],
                            &[b"APPEND", b"b", b"x"],
                        ],
                    );
                    let got = String::from_utf8(got).unwrap();
                    // Others may have been first every time.
                    match got.starts_with("*5\r\n") {
                        true => done += 1,
                        false => assert!(got.contains("were changed by others 16 times"), "{got}"),
                    }
                }
                done
            })
        })
        .collect();
    let mut reads = 0;
    while !writers.iter().all(|w| w.is_finished()) || reads < 20 {
        let got = exec(&mut c, &[&[b"GET", b"a"], &[b"GET", b"b"]]);
        if got.starts_with(b"-") {
            continue;
        }
        let both = &got[4..];
        assert!(
            both[..both.len() / 2] == both[both.len() / 2..],
            "not of one moment"
        );
        reads += 1;
    }
    let done: u32 = writers.into_iter().map(|w| w.join().unwrap()).sum();
    assert!(done > 6, "{done}");
    assert_eq!(
        c.ask(&["GET", "n"]),
        format!("${}\r\n{done}\r\n", done.to_string().len())
    );
    // A watched key.
    let mut other = server.client();
    assert_eq!(c.ask(&["WATCH", "a"]), "+OK\r\n");
    other.ask(&["SET", "a", "1"]);
    assert_eq!(
        exec(&mut c, &[&[b"SET", b"a", &bytes(70_000, 5)]]),
        b"*-1\r\n"
    );
    assert_eq!(c.ask(&["GET", "a"]), "$1\r\n1\r\n");
    drop((c, other));
    server.stop();
}

#[test]
fn its_memory_is_granted() {
    let budget_bytes = 2 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    // Values that are longer than the budget are no matter, since nobody holds them.
    let value = bytes(5 << 20, 9);
    let got = exec(
        &mut c,
        &[
            &[b"SET", b"k", &value],
            &[b"APPEND", b"k", b"x"],
            &[b"GET", b"k"],
        ],
    );
    assert_eq!(
        got.len(),
        b"*3\r\n+OK\r\n:5242881\r\n$5242881\r\n\r\n".len() + value.len() + 1
    );
    // Short ones are held until all is through.
    let half = "y".repeat(60_000);
    c.ask(&["SET", "half", &half]);
    c.ask(&["MULTI"]);
    c.ask(&["SET", "k", "2"]);
    (0..60).for_each(|_| drop(c.ask(&["GET", "half"])));
    let got = c.ask(&["EXEC"]);
    assert!(got.starts_with("-OOM the transaction needs"), "{got}");
    assert_eq!(c.ask(&["STRLEN", "k"]), ":5242881\r\n");
    let peak = server.factory.granted_peak.load(Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    drop(c);
    server.stop();
}

/// LCS of a transaction is searched in steps, too.
#[test]
fn an_lcs_goes_in_steps() {
    let server = Running::start(plain(), 1);
    let (mut c, mut other) = (server.client(), server.client());
    let (a, b) = (bytes(9_000, 1), bytes(9_000, 7));
    c.send(encode(&[b"MSET", b"a", &a, b"b", &b]));
    assert_eq!(c.reply(), b"+OK\r\n");
    let want = c.ask(&["LCS", "a", "b", "LEN"]);
    c.send(
        [
            encode(&[b"MULTI"]),
            encode(&[b"LCS", b"a", b"b", b"LEN"]),
            encode(&[b"EXEC"]),
        ]
        .concat(),
    );
    // Others are served meanwhile.
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    assert_eq!(c.reply(), b"+OK\r\n");
    assert_eq!(c.reply(), b"+QUEUED\r\n");
    assert_eq!(c.reply(), format!("*1\r\n{want}").as_bytes());
    drop((c, other));
    server.stop();
}

#[test]
fn a_connection_that_dies_midway_leaves_all_or_nothing() {
    let server = Running::start(
        Settings {
            wait_per_mille: 700,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    let value = bytes(1 << 20, 9);
    for wait_ms in [0, 1, 3, 10, 30] {
        let mut gone = server.client();
        gone.send(encode(&[b"MULTI"]));
        gone.send(encode(&[b"SET", b"a", &value]));
        gone.send(encode(&[b"APPEND", b"a", b"x"]));
        gone.send(encode(&[b"COPY", b"a", b"b", b"REPLACE"]));
        gone.send(encode(&[b"EXEC"]));
        std::thread::sleep(Duration::from_millis(wait_ms));
        drop(gone);
    }
    let lens = c.ask(&["STRLEN", "a"]);
    assert!([":0\r\n", ":1048577\r\n"].contains(&&*lens), "{lens}");
    drop(c);
    server.stop();
}

/// As in Redis, the slow log shows what a transaction executed, and not its EXEC.
#[test]
fn the_slow_log_shows_its_commands() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    c.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    for value in [bytes(10, 1), bytes(70_000, 1)] {
        c.ask(&["SLOWLOG", "RESET"]);
        exec(&mut c, &[&[b"SET", b"k", &value], &[b"STRLEN", b"k"]]);
        let log = c.ask(&["SLOWLOG", "GET"]);
        assert!(log.contains("$6\r\nSTRLEN\r\n"), "{log}");
        assert!(log.contains("$3\r\nSET\r\n"), "{log}");
        assert!(!log.contains("EXEC"), "{log}");
    }
    drop(c);
    server.stop();
}
