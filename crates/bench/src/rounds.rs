//! Rounds: how every server is started, loaded and measured, so that all are treated the same.
//!
//! A round's figures come from the load generator, from the server's own counters, and from /proc/diskstats, a witness that is
//! nobody's own, but counts whatever else uses the disk. Servers take turns; never are two driven at a time.

use crate::cgroup::{Cgroup, Usage};
use crate::load::{self, KeyChoice, Load, Outcome, Pace, Until};
use crate::machine::{Disk, SERVER_CPU};
use crate::progress::Progress;
use crate::report::plot::{self, Column, Frame, Group};
use crate::report::table::heading;
use crate::report::{Bar, Part, Report, Row, Samples, Side, Summary, paired_ratio};
use crate::server::{Durability, Peer, Server, Spec};
use crate::swap::{self, SwapFile};
use crate::{Setting, stop};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::time::Instant;

/// Unmeasured driving before each round, so that a server that was idle is awake.
const WAKE_S: f64 = 0.3;
/// Pause after each round: what the server still has to do (flush, clean) must not fall into the peer's round. Longer than
/// the flush interval of one second.
const SETTLE_S: f64 = 1.5;
/// What a cgroup may hold above the cap: text, stacks, the kernel's own.
pub const CGROUP_SLACK_BYTES: u64 = 32 << 20;
/// Loading uses fewer connections and deeper batches.
const LOAD_CONNECTIONS: usize = 8;
const LOAD_IN_FLIGHT: usize = 32;
/// Faster than this, extstore drops items while it is loaded; where other work has the CPU, slower too.
const EXTSTORE_LOAD_PER_S: u64 = 60_000;
const EXTSTORE_SLICE_KEYS: u64 = 4_096;
/// How often at most one slice is waited for, and how long each time.
const EXTSTORE_WAITS_MAX: u32 = 50;
const EXTSTORE_WAIT_S: f64 = 0.02;

/// A cgroup, or a note that says why the run goes on without.
pub fn cgroup_or_note(part: &mut Part, name: &str, limit_bytes: u64, swap: bool) -> Option<Cgroup> {
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

/// How to start `peer` for a part, on the CPU of servers.
pub fn spec(setting: &Setting, part: &str, peer: Peer, dram_bytes: u64, ssd_bytes: u64) -> Spec {
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
        threads: 1,
    }
}

/// Writes every key once, in order; returns the keys written each second.
pub fn fill(server: &mut Server, keys: u64, value_bytes: usize) -> Result<f64> {
    fill_from(server, 0, keys, value_bytes)
}

/// Writes the keys from `from` up to `keys`, at a pace that the server can take.
pub fn fill_from(server: &mut Server, from: u64, keys: u64, value_bytes: usize) -> Result<f64> {
    let load = Load {
        connections: LOAD_CONNECTIONS,
        in_flight: LOAD_IN_FLIGHT,
        choice: KeyChoice::InOrder { from },
        get_percent: 0,
        until: Until::Requests(keys - from),
        ..Load::of(keys, value_bytes)
    };
    let started = Instant::now();
    match server.peer() {
        Peer::Extstore | Peer::ExtstoreRecaching => fill_extstore(server, &load, from)?,
        _ => drop(drive(server, &load, "loading")?),
    }
    Ok((keys - from) as f64 / started.elapsed().as_secs_f64())
}

/// Loads in slices, and waits after each until its values are on their way to the disk: what comes faster, extstore drops.
fn fill_extstore(server: &mut Server, load: &Load, from: u64) -> Result<()> {
    let mut next = from;
    while next < load.keys {
        let keys = EXTSTORE_SLICE_KEYS.min(load.keys - next);
        let slice = Load {
            choice: KeyChoice::InOrder { from: next },
            until: Until::Requests(keys),
            pace: Pace::AtMost(EXTSTORE_LOAD_PER_S),
            ..*load
        };
        drive(server, &slice, "loading")?;
        next += keys;
        let wanted = next.saturating_sub(EXTSTORE_SLICE_KEYS) as f64;
        for _ in 0..EXTSTORE_WAITS_MAX {
            if server.info()?.get("extstore_objects_used") >= Some(&wanted) {
                break;
            }
            stop::sleep_s(EXTSTORE_WAIT_S)?;
        }
    }
    Ok(())
}

/// Drives a server and insists on right answers: every key was loaded before, and only a cache may have lost it.
pub fn drive(server: &mut Server, load: &Load, what: &str) -> Result<Outcome> {
    let context = format!("{what}: {}", server.peer().name());
    let load = Load {
        protocol: server.peer().protocol(),
        ..*load
    };
    let outcome = load::drive(server.addr(), &load).map_err(|e| server.explain(e));
    let outcome = outcome.with_context(|| context.clone())?;
    outcome.check(server.peer().is_cache()).context(context)?;
    Ok(outcome)
}

