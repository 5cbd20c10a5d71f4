//! What fails under `terrace run` fails for what needs it, with the reason, in bounded time, and for nothing else: the SSD is full, the device does not
//! write, the pool is cut short, removed, another's, or the cap is too small.

use crate::support::{self, command, compiled, copied, output};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CAP_MIB: u64 = 32;
/// An end takes no longer: a fault that cannot be served waits ten seconds for room, and there are four handlers.
const LONGEST: Duration = Duration::from_secs(60);

fn dir() -> tempfile::TempDir {
    let made = tempfile::Builder::new().tempdir_in("/var/tmp");
    made.expect("a directory")
}

/// A program of `odd.c` that has filled its memory in a pool, and waits for a word.
struct Waiting {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Waiting {
    fn start(program: &Path, pool: &Path, what: &str) -> Waiting {
        let pool = pool.to_str().expect("a name");
        let flags = ["--ssd", "200M", "--report", "none", "--pool", pool];
        let mut command = command(CAP_MIB, &flags, None);
        command.arg(program).arg(what);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut waiting = Waiting { child, out };
        let mut line = String::new();
        waiting.out.read_line(&mut line).expect("a line");
        waiting
    }

    /// Lets it go on to its end: its status and what it said.
    fn go(mut self) -> (std::process::ExitStatus, String) {
        let mut to = self.child.stdin.take().expect("a pipe");
        // It may have ended.
        let _ = to.write_all(b"go\n");
        let since = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                break status;
            }
            assert!(since.elapsed() < LONGEST, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut said = String::new();
        self.out.read_to_string(&mut said).expect("text");
        let mut error = self.child.stderr.take().expect("a pipe");
        error.read_to_string(&mut said).expect("text");
        (status, said)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn e2e_a_full_ssd_is_enomem_and_the_program_goes_on() {
    let dir = dir();
    let program = compiled(dir.path(), "odd.c", &[]);
    let flags = ["--ssd", "160M", "--report", "none"];
    let mut command = command(CAP_MIB, &flags, None);
    command.env("TMPDIR", dir.path()).arg(program).arg("full");
    let (well, said) = output(&mut command);
    assert!(well && said == "OK\n", "{said}");
    let left = std::fs::read_dir(dir.path()).expect("it is there");
    assert_eq!(left.count(), 1, "something of the pool is left");
}

fn cut(pool: &Path) {
    let data = std::fs::OpenOptions::new()
        .write(true)
        .open(pool.join("data"));
    let cut = data.and_then(|data| data.set_len(1 << 20));
    cut.expect("the pool's file is cut");
}

#[test]
fn e2e_a_pool_cut_short_ends_who_needs_the_page_with_page_and_error() {
    let dir = dir();
    let (pool, program) = (dir.path().join("pool"), compiled(dir.path(), "odd.c", &[]));
    let waiting = Waiting::start(&program, &pool, "wait");
    cut(&pool);
    let (status, said) = waiting.go();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{said}");
    for word in ["SIGBUS: page ", " of the region at 0x", " cannot be had: "] {
        assert!(said.contains(word), "{word:?} in: {said}");
    }
    assert_eq!(said.matches("SIGBUS: page ").count(), 1, "{said}");
    // A write after the cut makes the file long again, with zeros in between.
    let short = said.contains("reading bytes ") && said.contains("error 5");
    let zeros = said.contains("are damaged: their checksum is wrong");
    assert!(short || zeros, "{said}");
}

#[test]
fn e2e_a_program_goes_on_without_the_pages_that_are_lost() {
    let dir = dir();
    let (pool, program) = (dir.path().join("pool"), compiled(dir.path(), "odd.c", &[]));
    let waiting = Waiting::start(&program, &pool, "caught");
    cut(&pool);
    let (status, said) = waiting.go();
    assert!(status.success() && said.starts_with("OK\n"), "{said}");
}

#[test]
fn e2e_a_pool_that_is_removed_or_wanted_by_another_goes_on() {
    let dir = dir();
    let (pool, program) = (dir.path().join("pool"), compiled(dir.path(), "odd.c", &[]));
    let waiting = Waiting::start(&program, &pool, "wait");
    let name = pool.to_str().expect("a name");
    let flags = ["--ssd", "200M", "--pool", name];
    let (well, said) = output(command(CAP_MIB, &flags, None).arg("true"));
    let holder = format!("is in use by process {} ", waiting.child.id());
    assert!(!well && said.contains(&holder), "{said}");
    std::fs::remove_dir_all(&pool).expect("it goes");
    let (status, said) = waiting.go();
    assert!(status.success() && said == "OK\n", "{said}");
    // The name is free, and the next has a pool of its own there.
    let (well, said) = output(command(CAP_MIB, &flags, None).arg("true"));
    assert!(well, "{said}");
}

#[test]
fn e2e_what_is_too_small_is_refused_before_anything_starts() {
    let dir = dir();
    let started = dir.path().join("started");
    let refused = |cap_mib: u64, flags: &[&str], why: &str| {
        let mut command = command(cap_mib, flags, None);
        command.env("TMPDIR", dir.path());
        let (well, said) = output(command.arg("touch").arg(&started));
        assert!(!well && said.contains(why), "{flags:?}: {said}");
    };
    refused(8, &[], "needs at least 16 MiB");
    refused(32, &["--ssd", "1000G"], "bytes available");
    assert!(!started.exists(), "it was started all the same");
    let left = std::fs::read_dir(dir.path()).expect("it is there");
    assert_eq!(left.count(), 0, "something of the pool is left");
}

#[test]
fn e2e_a_library_that_the_loader_would_not_find_is_refused_before_anything_starts() {
    let dir = dir();
    let started = dir.path().join("started");
    let binary = support::binary();
    let beside = binary.with_file_name("libterrace_preload.so");
    for name in ["a place", "a:place", "$LIB"] {
        let place = dir.path().join(name);
        std::fs::create_dir(&place).expect("a directory");
        for file in [&binary, &beside] {
            copied(file, &place);
        }
        let mut command = Command::new(place.join("terrace"));
        command.args(["run", "--dram", "32M", "--", "touch"]);
        let (well, said) = output(command.arg(&started));
        assert!(!well && said.contains("LD_PRELOAD"), "{name}: {said}");
        assert!(!started.exists(), "{name}: it was started all the same");
    }
}

#[test]
fn e2e_a_pool_that_cannot_be_opened_later_leaves_nothing() {
    let dir = dir();
    let program = compiled(dir.path(), "odd.c", &[]);
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).expect("a directory");
    let mut command = command(CAP_MIB, &["--ssd", "200M", "--report", "none"], None);
    // Too few numbers for a device's queue, and enough to remove what was begun.
    let script = "ulimit -n 8; exec \"$0\" wait";
    command.env("TMPDIR", &scratch).args(["sh", "-c", script]);
    let ended = support::ended(command.arg(program));
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("the pool cannot be opened: "), "{said}");
    let left = std::fs::read_dir(scratch).expect("it is there");
    assert_eq!(left.count(), 0, "something of the pool is left");
}

/// Whoever sees the name could make the directory before the program does, and would have all that leaves its DRAM.
#[test]
fn e2e_a_pool_is_not_made_where_others_may_write() {
    let dir = dir();
    let program = compiled(dir.path(), "odd.c", &[]);
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).expect("a directory");
    let mut command = command(CAP_MIB, &["--ssd", "200M", "--report", "none"], None);
    let script = "mkdir -m 777 \"$TERRACE_RUN_POOL\"; exec \"$0\" wait";
    command.env("TMPDIR", &scratch).args(["sh", "-c", script]);
    let ended = support::ended(command.arg(program));
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("not this user's alone"), "{said}");
    let others = std::fs::read_dir(scratch).expect("it is there");
    let others: Vec<_> = others
        .map(|other| other.expect("an entry").path())
        .collect();
    assert_eq!(others.len(), 1);
    let inside = std::fs::read_dir(&others[0]).expect("it is there");
    assert_eq!(inside.count(), 0, "it was used");
}

