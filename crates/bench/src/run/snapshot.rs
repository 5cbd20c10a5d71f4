//! BGSAVE of a Redis under `terrace run` while it serves, and the dump loaded into a plain redis-server.
//!
//! Promises: the plain one must have each key that was there when the save began, with all its bytes, and none that came later. Never: compares with what
//! the saving server says of itself.

use crate::client::{Answer, Client};
use crate::load::{KeyChoice, Load, Until};
use crate::report::{Bar, Part, Report, Side, Summary};
use crate::rounds::{drive, spec};
use crate::server::{Memory, Peer, Server, Spec};
use crate::{Setting, stop};
use anyhow::{Context, Result, bail};
use std::time::Instant;

/// The longest that a save may take.
const SAVE_MAX_S: f64 = 1800.0;
const CLIENT_WAIT_MAX_S: u64 = 60;
/// While it saves, one of so many updates is of a key that was not there.
const NEW_EVERY: u64 = 10;
/// The file that Redis writes.
const DUMP: &str = "dump.rdb";

/// Saves, serves meanwhile, and compares.
pub fn run(
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
    let name = "c: keys of the dump that are wrong, missing or too many";
    let bar = Bar::new(name, Side::AtMost, 0.0, Some(wrong as f64));
    report.bars.push(bar);
    if let Some(row) = part
        .rows
        .iter_mut()
        .find(|row| row.peer == Memory::Run.name())
    {
        let figures = [("bgsave_s", took_s), ("bgsave_ops_per_s", rate)];
        let figures = figures.map(|(name, figure)| (name.to_owned(), Summary::of(&[figure])));
        row.figures
            .extend(figures.into_iter().filter_map(|(name, s)| Some((name, s?))));
    }
    Ok(())
}

/// How many keys differ from what was loaded.
fn compare(setting: &Setting, load: &Load, keys: u64) -> Result<u64> {
    let saved = spec(setting, "run-c", Peer::RedisOn(Memory::Run), 0, 0).dir;
    let plain = Spec {
        cpu: None,
        ..spec(setting, "run-c", Peer::RedisOn(Memory::Plain), 0, 0)
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
