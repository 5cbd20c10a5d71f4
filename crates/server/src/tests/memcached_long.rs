//! memcached's commands that change values above 64 KiB, or bring as much: append, prepend, and the modes of ms.

use super::double::Settings;
use super::memcached::{ask, connect, start};
use super::plain;

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
        assert_eq!(ask(&mut c, sent.as_bytes()), "NF\r\n");
        let sent = format!("ms none {} MP N100 F3\r\n{late}\r\n", late.len());
        assert_eq!(ask(&mut c, sent.as_bytes()), "HD\r\n");
        assert!(ask(&mut c, b"get none\r\n") == shown("none", 3, &late));
        assert_eq!(ask(&mut c, b"mg none t\r\n"), "HD t100\r\n");
        assert_eq!(ask(&mut c, b"delete none\r\n"), "DELETED\r\n");
    }
    drop(c);
    server.stop();
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
