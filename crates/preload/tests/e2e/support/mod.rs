//! What the end-to-end tests of `terrace run` share: programs under it, in a cgroup where one can be made, with everything cleaned up on failure too.

#[path = "../../../../server/tests/e2e/support/cgroup.rs"]
#[allow(dead_code)] // The server's tests use all of it.
pub mod cgroup;
pub mod cluster;
#[path = "../../../../server/tests/e2e/support/port.rs"]
mod port;
mod stuck;

use cgroup::Cgroup;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What a process may have beside the cap.
pub const ABOVE_CAP_BYTES: u64 = 32 << 20;
/// A start or an end takes no longer.
const LONGEST: Duration = Duration::from_secs(60);
/// Nor does a whole program, on a slow machine, beside other tests.
const LONGEST_RUN: Duration = Duration::from_secs(180);

/// The binary under test.
///
/// # Panics
/// When there is none.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("TERRACE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("the path of the test");
    let built = test.ancestors().nth(3).expect("a build directory");
    let found = ["release", "debug"].map(|profile| built.join(profile).join("terrace"));
    let found = found.iter().find(|path| path.is_file()).cloned();
    found.unwrap_or_else(|| panic!("no terrace in {}; run: make build", built.display()))
}

/// A compiled C or C++ program of `tests/c`.
pub fn compiled(dir: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(source);
    let out = dir.join(source.replace('.', "_"));
    let compiler = if source.ends_with(".c") { "cc" } else { "c++" };
    let status = Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-pthread", "-o"])
        .args([&out, &path])
        .args(flags)
        .status()
        .expect("a compiler");
    assert!(status.success(), "{source} does not compile");
    out
}

/// Copies a program, to be executed from there, into a directory.
///
/// Another process does it: what this one has open for writing, a child that another test has just forked has open, too, until it executes its
/// program, and a file that somebody may write to is not executed.
pub fn copied(program: &Path, into: &Path) {
    let status = Command::new("cp")
        .arg("--preserve=mode")
        .arg(program)
        .arg(into)
        .status();
    let said = format!("{} cannot be copied", program.display());
    assert!(status.expect("cp").success(), "{said}");
}

/// `terrace run` with a cap in MiB and more flags, then the program.
pub fn command(cap_mib: u64, more: &[&str], group: Option<&Cgroup>) -> Command {
    let mut command = Command::new(binary());
    command
        .args(["run", "--dram", &format!("{cap_mib}M")])
        .args(more)
        .arg("--")
        .stdin(Stdio::null());
    if let Some(group) = group {
        let file = group.procs_file();
        // SAFETY: opens and writes a file, which is allowed between fork and exec.
        unsafe { command.pre_exec(move || std::fs::write(&file, b"0")) };
    }
    command
}

/// A group of the cap and what is allowed beside it; none, with the reason said, where none can be made.
pub fn group(cap_mib: u64) -> Option<Cgroup> {
    let group = Cgroup::new((cap_mib << 20) + ABOVE_CAP_BYTES);
    group.map_err(|why| println!("not judged: {why}")).ok()
}

/// Nothing was killed in the group, and it never wanted more than its limit in vain.
pub fn judge(name: &str, group: Option<&Cgroup>) {
    let Some(group) = group else { return };
    println!("{name}: {}", group.report());
    assert_eq!(
        group.oom_kills().unwrap_or(0),
        0,
        "{name}: {}",
        group.report()
    );
}

/// Runs a program to its end.
///
/// # Panics
/// When it takes longer than any program of these tests, with where its threads are; it is killed then, with all of its
/// processes.
pub fn ended(command: &mut Command) -> Output {
    ended_within(command, LONGEST_RUN)
}

/// The same, for one that may take so long.
///
/// # Panics
/// As there.
pub fn ended_within(command: &mut Command, longest: Duration) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn().expect("it starts");
    let group = child.id();
    let read = |from: Option<Box<dyn Read + Send>>| {
        let mut from = from.expect("a pipe");
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).map(|_| bytes)
        })
    };
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let since = Instant::now();
    // The program may have ended while a child of it holds the pipes.
    while !stdout.is_finished() || !stderr.is_finished() {
        if since.elapsed() > longest {
            let state = stuck::state(group);
            // SAFETY: the group is of a child that was not waited for.
            unsafe { libc::kill(-(group as i32), libc::SIGKILL) };
            panic!("{command:?} does not end:\n{state}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let [stdout, stderr] =
        [stdout, stderr].map(|pipe| pipe.join().expect("a reader").expect("its output"));
    Output {
        status: child.wait().expect("its status"),
        stdout,
        stderr,
    }
}

/// The same: whether it ended well, and what it printed.
pub fn output(command: &mut Command) -> (bool, String) {
    let ended = ended(command);
    let [out, error] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    (ended.status.success(), format!("{out}{error}"))
}

/// A number of the report.
pub fn reported(report: &str, name: &str) -> u64 {
    let line = report.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in: {report}"))
}

/// A port of loopback that is free now.
pub fn free_port() -> u16 {
    port::free_addr().port()
}

/// A server under `terrace run`; dropped, it is killed.
pub struct Server {
    pub child: Child,
    pub addr: SocketAddr,
}

impl Server {
    /// Starts it, and waits until it takes connections.
    pub fn start(command: &mut Command, port: u16) -> Server {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let child = command.stdout(Stdio::null()).spawn().expect("it starts");
        let mut server = Server { child, addr };
        let since = Instant::now();
        while TcpStream::connect(addr).is_err() {
            let ended = server.child.try_wait().expect("its status");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            assert!(since.elapsed() < LONGEST, "the server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).expect("a connection");
        stream.set_read_timeout(Some(LONGEST)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    /// Asks it to end, and waits for that.
    pub fn stop(mut self) -> std::process::ExitStatus {
        let pid = i32::try_from(self.child.id()).expect("a process");
        // SAFETY: our own child, which was not waited for.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status;
            }
            assert!(since.elapsed() < LONGEST, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that depend on a number, half of them the same.
pub fn value(n: u64, len: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len / 2 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.resize(len, n as u8);
    // No line ends: some protocols have them between values.
    bytes.iter_mut().for_each(|byte| *byte |= 0x20);
    bytes
}
