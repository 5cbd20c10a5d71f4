//! What the real binary tells of itself: the metrics as the parser of Prometheus's own Python client reads them, beside INFO,
//! on a pool larger than its DRAM.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::python::{python, run_python};
use crate::support::resp::{Client, Reply};
use crate::support::{self, Server, TempDir, beside, free_addr, said, value_of};
use rustix::process::{Pid, Signal, kill_process};

fn scrape(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).expect("the metrics are served");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a reply");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_string()
}

fn metrics(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_string(), value.parse().expect("a number"))
        })
        .collect()
}

fn tiers(client: &mut Client) -> BTreeMap<String, f64> {
    let Reply::Bulk(text) = client.call(&[b"INFO", b"tiers"]) else {
        panic!("INFO tiers");
    };
    let text = String::from_utf8(text).expect("text");
    let lines = text.lines().filter_map(|l| l.split_once(':'));
    lines
        .map(|(name, value)| (name.to_string(), value.parse().expect("a number")))
        .collect()
}

const PARSE: &str = r#"
import sys, urllib.request
from prometheus_client.openmetrics.parser import text_string_to_metric_families
with urllib.request.urlopen(sys.argv[1], timeout=20) as r:
    assert r.headers["Content-Type"].startswith("application/openmetrics-text"), r.headers
    families = {f.name: f for f in text_string_to_metric_families(r.read().decode())}
assert families["terrace_hits"].type == "counter"
assert {s.labels["terrace"] for s in families["terrace_hits"].samples} == {"dram", "middle", "ssd"}
assert families["terrace_command_seconds"].type == "histogram"
assert all(f.documentation for f in families.values())
assert len(families) > 40, len(families)
"#;

#[test]
fn e2e_metrics_and_info_say_the_same() {
    let dir = TempDir::new("sight");
    let addr = free_addr();
    let listen = addr.to_string();
    let args = [
        "--dram",
        "32M",
        "--ssd",
        "256M",
        "--threads",
        "2",
        "--durability",
        "async",
        "--flush-interval",
        "50",
        "--metrics",
        &listen,
    ];
    let server = Server::start(&dir.pool(), &args);
    let mut client = server.client();
    const KEYS: u64 = 40_000;
    let value = value_of(1, 1000);
    for at in 0..KEYS {
        let key = at.to_string();
        assert!(client.call(&[b"SET", key.as_bytes(), &value]).is_ok());
    }
    for at in (0..KEYS).step_by(7) {
        let key = at.to_string();
        assert!(matches!(
            client.call(&[b"GET", key.as_bytes()]),
            Reply::Bulk(_)
        ));
    }
    client.call(&[b"GET", b"none"]);
    client.words("INCR");
    client.call(&[b"INCR", b"0"]);
    // Background work goes on for a moment: the same figures twice, then they are compared.
    let (mut seen, mut told) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(100));
        let before = tiers(&mut client);
        seen = metrics(&scrape(addr));
        told = tiers(&mut client);
        if before == told {
            break;
        }
    }
    let pairs = [
        ("keys", "terrace_keys"),
        ("hits_dram", "terrace_hits_total{terrace=\"dram\"}"),
        ("hits_ssd", "terrace_hits_total{terrace=\"ssd\"}"),
        ("misses_dram", "terrace_misses_total{terrace=\"dram\"}"),
        ("absent", "terrace_absent_total"),
        ("disk_reads", "terrace_device_reads_total"),
        (
            "written_update_bytes",
            "terrace_device_written_bytes_total{cause=\"updates\"}",
        ),
        ("dirty_bytes", "terrace_dirty_bytes"),
        ("cap_bytes", "terrace_cap_bytes"),
        ("segment_bytes", "terrace_used_bytes{part=\"segments\"}"),
        ("directory_bytes", "terrace_used_bytes{part=\"directory\"}"),
    ];
    for (figure, metric) in pairs {
        assert_eq!(told[figure], seen[metric], "{figure}\n{told:#?}");
    }
    let sum = |of: &str| -> f64 {
        let of = seen.iter().filter(|(name, _)| name.starts_with(of));
        of.map(|(_, value)| value).sum()
    };
    assert_eq!(told["keys"], KEYS as f64);
    assert_eq!(told["cap_bytes"], f64::from(32 << 20));
    assert!(
        told["hits_ssd"] > 100.0 && told["hits_dram"] > 10.0,
        "{told:#?}"
    );
    assert_eq!(
        sum("terrace_device_written_bytes_total"),
        told["device_write_bytes"]
    );
    assert_eq!(
        sum("terrace_device_read_bytes_total"),
        told["disk_read_bytes"]
    );
    assert_eq!(sum("terrace_used_bytes"), told["used_bytes"]);
    assert!(told["used_bytes"] <= told["cap_bytes"] && told["used_bytes"] > f64::from(8 << 20));
    let get = "{protocol=\"redis\",command=\"get\"}";
    let gets = KEYS.div_ceil(7) + 1;
    assert_eq!(
        seen[&format!("terrace_command_seconds_count{get}")],
        gets as f64
    );
    let all = "terrace_command_seconds_bucket{le=\"+Inf\",protocol=\"redis\",command=\"get\"}";
    assert_eq!(seen[all], gets as f64);
    assert_eq!(
        seen["terrace_commands_failed_total{protocol=\"redis\",command=\"incr\"}"],
        1.0
    );
    assert_eq!(
        seen["terrace_commands_rejected_total{protocol=\"redis\",command=\"incr\"}"],
        1.0
    );
    assert_eq!(seen["terrace_errors_total{kind=\"ERR\"}"], 2.0);
    let program = python(&["prometheus-client"]);
    run_python(&program, PARSE, &[format!("http://{addr}/metrics")]);
    server.shutdown();
}

