//! `bench policy`: what the policies are worth, in counts of a whole pool over a device in memory.
//!
//! Four parts: `hits`, the share of reads that DRAM answers, beside LRU, FIFO with reinsertion and Belady's optimum given the
//! same bytes; `live`, how much of the DRAM terrace live entries take while the sizes of values change; `written`, bytes
//! written to the device for each byte updated; and `pages`, what a page buffer would gain by seeing each use. No timing: see [`bed`].

mod bed;
mod pages;
mod reference;
mod trace;

use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side};
use crate::{Setting, stop};
use anyhow::Result;
use bed::{Bed, entry_bytes};
use terrace_pool::Stats;
use trace::{Kind, Operation};

/// What may be asked for with `--only`.
pub const PARTS: &[&str] = &["hits", "live", "pages", "written"];

const VALUE_BYTES: usize = 1024;
const MIB: u64 = 1 << 20;
/// Bars.
const LIVE_SHARE_MIN: f64 = 0.9;
const READS_PER_MISS_MAX: f64 = 1.02;
/// How many operations pass between two looks at the wish to stop.
const STOP_EVERY: usize = 1 << 16;

/// Runs the parts that are wanted.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    stop::listen()?;
    report.notes.push(
        "A pool of one lane over memory; its clock passes a second every 50,000 operations.".into(),
    );
    if setting.wants("hits") {
        hits(setting, report)?;
    }
    if setting.wants("live") {
        live(setting, report)?;
    }
    if setting.wants("pages") {
        pages::run(setting, report)?;
    }
    if setting.wants("written") {
        written(setting, report)?;
    }
    Ok(())
}

const HIT_CASES: &[(&str, Kind, u64)] = &[
    ("Zipf 0.99, reads", Kind::Zipf, 0),
    ("Zipf 0.99, 5 % writes", Kind::Zipf, 5),
    ("Zipf 0.99, 50 % writes", Kind::Zipf, 50),
    ("Zipf 0.99, 25 % scan", Kind::ZipfScan, 0),
    ("loop, 1.1 x DRAM", Kind::Loop, 0),
    ("Zipf 0.99, shifting", Kind::Shifting, 0),
    ("uniform, 5 % writes", Kind::Uniform, 5),
];

fn hits(setting: &Setting, report: &mut Report) -> Result<()> {
    let scale = setting.options.scale_divisor;
    let dram_bytes = (48 * MIB / scale).max(24 * MIB);
    let keys = (256 * MIB / scale / entry_bytes(VALUE_BYTES) as u64).max(60_000) as u32;
    let length = (1_000_000 / scale).max(200_000) as usize;
    let title = format!(
        "share of reads answered from DRAM: cap {} MiB, {keys} keys of {VALUE_BYTES} B, {length} operations, the second half counts",
        dram_bytes / MIB
    );
    let columns = &["hit_share", "reads_per_miss", "promoted_per_miss"];
    let mut part = Part::new("hits", &title, columns);
    let progress = Progress::new(HIT_CASES.len() as u64);
    let mut bed = Bed::new(dram_bytes, 512 * MIB)?;
    load(&mut bed, 0..keys, VALUE_BYTES)?;
    for &(case, kind, writes_percent) in HIT_CASES {
        progress.step(case);
        let resident = bed.stats().lanes.dram_bytes as usize / entry_bytes(VALUE_BYTES);
        let trace = trace::make(kind, keys, resident as u32, length, writes_percent);
        let from = length / 2;
        play(&mut bed, &trace[..from])?;
        let before = bed.stats();
        play(&mut bed, &trace[from..])?;
        let (a, b) = (before.lanes, bed.stats().lanes);
        let misses = (b.misses - a.misses) as f64;
        let reads = misses + (b.hits_dram - a.hits_dram) as f64;
        // Updates of cold keys may need a verifying read, counted apart.
        let device_reads = (b.device_reads - a.device_reads) - (b.verify_reads - a.verify_reads);
        let per_miss = device_reads as f64 / misses.max(1.0);
        let mut samples = Samples::default();
        samples.round();
        samples.add("hit_share", 1.0 - misses / reads);
        samples.add("reads_per_miss", per_miss);
        let promoted = (b.promoted_bytes - a.promoted_bytes) as f64;
        let promoted = promoted / entry_bytes(VALUE_BYTES) as f64 / misses.max(1.0);
        samples.add("promoted_per_miss", promoted);
        part.rows.push(Row::measured(case, "terrace", &samples));
        let references: [(&str, reference::Policy); 3] = [
            ("LRU", reference::lru),
            ("FIFO with reinsertion", reference::fifo_reinsertion),
            ("Belady's optimum", reference::belady),
        ];
        for (name, policy) in references {
            stop::check()?;
            let mut samples = Samples::default();
            samples.round();
            samples.add("hit_share", policy(&trace, from, resident));
            part.rows.push(Row::measured(case, name, &samples));
        }
        let name = format!("hits, {case}: device reads a miss");
        let bar = Bar::new(name, Side::AtMost, READS_PER_MISS_MAX, Some(per_miss));
        report.bars.push(bar);
    }
    part.notes
        .push("The others are given what the DRAM terrace holds, and no metadata.".into());
    report.parts.push(part);
    Ok(())
}

