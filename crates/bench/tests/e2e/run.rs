//! `bench run` as a user starts it, scaled down: every row runs to its end, and its record has the figures that its bars are about.
//!
//! A short row runs in `make test`, all of them in `make soak`. Promises: nothing is judged by the figures of a scaled-down run. Never: needs root; without
//! it there is no cgroup and no swap, and the rows that need them are missing.

use crate::terrace;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Whether this user may have cgroups; says so if not.
fn has_cgroups() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not run: without root there is no cgroup and no swap");
    }
    is_root
}

fn record(rows: &str) -> Value {
    let name = format!("terrace-e2e-bench-run-{}-{rows}", std::process::id());
    let out_dir = PathBuf::from("/var/tmp").join(name);
    let mut bench = Command::new(terrace());
    bench.args(["bench", "run", "--json", "--only", rows, "--out"]);
    bench.arg(&out_dir).args(["--scale-divisor", "64"]);
    bench.args(["--seconds", "0.2", "--repeats", "1"]);
    let out = bench.output().expect("the bench starts");
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    // 3: nothing is missed, nothing is judged.
    assert_eq!(out.status.code(), Some(3), "{stderr}");
    std::fs::remove_dir_all(&out_dir).expect("the output can be removed");
    serde_json::from_slice(&out.stdout).expect("stdout is JSON")
}

/// Each bar has a figure, of which nothing is made.
fn check(record: &Value, bars: usize) {
    assert_eq!(record["ended_early"], Value::Null);
    let judged = record["bars"].as_array().expect("bars");
    for bar in judged {
        assert!(bar["measured"].is_number(), "{bar}");
        assert_eq!(bar["met"], Value::Null, "{bar}");
    }
    assert_eq!(judged.len(), bars, "{judged:?}");
}

#[test]
fn e2e_bench_run_short_row() {
    if !has_cgroups() {
        return;
    }
    // Two loads, numpy, and the cgroups of both.
    check(&record("e"), 2 + 2 + 1 + 2);
}

#[test]
#[ignore = "minutes; make soak"]
fn soak_e2e_bench_run_all_rows() {
    if !has_cgroups() {
        return;
    }
    for (row, bars) in [("a", 4 + 2), ("b", 2 + 2), ("c", 2 + 2), ("dump", 1 + 2)] {
        check(&record(row), bars);
    }
    // Steps and all together of sqlite3 and numpy, sort alone.
    check(&record("d"), 7 + 2 + 7 + 2 + 1 + 2);
}
