//! The load generator: one thread that drives a server over many connections and says how fast and how right it was.
//!
//! It speaks RESP2 and memcached's meta commands, and differs in nothing else between them. It promises that every reply is
//! looked at: a value must have the asked length and belong to the asked key, and what does not is counted, never dropped. It is
//! a closed loop: a connection sends a batch of `in_flight` requests, waits for all of their replies, then sends the next, as
//! redis-benchmark does; or an open one, in which requests fall due at a fixed rate and a late one counts from when it was due.
//! It never starts servers, never prints, and keeps no state between runs.

mod asked;
mod conn;
pub(crate) mod keys;
mod memcached;
mod outcome;
mod reply;
mod words;

pub use asked::{CONNECTIONS, Load, Op, Pace, Protocol, Until};
pub(crate) use keys::mix;
pub use keys::{KeyChoice, ZIPF};
pub(crate) use keys::{KeySource, Rng};
pub use outcome::Outcome;
pub use reply::{Parsed, Reply, parse};
pub use words::{KEY_BYTES, VALUE_BYTES_MIN};

use crate::stop;
use anyhow::{Context, Result, bail};
use conn::Conn;
use mio::{Events, Interest, Poll, Token};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use words::Words;

/// Most connections one run may ask for: each has buffers of its own.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Most requests one connection may have in flight.
pub const IN_FLIGHT_MAX: usize = 1_024;
/// Largest value the generator sends or expects.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// A server that answers nothing for this long has stopped, and the run fails instead of waiting for ever.
const STALL_MAX_S: u64 = 120;
/// How long one wait for the sockets may last, so that ctrl-c and the deadline are seen.
const WAIT_MAX_MS: u64 = 50;

/// Sends and paces: what the connections share while a run lasts.
struct Source {
    keys: KeySource,
    rng: Rng,
    get_below: u32,
    write: Op,
    writes: u64,
    new_every: Option<u64>,
    new_next: u64,
    until: Until,
    sent: u64,
    started: Instant,
    pace: Pace,
}

/// What a connection may do next.
enum Turn {
    /// So many requests, and since when they were due.
    Send(usize, Instant),
    Wait,
    Done,
}

impl Source {
    fn new(load: &Load) -> Source {
        Source {
            keys: KeySource::new(load.choice, load.keys),
            rng: Rng::new(load.seed),
            get_below: ((u64::from(load.get_percent) << 32) / 100).min(u64::from(u32::MAX)) as u32,
            write: load.write,
            writes: 0,
            new_every: load.new_every,
            new_next: load.new_from,
            until: load.until,
            sent: 0,
            started: Instant::now(),
            pace: load.pace,
        }
    }

    fn turn(&self, batch: usize, now: Instant) -> Turn {
        let elapsed_s = now.duration_since(self.started).as_secs_f64();
        let batch = match self.until {
            Until::Seconds(seconds) if elapsed_s >= seconds => return Turn::Done,
            Until::Seconds(_) => batch,
            Until::Requests(all) if self.sent >= all => return Turn::Done,
            Until::Requests(all) => batch.min((all - self.sent) as usize),
        };
        let due_s = |rate: u64| self.sent as f64 / rate as f64;
        match self.pace {
            Pace::AtMost(rate) | Pace::Open(rate) if due_s(rate) > elapsed_s => Turn::Wait,
            Pace::Open(rate) => {
                Turn::Send(batch, self.started + Duration::from_secs_f64(due_s(rate)))
            }
            Pace::Free | Pace::AtMost(_) => Turn::Send(batch, now),
        }
    }

    fn next(&mut self, all_get: bool, all_set: bool) -> (Op, u64) {
        self.sent += 1;
        let key = self.keys.next(&mut self.rng);
        if all_get || (!all_set && (self.rng.next() >> 32) as u32 <= self.get_below) {
            return (Op::Get, key);
        }
        self.writes += 1;
        if self
            .new_every
            .is_some_and(|n| self.writes.is_multiple_of(n))
        {
            self.new_next += 1;
            return (self.write, self.new_next - 1);
        }
        (self.write, key)
    }
}

/// Drives the server at `addr` and returns what came of it.
///
/// Errors: a bound of [`Load`] is broken, the server cannot be reached, it closes a connection, it sends what is no reply, it
/// falls silent for two minutes, or the user asked to stop. Error replies, nils and wrong values are counted, not errors.
pub fn drive(addr: SocketAddr, load: &Load) -> Result<Outcome> {
    check_bounds(load)?;
    // A thread of its own, so that pinning does not stick to the caller (whose children would inherit it).
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(cpu) = load.cpu {
                crate::machine::pin_this_thread(cpu)?;
            }
            Run::new(addr, load)?.finish()
        });
        thread
            .join()
            .unwrap_or_else(|_| bail!("the load generator failed inside itself"))
    })
}

