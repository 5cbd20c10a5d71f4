//! `terrace top --pid`: what it shows of a program is what the program's report says, and nobody but its user and root sees it.

use crate::support::{binary, command, output, reported};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const CAP_MIB: u64 = 32;

/// A Python program under `terrace run`, which is told what to do line by line.
struct Told {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Told {
    fn start(report: &str) -> Told {
        let text =
            "import sys, os, time\nfor line in sys.stdin: exec(line); print('done', flush=True)";
        let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", report], None);
        let child = command
            .args(["/usr/bin/python3", "-c", text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("it starts");
        let (to, from) = (child.stdin.take(), child.stdout.take());
        Told {
            child,
            to: to.expect("its input"),
            from: BufReader::new(from.expect("its output")),
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("it reads");
        let mut said = String::new();
        self.from.read_line(&mut said).expect("it answers");
        assert_eq!(said, "done\n", "{line}");
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn top(args: &[&str]) -> (bool, String) {
    output(Command::new(binary()).arg("top").args(args))
}

/// What a connection to the program's socket is told.
fn asked(pid: &str) -> String {
    let name = format!("terrace-run-{pid}");
    let addr = SocketAddr::from_abstract_name(name).expect("a name");
    let mut told = String::new();
    let mut stream = UnixStream::connect_addr(&addr).expect("it listens");
    stream.read_to_string(&mut told).expect("it answers");
    told
}

#[test]
fn e2e_top_shows_a_program_and_its_figures_are_the_reports() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = dir.path().join("report");
    let mut told = Told::start(report.to_str().expect("a name"));
    let pid = told.pid();
    let other = std::process::id().to_string();
    let (well, said) = top(&["--pid", &other, "--once"]);
    assert!(!well && said.contains("not under `terrace run`"), "{said}");
    // Three times the cap, so that some of it left DRAM; then again while it is looked at.
    told.tell("x = [bytearray(os.urandom(1 << 20)) for n in range(96)]");
    let busy = "t = time.time()\nwhile time.time() < t + 5:\n for b in x:\n  for o in range(0, 1 << 20, 4096): b[o] ^= 1";
    let line = format!("exec({busy:?})");
    let once = std::thread::scope(|scope| {
        let top = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            top(&["--pid", &pid, "--once", "--json", "--interval", "0.5"])
        });
        told.tell(&line);
        top.join().expect("it ends")
    });
    assert!(once.0, "{}", once.1);
    let screen: serde_json::Value = serde_json::from_str(&once.1).expect("JSON");
    let number = |name: &str| {
        screen[name]
            .as_f64()
            .unwrap_or_else(|| panic!("no {name}: {screen}"))
    };
    let mib = f64::from(1 << 20);
    assert_eq!(screen["process"].to_string(), format!("{pid}.0"));
    let program = screen["program"].as_str().unwrap_or_default();
    assert!(program.starts_with("python3"), "{screen}");
    assert_eq!(number("cap_bytes"), CAP_MIB as f64 * mib);
    assert!(number("served_bytes") >= 96.0 * mib, "{screen}");
    assert!(
        number("faults_per_s") > 0.0 && number("fault_time_share") > 0.0,
        "{screen}"
    );
    assert!(number("device_reads_per_s") > 0.0, "{screen}");
    let parts = screen["parts"].as_array().expect("parts");
    let parts: f64 = parts.iter().filter_map(|p| p["bytes"].as_f64()).sum();
    assert!((1.0..=CAP_MIB as f64 * mib).contains(&parts), "{screen}");
    let (well, text) = top(&["--pid", &pid, "--once", "--interval", "0.1"]);
    assert!(
        well && text.contains(&format!("run, process {pid} ({program})")),
        "{text}"
    );
    // Now nothing happens: what it answers is what the report says.
    let answer: serde_json::Value = serde_json::from_str(&asked(&pid)).expect("JSON");
    writeln!(told.to, "sys.exit(0)").expect("it reads");
    let ended = told.child.wait().expect("it ends");
    assert!(ended.success());
    let report = std::fs::read_to_string(&report).expect("a report");
    for name in [
        "dram_cap_bytes",
        "process_dram_peak_bytes",
        "pages_fetched",
        "device_bytes_written",
        "dram_hits",
    ] {
        let (at_end, then) = (reported(&report, name), answer["program"][name].as_u64());
        let then = then.unwrap_or_else(|| panic!("no {name}: {answer}"));
        assert!(then > 0 && then <= at_end, "{name}: {then} {at_end}");
    }
    let (well, said) = top(&["--pid", &pid, "--once"]);
    assert!(!well && said.contains("does not answer"), "{said}");
}

#[test]
fn e2e_only_its_user_and_root_are_answered_and_a_crowd_does_no_harm() {
    let mut told = Told::start("none");
    let pid = told.pid();
    told.tell("x = bytearray(20_000_000)");
    // More than may wait, none of which reads.
    let name = format!("terrace-run-{pid}");
    let addr = SocketAddr::from_abstract_name(&name).expect("a name");
    let crowd: Vec<_> = (0..40)
        .map(|_| UnixStream::connect_addr(&addr).expect("it listens"))
        .collect();
    assert!(asked(&pid).starts_with("{\"terrace_version\""));
    drop(crowd);
    // A child of a fork has no part in it: when the process is gone, so is the name.
    told.tell("child = os.fork() or (time.sleep(5), os._exit(0))");
    assert!(asked(&pid).starts_with('{'));
    // SAFETY: asks.
    if unsafe { libc::geteuid() } == 0 {
        let text = format!(
            "import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}'); print(s.recv(9))"
        );
        let (well, said) = output(Command::new("/usr/bin/python3").args(["-c", &text]));
        assert!(well && said == "b''\n", "{said}");
    }
    told.child.kill().expect("it is there");
    told.child.wait().expect("it ends");
    assert!(
        UnixStream::connect_addr(&addr).is_err(),
        "its child listens"
    );
}
