//! The text of INFO. Figures are counted, none is invented: what this server does not have is left out.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::shared::Shared;

/// The version of Redis whose commands and errors are followed; clients choose their behaviour by it.
pub const REDIS_VERSION: &str = "7.0.15";

const SECTIONS: [&str; 8] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "cpu",
    "tiers",
    "keyspace",
];

/// The sections that were asked for (none: all).
pub fn text(shared: &Shared, now_ms: u64, asked: &[&[u8]]) -> String {
    let everything: [&[u8]; 3] = [b"all", b"default", b"everything"];
    let all = asked.is_empty()
        || asked
            .iter()
            .any(|a| everything.iter().any(|e| a.eq_ignore_ascii_case(e)));
    let mut out = String::with_capacity(4096);
    for section in SECTIONS {
        if all
            || asked
                .iter()
                .any(|a| a.eq_ignore_ascii_case(section.as_bytes()))
        {
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            write_section(&mut out, shared, now_ms, section);
        }
    }
    out
}

fn write_section(out: &mut String, shared: &Shared, now_ms: u64, section: &str) {
    let title = format!("{}{}", section[..1].to_ascii_uppercase(), &section[1..]);
    let _ = write!(out, "# {title}\r\n");
    let lines = match section {
        "server" => server(shared, now_ms),
        "clients" => clients(shared),
        "memory" => memory(shared),
        "persistence" => vec![
            ("loading".to_string(), "0".to_string()),
            (
                "durability".to_string(),
                shared.about.durability().to_string(),
            ),
        ],
        "stats" => stats(shared),
        "cpu" => cpu(),
        "tiers" => shared.about.tiers(),
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

/// A `Name:   123 kB` line of /proc/self/status, in bytes.
fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let rest = status
        .lines()
        .find_map(|l| l.strip_prefix(name))?
        .strip_prefix(':')?;
    rest.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

fn memory(shared: &Shared) -> Vec<(String, String)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = Vec::new();
    if let Some(rss) = status_bytes(&status, "VmRSS") {
        lines.push(line("used_memory", rss));
        lines.push(line("used_memory_rss", rss));
    }
    if let Some(peak) = status_bytes(&status, "VmHWM") {
        lines.push(line("used_memory_peak", peak));
    }
    lines.push(line("maxmemory", shared.about.dram_bytes()));
    lines.push(line("maxmemory_policy", "noeviction"));
    lines
}

fn stats(shared: &Shared) -> Vec<(String, String)> {
    vec![
        line(
            "total_connections_received",
            shared.accepted.load(Ordering::Relaxed),
        ),
        line("total_commands_processed", shared.sum(|c| &c.commands)),
        line("total_net_input_bytes", shared.sum(|c| &c.input_bytes)),
        line("total_net_output_bytes", shared.sum(|c| &c.output_bytes)),
        line(
            "rejected_connections",
            shared.rejected.load(Ordering::Relaxed),
        ),
        line("cut_off_connections", shared.sum(|c| &c.cut_off)),
        line("tls_handshakes_failed", shared.sum(|c| &c.tls_failed)),
        line("keyspace_hits", shared.sum(|c| &c.hits)),
        line("keyspace_misses", shared.sum(|c| &c.misses)),
        line("total_error_replies", shared.sum(|c| &c.errors)),
    ]
}

/// What memcached's `stats` tells, as far as it is known.
pub fn memcached(shared: &Shared, now_ms: u64) -> Vec<(String, String)> {
    let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    vec![
        line("pid", std::process::id()),
        line("uptime", shared.started.elapsed().as_secs()),
        line("time", now_ms / 1000),
        line("version", crate::memcached::MEMCACHED_VERSION),
        line("terrace_version", env!("CARGO_PKG_VERSION")),
        line("pointer_size", usize::BITS),
        line("max_connections", shared.max_clients),
        line("curr_connections", shared.connected.load(Ordering::Relaxed)),
        line("total_connections", load(&shared.accepted)),
        line("rejected_connections", load(&shared.rejected)),
        line("get_hits", shared.sum(|c| &c.hits)),
        line("get_misses", shared.sum(|c| &c.misses)),
        line("bytes_read", shared.sum(|c| &c.input_bytes)),
        line("bytes_written", shared.sum(|c| &c.output_bytes)),
        line("limit_maxbytes", shared.about.dram_bytes()),
        line("threads", shared.counters.len()),
        line("curr_items", shared.about.keys()),
    ]
}

/// User and system time of the process, as /proc/self/stat has them.
fn cpu() -> Vec<(String, String)> {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let field = |n: usize| {
        after_name
            .split_whitespace()
            .nth(n)
            .and_then(|f| f.parse::<f64>().ok())
    };
    // The kernel counts in hundredths of a second for user space, whatever its own tick is.
    const TICKS_PER_S: f64 = 100.0;
    let mut lines = Vec::new();
    if let Some(system) = field(12) {
        lines.push(line("used_cpu_sys", format!("{:.6}", system / TICKS_PER_S)));
    }
    if let Some(user) = field(11) {
        lines.push(line("used_cpu_user", format!("{:.6}", user / TICKS_PER_S)));
    }
    lines
}

fn keyspace(shared: &Shared) -> Vec<(String, String)> {
    match shared.about.keys() {
        0 => Vec::new(),
        keys => vec![line("db0", format!("keys={keys}"))],
    }
}
