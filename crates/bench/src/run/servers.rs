//! Rows `a`, `b`, `c` and the server of `e`: memcached and redis-server, loaded once, then driven in turns with their twins.
//!
//! Promises: both sides are the same binary with the same arguments, loaded with the same keys by the same generator outside of the cgroups, and warmed before
//! the first round of a case. Never: lets a server drop a key; one that is missing fails the run.

use super::{SLACK_BYTES, judge_group, pairs};
use crate::load::{KeyChoice, Load, Until, ZIPF};
use crate::machine::{Disk, need_disk};
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Side};
use crate::rounds::{Lineup, Measured, draw, drive, spec};
use crate::server::{Memory, Peer, Server, Spec};
use crate::steady::Steady;
use crate::swap::SWAP_OVER_DATA;
use crate::{Setting, stop};
use anyhow::{Context, Result};
use std::collections::HashMap;

const VALUE_BYTES: usize = 1 << 10;
const CAP_BYTES: u64 = 512 << 20;
const CAP_BYTES_MIN: u64 = 64 << 20;
/// 4 GiB of values.
const KEYS: u64 = 4 << 20;
/// Values that fit the cap with room to spare.
const KEYS_FITTING: u64 = 128 << 10;
/// The pool on the SSD over the values: as much of the disk as its peer's swap file has.
const SSD_OVER_VALUES: u64 = SWAP_OVER_DATA;
/// Over that, where it forks.
const SSD_OF_FORKS: u64 = 2;
/// Threads of memcached; Redis has one.
const THREADS: usize = 4;
/// Of the first warming run; rounds have 500 and more, another one each.
const WARM_SEED: u64 = 10_000;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "latency_p999_us",
    "server_cpu_ns_per_op",
    "faults_per_op",
    "fault_us",
    "pages_swapped_in_per_op",
    "pages_swapped_out_per_op",
    "disk_reads_per_op",
    "disk_write_bytes_per_op",
    "disk_queue_depth",
    "cgroup_peak_bytes",
    "cgroup_limit_hits",
    "cgroup_oom_kills",
];

/// A load, and what ours must reach over the other side.
pub struct Case {
    name: &'static str,
    get_percent: u32,
    ratio_min: f64,
    p99_max: Option<f64>,
}

/// A server and what is done to it.
#[derive(Clone, Copy)]
pub struct ServerRow {
    /// Its letter.
    pub name: &'static str,
    pub about: &'static str,
    pub peer: fn(Memory) -> Peer,
    pub beside: Memory,
    pub keys: u64,
    pub choice: KeyChoice,
    pub packs: bool,
    pub cases: &'static [Case],
    /// It has room on its SSD for a second version of all that it has, as who forks must; in `dump` it does.
    pub forks: bool,
}

const fn case(name: &'static str, get_percent: u32, ratio_min: f64, p99_max: Option<f64>) -> Case {
    Case {
        name,
        get_percent,
        ratio_min,
        p99_max,
    }
}

/// All rows.
pub const ROWS: &[ServerRow] = &[
    ServerRow {
        name: "a",
        about: "memcached, values that pack by half",
        peer: Peer::MemcachedOn,
        beside: Memory::Swap,
        keys: KEYS,
        choice: ZIPF,
        packs: true,
        cases: &[
            case("95 % GET", 95, 1.3, Some(0.7)),
            case("50 % GET", 50, 1.5, Some(0.7)),
        ],
        forks: false,
    },
    ServerRow {
        name: "b",
        about: "memcached, values that do not pack",
        peer: Peer::MemcachedOn,
        beside: Memory::Swap,
        keys: KEYS,
        choice: ZIPF,
        packs: false,
        cases: &[
            case("95 % GET", 95, 0.9, None),
            case("50 % GET", 50, 0.9, None),
        ],
        forks: false,
    },
    ServerRow {
        name: "c",
        about: "redis-server, values that pack by half",
        peer: Peer::RedisOn,
        beside: Memory::Swap,
        keys: KEYS,
        choice: ZIPF,
        packs: true,
        cases: &[
            case("95 % GET", 95, 1.2, None),
            case("50 % GET", 50, 1.2, None),
        ],
        forks: true,
    },
    ServerRow {
        name: "e",
        about: "memcached, all in DRAM",
        peer: Peer::MemcachedOn,
        beside: Memory::Plain,
        keys: KEYS_FITTING,
        choice: KeyChoice::Uniform,
        packs: true,
        cases: &[
            case("memcached, 95 % GET", 95, 0.97, None),
            case("memcached, 50 % GET", 50, 0.97, None),
        ],
        forks: false,
    },
];

/// What a row comes to at the run's scale.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// How many keys are loaded.
    pub keys: u64,
    pub cap_bytes: u64,
    pub limit_bytes: u64,
    ssd_bytes: u64,
    swap_bytes: u64,
}

