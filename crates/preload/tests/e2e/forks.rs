//! Programs that fork under `terrace run`: each process sees its own memory, whatever the others write; what children held comes back.

use crate::support::{command, compiled, ended, ended_within, group, judge, output, reported};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

const CAP_MIB: u64 = 32;

#[test]
fn e2e_children_see_memory_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "fork.c", &[]);
    let group = group(CAP_MIB);
    let (well, said) = output(command(CAP_MIB, &["--ssd", "1G"], group.as_ref()).arg(program));
    assert!(well && said.contains("OK"), "{said}");
    assert!(reported(&said, "served_malloc_bytes") > 3 * (CAP_MIB << 20));
    judge("fork", group.as_ref());
}

#[test]
fn e2e_a_fork_without_room_for_its_memory_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "fork.c", &[]);
    // Room for one version, and not for two.
    let (well, said) = output(command(CAP_MIB, &["--ssd", "170M"], None).arg(program));
    assert!(
        !well && said.contains("fork: Cannot allocate memory"),
        "{said}"
    );
}

/// What a parent knows of its blocks is copied when it writes to it while a child lives: that is within the cap, too.
#[test]
fn e2e_what_is_copied_after_a_fork_is_under_the_cap() {
    const CAP_MIB: u64 = 48;
    /// The program's own memory beside what it allocates, and what the kernel's counts are late.
    const BESIDE_MIB: u64 = 4;
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let program = compiled(dir.path(), "blocks.c", &[]);
    let group = group(CAP_MIB);
    let mut command = command(CAP_MIB, &["--ssd", "4G"], group.as_ref());
    let ended = ended_within(command.arg(program).arg("1024"), LONGEST);
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let kib = said
        .strip_suffix(" KiB OK\n")
        .and_then(|n| n.parse::<u64>().ok());
    let kib = kib.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&ended.stderr)));
    assert!(kib <= (CAP_MIB + BESIDE_MIB) << 10, "{kib} KiB");
    judge("what is copied after a fork", group.as_ref());
}

/// What programs of these tests do, done by a child of a process that has memory.
fn in_child(faults: &str, source: &str, args: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/in_child.h");
    let flags = [
        "-Wno-alloc-size-larger-than",
        "-include",
        header.to_str().expect("a name"),
    ];
    let program = compiled(dir.path(), source, &flags);
    let group = group(CAP_MIB);
    let more = ["--ssd", "1G", "--faults", faults];
    let mut command = command(CAP_MIB, &more, group.as_ref());
    let (well, said) = output(command.arg(program).args(args).current_dir(dir.path()));
    assert!(well && said.contains("OK\n"), "{faults} {source}: {said}");
    judge(source, group.as_ref());
}

#[test]
fn e2e_a_child_with_memory_may_do_what_its_parent_may() {
    in_child("auto", "calls.c", &[".", "in-thread"]);
    in_child("thread", "calls.c", &["."]);
    for source in ["asked.c", "dispatch.c", "maps.c", "throws.cpp"] {
        in_child("auto", source, &[]);
    }
    in_child("auto", "in_place.c", &["rules", "copied"]);
    let alike = ["threads", "options", "many", "messages", "positions"];
    in_child("auto", "alike.c", &alike);
    in_child("auto", "alike.c", &["started", "stacks"]);
}

/// A child that was forked while another thread opened the pool, or had a lock of the runtime's, waited for it for ever.
#[test]
fn e2e_forks_while_another_thread_opens_the_pool() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "opens.c", &[]);
    for nth in 0..20 {
        let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
        let microseconds = (nth * 97).to_string();
        let ended = ended_within(command.arg(&program).arg(microseconds), LONGEST);
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said == "OK\n", "{ended:?}");
    }
}

