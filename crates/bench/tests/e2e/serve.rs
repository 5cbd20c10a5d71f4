//! `bench serve` as a user starts it, scaled down: every row runs, and its record has the figures that its bars are about.
//!
//! The short rows run in `make test`, all of them in `make soak`. Figures of a scaled-down run prove nothing, so only their
//! presence is looked at, and that no bar is judged by them.

use crate::terrace;
use serde_json::Value;
use std::process::Command;

fn record(rows: &str) -> Value {
    let out_dir =
        std::env::temp_dir().join(format!("terrace-e2e-bench-{}-{rows}", std::process::id()));
    let out = Command::new(terrace())
        .args(["bench", "serve", "--json", "--only", rows, "--out"])
        .arg(&out_dir)
        .args([
            "--scale-divisor",
            "100",
            "--seconds",
            "0.1",
            "--repeats",
            "1",
        ])
        .output()
        .expect("the bench starts");
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    // 3: nothing is missed, nothing is judged.
    assert_eq!(out.status.code(), Some(3), "{stderr}");
    let file = std::fs::read_to_string(out_dir.join("result.json")).expect("the record is written");
    let record: Value = serde_json::from_slice(&out.stdout).expect("stdout is JSON");
    assert_eq!(
        record,
        serde_json::from_str::<Value>(&file).expect("and so is the file")
    );
    std::fs::remove_dir_all(&out_dir).expect("the output can be removed");
    record
}

/// The medians of a figure in a part's rows of ours.
fn ours(record: &Value, part: &str, figure: &str) -> Vec<f64> {
    let parts = record["parts"].as_array().expect("parts");
    let part = parts
        .iter()
        .find(|p| p["name"] == part)
        .expect("the part was run");
    let rows = part["rows"].as_array().expect("rows").iter();
    // "terrace", or "terrace, memcached".
    let is_ours = |row: &&Value| {
        row["peer"]
            .as_str()
            .is_some_and(|p| p.starts_with("terrace"))
    };
    rows.filter(is_ours)
        .filter_map(|row| row["figures"][figure]["median"].as_f64())
        .collect()
}

fn check(record: &Value, wanted: &[(&str, &str, usize)]) {
    assert_eq!(record["ended_early"], Value::Null);
    for bar in record["bars"].as_array().expect("bars") {
        assert_eq!(bar["met"], Value::Null, "{bar}");
    }
    for (part, figure, rows) in wanted {
        let figures = ours(record, part, figure);
        assert_eq!(figures.len(), *rows, "{part}: {figure}: {figures:?}");
    }
}

#[test]
fn e2e_bench_serve_short_rows() {
    let record = record("a,d,f,i,memcached");
    check(
        &record,
        &[
            ("a", "ops_per_s", 4),
            ("d", "verify_reads_per_set", 3),
            ("f", "ops_per_s", 2),
            ("i", "index_bytes_per_key", 1),
            ("memcached", "ops_per_s", 4),
        ],
    );
    assert!(
        ours(&record, "a", "ops_per_s")
            .iter()
            .all(|rate| *rate > 0.0)
    );
    // A tree of 8 bytes a slot cannot take less.
    assert!(ours(&record, "i", "index_bytes_per_key")[0] >= 8.0);
}

#[test]
#[ignore = "minutes: `make soak` runs it"]
fn soak_bench_serve_all_rows() {
    let record = record("a,b,c,d,e,f,g,h,i,memcached");
    check(
        &record,
        &[
            ("b", "latency_p99_us", 2),
            ("c", "misses_of_disk_reads", 1),
            ("e", "device_write_bytes_per_updated_byte", 3),
            ("g", "ops_per_s", 6),
            ("h", "latency_p999_us", 2),
        ],
    );
}
