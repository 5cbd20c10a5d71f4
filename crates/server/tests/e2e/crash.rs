//! kill -9 under load, with an oracle: clients of both protocols remember what was acknowledged and when, and after each restart every
//! key must hold what the promise of the mode allows, MSETs and transactions are there whole or not at all, and nothing else is there. Each
//! connection writes keys of its own, so that their order is known. The oracle goes on over the rounds; a failure prints its seed.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::oracle::{Oracle, Seen, State};
use crate::support::resp::{Client, Reply, encode, memcached_store};
use crate::support::{self, Rng, Server, TempDir, alone, free_addr, seed, soak_time, value_of};

const CONNECTIONS: usize = 6;
/// Of them, those that speak memcached's protocol: the last ones.
const MEMCACHED: usize = 2;
/// memcached takes longer times for dates.
const FAR_MEMCACHED_S: u64 = 2_500_000;
const KEYS: usize = 500;
/// Of them, numbers.
const NUMBERS: usize = 50;
const FLUSH_INTERVAL_MS: u64 = 200;
/// What a flush itself, and a client that is late to note an acknowledgement, may take on a busy machine. Over 20 rounds
/// the oldest loss was 184 ms old, within the interval itself; each run prints its own figure.
const SLACK_MS: u64 = 150;
const FAR_S: &[u8] = b"100000000";
/// The longest value that grows further: longer ones would fill the SSD.
const GROWS_MAX_BYTES: usize = 250_000;
const BATCH_MAX: u64 = 12;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Sync,
    Async,
}

impl Mode {
    fn args(self) -> Vec<&'static str> {
        let mut args = vec!["--dram", "64M", "--ssd", "512M", "--threads", "2"];
        args.extend(match self {
            Mode::Sync => vec!["--durability", "sync"],
            Mode::Async => vec!["--durability", "async", "--flush-interval", "200"],
        });
        args
    }
    /// All that was acknowledged before this moment is promised.
    fn promised(self, kill: Instant, clean: bool) -> Instant {
        match self {
            Mode::Async if !clean => kill - Duration::from_millis(FLUSH_INTERVAL_MS + SLACK_MS),
            _ => Instant::now(),
        }
    }
}

/// A connection's client: its keys, its oracle, its dice.
struct Writer {
    number: usize,
    oracle: Oracle,
    rng: Rng,
    commands: u64,
    memcached: bool,
}

/// A command on its way: the keys it changes, and what it must answer; a transaction answers several times.
struct Sent {
    command: u64,
    keys: Vec<usize>,
    expect: Vec<Reply>,
}

impl Writer {
    fn name(&self, key: usize) -> Vec<u8> {
        format!("w{}:{key}", self.number).into_bytes()
    }

    fn any_key(&mut self) -> usize {
        self.rng.within(NUMBERS as u64..KEYS as u64) as usize
    }

    fn new_value(&mut self, part: u64) -> State {
        let len = match self.rng.one_in(300) {
            true => 200_000,
            false => self.rng.length(10, 20_000),
        };
        State::Value {
            id: (self.number as u64) << 56 | self.commands << 8 | part,
            len,
            expires: false,
        }
    }

    fn push(
        &mut self,
        out: &mut Vec<u8>,
        args: &[&[u8]],
        changes: &[(usize, State)],
        expect: Reply,
    ) -> Sent {
        encode(out, args);
        self.note(changes, vec![expect])
    }

    /// Notes what the command that was appended changes and answers.
    fn note(&mut self, changes: &[(usize, State)], expect: Vec<Reply>) -> Sent {
        for &(key, state) in changes {
            self.oracle.sent(key, self.commands, state);
        }
        Sent {
            command: self.commands,
            keys: changes.iter().map(|c| c.0).collect(),
            expect,
        }
    }

    /// Appends a random command.
    fn command(&mut self, out: &mut Vec<u8>) -> Sent {
        self.commands += 1;
        if self.memcached {
            return self.memcached_command(out);
        }
        match self.rng.within(0..100) {
            0..45 => self.set(out),
            45..56 => self.del(out),
            56..66 => self.mset(out),
            66..76 => self.multi(out),
            76..85 => self.incr(out),
            85 => self.append(out),
            86..92 => self.expire(out),
            _ => self.get(out),
        }
    }

