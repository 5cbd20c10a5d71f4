//! A full SSD: writes are refused with an error that names it, reads and deletes go on, room comes back after deletes,
//! and nothing that was acknowledged is lost, not by a restart either, whether it is clean or a crash.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::resp::{Client, Reply};
use crate::support::{Rng, Server, TempDir, busy, run, said, value_of};

const BATCH: usize = 32;
const SSD_BYTES: u64 = 96 << 20;
/// Deletes must show this soon, and so must each step to room for more.
const ROOM_AFTER: Duration = Duration::from_secs(10);
/// In async mode, longer than the flush interval.
const SETTLE: Duration = Duration::from_millis(1_000);

/// What is stored: the length of the value of each key.
type Model = BTreeMap<u64, usize>;

fn name(key: u64) -> Vec<u8> {
    format!("full:{key}").into_bytes()
}

/// Writes new keys until one is refused; the refusal.
fn write_until_refused(
    client: &mut Client,
    model: &mut Model,
    next: &mut u64,
    rng: &mut Rng,
) -> String {
    let begun = Instant::now();
    loop {
        let keys: Vec<(u64, usize)> = (0..BATCH as u64)
            .map(|i| (*next + i, rng.length(100, 16_000)))
            .collect();
        *next += BATCH as u64;
        let pairs: Vec<_> = keys
            .iter()
            .map(|&(k, len)| (name(k), value_of(k, len)))
            .collect();
        let sets: Vec<Vec<&[u8]>> = pairs
            .iter()
            .map(|(k, v)| vec![b"SET".as_slice(), k, v])
            .collect();
        let mut refusal = None;
        for (reply, &(key, len)) in client.pipeline(&sets).iter().zip(&keys) {
            match reply.error() {
                None => {
                    assert!(reply.is_ok(), "{}", reply.shown());
                    model.insert(key, len);
                }
                Some(text) => refusal = Some(text.to_string()),
            }
        }
        if let Some(text) = refusal {
            return text;
        }
        let bytes: usize = model.values().sum();
        assert!(
            (bytes as u64) < SSD_BYTES,
            "{bytes} bytes were taken and nothing was refused"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "neither full nor refused: {bytes} bytes"
        );
    }
}

/// Every key of the model is right, and there are no others.
fn all_there(client: &mut Client, model: &Model, when: &str) {
    for (&key, &len) in model {
        let reply = client.call(&[b"GET", &name(key)]);
        assert!(
            reply == Reply::Bulk(value_of(key, len)),
            "{when}: full:{key} of {len} bytes: {}",
            reply.shown()
        );
    }
    assert_eq!(
        client.words("DBSIZE"),
        Reply::Int(model.len() as i64),
        "{when}"
    );
}

/// Deletes every second key; all deletions must be taken although the SSD is full.
fn delete_half(client: &mut Client, model: &mut Model) {
    let gone: Vec<u64> = model.keys().copied().step_by(2).collect();
    for batch in gone.chunks(BATCH) {
        let names: Vec<Vec<u8>> = batch.iter().map(|&k| name(k)).collect();
        let dels: Vec<Vec<&[u8]>> = names.iter().map(|n| vec![b"DEL".as_slice(), n]).collect();
        for (reply, key) in client.pipeline(&dels).iter().zip(batch) {
            assert_eq!(*reply, Reply::Int(1), "DEL full:{key}");
            model.remove(key);
        }
    }
}

