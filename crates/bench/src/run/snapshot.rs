//! BGSAVE of a Redis under `terrace run` while it serves, and the dump loaded into a plain redis-server.
//!
//! Promises: the plain one must have each key that was there when the save began, with all its bytes, and none that came later. Never: compares with what
//! the saving server says of itself.

use super::judge_group;
use super::servers::{self, ServerRow, Sizes};
use crate::client::{Answer, Client};
use crate::load::{KeyChoice, Load, Until};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side};
use crate::rounds::{Lineup, drive, spec};
use crate::server::{Memory, Peer, Server, Spec};
use crate::{Setting, stop};
use anyhow::{Context, Result, bail};
use std::time::Instant;

/// The longest that a save may take.
const SAVE_MAX_S: f64 = 1800.0;
const CLIENT_WAIT_MAX_S: u64 = 60;
/// While it saves, one of so many updates is of a key that was not there.
const NEW_EVERY: u64 = 10;
/// Of the load meanwhile.
const GET_PERCENT: u32 = 50;
const COLUMNS: &[&str] = &[
    "bgsave_s",
    "ops_per_s",
    "latency_p99_us",
    "cgroup_peak_bytes",
    "cgroup_limit_hits",
    "cgroup_oom_kills",
];
const BAR: &str = "dump: keys that are wrong, missing or too many";
/// The file that Redis writes.
const DUMP: &str = "dump.rdb";

/// Loads one as row `c` does, warms it, saves, serves meanwhile, and compares.
pub fn run(setting: &Setting, report: &mut Report, row: &ServerRow) -> Result<()> {
    let row = &ServerRow {
        name: "dump",
        cases: &[],
        ..*row
    };
    let sizes = Sizes::of(setting, row);
    let title = format!(
        "BGSAVE of {}: {} keys under a cap of {} MiB in a cgroup of {} MiB, and the dump in a plain one",
        row.about,
        sizes.keys,
        sizes.cap_bytes >> 20,
        sizes.limit_bytes >> 20,
    );
    let mut part = Part::new(row.name, &title, COLUMNS);
    let mut lineup = Lineup::one_at_a_time(1);
    let ours = servers::server_spec(setting, row, sizes, Memory::Run);
    lineup.add(&mut part, &ours, Some(sizes.limit_bytes))?;
    let progress = Progress::new(lineup.steps(setting, 0) + 1);
    servers::fill(&mut lineup, &mut part, &progress, row, sizes)?;
    let load = servers::load(setting, row, sizes, GET_PERCENT);
    servers::warm(setting, &mut lineup, &mut part, "before", &load)?;
    let Some(server) = lineup.servers.first_mut() else {
        report.bars.push(Bar::new(BAR, Side::AtMost, 0.0, None));
        report.parts.push(part);
        return Ok(());
    };
    progress.step("dump: BGSAVE");
    save(setting, report, &mut part, server, &load, sizes.keys)?;
    let usage = lineup.add_usage(&mut part);
    judge_group(report, row.name, sizes.limit_bytes, usage);
    report.parts.push(part);
    drop(progress);
    lineup.stop()
}

fn save(
    setting: &Setting,
    report: &mut Report,
    part: &mut Part,
    server: &mut Server,
    load: &Load,
    keys: u64,
) -> Result<()> {
    let began = Instant::now();
    let mut client = Client::connect(server.addr(), CLIENT_WAIT_MAX_S)?;
    if let Answer::Error(why) = client.call(&["BGSAVE"])? {
        bail!("BGSAVE was refused: {why}");
    }
    let (mut ops, mut new_from, mut worst_us) = (0, keys, 0.0f64);
    while client.info()?.get("rdb_bgsave_in_progress") == Some(&1.0) {
        stop::check()?;
        if began.elapsed().as_secs_f64() > SAVE_MAX_S {
            bail!("BGSAVE did not end within {SAVE_MAX_S} s");
        }
        let meanwhile = Load {
            until: Until::Seconds(1.0),
            new_every: Some(NEW_EVERY),
            new_from,
            seed: new_from,
            ..*load
        };
        let outcome = drive(server, &meanwhile, "serving while it saves")?;
        ops += outcome.ops;
        new_from += outcome.sets / NEW_EVERY;
        worst_us = worst_us.max(outcome.latency_us(0.99));
    }
    let took_s = began.elapsed().as_secs_f64();
    let rate = ops as f64 / took_s;
    part.notes.push(format!(
        "BGSAVE took {took_s:.0} s, in which {rate:.0} requests a second were served (50 % GET, {} new keys), p99 of the worst second {:.1} ms",
        new_from - keys,
        worst_us / 1e3
    ));
    let wrong = compare(setting, load, keys).context("the dump in a plain redis-server")?;
    let bar = Bar::new(BAR, Side::AtMost, 0.0, Some(wrong as f64));
    report.bars.push(bar);
    let mut samples = Samples::default();
    samples.round();
    for (figure, sample) in [
        ("bgsave_s", took_s),
        ("ops_per_s", rate),
        ("latency_p99_us", worst_us),
    ] {
        samples.add(figure, sample);
    }
    let name = Memory::Run.name();
    part.rows
        .push(Row::measured("BGSAVE, 50 % GET", name, &samples));
    Ok(())
}

/// How many keys differ from what was loaded.
fn compare(setting: &Setting, load: &Load, keys: u64) -> Result<u64> {
    let saved = spec(setting, "run-dump", Peer::RedisOn(Memory::Run), 0, 0).dir;
    let plain = Spec {
        cpu: None,
        ..spec(setting, "run-dump", Peer::RedisOn(Memory::Plain), 0, 0)
    };
    std::fs::create_dir_all(&plain.dir)?;
    std::fs::rename(saved.join(DUMP), plain.dir.join(DUMP)).context("moving the dump")?;
    let server = Server::start_ready(&plain, None)?;
    let there = server.dbsize()?;
    let look = Load {
        connections: 8,
        in_flight: 16,
        choice: KeyChoice::InOrder { from: 0 },
        get_percent: 100,
        until: Until::Requests(keys),
        protocol: server.peer().protocol(),
        ..*load
    };
    let seen = crate::load::drive(server.addr(), &look)?;
    server.kill()?;
    // Of those that are there some may be missing and others too many.
    Ok(seen.wrong + seen.nils + seen.errors + (there + seen.nils).saturating_sub(keys))
}