/// The counters around a round.
pub struct Counters {
    info: HashMap<String, f64>,
    cpu_s: Option<f64>,
    disk: Option<Disk>,
    pages_swapped: Option<(u64, u64)>,
}

impl Counters {
    fn read(server: &Server, setting: &Setting) -> Result<Counters> {
        Ok(Counters {
            info: match server.is_under_run() {
                true => crate::told::figures(server.pid())?,
                false => server.info()?,
            },
            cpu_s: server.cpu_s(),
            disk: Disk::under(&setting.work_dir),
            pages_swapped: swap::pages_swapped(),
        })
    }
}

/// One round of one server, added to `samples`: wake, measure, settle.
pub fn round(
    server: &mut Server,
    load: &Load,
    setting: &Setting,
    samples: &mut Samples,
) -> Result<()> {
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
    samples.add(
        "missing_per_get",
        per(Some(outcome.nils as f64), outcome.gets as f64),
    );
    samples.add(
        "refused_per_set",
        per(Some(outcome.errors as f64), outcome.sets as f64),
    );
    add_counters(samples, load, &outcome, &before, &after);
    // A smoke test judges nothing, so nothing need settle.
    match setting.options.scale_divisor {
        1 => stop::sleep_s(SETTLE_S),
        _ => Ok(()),
    }
}

