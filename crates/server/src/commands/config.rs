//! CONFIG: what the settings are, and the few that may change while the server runs: what is called slow, and what is kept
//! of it. All others are given at the start. Never: writes a file.

use std::sync::atomic::Ordering;

use super::admin::lines;
use super::{Cx, Done, Fault, Flow, help, unknown_subcommand, wrong_arity};
use crate::glob;
use crate::limits::BULK_MAX_BYTES;
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::shared::Shared;
use crate::sight::slow::SLOWLOG_LEN_MAX;
use crate::store::Store;

/// CONFIG GET pattern … | SET name value … | RESETSTAT | REWRITE | HELP
pub fn config<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"get", 3..) => get(cx, &args[2..]),
        (b"get", _) => return Err(wrong_arity("config|get")),
        (b"set", n) if n >= 4 && n.is_multiple_of(2) => {
            set(cx.shared, &args[2..])?;
            encode::ok(cx.out);
        }
        (b"set", _) => return Err(wrong_arity("config|set")),
        (b"resetstat", 2) => {
            cx.shared.reset_counters();
            encode::ok(cx.out);
        }
        (b"resetstat", _) => return Err(wrong_arity("config|resetstat")),
        (b"rewrite", 2) => return Err(Fault::text("The server is running without a config file")),
        (b"rewrite", _) => return Err(wrong_arity("config|rewrite")),
        (b"help", 2) => lines(cx, help::CONFIG),
        (b"help", _) => return Err(wrong_arity("config|help")),
        _ => return Err(unknown_subcommand("CONFIG", args[1])),
    }
    Ok(Flow::Done)
}

/// A setting that may change: its least and greatest value.
fn range_of(name: &str) -> Option<(i64, i64)> {
    match name {
        "slowlog-log-slower-than" => Some((-1, i64::MAX)),
        "slowlog-max-len" => Some((0, SLOWLOG_LEN_MAX as i64)),
        "latency-monitor-threshold" => Some((0, i64::MAX)),
        _ => None,
    }
}

fn set(shared: &Shared, pairs: &[&[u8]]) -> Result<(), Fault> {
    let failed = |name: &str, why: &str| {
        Fault::text(format!(
            "CONFIG SET failed (possibly related to argument '{name}') - {why}"
        ))
    };
    let known = settings(shared);
    let mut wanted: Vec<(String, i64)> = Vec::new();
    for pair in pairs.chunks_exact(2) {
        let name = String::from_utf8_lossy(pair[0]).into_owned();
        let small = name.to_ascii_lowercase();
        if !known.iter().any(|(k, _)| *k == small) {
            return Err(Fault::text(format!(
                "Unknown option or number of arguments for CONFIG SET - '{name}'"
            )));
        }
        if wanted.iter().any(|(k, _)| *k == small) {
            return Err(failed(&name, "duplicate parameter"));
        }
        let Some((least, most)) = range_of(&small) else {
            return Err(failed(&name, "can't set immutable config"));
        };
        let not_a_number = || failed(&name, "argument couldn't be parsed into an integer");
        let value = integer(pair[1]).ok_or_else(not_a_number)?;
        if !(least..=most).contains(&value) {
            let why = format!("argument must be between {least} and {most} inclusive");
            return Err(failed(&name, &why));
        }
        wanted.push((small, value));
    }
    let slow = &shared.slow;
    for (name, value) in wanted {
        match name.as_str() {
            "slowlog-log-slower-than" => slow.slower_than_us.store(value, Ordering::Relaxed),
            "slowlog-max-len" => slow.len_max.store(value as u64, Ordering::Relaxed),
            _ => slow.monitor_ms.store(value as u64, Ordering::Relaxed),
        }
    }
    slow.thresholds_changed();
    Ok(())
}

fn settings(shared: &Shared) -> Vec<(&'static str, String)> {
    let sync = shared.about.durability() == "sync";
    let slow = &shared.slow;
    let fsync = if sync { "always" } else { "everysec" };
    let timeout_s = shared.idle_timeout.map_or(0, |t| t.as_secs());
    vec![
        ("appendfsync", fsync.to_string()),
        ("appendonly", "no".to_string()),
        ("bind", shared.addr.ip().to_string()),
        ("databases", "1".to_string()),
        ("io-threads", shared.counters.len().to_string()),
        (
            "latency-monitor-threshold",
            slow.monitor_ms.load(Ordering::Relaxed).to_string(),
        ),
        ("latency-tracking", "yes".to_string()),
        (
            "latency-tracking-info-percentiles",
            "50 99 99.9".to_string(),
        ),
        ("maxclients", shared.max_clients.to_string()),
        ("maxmemory", shared.about.dram_bytes().to_string()),
        ("maxmemory-policy", "noeviction".to_string()),
        ("port", shared.addr.port().to_string()),
        ("proto-max-bulk-len", BULK_MAX_BYTES.to_string()),
        ("save", String::new()),
        (
            "slowlog-log-slower-than",
            slow.slower_than_us.load(Ordering::Relaxed).to_string(),
        ),
        (
            "slowlog-max-len",
            slow.len_max.load(Ordering::Relaxed).to_string(),
        ),
        ("timeout", timeout_s.to_string()),
    ]
}

fn get<S: Store>(cx: &mut Cx<'_, S>, patterns: &[&[u8]]) {
    let patterns: Vec<Vec<u8>> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
    let mut found = settings(cx.shared);
    found.retain(|(name, _)| {
        patterns
            .iter()
            .any(|pattern| glob::matches(pattern, name.as_bytes()))
    });
    encode::map(cx.out, cx.session.resp3, found.len());
    for (name, value) in found {
        encode::bulk(cx.out, name.as_bytes());
        encode::bulk(cx.out, value.as_bytes());
    }
}
