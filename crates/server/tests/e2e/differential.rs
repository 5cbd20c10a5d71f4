//! Random sequences of commands to Debian's redis-server and to Terrace on a pool: replies must be the same byte for
//! byte. The cap is small, so that what is changed lies on the SSD as often as in DRAM. Seeded: a failure prints its
//! seed (TERRACE_SEED repeats it). What differs on purpose (docs/redis.md) is not generated.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::resp::{Client, Reply};
use crate::support::{Rng, Server, TempDir, free_addr, seed};

/// How long each of the two runs goes on.
const RUN: Duration = Duration::from_secs(6);
/// Commands sent before their replies are read.
const PIPELINE: usize = 50;

struct Redis {
    child: Child,
    port: u16,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn redis() -> Redis {
    let port = free_addr().port();
    let args = [
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--port",
    ];
    let child = Command::new("redis-server")
        .args(args)
        .arg(port.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server (apt-get install redis-server)");
    let redis = Redis { child, port };
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "redis-server does not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    redis
}

/// What commands are made of: `K` a key, `V` a value, `N` a small integer, `I` any integer, `F` a float, `B` 0 or 1, `O` a
/// bit offset, `T` a type of integer, `E` a time far away, `P` a range's unit; anything else stands for itself.
const SHAPES: &[&str] = &[
    "SET K V",
    "SET K V",
    "SET K V",
    "SET K I",
    "SET K V NX",
    "SET K V XX GET",
    "SET K V GET KEEPTTL",
    "SET K V EXAT E",
    "SET K V PXAT E000",
    "SET K V EXAT E EXAT E",
    "GET K",
    "GET K",
    "GET K",
    "GETSET K V",
    "GETDEL K",
    "GETEX K",
    "GETEX K PERSIST",
    "GETEX K EXAT E",
    "GETEX K PXAT E000 PXAT E000",
    "SETNX K V",
    "MSET K V K V",
    "MSETNX K V K V",
    "MGET K K K",
    "APPEND K V",
    "APPEND K V",
    "STRLEN K",
    "GETRANGE K N N",
    "SETRANGE K O V",
    "SUBSTR K N N",
    "INCR K",
    "DECR K",
    "INCRBY K I",
    "DECRBY K I",
    "INCRBYFLOAT K F",
    "LCS K K",
    "LCS K K LEN",
    "LCS K K IDX WITHMATCHLEN",
    "LCS K K IDX MINMATCHLEN N",
    "SETBIT K O B",
    "GETBIT K O",
    "BITCOUNT K",
    "BITCOUNT K N N P",
    "BITPOS K B",
    "BITPOS K B N",
    "BITPOS K B N N P",
    "BITOP AND K K K",
    "BITOP OR K K K K",
    "BITOP XOR K K K",
    "BITOP NOT K K",
    "BITFIELD K SET T O I GET T O INCRBY T O N",
    "BITFIELD K OVERFLOW SAT INCRBY T O I",
    "BITFIELD K OVERFLOW FAIL SET T O I",
    "BITFIELD_RO K GET T O",
    "DEL K K",
    "UNLINK K",
    "EXISTS K K K",
    "TOUCH K K",
    "TYPE K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K",
    "COPY K K REPLACE",
    "EXPIREAT K E",
    "EXPIREAT K E NX",
    "EXPIREAT K E XX",
    "EXPIREAT K E GT",
    "EXPIREAT K E LT",
    "EXPIREAT K E XX LT",
    "PEXPIREAT K E000 XX LT",
    "PEXPIREAT K 1",
    "EXPIRETIME K",
    "PEXPIRETIME K",
    "PERSIST K",
    "DBSIZE",
    "KEYS none*",
    "EXPIRE K -1",
];

fn word(rng: &mut Rng, shape: &str) -> Vec<u8> {
    let text = match shape {
        "K" => format!("key:{}", rng.within(0..40)),
        "V" => return value(rng),
        "N" => format!("{}", rng.within(0..60) as i64 - 30),
        "I" => match rng.within(0..4) {
            0 => format!("{}", rng.next() as i64),
            1 => format!("{}", i64::MAX - rng.within(0..3) as i64),
            _ => format!("{}", rng.within(0..2000) as i64 - 1000),
        },
        "F" => match rng.within(0..3) {
            0 => format!("{}", rng.within(0..2000) as i64 - 1000),
            1 => format!("{}.{}", rng.within(0..100), rng.within(0..1_000_000)),
            _ => format!("-{}e{}", rng.within(1..1000), rng.within(0..20) as i64 - 12),
        },
        "B" => rng.within(0..2).to_string(),
        "O" => rng.length(1, 3000).to_string(),
        "T" => format!(
            "{}{}",
            ["u", "i"][rng.within(0..2) as usize],
            rng.within(1..64)
        ),
        "E" => format!("{}", 4_000_000_000 + rng.within(0..1000)),
        "E000" => format!("{}000", 4_000_000_000 + rng.within(0..1000)),
        "P" => ["BIT", "BYTE"][rng.within(0..2) as usize].to_string(),
        other => other.to_string(),
    };
    text.into_bytes()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.within(0..5) {
        0 => rng.within(0..100_000).to_string().into_bytes(),
        // Few letters, so that strings have something in common.
        1 => (0..rng.length(1, 60))
            .map(|_| b"abc"[rng.within(0..3) as usize])
            .collect(),
        2 => b"".to_vec(),
        3 => b"3.25".to_vec(),
        _ => {
            let mut value = vec![0; rng.length(1, 2_000)];
            rng.fill(&mut value);
            value
        }
    }
}

fn command(rng: &mut Rng, shapes: &[&str]) -> Vec<Vec<u8>> {
    let shape = shapes[rng.within(0..shapes.len() as u64) as usize];
    shape.split(' ').map(|part| word(rng, part)).collect()
}

/// Some commands in one, sometimes with a key that is watched, and sometimes changed in between.
fn transaction(rng: &mut Rng, commands: &mut Vec<Vec<Vec<u8>>>) {
    let watches = rng.one_in(2);
    if watches {
        commands.push(command(rng, &["WATCH K", "WATCH K K K"]));
        for _ in 0..rng.within(0..3) {
            // Redis lets a string grow for what then fails, and does not tell those who watch it.
            let next = command(rng, SHAPES);
            if !next.iter().any(|w| w == b"FAIL") {
                commands.push(next);
            }
        }
    }
    commands.push(command(rng, &["MULTI"]));
    for _ in 0..rng.within(0..8) {
        // KEYS is refused within a transaction.
        let next = command(rng, SHAPES);
        if next[0] != b"KEYS" {
            commands.push(next);
        }
    }
    commands.push(command(rng, &["EXEC", "EXEC", "EXEC", "EXEC", "DISCARD"]));
}

fn run(durability: &str) {
    let seed = seed();
    println!("differential, {durability}: seed {seed}");
    let dir = TempDir::new(&format!("differential-{durability}"));
    let redis = redis();
    let args = [
        "--dram",
        "48M",
        "--ssd",
        "256M",
        "--threads",
        "2",
        "--durability",
        durability,
    ];
    let server = Server::start(&dir.pool(), &args);
    let mut ours = server.client();
    let mut theirs = Client::connect(([127, 0, 0, 1], redis.port).into());
    let mut rng = Rng::new(seed, 6);
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < RUN {
        let mut commands: Vec<Vec<Vec<u8>>> = Vec::new();
        while commands.len() < PIPELINE {
            match rng.within(0..12) {
                0 => transaction(&mut rng, &mut commands),
                _ => commands.push(command(&mut rng, SHAPES)),
            }
        }
        let words: Vec<Vec<&[u8]>> = commands
            .iter()
            .map(|command| command.iter().map(Vec::as_slice).collect())
            .collect();
        let (a, b) = (ours.pipeline(&words), theirs.pipeline(&words));
        for ((command, a), b) in commands.iter().zip(a).zip(b) {
            let shown: Vec<_> = command.iter().map(|w| String::from_utf8_lossy(w)).collect();
            assert_eq!(a, b, "seed {seed}, after {count}: {}", shown.join(" "));
            count += 1;
        }
    }
    println!("differential, {durability}: {count} replies alike");
    assert!(count > 1_000, "only {count} commands");
    server.shutdown();
}

#[test]
fn e2e_replies_are_those_of_redis_async() {
    run("async");
}

#[test]
fn e2e_replies_are_those_of_redis_sync() {
    run("sync");
}

/// Values of 60 to 300 KiB changed and read in all ways: where they lie, and that they lie in pieces, is not to be seen.
fn long_command(rng: &mut Rng) -> Vec<Vec<u8>> {
    let key = |rng: &mut Rng| format!("long-{}", rng.within(0..4)).into_bytes();
    let at = |rng: &mut Rng, most: u64| rng.within(0..most).to_string().into_bytes();
    let part = |rng: &mut Rng, most: u64| {
        let (len, salt) = (rng.within(1..most), rng.within(0..251));
        (0..len)
            .map(|i| (i * 131 % 253 + salt) as u8)
            .collect::<Vec<u8>>()
    };
    let (a, b) = (key(rng), key(rng));
    let mut words: Vec<Vec<u8>> = match rng.within(0..20) {
        0 => {
            let len = rng.within(60 << 10..300 << 10);
            let salt = rng.within(0..251);
            let value = (0..len).map(|i| (i * i % 249 + salt) as u8).collect();
            vec![b"SET".to_vec(), a, value]
        }
        1 => vec![b"APPEND".to_vec(), a, part(rng, 20_000)],
        2 => vec![b"APPEND".to_vec(), a, part(rng, 200_000)],
        3 => vec![b"SETRANGE".to_vec(), a, at(rng, 300_000), part(rng, 60_000)],
        4 => vec![
            b"SETRANGE".to_vec(),
            a,
            at(rng, 300_000),
            part(rng, 200_000),
        ],
        16 => vec![
            b"MSETNX".to_vec(),
            a,
            part(rng, 200_000),
            b,
            part(rng, 200_000),
        ],
        17 | 18 => {
            let text = [
                "LCS some KEY LEN",
                "LCS KEY some IDX WITHMATCHLEN",
                "LCS KEY some",
            ];
            let words = text[rng.within(0..3) as usize].split(' ');
            let word = |word: &str| match word {
                "KEY" => a.clone(),
                word => word.as_bytes().to_vec(),
            };
            words.map(word).collect()
        }
        19 => vec![b"SET".to_vec(), b"some".to_vec(), part(rng, 12)],
        5 | 6 => vec![b"SETBIT".to_vec(), a, at(rng, 2_400_000), at(rng, 2)],
        7 => vec![
            b"BITFIELD".to_vec(),
            a,
            b"INCRBY".to_vec(),
            b"i13".to_vec(),
            at(rng, 2_400_000),
            at(rng, 4_000),
            b"GET".to_vec(),
            b"u63".to_vec(),
            at(rng, 2_400_000),
        ],
        8 => vec![b"COPY".to_vec(), a, b, b"REPLACE".to_vec()],
        9 => vec![b"COPY".to_vec(), a, b],
        10 | 11 => {
            let op: &[u8] = [&b"AND"[..], b"OR", b"XOR"][rng.within(0..3) as usize];
            vec![b"BITOP".to_vec(), op.to_vec(), key(rng), a, b, key(rng)]
        }
        12 => vec![b"BITOP".to_vec(), b"NOT".to_vec(), a, b],
        13 => vec![b"STRLEN".to_vec(), a],
        14 => vec![b"BITCOUNT".to_vec(), a],
        _ => vec![b"GET".to_vec(), a],
    };
    // Once in a while one goes, so that short ones grow.
    if rng.within(0..60) == 0 {
        words = vec![b"DEL".to_vec(), words[1].clone()];
    }
    words
}

#[test]
fn e2e_changes_of_long_values_are_those_of_redis() {
    let seed = seed();
    println!("differential, long values: seed {seed}");
    let dir = TempDir::new("differential-long");
    let redis = redis();
    let args = ["--dram", "128M", "--ssd", "512M", "--threads", "2"];
    let server = Server::start(&dir.pool(), &args);
    let mut ours = server.client();
    let mut theirs = Client::connect(([127, 0, 0, 1], redis.port).into());
    let mut rng = Rng::new(seed, 7);
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < RUN {
        let mut commands: Vec<_> = (0..5).map(|_| long_command(&mut rng)).collect();
        if rng.one_in(3) {
            // All of them at one moment.
            commands.insert(0, vec![b"MULTI".to_vec()]);
            commands.push(vec![b"EXEC".to_vec()]);
        }
        let words: Vec<Vec<&[u8]>> = commands
            .iter()
            .map(|command| command.iter().map(Vec::as_slice).collect())
            .collect();
        let (a, b) = (ours.pipeline(&words), theirs.pipeline(&words));
        // Values grow, and LCS of the longest may need more than the connections' buffers have (docs/redis.md).
        let has_no_room = |a: &Reply| a.error().is_some_and(|e| e.starts_with("OOM LCS"));
        for ((command, mut a), mut b) in commands.iter().zip(a).zip(b) {
            if command[0] == b"LCS" && has_no_room(&a) {
                continue;
            }
            if let (Reply::Array(a), Reply::Array(b)) = (&mut a, &mut b)
                && command[0] == b"EXEC"
            {
                let pairs = b.iter_mut().zip(a.iter());
                pairs
                    .filter(|(_, a)| has_no_room(a))
                    .for_each(|(b, a)| *b = a.clone());
            }
            let shown: Vec<_> = command
                .iter()
                .map(|w| String::from_utf8_lossy(&w[..w.len().min(20)]))
                .collect();
            assert!(
                a == b,
                "seed {seed}, after {count}: {}: {}, and Redis {}",
                shown.join(" "),
                a.shown(),
                b.shown()
            );
            count += 1;
        }
    }
    println!("differential, long values: {count} replies alike");
    assert!(count > 200, "only {count} commands");
    server.shutdown();
}

/// What one has dumped, short or long, the other restores: Redis packs what it dumps.
#[test]
fn e2e_dumps_are_understood_by_both() {
    let seed = seed();
    println!("dumps: seed {seed}");
    let dir = TempDir::new("differential-dump");
    let redis = redis();
    let server = Server::start(&dir.pool(), &["--dram", "48M", "--ssd", "256M"]);
    let mut ours = server.client();
    let mut theirs = Client::connect(([127, 0, 0, 1], redis.port).into());
    let mut rng = Rng::new(seed, 8);
    for round in 0..60 {
        let len = rng.length(1, 3_000_000);
        // From what packs well to what does not.
        let letters = 1 + rng.within(0..round * 4 + 1);
        let mut value = vec![0; len];
        rng.fill(&mut value);
        value
            .iter_mut()
            .for_each(|b| *b = (u64::from(*b) % letters) as u8);
        for from_us in [true, false] {
            let (from, to) = match from_us {
                true => (&mut ours, &mut theirs),
                false => (&mut theirs, &mut ours),
            };
            let what = format!("seed {seed}, {round}, from us: {from_us}, {len} bytes");
            let replies = from.pipeline(&[
                vec![&b"SET"[..], b"dumped", &value],
                vec![b"DUMP", b"dumped"],
            ]);
            let Reply::Bulk(dump) = &replies[1] else {
                panic!("{what}: {}", replies[1].shown());
            };
            let restore = vec![&b"RESTORE"[..], b"restored", b"0", dump, b"REPLACE"];
            let replies = to.pipeline(&[restore, vec![b"GET", b"restored"]]);
            assert!(replies[0].is_ok(), "{what}: {}", replies[0].shown());
            assert!(replies[1] == Reply::Bulk(value.clone()), "{what}");
        }
    }
    server.shutdown();
}
