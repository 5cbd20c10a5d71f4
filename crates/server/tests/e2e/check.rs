//! Damage on the medium: one flipped bit in a value or in the superblock, found by `terrace pool check` and met by a
//! GET with a precise error, while everything else is unharmed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::resp::{Client, Reply};
use crate::support::{Server, TempDir, flip_bit, run, said, value_of};

const ARGS: &[&str] = &["--dram", "64M", "--ssd", "256M", "--threads", "2"];
const KEYS: u64 = 5_000;
const VALUE_BYTES: usize = 2_000;
const VICTIM: u64 = 1_234;
/// Looked for in this much of the file at once.
const WINDOW_BYTES: usize = 8 << 20;
const BLOCK_BYTES: u64 = 4_096;

fn name(key: u64) -> String {
    format!("check:{key}")
}

/// A pool with keys in it, stopped cleanly.
fn filled(dir: &TempDir) {
    let server = Server::start(&dir.pool(), ARGS);
    let mut client = server.client();
    for from in (0..KEYS).step_by(50) {
        let pairs: Vec<_> = (from..from + 50)
            .map(|k| (name(k), value_of(k, VALUE_BYTES)))
            .collect();
        let sets: Vec<Vec<&[u8]>> = pairs
            .iter()
            .map(|(k, v)| vec![b"SET".as_slice(), k.as_bytes(), v])
            .collect();
        assert!(client.pipeline(&sets).iter().all(Reply::is_ok));
    }
    server.shutdown();
}

/// Every place in the file where these bytes lie.
fn places(data: &Path, bytes: &[u8]) -> Vec<u64> {
    let file = OpenOptions::new().read(true).open(data).expect("the data");
    let len = file.metadata().expect("its length").len();
    let mut window = vec![0; WINDOW_BYTES + bytes.len()];
    let mut found = Vec::new();
    for base in (0..len).step_by(WINDOW_BYTES) {
        let n = window.len().min((len - base) as usize);
        file.read_exact_at(&mut window[..n], base)
            .expect("the data can be read");
        let starts = n.min(WINDOW_BYTES + bytes.len() - 1);
        for (at, part) in window[..starts].windows(bytes.len()).enumerate() {
            if part[0] == bytes[0] && part == bytes {
                found.push(base + at as u64);
            }
        }
    }
    found
}

fn check(dir: &TempDir) -> (Option<i32>, String) {
    let output = run(&[
        "pool",
        "check",
        dir.pool().to_str().expect("a printable path"),
    ]);
    (output.status.code(), said(&output))
}

fn others_right(client: &mut Client, but: u64) {
    for key in (0..KEYS).filter(|&k| k != but) {
        let reply = client.call(&[b"GET", name(key).as_bytes()]);
        assert!(
            reply == Reply::Bulk(value_of(key, VALUE_BYTES)),
            "{}: {}",
            name(key),
            reply.shown()
        );
    }
}

/// What the pool has on the media, to be damaged.
fn data_of(dir: &TempDir) -> (PathBuf, File) {
    let data = dir.pool().join("data");
    let file = OpenOptions::new().read(true).write(true).open(&data);
    (data, file.expect("the data"))
}

