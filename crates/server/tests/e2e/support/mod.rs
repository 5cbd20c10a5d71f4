//! What the long end-to-end tests share: the real binary on a pool of its own, with everything cleaned up on failure
//! too; seeded random numbers; values that can be told from one another. It fails where there is no binary to test:
//! a test that quietly does nothing would count as passed.

pub mod certs;
pub mod cgroup;
pub mod oracle;
pub mod port;
pub mod python;
pub mod resp;
pub mod turns;

use std::fs::{self, File, OpenOptions};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use cgroup::Cgroup;
pub use port::free_addr;
use resp::{Client, Reply};
use turns::Beside;
pub use turns::{alone, beside, busy};

/// A start takes no longer, the making of the pool included.
const START_MAX: Duration = Duration::from_secs(60);
/// A clean stop takes no longer.
const STOP_MAX: Duration = Duration::from_secs(60);

/// The binary under test: TERRACE_BIN, else the release or debug one of the build directory this test lies in.
///
/// # Panics
/// When there is none.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("TERRACE_BIN") {
        let named = PathBuf::from(named);
        assert!(
            named.is_file(),
            "TERRACE_BIN is {}, which is no file; build it with: cargo build --release",
            named.display()
        );
        return named;
    }
    let test = std::env::current_exe().expect("the path of the test");
    let build_dir = test
        .ancestors()
        .nth(3)
        .expect("a build directory")
        .to_path_buf();
    ["release", "debug"]
        .iter()
        .map(|profile| build_dir.join(profile).join("terrace"))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!(
                "no terrace binary in {}; build it with: cargo build --release",
                build_dir.display()
            )
        })
}

/// How long soak tests run.
pub fn soak_time() -> Duration {
    let asked = std::env::var("SOAK_SECONDS").unwrap_or_else(|_| "3600".into());
    Duration::from_secs(asked.parse().expect("SOAK_SECONDS is a number of seconds"))
}

/// The seed of a run: TERRACE_SEED when a failure is to be repeated, else of this moment.
pub fn seed() -> u64 {
    match std::env::var("TERRACE_SEED") {
        Ok(text) => text.parse().expect("TERRACE_SEED is a number"),
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64),
    }
}

/// A directory below the system's temporary one that goes away with its owner, which has its turn as long.
pub struct TempDir {
    path: PathBuf,
    kept: bool,
    _turn: Beside,
}