impl Sizes {
    /// Of a row.
    pub fn of(setting: &Setting, row: &ServerRow) -> Sizes {
        let divisor = setting.options.scale_divisor;
        let cap_bytes = (CAP_BYTES / divisor).max(CAP_BYTES_MIN);
        let keys = (row.keys / divisor).max(1_000);
        let values_bytes = keys * VALUE_BYTES as u64;
        let ssd_bytes = values_bytes * SSD_OVER_VALUES;
        Sizes {
            keys,
            cap_bytes,
            limit_bytes: cap_bytes + SLACK_BYTES,
            ssd_bytes: (ssd_bytes * if row.forks { SSD_OF_FORKS } else { 1 }).max(cap_bytes * 2),
            swap_bytes: (values_bytes * SWAP_OVER_DATA).max(cap_bytes),
        }
    }
}

/// Runs a row.
pub fn run(setting: &Setting, report: &mut Report, row: &ServerRow) -> Result<()> {
    let sizes = Sizes::of(setting, row);
    let title = format!(
        "{}: {} keys of {VALUE_BYTES} B under a cap of {} MiB in a cgroup of {} MiB, {}, beside {}",
        row.about,
        sizes.keys,
        sizes.cap_bytes >> 20,
        sizes.limit_bytes >> 20,
        match row.choice {
            KeyChoice::Zipf { .. } => "Zipf 0.99",
            _ => "uniform",
        },
        row.beside.name(),
    );
    let mut part = Part::new(row.name, &title, COLUMNS);
    let files_bytes = sizes.ssd_bytes + sizes.swap_bytes;
    need_disk(&setting.work_dir, files_bytes, &format!("row {}", row.name))?;
    let mut lineup = start(setting, &mut part, row, sizes)?;
    let progress = Progress::new(lineup.steps(setting, row.cases.len()));
    fill(&mut lineup, &mut part, &progress, row, sizes)?;
    for (case, measured) in cases(setting, &mut lineup, &mut part, &progress, row, sizes)? {
        judge(report, row, case, &measured);
    }
    let usage = lineup.add_usage(&mut part);
    judge_group(report, row.name, sizes.limit_bytes, usage);
    draw(setting, report, &part, &title, "ops_per_s");
    draw(setting, report, &part, &title, "latency_p99_us");
    report.parts.push(part);
    drop(progress);
    lineup.stop()
}

/// What more DRAM gives where faults cost what the kernel's do: memcached and Redis on swap in a group as large as the others', and in one with twice the cap, which is what a cap would hold of pages
/// that pack by half if packing cost nothing. Nothing is judged: it is what the bars of `a` and `c` are to be seen beside.
pub fn floor(setting: &Setting, report: &mut Report) -> Result<()> {
    for (name, of) in [("floor-memcached", "a"), ("floor-redis", "c")] {
        let row = ROWS.iter().find(|row| row.name == of);
        let row = row.context("no such row")?;
        let row = ServerRow { name, ..*row };
        floor_of(setting, report, &row)?;
    }
    Ok(())
}

fn floor_of(setting: &Setting, report: &mut Report, row: &ServerRow) -> Result<()> {
    let sizes = Sizes::of(setting, row);
    let large_bytes = sizes.limit_bytes + sizes.cap_bytes;
    let title = format!(
        "{}, on swap: {} keys of {VALUE_BYTES} B in cgroups of {} and {} MiB, Zipf 0.99",
        row.about,
        sizes.keys,
        sizes.limit_bytes >> 20,
        large_bytes >> 20
    );
    let mut part = Part::new(row.name, &title, COLUMNS);
    let mut lineup = Lineup::one_at_a_time(1);
    let groups = [
        (Memory::Swap, sizes.limit_bytes),
        (Memory::LargeSwap, large_bytes),
    ];
    for (memory, limit_bytes) in groups {
        let spec = server_spec(setting, row, sizes, memory);
        let swap_bytes = sizes.swap_bytes * 2;
        lineup.add_swapping(setting, &mut part, &spec, limit_bytes, swap_bytes);
    }
    let progress = Progress::new(lineup.steps(setting, row.cases.len()));
    fill(&mut lineup, &mut part, &progress, row, sizes)?;
    cases(setting, &mut lineup, &mut part, &progress, row, sizes)?;
    report.parts.push(part);
    drop(progress);
    lineup.stop()
}

/// Warms for each case, and measures it.
fn cases(
    setting: &Setting,
    lineup: &mut Lineup,
    part: &mut Part,
    progress: &Progress,
    row: &ServerRow,
    sizes: Sizes,
) -> Result<Vec<(&'static Case, Measured)>> {
    let mut all = Vec::new();
    for case in row.cases {
        let load = load(setting, row, sizes, case.get_percent);
        warm(setting, lineup, part, case.name, &load)?;
        let measured = lineup.case(setting, part, progress, case.name, &load)?;
        all.push((case, measured));
    }
    Ok(all)
}

