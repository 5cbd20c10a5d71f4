//! One connection of the load generator: a batch goes out, its replies come in.
//!
//! Promises that replies are matched to requests in order, and that buffers have the size one batch needs and never grow past
//! it. Never decides what to send, and never blocks.

use super::asked::{Load, Op, Protocol};
use super::outcome::Outcome;
use super::reply::{Parsed, Reply};
use super::words::Words;
use super::{memcached, reply};
use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Smallest and largest receive buffer; a value longer than the largest gets a buffer of its own length.
const RECEIVE_BYTES_MIN: usize = 16 << 10;
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// What a reply has besides the value, and an error's text.
const REPLY_SLACK_BYTES: usize = 4 << 10;
const CONNECT_MAX_S: u64 = 5;

pub struct Conn {
    socket: TcpStream,
    parse: fn(&[u8]) -> Parsed<'_>,
    out: Vec<u8>,
    out_sent: usize,
    buffer: Vec<u8>,
    buffer_end: usize,
    batch: Vec<(Op, u64)>,
    answered: usize,
    sent_at: Instant,
}

impl Conn {
    pub fn open(addr: SocketAddr, load: &Load) -> Result<Conn> {
        let (in_flight, value_bytes) = (load.in_flight, load.value_bytes);
        let socket =
            std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(CONNECT_MAX_S))
                .with_context(|| format!("connecting to the server at {addr}"))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let receive_bytes =
            (in_flight * (value_bytes + 64)).clamp(RECEIVE_BYTES_MIN, RECEIVE_BYTES_MAX);
        Ok(Conn {
            socket: TcpStream::from_std(socket),
            parse: match load.protocol {
                Protocol::Resp => reply::parse,
                Protocol::Memcached => memcached::parse,
            },
            out: Vec::new(),
            out_sent: 0,
            buffer: vec![0; receive_bytes.max(value_bytes + REPLY_SLACK_BYTES)],
            buffer_end: 0,
            batch: Vec::with_capacity(in_flight),
            answered: 0,
            sent_at: Instant::now(),
        })
    }

    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Whether every request of the batch is answered.
    pub fn is_idle(&self) -> bool {
        self.answered == self.batch.len()
    }

    /// Adds a request to the next batch. The batch before must be answered.
    pub fn push(&mut self, words: &Words, op: Op, key: u64) {
        if self.is_idle() && !self.batch.is_empty() && self.out_sent == self.out.len() {
            self.batch.clear();
            self.answered = 0;
            self.out.clear();
            self.out_sent = 0;
        }
        assert_eq!(
            self.answered, 0,
            "a batch may not grow while it is being answered"
        );
        self.batch.push((op, key));
        words.push(&mut self.out, op, key);
    }

    /// Sends the batch; latencies count from `due`.
    pub fn start_batch(&mut self, due: Instant) -> Result<()> {
        self.sent_at = due;
        self.flush()
    }

    pub fn flush(&mut self) -> Result<()> {
        while self.out_sent < self.out.len() {
            match self.socket.write(&self.out[self.out_sent..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(n) => self.out_sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("sending to the server"),
            }
        }
        Ok(())
    }

    /// Reads what is there and counts the replies into `outcome`.
    pub fn receive(&mut self, words: &Words, outcome: &mut Outcome) -> Result<()> {
        loop {
            let room = self.buffer.len() - self.buffer_end;
            let got = match self.socket.read(&mut self.buffer[self.buffer_end..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e).context("reading from the server"),
            };
            self.buffer_end += got;
            self.take_replies(words, outcome)?;
            // A short read has emptied the socket; new bytes raise a new event.
            if got < room {
                return Ok(());
            }
        }
    }

    fn take_replies(&mut self, words: &Words, outcome: &mut Outcome) -> Result<()> {
        let latency_us = self.sent_at.elapsed().as_micros() as u64;
        let (mut at, mut gets, mut sets) = (0, 0, 0);
        while self.answered < self.batch.len() {
            let (op, key) = self.batch[self.answered];
            match (self.parse)(&self.buffer[at..self.buffer_end]) {
                Parsed::Whole(reply, taken) => {
                    judge(&reply, op, key, words, outcome)?;
                    at += taken;
                    self.answered += 1;
                    *(if op == Op::Get { &mut gets } else { &mut sets }) += 1;
                }
                Parsed::Part if at == 0 && self.buffer_end == self.buffer.len() => {
                    bail!(
                        "a reply is longer than the {} bytes the workload allows",
                        self.buffer.len()
                    );
                }
                Parsed::Part => break,
                Parsed::Malformed => bail!(
                    "the server sent what is no reply: {}",
                    show(&self.buffer[at..])
                ),
            }
        }
        if self.is_idle() && at < self.buffer_end {
            bail!(
                "the server sent a reply nobody asked for: {}",
                show(&self.buffer[at..self.buffer_end])
            );
        }
        self.buffer.copy_within(at..self.buffer_end, 0);
        self.buffer_end -= at;
        // Recording nothing would still move the histogram's smallest and largest value.
        if gets > 0 {
            outcome
                .get_latency_us
                .saturating_record_n(latency_us.max(1), gets);
        }
        if sets > 0 {
            outcome
                .set_latency_us
                .saturating_record_n(latency_us.max(1), sets);
        }
        outcome.gets += gets;
        outcome.sets += sets;
        outcome.ops += gets + sets;
        Ok(())
    }
}

fn judge(reply: &Reply<'_>, op: Op, key: u64, words: &Words, outcome: &mut Outcome) -> Result<()> {
    match (op, reply) {
        (Op::Get, Reply::Bulk(value)) => outcome.wrong += u64::from(!words.is_value_of(value, key)),
        (Op::Get, Reply::Nil) => outcome.nils += 1,
        (Op::Set, Reply::Status(b"OK")) => {}
        (Op::Del, Reply::Number(1) | Reply::Status(b"OK")) => {}
        (Op::Del, Reply::Number(0) | Reply::Nil) => outcome.nils += 1,
        (_, Reply::Error(text)) => {
            outcome.errors += 1;
            if outcome.first_error.is_none() {
                outcome.first_error = Some(show(text));
            }
        }
        (op, reply) => bail!("the server answered a {op:?} with {reply:?}"),
    }
    Ok(())
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned()
}
