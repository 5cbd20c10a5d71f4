//! The benches as a user starts them, scaled down: that they run and what their records have. Never: judges a figure.

mod memory;
mod run;
mod serve;

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// The program. Without one the tests fail: one that quietly does nothing would count as passed.
fn terrace() -> PathBuf {
    let path = std::env::var_os("TERRACE_BIN").map(PathBuf::from);
    path.filter(|path| path.is_file())
        .expect("TERRACE_BIN names the program; `make test` builds it and sets that")
}

/// Whether this user may have cgroups; says so if not.
fn has_cgroups() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not run: without root there is no cgroup and no swap");
    }
    is_root
}

/// What parts of a bench wrote, scaled down: none of their bars is judged.
fn record(bench: &str, parts: &str) -> Value {
    let name = format!("terrace-e2e-bench-{bench}-{}-{parts}", std::process::id());
    let out_dir = PathBuf::from("/var/tmp").join(name);
    let mut command = Command::new(terrace());
    command.args(["bench", bench, "--json", "--only", parts, "--out"]);
    command.arg(&out_dir).args(["--scale-divisor", "64"]);
    command.args(["--seconds", "0.2", "--repeats", "1"]);
    let out = command.output().expect("the bench starts");
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    // 3: nothing is missed, nothing is judged.
    assert_eq!(out.status.code(), Some(3), "{stderr}");
    std::fs::remove_dir_all(&out_dir).expect("the output can be removed");
    serde_json::from_slice(&out.stdout).expect("stdout is JSON")
}

/// Each bar has a figure, of which nothing is made.
fn check_bars(record: &Value, bars: usize) {
    assert_eq!(record["ended_early"], Value::Null);
    let judged = record["bars"].as_array().expect("bars");
    for bar in judged {
        assert!(bar["measured"].is_number(), "{bar}");
        assert_eq!(bar["met"], Value::Null, "{bar}");
    }
    assert_eq!(judged.len(), bars, "{judged:?}");
}