impl TempDir {
    /// Makes it. No two tests have the same name.
    pub fn new(name: &str) -> TempDir {
        let _turn = beside();
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a temporary directory");
        TempDir {
            path,
            kept: false,
            _turn,
        }
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Where its pool is to be.
    pub fn pool(&self) -> PathBuf {
        self.path.join("pool")
    }
    /// Leaves it there, for who looks why the test failed.
    pub fn keep(&mut self) -> &Path {
        self.kept = true;
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What the server said is worth more than the reader's guess.
            let log = fs::read_to_string(self.path.join("pool.log")).unwrap_or_default();
            let from = log.len().saturating_sub(4_000);
            eprintln!(
                "the server's last words:\n{}",
                log.get(from..).unwrap_or(&log)
            );
        }
        if !self.kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> Output {
    Command::new(binary())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// What it printed: stdout and stderr.
pub fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// A running server; dropped, it is killed.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub addr: SocketAddr,
    /// From its start to its first reply.
    pub first_reply: Duration,
}

impl Server {
    /// Starts on a pool (made when missing) with more arguments, and waits for its first reply.
    pub fn start(pool: &Path, args: &[&str]) -> Server {
        Server::start_in(pool, args, None)
    }

    /// The same in a memory cgroup.
    pub fn start_in(pool: &Path, args: &[&str], group: Option<&Cgroup>) -> Server {
        let mut server = Server::spawn(pool, args, group);
        let begun = Instant::now();
        loop {
            if let Some(status) = server.child.try_wait().expect("a child") {
                let log = fs::read_to_string(log_path(pool)).unwrap_or_default();
                panic!("the server ended before it served ({status}):\n{log}");
            }
            assert!(begun.elapsed() < START_MAX, "no reply in {START_MAX:?}");
            if TcpStream::connect(server.addr).is_ok() {
                let mut client = server.client();
                if client.try_call(&[b"PING"]).is_ok() {
                    server.first_reply = begun.elapsed();
                    server.is_who_answers(&mut client);
                    return server;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts it and waits for nothing.
    pub fn spawn(pool: &Path, args: &[&str], group: Option<&Cgroup>) -> Server {
        let addr = free_addr();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log_path(pool))
            .expect("a file for the log");
        let mut command = match group {
            // The shell enters the group and then becomes the server, so that every byte of it is counted.
            Some(group) => {
                let mut command = Command::new("sh");
                command
                    .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
                    .arg(group.procs_file())
                    .arg(binary());
                command
            }
            None => Command::new(binary()),
        };
        let child = command
            .args(["serve", "--resp", &addr.to_string(), "--pool"])
            .arg(pool)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the server starts");
        Server {
            child,
            addr,
            first_reply: Duration::ZERO,
        }
    }

    /// Another server may have its port. Who asks for a password first does not tell.
    fn is_who_answers(&self, client: &mut Client) {
        let Ok(Reply::Bulk(text)) = client.try_call(&[b"INFO", b"server"]) else {
            return;
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let pid = text.lines().find_map(|l| l.strip_prefix("process_id:"));
        let (own, addr) = (self.pid().to_string(), self.addr);
        assert!(
            pid.is_some_and(|pid| pid.trim() == own),
            "the server at {addr} is not the one that was started, {own}: {text}"
        );
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs still.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.kill_now();
    }

    /// kill -9 of one that others look at.
    pub fn kill_now(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// A signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("the server can be signalled");
    }

    /// SHUTDOWN; must end well.
    pub fn shutdown(mut self) {
        self.client()
            .send(&[b"SHUTDOWN"])
            .expect("SHUTDOWN is sent");
        self.ended_well();
    }

    /// SIGTERM; must end well.
    pub fn terminate(mut self) {
        self.signal(Signal::TERM);
        self.ended_well();
    }

    fn ended_well(&mut self) {
        let status = self.wait(STOP_MAX);
        assert!(status.success(), "a clean stop ended with {status}");
    }

    /// Its end, which must come in time.
    pub fn wait(&mut self, at_most: Duration) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < at_most, "not stopped in {at_most:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A figure of /proc/PID/status in bytes, like VmRSS; 0 when it is gone.
    pub fn status_bytes(&self, name: &str) -> u64 {
        status_bytes(self.child.id(), name)
    }
}

/// A figure of /proc/PID/status in bytes, like VmRSS; 0 when the process is gone.
pub fn status_bytes(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| {
        l.strip_prefix(':')?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    })
    .map_or(0, |kib| kib << 10)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_now();
    }
}

/// Where the server's words go: beside the pool, so that it goes with the directory.
pub fn log_path(pool: &Path) -> PathBuf {
    pool.with_extension("log")
}

/// Flips one bit of a file, durably.
pub fn flip_bit(file: &File, offset: u64, bit: u8) {
    use std::os::unix::fs::FileExt;
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, offset).expect("a byte there");
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, offset).expect("a byte written");
    file.sync_all().expect("a byte on the disk");
}

/// Random numbers from a seed.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// From a seed and what it is for.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        let mut rng = Rng(seed ^ purpose.wrapping_mul(0xa076_1d64_78bd_642f));
        rng.next();
        rng
    }
    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number of a range, its end excluded.
    pub fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }
    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
    /// A length between two, small ones as likely as large ones by their order of magnitude.
    pub fn length(&mut self, least: u64, most: u64) -> usize {
        let (low, high) = ((least as f64).ln(), (most as f64).ln());
        let unit = self.next() as f64 / u64::MAX as f64;
        ((low + (high - low) * unit).exp() as u64).clamp(least, most) as usize
    }
    /// Fills a buffer.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// The value that belongs to an id: no two ids have equal ones of 8 bytes or more.
pub fn value_of(id: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    Rng::new(id, 0x76a1).fill(&mut value);
    let own = id.to_le_bytes();
    let n = len.min(8);
    value[..n].copy_from_slice(&own[..n]);
    value
}