fn check_bounds(load: &Load) -> Result<()> {
    let bounds = [
        ("connections", load.connections, 1, CONNECTIONS_MAX),
        ("requests in flight", load.in_flight, 1, IN_FLIGHT_MAX),
        (
            "value bytes",
            load.value_bytes,
            VALUE_BYTES_MIN,
            VALUE_BYTES_MAX,
        ),
        ("percent of GET", load.get_percent as usize, 0, 100),
        (
            "writes for each new key",
            load.new_every.unwrap_or(1) as usize,
            1,
            usize::MAX,
        ),
    ];
    for (what, asked, least, most) in bounds {
        if asked < least || asked > most {
            bail!("{what}: {asked} was asked, {least} to {most} are allowed");
        }
    }
    if load.keys == 0 || load.keys > keys::KEYS_MAX {
        bail!(
            "keys: {} were asked, 1 to {} are allowed",
            load.keys,
            keys::KEYS_MAX
        );
    }
    Ok(())
}

struct Run<'a> {
    load: &'a Load,
    poll: Poll,
    conns: Vec<Conn>,
    /// Connections held back by the rate bound.
    held: Vec<usize>,
    source: Source,
    words: Words,
    outcome: Outcome,
    live: usize,
    last_reply: Instant,
}

impl<'a> Run<'a> {
    fn new(addr: SocketAddr, load: &'a Load) -> Result<Run<'a>> {
        let poll = Poll::new().context("an epoll for the load generator")?;
        let mut conns = Vec::with_capacity(load.connections);
        for i in 0..load.connections {
            let mut conn = Conn::open(addr, load)?;
            poll.registry().register(
                conn.socket(),
                Token(i),
                Interest::READABLE | Interest::WRITABLE,
            )?;
            conns.push(conn);
        }
        let words = Words::new(load.protocol, load.value_bytes, load.packs);
        let source = Source::new(load);
        let live = conns.len();
        Ok(Run {
            load,
            poll,
            conns,
            held: Vec::new(),
            last_reply: source.started,
            source,
            words,
            outcome: Outcome::new(),
            live,
        })
    }

    fn finish(mut self) -> Result<Outcome> {
        let mut events = Events::with_capacity(1024);
        let cpu_before_s = crate::machine::thread_cpu_s();
        self.source.started = Instant::now();
        self.last_reply = self.source.started;
        for i in 0..self.conns.len() {
            self.send(i)?;
        }
        while self.live > 0 {
            stop::check()?;
            let wait_ms = match self.load.pace {
                _ if self.held.is_empty() => WAIT_MAX_MS,
                // What falls due while we sleep would count our sleep as the server's latency.
                Pace::Open(_) => 0,
                _ => 1,
            };
            match self
                .poll
                .poll(&mut events, Some(Duration::from_millis(wait_ms)))
            {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other.context("waiting for the server")?,
            }
            for event in &events {
                let i = event.token().0;
                if event.is_writable() {
                    self.conns[i].flush()?;
                }
                if event.is_readable() {
                    self.receive(i)?;
                }
            }
            for i in std::mem::take(&mut self.held) {
                self.send(i)?;
            }
            if events.is_empty()
                && self.held.is_empty()
                && self.last_reply.elapsed().as_secs() > STALL_MAX_S
            {
                bail!("the server answered nothing for {STALL_MAX_S} s");
            }
        }
        self.outcome.cpu_s = crate::machine::thread_cpu_s() - cpu_before_s;
        self.outcome.elapsed_s = self
            .last_reply
            .duration_since(self.source.started)
            .as_secs_f64();
        Ok(self.outcome)
    }

    fn receive(&mut self, i: usize) -> Result<()> {
        let conn = &mut self.conns[i];
        let before = self.outcome.ops;
        conn.receive(&self.words, &mut self.outcome)?;
        if self.outcome.ops > before {
            self.last_reply = Instant::now();
            if conn.is_idle() {
                return self.send(i);
            }
        }
        Ok(())
    }

    fn send(&mut self, i: usize) -> Result<()> {
        let now = Instant::now();
        match self.source.turn(self.load.in_flight, now) {
            Turn::Done => self.live -= 1,
            Turn::Wait => self.held.push(i),
            Turn::Send(batch, due) => {
                let (all_get, all_set) = (self.load.get_percent == 100, self.load.get_percent == 0);
                let conn = &mut self.conns[i];
                for _ in 0..batch {
                    let (op, key) = self.source.next(all_get, all_set);
                    conn.push(&self.words, op, key);
                }
                conn.start_batch(due)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