fn add_counters(
    samples: &mut Samples,
    load: &Load,
    outcome: &Outcome,
    before: &Counters,
    after: &Counters,
) {
    let grown = |name: &str| Some(after.info.get(name)? - before.info.get(name)?);
    if let (Some(before_s), Some(after_s)) = (before.cpu_s, after.cpu_s) {
        let cpu_ns = (after_s - before_s) * 1e9;
        samples.add(
            "server_cpu_ns_per_op",
            per(Some(cpu_ns), outcome.ops as f64),
        );
    }
    samples.add("device_reads_per_miss", reads_per_miss(&grown));
    // Extstore calls a miss what it does not have, and a read of its disk a get from there.
    let misses = grown("misses").or(grown("get_extstore"));
    samples.add("misses_per_s", per(misses, outcome.elapsed_s));
    samples.add("misses_per_get", per(misses, outcome.gets as f64));
    samples.add(
        "verify_reads_per_set",
        per(grown("verify_reads"), outcome.sets as f64),
    );
    samples.add("faults_per_op", per(grown("faults"), outcome.ops as f64));
    samples.add(
        "fault_us",
        per(grown("fault_microseconds"), grown("faults").unwrap_or(0.0)),
    );
    samples.add("checkpoints", grown("checkpoints"));
    samples.add("segments_cleaned", grown("segments_cleaned"));
    samples.add("new_keys", grown("keys"));
    let updated_bytes = grown("updated_bytes").unwrap_or(0.0);
    for (figure, counter) in [
        ("device_write_bytes_per_updated_byte", "device_write_bytes"),
        ("image_bytes_per_updated_byte", "written_image_bytes"),
        ("moved_bytes_per_updated_byte", "moved_bytes"),
    ] {
        samples.add(figure, per(grown(counter), updated_bytes));
    }
    if let (Some(index_bytes), Some(keys)) = (after.info.get("index_bytes"), after.info.get("keys"))
    {
        samples.add("index_bytes_per_key", per(Some(*index_bytes), *keys));
    }
    if let (Some(before), Some(after)) = (before.disk, after.disk) {
        let disk = after.since(before);
        let set_bytes = outcome.sets as f64 * load.value_bytes as f64;
        let (ops, reads) = (outcome.ops as f64, disk.reads as f64);
        let written = disk.write_bytes as f64;
        for (figure, count, of) in [
            ("disk_reads_per_op", reads, ops),
            ("disk_reads_per_s", reads, outcome.elapsed_s),
            ("disk_bytes_per_read", disk.read_bytes as f64, reads),
            (
                "disk_queue_depth",
                disk.weighted_ms as f64 / 1e3,
                outcome.elapsed_s,
            ),
            ("disk_write_bytes_per_op", written, ops),
            ("disk_write_bytes_per_set_byte", written, set_bytes),
        ] {
            samples.add(figure, per(Some(count), of));
        }
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

/// What came of a case: the samples of each peer that ran.
pub struct Measured(Vec<(Peer, Samples)>);

impl Measured {
    /// The samples of one peer, if it ran.
    pub fn of(&self, peer: Peer) -> Option<&Samples> {
        let (_, samples) = self.0.iter().find(|(p, _)| *p == peer)?;
        Some(samples)
    }

    /// The median of a figure of ours.
    pub fn ours(&self, figure: &str) -> Option<f64> {
        Some(Summary::of(self.of(Peer::Terrace)?.of(figure))?.median)
    }

    /// The medians of ours over each of `peers`, round by round; None when one of them could not run.
    pub fn ratios(&self, peers: &[Peer], figure: &str) -> Option<Vec<f64>> {
        let ours = self.0.iter().find(|(peer, _)| peer.is_ours());
        let (_, ours) = ours?;
        peers
            .iter()
            .map(|peer| Some(paired_ratio(ours, self.of(*peer)?, figure)?.median))
            .collect()
    }

    /// The smallest of [`Measured::ratios`]: ours over the peer with the most.
    pub fn ratio_to_most(&self, peers: &[Peer], figure: &str) -> Option<f64> {
        self.ratios(peers, figure)?.into_iter().reduce(f64::min)
    }

    /// The largest of [`Measured::ratios`]: ours over the peer with the least.
    pub fn ratio_to_least(&self, peers: &[Peer], figure: &str) -> Option<f64> {
        self.ratios(peers, figure)?.into_iter().reduce(f64::max)
    }
}

/// The servers of a part, all running, one driven at a time.
#[derive(Default)]
pub struct Lineup {
    /// Those that run.
    pub servers: Vec<Server>,
    missing: Vec<(Peer, String)>,
    /// Whether the others stand still while one is driven: programs that do not know that their memory is elsewhere touch it in the
    /// background, and would take disk and processors from it.
    alone: bool,
    /// How many pairs a repeat has: more than one where a bar is narrower than pairs scatter. Each second one is driven the other way round.
    pairs: u32,
    /// Must outlive the server that swaps on it.
    swap: Option<SwapFile>,
}

impl Lineup {
    /// Servers of which one runs at a time, with so many pairs in each repeat.
    pub fn one_at_a_time(pairs: u32) -> Lineup {
        Lineup {
            alone: true,
            pairs,
            ..Lineup::default()
        }
    }

    /// How often a case drives each server.
    fn turns(&self, setting: &Setting) -> u32 {
        setting.options.repeats * self.pairs.max(1)
    }

    /// Starts a server, or remembers why it cannot run here. `limit_bytes` puts it into a cgroup.
    pub fn add(&mut self, part: &mut Part, spec: &Spec, limit_bytes: Option<u64>) -> Result<()> {
        if let Some(why) = spec.peer.missing() {
            self.missing.push((spec.peer, why.to_owned()));
            return Ok(());
        }
        let name = spec.peer.name().replace([' ', ','], "-");
        let group = limit_bytes.and_then(|bytes| cgroup_or_note(part, &name, bytes, false));
        self.note_and_push(part, Server::start_ready(spec, group)?);
        Ok(())
    }

    /// Starts a server in a cgroup with a swap file for what does not fit (the first one's, where there is one), or remembers why that cannot be had.
    pub fn add_swapping(
        &mut self,
        setting: &Setting,
        part: &mut Part,
        spec: &Spec,
        limit_bytes: u64,
        swap_bytes: u64,
    ) {
        let started = (|| {
            if let Some(why) = spec.peer.missing() {
                anyhow::bail!("{why}");
            }
            // Without a group it would not swap, and without swap it would be killed: each is useless alone.
            let group = Cgroup::new("swapping", limit_bytes, true)?;
            let swap = match self.swap.take() {
                Some(swap) => swap,
                None => SwapFile::new(&setting.work_dir.join("swapfile"), swap_bytes)
                    .context("a swap file")?,
            };
            // Before the server: it outlives that.
            self.swap = Some(swap);
            Server::start_ready(spec, Some(group))
        })();
        match started {
            Ok(server) => self.note_and_push(part, server),
            Err(e) => self.missing.push((spec.peer, format!("not run: {e:#}"))),
        }
    }

    fn note_and_push(&mut self, part: &mut Part, server: Server) {
        part.notes
            .push(format!("{}: `{}`", server.peer().name(), server.argv()));
        self.servers.push(server);
    }

    /// Loads every server.
    pub fn fill(
        &mut self,
        part: &mut Part,
        progress: &Progress,
        keys: u64,
        value_bytes: usize,
    ) -> Result<()> {
        for server in &mut self.servers {
            let name = server.peer().name();
            progress.step(format!("loading {name}"));
            let rate = fill(server, keys, value_bytes)?;
            let items = server.info()?.get("curr_items").copied();
            let kept = items.map_or(String::new(), |items| {
                format!(", {:.2} % of them kept", items / keys as f64 * 100.0)
            });
            part.notes
                .push(format!("{name}: loaded at {rate:.0} keys/s{kept}"));
        }
        Ok(())
    }

    /// Steps of progress that loading and `cases` cases take.
    pub fn steps(&self, setting: &Setting, cases: usize) -> u64 {
        (self.servers.len() * (1 + cases * self.turns(setting) as usize)) as u64
    }

    /// Does something with each server in turn.
    pub fn each(&mut self, mut f: impl FnMut(&mut Server) -> Result<()>) -> Result<()> {
        for at in 0..self.servers.len() {
            self.pause_all_but(Some(at))?;
            f(&mut self.servers[at])?;
        }
        self.pause_all_but(None)
    }

    fn pause_all_but(&self, but: Option<usize>) -> Result<()> {
        let others = |at| but.is_some_and(|but| at != but);
        let mut servers = self.servers.iter().enumerate().filter(|_| self.alone);
        servers.try_for_each(|(at, server)| server.pause(others(at)))
    }

    /// Measures a case: ours, peer, ours, peer …, and adds its rows.
    pub fn case(
        &mut self,
        setting: &Setting,
        part: &mut Part,
        progress: &Progress,
        case: &str,
        load: &Load,
    ) -> Result<Measured> {
        let peers = self.servers.iter().map(Server::peer);
        let mut measured: Vec<(Peer, Samples)> =
            peers.map(|peer| (peer, Samples::default())).collect();
        for turn in 0..self.turns(setting) {
            let load = Load {
                seed: load.seed + u64::from(turn),
                ..*load
            };
            let mut order: Vec<usize> = (0..measured.len()).collect();
            if self.pairs > 1 && turn % 2 == 1 {
                order.reverse();
            }
            for at in order {
                self.pause_all_but(Some(at))?;
                let (peer, samples) = &mut measured[at];
                progress.step(format!("{case}: {}", peer.name()));
                round(&mut self.servers[at], &load, setting, samples)?;
            }
            self.pause_all_but(None)?;
        }
        let rows = measured
            .iter()
            .map(|(peer, samples)| Row::measured(case, peer.name(), samples));
        part.rows.extend(rows);
        let missing = self.missing.iter();
        part.rows
            .extend(missing.map(|(peer, why)| Row::missing(case, peer.name(), why)));
        Ok(Measured(measured))
    }

    /// Puts what the cgroups went through into the part's rows, one figure for all that a server did so far; returns ours.
    pub fn add_usage(&self, part: &mut Part) -> Option<Usage> {
        for server in &self.servers {
            let Some(usage) = server.usage() else {
                continue;
            };
            let name = server.peer().name();
            for row in part.rows.iter_mut().filter(|row| row.peer == name) {
                for (name, figure) in [
                    ("cgroup_peak_bytes", usage.peak_bytes),
                    ("cgroup_oom_kills", usage.oom_kills),
                    ("cgroup_limit_hits", usage.limit_hits),
                ] {
                    let summary = figure.and_then(|f| Summary::of(&[f as f64]));
                    row.figures.extend(summary.map(|s| (name.to_owned(), s)));
                }
            }
        }
        let ours = self.servers.iter().find(|s| s.peer().is_ours())?;
        ours.usage()
    }

    /// Stops all servers but these.
    pub fn keep(&mut self, peers: &[Peer]) -> Result<()> {
        for server in std::mem::take(&mut self.servers) {
            if peers.contains(&server.peer()) {
                self.servers.push(server);
            } else {
                server.stop()?;
            }
        }
        self.missing.retain(|(peer, _)| peers.contains(peer));
        if !peers.contains(&Peer::Redis) {
            self.swap = None;
        }
        Ok(())
    }

    /// Stops all servers, then swaps off.
    pub fn stop(mut self) -> Result<()> {
        self.keep(&[])
    }
}

/// The bars that a server of ours stays in its cgroup.
pub fn judge_usage(report: &mut Report, what: &str, limit_bytes: u64, usage: Option<Usage>) {
    let peak = usage.and_then(|u| u.peak_bytes).map(|b| b as f64);
    let kills = usage.and_then(|u| u.oom_kills).map(|n| n as f64);
    let name = format!("{what}: peak of the cgroup, bytes");
    let limit = limit_bytes as f64;
    report.bars.push(Bar::new(name, Side::AtMost, limit, peak));
    let name = format!("{what}: OOM kills");
    report.bars.push(Bar::new(name, Side::AtMost, 0.0, kills));
}

/// Draws one figure of a part's rows as columns, a group for each case.
pub fn draw(setting: &Setting, report: &mut Report, part: &Part, title: &str, figure: &str) {
    let file = &format!("{}-{figure}.png", part.name);
    let frame = Frame {
        title,
        x: "",
        y: &heading(figure),
        limit: None,
    };
    let groups = plot_groups(part, figure);
    report.plot(&setting.out_dir, file, |path| {
        plot::columns(path, &frame, &groups)
    });
}

fn plot_groups(part: &Part, figure: &str) -> Vec<Group> {
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
