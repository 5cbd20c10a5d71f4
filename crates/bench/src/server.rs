//! The servers that are measured: ours and its peers, each started the same way.
//!
//! Promises that a server runs on the CPU and in the cgroup it was given, that it listens on loopback only, and that it is gone
//! before its cgroup is. Never measures; never keeps data of a peer.

use crate::bare;
use crate::cgroup::{Cgroup, Usage};
use crate::client::{self, Answer, Client};
use crate::load::Protocol;
use crate::process::{self, Guard};
use crate::stop;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server may take until it answers; ours may have to write its whole pool once first.
const READY_MAX_S: u64 = 300;
/// memcached's own number of buckets, as a power of two.
const HASHPOWER_MIN: u32 = 16;
/// How long a server may take to stop.
const STOP_MAX_S: u64 = 120;
/// Pause between two tries to reach a starting server; it bounds the error of a start's time.
const READY_PAUSE_US: u64 = 500;
/// Pause before a server that failed is looked at.
const EXPLAIN_PAUSE_MS: u64 = 100;
/// Extstore's ext_recache_rate where it recaches: every item that qualifies.
const RECACHE_RATE: u32 = 1;
/// Bound on one wait of the small client.
const CLIENT_WAIT_MAX_S: u64 = 60;

/// Who serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `terrace serve`.
    Terrace,
    /// The same, spoken to in memcached's words.
    TerraceMemcached,
    /// redis-server.
    Redis,
    /// memcached, all in DRAM.
    Memcached,
    /// memcached with extstore, which never brings an item back to DRAM.
    Extstore,
    /// memcached with extstore, which brings an item back to DRAM when it was read twice within a minute.
    ExtstoreRecaching,
    /// memcached that has all its items, in memory larger than DRAM or as it is.
    MemcachedOn(Memory),
    /// The least that serves a miss (`bare`).
    Bare,
    /// redis-server, likewise.
    RedisOn(Memory),
}

/// What memory a program has that knows nothing of Terrace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// `terrace run`'s.
    Run,
    /// The kernel's, with swap.
    Swap,
    /// The same with twice as much DRAM: what packing could come to at most, if it cost nothing.
    LargeSwap,
    /// The kernel's, as much as it wants.
    Plain,
}

impl Memory {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Run => "terrace run",
            Memory::Swap => "swap",
            Memory::LargeSwap => "swap, twice the memory",
            Memory::Plain => "without Terrace",
        }
    }
}

impl Peer {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Terrace => "terrace",
            Peer::TerraceMemcached => "terrace, memcached",
            Peer::Redis => "redis",
            Peer::Memcached => "memcached",
            Peer::Extstore => "extstore",
            Peer::ExtstoreRecaching => "extstore, recaching",
            Peer::Bare => "bare reads",
            Peer::MemcachedOn(memory) | Peer::RedisOn(memory) => memory.name(),
        }
    }

    /// What it understands.
    pub fn protocol(self) -> Protocol {
        match self {
            Peer::Terrace | Peer::Redis | Peer::RedisOn(_) | Peer::Bare => Protocol::Resp,
            Peer::TerraceMemcached
            | Peer::Memcached
            | Peer::Extstore
            | Peer::ExtstoreRecaching
            | Peer::MemcachedOn(_) => Protocol::Memcached,
        }
    }

    /// Whether it is ours.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            Peer::Terrace
                | Peer::TerraceMemcached
                | Peer::MemcachedOn(Memory::Run)
                | Peer::RedisOn(Memory::Run)
        )
    }

    /// Whether it may refuse a write or lose a key when room is short.
    pub fn is_cache(self) -> bool {
        matches!(
            self,
            Peer::Memcached | Peer::Extstore | Peer::ExtstoreRecaching
        )
    }

    /// Why it cannot run here, if so.
    pub fn missing(self) -> Option<&'static str> {
        let (program, why) = match self {
            Peer::Terrace | Peer::TerraceMemcached | Peer::Bare => return None,
            Peer::Redis | Peer::RedisOn(_) => (
                "redis-server",
                "not installed (apt-get install redis-server)",
            ),
            Peer::Memcached | Peer::Extstore | Peer::ExtstoreRecaching | Peer::MemcachedOn(_) => {
                ("memcached", "not installed (apt-get install memcached)")
            }
        };
        (!process::installed(program)).then_some(why)
    }
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// In DRAM; of a peer, without any persistence.
    Async,
    /// On the disk; of Redis, an append-only file with `appendfsync always`.
    Sync,
}