/// A file system whose device refuses writes when it is full, since it lies in a file of another, smaller one. Unmounted with its owner.
struct Failing(PathBuf);

impl Failing {
    /// None, with the reason said, where it cannot be had.
    fn new(dir: &Path) -> Option<Failing> {
        let script = "set -e; cd \"$0\"; mkdir small over; mount -t tmpfs -o size=90M none small; \
            trap 'umount small' EXIT; truncate -s 300M small/image; \
            mkfs.ext4 -q -E nodiscard,lazy_itable_init=1 -O ^has_journal small/image; \
            mount -o loop small/image over; trap - EXIT";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(dir);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let (well, said) = output(&mut command);
        if !well {
            println!("not judged: {said}");
        }
        well.then(|| Failing(dir.to_owned()))
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        for mounted in ["over", "small"] {
            // What is still in use goes when it is not.
            let _ = Command::new("umount")
                .arg("-l")
                .arg(self.0.join(mounted))
                .status();
        }
    }
}

#[test]
fn e2e_a_device_that_does_not_write_ends_who_needs_room_with_the_error() {
    let dir = dir();
    let program = compiled(dir.path(), "odd.c", &[]);
    let Some(failing) = Failing::new(dir.path()) else {
        return;
    };
    let waiting = Waiting::start(&program, &dir.path().join("over/pool"), "change");
    let (status, said) = waiting.go();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{said}");
    for word in [
        "SIGBUS: page ",
        "changed pages cannot be written back",
        "writing to the pool failed: error 5",
    ] {
        assert!(said.contains(word), "{word:?} in: {said}");
    }
    drop(failing);
}