    /// The same in memcached's words.
    fn memcached_command(&mut self, out: &mut Vec<u8>) -> Sent {
        let ok = || vec![Reply::Simple("OK".into())];
        let (any, number) = (self.any_key(), self.rng.within(0..NUMBERS as u64) as usize);
        let either = if self.rng.one_in(3) { number } else { any };
        let name = self.name(either);
        let shown = String::from_utf8_lossy(&name).into_owned();
        let now = self.oracle.now(either);
        let there = Reply::Int(i64::from(now != State::Absent));
        match self.rng.within(0..100) {
            0..50 => {
                let (state, name) = (self.new_value(0), self.name(any));
                let far = self.rng.one_in(8);
                let state = if far { state.expiring() } else { state };
                let exptime_s = if far { FAR_MEMCACHED_S } else { 0 };
                let value = state.bytes().unwrap_or_default();
                memcached_store(out, "set", &name, exptime_s, &value);
                self.note(&[(any, state)], ok())
            }
            50..65 => {
                out.extend_from_slice(format!("delete {shown}\r\n").as_bytes());
                self.note(&[(either, State::Absent)], vec![there])
            }
            65..80 => {
                let name = self.name(number);
                let shown = String::from_utf8_lossy(&name).into_owned();
                match self.oracle.now(number) {
                    State::Number { n, expires } => {
                        out.extend_from_slice(format!("incr {shown} 1\r\n").as_bytes());
                        let state = State::Number { n: n + 1, expires };
                        self.note(&[(number, state)], vec![Reply::Int(n + 1)])
                    }
                    _ => {
                        memcached_store(out, "add", &name, 0, b"1");
                        let state = State::Number {
                            n: 1,
                            expires: false,
                        };
                        self.note(&[(number, state)], ok())
                    }
                }
            }
            80 => match self.growing(any) {
                Some((state, part)) => {
                    memcached_store(out, "append", &self.name(any), 0, &part);
                    self.note(&[(any, state)], ok())
                }
                None => self.get_memcached(out, any),
            },
            81..90 => {
                out.extend_from_slice(format!("touch {shown} {FAR_MEMCACHED_S}\r\n").as_bytes());
                match now {
                    State::Absent => self.note(&[], vec![there]),
                    _ => self.note(&[(either, now.expiring())], vec![there]),
                }
            }
            _ => self.get_memcached(out, either),
        }
    }

    fn get_memcached(&mut self, out: &mut Vec<u8>, key: usize) -> Sent {
        let name = String::from_utf8_lossy(&self.name(key)).into_owned();
        out.extend_from_slice(format!("get {name}\r\n").as_bytes());
        let expect = self.oracle.now(key).bytes();
        self.note(&[], vec![expect.map_or(Reply::Nil, Reply::Bulk)])
    }

    /// What a value becomes that grows by an argument above 64 KiB, and that argument; none: it is not there or long enough.
    fn growing(&mut self, key: usize) -> Option<(State, Vec<u8>)> {
        let State::Value { id, len, expires } = self.oracle.now(key) else {
            return None;
        };
        let more = self.rng.within(65_537..90_000) as usize;
        let whole = value_of(id, len + more);
        // The first bytes of a longer value of an id are those of a shorter one, but where words were cut off.
        let grows = (8..GROWS_MAX_BYTES).contains(&len) && whole[..len] == value_of(id, len);
        let state = State::Value {
            id,
            len: len + more,
            expires,
        };
        grows.then(|| (state, whole[len..].to_vec()))
    }

    /// An APPEND of an argument above 64 KiB.
    fn append(&mut self, out: &mut Vec<u8>) -> Sent {
        let key = self.any_key();
        let Some((state, part)) = self.growing(key) else {
            return self.get(out);
        };
        let len = state.bytes().map_or(0, |bytes| bytes.len());
        let name = self.name(key);
        self.push(
            out,
            &[b"APPEND", &name, &part],
            &[(key, state)],
            Reply::Int(len as i64),
        )
    }