pub(super) fn server_spec(
    setting: &Setting,
    row: &ServerRow,
    sizes: Sizes,
    memory: Memory,
) -> Spec {
    Spec {
        cpu: None,
        threads: THREADS,
        ..spec(
            setting,
            &format!("run-{}", row.name),
            (row.peer)(memory),
            sizes.cap_bytes,
            sizes.ssd_bytes,
        )
    }
}

fn start(setting: &Setting, part: &mut Part, row: &ServerRow, sizes: Sizes) -> Result<Lineup> {
    let mut lineup = Lineup::one_at_a_time(pairs(row.beside));
    let ours = server_spec(setting, row, sizes, Memory::Run);
    lineup.add(part, &ours, Some(sizes.limit_bytes))?;
    let theirs = server_spec(setting, row, sizes, row.beside);
    match row.beside {
        Memory::Swap => {
            let (limit, swap) = (sizes.limit_bytes, sizes.swap_bytes);
            lineup.add_swapping(setting, part, &theirs, limit, swap);
        }
        _ => lineup.add(part, &theirs, Some(sizes.limit_bytes))?,
    }
    Ok(lineup)
}

pub(super) fn fill(
    lineup: &mut Lineup,
    part: &mut Part,
    progress: &Progress,
    row: &ServerRow,
    sizes: Sizes,
) -> Result<()> {
    lineup.each(|server| {
        let name = server.peer().name();
        progress.step(format!("{}: loading, {name}", row.name));
        let rate = fill_one(server, row, sizes.keys)?;
        part.notes
            .push(format!("{name}: loaded at {rate:.0} keys/s"));
        Ok(())
    })
}

fn fill_one(server: &mut Server, row: &ServerRow, keys: u64) -> Result<f64> {
    let load = Load {
        connections: 8,
        in_flight: 32,
        choice: KeyChoice::InOrder { from: 0 },
        get_percent: 0,
        packs: row.packs,
        until: Until::Requests(keys),
        ..Load::of(keys, VALUE_BYTES)
    };
    Ok(drive(server, &load, "loading")?.ops_per_s())
}

pub(super) fn load(setting: &Setting, row: &ServerRow, sizes: Sizes, get_percent: u32) -> Load {
    Load {
        choice: row.choice,
        get_percent,
        packs: row.packs,
        until: Until::Seconds(setting.options.seconds),
        seed: 500,
        ..Load::of(sizes.keys, VALUE_BYTES)
    }
}

/// Drives all in turns until each is steady, and notes how long that took. In turns, since one that stands still while another is warmed finds that much time has passed: memcached takes all that
/// was set before for old then, and a thread of its own moves it to another list, item by item, each a fault: with 40 % of a processor for 12 s after 40.
pub(super) fn warm(
    setting: &Setting,
    lineup: &mut Lineup,
    part: &mut Part,
    case: &str,
    load: &Load,
) -> Result<()> {
    // Where the disk is not known it is steady after the fewest runs.
    let so_far = || Disk::under(&setting.work_dir);
    let mut sides: HashMap<&str, Steady> = HashMap::new();
    let mut seconds = 0.0;
    loop {
        let (mut goes_on, mut run_s) = (false, 0.0);
        lineup.each(|server| {
            stop::check()?;
            let anew = || Steady::anew(&setting.options);
            let steady = sides.entry(server.peer().name()).or_insert_with(anew);
            run_s = steady.run_s;
            let warming = Load {
                until: Until::Seconds(run_s),
                // Other keys than those of the run before, and of those that are measured.
                seed: WARM_SEED + seconds as u64,
                ..*load
            };
            let before = so_far();
            let outcome = drive(server, &warming, "warming")?;
            let did = so_far().zip(before).map(|(now, before)| now.since(before));
            let ops = outcome.ops.max(1) as f64;
            let of =
                |figure: fn(&Disk) -> u64| did.as_ref().map_or(0.0, |did| figure(did) as f64 / ops);
            steady.ran(of(|did| did.reads), of(|did| did.write_bytes));
            goes_on |= steady.next_run_s().is_some();
            Ok(())
        })?;
        seconds += run_s;
        if !goes_on {
            break;
        }
    }
    part.notes
        .push(format!("{case}: all steady after {seconds:.0} s each"));
    Ok(())
}

fn judge(report: &mut Report, row: &ServerRow, case: &Case, measured: &Measured) {
    let beside = (row.peer)(row.beside);
    let name = format!(
        "{}, {}: throughput over {}",
        row.name,
        case.name,
        beside.name()
    );
    let ratio = measured.ratio_to_most(&[beside], "ops_per_s");
    let bar = Bar::new(name, Side::AtLeast, case.ratio_min, ratio);
    report.bars.push(bar);
    if let Some(most) = case.p99_max {
        let name = format!("{}, {}: p99 over {}'s", row.name, case.name, beside.name());
        let ratio = measured.ratio_to_least(&[beside], "latency_p99_us");
        report.bars.push(Bar::new(name, Side::AtMost, most, ratio));
    }
}
