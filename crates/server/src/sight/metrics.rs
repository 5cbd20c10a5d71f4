//! All figures as Prometheus reads them (the text of OpenMetrics): of the terraces, of the connections and, for each
//! command that was called, a histogram of its times. Never: counts anything itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::calls::{Summed, name_of};
use super::figures::{Figures, Is, ROWS};
use super::process;
use crate::shared::Shared;

/// The shortest time that has a bucket of its own, ns; shorter ones are in it.
const BUCKET_MIN_NS: u64 = 1 << 10;
/// The longest one; longer times are in the last.
const BUCKET_MAX_NS: u64 = 1 << 35;
const NS_PER_S: f64 = 1e9;

/// The text.
///
/// # Errors
/// Never, in fact: it is written to memory.
pub fn text(shared: &Arc<Shared>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(shared.clone())));
    let mut out = String::with_capacity(32 << 10);
    encode(&mut out, &registry)?;
    Ok(out)
}

struct All(Arc<Shared>);

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("All")
    }
}

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        tiers(&mut encoder, &self.0)?;
        connections(&mut encoder, &self.0)?;
        commands(&mut encoder, &self.0)
    }
}

/// Labels and a value.
type Value<'a> = (Vec<(&'a str, String)>, u64);

/// A metric with its values by label, or with one and no label.
fn metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    is: Is,
    values: &[Value<'_>],
) -> fmt::Result {
    let kind = match is {
        Is::Counter => MetricType::Counter,
        Is::Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        if labels.is_empty() {
            put(&mut metric, is, *value)?;
        } else {
            put(&mut metric.encode_family(labels)?, is, *value)?;
        }
    }
    Ok(())
}

fn put(metric: &mut MetricEncoder<'_>, is: Is, value: u64) -> fmt::Result {
    match is {
        Is::Counter => metric.encode_counter::<NoLabelSet, u64, u64>(&value, None),
        Is::Gauge => metric.encode_gauge(&value),
    }
}

fn tiers(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let figures = Figures::now(&*shared.about);
    for rows in ROWS.chunk_by(|a, b| a.metric == b.metric) {
        let values: Vec<Value<'_>> = rows
            .iter()
            .map(|row| {
                let labels = row.label.iter().map(|(k, v)| (*k, v.to_string()));
                (labels.collect(), figures.get(row.figure))
            })
            .collect();
        metric(
            encoder,
            &named(rows[0].metric),
            rows[0].help,
            rows[0].is,
            &values,
        )?;
    }
    Ok(())
}

fn named(name: &str) -> String {
    format!("terrace_{name}")
}

#[rustfmt::skip]
fn connections(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let rows = [
        ("connections", "Connections", Is::Gauge, shared.connected.load(Ordering::Relaxed) as u64),
        ("connections_max", "The most connections at once", Is::Gauge, shared.max_clients as u64),
        ("connections_accepted", "Connections that came", Is::Counter, load(&shared.accepted)),
        ("connections_rejected", "Connections refused because there were too many", Is::Counter, load(&shared.rejected)),
        ("connections_cut_off", "Connections cut off because they held buffers that others needed", Is::Counter, shared.sum(|c| &c.cut_off)),
        ("connection_buffer_bytes", "Bytes of buffers that connections hold", Is::Gauge, shared.sum(|c| &c.buffer_bytes)),
        ("commands_waiting", "Commands that wait for room", Is::Gauge, shared.sum(|c| &c.waiting)),
        ("input_bytes", "Bytes read from connections", Is::Counter, shared.sum(|c| &c.input_bytes)),
        ("output_bytes", "Bytes written to connections", Is::Counter, shared.sum(|c| &c.output_bytes)),
        ("key_hits", "Keys that reads found", Is::Counter, shared.sum(|c| &c.hits)),
        ("key_misses", "Keys that reads did not find", Is::Counter, shared.sum(|c| &c.misses)),
        ("uptime_seconds", "Time since the start", Is::Gauge, u64::from(shared.uptime_s())),
    ];
    for (name, help, is, value) in rows {
        metric(encoder, &named(name), help, is, &[(Vec::new(), value)])?;
    }
    let errors: Vec<Value<'_>> = shared
        .errors
        .all()
        .into_iter()
        .map(|(kind, count)| (vec![("kind", kind)], count))
        .collect();
    metric(encoder, "terrace_errors", "Error replies, by their first word", Is::Counter, &errors)?;
    let bytes = process::resident_bytes().unwrap_or(0);
    metric(encoder, "process_resident_memory_bytes", "Resident memory", Is::Gauge, &[(Vec::new(), bytes)])?;
    let Some((user_s, system_s)) = process::cpu_seconds() else {
        return Ok(());
    };
    encoder
        .encode_descriptor("process_cpu_seconds", "User and system time", None, MetricType::Counter)?
        .encode_counter::<NoLabelSet, f64, f64>(&(user_s + system_s), None)
}

fn labels_of(kind: usize) -> Vec<(&'static str, String)> {
    let (protocol, name) = name_of(kind);
    vec![
        ("protocol", protocol.to_string()),
        ("command", name.to_string()),
    ]
}

fn commands(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let all = shared.commands_called();
    let of = |pick: fn(&Summed) -> u64| -> Vec<Value<'_>> {
        let some = all.iter().filter(|c| pick(c) > 0);
        some.map(|c| (labels_of(c.kind), pick(c))).collect()
    };
    let help = "Commands that ended with an error";
    metric(
        encoder,
        "terrace_commands_failed",
        help,
        Is::Counter,
        &of(|c| c.failed),
    )?;
    let help = "Commands that were refused before they ran";
    metric(
        encoder,
        "terrace_commands_rejected",
        help,
        Is::Counter,
        &of(|c| c.rejected),
    )?;
    let help = "Time from when a command was looked at to its complete reply, waits for the device and for room included";
    let mut times =
        encoder.encode_descriptor("terrace_command_seconds", help, None, MetricType::Histogram)?;
    for command in all.iter().filter(|c| c.calls > 0) {
        let sum_s = command.sum_ns as f64 / NS_PER_S;
        times
            .encode_family(&labels_of(command.kind))?
            .encode_histogram::<NoLabelSet>(sum_s, command.calls, &buckets(command), None)?;
    }
    Ok(())
}

/// Buckets of powers of two, the same for all commands, so that they can be added up.
fn buckets(command: &Summed) -> Vec<(f64, u64)> {
    let mut buckets = vec![(BUCKET_MIN_NS as f64 / NS_PER_S, 0)];
    let (mut end_ns, mut above) = (BUCKET_MIN_NS, 0);
    while end_ns < BUCKET_MAX_NS {
        end_ns *= 2;
        buckets.push((end_ns as f64 / NS_PER_S, 0));
    }
    for (end_ns, count) in command.by_power() {
        let at = end_ns.max(BUCKET_MIN_NS).ilog2() - BUCKET_MIN_NS.ilog2();
        match buckets.get_mut(at as usize) {
            Some(bucket) => bucket.1 += count,
            None => above += count,
        }
    }
    buckets.push((f64::INFINITY, above));
    buckets
}
