//! A Redis Cluster under test, and a client of it that follows its redirections: nodes under `terrace run`, each in a group of its own.
//!
//! Promises: a write that it calls kept was acknowledged, and then by a replica too (WAIT). Never: retries past a minute.

use super::cgroup::Cgroup;
use super::{Server, command, free_port, group, output};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a node may be silent before the others hold it for dead, milliseconds.
const SILENT_MS: &str = "4000";
const LONGEST: Duration = Duration::from_secs(60);
/// Commands on their way to a node.
const TOGETHER: usize = 100;
const SLOTS: u16 = 16384;

/// A node: it can be killed and started again.
pub struct Node {
    pub port: u16,
    bus: u16,
    dir: PathBuf,
    cap_mib: u64,
    server: Option<Server>,
    /// Removed after what was in it.
    pub group: Option<Cgroup>,
}

impl Node {
    pub fn start(dir: &Path, n: usize, cap_mib: u64) -> Node {
        let dir = dir.join(format!("node-{n}"));
        std::fs::create_dir(&dir).expect("a directory");
        let mut node = Node {
            port: free_port(),
            bus: free_port(),
            dir,
            cap_mib,
            server: None,
            group: group(cap_mib),
        };
        node.start_again();
        node
    }

    /// Starts it, with what it knows of the cluster and no data.
    pub fn start_again(&mut self) {
        let flags = ["--ssd", "512M", "--report", "none"];
        let mut command = command(self.cap_mib, &flags, self.group.as_ref());
        let (port, bus) = (self.port.to_string(), self.bus.to_string());
        command.args(["redis-server", "--port", &port, "--cluster-port", &bus]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--cluster-enabled", "yes", "--cluster-node-timeout"]);
        command.args([SILENT_MS, "--repl-diskless-sync-delay", "0", "--dir"]);
        command.arg(&self.dir);
        self.server = Some(Server::start(&mut command, self.port));
    }

    /// Without a warning.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// What it answers to a command line.
    pub fn ask(&self, args: &[&str]) -> String {
        let (well, said) = cli(&[&["-p", &self.port.to_string()], args].concat());
        assert!(well, "{args:?}: {said}");
        said.trim().to_owned()
    }

    /// Waits until what it says of something has these words.
    pub fn await_word(&self, args: &[&str], word: &str) {
        let since = Instant::now();
        loop {
            let said = self.ask(args);
            if said.contains(word) {
                return;
            }
            assert!(since.elapsed() < LONGEST, "{word} never came: {said}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// `redis-cli`.
pub fn cli(args: &[&str]) -> (bool, String) {
    output(Command::new("redis-cli").args(args))
}

/// The slot of a key, as the cluster's specification has it: CRC16 (XMODEM).
pub fn slot(key: &str) -> u16 {
    let crc = key.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % SLOTS
}

/// What a node replies.
#[derive(Debug, PartialEq)]
pub enum Reply {
    Ok(String),
    Error(String),
    Value(Option<Vec<u8>>),
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn new(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream)))
    }

    fn send(&mut self, args: &[&[u8]]) -> Result<()> {
        let mut text = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            text.extend(format!("${}\r\n", arg.len()).bytes());
            text.extend(*arg);
            text.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&text)
    }

    fn receive(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let text = line.trim_end();
        match line.as_bytes().first() {
            Some(b'+' | b':') => Ok(Reply::Ok(text[1..].to_owned())),
            Some(b'-') => Ok(Reply::Error(text[1..].to_owned())),
            Some(b'$') if text == "$-1" => Ok(Reply::Value(None)),
            Some(b'$') => {
                let len: usize = text[1..].parse().map_err(Error::other)?;
                let mut value = vec![0; len + 2];
                self.0.read_exact(&mut value)?;
                value.truncate(len);
                Ok(Reply::Value(Some(value)))
            }
            _ => Err(Error::other(format!("a reply {text:?}"))),
        }
    }

    fn call(&mut self, args: &[&[u8]]) -> Result<Reply> {
        self.send(args)?;
        self.receive()
    }
}

/// See the head of the file.
pub struct Client {
    ports: Vec<u16>,
    owners: Vec<u16>,
    connections: HashMap<u16, Connection>,
}

impl Client {
    /// Of the nodes at these ports.
    pub fn new(ports: &[u16]) -> Client {
        Client {
            ports: ports.to_vec(),
            owners: vec![ports[0]; usize::from(SLOTS)],
            connections: HashMap::new(),
        }
    }

