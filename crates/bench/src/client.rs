//! A small blocking client: one request, one reply. For PING, INFO, DBSIZE, SHUTDOWN, single GETs and `stats`, not for load.
//!
//! Promises that every wait ends: connecting and reading have a bound. Never retries by itself.

use crate::load::{Parsed, Reply, parse};
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Largest reply this client takes.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// A connection.
pub struct Client {
    socket: TcpStream,
}

/// An owned reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A status or a bulk string.
    Text(Vec<u8>),
    /// A number.
    Number(i64),
    /// An error's text.
    Error(String),
    /// Nil.
    Nil,
}

/// Longest part of an answer that a message shows.
const SHOWN_BYTES_MAX: usize = 120;

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Text(text) => {
                let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES_MAX)]);
                write!(f, "{} bytes: {shown:?}", text.len())
            }
            Answer::Number(n) => write!(f, "{n}"),
            Answer::Error(text) => write!(f, "the error {text}"),
            Answer::Nil => f.write_str("nil"),
        }
    }
}

impl Client {
    /// Connects; each later wait lasts at most `wait_max_s`.
    pub fn connect(addr: SocketAddr, wait_max_s: u64) -> Result<Client> {
        let wait = Duration::from_secs(wait_max_s);
        let socket = TcpStream::connect_timeout(&addr, wait)
            .with_context(|| format!("connecting to {addr}"))?;
        socket.set_read_timeout(Some(wait))?;
        socket.set_write_timeout(Some(wait))?;
        socket.set_nodelay(true)?;
        Ok(Client { socket })
    }

    /// Sends one command and waits for its reply. Errors: the connection ends, waits too long, or carries no RESP2.
    pub fn call(&mut self, words: &[&str]) -> Result<Answer> {
        let mut out = format!("*{}\r\n", words.len());
        for word in words {
            out += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.socket
            .write_all(out.as_bytes())
            .context("sending a command")?;
        let (mut buffer, mut chunk) = (Vec::new(), [0u8; 16 << 10]);
        loop {
            match parse(&buffer) {
                Parsed::Whole(reply, _) => return Ok(own(&reply)),
                Parsed::Malformed => {
                    bail!("the server answered {} with what is no RESP2", words[0])
                }
                Parsed::Part if buffer.len() > REPLY_BYTES_MAX => {
                    bail!(
                        "the answer to {} is longer than {REPLY_BYTES_MAX} bytes",
                        words[0]
                    )
                }
                Parsed::Part => {}
            }
            match self
                .socket
                .read(&mut chunk)
                .with_context(|| format!("waiting for the answer to {}", words[0]))?
            {
                0 => bail!(
                    "the server closed the connection instead of answering {}",
                    words[0]
                ),
                n => buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// The numbers of INFO by name; lines that are no numbers are left out. Unknown names are welcome.
    pub fn info(&mut self) -> Result<HashMap<String, f64>> {
        match self.call(&["INFO", "all"])? {
            Answer::Text(text) => Ok(parse_info(&String::from_utf8_lossy(&text))),
            other => bail!("INFO was answered with {other}"),
        }
    }
}

/// The numbers of memcached's `stats` by name.
pub fn memcached_stats(addr: SocketAddr, wait_max_s: u64) -> Result<HashMap<String, f64>> {
    let mut client = Client::connect(addr, wait_max_s)?;
    client
        .socket
        .write_all(b"stats\r\n")
        .context("sending stats")?;
    let (mut buffer, mut chunk) = (Vec::new(), [0u8; 16 << 10]);
    while !buffer.ends_with(b"END\r\n") {
        match client
            .socket
            .read(&mut chunk)
            .context("waiting for stats")?
        {
            0 => bail!("the server closed the connection instead of answering stats"),
            _ if buffer.len() > REPLY_BYTES_MAX => {
                bail!("the answer to stats is longer than {REPLY_BYTES_MAX} bytes")
            }
            n => buffer.extend_from_slice(&chunk[..n]),
        }
    }
    Ok(parse_stats(&String::from_utf8_lossy(&buffer)))
}

fn own(reply: &Reply<'_>) -> Answer {
    match reply {
        Reply::Status(text) | Reply::Bulk(text) => Answer::Text(text.to_vec()),
        Reply::Error(text) => Answer::Error(String::from_utf8_lossy(text).into_owned()),
        Reply::Number(n) => Answer::Number(*n),
        Reply::Nil => Answer::Nil,
    }
}

fn parse_stats(text: &str) -> HashMap<String, f64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

fn parse_info(text: &str) -> HashMap<String, f64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.trim().split_once(':')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_keeps_numbers_only() {
        let info =
            parse_info("# Tiers\r\ndevice_reads:12\r\nmode:async\r\nindex_bytes:1.5\r\n\r\n");
        assert_eq!(info.len(), 2);
        assert_eq!((info["device_reads"], info["index_bytes"]), (12.0, 1.5));
        let stats = parse_stats("STAT version 1.6.18\r\nSTAT curr_items 7\r\nEND\r\n");
        assert_eq!(stats.len(), 1);
        assert_eq!(stats["curr_items"], 7.0);
    }
}
