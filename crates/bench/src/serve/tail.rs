//! Row `h`: the tail of latency while the cleaner, checkpoints and growth of the index run, against the same load without them.
//!
//! Two pools of ours hold the same keys under the same cap and get requests at the same fixed rate (an open loop: a late one
//! counts from when it was due). The *quiet* pool has an SSD so large that nothing need be cleaned, and its rounds with a
//! checkpoint are thrown away; the *busy* one has an SSD so full that every round must clean, and some of its writes are of new
//! keys. The counters of each round prove it; when no such round could be had, nothing is judged. DRAM is cleaned in both: the
//! data is larger than it.

use crate::Setting;
use crate::load::{KEY_BYTES, Load, Pace, Until, ZIPF};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, paired_ratio};
use crate::rounds::{draw, drive, fill, round, spec};
use crate::server::{Peer, Server};
use anyhow::Result;
use terrace_log::entry::entry_bytes;

const VALUE_BYTES: usize = 1 << 10;
const CAP_BYTES: u64 = 64 << 20;
const CAP_BYTES_MIN: u64 = 32 << 20;
const BUSY_SSD_BYTES: u64 = 512 << 20;
const BUSY_SSD_BYTES_MIN: u64 = 256 << 20;
/// The quiet SSD, in sizes of the busy one.
const QUIET_FACTOR: u64 = 8;
/// Of the busy SSD, before keys are added.
const FULL_PERCENT: u64 = 70;
/// About a fifth of what the server can do.
const OPS_PER_S: u64 = 20_000;
const GET_PERCENT: u32 = 50;
/// One of so many writes is of a new key, in the busy pool.
const NEW_EVERY: u64 = 10;
/// Rounds are longer than elsewhere: a checkpoint must come in each.
const ROUND_FACTOR: f64 = 2.0;
/// Rounds thrown away, at most, for each one kept.
const TRIES_MAX: u32 = 5;
/// Updates of each key before the first round, so that the busy SSD must be cleaned.
const WARM_UPDATES: u64 = 2;
const RATIO_MAX: f64 = 2.0;
const COLUMNS: &[&str] = &[
    "latency_p99_us",
    "latency_p999_us",
    "latency_p50_us",
    "latency_max_us",
    "ops_per_s",
    "segments_cleaned",
    "checkpoints",
    "new_keys",
    "disk_queue_depth",
];

/// One of the two pools.
struct Pool {
    case: &'static str,
    busy: bool,
    server: Server,
    samples: Samples,
    thrown_away: u32,
    /// Whether each round that was kept is what its pool is for.
    proved: bool,
}

/// Runs the row.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let divisor = setting.options.scale_divisor;
    let cap_bytes = (CAP_BYTES / divisor).max(CAP_BYTES_MIN);
    let busy_bytes = (BUSY_SSD_BYTES / divisor).max(BUSY_SSD_BYTES_MIN);
    let entry_bytes = entry_bytes(KEY_BYTES, VALUE_BYTES, false, false) as u64;
    let keys = busy_bytes * FULL_PERCENT / 100 / entry_bytes;
    let title = format!(
        "{keys} keys of {VALUE_BYTES} B over a cap of {} MiB, Zipf 0.99, {GET_PERCENT} % GET, {OPS_PER_S} requests/s in an open loop; SSD of {} MiB, and of {QUIET_FACTOR} times as much",
        cap_bytes >> 20,
        busy_bytes >> 20
    );
    let mut part = Part::new("h", &title, COLUMNS);
    let progress = Progress::new(2 + 2 * u64::from(setting.options.repeats));
    let mut pools = Vec::new();
    for (case, busy, ssd_bytes) in [
        ("quiet", false, busy_bytes * QUIET_FACTOR),
        ("cleaner, checkpoints, growth", true, busy_bytes),
    ] {
        progress.step(format!("{case}: loading"));
        let name = if busy { "h-busy" } else { "h-quiet" };
        let spec = spec(setting, name, Peer::Terrace, cap_bytes, ssd_bytes);
        let mut server = Server::start_ready(&spec, None)?;
        fill(&mut server, keys, VALUE_BYTES)?;
        let warm = Load {
            get_percent: 0,
            until: Until::Requests(keys * WARM_UPDATES),
            ..Load::of(keys, VALUE_BYTES)
        };
        drive(&mut server, &warm, "filling the SSD")?;
        pools.push(Pool {
            case,
            busy,
            server,
            samples: Samples::default(),
            thrown_away: 0,
            proved: true,
        });
    }
    for repeat in 0..setting.options.repeats {
        for pool in &mut pools {
            progress.step(format!("{}: measuring", pool.case));
            pool.round(setting, keys, 700 + u64::from(repeat))?;
        }
    }
    drop(progress);
    judge(report, &mut part, &pools);
    for pool in pools {
        pool.server.stop()?;
    }
    let title = "The tail while the cleaner, checkpoints and growth run, and without them";
    draw(setting, report, &part, title, "latency_p99_us");
    draw(setting, report, &part, title, "latency_p999_us");
    report.parts.push(part);
    Ok(())
}