fn load(bed: &mut Bed, keys: std::ops::Range<u32>, value_bytes: usize) -> Result<()> {
    for key in keys {
        bed.set(key, value_bytes)?;
    }
    Ok(())
}

fn play(bed: &mut Bed, trace: &[Operation]) -> Result<()> {
    for (at, &(key, write)) in trace.iter().enumerate() {
        if at % STOP_EVERY == 0 {
            stop::check()?;
        }
        match write {
            true => bed.set(key, VALUE_BYTES)?,
            false => bed.get(key)?,
        }
    }
    Ok(())
}

/// Sizes of values before and after, as RAMCloud's loads W1 to W8 (Rumble et al. 2014) have them, scaled to a mean of 1 KiB;
/// the percentage of keys deleted in between; and how keys are chosen.
struct LiveCase {
    name: &'static str,
    before: (usize, usize),
    deleted_percent: u32,
    after: (usize, usize),
    kind: Kind,
}

const LIVE_CASES: &[LiveCase] = &[
    live_case(
        "W2: 900, then 1170",
        (900, 900),
        0,
        (1170, 1170),
        Kind::Uniform,
    ),
    live_case(
        "W3: 900, 90 % deleted, 1170",
        (900, 900),
        90,
        (1170, 1170),
        Kind::Uniform,
    ),
    live_case(
        "W8: 500-1500, 90 % deleted, 500-2500",
        (500, 1500),
        90,
        (500, 2500),
        Kind::Uniform,
    ),
    live_case(
        "W4: 500-1000, then 1000-1500",
        (500, 1000),
        0,
        (1000, 1500),
        Kind::Uniform,
    ),
    live_case(
        "W5: 500-750, 90 % deleted, 1000-1250",
        (500, 750),
        90,
        (1000, 1250),
        Kind::Uniform,
    ),
    live_case(
        "W6: 100-200, 50 % deleted, 700-1400",
        (100, 200),
        50,
        (700, 1400),
        Kind::Uniform,
    ),
    live_case(
        "W7: 700-1400, 90 % deleted, 1000-1700",
        (700, 1400),
        90,
        (1000, 1700),
        Kind::Uniform,
    ),
    live_case("W4, Zipf 0.99", (500, 1000), 0, (1000, 1500), Kind::Zipf),
    live_case("W2, Zipf 0.99", (900, 900), 0, (1170, 1170), Kind::Zipf),
];

const fn live_case(
    name: &'static str,
    before: (usize, usize),
    deleted_percent: u32,
    after: (usize, usize),
    kind: Kind,
) -> LiveCase {
    LiveCase {
        name,
        before,
        deleted_percent,
        after,
        kind,
    }
}

fn live(setting: &Setting, report: &mut Report) -> Result<()> {
    let scale = setting.options.scale_divisor;
    let columns = &["live_share_mean", "live_share_min", "hit_share"];
    let title = "live entries, headers included, of the memory the DRAM terrace holds: half reads, half writes of new sizes";
    let mut part = Part::new("live", title, columns);
    let progress = Progress::new(2 * LIVE_CASES.len() as u64);
    for case in LIVE_CASES {
        // Data that fits almost, and data that is four times too much.
        for (size, data_bytes) in [("1 x DRAM", 88 * MIB), ("3 x DRAM", 264 * MIB)] {
            let name = format!("{}, {size}", case.name);
            progress.step(&name);
            let mut bed = Bed::new(96 * MIB, 768 * MIB)?;
            let keys = (data_bytes / 1100) as u32;
            let operations = (800_000 / scale).max(50_000) as usize;
            let shares = live_one(&mut bed, case, keys, operations)?;
            let mean = shares.0.iter().sum::<f64>() / shares.0.len() as f64;
            let mut samples = Samples::default();
            samples.round();
            samples.add("live_share_mean", mean);
            samples.add(
                "live_share_min",
                shares.0.iter().copied().fold(1.0, f64::min),
            );
            samples.add("hit_share", shares.1);
            part.rows.push(Row::measured(&name, "terrace", &samples));
            let name = format!("live share of DRAM, {name}");
            report
                .bars
                .push(Bar::new(name, Side::AtLeast, LIVE_SHARE_MIN, Some(mean)));
        }
    }
    report.parts.push(part);
    Ok(())
}

