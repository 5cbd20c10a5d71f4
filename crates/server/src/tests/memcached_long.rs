//! memcached's commands that change values above 64 KiB, or bring as much: append, prepend, and the modes of ms.

use std::io::Write;
use std::time::{Duration, Instant};

use super::double::Settings;
use super::memcached::{ask, connect, start};
use super::{Running, Talk, plain};

fn text(len: usize, seed: usize) -> String {
    (0..len)
        .map(|i| char::from(b'a' + ((i * i + seed * 7 + i / 97) % 26) as u8))
        .collect()
}

fn shown(key: &str, flags: u32, value: &str) -> String {
    format!("VALUE {key} {flags} {}\r\n{value}\r\nEND\r\n", value.len())
}

fn extends(settings: Settings) {
    let server = start(settings);
    let mut c = connect(&server);
    for (len, more) in [
        (10, 70_000),
        (65_530, 10),
        (65_536, 65_536),
        (122_880, 61_440),
        (300_000, 5),
    ] {
        let mut value = text(len, 1);
        let (before, behind) = (text(more, 2), text(more + 1, 3));
        let sent = format!("set k 7 0 {len}\r\n{value}\r\n");
        assert_eq!(ask(&mut c, sent.as_bytes()), "STORED\r\n");
        let sent = format!("prepend k 0 0 {more}\r\n{before}\r\n");
        assert_eq!(ask(&mut c, sent.as_bytes()), "STORED\r\n", "{len} {more}");
        let sent = format!("append k 0 0 {}\r\n{behind}\r\n", more + 1);
        assert_eq!(ask(&mut c, sent.as_bytes()), "STORED\r\n");
        value = before.clone() + &value + &behind;
        assert!(
            ask(&mut c, b"get k\r\n") == shown("k", 7, &value),
            "{len} {more}"
        );
        let sent = format!("ms k {more} MP s\r\n{before}\r\n");
        value = before.clone() + &value;
        assert_eq!(
            ask(&mut c, sent.as_bytes()),
            format!("HD s{}\r\n", value.len())
        );
        let sent = format!("append k 0 0 {more} noreply\r\n{before}\r\n");
        value += &before;
        assert_eq!(ask(&mut c, sent.as_bytes()), "");
        assert!(
            ask(&mut c, b"get k\r\n") == shown("k", 7, &value),
            "{len} {more}"
        );

        // A token that is not, or no longer, the item's; one that is.
        let sent = format!("ms k {more} MA C1\r\n{before}\r\n");
        assert_eq!(ask(&mut c, sent.as_bytes()), "EX\r\n");
        let token = ask(&mut c, b"mg k c\r\n");
        let token = token
            .trim()
            .strip_prefix("HD c")
            .expect("a token")
            .to_string();
        let sent = format!("ms k {more} MA C{token} E99 c\r\n{before}\r\n");
        assert_eq!(ask(&mut c, sent.as_bytes()), "HD c99\r\n");
        value += &before;
        assert!(ask(&mut c, b"mg k c v\r\n") == format!("VA {} c99\r\n{value}\r\n", value.len()));
        // Who is late leaves a stale value, also a long one.
        let late = text(len + 66_000, 4);
        let sent = format!("ms k {} I C5\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "HD\r\n");
        let got = ask(&mut c, b"mg k v\r\n");
        assert!(
            got == format!("VA {} X W\r\n{late}\r\n", late.len()),
            "{}",
            &got[..got.len().min(60)]
        );

        let sent = format!("append none 0 0 {}\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "NOT_STORED\r\n");
        let sent = format!("ms none {} MA\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "NS\r\n");
        let sent = format!("ms none {} MA C5\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "NS\r\n");
        let sent = format!("ms none {} MP N100 F3\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "HD\r\n");
        assert!(ask(&mut c, b"get none\r\n") == shown("none", 3, &late));
        assert_eq!(ask(&mut c, b"mg none t\r\n"), "HD t100\r\n");
        assert_eq!(ask(&mut c, b"delete none\r\n"), "DELETED\r\n");
    }
    drop(c);
    server.stop();
}

/// What somebody who is late leaves keeps its time, and who was told to renew it; what is extended is renewed.
fn renews(settings: Settings) {
    let server = start(settings);
    let mut c = connect(&server);
    let (value, late) = (text(100_000, 1), text(80_000, 2));
    let sent = format!("ms k {} E1000 F5 T1000\r\n{value}\r\n", value.len());
    assert_eq!(ask(&mut c, sent.as_bytes()), "HD\r\n");
    assert_eq!(ask(&mut c, b"md k I E1001\r\n"), "HD\r\n");
    assert_eq!(ask(&mut c, b"mg k\r\n"), "HD X W\r\n");
    let sent = format!("ms k {} I C1000 E1002 F9\r\n{late}\r\n", late.len());
    assert_eq!(ask(&mut c, sent.as_bytes()), "HD\r\n");
    let got = ask(&mut c, b"mg k f s t\r\n");
    let want = format!("HD f9 s{} t", late.len());
    assert!(got.starts_with(&want) && got.ends_with(" Z X\r\n"), "{got}");
    assert!(!got.contains(" t-1 "), "{got}");
    let sent = format!("ms k {} I MA C1000\r\n{late}\r\n", late.len());
    assert_eq!(ask(&mut c, sent.as_bytes()), "EX\r\n");
    for name in ["append", "prepend"] {
        assert_eq!(ask(&mut c, b"md k I\r\n"), "HD\r\n");
        let sent = format!("{name} k 0 0 {}\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "STORED\r\n");
        assert_eq!(ask(&mut c, b"mg k f\r\n"), "HD f9\r\n", "{name}");
    }
    drop(c);
    server.stop();
}

#[test]
fn long_items_are_renewed() {
    renews(plain());
}

#[test]
fn long_items_are_renewed_with_waits() {
    renews(Settings {
        wait_per_mille: 200,
        ..plain()
    });
}

#[test]
fn long_items_are_extended() {
    extends(plain());
}

#[test]
fn long_items_are_extended_with_waits() {
    extends(Settings {
        wait_per_mille: 200,
        sync: true,
        ..plain()
    });
}

#[test]
fn an_item_does_not_grow_beyond_the_longest() {
    let server = start(plain());
    let mut c = connect(&server);
    let half = text(40 << 20, 5);
    let sent = format!("set k 0 0 {}\r\n{half}\r\n", half.len());
    assert_eq!(ask(&mut c, sent.as_bytes()), "STORED\r\n");
    for name in ["append", "prepend"] {
        let sent = format!("{name} k 0 0 {}\r\n{half}\r\n", half.len());
        let large = "SERVER_ERROR object too large for cache\r\n";
        assert_eq!(ask(&mut c, sent.as_bytes()), large);
    }
    assert_eq!(
        ask(&mut c, b"mg k s\r\n"),
        format!("HD s{}\r\n", half.len())
    );
    drop(c);
    server.stop();
}

/// With noreply only errors of the server's are told, as of short commands.
#[test]
fn refused_commands_with_noreply_say_nothing() {
    let server = start(plain());
    let mut c = connect(&server);
    let key = "k".repeat(251);
    let block = "x".repeat(100_000);
    for (sent, want) in [
        (format!("set {key} 0 0 3 noreply\r\nabc\r\n"), ""),
        (
            format!("set {key} 0 0 3\r\nabc\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (format!("set k 0 0 100000 noreply\r\n{block}yy"), ""),
        (
            format!("set k 0 0 100000\r\n{block}yy"),
            "CLIENT_ERROR bad data chunk\r\n",
        ),
        ("get k\r\n".to_string(), "END\r\n"),
    ] {
        assert_eq!(
            ask(&mut c, sent.as_bytes()),
            want,
            "{}",
            &sent[..30.min(sent.len())]
        );
    }
    let mut sent = b"set big 0 0 67108865 noreply\r\n".to_vec();
    sent.resize(sent.len() + 67_108_865, b'x');
    sent.extend_from_slice(b"\r\n");
    assert_eq!(
        ask(&mut c, &sent),
        "SERVER_ERROR object too large for cache\r\n"
    );
    drop(c);
    server.stop();
}

/// What connections hold, once it does not change any more.
fn held(server: &Running) -> usize {
    let mut asks = server.client();
    let mut now = || {
        let info = asks.ask(&["INFO", "clients"]);
        let line = info.lines().find_map(|l| l.strip_prefix("buffer_bytes:"));
        line.unwrap().parse::<usize>().unwrap()
    };
    let until = Instant::now() + Duration::from_secs(10);
    let mut before = usize::MAX;
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let held = now();
        if held == before || Instant::now() > until {
            return held;
        }
        before = held;
    }
}

/// A line is kept while its block comes in: it may not be long.
#[test]
fn a_line_before_a_block_is_short() {
    let server = start(plain());
    let words = " x".repeat(10_000);
    let zeros = "0".repeat(3_000);
    let flags = " s".repeat(2_000);
    let bad = "CLIENT_ERROR bad command line format\r\n";
    for (line, want) in [
        (format!("set k 0 0 20000{words}"), "ERROR\r\n"),
        (format!("cas k 0 0 20000 5{words}"), "ERROR\r\n"),
        (format!("set k {zeros} 0 20000"), bad),
        (format!("ms k 20000{flags}"), bad),
        (format!("ms k 20000 {words} noreply"), bad),
    ] {
        let mut c = connect(&server);
        c.write_all(format!("{line}\r\nabc").as_bytes()).unwrap();
        assert_eq!(held(&server), 0, "{}", &line[..20]);
        let block = "x".repeat(20_000 - 3);
        let got = ask(&mut c, format!("{block}\r\nget k\r\n").as_bytes());
        assert_eq!(got, format!("{want}END\r\n"), "{}", &line[..20]);
    }
    server.stop();
}

#[test]
fn what_is_kept_of_a_line_is_counted() {
    let server = start(plain());
    let mut c = connect(&server);
    const FLAGS: usize = 800;
    let line = format!("ms k 20000{}\r\n", " s".repeat(FLAGS));
    c.write_all(line.as_bytes()).unwrap();
    // Its words, the block, and where each of them ends, once and grown by as much and some.
    let words = FLAGS + 3;
    let least = "msk20000".len() + FLAGS + 20_000 + 2 * 4 * words;
    let held = held(&server);
    assert!((least..least + 200).contains(&held), "{held} {least}");
    drop(c);
    server.stop();
}

/// However it was cut into reads.
#[test]
fn a_line_that_is_too_long_is_refused() {
    let server = start(plain());
    let long = format!("get{}\r\n", " k".repeat(33_000));
    let want = "CLIENT_ERROR line is longer than 65536 bytes; name fewer keys\r\n";
    for cut in [long.len(), 30_000, 65_536, 65_537, long.len() - 1] {
        let mut c = Talk::new(server.memcached.unwrap());
        c.send(&long[..cut]);
        std::thread::sleep(Duration::from_millis(20));
        let _ = c.stream.write_all(&long.as_bytes()[cut..]);
        c.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(c.rest(), want, "{cut}");
    }
    // As long as is allowed.
    let line = format!("get{}", " k".repeat(32_766));
    assert_eq!(
        ask(&mut connect(&server), format!("{line}\r\n").as_bytes()),
        "END\r\n"
    );
    server.stop();
}

/// A client that reads nothing before it has sent all gets to read what was wrong, and not that it was reset.
#[test]
fn who_sends_on_after_a_line_that_is_too_long_can_read_why() {
    let server = start(plain());
    let mut c = Talk::new(server.memcached.unwrap());
    c.send("version\r\nget ");
    (0..64).for_each(|_| c.send(vec![b'x'; 1 << 20]));
    let want =
        "VERSION 1.6.18\r\nCLIENT_ERROR line is longer than 65536 bytes; name fewer keys\r\n";
    assert_eq!(c.rest(), want);
    server.stop();
}