    /// A transaction of SETs, DELs and INCRs, each of another key, some behind a WATCH.
    fn multi(&mut self, out: &mut Vec<u8>) -> Sent {
        let ok = || Reply::Simple("OK".into());
        let mut keys: Vec<usize> = (0..self.rng.within(2..7))
            .map(|_| self.rng.within(0..KEYS as u64) as usize)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let mut expect = Vec::new();
        if self.rng.one_in(4) {
            encode(out, &[b"WATCH", &self.name(keys[0])]);
            expect.push(ok());
        }
        encode(out, &[b"MULTI"]);
        expect.push(ok());
        let (mut changes, mut replies) = (Vec::new(), Vec::new());
        for (part, &key) in keys.iter().enumerate() {
            let (name, now) = (self.name(key), self.oracle.now(key));
            let (state, reply) = match (key < NUMBERS, self.rng.one_in(4)) {
                (_, true) => {
                    encode(out, &[b"DEL", &name]);
                    let there = i64::from(now != State::Absent);
                    (State::Absent, Reply::Int(there))
                }
                (true, false) => {
                    encode(out, &[b"INCR", &name]);
                    let (n, expires) = match now {
                        State::Number { n, expires } => (n + 1, expires),
                        _ => (1, false),
                    };
                    (State::Number { n, expires }, Reply::Int(n))
                }
                (false, false) => {
                    let is_long = self.rng.one_in(60);
                    let state = State::Value {
                        id: (self.number as u64) << 56 | self.commands << 8 | part as u64,
                        len: match is_long {
                            true => self.rng.within(65_537..200_000) as usize,
                            false => self.rng.length(10, 8_000),
                        },
                        expires: false,
                    };
                    let value = state.bytes().unwrap_or_default();
                    if is_long && self.rng.one_in(2) {
                        // In two parts, of which either may be long.
                        let cut = self.rng.within(1..value.len() as u64) as usize;
                        encode(out, &[b"SET", &name, &value[..cut]]);
                        encode(out, &[b"APPEND", &name, &value[cut..]]);
                        expect.push(Reply::Simple("QUEUED".into()));
                        replies.push(ok());
                        (state, Reply::Int(value.len() as i64))
                    } else {
                        encode(out, &[b"SET", &name, &value]);
                        (state, ok())
                    }
                }
            };
            expect.push(Reply::Simple("QUEUED".into()));
            changes.push((key, state));
            replies.push(reply);
        }
        encode(out, &[b"EXEC"]);
        expect.push(Reply::Array(replies));
        self.oracle.msets.insert(self.commands, keys);
        self.note(&changes, expect)
    }

    fn reply(&self, client: &mut Client) -> std::io::Result<Reply> {
        match self.memcached {
            true => client.memcached_reply(),
            false => client.reply(),
        }
    }

    fn set(&mut self, out: &mut Vec<u8>) -> Sent {
        let (key, state) = (self.any_key(), self.new_value(0));
        let (name, value) = (self.name(key), state.bytes().unwrap_or_default());
        let args = [b"SET".as_slice(), &name, &value, b"EX", FAR_S];
        let ok = Reply::Simple("OK".into());
        match self.rng.one_in(8) {
            true => self.push(out, &args, &[(key, state.expiring())], ok),
            false => self.push(out, &args[..3], &[(key, state)], ok),
        }
    }

    fn del(&mut self, out: &mut Vec<u8>) -> Sent {
        let mut keys = vec![self.rng.within(0..KEYS as u64) as usize, self.any_key()];
        keys.dedup();
        let there = keys
            .iter()
            .filter(|k| self.oracle.now(**k) != State::Absent);
        let expect = Reply::Int(there.count() as i64);
        let names: Vec<Vec<u8>> = keys.iter().map(|k| self.name(*k)).collect();
        let mut args = vec![b"DEL".as_slice()];
        args.extend(names.iter().map(Vec::as_slice));
        let changes: Vec<_> = keys.iter().map(|k| (*k, State::Absent)).collect();
        self.push(out, &args, &changes, expect)
    }