/// Writes again a sixth of what the SSD holds; refusals are tried again until nothing was stored for `ROOM_AFTER`.
fn write_again(client: &mut Client, model: &mut Model, next: &mut u64) -> Duration {
    let begun = Instant::now();
    let mut stored = begun;
    let mut first = None;
    let mut bytes = 0;
    const LEN: usize = 4_000;
    let mut left: Vec<u64> = Vec::new();
    while bytes < SSD_BYTES / 6 || !left.is_empty() {
        while left.len() < BATCH {
            left.push(*next);
            *next += 1;
        }
        let pairs: Vec<_> = left.iter().map(|&k| (name(k), value_of(k, LEN))).collect();
        let sets: Vec<Vec<&[u8]>> = pairs
            .iter()
            .map(|(k, v)| vec![b"SET".as_slice(), k, v])
            .collect();
        let replies = client.pipeline(&sets);
        let (done, refused): (Vec<_>, Vec<_>) =
            left.iter().zip(&replies).partition(|(_, r)| r.is_ok());
        let refusal = refused.first().map(|(_, reply)| reply.shown());
        let again: Vec<u64> = refused.into_iter().map(|(key, _)| *key).collect();
        for (&key, _) in done {
            first.get_or_insert(begun.elapsed());
            stored = Instant::now();
            model.insert(key, LEN);
            bytes += LEN as u64;
        }
        if let Some(refusal) = refusal {
            let waited = stored.elapsed();
            assert!(
                waited < ROOM_AFTER,
                "no room for {waited:?} after deletes, {bytes} bytes written: {refusal}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        left = if bytes < SSD_BYTES / 6 {
            again
        } else {
            Vec::new()
        };
    }
    first.unwrap_or_default()
}

fn full(durability: &str) {
    let _busy = busy();
    let dir = TempDir::new(&format!("full-{durability}"));
    let pool = dir.pool();
    let args = [
        "--dram",
        "64M",
        "--ssd",
        "96M",
        "--threads",
        "2",
        "--durability",
        durability,
    ];
    let (mut model, mut next, mut rng) = (Model::new(), 0, Rng::new(3, 3));
    let mut server = Server::start(&pool, &args);
    for round in 0..3 {
        let mut client = server.client();
        let text = write_until_refused(&mut client, &mut model, &mut next, &mut rng);
        assert!(
            text.starts_with("OOM ") && text.contains("the SSD is full"),
            "{text}"
        );
        let bytes: usize = model.values().sum();
        println!(
            "full-{durability}, round {round}: {} keys, {bytes} bytes, then: {text}",
            model.len()
        );
        assert!(
            bytes as u64 > SSD_BYTES * 2 / 5,
            "refused at {bytes} bytes of {SSD_BYTES}"
        );
        all_there(&mut client, &model, "while full");
        if round == 1 {
            // A restart while full.
            server.shutdown();
            server = Server::start(&pool, &args);
            client = server.client();
            all_there(&mut client, &model, "after a restart while full");
        }
        delete_half(&mut client, &mut model);
        let first = write_again(&mut client, &mut model, &mut next);
        println!("full-{durability}, round {round}: first write again after {first:?}");
        all_there(&mut client, &model, "after deletes and new writes");
        match (durability, round) {
            (_, 0) => server.shutdown(),
            (_, 1) => server.terminate(),
            (_, _) => {
                std::thread::sleep(SETTLE + SETTLE);
                server.kill();
            }
        }
        server = Server::start(&pool, &args);
        all_there(&mut server.client(), &model, "after a restart");
    }
    assert_eq!(
        server.client().call(&[b"SET", b"last", b"one"]),
        Reply::Simple("OK".into())
    );
    server.shutdown();
    let checked = run(&["pool", "check", pool.to_str().expect("a printable path")]);
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn e2e_a_full_ssd_refuses_writes_and_loses_nothing_in_sync() {
    full("sync");
}

#[test]
fn e2e_a_full_ssd_refuses_writes_and_loses_nothing_in_async() {
    full("async");
}

/// Long values replaced all the time: what is replaced goes in the background, and a write that comes before waits for that
/// instead of being told that the SSD is full.
#[test]
fn e2e_long_values_are_replaced_for_ever_on_a_small_ssd() {
    const WRITERS: u64 = 4;
    const KEYS: u64 = 8;
    const LEN: usize = 700_000;
    const WRITES: u64 = 80;
    let _busy = busy();
    let dir = TempDir::new("full-replaced");
    let pool = dir.pool();
    let server = Server::start(&pool, &["--dram", "64M", "--ssd", "96M"]);
    std::thread::scope(|s| {
        for writer in 0..WRITERS {
            let mut client = server.client();
            s.spawn(move || {
                for i in 0..WRITES {
                    let key = writer * KEYS + i % KEYS;
                    let reply = client.call(&[b"SET", &name(key), &value_of(key + i, LEN)]);
                    assert!(reply.is_ok(), "write {i}: {}", reply.shown());
                }
            });
        }
    });
    let mut client = server.client();
    for key in 0..WRITERS * KEYS {
        let last = (0..WRITES)
            .rev()
            .find(|i| i % KEYS == key % KEYS)
            .expect("each was written");
        let reply = client.call(&[b"GET", &name(key)]);
        assert!(
            reply == Reply::Bulk(value_of(key + last, LEN)),
            "full:{key}"
        );
    }
    // More than it holds is refused, and soon.
    let begun = Instant::now();
    let refused = (0..200).find_map(|n| {
        let reply = client.call(&[b"SET", &name(1_000 + n), &value_of(n, LEN)]);
        reply.error().map(str::to_string)
    });
    let text = refused.expect("200 values of 700 kB do not fit 96 MiB");
    assert!(text.contains("the SSD is full"), "{text}");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    at_rest(&mut client);
    server.shutdown();
}

/// A server that nobody uses does not write for ever, as full as its SSD may be.
fn at_rest(client: &mut Client) {
    const QUIET: Duration = Duration::from_secs(1);
    let written = |client: &mut Client| {
        let Reply::Bulk(info) = client.call(&[b"INFO", b"tiers"]) else {
            panic!("INFO is a text");
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let line = info
            .lines()
            .find_map(|l| l.strip_prefix("device_write_bytes:"));
        line.expect("a counter")
            .trim()
            .parse::<u64>()
            .expect("a number")
    };
    let begun = Instant::now();
    let mut before = written(client);
    loop {
        std::thread::sleep(QUIET);
        let after = written(client);
        if after == before {
            return;
        }
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_secs(20),
            "{} bytes in {QUIET:?} for nobody",
            after - before
        );
        before = after;
    }
}

/// Lengths that leave much or little at the end of a segment, written until it is full: it comes to rest and can be stopped.
#[test]
fn e2e_a_full_ssd_comes_to_rest_whatever_the_length_of_values() {
    let _busy = busy();
    for len in [50_000, 65_536, 300_000] {
        let dir = TempDir::new("full-rest");
        let server = Server::start(&dir.pool(), &["--dram", "64M", "--ssd", "96M"]);
        let mut client = server.client();
        let refused = (0..SSD_BYTES / len as u64).find(|&n| {
            let reply = client.call(&[b"SET", &name(n), &value_of(n, len)]);
            reply.error().is_some()
        });
        let kept = refused.expect("96 MiB hold less than 96 MiB of values");
        assert!(
            kept * len as u64 > SSD_BYTES / 2,
            "refused after {kept} of {len} bytes"
        );
        at_rest(&mut client);
        server.shutdown();
    }
}

/// One client whose small writes are durable one by one fills a block with each; what fills the blocks up is no data.
#[test]
fn e2e_blocks_of_small_durable_writes_do_not_fill_the_ssd() {
    let _busy = busy();
    let dir = TempDir::new("full-blocks");
    let server = Server::start(&dir.pool(), &["--dram", "64M", "--ssd", "96M"]);
    let mut client = server.client();
    for n in 0..SSD_BYTES / 4096 + 1_000 {
        let reply = client.call(&[b"SET", &name(n), &value_of(n, 100)]);
        assert!(reply.is_ok(), "write {n}: {}", reply.shown());
    }
    at_rest(&mut client);
    server.shutdown();
}
