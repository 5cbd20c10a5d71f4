//! The text of INFO. Figures are counted, none is invented: what this server does not have is left out.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::shared::Shared;
use crate::sight::calls::{Summed, shown};
use crate::sight::figures::Figures;
use crate::sight::process;

/// The version of Redis whose commands and errors are followed; clients choose their behaviour by it.
pub const REDIS_VERSION: &str = "7.0.15";

/// The sections, in Redis's order, with those that are shown only when they or all are asked for.
const SECTIONS: [(&str, bool); 13] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("commandstats", false),
    ("errorstats", true),
    ("latencystats", false),
    ("cluster", true),
    ("tiers", true),
    ("keyspace", true),
];

/// The sections that were asked for (none: those of `default`).
pub fn text(shared: &Shared, now_ms: u64, asked: &[&[u8]]) -> String {
    let has = |name: &str| {
        asked
            .iter()
            .any(|a| a.eq_ignore_ascii_case(name.as_bytes()))
    };
    let (all, default) = (
        has("all") || has("everything"),
        asked.is_empty() || has("default"),
    );
    let mut out = String::with_capacity(4096);
    for (section, usual) in SECTIONS {
        if all || (default && usual) || has(section) {
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            write_section(&mut out, shared, now_ms, section);
        }
    }
    out
}

fn write_section(out: &mut String, shared: &Shared, now_ms: u64, section: &str) {
    let title = match section {
        "cpu" => "CPU".to_string(),
        _ => format!("{}{}", section[..1].to_ascii_uppercase(), &section[1..]),
    };
    let _ = write!(out, "# {title}\r\n");
    let lines = match section {
        "server" => server(shared, now_ms),
        "clients" => clients(shared),
        "memory" => memory(shared),
        "persistence" => vec![
            line("loading", 0),
            line("async_loading", 0),
            line("durability", shared.about.durability()),
        ],
        "stats" => stats(shared),
        "replication" => vec![line("role", "master"), line("connected_slaves", 0)],
        "cpu" => cpu(),
        "commandstats" => commandstats(shared),
        "errorstats" => errorstats(shared),
        "latencystats" => latencystats(shared),
        "cluster" => vec![line("cluster_enabled", 0)],
        "tiers" => tiers(shared),
        _ => keyspace(shared),
    };
    for (name, value) in lines {
        let _ = write!(out, "{name}:{value}\r\n");
    }
}

fn line(name: &str, value: impl ToString) -> (String, String) {
    (name.to_string(), value.to_string())
}

fn server(shared: &Shared, now_ms: u64) -> Vec<(String, String)> {
    let up = shared.started.elapsed().as_secs();
    vec![
        line("redis_version", REDIS_VERSION),
        line("terrace_version", env!("CARGO_PKG_VERSION")),
        line("redis_mode", "standalone"),
        line("os", "Linux"),
        line("arch_bits", usize::BITS),
        line("multiplexing_api", "epoll"),
        line("process_id", std::process::id()),
        line("tcp_port", shared.addr.port()),
        line("server_time_usec", u128::from(now_ms) * 1000),
        line("uptime_in_seconds", up),
        line("uptime_in_days", up / 86_400),
        line("io_threads", shared.counters.len()),
    ]
}

fn clients(shared: &Shared) -> Vec<(String, String)> {
    vec![
        line(
            "connected_clients",
            shared.connected.load(Ordering::Relaxed),
        ),
        line("maxclients", shared.max_clients),
        line("waiting_commands", shared.sum(|c| &c.waiting)),
        line("buffer_bytes", shared.sum(|c| &c.buffer_bytes)),
    ]
}

/// As Redis shows bytes to people.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{bytes}B"),
        _ => {
            let unit = (1u64 << (10 * power)) as f64;
            format!("{:.2}{}", bytes as f64 / unit, UNITS[power as usize])
        }
    }
}

