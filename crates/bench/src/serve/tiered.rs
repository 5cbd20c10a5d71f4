//! Row `b`: 2 GiB of 1 KiB values over a DRAM cap of 256 MiB, beside memcached with extstore and Redis on swap.
//!
//! Each server is in a cgroup of cap + 32 MiB. Ours and extstore may not swap at all; Redis has a swap file on the same disk.
//! Each is loaded once and driven a while before its first round of each case, so that all have settled on what is hot. Here is
//! also the stage that rows `c` and `d` play on, and part `cap` of `bench first`.

use crate::Setting;
use crate::load::{KeyChoice, Load, Until, ZIPF};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Side};
use crate::rounds::{CGROUP_SLACK_BYTES, Lineup, Measured, draw, drive, judge_usage, spec};
use crate::server::Peer;
use anyhow::Result;

/// 2 GiB of values of 1 KiB.
pub const KEYS: u64 = 2 << 20;
/// See [`KEYS`].
pub const VALUE_BYTES: usize = 1 << 10;
/// Bound on DRAM.
pub const CAP_BYTES: u64 = 256 << 20;
/// Twice the data, so that the cleaner's work is that of a half-full SSD; it stands in the record's command line.
pub const SSD_BYTES: u64 = 4 << 30;
const CAP_BYTES_MIN: u64 = 32 << 20;
const SSD_BYTES_MIN: u64 = 512 << 20;
const SWAP_BYTES: u64 = 5 << 30;
/// Extstore counts items and little else against its bound: with more than this it outgrows the cgroup.
const EXTSTORE_PERCENT: u64 = 75;
/// What the directories of this stage begin with.
pub const STAGE: &str = "over-cap";
/// Driving before the first round of a case, in round lengths.
const SETTLE_ROUNDS: f64 = 3.0;
/// Bars of row `b`.
const EXTSTORE_RATIO_MIN: f64 = 1.9;
const SWAP_RATIO_MIN: f64 = 4.0;
/// Bars of part `cap`.
const FIRST_SWAP_RATIO_MIN: f64 = 3.0;
/// One read that covers the entry is one.
pub const READS_PER_MISS_MAX: f64 = 1.02;

const EXTSTORES: &[Peer] = &[Peer::Extstore, Peer::ExtstoreRecaching];
/// Beside ours.
pub const ALL: &[Peer] = &[Peer::Extstore, Peer::ExtstoreRecaching, Peer::Redis];
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "latency_p999_us",
    "server_cpu_ns_per_op",
    "misses_per_get",
    "missing_per_get",
    "refused_per_set",
    "device_reads_per_miss",
    "device_write_bytes_per_updated_byte",
    "disk_write_bytes_per_set_byte",
    "disk_reads_per_op",
    "disk_queue_depth",
    "cgroup_peak_bytes",
    "cgroup_oom_kills",
];

/// Loaded servers over their cap.
pub struct Tiered {
    /// Ours is the first.
    pub lineup: Lineup,
    /// How many were loaded.
    pub keys: u64,
    limit_bytes: u64,
}

/// What one case does.
pub struct Case {
    /// In the table.
    pub name: &'static str,
    /// Which keys.
    pub choice: KeyChoice,
    /// Part of GETs.
    pub get_percent: u32,
}

/// A part of that name over the cap.
pub fn part(setting: &Setting, name: &str, what: &str) -> Part {
    let (keys, cap_bytes, _) = sizes(setting);
    let title = format!(
        "{what}; {keys} keys of {VALUE_BYTES} B over a cap of {} MiB in a cgroup of {} MiB, {} connections, 1 in flight",
        cap_bytes >> 20,
        (cap_bytes + CGROUP_SLACK_BYTES) >> 20,
        crate::load::CONNECTIONS
    );
    Part::new(name, &title, COLUMNS)
}

/// Keys, cap and SSD at the run's scale.
pub fn sizes(setting: &Setting) -> (u64, u64, u64) {
    let divisor = setting.options.scale_divisor;
    (
        (KEYS / divisor).max(1_000),
        (CAP_BYTES / divisor).max(CAP_BYTES_MIN),
        (SSD_BYTES / divisor).max(SSD_BYTES_MIN),
    )
}

impl Tiered {
    /// Starts ours and `peers`, each in its cgroup, and loads them.
    pub fn start(setting: &Setting, part: &mut Part, peers: &[Peer]) -> Result<Tiered> {
        let (keys, cap_bytes, ssd_bytes) = sizes(setting);
        let limit_bytes = cap_bytes + CGROUP_SLACK_BYTES;
        let mut lineup = Lineup::default();
        for peer in [Peer::Terrace].iter().chain(peers) {
            let dram_bytes = match peer {
                Peer::Terrace => cap_bytes,
                _ => cap_bytes * EXTSTORE_PERCENT / 100,
            };
            let spec = spec(setting, STAGE, *peer, dram_bytes, ssd_bytes);
            if *peer == Peer::Redis {
                let swap_bytes = SWAP_BYTES / setting.options.scale_divisor;
                lineup.add_swapping(setting, part, &spec, limit_bytes, swap_bytes);
            } else {
                lineup.add(part, &spec, Some(limit_bytes))?;
            }
        }
        let progress = Progress::new(lineup.steps(setting, 0));
        lineup.fill(part, &progress, keys, VALUE_BYTES)?;
        Ok(Tiered {
            lineup,
            keys,
            limit_bytes,
        })
    }

