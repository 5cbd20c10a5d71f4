//! Changes of values above 64 KiB, against what they are in memory: the replies and the bytes, with waits, beside others
//! who change the same key, within a small budget, and left by their connection midway.

use std::sync::atomic::Ordering;
use std::time::Duration;

use terrace_kv::strings::dump;

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

fn changes(settings: Settings) {
    let server = Running::start(settings, 1);
    let mut c = server.client();
    // Where a value becomes one in pieces, and around the ends of pieces.
    for len in [60_000, 65_536, 65_537, 122_880, 122_881, 300_000] {
        let mut model = bytes(len, 3);
        c.send(encode(&[b"SET", b"k", &model, b"EX", b"100"]));
        assert_eq!(c.reply(), b"+OK\r\n");
        let tail = bytes(9_000, 5);
        c.send(encode(&[b"APPEND", b"k", &tail]));
        model.extend_from_slice(&tail);
        assert_eq!(c.reply(), format!(":{}\r\n", model.len()).as_bytes());
        for at in [0, 61_000, model.len() - 10, model.len() + 70_000] {
            let part = bytes(1_000, at as u64);
            c.send(encode(&[
                b"SETRANGE",
                b"k",
                at.to_string().as_bytes(),
                &part,
            ]));
            model.resize(model.len().max(at + part.len()), 0);
            model[at..at + part.len()].copy_from_slice(&part);
            assert_eq!(c.reply(), format!(":{}\r\n", model.len()).as_bytes());
        }
        c.send(encode(&[b"GET", b"k"]));
        assert!(c.reply() == bulk(&model), "{len}");
        for at in [7, 61_439 * 8 + 7, 61_440 * 8, model.len() * 8 + 500_003] {
            let was = model
                .get(at / 8)
                .is_some_and(|b| b >> (7 - at % 8) & 1 == 1);
            model.resize(model.len().max(at / 8 + 1), 0);
            model[at / 8] |= 1 << (7 - at % 8);
            let (bit, was) = (at.to_string(), format!(":{}\r\n", i32::from(was)));
            assert_eq!(c.ask(&["SETBIT", "k", &bit, "1"]), was);
            assert_eq!(c.ask(&["SETBIT", "k", &bit, "1"]), ":1\r\n");
        }
        let (a, b) = (model[61_440], model[100]);
        let fields = [
            "BITFIELD", "k", "SET", "u8", "#61440", "7", "GET", "u8", "#61440", "INCRBY", "u8",
            "800", "1",
        ];
        let want = format!("*3\r\n:{a}\r\n:7\r\n:{}\r\n", b.wrapping_add(1));
        assert_eq!(c.ask(&fields), want);
        (model[61_440], model[100]) = (7, b.wrapping_add(1));
        assert_eq!(c.ask(&["COPY", "k", "other"]), ":1\r\n");
        assert_eq!(c.ask(&["COPY", "k", "other"]), ":0\r\n");
        assert_eq!(c.ask(&["COPY", "k", "other", "REPLACE"]), ":1\r\n");
        for key in ["k", "other"] {
            c.send(encode(&[b"GET", key.as_bytes()]));
            assert!(c.reply() == bulk(&model), "{len} {key}");
            assert!(
                ["100", "99", "98"]
                    .map(|s| format!(":{s}\r\n"))
                    .contains(&c.ask(&["TTL", key]))
            );
        }
        let short = bytes(70_000, 11);
        c.send(encode(&[b"SET", b"short", &short]));
        assert_eq!(c.reply(), b"+OK\r\n");
        let joined = |f: fn(u8, u8) -> u8| -> Vec<u8> {
            let other = short.iter().copied().chain(std::iter::repeat(0));
            model.iter().zip(other).map(|(a, b)| f(*a, b)).collect()
        };
        for (op, f) in [
            ("AND", (|a, b| a & b) as fn(u8, u8) -> u8),
            ("OR", |a, b| a | b),
            ("XOR", |a, b| a ^ b),
        ] {
            let reply = c.ask(&["BITOP", op, "to", "short", "k", "none"]);
            let want = match op {
                "AND" => vec![0; model.len()],
                _ => joined(f),
            };
            assert_eq!(reply, format!(":{}\r\n", model.len()));
            c.send(encode(&[b"GET", b"to"]));
            assert!(c.reply() == bulk(&want), "{len} {op}");
        }
        assert_eq!(
            c.ask(&["BITOP", "NOT", "k", "k"]),
            format!(":{}\r\n", model.len())
        );
        let want: Vec<u8> = model.iter().map(|b| !b).collect();
        c.send(encode(&[b"GET", b"k"]));
        assert!(c.reply() == bulk(&want), "{len} NOT");
        assert_eq!(c.ask(&["TTL", "k"]), ":-1\r\n");
        assert_eq!(c.ask(&["DEL", "k", "other", "short", "to"]), ":4\r\n");
    }
    drop(c);
    // Also asserts that nothing is left held.
    server.stop();
}