#[test]
fn e2e_top_shows_a_running_server() {
    let dir = TempDir::new("top");
    let args = [
        "--dram",
        "32M",
        "--ssd",
        "128M",
        "--threads",
        "2",
        "--durability",
        "async",
    ];
    let server = Server::start(&dir.pool(), &args);
    let mut client = server.client();
    let addr = server.addr.to_string();
    for at in 0..100u64 {
        assert!(client.call(&[b"SET", &at.to_le_bytes(), b"value"]).is_ok());
    }
    let once = support::run(&["top", &addr, "--once", "--json", "--interval", "0.2"]);
    assert!(once.status.success(), "{}", said(&once));
    let screen: serde_json::Value = serde_json::from_slice(&once.stdout).expect("JSON");
    assert_eq!(screen["keys"], 100.0, "{screen}");
    assert_eq!(screen["cap_bytes"], f64::from(32 << 20));
    assert_eq!(screen["terraces"][0]["name"], "dram");
    let commands = screen["commands"].as_array().expect("a list");
    assert!(commands.iter().any(|c| c["name"] == "set"), "{screen}");
    let text = support::run(&["top", &addr, "--once", "--interval", "0.2"]);
    assert!(said(&text).contains("100 keys"), "{}", said(&text));
    let (shown, _) = in_a_terminal(&dir, &addr, |keys, _| {
        keys.write_all(b"q").expect("a key");
    });
    assert!(
        shown.contains("Terraces") && shown.contains("Commands"),
        "{shown}"
    );
    in_a_terminal(&dir, &addr, |_, top| {
        kill_process(top, Signal::TERM).expect("a signal");
    });
    // Keys are obeyed while the server hangs.
    let (_, took) = in_a_terminal(&dir, &addr, |keys, _| {
        server.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(1));
        keys.write_all(b"q").expect("a key");
    });
    server.signal(Signal::CONT);
    assert!(took < Duration::from_secs(5), "q was obeyed after {took:?}");
    server.shutdown();
    let gone = support::run(&["top", &addr, "--once"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(said(&gone).contains("no server answers"), "{}", said(&gone));
}

/// `terrace top` in a terminal (of script's), and what is done there once it shows something: what it showed, and how long it took to end from then on.
/// The terminal must be as it was then.
fn in_a_terminal(
    dir: &TempDir,
    addr: &str,
    act: impl FnOnce(&mut ChildStdin, Pid),
) -> (String, Duration) {
    let program = support::binary();
    let number = dir.path().join("top-process");
    let (program, to) = (program.display(), number.display());
    let command = format!(
        "stty rows 40 cols 120; sh -c 'echo $$ >{to}; exec {program} top {addr} --interval 0.2'; echo ended $?; stty -a"
    );
    let mut child = Command::new("timeout")
        .args(["30", "script", "-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script (of bsdutils)");
    let mut out = child.stdout.take().expect("its output");
    let shown = Arc::new(Mutex::new(Vec::new()));
    let shows = shown.clone();
    let reader = std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(len @ 1..) = out.read(&mut some) {
            shows.lock().expect("no panic").extend(&some[..len]);
        }
    });
    let text = || String::from_utf8_lossy(&shown.lock().expect("no panic")).into_owned();
    let begun = Instant::now();
    while !text().contains("Commands") {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", text());
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = std::fs::read_to_string(number).expect("its number");
    let process = process.trim().parse().ok().and_then(Pid::from_raw);
    let mut keys = child.stdin.take().expect("its input");
    act(&mut keys, process.expect("its number"));
    let begun = Instant::now();
    child.wait().expect("it ends");
    let took = begun.elapsed();
    reader.join().expect("no panic");
    let shown = text();
    assert!(shown.contains("ended 0"), "{shown}");
    let (screen, after) = shown.rsplit_once("ended 0").expect("its end");
    assert!(screen.contains("\u{1b}[?1049l"), "no first screen: {shown}");
    assert!(after.contains(" icanon"), "the terminal is raw: {after}");
    (shown, took)
}

#[test]
fn e2e_an_answer_that_trickles_is_not_waited_for() {
    let _turn = beside();
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let addr = listener.local_addr().expect("an address").to_string();
    let trickling = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(b"$1000\r\n").expect("a length");
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let begun = Instant::now();
    let refused = support::run(&["top", &addr, "--once"]);
    let took = begun.elapsed();
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("no whole answer"), "{text}");
    assert!(took < Duration::from_secs(20), "after {took:?}");
    trickling.join().expect("no panic");
}
