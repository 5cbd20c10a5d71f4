//! Rows `c` and `d`: uniform reads over the cap, against what the disk itself can do, and the reads that a miss costs.
//!
//! Row `c` takes, after each round, the disk's own random reads at the mean queue depth that the round reached (milliseconds of
//! requests in flight of /proc/diskstats over the time), on the same CPU, on a file of the same size, within the minute. Row `d`
//! counts the reads themselves; those that only verify the key of a SET or DEL stand apart. Never takes a hit for a miss.

use super::tiered::{self, Case, READS_PER_MISS_MAX, Tiered, VALUE_BYTES};
use crate::load::{KeyChoice, Load, Op, Until, ZIPF};
use crate::progress::Progress;
use crate::report::{Bar, Report, Row, Samples, Side, Summary, paired_ratio};
use crate::rounds::{draw, drive, fill, round, spec};
use crate::server::{Peer, Server};
use crate::{Setting, bare, device};
use anyhow::Result;

/// The least part of the disk's own reads.
const DISK_SHARE_MIN: f64 = 0.85;
/// Keys that are deleted to see what a DEL reads; the first that were loaded, so they are cold.
const DELETED_KEYS: u64 = 100_000;
const UNIFORM: Case = Case {
    name: "GET, uniform",
    choice: KeyChoice::Uniform,
    get_percent: 100,
};

/// Row `c`.
pub fn beside_disk(setting: &Setting, report: &mut Report, tiered: &mut Tiered) -> Result<()> {
    let mut part = tiered::part(setting, "c", "uniform GETs beside the disk alone");
    part.columns = vec![
        "misses_of_disk_reads",
        "misses_per_s",
        "disk_alone_reads_per_s",
        "disk_queue_depth",
        "ops_per_s",
        "latency_p99_us",
        "disk_reads_per_s",
        "misses_per_get",
    ];
    part.notes.push(format!(
        "the disk alone: random reads of 4 KiB with O_DIRECT by {}; ours are as long as the sectors of an entry",
        device::yardstick()
    ));
    tiered.lineup.keep(&[Peer::Terrace, Peer::Extstore])?;
    tiered.settle(setting, &UNIFORM)?;
    let load = tiered.load(setting, &UNIFORM);
    let (_, _, ssd_bytes) = tiered::sizes(setting);
    let mut bare = bare_server(setting, tiered.keys)?;
    let servers = &mut tiered.lineup.servers;
    let mut all: Vec<Samples> = (0..=servers.len()).map(|_| Samples::default()).collect();
    let progress = Progress::new(u64::from(setting.options.repeats) * all.len() as u64);
    for repeat in 0..setting.options.repeats {
        let turn = servers.iter_mut().chain([&mut bare]);
        for (server, samples) in turn.zip(&mut all) {
            progress.step(format!("{}: {}", UNIFORM.name, server.peer().name()));
            let seed = load.seed + u64::from(repeat);
            round(server, &Load { seed, ..load }, setting, samples)?;
            add_disk_alone(setting, ssd_bytes, samples)?;
        }
    }
    for (server, samples) in servers.iter().chain([&bare]).zip(&all) {
        let row = Row::measured(UNIFORM.name, server.peer().name(), samples);
        part.rows.push(row);
    }
    bare.stop()?;
    let of_bare = all
        .last()
        .and_then(|bare| paired_ratio(&all[0], bare, "ops_per_s"));
    if let Some(of_bare) = of_bare {
        part.notes.push(format!(
            "terrace serves {:.2} ({:.2} to {:.2}) of the GETs that `bare reads` does: a server of one thread that has sockets and the disk, and neither cache nor directory nor log",
            of_bare.median, of_bare.min, of_bare.max
        ));
    }
    let ours = Summary::of(all[0].of("misses_of_disk_reads"));
    report.bars.push(Bar::new(
        "c: served misses as a part of the disk's reads at the same queue depth",
        Side::AtLeast,
        DISK_SHARE_MIN,
        ours.map(|s| s.median),
    ));
    let title = "Served misses as a part of the disk's own random reads";
    draw(setting, report, &part, title, "misses_of_disk_reads");
    report.parts.push(part);
    Ok(())
}

