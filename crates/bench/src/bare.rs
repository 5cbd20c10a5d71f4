//! The least that serves a miss: a server of one thread without a cache, a directory or a log, only sockets and the disk.
//!
//! It waits, receives, reads and sends as `terrace serve` does (ADR 0008, 0016: the same poll, the same queue of the device, the same few connections at a time while reads are
//! under way), so what it reaches beside fio is what this machine leaves to any such server. Value `n` lies at `n` times its length in one file. It understands what
//! the load generator sends: SET and GET of its keys, INFO, PING. Never used by the product; never reads what was not written.

use crate::load::KEY_BYTES;
use anyhow::{Context, Result, bail};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_media::{BLOCK_BYTES, Buf, Device, Disk, Done, FileDevice, Op, Wait};

const LISTENER: Token = Token(usize::MAX - 1);
const DISK: Token = Token(usize::MAX - 2);
const EVENTS_MAX: usize = 1024;
/// As the server has them (`crates/server/src/limits.rs`).
const AT_ONCE_WHILE_READING: usize = 8;
const MANY_READS: usize = 6;
const QUEUE_DEPTH: u32 = 128;
const INPUT_BYTES: usize = 64 << 10;
const INPUT_BYTES_MAX: usize = 1 << 20;
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Length of the values that it is to keep.
pub const VALUE_BYTES: usize = 1 << 10;

/// How it is started.
pub fn argv(exe: &Path, dir: &Path, port: u16) -> Vec<String> {
    vec![
        exe.display().to_string(),
        "bench-bare-server".into(),
        format!("127.0.0.1:{port}"),
        dir.join("values").display().to_string(),
        VALUE_BYTES.to_string(),
    ]
}

/// One client.
struct Conn {
    socket: TcpStream,
    input: Vec<u8>,
    /// Waits for this value.
    reads: Option<u64>,
    /// Gone; its place is not given away while a read is under way for it.
    ended: bool,
}

/// What the load generator asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command<'a> {
    Get(u64),
    Set(u64, &'a [u8]),
    Info,
    Ping,
}

struct Bare {
    file: File,
    path: PathBuf,
    value_bytes: usize,
    /// Opened when the first value is asked for; nothing is written any more then.
    device: Option<(FileDevice, Box<dyn Disk>)>,
    spare: Vec<Buf>,
    misses: u64,
    conns: Slab<Conn>,
    /// Replies of one batch, and whose they are.
    out: Vec<u8>,
    replies: Vec<(usize, usize)>,
}

/// Serves until it is killed. `args`: address, file, bytes of a value.
pub fn run(args: &[String]) -> Result<()> {
    let [addr, path, value_bytes] = args else {
        bail!(
            "{} arguments, where an address, a file and the length of a value are asked for",
            args.len()
        );
    };
    let path = Path::new(path);
    let mut server = Bare {
        file: File::create(path).with_context(|| format!("making {}", path.display()))?,
        path: path.into(),
        value_bytes: value_bytes.parse().context("the length of a value")?,
        device: None,
        spare: Vec::new(),
        misses: 0,
        conns: Slab::new(),
        out: Vec::new(),
        replies: Vec::new(),
    };
    if !BLOCK_BYTES.is_multiple_of(server.value_bytes.max(1)) {
        bail!("values of {value_bytes} bytes, where their length divides {BLOCK_BYTES}");
    }
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(addr.parse().context("the address")?)?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut many = Events::with_capacity(EVENTS_MAX);
    let mut few = Events::with_capacity(AT_ONCE_WHILE_READING);
    let (mut moved, mut done) = (Vec::new(), Vec::new());
    loop {
        let events = match server.reads_under_way() >= MANY_READS {
            true => &mut few,
            false => &mut many,
        };
        let timeout = match done.is_empty() {
            true => SLEEP_MAX,
            false => Duration::ZERO,
        };
        match poll.poll(events, Some(timeout)) {
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e.into()),
            _ => {}
        }
        for event in events.iter() {
            match event.token() {
                LISTENER => server.accept(&listener, &poll)?,
                DISK => {}
                Token(slot) => moved.push(slot),
            }
        }
        server.receive(&mut moved, &poll)?;
        server.reply();
        server.answer(&mut done)?;
        server.reply();
    }
}

