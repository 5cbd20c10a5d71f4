//! What the load generator is asked for: which requests, how many, how fast, and in which words.
//!
//! Promises: plain data, the same for both protocols. Never: checks a bound; `drive` does.

use super::keys::KeyChoice;

/// Connections of measured rounds.
pub const CONNECTIONS: usize = 50;

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Until {
    /// No request is sent after this many seconds.
    Seconds(f64),
    /// This many requests in all.
    Requests(u64),
}

/// How fast requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as replies come.
    Free,
    /// The same, but at most this many a second.
    AtMost(u64),
    /// A batch falls due at each tick of this many requests a second, whatever the replies do; latency counts from the tick.
    Open(u64),
}

/// What the server understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    Resp,
    /// memcached's meta commands.
    Memcached,
}

/// What to do to a server.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Connections, each a socket of its own.
    pub connections: usize,
    /// Requests sent in one batch on each connection.
    pub in_flight: usize,
    /// Keys are numbered from 0 up to here.
    pub keys: u64,
    /// How the next key is chosen.
    pub choice: KeyChoice,
    /// Part of the requests that are GET, in percent; the others are `write`.
    pub get_percent: u32,
    /// What is not a GET.
    pub write: Op,
    /// One of so many writes is of a key that was not there, if any; they are numbered from `new_from`.
    pub new_every: Option<u64>,
    /// See `new_every`.
    pub new_from: u64,
    /// Length of each value in bytes.
    pub value_bytes: usize,
    /// Whether half of each value is zeros, so that it packs; else all of it is random.
    pub packs: bool,
    /// When to end.
    pub until: Until,
    /// How fast.
    pub pace: Pace,
    /// In which words.
    pub protocol: Protocol,
    /// The CPU the generating thread stays on, if any.
    pub cpu: Option<usize>,
    /// Seed of all choices.
    pub seed: u64,
}

impl Load {
    /// Uniform GETs of 50 connections with one request in flight each, for a second, from the CPU that makes the load.
    pub fn of(keys: u64, value_bytes: usize) -> Load {
        Load {
            connections: CONNECTIONS,
            in_flight: 1,
            keys,
            choice: KeyChoice::Uniform,
            get_percent: 100,
            write: Op::Set,
            new_every: None,
            new_from: 0,
            value_bytes,
            packs: false,
            until: Until::Seconds(1.0),
            pace: Pace::Free,
            protocol: Protocol::Resp,
            cpu: Some(crate::machine::LOAD_CPU),
            seed: 1,
        }
    }
}

/// The kinds of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read a value.
    Get,
    /// Write a value.
    Set,
    /// Delete a key.
    Del,
}
