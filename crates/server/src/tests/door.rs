//! How connections come in: what their sockets are set to, and what happens when there are no files for them.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::SockRef;

use super::{Running, Talk, plain};
use crate::limits::{KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES};

#[test]
fn the_kernel_asks_whether_a_silent_client_is_still_there() {
    let listener = crate::listening(([127, 0, 0, 1], 0).into()).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = loop {
        match listener.accept() {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            accepted => break accepted.unwrap(),
        }
    };
    let socket = SockRef::from(&accepted);
    assert!(socket.keepalive().unwrap());
    let seconds = Duration::from_secs;
    assert_eq!(
        socket.tcp_keepalive_time().unwrap(),
        seconds(KEEPALIVE_IDLE_S)
    );
    assert_eq!(
        socket.tcp_keepalive_interval().unwrap(),
        seconds(KEEPALIVE_INTERVAL_S)
    );
    assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
}

/// Says that a process is the one that `few_files` is for.
const CHILD: &str = "TERRACE_TEST_FEW_FILES";

#[test]
fn without_files_it_accepts_later_and_does_not_turn_in_vain() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::door::few_files", "--ignored"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

/// The processor's time of this process, in hundredths of a second.
fn used(stat: &mut File) -> u64 {
    let mut text = String::new();
    stat.rewind().unwrap();
    stat.read_to_string(&mut text).unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13]
        .iter()
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

#[test]
#[ignore = "lowers its process's limit of open files: the test above runs it in a process of its own"]
fn few_files() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let server = Running::start(plain(), 1);
    let mut first = server.client();
    assert_eq!(first.ask(&["PING"]), "+PONG\r\n");
    let mut stat = File::open("/proc/self/stat").unwrap();
    let limit = getrlimit(Resource::Nofile);
    let current = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // The last one is the client's own.
    taken.pop();
    let mut second = Talk::new(server.addr);
    std::thread::sleep(Duration::from_millis(300));
    let before = used(&mut stat);
    std::thread::sleep(Duration::from_secs(1));
    let used = used(&mut stat) - before;
    // An attempt takes microseconds. The processors may have much else to do.
    assert!(used < 10, "{used} hundredths of a second of a second");
    assert_eq!(first.ask(&["PING"]), "+PONG\r\n");
    drop(taken);
    let since = Instant::now();
    assert_eq!(second.ask(&["PING"]), "+PONG\r\n");
    assert!(since.elapsed() < Duration::from_secs(2));
    drop((first, second));
    server.stop();
}