impl Bare {
    fn reads_under_way(&self) -> usize {
        let device = self.device.as_ref();
        device.map_or(0, |(_, disk)| disk.in_flight())
    }

    fn accept(&mut self, listener: &TcpListener, poll: &Poll) -> Result<()> {
        while let Ok((socket, _)) = listener.accept() {
            socket.set_nodelay(true)?;
            let slot = self.conns.vacant_entry();
            let token = Token(slot.key());
            let conn = slot.insert(Conn {
                socket,
                input: Vec::with_capacity(INPUT_BYTES),
                reads: None,
                ended: false,
            });
            poll.registry()
                .register(&mut conn.socket, token, Interest::READABLE)?;
        }
        Ok(())
    }

    /// Receives from all that moved, executes, and hands what must be read to the device in one go.
    fn receive(&mut self, moved: &mut Vec<usize>, poll: &Poll) -> Result<()> {
        let mut chunk = [0; INPUT_BYTES];
        for slot in moved.drain(..) {
            let Some(conn) = self.conns.get_mut(slot) else {
                continue;
            };
            let ended = loop {
                match conn.socket.read(&mut chunk) {
                    Ok(0) => break true,
                    Ok(len) => {
                        conn.input.extend_from_slice(&chunk[..len]);
                        // Less than there was room for is all that there was.
                        if len < chunk.len() {
                            break false;
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break false,
                    Err(_) => break true,
                }
            };
            if ended || conn.input.len() > INPUT_BYTES_MAX {
                self.close(slot);
                continue;
            }
            self.execute(slot, poll)?;
        }
        if let Some((_, disk)) = &mut self.device {
            disk.kick();
        }
        Ok(())
    }

    /// Executes what a connection sent, up to a value that must be read.
    fn execute(&mut self, slot: usize, poll: &Poll) -> Result<()> {
        let mut input = std::mem::take(&mut self.conns[slot].input);
        let (mut at, began) = (0, self.out.len());
        while self.conns[slot].reads.is_none() {
            let Some((command, len)) = parse(&input[at..])? else {
                break;
            };
            match command {
                Command::Ping => self.out.extend_from_slice(b"+PONG\r\n"),
                Command::Info => {
                    let text = format!("misses:{}\r\n", self.misses);
                    self.bulk(text.as_bytes());
                }
                Command::Set(key, value) if value.len() == self.value_bytes => {
                    self.file
                        .write_all_at(value, key * self.value_bytes as u64)?;
                    self.out.extend_from_slice(b"+OK\r\n");
                }
                Command::Set(..) => self.out.extend_from_slice(b"-ERR another length\r\n"),
                Command::Get(key) => self.read(slot, key, poll)?,
            }
            at += len;
        }
        input.drain(..at);
        self.conns[slot].input = input;
        if self.out.len() > began {
            self.replies.push((slot, self.out.len()));
        }
        Ok(())
    }

    fn bulk(&mut self, bytes: &[u8]) {
        let _ = write!(self.out, "${}\r\n", bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn read(&mut self, slot: usize, key: u64, poll: &Poll) -> Result<()> {
        if self.device.is_none() {
            let bytes = self.file.metadata()?.len().div_ceil(BLOCK_BYTES as u64);
            self.file.set_len(bytes * BLOCK_BYTES as u64)?;
            self.file.sync_all()?;
            let device = FileDevice::open(&self.path)?;
            let disk = device.queue(QUEUE_DEPTH)?;
            // Without a ring a read is done when it was handed in, and is taken in the same turn.
            if let Some(fd) = disk.poll_fd() {
                poll.registry()
                    .register(&mut SourceFd(&fd), DISK, Interest::READABLE)?;
            }
            self.device = Some((device, disk));
        }
        let (device, disk) = self.device.as_mut().context("opened")?;
        let unit = device.read_unit_bytes() as u64;
        let start = key * self.value_bytes as u64;
        let offset = start - start % unit;
        let end = (start + self.value_bytes as u64).next_multiple_of(unit);
        let buf = self.spare.pop();
        let mut buf = buf.unwrap_or_else(|| Buf::zeroed(BLOCK_BYTES));
        buf.set_len((end - offset) as usize);
        disk.submit(slot as u64, Op::Read { offset, buf });
        self.misses += 1;
        self.conns[slot].reads = Some(key);
        Ok(())
    }

    /// Takes what was read, and answers a few.
    fn answer(&mut self, done: &mut Vec<Done>) -> Result<()> {
        let Some((_, disk)) = &mut self.device else {
            return Ok(());
        };
        disk.reap(Wait::No, done);
        for read in done.drain(..done.len().min(AT_ONCE_WHILE_READING)) {
            read.result?;
            let buf = read.buf.context("its buffer")?;
            let slot = read.token as usize;
            let conn = &mut self.conns[slot];
            let key = conn.reads.take().context("a read that was asked for")?;
            if conn.ended {
                self.conns.remove(slot);
            } else {
                // Where values are shorter than what is read at once, it is a multiple of their length.
                let at = key as usize * self.value_bytes % buf.len();
                self.bulk(&buf[at..at + self.value_bytes]);
                self.replies.push((slot, self.out.len()));
            }
            self.spare.push(buf);
        }
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        match self.conns[slot].reads {
            Some(_) => self.conns[slot].ended = true,
            None => drop(self.conns.remove(slot)),
        }
    }

    /// Sends the replies of a batch. The load generator reads what it asked for, so they fit the socket's buffer.
    fn reply(&mut self) {
        let (mut from, mut replies) = (0, std::mem::take(&mut self.replies));
        for (slot, to) in replies.drain(..) {
            let len = to - from;
            let sent = self.conns[slot].socket.write(&self.out[from..to]);
            from = to;
            if !matches!(sent, Ok(sent) if sent == len) {
                self.close(slot);
            }
        }
        self.replies = replies;
        self.out.clear();
    }
}

/// The first command of `input` and its length; None: it is not all there.
fn parse(input: &[u8]) -> Result<Option<(Command<'_>, usize)>> {
    let mut at = 0;
    let Some(count) = number(input, &mut at, b'*')? else {
        return Ok(None);
    };
    let mut args: [&[u8]; 3] = [&[]; 3];
    if count == 0 || count > args.len() {
        bail!("a command of {count} words");
    }
    for arg in &mut args[..count] {
        let Some(len) = number(input, &mut at, b'$')? else {
            return Ok(None);
        };
        let Some(bytes) = input.get(at..at + len + 2) else {
            return Ok(None);
        };
        *arg = &bytes[..len];
        at += len + 2;
    }
    let command = match (args[0], count) {
        (b"GET", 2) => Command::Get(key(args[1])?),
        (b"SET", 3) => Command::Set(key(args[1])?, args[2]),
        (b"INFO", _) => Command::Info,
        (b"PING", 1) => Command::Ping,
        _ => bail!("a command that the load generator does not send"),
    };
    Ok(Some((command, at)))
}

/// The number after a mark, up to the end of its line.
fn number(input: &[u8], at: &mut usize, mark: u8) -> Result<Option<usize>> {
    let line = &input[(*at).min(input.len())..];
    let Some(end) = line.iter().take(16).position(|byte| *byte == b'\n') else {
        return match line.len() < 16 {
            true => Ok(None),
            false => bail!("a number without end"),
        };
    };
    let (Some((first, digits)), true) = (line[..end].split_first(), end > 1) else {
        bail!("an empty line");
    };
    if *first != mark {
        bail!("{first} where {mark} was to be");
    }
    let digits = std::str::from_utf8(&digits[..digits.len() - 1])?;
    *at += end + 1;
    Ok(Some(digits.parse()?))
}

/// The number of a key.
fn key(key: &[u8]) -> Result<u64> {
    let digits = key.strip_prefix(b"key:").filter(|_| key.len() == KEY_BYTES);
    Ok(std::str::from_utf8(digits.context("a key of the load generator")?)?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_whole_or_not_at_all() {
        let set = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000012\r\n$4\r\nabcd\r\n";
        assert_eq!(
            parse(set).unwrap(),
            Some((Command::Set(12, b"abcd"), set.len()))
        );
        for cut in 0..set.len() {
            assert_eq!(parse(&set[..cut]).unwrap(), None, "cut at {cut}");
        }
        assert!(parse(b"*1\r\n$3\r\nDEL\r\n").is_err());
        assert!(parse(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n").is_err());
    }
}
