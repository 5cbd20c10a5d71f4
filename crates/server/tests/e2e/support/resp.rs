//! A small RESP2 client, which also reads memcached's replies: it sends commands, one or many at once, and reads replies with a
//! bound on the time. It repairs nothing: a broken connection is an error, or a failed test where the caller expected a reply.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No reply takes longer.
const REPLY_MAX: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 64 << 10;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Int(i64),
    /// `$-1`
    Nil,
    /// `$`
    Bulk(Vec<u8>),
    /// `*`
    Array(Vec<Reply>),
}

impl Reply {
    /// Whether it is +OK.
    pub fn is_ok(&self) -> bool {
        matches!(self, Reply::Simple(text) if text == "OK")
    }
    /// The text of an error.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }
    /// A number.
    ///
    /// # Panics
    /// When it is something else.
    pub fn int(&self) -> i64 {
        match self {
            Reply::Int(n) => *n,
            other => panic!("not a number: {}", other.shown()),
        }
    }
    /// For messages: without the bytes of long values.
    pub fn shown(&self) -> String {
        match self {
            Reply::Bulk(b) if b.len() > 64 => format!("{} bytes", b.len()),
            other => format!("{other:?}"),
        }
    }
}

/// A connection.
pub struct Client {
    /// The socket.
    pub stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
}

impl Client {
    /// Connects.
    pub fn connect(addr: SocketAddr) -> Client {
        Client::over(TcpStream::connect(addr).expect("a connection"))
    }

    /// Over a socket.
    pub fn over(stream: TcpStream) -> Client {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(REPLY_MAX)).expect("a timeout");
        stream
            .set_write_timeout(Some(REPLY_MAX))
            .expect("a timeout");
        Client {
            stream,
            buf: Vec::new(),
            at: 0,
        }
    }

    /// Sends one command.
    pub fn send(&mut self, args: &[&[u8]]) -> io::Result<()> {
        let mut out = Vec::new();
        encode(&mut out, args);
        self.stream.write_all(&out)
    }

    /// Sends and receives.
    ///
    /// # Panics
    /// When the connection breaks.
    pub fn call(&mut self, args: &[&[u8]]) -> Reply {
        match self.try_call(args) {
            Ok(reply) => reply,
            Err(e) => panic!("no reply to {}: {e}", String::from_utf8_lossy(args[0])),
        }
    }

    /// Sends words and receives.
    pub fn words(&mut self, line: &str) -> Reply {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&words)
    }

    /// Sends and receives.
    pub fn try_call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        self.send(args)?;
        self.reply()
    }

    /// Sends many commands at once and receives all their replies.
    ///
    /// # Panics
    /// When the connection breaks.
    pub fn pipeline(&mut self, commands: &[Vec<&[u8]>]) -> Vec<Reply> {
        let mut out = Vec::new();
        for command in commands {
            encode(&mut out, command);
        }
        self.stream.write_all(&out).expect("commands are taken");
        commands
            .iter()
            .map(|_| self.reply().expect("a reply"))
            .collect()
    }

    /// A figure of `INFO SECTION`.
    ///
    /// # Panics
    /// When it is not there.
    pub fn info(&mut self, section: &str, name: &str) -> u64 {
        let Reply::Bulk(text) = self.call(&[b"INFO", section.as_bytes()]) else {
            panic!("INFO {section}");
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|v| v.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in INFO {section}:\n{text}"))
    }

    /// One reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let rest = &line[1..];
        let number = || {
            rest.parse::<i64>()
                .map_err(|_| io::Error::other(format!("a reply that is none: {line:?}")))
        };
        Ok(match line.as_bytes()[0] {
            b'+' => Reply::Simple(rest.to_string()),
            b'-' => Reply::Error(rest.to_string()),
            b':' => Reply::Int(number()?),
            b'$' if number()? < 0 => Reply::Nil,
            b'$' => {
                let mut bytes = Vec::with_capacity(number()? as usize);
                self.body(number()? as usize, |piece| bytes.extend_from_slice(piece))?;
                Reply::Bulk(bytes)
            }
            b'*' => {
                let items: io::Result<Vec<Reply>> =
                    (0..number()?.max(0)).map(|_| self.reply()).collect();
                Reply::Array(items?)
            }
            _ => return Err(io::Error::other(format!("a reply that is none: {line:?}"))),
        })
    }

    /// One reply of memcached's protocol, as what says the same here: STORED is OK, DELETED and TOUCHED are 1, what is not there 0 or
    /// nil, an item its value.
    pub fn memcached_reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["STORED"] => Reply::Simple("OK".into()),
            ["DELETED" | "TOUCHED"] => Reply::Int(1),
            ["NOT_FOUND" | "NOT_STORED"] => Reply::Int(0),
            ["END"] => Reply::Nil,
            ["VALUE", _, _, len] => {
                let len = len.parse().map_err(io::Error::other)?;
                let mut bytes = Vec::with_capacity(len);
                self.body(len, |piece| bytes.extend_from_slice(piece))?;
                match self.line()?.as_str() {
                    "END" => Reply::Bulk(bytes),
                    other => return Err(io::Error::other(format!("behind an item: {other:?}"))),
                }
            }
            [number] if number.parse::<i64>().is_ok() => {
                Reply::Int(number.parse().map_err(io::Error::other)?)
            }
            _ => Reply::Error(line),
        })
    }

    /// A bulk reply piece by piece, so that a long one needs no memory; its length.
    pub fn bulk_in_pieces(&mut self, f: impl FnMut(&[u8])) -> io::Result<usize> {
        let line = self.line()?;
        let len = line.strip_prefix('$').and_then(|n| n.parse().ok());
        let len = len.ok_or_else(|| io::Error::other(format!("not a value: {line:?}")))?;
        self.body(len, f)?;
        Ok(len)
    }

    fn body(&mut self, len: usize, mut f: impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            if self.at == self.buf.len() {
                self.fill()?;
            }
            let n = left.min(self.buf.len() - self.at);
            f(&self.buf[self.at..self.at + n]);
            self.at += n;
            left -= n;
        }
        match self.line()?.as_str() {
            "" => Ok(()),
            more => Err(io::Error::other(format!("behind a value: {more:?}"))),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            let waiting = &self.buf[self.at..];
            if let Some(end) = waiting.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&waiting[..end]).into_owned();
                self.at += end + 2;
                return Ok(line);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buf.drain(..self.at);
        self.at = 0;
        let before = self.buf.len();
        self.buf.resize(before + READ_BYTES, 0);
        let read = loop {
            // A socket with a timeout is not restarted after a signal.
            match self.stream.read(&mut self.buf[before..]) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buf.truncate(before + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Appends a `set` or `add` of memcached's protocol.
pub fn memcached_store(out: &mut Vec<u8>, verb: &str, key: &[u8], exptime_s: u64, value: &[u8]) {
    let key = String::from_utf8_lossy(key);
    let len = value.len();
    out.extend_from_slice(format!("{verb} {key} 7 {exptime_s} {len}\r\n").as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a command as clients send it.
pub fn encode(out: &mut Vec<u8>, args: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}
