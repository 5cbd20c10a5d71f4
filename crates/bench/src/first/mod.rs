//! `bench first`: is one log that steps down a fair server in DRAM, a far better one over its DRAM than swap, and back at once?
//!
//! The parts `dram`, `cap` and `recovery`, and `sync` when it is asked for; each has its file. Here is what they share: starting
//! a server with its cgroup, loading it, and taking one round of one peer. A round's figures come from the load generator, from
//! the server's own INFO, and from /proc/diskstats, a witness that is nobody's own, but counts whatever else uses the disk. Never
//! drives two servers at a time.

mod cap;
mod dram;
mod recovery;
mod sync;

use crate::cgroup::Cgroup;
use crate::load::{self, KeyChoice, Load, Outcome, Until};
use crate::machine::{Disk, LOAD_CPU, SERVER_CPU};
use crate::progress::Progress;
use crate::report::{Part, Report, Row, Samples};
use crate::server::{Durability, Peer, Server, Spec};
use crate::{Setting, stop, swap};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::path::PathBuf;

/// The parts, in the order they run; `sync` runs only when it is named.
pub const PARTS: &[&str] = &["dram", "cap", "recovery", "sync"];

/// Unmeasured driving before each round, so that a server that was idle is awake.
const WAKE_S: f64 = 0.3;
/// Pause after each round: what the server still has to do (flush, clean) must not fall into the peer's round. Longer than
/// the flush interval of one second.
const SETTLE_S: f64 = 1.5;
/// Connections of all measured rounds.
const CONNECTIONS: usize = 50;
/// Loading uses fewer connections and deeper batches.
const LOAD_CONNECTIONS: usize = 8;
const LOAD_IN_FLIGHT: usize = 32;

/// Runs the parts that were asked for.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    if setting.wants("dram") {
        dram::run(setting, report)?;
    }
    let mut pool = None;
    if setting.wants("cap") {
        pool = Some(cap::run(setting, report)?);
    }
    if setting.wants("recovery") {
        recovery::run(setting, report, pool)?;
    }
    if setting.options.only.iter().any(|part| part == "sync") {
        sync::run(setting, report)?;
    }
    Ok(())
}

/// A cgroup, or a note that says why the run goes on without.
fn cgroup_or_note(part: &mut Part, name: &str, limit_bytes: u64, swap: bool) -> Option<Cgroup> {
    match Cgroup::new(name, limit_bytes, swap) {
        Ok(group) => Some(group),
        Err(e) => {
            let note = format!(
                "no cgroup, so memory is not limited from outside and no peak is known: {e:#}"
            );
            if !part.notes.contains(&note) {
                part.notes.push(note);
            }
            None
        }
    }
}

fn spec(setting: &Setting, part: &str, peer: Peer, dram_bytes: u64, ssd_bytes: u64) -> Spec {
    let name = format!("{part}-{}", peer.name().replace([' ', ','], "-"));
    Spec {
        peer,
        exe: setting.exe.clone(),
        dir: setting.work_dir.join(&name),
        log: setting.out_dir.join(format!("{name}.log")),
        dram_bytes,
        ssd_bytes,
        durability: Durability::Async,
        cpu: Some(SERVER_CPU),
    }
}

/// Writes every key once, in order.
fn fill(server: &mut Server, keys: u64, value_bytes: usize) -> Result<Outcome> {
    let load = Load {
        connections: LOAD_CONNECTIONS,
        in_flight: LOAD_IN_FLIGHT,
        keys,
        choice: KeyChoice::InOrder,
        get_percent: 0,
        value_bytes,
        until: Until::Requests(keys),
        ops_per_s_max: None,
        cpu: Some(LOAD_CPU),
        seed: 1,
    };
    drive(server, &load, "loading")
}