#[test]
fn e2e_one_flipped_bit_in_a_value_is_found_and_harms_nothing_else() {
    let dir = TempDir::new("flip-value");
    filled(&dir);
    let (code, text) = check(&dir);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("all is well"), "{text}");
    let (data, file) = data_of(&dir);
    let value = value_of(VICTIM, VALUE_BYTES);
    let found = places(&data, &value);
    assert!(!found.is_empty(), "the value is nowhere in the file");
    // The log's copy and, after a clean stop, the warm image's.
    for &at in &found {
        flip_bit(&file, at + VALUE_BYTES as u64 / 2, 3);
    }
    let (code, text) = check(&dir);
    println!("{} copies; check said:\n{text}", found.len());
    assert_eq!(code, Some(1), "{text}");
    let named =
        |l: &&str| l.contains("DAMAGED") && l.contains("segment ") && l.contains(&name(VICTIM));
    assert!(
        text.lines().any(|l| named(&l)),
        "no line names the segment and {}: {text}",
        name(VICTIM)
    );
    let server = Server::start(&dir.pool(), ARGS);
    let mut client = server.client();
    let reply = client.call(&[b"GET", name(VICTIM).as_bytes()]);
    let error = reply
        .error()
        .unwrap_or_else(|| panic!("a damaged value was answered with {}", reply.shown()));
    println!("GET said: {error}");
    assert!(
        error.contains("cannot be read back") && error.contains("segment"),
        "{error}"
    );
    others_right(&mut client, VICTIM);
    let again = client.call(&[b"SET", name(VICTIM).as_bytes(), b"new"]);
    assert!(
        again.is_ok(),
        "a damaged key can be written again: {again:?}"
    );
    assert_eq!(
        client.call(&[b"GET", name(VICTIM).as_bytes()]),
        Reply::Bulk(b"new".to_vec())
    );
    server.shutdown();
    let server = Server::start(&dir.pool(), ARGS);
    let mut client = server.client();
    assert_eq!(
        client.call(&[b"GET", name(VICTIM).as_bytes()]),
        Reply::Bulk(b"new".to_vec())
    );
    others_right(&mut client, VICTIM);
    server.shutdown();
}

#[test]
fn e2e_one_damaged_superblock_is_repaired_and_two_are_refused() {
    let dir = TempDir::new("flip-superblock");
    filled(&dir);
    let (_, file) = data_of(&dir);
    for copy in 0..2 {
        flip_bit(&file, copy * BLOCK_BYTES + 20, 5);
        let (code, text) = check(&dir);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("one copy of the superblock"), "{text}");
        let server = Server::start(&dir.pool(), ARGS);
        others_right(&mut server.client(), u64::MAX);
        server.shutdown();
        let (code, text) = check(&dir);
        assert_eq!(code, Some(0), "a start repairs the other copy: {text}");
    }
    flip_bit(&file, 20, 5);
    flip_bit(&file, BLOCK_BYTES + 20, 5);
    let (code, text) = check(&dir);
    assert_eq!(code, Some(1), "{text}");
    let pool = dir.pool();
    let served = run(&[
        "serve",
        "--pool",
        pool.to_str().expect("printable"),
        "--dram",
        "64M",
        "--resp",
        "127.0.0.1:0",
    ]);
    let said_by_serve = said(&served);
    assert_eq!(served.status.code(), Some(1), "{said_by_serve}");
    for text in [text, said_by_serve] {
        assert!(
            text.contains("both copies of its superblock are damaged"),
            "{text}"
        );
    }
    // Nothing was made anew over it: mended, everything is there.
    flip_bit(&file, 20, 5);
    let server = Server::start(&dir.pool(), ARGS);
    others_right(&mut server.client(), u64::MAX);
    server.shutdown();
}

/// Ten values damaged at once: never a wrong value, never a dead server.
#[test]
fn e2e_bits_flipped_all_over_never_bring_a_wrong_value() {
    let dir = TempDir::new("flip-many");
    filled(&dir);
    let (data, file) = data_of(&dir);
    let mut hurt = 0;
    for key in (0..KEYS).step_by(500) {
        for at in places(&data, &value_of(key, VALUE_BYTES)) {
            flip_bit(&file, at + key % VALUE_BYTES as u64, (key % 8) as u8);
            hurt += 1;
        }
    }
    assert!(hurt >= 10, "{hurt}");
    let server = Server::start(&dir.pool(), ARGS);
    let mut client = server.client();
    let mut errors = 0;
    for key in 0..KEYS {
        let reply = client.call(&[b"GET", name(key).as_bytes()]);
        match reply.error() {
            Some(text) => {
                assert!(
                    text.contains("cannot be read back") && key % 500 == 0,
                    "{}: {text}",
                    name(key)
                );
                errors += 1;
            }
            None => assert!(
                reply == Reply::Bulk(value_of(key, VALUE_BYTES)),
                "{}: {}",
                name(key),
                reply.shown()
            ),
        }
    }
    assert_eq!(errors, 10, "each damaged key has its error");
    server.shutdown();
}