/// How to start a server.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Who.
    pub peer: Peer,
    /// The executable of ours.
    pub exe: PathBuf,
    /// Pool directory of ours, working directory of a peer.
    pub dir: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
    /// Bound on DRAM, ours and memcached's; what that bounds, each decides.
    pub dram_bytes: u64,
    /// Space on the SSD, ours and extstore's.
    pub ssd_bytes: u64,
    /// When it acknowledges.
    pub durability: Durability,
    /// The CPU it stays on; None lets it use all.
    pub cpu: Option<usize>,
    /// Threads that serve, ours and memcached's; Redis has one.
    pub threads: usize,
}

impl Spec {
    fn argv(&self, port: u16) -> Vec<String> {
        match self.peer {
            Peer::Terrace => self.terrace_argv(port),
            Peer::TerraceMemcached => {
                // Its other door has a port that nobody need know.
                let memcached = words(&["--memcached", &format!("127.0.0.1:{port}")]);
                [self.terrace_argv(0), memcached].concat()
            }
            Peer::Redis => self.redis_argv(port),
            Peer::Memcached => self.memcached_argv(port),
            Peer::Extstore => self.extstore_argv(port, 0),
            Peer::ExtstoreRecaching => self.extstore_argv(port, RECACHE_RATE),
            // It is to have all items, wherever they lie.
            Peer::MemcachedOn(memory) => {
                let mut argv = self.memcached_argv_of(port, self.ssd_bytes);
                // As many buckets from the start as it would grow to: growing looks at all items again, as does its crawler when it likes.
                let buckets = (self.ssd_bytes / (2 << 10)).max(1 << HASHPOWER_MIN);
                let hashpower = buckets.next_power_of_two().ilog2();
                argv.extend(["-o".into(), format!("hashpower={hashpower},no_lru_crawler")]);
                self.on(memory, argv)
            }
            Peer::RedisOn(memory) => self.on(memory, self.redis_argv(port)),
            Peer::Bare => bare::argv(&self.exe, &self.dir, port),
        }
    }

    fn on(&self, memory: Memory, argv: Vec<String>) -> Vec<String> {
        match memory {
            Memory::Run => under_run(
                &self.exe,
                &self.dir,
                &self.log.with_extension("report"),
                self.dram_bytes,
                self.ssd_bytes,
                argv,
            ),
            Memory::Swap | Memory::LargeSwap | Memory::Plain => argv,
        }
    }

    fn terrace_argv(&self, port: u16) -> Vec<String> {
        let durability = match self.durability {
            Durability::Async => "async",
            Durability::Sync => "sync",
        };
        words(&[
            &self.exe.display().to_string(),
            "serve",
            "--pool",
            &self.dir.display().to_string(),
            "--dram",
            &size_text(self.dram_bytes),
            "--ssd",
            &size_text(self.ssd_bytes),
            "--resp",
            &format!("127.0.0.1:{port}"),
            "--durability",
            durability,
            "--threads",
            &self.threads.to_string(),
        ])
    }

    fn redis_argv(&self, port: u16) -> Vec<String> {
        let aof = match self.durability {
            Durability::Async => "no",
            Durability::Sync => "yes",
        };
        words(&[
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--dir",
            &self.dir.display().to_string(),
            "--save",
            "",
            "--appendonly",
            aof,
            "--appendfsync",
            "always",
            "--daemonize",
            "no",
            // It would write its log anew every few seconds, on the processor that it serves from.
            "--auto-aof-rewrite-percentage",
            "0",
        ])
    }

    /// As root it wants to be told whom to run as; for anyone else it ignores that.
    fn memcached_argv(&self, port: u16) -> Vec<String> {
        self.memcached_argv_of(port, self.dram_bytes)
    }

    fn memcached_argv_of(&self, port: u16, items_bytes: u64) -> Vec<String> {
        words(&[
            "memcached",
            "-u",
            "root",
            "-l",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-U",
            "0",
            "-t",
            &self.threads.to_string(),
            "-m",
            &(items_bytes >> 20).to_string(),
        ])
    }

    /// Items go out at once and through large buffers: with its defaults it drops what comes faster than it writes.
    fn extstore_argv(&self, port: u16, recache_rate: u32) -> Vec<String> {
        let path = format!(
            "ext_path={}:{}m",
            self.dir.join("extstore").display(),
            self.ssd_bytes >> 20
        );
        let rest = format!(
            "ext_item_age=0,ext_wbuf_size=16,ext_threads=4,ext_recache_rate={recache_rate}"
        );
        [
            self.memcached_argv(port),
            words(&["-o", &format!("{path},{rest}")]),
        ]
        .concat()
    }
}