/// Drives a server and insists on right answers: every key was loaded before.
fn drive(server: &mut Server, load: &Load, what: &str) -> Result<Outcome> {
    let context = format!("{what}: {}", server.peer().name());
    let outcome = load::drive(server.addr(), load).map_err(|e| server.explain(e));
    let outcome = outcome.with_context(|| context.clone())?;
    outcome.check(false).context(context)?;
    Ok(outcome)
}

/// The counters around a round.
struct Counters {
    info: HashMap<String, f64>,
    disk: Option<Disk>,
    pages_swapped: Option<(u64, u64)>,
}

impl Counters {
    fn read(server: &Server, setting: &Setting) -> Result<Counters> {
        Ok(Counters {
            info: server.info()?,
            disk: Disk::under(&setting.work_dir),
            pages_swapped: swap::pages_swapped(),
        })
    }
}

/// One round of one server: wake, measure, settle.
fn round(server: &mut Server, load: &Load, setting: &Setting, samples: &mut Samples) -> Result<()> {
    drive(
        server,
        &Load {
            until: Until::Seconds(WAKE_S),
            seed: load.seed ^ 0xffff,
            ..*load
        },
        "waking",
    )?;
    let before = Counters::read(server, setting)?;
    let outcome = drive(server, load, "measuring")?;
    let after = Counters::read(server, setting)?;
    server.check_running()?;
    samples.round();
    samples.add("ops_per_s", outcome.ops_per_s());
    samples.add("latency_p50_us", outcome.latency_us(0.5));
    samples.add("latency_p99_us", outcome.latency_us(0.99));
    samples.add("latency_p999_us", outcome.latency_us(0.999));
    samples.add("latency_max_us", outcome.latency_us(1.0));
    samples.add(
        "load_cpu_share",
        per(Some(outcome.cpu_s), outcome.elapsed_s),
    );
    samples.add(
        "load_cpu_ns_per_op",
        per(Some(outcome.cpu_s * 1e9), outcome.ops as f64),
    );
    add_counters(samples, load, &outcome, &before, &after);
    stop::sleep_s(SETTLE_S)
}

fn add_counters(
    samples: &mut Samples,
    load: &Load,
    outcome: &Outcome,
    before: &Counters,
    after: &Counters,
) {
    let grown = |name: &str| Some(after.info.get(name)? - before.info.get(name)?);
    samples.add("device_reads_per_miss", reads_per_miss(&grown));
    samples.add("misses_per_get", per(grown("misses"), outcome.gets as f64));
    samples.add(
        "verify_reads_per_set",
        per(grown("verify_reads"), outcome.sets as f64),
    );
    let updated_bytes = grown("updated_bytes").unwrap_or(0.0);
    samples.add(
        "device_write_bytes_per_updated_byte",
        per(grown("device_write_bytes"), updated_bytes),
    );
    if let (Some(index_bytes), Some(keys)) = (after.info.get("index_bytes"), after.info.get("keys"))
    {
        samples.add("index_bytes_per_key", per(Some(*index_bytes), *keys));
    }
    if let (Some(before), Some(after)) = (before.disk, after.disk) {
        let disk = after.since(before);
        samples.add(
            "disk_reads_per_op",
            per(Some(disk.reads as f64), outcome.ops as f64),
        );
        samples.add(
            "disk_reads_per_s",
            per(Some(disk.reads as f64), outcome.elapsed_s),
        );
        samples.add(
            "disk_queue_depth",
            per(Some(disk.weighted_ms as f64 / 1e3), outcome.elapsed_s),
        );
        let set_bytes = outcome.sets as f64 * load.value_bytes as f64;
        samples.add(
            "disk_write_bytes_per_set_byte",
            per(Some(disk.write_bytes as f64), set_bytes),
        );
    }
    if let (Some((in0, out0)), Some((in1, out1))) = (before.pages_swapped, after.pages_swapped) {
        samples.add(
            "pages_swapped_in_per_op",
            per(Some(in1.saturating_sub(in0) as f64), outcome.ops as f64),
        );
        samples.add(
            "pages_swapped_out_per_op",
            per(Some(out1.saturating_sub(out0) as f64), outcome.ops as f64),
        );
    }
}