/// Children get of the cap what their parent does not use, and give it back when it does.
#[test]
fn e2e_children_have_what_their_parent_does_not_use() {
    const CAP_MIB: u64 = 256;
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let program = compiled(dir.path(), "shares.c", &[]);
    let group = group(CAP_MIB);
    let mut command = command(CAP_MIB, &["--ssd", "4G"], group.as_ref());
    let ended = ended_within(command.arg(program), LONGEST * 3);
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let report = String::from_utf8_lossy(&ended.stderr);
    let numbers = said.strip_suffix(" OK\n").map(|numbers| {
        let numbers = numbers.split(' ').map(|n| n.parse::<u64>().ok());
        numbers.collect::<Option<Vec<u64>>>()
    });
    let Some(Some(numbers)) = numbers else {
        panic!("{said}{report}");
    };
    // Of 96 MiB that there are for both.
    let [grown, left] = numbers[..] else {
        panic!("{said}");
    };
    println!("children had {grown} KiB, and {left} KiB when their parent needed it");
    assert!(grown >= 64 << 10, "{said}");
    assert!(left <= 40 << 10, "{said}{report}");
    judge("children's shares", group.as_ref());
}

/// A parent that writes all of its memory again and again, while a child lives that has it as it was: `memory_mib` under a cap, with room on the SSD for
/// little more than two versions.
fn grows(cap_mib: u64, memory_mib: u64, ssd_mib: u64, seconds: u64) {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let program = compiled(dir.path(), "grows.c", &[]);
    let pool = dir.path().join("pool");
    let (ssd, name) = (format!("{ssd_mib}M"), pool.to_str().expect("a name"));
    let group = group(cap_mib);
    let mut command = command(cap_mib, &["--ssd", &ssd, "--pool", name], group.as_ref());
    let (memory, seconds) = (memory_mib.to_string(), seconds.to_string());
    let timeout = LONGEST.as_secs() * 2 + seconds.parse::<u64>().expect("a number");
    let run = command.arg(program).args([&memory, &seconds]);
    let ended = ended_within(run, Duration::from_secs(timeout));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let report = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}{report}");
    let rounds = said.strip_suffix(" rounds OK\n");
    let rounds: u64 = rounds.and_then(|n| n.parse().ok()).expect("rounds");
    // More was written than there is room for, and the file is no longer than it may be.
    assert!(rounds * memory_mib > ssd_mib, "{rounds} rounds");
    let bytes = reported(&report, "device_bytes_written");
    assert!(bytes > ssd_mib << 20, "{report}");
    let data = std::fs::metadata(pool.join("data")).expect("the pool");
    assert!(data.len() <= ssd_mib << 20, "{} bytes", data.len());
    let counted = reported(&report, "dram_counted_bytes");
    assert!(counted <= cap_mib << 20, "{report}");
    judge("a child that lives long", group.as_ref());
}

#[test]
fn e2e_a_child_that_lives_long_keeps_its_memory_and_the_pool_does_not_grow() {
    grows(16, 24, 80, 1);
}

#[test]
#[ignore = "runs for SOAK_SECONDS"]
fn soak_a_child_that_lives_long() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(60, |s| s.parse().expect("a number"));
    grows(32, 64, 180, seconds);
}