    /// Measures a case in all servers, once each has settled on it.
    pub fn case(&mut self, setting: &Setting, part: &mut Part, case: &Case) -> Result<Measured> {
        self.settle(setting, case)?;
        let progress = Progress::new(self.lineup.steps(setting, 1));
        let load = self.load(setting, case);
        self.lineup.case(setting, part, &progress, case.name, &load)
    }

    /// Drives each server a while, so that it settles on what is hot.
    pub fn settle(&mut self, setting: &Setting, case: &Case) -> Result<()> {
        let load = self.load(setting, case);
        let progress = Progress::new(self.lineup.servers.len() as u64);
        for server in &mut self.lineup.servers {
            progress.step(format!("{}: settling {}", case.name, server.peer().name()));
            let settle = Load {
                until: Until::Seconds(setting.options.seconds * SETTLE_ROUNDS),
                seed: 9,
                ..load
            };
            drive(server, &settle, "settling")?;
        }
        Ok(())
    }

    /// A round of the case.
    pub fn load(&self, setting: &Setting, case: &Case) -> Load {
        Load {
            choice: case.choice,
            get_percent: case.get_percent,
            until: Until::Seconds(setting.options.seconds),
            seed: 200,
            ..Load::of(self.keys, VALUE_BYTES)
        }
    }
}

/// Row `b`.
pub fn over_cap(
    setting: &Setting,
    report: &mut Report,
    tiered: &mut Tiered,
    mut part: Part,
) -> Result<()> {
    for (name, get_percent) in [("95 % GET", 95), ("50 % GET", 50)] {
        let case = Case {
            name,
            choice: ZIPF,
            get_percent,
        };
        let measured = tiered.case(setting, &mut part, &case)?;
        let ops_per_s = |peers: &[Peer]| measured.ratio_to_most(peers, "ops_per_s");
        for (what, side, limit, ratio) in [
            (
                "throughput as a multiple of the better extstore",
                Side::AtLeast,
                EXTSTORE_RATIO_MIN,
                ops_per_s(EXTSTORES),
            ),
            (
                "throughput as a multiple of Redis on swap",
                Side::AtLeast,
                SWAP_RATIO_MIN,
                ops_per_s(&[Peer::Redis]),
            ),
            (
                "p99 as a multiple of the best peer's",
                Side::AtMost,
                1.0,
                measured.ratio_to_least(ALL, "latency_p99_us"),
            ),
        ] {
            let name = format!("b, {name}: {what}");
            report.bars.push(Bar::new(name, side, limit, ratio));
        }
    }
    finish(setting, report, part, tiered);
    Ok(())
}

/// Part `cap` of `bench first`: Zipf and uniform, 95 % GET, beside Redis on swap.
pub fn first(setting: &Setting, report: &mut Report) -> Result<()> {
    let mut part = part(setting, "cap", "95 % GET");
    let mut tiered = Tiered::start(setting, &mut part, &[Peer::Redis])?;
    for (name, choice) in [("Zipf 0.99", ZIPF), ("uniform", KeyChoice::Uniform)] {
        let case = Case {
            name,
            choice,
            get_percent: 95,
        };
        let measured = tiered.case(setting, &mut part, &case)?;
        report.bars.push(Bar::new(
            format!("cap, {name}: throughput as a multiple of Redis on swap"),
            Side::AtLeast,
            FIRST_SWAP_RATIO_MIN,
            measured.ratio_to_most(&[Peer::Redis], "ops_per_s"),
        ));
        report.bars.push(Bar::new(
            format!("cap, {name}: device reads a miss"),
            Side::AtMost,
            READS_PER_MISS_MAX,
            measured.ours("device_reads_per_miss"),
        ));
    }
    finish(setting, report, part, &tiered);
    tiered.lineup.stop()
}

fn finish(setting: &Setting, report: &mut Report, mut part: Part, tiered: &Tiered) {
    let usage = tiered.lineup.add_usage(&mut part);
    judge_usage(report, &part.name, tiered.limit_bytes, usage);
    let title = "2 GiB of 1 KiB values over 256 MiB of DRAM";
    draw(setting, report, &part, title, "ops_per_s");
    draw(setting, report, &part, title, "latency_p99_us");
    report.parts.push(part);
}