/// The bare server, with the same keys and no DRAM for any.
fn bare_server(setting: &Setting, keys: u64) -> Result<Server> {
    const { assert!(VALUE_BYTES == bare::VALUE_BYTES) };
    let spec = spec(setting, "c", Peer::Bare, 0, 0);
    let mut server = Server::start_ready(&spec, None)?;
    fill(&mut server, keys, VALUE_BYTES)?;
    Ok(server)
}

/// Measures the disk at the queue depth of the last round, by reads as long, where that is known.
fn add_disk_alone(setting: &Setting, file_bytes: u64, samples: &mut Samples) -> Result<()> {
    let last = |name: &str| samples.of(name).last().copied();
    let (depth, bytes) = (last("disk_queue_depth"), last("disk_bytes_per_read"));
    let (Some((depth, bytes)), misses) = (depth.zip(bytes), last("misses_per_s")) else {
        return Ok(());
    };
    let reads = device::Reads {
        bytes: bytes as u64,
        depth: depth.round() as u32,
        cpus: 1,
    };
    let alone = device::random_reads_from(setting, file_bytes >> 20, reads)?.ops_per_s;
    samples.add("disk_alone_reads_per_s", alone);
    samples.add("misses_of_disk_reads", misses.map(|misses| misses / alone));
    Ok(())
}

/// Row `d`, of ours alone; takes keys away at its end.
pub fn for_each_miss(setting: &Setting, report: &mut Report, tiered: &mut Tiered) -> Result<()> {
    tiered.lineup.keep(&[Peer::Terrace])?;
    let mut part = tiered::part(setting, "d", "device reads");
    part.columns = vec![
        "device_reads_per_miss",
        "verify_reads_per_set",
        "misses_per_get",
        "ops_per_s",
        "latency_p99_us",
    ];
    let cases = [
        Case {
            name: "95 % GET, Zipf 0.99",
            choice: ZIPF,
            get_percent: 95,
        },
        UNIFORM,
        Case {
            name: "SET, uniform",
            choice: KeyChoice::Uniform,
            get_percent: 0,
        },
    ];
    for case in &cases {
        let measured = tiered.case(setting, &mut part, case)?;
        if case.get_percent > 0 {
            report.bars.push(Bar::new(
                format!("d, {}: device reads a miss", case.name),
                Side::AtMost,
                READS_PER_MISS_MAX,
                measured.ours("device_reads_per_miss"),
            ));
        }
    }
    part.rows.push(deletions(tiered)?);
    report.parts.push(part);
    Ok(())
}

/// Deletes the keys that were loaded first, once each.
fn deletions(tiered: &mut Tiered) -> Result<Row> {
    let dels = DELETED_KEYS.min(tiered.keys / 2);
    let load = Load {
        choice: KeyChoice::InOrder { from: 0 },
        get_percent: 0,
        write: Op::Del,
        until: Until::Requests(dels),
        ..Load::of(tiered.keys, VALUE_BYTES)
    };
    let server = &mut tiered.lineup.servers[0];
    let before = server.info()?;
    let outcome = drive(server, &load, "deleting")?;
    let after = server.info()?;
    let mut samples = Samples::default();
    samples.round();
    samples.add("ops_per_s", outcome.ops_per_s());
    samples.add("latency_p99_us", outcome.latency_us(0.99));
    if let (Some(before), Some(after)) = (before.get("verify_reads"), after.get("verify_reads")) {
        samples.add("verify_reads_per_set", (after - before) / dels as f64);
    }
    Ok(Row::measured(
        "DEL, cold keys",
        Peer::Terrace.name(),
        &samples,
    ))
}