    fn mset(&mut self, out: &mut Vec<u8>) -> Sent {
        let mut keys: Vec<usize> = (0..self.rng.within(2..6)).map(|_| self.any_key()).collect();
        keys.sort_unstable();
        keys.dedup();
        let changes: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(i, k)| (*k, self.new_value(i as u64)))
            .collect();
        let pairs: Vec<_> = changes
            .iter()
            .map(|(k, s)| (self.name(*k), s.bytes().unwrap_or_default()))
            .collect();
        let mut args = vec![b"MSET".as_slice()];
        args.extend(pairs.iter().flat_map(|(k, v)| [k.as_slice(), v.as_slice()]));
        self.oracle.msets.insert(self.commands, keys);
        self.push(out, &args, &changes, Reply::Simple("OK".into()))
    }

    fn incr(&mut self, out: &mut Vec<u8>) -> Sent {
        let key = self.rng.within(0..NUMBERS as u64) as usize;
        let (n, expires) = match self.oracle.now(key) {
            State::Number { n, expires } => (n + 1, expires),
            _ => (1, false),
        };
        let name = self.name(key);
        let change = (key, State::Number { n, expires });
        self.push(out, &[b"INCR", &name], &[change], Reply::Int(n))
    }

    fn expire(&mut self, out: &mut Vec<u8>) -> Sent {
        let key = self.rng.within(0..KEYS as u64) as usize;
        let (name, state) = (self.name(key), self.oracle.now(key));
        let args = [b"EXPIRE".as_slice(), &name, FAR_S];
        match state {
            State::Absent => self.push(out, &args, &[], Reply::Int(0)),
            _ => self.push(out, &args, &[(key, state.expiring())], Reply::Int(1)),
        }
    }

    fn get(&mut self, out: &mut Vec<u8>) -> Sent {
        let key = self.rng.within(0..KEYS as u64) as usize;
        let expect = self.oracle.now(key).bytes().map_or(Reply::Nil, Reply::Bulk);
        let name = self.name(key);
        self.push(out, &[b"GET", &name], &[], expect)
    }

    /// Sends batches until the server is gone.
    fn work(&mut self, mut client: Client) {
        loop {
            let mut out = Vec::new();
            let batch: Vec<Sent> = (0..self.rng.within(1..BATCH_MAX + 1))
                .map(|_| self.command(&mut out))
                .collect();
            if client.stream.write_all(&out).is_err() {
                return;
            }
            for sent in batch {
                for expect in &sent.expect {
                    let Ok(reply) = self.reply(&mut client) else {
                        return;
                    };
                    if reply
                        .error()
                        .is_some_and(|e| e.contains("stopping") || e.contains("shutting"))
                    {
                        return;
                    }
                    assert!(
                        reply == *expect,
                        "connection {}, command {} on {:?}: {} instead of {}",
                        self.number,
                        sent.command,
                        sent.keys,
                        reply.shown(),
                        expect.shown()
                    );
                }
                let now = Instant::now();
                for &key in &sent.keys {
                    self.oracle.acked(key, sent.command, now);
                }
            }
        }
    }

    /// Reads all keys and judges them; how many are there.
    fn check(&self, client: &mut Client, promised: Instant) -> Result<(Vec<Seen>, usize), String> {
        let mut seen = Vec::new();
        let mut there = 0;
        for from in (0..KEYS).step_by(50) {
            let names: Vec<Vec<u8>> = (from..from + 50).map(|k| self.name(k)).collect();
            let mget: Vec<&[u8]> = std::iter::once(b"MGET".as_slice())
                .chain(names.iter().map(Vec::as_slice))
                .collect();
            let Reply::Array(values) = client.call(&mget) else {
                return Err(format!("MGET of connection {}", self.number));
            };
            let asks: Vec<Vec<&[u8]>> = names.iter().map(|n| vec![b"TTL".as_slice(), n]).collect();
            let ttls = client.pipeline(&asks);
            for (i, (value, ttl)) in values.iter().zip(&ttls).enumerate() {
                let key = from + i;
                let got = match value {
                    Reply::Bulk(bytes) => Some(bytes.as_slice()),
                    Reply::Nil => None,
                    other => return Err(format!("GET of w{}:{key}: {other:?}", self.number)),
                };
                there += usize::from(got.is_some());
                let looked = self.oracle.look(key, promised, got, ttl.int());
                seen.push(looked.map_err(|e| format!("key w{}:{key}: {e}", self.number))?);
            }
        }
        self.oracle
            .whole_msets(&seen)
            .map_err(|e| format!("connection {}: {e}", self.number))?;
        Ok((seen, there))
    }
}