/// Plays one load; returns the live share at many moments of its last quarter, and the share of hits in it.
fn live_one(
    bed: &mut Bed,
    case: &LiveCase,
    keys: u32,
    operations: usize,
) -> Result<(Vec<f64>, f64)> {
    let size = |key: u32, turn: usize, (from, to): (usize, usize)| {
        from + (crate::load::mix(u64::from(key) << 32 | turn as u64) % (to - from + 1) as u64)
            as usize
    };
    for key in 0..keys {
        bed.set(key, size(key, 0, case.before))?;
    }
    let trace = trace::make(case.kind, keys, 0, operations, 50);
    for (at, &(key, write)) in trace.iter().enumerate().take(operations / 4) {
        match write {
            true => bed.set(key, size(key, at, case.before))?,
            false => bed.get(key)?,
        }
    }
    for key in (0..keys)
        .filter(|key| crate::load::mix(u64::from(*key)) % 100 < u64::from(case.deleted_percent))
    {
        bed.del(key)?;
    }
    let mut shares = Vec::new();
    let mut before = bed.stats();
    for (at, &(key, write)) in trace.iter().enumerate().skip(operations / 4) {
        match write {
            true => bed.set(key, size(key, at, case.after))?,
            false => bed.get(key)?,
        }
        if at == operations / 4 * 3 {
            before = bed.stats();
        }
        if at > operations / 4 * 3 && at % 10_000 == 0 {
            stop::check()?;
            let s = bed.stats().lanes;
            shares.push(s.dram_live_bytes as f64 / s.dram_bytes as f64);
        }
    }
    let (a, b) = (before.lanes, bed.stats().lanes);
    let hits = (b.hits_dram - a.hits_dram) as f64;
    Ok((shares, hits / (hits + (b.misses - a.misses) as f64)))
}

/// Load, part of the SSD that live entries take in percent, most bytes written a byte updated.
const WRITTEN_CASES: &[(&str, Kind, u64, f64)] = &[
    ("uniform, 50 % full", Kind::Uniform, 50, 1.5),
    ("uniform, 80 % full", Kind::Uniform, 80, 3.1),
    ("Zipf 0.99, 80 % full", Kind::Zipf, 80, 2.0),
];

fn written(setting: &Setting, report: &mut Report) -> Result<()> {
    let ssd_bytes = (1024 * MIB / setting.options.scale_divisor).max(128 * MIB);
    let dram_bytes = (128 * MIB / setting.options.scale_divisor).max(32 * MIB);
    let columns = &[
        "written_per_byte",
        "moved_per_byte",
        "checkpoints_per_byte",
        "staged_per_byte",
        "cleaner_read_per_byte",
        "free_share",
    ];
    let title = format!(
        "bytes written to the device for each byte of keys and values updated, {VALUE_BYTES} B values: SSD {} MiB, cap {} MiB; after 2 x the SSD was written, over 3 x",
        ssd_bytes / MIB,
        dram_bytes / MIB
    );
    let mut part = Part::new("written", &title, columns);
    let progress = Progress::new(WRITTEN_CASES.len() as u64);
    for &(case, kind, full_percent, at_most) in WRITTEN_CASES {
        progress.step(case);
        let keys = (ssd_bytes * full_percent / 100) as usize / entry_bytes(VALUE_BYTES);
        let mut bed = Bed::new(dram_bytes, ssd_bytes)?;
        load(&mut bed, 0..keys as u32, VALUE_BYTES)?;
        let trace = trace::make(kind, keys as u32, 0, 1 << 20, 100);
        let goal = |s: &Stats, times: u64| s.device_write_bytes + times * ssd_bytes;
        let warm = goal(&bed.stats(), 2);
        write_until(&mut bed, &trace, warm)?;
        let a = bed.stats();
        let (end, trace) = (goal(&a, 3), trace::make(kind, keys as u32, 0, 1 << 21, 100));
        write_until(&mut bed, &trace, end)?;
        let b = bed.stats();
        let updated = (b.lanes.updated_bytes - a.lanes.updated_bytes) as f64;
        let per_byte = |before: u64, after: u64| (after - before) as f64 / updated;
        let total = per_byte(a.device_write_bytes, b.device_write_bytes);
        let mut samples = Samples::default();
        samples.round();
        samples.add("written_per_byte", total);
        samples.add(
            "moved_per_byte",
            per_byte(a.lanes.moved_bytes, b.lanes.moved_bytes),
        );
        samples.add(
            "staged_per_byte",
            per_byte(a.lanes.staged_bytes, b.lanes.staged_bytes),
        );
        let images = per_byte(a.lanes.written_image_bytes, b.lanes.written_image_bytes);
        samples.add("checkpoints_per_byte", images);
        let read = per_byte(a.lanes.cleaner_read_bytes, b.lanes.cleaner_read_bytes);
        samples.add("cleaner_read_per_byte", read);
        let free = (b.lanes.ssd_free_segments * (512 << 10)) as f64 / ssd_bytes as f64;
        samples.add("free_share", free);
        part.rows.push(Row::measured(case, "terrace", &samples));
        let name = format!("written for each byte updated, {case}");
        report
            .bars
            .push(Bar::new(name, Side::AtMost, at_most, Some(total)));
    }
    report.parts.push(part);
    Ok(())
}

/// Writes keys of the trace, round and round, until the device has written so many bytes.
fn write_until(bed: &mut Bed, trace: &[Operation], device_write_bytes: u64) -> Result<()> {
    for (at, &(key, _)) in trace.iter().cycle().enumerate() {
        bed.set(key, VALUE_BYTES)?;
        if at % 1024 == 0 {
            stop::check()?;
            if bed.stats().device_write_bytes >= device_write_bytes {
                break;
            }
        }
    }
    Ok(())
}