fn memory(shared: &Shared) -> Vec<(String, String)> {
    let figures = Figures::now(&*shared.about);
    let cap = shared.about.dram_bytes();
    let mut lines = Vec::new();
    let mut add = |name: &str, bytes: u64| {
        lines.push(line(name, bytes));
        lines.push(line(&format!("{name}_human"), human(bytes)));
    };
    if let Some(rss) = process::resident_bytes() {
        add("used_memory", rss);
        add("used_memory_rss", rss);
    }
    if let Some(peak) = process::peak_resident_bytes() {
        add("used_memory_peak", peak);
    }
    add("maxmemory", cap);
    lines.push(line("maxmemory_policy", "noeviction"));
    lines.push(line("used_memory_of_cap", figures.get("used_bytes")));
    lines.push(line("used_memory_dataset", figures.get("dram_live_bytes")));
    lines.push(line("mem_clients_normal", shared.sum(|c| &c.buffer_bytes)));
    lines.push(line("mem_allocator", "libc"));
    lines
}

fn stats(shared: &Shared) -> Vec<(String, String)> {
    let now_ms = shared.started.elapsed().as_millis() as u64;
    let [ops, input, output] = shared.rate.per_second(now_ms, shared.traffic());
    let kib = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
    vec![
        line(
            "total_connections_received",
            shared.accepted.load(Ordering::Relaxed),
        ),
        line("total_commands_processed", shared.sum(|c| &c.commands)),
        line("instantaneous_ops_per_sec", ops),
        line("total_net_input_bytes", shared.sum(|c| &c.input_bytes)),
        line("total_net_output_bytes", shared.sum(|c| &c.output_bytes)),
        line("instantaneous_input_kbps", kib(input)),
        line("instantaneous_output_kbps", kib(output)),
        line(
            "rejected_connections",
            shared.rejected.load(Ordering::Relaxed),
        ),
        line("cut_off_connections", shared.sum(|c| &c.cut_off)),
        line("tls_handshakes_failed", shared.sum(|c| &c.tls_failed)),
        line("expired_keys", Figures::now(&*shared.about).get("expired")),
        line("evicted_keys", 0),
        line("keyspace_hits", shared.sum(|c| &c.hits)),
        line("keyspace_misses", shared.sum(|c| &c.misses)),
        line("total_error_replies", shared.sum(|c| &c.errors)),
    ]
}

/// User and system time of the process.
fn cpu() -> Vec<(String, String)> {
    let Some((user_s, system_s)) = process::cpu_seconds() else {
        return Vec::new();
    };
    vec![
        line("used_cpu_sys", format!("{system_s:.6}")),
        line("used_cpu_user", format!("{user_s:.6}")),
    ]
}

const NS_PER_US: u64 = 1_000;

fn commandstats(shared: &Shared) -> Vec<(String, String)> {
    let of = |c: &Summed| {
        let us = c.sum_ns / NS_PER_US;
        let per_call = c.sum_ns as f64 / (c.calls.max(1) * NS_PER_US) as f64;
        line(
            &format!("cmdstat_{}", shown(c.kind)),
            format!(
                "calls={},usec={us},usec_per_call={per_call:.2},rejected_calls={},failed_calls={}",
                c.calls, c.rejected, c.failed
            ),
        )
    };
    shared.commands_called().iter().map(of).collect()
}

fn errorstats(shared: &Shared) -> Vec<(String, String)> {
    let of = |(kind, count)| (format!("errorstat_{kind}"), format!("count={count}"));
    shared.errors.all().into_iter().map(of).collect()
}

fn latencystats(shared: &Shared) -> Vec<(String, String)> {
    let of = |c: &Summed| {
        let us = |percent| c.percentile_ns(percent) as f64 / NS_PER_US as f64;
        line(
            &format!("latency_percentiles_usec_{}", shown(c.kind)),
            format!(
                "p50={:.3},p99={:.3},p99.9={:.3}",
                us(50.0),
                us(99.0),
                us(99.9)
            ),
        )
    };
    let called = shared.commands_called();
    called.iter().filter(|c| c.calls > 0).map(of).collect()
}

fn tiers(shared: &Shared) -> Vec<(String, String)> {
    let figures = Figures::now(&*shared.about);
    figures
        .all()
        .iter()
        .map(|(name, value)| line(name, value))
        .collect()
}

fn keyspace(shared: &Shared) -> Vec<(String, String)> {
    match shared.about.keys() {
        0 => Vec::new(),
        keys => vec![line("db0", format!("keys={keys}"))],
    }
}