#[test]
fn changes_at_once() {
    changes(plain());
}

#[test]
fn changes_with_waits() {
    changes(Settings {
        wait_per_mille: 300,
        ..plain()
    });
}

#[test]
fn changes_in_sync_mode() {
    changes(Settings {
        wait_per_mille: 100,
        sync: true,
        ..plain()
    });
}

/// Arguments above 64 KiB of commands that change a part, or several keys.
fn long_arguments(settings: Settings) {
    let server = Running::start(settings, 1);
    let mut c = server.client();
    for (len, more) in [
        (0, 65_537),
        (10, 70_000),
        (61_440, 122_880),
        (200_000, 65_537),
    ] {
        let mut model = bytes(len, 3);
        c.send(encode(&[b"SET", b"k", &model, b"EX", b"100"]));
        assert_eq!(c.reply(), b"+OK\r\n");
        let part = bytes(more, 5);
        c.send(encode(&[b"APPEND", b"k", &part]));
        model.extend_from_slice(&part);
        assert_eq!(c.reply(), format!(":{}\r\n", model.len()).as_bytes());
        for at in [0, 7, 61_439, model.len() - 10, model.len() + 70_000] {
            let part = bytes(more + at % 5, at as u64);
            let place = at.to_string();
            c.send(encode(&[b"SETRANGE", b"k", place.as_bytes(), &part]));
            model.resize(model.len().max(at + part.len()), 0);
            model[at..at + part.len()].copy_from_slice(&part);
            assert_eq!(c.reply(), format!(":{}\r\n", model.len()).as_bytes());
        }
        c.send(encode(&[b"GET", b"k"]));
        assert!(c.reply() == bulk(&model), "{len} {more}");
        assert_ne!(c.ask(&["TTL", "k"]), ":-1\r\n");
        let (a, b) = (bytes(more, 1), bytes(more + 1, 2));
        for (keys, want) in [([b"a", b"b"], ":1\r\n"), ([b"b", b"c"], ":0\r\n")] {
            c.send(encode(&[
                b"MSETNX", keys[0], &a, b"s", b"short", keys[1], &b,
            ]));
            assert_eq!(c.reply(), want.as_bytes());
        }
        // Named twice, the last one counts.
        c.send(encode(&[b"MSETNX", b"d", &a, b"e", b"x", b"d", &b]));
        assert_eq!(c.reply(), b":1\r\n");
        for (key, want) in [("a", &a), ("b", &b), ("d", &b)] {
            c.send(encode(&[b"GET", key.as_bytes()]));
            assert!(c.reply() == bulk(want), "{key}");
        }
        assert_eq!(c.ask(&["DEL", "k", "a", "b", "c", "d", "e", "s"]), ":6\r\n");
    }
    drop(c);
    server.stop();
}

#[test]
fn long_arguments_at_once() {
    long_arguments(plain());
}

#[test]
fn long_arguments_with_waits() {
    long_arguments(Settings {
        wait_per_mille: 300,
        sync: true,
        ..plain()
    });
}

/// Everything may be deleted while a command reads a value piece by piece: it begins again with what there is then.
#[test]
fn a_change_outlives_the_deletion_of_everything() {
    let server = Running::start(
        Settings {
            wait_per_mille: 300,
            ..plain()
        },
        2,
    );
    let (mut c, mut other) = (server.client(), server.client());
    let value = bytes(2 << 20, 9);
    let whole = format!(":{}\r\n", value.len() + 4);
    let mut deleted_first = 0;
    for round in 0..30 {
        c.send(encode(&[b"SET", b"k", &value]));
        assert_eq!(c.reply(), b"+OK\r\n");
        c.send(encode(&[b"APPEND", b"k", b"tail"]));
        std::thread::sleep(Duration::from_micros(300 * (round % 10)));
        assert_eq!(other.ask(&["FLUSHALL"]), "+OK\r\n");
        let reply = String::from_utf8(c.reply()).unwrap();
        assert!([":4\r\n", &whole].contains(&&*reply), "{round}: {reply}");
        deleted_first += u32::from(reply == ":4\r\n");
    }
    assert!(deleted_first > 0, "it never came in between");
    drop((c, other));
    server.stop();
}