    fn connection(&mut self, port: u16) -> Result<&mut Connection> {
        use std::collections::hash_map::Entry;
        match self.connections.entry(port) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(none) => Ok(none.insert(Connection::new(port)?)),
        }
    }

    /// One command about a key, followed to where the key is. Answers at which port that was.
    pub fn call(&mut self, key: &str, args: &[&[u8]]) -> (Reply, u16) {
        let (since, mut turn) = (Instant::now(), 0);
        let owner = usize::from(slot(key));
        let (mut port, mut asking) = (self.owners[owner], false);
        loop {
            assert!(since.elapsed() < LONGEST, "{key} is nowhere to be had");
            let said = self.connection(port).and_then(|connection| {
                if asking {
                    connection.call(&[b"ASKING"])?;
                }
                connection.call(args)
            });
            asking = false;
            let why = match said {
                Ok(Reply::Error(why)) => why,
                Ok(reply) => return (reply, port),
                Err(_) => String::new(),
            };
            let to = why.rsplit(':').next().and_then(|port| port.parse().ok());
            match (why.split(' ').next().unwrap_or_default(), to) {
                ("MOVED", Some(to)) => {
                    self.owners[owner] = to;
                    port = to;
                }
                ("ASK", Some(to)) => (port, asking) = (to, true),
                ("TRYAGAIN" | "CLUSTERDOWN" | "LOADING", _) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                ("", _) => {
                    self.connections.remove(&port);
                    turn += 1;
                    port = self.ports[turn % self.ports.len()];
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => panic!("{key}: {why}"),
            }
        }
    }

    /// Stores a value. True: a replica has it too.
    pub fn set(&mut self, key: &str, value: &[u8]) -> bool {
        let (reply, port) = self.call(key, &[b"SET", key.as_bytes(), value]);
        assert_eq!(reply, Reply::Ok("OK".into()), "{key}");
        // On the same connection: WAIT is about what was written there.
        let said = self
            .connection(port)
            .and_then(|connection| connection.call(&[b"WAIT", b"1", b"100"]));
        matches!(said, Ok(Reply::Ok(n)) if n != "0")
    }

    /// Learns which slots are where, from what a node says of its nodes.
    pub fn learn(&mut self, nodes: &str) {
        for line in nodes.lines() {
            let mut words = line.split(' ');
            let address = words.nth(1).and_then(|address| address.split('@').next());
            let port = address.and_then(|address| address.rsplit(':').next()?.parse().ok());
            let port: u16 = port.unwrap_or_else(|| panic!("no address in {line}"));
            for range in words.skip(6) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                    continue;
                };
                self.owners[first..=last].fill(port);
            }
        }
    }

    /// Many commands about keys of slots that stay where they are, a hundred at a time to each node; every reply goes to `seen`, with the number of its
    /// command.
    pub fn many(
        &mut self,
        commands: impl Iterator<Item = (String, Vec<Vec<u8>>)>,
        mut seen: impl FnMut(usize, Reply),
    ) {
        let mut waiting: HashMap<u16, Vec<usize>> = HashMap::new();
        for (n, (key, args)) in commands.enumerate() {
            let port = self.owners[usize::from(slot(&key))];
            let connection = self.connection(port).expect("a connection");
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            connection.send(&args).expect("sent");
            let numbers = waiting.entry(port).or_default();
            numbers.push(n);
            if numbers.len() == TOGETHER {
                let numbers = std::mem::take(numbers);
                self.replies(port, numbers, &mut seen);
            }
        }
        for (port, numbers) in waiting {
            self.replies(port, numbers, &mut seen);
        }
    }

    fn replies(&mut self, port: u16, numbers: Vec<usize>, seen: &mut impl FnMut(usize, Reply)) {
        let connection = self.connection(port).expect("a connection");
        for n in numbers {
            seen(n, connection.receive().expect("a reply"));
        }
    }

    /// Waits until a replica of each node that was written to has it all.
    pub fn settle(&mut self) {
        for connection in self.connections.values_mut() {
            let said = connection.call(&[b"WAIT", b"1", b"30000"]);
            assert_eq!(said.expect("a reply"), Reply::Ok("1".into()));
        }
    }
}
