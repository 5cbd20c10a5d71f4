//! memcached's protocol over real sockets and the double: replies by the book, cut anywhere, with waits.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::double::Settings;
use super::{Running, plain, port};
use crate::ServerOptions;

pub(super) fn start(settings: Settings) -> Running {
    Running::start_with(
        settings,
        ServerOptions {
            memcached: Some(([127, 0, 0, 1], 0).into()),
            threads: 2,
            ..Default::default()
        },
    )
}

pub(super) fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.memcached.expect("served")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// Sends, then `mn` as a mark, and answers all that came before its reply.
pub(super) fn ask(stream: &mut TcpStream, text: &[u8]) -> String {
    stream.write_all(text).unwrap();
    stream.write_all(b"mn\r\n").unwrap();
    let mut got = Vec::new();
    let mut buf = [0; 65_536];
    while !got.ends_with(b"MN\r\n") {
        let n = stream.read(&mut buf).expect("a reply in time");
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&buf[..n]);
    }
    got.truncate(got.len() - 4);
    String::from_utf8(got).unwrap()
}

const CASES: &[(&str, &str)] = &[
    ("get none\r\n", "END\r\n"),
    ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
    ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
    (
        "get none a none a\r\n",
        "VALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\n",
    ),
    ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
    ("add b 0 0 1\r\nx\r\n", "STORED\r\n"),
    ("replace none 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
    ("append a 0 0 2\r\nde\r\n", "STORED\r\n"),
    ("prepend a 9 9 1\r\n_\r\n", "STORED\r\n"),
    ("get a\r\n", "VALUE a 5 6\r\n_abcde\r\nEND\r\n"),
    ("append none 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
    ("set e 0 0 0\r\n\r\n", "STORED\r\n"),
    ("get e\r\n", "VALUE e 0 0\r\n\r\nEND\r\n"),
    ("set n 0 0 2 noreply\r\n10\r\n", ""),
    ("incr n 5\r\n", "15\r\n"),
    ("decr n 20\r\n", "0\r\n"),
    (
        "incr n 18446744073709551615\r\n",
        "18446744073709551615\r\n",
    ),
    ("incr n 2\r\n", "1\r\n"),
    (
        "incr n x\r\n",
        "CLIENT_ERROR invalid numeric delta argument\r\n",
    ),
    (
        "incr a 1\r\n",
        "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    ),
    ("incr none 1\r\n", "NOT_FOUND\r\n"),
    ("incr n 1 noreply\r\n", ""),
    ("touch a 100\r\n", "TOUCHED\r\n"),
    ("touch none 100\r\n", "NOT_FOUND\r\n"),
    ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    ("gat 0 a none\r\n", "VALUE a 5 6\r\n_abcde\r\nEND\r\n"),
    ("touch b -1\r\n", "TOUCHED\r\n"),
    ("get b\r\n", "END\r\n"),
    ("cas none 0 0 1 5\r\nx\r\n", "NOT_FOUND\r\n"),
    ("cas a 0 0 1 5\r\nx\r\n", "EXISTS\r\n"),
    (
        "cas a 0 0 1 x\r\nx\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    ("delete e\r\n", "DELETED\r\n"),
    ("delete e\r\n", "NOT_FOUND\r\n"),
    ("delete e 0 noreply\r\n", ""),
    (
        "delete e 5\r\n",
        "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
    ),
    (
        "set a 0 0 3\r\nabcd\r\n",
        "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
    ),
    (
        "set a x 0 3\r\nabc\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    // A length that cannot be read: no data block, and nothing is stored.
    ("set u 0 0 -1 noreply\r\n", ""),
    ("append a 0 0 x noreply\r\n", ""),
    (
        "set u 0 0 -1\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    (
        "set u 0 0 abc xyz\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    (
        "cas u 0 0 -1 5\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    ("cas u 0 0 -1\r\n", "ERROR\r\n"),
    ("set u 0 0 -1 a b\r\n", "ERROR\r\n"),
    // More words than it takes: its block goes along.
    ("set u 0 0 3 a b\r\nabc\r\n", "ERROR\r\n"),
    ("cas u 0 0 3 5 a b noreply\r\nabc\r\n", ""),
    (
        "ms u S2 T0\r\nhi\r\n",
        "CLIENT_ERROR bad command line format\r\nERROR\r\n",
    ),
    ("get u a\r\n", "VALUE a 5 6\r\n_abcde\r\nEND\r\n"),
    // What is refused is not told with noreply either; the second line here is empty.
    ("set a 0 0 3 noreply\r\nabcde\r\n", "ERROR\r\n"),
    ("get\r\n", "ERROR\r\n"),
    ("foo\r\n", "ERROR\r\n"),
    ("\r\n", "ERROR\r\n"),
    ("version\r\n", "VERSION 1.6.18\r\n"),
    ("verbosity 1\r\n", "OK\r\n"),
    ("verbosity\r\n", "ERROR\r\n"),
    ("verbosity noreply\r\n", ""),
    ("verbosity 0 noreply\r\n", ""),
    (
        "verbosity foo\r\n",
        "CLIENT_ERROR bad command line format\r\n",
    ),
    ("verbosity foo bar my\r\n", "ERROR\r\n"),
    ("verbosity 1 2\r\n", "OK\r\n"),
    ("stats sizes\r\n", "STAT sizes_status disabled\r\nEND\r\n"),
    ("flush_all 1000\r\n", "OK\r\n"),
    (
        "flush_all x\r\n",
        "CLIENT_ERROR invalid exptime argument\r\n",
    ),
    // The meta commands.
    ("mg none\r\n", "EN\r\n"),
    ("mg none v q\r\n", ""),
    ("ms m 3 F7 c T0\r\nabc\r\n", "HD c"),
    ("mg m\r\n", "HD\r\n"),
    ("mg m s f k Oxy v\r\n", "VA 3 s3 f7 km Oxy\r\nabc\r\n"),
    ("mg m t\r\n", "HD t-1\r\n"),
    ("mg m T100 t\r\n", "HD t100\r\n"),
    ("mg bQ== b k v\r\n", "VA 3 km\r\nabc\r\n"),
    ("ms AQI= 1 b k\r\nx\r\n", "HD kAQI= b\r\n"),
    ("mg AQI= b k v\r\n", "VA 1 kAQI= b\r\nx\r\n"),
    ("mg ?? b\r\n", "CLIENT_ERROR error decoding key\r\n"),
    ("mg m l\r\n", "CLIENT_ERROR invalid flag\r\n"),
    ("mg m s s\r\n", "CLIENT_ERROR duplicate flag\r\n"),
    ("ms m 1 ME\r\nx\r\n", "NS\r\n"),
    ("ms none 1 MR\r\nx\r\n", "NS\r\n"),
    ("ms m 2 MA\r\nde\r\n", "HD\r\n"),
    ("ms m 1 MP q\r\n_\r\n", ""),
    ("mg m v f\r\n", "VA 6 f7\r\n_abcde\r\n"),
    ("ms fresh 2 MA N100 k\r\nzz\r\n", "HD kfresh\r\n"),
    ("mg fresh v t\r\n", "VA 2 t100\r\nzz\r\n"),
    ("ms m 1 C5\r\nx\r\n", "EX\r\n"),
    ("ms none 1 C5\r\nx\r\n", "NF\r\n"),
    (
        "ms m 1 MX\r\nx\r\n",
        "CLIENT_ERROR invalid mode for ms M token\r\n",
    ),
    ("ms m x\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ("ma c\r\n", "NF\r\n"),
    ("ma c N0 J13 v\r\n", "VA 2\r\n13\r\n"),
    ("ma c N0 J13 v t\r\n", "VA 2 t-1\r\n14\r\n"),
    ("ma c MD D20 v\r\n", "VA 1\r\n0\r\n"),
    ("ma c D5 q\r\n", ""),
    (
        "ma m\r\n",
        "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    ),
    (
        "ma c MX\r\n",
        "CLIENT_ERROR invalid mode for ma M token\r\n",
    ),
    ("md none\r\n", "NF\r\n"),
    ("md none q\r\n", "NF\r\n"),
    ("ma none q\r\n", "NF\r\n"),
    ("md none k Oz q\r\n", "NF knone Oz\r\n"),
    ("md c C1\r\n", "EX\r\n"),
    ("md c k Oz\r\n", "HD kc Oz\r\n"),
    // Stale items, and who renews them.
    ("md m I T30\r\n", "HD\r\n"),
    ("mg m v\r\n", "VA 6 X W\r\n_abcde\r\n"),
    ("mg m v\r\n", "VA 6 Z X\r\n_abcde\r\n"),
    ("ms m 1\r\nn\r\n", "HD\r\n"),
    ("mg m v\r\n", "VA 1\r\nn\r\n"),
    ("mg viv N30 v\r\n", "VA 0 W\r\n\r\n"),
    ("mg viv N30 v\r\n", "VA 0 Z\r\n\r\n"),
    ("mg m T10 t\r\n", "HD t10\r\n"),
    ("mg m R30\r\n", "HD W\r\n"),
    ("mg m R30\r\n", "HD Z\r\n"),
    ("md m x\r\n", "HD\r\n"),
    ("mg m v f\r\n", "VA 0 f0 Z\r\n\r\n"),
    ("me none\r\n", "EN\r\n"),
    ("flush_all\r\n", "OK\r\n"),
    ("get a\r\n", "END\r\n"),
];

fn by_the_book(settings: Settings) {
    let server = start(settings);
    let mut c = connect(&server);
    for (sent, want) in CASES {
        let got = ask(&mut c, sent.as_bytes());
        match want.strip_suffix('c').filter(|w| w.ends_with("HD ")) {
            Some(_) => assert!(got.starts_with("HD c") && got.len() > 6, "{sent}: {got}"),
            None => assert_eq!(got, *want, "{sent}"),
        }
    }
    drop(c);
    server.stop();
}

#[test]
fn replies_are_by_the_book() {
    by_the_book(plain());
}

#[test]
fn replies_are_by_the_book_with_waits() {
    by_the_book(Settings {
        wait_per_mille: 300,
        ..plain()
    });
}

#[test]
fn replies_are_by_the_book_in_sync_mode() {
    by_the_book(Settings {
        sync: true,
        ..plain()
    });
}

/// Replies that differ from memcached's on purpose (docs/memcached.md).
const DIFFERS: &[&str] = &[
    "mg m l\r\n",
    // memcached runs the data block of a refused line as the next command.
    "cas a 0 0 1 x\r\nx\r\n",
    "set a x 0 3\r\nabc\r\n",
    "set u 0 0 3 a b\r\nabc\r\n",
    "cas u 0 0 3 5 a b noreply\r\nabc\r\n",
    // Of later versions than 1.6.18.
    "ms fresh 2 MA N100 k\r\nzz\r\n",
    "mg fresh v t\r\n",
    "md m x\r\n",
    "mg m v f\r\n",
];

/// Sends to memcached and answers what it replies.
pub(super) type Ask<'a> = dyn FnMut(&[u8]) -> String + 'a;

/// Starts memcached, where it is installed, and hands it to `f`.
pub(super) fn as_memcached(f: impl FnOnce(&mut Ask<'_>)) {
    let port = port::free_addr().port();
    let port_text = port.to_string();
    let args = [
        "-l",
        "127.0.0.1",
        "-U",
        "0",
        "-u",
        "nobody",
        "-p",
        &port_text,
    ];
    let quiet = std::process::Stdio::null;
    let child = std::process::Command::new("memcached")
        .args(args)
        .stderr(quiet())
        .spawn();
    let Ok(child) = child else {
        println!("skipped: memcached could not be started (apt-get install memcached)");
        return;
    };
    let _ends = Ends(child);
    let theirs = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    let mut theirs = theirs.expect("memcached starts");
    theirs
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    f(&mut |sent| ask(&mut theirs, sent));
}

struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn replies_are_those_of_memcached() {
    as_memcached(|ask| {
        let mut differences = Vec::new();
        for (sent, want) in CASES.iter().filter(|(sent, _)| !DIFFERS.contains(sent)) {
            let got = ask(sent.as_bytes());
            let same = match want.strip_suffix('c').filter(|w| w.ends_with("HD ")) {
                Some(_) => got.starts_with("HD c"),
                None => got == *want,
            };
            if !same {
                differences.push(format!("{sent:?}\n  ours   {want:?}\n  theirs {got:?}"));
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

#[test]
fn a_delayed_flush_comes_and_a_new_one_takes_its_place() {
    let server = start(Settings {
        wait_per_mille: 300,
        ..plain()
    });
    let mut c = connect(&server);
    assert_eq!(ask(&mut c, b"set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!(ask(&mut c, b"flush_all 1000\r\n"), "OK\r\n");
    assert_eq!(ask(&mut c, b"flush_all 1\r\n"), "OK\r\n");
    assert_eq!(ask(&mut c, b"get a\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while ask(&mut c, b"get a\r\n") != "END\r\n" {
        assert!(std::time::Instant::now() < until, "it was not flushed");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Once is enough.
    assert_eq!(ask(&mut c, b"set a 0 0 1\r\n2\r\n"), "STORED\r\n");
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(ask(&mut c, b"get a\r\n"), "VALUE a 0 1\r\n2\r\nEND\r\n");
    drop(c);
    server.stop();
}

#[test]
fn stats_tell_what_was_done() {
    let server = start(plain());
    let mut c = connect(&server);
    assert_eq!(ask(&mut c, b"set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    ask(&mut c, b"get a\r\n");
    ask(&mut c, b"mg a v\r\n");
    // Each question ends with mn, to know where its answer does.
    let stats = ask(&mut c, b"stats\r\n");
    for want in [
        "cmd_get 2",
        "cmd_set 1",
        "cmd_meta 4",
        "get_hits 2",
        "curr_items 1",
    ] {
        assert!(
            stats.contains(&format!("STAT {want}\r\n")),
            "{want}: {stats}"
        );
    }
    assert!(ask(&mut c, b"stats items\r\n").starts_with("STAT items:1:number 1\r\n"));
    assert!(ask(&mut c, b"stats conns\r\n").contains(":addr tcp:127.0.0.1:"));
    let settings = ask(&mut c, b"stats settings\r\n");
    assert!(
        settings.contains("STAT auth_enabled_ascii no\r\n"),
        "{settings}"
    );
    assert!(ask(&mut c, b"stats slabs\r\n").contains("active_slabs 0"));
    drop(c);
    server.stop();
}

#[test]
fn both_protocols_see_the_same_keys() {
    let server = start(plain());
    let (mut m, mut r) = (connect(&server), server.client());
    assert_eq!(ask(&mut m, b"set k 42 0 2\r\n10\r\n"), "STORED\r\n");
    assert_eq!(r.ask(&["GET", "k"]), "$2\r\n10\r\n");
    assert_eq!(r.ask(&["INCR", "k"]), ":11\r\n");
    assert_eq!(ask(&mut m, b"get k\r\n"), "VALUE k 42 2\r\n11\r\nEND\r\n");
    assert_eq!(r.ask(&["APPEND", "k", "x"]), ":3\r\n");
    assert_eq!(ask(&mut m, b"get k\r\n"), "VALUE k 42 3\r\n11x\r\nEND\r\n");
    assert_eq!(r.ask(&["SET", "k", "new"]), "+OK\r\n");
    assert_eq!(ask(&mut m, b"get k\r\n"), "VALUE k 0 3\r\nnew\r\nEND\r\n");
    assert_eq!(ask(&mut m, b"touch k 100\r\n"), "TOUCHED\r\n");
    assert_eq!(r.ask(&["TTL", "k"]), ":100\r\n");
    drop(m);
    server.stop();
}

/// A token holds as long as nobody changes the value, and not once somebody did, whoever that was.
#[test]
fn a_token_ends_with_the_value() {
    let server = start(plain());
    let (mut m, mut r) = (connect(&server), server.client());
    let token = |m: &mut TcpStream| {
        let got = ask(m, b"gets k\r\n");
        let line = got.lines().next().unwrap().to_string();
        line.rsplit(' ').next().unwrap().to_string()
    };
    let cas =
        |m: &mut TcpStream, token: &str| ask(m, format!("cas k 0 0 1 {token}\r\nv\r\n").as_bytes());
    assert_eq!(ask(&mut m, b"set k 0 0 1\r\na\r\n"), "STORED\r\n");
    let first = token(&mut m);
    assert_eq!(token(&mut m), first);
    assert_eq!(cas(&mut m, &first), "STORED\r\n");
    // The same bytes again, and yet another value.
    assert_eq!(cas(&mut m, &first), "EXISTS\r\n");
    let second = token(&mut m);
    assert_eq!(ask(&mut m, b"set k 0 0 1\r\nv\r\n"), "STORED\r\n");
    assert_eq!(cas(&mut m, &second), "EXISTS\r\n");
    let third = token(&mut m);
    r.ask(&["SET", "k", "other"]);
    assert_eq!(cas(&mut m, &third), "EXISTS\r\n");
    let of_redis = token(&mut m);
    assert_eq!(cas(&mut m, &of_redis), "STORED\r\n");
    drop(m);
    server.stop();
}

#[test]
fn long_values_and_cuts_anywhere() {
    let server = start(Settings {
        wait_per_mille: 100,
        ..plain()
    });
    let mut c = connect(&server);
    for len in [
        16_000usize,
        16_384,
        65_535,
        65_536,
        65_537,
        200_000,
        3_000_000,
    ] {
        let value: String = (0..len).map(|i| (b'a' + (i % 23) as u8) as char).collect();
        let mut sent = format!("set k{len} 7 0 {len}\r\n{value}\r\n").into_bytes();
        sent.extend_from_slice(format!("get k{len} none\r\n").as_bytes());
        let cut = len / 3;
        c.write_all(&sent[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let got = ask(&mut c, &sent[cut..]);
        let want = format!("STORED\r\nVALUE k{len} 7 {len}\r\n{value}\r\nEND\r\n");
        assert!(got == want, "{len}: {}", &got[..got.len().min(200)]);
        let got = ask(&mut c, format!("mg k{len} s v\r\n").as_bytes());
        assert!(got == format!("VA {len} s{len}\r\n{value}\r\n"), "{len}");
    }
    // Too long, and a block that does not end with its line.
    let mut sent = b"set big 0 0 67108865\r\n".to_vec();
    sent.resize(sent.len() + 67_108_865, b'x');
    sent.extend_from_slice(b"\r\n");
    assert_eq!(
        ask(&mut c, &sent),
        "SERVER_ERROR object too large for cache\r\n"
    );
    let mut sent = b"set big 0 0 100000\r\n".to_vec();
    sent.resize(sent.len() + 100_000, b'x');
    sent.extend_from_slice(b"yy");
    assert_eq!(ask(&mut c, &sent), "CLIENT_ERROR bad data chunk\r\n");
    assert_eq!(ask(&mut c, b"get big\r\n"), "END\r\n");
    drop(c);
    server.stop();
}

#[test]
fn many_commands_in_flight_keep_their_order() {
    let server = start(Settings {
        wait_per_mille: 200,
        ..plain()
    });
    let mut c = connect(&server);
    let (mut sent, mut want) = (Vec::new(), String::new());
    for i in 0..500 {
        let value = "v".repeat(i % 90);
        sent.extend(
            format!(
                "set k{i} {i} 0 {}\r\n{value}\r\nget k{i} k{}\r\n",
                value.len(),
                i + 1
            )
            .into_bytes(),
        );
        want += &format!(
            "STORED\r\nVALUE k{i} {i} {}\r\n{value}\r\nEND\r\n",
            value.len()
        );
    }
    let mut writer = c.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    sender.join().unwrap();
    assert_eq!(ask(&mut c, b""), want);
    let mut quits = connect(&server);
    quits.write_all(b"quit\r\n").unwrap();
    assert_eq!(quits.read(&mut [0; 10]).unwrap(), 0);
    drop((c, quits));
    // The same words are Redis's on the other port.
    assert!(server.client().ask(&["get", "none"]).starts_with("$-1"));
    server.stop();
}

#[test]
fn garbage_harms_nobody() {
    let server = start(plain());
    let mut noise = 0x1234_5678_u64;
    for round in 0..60 {
        let mut bytes = Vec::new();
        for _ in 0..2_000 {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            bytes.extend_from_slice(match noise % 12 {
                0 => b"\r\n",
                1 => b" ",
                2 => b"set ",
                3 => b"mg ",
                4 => b"ms ",
                5 => b"cas k 0 0 ",
                6 => b"5",
                7 => b"gat 1 k\r\n",
                8 => b"ma k N0 ",
                9 => b"noreply",
                _ => &[],
            });
            bytes.push(noise as u8);
        }
        let mut c = connect(&server);
        let _ = c.write_all(&bytes);
        let _ = c.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        c.read_to_end(&mut said)
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    let mut c = connect(&server);
    assert_eq!(ask(&mut c, b"version\r\n"), "VERSION 1.6.18\r\n");
    drop(c);
    server.stop();
}