/// A command line under `terrace run`, with a pool in `dir` that goes with the program.
pub fn under_run(
    exe: &Path,
    dir: &Path,
    report: &Path,
    dram_bytes: u64,
    ssd_bytes: u64,
    argv: Vec<String>,
) -> Vec<String> {
    let run = words(&[
        "env",
        &format!("TMPDIR={}", dir.display()),
        &exe.display().to_string(),
        "run",
        "--dram",
        &size_text(dram_bytes),
        "--ssd",
        &size_text(ssd_bytes),
        "--report",
        &report.display().to_string(),
        "--",
    ]);
    [run, argv].concat()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// A size as ours takes it: a whole number of MiB as `M`, else of KiB as `K`.
fn size_text(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{}M", bytes >> 20)
    } else {
        format!("{}K", bytes >> 10)
    }
}

/// A running server. Fields in this order: the process must be gone before its group is removed.
#[derive(Debug)]
pub struct Server {
    guard: Guard,
    cgroup: Option<Cgroup>,
    addr: SocketAddr,
    started: Instant,
    peer: Peer,
}

impl Server {
    /// Starts a server and does not wait for it.
    pub fn start(spec: &Spec, cgroup: Option<Cgroup>) -> Result<Server> {
        fs::create_dir_all(&spec.dir).with_context(|| format!("making {}", spec.dir.display()))?;
        let port = free_port()?;
        let words = spec.argv(port);
        let argv: Vec<&str> = words.iter().map(String::as_str).collect();
        let started = Instant::now();
        let guard = Guard::start(&argv, cgroup.as_ref(), spec.cpu, &spec.log)?;
        Ok(Server {
            guard,
            cgroup,
            addr: (Ipv4Addr::LOCALHOST, port).into(),
            started,
            peer: spec.peer,
        })
    }

    /// Starts a server and waits until it answers.
    pub fn start_ready(spec: &Spec, cgroup: Option<Cgroup>) -> Result<Server> {
        let mut server = Server::start(spec, cgroup)?;
        match spec.peer.protocol() {
            Protocol::Resp => server.wait_for(&["PING"], |answer| {
                *answer == Answer::Text(b"PONG".to_vec())
            })?,
            Protocol::Memcached => server.wait_until("stats", |addr| {
                Ok(client::memcached_stats(addr, CLIENT_WAIT_MAX_S).is_ok())
            })?,
        };
        Ok(server)
    }

    /// Asks again and again until the `wanted` answer comes; returns the seconds from the start of the process to it.
    ///
    /// A server that cannot be reached or answers with an error (still loading) is asked again; any other answer is wrong, and
    /// fails at once.
    pub fn wait_for(&mut self, command: &[&str], wanted: impl Fn(&Answer) -> bool) -> Result<f64> {
        self.wait_until(command[0], |addr| {
            match Client::connect(addr, CLIENT_WAIT_MAX_S).and_then(|mut c| c.call(command)) {
                Ok(answer) if wanted(&answer) => Ok(true),
                Ok(Answer::Error(_)) | Err(_) => Ok(false),
                Ok(answer) => bail!("{} was answered with {answer}", command.join(" ")),
            }
        })
    }