/// Runs rounds of load, crash, restart and judgement until `done` says so of their number and of the time since its turn came; tells what it saw.
fn crash_rounds(mode: Mode, name: &str, done: impl Fn(u32, Duration) -> bool) {
    let _alone = alone();
    let begun = Instant::now();
    let seed = seed();
    println!("{name}: seed {seed} (repeat with TERRACE_SEED={seed})");
    let dir = TempDir::new(name);
    let pool = dir.pool();
    let memcached = free_addr();
    let addr = memcached.to_string();
    let args = [mode.args(), vec!["--memcached", &addr]].concat();
    let mut rng = Rng::new(seed, 0);
    let mut writers: Vec<Writer> = (0..CONNECTIONS)
        .map(|number| Writer {
            number,
            oracle: Oracle::new(KEYS),
            rng: Rng::new(seed, number as u64 + 1),
            commands: 0,
            memcached: number >= CONNECTIONS - MEMCACHED,
        })
        .collect();
    let (mut round, mut lost_max_ms, mut restart_max) = (0, 0, Duration::ZERO);
    let mut server = Server::start(&pool, &args);
    while !done(round, begun.elapsed()) {
        round += 1;
        let clean = rng.one_in(7);
        let kill = load_and_stop(server, memcached, &mut writers, &mut rng, clean);
        let promised = mode.promised(kill, clean);
        if rng.one_in(4) {
            // A crash while recovering.
            let second = Server::spawn(&pool, &args, None);
            std::thread::sleep(Duration::from_millis(rng.within(1..120)));
            second.kill();
        }
        server = Server::start(&pool, &args);
        restart_max = restart_max.max(server.first_reply);
        let lost_ms = judge(&server, &mut writers, promised, kill).unwrap_or_else(|e| {
            panic!("{name}, seed {seed}, round {round}, clean stop: {clean}: {e}")
        });
        lost_max_ms = lost_max_ms.max(lost_ms);
    }
    let commands: u64 = writers.iter().map(|w| w.commands).sum();
    assert!(
        commands > 1_000 * u64::from(round),
        "hardly any load: {commands} commands"
    );
    println!(
        "{name}: {round} rounds, {commands} commands; the oldest loss had been acknowledged {lost_max_ms} ms before the \
         kill; first reply within {restart_max:?}"
    );
    server.shutdown();
    let checked = support::run(&["pool", "check", pool.to_str().unwrap_or_default()]);
    assert!(checked.status.success(), "{}", support::said(&checked));
}

/// Lets all connections work for a random while, then stops the server; when that was.
fn load_and_stop(
    mut server: Server,
    memcached: SocketAddr,
    writers: &mut [Writer],
    rng: &mut Rng,
    clean: bool,
) -> Instant {
    let pause = Duration::from_millis(rng.within(250..1_100));
    std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            let client = match writer.memcached {
                true => Client::connect(memcached),
                false => server.client(),
            };
            scope.spawn(move || writer.work(client));
        }
        std::thread::sleep(pause);
        let kill = Instant::now();
        match clean {
            true => server.terminate(),
            false => server.kill_now(),
        }
        kill
    })
}

/// Judges all keys, and that there are no others; the age of the oldest loss.
fn judge(
    server: &Server,
    writers: &mut [Writer],
    promised: Instant,
    kill: Instant,
) -> Result<u64, String> {
    let mut client = server.client();
    let (mut there, mut lost_ms) = (0, 0);
    for writer in writers {
        let (seen, keys) = writer.check(&mut client, promised)?;
        there += keys;
        lost_ms = lost_ms.max(writer.oracle.lost_ms(&seen, kill));
        writer.oracle.resume(&seen);
    }
    let size = client.words("DBSIZE").int();
    if size != there as i64 {
        return Err(format!(
            "DBSIZE is {size}, but {there} keys that were written are there"
        ));
    }
    Ok(lost_ms)
}

#[test]
fn e2e_kill_9_loses_nothing_that_sync_acknowledged() {
    crash_rounds(Mode::Sync, "crash-sync", |round, _| round >= 20);
}

#[test]
fn e2e_kill_9_loses_nothing_older_than_the_flush_interval_in_async() {
    crash_rounds(Mode::Async, "crash-async", |round, _| round >= 20);
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn e2e_soak_kill_9_sync() {
    crash_rounds(Mode::Sync, "soak-sync", |_, time| time > soak_time());
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn e2e_soak_kill_9_async() {
    crash_rounds(Mode::Async, "soak-async", |_, time| time > soak_time());
}
