//! What memcached's `stats` tells, as far as it is known: by memcached's names where they mean the same. There are no slab
//! classes: all items are of class 1. Never: a figure that nobody counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::MEMCACHED_VERSION;
use crate::shared::Shared;
use crate::sight::calls::name_of;
use crate::sight::figures::Figures;
use crate::sight::process;
use crate::sync::lock;

type Lines = Vec<(String, String)>;

fn line(name: &str, value: impl ToString) -> (String, String) {
    (name.to_string(), value.to_string())
}

/// `stats`
pub fn general(shared: &Shared, now_ms: u64) -> Lines {
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let figures = Figures::now(&*shared.about);
    let called = shared.commands_called();
    let calls = |names: &[&str]| -> u64 {
        let of = called.iter().filter(|c| {
            let (protocol, name) = name_of(c.kind);
            protocol == "memcached" && names.contains(&name)
        });
        of.map(|c| c.calls).sum()
    };
    let (user_s, system_s) = process::cpu_seconds().unwrap_or_default();
    let stores = ["set", "add", "replace", "append", "prepend", "cas", "ms"];
    vec![
        line("pid", std::process::id()),
        line("uptime", shared.started.elapsed().as_secs()),
        line("time", now_ms / 1000),
        line("version", MEMCACHED_VERSION),
        line("terrace_version", env!("CARGO_PKG_VERSION")),
        line("pointer_size", usize::BITS),
        line("rusage_user", format!("{user_s:.6}")),
        line("rusage_system", format!("{system_s:.6}")),
        line("max_connections", shared.max_clients),
        line("curr_connections", shared.connected.load(Ordering::Relaxed)),
        line("total_connections", load(&shared.accepted)),
        line("rejected_connections", load(&shared.rejected)),
        line("cmd_get", calls(&["get", "gets", "gat", "gats", "mg"])),
        line("cmd_set", calls(&stores)),
        line("cmd_flush", calls(&["flush_all"])),
        line("cmd_touch", calls(&["touch", "gat", "gats"])),
        line("cmd_meta", calls(&["mg", "ms", "md", "ma", "mn", "me"])),
        line("get_hits", shared.sum(|c| &c.hits)),
        line("get_misses", shared.sum(|c| &c.misses)),
        line("get_expired", figures.get("expired")),
        line("bytes_read", shared.sum(|c| &c.input_bytes)),
        line("bytes_written", shared.sum(|c| &c.output_bytes)),
        line("limit_maxbytes", shared.about.dram_bytes()),
        line("threads", shared.counters.len()),
        line("bytes", bytes(&figures)),
        line("curr_items", shared.about.keys()),
        line("evictions", 0),
    ]
}

/// Of live entries, wherever they lie; those in DRAM mostly lie on the SSD, too.
fn bytes(figures: &Figures) -> u64 {
    figures.get("ssd_live_bytes") + figures.get("dirty_bytes")
}

/// `stats settings`
pub fn settings(shared: &Shared) -> Lines {
    let on = |flag: bool| if flag { "yes" } else { "no" };
    vec![
        line("maxbytes", shared.about.dram_bytes()),
        line("maxconns", shared.max_clients),
        line("tcpport", shared.memcached_addr.map_or(0, |a| a.port())),
        line("udpport", 0),
        line(
            "inter",
            shared
                .memcached_addr
                .map_or(String::new(), |a| a.ip().to_string()),
        ),
        line("verbosity", 0),
        line("evictions", "off"),
        line("num_threads", shared.counters.len()),
        line("cas_enabled", "yes"),
        line("flush_enabled", "yes"),
        line("auth_enabled_ascii", on(shared.password.is_some())),
        line(
            "idle_timeout",
            shared.idle_timeout.map_or(0, |t| t.as_secs()),
        ),
        line("item_size_max", shared.max_value_bytes),
    ]
}

/// `stats items`
pub fn items(shared: &Shared) -> Lines {
    match shared.about.keys() {
        0 => Vec::new(),
        keys => vec![line("items:1:number", keys), line("items:1:evicted", 0)],
    }
}

/// `stats slabs`
pub fn slabs(shared: &Shared) -> Lines {
    let figures = Figures::now(&*shared.about);
    vec![
        line("active_slabs", 0),
        line("total_malloced", figures.get("used_bytes")),
    ]
}

/// `stats conns`
pub fn conns(shared: &Shared) -> Lines {
    let now_s = shared.uptime_s();
    let clients: Vec<_> = lock(&shared.clients).values().cloned().collect();
    let mut lines = Vec::with_capacity(2 * clients.len());
    for client in clients {
        let idle_s = now_s.saturating_sub(client.active_s.load(Ordering::Relaxed));
        lines.push((
            format!("{}:addr", client.fd),
            format!("tcp:{}", client.addr),
        ));
        lines.push((
            format!("{}:secs_since_last_cmd", client.fd),
            idle_s.to_string(),
        ));
    }
    lines
}