fn judge(report: &mut Report, part: &mut Part, pools: &[Pool]) {
    for pool in pools {
        let peer = Peer::Terrace.name();
        let row = Row::measured(pool.case, peer, &pool.samples);
        part.rows.push(row);
        part.notes.push(format!(
            "{}: {} rounds thrown away, because background work was there or was not",
            pool.case, pool.thrown_away
        ));
    }
    let proved = pools.iter().all(|pool| pool.proved);
    for (what, figure) in [("p99", "latency_p99_us"), ("p99.9", "latency_p999_us")] {
        let ratio = paired_ratio(&pools[1].samples, &pools[0].samples, figure);
        report.bars.push(Bar::new(
            format!("h: {what} as a multiple of the quiet pool's"),
            Side::AtMost,
            RATIO_MAX,
            ratio.filter(|_| proved).map(|ratio| ratio.median),
        ));
    }
}

impl Pool {
    /// A round that is what this pool is for, if one comes in [`TRIES_MAX`] tries; else the last one, and nothing is judged.
    fn round(&mut self, setting: &Setting, keys: u64, seed: u64) -> Result<()> {
        for try_number in 1.. {
            let load = Load {
                choice: ZIPF,
                get_percent: GET_PERCENT,
                pace: Pace::Open(OPS_PER_S),
                until: Until::Seconds(setting.options.seconds * ROUND_FACTOR),
                new_every: self.busy.then_some(NEW_EVERY),
                new_from: self.server.dbsize()?,
                seed,
                ..Load::of(keys, VALUE_BYTES)
            };
            let mut one = Samples::default();
            round(&mut self.server, &load, setting, &mut one)?;
            let fits = is_for(self.busy, &one);
            if fits || try_number == TRIES_MAX {
                self.proved &= fits;
                self.samples.append(one);
                return Ok(());
            }
            self.thrown_away += 1;
        }
        Ok(())
    }
}

/// Whether a busy round had all of the background work, or a quiet one none.
fn is_for(busy: bool, round: &Samples) -> bool {
    ["checkpoints", "segments_cleaned", "new_keys"]
        .iter()
        .all(|name| matches!(round.of(name), [grown] if (*grown > 0.0) == busy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_counts_only_for_what_it_was() {
        let of = |checkpoints: f64, cleaned: f64, new: f64| {
            let mut round = Samples::default();
            round.round();
            round.add("checkpoints", checkpoints);
            round.add("segments_cleaned", cleaned);
            round.add("new_keys", new);
            (is_for(true, &round), is_for(false, &round))
        };
        assert_eq!(of(2.0, 30.0, 400.0), (true, false));
        assert_eq!(of(0.0, 0.0, 0.0), (false, true));
        assert_eq!(of(1.0, 0.0, 0.0), (false, false));
        assert_eq!(of(0.0, 30.0, 400.0), (false, false));
    }
}