/// Device reads that GETs caused, for each miss: `device_reads` counts all reads of single entries, so those that verify a key
/// for an update are taken off.
fn reads_per_miss(grown: &impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let reads = grown("device_reads")? - grown("verify_reads").unwrap_or(0.0);
    per(Some(reads), grown("misses")?)
}

fn per(figure: Option<f64>, base: f64) -> Option<f64> {
    if base > 0.0 {
        Some(figure? / base)
    } else {
        None
    }
}

/// The rows of a case: measured peers, and why the missing ones are missing.
fn push_rows(
    part: &mut Part,
    case: &str,
    measured: &[(Peer, Samples)],
    missing: &[(Peer, String)],
) {
    part.rows.extend(
        measured
            .iter()
            .map(|(peer, samples)| Row::measured(case, peer.name(), samples)),
    );
    part.rows.extend(
        missing
            .iter()
            .map(|(peer, why)| Row::missing(case, peer.name(), why)),
    );
}

fn samples_of(measured: &[(Peer, Samples)], peer: Peer) -> Option<&Samples> {
    measured
        .iter()
        .find(|(p, _)| *p == peer)
        .map(|(_, samples)| samples)
}

fn ratio(measured: &[(Peer, Samples)], peer: Peer, figure: &str) -> Option<f64> {
    let (ours, theirs) = (
        samples_of(measured, Peer::Terrace)?,
        samples_of(measured, peer)?,
    );
    Some(crate::report::paired_ratio(ours, theirs, figure)?.median)
}

/// Interleaves the servers: ours, peer, ours, peer …
fn rounds(
    servers: &mut [Server],
    load: &Load,
    setting: &Setting,
    progress: &Progress,
    case: &str,
) -> Result<Vec<(Peer, Samples)>> {
    let mut measured: Vec<(Peer, Samples)> = servers
        .iter()
        .map(|s| (s.peer(), Samples::default()))
        .collect();
    for repeat in 0..setting.options.repeats {
        for (server, (peer, samples)) in servers.iter_mut().zip(&mut measured) {
            progress.step(format!("{case}: {}", peer.name()));
            round(
                server,
                &Load {
                    seed: load.seed + u64::from(repeat),
                    ..*load
                },
                setting,
                samples,
            )?;
        }
    }
    Ok(measured)
}

/// Steps that [`rounds`] will report.
fn round_steps(setting: &Setting, servers: usize, cases: usize) -> u64 {
    u64::from(setting.options.repeats) * (servers * cases) as u64
}

/// A loaded pool that one part leaves to the next.
struct LoadedPool {
    dir: PathBuf,
}

fn plot_groups(part: &Part, figure: &str) -> Vec<crate::report::plot::Group> {
    use crate::report::plot::{Column, Group};
    let mut groups: Vec<Group> = Vec::new();
    for row in &part.rows {
        let figure = row.figures.get(figure).map(|s| (s.median, s.min, s.max));
        let column = Column {
            series: row.peer.clone(),
            figure,
        };
        match groups.iter_mut().find(|g| g.label == row.case) {
            Some(group) => group.columns.push(column),
            None => groups.push(Group {
                label: row.case.clone(),
                columns: vec![column],
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_per_miss_leaves_verifying_reads_out() {
        let of = |told: &[(&str, f64)]| {
            reads_per_miss(&|name: &str| told.iter().find(|(n, _)| *n == name).map(|(_, v)| *v))
        };
        let told = [
            ("device_reads", 130.0),
            ("misses", 100.0),
            ("verify_reads", 30.0),
        ];
        assert_eq!(of(&told), Some(1.0));
        assert_eq!(of(&told[..2]), Some(1.3));
        assert_eq!(of(&told[1..]), None);
        assert_eq!(of(&[("device_reads", 0.0), ("misses", 0.0)]), None);
    }
}