/// A count or search is of one value, whatever becomes of its key meanwhile.
#[test]
fn what_is_counted_is_looked_at_once() {
    let server = Running::start(
        Settings {
            wait_per_mille: 500,
            ..plain()
        },
        2,
    );
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (stopped, mut other) = (stop.clone(), server.client());
    let changes = std::thread::spawn(move || {
        let long = vec![0xff; 150_000];
        while !stopped.load(Ordering::SeqCst) {
            for value in [&long[..10], &long] {
                other.send(encode(&[b"SET", b"k", value]));
                other.send(encode(&[b"DEL", b"gone"]));
                other.send(encode(&[b"SET", b"gone", b"\xff"]));
                (0..3).for_each(|_| _ = other.reply());
            }
        }
    });
    let mut c = server.client();
    c.ask(&["SET", "k", "\u{7f}"]);
    while c.ask(&["GET", "k"]).contains('\u{7f}') {}
    for _ in 0..400 {
        assert_eq!(c.ask(&["BITCOUNT", "k", "0", "0"]), ":8\r\n");
        let at = c.ask(&["BITPOS", "gone", "0"]);
        assert!([":0\r\n", ":8\r\n"].contains(&&*at), "{at}");
    }
    stop.store(true, Ordering::SeqCst);
    changes.join().unwrap();
    drop(c);
    server.stop();
}

/// What a bulk reply holds.
fn held(reply: &[u8]) -> &[u8] {
    let start = reply.iter().position(|b| *b == b'\n').expect("a header") + 1;
    &reply[start..reply.len() - 2]
}

/// Puts a foot that fits behind so many bytes of a dump.
fn with_foot(dump: &mut Vec<u8>, at: usize) {
    dump.truncate(at);
    let foot = dump::foot_of(dump::sum(0, dump));
    dump.extend_from_slice(&foot);
}