    fn wait_until(
        &mut self,
        what: &str,
        answers: impl Fn(SocketAddr) -> Result<bool>,
    ) -> Result<f64> {
        loop {
            stop::check()?;
            self.guard.check_running()?;
            if answers(self.addr)? {
                return Ok(self.started.elapsed().as_secs_f64());
            }
            if self.started.elapsed().as_secs() > READY_MAX_S {
                bail!(
                    "`{}` did not answer {what} within {READY_MAX_S} s",
                    self.guard.argv()
                );
            }
            std::thread::sleep(Duration::from_micros(READY_PAUSE_US));
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Its command line.
    pub fn argv(&self) -> &str {
        self.guard.argv()
    }

    /// What its cgroup went through; None without one.
    pub fn usage(&self) -> Option<Usage> {
        self.cgroup.as_ref().map(Cgroup::usage)
    }

    /// The numbers of its INFO, or of memcached's `stats`.
    pub fn info(&self) -> Result<HashMap<String, f64>> {
        match self.peer.protocol() {
            Protocol::Resp => Client::connect(self.addr, CLIENT_WAIT_MAX_S)?.info(),
            Protocol::Memcached => client::memcached_stats(self.addr, CLIENT_WAIT_MAX_S),
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.guard.pid()
    }

    /// Stops it where it is, or lets it go on.
    pub fn pause(&self, pause: bool) -> Result<()> {
        let signal = if pause { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_raw(self.pid() as i32).context("a process")?;
        kill_process(pid, signal).with_context(|| format!("stopping process {}", self.pid()))
    }

    /// Whether it is a program under `terrace run`.
    pub fn is_under_run(&self) -> bool {
        matches!(
            self.peer,
            Peer::MemcachedOn(Memory::Run) | Peer::RedisOn(Memory::Run)
        )
    }

    /// CPU time it has used, seconds.
    pub fn cpu_s(&self) -> Option<f64> {
        self.guard.cpu_s()
    }

    /// The number of its keys.
    pub fn dbsize(&self) -> Result<u64> {
        match Client::connect(self.addr, CLIENT_WAIT_MAX_S)?.call(&["DBSIZE"])? {
            Answer::Number(n) => u64::try_from(n).context("DBSIZE below zero"),
            other => bail!("DBSIZE was answered with {other}"),
        }
    }

    /// Fails with its log when it has ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.guard.check_running()
    }

    /// Puts the reason before an error that a dead server caused: how it ended, and whether for want of memory.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        // A killed process closes its sockets a moment before it can be waited for.
        std::thread::sleep(Duration::from_millis(EXPLAIN_PAUSE_MS));
        let Err(ended) = self.guard.check_running() else {
            return error;
        };
        let kills = self.usage().and_then(|usage| usage.oom_kills).unwrap_or(0);
        let why = if kills > 0 {
            ", killed by its cgroup for want of memory"
        } else {
            ""
        };
        error.context(format!("{ended:#}{why}"))
    }

    /// Stops it with SHUTDOWN and waits for its end; fails when it ends with an error.
    pub fn shut_down(mut self) -> Result<()> {
        let mut client = Client::connect(self.addr, CLIENT_WAIT_MAX_S)?;
        // A server that stops well closes the connection instead of answering.
        if let Ok(Answer::Error(text)) = client.call(&["SHUTDOWN"]) {
            bail!("`{}` refused to shut down: {text}", self.guard.argv());
        }
        let status = self.guard.wait_max(STOP_MAX_S)?;
        if !status.success() {
            bail!("`{}` ended with {status} after SHUTDOWN", self.guard.argv());
        }
        Ok(())
    }

    /// Ours must stop well; of a peer nothing is kept, so it is killed.
    pub fn stop(self) -> Result<()> {
        match self.peer {
            Peer::Terrace => self.shut_down(),
            _ => self.kill(),
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.guard.kill().map(drop)
    }
}

fn free_port() -> Result<u16> {
    // The port could be taken by another process until the server binds it; then the server says so and the run fails.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Takes both checkpoints of a stopped pool of ours away, so that the next start must read its log.
pub fn drop_checkpoints(exe: &Path, pool: &Path) -> Result<()> {
    process::run(&[
        &exe.display().to_string(),
        "pool",
        "drop-checkpoints",
        &pool.display().to_string(),
    ])
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argv_of_ours_follows_the_contract() {
        let spec = Spec {
            peer: Peer::Terrace,
            exe: "t".into(),
            dir: "/p".into(),
            log: "/l".into(),
            dram_bytes: 256 << 20,
            ssd_bytes: 4 << 30,
            durability: Durability::Async,
            cpu: Some(0),
            threads: 1,
        };
        let argv = spec.argv(7000).join(" ");
        let contract = "t serve --pool /p --dram 256M --ssd 4096M --resp 127.0.0.1:7000 --durability async --threads 1";
        assert_eq!(argv, contract);
        let redis = Spec {
            peer: Peer::Redis,
            ..spec.clone()
        }
        .argv(7000);
        let extstore = Spec {
            peer: Peer::Extstore,
            ..spec.clone()
        }
        .argv(7000);
        assert_eq!(
            extstore.last().unwrap(),
            "ext_path=/p/extstore:4096m,ext_item_age=0,ext_wbuf_size=16,ext_threads=4,ext_recache_rate=0"
        );
        let redis = redis.join(" ");
        assert!(redis.contains("--save  --appendonly no"), "{redis}");
        let memcached = Spec {
            peer: Peer::MemcachedOn(Memory::Run),
            ..spec.clone()
        }
        .argv(7000)
        .join(" ");
        assert_eq!(
            memcached,
            "env TMPDIR=/p t run --dram 256M --ssd 4096M --report /l.report -- memcached -u root -l 127.0.0.1 -p 7000 -U 0 -t 1 -m 4096 -o hashpower=21,no_lru_crawler"
        );
        assert_eq!(size_text(1 << 10), "1K");
    }
}