#[test]
fn e2e_shells_and_what_they_start_run_as_ever() {
    let script = "x=$(seq 1 300000 | tail -n1); y=$(printf '%s' \"$x\" | (read -r a; echo \"$a\")); \
                  seq 1 200000 | sort -rn | head -n1; echo \"$x $y\"; exit 7";
    let mut command = command(CAP_MIB, &["--report", "none"], None);
    let ended = ended(command.args(["bash", "-c", script]));
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said.trim(), "200000\n300000 300000");
    assert_eq!(ended.status.code(), Some(7));
    assert!(
        ended.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

/// An end, or a line, comes sooner.
const LONGEST: Duration = Duration::from_secs(60);

/// A program that became a daemon late: its parent has ended, and stays.
struct Daemon {
    dir: tempfile::TempDir,
    /// The process that `terrace run` became.
    keeper: Child,
    error: BufReader<ChildStderr>,
    pid: i32,
}

impl Daemon {
    /// Comes back when the keeper has said what it does.
    fn start() -> Daemon {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let program = compiled(dir.path(), "odd.c", &[]);
        std::fs::create_dir(dir.path().join("scratch")).expect("a directory");
        let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
        command.env("TMPDIR", dir.path().join("scratch"));
        command.arg(program).arg("daemon").args(files(dir.path()));
        let mut mkfifo = std::process::Command::new("mkfifo");
        let made = mkfifo.arg(&files(dir.path())[1]).status();
        assert!(made.expect("mkfifo").success());
        let mut keeper = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut printed = String::new();
        let mut out = keeper.stdout.take().expect("a pipe");
        let mut error = BufReader::new(keeper.stderr.take().expect("a pipe"));
        let mut line = String::new();
        error.read_line(&mut line).expect("a line");
        let said = format!("process {} has ended, and stays until 1", keeper.id());
        assert!(line.contains(&said), "{line}");
        let pid = wait_for(|| {
            let said = std::fs::read_to_string(&files(dir.path())[0]).ok()?;
            said.strip_prefix("pid ")?.trim().parse().ok()
        });
        assert!(keeper.try_wait().expect("its status").is_none());
        // The daemon has it open still: what there is, is what the parent printed.
        let mut byte = [0; 8];
        out.read_exact(&mut byte).expect("what was printed");
        printed.push_str(std::str::from_utf8(&byte).expect("text"));
        assert_eq!(printed, "started\n");
        Daemon {
            dir,
            keeper,
            error,
            pid,
        }
    }

    fn tell(&self, pid: i32, signal: i32) {
        // SAFETY: processes of this test that were not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Lets the daemon go on to its end.
    fn go(&self) {
        std::fs::write(&files(self.dir.path())[1], b"x").expect("it reads");
    }

    /// The keeper's status; then nothing of either is there.
    fn ended(&mut self, said: &str) -> std::process::ExitStatus {
        let status = wait_for(|| self.keeper.try_wait().expect("its status"));
        let result = std::fs::read_to_string(&files(self.dir.path())[0]).expect("a result");
        assert_eq!(result, format!("pid {}\n{said}", self.pid));
        let left = std::fs::read_dir(self.dir.path().join("scratch")).expect("it is there");
        assert_eq!(left.count(), 0);
        let names = std::fs::read_to_string("/proc/net/unix").expect("sockets");
        let name = format!("@terrace-run-{}\n", self.keeper.id());
        assert!(!names.contains(&name), "{names}");
        status
    }

    fn rest_of_stderr(&mut self) -> String {
        let mut rest = String::new();
        self.error.read_to_string(&mut rest).expect("text");
        rest
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both may have ended.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        // SAFETY: the daemon, which ends with its memory in any case.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

fn files(dir: &Path) -> [PathBuf; 2] {
    ["result", "fifo"].map(|name| dir.join(name))
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(there) = what() {
            return there;
        }
        assert!(since.elapsed() < LONGEST, "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn e2e_a_late_daemon_keeps_its_memory_and_its_parents_status_comes_when_it_ends() {
    let mut daemon = Daemon::start();
    let keeper = daemon.keeper.id().cast_signed();
    // What a terminal sends to those in front of it is not for those that left it.
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        daemon.tell(keeper, signal);
    }
    daemon.go();
    assert_eq!(daemon.ended("read OK\n").code(), Some(7));
    assert_eq!(daemon.rest_of_stderr(), "");
}

#[test]
fn e2e_sigterm_to_a_parent_that_stays_is_its_daemons() {
    let mut daemon = Daemon::start();
    let keeper = daemon.keeper.id().cast_signed();
    daemon.tell(keeper, libc::SIGTERM);
    assert_eq!(daemon.ended("told OK\n").code(), Some(7));
    assert_eq!(daemon.rest_of_stderr(), "");
}

#[test]
fn e2e_sigkill_to_a_parent_that_stays_takes_its_daemons_memory_and_that_is_said() {
    let mut daemon = Daemon::start();
    let keeper = daemon.keeper.id().cast_signed();
    daemon.tell(keeper, libc::SIGKILL);
    assert_eq!(daemon.ended("").signal(), Some(libc::SIGKILL));
    daemon.go();
    let said = daemon.rest_of_stderr();
    assert!(said.contains("SIGBUS: page "), "{said}");
    let why = "cannot be had: the process that has the pool is gone";
    assert!(said.contains(why), "{said}");
}
