//! What the end-to-end tests share: finding and starting the real command on a pool of its own, talking RESP to it, and
//! making sure that nothing is left behind, whatever a test does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::turns::Beside;
use crate::support::{beside, free_addr};

/// The command under test: TERRACE_BIN, or what was built beside this test. `None` (with a printed reason): neither.
pub fn terrace() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TERRACE_BIN").map(PathBuf::from) {
        // The build directory of the test itself tells where a relative or missing path would be.
        if named.is_file() {
            return Some(named);
        }
    }
    let test = std::env::current_exe().ok()?;
    let profile = test.parent()?.parent()?;
    let found = ["release", "debug"]
        .iter()
        .filter_map(|p| Some(profile.parent()?.join(p).join("terrace")))
        .find(|p| p.is_file());
    if found.is_none() {
        println!(
            "skipped: there is no terrace to start; build it first (cargo build --release) or set TERRACE_BIN"
        );
    }
    found
}

/// A directory that goes away with the test, which has its turn as long.
pub struct Dir(pub PathBuf, Option<Beside>);

impl Dir {
    /// No two tests have the same name.
    pub fn new(name: &str) -> Self {
        let turn = beside();
        let dir = std::env::temp_dir().join(format!("terrace-e2e-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir, Some(turn))
    }

    pub fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    /// Leaves it there, for who looks why the test failed.
    pub fn keep(mut self) -> PathBuf {
        let path = self.0.clone();
        self.1 = None;
        std::mem::forget(self);
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command to its end.
pub fn run(exe: &Path, args: &[&str]) -> Output {
    Command::new(exe)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A running server, killed when dropped.
pub struct Serving {
    pub addr: SocketAddr,
    child: Child,
}

impl Serving {
    /// Starts on `pool` and waits until it answers.
    pub fn start(exe: &Path, pool: &Path, more: &[&str]) -> Self {
        let addr = free_addr();
        let child = Command::new(exe)
            .args([
                "serve",
                "--pool",
                pool.to_str().unwrap(),
                "--resp",
                &addr.to_string(),
            ])
            .args(more)
            .env("TERRACE_LOG", "warn")
            .spawn()
            .unwrap();
        let mut serving = Serving { addr, child };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(addr).is_err() {
            assert!(
                serving.child.try_wait().unwrap().is_none(),
                "the server ended before it served"
            );
            assert!(
                Instant::now() < deadline,
                "the server did not serve in time"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let info = format!("{:?}", serving.client().line("INFO server"));
        let whose = info
            .split("process_id:")
            .nth(1)
            .and_then(|rest| rest.split("\\r").next());
        assert!(
            whose.is_none_or(|pid| pid == serving.pid().to_string()),
            "the server at {addr} is not the one that was started, {}: {info}",
            serving.pid()
        );
        serving
    }

    pub fn client(&self) -> Talk {
        Talk::new(self.addr)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A clean stop.
    pub fn shutdown(mut self) {
        let mut client = self.client();
        client.send(&[b"SHUTDOWN"]);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "the server did not stop in time");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

/// One RESP2 connection.
pub struct Talk {
    pub stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
}

impl Talk {
    pub fn new(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        Talk {
            stream,
            buf: Vec::new(),
            at: 0,
        }
    }

    pub fn send(&mut self, args: &[&[u8]]) {
        self.stream.write_all(&encode(args)).unwrap();
    }

    pub fn ask(&mut self, args: &[&[u8]]) -> Reply {
        self.send(args);
        self.reply()
    }

    /// A command of words, split at spaces.
    pub fn line(&mut self, line: &str) -> Reply {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply")
    }

    /// A reply, or why there is none: what a killed server's client sees.
    pub fn try_reply(&mut self) -> std::io::Result<Reply> {
        let line = loop {
            if let Some(end) = self.buf[self.at..].windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buf[self.at..self.at + end]).into_owned();
                self.at += end + 2;
                break line;
            }
            self.fill()?;
        };
        let number = || line[1..].parse::<i64>().unwrap();
        Ok(match line.as_bytes()[0] {
            b'+' => Reply::Simple(line[1..].to_string()),
            b'-' => Reply::Error(line[1..].to_string()),
            b':' => Reply::Int(number()),
            b'$' if number() < 0 => Reply::Bulk(None),
            b'$' => {
                let len = number() as usize;
                while self.buf.len() - self.at < len + 2 {
                    self.fill()?;
                }
                let bytes = self.buf[self.at..self.at + len].to_vec();
                self.at += len + 2;
                Reply::Bulk(Some(bytes))
            }
            b'*' => Reply::Array(
                (0..number().max(0))
                    .map(|_| self.try_reply())
                    .collect::<Result<_, _>>()?,
            ),
            other => panic!("a reply of kind {}", other as char),
        })
    }

    fn fill(&mut self) -> std::io::Result<()> {
        self.buf.drain(..self.at);
        self.at = 0;
        let before = self.buf.len();
        self.buf.resize(before + (64 << 10), 0);
        let read = loop {
            // A socket with a timeout is not restarted after a signal.
            match self.stream.read(&mut self.buf[before..]) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buf.truncate(before + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// A command as clients send it.
pub fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

pub fn ok() -> Reply {
    Reply::Simple("OK".to_string())
}

pub fn bulk(bytes: impl AsRef<[u8]>) -> Reply {
    Reply::Bulk(Some(bytes.as_ref().to_vec()))
}

/// Bytes that can be told apart, of any length.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}