#[test]
fn long_values_are_dumped_and_restored() {
    let server = Running::start(
        Settings {
            wait_per_mille: 200,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    // The payload of the first is above 64 KiB, and the value is not.
    for len in [65_530, 65_537, 122_880, 122_871, 122_875, 300_000] {
        let value = bytes(len, 9);
        c.send(encode(&[b"SET", b"k", &value]));
        assert_eq!(c.reply(), b"+OK\r\n");
        c.send(encode(&[b"DUMP", b"k"]));
        let reply = c.reply();
        let dump = held(&reply);
        assert!(dump == dump::dump(&value), "{len}");
        c.send(encode(&[b"RESTORE", b"k", b"0", dump]));
        assert_eq!(c.reply(), b"-BUSYKEY Target key name already exists.\r\n");
        c.send(encode(&[b"RESTORE", b"r", b"-1", dump]));
        assert_eq!(c.reply(), b"-ERR Invalid TTL value, must be >= 0\r\n");
        let mut bad = dump.to_vec();
        bad[len / 2] ^= 1;
        c.send(encode(&[b"RESTORE", b"r", b"0", &bad]));
        let wrong = b"-ERR DUMP payload version or checksum are wrong\r\n";
        assert_eq!(c.reply(), wrong);
        // No checksum, and no string.
        let end = bad.len() - 8;
        bad[end..].fill(0);
        c.send(encode(&[b"RESTORE", b"r", b"0", &bad]));
        assert_eq!(c.reply(), wrong);
        bad[0] = 2;
        with_foot(&mut bad, end - 2);
        c.send(encode(&[b"RESTORE", b"r", b"0", &bad]));
        assert_eq!(c.reply(), b"-ERR Bad data format\r\n");
        c.send(encode(&[b"RESTORE", b"r", b"100000", dump]));
        assert_eq!(c.reply(), b"+OK\r\n");
        c.send(encode(&[b"GET", b"r"]));
        assert!(c.reply() == bulk(&value), "{len}");
        assert_ne!(c.ask(&["TTL", "r"]), ":-1\r\n");
        c.send(encode(&[
            b"RESTORE", b"r", b"1", dump, b"ABSTTL", b"REPLACE",
        ]));
        assert_eq!(c.reply(), b"+OK\r\n");
        assert_eq!(c.ask(&["EXISTS", "r"]), ":0\r\n");
    }
    // Packed: a literal of 32 bytes, then references of 264 bytes each, 32 back: short packed, long unpacked, and both long.
    for runs in [250, 300, 25_000] {
        let mut packed = vec![31];
        packed.extend(1..=32);
        let len = 32 + runs * 264;
        (0..runs).for_each(|_| packed.extend_from_slice(&[7 << 5, 255, 31]));
        let mut dump = vec![0, 0xc3, 0x80];
        dump.extend_from_slice(&(packed.len() as u32).to_be_bytes());
        dump.push(0x80);
        dump.extend_from_slice(&(len as u32).to_be_bytes());
        let at = dump.len();
        dump.extend_from_slice(&packed);
        let end = dump.len();
        with_foot(&mut dump, end);
        c.send(encode(&[b"RESTORE", b"p", b"0", &dump, b"REPLACE"]));
        assert_eq!(c.reply(), b"+OK\r\n", "{runs}");
        let want: Vec<u8> = (0..len).map(|i| (i % 32) as u8 + 1).collect();
        c.send(encode(&[b"GET", b"p"]));
        assert!(c.reply() == bulk(&want), "{runs}");
        // One reference too few, and one before the start.
        let mut short = dump.clone();
        let packed = (packed.len() - 3) as u32;
        short[3..7].copy_from_slice(&packed.to_be_bytes());
        with_foot(&mut short, end - 3);
        dump[at + 33] |= 31;
        with_foot(&mut dump, end);
        for bad in [&short, &dump] {
            c.send(encode(&[b"RESTORE", b"p", b"0", bad, b"REPLACE"]));
            assert_eq!(c.reply(), b"-ERR Bad data format\r\n", "{runs}");
        }
        c.send(encode(&[b"GET", b"p"]));
        assert!(c.reply() == bulk(&want), "{runs}");
    }
    drop(c);
    server.stop();
}

/// A dump whose time has passed leaves nothing, and takes away nothing that somebody has set meanwhile.
#[test]
fn a_dump_of_the_past_deletes_nothing_of_others() {
    let server = Running::start(
        Settings {
            wait_per_mille: 300,
            ..plain()
        },
        2,
    );
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (stopped, mut other) = (stop.clone(), server.client());
    let restores = std::thread::spawn(move || {
        let dump = dump::dump(&bytes(200_000, 9));
        let taken = "-BUSYKEY Target key name already exists.\r\n";
        let mut replies = [0, 0];
        while !stopped.load(Ordering::SeqCst) {
            other.send(encode(&[b"RESTORE", b"k", b"1", &dump, b"ABSTTL"]));
            let reply = String::from_utf8(other.reply()).unwrap();
            let at = ["+OK\r\n", taken].iter().position(|r| *r == reply);
            replies[at.unwrap_or_else(|| panic!("{reply}"))] += 1;
        }
        replies
    });
    let mut c = server.client();
    for round in 0..400 {
        c.ask(&["DEL", "k"]);
        std::thread::sleep(Duration::from_micros(100 * (round % 20)));
        assert_eq!(c.ask(&["SET", "k", "v"]), "+OK\r\n");
        for _ in 0..round % 10 {
            assert_eq!(c.ask(&["GET", "k"]), "$1\r\nv\r\n", "{round}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    let replies = restores.join().unwrap();
    assert!(replies.iter().all(|n| *n > 0), "{replies:?}");
    drop(c);
    server.stop();
}

#[test]
fn long_values_have_something_in_common() {
    let server = Running::start(
        Settings {
            wait_per_mille: 200,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    let mut value = vec![b'.'; 200_000];
    value[3] = b'x';
    value[100_000] = b'y';
    value[199_999] = b'z';
    c.send(encode(&[b"SET", b"long", &value]));
    assert_eq!(c.reply(), b"+OK\r\n");
    c.ask(&["SET", "short", "1x2y3z"]);
    assert_eq!(c.ask(&["LCS", "long", "short"]), "$3\r\nxyz\r\n");
    assert_eq!(c.ask(&["LCS", "short", "long", "LEN"]), ":3\r\n");
    let idx = c.ask(&["LCS", "long", "short", "IDX", "MINMATCHLEN", "1"]);
    assert!(idx.contains(":199999\r\n:199999"), "{idx}");
    assert_eq!(c.ask(&["LCS", "long", "none", "LEN"]), ":0\r\n");
    let refused = c.ask(&["LCS", "long", "long"]);
    assert!(refused.starts_with("-ERR Insufficient memory"), "{refused}");
    drop(c);
    server.stop();
}

#[test]
fn every_append_of_many_connections_is_in_the_value() {
    let server = Running::start(
        Settings {
            wait_per_mille: 50,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    c.send(encode(&[b"SET", b"k", &bytes(100_000, 1)]));
    assert_eq!(c.reply(), b"+OK\r\n");
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let mut c = server.client();
            std::thread::spawn(move || {
                let part = [b'a' + n; 10];
                let mut done = 0;
                for _ in 0..25 {
                    c.send(encode(&[b"APPEND", b"k", &part]));
                    let reply = String::from_utf8(c.reply()).unwrap();
                    // Others may have been first every time.
                    match reply.starts_with(':') {
                        true => done += 1,
                        false => assert!(reply.contains("changed by others"), "{reply}"),
                    }
                }
                done
            })
        })
        .collect();
    let done: usize = clients.into_iter().map(|c| c.join().unwrap()).sum();
    assert!(done > 25, "{done}");
    assert_eq!(
        c.ask(&["STRLEN", "k"]),
        format!(":{}\r\n", 100_000 + done * 10)
    );
    drop(c);
    server.stop();
}

#[test]
fn what_has_no_room_is_refused_and_leaves_nothing() {
    let budget_bytes = 3 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    let value = bytes(8 << 20, 9);
    c.send(encode(&[b"SET", b"k", &value]));
    assert_eq!(c.reply(), b"+OK\r\n");
    // The value is longer than the budget; what changes of it is not.
    assert_eq!(
        c.ask(&["APPEND", "k", "tail"]),
        format!(":{}\r\n", value.len() + 4)
    );
    let refused = c.ask(&[
        "BITFIELD", "k", "SET", "u8", "0", "1", "SET", "u8", "60000000", "1",
    ]);
    assert!(
        refused.starts_with("-OOM the change of a value above"),
        "{refused}"
    );
    let refused = c.ask(&["SETRANGE", "k", "68000000", "x"]);
    assert!(
        refused.starts_with("-ERR value would be 68000001 bytes long"),
        "{refused}"
    );
    let refused = c.ask(&["SETRANGE", "k", "600000000", "x"]);
    assert_eq!(
        refused,
        "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
    );
    assert_eq!(c.ask(&["STRLEN", "k"]), format!(":{}\r\n", value.len() + 4));
    let peak = server.factory.granted_peak.load(Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    drop(c);
    server.stop();
}

#[test]
fn replies_of_a_transaction_may_be_long_together() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    let value = "v".repeat(50_000);
    c.ask(&["SET", "k", &value]);
    c.ask(&["MULTI"]);
    c.ask(&["MGET", "k", "k", "none", "k", "k"]);
    c.ask(&["MGET", "k", "k"]);
    let replies = c.ask(&["EXEC"]);
    let one = format!("$50000\r\n{value}\r\n");
    let want = format!("*2\r\n*5\r\n{one}{one}$-1\r\n{one}{one}*2\r\n{one}{one}");
    assert!(replies == want, "{} bytes", replies.len());
    c.ask(&["MULTI"]);
    let many = vec!["k"; 90];
    c.ask(&[&["MGET"], &many[..]].concat());
    let refused = c.ask(&["EXEC"]);
    assert!(
        refused.starts_with("-ERR the replies of the transaction are longer"),
        "{refused}"
    );
    drop(c);
    server.stop();
}

#[test]
fn a_connection_that_dies_midway_leaves_the_old_value() {
    let server = Running::start(
        Settings {
            wait_per_mille: 900,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    c.send(encode(&[b"SET", b"k", &bytes(2 << 20, 9)]));
    assert_eq!(c.reply(), b"+OK\r\n");
    for wait_ms in [0, 1, 3, 10] {
        let mut gone = server.client();
        gone.send(encode(&[b"BITOP", b"NOT", b"to", b"k"]));
        std::thread::sleep(Duration::from_millis(wait_ms));
        drop(gone);
    }
    let len = c.ask(&["STRLEN", "to"]);
    assert!([":0\r\n", ":2097152\r\n"].contains(&&*len), "{len}");
    drop(c);
    server.stop();
}
